"""Collects the rows of a telemetry file as readings per GPU and signal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from chopper_core.sources.signals import COUNTED, GpuName, SignalName
from chopper_core.sources.telemetry.cells import DIMENSIONS, Flaw, in_unit, quantity


class FieldKind(Enum):
    """How the numbers of a column are counted."""

    VALUE = "value"
    """The signal itself."""
    RESIDENCY = "residency"
    """Accumulated ticks under a limiter, the part."""
    TICKS = "ticks"
    """Accumulated ticks of the clock that residencies are counted in."""


class Field(Struct, frozen=True):
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


class Readings(Struct):
    """The readings of one field of one GPU, in the order of the file."""

    times_ns: list[int] = field(default_factory=list)
    values: list[int | float] = field(default_factory=list)
    factor: float = 1.0
    """`values` times this are in the signal's unit."""


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

    def __init__(self) -> None:
        self.series: dict[GpuName, dict[Field, Readings]] = {}
        self.row_times_ns: dict[GpuName, list[int]] = {}
        self.row_losses: Counter[RowLoss] = Counter()
        self.flaws: Counter[tuple[SignalName, Flaw]] = Counter()
        self.unstamped_rows = 0
        self.nameless: list[tuple[int | None, list[tuple[Field, object]]]] = []
        """Time and cells of rows that don't name their GPU."""

    @property
    def unused_rows(self) -> int:
        """Rows and lines without any usable value, except those with an unusable stamp."""
        return sum(self.row_losses[loss] for loss in _UNUSED)

    def add(self, gpu: GpuName, time_ns: int | None, cells: Iterable[tuple[Field, object]]) -> None:
        """Add a row; without a stamp its time is the number of the GPU's row."""
        if gpu.index >= _MAX_GPUS or (len(self.series) >= _MAX_GPUS and gpu not in self.series):
            self.row_losses[RowLoss.ODD_GPU] += 1
            return
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
    """Return the raw number of an accumulator, so that wraps stay exact, and its factor."""
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
