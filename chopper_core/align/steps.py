"""The iteration of each activity, from the host's work at its launch."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from chopper_core.align.host import BACKWARD_NODE, Host, Links
from chopper_core.align.inference import InferenceSteps
from chopper_core.align.intervals import Intervals, Points
from chopper_core.align.kernel_classes import OPTIMIZER_CLASS
from chopper_core.align.labels import Labels, Order
from chopper_core.model.table import NO_LABEL, Rule
from chopper_core.util.arrays import Index, Int32
from chopper_core.util.grouping import distinct

ANNOTATIONS: Final = (
    re.compile(r"^Iteration\s?_?#?(\d{1,9})$"),
    re.compile(r"^ProfilerStep#(\d{1,9})$"),
    re.compile(r"^(?:train_)?step[ _#](\d{1,9})$"),
)
"""Step annotations; the first pattern that occurs in a trace counts."""
_OPTIMIZER_STEP: Final = re.compile(r"^Optimizer\.step#|^opt_step$")
_BURST_GAP: Final = 200
"""Other kernels between two optimizer kernels that separate two steps."""


def label_iterations(
    host: Host, links: Links, inference: InferenceSteps, order: Order
) -> tuple[Labels, frozenset[int]]:
    """Iterations of the activities, and those truncated by the profiling window.

    An inference engine's steps have no numbers; they count in order of time. In a run that trains
    too, the training's steps count.
    """
    labels = Labels.none(len(links.points))
    partial: set[int] = set()
    steps = _annotated(host)
    if len(inference.steps) and not (steps and host.named(BACKWARD_NODE).any()):
        steps = inference.steps
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
