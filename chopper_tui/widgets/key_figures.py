"""The second line: the key figures of the scope."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap
from typing import Final

from chopper_core.render.cells import clean
from chopper_tui.figures import Figure
from chopper_tui.looks import KEY_FIGURES, Look
from chopper_tui.widgets.pane import Pane, Pieces, width_of

_NAMES: Final = {
    "elapsed_ns": "time",
    "busy_pct": "busy",
    "exposed_comm_ns": "exposed",
    "gfx_mhz": "",
    "gfx_util_pct": "util",
    "power_w": "",
    "idle_ns": "idle",
    "kernels": "kernels",
}
"""Figure → what stands before it; some need nothing but their unit."""
_MEASURED: Final = ("gfx_mhz", "gfx_util_pct", "power_w")


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
        if self.seen.frame.view.analysis:
            return [[(" ", "text"), (line, "strong")] for line in self.told(width)]
        line: list[tuple[str, str]] = [(" ", "text")]
        for name in KEY_FIGURES:
            figure = self.seen.figures[name]
            if name in _MEASURED and figure.number is None:
                continue
            title = _NAMES[name]
            if name == "elapsed_ns" and "gpu" not in dict(self.seen.frame.view.scope):
                title = "GPU time"
            piece = [(f"{title} " if title else "", "dim"), (f"{self._text(figure)}  ", "strong")]
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

    def _text(self, figure: Figure) -> str:
        if figure.metric.unit == "%" and figure.number is not None:
            # Nearly all is not all: 99.8 isn't written as 100.
            decimals = int(99.5 <= figure.number < 99.95)
            return f"{'~' if figure.held else ''}{figure.number:.{decimals}f}%"
        return figure.text(self.glyphs, short=True)
