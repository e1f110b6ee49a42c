"""Lines of text to type: a filter, a command, or an address in place of the breadcrumb."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Final, Protocol

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.geometry import Region
from textual.suggester import Suggester
from textual.widgets import Input

from chopper_core.render.cells import printable
from chopper_tui.draw.pieces import Pieces
from chopper_tui.steps import run_in_thread
from chopper_tui.widgets.pane import Pane

_MAX_HISTORY: Final = 100
"""Texts that are remembered for each kind of prompt."""


class _Sign(Pane):
    """The character in front of the text."""

    sign = "/"

    def show(self, sign: str) -> None:
        self.sign = sign
        self.redraw()

    def lines(self, width: int, height: int) -> list[Pieces]:
        return [[(f" {self.sign}", "strong")]]


class PromptHandler(Protocol):
    """Receives the typed text at once, before the keys that follow."""

    def prompt_changed(self, text: str) -> None:
        """Follow the text while it is typed."""

    def prompt_entered(self, text: str) -> None:
        """Take the complete text."""

    def prompt_cancelled(self) -> None:
        """Restore what was there before."""

    def prompt_offers(self, offered: Sequence[str], place: int) -> None:
        """Show what completes the text; the completion at `place` is taken."""


Complete = Callable[[str, str], Sequence[str]]
"""(text up to the cursor, text after it) → completions."""


class InlineSuggester(Suggester):
    """Shows the first completion behind the text; → takes it."""

    def __init__(self, complete: Complete) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        """The first completion that continues the text."""
        found = await run_in_thread(self._complete, value, "")
        return next((each for each in found if each.startswith(value) and each != value), None)


class PromptLine(Input):
    """The text; Esc cancels, Tab completes, the arrows recall earlier texts."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", show=False),
        Binding("tab", "complete(1)", show=False),
        Binding("shift+tab", "complete(-1)", show=False),
        Binding("up", "recall(-1)", show=False),
        Binding("down", "recall(1)", show=False),
    ]

    complete: Complete | None = None
    """None: no completion."""
    history: list[str]
    """Texts that were entered, the last one last."""
    handler: PromptHandler
    _offered: Sequence[str] = ()
    _place = 0
    _draft = ""

    def begin(
        self,
        text: str,
        complete: Complete | None,
        history: list[str],
        cursor: int | None = None,
    ) -> None:
        """Start with a text, after those that were entered before."""
        self.complete, self.history = complete, history
        self.suggester = None if complete is None else InlineSuggester(complete)
        self._offered, self._place, self._draft = (), len(history), text
        with self.prevent(Input.Changed):
            self._put(text, cursor)

    def action_complete(self, step: int) -> None:
        """The next completion of the text before the cursor; after the last comes the first."""
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
            self.handler.prompt_offers(self._offered, place)

    def action_recall(self, step: int) -> None:
        """Recall an earlier or later text; the last is the one being typed."""
        if self._place == len(self.history):
            self._draft = self.value
        self._place = max(0, min(self._place + step, len(self.history)))
        at_end = self._place == len(self.history)
        self._put(self._draft if at_end else self.history[self._place])

    def _put(self, text: str, cursor: int | None = None) -> None:
        self.value = printable(text)
        self.cursor_position = len(text) if cursor is None else cursor

    def pasted(self, event: events.Paste) -> None:
        """Replace the selection by a text."""
        self.replace(event.text, *sorted(self.selection))

    async def action_submit(self) -> None:
        """Hand the text over at once, before the keys that follow."""
        if self.value.strip():
            known = [text for text in self.history if text != self.value]
            self.history[:] = [*known, self.value][-_MAX_HISTORY:]
        self.handler.prompt_entered(self.value)

    def action_cancel(self) -> None:
        self.handler.prompt_cancelled()


class Prompt(Horizontal):
    """A sign and a text; hidden until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self._entered: dict[str, list[str]] = {}

    def compose(self) -> ComposeResult:
        yield _Sign()
        line = PromptLine(compact=True, select_on_focus=False)
        line.cursor_blink = False
        yield line

    @property
    def sign(self) -> str:
        """`/` for a filter, `:` for a command."""
        return self.query_one(_Sign).sign

    @property
    def handler(self) -> PromptHandler:
        """Who takes the text."""
        return self.query_one(PromptLine).handler

    @property
    def is_open(self) -> bool:
        return bool(self.display)

    def open(
        self,
        handler: PromptHandler,
        sign: str,
        text: str = "",
        complete: Complete | None = None,
    ) -> None:
        """Take the focus with a text to begin with."""
        line = self.query_one(PromptLine)
        line.handler = handler
        self.query_one(_Sign).show(sign)
        line.begin(text, complete, self._entered.setdefault(sign, []))
        self.display = True
        # At once: Widget.focus waits for its turn, after the keys that came in between.
        self.screen.set_focus(line)

    def close(self) -> None:
        """Give the keys back to the screen."""
        self.display = False
        self.screen.set_focus(None)


class AddressBar(PromptLine):
    """An address in the place of the breadcrumb; hidden until it is opened."""

    KEYS: ClassVar[str] = "⏎ go  tab completes  → accepts the suggestion  ↑ recalls  esc back"

    def __init__(self) -> None:
        super().__init__(compact=True, select_on_focus=False)
        self.cursor_blink = False
        self._entered: list[str] = []

    @property
    def is_open(self) -> bool:
        return bool(self.display)

    def open(self, handler: PromptHandler, text: str, cursor: int, complete: Complete) -> None:
        """Take the focus with an address to begin with."""
        self.handler = handler
        self.begin(text, complete, self._entered, cursor)
        self.display = True
        # At once: Widget.focus waits for its turn, after the keys that came in between.
        self.screen.set_focus(self)

    def on_resize(self) -> None:
        """Keep the cursor in sight, also when the line has its width for the first time."""
        cursor = Region(self.cursor_position, 0, width=1, height=1)
        self.scroll_to_region(cursor, force=True, animate=False)

    def close(self) -> None:
        """Give the keys back to the screen."""
        self.display = False
        self.screen.set_focus(None)
