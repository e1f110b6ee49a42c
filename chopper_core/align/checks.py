"""Checks of a trace: activities that were lost, and times that can't be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.graphs import captured_launches
from chopper_core.align.host import REPLAYS_GRAPH, Host, codes_matching
from chopper_core.model.doubts import Doubt
from chopper_core.model.step_spans import NO_STEP, StepSpans
from chopper_core.model.table import Category
from chopper_core.sources.trace import Trace
from chopper_core.tables.losses import ABSENT
from chopper_core.util.arrays import Index, Int64, Mask
from chopper_core.util.grouping import distinct, isin, numbered_rows, ranked, run_mask

_CONTAINED: Final = 2
"""Whole later kernels of its stream that no kernel contains: short overlaps are legal, such as of
programmatic dependent launch."""
_SHARED_QUEUE: Final = 0.05
"""Part of a stream's kernels that contain others where several queues share its number."""
_FEW: Final = 3
"""Kernels of a stream that may be impossible, however few it has."""
_SHORT_NS: Final = 2_000
_NAMED: Final = 40
_LEAVE_OUT: Final = ("untimed", "impossible", "far")
"""The checks that leave out what they find."""
_IN_ROW: Final = 8
"""Activities in a row of a stream without a call: single ones are usual."""
_SCATTERED: Final = 0.05
"""The part of them that may lack one."""


class EdgeLaunches(Struct, frozen=True):
    """Launches without an activity, as rows of `Trace.launches`."""

    lost: Index
    """Within what was recorded of the GPU."""
    at_edges: Index
    """Before the first launch with an activity, after the last, or at the edge of a cut step."""


def lost_launches(host: Host, spans: StepSpans, cut: frozenset[int]) -> EdgeLaunches:
    """The launches that should have an activity and have none; captured ones start nothing."""
    launches, links = host.trace.launches, host.links
    rows = links.orphans[~isin(links.orphans, captured_launches(host))]
    linked = distinct(links.launch[links.launch >= 0])
    if not len(rows) or not len(linked):
        return EdgeLaunches(rows[:0], rows)
    start = launches.start_ns[rows]
    there = np.sort(launches.start_ns[linked])
    is_edge = (start < there[0]) | (start > there[-1])
    if cut and len(spans):
        step, of_linked = spans.at(start), spans.at(there)
        for place in distinct(step[step != NO_STEP]).tolist():
            own = there[of_linked == place]
            if int(spans.number[place]) in cut:
                edge = (start < own[0]) | (start > own[-1]) if len(own) else True
                is_edge |= (step == place) & edge
    return EdgeLaunches(rows[~is_edge], rows[is_edge])


def doubts_of_launches(host: Host, lost: Index, spans: StepSpans) -> Iterator[Doubt]:
    """Graph launches, and others, without the activities that they start; and activities without
    the call that launched them."""
    launches, links = host.trace.launches, host.links
    replays = codes_matching(host.trace.names, launches.name, REPLAYS_GRAPH)
    started = distinct(np.concatenate([links.launch[links.launch >= 0], links.orphans]))
    for code, own in (("graphs", replays), ("launches", ~replays)):
        count, every = int(np.count_nonzero(own[lost])), int(np.count_nonzero(own[started]))
        if own is replays and count and not np.count_nonzero(own[links.launch[links.launch >= 0]]):
            count = every
        if count:
            steps = _steps_at(launches.start_ns[lost[own[lost]]], spans)
            yield Doubt(code, count, every, iterations=steps)
    without, every = _without_call(host)
    if len(without):
        start = host.trace.activities.start_ns[without]
        yield Doubt("calls", len(without), every, iterations=_steps_at(start, spans))


def _steps_at(time_ns: Int64, spans: StepSpans) -> tuple[int, ...]:
    place = spans.at(time_ns)
    return tuple(distinct(spans.number[place[place != NO_STEP]]).tolist())


def _without_call(host: Host) -> tuple[Index, int]:
    """The activities without a launch call, where it was lost: others of their stream before them
    have one; and how many such activities there are, with a call and without.

    A few scattered ones are usual: those of a whole buffer are in a row.
    """
    lane, launch = host.lane, host.links.launch
    order = np.lexsort((host.trace.activities.start_ns, lane))
    lane, has_call = lane[order], launch[order] >= 0
    if not has_call.any():
        return order[:0], 0
    begins = run_mask(lane)
    before: Int64 = np.cumsum(has_call) - has_call
    follows = before > np.maximum.accumulate(np.where(begins, before, 0))
    lacks = follows & ~has_call
    opens = lacks & ~np.append(False, lacks[:-1] & ~begins[1:])[: len(lacks)]
    in_row = np.bincount(np.cumsum(opens)[lacks], minlength=1)
    every = int(np.count_nonzero(follows))
    is_many = np.count_nonzero(lacks) > _SCATTERED * every
    return (order[lacks] if in_row.max() >= _IN_ROW or is_many else order[:0]), every


def explained(doubts: Sequence[Doubt], found: Sequence[Doubt]) -> tuple[Doubt, ...]:
    """The doubts of a file and those of its launches; the launches of activities that are left out
    are no doubt of their own, and tell the steps of these."""
    left_out = sum(doubt.count for doubt in (*doubts, *found) if doubt.code in _LEAVE_OUT)
    kept: list[Doubt] = []
    for doubt in found:
        if doubt.code == "launches":
            doubts = [replace(each, iterations=doubt.iterations) for each in doubts]
            kept = [
                replace(each, iterations=doubt.iterations) if each.code in _LEAVE_OUT else each
                for each in kept
            ]
        rest = doubt.count - (left_out if doubt.code == "launches" else 0)
        if rest > 0:
            kept.append(replace(doubt, count=rest))
    return (*doubts, *kept)


def doubts_of_file(trace: Trace) -> Iterator[Doubt]:
    """What the profiler says of its recording, and a schema that is newer than the reader."""
    losses = trace.losses
    if losses.said:
        more = f" (and {len(losses.said) - 1:,} more)" if len(losses.said) > 1 else ""
        yield Doubt("diagnostics", len(losses.said), 0, losses.said[0] + more)
    if losses.newer:
        yield Doubt("schema", 1, 1, losses.newer)


def without_impossible(trace: Trace) -> tuple[Trace, tuple[Doubt, ...]]:
    """The trace without activities that it has twice, and without kernels that contain two or more
    whole later kernels of their stream, in streams in which that is no habit; and the doubts about
    times."""
    doubts: list[Doubt] = []
    losses = trace.losses
    if untimed := losses.bad_times - losses.bad_host_times:
        doubts.append(Doubt("untimed", untimed, len(trace.activities) + untimed))
    order, lane = _in_streams(trace)
    is_repeated = _repeated(trace, order, lane)
    count = int(np.count_nonzero(is_repeated))
    if count:
        doubts.append(Doubt("repeated", count, len(trace.activities)))
        order, lane = order[~is_repeated[order]], lane[~is_repeated[order]]
    is_impossible = _impossible(trace, order, lane)
    count = int(np.count_nonzero(is_impossible))
    if count:
        longest = np.flatnonzero(is_impossible)
        longest = longest[trace.activities.duration_ns[longest].argmax()]
        name = trace.names[trace.activities.name[longest]][:_NAMED]
        took = float(trace.activities.duration_ns[longest]) / 1e6
        detail = f"{name}, {took:,.4g} ms"
        kernels = int(np.count_nonzero(trace.activities.category == Category.KERNEL))
        doubts.append(Doubt("impossible", count, kernels, detail))
    kept = ~(is_impossible | is_repeated)
    if not kept.all():
        figures = {name: values[kept] for name, values in trace.figures.items()}
        trace = replace(trace, activities=trace.activities.take(kept), figures=figures)
    return trace, tuple(doubts)


def _in_streams(trace: Trace) -> tuple[Index, Index]:
    """The rows of the activities by stream and start, the longest first; and their streams."""
    activities = trace.activities
    lane = numbered_rows((ranked(activities.device)[1], activities.stream))
    end = activities.start_ns + activities.duration_ns
    order = np.lexsort((-end, activities.start_ns, lane))
    return order, lane[order]


def _repeated(trace: Trace, order: Index, lane: Index) -> Mask:
    """Activities that are those before them once more: of one launch, name, stream and time.

    Where a file has whole microseconds, several short kernels of a graph may have one.
    """
    activities = trace.activities
    found = np.zeros(len(activities), np.bool_)
    same = ~run_mask(
        lane,
        activities.start_ns[order],
        activities.duration_ns[order],
        activities.name[order],
        activities.correlation[order],
    )
    same &= activities.duration_ns[order] > _SHORT_NS
    found[order] = same & (activities.correlation[order] != ABSENT)
    return found


def _impossible(trace: Trace, order: Index, lane: Index) -> Mask:
    activities = trace.activities
    found = np.zeros(len(activities), np.bool_)
    is_kernel = activities.category[order] == Category.KERNEL
    rows, lane = order[is_kernel], lane[is_kernel]
    if len(rows) <= _CONTAINED:
        return found
    start = activities.start_ns[rows]
    end = start + activities.duration_ns[rows]
    contains = _contained(lane, start, end) >= _CONTAINED
    of_lane = np.bincount(lane[contains], minlength=int(lane.max()) + 1)
    size = np.bincount(lane, minlength=int(lane.max()) + 1)
    is_habit = of_lane > np.maximum(_FEW, _SHARED_QUEUE * size)
    found[rows[contains & ~is_habit[lane]]] = True
    return found


def _contained(lane: Index, start: Int64, end: Int64) -> Int64:
    """How many of the next two of their stream each row of it contains whole, in order of start.

    What takes no time and begins with a row, or as it ends, is not in it.
    """
    count = np.zeros(len(end), np.int64)
    for ahead in range(1, _CONTAINED + 1):
        same = np.zeros(len(end), np.bool_)
        same[:-ahead] = lane[ahead:] == lane[:-ahead]
        inside = np.zeros(len(end), np.bool_)
        inside[:-ahead] = (start[ahead:] > start[:-ahead]) & (start[ahead:] < end[:-ahead])
        inside[:-ahead] &= end[ahead:] <= end[:-ahead]
        count += same & inside
    return count
