"""The parts of the explorer's screen: which are shown, how large, and which has the keys."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from textual import events, work
from textual.app import ComposeResult
from textual.geometry import Size
from textual.reactive import Reactive
from textual.widget import Widget

from chopper_core.metrics import metric_named
from chopper_core.model.charts import Chart, Composition, Lanes, lanes_of_rows
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.render.cells import SENTENCES, crumb
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.views.frame import Frame
from chopper_core.views.spec import SeveralRuns
from chopper_tui import screen_data
from chopper_tui.config import CHART_SIZES, Config, save_splits
from chopper_tui.draw.canvas import UNLIMITED, WHOLE, Cell, Lens
from chopper_tui.draw.charts import drawer_of, lines_filled, lines_wanted, most_lines_below, seen
from chopper_tui.draw.figures import detail as detail_of
from chopper_tui.draw.timeline import bins_of
from chopper_tui.keymap import Action
from chopper_tui.screen_data import ScreenData
from chopper_tui.steps import LOADING, StepQueue, run_in_thread
from chopper_tui.textual_internals import SteadyScreen
from chopper_tui.widgets.chart_panes import CardsPane, Curves, EvidencePane, PicturePane, SignalPane
from chopper_tui.widgets.detail import DetailPane, GpuPane
from chopper_tui.widgets.footer import AddressBar, KeyLine, Prompt, Status, TooSmall, pointed_text
from chopper_tui.widgets.frame_table import FrameTable
from chopper_tui.widgets.header import Crumbs, KeyFigures, Position
from chopper_tui.widgets.pane import PaneColumn, PaneRow, lines_above, size_classes
from chopper_tui.widgets.tree import ScopeTree

_MAX_HEADLINE: Final = (4, 6)
_DETAIL: Final = 12
"""Lines of the detail of a row, where they don't follow from other parts."""
_MAX_CURVES: Final = 20
"""Lines of curves, beyond which they only get higher."""
_MIN_TABLE: Final = 5
"""Lines of a table below a whole picture."""
_MIN_SPARE: Final = 7
"""Lines below cards from which curves, or the evidence of one, are shown."""
_SHARES: Final = {"small": 2 / 5, "full": 3 / 5, "off": 0.0}
"""Parts of the lines that pictures have at least."""
_TALL: Final = 24
"""Lines from which two curves stand below each other."""
_SIDE_CURVES: Final = 24
_LEAST_CURVES: Final = (1 / 5, 0.0)
"""The parts of the lines that curves have at least; above a detail they take what is left."""
_REST: Final = "1fr"
_WHOLE: Final = "100%"
_BINS_UNSEEN: Final = 100
C = TypeVar("C", bound=Struct)


class ScreenParts(SteadyScreen[None]):
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
        super().__init__()
        self.run = run
        self.data = data
        self.picture = 0
        self.cell: Cell = (0, 0)
        """The cursor in the view's picture, as the picture's drawer reads it."""
        self.lens = WHOLE
        self._seen: tuple[tuple[Frame, Lens, bool], Sequence[Chart]] | None = None
        self.actions = {action.id: action for action in actions}
        self.config = config
        self.chart = config.chart or CHART_SIZES[0]
        self.zoom = False
        self.splits = dict(config.splits)
        self.steps = StepQueue(self.say, self._loaded, partial(self.run_worker, group="steps"))
        self._sizes: dict[str, bool] = {}
        """The classes of the terminal's size."""
        self._arranged: dict[str, int | str] = {}
        """The height of each part; 0: it isn't shown."""
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
        yield PicturePane()
        with PaneRow(id="middle"):
            yield ScopeTree()
            with PaneColumn(id="main"):
                yield Curves(SignalPane(), SignalPane(1), id="curves")
                yield FrameTable()
            with PaneColumn(id="side"):
                yield GpuPane()
                yield DetailPane()
                yield Curves(SignalPane(), SignalPane(1))
        with PaneRow(id="below"):
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

    @property
    def table(self) -> FrameTable:
        return self.query_one(FrameTable)

    @property
    def side(self) -> DetailPane:
        return self.query_one(DetailPane)

    @property
    def status(self) -> Status:
        return self.query_one(Status)

    @property
    def frame(self) -> Frame:
        return self.data.frame

    @property
    def view(self) -> View:
        return self.frame.view

    @property
    def lanes(self) -> Lanes | None:
        return self.first_chart(Lanes)

    @property
    def time_cells(self) -> int:
        pane = self.query_one(PicturePane)
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
        pane = self.query_one(PicturePane)
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

    @property
    def bar(self) -> Composition | None:
        """The bar whose parts lead on, where it is shown."""
        bar = self.first_chart(Composition) if self.query_one(PicturePane).display else None
        return bar if bar is not None and bar.opens is not None and bar.listed else None

    @property
    def part(self) -> View | None:
        """What the part under the bar's cursor leads to; None while others have the keys."""
        bar = self.bar
        return bar.opens(self.cell[1]) if bar and bar.opens and self.cell[0] else None

    def go_to_part(self, bar: Composition, step: int) -> None:
        """Give the bar the keys, its cursor so many of its listed parts further, and explain it."""
        listed = bar.listed
        place = listed.index(self.cell[1]) if self.cell[1] in listed else 0
        self.cell = 1, listed[min(max(place + step, 0), len(listed) - 1)]
        self.activate_cards(False)
        self.table.show_cursor(False)
        self._show_pictures()
        definition = metric_named((self.part or self.view).sort[1:]).definition
        self.say(f"{bar.series[self.cell[1]].name}: {definition}")

    def leave_part(self) -> None:
        self.cell = 0, self.cell[1]
        self._show_pictures()

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
    def charts(self) -> Sequence[Chart]:
        """The charts of the view; in panels without those that bars of the table repeat."""
        in_cells = self.data.bars.values() if self._sizes.get("-panels") else ()
        every = self.frame.charts
        return tuple(each for each in every if not any(each is other for other in in_cells))

    @property
    def _charts_seen(self) -> Sequence[Chart]:
        """The charts of the view; the same objects as long as nothing changes."""
        key = self.frame, self.lens, self._sizes.get("-panels", False)
        if self._seen is None or self._seen[0] != key:
            self._seen = key, [seen(chart, self.lens) for chart in self.charts]
        return self._seen[1]

    def look(self, lens: Lens) -> None:
        """Show the view's chart through a lens; its cursor stays on its item."""
        if chart := next(iter(self.charts), None):
            self.cell = drawer_of(chart).cell_through(chart, self.cell, self.lens, lens)
        self.lens = lens
        self.show_charts()
        self.show_lanes()

    def show_lanes(self) -> None:
        self.table.show_lanes(lanes_of_rows(self._charts_seen))

    @property
    def has_table_drawn(self) -> bool:
        """Whether a picture stands in the table's place."""
        return any(drawer_of(each).is_table for each in self.charts[:1])

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

    def activate_cards(self, is_active: bool) -> None:
        self.cards.put(is_active=is_active)
        self.table.show_cursor(not self.cards.has_keys)
        self.mark_panel()

    def mark_panel(self) -> None:
        """Show by its border which panel has the keys."""
        picture = self.query_one(PicturePane)
        held: dict[Widget, bool] = {self.side: self.side.has_keys, self.cards: self.cards.has_keys}
        held[picture] = self.part is not None
        held[self.table] = not any(held.values())
        for panel, has_keys in held.items():
            panel.set_class(has_keys, "-focused")

    def say(self, message: str, error: bool = False) -> None:
        """Show a message until the next action, over the last line where none is free for it."""
        self.status.put(message=message, is_error=error)
        if self._arranged:
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
        if len(self.charts) < 2:
            raise UsageError("this view has no other chart")
        self.picture = (self.picture + 1) % len(self.charts)
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
        heights = self._heights(sizes)
        if heights == self._arranged:
            return
        self._arranged = heights
        for name, lines in heights.items():
            part = self.query_one(name)
            part.display = bool(lines)
            part.styles.height = lines
        self._show_top()
        self.query_one(Position).styles.width = 18 if self.has_lines else 12
        self.status.display = sizes["-fits"] and (self.has_lines or bool(self.status.message))
        self.query_one(KeyLine).display = self.has_lines and not self.query_one(Prompt).display
        if self.cards.has_keys and not self.cards.display:
            self.activate_cards(False)  # Keys are never for what isn't shown.
        charts = len(self.signal_panes)
        self.table.spark_columns = 2 * self.data.has_signals
        self.table.has_chart = charts == 1
        # Of two charts below each other the lower one has the time axis of both.
        is_level = sizes["-large"] or sizes["-panels"]
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

    def _heights(self, sizes: Mapping[str, bool]) -> dict[str, int | str]:
        """The height of each part whose room depends on the others; 0: it isn't shown."""
        width, height = self._fitted_to
        is_open, is_timeline = not self.zoom, self.lanes is not None
        headline = len(self.query_one(KeyFigures).headline(width)) if self.view.name else 1
        headline = min(max(headline, 1), _MAX_HEADLINE[sizes["-tall"]]) * self.has_lines
        body = height - (3 + headline) * self.has_lines
        frame = 2 * sizes["-panels"]
        has_curves = self.data.has_signals and self.chart != "off" and is_open and self.has_lines
        # Below a table without pictures the detail has all of the width, until both have it.
        is_stacked = sizes["-panels"] and not sizes["-large"] and not self._pictures
        has_side = (sizes["-wide"] or is_stacked) and is_open and not self._has_cards
        in_scope = not self.view.name and "gpu" in dict(self.view.scope)
        heights: dict[str, int | str] = {
            "TooSmall": 0,
            "KeyFigures": headline if is_open or is_timeline else 0,
            "#curves": 0,
            "PicturePane": 0,
            "#middle": _REST if is_open or not is_timeline else 0,
            "#below": 0,
            "CardsPane": 0,
            "#last": 0,
            "EvidencePane": 0,
            "ScopeTree": _WHOLE if sizes["-large"] and not self.view.name and is_open else 0,
            "#side": (_DETAIL if is_stacked else _WHOLE) if has_side else 0,
            "#side Curves": 0,
            "GpuPane": (len(self.run.gpus) + 2 + (frame or 1)) * in_scope,
        }
        if self.shows_sentences:
            cards = self._card_lines(body, frame)
            has_more = self.has_lines and cards and body - cards >= _MIN_SPARE
            heights |= {"#middle": 0, "#below": cards if has_more else body, "CardsPane": _WHOLE}
            heights["EvidencePane"] = _REST if has_more and is_open else 0
        elif self.has_lines and self.has_table_drawn:
            heights |= self._in_place_of_table(body, frame)
        elif self._has_cards:
            heights |= self._over_cards(body, frame, has_curves=has_curves) if is_open else {}
        elif self.has_lines:
            rows = len(self.frame) + 1 + frame
            if not self._is_tree:
                below = max(rows, _DETAIL * has_side)
                heights["PicturePane"] = picture = self._above_table(body, below, frame)
                body -= picture
            body -= _DETAIL * (is_stacked and has_side)
            share = {"small": _LEAST_CURVES[is_stacked], "full": 1 / 2}.get(self.chart, 0)
            most = UNLIMITED if frame else _MAX_CURVES
            curves = self._divided(body, most, rows, share * (not self.view.name))
            is_full = curves < _MIN_SPARE and not is_timeline
            if sizes["-large"] and has_side and self.view.name and is_full:
                below = min(_SIDE_CURVES, body - _DETAIL)
                heights["#side Curves"] = below * (has_curves and below > _MIN_SPARE)
                curves = 0
            least = _MIN_SPARE if frame else _MIN_TABLE if self.view.name else 1
            is_worth = curves >= least and not is_timeline
            heights["#curves"] = curves * (has_curves and is_worth)
        self.query_one("#middle").set_class(is_stacked, "-stacked")
        lines = heights["#curves"]
        self.query_one("#curves").set_class(
            not isinstance(lines, str) and lines > _TALL, "-stacked"
        )
        if not sizes["-fits"]:
            heights = {**dict.fromkeys(heights, 0), "TooSmall": 1}
        return heights

    def _in_place_of_table(self, body: int, frame: int) -> dict[str, int | str]:
        """A picture that has the table's rows, and cards below it if there are any."""
        cards = self._cards_wanted(frame) if self._has_cards else 0
        room = max(body - min(cards, body // 4) - frame, 1)
        width = self.app.size.width - 2 - frame
        most = most_lines_below(self._pictures[:1], width, self.table.glyphs)
        heights = {"PicturePane": min(most, room) + frame, "#middle": 0, "#side": 0}
        return heights | ({"#below": _REST, "CardsPane": _WHOLE} if cards else {})

    def _over_cards(self, body: int, frame: int, *, has_curves: bool) -> dict[str, int | str]:
        """A picture and the table over cards; curves next to these, or below where all fit."""
        wanted = lines_wanted(self._pictures, self.app.size.width, self.table.glyphs)
        cards = self._cards_wanted(frame) or _MIN_SPARE
        picture = min(wanted + frame - bool(frame), body // 3 + frame) * self.has_lines
        body -= picture
        table = self._divided(body, len(self.frame) + 1 + frame, cards, 1 / 2)
        below = body - table
        is_beside = self.has_class("-panels") and below <= _MAX_CURVES
        cards = self._card_lines(below, frame)
        has_last = has_curves and (is_beside or (cards and below - cards >= _MIN_SPARE))
        self.query_one("#below").set_class(not is_beside, "-stacked")
        return {
            "PicturePane": picture,
            "#middle": table,
            "#below": _REST,
            "CardsPane": cards if has_last and not is_beside else _WHOLE,
            "#last": (_WHOLE if is_beside else _REST) if has_last else 0,
        }

    def _cards_wanted(self, frame: int) -> int:
        lines = self.cards.lines_wanted(self.app.size.width)
        return lines + (frame - 1) * bool(frame and lines)

    def _card_lines(self, room: int, frame: int) -> int:
        """The lines of all cards; more to see below them is worth more than blank lines."""
        wanted = self._cards_wanted(frame)
        close = wanted - self.cards.rows
        return close if room - wanted < _MIN_SPARE <= room - close else wanted

    def _above_table(self, body: int, below: int, frame: int) -> int:
        charts, glyphs, width = self._pictures, self.table.glyphs, self.app.size.width - frame
        if not charts or (self.chart == "off" and self.lanes is None):
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
        lines = self._divided(body, most + frame, below, share)
        # A table is right below its pictures.
        return lines_filled(charts, width - 2, lines - frame, glyphs) + frame

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
            if self.part is not None:
                self.leave_part()
            self.activate_cards(False)
        self.follow_cursor()
        self.describe_soon(self.DETAIL_DELAY)

    def follow_cursor(self) -> None:
        """Show where the cursor's row is in the picture, and what the timeline's points at."""
        for chart in self._charts_seen[:1]:
            self.cell = drawer_of(chart).followed(chart, self.cell, self.table.label)
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
