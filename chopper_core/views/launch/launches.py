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
from chopper_core.util.arrays import AnyArray, Codes, Float64, Index, Int64, Mask, Numbers
from chopper_core.util.grouping import (
    counts_of,
    distinct,
    minima_of,
    quantiles_of,
    ranked,
    run_sums,
    sums_of,
)

OVERHEADS: Final = ("launch_overhead_ns", "prep_overhead_ns", "call_overhead_ns")
NEVER: Final = np.iinfo(np.int64).max
_MAX_PLACES_PER_ROW: Final = 4
"""Possible instances per row up to which they are counted in an array of all."""
_MOST_CACHED_ROWS: Final = 1 << 22
"""Rows of a run up to which values per row are cached."""


class LaunchInstances(Struct, frozen=True, eq=False):
    """Sums of the overheads over the instances of labels, label after label."""

    label: Index
    instance: Int64
    """Which instance each is, the same number under every label."""
    sums: Mapping[str, Int64]
    linked: Mask
    """Whether any activity has a launch record."""

    def together(self) -> LaunchInstances:
        if not len(self.label):
            return self
        numbers, place = ranked(self.instance)
        count = len(numbers)

        def either(mask: Mask) -> Mask:
            if mask.all():
                return np.ones(count, np.bool_)
            return counts_of(place[mask], count) > 0

        sums = {name: sums_of(values, place, count) for name, values in self.sums.items()}
        nowhere = np.zeros(count, np.intp)
        return LaunchInstances(nowhere, numbers, sums, either(self.linked))

    def statistic(self, name: str, statistic: str, count: int, of_launches: bool) -> Float64:
        """The mean or median of a sum over the instances of each of so many labels."""
        values, label = self.sums[name], self.label
        if of_launches and not self.linked.all():
            values, label = values[self.linked], label[self.linked]
        if statistic == "median":
            return quantiles_of(values, label, count, (0.5,))[:, 0]
        number = counts_of(label, count)
        first = np.cumsum(number) - number
        mean = np.full(count, np.nan)
        known = number > 0
        if known.any():
            mean[known] = run_sums(values, first[known]) / number[known]
        return mean


class LaunchSums(Struct, frozen=True, eq=False):
    """Sums over the activities of a scope, by label."""

    comm_wait_ns: Int64
    """The part of their call overhead during which communication ran on their GPU."""
    least_ns: Int64
    """The shortest time from a launch call to a start; `NEVER` where there is none."""
    each: LaunchInstances

    def together(self) -> LaunchSums:
        return LaunchSums(
            self.comm_wait_ns.sum(keepdims=True),
            self.least_ns.min(keepdims=True),
            self.each.together(),
        )


def launches_of(
    run: Run, rows: Selection, level: str, labels: Codes, over: Sequence[str]
) -> LaunchSums:
    """Sums by the labels of a level, whose codes rise, and by their instances.

    LaunchInstances are identified by their codes at levels, of which gpu and iteration come first.
    """
    table, count = run.table, len(labels)
    spans = [_span(table.column(name)[rows]) for name in over]
    low = int(labels[0])
    place = np.zeros(int(labels[-1]) - low + 1, np.intp)
    place[labels.astype(np.intp) - low] = np.arange(count)
    comm_wait = np.zeros(count)
    least = np.full(count, NEVER, np.int64)
    parts = []
    # The arrays of one GPU fit into the processor's cache.
    for own in gpu_by_gpu(table, rows):
        label = place[table.column(level)[own] - low]
        waited = waited_ns(table, own)
        least = np.minimum(least, minima_of(waited, label, count, NEVER))
        beside, wait = _under_comm(run, own)
        comm_wait += sums_of(wait, label[beside], count)
        parts.append(_summed(table, own, _codes(table, own, label, over, spans, count), waited))
    return LaunchSums(
        comm_wait.astype(np.int64),
        least,
        _instances(parts, count, spans),
    )


def waited_ns(table: KernelTable, rows: Selection) -> Int64:
    """How long after its launch call each starts; `NEVER` without such a call."""
    launch = table.launch_ns[rows]
    waited: Int64 = table.start_ns[rows] - launch
    unlinked = launch == NO_TIME
    return np.where(unlinked, NEVER, waited) if unlinked.any() else waited


def _span(codes: Codes) -> tuple[int, int]:
    low = int(codes.min())
    return low, int(codes.max()) - low + 1


def _codes(
    table: KernelTable,
    rows: Selection,
    label: Index,
    over: Sequence[str],
    spans: Sequence[tuple[int, int]],
    count: int,
) -> AnyArray:
    """One number for the instance of each row: by GPU, label, and the other levels."""
    (low_gpu, gpus), *others = spans
    most = gpus * count * int(np.prod([width for _, width in others], dtype=np.int64))
    narrow = most <= np.iinfo(np.int32).max
    code: AnyArray = label.astype(np.int32 if narrow else np.int64)
    code += (table.gpu[rows] - low_gpu).astype(code.dtype) * count
    for name, (low, width) in zip(over[1:], others, strict=True):
        code *= width
        code += table.column(name)[rows]
        code -= low
    return code


Part = tuple[Int64, Mask, list[Int64]]


def _summed(table: KernelTable, rows: Selection, code: AnyArray, waited: Int64) -> Part:
    """The different codes of instances, which have a launch record, and sums of the overheads."""
    low, width = _span(code)
    if width <= _MAX_PLACES_PER_ROW * len(code):
        place = code.astype(np.intp)
        place -= low
        there = np.flatnonzero(counts_of(place, width))
        codes = there + low
    else:
        codes, place = ranked(code)
        there, width = np.arange(len(codes)), len(codes)

    def summed(values: Numbers, at: Index) -> Int64:
        return np.asarray(sums_of(values, at, width)[there], np.int64)

    prep, call = (summed(table.column(name)[rows], place) for name in OVERHEADS[1:])
    launch = prep + call
    linked = np.ones(len(codes), np.bool_)
    if int(waited.min()) < 0 or int(waited.max()) == NEVER:
        # Only without a launch before the start are prep and call not all of it.
        unknown = np.flatnonzero((waited < 0) | (waited == NEVER))
        launch += summed(table.launch_overhead_ns[rows][unknown], place[unknown])
        linked = counts_of(place[waited != NEVER], width)[there] > 0
    return codes, linked, [launch, prep, call]


def _instances(
    parts: Sequence[Part], count: int, spans: Sequence[tuple[int, int]]
) -> LaunchInstances:
    (_, gpus), (_, iterations), *others = spans
    within = int(np.prod([width for _, width in others], dtype=np.int64))
    of_gpu = within * iterations
    code = np.concatenate([codes for codes, _, _ in parts])
    # The codes rise, GPU by GPU and then label by label.
    bounds = np.searchsorted(code, of_gpu * np.arange(gpus * count + 1))
    begin = bounds[:-1].reshape(gpus, count).T.ravel()
    size = np.diff(bounds).reshape(gpus, count).T.ravel()
    order = np.repeat(begin - (np.cumsum(size) - size), size) + np.arange(len(code))
    label, gpu = (np.repeat(each, size) for each in np.divmod(np.arange(gpus * count), gpus))
    inner = code[order] - of_gpu * (gpu * count + label)
    sums = {
        name: np.concatenate([values[place] for _, _, values in parts])[order]
        for place, name in enumerate(OVERHEADS)
    }
    linked = np.concatenate([linked for _, linked, _ in parts])[order]
    return LaunchInstances(label, of_gpu * gpu + inner, sums, linked)


def _under_comm(run: Run, rows: Selection) -> tuple[Index, Int64]:
    """The places among rows of those in whose call overhead communication ran, and how long.

    Those of whole GPUs of a run that is not too large are computed once.
    """
    if len(run.table) > _MOST_CACHED_ROWS or not isinstance(rows, slice):
        return _beside_comm(run, rows)
    gpu = int(run.table.gpu[rows.start])
    whole = run.tree().node((str(gpu),)).selection
    if not isinstance(whole, slice):
        return _beside_comm(run, rows)
    places, waits = run.memo(("waits beside comm", gpu), lambda: _beside_comm(run, whole))
    at = places + whole.start
    low, high = np.searchsorted(at, [rows.start, rows.stop]).tolist()
    return at[low:high] - rows.start, waits[low:high]


def _beside_comm(run: Run, rows: Selection) -> tuple[Index, Int64]:
    table = run.table
    call = table.call_overhead_ns[rows]
    # Where the GPU stood idle for as long before the start, nothing ran next to the call.
    waiting = np.flatnonzero(call > table.idle_ns[rows])
    gpu, start, call = table.gpu[rows][waiting], table.start_ns[rows][waiting], call[waiting]
    wait = np.zeros(len(waiting), np.int64)
    for number in distinct(gpu).tolist():
        whole = run.tree().node((str(number),)).selection
        comm = np.flatnonzero(table.kind[whole] == Kind.COMM)
        stretches = union(table.start_ns[whole][comm], table.duration_ns[whole][comm])
        own = np.flatnonzero(gpu == number)
        to = start[own]
        wait[own] = time_within(*stretches, to) - time_within(*stretches, to - call[own])
    return waiting, wait


_BLOCK: Final = 32
"""Neighbouring times that are summed as one block."""


def mean_depths(launch_ns: Int64, start_ns: Int64, edges_ns: Int64) -> Float64:
    """The mean number of activities in the queue between neighbouring edges, equally far apart.

    An activity is in the queue from its launch call to its start; where the clocks disagree so
    that it starts before its launch, it never is.
    """
    waits = (start_ns > launch_ns) & (start_ns > edges_ns[0]) & (launch_ns < edges_ns[-1])
    if not waits.all():
        launch_ns, start_ns = launch_ns[waits], start_ns[waits]
    depths: Float64 = np.diff(_since(launch_ns, edges_ns) - _since(start_ns, edges_ns))
    return depths / np.diff(edges_ns)


def _since(times_ns: Int64, edges_ns: Int64) -> Float64:
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
