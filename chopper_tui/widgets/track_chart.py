"""The chart of a signal over the scope."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from textual import work

from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.model.window import ALL_TIME
from chopper_core.query.signal_chart import SignalChart, signal_chart
from chopper_core.util.progress import Cancelled
from chopper_tui.background import away
from chopper_tui.draw import signal_plot as plot
from chopper_tui.widgets.pane import Pane, Pieces, fit

_KEPT: Final = 8
"""Signals that were drawn last."""


class SignalPane(Pane):
    """A headline and a plot; it draws itself off the event loop."""

    run: Run | None = None
    view: View | None = None
    drawn: Sequence[Pieces] = ()

    def __init__(self, number: int = 0, *, time_axis: bool = True) -> None:
        """Make a chart of the chosen signal (0) or of the one beside it (1)."""
        super().__init__()
        self.number = number
        self.time_axis = time_axis
        self._kept: OrderedDict[tuple[View, int], tuple[Run, SignalChart]] = OrderedDict()

    def show(self, run: Run, view: View) -> None:
        """Show the signal of a view over its scope, or over its window in the tree."""
        window = ALL_TIME if view.name else view.window
        scope = View(view.run, view.path, view.order, signal=view.signal, window=window)
        if run is not self.run or scope != self.view:
            self.run, self.view = run, scope
            self.draw_soon()

    def on_resize(self) -> None:
        """Draw for the new size."""
        self.draw_soon()

    def draw_soon(self) -> None:
        """Draw in a thread; the old chart stays until the new one is there."""
        if self.view is not None and self.size.width > 8 and self.size.height > 1:
            self._draw()

    @work(exclusive=True, group="chart")
    async def _draw(self) -> None:
        run, view = self.run, self.view
        if run is None or view is None:
            return
        try:
            self.drawn = await away(self._plot, run, view, *self.size)
        except Cancelled:
            if self.view is view:
                # It was hidden: it is drawn when it is shown again.
                self.view = None
            return
        self.redraw()

    def _plot(self, run: Run, view: View, width: int, height: int) -> list[Pieces]:
        room = width - 2
        bins = plot.bins_for(run.signal(view.signal), room, self.glyphs)
        seen = self._seen(run, view, bins)
        lines = plot.draw(seen, room, height - 1, self.glyphs, time_axis=self.time_axis)
        title = fit(plot.headline(seen, room, self.glyphs), room, self.glyphs)
        return [[(" ", "text"), (title, "dim")], *([(" ", "text"), *line] for line in lines)]

    def _seen(self, run: Run, view: View, bins: int) -> SignalChart:
        """The signal; of very many GPUs it takes long, so the last ones are kept."""
        found = self._kept.pop((view, bins), None)
        if found is None or found[0] is not run:
            found = run, signal_chart(run, view, bins, lambda: self.view is view and self.display)
        self._kept[view, bins] = found
        while len(self._kept) > _KEPT:
            with suppress(KeyError):  # Two sizes may be drawn at once.
                self._kept.popitem(last=False)
        return found[1]

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        """The lines that were drawn last."""
        return self.drawn
