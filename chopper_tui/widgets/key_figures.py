"""The second line: the key figures of the scope."""

from __future__ import annotations

from collections.abc import Iterable

from chopper_core.metrics import METRICS
from chopper_tui.looks import Look, figure
from chopper_tui.widgets.pane import Pane, Pieces, width_of

_NAMES = {
    "elapsed_ns": "time",
    "busy_pct": "busy",
    "exposed_comm_ns": "exposed",
    "idle_ns": "idle",
    "kernels": "kernels",
}


class KeyFigures(Pane):
    """What the scope adds up to."""

    seen: Look | None = None

    def show(self, seen: Look) -> None:
        """Show the figures of a look."""
        self.seen = seen
        self.redraw()

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        """As many figures as fit, the most telling first."""
        if self.seen is None:
            return []
        line: list[tuple[str, str]] = [(" ", "text")]
        for name, title in _NAMES.items():
            text = figure(METRICS[name], self.seen.figures.get(name), self.glyphs)
            if name == "busy_pct" and text[-1] == "%":
                text = f"{self.seen.figures[name]:.1f} %"
            if name == "elapsed_ns" and "gpu" not in dict(self.seen.frame.view.scope):
                title = "GPU time"
            piece = [(f"{title} ", "dim"), (f"{text}  ", "strong")]
            if width_of(line) + width_of(piece) - 2 > width:
                break
            line += piece
        return [line]
