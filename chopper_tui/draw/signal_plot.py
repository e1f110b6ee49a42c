"""The chart of a signal over time, drawn by plotext as characters in named inks."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor, log10
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import METRICS
from chopper_core.model.signals import Signal
from chopper_core.model.units import Unit
from chopper_core.query.children import SignalChart
from chopper_core.render.cells import ColumnScale, scale_of
from chopper_core.render.glyphs import Glyphs
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import quantiles_along
from chopper_tui.draw import axes
from chopper_tui.draw.drawer import drawable, wanted
from chopper_tui.draw.pieces import Line, inked

_LEAST_PERCENT: Final = 1.0
"""Span of an axis of shares, at least."""
_LINES_PER_TICK: Final = 3
_TICK_GAP: Final = 6
"""Cells between labels of the time axis."""
_LABEL: Final = 4
"""Cells that the labels of the value axis have at least, so that charts stand under each other."""
_TALL: Final = 6
"""From this height on the time axis has labels of its own."""

_HEAVY: Final = str.maketrans("─┬└┴", "━┯┕┷")
_HEAVY_ASCII: Final = str.maketrans("-", "=")


def axis_width(signal: Signal) -> int:
    """Cells of the labels of the value axis and of the axis itself."""
    return max(len(signal.scale.number(signal.high)), _LABEL) + 1


def bins_for(signal: Signal, width: int, glyphs: Glyphs) -> int:
    """How many bins of time a chart of this width can show."""
    return max(width - axis_width(signal), 1) * (2 if not glyphs.is_ascii else 1)


def headline(chart: SignalChart, width: int, glyphs: Glyphs) -> str:
    """The signal of the chart and its time, as far as there is room."""
    scale = _time_scale(chart)
    dash = "–" if not glyphs.is_ascii else "-"
    signal = chart.signal
    shown, scope = (
        f"{scale.cell(begin)}{dash}{scale.cell(end)}"
        for begin, end in ((chart.start_ns, chart.end_ns), chart.scope_ns)
    )
    parts = [
        f"{signal.title} {signal.scale.text}",
        f"{shown} {scale.unit}",
    ]
    if chart.is_zoomed:
        is_part = chart.scope_ns[0] <= chart.start_ns and chart.end_ns <= chart.scope_ns[1]
        parts[1] = f"{shown} of {scope} {scale.unit}" if is_part else f"{parts[1]} (scope {scope})"
    if len(chart.gpus) > 1:
        parts[0] += f" of {len(chart.gpus)} GPUs"
    known = chart.values[np.isfinite(chart.values)]
    if len(known):
        parts += [
            f"{word} {signal.scale.number(float(figure))}"
            for word, figure in (("mean", known.mean()), ("min", known.min()), ("max", known.max()))
        ]
    else:
        parts.append("not known here")
    if len(chart.gpus) > 1:
        parts.append("(median, range shaded)")
    while len("  ".join(parts)) > width and len(parts) > 1:
        parts.pop()
    return "  ".join(parts)


def measured(chart: SignalChart, begin: float, end: float) -> str:
    """The figures of a part of the time that is shown, from one share of it to another."""
    span, bins = chart.end_ns - chart.start_ns, chart.values.shape[1]
    first = min(floor(begin * bins + 0.5), bins - 1)
    values = chart.values[:, first : max(floor(end * bins + 0.5), first + 1)]
    known = values[np.isfinite(values)]
    scale = _time_scale(chart)
    low, high = (chart.start_ns + share * span for share in (begin, end))
    text = f"{scale.cell(low)} to {scale.cell(high)} {scale.unit}: {scale.cell(high - low)}"
    text += f" {scale.unit}, {chart.signal.title} "
    if not len(known):
        return text + "unknown there"
    ends = {"mean": known.mean(), "min": known.min(), "max": known.max()}
    figures = (f"{name} {chart.signal.scale.number(float(each))}" for name, each in ends.items())
    return f"{text}{', '.join(figures)} {chart.signal.scale.text}"


def _time_scale(chart: SignalChart) -> ColumnScale:
    """The unit of the chart's end, with as many decimals as its span deserves."""
    scale = scale_of(METRICS["start_ns"], chart.end_ns)
    span = max((chart.end_ns - chart.start_ns) / scale.divisor, 1e-3)
    return replace(scale, decimals=min(max(2 - floor(log10(span)), 0), scale.decimals))


def draw(
    chart: SignalChart,
    width: int,
    height: int,
    glyphs: Glyphs,
    *,
    time_axis: bool = True,
    check: Callable[[], None] = wanted,
) -> list[Line]:
    """The chart as `height` lines of `width` cells: the median over the band of all GPUs.

    `check` raises Cancelled once the result is no longer wanted.
    """
    if not len(chart.values):  # No GPU of the scope has the signal.
        return [[(" " * width, "text")]] * height
    time_axis = time_axis and height >= _TALL
    chart = replace(chart, values=drawable(chart.values))

    def rows(line: Float64, filled_to: Float64 | None = None) -> list[str]:
        return _rows(chart, line, filled_to, width, height, time_axis, glyphs, check)

    line = rows(quantiles_along(chart.values, (0.5,))[0])
    if len(chart.gpus) <= 1:
        band = [" " * len(row) for row in line]
    else:
        band = rows(np.fmax.reduce(chart.values), np.fmin.reduce(chart.values))
    canvas = height - 2 if time_axis else height
    axis = axis_width(chart.signal)
    begin, end = _scope_cells(chart, width - axis)
    inside = range(axis + begin, axis + end)
    if time_axis and chart.is_zoomed:
        line[canvas] = _marked(line[canvas], inside, glyphs)
    return [
        _merged(*rows, axis, inside) if y < canvas else [(rows[0], "dim")]
        for y, rows in enumerate(zip(line, band, strict=True))
    ]


def _scope_cells(chart: SignalChart, cells: int) -> tuple[int, int]:
    """The cells of the scope's part of the time that is shown."""
    length = max(chart.end_ns - chart.start_ns, 1)
    begin, end = ((edge - chart.start_ns) * cells / length for edge in chart.scope_ns)
    return max(floor(begin), 0), min(max(ceil(end), floor(begin) + 1), cells)


def _marked(axis: str, inside: range, glyphs: Glyphs) -> str:
    """The time axis, heavier along the scope's part."""
    heavy = _HEAVY if not glyphs.is_ascii else _HEAVY_ASCII
    return "".join(
        char.translate(heavy) if place in inside else char for place, char in enumerate(axis)
    )


def _rows(
    chart: SignalChart,
    line: Float64,
    filled_to: Float64 | None,
    width: int,
    height: int,
    time_axis: bool,
    glyphs: Glyphs,
    check: Callable[[], None],
) -> list[str]:
    known = np.flatnonzero(np.isfinite(line))
    if not len(known):
        return [" " * width] * height
    last = chart.values.shape[1] - 1
    low, high = value_range(chart)
    places = axes.ticks(low, high, max(height // _LINES_PER_TICK, 2))
    room = axis_width(chart.signal) - 1
    divisor = chart.signal.scale.divisor
    texts = axes.labels([place / divisor for place in places])
    values = places, [text.rjust(room)[:room] for text in texts]
    times = _time_ticks(chart, last) if time_axis else ([], [])
    marker = "braille" if not glyphs.is_ascii else "*"
    edge = None if filled_to is None else filled_to[known]
    curve = axes.Curve(known.astype(np.float64), line[known], marker, filled_to=edge)
    bounds = (0.0, float(max(last, 1))), (low, high)
    return axes.plotted([curve], (width, height), bounds, (times, values), glyphs, check)


def value_range(chart: SignalChart) -> tuple[float, float]:
    """The ends of the value axis: around the values of all its GPUs in the time that it shows."""
    known = chart.values[np.isfinite(chart.values)]
    if not len(known):
        return chart.signal.low, chart.signal.high
    low, high = axes.around(float(known.min()), float(known.max()))
    if chart.signal.unit is Unit.PERCENT:
        # Less than a hundredth of the whole is noise, and its ticks have no decimals to show it.
        spare = max(_LEAST_PERCENT - (high - low), 0.0) / 2
        low, high = low - spare, high + spare
        return max(low, 0.0), max(min(high, 100.0), float(known.max()))
    return max(low, min(float(known.min()), 0.0)), high


def _time_ticks(chart: SignalChart, last: int) -> tuple[list[float], list[str]]:
    scale = _time_scale(chart)
    begin, end = chart.start_ns / scale.divisor, chart.end_ns / scale.divisor
    longest = len(f"{end:.0f}") + len(scale.unit) + _TICK_GAP
    places = axes.ticks(begin, end, max(last // (2 * longest), 2))
    labels = axes.labels(places)
    if labels:
        labels[-1] += f" {scale.unit}"
    return [(place - begin) / max(end - begin, 1e-12) * last for place in places], labels


def _merged(line: str, band: str, axis: int, inside: range) -> Line:
    """One row: the line where it passes, else the band; the axis and other scopes are dim."""
    blank = " \u2800"

    def ink(position: int) -> str:
        if position < axis:
            return "dim"
        if position not in inside:
            return "dim" if line[position] not in blank else "shade"
        return "shade" if line[position] in blank else "accent"

    chars = [b if a in blank else a for a, b in zip(line, band, strict=True)]
    return inked(chars, [*map(ink, range(len(chars)))])
