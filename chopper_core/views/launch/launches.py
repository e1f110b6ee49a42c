"""Sums over launches by label and by instance, and the depth of the host's queue over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.groups import gpu_by_gpu
from chopper_core.model.run import Run
from chopper_core.model.signals import time_within, union
from chopper_core.model.table import NO_TIME, KernelTable, Kind, Selection
from chopper_core.util.arrays import Codes, Float64, Index, Int64, Mask, Numbers
from chopper_core.util.grouping import (
    counts_of,
    distinct,
    means_of,
    minima_of,
    quantiles_of,
    ranked,
    sums_of,
)

OVERHEADS: Final = ("launch_overhead_ns", "prep_overhead_ns", "call_overhead_ns")
NEVER: Final = np.iinfo(np.int64).max


class LaunchSums(Struct, frozen=True, eq=False):
    """Sums over the activities of a scope by label, and of their overheads by instance."""

    comm_wait_ns: Int64
    """The part of their call overhead during which communication ran on their GPU."""
    least_ns: Int64
    """The shortest time from a launch call to a start; `NEVER` where there is none."""
    label: Index
    """Of each instance."""
    instance: Int64
    """Which instance each is, the same number under every label."""
    sums: Mapping[str, Int64]
    linked: Mask
    """Whether any activity of the instance has a launch record."""

    def together(self) -> LaunchSums:
        """The same with all labels as one."""
        numbers, place = ranked(self.instance)
        count = len(numbers)
        return LaunchSums(
            self.comm_wait_ns.sum(keepdims=True),
            self.least_ns.min(keepdims=True),
            np.zeros(count, np.intp),
            numbers,
            {name: sums_of(values, place, count) for name, values in self.sums.items()},
            counts_of(place[self.linked], count) > 0,
        )

    def statistic(self, name: str, statistic: str) -> Float64:
        """The mean or median of an overhead over the instances of each label; of parts of it over
        those with a launch record."""
        values, label, count = self.sums[name], self.label, len(self.least_ns)
        if name != OVERHEADS[0]:
            values, label = values[self.linked], label[self.linked]
        if statistic == "median":
            return quantiles_of(values, label, count, (0.5,))[:, 0]
        return means_of(values, label, count)


def launches_of(
    run: Run, rows: Selection, level: str, labels: Codes, over: Sequence[str]
) -> LaunchSums:
    """Sums by the labels of a level, and by their instances: their codes at the levels `over`."""
    table, count = run.table, len(labels)
    lows = [int(table.column(name)[rows].min()) for name in over]
    widths = [
        int(table.column(name)[rows].max()) - low + 1 for name, low in zip(over, lows, strict=True)
    ]
    place_of = np.zeros(int(labels.max()) + 2, np.intp)
    # The code of a missing label, -1, is the last place.
    place_of[labels] = np.arange(count)
    comm_wait, least = np.zeros(count, np.int64), np.full(count, NEVER, np.int64)
    parts = []
    # The arrays of one GPU fit into the processor's cache.
    for own in gpu_by_gpu(table, rows):
        label, waited = place_of[table.column(level)[own]], waited_ns(table, own)
        least = np.minimum(least, minima_of(waited, label, count, NEVER))
        beside, wait = _beside_comm(run, own)
        comm_wait += sums_of(wait, label[beside], count)
        code = label.astype(np.int64)
        for name, low, width in zip(over, lows, widths, strict=True):
            code = code * width + (table.column(name)[own] - low)
        codes, place = ranked(code)
        sums = [sums_of(table.column(name)[own], place, len(codes)) for name in OVERHEADS]
        linked = counts_of(place[waited != NEVER], len(codes)) > 0
        parts.append((codes, linked, *sums))
    codes, linked, *sums = map(np.concatenate, zip(*parts, strict=True))
    label, instance = np.divmod(codes, int(np.prod(widths, dtype=np.int64)))
    named = dict(zip(OVERHEADS, sums, strict=True))
    return LaunchSums(comm_wait, least, label, instance, named, linked)


def waited_ns(table: KernelTable, rows: Selection) -> Int64:
    """How long after its launch call each starts; `NEVER` without such a call."""
    launch = table.launch_ns[rows]
    return np.where(launch == NO_TIME, NEVER, table.start_ns[rows] - launch)


def _beside_comm(run: Run, rows: Selection) -> tuple[Index, Int64]:
    """The places among rows of those in whose call overhead communication ran, and how long."""
    table = run.table
    call = table.call_overhead_ns[rows]
    # Where the GPU stood idle for as long before the start, nothing ran next to the call.
    waiting = np.flatnonzero(call > table.idle_ns[rows])
    gpu, start, call = table.gpu[rows][waiting], table.start_ns[rows][waiting], call[waiting]
    wait = np.zeros(len(waiting), np.int64)
    for number in distinct(gpu).tolist():
        stretches = _comm_of(run, number)
        own = np.flatnonzero(gpu == number)
        to = start[own]
        wait[own] = time_within(*stretches, to) - time_within(*stretches, to - call[own])
    return waiting, wait


def _comm_of(run: Run, gpu: int) -> tuple[Int64, Int64]:
    """When communication runs on a GPU."""
    table = run.table
    whole = run.tree().node((str(gpu),)).selection
    comm = np.flatnonzero(table.kind[whole] == Kind.COMM)
    return union(table.start_ns[whole][comm], table.duration_ns[whole][comm])


_BLOCK: Final = 32
"""Neighbouring times that are summed as one block."""


def mean_depths(launch_ns: Int64, start_ns: Int64, edges_ns: Numbers) -> Float64:
    """The mean number of activities in the queue between neighbouring edges, equally far apart.

    An activity is in the queue from its launch call to its start; where the clocks disagree so
    that it starts before its launch, it never is.
    """
    waits = (start_ns > launch_ns) & (start_ns > edges_ns[0]) & (launch_ns < edges_ns[-1])
    if not waits.all():
        launch_ns, start_ns = launch_ns[waits], start_ns[waits]
    depths: Float64 = np.diff(_since(launch_ns, edges_ns) - _since(start_ns, edges_ns))
    return depths / np.maximum(np.diff(edges_ns), 1e-9)


def _since(times_ns: Int64, edges_ns: Numbers) -> Float64:
    """At each edge, how long ago all the times before it were, together; the first counts as 0."""
    edges, bins = edges_ns - edges_ns[0], len(edges_ns)
    times = np.maximum(times_ns - edges_ns[0], 0)
    blocks = len(times) // _BLOCK
    together = times[: blocks * _BLOCK].reshape(blocks, _BLOCK)
    first = np.searchsorted(edges, together.min(axis=1))
    # Rows are nearly in the order of time: most neighbours lie between the same edges.
    whole = first == np.searchsorted(edges, together.max(axis=1))
    count = counts_of(first[whole], bins + 1) * _BLOCK
    sums = together.sum(axis=1)[whole]
    total = sums_of(sums, first[whole], bins + 1)
    rest = np.concatenate([together[~whole].ravel(), times[blocks * _BLOCK :]])
    place = np.searchsorted(edges, rest)
    count += counts_of(place, bins + 1)
    total = total + sums_of(rest, place, bins + 1)
    since: Float64 = edges.astype(np.float64) * np.cumsum(count[:bins]) - np.cumsum(total[:bins])
    return since


def queue_of(table: KernelTable, rows: Selection, edges_ns: Int64) -> Float64:
    """The mean depth of the queue of one GPU, whose rows are given, between neighbouring edges."""
    launch, start = table.launch_ns[rows], table.start_ns[rows]
    known = launch != NO_TIME
    if not known.all():
        launch, start = launch[known], start[known]
    return mean_depths(launch, start, edges_ns)
