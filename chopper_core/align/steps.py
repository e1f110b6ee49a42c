"""Iteration and phase of each activity, from the host's work at its launch."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from chopper_core.align.autograd import Backward
from chopper_core.align.host import BACKWARD_NODE, Host, Links
from chopper_core.align.intervals import Intervals, Points
from chopper_core.align.kernel_classes import OPTIMIZER_CLASS
from chopper_core.align.labels import Labels, Order, contexts, like_context
from chopper_core.model.table import NO_LABEL, Kind, Phase, Rule
from chopper_core.util.arrays import Index, Int8, Int32, Int64, Mask
from chopper_core.util.grouping import distinct, ranked

ANNOTATIONS: Final = (
    re.compile(r"^Iteration\s?_?#?(\d{1,9})$"),
    re.compile(r"^ProfilerStep#(\d{1,9})$"),
    re.compile(r"^(?:train_)?step[ _#](\d{1,9})$"),
)
"""Step annotations; the first pattern that occurs in a trace counts."""
_OPTIMIZER_STEP: Final = re.compile(r"^Optimizer\.step#|^opt_step$")
_BURST_GAP: Final = 200
"""Other kernels between two optimizer kernels that separate two steps."""


def label_iterations(host: Host, links: Links, order: Order) -> tuple[Labels, frozenset[int]]:
    """Iterations of the activities, and those truncated by the profiling window."""
    labels = Labels.none(len(links.points))
    partial: set[int] = set()
    steps = _annotated(host)
    if steps is not None:
        found = steps.innermost(links.points, any_thread=True)
        labels.fill(found, Rule.ANNOTATION)
        partial |= _label_before(labels, links.points, steps)
        partial |= _ending_without_activity(host, links, steps, found)
    elif ends := _optimizer_ends(host):
        found = np.searchsorted(ends, links.points.time_ns, "left")
        labels.fill(found, Rule.BURST, links.points.known())
        if len(found) and int(found.max()) == len(ends):
            partial.add(len(ends))
    elif not links.points.known().any():
        labels.fill(_kernel_bursts(host), Rule.BURST)
    _label_unlinked(labels, host, links, order, partial)
    return labels, frozenset(partial)


def _annotated(host: Host) -> Intervals | None:
    for pattern in ANNOTATIONS:
        rows = np.flatnonzero(host.is_annotation & host.named(pattern))
        if len(rows):
            numbers = [int(match[1]) for row in rows if (match := pattern.search(host.text(row)))]
            return host.intervals(rows, np.array(numbers, np.intp))
    return None


def _label_before(labels: Labels, points: Points, steps: Intervals) -> set[int]:
    """Launches before the first annotation belong to a truncated step.

    A range that began before profiling is not recorded, so only launches show the step before the
    first recorded one.
    """
    first = int(steps.value[np.argmin(steps.start_ns)])
    before = points.known() & (points.time_ns < steps.start_ns.min())
    if first == 0 or not before.any():
        return set()
    labels.fill(np.full(len(points), first - 1), Rule.WINDOW, before)
    return {first - 1}


def _ending_without_activity(host: Host, links: Links, steps: Intervals, found: Index) -> set[int]:
    """Steps whose last launches have no activity: GPU recording ended before them."""
    launches = host.trace.launches
    orphans = Points(launches.thread[links.orphans], launches.start_ns[links.orphans])
    step = steps.innermost(orphans, any_thread=True)
    cut = set()
    for number in distinct(step[step >= 0]).tolist():
        linked = links.points.time_ns[(found == number) & links.points.known()]
        if not len(linked) or orphans.time_ns[step == number].max() > linked.max():
            cut.add(int(number))
    return cut


def _optimizer_ends(host: Host) -> list[int]:
    """Ends of the optimizer steps, merged if no backward work lies between them."""
    rows = np.flatnonzero(host.named(_OPTIMIZER_STEP))
    rows = rows[np.argsort(host.ranges.start_ns[rows])]
    backward = np.sort(host.ranges.start_ns[host.named(BACKWARD_NODE)])
    ends: list[int] = []
    for row in rows:
        start, end = int(host.ranges.start_ns[row]), int(host.end_ns[row])
        since = ends[-1] if ends else 0
        if ends and np.searchsorted(backward, start) == np.searchsorted(backward, since):
            ends[-1] = max(ends[-1], end)
        else:
            ends.append(end)
    return ends


def _kernel_bursts(host: Host) -> Int32:
    """Steps of a trace without host events: they end with a burst of optimizer kernels."""
    activities = host.trace.activities
    optimizes = host.of_class(OPTIMIZER_CLASS)
    by_start = np.argsort(activities.start_ns, kind="stable")
    steps = np.flatnonzero(optimizes[by_start])
    iteration = np.full(len(activities), NO_LABEL, np.int32)
    if len(steps):
        last = steps[np.append(np.diff(steps) > _BURST_GAP, True)]
        iteration[by_start] = np.searchsorted(last, np.arange(len(by_start)), "left")
    return iteration


def _label_unlinked(
    labels: Labels, host: Host, links: Links, order: Order, partial: set[int]
) -> None:
    """Activities without a launch take the step of the nearer neighbour on their stream.

    Those before the first linked activity of their stream were launched before profiling began:
    they belong to the step before the first one, or to the first if it is truncated.
    """
    activities = host.trace.activities
    known = ~labels.missing()
    if not known.any():
        return
    unlinked = ~links.points.known()
    previous, following = order.previous(known), order.following(known)
    codes_after = labels.codes[following]
    first = int(labels.codes[known].min())
    head = unlinked & (previous < 0) & (following >= 0) & (codes_after == first)
    if first in partial or first == 0:
        labels.fill(np.full(len(head), first), Rule.NEIGHBOUR, head)
    elif head.any():
        labels.fill(np.full(len(head), first - 1), Rule.WINDOW, head)
        partial.add(first - 1)

    end_ns = activities.start_ns + activities.duration_ns
    until_next = activities.start_ns[following] - end_ns
    since_last = activities.start_ns - end_ns[previous]
    after = (following >= 0) & ((previous < 0) | (until_next < since_last))
    nearer = np.where(after, codes_after, labels.codes[previous])
    labels.fill(nearer, Rule.NEIGHBOUR, unlinked & ((previous >= 0) | (following >= 0)))


_OPTIMIZER: Final = re.compile(
    r"^(?:opt_(?:zg|gc|step|lr)$|b_ga$|Optimizer\.(?:step|zero_grad)|clip_grad"
    r"|(?:aten::)?_foreach_norm|torch::optim|## (?:optimizer|zero_grad) ##)"
)
_BACKWARD: Final = re.compile(
    r"^autograd::engine::evaluate_function:|Backward\d*$|^CompiledFunctionBackward"
    r"|^FSDP::(?:pre_backward|post_backward|backward_prefetch|root_post_backward)"
    r"|^FullyShardedDataParallel\._(?:pre|post)_backward|^b_|^l$|^## backward ##$"
)
_DATA: Final = re.compile(
    r"^enumerate\(DataLoader\)|^dl$|^GetInputLabels$|^## (?:copy_batch_to_gpu|wait_for_batch) ##$"
)
_LOSS: Final = re.compile(r"nll_?loss|cross_?entropy", re.IGNORECASE)
_UPLOAD: Final = re.compile(r"^(?:Memcpy HtoD|CopyHostToDevice)")


def label_phases(
    host: Host,
    links: Links,
    backward: Backward,
    kind: Int8,
    iterations: Labels,
    order: Order,
) -> Labels:
    """Phases of the activities (codes of `Phase`)."""
    labels = Labels.none(len(links.points))
    points = links.points
    linked = points.known()

    def inside(pattern: re.Pattern[str], where: Mask) -> Mask:
        rows = np.flatnonzero(host.named(pattern) & where)
        return host.intervals(rows).innermost(points) >= 0

    def fill(phase: Phase, rule: Rule, where: Mask) -> None:
        labels.fill(np.full(len(points), phase), rule, where & linked)

    annotated, operator = host.is_annotation, host.is_operator
    fill(Phase.OPTIMIZER, Rule.ANNOTATION, inside(_OPTIMIZER, annotated))
    fill(Phase.OPTIMIZER, Rule.HOST_OPERATOR, inside(_OPTIMIZER, operator))
    fill(Phase.BACKWARD, Rule.AUTOGRAD, inside(_BACKWARD, operator))
    fill(Phase.BACKWARD, Rule.ANNOTATION, inside(_BACKWARD, annotated))
    fill(Phase.BACKWARD, Rule.AUTOGRAD, np.isin(points.thread, host.autograd_threads))
    fill(Phase.BACKWARD, Rule.AUTOGRAD, backward.recompute.innermost(points) >= 0)
    fill(Phase.DATA, Rule.ANNOTATION, inside(_DATA, annotated))
    uploads = host.by_kernel(lambda name: _UPLOAD.search(name) is not None)
    fill(Phase.DATA, Rule.KERNEL_NAME, uploads > 0)
    _by_order(labels, host, links, iterations)
    if not linked.any():
        _by_kernels(labels, host, iterations)
        return labels
    # RCCL kernels share one name, so their context is not informative.
    like_context(labels, contexts(host, order), tuple(Rule), kind != Kind.COMM)
    _like_neighbours(labels, iterations, order)
    return labels


def _by_order(labels: Labels, host: Host, links: Links, iterations: Labels) -> None:
    """Other work is forward until the last backward launch of its step.

    After it, work among the optimizer's launches (such as gradient clipping) belongs to the
    optimizer; the rest is `other`.
    """
    time_ns = links.points.time_ns
    step = iterations.codes
    last_backward = _extreme(step, time_ns, labels.codes == Phase.BACKWARD, latest=True)
    after = time_ns > last_backward
    optimizes = (labels.codes == Phase.OPTIMIZER) & after
    among = (time_ns >= _extreme(step, time_ns, optimizes, latest=False)) & (
        time_ns <= _extreme(step, time_ns, optimizes, latest=True, never=_BEFORE_ALL)
    )
    phase = np.where(after, np.where(among, Phase.OPTIMIZER, Phase.OTHER), Phase.FORWARD)
    known = links.points.known()
    has_steps = bool((step != NO_LABEL).any())
    labels.fill(phase, Rule.STEP_ORDER, known & (step != NO_LABEL) if has_steps else known)


_AFTER_ALL: Final = int(np.iinfo(np.int64).max)
_BEFORE_ALL: Final = int(np.iinfo(np.int64).min)


def _extreme(
    step: Int32,
    time_ns: Int64,
    of: Mask,
    *,
    latest: bool,
    never: int = _AFTER_ALL,
) -> Int64:
    """For each activity the latest or first time of the masked activities of its step."""
    steps, position = ranked(step)
    extreme = np.full(len(steps), _BEFORE_ALL if latest else _AFTER_ALL, np.int64)
    (np.maximum if latest else np.minimum).at(extreme, position[of], time_ns[of])
    extreme[~np.isin(steps, step[of])] = never
    return extreme[position]


def _by_kernels(labels: Labels, host: Host, iterations: Labels) -> None:
    """For a trace without host events: optimizer kernels, and the loss as border to backward."""
    optimizes = host.of_class(OPTIMIZER_CLASS)
    labels.fill(np.full(len(optimizes), Phase.OPTIMIZER), Rule.KERNEL_NAME, optimizes)
    start_ns, step = host.trace.activities.start_ns, iterations.codes
    loss = host.by_kernel(lambda name: _LOSS.search(name) is not None) > 0
    backward = loss & (host.by_kernel(lambda name: "backward" in name.lower()) > 0)
    until = _extreme(step, start_ns, loss & ~backward, latest=True)
    begins = _extreme(step, start_ns, backward, latest=False)
    has_loss = np.isin(step, step[loss & ~backward]) & (step != NO_LABEL)
    forward = (start_ns <= until) & (start_ns < begins)
    phase = np.where(forward, Phase.FORWARD, Phase.BACKWARD)
    labels.fill(phase, Rule.KERNEL_NAME, has_loss)


def _like_neighbours(labels: Labels, iterations: Labels, order: Order) -> None:
    """Unlinked activities take the phase of the nearest linked one in the same step."""
    known = ~labels.missing()
    for neighbour in (order.previous(known), order.following(known)):
        same = (neighbour >= 0) & (iterations.codes[neighbour] == iterations.codes)
        labels.fill(labels.codes[neighbour], Rule.NEIGHBOUR, same)
