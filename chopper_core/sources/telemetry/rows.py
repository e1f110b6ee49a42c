"""Collects the rows of a telemetry file as readings per GPU and signal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.sources.signals import COUNTED, GpuName, SignalName
from chopper_core.sources.telemetry.cells import (
    DIMENSIONS,
    FLAWS,
    UNSUPPORTED,
    Flaw,
    in_units,
    quantity,
)
from chopper_core.tables.columns import GrowingColumn, Interner
from chopper_core.tables.losses import Repeats
from chopper_core.util.arrays import AnyArray, Float64, Int8, Int32, Int64, Mask
from chopper_core.util.grouping import distinct, distinct_codes, stable_order

if TYPE_CHECKING:
    from chopper_core.tables.column import TableColumn


class FieldKind(Enum):
    """How the numbers of a column are counted."""

    VALUE = "value"
    """The signal itself."""
    RESIDENCY = "residency"
    """Accumulated ticks under a limiter, the part."""
    TICKS = "ticks"
    """Accumulated ticks of the clock that residencies are counted in."""


class Field(Struct, frozen=True, cache_hash=True):
    """The meaning of a column."""

    signal: SignalName
    unit: str
    """Unit of values without a written one."""
    part: str = ""
    kind: FieldKind = FieldKind.VALUE
    is_list: bool = False
    """Whether cells are lists with one value per part, numbered after `part`."""
    alternative: int = 0
    """Rank among columns of the same meaning: the lowest one with values is used."""
    convert: Callable[[object], object] | None = None
    """Turns a cell into a quantity."""
    bits: int = 0
    """The width of a counter that wraps, where it is known; 0: 32 or 64, by its readings."""

    @property
    def is_accumulated(self) -> bool:
        """Whether the column counts up, so that only differences have a meaning."""
        return self.kind is not FieldKind.VALUE or self.signal in COUNTED


class Readings:
    """The readings of one field of one GPU, in the order of the file."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        """`values` times this are in the signal's unit."""
        self._times_ns = GrowingColumn(np.int64, _FIRST_ROWS)
        self._values = GrowingColumn(np.int64, _FIRST_ROWS)

    def append(self, times_ns: Int64, values: AnyArray) -> None:
        """Add readings; integers stay exact."""
        kind = _exact_kind(self.values, values)
        if kind != self.values.dtype:
            before, self._values = self.values, GrowingColumn(kind, _FIRST_ROWS)
            self._values.append(before.astype(kind))
        self._times_ns.append(times_ns)
        self._values.append(values)

    @property
    def times_ns(self) -> Int64:
        """When each was taken."""
        return self._times_ns.whole()

    @property
    def values(self) -> AnyArray:
        """The numbers: int64, float64, or objects where neither holds them."""
        return self._values.whole()


def _exact_kind(held: AnyArray, more: AnyArray) -> np.dtype[Any]:
    """The type that holds the numbers of both; integers beyond 2^53 are no floats."""
    if held.dtype == more.dtype or not len(held):
        return more.dtype
    both = (held, more)
    if any(each.dtype == object or np.abs(each).max(initial=0) > _EXACT_FLOATS for each in both):
        return np.dtype(object)
    return np.dtype(np.float64)


class GpuRows(Struct):
    """The rows of a GPU."""

    times_ns: GrowingColumn
    fields: dict[Field, Readings]


class Block(Struct, frozen=True):
    """Some rows of a file, their cells read: a value or a flaw in each."""

    rows: int
    times_ns: Int64 | None
    """None without stamps; -1 for a row without."""
    columns: Sequence[BlockColumn]

    def take(self, rows: Mask) -> Block:
        times_ns = None if self.times_ns is None else self.times_ns[rows]
        return Block(int(rows.sum()), times_ns, [column.take(rows) for column in self.columns])


class BlockColumn(Struct, frozen=True):
    """The readings of a field in some rows."""

    field: Field
    values: AnyArray
    flaws: Int8
    """As in `FLAWS`."""
    factors: Float64 | None
    """The factor of each value; None: 1."""

    def take(self, rows: Mask) -> BlockColumn:
        """The readings in some of the rows."""
        factors = None if self.factors is None else self.factors[rows]
        return BlockColumn(self.field, self.values[rows], self.flaws[rows], factors)


class RowLoss(Enum):
    """A way in which a row is odd; the text follows the number of rows."""

    NO_DATA = "without a GPU or any value: skipped"
    BAD_STAMP = "with an unusable timestamp, or one of another kind than the first: skipped"
    SHORT = "with fewer values than headings: the last columns are missing"
    LONG = "with more values than headings: skipped as ambiguous"
    REPEATED_HEADER = "repeating the headings"
    FOREIGN = "before the headings: skipped"
    UNREADABLE = "with invalid JSON: skipped"
    ODD_GPU = "of a GPU with a number, or after more GPUs, than any run has: skipped"
    BROKEN_ROUND = "of rounds without a row for each GPU: skipped"


_MAX_GPUS: Final = 1 << 17
_MAX_MEMBERS: Final = 1 << 10
"""Of a list in a cell; GPUs have some 8 partitions and links."""
_BLOCK_ROWS: Final = 1 << 14
_FIRST_ROWS: Final = 4
_EXACT_FLOATS: Final = 2**53
_INT64_LIMIT: Final = 2**63
_COUNTER_LIMIT: Final = 2**64
KEPT: Final = frozenset((RowLoss.SHORT, RowLoss.REPEATED_HEADER))
"""Oddities of rows of which everything is used that they hold."""
_UNUSED: Final = (
    RowLoss.NO_DATA,
    RowLoss.LONG,
    RowLoss.FOREIGN,
    RowLoss.UNREADABLE,
    RowLoss.ODD_GPU,
    RowLoss.BROKEN_ROUND,
)


class RowCollector:
    """Collects the rows of a file, and counts losses."""

    def __init__(self, path: Path) -> None:
        self._repeats = Repeats(path)
        self.row_losses: Counter[RowLoss] = Counter()
        self.flaws: Counter[tuple[SignalName, Flaw]] = Counter()
        self.unstamped_rows = 0
        self.nameless: list[Block] = []
        """Rows that don't name their GPU."""
        self._gpus: dict[GpuName, GpuRows] = {}
        self._waiting: list[tuple[GpuName, int]] = []
        self._cells: dict[Field, list[object]] = {}

    @property
    def gpus(self) -> Mapping[GpuName, GpuRows]:
        self._flush()
        return self._gpus

    @property
    def unused_rows(self) -> int:
        """Rows and lines without any usable value, except those with an unusable stamp."""
        return sum(self.row_losses[loss] for loss in _UNUSED)

    def add(self, gpu: GpuName, time_ns: int | None, cells: Iterable[tuple[Field, object]]) -> None:
        """Add a row; without a stamp its time is the number of the GPU's row."""
        row = len(self._waiting)
        self._waiting.append((gpu, -1 if time_ns is None else time_ns))
        for column, cell in cells:
            held = self._cells.get(column)
            if held is None:
                held = self._cells[column] = []
            if len(held) < row:
                held.extend([None] * (row - len(held)))
            held.append(cell)
        if row + 1 == _BLOCK_ROWS:
            self._flush()

    def _flush(self) -> None:
        from chopper_core.tables.column import TableColumn

        rows, cells = self._waiting, self._cells
        if not rows:
            return
        self._waiting, self._cells = [], {}
        codes = Interner()
        which = np.fromiter((codes[gpu] for gpu, _ in rows), np.int64, len(rows))
        times_ns = np.fromiter((time_ns for _, time_ns in rows), np.int64, len(rows))
        columns = (
            (column, TableColumn.of([*held, *[None] * (len(rows) - len(held))]))
            for column, held in cells.items()
        )
        self._place(list(codes), which, block_of(len(rows), times_ns, columns))

    def add_rows(self, gpus: Sequence[GpuName], which: Int32 | Int64, block: Block) -> None:
        self._flush()
        self._place(gpus, which, block)

    def _place(self, gpus: Sequence[GpuName], which: Int32 | Int64, block: Block) -> None:
        first, codes = distinct_codes(which)
        is_odd = np.zeros(len(first), np.bool_)
        for place, row in enumerate(first.tolist()):
            gpu = gpus[which[row]]
            if gpu in self._gpus:
                continue
            is_odd[place] = gpu.index >= _MAX_GPUS or len(self._gpus) >= _MAX_GPUS
            if not is_odd[place]:
                self._gpus[gpu] = GpuRows(GrowingColumn(np.int64, _FIRST_ROWS), {})
        order = stable_order(codes)
        if is_odd.any():
            order = order[~is_odd[codes[order]]]
            self.row_losses[RowLoss.ODD_GPU] += len(codes) - len(order)
        ends = np.flatnonzero(np.diff(codes[order], append=-1)) + 1
        slices = list(zip([0, *ends.tolist()], ends.tolist(), strict=False))
        held = [self._gpus[gpus[which[order[begin]]]] for begin, _ in slices]
        times_ns = np.full(len(order), -1) if block.times_ns is None else block.times_ns[order]
        self._number_unstamped(times_ns, slices, held)
        for rows, (begin, end) in zip(held, slices, strict=True):
            own = times_ns[begin:end]
            self._repeats.add(len(own), len(distinct(own)))
            rows.times_ns.append(own)
        for column in block.columns:
            self._place_column(column, order, times_ns, slices, held)

    def _number_unstamped(
        self, times_ns: Int64, slices: Sequence[tuple[int, int]], held: Sequence[GpuRows]
    ) -> None:
        is_unstamped = times_ns < 0
        count = int(is_unstamped.sum())
        self.unstamped_rows += count
        if count:
            for rows, (begin, end) in zip(held, slices, strict=True):
                numbers = len(rows.times_ns) + np.arange(end - begin)
                np.copyto(times_ns[begin:end], numbers, where=is_unstamped[begin:end])

    def _place_column(
        self,
        column: BlockColumn,
        order: Int64,
        times_ns: Int64,
        slices: Sequence[tuple[int, int]],
        held: Sequence[GpuRows],
    ) -> None:
        signal = column.field.signal
        flaws, values = column.flaws[order], column.values[order]
        factors = None if column.factors is None else column.factors[order]
        counts = np.bincount(flaws, minlength=len(FLAWS)).tolist()
        for flaw, count in zip(FLAWS, counts, strict=True):
            if flaw not in (None, Flaw.MISSING) and count:
                self.flaws[signal, flaw] += count
        is_value = flaws == 0
        if not is_value.any():
            return
        are_all = bool(is_value.all())
        for rows, (begin, end) in zip(held, slices, strict=True):
            chosen = None if are_all else begin + np.flatnonzero(is_value[begin:end])
            if chosen is not None and not len(chosen):
                continue
            own = slice(begin, end) if chosen is None else chosen
            readings = rows.fields.get(column.field)
            if readings is None:
                factor = 1.0 if factors is None else float(factors[own][0])
                readings = rows.fields[column.field] = Readings(factor)
            own_times, own_values = times_ns[own], values[own]
            if factors is not None:
                is_same = factors[own] == readings.factor
                if not is_same.all():
                    self.flaws[signal, Flaw.WRONG_UNIT] += int((~is_same).sum())
                    own_times, own_values = own_times[is_same], own_values[is_same]
            readings.append(own_times, own_values)


def block_of(
    rows: int, times_ns: Int64 | None, columns: Iterable[tuple[Field, TableColumn]]
) -> Block:
    """Read the cells of some rows."""
    members = (member for column, cells in columns for member in _members(column, cells))
    return Block(rows, times_ns, [_read(column, cells) for column, cells in members])


def _read(column: Field, cells: TableColumn) -> BlockColumn:
    if not column.is_accumulated:
        if column.convert:
            cells = cells.mapped(column.convert)
        return BlockColumn(column, *in_units(column.signal, cells, column.unit), None)
    if (counted := _counts(column, cells)) is not None:
        return counted
    found = [_reading(column, cell) for cell in cells.distinct]
    numbers = [0 if isinstance(number, Flaw) else number for number, _ in found]
    whole = all(isinstance(number, int) for number in numbers)
    kind: Any = object
    if max(numbers, default=0) < (_INT64_LIMIT if whole else _EXACT_FLOATS):
        kind = np.int64 if whole else np.float64
    flaws = np.array(
        [FLAWS.index(number) if isinstance(number, Flaw) else 0 for number, _ in found], np.int8
    )
    factors = np.array([factor for _, factor in found], np.float64)
    codes = cells.codes
    return BlockColumn(column, np.array(numbers, kind)[codes], flaws[codes], factors[codes])


def _counts(column: Field, cells: TableColumn) -> BlockColumn | None:
    """The readings of an accumulator whose cells are all plain integers; None for any others."""
    is_value = column.kind is FieldKind.VALUE
    factor = DIMENSIONS[column.signal].factors.get(column.unit) if is_value else 1.0
    known = None if factor is None else cells.decimals()
    if factor is None or known is None or known.digits.any():
        return None
    is_missing = np.isin(known.whole, UNSUPPORTED)
    flaws = np.where(is_missing, FLAWS.index(Flaw.MISSING), 0).astype(np.int8)
    factors = np.full(len(flaws), factor)
    return BlockColumn(column, np.where(is_missing, 0, known.whole), flaws, factors)


def _reading(column: Field, cell: object) -> tuple[int | float | Flaw, float]:
    """Return the raw number of an accumulator, so that wraps stay exact, and its factor."""
    found = quantity(cell)
    if isinstance(found, Flaw):
        return found, 1.0
    number, unit = found
    if not 0 <= number < _COUNTER_LIMIT:
        return Flaw.OUT_OF_RANGE, 1.0
    if column.kind is not FieldKind.VALUE:
        return (Flaw.WRONG_UNIT if unit else number), 1.0
    factor = DIMENSIONS[column.signal].factors.get(unit or column.unit)
    return (Flaw.WRONG_UNIT, 1.0) if factor is None else (number, factor)


def _members(column: Field, cells: TableColumn) -> Iterator[tuple[Field, TableColumn]]:
    if not column.is_list:
        yield column, cells
        return
    lists = [_list_members(cell)[:_MAX_MEMBERS] for cell in cells.distinct]
    for number in range(max(map(len, lists), default=0)):
        members = [each[number] if number < len(each) else "" for each in lists]
        yield _member(column, number), cells.spread(members)


@lru_cache
def _member(column: Field, number: int) -> Field:
    return replace(column, part=f"{column.part}{number}", is_list=False)


def _list_members(cell: str) -> Sequence[str]:
    if not (cell.startswith("[") and cell.endswith("]")):
        return [cell]
    return [member.strip(" '\"") for member in cell[1:-1].replace(",", " ").split()]
