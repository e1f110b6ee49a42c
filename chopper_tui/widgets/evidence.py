"""The evidence of the finding under the cursor, where its cards leave lines below them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from chopper_core.model import address
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.errors import ChopperError
from chopper_tui.draw.pieces import Pieces
from chopper_tui.draw.table import plan
from chopper_tui.widgets.chart_panes import DrawnPane


class EvidencePane(DrawnPane):
    """The first rows of the view that a finding leads to; a click opens it, with its charts.

    Each move to another finding sends another pane: a chart as wide as the screen is 8 KB.
    """

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
        self.explorer.action_perform("enter")

    def drawing(
        self, width: int, height: int, check: Callable[[], None]
    ) -> Callable[[], Sequence[Pieces]] | None:
        if self.run is None or self.view is None:
            return None
        return partial(self._draw_view, self.run, self.view, width, height, check)

    def forget(self) -> None:
        self.view = None

    def lines(self, width: int, height: int) -> Sequence[Pieces]:
        return self.drawn

    def _draw_view(
        self, run: Run, view: View, width: int, height: int, check: Callable[[], None]
    ) -> list[Pieces]:
        from chopper_core.views.query import query

        glyphs = self.glyphs
        where = f"  {view.name or 'explore'}  {address.path_text(view)}".rstrip()
        title: Pieces = [("  ", "text"), ("evidence", "strong"), (where, "dim")]
        lines: list[Pieces] = [self.titled(title, width)]
        try:
            frame = query(run, view)
        except ChopperError as error:
            return [*lines, [("  ", "text"), (str(error), "dim")]]
        check()
        layout = plan(frame, width, glyphs)
        rows = range(min(len(frame), height - 2))
        return [*lines, layout.header([]), *(layout.row(row, [], cursor=False) for row in rows)]
