"""The charts on the explorer's screen: which are shown, how close, and the cursors in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.charts import Chart, Lanes
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.views.frame import Frame
from chopper_core.views.spec import SeveralRuns
from chopper_tui.draw.canvas import WHOLE, Cell, Lens
from chopper_tui.draw.charts import drawer_of, seen
from chopper_tui.draw.timeline import bins_of
from chopper_tui.screen_data import ScreenData
from chopper_tui.textual_internals import SteadyScreen
from chopper_tui.widgets.chart_panes import PicturePane, SignalPane
from chopper_tui.widgets.frame_table import FrameTable

_BINS_UNSEEN: Final = 100
C = TypeVar("C", bound=Struct)


class Charts(SteadyScreen[None]):
    """The charts of a view and of its signals; the parts of the screen say where they stand."""

    def __init__(self, run: Run, data: ScreenData) -> None:
        super().__init__()
        self.run = run
        self.data = data
        self.picture = 0
        self.cell: Cell = (0, 0)
        """The cursor in the view's picture, as the picture's drawer reads it."""
        self.lens = WHOLE
        self._seen: tuple[Frame, Lens, Sequence[Chart]] | None = None

    @property
    def frame(self) -> Frame:
        return self.data.frame

    @property
    def view(self) -> View:
        return self.frame.view

    @property
    def table(self) -> FrameTable:
        return self.query_one(FrameTable)

    @property
    def lanes(self) -> Lanes | None:
        return self.first_chart(Lanes)

    @property
    def time_cells(self) -> int:
        pane = self.query(PicturePane).first()
        if self.lanes is None or not pane.display:
            return _BINS_UNSEEN
        return bins_of(self.lanes, pane.room)

    @property
    def signal_panes(self) -> list[SignalPane]:
        return [pane for pane in self.query(SignalPane) if pane.is_shown]

    def show_charts(self) -> None:
        self._show_pictures()
        names = [signal.signal.name for signal in self.data.signals]
        for pane in () if isinstance(self.run, SeveralRuns) else self.signal_panes:
            pane.show(self.run, replace(self.view, signal=names[pane.number]))

    def _show_pictures(self) -> None:
        for pane in self.query(PicturePane):
            if pane.display:
                pane.show(self._pictures, *self.cell_shown)

    def first_chart(self, kind: type[C]) -> C | None:
        return next((each for each in self._charts_seen[:1] if isinstance(each, kind)), None)

    def move_to_cell(self, cell: Cell) -> None:
        """Move the cursor of the picture; the table's is on the row that the cell belongs to."""
        for chart in self._charts_seen[:1]:
            self.cell = cell
            self.table.move_to_label(drawer_of(chart).label_of(chart, cell))
            self._show_pictures()

    def _follow_in_picture(self) -> None:
        if chart := next(iter(self._charts_seen), None):
            self.cell = drawer_of(chart).followed(chart, self.cell, self.table.label)

    @property
    def cell_shown(self) -> tuple[int, int | None]:
        for chart in self._charts_seen[:1]:
            return drawer_of(chart).cursor(chart, self.cell, self.table.cursor, self.table.label)
        return self.table.cursor, None

    @property
    def _pictures(self) -> Sequence[Chart]:
        """The charts of the view, from the chosen one on, as close as they are seen."""
        charts = self._charts_seen
        first = min(self.picture, max(len(charts) - 1, 0))
        return (*charts[first:], *charts[:first])

    @property
    def _charts_seen(self) -> Sequence[Chart]:
        """The charts of the view; the same objects as long as nothing changes."""
        if self._seen is None or self._seen[:2] != (self.frame, self.lens):
            charts = tuple(seen(chart, self.lens) for chart in self.frame.charts)
            self._seen = self.frame, self.lens, charts
        return self._seen[2]

    def look(self, lens: Lens) -> None:
        """Show the view's chart through a lens; its cursor stays on its item."""
        if chart := next(iter(self.frame.charts), None):
            self.cell = drawer_of(chart).cell_through(chart, self.cell, self.lens, lens)
        self.lens = lens
        self.show_charts()
        self.show_lanes()

    def show_lanes(self) -> None:
        lanes = (each for each in self._charts_seen[1:] if isinstance(each, Lanes))
        self.table.show_lanes(next(lanes, None))
