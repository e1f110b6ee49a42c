"""The parts of the explorer's screen: which are shown, how large, and which has the keys."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from msgspec.structs import replace
from textual import events, work
from textual.app import ComposeResult
from textual.geometry import Size
from textual.reactive import Reactive
from textual.widget import Widget

from chopper_core.model.run import Run
from chopper_core.query.frame import Frame
from chopper_core.render.cells import SENTENCES, crumb
from chopper_core.util.errors import ChopperError, UsageError
from chopper_tui import screen_data
from chopper_tui.config import CHART_SIZES, Config, save_splits
from chopper_tui.draw.charts import drawer_of, lines_below, lines_filled, most_lines_below
from chopper_tui.draw.figures import detail as detail_of
from chopper_tui.keymap import Action
from chopper_tui.screen.charts import Charts
from chopper_tui.screen_data import ScreenData
from chopper_tui.steps import LOADING, StepQueue, run_in_thread
from chopper_tui.widgets.cards import CardsPane
from chopper_tui.widgets.chart_panes import PicturePane, SignalPane
from chopper_tui.widgets.detail import DetailPane, GpuPane
from chopper_tui.widgets.evidence import EvidencePane
from chopper_tui.widgets.footer import KeyLine, Status, TooSmall, pointed_text
from chopper_tui.widgets.frame_table import FrameTable
from chopper_tui.widgets.header import Crumbs, KeyFigures, Position
from chopper_tui.widgets.layout import Arrangement, arrange
from chopper_tui.widgets.pane import PaneColumn, PaneRow
from chopper_tui.widgets.prompt import AddressBar, Prompt


class ScreenParts(Charts):
    """The widgets of a run's view; the explorer decides which view."""

    ALLOW_SELECT = False
    AUTO_FOCUS = ""
    focused: Reactive[Widget | None] = Reactive(None, repaint=False)
    """As every screen's, but only the widget that gains or loses the focus repaints."""
    virtual_size: Reactive[Size] = Reactive(Size(0, 0))
    """As every screen's, but that a change of it is none of the layout: that took a second one."""
    DETAIL_DELAY: ClassVar[float] = 0.08
    """Seconds that the cursor rests on a row before its detail is computed."""

    def __init__(
        self, run: Run, data: ScreenData, actions: Sequence[Action], config: Config
    ) -> None:
        """Show a run, beginning with the data of one of its views."""
        super().__init__(run, data)
        self.actions = {action.id: action for action in actions}
        self.config = config
        self.chart = config.chart or CHART_SIZES[0]
        self.zoom = False
        self.splits = dict(config.splits)
        """Lines by which a person moved the line between pictures and table, by view."""
        self.steps = StepQueue(self.say, self._loaded, partial(self.run_worker, group="steps"))
        self._arranged: Arrangement | None = None
        self._fitted_to = Size(0, 0)
        """The size of the terminal that the parts have their room in."""
        self._status_lines = 1

    def action_perform(self, action_id: str, argument: str = "") -> None:
        """Perform an action of the registry."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        """All parts; `fit_parts` decides which are shown."""
        yield TooSmall()
        with PaneRow(id="top"):
            yield AddressBar()
            yield Crumbs()
            yield Position()
        yield KeyFigures()
        yield SignalPane()
        yield SignalPane(1)
        yield PicturePane()
        with PaneRow(id="middle"):
            yield FrameTable()
            with PaneColumn(id="side"):
                yield PicturePane(id="side_picture")
                yield SignalPane(time_axis=False)
                yield SignalPane(1)
                yield GpuPane()
                yield DetailPane()
        with PaneRow(id="below"):
            yield CardsPane()
            with PaneColumn(id="cards_side"):
                yield SignalPane(time_axis=False)
                yield SignalPane(1)
            yield EvidencePane()
        yield Status()
        yield KeyLine(tuple(self.actions.values()))
        yield Prompt()

    def on_resize(self, event: events.Resize) -> None:
        """Arrange the parts for a new size; the cursor stays."""
        if event.size == self._fitted_to == self.size:
            event.prevent_default()  # it is reported three times at the start
        else:
            self.fit_parts()
            self._fit_status()

    @property
    def cards(self) -> CardsPane:
        """The cards below the table."""
        return self.query_one(CardsPane)

    def move(self, rows: int) -> None:
        """Move the cursor; past the last row of the table it is on the cards, and back."""
        pane = self.cards
        if self.side.has_keys:
            self.side.move(rows)
        elif self.shows_sentences:
            self.move_to(self.table.cursor + rows)
        elif pane.has_keys and pane.cursor + rows < 0:
            self.activate_cards(False)
            self.table.move_to(self.table.rows - 1)
        elif pane.has_keys:
            pane.move_to(pane.cursor + rows)
        elif rows > 0 and self.table.cursor == self.table.rows - 1 and pane.rows and pane.display:
            self.activate_cards(True)
            pane.move_to(0)
        else:
            self.table.move(rows)

    def move_to(self, row: int) -> None:
        """Move the cursor to a row of the part that has the keys."""
        if self.shows_sentences and not self.side.has_keys:
            self.table.move_to(row)
            self.cards.move_to(self.table.cursor)
        else:
            self.listing.move_to(row)

    @property
    def listing(self) -> FrameTable | CardsPane | DetailPane:
        """The part that has the keys that move."""
        if self.side.has_keys:
            return self.side
        return self.cards if self.cards.has_keys else self.table

    @property
    def side(self) -> DetailPane:
        """The detail of the row, at the right."""
        return self.query_one(DetailPane)

    @property
    def shows_sentences(self) -> bool:
        """Whether the rows themselves are cards, in place of the table."""
        return self.frame.level in SENTENCES

    async def move_split(self, lines: int) -> None:
        """Move the line between pictures and table, and remember it for this view."""
        name, before = self.view.name, self._arranged
        self.splits[name] = self.splits.get(name, 0) + lines
        self.fit_parts()
        if self._arranged == before:
            self.splits[name] -= lines
            raise UsageError("the divider can't be moved further")
        if self.config.remember:
            await run_in_thread(save_splits, self.splits)

    def next_pane(self) -> None:
        """Give the keys to the next part: from the table to the cards, to the detail, and back."""
        has_side = bool(self._arranged and self._arranged.side)
        if self.side.has_keys:
            self.side.give_keys(False)
            self.table.show_cursor(not self.cards.has_keys)
        elif self.cards.cards is not None and not self.shows_sentences:
            self.activate_cards(not self.cards.has_keys)
        elif has_side:
            self.side.give_keys(True)
        else:
            raise UsageError("this screen has no other part to go to")

    def activate_cards(self, is_active: bool) -> None:
        """Give the keys that move to the cards, or to the table."""
        self.cards.activate(is_active)
        self.table.show_cursor(not self.cards.has_keys)

    @property
    def status(self) -> Status:
        """The line of messages."""
        return self.query_one(Status)

    def say(self, message: str, error: bool = False) -> None:
        """Show a message until the next action, over the last line where none is free for it."""
        self.status.say(message, error)
        if self._arranged is not None:
            self.status.display = not self._arranged.too_small and (
                self._arranged.lines or bool(message)
            )
            self._fit_status()

    def _fit_status(self) -> None:
        """Give a long message the lines that it needs, and take them back after it."""
        lines = self.status.lines_wanted(self.app.size.width)
        if lines != self._status_lines:
            self._status_lines = lines
            self.status.styles.height = lines

    def clear_message(self) -> None:
        """Clear the message of the previous action, unless it reports one in progress."""
        if not self.status.message.startswith(LOADING):
            self.say("")

    def fit_parts(self) -> None:
        """Give each part its room."""
        self._fitted_to = self.app.size
        width, height = self._fitted_to
        gpus = len(self.run.gpus) if "gpu" in dict(self.view.scope) else 0
        charts, glyphs = self._pictures, self.table.glyphs
        headline = self.query_one(KeyFigures).headline(width) if self.view.name else []
        now = arrange(
            width,
            height,
            chart=self.chart if charts or self.data.has_signals else "off",
            zoom=self.zoom,
            gpus=0 if self.view.name else gpus,
            picture=lines_below(charts[:1], width, glyphs),
            pictures=most_lines_below(charts, width, glyphs),
            rows=len(self.frame),
            headline=len(headline),
            along_time=self.lanes is not None,
            cards=self.cards.cards is not None and not self.shows_sentences,
            card_lines=self.cards.lines_wanted(width),
            card_gaps=self.cards.rows,
            only_cards=self.shows_sentences,
            split=self.splits.get(self.view.name, 0),
            signals=self.data.has_signals,
        )
        if charts and now.pictures[0] and not now.table:
            # A table is right below its pictures.
            used = lines_filled(charts, width - 2, now.pictures[0], glyphs)
            now = replace(now, pictures=(used, now.pictures[1]))
        if now == self._arranged:
            return
        self._arranged = now
        self.query_one(TooSmall).display = now.too_small
        self.query_one("#middle").display = not (now.too_small or now.only_cards)
        self._show_top()
        self.query_one(Position).styles.width = 18 if now.lines else 12
        self.status.display = now.lines or bool(self.status.message and not now.too_small)
        self.query_one(KeyLine).display = now.lines and not self.query_one(Prompt).is_open
        _set_height(self.query_one(KeyFigures), now.figures)
        self.query_one("#middle").styles.height = now.table or "1fr"
        below = now.only_cards or (bool(now.table) and self.cards.cards is not None)
        self.query_one("#below").display = below and not now.too_small
        if self.cards.has_keys and not below:
            self.activate_cards(False)  # Keys are never for what isn't shown.
        side = self.query_one("#cards_side")
        is_stacked = bool(now.cards_below or now.evidence)
        self.query_one("#below").styles.layout = "vertical" if is_stacked else "horizontal"
        self.cards.styles.height = "1fr" if is_stacked else "100%"
        _set_height(self.query_one(EvidencePane), now.evidence)
        side.styles.width = now.cards_side or "100%"
        side.styles.height = now.cards_below or "100%"
        side.display = bool(now.cards_side or now.cards_below)
        self.query_one("#side").styles.width = now.side
        self.query_one("#side").display = bool(now.side)
        self.table.spark_columns = now.sparks if self.data.has_signals else 0
        self.table.has_chart = sum(map(bool, now.charts)) == 1
        for chart, lines in zip(self.query(SignalPane), now.charts, strict=True):
            _set_height(chart, lines)
        # Of two charts above the table the lower one has the time axis of both.
        self.query(SignalPane).first().time_axis = not now.charts[1]
        for pane, lines in zip(self.query(PicturePane), now.pictures, strict=True):
            _set_height(pane, lines)
        self.show_charts()
        self.query_one(GpuPane).styles.height = now.gpus
        self.describe_soon()

    def _show_top(self) -> None:
        now = self._arranged
        marked = bool(self.run.marks) and not (now is not None and now.too_small)
        is_open = self.query_one(AddressBar).is_open
        self.query_one("#top").display = now is None or now.lines or marked or is_open

    def on_frame_table_moved(self, event: FrameTable.Moved) -> None:
        """Follow the cursor."""
        self.query_one(Position).show(event.row, self.table.rows)
        if self.shows_sentences:
            self.cards.move_to(event.row)
        elif self.cards.cards is not None:
            self.activate_cards(False)
        self.follow_cursor()
        self.describe_soon(self.DETAIL_DELAY)

    def follow_cursor(self) -> None:
        """Show where the cursor's row is in the picture, and what the timeline's points at."""
        self._follow_in_picture()
        if any(drawer_of(each).follows_cursor for each in self._pictures[:1]):
            self._show_pictures()
        if self.lanes is not None:
            row, width = self.table.cursor, self.size.width
            self.status.point(pointed_text(self.frame, self.lanes, row, width, self.table.glyphs))

    def describe_soon(self, delay_s: float = 0.0) -> None:
        """Compute the detail of the cursor's row once the cursor rests and no step waits."""
        if self._arranged is not None and (self._arranged.side or self._arranged.evidence):
            self._describe(self.DETAIL_DELAY if self.steps.has_waiting else delay_s)

    @work(exclusive=True, group="detail", description="detail")
    async def _describe(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        frame, row, pane = self.frame, self.table.cursor, self.query_one(GpuPane)
        if self.shows_sentences:
            self._show_evidence(frame, row)
            return
        if not len(frame):
            self.query_one(DetailPane).show(None)
            return
        try:
            detail = await run_in_thread(detail_of, self.run, frame, row)
            times = await run_in_thread(
                screen_data.row_on_gpus, self.run, frame, row, pane.spark_cells
            )
        except ChopperError as error:
            self.say(str(error), error=True)
            return
        self.query_one(DetailPane).show(detail)
        pane.show(crumb(frame.level, frame.labels[row]), times)

    def _show_evidence(self, frame: Frame, row: int) -> None:
        """Show what a finding leads to, unless that is another run, which may not be open."""
        try:
            target = frame.target(row) if len(frame) else None
        except UsageError:
            target = None
        is_here = target is not None and target.run == self.run.name
        self.query_one(EvidencePane).show(self.run, target if is_here else None)

    def _loaded(self) -> None:
        if self.status.message.startswith(LOADING):
            self.say("")


def _set_height(part: Any, lines: int) -> None:
    part.styles.height = lines
    part.display = bool(lines)
