"""The host lane of a GPU: operators and runtime calls of the threads that launch, and its queue."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.charts import QUEUE, LaneCells, Span, Strip
from chopper_core.model.host_tables import HostKind, HostLane
from chopper_core.model.run import Run
from chopper_core.model.table import NO_TIME
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64, Int64
from chopper_core.util.grouping import distinct
from chopper_core.views.timeline.lanes import BusyTime, edges

_MIN_NAMED_CELLS: Final = 2
_MAX_NAMED_PER_CELL: Final = 2


class _HostTimes(Struct, frozen=True, eq=False):
    """When the launching threads of a GPU are in operators, and in calls."""

    busy: BusyTime
    kinds: tuple[BusyTime, ...]
    """By `HostKind`; operators without the calls in them."""


class _Queue(Struct, frozen=True, eq=False):
    """Launches and starts of a GPU's activities in rising order, since the run's first activity."""

    launched_ns: Int64
    started_ns: Int64
    launched_sums: Int64
    """Sums of the first launches, modulo 2^64: differences are exact."""
    started_sums: Int64

    def integral(self, times_ns: Int64) -> Int64:
        """The time that activities spent in the queue before each instant, up to a constant."""
        launched = np.searchsorted(self.launched_ns, times_ns, "right")
        started = np.searchsorted(self.started_ns, times_ns, "right")
        return (
            (launched - started) * times_ns
            - self.launched_sums[launched]
            + self.started_sums[started]
        )


def host_cells(run: Run, gpu: int, begin: int, end: int, bins: int) -> LaneCells | None:
    """The work of a GPU's hosts in each cell; None where the trace doesn't show it."""
    times = _host_times(run, gpu)
    if times is None:
        return None
    cut = edges(begin, end, bins)
    return LaneCells(
        kind_ns=np.stack([each.between(cut) for each in times.kinds]),
        busy_ns=times.busy.between(cut),
        width_ns=np.diff(cut),
        spans=_named(run, gpu, begin, end, bins),
    )


def queue_strip(run: Run, gpu: int, begin: int, end: int, bins: int) -> Strip | None:
    """The mean number of launched activities that wait, by cell; None without launch records."""
    queue = _queue(run, gpu)
    if queue is None:
        return None
    cut = edges(begin, end, bins) - run.origin_ns
    width = np.maximum(np.diff(cut), 1)
    depth: Float64 = np.diff(queue.integral(cut)) / width
    return Strip(QUEUE, Unit.NONE, 0.0, max(float(depth.max(initial=0.0)), 1.0), depth)


def _host_times(run: Run, gpu: int) -> _HostTimes | None:
    def found() -> _HostTimes | None:
        spans = [_union(run, gpu, (kind,)) for kind in HostKind]
        if not any(len(each.begins_ns) for each in spans):
            return None
        busy = _union(run, gpu, tuple(HostKind))
        calls = spans[HostKind.CALL]
        # Operators that aren't in a call: the whole less the calls.
        at = distinct(
            np.concatenate([busy.begins_ns, busy.ends_ns, calls.begins_ns, calls.ends_ns])
        )
        alone = (busy.between(at) > 0) & (calls.between(at) == 0)
        begins, ends = at[:-1][alone], at[1:][alone]
        return _HostTimes(busy, (BusyTime.of(begins, ends), calls))

    return run.memo(("timeline host", gpu), found)


def _union(run: Run, gpu: int, kinds: tuple[HostKind, ...]) -> BusyTime:
    lane = run.side(HostLane)
    parts = [lane.of(gpu, kind) for kind in kinds]
    starts = np.concatenate([lane.start_ns[part] for part in parts])
    ends = starts + np.concatenate([lane.duration_ns[part] for part in parts])
    order = np.argsort(starts, kind="stable")
    return BusyTime.of(starts[order], ends[order])


def _named(run: Run, gpu: int, begin: int, end: int, bins: int) -> tuple[Span, ...]:
    """The names of operators that fill some cells, unless there are too many."""
    lane, own = run.side(HostLane), run.side(HostLane).of(gpu, HostKind.OPERATOR)
    starts = lane.start_ns[own]
    ends = starts + lane.duration_ns[own]
    first, last = np.searchsorted(starts, [begin, end]).tolist()
    if last - first > _MAX_NAMED_PER_CELL * bins:
        return ()
    # One that began before the window may reach into it: only the last few can.
    first = max(first - _MAX_NAMED_PER_CELL, 0)
    length = end - begin
    low = -(-np.maximum(starts[first:last] - begin, 0) * bins // length)
    high = np.minimum(ends[first:last] - begin, length) * bins // length
    spans: list[Span] = []
    for place in np.flatnonzero(high - low >= _MIN_NAMED_CELLS).tolist():
        if spans and int(low[place]) < spans[-1].end:
            continue  # Two threads at once: the first keeps its name.
        name = lane.names[int(lane.name[own][first + place])]
        begins = bool(starts[first + place] >= begin)
        spans.append(Span(int(low[place]), int(high[place]), name, begins=begins))
    return tuple(spans)


def _queue(run: Run, gpu: int) -> _Queue | None:
    def found() -> _Queue | None:
        table, rows = run.table, run.tree().node((str(gpu),)).selection
        launch, start = table.launch_ns[rows], table.start_ns[rows]
        # Where the clocks disagree an activity starts before its launch: it is never in the queue.
        known = np.flatnonzero((launch != NO_TIME) & (launch < start))
        if not len(known):
            return None
        launched, started = (np.sort(each[known] - run.origin_ns) for each in (launch, start))
        none = np.zeros(1, np.int64)
        return _Queue(
            launched,
            started,
            np.concatenate([none, np.cumsum(launched)]),
            np.concatenate([none, np.cumsum(started)]),
        )

    return run.memo(("timeline queue", gpu), found)
