"""A picture of a frame: bars, curves, a heat map."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual import work

from chopper_core.pictures import Picture
from chopper_tui import drawing
from chopper_tui.background import away
from chopper_tui.widgets.pane import Pane, Pieces


class PicturePane(Pane):
    """It draws itself off the event loop; the old picture stays until the new one is there."""

    picture: Picture | None = None
    drawn: Sequence[Pieces] = ()

    def show(self, picture: Picture | None) -> None:
        """Show a picture."""
        if picture is not self.picture:
            self.picture = picture
            self.draw_soon()

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
        drawn = drawing.draw(self.picture, width - 2, height, self.glyphs)
        return [[(" ", "text"), *line] for line in drawn]

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        """The lines that were drawn last."""
        return self.drawn
