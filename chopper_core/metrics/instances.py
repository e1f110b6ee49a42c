"""Instances of operations, and how much communication overlaps them.

An instance is an operation of one layer, phase and iteration on one GPU; it lasts from the start
of its first compute activity to the end of its last one, with the gaps between them. Its overlap
is the share of that in which communication runs on the GPU. Where a stream comes back to a layer,
as in the micro-steps of gradient accumulation, each visit is an instance of its own.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.groups import Groups, gpu_by_gpu
from chopper_core.model.signals import time_within, union
from chopper_core.model.table import LEVELS, NO_LABEL, KernelTable, Kind, Selection
from chopper_core.util.arrays import AnyArray, Float64, Index, Int32, Int64, Mask
from chopper_core.util.grouping import (
    distinct,
    hashes,
    run_mask,
    run_maxima,
    run_minima,
    run_sums,
    sorted_run_mask,
)
from chopper_core.util.workers import in_threads

_KEYS: Final = LEVELS[:-1]
_NEVER: Final = np.iinfo(np.int64).max


class OperationInstances(Struct, frozen=True):
    """The instances of the operations of some nodes, node by node."""

    node: Index
    row: Index
    """A row of each, for its labels."""
    start_ns: Int64
    elapsed_ns: Int64
    beside_ns: Int64
    """The part of it in which communication runs."""
    work: Int64
    """Equal for instances that run the same kernels, as far as names tell."""

    @property
    def overlap(self) -> Float64:
        """Share of the elapsed time in which communication runs."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.elapsed_ns > 0, self.beside_ns / self.elapsed_ns, 0.0)


def visits(whole: OperationInstances, table: KernelTable, left_out: Mask) -> Int64 | None:
    """The number of the visit in which each compute activity runs, along the table; 0 of others.

    A visit lasts until the stream turns to another layer or phase, outside layers to another
    operation. `left_out` are operations that don't count, such as copies of gathered parameters;
    the last one stands for none. None where no place is visited twice. `whole` are the instances
    of all of the table, of which a place has several.
    """
    row, begin, end = whole.row, whole.start_ns, whole.start_ns + whole.elapsed_ns
    if left_out.any():
        own = ~left_out[table.operation[row]]
        row, begin, end = row[own], begin[own], end[own]
    keys = _place_keys(table, row)
    is_new = sorted_run_mask(*keys)
    if is_new is None:
        order = np.lexsort(keys[::-1])
        keys, begin, end = [key[order] for key in keys], begin[order], end[order]
        is_new = run_mask(*keys)
    first = np.flatnonzero(is_new)
    if not len(first):
        return None
    gpu = keys[0][first]
    begin, end = run_minima(begin, first), run_maxima(end, first)
    order = np.lexsort((begin, gpu))
    meets = (end[order][:-1] > begin[order][1:]) & (np.diff(gpu[order]) == 0)
    if not meets.any():
        return None
    # Only GPUs whose places meet are gone through in the order of time.
    again = np.isin(table.gpu, gpu[order][1:][meets])
    again &= (table.kind == Kind.COMPUTE) & ~left_out[table.operation]
    rows = np.flatnonzero(again)
    rows = rows[np.lexsort((table.start_ns[rows], table.stream[rows], table.gpu[rows]))]
    number = np.zeros(len(table), np.int64)
    number[rows] = np.cumsum(run_mask(table.stream[rows], *_place_keys(table, rows)))
    return number


def _place_keys(table: KernelTable, rows: Index) -> list[AnyArray]:
    """The labels that tell apart the places of the step where some rows run."""
    layer = table.layer[rows]
    operation = np.where(layer == NO_LABEL, table.operation[rows], NO_LABEL)
    return [table.gpu[rows], table.iteration[rows], table.phase[rows], layer, operation]


def instances(nodes: Groups, visit: Int64 | None = None) -> OperationInstances:
    """The instances of the operations of nodes, split by the visits of `visits` where given."""
    table, rows = nodes.table, nodes.selection
    if visit is not None:
        node, row, start, end, work = _spans(table, rows, visit=visit)
    elif len(nodes) > 1:
        node, row, start, end, work = _spans(table, rows, nodes.first)
    else:
        # GPU by GPU the columns stay in the processor's cache.
        parts = in_threads(partial(_spans_in_order, table), gpu_by_gpu(table, rows), len(table))
        row, start, end, work = (
            np.concatenate(each) for each in list(zip(*parts, strict=True))[1:]
        )
        node = np.zeros(len(row), np.intp)
    beside = running_ns(table, table.kind == Kind.COMM, table.gpu[row], start, end)
    return OperationInstances(node, row, start, np.subtract(end, start, out=end), beside, work)


Spans = tuple[Index, Index, Int64, Int64, Int64]
"""Node, row, start, end and work of instances."""


def _hashes(table: KernelTable) -> Int64:
    """A number for each kernel name, whose sums differ where the names do."""
    return hashes(len(table.names)) >> 15


def _spans_in_order(table: KernelTable, rows: Selection) -> Spans:
    """As `_spans` of one node, without a copy of the compute rows where rows are in order."""
    is_new = sorted_run_mask(*(table.column(name)[rows] for name in _KEYS))
    computes = table.kind[rows] == Kind.COMPUTE
    if is_new is None or not computes.any():
        return _spans(table, rows)
    first = np.flatnonzero(is_new)
    start_ns = table.start_ns[rows]
    end_ns = start_ns + table.duration_ns[rows]
    begin = run_minima(np.where(computes, start_ns, _NEVER), first)
    end = run_maxima(np.where(computes, end_ns, -_NEVER), first)
    there = np.flatnonzero(begin != _NEVER)
    at = first[there]
    row = at + rows.start if isinstance(rows, slice) else rows[at]
    kernels = np.where(computes, _hashes(table)[table.kernel[rows]], 0)
    work = run_sums(kernels, first)[there]
    return np.zeros(len(at), np.intp), row, begin[there], end[there], work


def _spans(
    table: KernelTable,
    rows: Selection,
    nodes: Index | None = None,
    visit: Int64 | None = None,
) -> Spans:
    """The instances of rows; `nodes` are the first rows of nodes."""
    computes = table.kind[rows] == Kind.COMPUTE
    place = np.flatnonzero(computes)
    if not len(place):
        nothing = np.zeros(0, np.int64)
        return place, place, nothing, nothing, nothing
    keys = [table.column(name)[rows][computes] for name in _KEYS]
    if visit is not None:
        keys.append(visit[rows][computes])
    if nodes is not None:
        keys.insert(0, np.searchsorted(nodes, place, "right") - 1)
    start_ns = table.start_ns[rows][computes]
    end_ns = start_ns + table.duration_ns[rows][computes]
    kernels = _hashes(table)[table.kernel[rows][computes]]
    is_new = sorted_run_mask(*keys)
    if is_new is None:
        order = np.lexsort(keys[::-1])
        place, kernels = place[order], kernels[order]
        start_ns, end_ns = start_ns[order], end_ns[order]
        keys = [key[order] for key in keys]
        is_new = sorted_run_mask(*keys)
        assert is_new is not None
    first = np.flatnonzero(is_new)
    at = place[first]
    return (
        np.zeros(len(at), np.intp) if nodes is None else keys[0][first],
        at + rows.start if isinstance(rows, slice) else rows[at],
        run_minima(start_ns, first),
        run_maxima(end_ns, first),
        run_sums(kernels, first),
    )


def running_ns(
    table: KernelTable,
    running: Mask,
    gpu: Int32,
    start: Int64,
    end: Int64,
) -> Int64:
    """The time in which any of the activities in `running` (a mask of the table) runs.

    One value per span, from `start` to `end` on `gpu`, in ns.
    """
    beside = np.zeros(len(start), np.int64)
    where = np.flatnonzero(running)
    whose = table.gpu[where]
    rises = bool((gpu[1:] >= gpu[:-1]).all())

    def fill_in(number: int) -> None:
        of_gpu = where[whose == number]
        stretches = union(table.start_ns[of_gpu], table.duration_ns[of_gpu])
        at = np.flatnonzero(gpu == number)
        here = slice(int(at[0]), int(at[-1]) + 1) if rises else at
        beside[here] = time_within(*stretches, end[here]) - time_within(*stretches, start[here])

    in_threads(fill_in, distinct(gpu).tolist(), len(gpu))
    return beside
