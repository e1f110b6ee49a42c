"""Layers by repetition: where a trace names none, equal sequences of kernels around attentions.

A layer of a transformer runs a norm, products into heads, attention, the product out of it, and a
feed-forward part. Its norm is found once, as the first of the step, by how many products lie
between it and the attention; in backward the same holds from the end. Where no norm precedes the
first attention but that of an embedding, the norms follow, and a layer ends with one. Of layers
that attend in several ways, such as linear attention next to the usual one, those of another way
begin where the kernels of a known layer end. What precedes the first layer and follows the last
one lies outside the layers.

A step may run the model several times (microbatches, tokens): each pass ends with a product of its
own, that of the head, and has as many layers as every other pass of the trace. What can't be
checked so has no label: a layer that differs, a pass whose end isn't there, a stage of a pipeline.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from itertools import pairwise
from typing import Final

import numpy as np

from chopper_core.align.host import Host
from chopper_core.align.labels import Labels
from chopper_core.model.table import MODEL_PHASES, NO_LABEL, Category, Phase, Rule
from chopper_core.util.arrays import Codes, Index, Int32, Mask
from chopper_core.util.grouping import counted, distinct, isin, numbered_rows, run_starts
from chopper_core.util.patterns import late
from chopper_core.work.kernel_classes import ATTENTION_CLASS, kernel_class

MIN_LAYERS: Final = 8
_MAX_LAYERS: Final = 256
_MAX_KINDS: Final = 4
"""Kinds of layers that alternate, such as those with a window and those without."""
_RARE: Final = 8
"""A sequence between attentions this many times rarer than all of them ends a pass."""
_OWN_PRODUCTS: Final = 2
"""At least so many products follow the attention of a layer: out of it, and feed-forward."""
_APART_NS: Final = 1_000_000_000
"""So long without work separates programs; no pass of a model spans it."""
_QUANTIZED: Final = late(r"<\((?:ggml_type|mmq_q8_1_ds_layout)\)[^>]*>")
"""llama.cpp quantizes the weights of some layers finer: the same kernel of another type."""
OUTSIDE: Final = -2
UNKNOWN: Final = -1


class Role(IntEnum):
    """What a kernel does in a layer."""

    OTHER = 0
    NORM = 1
    PRODUCT = 2
    ATTENTION = 3
    TANH = 4
    EMBEDDING = 5


OPERATIONS: Final = ("", "attn_n", "qkv_ip", "attn_fa", "attn_op", "mlp_n")
"""What the place of a kernel in its layer says; nothing for the first."""
_ROLES: Final = {
    "norm": Role.NORM,
    "gemm": Role.PRODUCT,
    ATTENTION_CLASS: Role.ATTENTION,
    "embedding": Role.EMBEDDING,
}


def label_repeats(host: Host, layers: Labels, iterations: Labels, phases: Labels) -> Index:
    """Label the layers of steps that repeat a sequence of kernels, if no layer is known.

    Returns the operation of each activity by its place in such a layer, a position in `OPERATIONS`.
    """
    activities = host.trace.activities
    operation = np.zeros(len(activities), np.intp)
    if not layers.missing().all() or layers.rules.any() or not len(activities):
        return operation
    role = host.by_kernel(_role_of)
    role[activities.category != Category.KERNEL] = Role.OTHER
    is_backward = phases.codes == Phase.BACKWARD
    is_body = isin(phases.codes, MODEL_PHASES)
    if not isin(phases.codes, (Phase.BACKWARD, Phase.OPTIMIZER)).any():
        is_body |= phases.missing()
    attends = (role == Role.ATTENTION) & is_body
    # In backward these run the forward again, for the layer whose backward follows.
    forward = distinct(activities.name[attends & ~is_backward])
    again = attends & is_backward & isin(activities.name, forward)
    role[again], attends[again] = Role.OTHER, False
    if attends.sum() < MIN_LAYERS or _has_stages(host):
        return operation
    code_of = dict[str, int]()
    kernel = host.by_kernel(
        lambda name: code_of.setdefault(_QUANTIZED.sub("", name), len(code_of))
    ).astype(np.int32)
    step = numbered_rows((iterations.codes, np.where(is_body, phases.codes, len(Phase))))
    counts, labelled = set[int](), list[tuple[Index, Index]]()
    # Attention runs in one stream of each step; what runs next to it stays unlabelled.
    for code in distinct(step[attends]).tolist():
        own = np.flatnonzero((step == code) & is_body)
        lanes, sizes = counted(host.lane[own[attends[own]]])
        rows = own[host.lane[own] == lanes[sizes.argmax()]]
        rows = rows[np.argsort(activities.start_ns[rows], kind="stable")]
        pauses = np.flatnonzero(np.diff(activities.start_ns[rows]) > _APART_NS) + 1
        for part in np.split(rows, pauses):
            rows = part[::-1] if is_backward[part[0]] else part
            named = iterations.codes[rows[0]] != NO_LABEL
            found = layers_of(role[rows], kernel[rows], one_step=bool(named))
            if (found != UNKNOWN).any():
                counts.add(int(found.max()))
                labelled.append((rows, found))
    # A model has one number of layers; where steps disagree, some are cut or run no layers.
    for rows, found in labelled if len(counts) == 1 else ():
        layers.codes[rows] = np.where(found >= 0, found, NO_LABEL)
        layers.rules[rows] = Rule.REPETITION
        if not is_backward[rows[0]]:
            operation[rows] = operations_of(role[rows], found)
    return operation


def _role_of(name: str) -> Role:
    known = _ROLES.get(kernel_class(name))
    return known if known is not None else Role.TANH if "tanh" in name else Role.OTHER


def _has_stages(host: Host) -> bool:
    """Whether GPUs pass activations on: the layers of a stage have numbers that nothing shows."""
    return bool(host.of_class("send_recv").any())


def operations_of(role: Codes, layer: Index) -> Index:
    """Positions in `OPERATIONS` of kernels in order, by what precedes and follows an attention.

    The product after it is the one out of it only where a norm and further products follow.
    """
    found, known = np.zeros(len(role), np.intp), dict[bytes, Index]()
    bounds = run_starts(layer)
    for low, high in pairwise([*bounds.tolist(), len(layer)]):
        if layer[low] < 0:
            continue
        own = role[low:high]
        key = own.tobytes()
        if key not in known:
            known[key] = _operations_in(own)
        found[low:high] = known[key]
    return found


def _operations_in(role: Codes) -> Index:
    found = np.zeros(len(role), np.intp)
    attention, products = (np.flatnonzero(role == one) for one in (Role.ATTENTION, Role.PRODUCT))
    norms = np.flatnonzero(role == Role.NORM)
    found[attention] = OPERATIONS.index("attn_fa")
    found[norms[norms < products[0]]] = OPERATIONS.index("attn_n")
    if (products < attention[0]).sum() == 1:
        found[products[0]] = OPERATIONS.index("qkv_ip")
    out, following = products[products > attention[-1]][:2]
    between = norms[(norms > out) & (norms < following)]
    if len(between):
        found[out], found[between] = OPERATIONS.index("attn_op"), OPERATIONS.index("mlp_n")
    return found


def layers_of(role: Index, kernel: Int32, *, one_step: bool) -> Index:
    """The layer of each kernel of a stream in order; OUTSIDE or UNKNOWN where there is none.

    Each pass of the model starts with layer 0; all have as many, but for those that the profile
    cuts: a last one begins as the others, a first one ends as they do. `one_step` may be one pass.
    """
    found = _layers_of_passes(role, kernel, one_step=one_step)
    anchors = np.flatnonzero(role == Role.ATTENTION)
    if one_step or (found != UNKNOWN).any() or len(anchors) < MIN_LAYERS:
        return found
    pieces = _passes(anchors, kernel)
    last, following = (pieces[0][-1], pieces[1][0]) if len(pieces) > 2 else (0, 0)
    # One of the products in between is that of the head, after which the second pass begins.
    for begin in (last + 1 + np.flatnonzero(role[last:following] == Role.PRODUCT)).tolist():
        rest = _layers_of_passes(role[begin:], kernel[begin:], one_step=False)
        starts = np.flatnonzero(np.diff((rest == 0).astype(np.int8), prepend=0) > 0)
        period = int(starts[1] - starts[0]) if len(starts) > 1 else 0
        if period and (kernel[:begin] == kernel[period : period + begin]).all():
            found[begin:] = rest
            for row in reversed(range(begin)):
                found[row] = found[row + period]
            break
    return found


def _layers_of_passes(role: Index, kernel: Int32, *, one_step: bool) -> Index:
    """The layers of passes of which the first is whole."""
    found = np.full(len(role), UNKNOWN, np.intp)
    products = np.cumsum(role == Role.PRODUCT)
    attention = np.flatnonzero(role == Role.ATTENTION)
    # Kernels that share an attention have no product between them.
    anchors = attention[np.diff(products[attention], prepend=-1) > 0]
    if len(anchors) < MIN_LAYERS:
        return found
    pieces = _passes(anchors, kernel)
    if one_step and len({len(piece) for piece in pieces}) != 1:
        pieces = [anchors]
    is_cut = len(pieces) > 1 and len(pieces[-1]) < len(pieces[0])
    counts = {len(piece) for piece in (pieces[:-1] if is_cut else pieces)}
    begins = np.cumsum([0, *map(len, pieces[:-1])])
    starts = _starts(anchors, begins, kernel, role, products)
    if starts is None or len(counts) != 1 or not MIN_LAYERS <= counts.pop() <= _MAX_LAYERS:
        return found
    own = np.split(starts, begins[1:])
    inside, tails = found.copy(), set[bytes]()
    for piece, begins, following in zip(pieces, own, [*own[1:], None], strict=True):
        if is_cut and following is None:
            first, low = own[0][0], begins[0]
            like, prologue = slice(first, first + len(role) - low), kernel[:first]
            repeats = (kernel[like] == kernel[low:]).all() and len(prologue)
            if not repeats or (kernel[low - len(prologue) : low] != prologue).any():
                return found
            inside[low:] = inside[like]
            break
        limit = len(role) if following is None else int(following[0])
        end = _end_of_last(begins, limit, kernel, products, piece)
        if end is None:
            return found
        head = np.flatnonzero(role[end:limit] == Role.PRODUCT)
        if not len(head):
            return found
        tails.add(kernel[end : end + head[0] + 1].tobytes())
        sizes = np.diff([*begins, end])
        inside[begins[0] : end] = np.repeat(np.arange(len(begins)), sizes)
    return np.where(inside == UNKNOWN, OUTSIDE, inside) if len(tails) == 1 else found


def _passes(anchors: Index, kernel: Int32) -> list[Index]:
    """The attentions of each pass of the model: between passes lies a sequence that is rare."""
    between = [kernel[low:high].tobytes() for low, high in pairwise(anchors)]
    counts = Counter(between)
    cuts = [
        place + 1
        for place, sequence in enumerate(between)
        if counts[sequence] * _RARE <= len(between)
    ]
    return np.split(anchors, cuts)


def _starts(
    anchors: Index, begins: Index, kernel: Int32, role: Index, products: Index
) -> Index | None:
    """The first kernel of each layer: the norm as many products before its attention as the first.

    `begins` are the places of the passes' first attentions. None where a layer has no such norm.
    """
    is_norm: Mask = role == Role.NORM
    norms = np.flatnonzero(is_norm)
    first = norms[norms < anchors[0]]
    depth = products[anchors[0]] - products[first[0]] if len(first) else 0
    if not len(first) or _has_pooler(anchors, begins, int(first[0]), kernel, role, products):
        return _after_norms(anchors, begins, kernel, norms, products)
    after = np.flatnonzero(~is_norm[first[0] :])
    width = int(after[0]) if len(after) else 1
    # The last norm with so many products after it.
    place = np.searchsorted(products[norms], products[anchors] - depth, "right") - 1
    starts = norms[place]
    if (other := kernel[anchors] != kernel[anchors[0]]).any():
        _of_other_kinds(starts, anchors, begins, kernel, norms, other)
    elif (products[anchors] - products[starts] != depth).any():
        return None
    if depth < 1 or (place < 0).any() or (starts < 0).any():
        return None
    for _ in range(width - 1):
        starts = np.where(is_norm[starts - 1] & (starts > first[0]), starts - 1, starts)
    return starts if (starts[1:] > anchors[:-1]).all() else None


def _has_pooler(
    anchors: Index, begins: Index, first: int, kernel: Int32, role: Index, products: Index
) -> bool:
    """Whether the product after the last layer is that of an encoder such as BERT: before a tanh or
    another norm. The norm before its first layer is that of the embedding; its layers end with one.
    """
    whole = anchors[: begins[1]] if len(begins) > 1 else anchors
    sizes, lead = np.diff(products[whole]), anchors[0] - first
    like = slice(anchors[1] - lead + 1, anchors[1]) if len(sizes) else slice(0)
    if (
        not len(sizes)
        or (sizes != sizes[0]).any()
        or role[like.start - 1] != Role.NORM
        or not np.array_equal(kernel[like], kernel[first + 1 : anchors[0]])
    ):
        return False
    depth = products[anchors[0]] - products[first]
    low = products[whole[-1]] + sizes[0] - depth
    high = products[anchors[len(whole)]] - depth if len(begins) > 1 else products[-1]
    heads = np.flatnonzero(role == Role.PRODUCT)[low:high]
    if not len(heads):
        return False
    after = role[heads[0] :]
    is_tanh = after[np.argmax(after != Role.PRODUCT)] == Role.TANH
    # Encoders of images have such a pooler too, but layers that begin with their norm.
    is_text = (role[: anchors[0]] == Role.EMBEDDING).any()
    return bool((is_tanh and is_text) or (role[heads[0] : heads[-1]] == Role.NORM).any())


_ENDING: Final = 3
"""Kernels that end a layer."""
_LONGEST_ENDING: Final = 16


def _of_other_kinds(
    starts: Index, anchors: Index, begins: Index, kernel: Int32, norms: Index, other: Mask
) -> None:
    """Put layers with another kind of attention than the first where known layers end; else -1."""
    known = np.delete(starts, np.append(begins, np.flatnonzero(other))).tolist()

    def endings(places: list[int], length: int) -> list[bytes]:
        return [kernel[at - length : at].tobytes() for at in places if at >= length]

    for place in np.flatnonzero(other).tolist():
        low, high = np.searchsorted(norms, (anchors[place - 1], anchors[place])).tolist()
        own = norms[low:high].tolist()
        # The norm inside a layer may follow the same kernels, but not as many of them.
        for length in range(_ENDING, _LONGEST_ENDING):
            wanted = set(endings(known, length))
            own = [at for at in own if set(endings([at], length)) <= wanted]
            if len(wanted) != 1 or len(own) < 2:
                break
        starts[place] = own[0] if len(wanted) == len(own) == 1 else -1


def _after_norms(
    anchors: Index, begins: Index, kernel: Int32, norms: Index, products: Index
) -> Index | None:
    """The first kernel of each layer where norms end them: what follows the norm before."""
    others = np.delete(np.arange(len(anchors)), begins)
    place = np.searchsorted(norms, anchors[others]) - 1
    if (place < 0).any() or (norms[place] <= anchors[others - 1]).any():
        return None
    starts = np.zeros(len(anchors), np.intp)
    starts[others] = norms[place] + 1
    # The first layer of a pass begins like the others, after the embedding.
    like = kernel[starts[1] : anchors[1]][::-1]
    for first in begins.tolist():
        lead = kernel[max(anchors[first] - len(like), 0) : anchors[first]][::-1]
        differs = np.flatnonzero(lead != like[: len(lead)])
        starts[first] = anchors[first] - (int(differs[0]) if len(differs) else len(lead))
    depth = products[anchors] - products[starts - 1]
    return starts if starts.min() > 0 and depth[0] > 0 and (depth == depth[0]).all() else None


def _end_of_last(
    starts: Index, limit: int, kernel: Int32, products: Index, anchors: Index
) -> int | None:
    """Where the last layer ends: it repeats another one; None if the layers don't repeat.

    The first may differ, if it isn't longer. A sequence that contains another one and continues, or
    a layer that begins after the last one, shows that these aren't the layers.
    """
    ends = starts[1:]
    if (products[ends - 1] - products[anchors[:-1]] < _OWN_PRODUCTS).any():
        return None
    first, *others = (kernel[low:high].tobytes() for low, high in pairwise(starts))
    kinds = set(others)
    rest = kernel[starts[-1] : limit].tobytes()
    same = [each for each in kinds if rest.startswith(each)]
    if (
        len(kinds) > _MAX_KINDS
        or len(same) != 1
        or min(Counter([*others, *same]).values()) == 1
        or len(first) > max(map(len, kinds))
        or any(a != b and a.startswith(b) for a in {*kinds, first} for b in kinds)
    ):
        return None
    tail = rest[len(same[0]) :]
    if any(each.startswith(tail) for each in kinds):
        return None
    return int(starts[-1]) + len(same[0]) // kernel.itemsize
