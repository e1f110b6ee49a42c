"""The canvas of lanes, areas, bars, meters and heat, with its cursor and zoom, and its drawers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import ClassVar, Final, Protocol, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from chopper_core.model.charts import Composition, StepBars
from chopper_core.render.cells import cell_width, pad
from chopper_core.render.glyphs import Glyphs, column_glyphs
from chopper_core.render.names import display_names, fitting_names
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.escape import clean
from chopper_tui.draw.pieces import Line, cut_line, inked

Cell = tuple[int, int]
"""The cursor in a chart: row and column of a heat map, level and block of an icicle."""
MIN_COLUMNS: Final = 2
"""Columns that a lens shows at least."""
MAX_ZOOM: Final = 1024.0
UNLIMITED: Final = 1 << 16
"""Lines that no terminal has."""
_MAX_LABEL: Final = 40
_MIN_LABEL: Final = 8


class Lens(Struct, frozen=True):
    """How close a chart is seen, and where along its axis."""

    factor: float = 1.0
    centre: float = 0.5
    """The place in the middle of what is seen, 0 to 1 of the whole."""

    @property
    def range(self) -> tuple[float, float]:
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


class Canvas(Struct):
    """The room that a chart is drawn in, the lines that it has so far, and where its cells are."""

    width: int
    height: int
    glyphs: Glyphs
    row: int = 0
    column: int | None = None
    spreads: bool = False
    """Whether rows of bars take the lines that are left, as on a screen."""
    check: Callable[[], None] = wanted
    """Called between the pieces of a chart; raises Cancelled once it is no longer wanted."""
    lines: list[Line] = field(default_factory=list)
    cells: dict[int, tuple[int, int, Index]] = field(default_factory=dict)
    """Of lines with cells: their row, the place of the first one, and the column of each place."""

    @property
    def left(self) -> int:
        return max(self.height - len(self.lines), 0)

    @property
    def cell(self) -> Cell | None:
        return None if self.column is None else (self.row, self.column)

    def add(self, line: Line, row: int = 0, begin: int = 0, columns: Index | None = None) -> None:
        """Add a line, of cells in the columns of a row if they are given."""
        if columns is not None:
            self.cells[len(self.lines)] = row, begin, columns
        self.lines.append(line)

    def append(self, part: Canvas, height: int = 0) -> None:
        top = len(self.lines)
        fitting = part.lines[: max(part.height, 0)]
        self.lines += [cut_line(line, part.width, part.glyphs) for line in fitting]
        self.lines += [[] for _ in range(height - len(fitting))]
        self.cells |= {top + y: cells for y, cells in part.cells.items() if y < len(fitting)}

    def part(self, height: int) -> Canvas:
        return replace(self, height=height, lines=[], cells={})

    def cell_at(self, x: int, y: int) -> Cell | None:
        row, begin, columns = self.cells.get(y, (0, 0, np.zeros(0, np.intp)))
        return (row, int(columns[x - begin])) if 0 <= x - begin < len(columns) else None

    def labels(self, names: Sequence[str], level: str = "") -> list[str]:
        """Names shortened and padded to one width, which leaves most of the canvas to the rows."""
        shown = display_names(tuple(names), level) if level else tuple(map(clean, names))
        longest = max((cell_width(each) for each in shown), default=0)
        width = max(min(longest, _MAX_LABEL, self.width // 3), min(_MIN_LABEL, longest))
        return [pad(each, width) + " " for each in fitting_names(shown, width, self.glyphs)]

    def rows_shown(self, count: int) -> int:
        return count if count <= self.left else max(self.left - 1, 0)

    def add_rest(self, count: int, shown: int, what: str = "rows in the table") -> None:
        if shown < count and self.left:
            self.add([(f"{count - shown} more {what}", "dim")])

    def level(self, share: float) -> str:
        return self.glyphs.spark[round(share * (len(self.glyphs.spark) - 1))]


def title_lines(title: str, unit: str, width: int, legend: Sequence[Line] = ()) -> list[Line]:
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


def legend_entries(names: Sequence[str], marks: Sequence[str], inks: Sequence[str]) -> list[Line]:
    return [
        [(f"  {mark}", ink), (f" {clean(name)}", "dim")]
        for name, mark, ink in zip(names, marks, cycle(inks), strict=False)
    ]


def stack_sizes(lengths: Float64) -> Index:
    """The cells of the parts of a bar: each cell is the part's that has most of it."""
    parts = np.maximum(lengths, 0.0)[:, None]
    ends = np.cumsum(parts)[:, None]
    cells = np.arange(np.rint(parts.sum()))
    covered = np.minimum(ends, cells + 1) - np.maximum(ends - parts, cells)
    return np.bincount(covered.argmax(axis=0), minlength=len(parts))


def stack(lengths: Float64, fills: Sequence[str], inks: Sequence[str]) -> Line:
    """The parts of a bar, rounded so that their total length is exact."""
    sizes = stack_sizes(lengths).tolist()
    return [(fill * size, ink) for fill, ink, size in zip(fills, inks, sizes, strict=True) if size]


def area(
    shares: Float64, height: int, inks: Sequence[str], glyphs: Glyphs, band: str = "shade"
) -> list[Line]:
    """Columns up to the first row of shares, a band up to the last, a line at the one between.

    Shares are of the height, NaN where unknown; `inks` are those of each column. Below its top an
    area is blank on its colour, which a terminal fills in few bytes.
    """
    low, high = (column_glyphs(each, height, glyphs) for each in (shares[0], shares[-1]))
    full, blank = glyphs.spark[-1], " "
    above, fills = [(blank, "")] * len(inks), glyphs.has_halves and not glyphs.has_few
    lines: list[Line] = []
    for y, (base, top) in enumerate(zip(low, high, strict=True)):
        chars, own = list(base), list(inks)
        for x, (below, upper) in enumerate(zip(base, top, strict=True)):
            if below == blank:
                chars[x], own[x] = glyphs.band if upper == full else upper, band
            elif below != upper == full and glyphs.has_halves:
                own[x] = f"{inks[x]}/{band}"
        if len(shares) > 2:
            places = (1 - shares[1]) * height - y
            for x in np.flatnonzero((places >= 0) & (places < 1)).tolist():
                if base[x] == blank:
                    chars[x] = glyphs.steps[int(places[x] * len(glyphs.steps))]
                    own[x] = "strong/shade" if top[x] == full and glyphs.has_halves else "strong"
        here = [*zip(chars, own, strict=True)]
        for x, (char, ink) in enumerate(here if fills else ()):
            if char == full and above[x][0] != blank and above[x][1] == ink:
                chars[x], own[x] = blank, f"text/{ink}"
        above = here
        lines.append(inked(chars, own))
    return lines


def lines_over(
    lines: list[Line], curves: Sequence[tuple[Float64, str]], glyphs: Glyphs
) -> list[Line]:
    """Areas with thin lines in front of them, each at its shares of the height and in its ink."""
    drawn = [([*text], inks) for text, inks in map(_by_cell, lines)]
    for shares, ink in curves:
        rows = (1 - np.clip(shares, 0.0, 1.0)) * len(drawn)
        for x in np.flatnonzero(np.isfinite(shares)).tolist():
            y = min(int(rows[x]), len(drawn) - 1)
            chars, inks = drawn[y]
            step = min(int((rows[x] - y) * len(glyphs.steps)), len(glyphs.steps) - 1)
            is_full = glyphs.has_halves and (chars[x] == glyphs.spark[-1] or "/" in inks[x])
            ground = inks[x].rpartition("/")[2]
            chars[x], inks[x] = glyphs.steps[step], f"{ink}/{ground}" if is_full else ink
    return [inked(*line) for line in drawn]


def _by_cell(line: Line) -> tuple[str, list[str]]:
    return "".join(text for text, _ in line), [ink for text, ink in line for _ in text]


C = TypeVar("C", bound=Struct)
_LEAST_BODY: Final = 3


class Drawer(Protocol[C]):
    """One kind of chart; the defaults are those without title, cursor and scale."""

    follows_cursor: ClassVar[bool] = False
    """Whether it shows the row of the table's cursor."""
    is_alone: ClassVar[bool] = False
    """Whether no other chart is below or above it."""
    is_table: ClassVar[bool] = False
    """Whether it has a line for each row of the table, in whose place it is."""
    is_main: ClassVar[bool] = False
    """Whether it is what its view is for: the table below it takes the lines that it leaves."""
    is_quick: ClassVar[bool] = False
    """Whether it is drawn at once, for the first paint, instead of in a thread."""
    is_prose: ClassVar[bool] = False
    """Whether text has all its lines, however many."""
    can_pan: ClassVar[bool] = True
    """Whether its lens can be moved."""
    zoom: ClassVar[float | None] = None
    """The largest factor of its lens; None for a chart without a scale."""
    opens_with: ClassVar[str] = ""
    """The action that opens the cell of its cursor; empty where cells open nothing."""
    shortest: ClassVar[int] = 1
    """Lines of a row that it wants."""
    tallest: ClassVar[int] = 1
    """Lines of a row at most: rows get taller together."""

    def title(self, chart: C, width: int, glyphs: Glyphs) -> list[Line]:
        return []

    def rows(self, chart: C) -> int:
        lists = (getattr(chart, name, None) for name in ("rows", "labels"))
        return next((len(each) for each in lists if each is not None), 1)

    def around(self, chart: C) -> int:
        """Lines below the rows."""
        return 0

    def body_lines(self, chart: C) -> int:
        return max(self.shortest * self.rows(chart) + self.around(chart), 1)

    def body(self, chart: C, on: Canvas) -> None:
        """Draw it in the lines that the title leaves."""
        raise NotImplementedError

    def lines(self, chart: C, width: int, glyphs: Glyphs) -> int:
        return len(self.title(chart, width, glyphs)) + self.body_lines(chart)

    def lines_below(self, chart: C, width: int, glyphs: Glyphs) -> int:
        """The lines that it wants below another chart."""
        return self.lines(chart, width, glyphs)

    def fitted(self, chart: C, width: int, glyphs: Glyphs, lines: int) -> int:
        """The lines that it takes of so many, which are at least those that it wants."""
        own, rows = self.lines(chart, width, glyphs), self.rows(chart)
        return own + rows * min((lines - own) // max(rows, 1), self.tallest - self.shortest)

    def draw(self, chart: C, on: Canvas) -> None:
        title = self.title(chart, on.width, on.glyphs)
        # A legend is cut after all of the chart but a few lines.
        most = max(on.height - min(self.body_lines(chart), _LEAST_BODY), 1)
        if len(title) > most:
            title = [*title[: most - 1], [*title[most - 1], (f" {on.glyphs.ellipsis}", "dim")]]
        on.lines += title
        self.body(chart, on)

    def time_cell(self, chart: C, x: int) -> int | None:
        """The cell of the time axis at a place, below 0 on the labels; None without an axis."""
        return None

    def max_zoom(self, chart: C) -> float | None:
        return self.zoom

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

    def bar(self, chart: C) -> Composition | StepBars | None:
        """The bar in it whose parts lead on."""
        return None

    def part_cell(self, place: int, row: int) -> Cell:
        """The cursor on a part of its bar, while the table's is on a row."""
        return row, place

    def part_at(self, cell: Cell) -> int | None:
        """The part of its bar that a cell belongs to."""
        return None

    def label_of(self, chart: C, cell: Cell) -> str | None:
        """The label of the table's row that a cell belongs to; None where it has none."""
        return None

    def followed(self, chart: C, cell: Cell, label: str | None) -> Cell:
        """The cursor once the table's is on a row."""
        return cell


class NothingDrawer(Drawer[Struct]):
    """A chart without any part or row, such as the time of a scope that took none."""

    is_quick = True

    def body_lines(self, chart: Struct) -> int:
        return 1

    def body(self, chart: Struct, on: Canvas) -> None:
        on.add([("no values to draw", "dim")])
