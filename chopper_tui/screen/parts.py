"""The parts of the explorer's screen: which are shown, how large, and which has the keys."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Final

from msgspec import Struct
from textual import events, work
from textual.app import ComposeResult
from textual.geometry import Size
from textual.reactive import Reactive
from textual.widget import Widget

from chopper_core.model.run import Run
from chopper_core.render.cells import SENTENCES, crumb
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.views.frame import Frame
from chopper_tui import screen_data
from chopper_tui.config import CHART_SIZES, Config, save_splits
from chopper_tui.draw.charts import drawer_of, lines_filled, lines_wanted, most_lines_below
from chopper_tui.draw.figures import detail as detail_of
from chopper_tui.keymap import Action
from chopper_tui.screen.charts import Charts
from chopper_tui.screen_data import ScreenData
from chopper_tui.steps import LOADING, StepQueue, run_in_thread
from chopper_tui.widgets.chart_panes import CardsPane, Curves, EvidencePane, PicturePane, SignalPane
from chopper_tui.widgets.detail import DetailPane, GpuPane
from chopper_tui.widgets.footer import AddressBar, KeyLine, Prompt, Status, TooSmall, pointed_text
from chopper_tui.widgets.frame_table import FrameTable
from chopper_tui.widgets.header import Crumbs, KeyFigures, Position
from chopper_tui.widgets.pane import PaneColumn, PaneRow, lines_above, size_classes

_MAX_HEADLINE: Final = (4, 6)
_DETAIL: Final = 16
_MAX_CURVES: Final = 20
"""Lines of curves, beyond which they only get higher."""
_MIN_TABLE: Final = 6
"""Lines of a table below a whole picture."""
_MIN_SPARE: Final = 7
"""Lines below cards from which curves, or the evidence of one, are shown."""
_SHARES: Final = {"small": 2 / 5, "full": 3 / 5, "off": 0.0}
"""Parts of the lines that pictures have at least."""


class _Lines(Struct, frozen=True):
    """The lines that parts of the screen get, one below the other."""

    headline: int
    picture: int
    divided: int
    """The upper of two parts that share the room: curves, a table over cards, or sentences."""
    cards: int
    spare: int


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
        super().__init__(run, data)
        self.actions = {action.id: action for action in actions}
        self.config = config
        self.chart = config.chart or CHART_SIZES[0]
        self.zoom = False
        self.splits = dict(config.splits)
        self.steps = StepQueue(self.say, self._loaded, partial(self.run_worker, group="steps"))
        self._sizes: dict[str, bool] = {}
        """The classes of the terminal's size."""
        self._arranged: tuple[dict[str, bool], _Lines] | None = None
        self._fitted_to = Size(0, 0)
        """The size of the terminal that the parts have their room in."""
        self._status_lines = 1

    def compose(self) -> ComposeResult:
        yield TooSmall()
        with PaneRow(id="top"):
            yield AddressBar()
            yield Crumbs()
            yield Position()
        yield KeyFigures()
        yield Curves(SignalPane(), SignalPane(1), id="curves")
        yield PicturePane()
        with PaneRow(id="middle"):
            yield FrameTable()
            with PaneColumn(id="side"):
                yield Curves(SignalPane(), SignalPane(1))
                yield GpuPane()
                yield DetailPane()
        yield CardsPane()
        yield Curves(SignalPane(), SignalPane(1), id="last")
        yield EvidencePane()
        yield Status()
        yield KeyLine(tuple(self.actions.values()))
        yield Prompt()

    def on_resize(self, event: events.Resize) -> None:
        if event.size == self._fitted_to == self.size:
            event.prevent_default()  # it is reported three times at the start
        else:
            self.fit_parts()
            self._fit_status()

    @property
    def cards(self) -> CardsPane:
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
        if self.shows_sentences and not self.side.has_keys:
            self.table.move_to(row)
            self.cards.move_to(self.table.cursor)
        else:
            self.listing.move_to(row)

    @property
    def listing(self) -> FrameTable | CardsPane | DetailPane:
        if self.side.has_keys:
            return self.side
        return self.cards if self.cards.has_keys else self.table

    @property
    def side(self) -> DetailPane:
        return self.query_one(DetailPane)

    @property
    def shows_sentences(self) -> bool:
        """Whether the rows themselves are cards, in place of the table."""
        return self.frame.level in SENTENCES

    async def move_split(self, lines: int) -> None:
        name, before = self.view.name, self._arranged
        self.splits[name] = self.splits.get(name, 0) + lines
        self.fit_parts()
        if self._arranged == before:
            self.splits[name] -= lines
            raise UsageError("the divider can't be moved further")
        if self.config.remember:
            await run_in_thread(save_splits, self.splits)

    def next_pane(self) -> None:
        has_side = self.query_one("#side").display
        if self.side.has_keys:
            self.side.put(has_keys=False)
            self.table.show_cursor(not self.cards.has_keys)
        elif self.cards.cards is not None and not self.shows_sentences:
            self.activate_cards(not self.cards.has_keys)
        elif has_side:
            self.side.put(has_keys=True)
        else:
            raise UsageError("this screen has no other part to go to")

    def activate_cards(self, is_active: bool) -> None:
        self.cards.put(is_active=is_active)
        self.table.show_cursor(not self.cards.has_keys)

    @property
    def status(self) -> Status:
        return self.query_one(Status)

    def say(self, message: str, error: bool = False) -> None:
        """Show a message until the next action, over the last line where none is free for it."""
        self.status.put(message=message, is_error=error)
        if self._arranged is not None:
            self.status.display = self.has_class("-fits") and (self.has_lines or bool(message))
            self._fit_status()

    def _fit_status(self) -> None:
        lines = self.status.lines_wanted(self.app.size.width)
        if lines != self._status_lines:
            self._status_lines = lines
            self.status.styles.height = lines

    def clear_message(self) -> None:
        """Clear the message of the previous action, unless it reports one in progress."""
        if not self.status.message.startswith(LOADING):
            self.say("")

    def next_picture(self) -> None:
        if len(self.frame.charts) < 2:
            raise UsageError("this view has no other chart")
        self.picture = (self.picture + 1) % len(self.frame.charts)
        self.fit_parts()
        self.show_charts()

    def fit_parts(self) -> None:
        self._fitted_to = self.app.size
        width, height = self._fitted_to
        sizes = size_classes(width, height)
        if sizes != self._sizes:
            self._sizes = sizes
            self.update_classes(sizes, animate=False)
            self.app.stylesheet.update(self)  # now: the first paint is in the new layout
        lines = self._lines(sizes)
        shown = self._shown(sizes, lines)
        if (shown, lines) == self._arranged:
            return
        self._arranged = shown, lines
        for part, is_shown in shown.items():
            self.query_one(part).display = is_shown
        self._set_heights(lines, shown)
        self._show_top()
        has_lines = sizes["-lines"]
        self.query_one(Position).styles.width = 18 if has_lines else 12
        self.status.display = sizes["-fits"] and (has_lines or bool(self.status.message))
        self.query_one(KeyLine).display = has_lines and not self.query_one(Prompt).display
        if self.cards.has_keys and not self.cards.display:
            self.activate_cards(False)  # Keys are never for what isn't shown.
        charts = len(self.signal_panes)
        # What has no chart has sparklines.
        columns = 1 if charts > 1 and not sizes["-large"] else 2
        self.table.spark_columns = columns * self.data.has_signals
        self.table.has_chart = charts == 1
        # Of two charts below each other the lower one has the time axis of both.
        is_level = sizes["-large"] and (self._is_tree or self._has_cards)
        for pane in self.query(SignalPane):
            pane.time_axis = bool(pane.number) or charts < 2 or is_level
        self.show_charts()
        self.describe_soon()

    @property
    def _has_cards(self) -> bool:
        return self.cards.cards is not None and not self.shows_sentences

    @property
    def _is_tree(self) -> bool:
        return not (self._pictures or self._has_cards or self.shows_sentences)

    def _lines(self, sizes: Mapping[str, bool]) -> _Lines:
        width, height = self._fitted_to
        has_lines, is_wide, is_open = sizes["-lines"], sizes["-wide"], not self.zoom
        headline = len(self.query_one(KeyFigures).headline(width)) if self.view.name else 1
        headline = min(max(headline, 1), _MAX_HEADLINE[sizes["-tall"]]) * has_lines
        body = height - 3 - headline if has_lines else height
        rows, cards = len(self.frame) + 1, self.cards.lines_wanted(width)
        picture = divided = 0
        if self.shows_sentences:
            cards = self._card_lines(body)
            divided = cards if cards and body - cards >= _MIN_SPARE else body
        elif self._has_cards:
            wanted = lines_wanted(self._pictures, width, self.table.glyphs)
            picture = min(wanted, body // 3) * (is_open and has_lines)
            divided = self._divided(body - picture, rows, cards or _MIN_SPARE, 1 / 2)
            cards = self._card_lines(body - picture - divided)
        elif self._is_tree:
            share = {"small": 2 / 5 if is_wide else 1 / 5, "full": 1 / 2}.get(self.chart, 0)
            divided = self._divided(body, _MAX_CURVES, max(rows, _DETAIL * is_wide), share)
        elif has_lines:
            picture = self._above_table(body, rows, is_wide)
        spare = body - picture - divided - cards * self._has_cards
        return _Lines(headline, picture, divided, cards, spare)

    def _shown(self, sizes: Mapping[str, bool], lines: _Lines) -> dict[str, bool]:
        has_lines, is_open, fits = sizes["-lines"], not self.zoom, sizes["-fits"]
        sentences, time = self.shows_sentences, self.lanes is not None
        has_cards, spare = self._has_cards, lines.spare >= _MIN_SPARE and has_lines
        curves = self.data.has_signals and self.chart != "off" and is_open and has_lines
        return {
            "TooSmall": not fits,
            "KeyFigures": has_lines and (is_open or time),
            "#curves": curves and self._is_tree,
            "PicturePane": lines.picture > 0,
            "#middle": fits and not sentences and (is_open or not time),
            "#side": sizes["-wide"] and is_open and not has_cards,
            "#side Curves": curves and sizes["-large"] and not (self._is_tree or time),
            "GpuPane": not self.view.name and "gpu" in dict(self.view.scope),
            "CardsPane": fits and (sentences or (has_cards and is_open)),
            "#last": curves and has_cards and lines.cards > 0 and spare,
            "EvidencePane": sentences and is_open and spare,
        }

    def _set_heights(self, lines: _Lines, shown: Mapping[str, bool]) -> None:
        is_divided = self._has_cards and not self.zoom
        self.query_one(KeyFigures).styles.height = lines.headline
        self.query_one(PicturePane).styles.height = lines.picture
        self.query_one("#curves").styles.height = lines.divided
        self.query_one("#middle").styles.height = lines.divided if is_divided else "1fr"
        self.cards.styles.height = lines.divided if self.shows_sentences else "1fr"
        self.cards.styles.max_height = lines.cards if shown["#last"] else None
        self.query_one(GpuPane).styles.height = len(self.run.gpus) + 3

    def _card_lines(self, room: int) -> int:
        """The lines of all cards; more to see below them is worth more than blank lines."""
        wanted = self.cards.lines_wanted(self.app.size.width)
        close = wanted - self.cards.rows
        return close if room - wanted < _MIN_SPARE <= room - close else wanted

    def _above_table(self, body: int, rows: int, is_wide: bool) -> int:
        charts, glyphs, width = self._pictures, self.table.glyphs, self.app.size.width
        if self.chart == "off" and self.lanes is None:
            return 0
        wanted = lines_wanted(charts, width, glyphs)
        if self.zoom:
            return body if self.lanes is not None else 0
        if self.lanes is not None:
            most, share = wanted, 2 / 3
        else:
            most, share = most_lines_below(charts, width, glyphs), _SHARES[self.chart]
            if wanted <= body - _MIN_TABLE:
                # A table scrolls; of a picture that is cut the rows below are not seen.
                share = max(share, wanted / body)
        lines = self._divided(body, most, max(rows, _DETAIL * is_wide), share)
        # A table is right below its pictures.
        return lines_filled(charts, width - 2, lines, glyphs)

    def _divided(self, body: int, upper: int, lower: int, share: float) -> int:
        moved = self.splits.get(self.view.name, 0)
        return lines_above(body, upper=upper, lower=lower, share=share, moved=moved)

    def _show_top(self) -> None:
        is_open = self.query_one(AddressBar).display
        marked = bool(self.run.marks) and self.has_class("-fits")
        self.query_one("#top").display = is_open or marked or self.has_lines

    @property
    def has_lines(self) -> bool:
        return self.has_class("-lines")

    def on_frame_table_moved(self, event: FrameTable.Moved) -> None:
        self.query_one(Position).put(row=event.row, rows=self.table.rows)
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
            text = pointed_text(self.frame, self.lanes, row, width, self.table.glyphs)
            self.status.put(pointed=text)

    def describe_soon(self, delay_s: float = 0.0) -> None:
        """Compute the detail of the cursor's row once the cursor rests and no step waits."""
        if self.query_one("#side").display or self.query_one(EvidencePane).display:
            self._describe(self.DETAIL_DELAY if self.steps.waiting else delay_s)

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
        pane.put(name_of_row=crumb(frame.level, frame.labels[row]), times=times)

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
