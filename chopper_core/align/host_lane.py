"""Collects what the launching threads of each GPU did, for the host lane of the timeline."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from chopper_core.align.host import Links
from chopper_core.model.host_lane import HostKind, HostLane
from chopper_core.model.side_table import empty
from chopper_core.sources.trace import HostCategory, Launches, Trace
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.grouping import distinct

_LAUNCHES: Final = re.compile(r"Launch")
_SHORTEST_CALL_NS: Final = 1_000
"""Shorter calls read a property or record an event; a cell of the timeline doesn't show them."""


def host_lane(trace: Trace, links: Links, gpu: Index) -> HostLane:
    """Outermost operators and runtime calls of the threads that launch each GPU's work.

    A thread that launches for several GPUs is on the lane of each.
    """
    known = links.points.known()
    pairs = distinct(gpu[known] * np.int64(len(trace.threads)) + links.points.thread[known])
    if not len(pairs):
        return empty(HostLane)
    operators, calls = _outermost(trace, pairs % len(trace.threads)), _calls(trace)
    parts: list[tuple[int, HostKind, Index]] = []
    for number in distinct(pairs // len(trace.threads)).tolist():
        threads = pairs[pairs // len(trace.threads) == number] % len(trace.threads)
        for kind, rows, table in (
            (HostKind.OPERATOR, operators, trace.ranges),
            (HostKind.CALL, calls, trace.launches),
        ):
            own = rows[np.isin(table.thread[rows], threads)]
            parts.append((number, kind, own[np.argsort(table.start_ns[own], kind="stable")]))

    def column(name: str) -> Int64:
        tables = (trace.ranges, trace.launches)
        return np.concatenate([getattr(tables[kind], name)[own] for _, kind, own in parts])

    sizes = [len(own) for _, _, own in parts]
    codes = column("name")
    used = distinct(codes)
    return HostLane(
        tuple(trace.names[code] for code in used.tolist()),
        np.repeat(np.array([number for number, _, _ in parts], np.int32), sizes),
        np.repeat(np.array([kind for _, kind, _ in parts], np.int8), sizes),
        np.searchsorted(used, codes).astype(np.int32),
        column("start_ns"),
        column("duration_ns"),
    )


def _outermost(trace: Trace, threads: Int64) -> Index:
    """The rows of operators on some threads that don't lie in another operator."""
    ranges = trace.ranges
    rows = np.flatnonzero(ranges.category == HostCategory.OPERATOR)
    rows = rows[np.isin(ranges.thread[rows], threads)]
    start, end = ranges.start_ns[rows], ranges.start_ns[rows] + ranges.duration_ns[rows]
    order = np.lexsort((-end, start, ranges.thread[rows]))
    rows, end = rows[order], end[order]
    thread = ranges.thread[rows]
    outer = np.ones(len(rows), np.bool_)
    for number in distinct(thread).tolist():
        begin, stop = np.searchsorted(thread, [number, number + 1]).tolist()
        latest = np.maximum.accumulate(end[begin:stop])
        # Where the clock's steps let one end after the one around it, it counts too.
        outer[begin + 1 : stop] = end[begin + 1 : stop] > latest[:-1]
    return rows[outer]


def _calls(trace: Trace) -> Index:
    """The rows of runtime calls that don't launch and take long enough to be seen."""
    launches: Launches = trace.launches
    used = np.flatnonzero(np.bincount(launches.name, minlength=len(trace.names)))
    starts = np.zeros(len(trace.names), np.bool_)
    starts[used] = [_LAUNCHES.search(trace.names[code]) is not None for code in used.tolist()]
    return np.flatnonzero(~starts[launches.name] & (launches.duration_ns >= _SHORTEST_CALL_NS))
