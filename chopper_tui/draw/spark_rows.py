"""Rows of sparklines on one scale: a signal of many GPUs over the same time."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.charts import LineChart, Series, SignalRows
from chopper_core.render.cells import cell_width, clean, pad
from chopper_core.render.glyphs import Glyphs, sparkline
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import median_of, quantiles_along
from chopper_tui.draw.axes import scale_ends
from chopper_tui.draw.curves import LineDrawer
from chopper_tui.draw.drawer import MAX_ZOOM, UNLIMITED, Canvas, Drawer, Lens
from chopper_tui.draw.pieces import Line, short_number

_ENVELOPE: Final = 7
"""Minimum lines of the chart of all rows' range, with legend and axis."""
_MIN_CELLS: Final = 8
_GAP: Final = 2


class SignalRowsDrawer(Drawer[SignalRows]):
    """A sparkline per row and, where there is room, a chart of all rows' range below."""

    _lines: Final = LineDrawer()

    def lines(self, chart: SignalRows, width: int, glyphs: Glyphs) -> int:
        """The rows; with more, a chart of their range."""
        return 1 + len(chart.labels)

    def most_lines(self, chart: SignalRows, width: int, glyphs: Glyphs) -> int:
        """Any number."""
        return UNLIMITED

    def filled(self, chart: SignalRows, on: Canvas) -> int:
        """Those of the rows, where their range has no room."""
        count = len(chart.labels)
        if on.height - 1 - count >= _ENVELOPE:
            return on.height
        return len(_row_lines(chart, on.width, on.height, on.glyphs))

    def draw(self, chart: SignalRows, on: Canvas) -> list[Line]:
        """The title with the scale, the rows, and their range."""
        width, glyphs, count = on.width, on.glyphs, len(chart.labels)
        above = on.height - 1 - count
        if above < _ENVELOPE:
            return on.fitted(_row_lines(chart, width, on.height, glyphs))
        range_ = replace(_envelope(chart), title="of all", unit="")
        legend = self._lines.title(range_, width, glyphs)
        curves = self._lines.body(range_, replace(on, height=above - len(legend)))
        return on.fitted([*_row_lines(chart, width, count + 1, glyphs), *legend, *curves])

    def max_zoom(self, chart: SignalRows) -> float:
        """Any."""
        return MAX_ZOOM

    def seen(self, chart: SignalRows, lens: Lens) -> SignalRows:
        """A part of the time."""
        bins = chart.numbers.shape[1]
        first, end = lens.columns(bins)
        low, high = chart.x
        step = (high - low) / bins
        part = (low + first * step, low + end * step)
        return replace(chart, numbers=chart.numbers[:, first:end], x=part)


def _envelope(picture: SignalRows) -> LineChart:
    """Minimum, median and maximum of all rows over time."""
    bins = picture.numbers.shape[1]
    known = np.flatnonzero(np.isfinite(picture.numbers).any(axis=0))
    times = np.linspace(*picture.x, 2 * bins + 1)[1::2][known]
    lines = quantiles_along(picture.numbers[:, known], (0.0, 0.5, 1.0))
    names = ("min", "median", "max")
    return LineChart(
        picture.title,
        picture.unit,
        picture.x_title,
        picture.x_unit,
        (times,) * len(names),
        tuple(Series(name, line) for name, line in zip(names, lines, strict=True)),
    )


def _row_lines(picture: SignalRows, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """The title with the scale, then the rows, in two columns where they are too many.

    Where not all fit, outliers come first.
    """
    count, room = len(picture.labels), max(height - 1, 0)
    means = [_whole(mean) for mean in picture.means.tolist()]
    usual = median_of(picture.means) if count else 0.0
    value_texts = [
        f" {_change(mean, usual, glyphs)}" if row in picture.apart else ""
        for row, mean in enumerate(picture.means.tolist())
    ]
    label_width = max((cell_width(clean(label)) for label in picture.labels), default=0)
    told_width = max(map(len, means), default=0)
    said_width = max(map(len, value_texts), default=0)
    around = label_width + 1 + 1 + told_width + said_width
    columns = 1 + (count > room and (width - _GAP) // 2 >= around + _MIN_CELLS)
    cells = max((width - _GAP * (columns - 1)) // columns - around, 1)
    order = sorted(range(count), key=lambda row: (row not in picture.apart, row))
    fits = room * columns
    shown = sorted(order if count <= fits else order[: max(fits - columns, 0)])
    known = picture.numbers[np.isfinite(picture.numbers)]
    low, high = scale_ends(known)
    shares = (_at(picture.numbers, cells) - low) / max(high - low, 1e-9)
    lines = [_title(picture, width, known, (low, high), glyphs)]
    height_of = -(-len(shown) // columns)
    for line in range(height_of):
        pieces: Line = []
        for row in shown[line::height_of]:
            if pieces:
                pieces.append((" " * _GAP, "text"))
            is_apart = row in picture.apart
            pieces += [
                (pad(clean(picture.labels[row]), label_width) + " ", "text"),
                (sparkline(shares[row], glyphs), "second" if is_apart else "accent"),
                (f" {means[row].rjust(told_width)}", "text"),
                (value_texts[row].ljust(said_width), "strong"),
            ]
        lines.append(pieces)
    if len(shown) < count and room:
        lines.append([(f"{count - len(shown)} more in the table", "dim")])
    return lines


def _change(mean: float, usual: float, glyphs: Glyphs) -> str:
    """How much a mean differs from the median of all."""
    share = 100.0 * (mean / usual - 1) if usual else 0.0
    return f"{glyphs.up if share > 0 else glyphs.down}{share:+z.1f}%"


def _at(numbers: Float64, cells: int) -> Float64:
    """The rows in so many cells, each the mean of its bins."""
    bins = numbers.shape[1]
    edges = np.arange(cells + 1) * bins // cells
    known = np.isfinite(numbers)
    places = np.concatenate([[0], np.arange(1, bins + 1)])
    total = np.zeros((len(numbers), bins + 1))
    count = np.zeros((len(numbers), bins + 1))
    np.cumsum(np.where(known, numbers, 0.0), axis=1, out=total[:, 1:])
    np.cumsum(known, axis=1, out=count[:, 1:])
    low, high = places[edges[:-1]], places[np.maximum(edges[1:], edges[:-1] + 1)]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Float64 = (total[:, high] - total[:, low]) / (count[:, high] - count[:, low])
    return mean


def _title(
    picture: SignalRows, width: int, known: Float64, ends: tuple[float, float], glyphs: Glyphs
) -> Line:
    """The title and the common scale; the full range and the time, if they fit."""
    low, high = ends
    least, most = (float(known.min()), float(known.max())) if len(known) else ends
    beyond = ("<=" if least < low else "", ">=" if most > high else "")
    title: Line = [
        (clean(picture.title), "strong"),
        (f", {picture.unit}  {beyond[0]}{_whole(low)} ", "dim"),
        (glyphs.spark, "accent"),
        (f" {beyond[1]}{_whole(high)}", "dim"),
    ]
    begin, end = picture.x
    more = [f"  all {_whole(least)} to {_whole(most)}"] if any(beyond) else []
    for text in (*more, f"  {_whole(begin)} to {_whole(end)} {picture.x_unit}"):
        if sum(cell_width(part) for part, _ in title) + cell_width(text) <= width:
            title.append((text, "dim"))
    return title


def _whole(value: float) -> str:
    """A number, without decimals from 100 on."""
    return f"{value:.0f}" if abs(value) >= 100 else short_number(value)
