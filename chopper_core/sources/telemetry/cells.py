"""Cells of telemetry files: numbers in the unit of their signal, and time stamps."""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from enum import IntEnum
from functools import lru_cache
from math import inf, nan
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct

from chopper_core.sources.signals import ClockDomain, SignalName
from chopper_core.util.arrays import AnyArray, Float64, Int8, Int64
from chopper_core.util.patterns import late

if TYPE_CHECKING:
    from chopper_core.tables.column import Coded, TableColumn


class Flaw(IntEnum):
    """Why a cell has no usable value, as in arrays of flaws."""

    NONE = 0
    MISSING = 1
    NOT_A_NUMBER = 2
    WRONG_UNIT = 3
    OUT_OF_RANGE = 4


class Dimension(Struct, frozen=True):
    """The factors from other units to a signal's unit, and its plausible range."""

    factors: Mapping[str, float]
    lowest: float = 0.0
    highest: float = inf


_DIMENSION_BY_UNIT: Final = {
    "mhz": Dimension({"mhz": 1.0, "ghz": 1e3, "khz": 1e-3, "hz": 1e-6}, highest=100_000.0),
    "w": Dimension({"w": 1.0, "mw": 1e-3, "uw": 1e-6, "kw": 1e3}, highest=100_000.0),
    "j": Dimension(
        {"j": 1.0, "mj": 1e-3, "uj": 1e-6, "kj": 1e3, "wh": 3600.0, "ticks": 2.0**-16}, highest=1e18
    ),
    "c": Dimension({"c": 1.0, "°c": 1.0}, lowest=-100.0, highest=500.0),
    "s": Dimension({"s": 1.0}, highest=1e12),
    "pct": Dimension({"%": 1.0}, highest=100.0),
    # The tools count in powers of two under either name.
    "bytes": Dimension(
        {
            "b": 1.0,
            **dict.fromkeys(("kb", "kib"), 2.0**10),
            **dict.fromkeys(("mb", "mib"), 2.0**20),
            **dict.fromkeys(("gb", "gib"), 2.0**30),
        },
        highest=2.0**60,
    ),
    # amd-smi's Mb/s are megabits.
    "gbps": Dimension(
        {"gb/s": 1.0, "mb/s": 1e-3 / 8, "mbyte/s": 1e-3, "byte/s": 1e-9, "kib/s": 2.0**10 / 1e9},
        highest=100_000.0,
    ),
}
DIMENSIONS: Final = {signal: _DIMENSION_BY_UNIT[signal.rpartition("_")[2]] for signal in SignalName}

_MISSING_WORDS: Final = frozenset(
    (
        *("", "-", "--", "n/a", "na", "<na>", "nan", "none", "null", "err!", "unknown"),
        *("unknown error", "not supported", "not available", "gpu is lost"),
        "insufficient permissions",
    )
)
UNSUPPORTED: Final = frozenset((2**16 - 1, 2**32 - 1, 2**64 - 1))
"""The C structures hold these where a GPU lacks a sensor."""

_QUANTITY: Final = late(
    r"\(?\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?)\s*([^\d\s()][^()]*?)?\s*\)?"
)
_INTEGER: Final = late(r"[-+]?\d+")
_MAX_DIGITS: Final = 64


def quantity(cell: object) -> tuple[int | float, str] | Flaw:
    """Return the number in a cell and its unit, '' without one.

    A cell is text (`131.17 W`, `(2100Mhz)`) or a number.
    """
    return Flaw.MISSING if cell is None else _in_text(str(cell))


@lru_cache(maxsize=1 << 13)
def _in_text(text: str) -> tuple[int | float, str] | Flaw:
    text = text.strip()
    if text.strip("[]()").casefold() in _MISSING_WORDS:
        return Flaw.MISSING
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_DIGITS else None
    if match is None or float(match[1]) == inf:
        return Flaw.NOT_A_NUMBER
    number = int(match[1]) if _INTEGER.fullmatch(match[1]) else float(match[1])
    number = int(number) if number == int(number) else number
    return Flaw.MISSING if number in UNSUPPORTED else (number, (match[2] or "").casefold())


def is_known(cell: object) -> bool:
    """Whether a cell holds anything, unlike those of sensors that a GPU lacks."""
    value = cell.get("value") if isinstance(cell, dict) else cell
    return value is not None and str(value).strip(" []()").casefold() not in _MISSING_WORDS


def count_known(cells: TableColumn) -> int:
    if cells.numbers() is not None:
        return len(cells)
    known = np.array([is_known(cell) for cell in cells.distinct], np.bool_)
    return int(known[cells.codes].sum())


def quantities(
    cells: TableColumn, factors: Mapping[str, float], default_unit: str
) -> tuple[AnyArray, Float64, Int8]:
    """The numbers of cells as they are written, their factors, and their flaws.

    Numbers are int64, or float64 where that doesn't hold them; those with a flaw mean nothing.
    """
    known = cells.numbers()
    if known is not None:
        numbers, unit = known
        factor = np.full(len(numbers), factors.get(unit or default_unit, nan))
        flaws = np.zeros(len(numbers), np.int8)
        for unsupported in UNSUPPORTED:
            flaws[numbers == float(unsupported)] = Flaw.MISSING
    else:
        found = [quantity(cell) for cell in cells.distinct]
        pairs = [(0, "") if isinstance(each, Flaw) else each for each in found]
        codes = [each if isinstance(each, Flaw) else Flaw.NONE for each in found]
        units = [factors.get(unit or default_unit, nan) for _, unit in pairs]
        numbers = _exact([number for number, _ in pairs])[cells.codes]
        factor, flaws = np.array(units)[cells.codes], np.array(codes, np.int8)[cells.codes]
    flaws[(flaws == Flaw.NONE) & np.isnan(factor)] = Flaw.WRONG_UNIT
    return numbers, factor, flaws


def _exact(numbers: Sequence[int | float]) -> AnyArray:
    is_whole = all(isinstance(number, int) and abs(number) < 2**63 for number in numbers)
    return np.array(numbers, np.int64 if is_whole else np.float64)


def whole_number(cell: object) -> int | None:
    found = quantity(cell)
    if isinstance(found, Flaw) or found[1] or not isinstance(found[0], int):
        return None
    return found[0]


SECOND_NS: Final = 1_000_000_000
LATEST_NS: Final = 2**62

CLOCKS: Final = {
    "epoch": ClockDomain.EPOCH,
    "realtime": ClockDomain.EPOCH,
    "boottime": ClockDomain.BOOTTIME,
    "monotonic": ClockDomain.MONOTONIC,
    "local": ClockDomain.LOCAL,
    ClockDomain.LOCAL.value: ClockDomain.LOCAL,
}
"""Names of clocks that files may give."""

_CLOCK_COMMENT: Final = late(r"#\s*clock\s*[:=]\s*(\S.*)", re.IGNORECASE)
_DATE_TIME: Final = late(
    r"(\d{4})[-/]?(\d\d)[-/]?(\d\d)[T ]\s*(\d\d):(\d\d):(\d\d)\s*(Z|UTC|[-+]\d\d:?\d\d)?",
    re.ASCII,
)
_FRACTION: Final = late(
    r"(\d+(?=\.)|.*\d\d:\d\d:\d\d)[.,](\d{1,9})(\s*(?:Z|UTC|[-+]\d\d:?\d\d)?)", re.ASCII
)
_TIME_OF_DAY: Final = late(r"(\d\d):(\d\d):(\d\d)", re.ASCII)
_EPOCH_UNITS: Final = ((10**8, 10**11, SECOND_NS), (10**11, 10**14, 10**6), (10**14, 10**17, 10**3))
"""(from, below, ns): seconds, milliseconds and microseconds of the years 1973 to 5138."""


def declared_clock(lines: Sequence[str]) -> str:
    """Return the clock named by a comment (`# clock: monotonic`); '' without one."""
    return next((match[1] for line in lines if (match := _CLOCK_COMMENT.match(line))), "")


def clock_named(name: object) -> ClockDomain:
    """Return the clock with a name such as `CLOCK_MONOTONIC`; UNKNOWN for other names."""
    plain = str(name).strip().casefold().removeprefix("clock_")
    return CLOCKS.get(plain, ClockDomain.UNKNOWN)


class Stamps:
    """Reads the stamps of a file; the first usable one sets the clock, others must agree."""

    def __init__(self) -> None:
        self.clock: ClockDomain | None = None
        self.declared = ""
        """The clock that the file names."""
        self.offsets_ns: list[Int64] = []
        """Of its two clocks, where it has both."""
        self._finest_ns = SECOND_NS

    @property
    def resolution_ns(self) -> int:
        """Smallest difference between stamps that the file can express; 0 without stamps."""
        return 0 if self.clock is None else self._finest_ns

    def read(self, cell: object) -> int | None:
        """Return the stamp in a cell, in any form that tools write; None if unusable.

        Local time without a zone is read as UTC.
        """
        parsed = _parsed(str(cell).strip())
        if parsed is None:
            return None
        clock, time_ns, resolution_ns = parsed
        if self.clock is None:
            self.clock = clock
        if clock is not self.clock or not 0 <= time_ns < LATEST_NS:
            return None
        self._finest_ns = min(self._finest_ns, resolution_ns)
        return time_ns

    def read_column(self, cells: TableColumn) -> Int64:
        """Return `read` of each row; -1 for unusable stamps."""
        times_ns = [self.read(cell) for cell in cells.distinct]
        return np.array([-1 if each is None else each for each in times_ns], np.int64)[cells.codes]

    def read_nanoseconds(self, cells: TableColumn, clocks: Coded) -> Int64:
        """Return stamps in ns, each on the clock that its row gives; -1 for unusable ones."""
        times_ns = np.maximum(cells.times_ns(), cells.integers())
        times_ns[times_ns >= LATEST_NS] = -1
        usable = np.flatnonzero(times_ns >= 0)
        if len(usable):
            if self.clock is None:
                self.clock = clocks.distinct[clocks.codes[usable[0]]]
            is_clock = np.array([clock is self.clock for clock in clocks.distinct], np.bool_)
            times_ns[~is_clock[clocks.codes]] = -1
            if (times_ns >= 0).any():
                self._finest_ns = 1
        return times_ns


def _parsed(text: str) -> tuple[ClockDomain, int, int] | None:
    """The clock, the time and the resolution of a stamp.

    Stamps of one second differ in their fraction alone, so that the second is parsed once.
    """
    match = _FRACTION.fullmatch(text)
    whole = _parsed_whole(match[1] + match[3]) if match else None
    if match and whole:
        clock, time_ns, unit_ns = whole
        fraction_ns, rest = divmod(int(match[2]) * unit_ns, 10 ** len(match[2]))
        if not rest:
            return clock, time_ns + fraction_ns, _resolution_ns(len(match[2]), unit_ns)
    return _parsed_whole(text)


@lru_cache(maxsize=1 << 8)  # Rows come in order of time; kept texts of all hours hold pages.
def _parsed_whole(text: str) -> tuple[ClockDomain, int, int] | None:
    return _from_number(text) or _from_date(text) or _from_time_of_day(text)


def _from_number(text: str) -> tuple[ClockDomain, int, int] | None:
    try:
        value = Decimal(text if len(text) <= _MAX_DIGITS else "")
    except InvalidOperation:
        return None
    if not (value.is_finite() and 0 <= value < LATEST_NS):
        return None
    digits = len(text.partition(".")[2]) if "e" not in text.casefold() else 9
    for lowest, limit, unit_ns in _EPOCH_UNITS:
        if lowest <= value < limit:
            return ClockDomain.EPOCH, round(value * unit_ns), _resolution_ns(digits, unit_ns)
    if value >= _EPOCH_UNITS[-1][1]:
        return ClockDomain.EPOCH, round(value), 1
    return ClockDomain.UNKNOWN, round(value * SECOND_NS), _resolution_ns(digits, SECOND_NS)


def _from_date(text: str) -> tuple[ClockDomain, int, int] | None:
    match = _DATE_TIME.fullmatch(text)
    if match is None:
        return None
    zone = match[7]
    try:
        moment = datetime(*(int(part) for part in match.groups()[:6]))  # type: ignore[arg-type]
    except ValueError:
        return None
    seconds = timegm(moment.timetuple())
    if zone not in (None, "Z", "UTC"):
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        seconds += offset if zone.startswith("-") else -offset
    return ClockDomain.EPOCH if zone else ClockDomain.LOCAL, seconds * SECOND_NS, SECOND_NS


def _from_time_of_day(text: str) -> tuple[ClockDomain, int, int] | None:
    match = _TIME_OF_DAY.fullmatch(text)
    if match is None:
        return None
    seconds = int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3])
    return ClockDomain.UNKNOWN, seconds * SECOND_NS, SECOND_NS


def _resolution_ns(digits: int, unit_ns: int) -> int:
    return max(1, int(unit_ns // 10 ** min(digits, 9)))
