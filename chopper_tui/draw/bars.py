"""Bars and boxes: a row of text per label, which plotting libraries don't lay out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.charts import BarChart, BoxChart
from chopper_core.model.units import time_text
from chopper_core.render.glyphs import Glyphs, bar
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import median_of
from chopper_tui.draw.axes import Axis
from chopper_tui.draw.canvas import MAX_ZOOM, Canvas, Lens, legend_entries, stack, title_lines
from chopper_tui.draw.drawer import RowsDrawer
from chopper_tui.draw.pieces import Line, series_fills, series_inks, short_number

_MAX_THICK: Final = 3
"""Lines of a bar and the blank one below it."""
_LEAST_SHARE: Final = 0.0005
"""Of the longest bar: a smaller part is not seen."""
_HAIR: Final = 1e-9
_CELLS_PER_TICK: Final = 12


class BarDrawer(RowsDrawer[BarChart]):
    """A bar per label; a lens makes bars longer, and cuts those that get too long."""

    can_pan = False
    tallest = _MAX_THICK

    def title(self, chart: BarChart, width: int, glyphs: Glyphs) -> list[Line]:
        several = len(chart.series) > 1
        names = [chart.series[place].name for place in _visible(chart)] if several else []
        inks = _inks_of(chart)
        legend = legend_entries(names, series_fills(inks, glyphs), inks)
        return title_lines(chart.title, "" if chart.unit == "ns" else chart.unit, width, legend)

    def body_lines(self, chart: BarChart) -> int:
        return len(chart.labels)

    def rows(self, chart: BarChart) -> int:
        return len(chart.labels)

    def body(self, chart: BarChart, on: Canvas) -> None:
        """A row per label: the sum and a bar, stacked where there are several series.

        Negative parts extend to the left of zero.
        """
        count, glyphs = len(chart.labels), on.glyphs
        shown = on.rows_shown(count)
        numbers = np.stack([series.numbers for series in chart.series]).astype(np.float64)
        known = np.isfinite(numbers)
        parts = np.where(known, numbers, 0.0)
        sums = np.where(known.any(axis=0), parts.sum(axis=0), np.nan)
        texts = [_figure(value, chart.unit) or glyphs.missing for value in sums]
        digits = max(map(len, texts), default=0)
        labels = on.labels(chart.labels, chart.level)
        before = len(labels[0]) + digits + 1 if labels else 0
        room = max(on.width - before - 1, 1)
        below = float(-np.minimum(parts, 0.0).sum(axis=0).min()) if count else 0.0
        above = float(np.maximum(parts, 0.0).sum(axis=0).max()) if count else 0.0
        if chart.longest:
            parts = _cut_parts(parts, chart.longest)
            below, above = min(below, chart.longest), min(above, chart.longest)
        span = (above + below) or 1.0
        zero = round(below / span * room)
        inks = _inks_of(chart)
        fills = series_fills(inks, glyphs)
        visible = parts[_visible(chart)] / span * room
        thick = min(max(on.left // max(count, 1), 1), _MAX_THICK) if on.spreads else 1
        for row in range(shown):
            if len(chart.series) == 1 and not below:
                drawn: Line = [(bar(parts[0, row] / span, room, glyphs), "accent")]
            else:
                left = stack(-visible[:, row], fills, inks)
                blank = " " * (zero - sum(len(text) for text, _ in left))
                drawn = [(blank, "text"), *reversed(left), *stack(visible[:, row], fills, inks)]
            if chart.longest and abs(sums[row]) > chart.longest * (1 + _HAIR):
                # It extends beyond the end of the axis.
                drawn[-1] = (drawn[-1][0].rstrip()[:-1] + glyphs.crumb, drawn[-1][1])
            named = (f"{labels[row]}{texts[row].rjust(digits)} ", "text")
            on.lines += [[named, *drawn], [(" " * before, "text"), *drawn], []][:thick]
        on.add_rest(count, shown)

    def max_zoom(self, chart: BarChart) -> float:
        return MAX_ZOOM

    def seen(self, chart: BarChart, lens: Lens) -> BarChart:
        sums = np.nansum([np.abs(each.numbers) for each in chart.series], axis=0)
        return replace(chart, longest=float(sums.max(initial=0.0)) / lens.factor)


class BoxDrawer(RowsDrawer[BoxChart]):
    """A box per label; a lens shows the middle of the scale."""

    can_pan = False
    tallest = 2

    def title(self, chart: BoxChart, width: int, glyphs: Glyphs) -> list[Line]:
        return title_lines(chart.title, chart.unit, width)

    def body_lines(self, chart: BoxChart) -> int:
        return len(chart.labels) + 1

    def rows(self, chart: BoxChart) -> int:
        return len(chart.labels)

    def body(self, chart: BoxChart, on: Canvas) -> None:
        """A row per label: whiskers to the extremes, a box between the quartiles, the median."""
        glyphs, count = on.glyphs, len(chart.labels)
        shown = on.rows_shown(count, 1)
        spread = on.spreads and on.left > 2 * count
        labels = on.labels(chart.labels, chart.level)
        before = len(labels[0]) if labels else 1
        room = max(on.width - before, 8)
        known = chart.quantiles[np.isfinite(chart.quantiles)]
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
        axis = Axis.over(low, high, room // _CELLS_PER_TICK)
        whisker, box, middle = ("─", "▒", "█") if not glyphs.is_ascii else ("-", "=", "|")
        for row in range(shown):
            quantiles = chart.quantiles[row]
            drawn = (glyphs.missing, "dim")
            if np.isfinite(quantiles).all():
                places = [round(axis.share(value) * (room - 1)) for value in quantiles.tolist()]
                least, q1, median, q3, most = places
                cells = [" "] * room
                cells[least : most + 1] = whisker * (most - least + 1)
                cells[q1 : q3 + 1] = box * (q3 - q1 + 1)
                cells[median] = middle
                drawn = ("".join(cells), "accent")
            on.lines += [[(labels[row], "text"), drawn], []][: 1 + spread]
        on.add_rest(count, shown)
        line = axis.line(room)
        if len(line.split()) < 2:
            ends = short_number(low), short_number(high)
            line = ends[0] + ends[1].rjust(max(room - len(ends[0]), len(ends[1]) + 1))
        on.add([(" " * before + line, "dim")])

    def max_zoom(self, chart: BoxChart) -> float:
        return MAX_ZOOM

    def seen(self, chart: BoxChart, lens: Lens) -> BoxChart:
        """The values around the middle median; others lie at the edges."""
        known = chart.quantiles[np.isfinite(chart.quantiles).all(axis=1)]
        if not len(known):
            return chart
        middle = median_of(known[:, 2])
        half = float(known.max() - known.min()) / (2 * lens.factor)
        return replace(chart, quantiles=np.clip(chart.quantiles, middle - half, middle + half))


def _figure(number: float, unit: str) -> str:
    """A bar's figure; a time in ns has the unit that suits it, which the title has of others."""
    return time_text(number) if unit == "ns" and np.isfinite(number) else short_number(number)


def _visible(picture: BarChart) -> list[int]:
    """The series that can be seen: those too small for it take none of the hues."""
    numbers = np.abs([np.nan_to_num(each.numbers) for each in picture.series])
    longest = float(numbers.sum(axis=0).max(initial=0.0))
    largest = numbers.max(axis=1, initial=0.0)
    seen = np.flatnonzero(largest > _LEAST_SHARE * longest).tolist()
    return seen or list(range(len(picture.series)))


def _cut_parts(parts: Float64, longest: float) -> Float64:
    """The parts of bars as far as the axis goes, from zero in both directions."""
    cut_parts = np.zeros_like(parts)
    for sign in (1.0, -1.0):
        ends = np.minimum(np.cumsum(np.maximum(sign * parts, 0.0), axis=0), longest)
        cut_parts += sign * np.diff(ends, axis=0, prepend=0.0)
    return cut_parts


def _inks_of(picture: BarChart) -> Sequence[str]:
    """The inks of visible series: of parts above and below zero those of differences."""
    if len(picture.series) == 2:
        above, below = (series.numbers for series in picture.series)
        if not (above < 0).any() and (below < 0).any() and not (below > 0).any():
            return [("above", "below")[place] for place in _visible(picture)]
    return series_inks([picture.series[place].name for place in _visible(picture)])
