"""What tells launches apart beside names: size, named range, number of the launch; where both
sides of a match mean the same by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.operations import RECOMPUTE_SUFFIX
from chopper_core.align.sequences import UNKNOWN, Launched
from chopper_core.model.column_names import CORRELATION, LAUNCH_SHAPE
from chopper_core.model.table import KernelTable, Rule
from chopper_core.sources.dispatches import DispatchRun
from chopper_core.sources.trace import LaunchShape
from chopper_core.util.arrays import Float64, Index, Int32, Int64, Mask

_BLOCKS: Final = 2048
"""More than the work-items of a workgroup."""
_LARGEST_GRID: Final = 2**42
_COMPARABLE: Final = 0.5
"""Share of a kernel's launches whose size the other side must have for sizes to count."""
_SAME_PROCESS: Final = 0.9
"""Share of launches with the same number that must be of the same kernel."""


def packed_shapes(shapes: Sequence[LaunchShape], codes: Int32) -> Float64:
    """Grid and workgroup of each code as one number that a float holds exactly; NaN if unknown."""
    packed = [
        shape.grid * _BLOCKS + shape.block
        if 0 < shape.grid < _LARGEST_GRID and 0 < shape.block < _BLOCKS
        else np.nan
        for shape in shapes
    ]
    return np.array(packed, np.float64)[codes]


class Dispatched(Struct, frozen=True):
    """The dispatches of one GPU in their order, as far as they tell which kernel each is."""

    names: Sequence[str]
    name: Int32
    """Code of the kernel's name in `names`."""
    items: Int64
    """Work-items of the grid; UNKNOWN where not given."""
    workgroup: Int64
    region: Int32
    """Code of the innermost roctx range in `names`, or UNKNOWN."""
    correlation: Int64
    """What the trace calls the launch too, or UNKNOWN."""

    def __len__(self) -> int:
        return len(self.name)

    @classmethod
    def of(cls, run: DispatchRun, rows: Index, process: int = -1) -> Dispatched:
        """Dispatches of a run; of those of the trace's own process the correlation counts."""

        def size(sizes: Int32) -> Int64:
            whole = np.maximum(sizes.astype(np.int64), 1).prod(axis=1)
            return np.where((sizes > 0).any(axis=1), whole, UNKNOWN)

        found = run.dispatches
        is_own = (found.process[rows] == process) & (process >= 0)
        return cls(
            run.names,
            found.name[rows],
            size(found.grid[rows]),
            size(found.workgroup[rows]),
            found.region[rows],
            np.where(is_own & (found.correlation[rows] > 0), found.correlation[rows], UNKNOWN),
        )

    @classmethod
    def named(cls, names: Sequence[str], name: Int32) -> Dispatched:
        """Dispatches of which only the names are known."""
        nothing = np.full(len(name), UNKNOWN, np.int64)
        return cls(names, name, nothing, nothing, nothing.astype(np.int32), nothing)


def common_traits(
    table: KernelTable,
    sequence: Index,
    dispatched: Dispatched,
    trace_code: Int64,
    dispatch_code: Int64,
) -> tuple[Launched, Launched]:
    """Both sides with what they have in common beside the names: size and named range."""
    sizes = _sizes(table, sequence, dispatched, trace_code, dispatch_code)
    regions = _regions(table, sequence, dispatched, trace_code, dispatch_code)
    return (
        Launched(trace_code, (sizes[0], regions[0])),
        Launched(dispatch_code, (sizes[1], regions[1])),
    )


def same_launches(
    table: KernelTable,
    sequence: Index,
    dispatched: Dispatched,
    trace_code: Int64,
    dispatch_code: Int64,
) -> tuple[Index, Index]:
    """Positions of kernels and of dispatches that the profilers of one process number alike.

    Nothing, where the numbers pair other kernels than the names do: then the process is another.
    """
    nothing = np.empty(0, np.intp), np.empty(0, np.intp)
    numbers = table.measured.get(CORRELATION)
    if numbers is None or (dispatched.correlation < 0).all():
        return nothing
    known = np.isfinite(numbers[sequence])
    ours = np.where(known, numbers[sequence], 0).astype(np.int64)
    here, there = _once(ours, known), _once(dispatched.correlation, dispatched.correlation >= 0)
    _, at, other = np.intersect1d(
        ours[here], dispatched.correlation[there], assume_unique=True, return_indices=True
    )
    here, there = here[at], there[other]
    agree = trace_code[here] == dispatch_code[there]
    if not len(here) or agree.mean() < _SAME_PROCESS:
        return nothing
    return here[agree], there[agree]


def _once(values: Int64, usable: Mask) -> Index:
    """Positions of usable values that occur once: a graph's launch has several kernels."""
    positions = np.flatnonzero(usable)
    _, first, count = np.unique(values[positions], return_index=True, return_counts=True)
    once: Index = positions[first[count == 1]]
    return once


def _regions(
    table: KernelTable,
    sequence: Index,
    dispatched: Dispatched,
    trace_code: Int64,
    dispatch_code: Int64,
) -> tuple[Int64, Int64]:
    """The named range around each launch, where ranges of the trace are roctx ranges too.

    On the trace's side it is the operation that an annotation names; kernel by kernel it counts
    where the dispatches are in ranges of that name.
    """
    region = dispatched.region.astype(np.int64)
    unknown = np.full(len(sequence), UNKNOWN, np.int64)
    if (region < 0).all():
        return unknown, region
    codes = {dispatched.names[code]: code for code in np.unique(region[region >= 0]).tolist()}
    of_operation = np.array(
        [codes.get(name.removesuffix(RECOMPUTE_SUFFIX), UNKNOWN) for name in table.operations]
        + [UNKNOWN],
        np.int64,
    )
    known = (table.operation[sequence] >= 0) & (table.operation_rule[sequence] == Rule.ANNOTATION)
    of_trace = of_operation[table.operation[sequence]]
    share = _share_found(trace_code, of_trace, known, dispatch_code, region)
    known &= (of_trace != UNKNOWN) & (share >= _COMPARABLE)
    return np.where(known, of_trace, UNKNOWN), region


def _sizes(
    table: KernelTable,
    sequence: Index,
    dispatched: Dispatched,
    trace_code: Int64,
    dispatch_code: Int64,
) -> tuple[Int64, Int64]:
    """Numbers of the launches of both sides, equal where grid and workgroup are, else UNKNOWN.

    A trace counts a grid in workgroups, but in work-items where it was launched so; the profiler
    always in work-items. Which of the two holds is told kernel by kernel; where neither gives the
    sizes that the other side has, the two ran other sizes, and only names can be compared.
    """
    packed = table.measured.get(LAUNCH_SHAPE)
    items, workgroup = dispatched.items, dispatched.workgroup
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
    known: Mask,
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
