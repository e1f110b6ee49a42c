"""The explorer's screen and its person: the mouse, dialogs, the prompt, the address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rich.text import Text
from textual.widgets import Input

from chopper_tui.draw.charts import drawer_of
from chopper_tui.screen.parts import ScreenParts
from chopper_tui.widgets.cards import CardsPane
from chopper_tui.widgets.chart_panes import PicturePane, SignalPane
from chopper_tui.widgets.footer import KeyLine
from chopper_tui.widgets.frame_table import FrameTable
from chopper_tui.widgets.header import Crumbs, Position
from chopper_tui.widgets.prompt import AddressBar, Prompt, Question

if TYPE_CHECKING:
    from chopper_tui.widgets.dialogs import Dialog, Options


class Pointing(ScreenParts):
    """A screen whose parts take clicks, the wheel and drags."""

    def on_crumbs_clicked(self, event: Crumbs.Clicked) -> None:
        """A click on a step goes there, one on a view opens it; next to them the path is edited."""
        if event.digit:
            self.action_perform("view", event.digit)
        elif event.depth is None or event.depth >= len(self.view.path):
            self.action_perform("go")
        else:
            self.action_perform("ascend", str(event.depth))

    def on_cards_pane_clicked(self, event: CardsPane.Clicked) -> None:
        """A click on a card moves the cursor there; on the cursor's card it opens it."""
        self.activate_cards(True)
        if self.shows_sentences:
            self.table.move_to(self.cards.cursor)
        if event.is_again:
            self.action_perform("enter")

    def on_evidence_pane_opened(self) -> None:
        """A click on the evidence of a finding opens it."""
        self.action_perform("enter")

    def on_frame_table_header_clicked(self, event: FrameTable.HeaderClicked) -> None:
        """A click on a title sorts by its column; again: the other way round."""
        if self.frame.sort.removeprefix("-") == event.name:
            self.action_perform("reverse")
        else:
            self.action_perform("sort", event.name if event.name == "name" else f"-{event.name}")

    def on_frame_table_opened(self) -> None:
        self.action_perform("enter")

    def on_picture_pane_clicked(self, event: PicturePane.Clicked) -> None:
        """A click on the timeline puts the cursor there."""
        if self.lanes is None:
            return
        if event.name in self.lanes.lanes and event.name in self.frame.labels:
            self.table.move_to(list(self.frame.labels).index(event.name))
        self._perform_at("at", event.cell)

    def on_picture_pane_cell_clicked(self, event: PicturePane.CellClicked) -> None:
        """A click on a cell of a picture puts the cursor there; on the cursor's it opens it."""
        if (event.row, event.column) != self.cell_shown:
            self.move_to_cell((event.row, event.column))
        elif action_id := drawer_of(self._pictures[0]).opens_with:
            self.action_perform(action_id)

    def on_picture_pane_turned(self, event: PicturePane.Turned) -> None:
        """The wheel zooms the timeline around the pointer."""
        self._perform_at("zoom_in" if event.up else "zoom_out", event.cell)

    def _perform_at(self, action_id: str, cell: int) -> None:
        """Perform an action at the time in the middle of a cell of the timeline."""
        if self.lanes is not None and 0 <= cell < self.time_cells:
            self.action_perform(action_id, f"{self._time_of(cell)}ns")

    def _time_of(self, cell: int) -> int:
        assert self.lanes is not None
        seen = self.lanes.seen
        return seen.from_ns + (2 * cell + 1) * seen.length_ns // (2 * self.time_cells)

    def on_key_line_pressed(self, event: KeyLine.Pressed) -> None:
        self.action_perform(event.action_id)

    def on_position_help_clicked(self) -> None:
        self.action_perform("help")

    def on_picture_pane_dragged(self, event: PicturePane.Dragged) -> None:
        """A drag along the timeline measures the time between its ends."""
        if self.lanes is None or self.steps.is_busy:
            return
        ends = [min(max(cell, 0), self.time_cells - 1) for cell in (event.begin, event.end)]
        self.action_perform("measure", " ".join(f"{self._time_of(cell)}ns" for cell in ends))

    def on_signal_pane_measured(self, event: SignalPane.Measured) -> None:
        """Dragging along a chart shows the figures of that time."""
        self.say(event.text)


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
