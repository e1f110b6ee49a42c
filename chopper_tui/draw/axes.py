"""Axes around data with ticks at even numbers, and curves between them, drawn by plotext.

A chart's cost is bounded by its canvas, not by its data: plotext makes a point of each cell
that a line crosses, outside of the canvas too, and its work grows with the points that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, takewhile
from math import ceil, floor, log10
from threading import Lock
from typing import Any, Final

import numpy as np
from msgspec import Struct

from chopper_core.model.units import is_on_a_clock, moment_text
from chopper_core.render.glyphs import Glyphs
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.grouping import distinct, quantile_of, run_mask

_TIME_GAP: Final = 3
"""Cells between the labels of a time axis."""
_CLOCK_STEPS: Final = tuple(
    seconds * 1_000_000_000
    for seconds in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600,
                    43200, 86400)
)  # fmt: skip
"""ns between ticks on a clock."""
_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_MIN_SPAN: Final = 0.1
"""Share of its far end that an axis of a signal spans at least: less is noise drawn large."""

_MAX_DECIMALS: Final = 6
_MAX_WRITTEN_OUT: Final = 1e15
"""Numbers from here on, and those with more decimals, have an exponent."""
_POINTS_PER_CELL: Final = 8
"""Points of a curve per column of the canvas: the ends and extremes of its two halves."""
_ASCII_AXES: Final = str.maketrans("┤│└┬─", "+|++-")
_PLOTEXT: Final = Lock()
"""plotext draws on one figure for the whole process."""

Bounds = tuple[float, float]
Ticks = tuple[Sequence[float], Sequence[str]]


class Curve(Struct, frozen=True, eq=False):
    """Points in the order in which they are joined; all of them are known."""

    x: Float64
    y: Float64
    marker: str
    is_joined: bool = True
    filled_to: Float64 | None = None
    """The other edge of a band whose first edge is `y`."""


def plotted(
    curves: Sequence[Curve],
    size: tuple[int, int],
    bounds: tuple[Bounds, Bounds],
    ticks: tuple[Ticks, Ticks],
    glyphs: Glyphs,
    check: Callable[[], None],
) -> list[str]:
    """The rows of a canvas with its axes: y at the left, x below if it has ticks.

    `check` raises Cancelled once the result is no longer wanted.
    """
    import plotext

    width, height = size
    drawn = [_on_canvas(curve, width, bounds) for curve in curves]
    with _PLOTEXT:
        check()
        figure: Any = plotext.figure
        plotext.terminal.limit(False, False)
        figure.clear()
        figure.theme("colorless")
        figure.plot_size(width, height)
        figure.axes(False)
        figure.axes(True, axis="y", side="left")
        if ticks[0][0]:
            figure.axes(True, axis="x", side="lower")
        for axis, ends, (places, texts) in zip("xy", bounds, ticks, strict=True):
            figure.ruler(axis).lim(0, 1)
            figure.ruler(axis).ticks(_placed(np.array(places), ends).tolist(), list(texts))
        for x, y, other, curve in drawn:
            check()
            signal = figure.signal(x, y, marker=curve.marker)
            if other is not None:
                signal.fill(figure.signal(x, other, marker=curve.marker))
            elif curve.is_joined:
                signal.lines()
            figure.draw(signal)
        check()
        text: str = figure.build().string(colorless=True)
    rows = [row.ljust(width)[:width] for row in text.split("\n")[:height]]
    rows += [" " * width] * (height - len(rows))
    return [row.translate(_ASCII_AXES) for row in rows] if glyphs.is_ascii else rows


def _on_canvas(
    curve: Curve, width: int, bounds: tuple[Bounds, Bounds]
) -> tuple[list[float], list[float], list[float] | None, Curve]:
    """A curve as shares of the canvas, without the points that can't be seen."""
    x, y = _placed(curve.x, bounds[0]), _placed(curve.y, bounds[1])
    kept = _kept_points(x, y, width)
    other = curve.filled_to
    edge = None if other is None else _placed(other, bounds[1])[kept].tolist()
    return x[kept].tolist(), y[kept].tolist(), edge, curve


def _placed(numbers: Float64, ends: Bounds) -> Float64:
    """Numbers as shares of an axis, 0 to 1; in its middle where that has no length."""
    low, high = ends
    if high <= low:
        return np.full(len(numbers), 0.5)
    return np.clip((numbers - low) / (high - low), 0.0, 1.0)


def _kept_points(x: Float64, y: Float64, width: int) -> Index:
    """Of more points than a canvas can show: first, last, lowest, highest of each half cell."""
    most = _POINTS_PER_CELL * width
    if len(x) <= most:
        return np.arange(len(x))
    columns = np.floor(x * 2 * width).astype(np.intp)
    is_new = run_mask(columns)
    run, begins = np.cumsum(is_new), np.flatnonzero(is_new)
    ends = np.append(begins[1:], len(x)) - 1
    by_height = np.lexsort((y, run))
    kept = distinct(np.concatenate([begins, ends, by_height[begins], by_height[ends]]))
    # A curve that runs to and fro is thinned.
    return kept[:: -(-len(kept) // most)]


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from `low` to `high`, at most `most` of them.

    With `whole` they are integers, as of iterations.
    """
    if high <= low:
        return [low]
    step = step_of(low, high, most, whole=whole)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def step_of(low: float, high: float, most: int, *, whole: bool = False) -> float:
    """The distance between even numbers of which at most `most` lie in a range."""
    rough = (high - low) / max(most, 1)
    size = 10.0 ** floor(log10(rough)) if rough > 0 else 1.0
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
    """The numbers of ticks, with as many decimals as tell them apart."""
    step = places[1] - places[0] if len(places) > 1 else 0.0
    if step <= 0:
        return [f"{place:.4g}" for place in places]
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


def around(low: float, high: float) -> tuple[float, float]:
    """The range of an axis around data that lie from `low` to `high`: flat ones in its middle."""
    least = _MIN_SPAN * max(abs(low), abs(high)) or 1.0
    spare = max(least - (high - low), 0.0) / 2
    return low - spare, high + spare
