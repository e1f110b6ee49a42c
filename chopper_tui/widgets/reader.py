"""A text over the explorer, scrolled and searched: help, details, notes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import ClassVar, Final

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from chopper_tui.widgets.dialogs import Sought

PERFORMS: Final = "performs"
"""The key in a style's meta data under which a text has (action, argument) of a click on it."""


class TextReader(Sought[None]):
    """A text, until a key closes it; `/` shows only what matches."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False),
        Binding("enter,left", "cancel", show=False),
        Binding("down", "scroll_by(1)", show=False),
        Binding("up", "scroll_by(-1)", show=False),
        Binding("pagedown,ctrl+d,ctrl+f", "page(1)", show=False),
        Binding("pageup,ctrl+u,ctrl+b", "page(-1)", show=False),
        Binding("home", "edge(0)", show=False),
        Binding("end", "edge(1)", show=False),
    ]
    types_at_once: ClassVar[bool] = False
    _MEANINGS: ClassVar[dict[str, str]] = {
        **dict.fromkeys("qi?h", "cancel"),
        "j": "scroll_by(1)",
        "k": "scroll_by(-1)",
        " ": "page(1)",
        "g": "edge(0)",
        "G": "edge(1)",
        **{str(digit): f"digit('{digit}')" for digit in range(10)},
    }

    def action_leave(self) -> None:
        """Show the whole text again, or close."""
        if self.is_typing:
            self.is_typing = False
            self._type("")
        else:
            self.action_cancel()

    def apply_search(self) -> None:
        """Show the entries in which every typed word is."""
        words = self.search_text.split()
        shown = Text()
        for entry in self._entries:
            if all(word in entry.plain.lower() for word in words):
                shown.append_text(entry)
        self.query_one(Static).update(shown if words else self._text)
        self._box.border_title = Content(self._title + self.typed)
        self._box.scroll_home(animate=False)

    def __init__(
        self,
        title: str,
        text: Text,
        perform: Callable[[str, str], None],
        *,
        passes_digits: bool = False,
    ) -> None:
        """Show a text; what closes it may perform an action: a click, or a digit for a view."""
        super().__init__()
        self._title = title
        self._text = text
        self._perform = perform
        self._passes_digits = passes_digits

    def action_digit(self, digit: str) -> None:
        """Close, and open the view of a digit; its own one closes alone."""
        if self._passes_digits:
            self.dismiss(None)
            if digit != "0":
                self._perform("view", digit)

    def on_click(self, event: events.Click) -> None:
        """A click on an entry that can be performed closes the text and performs it."""
        performs = event.style.meta.get(PERFORMS)
        if performs is not None:
            self.dismiss(None)
            self._perform(*performs)

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="box", can_focus=False) as box:
            box.border_title = Content(self._title)
            box.border_subtitle = "/ searches, esc closes"
            yield Static(self._text)

    @cached_property
    def _entries(self) -> list[Text]:
        """Those of the text; splitting it for each key of a burst took seconds."""
        return _entries(self._text)

    @property
    def _box(self) -> VerticalScroll:
        return self.query_one(VerticalScroll)

    def action_scroll_by(self, lines: int) -> None:
        self._box.scroll_relative(y=lines, animate=False)

    def action_page(self, pages: int) -> None:
        self._box.scroll_relative(y=pages * max(self._box.size.height - 1, 1), animate=False)

    def action_edge(self, end: int) -> None:
        """Scroll to the top or the end."""
        if end:
            self._box.scroll_end(animate=False)
        else:
            self._box.scroll_home(animate=False)


def _entries(text: Text) -> list[Text]:
    """The entries of a text: a line, and those below it that are set further in."""
    found: list[Text] = []
    margin = 0
    for line in text.split("\n", include_separator=True, allow_blank=True):
        indent = len(line.plain) - len(line.plain.lstrip(" "))
        if found and line.plain.strip() and indent > margin + 2:
            found[-1].append_text(line)
        else:
            margin = indent
            found.append(line)
    return found
