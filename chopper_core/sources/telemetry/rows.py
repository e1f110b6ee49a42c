"""Rows of a telemetry file, one after the other, into series per GPU and signal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from chopper_core.sources.signals import RATES, GpuName, SignalName
from chopper_core.sources.telemetry.cells import DIMENSIONS, Flaw, in_unit, quantity


class FieldKind(Enum):
    """What the numbers of a column are."""

    VALUE = "value"
    """The signal itself."""
    RESIDENCY = "residency"
    """Accumulated ticks under a limiter, the part."""
    TICKS = "ticks"
    """Accumulated ticks of the clock that residencies are counted in."""


class Field(Struct, frozen=True):
    """What a column holds."""

    signal: SignalName
    unit: str
    """Unit of values that have none written beside them."""
    part: str = ""
    kind: FieldKind = FieldKind.VALUE
    is_list: bool = False
    """One value per part in each cell; their numbers follow `part`."""
    alternative: int = 0
    """Rank among the columns that hold the same: the lowest one with values counts."""
    convert: Callable[[object], object] | None = None
    """Makes a quantity of a cell that isn't one as it stands."""

    @property
    def is_accumulated(self) -> bool:
        """Whether differences are what counts."""
        return self.kind is not FieldKind.VALUE or self.signal in RATES


class Readings(Struct):
    """The readings of one field of one GPU, in the order of the file."""

    times_ns: list[int] = field(default_factory=list)
    values: list[int | float] = field(default_factory=list)
    factor: float = 1.0
    """What one of `values` is worth in the signal's unit."""


class RowLoss(Enum):
    """Why a row, or a part of it, isn't used; the text follows the number of rows."""

    NO_DATA = "without a GPU or without any value: left out"
    BAD_STAMP = "without a usable timestamp, or with one of another kind than the first: left out"
    SHORT = "with fewer values than headings: the last headings got none"
    LONG = "with more values than headings: left out, since it is open which belongs where"
    REPEATED_HEADER = "with the headings again"
    FOREIGN = "before the headings: left out"
    UNREADABLE = "with invalid JSON: left out"


_UNUSED: Final = (RowLoss.NO_DATA, RowLoss.LONG, RowLoss.FOREIGN, RowLoss.UNREADABLE)


class RowCollector:
    """Takes the rows of a file and keeps count of what could not be used."""

    def __init__(self) -> None:
        self.series: dict[GpuName, dict[Field, Readings]] = {}
        self.row_times_ns: dict[GpuName, list[int]] = {}
        self.row_losses: Counter[RowLoss] = Counter()
        self.flaws: Counter[tuple[SignalName, Flaw]] = Counter()
        self.unstamped_rows = 0

    @property
    def unused_rows(self) -> int:
        """Rows and lines that gave nothing, but for those with an unusable stamp."""
        return sum(self.row_losses[loss] for loss in _UNUSED)

    def add(self, gpu: GpuName, time_ns: int | None, cells: Iterable[tuple[Field, object]]) -> None:
        """Take one row; without a stamp, the number of the GPU's row stands for its time."""
        fields = self.series.setdefault(gpu, {})
        times_ns = self.row_times_ns.setdefault(gpu, [])
        if time_ns is None:
            time_ns = len(times_ns)
            self.unstamped_rows += 1
        times_ns.append(time_ns)
        for column, cell in cells:
            if not column.is_list:
                self._add_cell(fields, time_ns, column, cell)
                continue
            for number, member in enumerate(_list_members(cell)):
                self._add_cell(fields, time_ns, _member(column, number), member)

    def _add_cell(
        self, fields: dict[Field, Readings], time_ns: int, column: Field, cell: object
    ) -> None:
        factor = 1.0
        value: int | float | Flaw
        if column.is_accumulated:
            value, factor = _reading(column, cell)
        else:
            quantity_cell = column.convert(cell) if column.convert else cell
            value = in_unit(column.signal, quantity_cell, column.unit)
        if isinstance(value, Flaw):
            if value is not Flaw.MISSING:
                self.flaws[column.signal, value] += 1
            return
        readings = fields.get(column)
        if readings is None:
            readings = fields[column] = Readings(factor=factor)
        if readings.factor != factor:
            self.flaws[column.signal, Flaw.WRONG_UNIT] += 1
            return
        readings.times_ns.append(time_ns)
        readings.values.append(value)


def _reading(column: Field, cell: object) -> tuple[int | float | Flaw, float]:
    """Return the plain number of an accumulator, so that its wraps stay exact, and its factor."""
    found = quantity(cell)
    if isinstance(found, Flaw):
        return found, 1.0
    number, unit = found
    if number < 0:
        return Flaw.OUT_OF_RANGE, 1.0
    if column.kind is not FieldKind.VALUE:
        return (Flaw.WRONG_UNIT if unit else number), 1.0
    factor = DIMENSIONS[column.signal].factors.get(unit or column.unit)
    return (Flaw.WRONG_UNIT, 1.0) if factor is None else (number, factor)


@lru_cache
def _member(column: Field, number: int) -> Field:
    return replace(column, part=f"{column.part}{number}", is_list=False)


def _list_members(cell: object) -> Iterable[object]:
    if isinstance(cell, str):
        text = cell.strip()
        if not (text.startswith("[") and text.endswith("]")):
            return [cell]
        return [member.strip(" '\"") for member in text[1:-1].replace(",", " ").split()]
    if isinstance(cell, Mapping) or cell is None or not isinstance(cell, Iterable):
        return [cell]
    return cell
