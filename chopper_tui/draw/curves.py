"""Line charts and points on even axes."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.charts import BarChart, LineChart, Series
from chopper_core.render.cells import clean
from chopper_core.render.glyphs import Glyphs
from chopper_tui.draw.axes import Axis
from chopper_tui.draw.bars import BarDrawer
from chopper_tui.draw.canvas import MAX_ZOOM, Canvas, Lens, legend_entries, title_lines
from chopper_tui.draw.drawer import Drawer
from chopper_tui.draw.pieces import SERIES_INKS, Line, short_number
from chopper_tui.draw.plot import LINE, Curve, plotted

_MARKERS: Final = {"unicode": "●▲■◆○△□◇", "ascii": "*+xo@%&$"}
_MARKS_ON_A_CURVE: Final = 6
_LINES: Final = 14
_MIN_LINES: Final = 7
"""Lines below another chart, with the axis."""
_MAX_BARS: Final = 2
"""Points of a curve up to which it is drawn as bars: a line between two says nothing."""
_LINES_PER_TICK: Final = 3
_CELLS_PER_TICK: Final = 10


class LineDrawer(Drawer[LineChart]):
    """Curves below a legend of their markers; bars where they have too few points."""

    _bars: Final = BarDrawer()

    def title(self, chart: LineChart, width: int, glyphs: Glyphs) -> list[Line]:
        """With the markers of the series, unless they are too many to distinguish."""
        if bars := _as_bars(chart):
            return self._bars.title(bars, width, glyphs)
        markers = _MARKERS[glyphs.name]
        names = [each.name for each in chart.series]
        names = names if 1 < len(names) <= len(markers) else []
        legend = legend_entries(names, markers, SERIES_INKS)
        return title_lines(chart.title, chart.unit, width, legend)

    def body_lines(self, chart: LineChart) -> int:
        """Any number; of bars, one each."""
        bars = _as_bars(chart)
        return _LINES if bars is None else self._bars.body_lines(bars)

    def lines(self, chart: LineChart, width: int, glyphs: Glyphs, *, is_below: bool = False) -> int:
        """Enough to see a shape, fewer below another chart; one per bar."""
        title = len(self.title(chart, width, glyphs))
        if bars := _as_bars(chart):
            return title + self._bars.body_lines(bars)
        return title + _MIN_LINES if is_below else _LINES

    def fitted(self, chart: LineChart, width: int, glyphs: Glyphs, lines: int) -> int:
        """All; of bars, those of the thickest."""
        bars = _as_bars(chart)
        return lines if bars is None else self._bars.fitted(bars, width, glyphs, lines)

    def body(self, chart: LineChart, on: Canvas) -> None:
        bars = _as_bars(chart)
        if bars is not None:
            self._bars.body(bars, on)
            return
        curves = _curves(chart, on.glyphs)
        if not curves:
            on.add([("no values to draw", "dim")])
            return
        x, y = (np.concatenate([getattr(curve, axis) for curve in curves]) for axis in "xy")
        size = on.width, max(on.left, 3)
        whole = bool((x == np.floor(x)).all())
        across = on.width // _CELLS_PER_TICK
        x_axis = Axis.over(
            x.min(), x.max(), across, chart.x_unit or clean(chart.x_title), whole=whole
        )
        y_axis = Axis.over(y.min(), y.max(), size[1] // _LINES_PER_TICK)
        on.lines += plotted(curves, size, x_axis, y_axis, on.glyphs, on.check)

    def max_zoom(self, chart: LineChart) -> float:
        return MAX_ZOOM

    def seen(self, chart: LineChart, lens: Lens) -> LineChart:
        known = np.concatenate([x[np.isfinite(x)] for x in chart.x]) if chart.x else np.zeros(0)
        if not len(known):
            return chart
        begin, end = lens.range
        low, span = float(known.min()), float(known.max() - known.min())
        kept = [(x >= low + begin * span) & (x <= low + end * span) for x in chart.x]
        return replace(
            chart,
            x=tuple(x[ok] for x, ok in zip(chart.x, kept, strict=True)),
            series=tuple(
                replace(each, numbers=each.numbers[ok])
                for each, ok in zip(chart.series, kept, strict=True)
            ),
        )


def _as_bars(picture: LineChart) -> BarChart | None:
    """A chart of at most two points per curve as bars; None where it has more."""
    known = [
        np.isfinite(x) & np.isfinite(each.numbers)
        for x, each in zip(picture.x, picture.series, strict=True)
    ]
    if picture.points or not known or not 0 < max(int(ok.sum()) for ok in known) <= _MAX_BARS:
        return None
    labels, numbers = [], []
    for x, each, ok in zip(picture.x, picture.series, known, strict=True):
        for place, number in zip(x[ok].tolist(), each.numbers[ok].tolist(), strict=True):
            where = f"{picture.x_title} {short_number(place)} {picture.x_unit}".strip()
            labels.append(f"{each.name}, {where}" if len(picture.series) > 1 else where)
            numbers.append(number)
    series = (Series(picture.title, np.array(numbers, np.float64)),)
    return BarChart(picture.title, picture.unit, tuple(labels), series)


def _curves(picture: LineChart, glyphs: Glyphs) -> list[Curve]:
    """The series: points, or lines with marks that tell them apart; one alone is filled."""
    curves: list[Curve] = []
    several = len(picture.series) > 1
    for number, (x, series) in enumerate(zip(picture.x, picture.series, strict=True)):
        known = np.isfinite(x) & np.isfinite(series.numbers)
        if not known.any():
            continue
        x, y = x[known], series.numbers[known]
        ink = SERIES_INKS[number % len(SERIES_INKS)]
        mark = _MARKERS[glyphs.name][number % len(_MARKERS[glyphs.name])]
        if picture.points:
            curves.append(Curve(x, y, ink, mark))
            continue
        line = mark if glyphs.is_ascii else LINE[glyphs.name]
        curves.append(Curve(x, y, ink, line, is_joined=True, is_filled=not several))
        if several and not glyphs.is_ascii:
            step = max(len(x) // _MARKS_ON_A_CURVE, 1)
            some = slice(number * step // len(picture.series), None, step)
            curves.append(Curve(x[some], y[some], ink, mark))
    return curves
