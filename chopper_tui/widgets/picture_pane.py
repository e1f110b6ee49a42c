"""A picture of a frame: bars, curves, a heat map."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual import events, work
from textual.message import Message

from chopper_core.model.charts import Chart, Lanes
from chopper_tui.background import away
from chopper_tui.draw import charts as drawing
from chopper_tui.draw.timeline import label_width
from chopper_tui.widgets.pane import Pane, Pieces


class PicturePane(Pane):
    """It draws itself off the event loop; the old picture stays until the new one is there."""

    class Clicked(Message):
        """Somebody clicked on lanes."""

        def __init__(self, cell: int, name: str) -> None:
            super().__init__()
            self.cell = cell
            """Of the time; below 0 on the labels."""
            self.name = name
            """The label of the line."""

    class Turned(Message):
        """Somebody turned the wheel over lanes."""

        def __init__(self, cell: int, up: bool) -> None:
            super().__init__()
            self.cell = cell
            self.up = up

    pictures: Sequence[Chart] = ()
    selected = 0
    drawn: Sequence[Pieces] = ()

    def show(self, pictures: Sequence[Chart], selected: int = 0) -> None:
        """Show the first of some pictures, and the others below it where there is room.

        Some show the row that the cursor is on.
        """
        if not (pictures and isinstance(pictures[0], Lanes)):
            selected = 0
        is_same = [*map(id, pictures)] == [*map(id, self.pictures)]
        if not is_same or selected != self.selected:
            self.pictures, self.selected = pictures, selected
            self.draw_soon()

    @property
    def _lanes(self) -> Lanes | None:
        first = self.pictures[0] if self.pictures else None
        return first if isinstance(first, Lanes) else None

    @property
    def room(self) -> int:
        """Cells of a line of the picture."""
        return self.size.width - 2

    def on_click(self, event: events.Click) -> None:
        """Say which cell of which line."""
        if lanes := self._lanes:
            pieces = self.drawn[event.y] if event.y < len(self.drawn) else []
            line = "".join(text for text, _ in pieces)
            name = line[2 : 1 + label_width(lanes)].strip()
            self.post_message(self.Clicked(_cell(lanes, event.x), name))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Say over which cell."""
        self._turn(event, True)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Say over which cell."""
        self._turn(event, False)

    def _turn(self, event: events.MouseEvent, up: bool) -> None:
        if lanes := self._lanes:
            event.stop()
            self.post_message(self.Turned(_cell(lanes, event.x), up))

    def on_resize(self) -> None:
        """Draw for the new size."""
        self.draw_soon()

    def draw_soon(self) -> None:
        """Draw in a thread."""
        if self.pictures and self.size.width > 8 and self.size.height > 1:
            self._draw()

    @work(exclusive=True, group="picture")
    async def _draw(self) -> None:
        self.drawn = await away(self._lines, *self.size)
        self.redraw()

    def _lines(self, width: int, height: int) -> list[Pieces]:
        drawn = drawing.draw_below(self.pictures, width - 2, height, self.glyphs, self.selected)
        return [[(" ", "text"), *line] for line in drawn]

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        """The lines that were drawn last."""
        return self.drawn


def _cell(lanes: Lanes, x: int) -> int:
    return x - label_width(lanes) - 2
