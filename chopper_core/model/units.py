"""Units of metrics, columns and signals, each with the scales and decimals it is written in."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Self

from msgspec import Struct
from msgspec.structs import replace

DIGITS: Final = 4
"""The significant digits of a figure on a screen or in a sentence; details and exports have all."""


def decimals_of(number: float) -> int:
    """The decimals with which a figure has `DIGITS` significant digits."""
    return max(DIGITS - len(str(int(abs(number)))), 0)


def significant(number: float, sign: str = "") -> str:
    """A figure of a sentence in four significant digits: `740`, `12.9`."""
    text = f"{number:{sign}.{decimals_of(number)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


class UnitScale(Struct, frozen=True):
    """How figures from `least` on are written: divided, with so many decimals, and in which unit.

    `least` is the largest figure of a column, so that the whole column has one scale.
    """

    least: float
    text: str
    divisor: float = 1.0
    decimals: int = 0
    signed: bool = False

    def number(self, figure: float) -> str:
        return f"{figure / self.divisor:.{self.decimals}f}"

    def readable(self, largest: float) -> UnitScale:
        """With as many decimals as give the largest figure of a column four significant digits."""
        return replace(self, decimals=min(decimals_of(largest / self.divisor), self.decimals))

    def cell(self, figure: float | None, missing: str = "–") -> str:
        """As `number`, with the sign of a signed figure and without that of a zero.

        A figure that rounds to zero and isn't one is `<0.1`; a difference has no digit there.
        """
        if figure is None:
            return missing
        text = self.number(figure)
        if float(text) == 0:
            if figure > 0 and not self.signed:
                return f"<{10.0**-self.decimals:.{self.decimals}f}"
            return text.removeprefix("-")
        return f"+{text}" if self.signed and figure > 0 else text


class Unit(StrEnum):
    """A unit; its value is the text in JSON. An unknown one raises ValueError where it is used."""

    _value_: str
    scales: tuple[UnitScale, ...]
    """From the largest figures to the smallest; the last one takes all others."""

    def __new__(cls, text: str, *scales: tuple[float, str, float, int] | int) -> Self:
        """A unit of scales, or of a number of decimals at any size."""
        unit = str.__new__(cls, text)
        unit._value_ = text
        unit.scales = tuple(
            UnitScale(0.0, text, decimals=scale) if isinstance(scale, int) else UnitScale(*scale)
            for scale in scales
        )
        return unit

    NONE = "", 2
    """Of counts, words and ratios."""
    PERCENT = "%", 1
    NS = ("ns", (7.2e12, "h", 3.6e12, 3), (6e11, "min", 6e10, 3), (1e10, "s", 1e9, 3),
          (1e6, "ms", 1e6, 3), (1e3, "µs", 1e3, 3), 0)  # fmt: skip
    BYTES = "B", (1e9, "GB", 1e9, 3), (1e6, "MB", 1e6, 3), (1e3, "kB", 1e3, 3), 0
    TBPS = "TB/s", 3
    GBPS = "GB/s", (100.0, "GB/s", 1.0, 0), 2
    FLOP = "FLOP", (1e12, "TFLOP", 1e12, 3), (1e9, "GFLOP", 1e9, 3), (1e6, "MFLOP", 1e6, 3), 0
    TFLOPS = "TFLOP/s", 1
    TOPS = "TOP/s", 1
    FLOP_PER_BYTE = "FLOP/B", (100.0, "FLOP/B", 1.0, 0), 2
    MHZ = "MHz", 0
    CYCLES = "cycles", (100.0, "cycles", 1.0, 0), 1
    WATTS = "W", (1e4, "kW", 1e3, 3), 0
    JOULES = ("J", (1e6, "MJ", 1e6, 3), (1e4, "kJ", 1e3, 2), (100.0, "J", 1.0, 1),
              (1.0, "J", 1.0, 3), (0.0, "mJ", 1e-3, 2))  # fmt: skip
    MILLIJOULES = "mJ", (100.0, "mJ", 1.0, 0), 2
    CELSIUS = "°C", 0
    TOKENS_PER_S = "tok/s", 0
    TOKENS_PER_J = "tok/J", (100.0, "tok/J", 1.0, 0), 2
    PER_S = "1/s", (100.0, "1/s", 1.0, 0), 2
    PER_S_MJ = "1/(s·MJ)", (100.0, "1/(s·MJ)", 1.0, 1), 3
    TIMES = "x", 3
    PER_US = "/µs", (1e6, "M/µs", 1e6, 2), (1e3, "k/µs", 1e3, 2), (100.0, "/µs", 1.0, 0), 2
    CUS = "CUs", 0
    WAVES = "waves", (100.0, "waves", 1.0, 0), 1
    THREADS = "threads", 1

    def scale(self, largest: float, is_whole: bool) -> UnitScale:
        """The scale of a column by its largest absolute figure; counts have no decimals."""
        if self is Unit.NONE and is_whole:
            return COUNT
        # Of no time it is that of most times, as in sentences.
        return _NO_TIME if self is Unit.NS and not largest else _scale(self.scales, largest)

    def axis(self, low: float, high: float) -> UnitScale:
        """The scale of an axis: two digits are enough to distinguish its figures."""
        largest = max(abs(low), abs(high))
        scale = _scale(self.scales, largest)
        whole = int(largest / scale.divisor)
        digits = len(str(whole)) if whole else 0
        return replace(scale, decimals=min(scale.decimals, max(2 - digits, 0)))


class FileUnit(str):
    """A unit that a profiler's file gives to a counter and Chopper doesn't know."""

    __slots__ = ()

    def scale(self, largest: float, is_whole: bool) -> UnitScale:
        """As of a known unit: four significant digits or so, none behind the point of counts."""
        text = str(self)
        if is_whole:
            return UnitScale(0.0, text)
        return _scale((UnitScale(1e3, text), UnitScale(0.0, text, decimals=2)), largest)


AnyUnit = Unit | FileUnit
WRITTEN: Final[Mapping[str, tuple[float, Unit | None]]] = {
    "": (1.0, None), "%": (1.0, None), "w": (1.0, Unit.WATTS), "mhz": (1.0, Unit.MHZ),
    "j": (1.0, Unit.JOULES), "ns": (1.0, Unit.NS), "us": (1e3, Unit.NS), "µs": (1e3, Unit.NS),
    "ms": (1e6, Unit.NS), "s": (1e9, Unit.NS), "b": (1.0, Unit.BYTES), "kb": (1e3, Unit.BYTES),
    "mb": (1e6, Unit.BYTES), "gb": (1e9, Unit.BYTES), "kib": (2.0**10, Unit.BYTES),
    "mib": (2.0**20, Unit.BYTES), "gib": (2.0**30, Unit.BYTES),
}  # fmt: skip
"""A unit as people write it in filters and limits → its scale, and the unit of the figures that it
is for; None: any."""


def drawn_in(unit: AnyUnit) -> tuple[float, str]:
    """The divisor of a figure in a chart, and its unit there."""
    return (1e6, "ms") if unit is Unit.NS else (1.0, str(unit))


def scaled_text(number: float, unit: AnyUnit, sign: str = "") -> str:
    """A figure of a sentence in 4 significant digits and a unit that fits: `1.234 ms`, `5244 W`."""
    if unit is Unit.NS:
        return time_text(number, sign)
    sign = sign if number else ""  # No change has no direction.
    scale = unit.scale(abs(number), is_whole=False)
    text = significant(number / scale.divisor, sign)
    if unit is Unit.PERCENT:
        text = f"{number:{sign}.1f}" if sign else scale.cell(number)
    return f"{text} {scale.text}".strip()


COUNT: Final = UnitScale(0.0, "")
_NO_TIME: Final = UnitScale(0.0, "ms", 1e6)


def unit_of_file(text: str) -> AnyUnit:
    try:
        return Unit(text)
    except ValueError:
        return FileUnit(text)


def _scale(scales: tuple[UnitScale, ...], largest: float) -> UnitScale:
    return next((scale for scale in scales if largest >= scale.least), scales[-1])


LONG_TIMES: Final = ((7.2e12, 3.6e12, "h"), (6e11, 6e10, "min"), (1e10, 1e9, "s"))
"""From how many ns on a time is in a unit, its length in ns, and its name."""
_TIMES: Final = (*LONG_TIMES, (1e6, 1e6, "ms"), (0.0, 1e3, "µs"))
_IN_SECONDS_NS: Final = 10_000_000_000
"""From here on a moment has too many digits in ms."""
_YEAR_2001_NS: Final = 10**18
_ON_A_CLOCK_NS: Final = 100_000_000_000
"""The same in s."""


def moment_text(ns: int, decimals: int, end_ns: int = 0) -> str:
    """A moment since the run's start in `moment_unit`: `12.345`, in a long run `1:23:04.567`.

    `decimals` are those of ms; `end_ns` is the latest moment that is written next to it.
    """
    unit = moment_unit(max(ns, end_ns))
    if unit == "ms":
        return f"{ns / 1e6:.{max(decimals, 0)}f}"
    if unit == "s":
        return f"{ns / 1e9:.{decimals + 3 if decimals >= 0 else 0}f}"
    seconds, rest = divmod(ns, 1_000_000_000)
    part = f".{rest:09d}"[: 4 + decimals] if decimals >= 0 else ""
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{part}"


def moment_unit(end_ns: int) -> str:
    """The unit of moments up to this one; empty where they are on a clock."""
    if is_on_a_clock(end_ns):
        return ""
    return "s" if end_ns >= _IN_SECONDS_NS else "ms"


def has_date(ns: int) -> bool:
    """Whether a time counts from 1970: clocks that count from boot have no date."""
    return ns > _YEAR_2001_NS


def is_on_a_clock(ns: int) -> bool:
    """Whether moments up to this one are written as hours, minutes and seconds."""
    return ns >= _ON_A_CLOCK_NS


def utc_text(ns: float) -> str:
    """A time of a clock that counts ns since 1970, to the second: `2026-03-05 08:40:00 UTC`."""
    return f"{datetime.fromtimestamp(int(ns) // 1_000_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def time_text(ns: float, sign: str = "") -> str:
    """A time of a sentence in 4 significant digits and a unit that fits; `sign` is + or nothing."""
    if ns == 0:
        return "0 ms"
    length, unit = next((length, unit) for least, length, unit in _TIMES if abs(ns) >= least)
    return f"{significant(ns / length, sign)} {unit}"
