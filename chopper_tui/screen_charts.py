"""The charts on the explorer's screen: which are shown, how close, and the cursors in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from textual.screen import Screen

from chopper_core.model.charts import Chart, HeatMap, Icicle, Lanes
from chopper_core.model.run import Run
from chopper_core.model.run_set import RunSet
from chopper_core.model.view import View, with_signal
from chopper_core.query.frame import Frame
from chopper_core.util.errors import UsageError
from chopper_tui.draw.magnify import WHOLE, Lens, columns_seen, seen
from chopper_tui.draw.timeline import bins_of
from chopper_tui.screen_data import ScreenData
from chopper_tui.widgets.chart_panes import PicturePane, SignalPane
from chopper_tui.widgets.frame_table import FrameTable

_BINS_UNSEEN: Final = 100
"""Cells of the time axis while the timeline is hidden."""


class Charts(Screen[None]):
    """The charts of a view and of its signals; the parts of the screen say where they stand."""

    def __init__(self, run: Run, data: ScreenData) -> None:
        """Show the charts of a run's view."""
        super().__init__()
        self.run = run
        self.data = data
        self.picture = 0
        """Which of a view's charts is shown."""
        self.column = 0
        """The column of a heat map's cursor, of those that are seen."""
        self.block = (0, 0)
        """The level and the block of an icicle's cursor."""
        self.lens = WHOLE
        """How close the picture of a view is seen."""
        self._seen: tuple[Frame, Lens, Sequence[Chart]] = data.frame, WHOLE, data.frame.charts

    def fit_parts(self) -> None:
        """Give each part its room."""
        raise NotImplementedError

    @property
    def frame(self) -> Frame:
        """The frame on the screen."""
        return self.data.frame

    @property
    def view(self) -> View:
        """The view on the screen."""
        return self.frame.view

    @property
    def table(self) -> FrameTable:
        """The table."""
        return self.query_one(FrameTable)

    @property
    def lanes(self) -> Lanes | None:
        """The timeline, if the view is one."""
        charts = self.frame.charts
        return charts[0] if charts and isinstance(charts[0], Lanes) else None

    @property
    def time_cells(self) -> int:
        """The cells of the timeline's time axis."""
        pane = self.query(PicturePane).first()
        if self.lanes is None or not pane.display:
            return _BINS_UNSEEN
        return bins_of(self.lanes, pane.room)

    @property
    def shows_signal(self) -> bool:
        """Whether a chart of a signal is on the screen."""
        return any(chart.display for chart in self.query(SignalPane))

    def next_picture(self) -> None:
        """Show the next chart of the view."""
        if len(self.frame.charts) < 2:
            raise UsageError("this view has no other chart")
        self.picture = (self.picture + 1) % len(self.frame.charts)
        self.fit_parts()
        self.show_charts()

    def show_charts(self) -> None:
        """Show the charts of the view and its signals where they have room."""
        self._show_pictures()
        names = [signal.signal.name for signal in self.data.signals]
        for chart in self.query(SignalPane):
            if chart.display and not isinstance(self.run, RunSet):
                chart.show(self.run, with_signal(self.view, names[chart.number]))

    def _show_pictures(self) -> None:
        for pane in self.query(PicturePane):
            if pane.display:
                pane.show(self._pictures, *self._cell)

    @property
    def heat_map(self) -> HeatMap | None:
        """The heat map, if the view is one whose cells open something."""
        charts = self._charts_seen
        found = charts[0] if charts and isinstance(charts[0], HeatMap) else None
        return found if found is not None and found.opens is not None else None

    @property
    def icicle(self) -> Icicle | None:
        """The icicle, if the view is one."""
        charts = self.frame.charts
        return charts[0] if charts and isinstance(charts[0], Icicle) else None

    def move_to_block(self, depth: int, block: int) -> None:
        """Move the cursor of an icicle; the table's is on the row that holds the block."""
        icicle = self.icicle
        if icicle is None:
            return
        self.block = depth, block
        for row in reversed(icicle.rows[1 : depth + 1]):
            block = int(row.parents[block])
        labels = list(self.frame.labels)
        if icicle.rows[0].labels[block] in labels:
            self.table.move_to(labels.index(icicle.rows[0].labels[block]))
        self._show_pictures()

    def _follow_in_icicle(self, icicle: Icicle) -> None:
        """Put the icicle's cursor onto the row of the table's, unless it is in it."""
        depth, block = self.block
        for row in reversed(icicle.rows[1 : depth + 1]):
            block = int(row.parents[block])
        if self.table.label is not None and icicle.rows[0].labels[block] != self.table.label:
            self.block = 0, icicle.rows[0].labels.index(self.table.label)

    @property
    def _cell(self) -> tuple[int, int | None]:
        """The cursor in the picture: the table's row, and the column of a heat map."""
        if self.icicle is not None:
            return self.block
        heat, label = self.heat_map, self.table.label
        if heat is None or label is None:
            return self.table.cursor, None
        row = heat.labels.index(label) if label in heat.labels else -1
        return row, min(self.column, len(heat.columns) - 1)

    @property
    def _pictures(self) -> Sequence[Chart]:
        """The charts of the view, from the chosen one on, as close as they are seen."""
        charts = self._charts_seen
        first = min(self.picture, max(len(charts) - 1, 0))
        return (*charts[first:], *charts[:first])

    @property
    def _charts_seen(self) -> Sequence[Chart]:
        """The charts of the view; the same objects as long as nothing changes."""
        frame, lens, _ = self._seen
        if (frame, lens) != (self.frame, self.lens):
            charts = tuple(seen(chart, self.lens) for chart in self.frame.charts)
            self._seen = self.frame, self.lens, charts
        return self._seen[2]

    def look(self, lens: Lens) -> None:
        """See the picture of the view through a lens; a heat map's cursor stays on its column."""
        charts = self.frame.charts
        if charts and isinstance(charts[0], HeatMap):
            column = columns_seen(charts[0], self.lens)[0] + self.column
            first, end = columns_seen(charts[0], lens)
            self.column = min(max(column, first), end - 1) - first
        self.lens = lens
        self.show_charts()
