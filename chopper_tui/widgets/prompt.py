"""The line in which a filter or a command is typed."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.suggester import SuggestFromList
from textual.widgets import Input

from chopper_tui.actions import ACTIONS
from chopper_tui.widgets.pane import Pane, Pieces


class _Sign(Pane):
    """The character in front of the text."""

    sign = "/"

    def lines(self, width: int, height: int) -> list[Pieces]:
        """The sign alone."""
        return [[(f" {self.sign}", "strong")]]


class _Line(Input):
    """The text itself; Esc gives up."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "give_up", show=False)]

    def action_give_up(self) -> None:
        """Tell the prompt."""
        self.post_message(Prompt.Left())


class Prompt(Horizontal):
    """A sign and a text; hidden until it is opened."""

    class Left(Message):
        """Nothing shall come of the text."""

    def compose(self) -> ComposeResult:
        """The sign and the text."""
        yield _Sign()
        line = _Line(compact=True, select_on_focus=False)
        line.cursor_blink = False
        yield line

    @property
    def sign(self) -> str:
        """`/` for a filter, `:` for a command."""
        return self.query_one(_Sign).sign

    @property
    def is_open(self) -> bool:
        """Whether somebody types."""
        return bool(self.display)

    def open(self, sign: str, text: str = "") -> None:
        """Take the focus with a text to begin with."""
        line = self.query_one(_Line)
        mark = self.query_one(_Sign)
        mark.sign = sign
        mark.redraw()
        verbs = SuggestFromList([action.verb for action in ACTIONS])
        line.suggester = verbs if sign == ":" else None
        with line.prevent(Input.Changed):
            line.value = text
        line.cursor_position = len(text)
        self.display = True
        line.focus()

    def close(self) -> None:
        """Give the keys back to the screen."""
        self.display = False
        self.screen.set_focus(None)
