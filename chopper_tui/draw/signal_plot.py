"""Signals over time: one as an area with its axes, that of many GPUs as rows of sparklines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, log10
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.columns import METRICS
from chopper_core.model.charts import GpuLanes, SignalRows, StepBars
from chopper_core.model.signals import Signal
from chopper_core.model.units import Unit, UnitScale
from chopper_core.render.cells import cell_width, pad, scale_of
from chopper_core.render.glyphs import Glyphs, column_glyphs, sparkline
from chopper_core.util.arrays import Float64
from chopper_core.util.escape import clean
from chopper_core.util.grouping import median_of, quantiles_along
from chopper_core.views.shared.marks import far_out
from chopper_core.views.shared.signal_charts import SignalChart
from chopper_tui.draw import axes
from chopper_tui.draw.axes import drawable
from chopper_tui.draw.canvas import MAX_ZOOM, Canvas, Cell, Drawer, Lens, area, wanted
from chopper_tui.draw.pieces import Line, cut_line, signal_ink, whole_text, width_of
from chopper_tui.draw.step_bars import add_steps, part_at, part_cell, steps_title

_LEAST_PERCENT: Final = 1.0
"""Span of an axis of shares, at least."""
_LINES_PER_TICK: Final = 2
_MIN_TICKS: Final = 3
_MAX_TICKS: Final = 8
_TICK_GAP: Final = 6
_LABEL: Final = 4
"""Cells that the labels of the value axis have at least, so that charts stand under each other."""
_TALL: Final = 6
"""From this height on the time axis has labels of its own."""
_HEAVY: Final = str.maketrans("─┬-", "━┯=")


def axis_width(signal: Signal) -> int:
    return max(len(signal.scale.number(signal.high)), _LABEL) + 1


def bins_for(signal: Signal, width: int) -> int:
    return max(width - axis_width(signal), 1)


def plot_headline(chart: SignalChart, width: int, glyphs: Glyphs) -> str:
    scale = _time_scale(chart)
    dash = "–" if not glyphs.is_ascii else "-"
    signal = chart.signal
    shown, scope = (
        f"{scale.cell(begin)}{dash}{scale.cell(end)}"
        for begin, end in ((chart.start_ns, chart.end_ns), chart.scope_ns)
    )
    parts = [
        f"{signal.title} {signal.scale.text}",
        f"{shown} {scale.text}",
    ]
    if chart.is_zoomed:
        is_part = chart.scope_ns[0] <= chart.start_ns and chart.end_ns <= chart.scope_ns[1]
        parts[1] = f"{shown} of {scope} {scale.text}" if is_part else f"{parts[1]} (scope {scope})"
    if len(chart.gpus) > 1:
        part = f" of {chart.there}" if chart.there > len(chart.gpus) else ""
        parts[0] += f" of {len(chart.gpus)}{part} GPUs"
    if (low := value_range(chart)[0]) > 0:
        parts[0] += axes.begins_at(signal.scale.number(low))
    parts += _figures(chart, chart.values) or ["not known here"]
    outlier = _outlier(chart)
    if outlier is not None:
        parts.append(f"(GPU {chart.gpus[outlier]}, median shaded)")
    elif len(chart.gpus) > 1:
        parts.append("(median, range shaded)")
    has_legend = parts[-1].startswith("(")
    while len("  ".join(parts)) > width and len(parts) > 1:
        # What the colours are stays while there are figures to drop.
        parts.pop(-2 if has_legend and len(parts) > 3 else -1)
    return "  ".join(parts)


def measured(chart: SignalChart, begin: float, end: float) -> str:
    """The figures of a part of the time that is shown, from one share of it to another."""
    span, bins = chart.end_ns - chart.start_ns, chart.values.shape[1]
    first = min(floor(begin * bins + 0.5), bins - 1)
    figures = _figures(chart, chart.values[:, first : max(floor(end * bins + 0.5), first + 1)])
    scale = _time_scale(chart)
    low, high = (chart.start_ns + share * span for share in (begin, end))
    text = f"{scale.cell(low)} to {scale.cell(high)} {scale.text}: {scale.cell(high - low)}"
    text += f" {scale.text}, {chart.signal.title} "
    if not figures:
        return text + "unknown there"
    return f"{text}{', '.join(figures)} {chart.signal.scale.text}"


def _figures(chart: SignalChart, values: Float64) -> list[str]:
    known = values[np.isfinite(values)]
    if not len(known):
        return []
    ends = {"mean over time": known.mean(), "min": known.min(), "max": known.max()}
    return [f"{name} {chart.signal.scale.number(float(each))}" for name, each in ends.items()]


def _time_scale(chart: SignalChart) -> UnitScale:
    scale = scale_of(METRICS["start_ns"], chart.end_ns)
    span = max((chart.end_ns - chart.start_ns) / scale.divisor, 1e-3)
    return replace(scale, decimals=min(max(2 - floor(log10(span)), 0), scale.decimals))


def draw_signals(
    chart: SignalChart,
    width: int,
    height: int,
    glyphs: Glyphs,
    *,
    time_axis: bool = True,
    check: Callable[[], None] = wanted,
) -> list[Line]:
    """The chart as `height` lines of `width` cells: the median in the band of all GPUs."""
    values = drawable(chart.values)
    if not np.isfinite(values).any():  # No GPU of the scope has the signal.
        return [[(" " * width, "text")]] * height
    chart = replace(chart, values=values)
    time_axis = time_axis and height >= _TALL
    label = axis_width(chart.signal) - 1
    cells, lines = max(width - label - 1, 1), height - 2 * time_axis
    check()
    at = np.arange(cells) * values.shape[1] // cells
    axis = _value_axis(chart, lines)
    inside = range(*_scope_cells(chart, cells))
    outlier = _outlier(chart)
    above = 0.0 if outlier is None else float(far_out(chart.values)[outlier])
    ink, band = signal_ink(chart.signal.unit, above), "shade"
    if outlier is None:
        drawn = quantiles_along(values, (0.0, 0.5, 1.0) if len(chart.gpus) > 1 else (0.5,))
    else:
        # The one far from the others is in front of their median, or behind where it is above.
        drawn = np.stack([values[outlier], quantiles_along(values, (0.5,))[0]])
        if np.nanmean(drawn[0]) > np.nanmean(drawn[1]):
            drawn, ink, band = drawn[::-1], "third", ink
    inks = [ink if place in inside else "shade" for place in range(cells)]
    shares = axes.axis_shares(drawn[:, at], axis)
    body = axes.framed_lines(area(shares, lines, inks, glyphs, band), axis, label, glyphs.is_ascii)
    if time_axis:
        times = _time_axis(chart, cells)
        ruler = times.ruler(cells, glyphs.is_ascii)
        if chart.is_zoomed:
            begin, end = inside.start + 1, inside.stop + 1
            ruler = ruler[:begin] + ruler[begin:end].translate(_HEAVY) + ruler[end:]
        body.append([(" " * label + ruler, "dim")])
        body.append([((" " * (label + 1) + times.line(cells)).ljust(width), "dim")])
    return [cut_line(line, width, glyphs) for line in body]


def _outlier(chart: SignalChart) -> int | None:
    """The place of the GPU whose mean is farthest from the others', if it stands out."""
    distances = np.abs(far_out(chart.values))
    return int(distances.argmax()) if distances.any() else None


def _scope_cells(chart: SignalChart, cells: int) -> tuple[int, int]:
    length = max(chart.end_ns - chart.start_ns, 1)
    begin, end = ((edge - chart.start_ns) * cells / length for edge in chart.scope_ns)
    begin = min(max(floor(begin), 0), cells - 1)
    return begin, min(max(ceil(end), begin + 1), cells)


def _value_axis(chart: SignalChart, lines: int) -> axes.Axis:
    low, high = value_range(chart)
    most = min(max(lines // _LINES_PER_TICK, _MIN_TICKS), _MAX_TICKS)
    # Labels have no room for decimals of a percentage.
    axis = axes.Axis.over(low, high, most, whole=chart.signal.unit is Unit.PERCENT)
    divisor = chart.signal.scale.divisor
    return replace(axis, texts=axes.labels([place / divisor for place in axis.places]))


def value_range(chart: SignalChart) -> tuple[float, float]:
    """The ends of the value axis: around the values of all its GPUs in the time that it shows."""
    known = chart.values[np.isfinite(chart.values)]
    if not len(known):
        return chart.signal.low, chart.signal.high
    low, high = axes.around(float(known.min()), float(known.max()))
    if chart.signal.unit is Unit.PERCENT:
        # Less than a hundredth of the whole is noise, and its ticks have no decimals to show it.
        spare = max(_LEAST_PERCENT - (high - low), 0.0) / 2
        low, high = max(low - spare, 0.0), max(min(high + spare, 100.0), float(known.max()))
        return axes.area_ends(low, high)
    return axes.area_ends(max(low, min(float(known.min()), 0.0)), high)


def _time_axis(chart: SignalChart, cells: int) -> axes.Axis:
    scale = _time_scale(chart)
    begin, end = chart.start_ns / scale.divisor, chart.end_ns / scale.divisor
    longest = len(f"{end:.0f}") + len(scale.text) + _TICK_GAP
    return axes.Axis.over(begin, end, cells // longest, scale.text)


_MIN_CELLS: Final = 8
_TICK_CELLS: Final = 10
_GAP: Final = 2


class SignalRowsDrawer(Drawer[SignalRows]):
    """A sparkline per row."""

    zoom = MAX_ZOOM

    def title(self, chart: SignalRows, width: int, glyphs: Glyphs) -> list[Line]:
        low, high, least, most = _scale(chart)
        beyond = ("<=" if least < low else "", ">=" if most > high else "")
        title: Line = [
            (clean(chart.title), "strong"),
            (f"{', ' if chart.unit else ''}{chart.unit}", "dim"),
            (f"  {beyond[0]}{whole_text(low)} ", "dim"),
            (glyphs.spark, signal_ink(chart.unit)),
            (f" {beyond[1]}{whole_text(high)}", "dim"),
        ]
        text = f"  all {whole_text(least)} to {whole_text(most)}" * any(beyond)
        return [[*title, *([(text, "dim")] if width_of(title) + len(text) <= width else [])]]

    def around(self, chart: SignalRows) -> int:
        return 1

    def body(self, chart: SignalRows, on: Canvas) -> None:
        _add_rows(chart, on)

    def seen(self, chart: SignalRows, lens: Lens) -> SignalRows:
        bins = chart.numbers.shape[1]
        first, end = lens.columns(bins)
        low, high = chart.x
        step = (high - low) / bins
        part = (low + first * step, low + end * step)
        return replace(chart, numbers=chart.numbers[:, first:end], x=part)


class GpuLanesDrawer(Drawer[GpuLanes]):
    """The time of each step, and a row per GPU in place of the table's: values and lanes."""

    follows_cursor = is_table = is_alone = is_quick = True
    opens_with = "enter"

    def body_lines(self, chart: GpuLanes) -> int:
        return _ROWS_AROUND + len(chart.labels) + (_STEP_LINES[0] if chart.steps else 1)

    def _most_lines(self, chart: GpuLanes) -> int:
        """With the chart of steps as high as it gets: of few of them it says no more by that."""
        steps = len(chart.steps.steps) if chart.steps is not None else 0
        return self.body_lines(chart) + (_STEP_LINES[1] if steps >= _MANY_STEPS else 0)

    def fitted(self, chart: GpuLanes, width: int, glyphs: Glyphs, lines: int) -> int:
        most = self._most_lines(chart)
        return min(lines, most) + (_tall(lines - most, chart) - 1) * len(chart.labels)

    def followed(self, chart: GpuLanes, cell: Cell, label: str | None) -> Cell:
        return (chart.labels.index(label) if label in chart.labels else 0), 0

    def label_of(self, chart: GpuLanes, cell: Cell) -> str | None:
        return chart.labels[cell[0]]

    def bar(self, chart: GpuLanes) -> StepBars | None:
        return chart.steps

    def part_cell(self, place: int, row: int) -> Cell:
        return part_cell(place, row)

    def part_at(self, cell: Cell) -> int | None:
        return part_at(cell)

    def cursor(
        self, chart: GpuLanes, cell: Cell, row: int, label: str | None
    ) -> tuple[int, int | None]:
        return row, 0

    def body(self, chart: GpuLanes, on: Canvas) -> None:
        count, columns = len(chart.labels), _lane_columns(chart, on.width)
        most = self._most_lines(chart)
        tall = _tall(on.left - most, chart)
        above = steps_title(chart.steps, on.glyphs) if chart.steps else []
        begin, end = chart.signals[0].x
        limits = [
            f"{whole_text(limit)} {signal.unit}"
            for signal, limit in zip(chart.signals, chart.limits, strict=True)
            if limit is not None
        ]
        about = f"last {whole_text(end - begin)} s" + (
            f", limits {', '.join(limits)}" if limits else ""
        )
        gap = on.width - width_of(above) - cell_width(about) - 1
        on.add([*above, (" " * gap + about, "dim")] if gap > 0 else above)
        if chart.steps is not None:
            add_steps(chart.steps, on, max(on.left - count * tall - _ROWS_AROUND, 0))
        header: Line = [(pad(" ", columns.label), "header")]
        scales = [*map(_lane_scale, chart.signals)]
        for signal, limit, ends in zip(chart.signals, chart.limits, scales, strict=True):
            text, room = f"{signal.title.removeprefix('gfx ')} {signal.unit}", columns.each
            scale = f"  {'–'.join(map(whole_text, ends))}"
            if signal.unit == Unit.CELSIUS and limit is not None:
                scale = f"  of {whole_text(limit + _OVER)}"
            text += scale if len(text + scale) < room else ""
            header.append((pad(text[:room], room), "header"))
        on.add([*header, (chart.last.name if chart.last is not None else "", "header")])
        outliers = {row for signal in chart.signals for row in signal.outliers}
        order = sorted(range(count), key=lambda row: (row != on.row, row not in outliers, row))
        shown = min((on.left - 1) // tall, count)
        if shown < count:
            shown = max(on.left - 2, 1)
        lanes = [
            (_at(each.numbers, max(columns.cells, 1)) - low) / max(high - low, 1e-9) * _LANE_HEIGHT
            for each, (low, high) in zip(chart.signals, scales, strict=True)
        ]
        for row in sorted(order[:shown]):
            for line in _lane_lines(chart, row, lanes, columns, tall, on):
                on.add(line, row, 0, np.zeros(on.width, np.intp))
        if shown < count:
            on.add([(f" {count - shown} more", "dim")])
        whole: Line = [(pad(" all", columns.label), "dim")]
        for value in chart.whole:
            text = "" if value is None else whole_text(value).rjust(columns.value - 1)
            whole.append((pad(text, columns.each), "dim"))
        on.add(whole)


def _tall(spare: int, chart: GpuLanes) -> int:
    """The lines of each GPU, where so many are left with one of each."""
    return 1 + min(max(spare // max(len(chart.labels), 1), 0), _TALLEST - 1)


def _lane_lines(
    chart: GpuLanes,
    row: int,
    lanes: Sequence[Float64],
    at: _LaneColumns,
    tall: int,
    on: Canvas,
) -> list[Line]:
    """The lines of a GPU: its values are in the last one."""
    glyphs, has_cursor = on.glyphs, on.cell == (row, 0)
    name = clean(f"{chart.labels[row]} {chart.names[row]}".rstrip())
    text = "cursor" if has_cursor else "text"
    lines: list[Line] = [[(" " * at.label, "text")] for _ in range(tall - 1)]
    lines.append([(pad((glyphs.cursor if has_cursor else " ") + f" {name}", at.label), text)])
    marks = (chart.raised, lanes, chart.limits)
    for signal, raised, shares, limit in zip(chart.signals, *marks, strict=True):
        value, is_apart = signal.means[row], row in signal.outliers
        figure = whole_text(value) if np.isfinite(value) else glyphs.missing
        if is_apart:
            figure = (glyphs.up if row in raised else glyphs.down) + figure
        drawn: list[Line] = [
            [(cells[: at.cells], _row_ink(signal, row))]
            for cells in column_glyphs(shares[row], tall, glyphs)
        ]
        if signal.unit == Unit.CELSIUS and limit is not None:
            past = (
                column_glyphs(shares[row], tall - 1, glyphs)
                if tall == _TALLEST
                else [""] * (tall - 1)
            )
            drawn = [[(pad(cells, at.cells), _row_ink(signal, row))] for cells in past]
            drawn.append(_heat_meter(float(value), limit, at.cells, glyphs))
        for y, picture in enumerate(drawn):
            is_last = y == tall - 1
            own = text if is_last else "text"
            number = f"{figure if is_last else '':>{at.value - 1}} "
            lines[y] += [(number, "warning" if is_apart else own), *picture, (" " * _GAP, own)]
    if chart.last is not None and np.isfinite(value := chart.last.numbers[row]):
        ink = "alarm" if value > 0 else "dim"
        lines[-1].append((f"{whole_text(value):>{len(chart.last.name) - 2}} %", ink))
    return lines


def _heat_meter(value: float, limit: float, cells: int, glyphs: Glyphs) -> Line:
    """How near to its limit a temperature is; heat is a state, whose past says little."""
    if not np.isfinite(value):
        return [(" " * cells, "text")]
    filled, empty = list(glyphs.meter)
    full = min(round(value / (limit + _OVER) * cells), cells)
    ink = "alarm" if value >= limit else "warning" if value >= limit - _NEAR else "good"
    rest = (filled if glyphs.has_halves else empty) * (cells - full)
    return [(filled * full, ink), (rest, "shade")]


_OVER: Final = 10.0
"""°C above its limit that fill a meter."""
_NEAR: Final = 5.0
_ROWS_AROUND: Final = 2
"""The headings, and the line of all GPUs."""
_STEP_LINES: Final = 4, 6
"""Of the bars of steps with their title: what they want, and how many more they take. Without bars
the first line is that of the time and the limits."""
_MANY_STEPS: Final = 24
"""Steps from which their bars take more lines."""
_TALLEST: Final = 4
"""Lines of a GPU at most: then heat has its past above its meter."""
_LANE_HEIGHT: Final = 0.86
"""Of a line: lanes of rows one below the other stay separate."""
_VALUE: Final = 7
"""Cells of a value, its mark and a space."""


class _LaneColumns(Struct, frozen=True):
    """The widths of a label, of a value, and of a lane."""

    label: int
    value: int
    cells: int

    @property
    def each(self) -> int:
        return self.value + self.cells + _GAP


def _lane_columns(chart: GpuLanes, width: int) -> _LaneColumns:
    names = (f"{a} {b}".rstrip() for a, b in zip(chart.labels, chart.names, strict=True))
    label = max(map(cell_width, (*names, "al"))) + _GAP + 1
    last = len(chart.last.name) + 1 if chart.last is not None else 0
    room = (width - label - last) // max(len(chart.signals), 1) - _GAP
    return _LaneColumns(label, min(_VALUE, max(room, 1)), max(room - _VALUE, 0))


def _lane_scale(signal: SignalRows) -> tuple[float, float]:
    return (0.0, 100.0) if signal.unit == Unit.PERCENT else _scale(signal)[:2]


def _scale(chart: SignalRows) -> tuple[float, float, float, float]:
    known = chart.numbers[np.isfinite(chart.numbers)]
    low, high = axes.scale_ends(known)
    return (low, high, float(known.min()), float(known.max())) if len(known) else (low, high) * 2


def _add_rows(picture: SignalRows, on: Canvas) -> None:
    """The rows, in two columns where they are too many; where not all fit, outliers come first."""
    count, room, glyphs = len(picture.labels), on.left, on.glyphs
    means = [whole_text(mean) for mean in picture.means.tolist()]
    usual = median_of(picture.means) if count else 0.0
    changes = [
        f" {_change(mean, usual, glyphs)}" if row in picture.outliers else ""
        for row, mean in enumerate(picture.means.tolist())
    ]
    names = [clean(label) for label in picture.labels]
    widths = [max(map(cell_width, each), default=0) for each in (names, means, changes)]
    around = sum(widths) + 2
    columns = 1 + (count > room and (on.width - _GAP) // 2 >= around + _MIN_CELLS)
    cells = max((on.width - _GAP * (columns - 1)) // columns - around, 1)
    order = sorted(range(count), key=lambda row: (row not in picture.outliers, row))
    fits = room * columns
    shown = sorted(order if count <= fits else order[: max(fits - columns, 0)])
    low, high = _scale(picture)[:2]
    shares = (_at(picture.numbers, cells) - low) / max(high - low, 1e-9)
    height = -(-len(shown) // columns)
    for line in range(height):
        pieces: Line = []
        for row in shown[line::height]:
            pieces += [
                (" " * _GAP if pieces else "", "text"),
                (pad(names[row], widths[0]) + " ", "text"),
                (sparkline(shares[row], glyphs), _row_ink(picture, row)),
                (f" {means[row].rjust(widths[1])}", "text"),
                (changes[row].ljust(widths[2]), "strong"),
            ]
        on.add(pieces)
    if len(shown) < count and room:
        on.add([(f"{count - len(shown)} more in the table", "dim")])
    elif on.left:
        times = axes.Axis.over(*picture.x, cells // _TICK_CELLS, picture.x_unit)
        on.add([(" " * (widths[0] + 1) + times.line(cells), "dim")])


def _row_ink(picture: SignalRows, row: int) -> str:
    if row not in picture.outliers:
        return signal_ink(picture.unit)
    return signal_ink(picture.unit, float(picture.means[row]) - median_of(picture.means))


def _change(mean: float, usual: float, glyphs: Glyphs) -> str:
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
