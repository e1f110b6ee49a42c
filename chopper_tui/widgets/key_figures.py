"""The second line: the key figures of the scope."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap

from chopper_core.render.cells import clean
from chopper_tui.key_line import key_line
from chopper_tui.looks import Look
from chopper_tui.widgets.pane import Pane, Pieces, width_of


class KeyFigures(Pane):
    """What the scope adds up to."""

    seen: Look | None = None

    def show(self, seen: Look) -> None:
        """Show the figures of a look."""
        self.seen = seen
        self.redraw()

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        """As many figures as fit, the most telling first; no telemetry, no word of it.

        Of a view it is what the view comes to.
        """
        if self.seen is None:
            return []
        if self.seen.frame.view.name:
            told = self.told(width)
            if len(told) > height > 0:
                kept, *_ = wrap(told[height - 1], max(width - 4, 20))
                told[height - 1 :] = [f"{kept} {self.glyphs.ellipsis}"]
            return [[(" ", "text"), (line, "strong")] for line in told]
        line: list[tuple[str, str]] = [(" ", "text")]
        for title, text in key_line(self.seen.figures, self.seen.frame.view, self.glyphs):
            piece = [(f"{title} " if title else "", "dim"), (f"{text}  ", "strong")]
            if width_of(line) + width_of(piece) - 2 > width:
                break
            line += piece
        return [line]

    def told(self, width: int) -> list[str]:
        """What a view comes to, in lines of a width."""
        if self.seen is None:
            return []
        headline = self.seen.frame.headline
        return [line for text in headline for line in wrap(clean(text), max(width - 2, 20))]
