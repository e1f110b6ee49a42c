"""A roofline: roofs as lines and rows as points, on two logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.charts import Roofline
from chopper_core.render.cells import beginning, clean, wrapped
from chopper_core.render.glyphs import Glyphs
from chopper_core.util.arrays import Float64
from chopper_tui.draw.axes import Axis
from chopper_tui.draw.canvas import Canvas, Lens
from chopper_tui.draw.drawer import Drawer
from chopper_tui.draw.pieces import Line, short_number
from chopper_tui.draw.plot import Curve, plotted

_LINES: Final = 12
"""Lines that the picture wants, with its axis and the sentence beneath."""
_SENTENCE_FROM: Final = ((16, 2), (9, 1))
"""Lines of the picture from which the sentence has how many."""
_SIZES: Final = {"unicode": "·•●", "ascii": ".oO"}
_LARGE: Final = (0.02, 0.1)
"""Parts of the time from which a point is larger."""
_SELECTED: Final = {"unicode": "◆", "ascii": "@"}
_MEASURED: Final = {"unicode": "○", "ascii": "+"}
_MARGIN: Final = 0.15
"""Decades left around points and ridges."""
_LEAST_DECADES: Final = 1.5
_MAX_ZOOM: Final = 32.0
_MOST_DECADES: Final = 4.5
"""Of rates; points below lie on the lower edge."""


class RooflineDrawer(Drawer[Roofline]):
    """The title with a legend, the picture, its axes, and the cursor's row in a sentence."""

    follows_cursor = True

    def title(self, chart: Roofline, width: int, glyphs: Glyphs) -> list[Line]:
        """The sizes of points, and whether some are of counters."""
        small, large = (f"{100 * share:.0f} %" for share in _LARGE)
        first, second, third = list(_SIZES[glyphs.name])
        legend = f"  {first} < {small} of time  {second}  {third} from {large}"
        if np.isfinite(chart.measured_tflops).any():
            legend += f"  {_MEASURED[glyphs.name]} by counters"
        return [[(clean(chart.title), "strong"), (f", TFLOP/s by FLOP/B{legend}", "dim")]]

    def body_lines(self, chart: Roofline) -> int:
        return _LINES if _has_points(chart) else 1

    def fitted(self, chart: Roofline, width: int, glyphs: Glyphs, lines: int) -> int:
        """All; without points, those that say so."""
        return lines if _has_points(chart) else 2

    def max_zoom(self, chart: Roofline) -> float | None:
        return _MAX_ZOOM if _has_points(chart) else None

    def seen(self, chart: Roofline, lens: Lens) -> Roofline:
        """A part of the intensities, with the rates of the points there."""
        return replace(chart, seen=lens.range)

    def body(self, chart: Roofline, on: Canvas) -> None:
        if not _has_points(chart):
            on.add([("no row has FLOPs and bytes", "dim")])
            return
        sentence = next((lines for least, lines in _SENTENCE_FROM if on.height >= least), 0)
        size = on.width, max(on.left - sentence, 3)
        peaks = [(name, log10(peak)) for name, peak in chart.peaks if peak > 0]
        tbps = chart.memory_tbps or 0.0
        slope = log10(tbps) if tbps > 0 else None
        x_axis, y_axis = _axes(chart, peaks, slope)
        roofs, named = _roofs(peaks, slope, x_axis, y_axis, on.glyphs)
        # Below the memory's roof there are few points.
        at = x_axis.low + 0.1 * (x_axis.high - x_axis.low)
        line = (y_axis.high - y_axis.low) / size[1]
        texts = (
            []
            if slope is None
            else [(at, at + slope - 1.5 * line, f"HBM {short_number(tbps)} TB/s")]
        )
        curves = [*roofs, *_points(chart, x_axis, on)]
        on.lines += plotted(curves, size, x_axis, y_axis, on.glyphs, on.check, named, texts)
        on.lines += _sentence(chart, on, sentence)


def _sentence(chart: Roofline, on: Canvas, room: int) -> list[Line]:
    """The selected row in words, always in as many lines."""
    if not 0 <= on.row < len(chart.labels) or not room:
        return [[]] * room
    has_point = np.isfinite(_places(chart.intensity, chart.tflops)[on.row]).all()
    width = max(on.width - 2, 8)
    texts = wrapped(chart.sentences[on.row], width) or [""]
    texts[room - 1 :] = [beginning(" ".join(texts[room - 1 :]), width, on.glyphs)]
    marks = [f"{_SELECTED[on.glyphs.name] if has_point else ' '} ", *["  "] * room]
    lines: list[Line] = [
        [(mark, "alert"), (text, "text")] for mark, text in zip(marks, texts, strict=False)
    ]
    return [*lines, *([[]] * room)][:room]


def _places(intensity: Float64, tflops: Float64) -> Float64:
    """The logarithms of points; NaN where one of both is unknown."""
    both = np.stack([intensity, tflops], axis=1)
    is_known = (np.isfinite(both) & (both > 0)).all(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        places: Float64 = np.log10(np.where(is_known, both, np.nan))
    return places


def _all_places(chart: Roofline) -> Float64:
    """The places of all points, modelled and measured, that are known."""
    model = _places(chart.intensity, chart.tflops)
    both = np.concatenate([model, _places(chart.measured_intensity, chart.measured_tflops)])
    known: Float64 = both[np.isfinite(both[:, 0])]
    return known


def _has_points(chart: Roofline) -> bool:
    return len(_all_places(chart)) > 0


def _axes(
    chart: Roofline, peaks: Sequence[tuple[str, float]], slope: float | None
) -> tuple[Axis, Axis]:
    """The axes around all points and the ridges of the roofs."""
    points, roofs = _all_places(chart), [peak for _, peak in peaks]
    ridges = [] if slope is None else [peak - slope for peak in roofs]
    xs = [*points[:, 0], *ridges]
    left, right = _spread(min(xs) - _MARGIN, max(xs) + _MARGIN)
    left, right = (left + share * (right - left) for share in chart.seen)
    seen = points[(left <= points[:, 0]) & (points[:, 0] <= right)]
    ys = [*seen[:, 1], *roofs] or [*points[:, 1]]
    bottom, top = _spread(max(min(ys), max(ys) - _MOST_DECADES) - _MARGIN, max(ys) + _MARGIN)
    return _log_axis(left, right), _log_axis(bottom, top)


def _spread(low: float, high: float) -> tuple[float, float]:
    more = max(_LEAST_DECADES - (high - low), 0.0) / 2
    return low - more, high + more


def _log_axis(low: float, high: float) -> Axis:
    """Ticks at the powers of ten; where they are few, at twice and five times them."""
    decades = range(floor(low), ceil(high) + 1)
    factors = (1.0,) if floor(high) - ceil(low) >= 2 else (1.0, 2.0, 5.0)
    marks = [factor * 10.0**power for power in decades for factor in factors]
    marks = [mark for mark in marks if low <= log10(mark) < high]
    return Axis(low, high, [*map(log10, marks)], [*map(short_number, marks)])


def _roofs(
    peaks: Sequence[tuple[str, float]], slope: float | None, x: Axis, y: Axis, glyphs: Glyphs
) -> tuple[list[Curve], Axis]:
    """The memory's roof up to the highest peak, each peak from its ridge on, and their names."""
    curves = []
    marks = ("/", "-") if glyphs.is_ascii else ("braille", "braille")
    if slope is not None:
        highest = max((peak for _, peak in peaks), default=y.high)
        begin, end = max(x.low, y.low - slope), min(x.high, highest - slope)
        if begin < end:
            line = np.linspace(begin, end, 99)
            curves.append(Curve(line, line + slope, "dim", marks[0], is_joined=True))
    shown = [(name, peak) for name, peak in peaks if y.low <= peak <= y.high]
    for _, peak in shown:
        begin = max(x.low, peak - slope) if slope is not None else x.low
        if begin < x.high:
            ends = np.array([begin, x.high])
            curves.append(Curve(ends, np.full(2, peak), "dim", marks[1], is_joined=True))
    names = [f" {name} {short_number(10**peak)}" for name, peak in shown]
    return curves, Axis(y.low, y.high, [peak for _, peak in shown], names)


def _points(chart: Roofline, x: Axis, on: Canvas) -> list[Curve]:
    """Measured points, then modelled ones, the largest last; the selected row over all others."""
    model = _places(chart.intensity, chart.tflops)
    measured = _places(chart.measured_intensity, chart.measured_tflops)
    sizes = np.searchsorted(_LARGE, np.nan_to_num(chart.share), "right")
    is_selected = np.arange(len(sizes)) == on.row
    name = on.glyphs.name
    groups = [
        (measured, np.ones(len(sizes), bool), "second", _MEASURED[name]),
        *((model, (sizes == n) & ~is_selected, "accent", _SIZES[name][n]) for n in range(3)),
        (measured, is_selected, "second", _MEASURED[name]),
        (model, is_selected, "alert", _SELECTED[name]),
    ]
    curves = []
    for places, chosen, ink, mark in groups:
        own = places[chosen & (places[:, 0] >= x.low) & (places[:, 0] <= x.high)]
        if len(own):
            curves.append(Curve(own[:, 0], own[:, 1], ink, mark))
    return curves
