"""Parts that open over the explorer's screen or on its lines: dialogs, the prompt, the address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from rich.text import Text
from textual.widgets import Input

from chopper_tui.screen_parts import ScreenParts
from chopper_tui.widgets.dialogs import Chooser, Dialog, Options
from chopper_tui.widgets.footer import KeyLine
from chopper_tui.widgets.header import Crumbs, Position
from chopper_tui.widgets.prompt import AddressBar, Complete, Prompt, PromptHandler
from chopper_tui.widgets.reader import TextReader

T = TypeVar("T")


class Asking(ScreenParts):
    """A screen that asks for a choice or a line of text."""

    def open_dialog(
        self, dialog: Dialog[T], then: Callable[[T], Awaitable[None] | None] | None = None
    ) -> None:
        """Open a dialog over the explorer; its answer, if there is one, is a step."""

        if self.app.screen is not self:
            return
        if then is not None:
            dialog.answered = lambda answer: self.steps.add(partial(then, answer))
        self.app.push_screen(dialog)

    def choose(
        self,
        title: str,
        options: Options,
        current: str | None,
        then: Callable[[str], Awaitable[None] | None],
    ) -> None:
        """Let one of (id, title, explanation) options be chosen."""
        self.open_dialog(Chooser(title, options, current), then)

    def read(self, title: str, text: Text, *, passes_digits: bool = False) -> None:
        """Show a text until a key closes it; a digit may open another view at once."""
        self.open_dialog(TextReader(title, text, self.action_perform, passes_digits=passes_digits))

    def open_prompt(
        self, handler: PromptHandler, sign: str, text: str = "", complete: Complete | None = None
    ) -> None:
        """Take a line of text at the bottom."""
        self.query_one(KeyLine).display = False
        self.query_one(Prompt).open(handler, sign, text, complete)

    def open_address(
        self, handler: PromptHandler, text: str, cursor: int, complete: Complete
    ) -> None:
        """Take an address in the place of the breadcrumb."""
        self.query_one("#top").display = True
        self.query_one(AddressBar).open(handler, text, cursor, complete)
        self._edit_address(AddressBar.KEYS)

    def close_prompt(self) -> None:
        """Give the keys back to the actions."""
        bar, prompt = self.query_one(AddressBar), self.query_one(Prompt)
        if bar.is_open:
            bar.close()
            self._edit_address("")
        elif prompt.is_open:
            prompt.close()
            self.query_one(KeyLine).display = self._arranged is None or self._arranged.lines
        self.status.point("")
        self.follow_cursor()

    def _edit_address(self, keys: str) -> None:
        self._show_top()
        self.query_one(Crumbs).edit(bool(keys))
        self.query_one(Position).display = not keys
        self.query_one(KeyLine).explain(keys)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Pass text on while it is typed."""
        prompt = self.query_one(Prompt)
        if prompt.is_open:
            prompt.handler.prompt_changed(event.value)
