"""A roofline: roofs as lines and rows as points, on two logarithmic axes.

plotext's axes are linear and its points have one size, so the cells are set here: roofs in
braille dots, or in `-` and `/`; points in three sizes by their part of the time.
"""

from __future__ import annotations

from math import ceil, floor, inf, isfinite, log10
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.charts import Roofline
from chopper_core.render.cells import beginning, clean, wrapped
from chopper_core.render.glyphs import Glyphs
from chopper_tui.draw.drawer import UNLIMITED, Canvas, Drawer, Lens
from chopper_tui.draw.pieces import Line, inked, short_number

_LINES: Final = 13
"""Lines that the picture wants, with its title, axis and the sentence beneath."""
_AROUND: Final = 2
"""Title and axis."""
_SENTENCE_FROM: Final = ((16, 2), (9, 1))
"""Lines of the picture from which the sentence has how many."""
_SIZES: Final = {"unicode": "·•●", "ascii": ".oO"}
_LARGE: Final = (0.02, 0.1)
"""Parts of the time from which a point is larger."""
_SELECTED: Final = {"unicode": "◆", "ascii": "@"}
_MEASURED: Final = {"unicode": "○", "ascii": "+"}
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille cell, row by row."""
_BRAILLE: Final = 0x2800
_MARGIN: Final = 0.15
"""Decades left around points and ridges."""
_LEAST_DECADES: Final = 1.5
_MAX_ZOOM: Final = 32.0
_MOST_DECADES: Final = 4.5
"""Of rates; points below lie on the lower edge."""


class _Axes(Struct, frozen=True):
    """Logarithms at the edges of the canvas, and its size in cells."""

    left: float
    right: float
    bottom: float
    top: float
    width: int
    height: int

    def x(self, value: float) -> float:
        """The place of an intensity, 0 at the left edge."""
        return (log10(value) - self.left) / (self.right - self.left) * self.width

    def y(self, value: float) -> float:
        """The place of a rate, 0 at the top edge."""
        return (self.top - log10(value)) / (self.top - self.bottom) * self.height

    def cell(self, intensity: float, tflops: float) -> tuple[int, int]:
        """The row and column of a point."""
        row, column = floor(self.y(tflops)), floor(self.x(intensity))
        return min(max(row, 0), self.height - 1), min(max(column, 0), self.width - 1)


class RooflineDrawer(Drawer[Roofline]):
    """The title with a legend, the picture, its axis, and the cursor's row in a sentence."""

    follows_cursor = True

    def lines(self, chart: Roofline, width: int, glyphs: Glyphs) -> int:
        """Enough to tell the roofs apart."""
        return _LINES if _points(chart) else 2

    def most_lines(self, chart: Roofline, width: int, glyphs: Glyphs) -> int:
        """Any number; without points, those that say so."""
        return UNLIMITED if _points(chart) else 2

    def max_zoom(self, chart: Roofline) -> float | None:
        """Until points of the same kernel lie apart."""
        return _MAX_ZOOM if _points(chart) else None

    def seen(self, chart: Roofline, lens: Lens) -> Roofline:
        """A part of the intensities, with the rates of the points there."""
        return replace(chart, seen=lens.range)

    def draw(self, chart: Roofline, on: Canvas) -> list[Line]:
        """All of it, in the room there is."""
        peaks = tuple((name, peak) for name, peak in chart.peaks if peak > 0)
        chart = replace(chart, peaks=peaks, memory_tbps=max(chart.memory_tbps or 0, 0) or None)
        return on.fitted(_draw(chart, on.width, on.height, on.glyphs, on.row))


def _draw(chart: Roofline, width: int, height: int, glyphs: Glyphs, selected: int) -> list[Line]:
    has_measured = bool(np.isfinite(chart.measured_tflops).any())
    lines = [_title(chart, glyphs, has_measured)]
    room = next((lines for least, lines in _SENTENCE_FROM if height >= least), 0)
    axes = _axes(chart, width, height - _AROUND - room)
    if axes is None:
        lines.append([("no row has FLOPs and bytes", "dim")])
        return lines
    cells = [[(" ", "dim")] * axes.width for _ in range(axes.height)]
    _draw_roofs(cells, chart, axes, glyphs)
    taken = {axes.cell(x, y) for x, y in _points(chart) if axes.left <= log10(x) <= axes.right}
    for name, peak in chart.peaks:
        _name_peak(cells, axes, peak, f" {name} {short_number(peak)} ", taken)
    if chart.memory_tbps is not None:
        _name_memory(cells, chart.memory_tbps, axes, taken)
    _draw_points(cells, chart, axes, glyphs, selected)
    marks = {floor(axes.y(mark)): short_number(mark) for mark in _ticks(axes.bottom, axes.top)}
    label = max(width - axes.width - 1, 0)
    edge = "|" if glyphs.is_ascii else "┤"
    for row, line in enumerate(cells):
        lines.append(
            [(marks.get(row, "").rjust(label) + edge, "dim"), *inked(*zip(*line, strict=True))]
        )
    lines.append([(" " * (label + 1) + _x_axis(axes), "dim")])
    return [*lines, *_sentence(chart, width, selected, room, glyphs)]


def _title(chart: Roofline, glyphs: Glyphs, has_measured: bool) -> Line:
    sizes = _SIZES[glyphs.name]
    small, large = (f"{100 * share:.0f} %" for share in _LARGE)
    between = f"  {sizes[0]} < {small} of time  {sizes[1]}  {sizes[2]} from {large}"
    measured = f"  {_MEASURED[glyphs.name]} by counters" if has_measured else ""
    return [(clean(chart.title), "strong"), (f", TFLOP/s by FLOP/B{between}{measured}", "dim")]


def _sentence(chart: Roofline, width: int, selected: int, room: int, glyphs: Glyphs) -> list[Line]:
    """The selected row in words, always in as many lines."""
    if not 0 <= selected < len(chart.labels) or not room:
        return [[]] * room
    has_point = isfinite(chart.intensity[selected]) and isfinite(chart.tflops[selected])
    mark = _SELECTED[glyphs.name] if has_point else " "
    texts = wrapped(chart.sentences[selected], max(width - 2, 8)) or [""]
    texts[room - 1 :] = [beginning(" ".join(texts[room - 1 :]), max(width - 2, 8), glyphs)]
    lines: list[Line] = [[(f"{mark} ", "alert"), (texts[0], "text")]]
    lines += [[("  ", "text"), (text, "text")] for text in texts[1:]]
    return [*lines, *([[]] * room)][:room]


def _points(chart: Roofline) -> list[tuple[float, float]]:
    """The places of all points, modelled and measured."""
    return [
        (x, y)
        for xs, ys in (
            (chart.intensity, chart.tflops),
            (chart.measured_intensity, chart.measured_tflops),
        )
        for x, y in zip(xs.tolist(), ys.tolist(), strict=True)
        if isfinite(x) and isfinite(y) and x > 0 and y > 0
    ]


def _axes(chart: Roofline, width: int, height: int) -> _Axes | None:
    """The axes around all points and the ridges of the roofs."""
    points = _points(chart)
    if not points:
        return None
    xs, ys = ([log10(value) for value in values] for values in zip(*points, strict=True))
    for _, peak in chart.peaks:
        ys.append(log10(peak))
        if chart.memory_tbps is not None:
            xs.append(log10(peak / chart.memory_tbps))
    left, right = _spread(min(xs) - _MARGIN, max(xs) + _MARGIN)
    if chart.seen != (0.0, 1.0):
        left, right = (left + share * (right - left) for share in chart.seen)
        inside = [log10(y) for x, y in points if left <= log10(x) <= right]
        ys = [*inside, *ys[len(points) :]] or ys
    bottom, top = _spread(max(min(ys), max(ys) - _MOST_DECADES) - _MARGIN, max(ys) + _MARGIN)
    label = max((len(short_number(mark)) for mark in _ticks(bottom, top)), default=1)
    return _Axes(left, right, bottom, top, max(width - label - 1, 2), max(height, 1))


def _spread(low: float, high: float) -> tuple[float, float]:
    more = max(_LEAST_DECADES - (high - low), 0.0) / 2
    return low - more, high + more


def _ticks(low: float, high: float) -> list[float]:
    """The powers of ten between two logarithms; where they are few, twice and five times them."""
    decades = range(floor(low), ceil(high) + 1)
    factors = (1.0,) if floor(high) - ceil(low) >= 2 else (1.0, 2.0, 5.0)
    marks = [factor * 10.0**power for power in decades for factor in factors]
    return [mark for mark in marks if low <= log10(mark) < high]


def _x_axis(axes: _Axes) -> str:
    text = [" "] * axes.width
    for tick in _ticks(axes.left, axes.right):
        mark = short_number(tick)
        place = min(max(floor(axes.x(tick)) - len(mark) // 2, 0), axes.width - len(mark))
        if place >= 0 and not "".join(text[max(place - 1, 0) : place + len(mark) + 1]).strip():
            text[place : place + len(mark)] = mark
    return "".join(text)


def _draw_roofs(
    cells: list[list[tuple[str, str]]], chart: Roofline, axes: _Axes, glyphs: Glyphs
) -> None:
    """The memory's roof up to the highest peak, and each peak from its ridge on."""
    dots: dict[tuple[int, int], int] = {}
    across, down = (1, 1) if glyphs.is_ascii else (2, 4)
    highest = max((peak for _, peak in chart.peaks), default=inf)
    for step in range(axes.width * across):
        at = (step + 0.5) / across
        intensity = 10 ** (axes.left + at / axes.width * (axes.right - axes.left))
        slope = inf if chart.memory_tbps is None else intensity * chart.memory_tbps
        roofs = [slope] if isfinite(slope) and slope <= highest else []
        roofs += [peak for _, peak in chart.peaks if peak <= slope]
        for number, roof in enumerate(roofs):
            place = axes.y(roof) * down
            if not 0 <= place < axes.height * down:
                continue
            row, dot = divmod(floor(place), down)
            column = step // across
            if glyphs.is_ascii:
                is_slope = number == 0 and roof == slope
                cells[row][column] = ("/" if is_slope else "-", "dim")
            else:
                bits = dots.get((row, column), 0) | _DOTS[dot][step % across]
                dots[row, column] = bits
                cells[row][column] = (chr(_BRAILLE | bits), "dim")


def _name_peak(
    cells: list[list[tuple[str, str]]],
    axes: _Axes,
    peak: float,
    text: str,
    taken: set[tuple[int, int]],
) -> None:
    """Name a flat roof on its line, as far right as no point and no other name is in the way."""
    row = floor(axes.y(peak))
    if not 0 <= row < axes.height:
        return
    for begin in range(axes.width - len(text), -1, -1):
        places = range(begin, begin + len(text))
        chars = "".join(cells[row][place][0] for place in places)
        is_line = not any(char in " /" or char.isalnum() for char in chars)
        if is_line and not any((row, place) in taken for place in places):
            _write(cells, row, begin, text)
            return


def _name_memory(
    cells: list[list[tuple[str, str]]], tbps: float, axes: _Axes, taken: set[tuple[int, int]]
) -> None:
    """Name the memory's roof right of its line, as far down as there is room."""
    text = f"HBM {short_number(tbps)} TB/s"
    for row in range(axes.height - 1, -1, -1):
        line = [place for place, (char, _) in enumerate(cells[row]) if char != " "]
        begin = line[-1] + 2 if line else axes.width
        places = range(begin, begin + len(text))
        if begin + len(text) <= axes.width and not any((row, place) in taken for place in places):
            _write(cells, row, begin, text)
            return


def _write(cells: list[list[tuple[str, str]]], row: int, begin: int, text: str) -> None:
    cells[row][begin : begin + len(text)] = [(char, "dim") for char in text]


def _draw_points(
    cells: list[list[tuple[str, str]]],
    chart: Roofline,
    axes: _Axes,
    glyphs: Glyphs,
    selected: int,
) -> None:
    """Measured points, then modelled ones, the largest last; the selected row over all others."""
    rows = np.argsort(np.nan_to_num(chart.share), kind="stable").tolist()
    if 0 <= selected < len(rows):
        rows.remove(selected)
        rows.append(selected)
    for measured in (True, False):
        for row in rows:
            x, y = (
                (chart.measured_intensity[row], chart.measured_tflops[row])
                if measured
                else (chart.intensity[row], chart.tflops[row])
            )
            if not (isfinite(x) and isfinite(y) and x > 0 and y > 0):
                continue
            if not axes.left <= log10(x) <= axes.right:
                continue
            size = sum(chart.share[row] >= least for least in _LARGE)
            mark = _MEASURED[glyphs.name] if measured else _SIZES[glyphs.name][size]
            ink = "second" if measured else "accent"
            if row == selected:
                mark = mark if measured else _SELECTED[glyphs.name]
                ink = "alert" if not measured else "second"
            line, column = axes.cell(float(x), float(y))
            cells[line][column] = (mark, ink)
