"""Layers by repetition: where a trace names none, equal sequences of kernels around attentions.

A layer of a transformer runs a norm, products into heads, attention, the product out of it, and a
feed-forward part. Its norm is found once, as the first of the step, by how many products lie
between it and the attention; in backward the same holds from the end. What precedes the first layer
and follows the last one lies outside the layers. Sequences that don't repeat leave no label.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from itertools import pairwise
from typing import Final

import numpy as np

from chopper_core.align.host import Host
from chopper_core.align.kernel_classes import ATTENTION_CLASS, kernel_class
from chopper_core.align.labels import Labels, numbered
from chopper_core.model.table import MODEL_PHASES, NO_LABEL, Category, Phase, Rule
from chopper_core.util.arrays import Index, Int32, Mask
from chopper_core.util.grouping import counted, distinct, run_starts

MIN_LAYERS: Final = 8
_MAX_LAYERS: Final = 256
_MAX_KINDS: Final = 4
"""Kinds of layers that alternate, such as those with a window and those without."""
_REPEATED: Final = 0.8
"""Share of the layers that others repeat exactly."""
_RARE: Final = 8
"""A sequence between attentions this many times rarer than all of them ends a step."""
_OWN_PRODUCTS: Final = 2
"""At least so many products follow the attention of a layer: out of it, and feed-forward."""
OUTSIDE: Final = -2
UNKNOWN: Final = -1


class Role(IntEnum):
    """What a kernel does in a layer."""

    OTHER = 0
    NORM = 1
    PRODUCT = 2
    ATTENTION = 3


OPERATIONS: Final = ("", "attn_n", "qkv_ip", "attn_fa", "attn_op", "mlp_n")
"""What the place of a kernel in its layer says; nothing for the first."""
_ROLES: Final = {"norm": Role.NORM, "gemm": Role.PRODUCT, ATTENTION_CLASS: Role.ATTENTION}


def label_repeats(host: Host, layers: Labels, iterations: Labels, phases: Labels) -> Index:
    """Label the layers of steps that repeat a sequence of kernels, if no layer is known.

    Returns the operation of each activity by its place in such a layer, a position in `OPERATIONS`.
    """
    activities = host.trace.activities
    operation = np.zeros(len(activities), np.intp)
    if not layers.missing().all() or layers.rules.any() or not len(activities):
        return operation
    role = host.by_kernel(lambda name: _ROLES.get(kernel_class(name), Role.OTHER))
    role[activities.category != Category.KERNEL] = Role.OTHER
    attends = role == Role.ATTENTION
    if attends.sum() < MIN_LAYERS:
        return operation
    is_body = np.isin(phases.codes, (*MODEL_PHASES, NO_LABEL))
    step = numbered((iterations.codes, np.where(is_body, phases.codes, len(Phase))))
    # Attention runs in one stream of each step; what runs beside it stays unlabelled.
    for code in distinct(step[attends & is_body]).tolist():
        own = np.flatnonzero((step == code) & is_body)
        lanes, counts = counted(host.lane[own[attends[own]]])
        rows = own[host.lane[own] == lanes[counts.argmax()]]
        rows = rows[np.argsort(activities.start_ns[rows], kind="stable")]
        is_backward = phases.codes[rows[0]] == Phase.BACKWARD
        rows = rows[::-1] if is_backward else rows
        named = iterations.codes[rows[0]] != NO_LABEL
        found = layers_of(role[rows], activities.name[rows], one_step=bool(named))
        layers.codes[rows] = np.where(found >= 0, found, NO_LABEL)
        layers.rules[rows[found != UNKNOWN]] = Rule.REPETITION
        if not is_backward:
            operation[rows] = operations_of(role[rows], found)
    return operation


def operations_of(role: Index, layer: Index) -> Index:
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


def _operations_in(role: Index) -> Index:
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

    Of several steps, each starts with layer 0; all have as many.
    """
    found = np.full(len(role), UNKNOWN, np.intp)
    products = np.cumsum(role == Role.PRODUCT)
    attention = np.flatnonzero(role == Role.ATTENTION)
    # Kernels that share an attention have no product between them.
    anchors = attention[np.diff(products[attention], prepend=-1) > 0]
    if len(anchors) < MIN_LAYERS:
        return found
    pieces = [anchors] if one_step else _steps(anchors, kernel)
    starts = _starts(anchors, role, products)
    if starts is None or len({len(piece) for piece in pieces}) != 1:
        return found
    own = np.split(starts, np.cumsum([len(piece) for piece in pieces])[:-1])
    inside = found.copy()
    for piece, begins, following in zip(pieces, own, [*own[1:], None], strict=True):
        limit = len(role) if following is None else int(following[0])
        end = _end_of_last(begins, limit, kernel, products, piece)
        if end is None or not MIN_LAYERS <= len(begins) <= _MAX_LAYERS:
            return found
        sizes = np.diff([*begins, end])
        inside[begins[0] : end] = np.repeat(np.arange(len(begins)), sizes)
    return np.where(inside == UNKNOWN, OUTSIDE, inside)


def _steps(anchors: Index, kernel: Int32) -> list[Index]:
    """The attentions of each step: between steps lies a sequence that is rare."""
    between = [kernel[low:high].tobytes() for low, high in pairwise(anchors)]
    counts = Counter(between)
    cuts = [
        place + 1
        for place, sequence in enumerate(between)
        if counts[sequence] * _RARE <= len(between)
    ]
    return np.split(anchors, cuts)


def _starts(anchors: Index, role: Index, products: Index) -> Index | None:
    """The first kernel of each layer: the norm as many products before its attention as the first.

    None where a layer has no such norm.
    """
    is_norm: Mask = role == Role.NORM
    norms = np.flatnonzero(is_norm)
    first = norms[norms < anchors[0]]
    if not len(first):
        return None
    depth = products[anchors[0]] - products[first[0]]
    after = np.flatnonzero(~is_norm[first[0] :])
    width = int(after[0]) if len(after) else 1
    # The last norm with so many products after it.
    place = np.searchsorted(products[norms], products[anchors] - depth, "right") - 1
    starts = norms[place]
    if depth < 1 or (place < 0).any() or (products[anchors] - products[starts] != depth).any():
        return None
    for _ in range(width - 1):
        starts = np.where(is_norm[starts - 1] & (starts > first[0]), starts - 1, starts)
    return starts if (starts[1:] > anchors[:-1]).all() else None


def _end_of_last(
    starts: Index, limit: int, kernel: Int32, products: Index, anchors: Index
) -> int | None:
    """Where the last layer ends: it repeats another one; None if the layers don't repeat."""
    ends = starts[1:]
    if (products[ends - 1] - products[anchors[:-1]] < _OWN_PRODUCTS).any():
        return None
    sequences = [kernel[low:high].tobytes() for low, high in pairwise(starts)]
    counts = Counter(sequences)
    repeated = {each: count for each, count in counts.items() if count > 1}
    if len(repeated) > _MAX_KINDS or sum(repeated.values()) < _REPEATED * len(sequences):
        return None
    rest = kernel[starts[-1] : limit].tobytes()
    same = [len(each) for each in repeated if rest.startswith(each)]
    return int(starts[-1]) + max(same) // kernel.itemsize if same else None
