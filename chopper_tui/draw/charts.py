"""Charts of frames drawn as characters in named styles, for the screen and for text.

Bars, boxes and heat maps are rows of text with long labels, which plotting libraries don't lay out;
curves and points are drawn by plotext, lanes by `timeline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.charts import (
    BarChart,
    BoxChart,
    Cards,
    Chart,
    Composition,
    HeatMap,
    Icicle,
    Lanes,
    LineChart,
    Roofline,
    SignalRows,
)
from chopper_core.render.ansi import Paint, plain
from chopper_core.render.cells import cell_width, clean, pad
from chopper_core.render.glyphs import Glyphs, bar
from chopper_core.render.names import display_names, fitting_names
from chopper_core.util.arrays import Float64
from chopper_tui.draw.cards import draw_cards
from chopper_tui.draw.composition import draw_composition
from chopper_tui.draw.curves import MARKERS, as_bars, draw_curves
from chopper_tui.draw.heat import cell_at, draw_heat, lines_wanted
from chopper_tui.draw.icicle import block_at, draw_icicle, lines_of_icicle
from chopper_tui.draw.pieces import SERIES_INKS, painted_line, series_fills
from chopper_tui.draw.roofline import ROOFLINE_LINES, draw_roofline
from chopper_tui.draw.signal_plot import Line
from chopper_tui.draw.spark_rows import ENVELOPE, envelope, row_lines, short_number
from chopper_tui.draw.timeline import cut, draw_lanes
from chopper_tui.draw.timeline import rows_of as lanes_rows

_MAX_LABEL: Final = 40
_MIN_LABEL: Final = 8
_TEXT_SIZE: Final = (100, 14)
_MAX_TEXT_LINES: Final = 40
_HAIR: Final = 1e-9
_MIN_LINE_CHART: Final = 7
"""Lines of a line chart below another chart, with its axis."""


def draw(
    picture: Chart,
    width: int,
    height: int,
    glyphs: Glyphs,
    selected: int = 0,
    column: int | None = None,
) -> list[Line]:
    """A chart as at most `height` lines of at most `width` cells, its title first.

    `selected` and `column` are the row and the column of the cursor, for charts that show it.
    """
    lines: list[Line]
    picture = _shaped(picture)
    if isinstance(picture, Lanes):
        return draw_lanes(picture, width, height, glyphs, selected)
    if isinstance(picture, Composition):
        return draw_composition(picture, width, glyphs)[: max(height, 0)]
    if isinstance(picture, Cards):
        return draw_cards(picture.cards, width, glyphs)[: max(height, 0)]
    if isinstance(picture, Roofline):
        return draw_roofline(picture, width, height, glyphs, selected)
    if isinstance(picture, SignalRows):
        lines = _rows(picture, width, height, glyphs)
        return [cut(line, width, glyphs) for line in lines[: max(height, 0)]]
    if isinstance(picture, BarChart | BoxChart) and picture.level:
        picture = replace(picture, labels=display_names(picture.labels, picture.level))
    title = _title(picture, width, glyphs)[: _title_lines(picture, width, height, glyphs)]
    room = height - len(title)
    match picture:
        case BarChart():
            lines = _bars(picture, width, room, glyphs)
        case BoxChart():
            lines = _boxes(picture, width, room, glyphs)
        case HeatMap():
            cell = None if column is None else (selected, column)
            lines = draw_heat(picture, width, room, glyphs, cell)
        case Icicle():
            lines = draw_icicle(
                picture, width, room, glyphs, None if column is None else (selected, column)
            )
        case LineChart():
            lines = draw_curves(picture, width, room, glyphs)
    return [cut(line, width, glyphs) for line in [*title, *lines][: max(height, 0)]]


def _shaped(picture: Chart) -> Chart:
    """A chart in the shape that suits its data."""
    return (as_bars(picture) or picture) if isinstance(picture, LineChart) else picture


def _title_lines(
    picture: BarChart | BoxChart | HeatMap | Icicle | LineChart,
    width: int,
    height: int,
    glyphs: Glyphs,
) -> int:
    """The lines of a title with its legend; of those that take too many, the first."""
    lines = len(_title(picture, width, glyphs))
    spare = height - len(picture.labels) if isinstance(picture, BarChart) else 0
    return 1 if lines > max(height // 3, spare, 1) else lines


def draw_below(
    pictures: Sequence[Chart],
    width: int,
    height: int,
    glyphs: Glyphs,
    selected: int = 0,
    column: int | None = None,
) -> list[Line]:
    """The first chart, and below it as many of the next ones as fit.

    Line charts below it take their minimum; spare lines go to charts that can grow.
    """
    if isinstance(pictures[0], Lanes):
        return draw(pictures[0], width, height, glyphs, selected)
    drawn: list[Line] = []
    for picture, lines in zip(pictures, _heights(pictures, width, height, glyphs), strict=False):
        if drawn:
            drawn.append([])
        own = draw(picture, width, lines, glyphs, selected, column)
        drawn += [*own, *([[]] * (lines - len(own)))]
    return drawn


def _heights(pictures: Sequence[Chart], width: int, height: int, glyphs: Glyphs) -> list[int]:
    """The lines of each chart that fits, from the first on."""
    wanted: list[int] = []
    for picture in pictures:
        lines = _lines_there(picture, width, glyphs, bool(wanted))
        if wanted and (isinstance(picture, Lanes) or sum(wanted) + len(wanted) + lines > height):
            break
        wanted.append(min(lines, height))
    spare = height - sum(wanted) - (len(wanted) - 1)
    grow = LineChart | Roofline | SignalRows | HeatMap | Icicle
    growing = [at for at in range(len(wanted)) if isinstance(pictures[at], grow)]
    for turn, at in enumerate(growing):
        wanted[at] += (spare + turn) // len(growing)
    return wanted


def picture_cell(
    pictures: Sequence[Chart], width: int, height: int, glyphs: Glyphs, x: int, y: int
) -> tuple[int, int] | None:
    """The row and the column, or the level and the block, at a cell of charts with a cursor."""
    top = 0
    for picture, lines in zip(pictures, _heights(pictures, width, height, glyphs), strict=False):
        if isinstance(picture, HeatMap):
            above = top + _title_lines(picture, width, lines, glyphs)
            if above <= y < top + lines:
                return cell_at(picture, width, lines - (above - top), glyphs, x, y - above)
        if isinstance(picture, Icicle):
            above = top + _title_lines(picture, width, lines, glyphs)
            return block_at(picture, width, lines - (above - top), x, y - above)
        top += lines + 1
    return None


def lines_below(pictures: Sequence[Chart], width: int, glyphs: Glyphs) -> int:
    """The lines that charts below each other want; 0 for none."""
    if not pictures:
        return 0
    pictures = pictures[:1] if isinstance(pictures[0], Lanes) else pictures
    wanted = [
        _lines_there(picture, width, glyphs, place > 0) for place, picture in enumerate(pictures)
    ]
    return sum(wanted) + len(wanted) - 1


def _lines_there(picture: Chart, width: int, glyphs: Glyphs, is_below: bool) -> int:
    picture = _shaped(picture)
    if is_below and isinstance(picture, LineChart):
        return _MIN_LINE_CHART + len(_title(picture, width, glyphs))
    if is_below and isinstance(picture, SignalRows):
        return 1 + len(picture.labels)
    return lines_of(picture, width, glyphs)


def as_lines(
    pictures: Sequence[Chart], width: int, glyphs: Glyphs, paint: Paint = plain
) -> list[str]:
    """Charts as lines of text, with a blank line after each."""
    lines: list[str] = []
    for picture in pictures:
        width = width or _TEXT_SIZE[0]
        rows = max(_TEXT_SIZE[1], lines_of(picture, width, glyphs))
        most = rows if isinstance(picture, Cards) else _MAX_TEXT_LINES
        drawn = draw(picture, width, min(rows, most), glyphs.coloured(paint is not plain))
        lines += [painted_line(line, paint) for line in drawn]
        lines.append("")
    return lines


def lines_of(picture: Chart, width: int, glyphs: Glyphs) -> int:
    """The lines that a chart wants."""
    picture = _shaped(picture)
    if isinstance(picture, Lanes):
        return lanes_rows(picture)
    if isinstance(picture, Composition):
        return len(draw_composition(picture, width, glyphs))
    if isinstance(picture, Cards):
        return len(draw_cards(picture.cards, width, glyphs))
    if isinstance(picture, Roofline):
        return ROOFLINE_LINES
    if isinstance(picture, SignalRows):
        return 1 + len(picture.labels) + ENVELOPE
    title = len(_title(picture, width, glyphs))
    match picture:
        case BarChart():
            return title + len(picture.labels)
        case BoxChart():
            return title + len(picture.labels) + 1
        case HeatMap():
            return title + lines_wanted(picture)
        case Icicle():
            return title + lines_of_icicle(picture)
        case LineChart():
            return _TEXT_SIZE[1]


def _rows(picture: SignalRows, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """A sparkline per row and, where there is room, a chart of all rows' range below."""
    count = len(picture.labels)
    above = height - 1 - count
    if above < ENVELOPE:
        return row_lines(picture, width, height, glyphs)
    chart = envelope(picture)
    legend = _title(replace(chart, title="of all", unit=""), width, glyphs)
    curves = draw_curves(chart, width, above - len(legend), glyphs)
    title, *rows = row_lines(picture, width, count + 1, glyphs)
    return [title, *rows, *legend, *curves]


def _title(
    picture: BarChart | BoxChart | HeatMap | Icicle | LineChart, width: int, glyphs: Glyphs
) -> list[Line]:
    """The title, the unit and the legend, wrapped at the width."""
    title: Line = [
        (clean(picture.title), "strong"),
        (f", {picture.unit}" if picture.unit and not isinstance(picture, Icicle) else "", "dim"),
    ]
    legend: list[Line] = []
    match picture:
        case BarChart() if len(picture.series) > 1:
            names = [each.name for each in picture.series]
            legend = _legend(names, series_fills(glyphs), _inks_of(picture))
        case LineChart() if 1 < len(picture.series) <= len(MARKERS[glyphs.name]):
            names = [each.name for each in picture.series]
            legend = _legend(names, MARKERS[glyphs.name], SERIES_INKS)
    lines, used = [title], sum(cell_width(text) for text, _ in title)
    for entry in legend:
        size = sum(cell_width(text) for text, _ in entry)
        if used + size > width:
            lines.append([])
            used = 0
        lines[-1].extend(entry)
        used += size
    return lines


def _legend(names: Sequence[str], marks: str, inks: Sequence[str]) -> list[Line]:
    """An entry per series: its mark and its name."""
    return [
        [(f"  {marks[number % len(marks)]}", inks[number % len(inks)]), (f" {clean(name)}", "dim")]
        for number, name in enumerate(names)
    ]


def _label_width(labels: Sequence[str], width: int) -> int:
    longest = max((cell_width(clean(label)) for label in labels), default=0)
    return max(min(longest, _MAX_LABEL, width // 3), min(_MIN_LABEL, longest))


def _padded(labels: Sequence[str], width: int, glyphs: Glyphs) -> list[str]:
    """The labels padded to one width."""
    return [pad(text, width) for text in fitting_names(tuple(map(clean, labels)), width, glyphs)]


def _left_out(count: int, what: str) -> Line:
    return [(f"{count} more {what} in the table", "dim")]


def _bars(picture: BarChart, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """A row per label: the sum and a bar, stacked where there are several series.

    Negative parts extend to the left of zero.
    """
    count = len(picture.labels)
    shown = count if count <= height else max(height - 1, 0)
    numbers = np.stack([series.numbers for series in picture.series]).astype(np.float64)
    known = np.isfinite(numbers)
    parts = np.where(known, numbers, 0.0)
    sums = np.where(known.any(axis=0), parts.sum(axis=0), np.nan)
    texts = [short_number(value) or glyphs.missing for value in sums]
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
    fills = series_fills(glyphs)
    inks = _inks_of(picture)
    lines: list[Line] = []
    for row in range(shown):
        line: Line = [
            (labels[row] + " ", "text"),
            (texts[row].rjust(value_width) + " ", "text"),
        ]
        if len(picture.series) == 1 and not below:
            line.append((bar(parts[0, row] / span, room, glyphs), "accent"))
        else:
            left = _stack(np.maximum(-parts[:, row], 0.0) / span * room, fills, inks)
            line.append((" " * (zero - sum(len(text) for text, _ in left)), "text"))
            right = _stack(np.maximum(parts[:, row], 0.0) / span * room, fills, inks)
            line += [*reversed(left), *right]
        if picture.longest and abs(sums[row]) > picture.longest * (1 + _HAIR):
            # It goes on beyond the end of the axis.
            line[-1] = (line[-1][0].rstrip()[:-1] + glyphs.crumb, line[-1][1])
        lines.append(line)
    if shown < count and height > 0:
        lines.append(_left_out(count - shown, "rows"))
    return lines


def _cut_parts(parts: Float64, longest: float) -> Float64:
    """The parts of bars as far as the axis goes, from zero in both directions."""
    cut_parts = np.zeros_like(parts)
    for sign in (1.0, -1.0):
        ends = np.minimum(np.cumsum(np.maximum(sign * parts, 0.0), axis=0), longest)
        cut_parts += sign * np.diff(ends, axis=0, prepend=0.0)
    return cut_parts


def _inks_of(picture: BarChart | LineChart) -> tuple[str, ...]:
    """The inks of series: of parts above and below zero those of differences."""
    if isinstance(picture, BarChart) and len(picture.series) == 2:
        above, below = (series.numbers for series in picture.series)
        if not (above < 0).any() and (below < 0).any() and not (below > 0).any():
            return ("above", "below")
    return SERIES_INKS


def _stack(lengths: Float64, fills: str, inks: Sequence[str]) -> Line:
    """The stacked parts of a bar, rounded so that their total length is exact."""
    ends = np.rint(np.cumsum(lengths)).astype(int)
    return [
        (fills[number % len(fills)] * size, inks[number % len(inks)])
        for number, size in enumerate(np.diff(ends, prepend=0).tolist())
        if size
    ]


def _boxes(picture: BoxChart, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """A row per label: whiskers to the extremes, a box between the quartiles, the median."""
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
    if shown < count and height > 1:
        lines.append(_left_out(count - shown, "rows"))
    ends = (short_number(low), short_number(high))
    axis = ends[0] + ends[1].rjust(max(room - len(ends[0]), len(ends[1]) + 1))
    lines.append([(" " * (label_width + 1) + axis, "dim")])
    return lines
