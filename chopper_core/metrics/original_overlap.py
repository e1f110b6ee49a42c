"""The original's overlap ratio: what communication beside an operation costs, by its instances.

An instance is an operation of one layer, phase and iteration on one GPU; it lasts from the start
of its first compute activity to the end of its last one, with the gaps between them. Its overlap
is the share of that in which communication runs on the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.metrics.metric import Values
from chopper_core.model.groups import Groups, gpu_by_gpu
from chopper_core.model.signals import time_within, union
from chopper_core.model.table import KernelTable, Kind, Selection
from chopper_core.util.arrays import AnyArray, Float64, Index, Int32, Int64, Mask
from chopper_core.util.grouping import distinct

_KEYS: Final = ("gpu", "iteration", "phase", "layer", "operation")
_LATEST: Final = np.iinfo(np.int64).max
_SAME: Final = ("phase", "operation")
"""What all instances of a node have to be of, to be compared."""


class Instances(Struct, frozen=True):
    """The instances of the operations of some nodes, node by node."""

    node: Index
    row: Index
    """A row of each, which has its labels."""
    start_ns: Int64
    elapsed_ns: Int64
    beside_ns: Int64
    """For how long of that communication runs."""

    @property
    def overlap(self) -> Float64:
        """Share of the elapsed time in which communication runs."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.elapsed_ns > 0, self.beside_ns / self.elapsed_ns, 0.0)


def overlap_ratio(nodes: Groups) -> Values:
    """Elapsed time of the middle instance by overlap over that of the least overlapped one.

    1 where the middle one has no overlap or is the faster one; missing where a node has several
    operations, or fewer than two instances.
    """
    ratio = np.full(len(nodes), np.nan)
    found = instances(nodes)
    order = np.lexsort((found.start_ns, found.overlap, found.node))
    elapsed_ns, overlap = found.elapsed_ns[order], found.overlap[order]
    counts = np.bincount(found.node, minlength=len(nodes))
    has = np.flatnonzero(counts)
    first = (np.cumsum(counts) - counts)[has]
    # Ranks count from 1; of two as near to the half the lower one is taken.
    middle = first + np.maximum(counts[has] // 2, 1) - 1
    slower = elapsed_ns[middle] / np.maximum(elapsed_ns[first], 1)
    ratio[has] = np.where(overlap[middle] > 0, np.maximum(slower, 1.0), 1.0)
    ratio[~_are_alike(nodes) | (counts < 2)] = np.nan
    return Values(ratio, np.isnan(ratio))


def instances(nodes: Groups) -> Instances:
    """The instances of the operations of nodes."""
    table, rows = nodes.table, nodes.selection
    if len(nodes) > 1:
        node, row, start, end = _spans(table, rows, nodes.first)
    else:
        # What is worked out GPU by GPU stays in the processor's cache.
        parts = [_spans_in_order(table, own) for own in gpu_by_gpu(table, rows)]
        node, row, start, end = (np.concatenate(each) for each in zip(*parts, strict=True))
    beside = running_ns(table, table.kind == Kind.COMM, table.gpu[row], start, end)
    return Instances(node, row, start, end - start, beside)


def _spans_in_order(table: KernelTable, rows: Selection) -> tuple[Index, Index, Int64, Int64]:
    """As `_spans` of one node, without picking the compute out where rows are in order."""
    is_new = changes([table.column(name)[rows] for name in _KEYS])
    computes = table.kind[rows] == Kind.COMPUTE
    if is_new is None or not computes.any():
        return _spans(table, rows)
    first = np.flatnonzero(is_new)
    start_ns = table.start_ns[rows]
    end_ns = start_ns + table.duration_ns[rows]
    begin = np.minimum.reduceat(np.where(computes, start_ns, _LATEST), first)
    end = np.maximum.reduceat(np.where(computes, end_ns, -_LATEST), first)
    there = np.flatnonzero(begin != _LATEST)
    at = first[there]
    row = at + rows.start if isinstance(rows, slice) else rows[at]
    return np.zeros(len(at), np.intp), row, begin[there], end[there]


def _spans(
    table: KernelTable, rows: Selection, nodes: Index | None = None
) -> tuple[Index, Index, Int64, Int64]:
    """Node, a row, start and end of the instances of rows, whose nodes begin at some places."""
    computes = table.kind[rows] == Kind.COMPUTE
    place = np.flatnonzero(computes)
    if not len(place):
        return place, place, np.zeros(0, np.int64), np.zeros(0, np.int64)
    keys = [table.column(name)[rows][computes] for name in _KEYS]
    if nodes is not None:
        keys.insert(0, np.searchsorted(nodes, place, "right") - 1)
    start_ns = table.start_ns[rows][computes]
    end_ns = start_ns + table.duration_ns[rows][computes]
    is_new = changes(keys)
    if is_new is None:
        order = np.lexsort(keys[::-1])
        place, start_ns, end_ns = place[order], start_ns[order], end_ns[order]
        keys = [key[order] for key in keys]
        is_new = changes(keys)
        assert is_new is not None
    first = np.flatnonzero(is_new)
    at = place[first]
    return (
        np.zeros(len(at), np.intp) if nodes is None else keys[0][first],
        at + rows.start if isinstance(rows, slice) else rows[at],
        np.minimum.reduceat(start_ns, first),
        np.maximum.reduceat(end_ns, first),
    )


def changes(keys: Sequence[AnyArray]) -> Mask | None:
    """Where a row differs from the one before; None where they are not in the order of keys."""
    is_new = np.ones(len(keys[0]), np.bool_)
    rest = is_new[1:]
    rest[:] = False
    for key in keys:
        if ((key[1:] < key[:-1]) & ~rest).any():
            return None
        rest |= key[1:] != key[:-1]
    return is_new


def running_ns(
    table: KernelTable,
    running: Mask,
    gpu: Int32,
    start: Int64,
    end: Int64,
) -> Int64:
    """For how long any of some activities (a mask of the table) run on a GPU in spans of time."""
    beside = np.zeros(len(start), np.int64)
    where = np.flatnonzero(running)
    whose = table.gpu[where]
    rises = bool((gpu[1:] >= gpu[:-1]).all())
    for number in distinct(gpu).tolist():
        own = where[whose == number]
        stretches = union(table.start_ns[own], table.duration_ns[own])
        at = np.flatnonzero(gpu == number)
        here = slice(int(at[0]), int(at[-1]) + 1) if rises else at
        beside[here] = time_within(*stretches, end[here]) - time_within(*stretches, start[here])
    return beside


def _are_alike(nodes: Groups) -> Mask:
    alike = np.ones(len(nodes), np.bool_)
    for name in _SAME:
        alike &= nodes.min(name) == nodes.max(name)
    return alike
