"""The table that all readers of trainers' logs return: a row per line about a step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import nan
from pathlib import Path
from time import gmtime
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.training import FIGURES
from chopper_core.sources.ranks import rank_in_name
from chopper_core.sources.signals import ClockDomain
from chopper_core.sources.telemetry.cells import LATEST_NS, Stamps
from chopper_core.sources.telemetry.rows import rows_on_one_clock
from chopper_core.sources.trainer.out_of_memory import MOST_FAILED, AllocationMessage, FailedLine
from chopper_core.tables.columns import MAX_RANKS, GrowingColumn, cut_name
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.util.arrays import Float64, Int32, Int64
from chopper_core.util.compression import COMPRESSED_ENDINGS
from chopper_core.util.errors import DataError
from chopper_core.util.patterns import late

LOG_SUFFIXES: Final = (
    ".log", ".txt", ".out", ".err", "stdout", "stderr", *COMPRESSED_ENDINGS
)  # fmt: skip
"""Common endings of a job's output."""
MAX_STEP: Final = 1 << 40
_MOST_WAITING: Final = 1 << 13
_MOST_COUNTS: Final = 1 << 22
_MOST_PHASES: Final = 256
"""Parts of a step that a trainer times, at most."""
NO_YEAR: Final = "Its stamps lack the year: that in which the file was written last is used."
_LOCAL_FOLDER: Final = late(r"\d{1,6}")
_STREAMS: Final = ("stdout", "stderr", "stdout.log", "stderr.log")
"""The files of a process below a folder named by its rank, as torchrun writes them."""
_PREFIX_RANK: Final = late(
    r"^\s*(\d{1,7}):\s"
    r"|(?:^|[\[({\s,=])(?:global[ _]?|local[ _]?)?(?:rank|default)[ _:=-]?(\d{1,7})(?!\d)",
    re.IGNORECASE,
)
"""In what a launcher or logger puts before a line: srun's `3: `, `[rank3]:`, `[rank-3/8]`,
`[default3]:`, `[RANK 3]`."""
_FRACTION_AND_ZONE: Final = r"(?:[.,](\d{1,9}))?(?:\s?(Z|[-+]\d\d:?\d\d)(?!\d))?"
_DATE: Final = late(r"(\d{4}[-/]?\d\d[-/]?\d\d[T ] ?\d\d:\d\d:\d\d)" + _FRACTION_AND_ZONE, re.ASCII)
_WITHOUT_YEAR: Final = late(
    r"(?<![\d/])(\d\d/\d\d \d\d:\d\d:\d\d|(?<=[IWEF])\d{4} \d\d:\d\d:\d\d)" + _FRACTION_AND_ZONE,
    re.ASCII,
)
"""mmengine's 03/05 08:40:00 and absl's I0305 08:40:00."""
_NUMBER: Final = late(
    r"\s*(?:np\.\w+\()?([-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?|[-+]?nan|[-+]?inf)"
    r"\s*([A-Za-z%]*)",
    re.IGNORECASE,
)
_THOUSANDS: Final = late(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_BYTES: Final = {
    "b": 1.0,
    **dict.fromkeys(("kb", "kib", "k"), 2.0**10),
    **dict.fromkeys(("mb", "mib", "m"), 2.0**20),
    **dict.fromkeys(("gb", "gib", "g"), 2.0**30),
    **dict.fromkeys(("tb", "tib", "t"), 2.0**40),
}


class StepField(Struct, frozen=True):
    """What a key of a line means."""

    figure: str
    """Of `FIGURES`, or the name of a phase."""
    factor: float = 1.0
    """From the written number to the figure's unit."""
    is_phase: bool = False
    is_bytes: bool = False
    """Whether a written unit of bytes wins over the factor."""
    is_of_whole: bool = False
    """Whether the text has the GPU's memory, too: `63.8GiB(45.6%)`, or `used/free/total`."""


class ExpertLine(Struct, frozen=True):
    """A list of the tokens of experts, at its place in a log."""

    rank: int
    rows: int
    """The rows of the log before it."""
    layer: int
    counts: Sequence[float]


class TrainerLog(Struct, frozen=True):
    """A trainer's log: a row per line about a step, in the order of the file."""

    path: Path
    format: str
    """For people: `Megatron log`."""
    clock: ClockDomain
    rank: Int32
    """The rank that wrote the line, -1 where nothing names it."""
    step: Int64
    time_ns: Int64
    """The stamp of the line on its own clock; -1 without one."""
    figures: Mapping[str, Float64]
    """Of `FIGURES`, those that the file has; NaN where a line lacks it."""
    phases: Mapping[str, Float64]
    """Parts of a step by name, in ns."""
    notes: Sequence[str]
    losses: Losses
    unused: Mapping[str, int] = {}
    """The number of values of each field that no figure is read from."""
    failed: Sequence[FailedLine] = ()
    """Allocations that failed."""
    experts: Sequence[ExpertLine] = ()
    """Lists of the tokens of experts."""

    def __len__(self) -> int:
        return len(self.step)


def joined_columns(logs: Sequence[TrainerLog], which: str) -> dict[str, Float64]:
    """The columns of `figures` or `phases` of logs, one log after the other; NaN where one lacks a
    column. Those of a single log are its own."""
    columns: list[Mapping[str, Float64]] = [getattr(log, which) for log in logs]
    if len(logs) == 1:
        return dict(columns[0])
    blanks = [np.full(len(log), nan) for log in logs]
    return {
        name: np.concatenate(
            [own.get(name, blank) for own, blank in zip(columns, blanks, strict=True)]
        )
        for name in dict.fromkeys(name for own in columns for name in own)
    }


def json_number(value: object) -> float | None:
    """A number of JSON, which may be NaN or infinite; None for one too long, and for others."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def leading_number(text: str) -> tuple[float, str]:
    """The number that a text begins with, and the unit behind it; NaN without one.

    A comma is between thousands where all groups behind it have three digits, else decimal.
    """
    match = _NUMBER.match(text)
    if match is None:
        return nan, ""
    digits = match[1].rstrip(",")
    if "," in digits:
        is_thousands = _THOUSANDS.fullmatch(digits) is not None
        digits = digits.replace(",", "" if is_thousands else ".", -1 if is_thousands else 1)
    try:
        return float(digits), match[2].casefold()
    except ValueError:
        return nan, ""


_CAPACITY: Final = StepField("capacity_bytes")
_OF_WHOLE: Final = late(r"\(([\d.]{1,12})\s*%\)")


@lru_cache(maxsize=1 << 14)
def _whole(text: str, field: StepField) -> float:
    """The GPU's memory by what a field's text has behind the memory in use; NaN without."""
    if share := _OF_WHOLE.search(text):
        of_whole = leading_number(share[1])[0]
        return 100.0 * _value(text, field) / of_whole if of_whole > 0 else nan
    parts = text.split("/")
    return _value(parts[2], field) if len(parts) > 2 else nan


@lru_cache(maxsize=1 << 14)
def _value(text: str, field: StepField) -> float:
    number, unit = leading_number(text)
    return number * (_BYTES.get(unit, field.factor) if field.is_bytes else field.factor)


def field_values(texts: Sequence[str], field: StepField) -> Float64:
    """The values of a field, in the unit of its figure; NaN for invalid numbers."""
    for plain in () if field.is_bytes else (texts, (each.strip(",%") for each in texts)):
        try:
            return _scaled(np.array([*map(float, plain)], np.float64), field.factor)
        except ValueError:
            pass
    return np.array([_value(each, field) for each in texts], np.float64)


def _scaled(numbers: Float64, factor: float) -> Float64:
    """The numbers in another unit; NaN for those that are too large for it."""
    with np.errstate(over="ignore"):
        values = numbers * factor
    return np.where(np.isinf(values) & np.isfinite(numbers), nan, values)


class StepRows:
    """Collects rows of a file: what each line says, and what stands before it."""

    def __init__(self, path: Path, losses: Losses) -> None:
        self.path, self.losses = path, losses
        self.unused: Counter[str] = Counter()
        self.notes: dict[str, None] = {}
        self.unreadable = 0
        self._stamps = Stamps()
        self._rank_of_file = _rank_of(path)
        self._rank = GrowingColumn(np.int32)
        self._step = GrowingColumn(np.int64)
        self._time_ns = GrowingColumn(np.int64)
        self._figures: dict[str, GrowingColumn] = {}
        self._phases: dict[str, GrowingColumn] = {}
        self._parts: dict[str, dict[tuple[int, int], float]] = {}
        """Parts of steps by name, then by rank and step."""
        self._waiting: list[tuple[int, int, int, Mapping[StepField, float]]] = []
        """Rows that are added one by one."""
        self._failed: list[FailedLine] = []
        self._experts: list[ExpertLine] = []
        self._counts = 0

    def __len__(self) -> int:
        return len(self._step)

    def add_lines(
        self,
        prefixes: Sequence[str],
        steps: Sequence[str] | Int64,
        values: Mapping[StepField, Sequence[str]],
    ) -> None:
        """Add rows of text: what stands before each line, its step, and a text per field."""
        ranks, times_ns = zip(*map(self.origin, prefixes), strict=True)
        figures = {field: field_values(texts, field) for field, texts in values.items()}
        for field, texts in values.items():
            if field.is_of_whole:
                figures[_CAPACITY] = np.array([_whole(text, field) for text in texts])
        self.add(
            np.array(ranks, np.int32),
            np.array([min(step, MAX_STEP) for step in map(int, steps)], np.int64),
            np.array(times_ns, np.int64),
            figures,
        )

    def add(
        self,
        rank: Int32,
        step: Int64,
        time_ns: Int64,
        values: Mapping[StepField, Float64],
    ) -> None:
        """Add rows; those without a possible step are counted."""
        own = (step >= 0) & (step < MAX_STEP)
        self.unreadable += int((~own).sum())
        before = len(self)
        self._rank.append(rank[own])
        self._step.append(step[own])
        self._time_ns.append(time_ns[own])
        for field, numbers in values.items():
            columns = self._phases if field.is_phase else self._figures
            if field.figure not in columns:
                if len(columns) == _MOST_PHASES:
                    self.unused[cut_name(field.figure)] += int(np.isfinite(numbers).sum())
                    continue
                columns[field.figure] = GrowingColumn(np.float64)
            column, begin = columns[field.figure], before
            column.append(np.full(begin - len(column), np.nan))
            column.append(numbers[own])

    def add_one(
        self, rank: int, step: int, time_ns: int, values: Mapping[StepField, float]
    ) -> None:
        self._waiting.append((rank, max(min(step, MAX_STEP), ABSENT), time_ns, values))
        if len(self._waiting) >= _MOST_WAITING:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        ranks, steps, times_ns, values = zip(*waiting, strict=True)
        fields = dict.fromkeys(field for own in values for field in own)
        self.add(
            np.array(ranks, np.int32),
            np.array(steps, np.int64),
            np.array(times_ns, np.int64),
            {field: np.array([own.get(field, nan) for own in values]) for field in fields},
        )

    def add_failed(self, prefix: str, failed: AllocationMessage) -> None:
        """Add an allocation that failed behind the rows so far; of too many the rest is left
        out."""
        own = FailedLine(self.origin(prefix)[0], len(self) + len(self._waiting), failed)
        if len(self._failed) < MOST_FAILED:
            self._failed.append(own)

    def add_experts(self, prefix: str, layer: int, counts: Sequence[float]) -> None:
        """Add the tokens of experts behind the rows so far; of too many the rest is counted."""
        self._counts += len(counts)
        if self._counts > _MOST_COUNTS:
            self.unused["tokens of experts"] += len(counts)
            return
        before = len(self) + len(self._waiting)
        self._experts.append(ExpertLine(self.origin(prefix)[0], before, layer, counts))

    def add_phase(self, rank: int, step: int, name: str, took_ns: float) -> None:
        """Add a part of a step that has a row already, or will have one."""
        if name in self._parts or len(self._parts) < _MOST_PHASES:
            self._parts.setdefault(name, {})[rank, step] = took_ns

    def _add_parts(self) -> None:
        if not self._parts:
            return
        keys = zip(self._rank.whole().tolist(), self._step.whole().tolist(), strict=True)
        # A step that is run again has its parts in its last row.
        place = {key: at for at, key in enumerate(keys)}
        for name, parts in self._parts.items():
            values = np.full(len(self), np.nan)
            for key, took_ns in parts.items():
                if key in place:
                    values[place[key]] = took_ns
            self._phases[name] = GrowingColumn(np.float64)
            self._phases[name].append(values)

    def set_stamp(self, time_ns: int | None, clock: ClockDomain) -> int:
        """A stamp that needs no parsing; -1 for one of another clock or of no run."""
        if self._stamps.clock is None:
            self._stamps.clock = clock
        is_usable = clock is self._stamps.clock and time_ns is not None
        return time_ns if is_usable and 0 <= time_ns < LATEST_NS else ABSENT  # type: ignore[operator,return-value]

    def rank_or(self, rank: int = ABSENT) -> int:
        """A rank that a line names, else that of the file."""
        return rank if 0 <= rank < MAX_RANKS else self._rank_of_file

    def origin(self, prefix: str) -> tuple[int, int]:
        """The rank and the time that stand before a line; -1 where unknown."""
        stamp, year = _DATE.search(prefix), 0
        if stamp is None and (stamp := _WITHOUT_YEAR.search(prefix)) is not None:
            year = gmtime(self.path.stat().st_mtime).tm_year
            self.notes[NO_YEAR] = None
        if stamp is None:
            return self.rank_or(_named_rank(prefix, "")), ABSENT
        begin, end = stamp.span()
        rank = self.rank_or(_named_rank(prefix[:begin], prefix[end:]))
        text, fraction, zone = stamp.groups()
        second = _second_of(text, zone or "", year)
        if second is None:
            return rank, ABSENT
        clock, time_ns = second
        if fraction:
            time_ns += int(fraction.ljust(9, "0"))
        return rank, self.set_stamp(time_ns, clock)

    def finish(self, format_name: str) -> TrainerLog:
        """The log of the file; raises DataError without any step."""
        self._flush()
        self._add_parts()
        self.losses.note(self.unreadable, "line", "about a step that can't be parsed: skipped")
        self.losses.unreadable_events += self.unreadable
        if not len(self) and not self._failed:
            raise DataError(f"{self.path} ({format_name}) holds no step of a training.")
        times_ns, count = self._time_ns.whole().copy(), len(self)
        clock = self._stamps.clock or ClockDomain.UNKNOWN
        notes = [*self.notes]
        if clock is ClockDomain.LOCAL:
            notes += rows_on_one_clock(times_ns)
        for columns in (self._figures, self._phases):
            for column in columns.values():
                column.append(np.full(count - len(column), np.nan))
        return TrainerLog(
            self.path,
            format_name,
            clock,
            self._rank.whole(),
            self._step.whole(),
            times_ns,
            {name: self._figures[name].whole() for name in FIGURES if name in self._figures},
            {name: column.whole() for name, column in self._phases.items()},
            notes,
            self.losses,
            dict(self.unused),
            self._failed,
            self._experts,
        )


@lru_cache(maxsize=1 << 13)
def _named_rank(before: str, after: str) -> int:
    """The rank in what stands before and after the stamp of a line; ABSENT without one."""
    for text in (before, after):
        if found := _PREFIX_RANK.search(text):
            return int(found[1] or found[2])
    return ABSENT


@lru_cache(maxsize=1 << 12)
def _second_of(stamp: str, zone: str, year: int) -> tuple[ClockDomain, int] | None:
    if year:
        # mmengine's 03/05 08:40:00 and absl's 0305 08:40:00.
        month, day = (stamp[:2], stamp[3:5]) if stamp[2] == "/" else (stamp[:2], stamp[2:4])
        stamp = f"{year}-{month}-{day} {stamp[-8:]}"
    stamps = Stamps()
    found = stamps.read(stamp + zone)
    return None if found is None or stamps.clock is None else (stamps.clock, found)


def _rank_of(path: Path) -> int:
    """The rank in the name of a file, or of its folder where a launcher makes one per rank."""
    found = rank_in_name(path.name)
    if found is None and path.name in _STREAMS and _LOCAL_FOLDER.fullmatch(path.parent.name):
        found = int(path.parent.name)
    return ABSENT if found is None else found
