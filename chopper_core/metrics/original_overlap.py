"""The original's overlap ratio: what communication beside an operation costs, by its instances.

An instance is an operation of one layer, phase and iteration on one GPU; it lasts from the start
of its first compute activity to the end of its last one, with the gaps between them. Its overlap
is the share of that in which communication runs on the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chopper_core.groups import Groups
from chopper_core.metrics.metric import Values
from chopper_core.schema import KernelTable, Kind, distinct
from chopper_core.tracks import union

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Index = NDArray[np.intp]

_KEYS: Final = ("gpu", "iteration", "phase", "layer", "operation")
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
    table = nodes.table
    sizes = nodes.sizes()
    computes = table.kind[nodes.rows] == Kind.COMPUTE
    rows = nodes.rows[computes]
    node = np.repeat(np.arange(len(nodes)), sizes)[computes]
    keys = [node, *(table.column(name)[rows] for name in _KEYS)]
    if not _in_order(keys):
        order = np.lexsort(keys[::-1])
        rows, keys = rows[order], [key[order] for key in keys]
    changes = np.zeros(max(len(rows) - 1, 0), np.bool_)
    for key in keys:
        changes |= key[1:] != key[:-1]
    first = np.flatnonzero(np.concatenate([[True], changes])) if len(rows) else np.zeros(0, np.intp)
    if not len(first):
        nothing = np.zeros(0, np.int64)
        return Instances(np.zeros(0, np.intp), np.zeros(0, np.intp), nothing, nothing, nothing)
    start_ns = table.start_ns[rows]
    start = np.minimum.reduceat(start_ns, first)
    end = np.maximum.reduceat(start_ns + table.duration_ns[rows], first)
    row = rows[first]
    beside = running_ns(table, table.kind == Kind.COMM, table.gpu[row], start, end)
    return Instances(keys[0][first], row, start, end - start, beside)


def _in_order(keys: Sequence[NDArray[Any]]) -> bool:
    """Whether rows are in the order of keys, the first one above the others."""
    same = np.ones(max(len(keys[0]) - 1, 0), np.bool_)
    for key in keys:
        if (same & (key[1:] < key[:-1])).any():
            return False
        same &= key[1:] == key[:-1]
    return True


def running_ns(
    table: KernelTable,
    running: NDArray[np.bool_],
    gpu: NDArray[np.int32],
    start: Int64,
    end: Int64,
) -> Int64:
    """For how long any of some activities (a mask of the table) run on a GPU in spans of time."""
    beside = np.zeros(len(start), np.int64)
    where = np.flatnonzero(running)
    whose = table.gpu[where]
    for number in distinct(gpu).tolist():
        own = where[whose == number]
        begins, ends = union(table.start_ns[own], table.duration_ns[own])
        if not len(begins):
            continue
        here = np.flatnonzero(gpu == number)
        until_end = _spent_until(begins, ends, end[here])
        beside[here] = until_end - _spent_until(begins, ends, start[here])
    return beside


def _spent_until(begins: Int64, ends: Int64, times: Int64) -> Int64:
    """How much of some stretches, which come one after the other, lies before each time."""
    spent = np.concatenate([[0], np.cumsum(ends - begins)])
    at = np.searchsorted(begins, times, "right")
    late = np.where(at > 0, np.maximum(ends[at - 1] - times, 0), 0)
    total: Int64 = spent[at] - late
    return total


def _are_alike(nodes: Groups) -> NDArray[np.bool_]:
    alike = np.ones(len(nodes), np.bool_)
    for name in _SAME:
        alike &= nodes.min(name) == nodes.max(name)
    return alike
