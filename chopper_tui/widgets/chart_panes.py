"""Charts of a signal and of a view, sentences as cards, and the evidence of a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from msgspec.structs import replace
from textual import events, work

from chopper_core.columns import metric_named
from chopper_core.model.charts import Chart, Composition, StepBars
from chopper_core.model.run import Run
from chopper_core.model.view import ALL_TIME, View
from chopper_core.util.errors import ChopperError
from chopper_core.util.escape import clean
from chopper_core.util.progress import Cancelled
from chopper_core.views.shared.signal_charts import SignalChart, kept_signal_chart
from chopper_tui.draw import charts as drawing
from chopper_tui.draw import signal_plot as plot
from chopper_tui.draw.canvas import UNLIMITED, wanted
from chopper_tui.draw.pieces import Pieces, joined_rows, marked
from chopper_tui.draw.table import plan
from chopper_tui.keymap import LIVE
from chopper_tui.screen_data import ScreenSignal, Sparks, run_shown
from chopper_tui.steps import run_in_thread
from chopper_tui.widgets.frame_table import table_title
from chopper_tui.widgets.pane import Dragging, Listing, Pane, PaneColumn

_BETWEEN: Final = 3
"""Cells between rows that are side by side."""
_LEAST_CELLS: Final = 64
"""Cells of a row with a name and three figures."""
_MIN_SIZE: Final = 8, 1
"""Cells and lines up to which nothing is drawn."""


Check = Callable[[], None]


class DrawnPane(Pane):
    """A pane that draws off the event loop; the old picture stays until the new one is there.

    One draw is under way at most: asked for another, it stops at its next piece.
    """

    content: tuple[Any, ...] = ()
    """What is drawn; empty: nothing, or what was hidden before it was drawn."""
    drawn: Sequence[Pieces] = ()
    _asked = 0
    _is_drawing = False

    def drawing(self, width: int, height: int, check: Check, *content: Any) -> Sequence[Pieces]:
        """Draw the content, in a thread; `check` raises Cancelled once nobody wants it."""
        raise NotImplementedError

    def draw(self, *content: Any) -> None:
        if content != self.content:
            self.content = content
            self.draw_soon()

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        return self.drawn

    def on_resize(self) -> None:
        self.draw_soon()

    def draw_soon(self) -> None:
        """Draw in a thread, after the piece that is being drawn."""
        self._asked += 1
        if not self._is_drawing:
            self._is_drawing = True
            self._draw()

    @work(group="drawing")
    async def _draw(self) -> None:
        done = 0
        try:
            while done != self._asked:
                done = self._asked
                await self._draw_once(done)
        finally:
            self._is_drawing = False

    async def _draw_once(self, number: int) -> None:
        def check() -> None:
            if self._asked != number or not (self.is_attached and self.display):
                raise Cancelled

        width, height = self.size
        if not self.content or width <= _MIN_SIZE[0] or height <= _MIN_SIZE[1]:
            return
        try:
            drawn = await run_in_thread(self.drawing, width, height, check, *self.content)
        except Cancelled:
            if self._asked == number:
                self.content = ()
            return
        if self._asked == number:
            self.drawn = drawn
            self.redraw()


class SignalPane(DrawnPane, Dragging):
    """A headline and a plot."""

    _shown: SignalChart | None = None
    _title: Pieces = ()
    _measured: tuple[int, int] | None = None

    time_axis = True

    def __init__(self, number: int = 0) -> None:
        super().__init__(classes="-second" if number else "")
        self.number = number

    @property
    def is_shown(self) -> bool:
        """Whether it and the parts that it is in are displayed."""
        return all(part.display for part in self.ancestors_with_self)

    def show(self, run: Run, view: View) -> None:
        window = ALL_TIME if view.name else view.window
        if view.name == LIVE:
            from chopper_core.views.live import newest_window

            window = newest_window(run)
        scope = View(view.run, view.path, view.order, signal=view.signal, window=window)
        content = run, scope, view.name == LIVE
        if content != self.content:
            self._measured = None
        self.draw(*content)

    def dragged(self, begin: int, end: int) -> None:
        if self._shown is None:
            return
        left = 1 + plot.axis_width(self._shown.signal)
        cells = max(self.size.width - 1 - left, 1)
        first, last = (min(max(x, left), left + cells - 1) for x in sorted((begin, end)))
        self._measured = first, last + 1
        self.redraw()
        shares = ((first - left) / cells, (last + 1 - left) / cells)
        self.explorer.say(plot.measured(self._shown, *shares))

    def on_click(self) -> None:
        """A click alone takes the mark of a drag away."""
        if self._measured is not None and not self.was_dragged:
            self._measured = None
            self.redraw()

    def drawing(
        self, width: int, height: int, check: Check, run: Run, view: View, is_newest: bool
    ) -> Sequence[Pieces]:
        """Draw the signal of a view; that of the newest traces over the time since they began."""
        room = width - 2
        bins = plot.bins_for(run.signal(view.signal), room)
        seen = kept_signal_chart(run, view, bins, check)
        if is_newest:
            length_ns = seen.end_ns - seen.start_ns
            seen = replace(seen, start_ns=0, end_ns=length_ns, scope_ns=(0, length_ns))
        self._shown = seen
        axis = self.time_axis
        rows = height - (not self.is_panel)
        lines = plot.draw_signals(seen, room, rows, self.glyphs, time_axis=axis, check=check)
        self._title = [(" ", "text"), (plot.plot_headline(seen, room, self.glyphs), "dim")]
        return [[(" ", "text"), *line] for line in lines]

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        drawn = self.drawn
        if self._measured is not None:
            drawn = [marked(line, *self._measured) for line in drawn]
        return self.headed(self._title, drawn)


class Curves(PaneColumn):
    """Charts of two signals."""


class PicturePane(DrawnPane, Dragging, Listing):
    """The charts of a view; of a bar whose parts lead on, the cursor is on one of these."""

    _taken = 0
    """Lines at their top that the border has."""
    _fits: tuple[int, int] | None = None
    """The size that a quick drawing was made for."""
    _shown: tuple[Sequence[Chart], int, int | None] = (), 0, None

    @property
    def pictures(self) -> Sequence[Chart]:
        return self.content[2:]

    def show(self, pictures: Sequence[Chart], selected: int = 0, column: int | None = None) -> None:
        """Show the first of some pictures, and below it those that there is room for."""
        before, self._shown = self.bar, (pictures, selected, column)
        if not (pictures and drawing.drawer_of(pictures[0]).follows_cursor):
            selected = 0
        if (bar := self.bar) is not None:
            self.cursor = self._kept(before, bar)
            if self.has_keys:
                drawer = drawing.drawer_of(pictures[0])
                selected, column = drawer.part_cell(bar.listed[self.cursor], selected)
        self.draw(selected, column, *pictures)

    def _kept(self, before: Composition | StepBars | None, bar: Composition | StepBars) -> int:
        """The cursor on a bar that may be another one: on the same step, or on the newest."""
        last = len(bar.listed) - 1
        if not isinstance(bar, StepBars):
            return min(self.cursor, last)
        if not isinstance(before, StepBars) or self.cursor >= len(before.steps) - 1:
            return last
        return min(int(np.searchsorted(bar.steps, before.steps[self.cursor])), last)

    @property
    def _is_quick(self) -> bool:
        return bool(self.pictures) and drawing.drawer_of(self.pictures[0]).is_quick

    def draw_soon(self) -> None:
        """Draw a quick picture at once: it is painted together with the lines around it."""
        if self._is_quick:
            self._asked += 1
            self._fits = None
            self.redraw()
        else:
            super().draw_soon()

    def forget(self) -> None:
        """Leave out the picture of another place, until that of the new one is drawn."""
        self.content, self.drawn, self._fits = (), (), None
        self.redraw()

    def show_cursor(self) -> None:
        self.show(*self._shown)
        bar = self.bar
        if not self.has_keys or bar is None:
            return
        if isinstance(bar, StepBars):
            self.explorer.say(bar.described(bar.listed[self.cursor]))
        elif self.part is not None:
            definition = metric_named(self.part.sort[1:]).definition
            self.explorer.say(f"{self.part_name}: {definition}")

    @property
    def bar(self) -> Composition | StepBars | None:
        first = next(iter(self._shown[0]), None)
        return None if first is None else drawing.drawer_of(first).bar(first)

    @property
    def part(self) -> View | None:
        """What the part under the cursor leads to; raises UsageError where it leads nowhere."""
        bar = self.bar
        if bar is None or bar.opens is None:
            return None
        return bar.opens(bar.listed[self.cursor])

    @property
    def part_name(self) -> str:
        bar = self.bar
        return bar.series[bar.listed[self.cursor]].name if isinstance(bar, Composition) else ""

    @property
    def rows(self) -> int:
        return len(self.bar.listed) if self.bar is not None else 0

    def move_to(self, row: int) -> None:
        self.cursor = max(min(row, self.rows - 1), 0)
        self.show_cursor()

    def _time_cell(self, x: int) -> int | None:
        if not self.pictures:
            return None
        return drawing.drawer_of(self.pictures[0]).time_cell(self.pictures[0], x - 1)

    def dragged(self, begin: int, end: int) -> None:
        first, last = self._time_cell(begin), self._time_cell(end)
        if first is not None and last is not None:
            self.explorer.measure_cells(first, last)

    @property
    def room(self) -> int:
        return self.size.width - 2

    def is_above(self, lane: str) -> bool:
        """Whether a lane is drawn above the one with the cursor."""
        for line in self.drawn:
            text = "".join(text for text, _ in line).lstrip()
            if text.startswith(self.glyphs.cursor):
                return False
            if text.startswith(f"{clean(lane)} "):
                return True
        return False

    def on_click(self, event: events.Click) -> None:
        """Put the cursor there; a button that is released elsewhere clicked nothing."""
        x, y = event.x - self.gutter.left, event.y - self.gutter.top
        if self.was_dragged or not 0 <= y < self.size.height:
            return
        time_cell = self._time_cell(x)
        if time_cell is not None:
            pieces = self.drawn[y] if y < len(self.drawn) else []
            line = "".join(text for text, _ in pieces)
            self.explorer.point_at_lane(line[2 : x - time_cell - 1].strip(), time_cell)
        elif cell := drawing.cell_at(
            self.pictures,
            self.room,
            self.size.height + self._taken,
            self.glyphs,
            x - 1,
            y + self._taken,
        ):
            bar, place = self.bar, drawing.drawer_of(self.pictures[0]).part_at(cell)
            if bar is None or place is None:
                self.explorer.point_at_cell(cell)
            elif place in bar.listed:
                self._point_at_part(bar, place)

    def _point_at_part(self, bar: Composition | StepBars, place: int) -> None:
        """Put the cursor on a part, and open it: of steps, which are many, the cursor's own."""
        is_again = self.has_keys and bar.listed.index(place) == self.cursor
        self.cursor = bar.listed.index(place)
        self.explorer.give_keys(self)
        self.show_cursor()
        if is_again or isinstance(bar, Composition):
            self.explorer.action_perform("enter")

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._turn(event, "zoom_in")

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._turn(event, "zoom_out")

    def _turn(self, event: events.MouseEvent, action_id: str) -> None:
        event.prevent_default()  # as a listing it would move along the bar
        cell = self._time_cell(event.x - self.gutter.left)
        if cell is not None:
            event.stop()
            self.explorer.perform_at(action_id, cell)

    def drawing(
        self, width: int, height: int, check: Check, row: int, column: int | None, *pictures: Chart
    ) -> Sequence[Pieces]:
        title = drawing.drawer_of(pictures[0]).title(pictures[0], width - 2, self.glyphs)
        is_alone = bool(title) and len(_title_of(title[0])) == len(title[0])
        self._taken = int(self.is_panel and is_alone)
        drawn = drawing.draw_below(
            pictures, width - 2, height + self._taken, self.glyphs, row, column, check
        )
        return [[(" ", "text"), *line] for line in drawn]

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        """The lines drawn last; quick drawings are there at the first paint, and of each size.

        The title is in the border: what is left of its line is the legend.
        """
        if self._is_quick and self._fits != (width, height):
            self._fits = width, height
            self.drawn = self.drawing(width, height, wanted, *self.content)
        if not self.is_panel:
            return self.drawn
        if not self.drawn:
            self.name_panel([(self.explorer.view.name, "strong")])
            return ()
        (margin, *first), *body = self.drawn
        title = _title_of(first)
        self.name_panel(title or [(self.explorer.view.name, "strong")])
        return body if self._taken else [[margin, *first[len(title) :]], *body]


def _title_of(line: Pieces) -> Pieces:
    """The title and the unit that a line begins with; empty if it doesn't."""
    (name, *rest) = line or [("", "")]
    if name[1] != "strong":
        return []
    return [name, *(piece for piece in rest[:1] if piece[1] == "dim" and piece[0][:1] in ("", ","))]


class RowsPane(DrawnPane):
    """The first rows of another view; a click opens it, with its charts.

    Each move to another row sends other lines: a chart as wide as the screen is 8 KB.
    """

    _title: Pieces = ()
    most_cells = UNLIMITED
    """Of all rows: of many there are fewer columns."""

    def show(self, view: View | None, title: str = "", here: str | None = None) -> None:
        """Show the rows of a view under a title, with a mark on the one of the cursor's GPU.

        Without a view the title says why there are none.
        """
        if view is None:
            self.content, self.drawn = (), ()
            self._title = [("  ", "text"), (title, "dim")]
            self.redraw()
        else:
            if not self.drawn:
                self._title = [("  ", "text"), (title, "strong"), ("  computing…", "dim")]
                self.redraw()
            self.draw(self.explorer.home, view, title, here)

    def on_click(self) -> None:
        if self.content:
            view: View = self.content[1]
            self.explorer.steps.add(partial(self.explorer.open_evidence, view))

    def drawing(
        self,
        width: int,
        height: int,
        check: Check,
        home: Run,
        view: View,
        title: str,
        here: str | None,
    ) -> Sequence[Pieces]:
        from chopper_core.views.query import query

        lines = height - (not self.is_panel)
        try:
            run = run_shown(home, view)
            if here is not None and len(run.gpus) >= lines:
                view = replace(view, sort="-elapsed_ns")
            frame = query(run, view)
        except ChopperError as error:
            self._title = [("  ", "text"), (title, "strong")]
            return [[("  ", "text"), (str(error), "dim")]]
        check()
        about = "" if here is not None else f"  {table_title(frame)}"
        self._title = [("  ", "text"), (title, "strong"), (about, "dim")]
        signal = ScreenSignal(frame.signal, frame.means)
        signals = [frame.signal] if here is not None else []
        room = min(width - self.is_panel, max(self.most_cells // lines, _LEAST_CELLS))
        layout = plan(frame, room, self.glyphs, signals=signals)
        # Rows that have no room below each other go side by side, where their columns are few.
        beside = 1
        if len(frame) >= lines > 1 and not layout.sparks:
            most = max((width - self.is_panel + _BETWEEN) // (layout.used + _BETWEEN), 1)
            beside = min(most, -(-len(frame) // (lines - 1)))
        fits = len(frame) <= beside * (lines - 1)
        # Columns of one height, of which the last may be shorter.
        high = -(-len(frame) // beside) if fits else lines - 2
        rows = range(min(len(frame), beside * high))
        sparks = [Sparks(self.glyphs, each.cells, signal=signal, rows=len(frame))
                  for each in layout.sparks]  # fmt: skip
        for each in sparks:
            each.draw(rows)
        header = layout.header([each.title for each in sparks])
        drawn: list[Pieces] = [[(text, ink.partition("@")[0]) for text, ink in header]]
        for row in rows:
            own = [each.drawn.get(row, ()) for each in sparks]
            is_here = frame.labels[row] == here
            pieces = layout.row(row, own, cursor=False)
            if is_here:
                (first, ink), *others = pieces
                pieces = [(f"{self.glyphs.cursor}{first[1:]}", ink), *others]
            drawn.append(pieces)
        if beside > 1:
            head, *own = drawn
            every = [[head] * beside, *(own[line::high] for line in range(high))]
            drawn = [joined_rows(each, layout.used, _BETWEEN) for each in every]
        rest = len(frame) - len(rows)
        return [*drawn, *([[(f"  {rest} more", "dim")]] if rest else [])]

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        return self.headed(self._title, self.drawn)


class EvidencePane(RowsPane):
    """What the row under the cursor leads to."""

    most_cells = 900


class GpuPane(RowsPane):
    """The row under the cursor, on every GPU."""


class SecondPane(RowsPane):
    """Another table of the scope."""
