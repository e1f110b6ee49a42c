"""What the host did: idle time by its work, its lane of the timeline, allocations of GPU memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.align.host import Host, Links, codes_matching
from chopper_core.align.labels import NOWHERE, Intervals, Points, in_blocks
from chopper_core.align.steps import STEP_NAMES
from chopper_core.model.column_names import ALLOC_BYTES, FRAGMENTATION_BYTES, PEAK_BYTES
from chopper_core.model.side_table import (
    NEVER,
    HostKind,
    HostLane,
    HostStack,
    HostTime,
    MemoryEvents,
    empty,
    largest_between,
)
from chopper_core.model.table import KernelTable
from chopper_core.sources.trace import HostCategory, HostRanges, Trace
from chopper_core.tables.losses import ABSENT
from chopper_core.util.arrays import Codes, Float64, Index, Int8, Int32, Int64, Rows
from chopper_core.util.grouping import (
    distinct,
    first_equal,
    isin,
    numbered_rows,
    ranked,
    run_starts,
    stable_order,
)
from chopper_core.util.patterns import late

_NO_CAUSE: Final = late(
    r"^(?:ProfilerStep#|Iteration\s?_?#?\d|PyTorch Profiler)"
    r"|^<built-in (?:method|function) (?:poll|acquire|wait|sleep)\b",
    re.I,
)
"""Profilers, and Python's own functions that wait for others: what is around them says more."""
_IGNORED: Final = -1
_KIND_OF: Final = np.full(len(HostCategory), _IGNORED, np.int8)
"""The field of `HostStack` of each category of ranges."""
_KIND_OF[[HostCategory.OPERATOR, HostCategory.ANNOTATION, HostCategory.FRAME]] = (1, 2, 3)
_LAUNCHES: Final = late(r"Launch")
_SHORTEST_CALL_NS: Final = 1_000
"""Shorter calls read a property or record an event; a cell of the timeline doesn't show them."""
_MOST_ROWS: Final = 1 << 24
"""Of a table of the host's work: that of a thread which launches for many GPUs is repeated for
each."""
_MOST_REPEATED: Final = 32
"""Times on average, of a large table; a process drives fewer GPUs."""
_LARGE_ROWS: Final = 1 << 20


class HostGaps(Rows, frozen=True):
    """Idle and copy time of GPUs, whose hosts are asked what they did: times in ns."""

    gpu: Int32
    thread: Int32
    """The thread that launches the next activity."""
    begin_ns: Int64
    end_ns: Int64
    state: Int8
    """Of `HostState`."""


def host_time(trace: Trace, links: Links, gaps: HostGaps) -> HostTime:
    """The idle and copy time of a trace's activities by the work of their launching threads.

    Where the thread that launches the next activity did nothing, the previous launching thread
    counts: autograd's thread begins when the main thread calls it. Empty if there is too much.
    """
    if not len(gaps):
        return empty(HostTime)
    begin, end, own = gaps.begin_ns, gaps.end_ns, gaps.thread
    last = _last_launching(links, begin)
    pieces = _pieces(trace, own, begin, end)
    if pieces is None:
        return empty(HostTime)
    del begin, end
    is_alone = (pieces.codes == NOWHERE).all(axis=0) & (own != last)[pieces.gap]
    if is_alone.any():
        alone, pieces = pieces.take(is_alone), pieces.take(~is_alone)
        gap = alone.gap
        others = _pieces(trace, last[gap], alone.start_ns, alone.end_ns)
        if others is None:
            return empty(HostTime)
        pieces = pieces.joined(replace(others, gap=gap[others.gap]))
        del alone, others, gap
    order = stable_order(pieces.start_ns)
    pieces = pieces.take(order[stable_order(gaps.gpu[pieces.gap[order]])])
    length = pieces.end_ns - pieces.start_ns
    first = run_starts(pieces.gap, *pieces.codes)
    length, pieces = np.add.reduceat(length, first), pieces.take(first)
    stack = numbered_rows(list(pieces.codes))
    texts = pieces.codes[:, first_equal(stack, np.arange(int(stack.max()) + 1))].T.tolist()
    return HostTime(
        tuple(
            HostStack(*("" if code == NOWHERE else trace.names[code] for code in codes))
            for codes in texts
        ),
        gaps.gpu[pieces.gap],
        pieces.start_ns,
        length,
        stack.astype(np.int32),
        gaps.state[pieces.gap],
    )


def _are_too_many(rows: int, trace: Trace) -> bool:
    """Whether a table of the host's work would have more rows than are kept."""
    events = len(trace.launches) + len(trace.ranges)
    return rows > min(_MOST_ROWS, max(_LARGE_ROWS, _MOST_REPEATED * events))


def _last_launching(links: Links, at_ns: Int64) -> Int32:
    """The thread of the last launch before each instant; NOWHERE before the first."""
    known = np.flatnonzero(links.points.known())
    known = known[stable_order(links.points.time_ns[known])]
    place = np.searchsorted(links.points.time_ns[known], at_ns, "left")
    return np.append(np.int32(NOWHERE), links.points.thread[known])[place]


def _events(trace: Trace) -> Iterator[tuple[Int8, Intervals]]:
    """The host events by the field of `HostStack`, a block at a time: few are in a gap."""
    codes = np.arange(len(trace.names))
    is_cause, used = np.ones(len(codes), np.bool_), distinct(trace.ranges.name)
    for pattern in (_NO_CAUSE, *STEP_NAMES):
        is_cause &= ~codes_matching(trace.names, codes, pattern, used)
    for table in (trace.launches, trace.ranges):
        for block in in_blocks(max(len(table), 1)):
            part = table.take(block)
            kind = np.zeros(len(part), np.int8)
            if isinstance(part, HostRanges):
                kind = np.where(is_cause[part.name], _KIND_OF[part.category], _IGNORED)
            last_ns = part.start_ns + part.duration_ns - 1
            name = part.name.astype(np.intp)
            yield kind, Intervals(part.thread, part.start_ns, last_ns, name)


class _GapPieces(Rows, frozen=True):
    """Pieces of gaps, and what a thread does in each."""

    gap: Index
    start_ns: Int64
    end_ns: Int64
    codes: Int32
    """Codes of names, as fields of `HostStack` x pieces; NOWHERE without one."""


def _pieces(trace: Trace, thread: Int32, begin: Int64, end: Int64) -> _GapPieces | None:
    """The gaps, cut where an event of their thread starts or ends, with the innermost events; None
    for too many."""
    place = Points(np.tile(thread, 2), np.concatenate([begin, end])).place
    begins, ends = place(thread, begin), place(thread, end)
    order = stable_order(begins)
    ordered = np.append(begins[order], np.iinfo(np.int64).max)
    latest = np.maximum.accumulate(ends[order])
    kinds: list[Int8] = []
    chosen: list[Intervals] = []
    edges: list[Int64] = []
    for kind, events in _events(trace):
        starts = place(events.thread, events.start_ns)
        stops = place(events.thread, events.end_ns + 1)
        # Before the stop begins a gap, the first of those with one that ends behind the start.
        inside = ordered[np.searchsorted(latest, starts, "right")] < stops
        inside &= kind != _IGNORED
        kinds.append(kind[inside])
        chosen.append(events.take(inside))
        edges += starts[inside], stops[inside]
    cuts = distinct(np.concatenate(edges))
    del order, ordered, latest, edges
    first = np.searchsorted(cuts, begins, "right")
    count = np.searchsorted(cuts, ends, "left") - first + 1
    if _are_too_many(int(count.sum()), trace):
        return None
    head = np.cumsum(count) - count
    gap = np.repeat(np.arange(len(begin)), count)
    # The first piece of a gap begins with it, the others at a cut.
    start = np.append(cuts, 0)[np.arange(len(gap)) + (first - 1 - head)[gap]]
    start += (begin - begins)[gap]
    start[head] = begin
    stop = np.append(start[1:], 0)
    stop[head + count - 1] = end
    del place, begins, ends, cuts
    points = Points(thread[gap], start)
    codes = np.full((len(HostStack.__struct_fields__), len(gap)), NOWHERE, np.int32)
    own, kind_of = reduce(Intervals.joined, chosen), np.concatenate(kinds)
    del chosen, kinds
    for number, found in enumerate(codes):
        # No event starts or ends within a piece: one that covers its first instant covers it all.
        found[:] = own.take(kind_of == number).innermost(points)
    return _GapPieces(gap, start, stop, codes)


def read_host_lane(trace: Trace, links: Links, gpu: Codes) -> HostLane:
    """Outermost operators and runtime calls of the threads that launch each GPU's work.

    A thread that launches for several GPUs is on the lane of each. Empty if there is too much.
    """
    known = links.points.known()
    pairs = distinct(gpu[known] * np.int64(len(trace.threads)) + links.points.thread[known])
    if not len(pairs):
        return empty(HostLane)
    operators = _outermost(trace, pairs % len(trace.threads))
    launches = codes_matching(trace.names, trace.launches.name, _LAUNCHES)
    # Runtime calls that don't launch and take long enough to be seen.
    calls = np.flatnonzero(~launches & (trace.launches.duration_ns >= _SHORTEST_CALL_NS))
    lanes = np.bincount(pairs % len(trace.threads), minlength=len(trace.threads))
    threads_of = (trace.ranges.thread[operators], trace.launches.thread[calls])
    if _are_too_many(sum(int(lanes[each].sum()) for each in threads_of), trace):
        return empty(HostLane)
    parts = []
    for number in distinct(pairs // len(trace.threads)).tolist():
        threads = pairs[pairs // len(trace.threads) == number] % len(trace.threads)
        for kind, rows, table in (
            (HostKind.OPERATOR, operators, trace.ranges),
            (HostKind.CALL, calls, trace.launches),
        ):
            own = rows[isin(table.thread[rows], threads)]
            own = own[np.argsort(table.start_ns[own], kind="stable")]
            gpus, kinds = np.full(len(own), number, np.int32), np.full(len(own), kind, np.int8)
            columns = (table.name[own], table.start_ns[own], table.duration_ns[own])
            parts.append((gpus, kinds, *columns))
    gpus, kinds, codes, start, duration = map(np.concatenate, zip(*parts, strict=True))
    used, name = ranked(codes)
    return HostLane(
        tuple(trace.names[code] for code in used.tolist()),
        gpus,
        kinds,
        name.astype(np.int32),
        start,
        duration.astype(np.int64, copy=False),
    )


def _outermost(trace: Trace, threads: Int64) -> Index:
    ranges = trace.ranges
    launches = np.zeros(len(trace.threads), np.bool_)
    launches[threads] = True
    rows = np.flatnonzero((ranges.category == HostCategory.OPERATOR) & launches[ranges.thread])
    # Of each block first: few are left of all.
    outer = (_outer(ranges, rows[block]) for block in in_blocks(len(rows)))
    return _outer(ranges, np.concatenate([rows[:0], *outer]))


def _outer(ranges: HostRanges, rows: Index) -> Index:
    """Those of the rows that lie in no other one of their thread, thread by thread."""
    if not len(rows):
        return rows
    end = ranges.start_ns[rows] + ranges.duration_ns[rows]
    order = np.lexsort((-end, ranges.start_ns[rows], ranges.thread[rows]))
    rows, end = rows[order], end[order]
    # Ends thread after thread. Where the clock's steps let one end after the one around it, it
    # counts too.
    place = ranges.thread[rows].astype(np.int64) * (np.ptp(end) + 1) + (end - end.min())
    outer = np.ones(len(rows), np.bool_)
    outer[1:] = place[1:] > np.maximum.accumulate(place)[:-1]
    return rows[outer]


def align_memory(
    trace: Trace, links: Links, devices: Int64, table: KernelTable
) -> tuple[MemoryEvents, dict[str, Float64], int]:
    """Give each memory event of a trace its GPU, operator, partner and activity.

    `devices` are those of the activities, whose rows in the table are in the order of the trace.
    The framework numbers devices as the process sees them: the only one is the only GPU, several
    are matched by number. Returns the events, the measured columns that they give the activities,
    and how many events are of a device that isn't known as one of the activities' GPUs.
    """
    found = trace.allocations
    its_gpu = first_equal(devices, found.device)
    if len(devices) == 1 and len(distinct(found.device)) == 1:
        its_gpu = np.zeros(len(found), np.intp)
    placed = np.flatnonzero(its_gpu >= 0)
    order = placed[stable_order(found.time_ns[placed])]
    order = order[stable_order(its_gpu[order])]
    if not len(order):
        return empty(MemoryEvents), {}, len(found)
    own_gpu, time_ns, size = its_gpu[order], found.time_ns[order], found.bytes[order]
    points = Points(found.thread[order], time_ns)
    row = _next_launched(links, table.gpu, own_gpu, points)
    names: dict[str, int] = {}

    def renamed(codes: Index | Int32, texts: Sequence[str]) -> Int32:
        used = distinct(codes[codes >= 0])
        new = np.full(len(texts) + 1, -1, np.int32)
        new[used] = [names.setdefault(texts[code], len(names)) for code in used.tolist()]
        return new[codes]

    def label(codes: Int32 | Int8) -> Int32:
        return np.where(row >= 0, codes[row], -1).astype(np.int32)

    host = Host(trace)
    running = host.many(host.operators, trace.ranges.name[host.operators])
    operator = renamed(running.innermost(points), trace.names)
    operation = renamed(label(table.operation), table.operations)
    events = MemoryEvents(
        tuple(names),
        own_gpu.astype(np.int32),
        time_ns,
        size,
        _totals(own_gpu, size, found.allocated[order]),
        _known(own_gpu, found.reserved[order]),
        _partners(own_gpu, found.address[order], size),
        operator,
        label(table.iteration),
        label(table.phase).astype(np.int8),
        label(table.layer),
        operation,
    )
    return events, _bytes_of(events, row, links, table.gpu), len(found) - len(order)


def _next_launched(links: Links, gpu: Int32, own_gpu: Index, points: Points) -> Index:
    """The activity on the event's GPU that its thread launches next, else the last before.

    Of a thread that launches nothing there, the next one of any thread; -1 without any launch.
    """
    found = np.full(len(points), NOWHERE, np.intp)
    launched = links.points
    known = np.flatnonzero(launched.known())
    known = known[stable_order(launched.time_ns[known])]
    for number in distinct(own_gpu).tolist():
        there = known[gpu[known] == number]
        mine = np.flatnonzero(own_gpu == number)
        if not len(there):
            continue
        threads = set(distinct(launched.thread[there]).tolist())
        for thread in distinct(points.thread[mine]).tolist():
            events = mine[points.thread[mine] == thread]
            rows = there[launched.thread[there] == thread] if thread in threads else there
            at = np.searchsorted(launched.time_ns[rows], points.time_ns[events], "left")
            found[events] = rows[np.minimum(at, len(rows) - 1)]
    return found


def _totals(gpu: Index, size: Int64, allocated: Int64) -> Int64:
    """Bytes allocated after each event; where the trace lacks them, counted from 0 at first."""
    if (allocated != ABSENT).all():
        return allocated
    counted = np.zeros(len(size), np.int64)
    for number in distinct(gpu).tolist():
        own = gpu == number
        counted[own] = np.cumsum(size[own])
        counted[own] -= min(int(counted[own].min()), 0)
    return counted


def _known(gpu: Index, values: Int64) -> Int64:
    """Values of which unknown ones are those before on the same GPU, at first 0."""
    known = values != ABSENT
    if known.all():
        return values
    at = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    same = (at >= 0) & (gpu[np.maximum(at, 0)] == gpu)
    return np.where(same, values[np.maximum(at, 0)], 0)


def _partners(gpu: Index, address: Int64, size: Int64) -> Int32:
    """For each allocation the event that releases its memory, and the other way; else `NEVER`."""
    order = stable_order(address)
    order = order[stable_order(gpu[order])]
    first, second = order[:-1], order[1:]
    pairs = (gpu[first] == gpu[second]) & (address[first] == address[second])
    pairs &= (address[first] != ABSENT) & (size[first] > 0) & (size[second] == -size[first])
    partner = np.full(len(size), NEVER, np.int32)
    partner[first[pairs]] = second[pairs]
    partner[second[pairs]] = first[pairs]
    return partner


def _bytes_of(events: MemoryEvents, row: Index, links: Links, gpu: Int32) -> dict[str, Float64]:
    """The bytes allocated for each activity, and the most that there were up to its launch."""
    count = len(gpu)
    alloc = np.where(links.points.known(), 0.0, np.nan)
    peak, fragments = np.full((2, count), np.nan)
    for number in distinct(events.gpu).tolist():
        own = events.of_gpu(number)
        rows = np.flatnonzero(links.points.known() & (gpu == number))
        rows = rows[stable_order(links.points.time_ns[rows])]
        at = np.searchsorted(events.time_ns[own], links.points.time_ns[rows], "right")
        # The events between the launch before and this one; the one before them still holds.
        begins = np.concatenate([[0], at[:-1]])
        for values, column in (
            (events.allocated[own], peak),
            (events.reserved[own] - events.allocated[own], fragments),
        ):
            column[rows] = largest_between(values, np.maximum(begins - 1, 0), at)
        if len(rows):
            ends = events.time_ns[own][-1]
            last = rows[-1]
            if links.points.time_ns[last] < ends:
                peak[last] = max(peak[last], events.allocated[own][at[-1] :].max())
    alloc[~isin(gpu, events.gpu)] = np.nan
    gained = np.flatnonzero((events.bytes > 0) & (row >= 0))
    alloc += np.bincount(row[gained], events.bytes[gained], count)
    return {ALLOC_BYTES: alloc, PEAK_BYTES: peak, FRAGMENTATION_BYTES: fragments}
