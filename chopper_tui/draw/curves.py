"""Line charts and points on even axes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import ceil, floor, log10
from threading import Lock
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.charts import LineChart, Roofline
from chopper_core.render.cells import beginning, wrapped
from chopper_core.render.glyphs import Glyphs
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.escape import clean
from chopper_core.util.grouping import distinct, quantiles_along, run_mask
from chopper_tui.draw.axes import (
    ASCII,
    Axis,
    area_ends,
    around,
    axis_shares,
    begins_at,
    framed_lines,
)
from chopper_tui.draw.canvas import (
    MAX_ZOOM,
    UNLIMITED,
    Canvas,
    Drawer,
    Lens,
    area,
    legend_entries,
    lines_over,
    title_lines,
)
from chopper_tui.draw.pieces import SERIES_INKS, Line, short_number

_POINTS_PER_CELL: Final = 8
"""Points of a curve per column of the canvas: the ends and extremes of its two halves."""
_PLOTEXT: Final = Lock()
"""plotext draws on one figure for the whole process."""
_PIECE: Final = re.compile(r"\x1b\[0m(?:\x1b\[38;5;(\d+)m)?([^\x1b]*)")
"""A part of a line in one colour, whose number is that of a curve's ink."""
_QUARTERS: Final = "hd"
"""The marker of lines in quarters of a cell."""


class Curve(Struct, frozen=True, eq=False):
    """Points in the order in which they are joined; all of them are known."""

    x: Float64
    y: Float64
    ink: str
    marker: str
    is_joined: bool = False
    is_filled: bool = False


def plotted(
    curves: Sequence[Curve],
    size: tuple[int, int],
    x_axis: Axis,
    y_axis: Axis,
    glyphs: Glyphs,
    check: Callable[[], None],
    right: Axis | None = None,
    texts: Sequence[tuple[float, float, str]] = (),
) -> list[Line]:
    """Curves over their axes, the later ones in front, with texts right of places."""
    import plotext

    width, height = size
    inks = ["dim", *(curve.ink for curve in curves)]
    with _PLOTEXT:
        check()
        figure: Any = plotext.figure
        plotext.terminal.limit(False, False)
        figure.clear()
        figure.theme("colorless")
        figure.plot_size(width, height)
        figure.axes(False)
        figure.axes(True, axis="y", side="left")
        for axis, name, side in (
            (x_axis, "x", "lower"), (y_axis, "y", "left"), (right, "y", "right")
        ):  # fmt: skip
            if axis is not None:
                ruler = figure.ruler(name, side=side)
                ruler.lim(0, 1)
                shares = axis_shares(np.array(axis.places), axis).tolist()
                # plotext leaves out a label that meets the one before, even that with the unit.
                cells = width - y_axis.label_width - 1
                fitting = {text for text, _ in axis.fitting(cells)}
                some = [
                    (share, text)
                    for share, text in zip(shares, axis.texts, strict=True)
                    if name == "y" or text in fitting
                ]
                ruler.ticks([share for share, _ in some], [text for _, text in some])
        for x, y, text in texts:
            place = x_axis.share(x), y_axis.share(y)
            figure.draw(figure.text(*place, text, alignment="left"))
        for number, curve in enumerate(curves, 1):
            check()
            xs, ys = axis_shares(curve.x, x_axis), axis_shares(curve.y, y_axis)
            kept = _kept_points(xs, ys, width)
            marker = plotext.marker(curve.marker, pixel=plotext.pixel(number))
            signal = figure.signal(xs[kept].tolist(), ys[kept].tolist(), marker=marker)
            signal.lines(curve.is_joined)
            signal.fillx(curve.is_filled)
            figure.draw(signal)
        check()
        text = figure.build().string()
    rows = [
        [(piece, inks[int(ink or 0)]) for ink, piece in _PIECE.findall(row) if piece]
        for row in text.split("\n")[:height]
    ]
    if glyphs.is_ascii:
        rows = [[(piece.translate(ASCII), ink) for piece, ink in row] for row in rows]
    return rows


def _kept_points(x: Float64, y: Float64, width: int) -> Index:
    """Of more points than a canvas can show: first, last, lowest, highest of each half cell."""
    most = _POINTS_PER_CELL * width
    if len(x) <= most:
        return np.arange(len(x))
    columns = np.floor(x * 2 * width).astype(np.intp)
    is_new = run_mask(columns)
    run, begins = np.cumsum(is_new), np.flatnonzero(is_new)
    ends = np.append(begins[1:], len(x)) - 1
    by_height = np.lexsort((y, run))
    kept = distinct(np.concatenate([begins, ends, by_height[begins], by_height[ends]]))
    # A curve that runs to and fro is thinned.
    return kept[:: -(-len(kept) // most)]


_MARKERS: Final = {"unicode": "●▲■◆○△□◇", "ascii": "*+xo@%&$"}
_MARKS_ON_A_CURVE: Final = 6
_LINES: Final = 14
_MIN_LINES: Final = 7
_LINES_PER_TICK: Final = 3
_CELLS_PER_TICK: Final = 10


class LineDrawer(Drawer[LineChart]):
    """Curves below a legend of their markers."""

    zoom = MAX_ZOOM
    shortest = _LINES
    tallest = UNLIMITED

    def title(self, chart: LineChart, width: int, glyphs: Glyphs) -> list[Line]:
        unit = f"{chart.unit}{_begins(chart)}".removeprefix(", ")
        if (peers := _peers(chart)) is not None:
            names, inks = _named_peers(chart, peers)
            within = glyphs.spark[-1]
            areas = [glyphs.band, within] if chart.is_nested else [within]
            line = glyphs.steps[len(glyphs.steps) // 2]
            marks = [*areas, *[line] * (len(names) - len(areas))]
            return title_lines(chart.title, unit, width, legend_entries(names, marks, inks))
        markers = _MARKERS[glyphs.name]
        names = [each.name for each in chart.series]
        names = names if 1 < len(names) <= len(markers) else []
        legend = legend_entries(names, markers, SERIES_INKS)
        return title_lines(chart.title, unit, width, legend)

    def lines(self, chart: LineChart, width: int, glyphs: Glyphs) -> int:
        return _LINES

    def lines_below(self, chart: LineChart, width: int, glyphs: Glyphs) -> int:
        return len(self.title(chart, width, glyphs)) + _MIN_LINES

    def body(self, chart: LineChart, on: Canvas) -> None:
        if (peers := _peers(chart)) is not None:
            _draw_peers(chart, peers, on)
            return
        curves = _curves(chart, on.glyphs)
        if not curves:
            on.add([("no values to draw", "dim")])
            return
        x, y = (np.concatenate([getattr(curve, axis) for curve in curves]) for axis in "xy")
        size = on.width, max(on.left, 3)
        whole = all((each == np.floor(each))[np.isfinite(each)].all() for each in chart.x)
        across = on.width // _CELLS_PER_TICK
        x_axis = Axis.over(
            x.min(), x.max(), across, chart.x_unit or clean(chart.x_title), whole=whole
        )
        low, high = _ends(chart) if _is_area(chart) else (y.min(), y.max())
        y_axis = Axis.over(low, high, size[1] // _LINES_PER_TICK)
        on.lines += plotted(curves, size, x_axis, y_axis, on.glyphs, on.check)

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


_MIN_PEERS: Final = 4
_PEER_INKS: Final = ("warning", "strong")
"""Of the two curves that differ most from the median of all."""


def _peers(chart: LineChart) -> Float64 | None:
    """Many curves over the same places, as rows; None for others."""
    if chart.points or len(chart.series) < (2 if chart.is_nested else _MIN_PEERS):
        return None
    first = chart.x[0]
    same = all(len(x) == len(first) and np.array_equal(x, first) for x in chart.x)
    rows = np.stack([each.numbers for each in chart.series]) if same else np.zeros((0, 0))
    known = np.isfinite(rows).all(axis=0) & np.isfinite(first) if same else np.zeros(0, np.bool_)
    return rows if known.sum() > 1 and (np.diff(first) >= 0).all() else None


def _is_area(chart: LineChart) -> bool:
    """Whether it is drawn as an area: a curve alone, or the median of many."""
    return not chart.points and (len(chart.series) == 1 or _peers(chart) is not None)


def _ends(chart: LineChart) -> tuple[float, float]:
    """The ends of the axis of areas; those of several curves begin at zero, or below it."""
    numbers = np.concatenate([each.numbers for each in chart.series])
    known = numbers[np.isfinite(numbers)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    if len(chart.series) == 1:
        return area_ends(low, high)
    begin, end = around(min(low, 0.0), high)
    return (begin if low < 0 else 0.0), end


def _begins(chart: LineChart) -> str:
    """What the title says where the areas of a chart don't begin at zero."""
    low = _ends(chart)[0] if _is_area(chart) else 0.0
    return begins_at(short_number(low)) if low else ""


def _far_peers(chart: LineChart, peers: Float64) -> list[int]:
    distance = np.nansum(np.abs(peers - quantiles_along(peers, (0.5,))), axis=1)
    others = [each.name not in chart.marked for each in chart.series]
    order: list[int] = np.lexsort((-distance, others)).tolist()
    return order[: len(_PEER_INKS)]


def _named_peers(chart: LineChart, peers: Float64) -> tuple[list[str], list[str]]:
    if chart.is_nested:
        return [each.name for each in chart.series], ["shade", "third", "strong"]
    names = [chart.series[place].name for place in _far_peers(chart, peers)]
    return ["median", *names], ["shade", *_PEER_INKS]


def _draw_peers(chart: LineChart, peers: Float64, on: Canvas) -> None:
    """The median of many curves as an area, and in front of it the two that differ most; of nested
    ones the first two are areas, and the others lines in front."""
    x, lines = chart.x[0], max(on.left - 2, 1)
    y_axis = Axis.over(*_ends(chart), max(lines // 3, 3))
    width = y_axis.label_width
    cells = max(on.width - width - 1, 1)
    unit = chart.x_unit or clean(chart.x_title)
    most, whole = max(on.width // _CELLS_PER_TICK, 3), bool((x == np.floor(x)).all())
    x_axis = Axis.over(float(x[0]), float(x[-1]), most, unit, whole=whole)
    # Each cell has the nearest value, without slopes between values.
    at = np.searchsorted((x[1:] + x[:-1]) / 2, np.linspace(x[0], x[-1], cells))
    far = [] if chart.is_nested else [peers[place] for place in _far_peers(chart, peers)]
    drawn = peers if chart.is_nested else [quantiles_along(peers, (0.5,))[0], *far]
    inks, areas = _named_peers(chart, peers)[1], 1 + chart.is_nested
    heights = np.stack([axis_shares(each[at], y_axis) for each in drawn])
    body = area(heights[:areas][::-1], lines, [inks[areas - 1]] * cells, on.glyphs)
    lines_in_front = zip(heights[areas:], inks[areas:], strict=False)
    body = lines_over(body, [*lines_in_front][::-1], on.glyphs)
    on.lines += framed_lines(body, y_axis, width, on.glyphs.is_ascii)
    on.add([(" " * width + x_axis.ruler(cells, on.glyphs.is_ascii), "dim")])
    on.add([(" " * (width + 1) + x_axis.line(cells), "dim")])


def _curves(picture: LineChart, glyphs: Glyphs) -> list[Curve]:
    """The series: points, or lines with marks that distinguish them; one alone is filled."""
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
        line = mark if glyphs.is_ascii else _QUARTERS
        if not several and (x == np.floor(x)).all() and (np.diff(x) > 0).all():
            # Counted places have steps: there are no values between them.
            ends = np.concatenate([x[:1], (x[1:] + x[:-1]) / 2, x[-1:]])
            x, y = np.repeat(ends, 2)[1:-1], np.repeat(y, 2)
        curves.append(Curve(x, y, ink, line, is_joined=True, is_filled=not several))
        if several and not glyphs.is_ascii:
            step = max(len(x) // _MARKS_ON_A_CURVE, 1)
            some = slice(number * step // len(picture.series), None, step)
            curves.append(Curve(x[some], y[some], ink, mark))
    return curves


_ROOFLINE_LINES: Final = 12
_SENTENCE_FROM: Final = ((16, 2), (9, 1))
"""Lines of the picture from which the sentence has how many."""
_SIZES: Final = {"unicode": "•●■", "ascii": ".oO"}
_LARGE: Final = (0.02, 0.1)
_SELECTED: Final = {"unicode": "◆", "ascii": "@"}
_MEASURED: Final = {"unicode": "○", "ascii": "+"}
_MARGIN: Final = 0.15
"""Decades left around points and ridges."""
_ABOVE: Final = 0.05
"""Decades left above the highest roof, where nothing can be."""
_LEAST_DECADES: Final = 0.8
_MAX_ZOOM: Final = 32.0
_MOST_DECADES: Final = 4.5
"""Of rates; points below lie on the lower edge."""


class RooflineDrawer(Drawer[Roofline]):
    """The title with a legend, the picture, its axes, and the cursor's row in a sentence."""

    follows_cursor = True
    shortest = _ROOFLINE_LINES
    tallest = UNLIMITED

    def title(self, chart: Roofline, width: int, glyphs: Glyphs) -> list[Line]:
        small, large = (f"{100 * share:.0f} %" for share in _LARGE)
        first, second, third = list(_SIZES[glyphs.name])
        legend = f"  {first} < {small} of time  {second}  {third} from {large}"
        if np.isfinite(chart.measured_tflops).any():
            legend += f"  {_MEASURED[glyphs.name]} by counters"
        return [[(clean(chart.title), "strong"), (f", TFLOP/s by FLOP/B{legend}", "dim")]]

    def rows(self, chart: Roofline) -> int:
        return int(_has_points(chart))

    def max_zoom(self, chart: Roofline) -> float | None:
        return _MAX_ZOOM if _has_points(chart) else None

    def seen(self, chart: Roofline, lens: Lens) -> Roofline:
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
    if not 0 <= on.row < len(chart.labels) or not room:
        return [[]] * room
    has_point = np.isfinite(_places(chart.intensity, chart.tflops)[on.row]).all()
    width = max(on.width - 2, 8)
    texts = wrapped(chart.sentences[on.row], width) or [""]
    texts[room - 1 :] = [beginning(" ".join(texts[room - 1 :]), width, on.glyphs)]
    marks = [f"{_SELECTED[on.glyphs.name] if has_point else ' '} ", *["  "] * room]
    lines: list[Line] = [
        [(mark, "strong"), (text, "text")] for mark, text in zip(marks, texts, strict=False)
    ]
    return [*lines, *([[]] * room)][:room]


def _places(intensity: Float64, tflops: Float64) -> Float64:
    both = np.stack([intensity, tflops], axis=1)
    is_known = (np.isfinite(both) & (both > 0)).all(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        places: Float64 = np.log10(np.where(is_known, both, np.nan))
    return places


def _all_places(chart: Roofline) -> Float64:
    model = _places(chart.intensity, chart.tflops)
    both = np.concatenate([model, _places(chart.measured_intensity, chart.measured_tflops)])
    known: Float64 = both[np.isfinite(both[:, 0])]
    return known


def _has_points(chart: Roofline) -> bool:
    return len(_all_places(chart)) > 0


def _axes(
    chart: Roofline, peaks: Sequence[tuple[str, float]], slope: float | None
) -> tuple[Axis, Axis]:
    points, roofs = _all_places(chart), [peak for _, peak in peaks]
    ridges = [] if slope is None else [peak - slope for peak in roofs]
    xs = [*points[:, 0], *ridges]
    left, right = min(xs) - _MARGIN, max(xs) + _MARGIN
    more = max(_LEAST_DECADES - (right - left), 0.0) / 2
    left, right = left - more, right + more
    left, right = (left + share * (right - left) for share in chart.seen)
    seen = points[(left <= points[:, 0]) & (points[:, 0] <= right)]
    ys = [*seen[:, 1], *roofs] or [*points[:, 1]]
    top = max(ys) + (_ABOVE if max(ys) in roofs else _MARGIN)
    bottom = min(max(min(ys), max(ys) - _MOST_DECADES) - _MARGIN, top - _LEAST_DECADES)
    return _log_axis(left, right), _log_axis(bottom, top)


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
    marks = ("/", "-") if glyphs.is_ascii else (_QUARTERS, "─")
    if slope is not None:
        highest = max((peak for _, peak in peaks), default=y.high)
        begin, end = max(x.low, y.low - slope), min(x.high, highest - slope)
        if begin < end:
            line = np.linspace(begin, end, 99)
            curves.append(Curve(line, line + slope, "shade", marks[0], is_joined=True))
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
        (model, is_selected, "strong", _SELECTED[name]),
    ]
    curves = []
    for places, chosen, ink, mark in groups:
        own = places[chosen & (places[:, 0] >= x.low) & (places[:, 0] <= x.high)]
        if len(own):
            curves.append(Curve(own[:, 0], own[:, 1], ink, mark))
    return curves
