"""Collects the rows of a telemetry file as readings per GPU and signal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.sources.signals import COUNTED, GpuName, SignalName
from chopper_core.sources.telemetry.cells import (
    DIMENSIONS,
    FLAWS,
    Flaw,
    Stamps,
    quantities,
)
from chopper_core.sources.telemetry.rounds import BROKEN, places_in_rounds
from chopper_core.tables.columns import GrowingColumns, Interner
from chopper_core.tables.losses import Repeats
from chopper_core.util.arrays import AnyArray, Codes, Float64, Index, Int8, Int32, Int64, Mask
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import (
    distinct,
    distinct_codes,
    nth_of,
    run_starts,
    stable_order,
)

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


class Readings(Struct, frozen=True):
    """The readings of one field of one GPU, in the order of the file."""

    times_ns: Int64
    values: AnyArray
    """The numbers: int64, float64, or objects where neither holds them."""
    factor: float
    """`values` times this are in the signal's unit."""


class _FieldCells(Struct):
    """The readings of one field in blocks: the number of the row, the value, its factor."""

    rows: list[Int32] = []
    values: list[AnyArray] = []
    factors: list[Float64] = []
    """Empty where all are 1."""


def _joined(blocks: Sequence[AnyArray]) -> AnyArray:
    """The numbers of all blocks; objects where integers beyond 2^53 meet floats."""
    if len({block.dtype for block in blocks}) > 1 and any(
        block.dtype == object or np.abs(block).max(initial=0) > _EXACT_FLOATS for block in blocks
    ):
        return np.concatenate([block.astype(object) for block in blocks])
    return np.concatenate(blocks)


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


KEPT: Final = frozenset((RowLoss.SHORT, RowLoss.REPEATED_HEADER))
"""Oddities of rows of which everything is used that they hold."""
_MAX_GPUS: Final = 1 << 17
_MAX_MEMBERS: Final = 1 << 10
"""Of a list in a cell; GPUs have some 8 partitions and links."""
_BLOCK_ROWS: Final = 1 << 14
_EXACT_FLOATS: Final = 2**53
_COUNTER_LIMIT: Final = 2**64
_NAMELESS: Final = -1
_ODD: Final = -2
"""In place of the number of a GPU."""

_ROUNDS: Final = "Rows don't name their GPU; they come in rounds of {}, one row per GPU in order."
_ONE_GPU: Final = "Rows don't name their GPU; their times are those of one."
_NO_ROUNDS: Final = (
    "doesn't name the GPU of its rows, and their times don't show rounds of one row per GPU; log "
    "the GPU too (nvidia-smi --query-gpu=timestamp,index,power.draw)"
)


class RowCollector:
    """Collects the rows of a file, and counts losses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.row_losses: Counter[RowLoss] = Counter()
        self.flaws: Counter[tuple[SignalName, Flaw]] = Counter()
        self.gpus: dict[GpuName, int] = Interner()
        self.unstamped_rows = 0
        self._repeats = Repeats(path)
        self._rows = GrowingColumns({"gpu": np.int32, "time_ns": np.int64})
        self._cells: dict[Field, _FieldCells] = {}
        self._waiting: list[tuple[GpuName, int, dict[Field, object]]] = []
        self._hosts: dict[str, None] = {}

    @property
    def unused_rows(self) -> int:
        """Rows and lines without any usable value, except those with an unusable stamp."""
        losses = self.row_losses.items()
        return sum(count for loss, count in losses if loss not in (*KEPT, RowLoss.BAD_STAMP))

    def saw_host(self, name: str) -> None:
        """Raise DataError for a second host: the numbers of GPUs hold on one alone."""
        self._hosts[name] = None
        if len(self._hosts) > 1:
            raise DataError(
                f"The file has GPUs of several hosts ({', '.join(self._hosts)}), whose numbers "
                "repeat; write a file for each."
            )

    def add(self, gpu: GpuName, time_ns: int | None, cells: Iterable[tuple[Field, object]]) -> None:
        """Add a row; without a stamp its time is the number of the GPU's row."""
        self._waiting.append((gpu, -1 if time_ns is None else time_ns, dict(cells)))
        if len(self._waiting) == _BLOCK_ROWS:
            self._flush()

    def add_object(
        self,
        gpu: GpuName | None,
        stamps: Stamps,
        stamp: object,
        cells: Sequence[tuple[Field, object]],
    ) -> bool:
        """Add a row of JSON, None without a stamp; False, and counted, where it is unusable."""
        if gpu is None or not cells:
            self.row_losses[RowLoss.NO_DATA] += 1
            return False
        time_ns = None if stamp is None else stamps.read(stamp)
        if time_ns is None and (stamp is not None or stamps.clock is not None):
            self.row_losses[RowLoss.BAD_STAMP] += 1
            return False
        self.add(gpu, time_ns, cells)
        return True

    def _flush(self) -> None:
        from chopper_core.tables.column import TableColumn

        rows, self._waiting = self._waiting, []
        codes = Interner()
        which = np.array([codes[gpu] for gpu, _, _ in rows], np.int64)
        times_ns = np.array([time_ns for _, time_ns, _ in rows], np.int64)
        fields = dict.fromkeys(field for _, _, cells in rows for field in cells)
        columns = (
            (field, TableColumn.of([cells.get(field) for _, _, cells in rows])) for field in fields
        )
        self.add_rows(list(codes), which, times_ns, columns)

    def add_rows(
        self,
        gpus: Sequence[GpuName | None],
        which: Codes,
        times_ns: Int64 | None,
        columns: Iterable[tuple[Field, TableColumn]],
    ) -> None:
        """Add rows of these GPUs, None where rows don't name theirs; times of -1 are missing."""
        first, place = distinct_codes(which)
        gpu = np.array([self._code(gpus[each]) for each in which[first].tolist()], np.int64)[place]
        times_ns = np.full(len(gpu), -1) if times_ns is None else times_ns
        is_used = gpu != _ODD
        self.row_losses[RowLoss.ODD_GPU] += int((~is_used).sum())
        stamped_ns = times_ns[is_used & (times_ns >= 0)]
        self._repeats.add(len(stamped_ns), max(len(distinct(stamped_ns)) * len(first), 1))
        number = (len(self._rows) + np.cumsum(is_used) - 1).astype(np.int32)
        self._rows.add({"gpu": gpu[is_used], "time_ns": times_ns[is_used]})
        for column, cells in columns:
            for field, own in _members(column, cells):
                self._add_cells(field, own, number, is_used)

    def _code(self, gpu: GpuName | None) -> int:
        if gpu is None or gpu in self.gpus:
            return _NAMELESS if gpu is None else self.gpus[gpu]
        return _ODD if gpu.index >= _MAX_GPUS or len(self.gpus) >= _MAX_GPUS else self.gpus[gpu]

    def _add_cells(self, field: Field, cells: TableColumn, number: Int32, is_used: Mask) -> None:
        values, flaws, factors = _read(field, cells)
        counts = np.bincount(flaws[is_used], minlength=len(FLAWS)).tolist()
        for flaw, count in zip(FLAWS, counts, strict=True):
            if flaw not in (None, Flaw.MISSING) and count:
                self.flaws[field.signal, flaw] += count
        known = is_used & (flaws == 0)
        if known.any():
            held = self._cells.setdefault(field, _FieldCells())
            held.rows.append(number[known])
            held.values.append(values[known])
            if factors is not None:
                held.factors.append(factors[known])

    def finish(self) -> tuple[dict[GpuName, dict[Field, Readings]], list[str]]:
        """The readings of each GPU, and sentences on what is odd about rows but costs nothing.

        Raises DataError if rows name no GPU and don't show rounds.
        """
        if self._waiting:
            self._flush()
        rows = self._rows.joined()
        gpu, times_ns = rows["gpu"], rows["time_ns"]
        notes = self._name_by_rounds(gpu, times_ns)
        is_unstamped = (times_ns < 0) & (gpu >= 0)
        self.unstamped_rows = int(is_unstamped.sum())
        if self.unstamped_rows:
            times_ns[is_unstamped] = nth_of(gpu)[is_unstamped]
        found: dict[GpuName, dict[Field, Readings]] = {name: {} for name in self.gpus}
        names, by_gpu = list(self.gpus), stable_order(gpu)
        for field in list(self._cells):
            cells = self._cells.pop(field)
            at, values = np.concatenate(cells.rows), _joined(cells.values)
            factors = np.concatenate(cells.factors) if cells.factors else None
            owner = gpu[at]
            order = by_gpu if len(at) == len(gpu) else stable_order(owner)
            for own in np.split(order, run_starts(owner[order])[1:]):
                if owner[own[0]] < 0:
                    continue
                factor = 1.0
                if factors is not None:
                    factor = float(factors[own[0]])
                    is_same = factors[own] == factor
                    if not is_same.all():
                        self.flaws[field.signal, Flaw.WRONG_UNIT] += int((~is_same).sum())
                        own = own[is_same]
                readings = Readings(times_ns[at[own]], values[own], factor)
                found[names[owner[own[0]]]][field] = readings
        return found, notes + self._oddities(gpu, times_ns, by_gpu)

    def _oddities(self, gpu: Int32, times_ns: Int64, order: Index) -> list[str]:
        sentences = self.counted(kept=True)
        owner, own_ns = gpu[order], times_ns[order]
        is_same = (owner[1:] == owner[:-1]) & (owner[1:] >= 0)
        unsorted = int((is_same & (own_ns[1:] < own_ns[:-1])).sum())
        if unsorted:
            sentences.append(f"{number_of(unsorted, 'row')} out of order: sorted.")
            own_ns = own_ns[np.lexsort((own_ns, owner))]
        if tied := int((is_same & (own_ns[1:] == own_ns[:-1])).sum()):
            sentences.append(
                f"{number_of(tied, 'row')} with the timestamp of another row of that GPU: "
                "averaged, of accumulated signals the last one counts."
            )
        return sentences

    def counted(self, *, kept: bool) -> list[str]:
        return [
            f"{number_of(count, 'row')} {loss.value}."
            for loss, count in self.row_losses.items()
            if count and (loss in KEPT) is kept
        ]

    def _name_by_rounds(self, gpu: Int32, times_ns: Int64) -> list[str]:
        """Set the GPU of the rows without one by their place in rounds; say so in a note."""
        nameless = np.flatnonzero(gpu == _NAMELESS)
        if not len(nameless):
            return []
        places = np.zeros(1, np.int64) if len(nameless) == 1 else None
        if places is None and (times_ns[nameless] >= 0).all():
            places = places_in_rounds(times_ns[nameless])
        if places is None:
            raise DataError(f"{self.path} {_NO_ROUNDS}.")
        size = int(places.max()) + 1
        gpus = [GpuName(index=place) for place in range(size)] if size > 1 else [GpuName()]
        codes = np.array([*(self.gpus[each] for each in gpus), _ODD])
        gpu[nameless] = codes[places]
        self.row_losses[RowLoss.BROKEN_ROUND] += int((places == BROKEN).sum())
        return [_ROUNDS.format(size) if size > 1 else _ONE_GPU]


def number_of(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _read(column: Field, cells: TableColumn) -> tuple[AnyArray, Int8, Float64 | None]:
    """The numbers of some cells, why others have none, as in `FLAWS`, and the factors if not 1.

    Accumulators keep their raw numbers, so that wraps stay exact.
    """
    if column.convert:
        cells = cells.mapped(column.convert)
    dimension = DIMENSIONS[column.signal]
    factors = dimension.factors if column.kind is FieldKind.VALUE else {"": 1.0}
    numbers, factor, flaws = quantities(cells, factors, column.unit)
    with np.errstate(over="ignore"):
        values = (numbers * factor).astype(np.float64)
    is_inside = (dimension.lowest <= values) & (values <= dimension.highest)
    if column.is_accumulated:
        is_inside = (numbers >= 0) & (numbers < _COUNTER_LIMIT)
    flaws[(flaws == 0) & ~is_inside] = FLAWS.index(Flaw.OUT_OF_RANGE)
    return (numbers, flaws, factor) if column.is_accumulated else (values, flaws, None)


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
