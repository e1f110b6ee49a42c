"""Line charts and points, drawn by plotext as characters in named inks, on even axes."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.charts import BarChart, LineChart, Series
from chopper_core.render.cells import cell_width, clean
from chopper_core.render.glyphs import Glyphs
from chopper_core.util.arrays import Float64
from chopper_tui.draw import axes
from chopper_tui.draw.bars import BarDrawer
from chopper_tui.draw.drawer import (
    MAX_ZOOM,
    UNLIMITED,
    Canvas,
    Lens,
    TitledDrawer,
    legend_entries,
    title_lines,
)
from chopper_tui.draw.pieces import SERIES_INKS, Line, inked, short_number

_MARKERS: Final = {"unicode": "●▲■◆○△□◇", "ascii": "*+xo@%&$"}
_MARKS_ON_A_CURVE: Final = 6
_LINES: Final = 14
_MIN_LINES: Final = 7
"""Lines below another chart, with the axis."""
_MAX_BARS: Final = 2
"""Points of a curve up to which it is drawn as bars: a line between two says nothing."""
_LINES_PER_TICK: Final = 3
_CELLS_PER_TICK: Final = 10
_NO_TICKS: Final[axes.Ticks] = ((), ())

Bounds = tuple[axes.Bounds, axes.Bounds]


class LineDrawer(TitledDrawer[LineChart]):
    """Curves below a legend of their markers; bars where they have too few points."""

    _bars: Final = BarDrawer()

    def title(self, chart: LineChart, width: int, glyphs: Glyphs) -> list[Line]:
        """With the markers of the series, unless they are too many to tell apart."""
        markers = _MARKERS[glyphs.name]
        names = [each.name for each in chart.series]
        names = names if 1 < len(names) <= len(markers) else []
        legend = legend_entries(names, markers, SERIES_INKS)
        return title_lines(chart.title, chart.unit, width, legend)

    def body_lines(self, chart: LineChart) -> int:
        """Any number."""
        return _LINES

    def body(self, chart: LineChart, on: Canvas) -> list[Line]:
        """The curves and their axes."""
        return _draw(chart, on)

    def lines(self, chart: LineChart, width: int, glyphs: Glyphs) -> int:
        """Enough to see a shape; one per bar."""
        bars = _as_bars(chart)
        return _LINES if bars is None else self._bars.lines(bars, width, glyphs)

    def lines_below(self, chart: LineChart, width: int, glyphs: Glyphs) -> int:
        """The fewest."""
        bars = _as_bars(chart)
        if bars is not None:
            return self._bars.lines(bars, width, glyphs)
        return _MIN_LINES + len(self.title(chart, width, glyphs))

    def most_lines(self, chart: LineChart, width: int, glyphs: Glyphs) -> int:
        """Any number; of bars, those of the thickest."""
        bars = _as_bars(chart)
        return UNLIMITED if bars is None else self._bars.most_lines(bars, width, glyphs)

    def rows(self, chart: LineChart) -> int:
        """Those of bars."""
        bars = _as_bars(chart)
        return 1 if bars is None else self._bars.rows(bars)

    def draw(self, chart: LineChart, on: Canvas) -> list[Line]:
        """Curves, or bars."""
        bars = _as_bars(chart)
        if bars is not None:
            return self._bars.draw(bars, on)
        return super().draw(chart, on)

    def max_zoom(self, chart: LineChart) -> float:
        """Any."""
        return MAX_ZOOM

    def seen(self, chart: LineChart, lens: Lens) -> LineChart:
        """The points in a part of its x axis."""
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


def _draw(picture: LineChart, on: Canvas) -> list[Line]:
    """The curves over an axis with even ticks, one ink and marker per series."""
    width, canvas = on.width, max(on.height - 1, 2)
    bounds = _bounds(picture)
    if bounds is None:
        return [[("no values to draw", "dim")]]
    places = axes.ticks(*bounds[1], max(canvas // _LINES_PER_TICK, 2))
    texts = axes.labels(places)
    axis = max(map(len, texts), default=0) + 1
    ticks: axes.Ticks = places, [text.rjust(axis - 1) for text in texts]
    rows: list[str] = [" " * width] * canvas
    inks = np.full((canvas, width), -1, np.int64)
    for number, (x, series) in enumerate(zip(picture.x, picture.series, strict=True)):
        curves = _curves(picture, x, series, number, on.glyphs)
        size = width, canvas
        drawn = axes.plotted(curves, size, bounds, (_NO_TICKS, ticks), on.glyphs, on.check)
        merged = []
        for y, (below, above) in enumerate(zip(rows, drawn, strict=True)):
            chars = list(below)
            for place, char in enumerate(above):
                if char not in " \u2800":
                    chars[place] = char
                    inks[y, place] = number
            merged.append("".join(chars))
        rows = merged
    names = np.array(["dim", *SERIES_INKS])
    shown = names[np.where(inks < 0, 0, 1 + inks % len(SERIES_INKS))]
    shown[:, :axis] = "dim"
    lines = [inked(row, shown[y].tolist()) for y, row in enumerate(rows)]
    lines.append([(" " * axis + _x_axis(picture, bounds[0], width - axis), "dim")])
    return lines


def _x_axis(picture: LineChart, bounds: tuple[float, float], cells: int) -> str:
    """Numbers under their place, the last with the unit, and the title where it has room."""
    low, high = bounds
    whole = all(float(place).is_integer() for x in picture.x for place in x[np.isfinite(x)])
    places = axes.ticks(low, high, max(cells // _CELLS_PER_TICK, 2), whole=whole)
    texts = axes.labels(places)
    if picture.x_unit and texts:
        texts[-1] += f" {picture.x_unit}"
    line = ""
    for place, text in zip(places, texts, strict=True):
        share = (place - low) / (high - low) if high > low else 0.0
        at = min(round(share * (cells - 1)), max(cells - len(text), 0))
        if at > len(line) or not line:
            line = line.ljust(at) + text
    title = f"  {clean(picture.x_title)}"
    return line + title if cell_width(line + title) <= cells else line


def _bounds(
    picture: LineChart,
) -> Bounds | None:
    pairs = [
        (x[ok], series.numbers[ok])
        for x, series in zip(picture.x, picture.series, strict=True)
        if (ok := np.isfinite(x) & np.isfinite(series.numbers)).any()
    ]
    if not pairs:
        return None
    x = np.concatenate([pair[0] for pair in pairs])
    y = np.concatenate([pair[1] for pair in pairs])
    return (float(x.min()), float(x.max())), (float(y.min()), float(y.max()))


def _curves(
    picture: LineChart, x: Float64, series: Series, number: int, glyphs: Glyphs
) -> list[axes.Curve]:
    """A series: its points or its line, and marks on the line that tell it from others."""
    known = np.isfinite(x) & np.isfinite(series.numbers)
    x, y = x[known], series.numbers[known]
    mark = _MARKERS[glyphs.name][number % len(_MARKERS[glyphs.name])]
    if picture.points or glyphs.is_ascii:
        return [axes.Curve(x, y, mark, is_joined=not picture.points)]
    curves = [axes.Curve(x, y, "braille")]
    if len(picture.series) > 1:
        step = max(len(x) // _MARKS_ON_A_CURVE, 1)
        some = slice(number * step // len(picture.series), None, step)
        curves.append(axes.Curve(x[some], y[some], mark, is_joined=False))
    return curves
