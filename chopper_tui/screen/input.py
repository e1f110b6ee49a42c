"""The explorer's screen and its person: the mouse, dialogs, the prompt, the address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rich.text import Text
from textual.widgets import Input

from chopper_core.model.charts import Lanes
from chopper_tui.draw.canvas import Cell
from chopper_tui.draw.charts import drawer_of
from chopper_tui.screen.parts import ScreenParts
from chopper_tui.widgets.footer import KeyLine
from chopper_tui.widgets.header import Crumbs, Position
from chopper_tui.widgets.prompt import AddressBar, Prompt, Question

if TYPE_CHECKING:
    from chopper_tui.widgets.dialogs import Dialog, Options


class Pointing(ScreenParts):
    """A screen whose parts take clicks, the wheel and drags."""

    def point_at_card(self, is_again: bool) -> None:
        """Give the keys to the cards, whose cursor was moved; a card clicked again opens."""
        self.activate_cards(True)
        if self.shows_sentences:
            self.table.move_to(self.cards.cursor)
        if is_again:
            self.action_perform("enter")

    def point_at_lane(self, name: str, cell: int) -> None:
        """Put the timeline's cursor on a lane and a cell of the time axis."""
        if self.lanes is not None and name in self.lanes.lanes and name in self.frame.labels:
            self.table.move_to(list(self.frame.labels).index(name))
        self.perform_at("at", cell)

    def point_at_cell(self, cell: Cell) -> None:
        """Put the cursor on a cell of a picture; the cursor's own opens."""
        if cell != self.cell_shown:
            self.move_to_cell(cell)
        elif action_id := drawer_of(self._pictures[0]).opens_with:
            self.action_perform(action_id)

    def perform_at(self, action_id: str, cell: int) -> None:
        """Perform an action at the time in the middle of a cell of the timeline."""
        if self.lanes is not None and 0 <= cell < self.time_cells:
            self.action_perform(action_id, self._time_of(self.lanes, cell))

    def measure_cells(self, *ends: int) -> None:
        """Measure the time between cells of the timeline."""
        if self.lanes is not None and not self.steps.is_busy:
            cells = [min(max(cell, 0), self.time_cells - 1) for cell in ends]
            times = [self._time_of(self.lanes, cell) for cell in cells]
            self.action_perform("measure", " ".join(times))

    def _time_of(self, lanes: Lanes, cell: int) -> str:
        seen = lanes.seen
        return f"{seen.from_ns + (2 * cell + 1) * seen.length_ns // (2 * self.time_cells)}ns"


T = TypeVar("T")
Answer = Callable[[T], Awaitable[None] | None]


class Asking(ScreenParts):
    """A screen that asks for a choice or a line of text."""

    def open_dialog(self, dialog: Dialog[T], then: Answer[T] | None = None) -> None:
        """Open a dialog over the explorer; its answer, if there is one, is a step."""
        if self.app.screen is not self:
            return
        if then is not None:
            dialog.answered = lambda answer: self.steps.add(partial(then, answer))
        self.app.push_screen(dialog)

    def choose(self, title: str, options: Options, current: str | None, then: Answer[str]) -> None:
        """Let one of (id, title, explanation) options be chosen."""
        from chopper_tui.widgets.dialogs import Chooser

        self.open_dialog(Chooser(title, options, current), then)

    def read(self, title: str, text: Text, *, passes_digits: bool = False) -> None:
        """Show a text until a key closes it; a digit may open another view at once."""
        from chopper_tui.widgets.reader import TextReader

        self.open_dialog(TextReader(title, text, self.action_perform, passes_digits=passes_digits))

    def ask(self, sign: str, text: str, entered: Answer[str], **options: Any) -> None:
        """Take a line of text at the bottom, or an address in the place of the breadcrumb.

        The arguments are the fields of `Question`.
        """
        question = Question(sign, text, entered, **options)
        if question.sign:
            self.query_one(KeyLine).display = False
            self.query_one(Prompt).open(question)
            return
        bar = self.query_one(AddressBar)
        self.query_one("#top").display = bar.display = True
        bar.begin(question)
        self._edit_address(AddressBar.KEYS)

    @property
    def typed(self) -> str:
        """The text of the prompt at the bottom."""
        return self.query_one(Prompt).line.value

    def close_prompt(self) -> None:
        """Give the keys back to the actions."""
        bar, prompt = self.query_one(AddressBar), self.query_one(Prompt)
        was_address = bar.is_open
        bar.display = prompt.display = False
        self.set_focus(None)
        if was_address:
            self._edit_address("")
            self.say("")
        else:
            self.query_one(KeyLine).display = self.has_lines
        self.status.point("")
        self.follow_cursor()

    def _edit_address(self, keys: str) -> None:
        self._show_top()
        self.query_one(Crumbs).edit(bool(keys))
        self.query_one(Position).display = not keys
        self.query_one(KeyLine).explain(keys)

    def on_input_changed(self, event: Input.Changed) -> None:
        prompt = self.query_one(Prompt)
        if prompt.is_open and prompt.line.question.changed is not None:
            self.steps.add(prompt.line.question.changed)
