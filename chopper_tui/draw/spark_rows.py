"""Rows of sparklines on one scale: a signal of many GPUs over the same time."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.charts import SignalRows
from chopper_core.render.cells import cell_width, clean, pad
from chopper_core.render.glyphs import Glyphs, sparkline
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import median_of, quantiles_along
from chopper_tui.draw import axes
from chopper_tui.draw.canvas import MAX_ZOOM, Canvas, Lens, area
from chopper_tui.draw.drawer import Drawer
from chopper_tui.draw.pieces import Line, hue_of, short_number, width_of

_ENVELOPE: Final = 5
"""Minimum lines of the chart of all rows' range, with its title and the axis of time."""
_MIN_CELLS: Final = 8
_GAP: Final = 2


class SignalRowsDrawer(Drawer[SignalRows]):
    """A sparkline per row and, where there is room, a chart of all rows' range below."""

    def title(self, chart: SignalRows, width: int, glyphs: Glyphs) -> list[Line]:
        """The title and the common scale; the full range and the time, if they fit."""
        low, high, least, most = _scale(chart)
        beyond = ("<=" if least < low else "", ">=" if most > high else "")
        title: Line = [
            (clean(chart.title), "strong"),
            (f", {chart.unit}  {beyond[0]}{_whole(low)} ", "dim"),
            (glyphs.spark, f"{hue_of(chart.unit)}1"),
            (f" {beyond[1]}{_whole(high)}", "dim"),
        ]
        begin, end = chart.x
        more = [f"  all {_whole(least)} to {_whole(most)}"] if any(beyond) else []
        for text in (*more, f"  {_whole(begin)} to {_whole(end)} {chart.x_unit}"):
            if width_of(title) + cell_width(text) <= width:
                title.append((text, "dim"))
        return [title]

    def body_lines(self, chart: SignalRows) -> int:
        return len(chart.labels)

    def fitted(self, chart: SignalRows, width: int, glyphs: Glyphs, lines: int) -> int:
        """With more lines than rows, a chart of their range."""
        own = 1 + len(chart.labels)
        return lines if lines - own >= _ENVELOPE else own

    def body(self, chart: SignalRows, on: Canvas) -> None:
        above = on.left - len(chart.labels)
        _add_rows(chart, on)
        if above >= _ENVELOPE and np.isfinite(chart.numbers).any():
            _add_range(chart, on)

    def max_zoom(self, chart: SignalRows) -> float:
        return MAX_ZOOM

    def seen(self, chart: SignalRows, lens: Lens) -> SignalRows:
        bins = chart.numbers.shape[1]
        first, end = lens.columns(bins)
        low, high = chart.x
        step = (high - low) / bins
        part = (low + first * step, low + end * step)
        return replace(chart, numbers=chart.numbers[:, first:end], x=part)


def _scale(chart: SignalRows) -> tuple[float, float, float, float]:
    """The ends of the scale, and the least and the most of all figures."""
    known = chart.numbers[np.isfinite(chart.numbers)]
    low, high = axes.scale_ends(known)
    return (low, high, float(known.min()), float(known.max())) if len(known) else (low, high) * 2


def _add_range(chart: SignalRows, on: Canvas) -> None:
    """Minimum, median and maximum of all rows over time."""
    on.add([("of all", "strong"), (": median in the range", "dim")])
    lines = on.left - 1
    low, high = _scale(chart)[2:]
    axis = axes.Axis.over(*axes.around(low, high), lines // 2)
    width = axis.label_width
    cells = max(on.width - width - 1, 1)
    known = quantiles_along(_at(chart.numbers, cells), (0.0, 0.5, 1.0))
    inks = [f"{hue_of(chart.unit)}1"] * cells
    drawn = area(axes.shares(known, axis), lines, inks, on.glyphs)
    on.lines += axes.framed(drawn, axis, width, on.glyphs.is_ascii)
    times = axes.Axis.over(*chart.x, cells // 10, chart.x_unit)
    on.add([(" " * (width + 1) + times.line(cells), "dim")])


def _add_rows(picture: SignalRows, on: Canvas) -> None:
    """The rows, in two columns where they are too many; where not all fit, outliers come first."""
    count, room, glyphs = len(picture.labels), on.left, on.glyphs
    means = [_whole(mean) for mean in picture.means.tolist()]
    usual = median_of(picture.means) if count else 0.0
    changes = [
        f" {_change(mean, usual, glyphs)}" if row in picture.apart else ""
        for row, mean in enumerate(picture.means.tolist())
    ]
    names = [clean(label) for label in picture.labels]
    widths = [max(map(cell_width, each), default=0) for each in (names, means, changes)]
    around = sum(widths) + 2
    columns = 1 + (count > room and (on.width - _GAP) // 2 >= around + _MIN_CELLS)
    cells = max((on.width - _GAP * (columns - 1)) // columns - around, 1)
    order = sorted(range(count), key=lambda row: (row not in picture.apart, row))
    fits = room * columns
    shown = sorted(order if count <= fits else order[: max(fits - columns, 0)])
    low, high = _scale(picture)[:2]
    shares = (_at(picture.numbers, cells) - low) / max(high - low, 1e-9)
    ink = f"{hue_of(picture.unit)}1"
    height = -(-len(shown) // columns)
    for line in range(height):
        pieces: Line = []
        for row in shown[line::height]:
            pieces += [
                (" " * _GAP if pieces else "", "text"),
                (pad(names[row], widths[0]) + " ", "text"),
                (sparkline(shares[row], glyphs), "alert" if row in picture.apart else ink),
                (f" {means[row].rjust(widths[1])}", "text"),
                (changes[row].ljust(widths[2]), "strong"),
            ]
        on.add(pieces)
    if len(shown) < count and room:
        on.add([(f"{count - len(shown)} more in the table", "dim")])


def _change(mean: float, usual: float, glyphs: Glyphs) -> str:
    """How much a mean differs from the median of all."""
    share = 100.0 * (mean / usual - 1) if usual else 0.0
    return f"{glyphs.up if share > 0 else glyphs.down}{share:+z.1f}%"


def _at(numbers: Float64, cells: int) -> Float64:
    """The rows in so many cells, each the mean of its bins."""
    bins = numbers.shape[1]
    edges = np.arange(cells + 1) * bins // cells
    known = np.isfinite(numbers)
    total, count = np.zeros((2, len(numbers), bins + 1))
    np.cumsum(np.where(known, numbers, 0.0), axis=1, out=total[:, 1:])
    np.cumsum(known, axis=1, out=count[:, 1:])
    low, high = edges[:-1], np.maximum(edges[1:], edges[:-1] + 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Float64 = (total[:, high] - total[:, low]) / (count[:, high] - count[:, low])
    return mean


def _whole(value: float) -> str:
    """A number, without decimals from 100 on."""
    return f"{value:.0f}" if abs(value) >= 100 else short_number(value)
