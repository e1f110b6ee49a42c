"""A text to read over the explorer: the help, the detail of a row."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static


class Reader(ModalScreen[None]):
    """Shows a text until a key closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,i,question_mark,h,left", "close", show=False),
        Binding("j,down", "scroll_by(1)", show=False),
        Binding("k,up", "scroll_by(-1)", show=False),
        Binding("pagedown,space,ctrl+d,ctrl+f", "page(1)", show=False),
        Binding("pageup,ctrl+u,ctrl+b", "page(-1)", show=False),
        Binding("g,home", "edge(0)", show=False),
        Binding("G,end", "edge(1)", show=False),
    ]

    def __init__(self, title: str, text: Text) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """The text in a frame."""
        with VerticalScroll(id="box", can_focus=False) as box:
            box.border_title = Text(self._title).markup
            box.border_subtitle = "esc closes"
            yield Static(self._text)

    def action_close(self) -> None:
        """Go back."""
        self.dismiss(None)

    def action_scroll_by(self, lines: int) -> None:
        """Scroll by lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_page(self, pages: int) -> None:
        """Scroll by pages."""
        box = self.query_one(VerticalScroll)
        box.scroll_relative(y=pages * max(box.size.height - 1, 1), animate=False)

    def action_edge(self, end: int) -> None:
        """Scroll to the top or the end."""
        box = self.query_one(VerticalScroll)
        if end:
            box.scroll_end(animate=False)
        else:
            box.scroll_home(animate=False)
