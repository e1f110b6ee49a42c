"""The line in which a filter or a command is typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.suggester import SuggestFromList
from textual.widgets import Input

from chopper_tui.actions import ACTIONS
from chopper_tui.widgets.pane import Pane, Pieces
from chopper_tui.words import completions


class _Sign(Pane):
    """The character in front of the text."""

    sign = "/"

    def lines(self, width: int, height: int) -> list[Pieces]:
        """The sign alone."""
        return [[(f" {self.sign}", "strong")]]


class Owner(Protocol):
    """Whoever takes what is typed."""

    def prompt_entered(self, text: str) -> None:
        """The text is complete."""

    def prompt_left(self) -> None:
        """Nothing shall come of it."""


class Line(Input):
    """The text itself; Esc gives up, Tab completes, the arrows bring back what was typed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "give_up", show=False),
        Binding("tab", "complete(1)", show=False),
        Binding("shift+tab", "complete(-1)", show=False),
        Binding("up", "recall(-1)", show=False),
        Binding("down", "recall(1)", show=False),
    ]

    words: Mapping[str, Sequence[str]] | None = None
    """Arguments by action; None where nothing is completed."""
    history: Sequence[str] = ()
    owner: Owner
    _offered: Sequence[str] = ()
    _place = 0
    _draft = ""

    def begin(
        self, text: str, words: Mapping[str, Sequence[str]] | None, history: Sequence[str]
    ) -> None:
        """Start with a text, after those that were entered before."""
        self.words, self.history = words, history
        self._offered, self._place, self._draft = (), len(history), text
        with self.prevent(Input.Changed):
            self._put(text)

    def action_complete(self, step: int) -> None:
        """The next completion of what was typed; after the last one comes the first."""
        if self.words is None:
            return
        if self.value in self._offered:
            position = self._offered.index(self.value) + step
        else:
            self._offered, position = completions(self.value, self.words), 0 if step > 0 else -1
        if len(self._offered) == 1 and self.value == self._offered[0]:
            self._offered, position = completions(self.value, self.words), 0
        if self._offered:
            self._put(self._offered[position % len(self._offered)])

    def action_recall(self, step: int) -> None:
        """What was entered before, or after that; the end is what was being typed."""
        if self._place == len(self.history):
            self._draft = self.value
        self._place = max(0, min(self._place + step, len(self.history)))
        at_end = self._place == len(self.history)
        self._put(self._draft if at_end else self.history[self._place])

    def _put(self, text: str) -> None:
        self.value = text
        self.cursor_position = len(text)

    def typed(self, event: events.Key) -> bool:
        """Take a character; not while some of the text is selected."""
        if event.character is None or not self.selection.is_empty:
            return False
        self.insert_text_at_cursor(event.character)
        return True

    async def action_submit(self) -> None:
        """The text is complete: its owner takes it at once, before the keys that follow."""
        self.owner.prompt_entered(self.value)

    def action_give_up(self) -> None:
        """Nothing shall come of the text."""
        self.owner.prompt_left()


class Prompt(Horizontal):
    """A sign and a text; hidden until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self._entered: dict[str, list[str]] = {}

    def compose(self) -> ComposeResult:
        """The sign and the text."""
        yield _Sign()
        line = Line(compact=True, select_on_focus=False)
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

    def remember(self, text: str) -> None:
        """Keep an entered text for the arrow keys."""
        kept = self._entered.setdefault(self.sign, [])
        if text in kept:
            kept.remove(text)
        kept.append(text)

    def open(
        self,
        owner: Owner,
        sign: str,
        text: str = "",
        words: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Take the focus with a text to begin with."""
        line = self.query_one(Line)
        line.owner = owner
        mark = self.query_one(_Sign)
        mark.sign = sign
        mark.redraw()
        verbs = SuggestFromList([action.verb for action in ACTIONS])
        line.suggester = verbs if sign == ":" else None
        given = None if sign == "/" else words or {}
        line.begin(text, given, tuple(self._entered.get(sign, ())))
        self.display = True
        # At once: Widget.focus waits for its turn, after the keys that came in between.
        self.screen.set_focus(line)

    def close(self) -> None:
        """Give the keys back to the screen."""
        self.display = False
        self.screen.set_focus(None)
