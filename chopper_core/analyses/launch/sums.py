"""Sums over launches by label and by instance, in one pass over the rows of a scope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chopper_core.analyses.groups import quantiles_of
from chopper_core.ordering import ranked
from chopper_core.run import Run
from chopper_core.schema import NO_TIME, KernelTable, Kind, Selection
from chopper_core.tracks import time_within, union

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]

_DENSE: Final = 1 << 22
"""Instances that there may be up to which they are counted in an array of them all."""
_MOST_KEPT: Final = 1 << 22
"""Rows of a run up to which what is worked out row by row is remembered."""
_NEVER: Final = np.iinfo(np.int64).max


class RowTimes(Struct, frozen=True, eq=False):
    """What each activity of some rows adds to the causes of its wait."""

    comm_wait_ns: Int64
    """The part of its call overhead during which communication ran on its GPU."""
    latency_ns: Int64
    """Its idle time from the launch call on, where nothing ran at that call."""

    def take(self, rows: Selection) -> RowTimes:
        """Those of some of the rows."""
        return RowTimes(self.comm_wait_ns[rows], self.latency_ns[rows])


_KNOWN: WeakKeyDictionary[Run, RowTimes] = WeakKeyDictionary()


def row_times(run: Run, rows: Selection) -> RowTimes:
    """The times of rows; those of a run that is not too large are worked out once."""
    if len(run.table) > _MOST_KEPT:
        return _row_times(run.table, rows)
    if run not in _KNOWN:
        _KNOWN[run] = _row_times(run.table, slice(0, len(run.table)))
    return _KNOWN[run].take(rows)


def _row_times(table: KernelTable, rows: Selection) -> RowTimes:
    idle = table.idle_launch_ns[rows]
    waited = table.start_ns[rows] - table.launch_ns[rows]
    return RowTimes(_under_comm(table, rows), np.where(idle == waited, idle, 0))


def _under_comm(table: KernelTable, rows: Selection) -> Int64:
    """Of each activity's call overhead, the part during which communication ran on its GPU."""
    call = table.call_overhead_ns[rows]
    found = np.zeros(len(call), np.int64)
    # Where the GPU stood idle for as long before the start, nothing ran beside the call.
    waiting = np.flatnonzero(call > table.idle_ns[rows])
    gpu, start = table.gpu[rows][waiting], table.start_ns[rows][waiting]
    comm = np.flatnonzero(table.kind == Kind.COMM)
    whose = table.gpu[comm]
    for number in np.flatnonzero(np.bincount(gpu)).tolist():
        theirs = comm[whose == number]
        stretches = union(table.start_ns[theirs], table.duration_ns[theirs])
        own = np.flatnonzero(gpu == number)
        to = start[own]
        since = to - call[waiting[own]]
        found[waiting[own]] = time_within(*stretches, to) - time_within(*stretches, since)
    return found


class Instances(Struct, frozen=True, eq=False):
    """Sums over the instances of labels, label after label."""

    label: Index
    instance: Int64
    """Which instance each is, the same number under every label."""
    counts: Mask
    """Whether it counts: the profiler did not cut its iteration, or cut them all."""
    sums: Mapping[str, Int64]
    linked: Mask
    """Whether any activity has a launch record."""

    def together(self) -> Instances:
        """The same instances with all labels as one."""
        if not len(self.label):
            return self
        numbers, place = ranked(self.instance)
        count = len(numbers)

        def either(mask: Mask) -> Mask:
            return np.bincount(place[mask], minlength=count) > 0

        sums = {
            name: np.bincount(place, weights=values, minlength=count).astype(np.int64)
            for name, values in self.sums.items()
        }
        nowhere = np.zeros(count, np.intp)
        return Instances(nowhere, numbers, either(self.counts), sums, either(self.linked))

    def statistic(self, name: str, statistic: str, count: int, of_launches: bool) -> Float64:
        """The mean or median of a sum over the instances of each of so many labels."""
        there = self.counts & self.linked if of_launches else self.counts
        values, label = self.sums[name][there], self.label[there]
        if statistic == "median":
            return quantiles_of(values, label, count, (0.5,))[:, 0]
        number = np.bincount(label, minlength=count)
        total = np.bincount(label, weights=values, minlength=count)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean: Float64 = np.where(number > 0, total / number, np.nan)
        return mean


def instances_of(
    table: KernelTable,
    rows: Selection,
    label: Index,
    count: int,
    over: Sequence[str],
    names: Sequence[str],
    cut: Mapping[int, frozenset[int]],
) -> Instances:
    """Sums of columns over the instances of each label, told apart by their codes at levels.

    `label` is the place of each row's label among so many; `over` begins with gpu and iteration.
    """
    instance = np.zeros(len(label), np.int64)
    widths, lows = [], []
    for level in over:
        codes = table.column(level)[rows]
        low = int(codes.min(initial=0))
        wide = int(codes.max(initial=0)) - low + 1
        instance *= wide
        instance += codes
        instance -= low
        widths.append(wide)
        lows.append(low)
    number = int(np.prod(widths, dtype=np.int64))
    if count * number <= _DENSE:
        code = label * number + instance
        seen = np.bincount(code, minlength=count * number)
        there = np.flatnonzero(seen)
        seen = seen[there]
    else:
        there, code = ranked(label * number + instance)
        seen = np.bincount(code)
    size = count * number if count * number <= _DENSE else len(there)
    picked = there if count * number <= _DENSE else np.arange(len(there))

    def summed(values: NDArray[np.generic]) -> Int64:
        return np.bincount(code, weights=values, minlength=size)[picked].astype(np.int64)

    instances = there % number
    rest = instances // int(np.prod(widths[2:], dtype=np.int64))
    counts = np.ones(len(there), np.bool_)
    for gpu, iterations in cut.items():
        is_cut = np.isin(rest % widths[1] + lows[1], list(iterations))
        counts &= ~((rest // widths[1] + lows[0] == gpu) & is_cut)
    unlinked = table.launch_ns[rows] == NO_TIME
    linked = seen > summed(unlinked) if unlinked.any() else np.ones(len(there), np.bool_)
    return Instances(
        there // number,
        instances,
        counts if counts.any() else ~counts,
        {name: summed(table.column(name)[rows]) for name in names},
        linked,
    )


def least_waits(table: KernelTable, rows: Selection, label: Index, count: int) -> Int64:
    """The shortest way from a launch call to a start by label; the largest integer for none."""
    launch = table.launch_ns[rows]
    waited = np.where(launch == NO_TIME, _NEVER, table.start_ns[rows] - launch)
    least = np.full(count, _NEVER, np.int64)
    np.minimum.at(least, label, waited)
    return least
