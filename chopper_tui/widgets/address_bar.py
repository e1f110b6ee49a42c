"""The breadcrumb as the address that it stands for, while somebody edits it."""

from __future__ import annotations

from typing import ClassVar

from textual.geometry import Region

from chopper_tui.widgets.prompt import Complete, Line, Owner


class AddressBar(Line):
    """An address in the place of the breadcrumb; hidden until it is opened."""

    KEYS: ClassVar[str] = "⏎ go  tab completes  → takes what is dim  ↑ recalls  esc back"

    def __init__(self) -> None:
        super().__init__(compact=True, select_on_focus=False)
        self.cursor_blink = False
        self._entered: list[str] = []

    @property
    def is_open(self) -> bool:
        """Whether somebody types."""
        return bool(self.display)

    def open(self, owner: Owner, text: str, cursor: int, complete: Complete) -> None:
        """Take the focus with an address to begin with."""
        self.owner = owner
        self.begin(text, complete, tuple(self._entered), cursor)
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

    def remember(self, text: str) -> None:
        """Keep an entered address for the arrow keys."""
        if text in self._entered:
            self._entered.remove(text)
        self._entered.append(text)
