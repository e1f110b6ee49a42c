"""Axes with ticks at even numbers, the scales of values, and charts in units that suit them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count, takewhile
from math import ceil, floor, isfinite, log10
from operator import is_
from typing import Any, Final, TypeVar, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.charts import (
    BarChart,
    Composition,
    GpuLanes,
    HeatMap,
    Icicle,
    LineChart,
    SignalRows,
    StepBars,
)
from chopper_core.model.units import LONG_TIMES, Unit, is_on_a_clock, moment_text, unit_of_file
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import quantile_of
from chopper_tui.draw.pieces import Line

_TIME_GAP: Final = 3
_LEAST_EXPONENT: Final = -307
_CLOCK_STEPS: Final = tuple(
    seconds * 1_000_000_000
    for seconds in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600,
                    43200, 86400)
)  # fmt: skip
"""ns between ticks on a clock."""
_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_MIN_TICKS: Final = 3
_MAX_CUT: Final = 0.6
"""The lower end of an axis as a share of its upper end, from which areas don't begin at zero."""
_MIN_SPAN: Final = 0.1
"""Share of its far end that an axis of a signal spans at least: less is noise drawn large."""
_MAX_DECIMALS: Final = 6
_MAX_WRITTEN_OUT: Final = 1e15
"""Numbers from here on, and those with more decimals, have an exponent."""
ASCII: Final = str.maketrans("┤│└┬─", "+|++-")


class Axis(Struct, frozen=True):
    """The ends of an axis, and its ticks with their labels."""

    low: float
    high: float
    places: Sequence[float]
    texts: Sequence[str]

    @classmethod
    def over(
        cls, low: float, high: float, most: int, unit: str = "", *, whole: bool = False
    ) -> Axis:
        most = max(most, 2)
        # The next shorter step has up to six ticks more.
        tried = (ticks(low, high, each, whole=whole) for each in range(most, most + 7))
        places = next((each for each in tried if len(each) >= _MIN_TICKS), None)
        places = places or ticks(low, high, most, whole=whole)
        texts = labels(places)
        return cls(low, high, places, [*texts[:-1], f"{texts[-1]} {unit}".rstrip()])

    def share(self, number: float) -> float:
        """The place of a number, 0 to 1; in the middle of an axis without a length."""
        return (number - self.low) / (self.high - self.low) if self.high > self.low else 0.5

    @property
    def label_width(self) -> int:
        return max(map(len, self.texts), default=0)

    def line(self, cells: int) -> str:
        line = ""
        for text, at in self.fitting(cells):
            line = line.ljust(at) + text
        return line[:cells]

    def fitting(self, cells: int) -> list[tuple[str, int]]:
        """The labels that have room in so many cells, and where each begins: the last one, which
        has the unit, and those that leave a gap to the one before."""
        placed = []
        for place, text in zip(self.places, self.texts, strict=True):
            middle = round(self.share(place) * (cells - 1))
            placed.append((text, max(min(middle - len(text) // 2, cells - len(text)), 0)))
        kept: list[tuple[str, int]] = []
        end, last = -1, placed[-1:]
        for text, at in placed[:-1]:
            if at > end + bool(kept) and at + len(text) < last[0][1]:
                kept.append((text, at))
                end = at + len(text)
        return kept + last

    def ruler(self, cells: int, is_ascii: bool) -> str:
        line = ["─"] * cells
        for place in self.places:
            line[min(max(round(self.share(place) * (cells - 1)), 0), cells - 1)] = "┬"
        return _spelled("└" + "".join(line), is_ascii)

    def upright(self, lines: int, width: int, is_ascii: bool) -> list[str]:
        texts = [""] * lines
        for place, text in zip(self.places, self.texts, strict=True):
            row = floor((1 - self.share(place)) * lines)
            texts[min(max(row, 0), lines - 1)] = text
        return [_spelled(text.rjust(width)[:width] + "│┤"[bool(text)], is_ascii) for text in texts]


def _spelled(text: str, is_ascii: bool) -> str:
    return text.translate(ASCII) if is_ascii else text


def axis_shares(numbers: Float64, axis: Axis) -> Float64:
    """Numbers as shares of an axis, 0 to 1; in its middle where that has no length."""
    if axis.high <= axis.low:
        return np.where(np.isfinite(numbers), 0.5, np.nan)
    return np.clip((numbers - axis.low) / (axis.high - axis.low), 0.0, 1.0)


def framed_lines(lines: Sequence[Line], axis: Axis, width: int, is_ascii: bool) -> list[Line]:
    uprights = axis.upright(len(lines), width, is_ascii)
    return [[(left, "dim"), *line] for left, line in zip(uprights, lines, strict=True)]


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from `low` to `high`, at most `most`."""
    if high <= low:
        return [low]
    step = axis_step(low, high, most, whole=whole)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def axis_step(low: float, high: float, most: int, *, whole: bool = False) -> float:
    rough = (high - low) / max(most, 1)
    # Below the smallest normal number a power of ten is 0.
    size = 10.0 ** max(floor(log10(rough)), _LEAST_EXPONENT) if rough > 0 else 1.0
    for factor in (*_STEPS, 20.0, 50.0):
        step = max(factor * size, 1.0) if whole else factor * size
        if floor(high / step + 1e-9) - ceil(low / step - 1e-9) < max(most, 1):
            return step
    return 100.0 * size


def time_step(from_ns: int, to_ns: int, cells: int) -> tuple[int, int]:
    """Round ns between the ticks of so many cells of time, and the decimals of ms they need."""
    steps: Iterator[int] = (factor * 10**size for size in count() for factor in (1, 2, 5))
    if is_on_a_clock(to_ns):
        days = (_CLOCK_STEPS[-1] * factor for factor in count(2))
        steps = chain(takewhile(_CLOCK_STEPS[0].__gt__, steps), _CLOCK_STEPS, days)
    for step in steps:
        decimals = -1 if step >= 10**9 else 0 if step >= 10**6 else 3 if step >= 10**3 else 6
        wide = len(moment_text(to_ns, decimals, to_ns)) + _TIME_GAP
        if step * cells >= wide * (to_ns - from_ns):
            return step, decimals
    raise AssertionError("steps grow without end")


def labels(places: list[float]) -> list[str]:
    step = places[1] - places[0] if len(places) > 1 else 0.0
    if step <= 0:
        return [f"{place:.0f}" if 1e3 <= abs(place) < 1e9 else f"{place:.4g}" for place in places]
    decimals = max(-floor(log10(step) + 1e-9), 0)
    if decimals > _MAX_DECIMALS or max(abs(places[0]), abs(places[-1])) >= _MAX_WRITTEN_OUT:
        return [f"{place:.3g}" for place in places]
    return [f"{place:.{decimals}f}" for place in places]


def scale_ends(known: Float64) -> tuple[float, float]:
    """The ends of a scale: of all values, or of the middle 90 % where a few lie far out."""
    if not len(known):
        return 0.0, 1.0
    least, low, high, most = quantile_of(known, [0.0, 0.05, 0.95, 1.0]).tolist()
    span = high - low
    if span <= 0:
        return least, most
    return (
        low if low - least > span else least,
        high if most - high > span else most,
    )


def begins_at(text: str) -> str:
    """What a title says of a value axis that doesn't begin at zero: where it begins."""
    return f", axis from {text}"


def area_ends(low: float, high: float) -> tuple[float, float]:
    """The ends of an axis whose areas begin at zero, unless what is below them would be most of it:
    then the title of its chart says where they begin."""
    return (min(low, 0.0), high) if low < _MAX_CUT * high else (low, high)


def around(low: float, high: float) -> tuple[float, float]:
    least = _MIN_SPAN * max(abs(low), abs(high)) or 1.0
    spare = max(least - (high - low), 0.0) / 2
    return low - spare, high + spare


T = TypeVar("T")
_SHORT_MS: Final = 0.1
_LONG_MS: Final = 1e5
"""Charts have ms from the first to the second; figures in them have up to five digits."""
_MAX_FIGURE: Final = 1e60


def drawable(value: T) -> T:
    """A chart, or a part of one, whose figures can be computed with.

    Infinite ones are unknown, those beyond 10^60 are drawn there, those below 10^-60 at 0: sums,
    differences and quotients of them are finite. An end of an axis that is unknown is 0.
    """
    new: Any = value
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        size = np.abs(value)
        if (size > _MAX_FIGURE).any() or ((size < 1 / _MAX_FIGURE) & (size > 0)).any():
            known = np.where(np.isinf(value), np.nan, value)
            new = np.clip(np.where(size < 1 / _MAX_FIGURE, 0.0, known), -_MAX_FIGURE, _MAX_FIGURE)
    elif isinstance(value, float):
        is_none = not isfinite(value) or 0 < abs(value) < 1 / _MAX_FIGURE
        new = 0.0 if is_none else min(max(value, -_MAX_FIGURE), _MAX_FIGURE)
    elif isinstance(value, tuple) and not (value and isinstance(value[-1], str)):
        items = tuple(map(drawable, value))
        new = value if all(map(is_, items, value)) else items
    elif isinstance(value, Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        other = {name: drawable(each) for name, each in fields.items()}
        changed = {name: each for name, each in other.items() if each is not fields[name]}
        new = replace(value, **changed) if changed else value
    return cast("T", new)


def in_fitting_units(chart: Any) -> Any:
    """A chart in the units that suit the largest figure of each axis: GB of many bytes, minutes of
    a long run."""
    changes: dict[str, Any] = {}
    if isinstance(chart, LineChart | SignalRows):
        ends = [each for each in chart.x if np.size(each)]
        length, unit = _fitting_unit(chart.x_unit, ends)
        x = tuple(np.asarray(each) / length if np.ndim(each) else each / length for each in chart.x)
        changes = {"x": x, "x_unit": unit} if length != 1 else {}
    if isinstance(chart, GpuLanes) and chart.steps is not None:
        return replace(chart, steps=in_fitting_units(chart.steps))
    figures = _figures_of(chart)
    if not figures or (isinstance(chart, BarChart) and chart.unit == Unit.NS):
        return replace(chart, **changes) if changes else chart
    length, unit = _fitting_unit(chart.unit, figures)
    if isinstance(chart, BarChart) and chart.unit == "ms" and length > 1:
        length, unit = 1e-6, "ns"  # each bar in the unit that suits it
    if length != 1:
        changes |= _divided(chart, length) | {"unit": unit}
        named, own = chart.title, f" {chart.unit}"
        changes["title"] = f"{named.removesuffix(own)} {unit}" if named.endswith(own) else named
    return replace(chart, **changes) if changes else chart


def _figures_of(chart: Any) -> list[Any]:
    """The figures along the axis of a chart that has one unit; bars and wholes are sums."""
    if isinstance(chart, LineChart):
        return [each.numbers for each in chart.series]
    if isinstance(chart, BarChart | Composition):
        return [np.nansum([each.numbers for each in chart.series], 0)]
    if isinstance(chart, SignalRows | HeatMap | StepBars):
        return [chart.numbers]
    return [row.numbers for row in chart.rows] if isinstance(chart, Icicle) else []


def _divided(chart: Any, length: float) -> dict[str, Any]:
    if isinstance(chart, LineChart | BarChart | Composition):
        parts = (replace(each, numbers=each.numbers / length) for each in chart.series)
        return {"series": tuple(parts)}
    if isinstance(chart, Icicle):
        return {"rows": tuple(replace(row, numbers=row.numbers / length) for row in chart.rows)}
    means = {"means": chart.means / length} if isinstance(chart, SignalRows) else {}
    return {"numbers": chart.numbers / length, **means}


def _fitting_unit(unit: str, figures: Sequence[Any]) -> tuple[float, str]:
    """What figures in a unit are divided by to be in the unit that suits the largest, and that."""
    sizes = (float(np.nanmax(np.abs(each), initial=0.0)) for each in figures)
    largest = max(sizes, default=0.0)
    if unit == "ms":
        return _time_unit(largest)
    if unit == Unit.NS:
        length, unit = _time_unit(largest / 1e6)
        return length * 1e6, unit
    scale = unit_of_file(unit).scale(largest, is_whole=False)
    return (scale.divisor, scale.text) if largest else (1.0, unit)


def _time_unit(longest: float) -> tuple[float, str]:
    """The same of figures in ms."""
    if 0 < longest < _SHORT_MS:
        return 1e-3, "µs"
    if longest < _LONG_MS:
        return 1.0, "ms"
    return next((ns / 1e6, unit) for least, ns, unit in LONG_TIMES if longest * 1e6 >= least)
