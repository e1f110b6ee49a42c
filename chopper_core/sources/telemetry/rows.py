"""Collects the rows of a telemetry file as readings per GPU and signal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.sources.signals import COUNTED, ClockDomain, GpuName, SignalName
from chopper_core.sources.telemetry.cells import DIMENSIONS, Flaw, Stamps, quantities
from chopper_core.tables.columns import GrowingColumns, Interner
from chopper_core.tables.losses import Losses, Repeats, number_of
from chopper_core.util.arrays import AnyArray, Codes, Float64, Int8, Int32, Int64, Mask
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import (
    counted,
    distinct,
    distinct_codes,
    first_equal,
    median_of,
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
    SECONDS = "seconds"
    """Accumulated time under a limiter, the part."""


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
    of_file: Callable[[Float64], Float64 | None] | None = None
    """Turns all values of a file into the signal's unit where only they tell theirs, or doesn't."""
    bits: int = 0
    """The width of a counter that wraps, where it is known; 0: 32 or 64, by its readings."""
    note: str = ""
    """A sentence for people on files with the column."""
    heading: str = ""
    """Of the column, where the file has several of the same meaning."""

    @property
    def is_accumulated(self) -> bool:
        """Whether the column counts up, so that only differences have a meaning."""
        return self.kind is not FieldKind.VALUE or self.signal in COUNTED


class Readings(Struct, frozen=True):
    """The readings of one field of one GPU, in the order of the file."""

    times_ns: Int64
    values: AnyArray
    """The numbers: int64, or float64."""
    factor: float
    """`values` times this are in the signal's unit."""


class RowLoss(Enum):
    """A way in which a row is odd; the text follows the number of rows."""

    NO_DATA = "without a GPU or any value: skipped"
    BAD_STAMP = "with an unusable timestamp, or one of another kind than the first: skipped"
    SHORT = "with fewer values than headings: the last columns are missing"
    LONG = "with more values than headings: skipped as ambiguous"
    REPEATED_HEADER = "repeating the headings"
    FOREIGN = "before the headings: skipped"
    OTHER_TABLE = "of another table, such as that of processes: skipped"
    UNREADABLE = "with invalid JSON: skipped"
    ODD_GPU = "of a GPU with a number, or after more GPUs, than any run has: skipped"
    BROKEN_ROUND = "of rounds without a row for each GPU: skipped"


_SECONDS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_KEPT: Final = (RowLoss.SHORT, RowLoss.REPEATED_HEADER)
"""Oddities of rows of which everything is used that they hold."""
FLAW_TEXTS: Final = {
    Flaw.NOT_A_NUMBER: "that can't be parsed",
    Flaw.WRONG_UNIT: "in a wrong unit",
    Flaw.OUT_OF_RANGE: "out of range",
}
_MAX_GPUS: Final = 1 << 17
_MAX_MEMBERS: Final = 1 << 10
"""Of a list in a cell; GPUs have some 8 partitions and links."""
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

    def __init__(self, path: Path, losses: Losses, stamps: Stamps | None = None) -> None:
        self.path = path
        self.losses = losses
        self.stamps = stamps or Stamps()
        self.row_losses: Counter[RowLoss] = Counter()
        self.flaws: Counter[tuple[SignalName, Flaw]] = Counter()
        self.gpus: dict[GpuName, int] = Interner()
        self.notes: dict[str, None] = {}
        """Those of the columns."""
        self.unused: Counter[str] = Counter()
        """The number of values below each heading that no signal is read from."""
        self.unstamped_rows = 0
        self._repeats = Repeats(path)
        self._rows = GrowingColumns({"gpu": np.int32, "time_ns": np.int64})
        self._cells: dict[Field, list[tuple[Int32, AnyArray]]] = {}
        """Blocks of readings: the number of the row, and the value."""
        self._factors: dict[Field, float] = {}
        """What the values of an accumulated field count in: the unit of its first one."""
        self._hosts: dict[str, None] = {}

    def saw_host(self, name: str) -> None:
        """Raise DataError for a second host: the numbers of GPUs hold on one alone."""
        self._hosts[name] = None
        if len(self._hosts) > 1:
            raise DataError(
                f"The file has GPUs of several hosts ({', '.join(self._hosts)}), whose numbers "
                "repeat; write a file for each."
            )

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
            if column.note:
                self.notes[column.note] = None
            if not cells.is_filled.any():
                continue
            for field, own in _members(column, cells):
                values, flaws, factors = _read(field, own)
                usable = np.flatnonzero(flaws == Flaw.NONE)
                if field.is_accumulated and len(usable):
                    factor = self._factors.setdefault(field, float(factors[usable[0]]))
                    flaws[usable[factors[usable] != factor]] = Flaw.WRONG_UNIT
                for flaw, count in enumerate(np.bincount(flaws[is_used]).tolist()):
                    if flaw > Flaw.MISSING and count:
                        self.flaws[field.signal, Flaw(flaw)] += count
                known = is_used & (flaws == Flaw.NONE)
                if known.any():
                    self._cells.setdefault(field, []).append((number[known], values[known]))

    def _code(self, gpu: GpuName | None) -> int:
        if gpu is None or gpu in self.gpus:
            return _NAMELESS if gpu is None else self.gpus[gpu]
        return _ODD if gpu.index >= _MAX_GPUS or len(self.gpus) >= _MAX_GPUS else self.gpus[gpu]

    def finish(self) -> tuple[dict[GpuName, dict[Field, Readings]], list[str]]:
        """The readings of each GPU, and sentences on what is odd about rows but costs nothing.

        Raises DataError if rows name no GPU and don't show rounds.
        """
        rows = self._rows.joined()
        gpu, times_ns = rows["gpu"], rows["time_ns"]
        notes = self._name_by_rounds(gpu, times_ns)
        if self.stamps.clock is ClockDomain.LOCAL:
            changes = rows_on_one_clock(times_ns)
            notes += changes
            self.losses.jumps += [each.partition(":")[0].lower() for each in changes]
        self.losses.jumps += _set_back(gpu, times_ns)
        is_unstamped = (times_ns < 0) & (gpu >= 0)
        self.unstamped_rows = int(is_unstamped.sum())
        if self.unstamped_rows:
            times_ns[is_unstamped] = nth_of(gpu)[is_unstamped]
        found: dict[GpuName, dict[Field, Readings]] = {name: {} for name in self.gpus}
        names, by_gpu = list(self.gpus), stable_order(gpu)
        for field in list(self._cells):
            at, values = map(np.concatenate, zip(*self._cells.pop(field), strict=True))
            if field.of_file:
                settled = field.of_file(values)
                if settled is None:
                    self.flaws[field.signal, Flaw.WRONG_UNIT] += len(values)
                    continue
                values = settled
            factor = self._factors.get(field, 1.0)
            owner = gpu[at]
            order = by_gpu if len(at) == len(gpu) else stable_order(owner)
            for own in np.split(order, run_starts(owner[order])[1:]):
                if (gpu_of := owner[own[0]]) >= 0:
                    readings = Readings(times_ns[at[own]], values[own], factor)
                    found[names[gpu_of]][field] = readings
        sentences = [*notes, *self.counted(*_KEPT)]
        owner, own_ns = gpu[by_gpu], times_ns[by_gpu]
        is_same = (owner[1:] == owner[:-1]) & (owner[1:] >= 0)
        if unsorted := int((is_same & (own_ns[1:] < own_ns[:-1])).sum()):
            sentences.append(f"{number_of(unsorted, 'row')} out of order: sorted.")
            own_ns = own_ns[np.lexsort((own_ns, owner))]
        if tied := int((is_same & (own_ns[1:] == own_ns[:-1])).sum()):
            sentences.append(
                f"{number_of(tied, 'row')} with the timestamp of another row of that GPU: "
                "averaged, of accumulated signals the last one counts."
            )
        return found, sentences

    def count_losses(self) -> None:
        """Add the rows that are lost, and the values, to the losses of the file."""
        lost = [loss for loss in RowLoss if loss not in _KEPT]
        stamps = self.row_losses[RowLoss.BAD_STAMP]
        self.losses.bad_times += stamps
        self.losses.unreadable_events += sum(self.row_losses[loss] for loss in lost) - stamps
        self.losses.notes += self.counted(*lost)
        for (signal, flaw), count in self.flaws.items():
            self.losses.note(count, "value", f"of {signal} {FLAW_TEXTS[flaw]}: skipped")

    def counted(self, *losses: RowLoss) -> list[str]:
        return [
            f"{number_of(count, 'row')} {loss.value}."
            for loss, count in self.row_losses.items()
            if count and loss in losses
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
        self.row_losses[RowLoss.BROKEN_ROUND] += int((places == _BROKEN).sum())
        return [_ROUNDS.format(size) if size > 1 else _ONE_GPU]


def _read(column: Field, cells: TableColumn) -> tuple[AnyArray, Int8, Float64]:
    """The numbers of some cells, why others have none, as in `Flaw`, and their factors.

    Accumulators keep their raw numbers, so that wraps stay exact; others are in the signal's unit.
    """
    if column.convert:
        cells = cells.mapped(column.convert)
    numbers, factor, flaws = quantities(cells, factors_of(column), column.unit)
    with np.errstate(over="ignore"):
        values = (numbers * factor).astype(np.float64)
    is_inside = is_in_range(column, numbers, values)
    flaws[(flaws == Flaw.NONE) & ~is_inside] = Flaw.OUT_OF_RANGE
    return (numbers if column.is_accumulated else values), flaws, factor


def factors_of(column: Field) -> Mapping[str, float]:
    """What turns the units of a column into the signal's unit, or into seconds."""
    own = {FieldKind.VALUE: DIMENSIONS[column.signal].factors, FieldKind.SECONDS: _SECONDS}
    return own.get(column.kind, {"": 1.0})


def is_in_range(column: Field, numbers: AnyArray, values: Float64) -> Mask:
    """Whether a column can have these: counters as they are written, values in their unit."""
    if column.is_accumulated:
        return np.asarray((numbers >= 0) & (numbers < _COUNTER_LIMIT))
    dimension = DIMENSIONS[column.signal]
    return np.asarray((dimension.lowest <= values) & (values <= dimension.highest))


def _members(column: Field, cells: TableColumn) -> Iterator[tuple[Field, TableColumn]]:
    if not column.is_list:
        yield column, cells
        return
    lists = [_list_members(cell)[:_MAX_MEMBERS] for cell in cells.distinct]
    for number in range(max(map(len, lists), default=0)):
        members = [each[number] if number < len(each) else "" for each in lists]
        field = replace(column, part=f"{column.part}{number}", is_list=False)
        yield field, cells.spread(members)


def _list_members(cell: str) -> Sequence[str]:
    if not (cell.startswith("[") and cell.endswith("]")):
        return [cell]
    return [member.strip(" '\"") for member in cell[1:-1].replace(",", " ").split()]


_HOUR_NS: Final = 3600 * 10**9
_MOST_LATE_NS: Final = 60 * 10**9
"""From the last local time before an hour repeats, or is left out, to the first one after it."""


def rows_on_one_clock(times_ns: Int64) -> list[str]:
    """Move the rows after a change from or to summer time; a sentence on each such change."""
    stamped = np.flatnonzero(times_ns >= 0)
    steps = np.diff(times_ns[stamped])
    back = np.flatnonzero(steps < -_HOUR_NS // 2)
    if len(back) == 1 and 0 <= steps[back[0]] + _HOUR_NS <= _MOST_LATE_NS:
        later = stamped[back[0] + 1 :]
        times_ns[later] += _HOUR_NS
        return [
            f"Local time goes back by an hour (the end of summer time): "
            f"{number_of(len(later), 'row')} after that are an hour later than their stamps."
        ]
    ahead = np.flatnonzero((steps >= _HOUR_NS) & (steps <= _HOUR_NS + _MOST_LATE_NS))
    if len(back) or len(ahead) != 1:
        return []
    # The hour that is left out is a whole one of the clock, up to the time between two rounds.
    place = int(ahead[0])
    last, first = times_ns[stamped[place : place + 2]].tolist()
    period = max(int(median_of(steps[steps > 0])), int(steps[ahead[0]]) - _HOUR_NS)
    until_hour, since_hour = -last % _HOUR_NS, first % _HOUR_NS
    if until_hour > 2 * period or since_hour > 2 * period:
        return []
    later = stamped[place + 1 :]
    times_ns[later] -= _HOUR_NS
    return [
        f"Local time leaves out an hour (summer time begins): "
        f"{number_of(len(later), 'row')} after that are an hour earlier than their stamps."
    ]


_LONG_BACK_NS: Final = 10**9
_BACK_PERIODS: Final = 3


def _set_back(gpu: Int32, times_ns: Int64) -> list[str]:
    """A sentence on stamps of a GPU that go back in the order of a file, where its clock was set:
    once or twice; rows that are in no order don't show that."""
    own = np.flatnonzero((times_ns >= 0) & (gpu >= 0))
    own = own[stable_order(gpu[own])]
    steps = np.diff(times_ns[own])[gpu[own][1:] == gpu[own][:-1]]
    forth = steps[steps > 0]
    if not len(forth):
        return []
    least = max(_LONG_BACK_NS, _BACK_PERIODS * int(median_of(forth)))
    back = steps[steps < -least]
    most = 2 * len(distinct(gpu[own]))
    if not 0 < len(back) <= most or np.count_nonzero(steps < 0) > len(back):
        return []
    by = -int(back[0]) / 1e9
    return [f"stamps go back by {by:,.4g} s: what was sampled around then isn't in order"]


_CLEAR_STEP: Final = 2.0
"""Between rounds is at least this many times the usual time between the rows of a round."""
_PAUSE_SHARE: Final = 0.75
"""A gap of this part of the usual one between rounds ends a round, or is a slow query."""
_MAX_GPUS_OF_NODE: Final = 64
_WHOLE_ROUNDS: Final = 0.8
"""Rounds are certain if they take up this part of the rows."""
_FEWEST_ROUNDS: Final = 3
_BROKEN: Final = -1


def places_in_rounds(times_ns: Int64) -> Int64 | None:
    """Return the place of each row in its round, _BROKEN in rounds with missing rows.

    A round may pause, as a tool does when a query is slow: its parts then add up to a whole one.
    None if the times don't show rounds, or too few.
    """
    gaps = np.diff(times_ns)
    if len(gaps) < _FEWEST_ROUNDS - 1 or gaps.min() < 0:
        return None
    found: Int64 | None = None
    most = _WHOLE_ROUNDS * len(times_ns)
    for pause_ns in _pauses(gaps):
        runs = np.diff(np.flatnonzero(gaps >= pause_ns), prepend=-1, append=len(gaps))
        sizes, counts = counted(runs)
        # Of sizes as common as each other the first one counts.
        chosen = np.lexsort((first_equal(runs, sizes), -counts))[0]
        size, count = int(sizes[chosen]), int(counts[chosen])
        if size == 1 or count < _FEWEST_ROUNDS:
            continue
        places = _places(runs.tolist(), size)
        whole = len(places) - int((places == _BROKEN).sum())
        if size * count >= _WHOLE_ROUNDS * len(times_ns) and whole >= most:
            found, most = places, whole
    if found is None and _is_regular(gaps):
        return np.zeros(len(times_ns), np.int64)
    return found


def _pauses(gaps: Int64) -> list[int]:
    """Return where the gap between rounds may begin, for rounds of 2 rows and more.

    Of rounds of n rows every n-th gap is a long one. A few queries within a round may take as long.
    """
    longest = np.sort(gaps)[::-1]
    rows = len(gaps) + 1
    found = []
    for size in range(2, min(rows // _FEWEST_ROUNDS, _MAX_GPUS_OF_NODE) + 1):
        rounds = rows // size
        pause_ns = int(longest[(rounds - 1) // 2] * _PAUSE_SHARE)
        within = longest[rounds:]
        if pause_ns >= _CLEAR_STEP * max(int(within[len(within) // 2]), 1):
            found.append(pause_ns)
    return sorted(set(found))


def _places(runs: Sequence[int], size: int) -> Int64:
    places: list[int] = []
    parts = 0
    for run in runs:
        parts += run
        if parts < size:
            continue
        broken = 0 if parts == size else parts - run if run == size else parts
        places += [_BROKEN] * broken
        if parts > broken:
            places += range(size)
        parts = 0
    return np.array(places + [_BROKEN] * parts, np.int64)


def _is_regular(gaps: Int64) -> bool:
    """Return whether rows follow each other like the samples of one GPU."""
    middle = int(np.sort(gaps)[len(gaps) // 2])
    near = int((middle <= _CLEAR_STEP * gaps).sum())
    return middle > 0 and near >= _WHOLE_ROUNDS * len(gaps)
