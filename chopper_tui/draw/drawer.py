"""The protocol of a chart's drawer, and the lens through which a chart is seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from operator import is_
from typing import Any, ClassVar, Final, Protocol, TypeVar, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.charts import BarChart, BoxChart, Composition, LineChart, SignalRows
from chopper_core.model.units import LONG_TIMES
from chopper_core.render.cells import cell_width, clean
from chopper_core.render.glyphs import Glyphs
from chopper_tui.draw.pieces import Line, cut

Cell = tuple[int, int]
"""The cursor in a chart: row and column of a heat map, level and block of an icicle."""
C = TypeVar("C", bound=Struct)
T = TypeVar("T")
MIN_COLUMNS: Final = 2
"""Columns that a lens shows at least."""
MAX_ZOOM: Final = 1024.0
UNLIMITED: Final = 1 << 16
"""Lines that no terminal has."""
_SHORT_MS: Final = 0.1
_LONG_MS: Final = 1e5
"""Charts have ms from the first to the second; figures in them have up to five digits."""
_MAX_FIGURE: Final = 1e60
_LEAST_BODY: Final = 3
"""Lines of a chart that its legend leaves."""


class Lens(Struct, frozen=True):
    """How close a chart is seen, and where along its axis."""

    factor: float = 1.0
    centre: float = 0.5
    """The place in the middle of what is seen, 0 to 1 of the whole."""

    @property
    def range(self) -> tuple[float, float]:
        """The part that is seen, 0 to 1 of the whole."""
        half = 0.5 / self.factor
        middle = min(max(self.centre, half), 1 - half)
        return middle - half, middle + half

    def columns(self, count: int) -> tuple[int, int]:
        """The first of so many columns that is seen, and the one after the last."""
        begin, end = self.range
        wide = max(round((end - begin) * count), min(MIN_COLUMNS, count))
        first = min(max(round(begin * count), 0), count - wide)
        return first, first + wide


WHOLE: Final = Lens()


def wanted() -> None:
    """The drawing in progress is still wanted."""


class Canvas(Struct, frozen=True):
    """The room that a chart is drawn in, and where the cursor is."""

    width: int
    height: int
    glyphs: Glyphs
    row: int = 0
    column: int | None = None
    spreads: bool = False
    """Whether rows of bars take the lines that are left, as on a screen."""
    check: Callable[[], None] = wanted
    """Called between the pieces of a chart; raises Cancelled once it is no longer wanted."""

    @property
    def cell(self) -> Cell | None:
        """The cursor; None for a chart whose cells have none."""
        return None if self.column is None else (self.row, self.column)

    def fitted(self, lines: Sequence[Line]) -> list[Line]:
        """As many of the lines as there is room for, cut to its width."""
        return [cut(line, self.width, self.glyphs) for line in lines[: max(self.height, 0)]]


class Drawer(Protocol[C]):
    """All that screen and text know about one kind of chart; the defaults are those of a picture
    without cursor and scale, of fixed height."""

    follows_cursor: ClassVar[bool] = False
    """Whether it shows the row of the table's cursor."""
    is_alone: ClassVar[bool] = False
    """Whether no other chart is below or above it."""
    is_quick: ClassVar[bool] = False
    """Whether it is drawn at once, for the first paint, instead of in a thread."""
    is_prose: ClassVar[bool] = False
    """Whether text has all its lines, however many."""
    can_pan: ClassVar[bool] = True
    """Whether its lens can be moved."""
    opens_with: ClassVar[str] = ""
    """The action that opens the cell of its cursor; empty where cells open nothing."""

    def lines(self, chart: C, width: int, glyphs: Glyphs) -> int:
        """The lines that it wants."""
        raise NotImplementedError

    def lines_below(self, chart: C, width: int, glyphs: Glyphs) -> int:
        """The lines that it wants below another chart."""
        return self.lines(chart, width, glyphs)

    def most_lines(self, chart: C, width: int, glyphs: Glyphs) -> int:
        """The lines beyond which it looks the same."""
        return self.lines(chart, width, glyphs)

    def rows(self, chart: C) -> int:
        """How many rows it has, which get higher together."""
        return 1

    def filled(self, chart: C, on: Canvas) -> int:
        """The lines that it takes of those of a canvas."""
        return on.height

    def draw(self, chart: C, on: Canvas) -> list[Line]:
        """Its lines, at most those of the canvas, with the cursor."""
        raise NotImplementedError

    def cell_at(self, chart: C, on: Canvas, x: int, y: int) -> Cell | None:
        """The cell that is drawn at a place; None beside them."""
        return None

    def time_cell(self, chart: C, x: int) -> int | None:
        """The cell of the time axis at a place, below 0 on the labels; None without an axis."""
        return None

    def max_zoom(self, chart: C) -> float | None:
        """The largest factor of its lens; None for a chart without a scale."""
        return None

    def seen(self, chart: C, lens: Lens) -> C:
        """The part of it that is seen through a lens."""
        return chart

    def centred(self, chart: C, lens: Lens, cell: Cell) -> Lens:
        """The lens over the cursor, which zooming keeps in sight."""
        return lens

    def cell_through(self, chart: C, cell: Cell, before: Lens, after: Lens) -> Cell:
        """The cursor through another lens, on the same part of the whole chart."""
        return cell

    def cursor(self, chart: C, cell: Cell, row: int, label: str | None) -> tuple[int, int | None]:
        """The cursor to draw, from that of the screen, the table's row and its label."""
        return row, None

    def label_of(self, chart: C, cell: Cell) -> str | None:
        """The label of the table's row that a cell belongs to; None where it has none."""
        return None

    def followed(self, chart: C, cell: Cell, label: str | None) -> Cell:
        """The cursor once the table's is on a row."""
        return cell


def drawable(value: T) -> T:
    """A chart, or a part of one, whose figures can be computed with.

    Infinite ones are unknown, those beyond 10^60 are drawn there, those below 10^-60 at 0: sums,
    differences and quotients of them are finite. An end of an axis that is unknown is 0.
    """
    new: Any = value
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        size = np.abs(value)
        if (size > _MAX_FIGURE).any() or ((size < 1 / _MAX_FIGURE) & (size > 0)).any():
            known = np.where(np.isinf(value), np.nan, value)
            new = np.clip(np.where(size < 1 / _MAX_FIGURE, 0.0, known), -_MAX_FIGURE, _MAX_FIGURE)
    elif isinstance(value, float):
        is_none = not isfinite(value) or 0 < abs(value) < 1 / _MAX_FIGURE
        new = 0.0 if is_none else min(max(value, -_MAX_FIGURE), _MAX_FIGURE)
    elif isinstance(value, tuple) and not (value and isinstance(value[-1], str)):
        items = tuple(map(drawable, value))
        new = value if all(map(is_, items, value)) else items
    elif isinstance(value, Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        other = {name: drawable(each) for name, each in fields.items()}
        changed = {name: each for name, each in other.items() if each is not fields[name]}
        new = replace(value, **changed) if changed else value
    return cast("T", new)


def in_fitting_units(chart: Any) -> Any:
    """A chart of times in ms in the unit that suits the longest: minutes of a long run, say."""
    changes: dict[str, Any] = {}
    if isinstance(chart, LineChart | SignalRows) and chart.x_unit == "ms":
        ends = [each for each in chart.x if np.size(each)]
        length, unit = _time_unit(ends)
        x = tuple(np.asarray(each) / length if np.ndim(each) else each / length for each in chart.x)
        changes = {"x": x, "x_unit": unit} if unit != "ms" else {}
    if isinstance(chart, BarChart | LineChart | Composition) and chart.unit == "ms":
        sums = [each.numbers for each in chart.series]
        length, unit = _time_unit(sums if isinstance(chart, LineChart) else [np.nansum(sums, 0)])
        if isinstance(chart, BarChart) and length > 1:
            length, unit = 1e-6, "ns"  # each bar in the unit that suits it
        series = tuple(replace(each, numbers=each.numbers / length) for each in chart.series)
        changes |= {"series": series, "unit": unit} if unit != "ms" else {}
    elif isinstance(chart, BoxChart) and chart.unit == "ms":
        length, unit = _time_unit([chart.quantiles])
        changes = {"quantiles": chart.quantiles / length, "unit": unit} if unit != "ms" else {}
    return replace(chart, **changes) if changes else chart


def _time_unit(numbers: Sequence[Any]) -> tuple[float, str]:
    """The unit for times in ms, by the longest: its ms, and its name."""
    longest = max((float(np.nanmax(np.abs(each), initial=0.0)) for each in numbers), default=0.0)
    if 0 < longest < _SHORT_MS:
        return 1e-3, "µs"
    if longest < _LONG_MS:
        return 1.0, "ms"
    return next((ns / 1e6, unit) for least, ns, unit in LONG_TIMES if longest * 1e6 >= least)


class TitledDrawer(Drawer[C], Protocol[C]):
    """A chart below its title and legend."""

    def title(self, chart: C, width: int, glyphs: Glyphs) -> list[Line]:
        """Its title and legend, wrapped at the width."""
        raise NotImplementedError

    def body_lines(self, chart: C) -> int:
        """The lines that it wants without its title."""
        raise NotImplementedError

    def body(self, chart: C, on: Canvas) -> list[Line]:
        """Its lines below the title."""
        raise NotImplementedError

    def body_cell_at(self, chart: C, on: Canvas, x: int, y: int) -> Cell | None:
        """The cell at a place below the title; None beside them."""
        return None

    def lines(self, chart: C, width: int, glyphs: Glyphs) -> int:
        """Those of its title and its own."""
        return len(self.title(chart, width, glyphs)) + self.body_lines(chart)

    def draw(self, chart: C, on: Canvas) -> list[Line]:
        """The title, and the chart in the room that is left."""
        title = self._title_shown(chart, on)
        return on.fitted([*title, *self.body(chart, replace(on, height=on.height - len(title)))])

    def cell_at(self, chart: C, on: Canvas, x: int, y: int) -> Cell | None:
        """The cell below the title."""
        above = len(self._title_shown(chart, on))
        return self.body_cell_at(chart, replace(on, height=on.height - above), x, y - above)

    def _title_shown(self, chart: C, on: Canvas) -> list[Line]:
        """The title with its legend, which is cut after all of the chart but a few lines."""
        title = self.title(chart, on.width, on.glyphs)
        most = max(on.height - min(self.body_lines(chart), _LEAST_BODY), 1)
        if len(title) <= most:
            return title
        return [*title[: most - 1], [*title[most - 1], (f" {on.glyphs.ellipsis}", "dim")]]


def title_lines(title: str, unit: str, width: int, legend: Sequence[Line] = ()) -> list[Line]:
    """A title, its unit, and the entries of a legend, wrapped at the width."""
    first: Line = [(clean(title), "strong"), (f", {unit}" if unit else "", "dim")]
    lines, used = [first], sum(cell_width(text) for text, _ in first)
    for entry in legend:
        size = sum(cell_width(text) for text, _ in entry)
        if used + size > width:
            lines.append([])
            used = 0
        lines[-1].extend(entry)
        used += size
    return lines


def legend_entries(names: Sequence[str], marks: str, inks: Sequence[str]) -> list[Line]:
    """An entry per series: its mark and its name."""
    return [
        [(f"  {marks[number % len(marks)]}", inks[number % len(inks)]), (f" {clean(name)}", "dim")]
        for number, name in enumerate(names)
    ]


class NothingDrawer(Drawer[Struct]):
    """A chart without any part or row, such as the time of a scope that took none."""

    is_quick = True

    def lines(self, chart: Struct, width: int, glyphs: Glyphs) -> int:
        """One."""
        return 1

    def draw(self, chart: Struct, on: Canvas) -> list[Line]:
        """A sentence."""
        return on.fitted([[("no values to draw", "dim")]])
