"""A widget of a few lines of text that repaints only what changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.containers import Horizontal, Vertical
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.strip import Strip
from textual.widget import Widget

from chopper_core.render.cells import cell_width, elide, pad
from chopper_core.render.glyphs import Glyphs
from chopper_tui.draw.theme import Inks

if TYPE_CHECKING:
    from chopper_tui.app import ChopperApp

Pieces = Sequence[tuple[str, str]]
"""A line: pieces of text, each with the name of its ink."""


def fit(text: str, width: int, glyphs: Glyphs) -> str:
    """Text of exactly `width` cells: its middle gives way, or spaces follow."""
    return pad(elide(text, width, glyphs), width)


def width_of(pieces: Pieces) -> int:
    """The cells that a line takes."""
    return sum(cell_width(text) for text, _ in pieces)


def strip_of(pieces: Pieces, width: int, inks: Inks) -> Strip:
    """A line as a strip of exactly `width` cells."""
    segments = [Segment(text, inks.of(ink)) for text, ink in pieces if text]
    return Strip(segments).simplify().adjust_cell_length(width, inks.text)


class ChopperWidget(Widget):
    """A widget of the explorer: it knows the app's inks and glyphs."""

    ALLOW_SELECT = False
    can_focus = False
    virtual_size: Reactive[Size] = Reactive(Size(0, 0))
    """As every widget's, but that a change of it is none of the layout: that took a second one."""

    @property
    def chopper(self) -> ChopperApp:
        """The app, as what it is."""
        app: ChopperApp = self.app  # type: ignore[assignment]
        return app

    @property
    def inks(self) -> Inks:
        """The styles to draw with."""
        return self.chopper.inks

    @property
    def glyphs(self) -> Glyphs:
        """The characters to draw with."""
        return self.chopper.glyphs


class Row(Horizontal, ChopperWidget):
    """Parts beside one another."""


class Column(Vertical, ChopperWidget):
    """Parts below one another."""


class Pane(ChopperWidget):
    """Lines of text; a subclass makes them in `lines` and calls `redraw` when they may differ."""

    _strips: Sequence[Strip] = ()

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        """The lines for a size; those that are too many are cut, missing ones are blank."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Make the lines anew and repaint those cells that changed."""
        old, self._strips = self._strips, self._make()
        if len(old) != len(self._strips):
            self.refresh()
            return
        for y, (before, after) in enumerate(zip(old, self._strips, strict=True)):
            if before != after:
                self.refresh(_difference(before, after, y))

    def render_line(self, y: int) -> Strip:
        """One line, as the compositor asks for it."""
        if len(self._strips) != self.size.height or (
            self._strips and self._strips[0].cell_length != self.size.width
        ):
            self._strips = self._make()
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)

    def notify_style_update(self) -> None:
        """Draw in the new colours."""
        super().notify_style_update()
        self._strips = ()

    def _make(self) -> list[Strip]:
        width, height = self.size
        if not width or not height:
            return []
        made = [strip_of(line, width, self.inks) for line in self.lines(width, height)][:height]
        return made + [Strip.blank(width)] * (height - len(made))


def _difference(before: Strip, after: Strip, y: int) -> Region:
    """The cells of a line that differ, from the first to the last."""
    width = after.cell_length
    cells_before, cells_after = _cells(before), _cells(after)
    if len(cells_before) != width or len(cells_after) != width:
        return Region(0, y, width, 1)
    differing = [x for x in range(width) if cells_before[x] != cells_after[x]]
    return Region(differing[0], y, differing[-1] - differing[0] + 1, 1) if differing else Region()


def _cells(strip: Strip) -> list[tuple[str, object]]:
    return [(char, segment.style) for segment in strip for char in segment.text]
