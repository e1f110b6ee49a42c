"""Precomputed sums of a kernel table over sets of levels, for fast queries of large runs.

A cube holds, for one set of levels, a cell for every combination of labels in the table. Cubes
exist for sets with few combinations; all other queries read the rows. Both ways give the same
integers; sums of measured columns may differ in the last digit of a double, since they are added
in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

import numpy as np
from msgspec import Struct, field

from chopper_core.model.table import ADDITIVE, LEVELS, KernelTable, Selection, values_of
from chopper_core.util.arrays import AnyArray, Float64, Index, Int32, Int64
from chopper_core.util.grouping import distinct, run_mask, run_sizes, run_starts, stable_order
from chopper_core.util.workers import in_processes

MOST_CELLS: Final = 1 << 16
_MOST_BY_GPU: Final = 1 << 20
"""The same of GPUs by one other level, which ranks and heat maps of many GPUs take."""
ROWS_PER_CELL: Final = 64
"""A cube with fewer rows per cell saves too little."""
_CHUNK: Final = 1 << 18
"""Rows that are reduced at once: some fifty columns of them are in memory."""
_MAX_LOOKUP: Final = 1 << 22
_MAX_BY_GPU: Final = 1 << 13
"""Cells up to which a cube that has the GPUs too takes as long as one without."""
_SAMPLE_ROWS: Final = 1 << 18
_SUMS: Final = (
    *("kernels", "outside", "collectives", "copies", "unlinked", "known_bytes", "idle_latency_ns"),
)
SUMMED: Final = (*ADDITIVE, "duration_ns", *_SUMS)
LOWEST: Final = ("start_ns", "duration_ns", "stream", "launch_ns")
HIGHEST: Final = ("end_ns", "duration_ns", "stream", "launch_ns", "bytes")
_REDUCED: Final = (
    *(("sum", np.add, 0, name) for name in SUMMED),
    *(("min", np.minimum, np.iinfo(np.int64).max, name) for name in LOWEST),
    *(("max", np.maximum, np.iinfo(np.int64).min, name) for name in HIGHEST),
)
"""How columns are reduced: as what, by what, from what on."""


_Levels = tuple[str, ...]


class Cube(Struct, frozen=True, eq=False):
    """The cells of one set of levels, in the order of their codes."""

    levels: tuple[str, ...]
    codes: Mapping[str, Int32]
    integers: Mapping[str, Int64]
    """`sum NAME`, `min NAME`, `max NAME` of columns; `count N` and `time N` of each pattern."""
    floats: Mapping[str, Float64]
    """Sums of the known values of the measured columns."""
    patterns: Mapping[str, int]
    """Measured column → its pattern: columns of one pattern are known for the same rows."""

    def __len__(self) -> int:
        return len(self.integers["sum activities"])

    def at_level(self, level: str, table: KernelTable) -> AnyArray | None:
        if level in table.coordinates and "gpu" in self.codes:
            return table.coordinates[level][self.codes["gpu"]]
        return self.codes.get(level)


class Cells(Struct, frozen=True, eq=False):
    """Cells of a cube, group after group."""

    cube: Cube
    at: Index
    first: Index
    asked: CellsAsked | None = None
    """What of the cubes of a table they are; None: parts of others."""

    def sum(self, column: str) -> Int64:
        return self.reduced(f"sum {column}", np.add.reduceat)

    def reduced(self, key: str, reduceat: Callable[[AnyArray, Index], AnyArray]) -> AnyArray:
        return reduceat(self.cube.integers[key][self.at], self.first)

    def known_together(self, columns: Sequence[str]) -> tuple[dict[str, Float64], Int64] | None:
        """As in `Groups`; None where only rows tell which have all."""
        patterns = {self.cube.patterns[column] for column in columns}
        if len(patterns) != 1:
            counts = [self.reduced(f"count {number}", np.add.reduceat) for number in patterns]
            if all(count.any() for count in counts):
                return None
            # Where one is nowhere known, no activity has all of them.
            return {column: np.zeros(len(self.first)) for column in columns}, 0 * counts[0]
        sums = {
            column: np.add.reduceat(self.cube.floats[column][self.at], self.first)
            for column in columns
        }
        return sums, self.reduced(f"count {patterns.pop()}", np.add.reduceat)

    def known_duration(self, column: str) -> Int64:
        return self.reduced(f"time {self.cube.patterns[column]}", np.add.reduceat)

    def numbers(self, table: KernelTable) -> Callable[[slice], Int32]:
        """A function from rows of the table to the group of each; -1 for none."""
        levels = self.cube.levels
        sizes = tuple(int(self.cube.codes[level].max()) + 2 for level in levels)
        keys = np.zeros(len(self.cube), np.int64)
        for level, size in zip(levels, sizes, strict=True):
            keys = keys * size + self.cube.codes[level] + 1
        ends = np.append(self.first[1:], len(self.at))
        number = np.full(len(self.cube), -1, np.int32)
        number[self.at] = np.repeat(np.arange(len(self.first), dtype=np.int32), ends - self.first)
        if int(np.prod(sizes)) > _MAX_LOOKUP:
            return lambda rows: number[np.searchsorted(keys, _keys(table, levels, sizes, rows))]
        looked_up = np.full(int(np.prod(sizes)), -1, np.int32)
        looked_up[keys] = number
        return lambda rows: looked_up[_keys(table, levels, sizes, rows)]

    def split(self, levels: Sequence[str], table: KernelTable) -> tuple[Cells, Index] | None:
        """The groups split by levels, and the group of each part; None where rows tell them."""
        columns = [self.cube.at_level(level, table) for level in levels]
        group = np.repeat(np.arange(len(self.first)), run_sizes(self.first, len(self.at)))
        keys = [group, *(codes[self.at] for codes in columns if codes is not None)]
        if len(keys) <= len(columns):
            return None if self.asked is None else self.asked.split(levels, len(self.first))
        order = np.lexsort(keys[::-1])
        first = run_starts(*(key[order] for key in keys))
        return Cells(self.cube, self.at[order], first), group[order][first]

    def codes(self, level: str, group: int) -> Int32:
        end = self.first[group + 1] if group + 1 < len(self.first) else len(self.at)
        return self.cube.codes[level][self.at[self.first[group] : end]]


class CellsAsked(Struct, frozen=True, eq=False):
    """What of some cubes was asked for; see `Cubes.cells`."""

    cubes: Cubes
    wanted: Mapping[str, int]
    grouped: Sequence[str]
    without: Mapping[str, Sequence[int]]

    def split(self, levels: Sequence[str], groups: int) -> tuple[Cells, Index] | None:
        """The groups split by levels, from a larger cube; None without one."""
        found = self.cubes.cells(self.wanted, (*self.grouped, *levels), self.without)
        if found is None:
            return None
        table, at = self.cubes.table, found.at[found.first]
        columns = [found.cube.at_level(level, table) for level in self.grouped]
        begins = np.arange(len(at)) == 0
        if columns:
            begins = run_mask(*(codes[at] for codes in columns if codes is not None))
        owner = np.cumsum(begins) - 1
        return (found, owner) if len(owner) and owner[-1] + 1 == groups else None


class Cubes(Struct, frozen=True, eq=False):
    """The cubes of a table whose rows are in the order of the levels."""

    table: KernelTable
    by_levels: Mapping[frozenset[str], Cube] = field(default_factory=dict)

    def cells(
        self,
        wanted: Mapping[str, int],
        grouped: Sequence[str],
        without: Mapping[str, Sequence[int]] | None = None,
    ) -> Cells | None:
        """The cells with the wanted codes, without the excluded ones, grouped by levels.

        None where no cube has all these levels.
        """
        without = without or {}
        named = {*wanted, *grouped, *without}
        levels = {"gpu" if level in self.table.coordinates else level for level in named}
        fitting = [cube for key, cube in self.by_levels.items() if levels <= key]
        if not fitting:
            return None
        # A cube with the GPU level also gives the GPUs of a group: else its rows are read for them.
        by_gpu = [each for each in fitting if "gpu" in each.levels and len(each) <= _MAX_BY_GPU]
        cube = min(by_gpu or fitting, key=len)
        mask = np.ones(len(cube), np.bool_)
        for name, code in wanted.items():
            mask &= cube.at_level(name, self.table) == code
        for name, codes in without.items():
            mask &= ~np.isin(cube.codes[name], codes)
        at, asked = np.flatnonzero(mask), CellsAsked(self, wanted, grouped, without)
        if not grouped or not len(at):
            return Cells(cube, at, np.zeros(min(len(at), 1), np.intp), asked)
        codes_at = [cube.at_level(level, self.table) for level in grouped]
        keys = [codes[at] for codes in codes_at if codes is not None]
        order = np.lexsort(keys[::-1])
        return Cells(cube, at[order], run_starts(*(key[order] for key in keys)), asked)


def summarise(
    table: KernelTable, most_cells: int = MOST_CELLS, rows_per_cell: int = ROWS_PER_CELL
) -> list[Cube]:
    """The cubes of a table, the large sets of levels first."""
    fitting = len(table) // rows_per_cell
    every = [levels for size in range(len(LEVELS), 0, -1) for levels in combinations(LEVELS, size)]
    limits = {
        levels: min(
            max(most_cells, _MOST_BY_GPU) if len(levels) <= 2 and "gpu" in levels else most_cells,
            fitting,
        )
        for levels in every
    }
    asked = _cells_asked(table, limits) if fitting else {}
    of_rows = _of_rows(table, asked)
    made: list[Cube] = []
    for levels in every:
        above = [cube for cube in made if set(levels) <= set(cube.levels)]
        if above:
            made.append(_rolled_up(min(above, key=len), levels))
        elif levels in of_rows:
            made.append(of_rows[levels])
    return made


def _rolled_up(cube: Cube, levels: tuple[str, ...]) -> Cube:
    order = np.lexsort([cube.codes[level] for level in reversed(levels)])
    codes = {level: cube.codes[level][order] for level in levels}
    first = run_starts(*codes.values())

    def reduced(key: str, values: AnyArray) -> AnyArray:
        how = {"min": np.minimum, "max": np.maximum}.get(key.split(" ")[0], np.add)
        return how.reduceat(values[order], first)

    return Cube(
        levels,
        {level: column[first] for level, column in codes.items()},
        {key: reduced(key, values) for key, values in cube.integers.items()},
        {key: reduced("sum", values) for key, values in cube.floats.items()},
        cube.patterns,
    )


def _pieces(table: KernelTable) -> Iterator[slice]:
    for begin in range(0, len(table), _CHUNK):
        yield slice(begin, min(begin + _CHUNK, len(table)))


class _CellKeys(Struct, frozen=True, eq=False):
    """The cells of a set of levels."""

    keys: Int64
    """Sorted."""
    sizes: tuple[int, ...]
    """Of the levels."""

    def codes(self, levels: tuple[str, ...]) -> dict[str, Int32]:
        left, codes = self.keys, {}
        for level, size in zip(reversed(levels), reversed(self.sizes), strict=True):
            codes[level] = (left % size - 1).astype(np.int32)
            left = left // size
        return codes


def _cells_asked(table: KernelTable, limits: Mapping[_Levels, int]) -> dict[_Levels, _CellKeys]:
    """The cells of the sets of levels that have no more than a limit, but for parts of others; the
    large sets come first."""
    sample = slice(0, len(table), max(len(table) // _SAMPLE_ROWS, 1))
    largest = {level: int(table.column(level).max()) for level in LEVELS}
    left, asked = [*limits], dict[_Levels, _CellKeys]()
    while True:
        sizes: dict[_Levels, tuple[int, ...]] = {}
        for levels in tuple(left):
            if not any(set(levels) <= set(larger) for larger in (*sizes, *asked)):
                left.remove(levels)
                own = tuple(largest[level] + 2 for level in levels)
                if _cells_of(table, levels, own, sample, limits[levels]) is not None:
                    sizes[levels] = own
        if not sizes:
            return asked
        # Most of them: what a sample fits, all rows fit.
        found = _cells_of_rows(table, sizes, limits)
        asked |= {levels: _CellKeys(keys, sizes[levels]) for levels, keys in found.items()}


def _cells_of_rows(
    table: KernelTable, sizes: Mapping[_Levels, tuple[int, ...]], limits: Mapping[_Levels, int]
) -> dict[_Levels, Int64]:
    """The cells of sets of levels, where there are no more than a limit."""
    found = dict.fromkeys(sizes, np.empty(0, np.int64))

    def of_piece(rows: slice) -> dict[_Levels, Int64 | None]:
        return {
            levels: _cells_of(table, levels, sizes[levels], rows, limits[levels])
            for levels in found
        }

    for cells in in_processes(of_piece, [*_pieces(table)], len(table)):
        for levels in tuple(found):
            keys = cells[levels]
            if keys is not None:
                keys = distinct(np.concatenate((found[levels], keys)))
            if keys is None or len(keys) > limits[levels]:
                del found[levels]
            else:
                found[levels] = keys
        if not found:
            break
    return found


def _cells_of(
    table: KernelTable, levels: _Levels, sizes: tuple[int, ...], rows: Selection, limit: int
) -> Int64 | None:
    """The cells of some rows; None where there are too many."""
    if float(np.prod(np.array(sizes, np.float64))) > 2.0**62:
        return None
    keys = distinct(_keys(table, levels, sizes, rows))
    return keys if len(keys) <= limit else None


def _keys(
    table: KernelTable, levels: tuple[str, ...], sizes: tuple[int, ...], rows: Selection
) -> Int64:
    """One number for the labels of each row; a missing label counts as 0."""
    key = np.zeros(len(table.gpu[rows]), np.int64)
    for level, size in zip(levels, sizes, strict=True):
        key *= size
        key += table.column(level)[rows].astype(np.int64) + 1
    return key


def _of_rows(table: KernelTable, asked: Mapping[_Levels, _CellKeys]) -> dict[_Levels, Cube]:
    """The cubes of some sets of levels. Rows with the same labels, which lie together, are reduced
    once for all of them; pieces are added in their order, so that doubles have one sum."""
    patterns = _patterns(table)
    sums: dict[_Levels, dict[str, AnyArray]] = {levels: {} for levels in asked}

    def added(rows: slice) -> Iterator[tuple[Index, dict[str, tuple[np.ufunc, int, AnyArray]]]]:
        first = run_starts(*(table.column(level)[rows] for level in LEVELS))
        runs = [
            (key, how, least, how.reduceat(values, first))
            for key, how, least, values in _reduced(table, rows, patterns)
        ]
        for levels, cells in asked.items():
            own = _keys(table, levels, cells.sizes, rows.start + first)
            cell = np.searchsorted(cells.keys, own)
            is_in_order = not (cell[1:] < cell[:-1]).any()
            order = slice(None) if is_in_order else stable_order(cell)
            cell = cell[order]
            begins = run_starts(cell)
            sums_of = {
                key: (how, least, how.reduceat(values[order], begins))
                for key, how, least, values in runs
            }
            yield cell[begins], sums_of

    for of_piece in in_processes(lambda rows: [*added(rows)], [*_pieces(table)]):
        for levels, (at, values) in zip(asked, of_piece, strict=True):
            whole = sums[levels]
            for key, (how, least, own) in values.items():
                if key not in whole:
                    whole[key] = np.full(len(asked[levels].keys), least, own.dtype)
                whole[key][at] = how(whole[key][at], own)
    return {
        levels: Cube(
            levels,
            asked[levels].codes(levels),
            {key: values for key, values in whole.items() if key not in patterns},
            {key: whole[key] for key in patterns},
            patterns,
        )
        for levels, whole in sums.items()
    }


def _reduced(
    table: KernelTable, rows: slice, patterns: Mapping[str, int]
) -> Iterator[tuple[str, np.ufunc, int, AnyArray]]:
    """What a cube holds: its key, how it is reduced and from what on, and the values of rows."""
    yield "sum activities", np.add, 0, np.ones(rows.stop - rows.start, np.int64)
    for what, how, least, name in _REDUCED:
        values = values_of(table, name, rows).astype(np.int64, copy=False)
        yield f"{what} {name}", how, least, values
    duration = table.column("duration_ns")[rows]
    known: dict[int, AnyArray] = {}
    for name, number in patterns.items():
        if number not in known:
            known[number] = np.isfinite(table.measured[name][rows])
            yield f"count {number}", np.add, 0, known[number].astype(np.int64)
            yield f"time {number}", np.add, 0, np.where(known[number], duration, 0)
        yield name, np.add, 0, np.where(known[number], table.measured[name][rows], 0.0)


def _patterns(table: KernelTable) -> dict[str, int]:
    import hashlib  # Imported on use: OpenSSL is slow to load.

    found: dict[bytes, int] = {}
    patterns = {}
    for name, values in table.measured.items():
        digest = hashlib.sha256()
        for rows in _pieces(table):
            digest.update(np.packbits(np.isfinite(values[rows])).data)
        patterns[name] = found.setdefault(digest.digest(), len(found))
    return patterns
