"""Stamps of telemetry files: integer nanoseconds, the clock they are of, and how fine they are."""

from __future__ import annotations

import re
from calendar import timegm
from datetime import datetime
from typing import Final

from chopper_core.sources.signals import ClockDomain
from chopper_core.sources.telemetry.quantities import exact_decimal

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
"""The names that a file can give its clock."""

_DATE_TIME: Final = re.compile(
    r"(\d{4})[-/]?(\d\d)[-/]?(\d\d)[T ]\s*(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s*"
    r"(Z|UTC|[-+]\d\d:?\d\d)?",
    re.ASCII,
)
_TIME_OF_DAY: Final = re.compile(r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?", re.ASCII)
_EPOCH_UNITS: Final = ((10**8, 10**11, SECOND_NS), (10**11, 10**14, 10**6), (10**14, 10**17, 10**3))
"""(from, below, ns): seconds, milliseconds and microseconds of the years 1973 to 5138."""


def clock_named(name: object) -> ClockDomain:
    """Return the clock of a name such as `CLOCK_MONOTONIC`; UNKNOWN for others."""
    plain = str(name).strip().casefold().removeprefix("clock_")
    return CLOCKS.get(plain, ClockDomain.UNKNOWN)


class Stamps:
    """Reads the stamps of one file; the first usable one says the clock, others must agree."""

    def __init__(self) -> None:
        self.clock: ClockDomain | None = None
        self._finest_ns = SECOND_NS

    @property
    def resolution_ns(self) -> int:
        """Distance of the stamps that the file can tell apart; 0 if it has none."""
        return 0 if self.clock is None else self._finest_ns

    def read(self, cell: object) -> int | None:
        """Return the stamp in a cell, in any of the forms that tools write; None if unusable.

        Local time without zone counts as if its zone were UTC.
        """
        text = str(cell).strip()
        parsed = _from_number(text) or _from_date(text) or _from_time_of_day(text)
        return None if parsed is None else self._accepted(*parsed)

    def read_nanoseconds(self, cell: object, clock: ClockDomain) -> int | None:
        """Return the stamp in a cell that holds nanoseconds on a known clock."""
        value = exact_decimal(str(cell).strip())
        if value is None or not 0 <= value < LATEST_NS:
            return None
        return self._accepted(clock, round(value), 1)

    def _accepted(self, clock: ClockDomain, time_ns: int, resolution_ns: int) -> int | None:
        if self.clock is None:
            self.clock = clock
        if clock != self.clock or not 0 <= time_ns < LATEST_NS:
            return None
        self._finest_ns = min(self._finest_ns, resolution_ns)
        return time_ns


def _from_number(text: str) -> tuple[ClockDomain, int, int] | None:
    value = exact_decimal(text)
    if value is None or value < 0:
        return None
    digits = len(text.partition(".")[2]) if "e" not in text.casefold() else 9
    for lowest, limit, unit_ns in _EPOCH_UNITS:
        if lowest <= value < limit:
            return ClockDomain.EPOCH, round(value * unit_ns), _resolution_ns(digits, unit_ns)
    if value >= LATEST_NS:
        return None
    if value >= _EPOCH_UNITS[-1][1]:
        return ClockDomain.EPOCH, round(value), 1
    return ClockDomain.UNKNOWN, round(value * SECOND_NS), _resolution_ns(digits, SECOND_NS)


def _from_date(text: str) -> tuple[ClockDomain, int, int] | None:
    match = _DATE_TIME.fullmatch(text)
    if match is None:
        return None
    fraction, zone = match[7] or "", match[8]
    try:
        moment = datetime(*(int(part) for part in match.groups()[:6]))  # type: ignore[arg-type]
    except ValueError:
        return None
    seconds = timegm(moment.timetuple()) - _offset_seconds(zone)
    clock = ClockDomain.EPOCH if zone else ClockDomain.LOCAL
    return clock, seconds * SECOND_NS + _fraction_ns(fraction), _resolution_ns(len(fraction))


def _from_time_of_day(text: str) -> tuple[ClockDomain, int, int] | None:
    match = _TIME_OF_DAY.fullmatch(text)
    if match is None:
        return None
    seconds = int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3])
    fraction = match[4] or ""
    time_ns = seconds * SECOND_NS + _fraction_ns(fraction)
    return ClockDomain.UNKNOWN, time_ns, _resolution_ns(len(fraction))


def _offset_seconds(zone: str | None) -> int:
    if not zone or zone in ("Z", "UTC"):
        return 0
    seconds = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
    return -seconds if zone.startswith("-") else seconds


def _fraction_ns(digits: str) -> int:
    return int(digits.ljust(9, "0")) if digits else 0


def _resolution_ns(digits: int, unit_ns: int = SECOND_NS) -> int:
    return max(1, int(unit_ns // 10 ** min(digits, 9)))
