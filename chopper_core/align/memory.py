"""Allocations of GPU memory by the activity that they are for, and as columns of activities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.host import Links
from chopper_core.align.intervals import Intervals, Points
from chopper_core.model.column_names import ALLOC_BYTES, FRAGMENTATION_BYTES, PEAK_BYTES
from chopper_core.model.host_tables import NEVER, MemoryEvents, largest_between
from chopper_core.model.side_table import empty
from chopper_core.model.table import KernelTable
from chopper_core.sources.trace import HostCategory, Trace
from chopper_core.tables.losses import ABSENT
from chopper_core.util.arrays import Float64, Index, Int8, Int32, Int64
from chopper_core.util.grouping import distinct, stable_order

_NO_ROW: Final = -1


class AlignedMemory(Struct, frozen=True):
    """The memory events of a rank, and the columns that they give its activities."""

    events: MemoryEvents = empty(MemoryEvents)
    columns: dict[str, Float64] = {}
    """Measured columns of the activities."""
    unplaced: int = 0
    """Events of a device that isn't known as one of the activities' GPUs."""


def align_memory(trace: Trace, links: Links, devices: Int64, table: KernelTable) -> AlignedMemory:
    """Give each memory event of a trace its GPU, operator, partner and activity.

    `devices` are those of the activities, whose rows in the table are in the order of the trace.
    The framework numbers devices as the process sees them: the only one is the only GPU, several
    are matched by number.
    """
    found = trace.allocations
    if not len(found):
        return AlignedMemory()
    its_gpu = _gpus(found.device, devices)
    placed = np.flatnonzero(its_gpu >= 0)
    order = placed[stable_order(found.time_ns[placed])]
    order = order[stable_order(its_gpu[order])]
    if not len(order):
        return AlignedMemory(unplaced=len(found))
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

    operator = renamed(_operators(trace, points), trace.names)
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
    return AlignedMemory(events, _columns(events, row, links, table.gpu), len(found) - len(order))


def _gpus(device: Int32, devices: Int64) -> Index:
    """The GPU of each event, -1 for those of an unknown one."""
    numbers = distinct(device)
    if len(devices) == 1 and len(numbers) == 1:
        return np.zeros(len(device), np.intp)
    at = np.minimum(np.searchsorted(devices, device), len(devices) - 1)
    return np.where(devices[at] == device, at, -1).astype(np.intp)


def _next_launched(links: Links, gpu: Int32, own_gpu: Index, points: Points) -> Index:
    """The activity on the event's GPU that its thread launches next, else the last before.

    Of a thread that launches nothing there, the next one of any thread; -1 without any launch.
    """
    found = np.full(len(points), _NO_ROW, np.intp)
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


def _operators(trace: Trace, points: Points) -> Index:
    ranges = trace.ranges
    rows = np.flatnonzero(ranges.category == HostCategory.OPERATOR)
    start = ranges.start_ns[rows]
    return Intervals(
        ranges.thread[rows],
        start,
        start + ranges.duration_ns[rows],
        ranges.name[rows].astype(np.intp),
    ).innermost(points)


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


def _columns(events: MemoryEvents, row: Index, links: Links, gpu: Int32) -> dict[str, Float64]:
    """The bytes allocated for each activity, and the most that there were up to its launch."""
    count = len(gpu)
    alloc = np.where(links.points.known(), 0.0, np.nan)
    peak, apart = np.full((2, count), np.nan)
    for number in distinct(events.gpu).tolist():
        own = events.of_gpu(number)
        rows = np.flatnonzero(links.points.known() & (gpu == number))
        rows = rows[stable_order(links.points.time_ns[rows])]
        at = np.searchsorted(events.time_ns[own], links.points.time_ns[rows], "right")
        # The events between the launch before and this one; the one before them still holds.
        begins = np.concatenate([[0], at[:-1]])
        for values, column in (
            (events.allocated[own], peak),
            (events.reserved[own] - events.allocated[own], apart),
        ):
            column[rows] = largest_between(values, np.maximum(begins - 1, 0), at)
        if len(rows):
            ends = events.time_ns[own][-1]
            last = rows[-1]
            if links.points.time_ns[last] < ends:
                peak[last] = max(peak[last], events.allocated[own][at[-1] :].max())
    for number in set(range(int(gpu.max(initial=0)) + 1)) - set(distinct(events.gpu).tolist()):
        alloc[gpu == number] = np.nan
    gained = np.flatnonzero((events.bytes > 0) & (row >= 0))
    alloc += np.bincount(row[gained], events.bytes[gained], count)
    return {ALLOC_BYTES: alloc, PEAK_BYTES: peak, FRAGMENTATION_BYTES: apart}
