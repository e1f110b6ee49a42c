"""The line in which a filter or a command is typed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.suggester import Suggester
from textual.widgets import Input

from chopper_tui.background import away
from chopper_tui.widgets.pane import Pane, Pieces


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

    def prompt_offers(self, offered: Sequence[str], place: int) -> None:
        """These complete the text; the one at `place` is taken."""


Complete = Callable[[str, str], Sequence[str]]
"""What the text up to the cursor may become, given what follows it."""


class Ghost(Suggester):
    """Shows the first completion behind the text; → takes it."""

    def __init__(self, complete: Complete) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        """The first completion that goes on from the text."""
        found = await away(self._complete, value, "")
        return next((each for each in found if each.startswith(value) and each != value), None)


class Line(Input):
    """The text itself; Esc gives up, Tab completes, the arrows bring back what was typed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "give_up", show=False),
        Binding("tab", "complete(1)", show=False),
        Binding("shift+tab", "complete(-1)", show=False),
        Binding("up", "recall(-1)", show=False),
        Binding("down", "recall(1)", show=False),
    ]

    complete: Complete | None = None
    """None where nothing is completed."""
    history: Sequence[str] = ()
    owner: Owner
    _offered: Sequence[str] = ()
    _place = 0
    _draft = ""

    def begin(
        self,
        text: str,
        complete: Complete | None,
        history: Sequence[str],
        cursor: int | None = None,
    ) -> None:
        """Start with a text, after those that were entered before."""
        self.complete, self.history = complete, history
        self.suggester = None if complete is None else Ghost(complete)
        self._offered, self._place, self._draft = (), len(history), text
        with self.prevent(Input.Changed):
            self._put(text, cursor)

    def action_complete(self, step: int) -> None:
        """The next completion of what is before the cursor; after the last one the first."""
        if self.complete is None:
            return
        cursor = self.cursor_position
        text, rest = self.value[:cursor], self.value[cursor:]
        if text in self._offered and len(self._offered) > 1:
            place = self._offered.index(text) + step
        else:
            self._offered, place = self.complete(text, rest), 0 if step > 0 else -1
        if self._offered:
            place %= len(self._offered)
            self._put(self._offered[place] + rest, len(self._offered[place]))
            self.owner.prompt_offers(self._offered, place)

    def action_recall(self, step: int) -> None:
        """What was entered before, or after that; the end is what was being typed."""
        if self._place == len(self.history):
            self._draft = self.value
        self._place = max(0, min(self._place + step, len(self.history)))
        at_end = self._place == len(self.history)
        self._put(self._draft if at_end else self.history[self._place])

    def _put(self, text: str, cursor: int | None = None) -> None:
        self.value = text
        self.cursor_position = len(text) if cursor is None else cursor

    def typed(self, event: events.Key) -> bool:
        """Take a character; not while some of the text is selected."""
        if event.character is None or not self.selection.is_empty:
            return False
        self.insert_text_at_cursor(event.character)
        return True

    def pasted(self, event: events.Paste) -> None:
        """Take the first line of a text instead of what is selected."""
        for text in event.text.splitlines()[:1]:
            self.replace(text, *sorted(self.selection))

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
        complete: Complete | None = None,
    ) -> None:
        """Take the focus with a text to begin with."""
        line = self.query_one(Line)
        line.owner = owner
        mark = self.query_one(_Sign)
        mark.sign = sign
        mark.redraw()
        line.begin(text, complete, tuple(self._entered.get(sign, ())))
        self.display = True
        # At once: Widget.focus waits for its turn, after the keys that came in between.
        self.screen.set_focus(line)

    def close(self) -> None:
        """Give the keys back to the screen."""
        self.display = False
        self.screen.set_focus(None)
