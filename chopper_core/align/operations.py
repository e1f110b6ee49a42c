"""The operation of each activity: the model's word for it, as well as the trace can tell."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from chopper_core.align.autograd import Backward
from chopper_core.align.collectives import Collectives
from chopper_core.align.context import REACH, contexts, like_context
from chopper_core.align.host import Host, Links
from chopper_core.align.intervals import Intervals, Points, parents, union
from chopper_core.align.kernel_names import kernel_class
from chopper_core.align.labels import Labels, Order
from chopper_core.align.layers import annotated_layers, layer_windows
from chopper_core.align.modules import Modules
from chopper_core.align.shapes import read_shapes
from chopper_core.schema import NO_LABEL, Kind, Phase, Rule

Mask = NDArray[np.bool_]
Index = NDArray[np.intp]

RECOMPUTE_SUFFIX: Final = " (recompute)"

VOCABULARY: Final = re.compile(
    r"^(?:[fb]_)?(?:ie|ln|lp|lnp|cel|l|ra|dl|GetInputLabels|(?:attn|mlp|ffn|fc|qkv|q|k|v)_[a-z]{1,4})$"
    r"|^opt_(?:zg|gc|step|lr)$|^b_ga$"
)
"""Chopper's own names of operations."""
_MARKERS: Final = re.compile(
    r"^(?:Iteration\s?_?#?\d+|Layer[ _]?\d+|Token\d+|ProfilerStep#\d+|(?:train_)?step[ _#]\d+)$"
)
_INFRASTRUCTURE: Final = re.compile(
    r"^nccl:|^FSDP::|^FullyShardedDataParallel\.|^DistributedDataParallel\.|^Torch-Compiled|^\[pl\]"
    r"|^## (?:forward|backward|optimizer) ##|^(?:forward|backward|train|training|model|loss)\b"
    r"|\.forward$|^PP:"
)
_FSDP: Final = re.compile(r"^(?P<name>FSDP::\w+|FullyShardedDataParallel\.\w+)")
_OPTIMIZER: Final = re.compile(r"^Optimizer\.(?P<method>\w+)#")
_OPTIMIZER_NAMES: Final = {"step": "opt_step", "zero_grad": "opt_zg"}
_DATA: Final = re.compile(r"^enumerate\(DataLoader\)")
_WRAPPERS: Final = re.compile(
    r"^autograd::engine::evaluate_function|Backward\d*$|^CheckpointFunction|^CompiledFunction"
    r"|^Torch-Compiled|^## Call CompiledFxGraph|^DistributedDataParallel|^record_param_comms"
    r"|^TorchDynamo|^AOTDispatcher|^_NoopSaveInputs"
)
_CONTEXT_RULES: Final = (
    Rule.ANNOTATION,
    Rule.FSDP,
    Rule.MODULE,
    Rule.AUTOGRAD,
    Rule.SHAPE,
)
_NODE: Final = re.compile(
    r"^(?:autograd::engine::evaluate_function: )?(?:torch::autograd::)?(\w+)$"
)


@dataclass(slots=True)
class Words:
    """Names of operations by code."""

    codes: dict[str, int] = field(default_factory=dict)

    def code(self, name: str) -> int:
        """The code of a name, a new one if need be."""
        return self.codes.setdefault(name, len(self.codes))


def normal_name(name: str) -> str:
    """One name per operation: without pass prefix, with one word for the feed-forward part."""
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
    links: Links,
    backward: Backward,
    modules: Modules,
    collectives: Collectives,
    kind: NDArray[np.int8],
    phases: Labels,
    layers: Labels,
    order: Order,
) -> tuple[Labels, tuple[str, ...]]:
    """Operations of the activities, and the names behind the codes."""
    words = Words()
    points = links.points
    labels = Labels.none(len(points))
    is_comm = kind == Kind.COMM
    if collectives.names:
        codes = np.array([words.code(name) for name in collectives.names])
        for rule in np.unique(collectives.rules[is_comm]):
            of_rule = is_comm & (collectives.rules == rule)
            labels.fill(codes[collectives.codes], Rule(rule), of_rule)

    annotated = _annotations(host, words)
    fsdp = _fsdp(host, words)
    forward = backward.forward_of(points)
    unnamed = replace(annotated, value=np.full(len(annotated), NO_LABEL, np.intp))
    labels.fill(union(fsdp, unnamed).innermost(points), Rule.FSDP)
    labels.fill(annotated.innermost(points), Rule.ANNOTATION)
    labels.fill(annotated.innermost(forward), Rule.AUTOGRAD)

    by_module = np.array([words.code(name) for name in modules.operation_names], np.intp)
    module_at = Intervals(
        modules.operations.thread,
        modules.operations.start_ns,
        modules.operations.end_ns,
        by_module[modules.operations.value] if len(modules.operations) else np.empty(0, np.intp),
    )
    labels.fill(module_at.innermost(points), Rule.MODULE)
    labels.fill(module_at.innermost(forward), Rule.AUTOGRAD)
    _attention_kernels(labels, host, words)
    layer_ranges = union(annotated_layers(host), layer_windows(host))
    shapes = read_shapes(host, layer_ranges, words.code)
    labels.fill(shapes.innermost(points), Rule.SHAPE)
    labels.fill(shapes.innermost(forward), Rule.AUTOGRAD)
    recomputed = backward.recompute.innermost(points) >= 0
    _mark_recompute(labels, words, recomputed)
    _like_forward(labels, words, host, order, phases, recomputed)
    # Where the profiler's start cut the launch or the forward away, other steps know better.
    cut = ~points.known() | ((phases.codes == Phase.BACKWARD) & ~forward.known() & ~recomputed)
    by_context = contexts(host, order, phases.codes)
    computes = kind != Kind.COMM
    like_context(labels, by_context, _CONTEXT_RULES, cut & computes)
    operators = _operators(host, words)
    labels.fill(operators.outermost(forward), Rule.AUTOGRAD)
    in_backward = phases.codes == Phase.BACKWARD
    labels.fill(_region(host, words, points), Rule.ANNOTATION, in_backward)
    labels.fill(operators.outermost(points), Rule.HOST_OPERATOR)
    labels.fill(_nodes(host, words).innermost(points), Rule.HOST_OPERATOR)
    like_context(labels, by_context, (*_CONTEXT_RULES, Rule.HOST_OPERATOR), computes)
    names, name = host.trace.names, host.trace.activities.name
    used = np.unique(name)
    by_class = np.full(len(names), NO_LABEL, np.int32)
    by_class[used] = [words.code(kernel_class(names[code])) for code in used]
    labels.fill(by_class[name], Rule.KERNEL_NAME)
    _mark_recompute(labels, words, recomputed)
    return labels, tuple(words.codes)


def _annotations(host: Host, words: Words) -> Intervals:
    """Ranges that name an operation.

    With Chopper's vocabulary in a trace every range but markers and infrastructure counts, as in
    the original; without it only those that hold no other range, since wide ones say too little.
    """
    rows = host.annotations
    texts = [host.text(row) for row in rows]
    vocabulary = [bool(VOCABULARY.match(text)) for text in texts]
    named = [
        bool(_OPTIMIZER.match(text) or _DATA.match(text))
        or (not _MARKERS.match(text) and not _INFRASTRUCTURE.search(text))
        for text in texts
    ]
    keep = np.array(named, np.bool_)
    if not any(vocabulary) and len(rows):
        around = parents(host.intervals(rows))
        own = [bool(_OPTIMIZER.match(text) or _DATA.match(text)) for text in texts]
        holds = np.zeros(len(rows), np.bool_)
        inner = np.array([not text.startswith(("nccl:", "FSDP::")) for text in texts], np.bool_)
        holds[around[(around >= 0) & inner]] = True
        keep &= ~holds | np.array(own, np.bool_)
    codes = np.array([words.code(normal_name(t)) for t, k in zip(texts, keep, strict=True) if k])
    return host.intervals(rows[keep], codes.astype(np.intp))


def _fsdp(host: Host, words: Words) -> Intervals:
    rows = np.flatnonzero(host.is_annotation & host.named(_FSDP))
    names = [match["name"] for row in rows if (match := _FSDP.match(host.text(row)))]
    return host.intervals(rows, np.array([words.code(name) for name in names], np.intp))


def _region(host: Host, words: Words, points: Points) -> Index:
    """The vocabulary range at the same time on any thread, such as the one around backward()."""
    rows = np.flatnonzero(host.is_annotation & host.named(VOCABULARY))
    codes = np.array([words.code(normal_name(host.text(row))) for row in rows], np.intp)
    return host.intervals(rows, codes).innermost(points, any_thread=True)


def _operators(host: Host, words: Words) -> Intervals:
    rows = np.flatnonzero(host.is_operator & ~host.named(_WRAPPERS))
    used = np.unique(host.ranges.name[rows])
    codes = np.full(len(host.trace.names), NO_LABEL, np.intp)
    codes[used] = [words.code(host.trace.names[code].removeprefix("aten::")) for code in used]
    return host.intervals(rows, codes[host.ranges.name[rows]])


def _nodes(host: Host, words: Words) -> Intervals:
    """Autograd's nodes, for what they run themselves."""
    rows = np.flatnonzero(host.is_operator & host.named(_NODE) & host.named(_WRAPPERS))
    names = [match[1] for row in rows if (match := _NODE.match(host.text(row)))]
    return host.intervals(rows, np.array([words.code(name) for name in names], np.intp))


def _attention_kernels(labels: Labels, host: Host, words: Words) -> None:
    """Inside an attention module the attention kernel is the operation `attn_fa`."""
    names, name = host.trace.names, host.trace.activities.name
    by_module = np.isin(labels.rules, (Rule.MODULE, Rule.AUTOGRAD))
    used = np.unique(name[by_module])
    attends = np.zeros(len(names), np.bool_)
    attends[used] = [kernel_class(names[code]) == "attention" for code in used]
    where = by_module & attends[name]
    if where.any():
        labels.codes[where] = words.code("attn_fa")


def _like_forward(
    labels: Labels, words: Words, host: Host, order: Order, phases: Labels, recomputed: Mask
) -> None:
    """What is recomputed repeats the forward, kernel by kernel: it takes the forward's names.

    At its end and begin other work follows and precedes it, so one side has to do there.
    """
    again = recomputed & labels.missing()
    if not again.any():
        return
    forward = phases.codes == Phase.FORWARD
    codes = np.where(forward, labels.codes, NO_LABEL).astype(np.int32)
    known = Labels(codes, labels.rules.copy())
    for before, after in ((REACH, REACH), (REACH, 0), (0, REACH)):
        context = contexts(host, order, before=before, after=after)
        like_context(known, context, _CONTEXT_RULES, again)
    labels.fill(known.codes, Rule.CONTEXT, again)
    _mark_recompute(labels, words, again)


def _mark_recompute(labels: Labels, words: Words, recomputed: Mask) -> None:
    names = list(words.codes)
    for code in np.unique(labels.codes[recomputed & ~labels.missing()]).tolist():
        if names[code].endswith(RECOMPUTE_SUFFIX):
            continue
        marked = words.code(names[code] + RECOMPUTE_SUFFIX)
        labels.codes[recomputed & (labels.codes == code)] = marked
