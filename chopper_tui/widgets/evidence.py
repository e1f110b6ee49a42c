"""The evidence of the finding under the cursor, where its cards leave lines below them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from textual.message import Message

from chopper_core.model import address
from chopper_core.model.charts import Cards
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.errors import ChopperError
from chopper_tui.draw import charts as drawing
from chopper_tui.draw.canvas import WHOLE
from chopper_tui.draw.pieces import Pieces
from chopper_tui.draw.table import plan
from chopper_tui.screen_data import Sparks, screen_data
from chopper_tui.widgets.chart_panes import DrawnPane

_MIN_ROWS: Final = 5
"""Rows of the table before its charts have the rest."""
_MIN_CHART: Final = 4
"""Lines below which a chart that wants more is left out."""


class EvidencePane(DrawnPane):
    """The charts and the first rows of the view that a finding leads to; a click opens it."""

    class Opened(Message):
        """It was clicked."""

    run: Run | None = None
    view: View | None = None

    def show(self, run: Run | None, view: View | None) -> None:
        """Show a view of a run; None: nothing."""
        if view is None:
            self.run, self.view, self.drawn = None, None, ()
            self.redraw()
        elif run is not self.run or view != self.view:
            self.run, self.view = run, view
            self.draw_soon()

    def on_click(self) -> None:
        """A click opens the view."""
        self.post_message(self.Opened())

    def drawing(
        self, width: int, height: int, check: Callable[[], None]
    ) -> Callable[[], Sequence[Pieces]] | None:
        """The view in a size."""
        if self.run is None or self.view is None:
            return None
        return partial(self._draw_view, self.run, self.view, width, height, check)

    def forget(self) -> None:
        """Whatever is shown next is another."""
        self.view = None

    def lines(self, width: int, height: int) -> Sequence[Pieces]:
        """The lines that were drawn last."""
        return self.drawn

    def _draw_view(
        self, run: Run, view: View, width: int, height: int, check: Callable[[], None]
    ) -> list[Pieces]:
        """A title, the charts and the table, as high as the screen of the view would have them."""
        glyphs = self.glyphs
        where = f"  {view.name or 'explore'}  {address.path_text(view)}".rstrip()
        title: Pieces = [("  ", "text"), ("evidence", "strong"), (where, "dim")]
        lines: list[Pieces] = [self.titled(title, width)]
        try:
            data = screen_data(run, view, is_complete=True)
        except ChopperError as error:
            return [*lines, [("  ", "text"), (str(error), "dim")]]
        check()
        frame = data.frame
        charts = [drawing.seen(each, WHOLE) for each in frame.charts if not isinstance(each, Cards)]
        room = height - 1 - min(len(frame) + 1, max(_MIN_ROWS + 1, (height - 1) // 2))
        if charts and room >= min(drawing.lines_below(charts[:1], width - 2, glyphs), _MIN_CHART):
            high = min(drawing.most_lines_below(charts, width - 2, glyphs), room)
            drawn = drawing.draw_below(charts, width - 2, high, glyphs, check=check)
            lines += [[(" ", "text"), *line] for line in drawn]
        signals = data.signals if data.has_signals else ()
        layout = plan(frame, width, glyphs, signals=[each.signal for each in signals])
        sparks = [
            Sparks(signal, glyphs, column.cells, len(frame))
            for signal, column in zip(signals, layout.sparks, strict=False)
        ]
        rows = range(min(len(frame), height - len(lines) - 1))
        for each in sparks:
            each.draw(rows)
        lines.append(layout.header([each.title for each in sparks]))
        lines += [
            layout.row(row, [each.drawn[row] for each in sparks], cursor=False) for row in rows
        ]
        return lines
