"""The operation of each activity, in the model's terms where the trace has them."""

from __future__ import annotations

import re
from functools import cache, partial
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from chopper_core.align.collectives import CollectiveLabels
from chopper_core.align.graph_marks import marked_operations
from chopper_core.align.host import Host
from chopper_core.align.labels import (
    NOWHERE,
    REACH,
    Intervals,
    Labels,
    Points,
    contexts_of,
    like_context,
    parents,
)
from chopper_core.align.layers import annotated_layers, layer_windows, read_shapes
from chopper_core.align.modules import Modules
from chopper_core.align.phases import SCHEDULED
from chopper_core.align.repeats import OPERATIONS
from chopper_core.align.side_work import SIDE_WORK
from chopper_core.align.steps import batch_of, is_step
from chopper_core.model.table import NO_LABEL, RECOMPUTE_SUFFIX, Kind, Phase, Rule
from chopper_core.util.arrays import Index, Int32, Mask
from chopper_core.util.grouping import distinct, isin, places_by, ranked
from chopper_core.util.patterns import late, matched_group
from chopper_core.work.kernel_classes import ATTENTION_CLASS, FUSED, kernel_class

VOCABULARY: Final = late(
    r"^(?:[fb]_)?(?:ie|ln|lp|lnp|cel|l|ra|dl|GetInputLabels|(?:attn|mlp|ffn|fc|qkv|q|k|v)_[a-z]{1,4})$"
    r"|^opt_(?:zg|gc|step|lr)$|^b_ga$"
)
"""Chopper's own names of operations."""
_MARKERS: Final = late(r"^(?:Layer[ _]?\d+|Token\d+)$")
_INFRASTRUCTURE: Final = late(
    r"^nccl:|^FSDP::|^FullyShardedDataParallel\.|^DistributedDataParallel\.|^Torch-Compiled|^\[pl\]"
    r"|CompiledFxGraph|GraphModule|CUDAGraph|^TorchDynamo|^AOTDispatcher"
    r"|^## (?:forward|backward|optimizer) ##|^(?:forward|backward|train|training|model|loss)\b"
    r"|\.forward$|^PP:"
)
_FSDP: Final = late(r"^(?P<name>FSDP::\w+|FullyShardedDataParallel\.(?!forward\b)\w+)")
_OPTIMIZER: Final = late(r"^Optimizer\.(?P<method>\w+)#")
_OPTIMIZER_NAMES: Final = {"step": "opt_step", "zero_grad": "opt_zg"}
_DATA: Final = late(r"^enumerate\(DataLoader\)")
_WRAPPERS: Final = late(
    r"^autograd::engine::evaluate_function|Backward\d*$|^CheckpointFunction|^CompiledFunction"
    r"|^Torch-Compiled|CompiledFxGraph|GraphModule|CUDAGraph|^DistributedDataParallel|^record_param_comms"
    r"|^TorchDynamo|^AOTDispatcher|^_NoopSaveInputs|^<(?:forward|backward) op>$|^forward$"
)
"""Operators that run others: they don't distinguish their kernels."""
_COMPILED: Final = late(r"CompiledFunction(?:Backward)?$")
_SCOPE_SHARE: Final = 0.5
"""An annotation around more of the launches of its steps is a scope, not an operation …"""
_SCOPE_KERNELS: Final = 8
"""… if they have as many kernels."""
_CONTEXT_RULES: Final = (
    Rule.ANNOTATION,
    Rule.FSDP,
    Rule.MODULE,
    Rule.AUTOGRAD,
    Rule.SHAPE,
)
_CUSTOM_NODE: Final = late(r"^torch::autograd::CppNode<(?:\w+::)*(\w+)>$")
"""The backward of a custom function: the operators before its forward have its sequence number."""
_NODE: Final = late(r"^(?:autograd::engine::evaluate_function: )?(?:torch::autograd::)?(\w+)$")


class OperationNames(Struct):
    """Names of operations by code."""

    codes: dict[str, int] = field(default_factory=dict)

    def code(self, name: str) -> int:
        """The code of a name, a new one if necessary; NO_LABEL for an empty name."""
        if not name:
            return NO_LABEL
        return self.codes.setdefault(name, len(self.codes))


def normal_name(name: str) -> str:
    """Normalise a name: without pass prefix, with `mlp` for the feed-forward part."""
    if optimizer := _OPTIMIZER.match(name):
        return _OPTIMIZER_NAMES.get(optimizer["method"], f"opt_{optimizer['method']}")
    if _DATA.match(name):
        return "dl"
    if not VOCABULARY.match(name):
        return name
    name = re.sub(r"^(?:f_|b_(?!ga$))", "", name)
    name = re.sub(r"^(?:ffn|fc)_", "mlp_", name)
    return {"attn_sdpa": "attn_fa", "ra": "attn_ra"}.get(name, name)


def label_operations(
    host: Host,
    modules: Modules,
    collectives: CollectiveLabels,
    iterations: Labels,
    phases: Labels,
    places: Index,
    beside: Intervals,
) -> tuple[Labels, tuple[str, ...]]:
    """Operations of the activities, and the names behind the codes.

    The model's own terms come first: annotations of the vocabulary, else the innermost annotation
    or module that distinguishes kernels, then shapes. Then come the names of the same kernels
    elsewhere in the run, framework operators, the place in a
    repeated layer, finally kernel names.
    """
    names = OperationNames()
    points, forward = host.captured, host.forward
    labels = Labels.none(len(points))
    computes = host.kind != Kind.COMM
    _label_collectives(labels, names, collectives, ~computes)

    if len(beside):
        codes = np.array([*map(names.code, SIDE_WORK), NO_LABEL], np.intp)
        labels.fill(codes[beside.outermost(points)], Rule.ANNOTATION, computes)
    marked, marks = marked_operations(host)
    labels.fill(np.array([*map(names.code, marks), NO_LABEL], np.intp)[marked], Rule.MODULE)
    annotated = _annotations(host, names)
    unnamed = replace(annotated, value=np.full(len(annotated), NO_LABEL, np.intp))
    is_fsdp = host.is_annotation & host.named(_FSDP)
    fsdp = host.valued(is_fsdp, lambda name: names.code(matched_group(_FSDP, name)))
    labels.fill_by(fsdp.joined(unnamed).innermost, points, Rule.FSDP)
    # Value -1 is a module without an operation.
    codes = np.array([*map(names.code, modules.operation_names), NO_LABEL], np.intp)
    by_module = replace(modules.operations, value=codes[modules.operations.value])
    own = modules.own_operators(host, names.code) if modules.has_roles else None
    if host.named(VOCABULARY)[host.annotations].any():
        labels.fill_around(annotated, points, forward, Rule.ANNOTATION)
        labels.fill_around(by_module, points, forward, Rule.MODULE)
    else:
        if own is not None:
            labels.fill_around(own, points, forward, Rule.MODULE)
        informative = _without_scopes(host, names, annotated, points, iterations.codes)
        _fill_innermost(labels, informative, by_module, points, forward)
    if modules.has_roles:
        attends = host.of_class(ATTENTION_CLASS)
        attends &= isin(labels.rules, (Rule.MODULE, Rule.AUTOGRAD))
        if attends.any():
            labels.codes[attends] = names.code("attn_fa")
    if not host.named(VOCABULARY).any():
        layer_ranges = annotated_layers(host).joined(layer_windows(host))
        shapes = read_shapes(host, layer_ranges, names.code)
        labels.fill_around(shapes, points, forward, Rule.SHAPE)

    recomputed = host.backward.recompute.innermost(points) != NOWHERE
    _mark_recompute(labels, names, recomputed)
    _like_forward(labels, names, host, phases, recomputed)
    # Where the profiling window cut off the launch or the forward, other steps are more reliable.
    in_backward = phases.codes == Phase.BACKWARD
    cut = ~points.known() | (in_backward & ~forward.known() & ~recomputed)
    kernel = host.trace.activities.name
    by_context = cache(lambda: contexts_of(kernel, host.order, phases.codes))
    like_context(labels, by_context, _CONTEXT_RULES, cut & computes)

    custom = host.valued(
        host.is_operator & host.named(_CUSTOM_NODE),
        lambda name: names.code(matched_group(_CUSTOM_NODE, name)),
    )
    labels.fill_by(custom.innermost, points, Rule.HOST_OPERATOR)
    rows = np.flatnonzero(host.is_operator & ~host.named(_WRAPPERS)).astype(np.int32)
    operators = host.many(
        rows, host.by_name(lambda name: names.code(name.removeprefix("aten::")), rows)
    )
    labels.fill_by(operators.outermost, forward, Rule.AUTOGRAD)
    # On any thread, such as the one around backward().
    in_vocabulary = host.is_annotation & host.named(VOCABULARY)
    regions = host.valued(in_vocabulary, lambda name: names.code(normal_name(name)))
    around = partial(regions.innermost, any_thread=True)
    labels.fill_by(around, points, Rule.ANNOTATION, in_backward)
    labels.fill_by(operators.outermost, points, Rule.HOST_OPERATOR)
    del rows, custom, operators, regions, around  # They may be as large as the trace.
    # The work that autograd's nodes run directly.
    is_node = host.is_operator & host.named(_NODE) & host.named(_WRAPPERS) & ~host.named(_COMPILED)
    nodes = host.valued(is_node, lambda name: names.code(matched_group(_NODE, name)))
    labels.fill_by(nodes.innermost, points, Rule.HOST_OPERATOR)
    like_context(labels, by_context, (*_CONTEXT_RULES, Rule.HOST_OPERATOR), computes)
    if places.any():
        in_layers = np.array([*map(names.code, OPERATIONS)], np.intp)
        labels.fill(in_layers[places], Rule.REPETITION)
    labels.fill(host.by_kernel(lambda name: names.code(_by_kernel(name))), Rule.KERNEL_NAME)
    _mark_recompute(labels, names, recomputed)
    return labels, tuple(names.codes)


def _by_kernel(name: str) -> str:
    """What a compiler fused into a kernel, by its name, else its class."""
    fused = FUSED.match(name)
    return (fused["operators"].strip("_") if fused else "") or kernel_class(name)


def _fill_innermost(
    labels: Labels, annotated: Intervals, modules: Intervals, points: Points, forward: Points
) -> None:
    both = annotated.joined(modules)
    places = replace(both, value=np.arange(len(both)))
    # Position -1 holds NO_LABEL, for points outside all intervals.
    codes = np.append(both.value, NO_LABEL)
    at = places.innermost(points, labels.missing())
    labels.fill(codes[at], Rule.ANNOTATION, at < len(annotated))
    labels.fill(codes[at], Rule.MODULE)
    # In a module without an operation of its own, its operators are more specific.
    rest = labels.missing() & (at == NOWHERE)
    labels.fill(codes[places.innermost(forward, rest)], Rule.AUTOGRAD)


def _without_scopes(
    host: Host, names: OperationNames, annotated: Intervals, points: Points, step: Int32
) -> Intervals:
    kernel = host.trace.activities.name
    texts = list(names.codes)
    standard = {code for code, text in enumerate(texts) if text.startswith(("opt_", "dl"))}
    steps, number = ranked(step)
    known = points.known()
    in_step = np.bincount(number[known], minlength=len(steps))
    while len(annotated):
        code = annotated.innermost(points)
        rows = np.flatnonzero(known & (code != NOWHERE))
        scopes = [
            name
            for name, at in places_by(code[rows]).items()
            if name not in standard
            and len(distinct(kernel[own := rows[at]])) >= _SCOPE_KERNELS
            and len(own) > _SCOPE_SHARE * in_step[distinct(number[own])].sum()
        ]
        if not scopes:
            break
        annotated = annotated.take(~isin(annotated.value, scopes))
    return annotated


def _label_collectives(
    labels: Labels, names: OperationNames, collectives: CollectiveLabels, is_comm: Mask
) -> None:
    codes = np.array([names.code(name) for name in collectives.names], np.intp)
    for rule in distinct(collectives.rules[is_comm]):
        of_rule = np.flatnonzero(is_comm & (collectives.rules == rule))
        named = np.full(len(is_comm), NO_LABEL, np.intp)
        named[of_rule] = codes[collectives.codes[of_rule]]
        labels.fill(named, Rule(rule))


def _annotations(host: Host, names: OperationNames) -> Intervals:
    """Ranges that name an operation.

    If the trace uses Chopper's vocabulary, every range but markers and infrastructure counts, as in
    the original; otherwise only innermost ranges, since wide ones are too vague.
    """
    rows = host.annotations
    keep = host.by_name(_names_operation, rows) > 0
    if not host.named(VOCABULARY)[rows].any():
        around = parents(host.intervals(rows))
        holds = np.zeros(len(rows), np.bool_)
        own = host.by_name(lambda name: not name.startswith(("nccl:", "FSDP::")), rows) > 0
        holds[around[(around != NOWHERE) & own]] = True
        keep &= ~holds | (host.by_name(_has_standard_name, rows) > 0)
    rows = rows[keep]
    return host.intervals(rows, host.by_name(lambda name: names.code(normal_name(name)), rows))


def _has_standard_name(name: str) -> bool:
    return bool(_OPTIMIZER.match(name) or _DATA.match(name))


def _names_operation(name: str) -> bool:
    is_structure = (
        is_step(name)
        or _MARKERS.match(name)
        or _INFRASTRUCTURE.search(name)
        or SCHEDULED.search(name)
        or batch_of(name) is not None
    )
    return _has_standard_name(name) or (name != "" and not is_structure)


def _like_forward(
    labels: Labels,
    names: OperationNames,
    host: Host,
    phases: Labels,
    recomputed: Mask,
) -> None:
    """Recomputed work repeats the forward, kernel by kernel, and takes the forward's names.

    At its borders other work is adjacent, so a context of one side is enough there.
    """
    again = recomputed & labels.missing()
    if not again.any():
        return
    forward = phases.codes == Phase.FORWARD
    codes = np.where(forward, labels.codes, NO_LABEL).astype(np.int32)
    known, kernel = Labels(codes, labels.rules.copy()), host.trace.activities.name
    for before, after in ((REACH, REACH), (REACH, 0), (0, REACH)):
        context = partial(contexts_of, kernel, host.order, before=before, after=after)
        like_context(known, context, _CONTEXT_RULES, again)
    labels.fill(known.codes, Rule.CONTEXT, again)
    _mark_recompute(labels, names, again)


def _mark_recompute(labels: Labels, names: OperationNames, recomputed: Mask) -> None:
    texts = list(names.codes)
    for code in distinct(labels.codes[recomputed & ~labels.missing()]).tolist():
        if texts[code].endswith(RECOMPUTE_SUFFIX):
            continue
        marked = names.code(texts[code] + RECOMPUTE_SUFFIX)
        labels.codes[recomputed & (labels.codes == code)] = marked
