"""Grid and workgroup of launches on both sides of a match, where they mean the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from chopper_core.align.sequences import UNKNOWN
from chopper_core.measured import LAUNCH_SHAPE
from chopper_core.schema import KernelTable
from chopper_core.sources.dispatches import Dispatches
from chopper_core.sources.trace import LaunchShape

Index = NDArray[np.intp]
Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

_BLOCKS: Final = 2048
"""More than the work-items of a workgroup."""
_LARGEST_GRID: Final = 2**42
_COMPARABLE: Final = 0.5
"""Share of a kernel's launches whose size the other side must have for sizes to count."""


def packed_shapes(shapes: Sequence[LaunchShape], codes: NDArray[np.int32]) -> Float64:
    """Grid and workgroup of each code as one number that a float holds exactly; NaN if unknown."""
    packed = [
        shape.grid * _BLOCKS + shape.block
        if 0 < shape.grid < _LARGEST_GRID and 0 < shape.block < _BLOCKS
        else np.nan
        for shape in shapes
    ]
    return np.array(packed, np.float64)[codes]


def dispatch_shapes(dispatches: Dispatches, rows: Index) -> tuple[Int64, Int64]:
    """Work-items of the grid and of the workgroup of each dispatch; UNKNOWN where not given."""

    def size(sizes: NDArray[np.int32]) -> Int64:
        whole = np.maximum(sizes.astype(np.int64), 1).prod(axis=1)
        return np.where((sizes > 0).any(axis=1), whole, UNKNOWN)

    return size(dispatches.grid[rows]), size(dispatches.workgroup[rows])


def common_shapes(
    table: KernelTable,
    sequence: Index,
    trace_code: Int64,
    dispatch_code: Int64,
    sizes: tuple[Int64, Int64],
) -> tuple[Int64, Int64]:
    """Numbers of the launches of both sides, equal where grid and workgroup are, else UNKNOWN.

    A trace counts a grid in workgroups, but in work-items where it was launched so; the profiler
    always in work-items. Which of the two holds is told kernel by kernel; where neither gives the
    sizes that the other side has, the two ran other sizes, and only names can be compared.
    """
    packed = table.measured.get(LAUNCH_SHAPE)
    items, workgroup = sizes
    nothing = np.full(len(sequence), UNKNOWN, np.int64), np.full(len(items), UNKNOWN, np.int64)
    if packed is None or (items < 0).all():
        return nothing
    known = np.isfinite(packed[sequence])
    whole = np.where(known, packed[sequence], 0).astype(np.int64)
    grid, block = whole // _BLOCKS, whole % _BLOCKS
    has_workgroup = bool((workgroup > 0).any())
    of_dispatch = np.where(
        items > 0,
        items * _BLOCKS + (np.minimum(workgroup, _BLOCKS - 1) if has_workgroup else 0),
        UNKNOWN,
    )
    best = np.full(len(sequence), UNKNOWN, np.int64)
    best_share = np.zeros(len(sequence))
    for in_items in (grid * block, grid):
        of_trace = in_items * _BLOCKS + (block if has_workgroup else 0)
        share = _share_found(trace_code, of_trace, known, dispatch_code, of_dispatch)
        better = known & (share >= _COMPARABLE) & (share > best_share)
        best[better], best_share[better] = of_trace[better], share[better]
    return best, of_dispatch


def _share_found(
    trace_code: Int64,
    of_trace: Int64,
    known: NDArray[np.bool_],
    dispatch_code: Int64,
    of_dispatch: Int64,
) -> Float64:
    """For each launch: which part of those of its kernel has a size that the dispatches have."""
    pairs = np.stack(
        [np.concatenate([trace_code, dispatch_code]), np.concatenate([of_trace, of_dispatch])]
    )
    _, number = np.unique(pairs, axis=1, return_inverse=True)
    number = number.ravel()
    is_there = known & np.isin(number[: len(trace_code)], number[len(trace_code) :])
    size = int(trace_code.max(initial=0)) + 1
    whole = np.bincount(trace_code[known], minlength=size)
    found = np.bincount(trace_code[is_there], minlength=size)
    share: Float64 = (found / np.maximum(whole, 1))[trace_code]
    return share
