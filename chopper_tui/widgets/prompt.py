"""Lines of text to type: a filter, a command, or an address in place of the breadcrumb."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final

from msgspec import Struct
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
Complete = Callable[[str, str], Sequence[str]]
"""(text up to the cursor, text after it) → completions."""


class Question(Struct, frozen=True):
    """What is asked for, and what becomes of the text: each answer is a step of the screen."""

    sign: str
    """The character in front of the text: `/` for a filter, `:` for a command; none: an address."""
    text: str
    entered: Callable[[str], Awaitable[None] | None]
    cursor: int | None = None
    changed: Callable[[], Awaitable[None] | None] | None = None
    """Follows the text while it is typed."""
    cancelled: Callable[[], Awaitable[None] | None] | None = None
    complete: Complete | None = None


class _Sign(Pane):
    """The character in front of the text."""

    sign = "/"

    def lines(self, width: int, height: int) -> list[Pieces]:
        return [[(f" {self.sign}", "strong")]]


class InlineSuggester(Suggester):
    """Shows the first completion behind the text; → takes it."""

    def __init__(self, complete: Complete) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        found = await run_in_thread(self._complete, value, "")
        return next((each for each in found if each.startswith(value) and each != value), None)


class PromptLine(Input):
    """The text; Esc cancels, Tab completes, the arrows recall earlier texts."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "answer(0)", show=False),
        Binding("tab", "complete(1)", show=False),
        Binding("shift+tab", "complete(-1)", show=False),
        Binding("up", "recall(-1)", show=False),
        Binding("down", "recall(1)", show=False),
    ]

    question: Question
    _offered: Sequence[str] = ()
    _place = 0
    _draft = ""

    def __init__(self) -> None:
        super().__init__(compact=True, select_on_focus=False)
        self.cursor_blink = False
        self._entered: dict[str, list[str]] = {}

    @property
    def history(self) -> list[str]:
        return self._entered.setdefault(self.question.sign, [])

    @property
    def _explorer(self) -> Any:
        return self.screen

    def begin(self, question: Question) -> None:
        self.question, complete = question, question.complete
        self.suggester = None if complete is None else InlineSuggester(complete)
        self._offered, self._place, self._draft = (), len(self.history), question.text
        with self.prevent(Input.Changed):
            self._put(question.text, question.cursor)
        # At once: Widget.focus waits for its turn, after the keys that came in between.
        self.screen.set_focus(self)

    def action_complete(self, step: int) -> None:
        """The next completion of the text before the cursor; after the last comes the first."""
        complete, cursor = self.question.complete, self.cursor_position
        if complete is None:
            return
        text, rest = self.value[:cursor], self.value[cursor:]
        if text in self._offered and len(self._offered) > 1:
            place = self._offered.index(text) + step
        else:
            self._offered, place = complete(text, rest), 0 if step > 0 else -1
        if self._offered:
            place %= len(self._offered)
            self._put(self._offered[place] + rest, len(self._offered[place]))
            self._explorer.status.offer(self._offered, place)

    def action_recall(self, step: int) -> None:
        if self._place == len(self.history):
            self._draft = self.value
        self._place = max(0, min(self._place + step, len(self.history)))
        at_end = self._place == len(self.history)
        self._put(self._draft if at_end else self.history[self._place])

    def _put(self, text: str, cursor: int | None = None) -> None:
        self.value = printable(text)
        self.cursor_position = len(text) if cursor is None else cursor

    def pasted(self, event: events.Paste) -> None:
        self.replace(event.text, *sorted(self.selection))

    async def action_submit(self) -> None:
        self.action_answer(True)

    def action_answer(self, is_entered: bool) -> None:
        """Close and hand the text over at once, before the keys that follow; or cancel."""
        text, question = self.value, self.question
        if is_entered and text.strip():
            self.history[:] = [*(each for each in self.history if each != text), text][
                -_MAX_HISTORY:
            ]
        self._explorer.close_prompt()
        if is_entered:
            self._explorer.steps.add(lambda: question.entered(text))
        elif question.cancelled is not None:
            self._explorer.steps.add(question.cancelled)


class Prompt(Horizontal):
    """A sign and a text; hidden until it is opened."""

    def compose(self) -> ComposeResult:
        yield _Sign()
        yield PromptLine()

    @property
    def line(self) -> PromptLine:
        return self.query_one(PromptLine)

    @property
    def is_open(self) -> bool:
        return bool(self.display)

    def open(self, question: Question) -> None:
        sign = self.query_one(_Sign)
        sign.sign = question.sign
        sign.redraw()
        self.line.begin(question)
        self.display = True


class AddressBar(PromptLine):
    """An address in the place of the breadcrumb; hidden until it is opened."""

    KEYS: ClassVar[str] = "⏎ go  tab completes  → accepts the suggestion  ↑ recalls  esc back"

    @property
    def is_open(self) -> bool:
        return bool(self.display)

    def on_resize(self) -> None:
        """Keep the cursor in sight, also when the line has its width for the first time."""
        cursor = Region(self.cursor_position, 0, width=1, height=1)
        self.scroll_to_region(cursor, force=True, animate=False)
