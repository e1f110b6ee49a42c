"""The phase of each activity: what names, ranges and threads say, then what their order implies."""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.align.host import REPLAYS_GRAPH, Host
from chopper_core.align.labels import Intervals, Labels, Order, contexts_of, like_context
from chopper_core.align.steps import InferenceSteps
from chopper_core.model.table import NO_LABEL, Kind, Phase, Rule
from chopper_core.util.arrays import Int32, Int64, Mask
from chopper_core.util.grouping import distinct, isin, maxima_of, minima_of, ranked
from chopper_core.util.patterns import late
from chopper_core.work.kernel_classes import (
    OPTIMIZER_CLASS,
    PHASE_WORDS,
    has_any,
    kernel_class,
)

_OPTIMIZER: Final = late(
    r"^(?:opt_(?:zg|gc|step|lr)$|b_ga$|Optimizer\.(?:step|zero_grad)|clip_grad"
    r"|(?:aten::)?_foreach_norm|torch::optim|## (?:optimizer|zero_grad) ##"
    r"|(?:optimi[sz]er|optim)[ _.]?(?:step|update)?$)",
    re.IGNORECASE,
)
_BACKWARD: Final = late(
    r"^autograd::engine::evaluate_function:|Backwards?\d*$|^CompiledFunctionBackward"
    r"|^torch::autograd::(?:AccumulateGrad|GraphRoot|CopySlices|PyNode)"
    r"|^FSDP::(?:pre_backward|post_backward|backward_prefetch|root_post_backward)"
    r"|^FullyShardedDataParallel\._(?:pre|post)_backward|^b_|^l$"
)
_PARTS: Final = late(r"^(?:FSDP::|FullyShardedDataParallel\._|l$)")
"""Ranges of parts of the backward pass, such as FSDP's, which tell nothing of the others."""
_BACKWARD_OPERATOR: Final = late(r"^\w+::(?:\w+_|_*)(?:backward|bwd)(?:_\w+)?(?:\.\w+)?$")
"""An operator that computes gradients; autograd's own ranges around it may be missing."""
_DATA: Final = late(
    r"^enumerate\(DataLoader\)|^dl$|^GetInputLabels$"
    r"|^(?:## )?(?:copy_batch_to_gpu|wait_for_batch|data_?load(?:er|ing)?"
    r"|(?:get|load|next|fetch)_batch)(?: ##)?$",
    re.IGNORECASE,
)
SCHEDULED: Final = late(
    r"\((?P<short>F|B|W|I|BW|FWD|BWD)\)|^PP:\d+(?:(?:SEND|RECV)_)?(?P<action>F|B|W|I)\d*$"
)
"""A range of a pipeline's schedule; B, I and W are backward: both gradients, input, weight."""
_WORD: Final = late(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_FORWARD_WORDS: Final = frozenset(("forward", "fwd", "fprop"))
_BACKWARD_WORDS: Final = frozenset(("backward", "bwd", "backprop", "wgrad", "dgrad", "bw"))
_UPLOAD: Final = late(r"^(?:Memcpy HtoD|CopyHostToDevice)")

_BACKWARD_KERNEL: Final = late(
    r"backward|(?<![a-z])bwd|bwd(?![a-z])|wrw|wgrad|dgrad|bprop|compute_grad|(?<=compute)\w{0,99}grad"
)
_INPUT_GRADIENT: Final = late(r"dgrad|bwd|bprop", re.IGNORECASE)
_FORWARD_KERNEL: Final = late(
    r"(?<!std::)forward|(?<![a-z])fwd|fwd(?![a-z])|fprop|nll_loss(?!\w{0,99}backward)|cross_?entropy"
)
_OPTIMIZER_KERNEL: Final = late(
    r"adam(?:w|_|math|functor|kernel|\b)|adagrad|adafactor|rmsprop|lamb_|(?<![a-z])sgd"
)
_TRANSPOSED: Final = late(r"conv\w{0,99}_transpose")


@lru_cache(maxsize=1 << 17)
def kernel_phase(name: str) -> Phase | None:
    """The phase in a kernel's own name; None for most names.

    An embedding's backward kernel may update its table too: it is backward.
    """
    if not has_any(name, PHASE_WORDS):
        return None
    plain = name.lower()
    if _BACKWARD_KERNEL.search(plain):
        return Phase.BACKWARD
    if _OPTIMIZER_KERNEL.search(plain) and kernel_class(name) != "embedding":
        return Phase.OPTIMIZER
    return Phase.FORWARD if _FORWARD_KERNEL.search(plain) else None


@lru_cache(maxsize=1 << 14)
def range_phase(name: str) -> Phase | None:
    """The phase in the name of an annotation; None for a name of none, or of both."""
    if _OPTIMIZER.search(name):
        return Phase.OPTIMIZER
    if _BACKWARD.search(name):
        return Phase.BACKWARD
    if _DATA.search(name):
        return Phase.DATA
    if match := SCHEDULED.search(name):
        word = match["short"] or match["action"]
        return Phase.FORWARD if word.startswith("F") else Phase.BACKWARD
    words = {word.lower() for word in _WORD.findall(name)}
    forward, backward = bool(words & _FORWARD_WORDS), bool(words & _BACKWARD_WORDS)
    if forward == backward:
        return None
    return Phase.FORWARD if forward else Phase.BACKWARD


def label_phases(
    host: Host, inference: InferenceSteps, iterations: Labels, beside: Intervals
) -> Labels:
    """Phases of the activities (codes of `Phase`).

    The host's work at the launch counts first, then the kernel's own name. Order within the
    step counts only where it leaves one possibility (see `_by_order`).
    """
    points = host.links.points
    labels = Labels.none(len(points))
    linked = points.known()

    def inside(pattern: re.Pattern[str]) -> Mask:
        rows = np.flatnonzero(host.named(pattern) & host.is_operator)
        return host.many(rows).innermost(points, labels.missing()) >= 0

    # Evaluation and the like run the model's forward, and are no part of the step's own.
    if len(beside):
        labels.fill(Phase.OTHER, Rule.ANNOTATION, beside.innermost(points) >= 0)
    codes = host.by_name(lambda name: _code(range_phase(name)), host.annotations)
    speaking = host.intervals(host.annotations[codes != NO_LABEL], codes[codes != NO_LABEL])
    speaking = _after_closures(host, speaking)
    voted = speaking.innermost(points)
    forward = voted == Phase.FORWARD
    labels.fill(np.where(forward, NO_LABEL, voted), Rule.ANNOTATION)
    labels.fill(Phase.OPTIMIZER, Rule.HOST_OPERATOR, inside(_OPTIMIZER))
    labels.fill(Phase.BACKWARD, Rule.AUTOGRAD, inside(_BACKWARD))
    labels.fill(Phase.BACKWARD, Rule.AUTOGRAD, isin(points.thread, host.autograd_threads))
    again = host.backward.recompute.innermost(points, labels.missing())
    labels.fill(Phase.BACKWARD, Rule.AUTOGRAD, again >= 0)
    labels.fill(Phase.BACKWARD, Rule.HOST_OPERATOR, inside(_BACKWARD_OPERATOR))
    labels.fill_by(inference.phases.innermost, points, Rule.ANNOTATION)
    uploads = host.by_kernel(lambda name: _UPLOAD.search(name) is not None)
    labels.fill(Phase.DATA, Rule.KERNEL_NAME, linked & (uploads > 0))
    labels.fill(Phase.FORWARD, Rule.ANNOTATION, forward)
    # A thread without ranges of its own, or with some of backward alone, works for another one.
    own, backward = (
        distinct(threads)
        for threads in (
            host.ranges.thread[host.annotations],
            speaking.thread[speaking.value == Phase.BACKWARD],
        )
    )
    others = distinct(speaking.thread[speaking.value != Phase.BACKWARD])
    elsewhere = ~isin(points.thread, own)
    elsewhere |= isin(points.thread, backward[~isin(backward, others)])
    anywhere = speaking.innermost(points, elsewhere & labels.missing(), any_thread=True)
    labels.fill(anywhere, Rule.ANNOTATION, anywhere == Phase.BACKWARD)

    named = host.by_kernel(_code_of_kernel)
    transposed = inside(_TRANSPOSED)
    if transposed.any():
        transposed &= host.by_kernel(lambda name: _INPUT_GRADIENT.search(name) is not None) > 0
    named[(named == Phase.FORWARD) | transposed] = NO_LABEL
    labels.fill(named, Rule.KERNEL_NAME)
    if not linked.any():
        labels.fill(Phase.OPTIMIZER, Rule.KERNEL_NAME, host.of_class(OPTIMIZER_CLASS))
    time_ns = points.time_ns if linked.any() else host.trace.activities.start_ns
    # On the GPU's clock a collective runs when its peers are there, not in its place of the order.
    ordered = linked if linked.any() else host.kind != Kind.COMM
    _by_order(labels, host, iterations.codes, time_ns, ordered)
    if linked.any():
        # RCCL kernels share one name, so their context is not informative.
        context = partial(contexts_of, host.trace.activities.name, host.order)
        unlinked = ~linked & (host.kind != Kind.COMM)
        like_context(labels, context, tuple(Rule), unlinked, sought=linked)
        _like_neighbours(labels, ~linked, iterations, host.order)
    return labels


def _after_closures(host: Host, speaking: Intervals) -> Intervals:
    """The ranges that name a phase; of a closure in an optimizer's step, only what follows it.

    The closure, as PyTorch Lightning and LBFGS have one, runs forward and backward in that step.
    """
    if not (speaking.value == Phase.OPTIMIZER).any():
        return speaking
    backward = np.flatnonzero(host.named(_BACKWARD) & host.is_operator)
    backward = backward[np.argsort(host.ranges.start_ns[backward], kind="stable")]
    end_ns = np.maximum.accumulate(host.ends(backward))
    low, high = (
        np.searchsorted(host.ranges.start_ns[backward], edge_ns)
        for edge_ns in (speaking.start_ns, speaking.end_ns)
    )
    own = (speaking.value == Phase.OPTIMIZER) & (high > low)
    own &= ~isin(speaking.thread, host.autograd_threads)
    start_ns = speaking.start_ns.copy()
    start_ns[own] = np.minimum(end_ns[high[own] - 1], speaking.end_ns[own])
    return replace(speaking, start_ns=start_ns)


def _code_of_kernel(name: str) -> int:
    return _code(kernel_phase(name))


def _code(phase: Phase | None) -> int:
    return NO_LABEL if phase is None else int(phase)


def _by_order(labels: Labels, host: Host, step: Int32, time_ns: Int64, ordered: Mask) -> None:
    """Label the activities whose place in the step leaves one possibility.

    Where the host shows the backward work of a step, its other recorded work is forward until the
    last backward launch. Where only kernel names do, all up to the last forward kernel before
    the first backward one is forward, and all between backward kernels is backward, if no forward
    kernel lies between. Work among the optimizer's launches belongs to it; what else follows
    backward is `other`. A trace that shows no backward and no optimizer, but operators, is forward.
    """
    steps, place = ranked(step)
    usable = ordered & (step != NO_LABEL) if (step != NO_LABEL).any() else ordered.copy()
    recorded = usable & isin(host.links.points.thread, distinct(host.ranges.thread))
    # The place of a graph's kernels in the order isn't their own.
    called = np.flatnonzero(host.links.launch >= 0)
    usable[called[host.calls(REPLAYS_GRAPH)[host.links.launch[called]]]] = False

    def first(of: Mask) -> Int64:
        """For each activity the first time of the masked ones of its step."""
        return minima_of(time_ns[of], place[of], len(steps), np.iinfo(np.int64).max)[place]

    def last(of: Mask) -> Int64:
        return maxima_of(time_ns[of], place[of], len(steps), np.iinfo(np.int64).min)[place]

    def has(of: Mask) -> Mask:
        found = np.zeros(len(steps), np.bool_)
        found[place[of]] = True
        return found[place]

    def fill(phase: Phase, where: Mask) -> None:
        labels.fill(phase, Rule.STEP_ORDER, where)

    is_backward = usable & (labels.codes == Phase.BACKWARD)
    shown = is_backward & isin(labels.rules, (Rule.ANNOTATION, Rule.AUTOGRAD))
    if not len(host.operators):
        # What shows backward then is a part of it: recomputation, or a range of FSDP.
        parts = np.flatnonzero(host.is_annotation & host.named(_PARTS))
        shown &= host.intervals(parts).innermost(host.links.points) < 0
        shown &= labels.rules == Rule.ANNOTATION
    by_host, by_name = has(shown), has(is_backward)
    begin, end = first(is_backward), last(is_backward)
    optimizes = usable & (labels.codes == Phase.OPTIMIZER) & (time_ns > end)
    among = (time_ns >= first(optimizes)) & (time_ns <= last(optimizes))
    fill(Phase.OPTIMIZER, usable & among)
    fill(Phase.OTHER, usable & by_host & (time_ns > end))
    fill(Phase.FORWARD, usable & recorded & by_host)
    # Steps whose backward only the names of kernels show.
    names_forward = usable & (host.by_kernel(_code_of_kernel) == Phase.FORWARD) & labels.missing()
    only_names = usable & by_name & ~by_host
    before = names_forward & (time_ns < begin)
    fill(Phase.FORWARD, only_names & (time_ns <= last(before)))
    between = only_names & (time_ns > begin) & (time_ns < end)
    fill(Phase.BACKWARD, between & ~has(names_forward & (time_ns > begin)))
    # Steps without backward work.
    trains = bool(isin(labels.codes, (Phase.BACKWARD, Phase.OPTIMIZER)).any())
    if shown.any():
        fill(Phase.FORWARD, usable & recorded & ~by_name & ~has(optimizes))
    elif not trains and len(host.operators):
        fill(Phase.FORWARD, recorded)


def _like_neighbours(labels: Labels, where: Mask, iterations: Labels, order: Order) -> None:
    """Unlinked activities take the phase of the nearest linked one in the same step, if known."""
    known = ~labels.missing()
    if (known | ~where).all():
        return
    for neighbour in (order.nearest(known | ~where, forwards=way) for way in (False, True)):
        same = (neighbour >= 0) & (iterations.codes[neighbour] == iterations.codes)
        same &= known[neighbour]
        labels.fill(labels.codes[neighbour], Rule.NEIGHBOUR, where & same)
