"""The last two lines: the state of the table, what was just said, and the most useful keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chopper_core.metrics import METRICS
from chopper_core.query.frame import Frame
from chopper_core.render.cells import beginning, clean
from chopper_tui.actions.action import Action
from chopper_tui.actions.key_names import key_name
from chopper_tui.widgets.pane import Pane, Pieces, fit, width_of


class Status(Pane):
    """Rows, filter and sort of the table, and a message."""

    frame: Frame | None = None
    marks = 0
    message = ""
    pointed = ""
    is_error = False

    def show(self, frame: Frame) -> None:
        """Show the state of a frame."""
        self.frame, self.pointed = frame, ""
        self.redraw()

    def point(self, text: str) -> None:
        """Show what the cursor points at, in place of the table's state."""
        if text != self.pointed:
            self.pointed = text
            self.redraw()

    def count(self, marks: int) -> None:
        """Show how many rows are marked, here and elsewhere."""
        if marks != self.marks:
            self.marks = marks
            self.redraw()

    def say(self, message: str, error: bool = False) -> None:
        """Show a message until the next one; empty: none."""
        if (message, error) != (self.message, self.is_error):
            self.message, self.is_error = message, error
            self.redraw()

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        """A message takes the line; else it is the table's."""
        if self.message:
            text = fit(clean(self.message), width - 2, self.glyphs)
            return [[(f" {text} ", "alert" if self.is_error else "strong")]]
        if self.pointed:
            return [[(f" {fit(clean(self.pointed), width - 2, self.glyphs)}", "text")]]
        if self.frame is None:
            return []
        frame, glyphs = self.frame, self.glyphs
        arrow = glyphs.down if frame.sort.startswith("-") else glyphs.up
        column = frame.sort.removeprefix("-")
        titles = {each.name: each.title for each in frame.columns}
        title = titles.get(column) or (METRICS[column].title if column in METRICS else column)
        parts = [
            (f"{len(frame)} of {len(frame) + frame.hidden} rows", ""),
            (frame.hidden_text, ""),
            ("filter ", clean(frame.view.filter) or glyphs.missing),
            ("sort ", title + arrow if column else f"by {frame.level}"),
        ]
        if self.marks:
            parts.append(("marks ", str(self.marks)))
        line: list[tuple[str, str]] = [(" ", "text")]
        for label, value in parts:
            shown = fit(value, min(len(value), 40), glyphs)
            line += [(label, "dim"), (shown, "strong"), ("  ", "text")]
        notes = untold(frame)
        room = width - width_of(line) - 1
        if notes:
            text = f"note: {notes[0]}"
            if len(notes) > 1 or len(text) > room:
                title = "note" if len(notes) == 1 else f"{len(notes)} notes"
                text = beginning(f"{title} (i): {notes[0]}", room, glyphs)
            line.append((text, "alert"))
        return [line]


def untold(frame: Frame) -> list[str]:
    """The notes of a frame that the screen doesn't tell in another way."""
    return [
        note
        for note in frame.notes
        if not note.startswith(("generated", f"{frame.hidden} of", "the baseline is"))
    ]


_PAIRS: Final = {
    "1": "1-9",
    "]": "[ ]",
    "}": "{ }",
    "space": "spc",
    "+": "+ -",
    "d": "a d",
    "→": "← →",
    ".": ", .",
}
"""Keys that are named with their counterparts, or shorter."""


class KeyLine(Pane):
    """The keys that are used most; in a view with keys of its own, these come first."""

    view = ""
    instead = ""
    """What the keys do while somebody types, where the line stays."""

    def tell(self, keys: str) -> None:
        """Show these keys; empty: those of the view again."""
        if keys != self.instead:
            self.instead = keys
            self.redraw()

    def show(self, view: str) -> None:
        """Show the keys of a view."""
        if view != self.view:
            self.view = view
            self.redraw()

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        """As many keys as fit; what leads to all others always does."""
        if self.instead:
            return [[(f" {fit(self.instead, max(width - 1, 0), self.glyphs)}", "dim")]]
        hinted = [action for action in self.chopper.actions if action.hint and action.keys]
        own = [action for action in hinted if action.view and action.view == self.view]
        taken = {key for action in own for key in action.keys}
        general = [a for a in hinted if not a.view and a.keys[0] not in taken]
        shown = [*general[:2], *own, *general[2:]] if own else general
        line = _hints(shown)
        while len(shown) > 1 and width_of(line) > width:
            last = len(shown) - 1 - (shown[-1].id == "command")
            shown.pop(last)
            line = _hints(shown)
        return [line]


def _hints(actions: Iterable[Action]) -> list[tuple[str, str]]:
    line = [(" ", "text")]
    for action in actions:
        key = key_name(action.keys[0])
        pair = _PAIRS.get(key, key)
        line += [(pair, "strong"), (f" {action.hint}", "dim"), ("  ", "dim")]
    return line[:-1]
