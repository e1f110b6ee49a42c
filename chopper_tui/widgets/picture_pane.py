"""A picture of a frame: bars, curves, a heat map."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual import work

from chopper_core.pictures import Lanes, Picture
from chopper_tui import drawing
from chopper_tui.background import away
from chopper_tui.widgets.pane import Pane, Pieces


class PicturePane(Pane):
    """It draws itself off the event loop; the old picture stays until the new one is there."""

    picture: Picture | None = None
    selected = 0
    drawn: Sequence[Pieces] = ()

    def show(self, picture: Picture | None, selected: int = 0) -> None:
        """Show a picture; some show the row that the cursor is on."""
        if not isinstance(picture, Lanes):
            selected = 0
        if picture is not self.picture or selected != self.selected:
            self.picture, self.selected = picture, selected
            self.draw_soon()

    @property
    def room(self) -> int:
        """Cells of a line of the picture."""
        return self.size.width - 2

    def on_resize(self) -> None:
        """Draw for the new size."""
        self.draw_soon()

    def draw_soon(self) -> None:
        """Draw in a thread."""
        if self.picture is not None and self.size.width > 8 and self.size.height > 1:
            self._draw()

    @work(exclusive=True, group="picture")
    async def _draw(self) -> None:
        self.drawn = await away(self._lines, *self.size)
        self.redraw()

    def _lines(self, width: int, height: int) -> list[Pieces]:
        assert self.picture is not None
        drawn = drawing.draw(self.picture, width - 2, height, self.glyphs, self.selected)
        return [[(" ", "text"), *line] for line in drawn]

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        """The lines that were drawn last."""
        return self.drawn
