"""A widget of a few lines of text that repaints only what changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from rich.segment import Segment
from rich.text import Text
from textual import events
from textual.containers import Horizontal, Vertical
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.strip import Strip
from textual.widget import Widget

from chopper_core.render.glyphs import Glyphs
from chopper_tui.draw.pieces import Pieces
from chopper_tui.draw.theme import Inks


def strip_of(pieces: Pieces, width: int, inks: Inks, rest: str = "text") -> Strip:
    segments = [Segment(text, inks.of(ink)) for text, ink in pieces if text]
    return Strip(segments).adjust_cell_length(width, inks.of(rest)).simplify()


class ChopperWidget(Widget):
    """A widget of the explorer: it draws in the app's inks and glyphs."""

    ALLOW_SELECT = False
    can_focus = False
    auto_links = False
    _named: tuple[Pieces, str] = ((), "")
    virtual_size: Reactive[Size] = Reactive(Size(0, 0))
    """As every widget's, but that a change of it is none of the layout: that took a second one."""

    @property
    def explorer(self) -> Any:
        return self.screen

    @property
    def inks(self) -> Inks:
        inks: Inks = self.app.inks  # type: ignore[attr-defined]
        return inks

    @property
    def glyphs(self) -> Glyphs:
        glyphs: Glyphs = self.app.glyphs  # type: ignore[attr-defined]
        return glyphs

    @property
    def is_panel(self) -> bool:
        """Whether it has a border, which its title is in."""
        return bool(self.styles.border_top[0])

    def name_panel(self, title: Pieces, base: str = "") -> None:
        """The title of its border, and at its end below what its figures are of."""
        if (title, base) != self._named:
            self._named = title, base
            inks = [(text, self.inks.of(ink)) for text, ink in title]
            self.border_title = Text.assemble(*inks) if title else None
            self.border_subtitle = Text(base) if base else None


class PaneRow(Horizontal, ChopperWidget):
    """Parts side by side."""


class PaneColumn(Vertical, ChopperWidget):
    """Parts below one another."""


class Pane(ChopperWidget):
    """Lines of text; a subclass makes them in `lines` and calls `redraw` when they may differ."""

    _strips: Sequence[Strip] = ()

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        """The lines for a size; those that are too many are cut, missing ones are blank."""
        raise NotImplementedError

    def put(self, **shown: Any) -> None:
        """Set attributes that the lines are made of, and redraw."""
        for name, value in shown.items():
            assert hasattr(self, name), name
            setattr(self, name, value)
        self.redraw()

    def redraw(self) -> None:
        """Rebuild the lines and repaint those that changed."""
        old, self._strips = self._strips, self._make()
        if len(old) != len(self._strips):
            self.refresh()
            return
        lines = enumerate(zip(old, self._strips, strict=True))
        changed = [y for y, (before, after) in lines if before != after]
        if changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def render_line(self, y: int) -> Strip:
        if len(self._strips) != self.size.height or (
            self._strips and self._strips[0].cell_length != self.size.width
        ):
            self._strips = self._make()
        return (
            self._strips[y]
            if y < len(self._strips)
            else Strip.blank(self.size.width, self.inks.of("text"))
        )

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._strips = ()

    def headed(self, title: Pieces, lines: Iterable[Pieces]) -> list[Pieces]:
        """Lines with a title above them, which is in the border where there is one."""
        if not self.is_panel:
            return [title, *lines]
        self.name_panel([(text, ink) for text, ink in title if text.strip()])
        return [*lines]

    def _make(self) -> list[Strip]:
        width, height = self.size
        if not width or not height:
            return []
        made = [strip_of(line, width, self.inks) for line in self.lines(width, height)][:height]
        return made + [Strip.blank(width, self.inks.of("text"))] * (height - len(made))


class Listing(ChopperWidget):
    """Rows that keys and the mouse's wheel move along; one panel of the screen has the keys."""

    has_keys = False
    cursor = 0
    """The row that has the cursor, or that is shown first where none has."""

    @property
    def rows(self) -> int:
        raise NotImplementedError

    @property
    def page(self) -> int:
        return max(self.size.height - (not self.is_panel), 1)

    @property
    def takes_keys(self) -> bool:
        """Whether it is displayed, with all that it is in, and there is something to move along."""
        return self.rows > 0 and all(part.display for part in self.ancestors_with_self)

    def give_keys(self, has_keys: bool) -> None:
        """Show by its border and its cursor whether it has the keys."""
        if has_keys != self.has_keys:
            self.has_keys = has_keys
            self.set_class(has_keys, "-focused")
            self.show_cursor()

    def show_cursor(self) -> None:
        self.refresh()

    def move(self, rows: int) -> None:
        self.move_to(self.cursor + rows)

    def move_to(self, row: int) -> None:
        raise NotImplementedError

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.move(-3)


class Dragging(Pane):
    """A pane along which the pointer can be dragged with a button held."""

    _from: int | None = None
    _to: int | None = None
    was_dragged = False
    """Whether the pointer left its cell with the button held: the click that follows is none."""

    def dragged(self, begin: int, end: int) -> None:
        raise NotImplementedError

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if event.button == 1:
            self._from = self._to = event.x - self.gutter.left
            self.was_dragged = False
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._from is not None and (x := event.x - self.gutter.left) != self._to:
            self._to = x
            self.was_dragged = True
            self.dragged(self._from, x)

    def on_mouse_up(self) -> None:
        if self._from is not None:
            self.release_mouse()
            if self._to not in (None, self._from):
                self.dragged(self._from, self._to or 0)
        self._from = self._to = None


_BREAKPOINTS: Final = {
    "-fits": (40, 10),
    "-lines": (50, 16),
    "-tall": (60, 30),
    "-panels": (100, 30),
    "-wide": (120, 16),
    "-large": (160, 30),
}
"""Columns and lines of a terminal from which a class of the screen holds."""


def size_classes(width: int, height: int) -> dict[str, bool]:
    return {
        name: width >= columns and height >= lines
        for name, (columns, lines) in _BREAKPOINTS.items()
    }


class Room(NamedTuple):
    """The lines of a part: those without which it isn't shown, what it wants, the most it uses."""

    part: str
    least: int
    wanted: int
    most: int = 0


def divided_lines(lines: int, *rooms: Room) -> dict[str, int]:
    """The lines of parts below one another, given in the order of their worth.

    Where not all have their least, the last are left out; each gets what it wants, then its most.
    """
    kept = [room for room in rooms if room.wanted > 0]
    while len(kept) > 1 and sum(room.least for room in kept) > lines:
        kept.pop()
    given = {room.part: min(room.least, room.wanted, lines) for room in kept}
    for goal in ("wanted", "most"):
        for room in kept:
            more = min(getattr(room, goal) - given[room.part], lines - sum(given.values()))
            given[room.part] += max(more, 0)
    return {room.part: 0 for room in rooms} | given
