"""The sentence of the cursor's row in full, where the rows of a view are sentences."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap
from typing import Final

from chopper_core.query.frame import Frame
from chopper_core.render.cells import SENTENCES, clean
from chopper_tui.widgets.pane import Pane, Pieces

_MOST: Final = 6


class Saying(Pane):
    """What the row says, and the address of the evidence."""

    frame: Frame | None = None
    row: int = 0

    def show(self, frame: Frame, row: int) -> None:
        """Show a row."""
        self.frame, self.row = frame, row
        self.redraw()

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        """A blank line, the sentence, the address."""
        if self.frame is None or self.row >= len(self.frame):
            return []
        return [[], *_lines(self.frame, self.row, width)]


def lines_to_say(frame: Frame, width: int) -> int:
    """The lines that the longest sentence of a frame takes; 0 where rows are no sentences."""
    if frame.level not in SENTENCES or not len(frame):
        return 0
    longest = max(len(_lines(frame, row, width)) for row in range(len(frame)))
    return min(longest, _MOST) + 1


def _lines(frame: Frame, row: int, width: int) -> list[Pieces]:
    sentence: list[Pieces] = [
        [(" " + line, "strong")] for line in wrap(clean(frame.labels[row]), width - 2)
    ]
    evidence = wrap(clean(frame.addresses(row)), width - 2, break_on_hyphens=False)
    return sentence + [[(" " + line, "dim")] for line in evidence]
