"""Bars and boxes: a row of text per label, which plotting libraries don't lay out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.charts import BarChart, BoxChart
from chopper_core.model.units import time_text
from chopper_core.render.cells import cell_width, clean, pad
from chopper_core.render.glyphs import Glyphs, bar
from chopper_core.render.names import display_names, fitting_names
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import median_of
from chopper_tui.draw import axes
from chopper_tui.draw.drawer import (
    MAX_ZOOM,
    Canvas,
    Lens,
    TitledDrawer,
    legend_entries,
    title_lines,
)
from chopper_tui.draw.pieces import Line, series_fills, series_inks, short_number

_MAX_LABEL: Final = 40
_MIN_LABEL: Final = 8
_MAX_THICK: Final = 3
"""Lines of a bar and the blank one below it."""
_LEAST_SHARE: Final = 0.0005
"""Of the longest bar: a smaller part is not seen."""
_HAIR: Final = 1e-9
_CELLS_PER_TICK: Final = 12


class BarDrawer(TitledDrawer[BarChart]):
    """A bar per label; a lens makes bars longer, and cuts those that get too long."""

    can_pan = False

    def title(self, chart: BarChart, width: int, glyphs: Glyphs) -> list[Line]:
        """With the fills of stacked series."""
        several = len(chart.series) > 1
        names = [chart.series[place].name for place in _visible(chart)] if several else []
        inks = _inks_of(chart)
        legend = legend_entries(names, series_fills(inks, glyphs), inks)
        return title_lines(chart.title, "" if chart.unit == "ns" else chart.unit, width, legend)

    def body_lines(self, chart: BarChart) -> int:
        """One per label."""
        return len(chart.labels)

    def most_lines(self, chart: BarChart, width: int, glyphs: Glyphs) -> int:
        """With the thickest bars."""
        return self.lines(chart, width, glyphs) + (_MAX_THICK - 1) * self.rows(chart)

    def rows(self, chart: BarChart) -> int:
        """Its bars."""
        return max(len(chart.labels), 1)

    def body(self, chart: BarChart, on: Canvas) -> list[Line]:
        """The labels with their bars."""
        labels = _cleaned(chart.labels, chart.level)
        return _bars(replace(chart, labels=labels), on)

    def max_zoom(self, chart: BarChart) -> float:
        """Any."""
        return MAX_ZOOM

    def seen(self, chart: BarChart, lens: Lens) -> BarChart:
        """The low end of its bars."""
        sums = np.nansum([np.abs(each.numbers) for each in chart.series], axis=0)
        return replace(chart, longest=float(sums.max(initial=0.0)) / lens.factor)


class BoxDrawer(TitledDrawer[BoxChart]):
    """A box per label; a lens shows the middle of the scale."""

    can_pan = False

    def title(self, chart: BoxChart, width: int, glyphs: Glyphs) -> list[Line]:
        """Without a legend."""
        return title_lines(chart.title, chart.unit, width)

    def body_lines(self, chart: BoxChart) -> int:
        """One per label, and the axis."""
        return len(chart.labels) + 1

    def most_lines(self, chart: BoxChart, width: int, glyphs: Glyphs) -> int:
        """With a line below each box."""
        return self.lines(chart, width, glyphs) + self.rows(chart)

    def rows(self, chart: BoxChart) -> int:
        """Its boxes."""
        return max(len(chart.labels), 1)

    def body(self, chart: BoxChart, on: Canvas) -> list[Line]:
        """The labels with their boxes."""
        labels = _cleaned(chart.labels, chart.level)
        return _boxes(replace(chart, labels=labels), on)

    def max_zoom(self, chart: BoxChart) -> float:
        """Any."""
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


def _bars(picture: BarChart, on: Canvas) -> list[Line]:
    """A row per label: the sum and a bar, stacked where there are several series.

    Negative parts extend to the left of zero.
    """
    width, height, glyphs = on.width, on.height, on.glyphs
    count = len(picture.labels)
    shown = count if count <= height else max(height - 1, 0)
    numbers = np.stack([series.numbers for series in picture.series]).astype(np.float64)
    known = np.isfinite(numbers)
    parts = np.where(known, numbers, 0.0)
    sums = np.where(known.any(axis=0), parts.sum(axis=0), np.nan)
    texts = [_figure(value, picture.unit) or glyphs.missing for value in sums]
    value_width = max(map(len, texts), default=0)
    label_width = _label_width(picture.labels, width)
    labels = _padded(picture.labels, label_width, glyphs)
    room = max(width - label_width - value_width - 3, 1)
    below = float(-np.minimum(parts, 0.0).sum(axis=0).min()) if count else 0.0
    above = float(np.maximum(parts, 0.0).sum(axis=0).max()) if count else 0.0
    if picture.longest:
        parts = _cut_parts(parts, picture.longest)
        below, above = min(below, picture.longest), min(above, picture.longest)
    span = (above + below) or 1.0
    zero = round(below / span * room)
    inks = _inks_of(picture)
    fills = series_fills(inks, glyphs)
    visible = parts[_visible(picture)]
    thick = min(max(height // max(count, 1), 1), _MAX_THICK) if on.spreads else 1
    lines: list[Line] = []
    for row in range(shown):
        line: Line = [
            (labels[row] + " ", "text"),
            (texts[row].rjust(value_width) + " ", "text"),
        ]
        if len(picture.series) == 1 and not below:
            line.append((bar(parts[0, row] / span, room, glyphs), "accent"))
        else:
            left = _stack(np.maximum(-visible[:, row], 0.0) / span * room, fills, inks)
            line.append((" " * (zero - sum(len(text) for text, _ in left)), "text"))
            right = _stack(np.maximum(visible[:, row], 0.0) / span * room, fills, inks)
            line += [*reversed(left), *right]
        if picture.longest and abs(sums[row]) > picture.longest * (1 + _HAIR):
            # It extends beyond the end of the axis.
            line[-1] = (line[-1][0].rstrip()[:-1] + glyphs.crumb, line[-1][1])
        rest: Line = [(" " * (label_width + value_width + 2), "text"), *line[2:]]
        lines += [line, rest, []][:thick]
    if shown < count and height > 0:
        lines.append(_left_out(count - shown))
    return lines


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


def _stack(lengths: Float64, fills: str, inks: Sequence[str]) -> Line:
    """The stacked parts of a bar, rounded so that their total length is exact."""
    ends = np.rint(np.cumsum(lengths)).astype(int)
    return [
        (fills[number % len(fills)] * size, inks[number % len(inks)])
        for number, size in enumerate(np.diff(ends, prepend=0).tolist())
        if size
    ]


def _boxes(picture: BoxChart, on: Canvas) -> list[Line]:
    """A row per label: whiskers to the extremes, a box between the quartiles, the median."""
    width, height, glyphs = on.width, on.height, on.glyphs
    count = len(picture.labels)
    room_for = max(height - 1, 0)
    shown = count if count <= room_for else max(room_for - 1, 0)
    label_width = _label_width(picture.labels, width)
    labels = _padded(picture.labels, label_width, glyphs)
    room = max(width - label_width - 1, 8)
    known = picture.quantiles[np.isfinite(picture.quantiles)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    span = (high - low) or 1.0
    line_, box, middle = ("─", "▒", "█") if not glyphs.is_ascii else ("-", "=", "|")
    lines: list[Line] = []
    for row in range(shown):
        label = (labels[row] + " ", "text")
        quantiles = picture.quantiles[row]
        if not np.isfinite(quantiles).all():
            lines.append([label, (glyphs.missing, "dim")])
            continue
        least, q1, median, q3, most = (
            round((value - low) / span * (room - 1)) for value in quantiles.tolist()
        )
        cells = [" "] * room
        cells[least : most + 1] = line_ * (most - least + 1)
        cells[q1 : q3 + 1] = box * (q3 - q1 + 1)
        cells[median] = middle
        lines.append([label, ("".join(cells), "accent")])
        if on.spreads and room_for >= 2 * count:
            lines.append([])
    if shown < count and height > 1:
        lines.append(_left_out(count - shown))
    lines.append([(" " * (label_width + 1) + _axis(low, high, room), "dim")])
    return lines


def _axis(low: float, high: float, room: int) -> str:
    """Even numbers below their places; where there is room for one alone, the ends of the scale."""
    places = axes.ticks(low, high, max(room // _CELLS_PER_TICK, 2))
    line = " " * room
    for place, text in zip(places, axes.labels(places), strict=True):
        middle = round((place - low) / ((high - low) or 1.0) * (room - 1))
        at = max(min(middle - len(text) // 2, room - len(text)), 0)
        if not line[max(at - 2, 0) : at + len(text) + 2].strip():
            line = line[:at] + text + line[at + len(text) :]
    if len(line.split()) > 1:
        return line.rstrip()
    ends = (short_number(low), short_number(high))
    return ends[0] + ends[1].rjust(max(room - len(ends[0]), len(ends[1]) + 1))


def _cleaned(labels: Sequence[str], level: str) -> tuple[str, ...]:
    return display_names(tuple(labels), level) if level else tuple(map(clean, labels))


def _label_width(labels: Sequence[str], width: int) -> int:
    longest = max((cell_width(label) for label in labels), default=0)
    return max(min(longest, _MAX_LABEL, width // 3), min(_MIN_LABEL, longest))


def _padded(labels: Sequence[str], width: int, glyphs: Glyphs) -> list[str]:
    """The labels padded to one width."""
    return [pad(text, width) for text in fitting_names(tuple(labels), width, glyphs)]


def _left_out(count: int) -> Line:
    return [(f"{count} more rows in the table", "dim")]
