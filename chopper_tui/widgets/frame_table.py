"""The table: the rows of a frame, drawn line by line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

from textual import events, work
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from chopper_core.columns import Metric
from chopper_core.model.charts import BarChart, Lanes, lanes_of_rows
from chopper_core.model.phrases import level_title
from chopper_core.render.cells import SENTENCES, ColumnText, crumb
from chopper_core.util.errors import UsageError
from chopper_core.util.escape import clean
from chopper_core.views.frame import Frame
from chopper_tui.draw.table import TableLayout, plan
from chopper_tui.screen_data import LaneLines, ScreenData, ScreenSignal, Sparks
from chopper_tui.steps import run_in_thread
from chopper_tui.widgets.pane import Listing, strip_of

_AROUND_TITLE: Final = 4
_TURNED: Final = 8
"""Columns that come into sight at once."""


class FrameTable(ScrollView, Listing, can_focus=False):
    """A header, and the rows from the scroll position on; it holds the cursor."""

    class Moved(Message):
        """The cursor moved to another row."""

        def __init__(self, row: int) -> None:
            super().__init__()
            self.row = row

        def can_replace(self, message: Message) -> bool:
            """Only the last of several moves counts."""
            return isinstance(message, FrameTable.Moved)

    layout_plan: TableLayout | None = None
    data: ScreenData | None = None
    bars: Mapping[str, BarChart] = {}
    has_parts_above = False
    """Whether a picture above it shows the parts of its bars."""
    full: Mapping[str, float] = {}
    inks_of_rows: Sequence[str] = ()
    sparks: Sequence[Sparks | LaneLines] = ()
    has_chart = False
    spark_columns = 1
    """How many of the signals may have a column of sparklines."""
    _has_unpainted = False
    """Whether sparklines may be drawn that are not on the screen."""
    full_names = False
    marked: frozenset[str] = frozenset()
    first_column = 0
    """The first column next to the name: those before it are scrolled out."""
    added = ""
    """The column that was added last, which is always visible."""
    _planned_width = 0
    _headings: Mapping[str, ColumnText] = {}
    """The headings of the last table with rows: one that is filtered to none keeps their units."""
    _pointed = ""
    """The column whose heading is under the pointer."""
    _lanes: Lanes | None = None
    _offset_to_be: int | None = None
    """The cursor's offset of a frame that came before the first layout."""

    @property
    def frame(self) -> Frame | None:
        return self.layout_plan.frame if self.layout_plan else None

    @property
    def rows(self) -> int:
        return len(self.frame) if self.frame is not None else 0

    @property
    def heading_lines(self) -> int:
        return self.layout_plan.heading_lines if self.layout_plan else 1

    @property
    def page(self) -> int:
        return max(self.size.height - self.heading_lines, 1)

    @property
    def label(self) -> str | None:
        return self.frame.labels[self.cursor] if self.frame is not None and self.rows else None

    @property
    def offset_of_cursor(self) -> int:
        return self.cursor - self.scroll_offset.y

    def show(self, data: ScreenData, row: int, offset: int = 0) -> None:
        """Show a frame with the cursor on a row, `offset` rows below the first one."""
        frame = data.frame
        self.data = data
        self.bars, self.inks_of_rows = data.bars, data.inks
        self.full = data.full
        if self.frame is None or _columns_of(self.frame) != _columns_of(frame):
            self.first_column = 0
        self.cursor = max(min(row, len(frame) - 1), 0)
        self._lanes = lanes_of_rows(frame.charts)
        self._lay_out(frame)
        if not self.size.height:
            self._offset_to_be = offset
            return
        self._scroll_to_row(self.cursor - offset)
        self.refresh()
        self._fill_sparks()

    def show_lanes(self, lanes: Lanes | None) -> None:
        if lanes is not None and self._lanes is not None and lanes.seen != self._lanes.seen:
            self._lanes = lanes
            self._draw_again()

    def mark(self, labels: frozenset[str]) -> None:
        changed, self.marked = self.marked ^ labels, labels
        if self.frame is not None and changed:
            top = self.scroll_offset.y
            on_screen = range(top, min(top + self.page, self.rows))
            rows = [row for row in on_screen if self.frame.labels[row] in changed]
            self._refresh_rows(*rows)

    def move_to(self, row: int) -> None:
        row = max(min(row, self.rows - 1), 0)
        if row == self.cursor:
            return
        # After a sort the cursor may be out of sight.
        old, offset = self.cursor, max(min(self.offset_of_cursor, self.page - 1), 0)
        self.cursor = row
        if 0 <= self.offset_of_cursor < self.page:
            self._refresh_rows(old, row)
        else:
            # Half a page at once: to repaint the table for each row is slow over a slow line.
            step = abs(row - old)
            self._scroll_to_row(row - (self.page // 2 if step == 1 else offset))
            self.refresh()
            self._fill_sparks()
        self.post_message(self.Moved(row))

    def show_first(self) -> None:
        """Show the first row, or where the cursor's isn't on its page the cursor's."""
        top = self.cursor - self.page // 2 if self.cursor >= self.page else 0
        if self.scroll_offset.y != top:
            self._scroll_to_row(top)
            self.refresh()
            self._fill_sparks()

    def move_to_label(self, label: str | None) -> None:
        if self.frame is not None and label is not None and label in self.frame.labels:
            self.move_to(list(self.frame.labels).index(label))

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if self.frame is not None and width != self._planned_width:
            # The first paint comes before the resize that lays out: it must be whole.
            self._lay_out(self.frame)
        plan_, row = self.layout_plan, self.scroll_offset.y + y - self.heading_lines
        if plan_ is None or row >= self.rows:
            return Strip.blank(width, self.inks.of("text"))
        if y < self.heading_lines - 1:
            return strip_of(plan_.upper_header(), width, self.inks)
        if y == self.heading_lines - 1:
            titles = [sparks.title for sparks in self.sparks]
            return strip_of(plan_.header(titles), width, self.inks)
        drawn = [sparks.drawn.get(row, ()) for sparks in self.sparks]
        cursor = row == self.cursor and self.has_keys
        marked = bool(self.marked) and plan_.frame.labels[row] in self.marked
        pieces = plan_.row(row, drawn, cursor, marked)
        rest = "cursor" if cursor and not (self._lanes and self.sparks) else "text"
        return strip_of(pieces, width, self.inks, rest)

    def on_resize(self) -> None:
        if self.frame is not None:
            is_painted = self._planned_width == self.size.width
            self._lay_out(self.frame)
            before = self.scroll_offset.y
            top = min(before, self.cursor)
            if self._offset_to_be is not None:
                top = self.cursor - self._offset_to_be
                self._offset_to_be = None
            self._scroll_to_row(max(top, self.cursor - self.page + 1))
            if not is_painted or self.scroll_offset.y != before:
                self.refresh()
            self._fill_sparks()

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor; on the cursor's row it opens it."""
        y = event.y - self.gutter.top
        row = self.scroll_offset.y + y - self.heading_lines
        is_row = y >= self.heading_lines
        if is_row and row == self.cursor and self.rows:
            self.explorer.action_perform("enter")
        elif is_row and row < self.rows:
            self.move_to(row)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Explain the heading under the pointer."""
        y = event.y - self.gutter.top
        is_heading = 0 <= y < self.heading_lines and self.layout_plan is not None
        x = event.x - self.gutter.left
        self._point_at(self.layout_plan.column_at(x) if self.layout_plan and is_heading else None)

    def on_leave(self) -> None:
        self._point_at(None)

    def _point_at(self, column: Metric | None) -> None:
        name = "" if column is None else column.name
        if name != self._pointed:
            self._pointed = name
            self.explorer.explain_column(column)

    def turn_columns(self, way: int) -> None:
        """Show the columns after those on the screen, or those before."""
        plan_ = self.layout_plan
        if plan_ is None or self.frame is None:
            return
        if way > 0 and (not plan_.after or self._lanes is not None):
            raise UsageError("these are the last columns; i shows all figures of a row, C chooses")
        if way < 0 and not self.first_column:
            raise UsageError("these are the first columns")
        turned = max(min(len(plan_.columns), _TURNED), 1)
        self.first_column = max(self.first_column + way * turned, 0)
        self._draw_again()

    def show_cursor(self) -> None:
        self._refresh_rows(self.cursor)

    def _lay_out(self, frame: Frame) -> None:
        width, glyphs, lanes = self.size.width, self.glyphs, self._lanes
        # Parts need a legend, which is in a panel's border; elsewhere their chart has it.
        has_parts = self.is_panel and not self.has_parts_above
        bars = {
            name: each for name, each in self.bars.items() if has_parts or len(each.series) == 1
        }
        wanted: list[Sparks | LaneLines]
        if lanes is not None:
            layout = plan(frame, width, glyphs, lanes=True, added=self.added, is_place=True)
            lines = [
                LaneLines(glyphs, column.cells, lanes=lanes, has_border=self.is_panel)
                for column in layout.sparks
            ]
            for each in lines:
                each.take_over(next(iter(self.sparks), None))
            wanted = [*lines]
        else:
            shown: Sequence[ScreenSignal] = ()
            if self.data is not None and self.spark_columns:
                count = min(self.data.columns_of_signals, self.spark_columns)
                shown = self.data.signals[:count]
            if self.has_chart:
                # Where there is room for one, it is that which no chart shows.
                shown = shown[::-1]
            signals = [each.signal for each in shown]
            # The last figure doesn't touch the border.
            layout = plan(frame, width - self.is_panel, glyphs, self.full_names, signals,
                          first=self.first_column, added=self.added,
                          bars=bars, inks=self.inks_of_rows, full=self.full,
                          is_place=frame.level not in SENTENCES,
                          headings={} if len(frame) else self._headings)  # fmt: skip
            if len(frame):
                self._headings = {each.name: each.text for each in layout.columns}
            wanted = [
                Sparks(glyphs, column.cells, signal=each, rows=len(frame))
                for each, column in zip(shown, layout.sparks, strict=False)
            ]
        if [each.key for each in wanted] != [each.key for each in self.sparks]:
            self.sparks = wanted
        before, self.layout_plan = self.heading_lines, layout
        self._planned_width = width
        self.virtual_size = Size(width, len(frame) + self.heading_lines)
        if self.heading_lines != before:
            self.call_later(self.explorer.fit_parts)

    def _name_rows(self) -> None:
        """Name the panel by its rows, and at its end below how many of them are cut."""
        if self.is_panel and self.layout_plan is not None:
            title, frame = table_title(self.layout_plan.frame), self.layout_plan.frame
            room = self.size.width - len(title) - _AROUND_TITLE
            named = [self.layout_plan.legend(room), *(each.legend(room) for each in self.sparks)]
            below = self.rows - self.scroll_offset.y - self.page
            more = f"{below} more ↓" if below > 0 and self.size.height else ""
            base = "  ".join(filter(None, (clean(frame.base), more)))
            self.name_panel([(title, "strong"), *chain(*named)], base)

    def _draw_again(self) -> None:
        if self.frame is not None:
            self._lay_out(self.frame)
            self._name_rows()
            self.refresh()
            self._fill_sparks()

    def _scroll_to_row(self, row: int) -> None:
        top = max(min(row, self.rows - self.page), 0)
        self.set_scroll(None, top)
        self._name_rows()

    def _refresh_rows(self, *rows: int) -> None:
        top = self.scroll_offset.y - self.heading_lines
        self.refresh(*(Region(0, row - top, self.size.width, 1) for row in rows))

    def _fill_sparks(self) -> None:
        top = self.scroll_offset.y
        if self.sparks:
            rows = range(top, min(top + self.page, self.rows))
            # The neighbouring pages too: a page that is turned is then painted once.
            around = range(max(top - len(rows), 0), min(rows.stop + len(rows), self.rows))
            self._draw_sparks(self.sparks, rows, around)

    # With a description, since Textual otherwise formats all arguments: as slow as drawing.
    @work(exclusive=True, group="sparks", description="sparks")
    async def _draw_sparks(
        self, columns: Sequence[Sparks | LaneLines], rows: range, around: range
    ) -> None:
        wanted = [sparks.missing(rows) for sparks in columns]
        if self._has_unpainted:
            # The thread of a worker that was cancelled has drawn them all the same.
            wanted = [list(rows) for _ in columns]
        if any(wanted):
            self._has_unpainted = True
            await run_in_thread(_draw, columns, rows)
            self._has_unpainted = False
            if columns is self.sparks:
                self._name_rows()
                self._refresh_rows(self.scroll_offset.y - 1, *sorted(set().union(*wanted)))
        if any(sparks.missing(around) for sparks in columns):
            await run_in_thread(_draw, columns, around)


def table_title(frame: Frame) -> str:
    """What the rows are, and of which scope: `operations of L7`."""
    rows = level_title(frame.level) + ("es" if frame.level.endswith("s") else "s")
    where = [crumb(*each) for each in frame.view.scope[-1:]]
    return " of ".join([rows, *where])


def _columns_of(frame: Frame) -> tuple[object, ...]:
    return frame.level, tuple(column.name for column in frame.columns)


def _draw(columns: Sequence[Sparks | LaneLines], rows: range) -> None:
    for sparks in columns:
        # None in a terminal too small for any.
        if sparks.bins > 0:
            sparks.draw(rows)
