"""Dependencies between the activities of a GPU, each with the evidence that the trace gives for it.

Kernel traces rarely record what an activity waited for. Its place in its stream is certain; of the
other streams of its GPU the activity that ended last before it began may be what it waited for,
and the launch says how likely that is. Members of a collective wait for each other across GPUs:
that is no edge between activities, but a moment that they share (`collectives.Collectives`).
"""

from __future__ import annotations

from enum import IntEnum
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.graph.step_graph import EdgeRows
from chopper_core.model.attributes import NO_NODE, StatedEdges, nodes_at
from chopper_core.model.run import Run
from chopper_core.model.table import NO_TIME, KernelTable
from chopper_core.util.arrays import Index, Int32, Int64, Mask
from chopper_core.util.grouping import first_equal, run_starts, stable_order

MOST_STREAMS: Final = 128
"""Of a GPU whose rows depend on the last of each: no GPU runs more at once, and a row that began
after work on many has an edge from each."""
STAMP_NS: Final = 1_000
"""Activities of a stream that overlap by no more than this are in order: older profilers write
whole microseconds."""
_NEVER: Final = np.iinfo(np.int64).min


class Evidence(IntEnum):
    """Why one activity is taken to depend on another; what isn't stated, the surest first."""

    STREAM = 0
    """It comes next in the same stream."""
    QUEUED = 1
    """It was launched while the other, on another stream, still ran, and began after it ended."""
    UNKNOWN = 2
    """It began after the other, on another stream, ended; it has no launch record."""
    HOST = 3
    """It was launched after the other, on another stream, ended: the host kept the order, or it
    is chance."""
    STATED = 4
    """The trace states the dependency, perhaps through nodes of the host."""
    CONTROL = 5
    """The trace states it as a control dependency."""
    LAUNCH = 6
    """The host launched it."""
    SEQUENCE = 7
    """It comes next on the host."""
    BLOCKED = 8
    """The call of the host returns once the activity has ended."""
    MEETING = 9
    """Members of a collective wait for the last of them."""
    REPEATED = 10
    """The same kernels wait for the other stream elsewhere, and none starts earlier."""

    FOLLOWED = 11
    """The host launches right after the activity ends, each time, though no call waits for it."""

    EVENT = 12
    """The trace states that its stream waits for an event that was recorded after the other, or
    that it follows the other in a graph."""

    @property
    def text(self) -> str:
        return _TEXTS[self]


INFERRED: Final = (
    Evidence.QUEUED,
    Evidence.UNKNOWN,
    Evidence.HOST,
    Evidence.REPEATED,
    Evidence.FOLLOWED,
)
"""What the times show; the trace or the order of its events shows the others."""
_TEXTS: Final = {
    Evidence.STREAM: "order in the stream",
    Evidence.QUEUED: "queued until another stream's activity ended",
    Evidence.UNKNOWN: "after another stream's activity, no launch record",
    Evidence.HOST: "launched after another stream's activity ended",
    Evidence.STATED: "stated by the trace",
    Evidence.CONTROL: "stated by the trace as control",
    Evidence.LAUNCH: "launched by the host",
    Evidence.SEQUENCE: "order on the host",
    Evidence.BLOCKED: "awaited by a call of the host",
    Evidence.REPEATED: "as the same kernels wait for another stream elsewhere",
    Evidence.FOLLOWED: "the host launches right after it each time",
    Evidence.MEETING: "members of a collective wait for each other",
    Evidence.EVENT: "stated by the trace: an event of the other's stream, or an edge of its graph",
}


def time_order(table: KernelTable, rows: Index) -> Index:
    """Rows in the order that `dependencies` takes: by GPU, start, end and stream."""
    keys = (table.stream, table.duration_ns, table.start_ns, table.gpu)
    return rows[np.lexsort([each[rows] for each in keys])]


def stated(run: Run, rows: Index) -> tuple[EdgeRows, Int64] | None:
    """The dependencies among rows as their traces state them, with the host's work between both
    ends as their lag, and the host's work before each row from the start; None for a run without.
    """
    edges = run.side(StatedEdges)
    if not len(edges):
        return None
    key = _key(run.table.gpu[rows], nodes_at(run.table, rows))
    after, before = (
        np.where(nodes >= 0, first_equal(key, _key(gpus, nodes)), -1)
        for gpus, nodes in (
            (edges.gpu, edges.node),
            (edges.gpu + edges.gpu_offset, edges.before),
        )
    )
    lead = np.zeros(len(rows), np.int64)
    leads = (after >= 0) & (edges.before == NO_NODE)
    lead[after[leads]] = edges.host_ns[leads]
    own = (after >= 0) & (before >= 0)
    kind = np.where(edges.is_control[own] > 0, Evidence.CONTROL, Evidence.STATED)
    return EdgeRows(before[own], after[own], kind.astype(np.int8), edges.host_ns[own]), lead


def _key(gpu: Int32, node: Int64) -> Int64:
    return gpu.astype(np.int64) << 40 | node


def dependencies(table: KernelTable, rows: Index) -> EdgeRows:
    """The dependencies among rows, which come in `time_order`, as edges between their places.

    Edges come in the order of the row that waits, that to the row before it in its stream first.
    All sources are before their targets, so that there is no cycle.

    A row depends on the one before it in its stream, and of every other stream of its GPU on the
    last that ended by its start, if that ended later than the one before it in its own. In a
    stream whose activities overlap (those of a graph) the last that ended counts as before it. Of
    more than `MOST_STREAMS` it depends on the last that ended in any of them alone.
    """
    gpus = [*run_starts(table.gpu[rows]).tolist(), len(rows)]
    parts = [_of_gpu(table, rows, begin, end) for begin, end in pairwise(gpus)]
    nothing = np.zeros(0, np.int64)
    after, before, evidence = (
        np.concatenate([nothing, *(part[column] for part in parts)]) for column in range(3)
    )
    order, lag = stable_order(after), np.zeros(len(after), np.int64)
    return EdgeRows(before[order], after[order], evidence[order].astype(np.int8), lag)


_Edges = tuple[Int64, Int64, Int64]
"""The waiting row, the one that it waits for, and the evidence."""


def _of_gpu(table: KernelTable, rows: Index, begin: int, end: int) -> _Edges:
    own = rows[begin:end]
    times = _Times(
        table.start_ns[own],
        table.start_ns[own] + table.duration_ns[own],
        table.stream[own],
        table.launch_ns[own],
    )
    order = stable_order(times.stream)
    lanes = np.split(order, run_starts(times.stream[order])[1:])
    previous = np.full(end - begin, -1, np.intp)
    for lane in lanes:
        previous[lane[1:]] = lane[:-1]
        starts, ends = times.start[lane], times.end[lane]
        overlaps = (ends[:-1] > starts[1:] + STAMP_NS) | (ends[:-1] > ends[1:])
        if overlaps.any():
            late = lane[1:][overlaps]
            place, ended = _last_ended(times, lane, late)
            previous[late] = np.where(ended, place, -1)
    held = np.flatnonzero(previous >= 0)
    own_end = np.where(previous >= 0, times.end[previous], _NEVER)
    edges = [(held, previous[held], np.full(len(held), Evidence.STREAM))]
    edges += _across(times, lanes, own_end) if len(lanes) > 1 else []
    after, before, evidence = (np.concatenate([each[k] for each in edges]) for k in range(3))
    return after + begin, before + begin, evidence


class _Times(Struct, frozen=True, eq=False):
    """The rows of one GPU in the order of time."""

    start: Int64
    end: Int64
    stream: Int64
    launch: Int64


def _last_ended(times: _Times, lane: Index, waiting: Index) -> tuple[Index, Mask]:
    """The row of a stream that ended last by the start of each waiting row, if there is one."""
    by_end = lane[stable_order(times.end[lane])]
    at = np.searchsorted(times.end[by_end], times.start[waiting], "right") - 1
    place = by_end[np.maximum(at, 0)]
    # Rows of zero length can end at the start of an earlier one.
    return place, (at >= 0) & (place < waiting)


def _across(times: _Times, lanes: list[Index], own_end: Int64) -> list[_Edges]:
    ends = times.end[stable_order(times.end)]
    ended = np.searchsorted(ends, times.start, "right") > np.searchsorted(ends, own_end, "right")
    waiting = np.flatnonzero(ended)
    found = []
    for lane in lanes if len(lanes) <= MOST_STREAMS else [np.arange(len(times.start))]:
        place, there = _last_ended(times, lane, waiting)
        there &= times.stream[waiting] != times.stream[place]
        there &= times.end[place] > own_end[waiting]
        after, before = waiting[there], place[there]
        launch = times.launch[after]
        evidence = np.where(launch <= times.end[before], Evidence.QUEUED, Evidence.HOST)
        evidence = np.where(launch == NO_TIME, Evidence.UNKNOWN, evidence)
        found.append((after, before, evidence))
    return found
