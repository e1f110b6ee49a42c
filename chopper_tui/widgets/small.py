"""What is shown where nothing else has room."""

from __future__ import annotations

from collections.abc import Iterable

from chopper_tui.widgets.pane import Pane, Pieces, fit


class TooSmall(Pane):
    """One line that says so."""

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        """The size it takes."""
        return [[(fit("too small: 40x10 is the least", width, self.glyphs), "text")]]
