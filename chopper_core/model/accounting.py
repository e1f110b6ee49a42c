"""Time accounting: every nanosecond of a GPU's span is charged to one activity.

The span (first start to last end) is cut at every start and end. Each piece is in exactly one
state and is charged to exactly one activity:

| state of the GPU               | column            | charged to                           |
|--------------------------------|-------------------|--------------------------------------|
| compute runs, no communication | `compute_ns`      | the running compute, earliest start  |
| compute and communication run  | `overlap_ns`      | the same compute                     |
| communication, perhaps copies  | `exposed_comm_ns` | the running communication, likewise  |
| only copies                    | `exposed_copy_ns` | the running copy, likewise           |
| nothing                        | `idle_ns`         | the activity that starts next        |

Ties go to the lower stream, then to the earlier row. Everything is integers: the five columns add
up to the span, to the nanosecond.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from chopper_core.model.table import NO_TIME, Kind
from chopper_core.util.arrays import Index, Int8, Int32, Int64, Mask
from chopper_core.util.grouping import run_mask


class Pieces(Struct, frozen=True):
    """The span of a GPU, cut at every start and end."""

    edges_ns: Int64
    """Times in ns, one more than the pieces."""
    owner: Index
    """The activity that each piece is charged to."""
    is_compute: Mask
    """Whether compute runs; that compute is then the owner."""
    is_comm: Mask
    is_copy: Mask


def cut(start_ns: Int64, duration_ns: Int64, kind: Int8, stream: Int64) -> Pieces:
    """Cut the span of one GPU into pieces and find the owner of each."""
    count = len(start_ns)
    end_ns = start_ns + duration_ns
    order = np.lexsort((stream, start_ns))
    edges = np.sort(np.concatenate([start_ns, end_ns]))
    edges = edges[np.diff(edges, prepend=edges[:1] - 1) > 0]
    running = {
        of_kind: _first_running(order[kind[order] == of_kind], start_ns, end_ns, edges[:-1])
        for of_kind in Kind
    }
    owner = np.zeros(max(len(edges) - 1, 0), np.intp)
    if count:
        following = np.searchsorted(start_ns[order], edges[1:], "left")
        owner = order[np.minimum(following, count - 1)]
    for of_kind in (Kind.COPY, Kind.COMM, Kind.COMPUTE):
        owner = np.where(running[of_kind] >= 0, running[of_kind], owner)
    return Pieces(
        edges,
        owner,
        running[Kind.COMPUTE] >= 0,
        running[Kind.COMM] >= 0,
        running[Kind.COPY] >= 0,
    )


def account(
    start_ns: Int64, duration_ns: Int64, kind: Int8, stream: Int64, launch_ns: Int64
) -> dict[str, Int64]:
    """Split the span of one GPU among its activities: columns in ns, a value per activity.

    Adds to the columns above: `idle_host_ns`, the idle time before the activity's launch call
    (the host was late); `idle_launch_ns`, the idle time from that call on; `idle_unknown_ns`, the
    idle time before an activity without a launch record; `hidden_ns`, the part of a communication
    under compute, 0 for all others.
    """
    count = len(start_ns)
    end_ns = start_ns + duration_ns
    pieces = cut(start_ns, duration_ns, kind, stream)
    edges, length = pieces.edges_ns, np.diff(pieces.edges_ns)
    compute, comm, copy = pieces.is_compute, pieces.is_comm, pieces.is_copy

    def charge(where: Mask, amount: Int64 = length) -> Int64:
        # Sums of whole nanoseconds stay exact in float64 below 2**53 ns, which is 104 days.
        charged = np.bincount(pieces.owner[where], weights=amount[where], minlength=count)
        return charged.astype(np.int64)

    idle = ~(compute | comm | copy)
    launch = launch_ns[pieces.owner]
    host_late = np.clip(launch - edges[:-1], 0, length)
    known = launch != NO_TIME

    compute_edges = np.concatenate([[0], np.cumsum(np.where(compute, length, 0))])
    hidden = np.zeros(count, np.int64)
    comms = np.flatnonzero(kind == Kind.COMM)
    hidden[comms] = (
        compute_edges[np.searchsorted(edges, end_ns[comms])]
        - compute_edges[np.searchsorted(edges, start_ns[comms])]
    )
    return {
        "compute_ns": charge(compute & ~comm),
        "overlap_ns": charge(compute & comm),
        "exposed_comm_ns": charge(comm & ~compute),
        "exposed_copy_ns": charge(copy & ~comm & ~compute),
        "idle_ns": charge(idle),
        "idle_host_ns": charge(idle & known, host_late),
        "idle_launch_ns": charge(idle & known, length - host_late),
        "idle_unknown_ns": charge(idle & ~known),
        "hidden_ns": hidden,
    }


def _first_running(candidates: Index, start_ns: Int64, end_ns: Int64, at_ns: Int64) -> Index:
    """The row among `candidates` (sorted by start) that runs at each time, earliest start first.

    The first candidate whose end lies after a time is where the running maximum of the ends
    passes it; if that one hasn't started, none runs, because all others start later. -1: none.
    """
    if not len(candidates):
        return np.full(len(at_ns), -1, np.intp)
    latest_end = np.maximum.accumulate(end_ns[candidates])
    position = np.searchsorted(latest_end, at_ns, "right")
    exists = position < len(candidates)
    row = candidates[np.where(exists, position, 0)]
    return np.where(exists & (start_ns[row] <= at_ns), row, -1)


def launch_overheads(
    start_ns: Int64, duration_ns: Int64, kind: Int8, launch_ns: Int64, iteration: Int32
) -> dict[str, Int64]:
    """Chopper's launch, prep and call overheads of one GPU: columns in ns.

    Per iteration, over its compute activities by start, with `gap` = start - latest end of those
    before: launch = max(0, gap); prep = the part of it before the launch call; call = the part
    from the launch call on. For the first of an iteration the gap counts from the iteration's
    first kernel, of compute or communication: copies of its input don't count. Prep and call are 0
    where no launch record exists or where the launch call is stamped after the start (two clocks).
    Source: UnaryLab/chopper, `trace_metrics.py`, where a short activity of another stream splits a
    long one that still runs; the gap holds exposed communication too, unlike `idle_ns`.
    """
    launch = np.zeros(len(start_ns), np.int64)
    prep = np.zeros(len(start_ns), np.int64)
    call = np.zeros(len(start_ns), np.int64)
    order = np.lexsort((start_ns, iteration))
    order = order[kind[order] != Kind.COPY]
    rows = order[kind[order] == Kind.COMPUTE]
    if len(rows):
        begin = start_ns[order[np.searchsorted(iteration[order], iteration[rows])]]
        previous_end = np.empty(len(rows), np.int64)
        first = run_mask(iteration[rows])
        # Iteration after iteration on one axis: no end of one is beyond those of the next.
        ends = (start_ns + duration_ns)[rows]
        base = (np.cumsum(first) - 1) * (int(ends.max()) - int(ends.min()) + 1)
        previous_end[1:] = (np.maximum.accumulate(ends + base) - base)[:-1]
        previous_end[first] = begin[first]
        gap = np.maximum(0, start_ns[rows] - previous_end)
        known = (launch_ns[rows] != NO_TIME) & (launch_ns[rows] <= start_ns[rows])
        called = np.where(known, np.minimum(start_ns[rows] - launch_ns[rows], gap), 0)
        launch[rows] = gap
        call[rows] = called
        prep[rows] = np.where(known, gap - called, 0)
    return {"launch_overhead_ns": launch, "prep_overhead_ns": prep, "call_overhead_ns": call}
