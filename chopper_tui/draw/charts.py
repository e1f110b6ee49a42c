"""The charts of a frame, one below the other, drawn as characters in named styles.

Each kind of chart has one drawer, which knows all about it; `DRAWERS` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.charts import (
    BarChart,
    Cards,
    Chart,
    Composition,
    GpuLanes,
    HeatMap,
    Icicle,
    Lanes,
    LineChart,
    MemoryChart,
    Roofline,
    SignalRows,
    StepBars,
)
from chopper_core.render.glyphs import Glyphs
from chopper_core.render.palette import Paint, painted, plain
from chopper_core.util.errors import UsageError
from chopper_tui.draw.axes import drawable, in_fitting_units
from chopper_tui.draw.canvas import (
    UNLIMITED,
    WHOLE,
    Canvas,
    Cell,
    Drawer,
    Lens,
    NothingDrawer,
    wanted,
)
from chopper_tui.draw.pieces import Line, painted_line

DRAWERS: Final[Mapping[type[Struct], str]] = {
    BarChart: "bars.BarDrawer",
    Cards: "bars.CardsDrawer",
    Composition: "bars.CompositionDrawer",
    GpuLanes: "signal_plot.GpuLanesDrawer",
    HeatMap: "heat.HeatDrawer",
    Icicle: "heat.IcicleDrawer",
    Lanes: "timeline.LanesDrawer",
    LineChart: "curves.LineDrawer",
    MemoryChart: "units.MemoryChartDrawer",
    Roofline: "curves.RooflineDrawer",
    SignalRows: "signal_plot.SignalRowsDrawer",
    StepBars: "step_bars.StepBarsDrawer",
}
"""Kind of chart → the module and the class of its drawer, imported when one is drawn."""
_NOTHING: Final = NothingDrawer()
_TEXT_SIZE: Final = (100, 14)
_MAX_TEXT_LINES: Final = 40


def drawer_of(chart: Chart) -> Drawer[Any]:
    if isinstance(chart, BarChart | Composition) and not (chart.series and chart.labels):
        return _NOTHING
    return _drawer(type(chart))


@cache
def _drawer(kind: type[Struct]) -> Drawer[Any]:
    module, _, name = DRAWERS[kind].partition(".")
    drawer: Drawer[Any] = getattr(import_module(f"chopper_tui.draw.{module}"), name)()
    return drawer


def draw(
    chart: Chart,
    width: int,
    height: int,
    glyphs: Glyphs,
    row: int = 0,
    column: int | None = None,
) -> list[Line]:
    """A chart as at most `height` lines of at most `width` cells, its title first."""
    on = Canvas(width, height, glyphs, row, column)
    _add(on, chart, height)
    return on.lines


def draw_below(
    charts: Sequence[Chart],
    width: int,
    height: int,
    glyphs: Glyphs,
    row: int = 0,
    column: int | None = None,
    check: Callable[[], None] = wanted,
) -> list[Line]:
    """The first chart, and below it as many of the next ones as fit.

    Line charts below it take their minimum; spare lines go to charts that show more with them,
    else to rows that get higher.
    """
    return _stacked(charts, Canvas(width, height, glyphs, row, column, True, check)).lines


def cell_at(
    charts: Sequence[Chart], width: int, height: int, glyphs: Glyphs, x: int, y: int
) -> Cell | None:
    return _stacked(charts, Canvas(width, height, glyphs, spreads=True)).cell_at(x, y)


def _stacked(charts: Sequence[Chart], on: Canvas) -> Canvas:
    is_hidden = on.width < 1 or on.height < 1
    heights = [] if is_hidden else _heights(charts, on.width, on.height, on.glyphs)
    for chart, lines in zip(charts, heights, strict=False):
        if on.lines:
            on.add([])
        _add(on, chart, lines, fill=len(heights) > 1)
    return on


def _add(on: Canvas, chart: Chart, height: int, *, fill: bool = False) -> None:
    """Draw a chart below what there is; a pane that is being hidden has no cells."""
    if on.width < 1 or height < 1:
        return
    on.check()
    part = on.part(height)
    drawer_of(chart).draw(chart, part)
    on.append(part, height if fill else 0)


def _heights(charts: Sequence[Chart], width: int, height: int, glyphs: Glyphs) -> list[int]:
    if drawer_of(charts[0]).is_alone:
        return [height]
    wanted: list[int] = []
    for chart in charts:
        drawer = drawer_of(chart)
        lines = (drawer.lines_below if wanted else drawer.lines)(chart, width, glyphs)
        lacking = sum(wanted) + len(wanted) + lines - height if wanted else 0
        if lacking > 0:
            # The first chart gives up what isn't its least, so that the next one is seen.
            lacking -= wanted[0] - drawer_of(charts[0]).lines_below(charts[0], width, glyphs)
        if wanted and (drawer.is_alone or lacking > 0):
            break
        wanted.append(min(lines, height))
        wanted[0] -= max(sum(wanted) + len(wanted) - 1 - height, 0)
    spare = height - sum(wanted) - (len(wanted) - 1)
    most = [drawer_of(each).fitted(each, width, glyphs, UNLIMITED) for each in charts]
    growing = [at for at in range(len(wanted)) if most[at] >= UNLIMITED]
    for turn, at in enumerate(growing):
        wanted[at] += (spare + turn) // len(growing)
    for at in () if growing else range(len(wanted)):
        more = drawer_of(charts[at]).fitted(charts[at], width, glyphs, wanted[at] + spare)
        more = max(min(more - wanted[at], spare), 0)
        wanted[at] += more
        spare -= more
    *above, last = wanted
    chart = charts[len(above)]
    if last > drawer_of(chart).lines(chart, width, glyphs):
        last = drawer_of(chart).fitted(chart, width, glyphs, last)
    return [*above, last]


def lines_filled(charts: Sequence[Chart], width: int, height: int, glyphs: Glyphs) -> int:
    heights = _heights(charts, width, height, glyphs) if charts else [height]
    return min(sum(heights) + len(heights) - 1, height)


def lines_wanted(charts: Sequence[Chart], width: int, glyphs: Glyphs) -> int:
    """The lines that the first of some charts wants; 0 for none."""
    return drawer_of(charts[0]).lines(charts[0], width, glyphs) if charts else 0


def most_lines_below(charts: Sequence[Chart], width: int, glyphs: Glyphs) -> int:
    """The lines beyond which charts below each other look the same; 0 for none."""
    most = [drawer_of(each).fitted(each, width, glyphs, UNLIMITED) for each in charts]
    return min(sum(most) + max(len(most) - 1, 0), UNLIMITED)


def as_lines(
    charts: Sequence[Chart], width: int, glyphs: Glyphs, paint: Paint = plain
) -> list[str]:
    lines = chart_lines(charts, width, glyphs.coloured(paint is not plain, paint is painted))
    return [painted_line(line, paint) for line in lines]


def chart_lines(charts: Sequence[Chart], width: int, glyphs: Glyphs) -> list[Line]:
    """All charts, for text and for pages, with a blank line after each."""
    lines: list[Line] = []
    width = width or _TEXT_SIZE[0]
    for chart in (seen(each, WHOLE) for each in charts):
        drawer = drawer_of(chart)
        rows = max(_TEXT_SIZE[1], drawer.lines(chart, width, glyphs))
        most = rows if drawer.is_prose else _MAX_TEXT_LINES
        lines += [*draw(chart, width, min(rows, most), glyphs), []]
    return lines


def seen(chart: Chart, lens: Lens) -> Chart:
    chart = in_fitting_units(drawable(chart))
    part: Chart = chart if lens == WHOLE else drawer_of(chart).seen(chart, lens)
    return part


def zoomed_lens(lens: Lens, chart: Chart, factor: float) -> Lens:
    most = drawer_of(chart).max_zoom(chart)
    if most is None:
        raise UsageError("this chart has no scale to zoom")
    closer = min(max(lens.factor * factor, 1.0), most)
    if closer == lens.factor:
        raise UsageError("maximum zoom" if factor > 1 else "this is the whole chart")
    return replace(lens, factor=closer)


def panned_lens(lens: Lens, chart: Chart, share: float) -> Lens:
    if not drawer_of(chart).can_pan:
        raise UsageError("bars begin at zero: this chart can't be moved")
    begin, end = lens.range
    moved = replace(lens, centre=(begin + end) / 2 + share / lens.factor)
    if moved.range == lens.range:
        raise UsageError("this is the end of the chart")
    return replace(moved, centre=sum(moved.range) / 2)
