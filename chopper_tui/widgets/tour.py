"""The box of the tour: a few sentences at the bottom, with the screen that they are about above."""

from __future__ import annotations

from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from chopper_tui.widgets.dialogs import Dialog


class TourBox(Dialog[int]):
    """One stop of the tour; answers with the steps to go forward (1) or back (-1)."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space,n,right,l,j,down", "go(1)", show=False, priority=True),
        Binding("left,p,h,k,up,backspace", "go(-1)", show=False, priority=True),
        Binding("escape,q", "cancel", show=False, priority=True),
    ]

    def __init__(self, title: str, text: str) -> None:
        """Show a stop."""
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """The text in a frame."""
        with Vertical(id="box") as box:
            box.border_title = Content(self._title)
            box.border_subtitle = "⏎ next, ← back, esc ends" if self._is_wide else "⏎ ← esc"
            yield Static(Text(self._text))

    @property
    def _is_wide(self) -> bool:
        return self.app.size.width >= 60

    def render(self) -> RenderableType:
        """The explorer as it is: the text is about it."""
        return ModalScreen.render(self)

    def action_go(self, step: int) -> None:
        """Go forward, or back."""
        self.dismiss(step)

    def on_click(self, event: events.Click) -> None:
        """A click goes forward."""
        event.stop()
        self.dismiss(1)
