"""Cuts the idle time of the GPUs by where the thread was that launches next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.host import Links
from chopper_core.align.intervals import Intervals, Points
from chopper_core.model.host_time import NO_HOST_TIME, HostStack, HostState, HostTime
from chopper_core.model.table import NO_TIME
from chopper_core.sources.trace import HostCategory, HostRanges, Trace
from chopper_core.util.arrays import Index, Int8, Int32, Int64, Mask
from chopper_core.util.grouping import distinct, ranked, run_starts, stable_order

_NO_CAUSE: Final = re.compile(
    r"^(?:ProfilerStep#|Iteration\s?_?#?\d|PyTorch Profiler)"
    r"|^<built-in (?:method|function) (?:poll|acquire|wait|sleep)\b",
    re.I,
)
"""Whole steps, and Python's own functions that wait for others: what is around them says more."""
_IGNORED: Final = -1
_KIND_OF: Final = np.full(len(HostCategory), _IGNORED, np.int8)
"""The field of `HostStack` of each category of ranges."""
_KIND_OF[[HostCategory.OPERATOR, HostCategory.ANNOTATION, HostCategory.FRAME]] = (1, 2, 3)


def host_time(
    trace: Trace, links: Links, gpu: Index, idle_ns: Int64, copying_ns: Int64
) -> HostTime:
    """The idle and copy time of a trace's activities by what their launching threads did.

    Where the thread that launches the next activity did nothing, the one that launched the last
    before counts: autograd's thread begins when the main thread calls it.
    """
    start = trace.activities.start_ns
    launched = np.where(links.launch_ns == NO_TIME, start - idle_ns, links.launch_ns)
    thread = links.points.thread
    late = np.clip(launched - (start - idle_ns), 0, idle_ns)
    # Gaps before the launch call, from it on, and copies.
    parts = (
        (start - idle_ns, late, HostState.LATE),
        (start - idle_ns + late, idle_ns - late, HostState.LAUNCHED),
        (start, copying_ns, HostState.COPYING),
    )
    rows = [np.flatnonzero(length > 0) for _, length, _ in parts]
    whose = np.concatenate(rows)
    begin = np.concatenate([first[own] for (first, _, _), own in zip(parts, rows, strict=True)])
    length = np.concatenate([long[own] for (_, long, _), own in zip(parts, rows, strict=True)])
    state = np.repeat([state for _, _, state in parts], [len(own) for own in rows])
    if not len(whose):
        return NO_HOST_TIME
    threads = np.stack([thread[whose], _last_launching(links, thread, begin)])
    events = _events(trace, threads, begin, begin + length)
    piece, cuts = _cut(events, threads, begin, begin + length)
    ends = np.append(cuts[1:], 0)
    is_last = np.append(piece[1:] != piece[:-1], True)
    ends[is_last] = (begin + length)[piece[is_last]]
    codes = _stacks(events, threads[0][piece], cuts, ends)
    alone = np.flatnonzero((codes == -1).all(axis=0) & (threads[0] != threads[1])[piece])
    codes[:, alone] = _stacks(events, threads[1][piece[alone]], cuts[alone], ends[alone])
    shifts = [int(column.max(initial=-1)) + 2 for column in codes]
    stacks, stack = ranked(np.ravel_multi_index(tuple(codes + 1), shifts))
    order = stable_order(cuts)
    order = order[stable_order(gpu[whose[piece[order]]])]
    owner, stack, piece = (column[order] for column in (gpu[whose[piece]], stack, piece))
    first = run_starts(owner, stack, piece)
    texts = [
        HostStack(*(trace.names[code - 1] if code else "" for code in own))
        for own in zip(*(each.tolist() for each in np.unravel_index(stacks, shifts)), strict=True)
    ]
    return HostTime(
        tuple(texts),
        owner[first].astype(np.int32),
        cuts[order][first],
        np.add.reduceat((ends - cuts)[order], first),
        stack[first].astype(np.int32),
        state[piece[first]].astype(np.int8),
    )


def _last_launching(links: Links, thread: Int32, at_ns: Int64) -> Int32:
    """The thread of the last launch before each instant; NOWHERE before the first."""
    known = np.flatnonzero(links.points.known())
    known = known[stable_order(links.points.time_ns[known])]
    place = np.searchsorted(links.points.time_ns[known], at_ns, "left") - 1
    found = np.append(thread[known], np.int32(-1))[place]
    return np.where(place >= 0, found, np.int32(-1)).astype(np.int32)


class _Events(Struct, frozen=True):
    """Host events on launching threads while a GPU has nothing to run."""

    thread: Int32
    start_ns: Int64
    end_ns: Int64
    kind: Int8
    """The field of `HostStack`."""
    name: Int32


def _events(trace: Trace, threads: Int32, begin: Int64, end: Int64) -> _Events:
    """The events that lie in gaps, of which only few need to be looked at in a busy trace."""
    order = stable_order(begin)
    begin, end = begin[order], np.maximum.accumulate(end[order])
    used = distinct(threads[threads >= 0])
    found = []
    for events in (trace.launches, trace.ranges):
        stop = events.start_ns + events.duration_ns
        first = np.searchsorted(end, events.start_ns, "right")
        inside = np.searchsorted(begin, stop, "left") > first
        rows = np.flatnonzero(inside & np.isin(events.thread, used))
        if isinstance(events, HostRanges):
            kind = _KIND_OF[events.category[rows]]
            kind[_matching(trace.names, events.name[rows], _NO_CAUSE)] = _IGNORED
            rows, kind = rows[kind != _IGNORED], kind[kind != _IGNORED]
        else:
            kind = np.zeros(len(rows), np.int8)
        found.append(
            (events.thread[rows], events.start_ns[rows], stop[rows], kind, events.name[rows])
        )
    return _Events(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def _cut(events: _Events, threads: Int32, begin: Int64, end: Int64) -> tuple[Index, Int64]:
    """The gap and the start of each piece: gaps cut where a host event starts or ends."""
    gaps = [np.arange(len(begin))]
    cuts = [begin]
    for number in distinct(threads[threads >= 0]).tolist():
        own = events.thread == number
        times = np.sort(np.concatenate([events.start_ns[own], events.end_ns[own]]))
        chosen = np.flatnonzero((threads == number).any(axis=0))
        first = np.searchsorted(times, begin[chosen], "right")
        count = np.searchsorted(times, end[chosen], "left") - first
        place = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        gaps.append(np.repeat(chosen, count))
        cuts.append(times[np.repeat(first, count) + place])
    gap, cut = np.concatenate(gaps), np.concatenate(cuts)
    order = stable_order(cut)
    order = order[stable_order(gap[order])]
    gap, cut = gap[order], cut[order]
    first = run_starts(gap, cut)
    return gap[first], cut[first]


def _stacks(events: _Events, thread: Int32, begin: Int64, end: Int64) -> Int64:
    """Codes of the names of the innermost call, operator, annotation and frame of each piece."""
    # Times are doubled, so that the middle of a piece is a whole number within it.
    points = Points(thread, begin + end)
    found = np.full((len(HostStack.__struct_fields__), len(begin)), -1, np.int64)
    for kind in range(len(found)):
        rows = np.flatnonzero(events.kind == kind)
        intervals = Intervals(
            events.thread[rows], 2 * events.start_ns[rows], 2 * events.end_ns[rows], rows
        )
        inner = intervals.innermost(points)
        known = inner >= 0
        found[kind, known] = events.name[inner[known]]
    return found


def _matching(names: Sequence[str], codes: Int32, pattern: re.Pattern[str]) -> Mask:
    different, place = ranked(codes)
    found = [pattern.search(names[code]) is not None for code in different.tolist()]
    return np.array(found, np.bool_)[place]
