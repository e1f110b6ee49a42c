"""Layers and operations from the frames of `nn.Module` calls."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.host import BACKWARD_NODE, Host
from chopper_core.align.labels import NOWHERE, Intervals, Labels, parents
from chopper_core.align.steps import ANNOTATIONS
from chopper_core.model.table import BETWEEN_MODULES, NO_LABEL, Rule
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.grouping import distinct, isin
from chopper_core.util.patterns import late, matched_group

_FRAME: Final = late(r"^nn\.Module: (?P<class>.+)_(?P<number>\d{1,9})$")
_BLOCK: Final = late(r"(?:DecoderLayer|TransformerBlock|Block|EncoderLayer|Layer)$")
_ATTENTION: Final = late(r"attn|attention", re.IGNORECASE)
_FEED_FORWARD: Final = late(r"mlp|ffn|feed_?forward", re.IGNORECASE)
_LINEAR: Final = late(r"linear|conv1d", re.IGNORECASE)
_NORM: Final = late(r"norm", re.IGNORECASE)
_EMBEDDING: Final = late(r"^(?:\w*Token|VocabParallel|Parallel)?Embedding$")
_HEAD: Final = late(r"linear|lm_?head", re.IGNORECASE)
_TELLING: Final = late(r"QKV\w{0,99}Linear|Merged\w{0,99}Linear")
"""Classes of projections that name what they project."""
_CONTAINER: Final = late(r"GraphModule|CompiledFxGraph|CUDAGraph|OptimizedModule|PiecewiseBackend")
"""Classes of compiled code and replayed graphs: what runs in them has other names."""
_LOSS: Final = late(r"CrossEntropy|(?:^|Chunked|Fused)\w{0,99}Loss$")
_ACTIVATION: Final = late(r"silu|gelu|relu|swish", re.IGNORECASE)
_ATTENTION_LINEARS: Final = {
    4: ("q_ip", "k_ip", "v_ip", "attn_op"),
    3: ("q_ip", "kv_ip", "attn_op"),
    2: ("qkv_ip", "attn_op"),
}
_FEED_FORWARD_LINEARS: Final = {3: ("mlp_gp", "mlp_up", "mlp_dp"), 2: ("mlp_up", "mlp_dp")}
_LAYER_NORMS: Final = {2: ("attn_n", "mlp_n"), 1: ("attn_n",)}
_OUTSIDE: Final = (
    (re.compile(r"^aten::embedding$"), "ie"),
    (re.compile(r"^aten::cross_entropy_loss$|CrossEntropy\w{0,99}$|cross_entropy"), "cel"),
    (re.compile(r"^aten::(?:linear|mm|addmm)$"), "lp"),
)
"""Operators of a language model that no module of their own runs, outside its layers."""

_LONGEST_PATH: Final = 512
"""Characters of a path of modules; those deeper in count as its last one."""
_SUM: Final = late(r"^aten::add_?$")
_RESIDUALS: Final = ("attn_ra", "mlp_ra")


class Modules(Struct, frozen=True):
    """The module frames as intervals, valued with the layer and with the operation."""

    layers: Intervals
    """Calls of blocks; NOWHERE if their order is unknown."""
    holders: Intervals
    """Calls of modules that hold the blocks: work in them, but in no block, has no layer."""
    operations: Intervals
    """All calls; values point into `operation_names`, NO_LABEL for the holders of blocks."""
    operation_names: tuple[str, ...]
    paths: tuple[str, ...]
    """The classes of the modules around a call and its own, outermost first."""
    path: Index
    """Of each call: a position in `paths`."""
    has_roles: bool
    """Whether operations have standard names, after their place in a language model."""

    def around(self, host: Host, first: int) -> Float64:
        """The path of the modules around each activity's launch, or that of its forward.

        Paths are numbered from `first`; NaN without any.
        """
        labels, points = Labels.none(len(host.captured)), host.captured
        calls = replace(self.operations, value=self.path)
        forward = host.backward.forward.take(host.linked)
        labels.fill_around(calls, points, forward, Rule.MODULE)
        return np.where(labels.missing(), np.nan, labels.codes + first)

    def own_operators(self, host: Host, code: Callable[[str], int]) -> Intervals:
        """The operators that a model runs outside its blocks, or a block itself, as operations.

        Outside these are embedding, head and loss. Of a block's own two sums the first is the
        residual of attention, the second that of the feed-forward part.
        """
        rows = host.operators
        starts = host.starts(rows)
        outside = self.layers.innermost(starts) == NOWHERE
        held = self.holders.innermost(starts) != NOWHERE
        found = self._residuals(host, code)
        for pattern, name in _OUTSIDE:
            where = outside & host.named(pattern)[rows] & (held | (name == "cel"))
            for row in rows[where].tolist():
                found.setdefault(row, code(name))
        return host.intervals(
            np.fromiter(found, np.intp, len(found)),
            np.fromiter(found.values(), np.intp, len(found)),
        )

    def _residuals(self, host: Host, code: Callable[[str], int]) -> dict[int, int]:
        """The sums that a block runs itself, two per call, by row."""
        rows = host.operators[host.named(_SUM)[host.operators]]
        rows = rows[np.argsort(host.ranges.start_ns[rows], kind="stable")]
        starts = host.starts(rows)
        call, inner = (
            replace(ranges, value=np.arange(len(ranges))).innermost(starts)
            for ranges in (self.layers, self.operations)
        )
        own = np.flatnonzero(call != NOWHERE)
        own = own[self.operations.start_ns[inner[own]] == self.layers.start_ns[call[own]]]
        of_call: dict[int, list[int]] = defaultdict(list)
        for row, number in zip(rows[own].tolist(), call[own].tolist(), strict=True):
            of_call[number].append(row)
        return {
            row: code(name)
            for sums in of_call.values()
            if len(sums) == len(_RESIDUALS)
            for row, name in zip(sums, _RESIDUALS, strict=True)
        }


class _Calls(Struct, frozen=True):
    """The calls of modules in order of their start."""

    instances: list[str]
    classes: list[str]
    parent: Index
    """Position of the call that holds each one, or NOWHERE."""
    start_ns: Int64
    end_ns: Int64
    is_block: Mask
    holds: Mask
    """Calls that hold blocks, and lie in none."""


def read_modules(host: Host) -> Modules:
    """The layers and operations of a trace's modules.

    A module's number counts the instances of its class in the order of their first call, which is
    the order of the layers only if that was in a forward: the layer of a block is its place in a
    forward that calls all of them. The order of the projections inside attention and feed-forward
    modules identifies them.
    """
    rows = host.modules[np.argsort(host.ranges.start_ns[host.modules], kind="stable")]
    calls = _calls(host, rows)
    blocks = calls.is_block
    place = _places_in_forward(
        [calls.instances[at] for at in np.flatnonzero(blocks).tolist()],
        np.searchsorted(_beginnings(host, calls), calls.start_ns[blocks], "right"),
        _in_backward(host, rows[blocks]),
    )
    layers = [place.get(calls.instances[at], NOWHERE) for at in np.flatnonzero(blocks).tolist()]
    roles = _roles(calls)
    operations = [
        roles.get(instance, name)
        for instance, name in zip(calls.instances, calls.classes, strict=True)
    ]
    names = {name: code for code, name in enumerate(dict.fromkeys(operations))}
    codes = np.array([names[name] for name in operations], np.intp)
    paths = [*calls.classes]
    # Of calls that begin together, the longest is around the others.
    for at in np.lexsort((-calls.end_ns, calls.start_ns)).tolist():
        if (parent := int(calls.parent[at])) != NOWHERE:
            above = paths[parent]
            is_deep = len(above) > _LONGEST_PATH
            paths[at] = above if is_deep else f"{above}{BETWEEN_MODULES}{paths[at]}"
    code_of = {path: code for code, path in enumerate(dict.fromkeys(paths))}
    is_container = [_CONTAINER.search(name) is not None for name in calls.classes]
    codes[calls.holds | np.array(is_container, np.bool_)] = NO_LABEL
    return Modules(
        layers=host.intervals(rows[blocks], np.array(layers, np.intp)),
        holders=host.intervals(rows[calls.holds]),
        operations=host.intervals(rows, codes),
        operation_names=tuple(names),
        paths=tuple(code_of),
        path=np.array([code_of[path] for path in paths], np.intp),
        has_roles=bool(roles),
    )


def _calls(host: Host, rows: Index) -> _Calls:
    instances = [host.text(row).removeprefix("nn.Module: ") for row in rows]
    classes = [
        matched_group(_FRAME, host.text(row), "class") or instance
        for row, instance in zip(rows, instances, strict=True)
    ]
    parent = parents(host.intervals(rows))
    # The class of the layers is the most frequent one with a layer's name.
    numbers = Counter(name for name, _ in set(zip(classes, instances, strict=True)))
    candidates = [(count, name) for name, count in numbers.items() if _BLOCK.search(name)]
    block = max(candidates, default=(0, ""))[1]
    # A class without a number is that of one module, or of all: its calls can't be counted.
    is_block = np.array(
        [name == block != instance for name, instance in zip(classes, instances, strict=True)],
        np.bool_,
    )
    holds = np.zeros(len(parent), np.bool_)
    above = parent[is_block]
    while len(above := distinct(above[above != NOWHERE])):
        holds[above] = True
        above = parent[above]
    return _Calls(
        instances,
        classes,
        parent,
        host.ranges.start_ns[rows],
        host.ends(rows),
        is_block,
        holds & ~is_block,
    )


def _in_backward(host: Host, rows: Index) -> Mask:
    """Which of the ranges run in backward, where modules are called to recompute."""
    starts = host.starts(rows)
    found: Mask = isin(starts.thread, host.autograd_threads)
    found |= host.backward.recompute.innermost(starts) != NOWHERE
    return found | host.in_nodes(rows)


def _beginnings(host: Host, calls: _Calls) -> Int64:
    """Times on the host at which no forward is under way: a new one can only begin after them.

    The starts of the outermost modules around blocks, of steps, and of backward nodes.
    """
    around = np.append(calls.holds, False)[calls.parent]
    starts = host.ranges.start_ns
    marks = [starts[host.named(BACKWARD_NODE)]]
    marks += [starts[host.is_annotation & host.named(pattern)] for pattern in ANNOTATIONS]
    return np.sort(np.concatenate([calls.start_ns[calls.holds & ~around], *marks]))


def _counted(calls: Iterable[str]) -> int:
    """How many modules of the class of some the profiler has counted: more were called, if others
    have the numbers that no recorded call has."""
    numbers = (matched_group(_FRAME, f"nn.Module: {call}", "number") for call in calls)
    return 1 + max(map(int, numbers), default=-1)


def _places_in_forward(calls: list[str], segment: Index, in_backward: Mask) -> dict[str, int]:
    """The place of each block in a forward that calls all of them, by instance.

    A forward starts with the first call of a segment, or where a block is called again; the first
    segment (0) may start within one. Empty if no recorded forward calls all blocks, or if two call
    them in different orders.
    """
    every = _counted(calls)
    passes: list[dict[str, int]] = []
    number, certain = -1, []
    for instance, of, again in zip(calls, segment.tolist(), in_backward.tolist(), strict=True):
        if again:
            continue
        if not passes or of != number or instance in passes[-1]:
            passes.append({})
            certain.append(of > 0)
        number = of
        passes[-1][instance] = len(passes[-1])
    known = [order for order, sure in zip(passes, certain, strict=True) if sure]
    whole = [order for order in known or passes if len(order) == every]
    is_complete = bool(known) or len(whole) == len(passes)
    agree = all(order == whole[0] for order in whole)
    return whole[0] if whole and is_complete and agree else {}


def _roles(calls: _Calls) -> dict[str, str]:
    """The standard operations of the modules of a language model, by instance.

    Modules that no place identifies keep their class. Empty for other models, and for those whose
    classes say more than the place (vLLM's and SGLang's QKVParallelLinear).
    """
    class_of = dict(zip(calls.instances, calls.classes, strict=True))
    attends = any(_ATTENTION.search(name) for name in set(calls.classes))
    if not calls.is_block.any() or not attends or any(map(_TELLING.search, set(calls.classes))):
        return {}
    roles = dict(class_of)
    blocks = {calls.instances[at] for at in np.flatnonzero(calls.is_block).tolist()}
    for above, members in _children(calls).items():
        above_class = class_of.get(above, "")
        linears = [member for member in members if _LINEAR.search(class_of[member])]
        norms = [member for member in members if _NORM.search(class_of[member])]
        if above in blocks:
            _name(roles, norms, _LAYER_NORMS)
        elif _ATTENTION.search(above_class):
            _name(roles, linears, _ATTENTION_LINEARS)
        elif _FEED_FORWARD.search(above_class):
            _name(roles, linears, _FEED_FORWARD_LINEARS)
            activations = [m for m in members if _ACTIVATION.search(class_of[m])]
            _name(roles, activations, {1: ("mlp_gs",)})
            roles[above] = "mlp_gu" if len(linears) == 3 else above_class
    roles |= _outside_blocks(calls)
    return roles


def _children(calls: _Calls) -> dict[str, list[str]]:
    """The instances that each instance calls, in order of their first call."""
    parent_of: dict[str, str] = {}
    children: dict[str, list[str]] = defaultdict(list)
    for instance, parent in zip(calls.instances, calls.parent.tolist(), strict=True):
        if instance not in parent_of:
            parent_of[instance] = calls.instances[parent] if parent != NOWHERE else ""
            children[parent_of[instance]].append(instance)
    return children


def _outside_blocks(calls: _Calls) -> dict[str, str]:
    """Embedding, last norm, head and loss: modules that a holder of blocks calls itself.

    Where calls of blocks are missing, those of a block's modules look like that.
    """
    found: dict[str, str] = {}
    blocks = {calls.instances[at] for at in np.flatnonzero(calls.is_block).tolist()}
    if len(blocks) < _counted(blocks):
        return found
    starts = calls.start_ns[calls.is_block]
    own = np.flatnonzero(~calls.is_block & ~calls.holds)
    for at in own.tolist():
        instance, name, parent = calls.instances[at], calls.classes[at], int(calls.parent[at])
        if _LOSS.search(name) and not _inside(calls, at):
            found[instance] = "cel"
        if parent == NOWHERE or not calls.holds[parent]:
            continue
        low, here, high = np.searchsorted(
            starts, (calls.start_ns[parent], calls.start_ns[at], calls.end_ns[parent])
        ).tolist()
        if low == here < high and _EMBEDDING.search(name):
            # The first one: others hold positions or types.
            found.setdefault(instance, "" if "ie" in found.values() else "ie")
        elif low < here == high and _NORM.search(name):
            found[instance] = "ln"
        elif low < here == high and _HEAD.search(name):
            found[instance] = "lp"
    return {instance: name for instance, name in found.items() if name}


def _inside(calls: _Calls, at: int) -> bool:
    while at != NOWHERE:
        if calls.is_block[at]:
            return True
        at = int(calls.parent[at])
    return False


def _name(roles: dict[str, str], members: list[str], names: dict[int, tuple[str, ...]]) -> None:
    roles.update(zip(members, names.get(len(members), ()), strict=False))
