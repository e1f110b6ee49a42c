"""Groups of rows of a kernel table, and reductions over each; whether rows do the same work."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np

from chopper_core.model.column_names import CALL_SHAPE, FLOPS
from chopper_core.model.cubes import Cells
from chopper_core.model.table import (
    LEVELS,
    STATES,
    Category,
    KernelTable,
    Kind,
    Selection,
    values_of,
)
from chopper_core.util.arrays import AnyArray, Codes, Float64, Index, Int64, Mask, Numbers
from chopper_core.util.grouping import (
    distinct,
    hashes,
    places_by,
    quantile_within,
    quantiles_of,
    run_sizes,
    run_starts,
    sorted_run_mask,
    stable_order,
)

_FEW_ROWS: Final = 1 << 16
"""Pieces of fewer rows take longer to hand out than to go through."""
_PIECE: Final = 1 << 18
_SIZES: Final = (CALL_SHAPE, FLOPS)
_MIXER: Final = np.uint64(0x9E3779B97F4A7C15)
_SHAPE_FACTOR: Final = 0x2545F4914F6CDD1D
_SPARE_BITS: Final = 15
"""Of 63, so that 32 thousand of them can be added."""


GroupsOrigin = tuple[
    tuple[str, ...], tuple[int, ...], tuple[str, ...], tuple[str, ...], dict[str, tuple[int, ...]]
]
"""Where groups are in a tree: its order and what it leaves out; path, levels and codes left out."""


class Groups:
    """One or more groups of rows of a kernel table, none of them empty.

    Precomputed sums (`cells`) answer where they exist; rows are looked up on demand, within the
    slice `around` if it is given.
    """

    def __init__(
        self,
        table: KernelTable,
        rows: Selection | None,
        first: Index | None,
        cells: Cells | None = None,
        find: Callable[[], tuple[Selection, Index]] | None = None,
        around: slice | None = None,
    ) -> None:
        self.table = table
        self.cells = cells
        self._selection = rows
        self._first = first
        self._find = find
        self.around = around
        self.origin: GroupsOrigin | None = None
        self._cache: dict[str, AnyArray] = {}
        self.means_of: dict[tuple[str, int], dict[int, Float64]] = {}
        """(signal, bins) → group → its means over the group's time, of groups that were shown."""
        self.memo: dict[Hashable, Any] = {}
        """What several columns of the same groups share."""

    @classmethod
    def single(cls, table: KernelTable, rows: Selection) -> Groups:
        """Rows in their order as one group; contiguous rows become a slice, never copied."""
        rows = rows if isinstance(rows, slice) else contiguous(rows)
        return cls(table, rows, np.zeros(1, np.intp))

    def __len__(self) -> int:
        return len(self.first if self.cells is None else self.cells.first)

    @property
    def selection(self) -> Selection:
        """The rows, group after group: a slice where they are contiguous in the table."""
        if self._selection is None:
            assert self._find is not None
            self._selection, self._first = self._find()
        return self._selection

    @cached_property
    def rows(self) -> Index:
        own = self.selection
        return np.arange(own.start, own.stop) if isinstance(own, slice) else own

    @property
    def first(self) -> Index:
        if self._first is None:
            _ = self.selection
        assert self._first is not None
        return self._first

    def holds(self, rows: Index) -> Mask:
        """Whether each of some rows of the table is in a group."""
        own = self.selection
        if isinstance(own, slice):
            return np.asarray((rows >= own.start) & (rows < own.stop), np.bool_)
        low, high = int(own.min()), int(own.max())
        inside = np.zeros(high - low + 1, np.bool_)
        inside[own - low if low else own] = True
        near = (rows >= low) & (rows <= high)
        near[near] = inside[rows[near] - low]
        return near

    def numbers_of(self, rows: Index) -> Index:
        """The group that each of some rows of the table is in; -1: none."""
        numbers = np.full(len(self.table), -1, np.int32)
        for own, group in self.pieces():
            numbers[own] = group
        return numbers[rows].astype(np.intp)

    def pieces(self) -> Iterator[tuple[Selection, Codes]]:
        """Chunks of rows, in any order, with the group number of each row."""
        if self._selection is None and self.cells is not None and self.around is not None:
            numbers = self.cells.numbers(self.table)
            for begin in range(self.around.start, self.around.stop, _PIECE):
                rows = slice(begin, min(begin + _PIECE, self.around.stop))
                number = numbers(rows)
                own = np.flatnonzero(number >= 0)
                if len(own) == len(number):
                    yield rows, number
                else:
                    yield own + begin, number[own]
            return
        group = np.repeat(np.arange(len(self), dtype=np.int32), self.sizes())
        for begin in range(0, len(group), _PIECE):
            end = min(begin + _PIECE, len(group))
            selection = self.selection
            if isinstance(selection, slice):
                yield slice(selection.start + begin, selection.start + end), group[begin:end]
            else:
                yield selection[begin:end], group[begin:end]

    def values(self, column: str) -> AnyArray:
        if column in self.table.measured:
            return self.table.measured[column][self.selection]
        return values_of(self.table, column, self.selection)

    def sizes(self) -> Int64:
        if self.cells is not None:
            return self.cells.sum("activities")
        end = self.selection
        count = end.stop - end.start if isinstance(end, slice) else len(end)
        return run_sizes(self.first, count).astype(np.int64)

    def activities(self) -> Int64:
        """Number of activities in each group: rows but for those of time outside steps."""
        return self.sizes() - self.sum("outside")

    def computing(self) -> Int64:
        """Number of activities that compute in each group, memsets too."""
        return self.activities() - self.sum("collectives") - self.sum("copies")

    def sum(self, column: str) -> Int64:
        return self._reduced("sum", column, np.add.reduceat)

    def min(self, column: str) -> Int64:
        return self._reduced("min", column, np.minimum.reduceat)

    def max(self, column: str) -> Int64:
        return self._reduced("max", column, np.maximum.reduceat)

    @property
    def elapsed_ns(self) -> Int64:
        """Time charged to each group: all states of its GPUs."""
        if self.cells is not None:
            return np.asarray(sum(self.sum(state) for state in STATES), np.int64)
        if "elapsed" not in self._cache:
            # One sum of the rows is faster than a reduction for each state.
            elapsed = elapsed_of_rows(self.table, self.selection)
            self._cache["elapsed"] = np.add.reduceat(elapsed, self.first)
        return self._cache["elapsed"]

    def sum_of(self, values: Callable[[KernelTable, Selection], Numbers]) -> Int64:
        """Sum over each group of a number computed per row, such as a condition."""
        summed = np.zeros(len(self))
        for rows, group in self.pieces():
            summed += np.bincount(group, values(self.table, rows), len(self))
        return summed.astype(np.int64)

    def compute_kernels(self) -> Int64:
        """Number of kernels that compute in each group: those that counters are collected for."""
        if "compute kernels" not in self._cache:
            self._cache["compute kernels"] = self.sum_of(
                lambda table, rows: (
                    (table.kind[rows] == Kind.COMPUTE) & (table.category[rows] == Category.KERNEL)
                )
            )
        return self._cache["compute kernels"]

    def known(self, column: str) -> tuple[Float64, Int64]:
        """Sum of a measured column over each group, and the number of activities with a value."""
        sums, count = self.known_together((column,))
        return sums[column], count

    def known_together(self, columns: Sequence[str]) -> tuple[dict[str, Float64], Int64]:
        """Sums of measured columns over the activities that have all of them, and their number."""
        if any(column not in self.table.measured for column in columns):
            return {c: np.zeros(len(self)) for c in columns}, np.zeros(len(self), np.int64)
        if self.cells is not None:
            answer = self.cells.known_together(columns)
            if answer is not None:
                return answer
        values = {column: self.table.measured[column][self.selection] for column in columns}
        there = np.ones(len(next(iter(values.values()))), np.bool_)
        for numbers in values.values():
            there &= np.isfinite(numbers)
        sums = {
            column: np.add.reduceat(np.where(there, numbers, 0.0), self.first)
            for column, numbers in values.items()
        }
        return sums, np.add.reduceat(there.astype(np.int64), self.first)

    def known_max(self, column: str) -> Float64 | None:
        """Largest known value of a measured column in each group, NaN where none is known; None
        without the column."""
        if column not in self.table.measured:
            return None
        values = self.table.measured[column][self.selection]
        largest: Float64 = np.fmax.reduceat(values, self.first)
        return largest

    def known_duration(self, column: str) -> Int64:
        if column not in self.table.measured:
            return np.zeros(len(self), np.int64)
        if self.cells is not None:
            return self.cells.known_duration(column)
        there = np.isfinite(self.table.measured[column][self.selection])
        durations = np.where(there, self.table.duration_ns[self.selection], 0)
        summed: Int64 = np.add.reduceat(durations, self.first)
        return summed

    def split(self, levels: Sequence[str]) -> tuple[Groups, Index]:
        """The groups split by the labels of levels, and the group of each part."""
        known = None if self.cells is None else self.cells.split(levels, self.table)
        if known is None:
            return self._split_rows(levels)

        def rows() -> tuple[Selection, Index]:
            parts, _ = self._split_rows(levels)
            return parts.selection, parts.first

        cells, owner = known
        return Groups(self.table, None, None, cells, rows, self.around), owner

    def _split_rows(self, levels: Sequence[str]) -> tuple[Groups, Index]:
        # Of one group a byte per row is enough.
        numbers = np.arange(len(self), dtype=np.int64 if len(self) > 1 else np.int8)
        group, selection = np.repeat(numbers, self.sizes()), self.selection
        columns = [values_of(self.table, level, selection) for level in levels]
        if (begins := sorted_run_mask(group, *columns)) is not None:
            first = np.flatnonzero(begins)
            return Groups(self.table, selection, first), group[first].astype(np.intp)
        keys = group.astype(np.int64)
        for column in columns:
            codes = column.astype(np.int64)
            codes -= codes.min()
            keys = keys * (int(codes.max()) + 1) + codes
        order = stable_order(keys)
        # Rows stay within their group, so `group` fits the new order too.
        first = run_starts(keys[order])
        return Groups(self.table, self.rows[order], first), group[first].astype(np.intp)

    def codes(self, level: str) -> AnyArray:
        """The code at a level of the first activity of each group."""
        cells = self.cells
        if cells is not None and (known := cells.cube.at_level(level, self.table)) is not None:
            return known[cells.at[cells.first]]
        rows = self.selection
        at = self.first + rows.start if isinstance(rows, slice) else rows[self.first]
        return values_of(self.table, level, at)

    def labels(self, level: str) -> list[str]:
        """The label at a level of the first activity of each group."""
        return self.table.texts_of(level, self.codes(level))

    @property
    def has_gpus(self) -> bool:
        """Whether the GPUs of a group are known without reading its rows."""
        return self.cells is not None and "gpu" in self.cells.cube.levels

    def gpus(self, group: int) -> list[int]:
        if self.cells is not None and self.has_gpus:
            codes = self.cells.codes("gpu", group)
        else:
            codes = self.table.gpu[self.part(group)]
            if len(codes) and codes[0] == codes[-1] and isinstance(self.selection, slice):
                codes = codes[:1]
        return [int(gpu) for gpu in distinct(codes)]

    def rows_of(self, group: int) -> Index:
        part = self.part(group)
        return np.arange(part.start, part.stop) if isinstance(part, slice) else part

    def part(self, group: int) -> Selection:
        rows, first = self.selection, self.first
        begin = int(first[group])
        last = group + 1 == len(first)
        if isinstance(rows, slice):
            return slice(
                rows.start + begin, rows.stop if last else rows.start + int(first[group + 1])
            )
        return rows[begin:] if last else rows[begin : int(first[group + 1])]

    def _whole_groups(self) -> Iterator[tuple[Selection, Index]]:
        """Some groups at a time: their rows, and where each begins among them. Values of scattered
        rows are copies, which take longer where they don't fit into the processor's cache."""
        selection, first = self.selection, self.first
        if isinstance(selection, slice) or len(selection) <= _PIECE:
            yield selection, first
            return
        ends = [*np.searchsorted(first, np.arange(_PIECE, len(selection), _PIECE)).tolist()]
        for low, high in pairwise(sorted({0, *ends, len(first)})):
            begin = first[low]
            end = first[high] if high < len(first) else len(selection)
            yield selection[begin:end], first[low:high] - begin

    def _reduced(
        self, how: str, column: str, reduceat: Callable[[AnyArray, Index], AnyArray]
    ) -> Int64:
        key = f"{how} {column}"
        if key not in self._cache:
            if self.cells is not None and key in self.cells.cube.integers:
                self._cache[key] = self.cells.reduced(key, reduceat)
            else:
                self._cache[key] = np.concatenate(
                    [
                        reduceat(
                            values_of(self.table, column, rows).astype(np.int64, copy=False), first
                        )
                        for rows, first in self._whole_groups()
                    ]
                )
        return self._cache[key]


def are_groups(rows: AnyArray, first: AnyArray, count: int) -> bool:
    """Whether rows, and where each group begins among them, can be those of a table of `count`."""
    begins = bool(len(first)) and first[0] == 0 and bool((np.diff(first) > 0).all())
    if not begins or first[-1] >= len(rows):
        return False
    return bool(rows.min() >= 0 and rows.max() < count)


def contiguous(rows: Index) -> Selection:
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows) and (rows[1:] > rows[:-1]).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def elapsed_of_rows(table: KernelTable, rows: Selection) -> Int64:
    elapsed = table.column(STATES[0])[rows].astype(np.int64)
    for state in STATES[1:]:
        elapsed += table.column(state)[rows]
    return elapsed


def pieces_of(rows: Selection) -> Iterator[Selection]:
    """Rows in pieces of a few megabytes a column: what is computed of one stays in the cache."""
    if isinstance(rows, slice):
        for begin in range(rows.start, rows.stop, _PIECE):
            yield slice(begin, min(begin + _PIECE, rows.stop))
        return
    for begin in range(0, len(rows), _PIECE):
        yield rows[begin : begin + _PIECE]


def gpu_by_gpu(table: KernelTable, rows: Selection) -> list[Selection]:
    """Rows split into pieces of whole GPUs, one of them or, of small ones, several; in one piece
    where a GPU's rows aren't contiguous."""
    if not isinstance(rows, slice):
        return [rows]
    gpu = table.gpu[rows]
    first = run_starts(gpu)
    if (np.diff(gpu[first]) < 0).any():
        return [rows]
    first = first[run_starts(first // _FEW_ROWS)]
    edges = [rows.start, *(first[1:] + rows.start).tolist(), rows.stop]
    return [slice(begin, end) for begin, end in pairwise(edges)]


def knows_sizes(table: KernelTable) -> bool:
    """Whether the trace tells shapes or FLOPs, so that more than names can be compared."""
    known = (table.measured[name] for name in _SIZES if name in table.measured)
    # Of most traces a look at the first ones is enough.
    return any(
        bool(np.isfinite(values[begin : begin + _PIECE]).any())
        for values in known
        for begin in range(0, len(values), _PIECE)
    )


def is_same_work(table: KernelTable, parts: Sequence[Index]) -> Mask:
    """Whether rows side by side do the same: equal sizes, and equal names where some are unknown.

    An autotuner may choose kernels of other names for the same product.
    """
    first = parts[0]
    same, known = np.ones(len(first), np.bool_), np.zeros(len(first), np.bool_)
    for name in _SIZES:
        if name in table.measured:
            sizes = [np.nan_to_num(table.measured[name][rows], nan=-1.0) for rows in parts]
            usual = np.maximum.reduce(sizes)
            for own in sizes:
                same &= (own == usual) | (own < 0)
            known |= np.minimum.reduce(sizes) >= 0
    for rows in parts[1:]:
        same &= known | (table.kernel[rows] == table.kernel[first])
    return same


def work_of(table: KernelTable, rows: Selection) -> Int64:
    """A number per activity, equal for the same kernel; sums differ where the kernels do."""
    of_name, most = hashes(len(table.names)), np.iinfo(np.int64).max
    if not knows_sizes(table):
        return ((of_name & most) >> _SPARE_BITS)[table.kernel[rows]]
    found = of_name[table.kernel[rows]]
    if CALL_SHAPE in table.measured:
        # FLOPs follow from the shape of a call and the kernel.
        shape = np.nan_to_num(table.measured[CALL_SHAPE][rows], nan=-1.0).astype(np.int64) + 1
        found = found + (hashes(int(shape.max(initial=0)) + 1) * _SHAPE_FACTOR)[shape]
    else:
        flops = np.nan_to_num(table.measured[FLOPS][rows], nan=-1.0).view(np.uint64)
        found = found + ((flops * _MIXER) >> np.uint64(1)).astype(np.int64)
    return (found & most) >> _SPARE_BITS


def comparable_kernels(table: KernelTable, rows: Index) -> Int64:
    """As `work_of`, and of as many bytes. Where the trace tells no sizes, what is equal is at its
    place, too: the n-th of as many of its name in an operation of a layer, or of a step.

    A name says little alone: a product's stands for matrices of any size.
    """
    work, most = work_of(table, rows), np.iinfo(np.int64).max
    moved = table.bytes[rows]
    of_bytes = (moved.astype(np.uint64) * _MIXER).view(np.int64)
    work = np.where(moved > 0, (work + of_bytes) & (most >> _SPARE_BITS), work)
    if knows_sizes(table):
        return work
    lacks = np.flatnonzero(moved <= 0)
    order = lacks[stable_order(rows[lacks])]
    first = run_starts(*(table.column(level)[rows[order]] for level in LEVELS))
    size = run_sizes(first, len(order))
    place = np.arange(len(order)) - np.repeat(first, size)
    code = hashes(int(size.max(initial=0)) + 1)
    # Where one of them is missing, the others aren't in their places.
    of_place = code[place] + np.repeat(code[size] * _SHAPE_FACTOR, size)
    work[order] = (work[order] + of_place) & (most >> _SPARE_BITS)
    return work


_MAX_SORTED: Final = 1 << 20
"""Values up to which quantiles are found by sorting all of them; more are brought together by
group, piece by piece."""


def grouped(parent: Groups, codes: Codes) -> tuple[Int64, Groups]:
    """The different codes in rising order, and the rows of each in their order.

    `codes` has one code per row of `parent.rows`.
    """
    if (codes[1:] >= codes[:-1]).all():
        ordered, rows = codes, parent.rows
    else:
        order = stable_order(codes)
        ordered, rows = codes[order], parent.rows[order]
    first = run_starts(ordered)
    return ordered[first].astype(np.int64), Groups(parent.table, rows, first)


def by_codes_of(parent: Groups, parts: Groups, level: str, codes_of: Codes) -> tuple[Int64, Groups]:
    """As `grouped`, by a code of each label of a level, from the sums of its parts where known.

    `parts` are the rows of `parent` by that level.
    """

    def found() -> tuple[Int64, Groups]:
        return grouped(parent, codes_of[parent.table.column(level)[parent.selection]])

    cells = parts.cells
    if cells is None:
        return found()
    codes = codes_of[cells.cube.codes[level][cells.at]]
    order = stable_order(codes)
    codes = codes[order]
    first = run_starts(codes)

    def rows() -> tuple[Selection, Index]:
        nodes = found()[1]
        return nodes.selection, nodes.first

    of_code = Cells(cells.cube, cells.at[order], first)
    return codes[first].astype(np.int64), Groups(
        parent.table, None, None, of_code, rows, parts.around
    )


def quantiles(groups: Groups, column: str, shares: tuple[float, ...]) -> Float64:
    """Quantiles of a column over the activities of each group, as groups x shares, by linear
    interpolation; NaN where it has none, but time outside steps."""
    has_outside = bool(groups.sum("outside").any())
    if groups.sizes().sum() <= _MAX_SORTED:
        values = groups.table.column(column)[groups.rows].astype(np.float64)
        owner = np.repeat(np.arange(len(groups)), groups.sizes())
        if has_outside:
            is_activity = values_of(groups.table, "outside", groups.rows) == 0
            values, owner = values[is_activity], owner[is_activity]
        return quantiles_of(values, owner, len(groups), shares)
    sizes = groups.activities()
    ends = np.cumsum(sizes)
    # All groups' values in one array, each as short as the largest allows.
    is_short = int(groups.max(column).max()) <= np.iinfo(np.int32).max
    ordered = np.empty(int(ends[-1]), np.int32 if is_short else np.int64)
    to = (ends - sizes).tolist()
    for rows, group in groups.pieces():
        values = values_of(groups.table, column, rows)
        if has_outside:
            is_activity = values_of(groups.table, "outside", rows) == 0
            values, group = values[is_activity], group[is_activity]
        for number, own in places_by(group).items():
            ordered[to[number] : to[number] + len(own)] = values[own]
            to[number] += len(own)
    none = np.full(len(shares), np.nan)
    each = zip(ends - sizes, ends, strict=True)
    return np.array([quantile_within(ordered[a:b], shares) if b > a else none for a, b in each])
