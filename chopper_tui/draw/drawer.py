"""The protocol of a chart's drawer."""

from __future__ import annotations

from typing import ClassVar, Final, Protocol, TypeVar

from msgspec import Struct

from chopper_core.render.glyphs import Glyphs
from chopper_tui.draw.canvas import Canvas, Cell, Lens
from chopper_tui.draw.pieces import Line

C = TypeVar("C", bound=Struct)
_LEAST_BODY: Final = 3
"""Lines of a chart that its legend leaves."""


class Drawer(Protocol[C]):
    """All that screen and text know about one kind of chart; the defaults are those of a picture
    without title, cursor and scale.
    """

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

    def title(self, chart: C, width: int, glyphs: Glyphs) -> list[Line]:
        """Its title and legend, wrapped at the width."""
        return []

    def body_lines(self, chart: C) -> int:
        """The lines that it wants without its title."""
        raise NotImplementedError

    def body(self, chart: C, on: Canvas) -> None:
        """Draw it in the lines that the title leaves."""
        raise NotImplementedError

    def lines(self, chart: C, width: int, glyphs: Glyphs, *, is_below: bool = False) -> int:
        """The lines that it wants, alone or below another chart."""
        return len(self.title(chart, width, glyphs)) + self.body_lines(chart)

    def fitted(self, chart: C, width: int, glyphs: Glyphs, lines: int) -> int:
        """The lines that it takes of so many, which are at least those that it wants."""
        return self.lines(chart, width, glyphs)

    def draw(self, chart: C, on: Canvas) -> None:
        """Draw the title, and the chart in the lines that are left."""
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


class RowsDrawer(Drawer[C], Protocol[C]):
    """A chart of rows that get taller together."""

    tallest: ClassVar[int]
    """Lines of a row at most."""
    shortest: ClassVar[int] = 1
    """Lines of a row that it wants."""

    def rows(self, chart: C) -> int:
        raise NotImplementedError

    def fitted(self, chart: C, width: int, glyphs: Glyphs, lines: int) -> int:
        own, rows = self.lines(chart, width, glyphs), max(self.rows(chart), 1)
        return own + min((lines - own) // rows, self.tallest - self.shortest) * rows


class NothingDrawer(Drawer[Struct]):
    """A chart without any part or row, such as the time of a scope that took none."""

    is_quick = True

    def body_lines(self, chart: Struct) -> int:
        return 1

    def body(self, chart: Struct, on: Canvas) -> None:
        on.add([("no values to draw", "dim")])
