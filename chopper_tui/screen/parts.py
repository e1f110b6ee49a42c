"""The parts of the explorer's screen: which are shown, how large, and which has the keys."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import ClassVar, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from textual import events, getters, work
from textual.app import ComposeResult
from textual.geometry import Size
from textual.reactive import Reactive
from textual.widget import Widget

from chopper_core.columns import Metric
from chopper_core.model.charts import Chart, Lanes, lanes_of_rows
from chopper_core.model.run import Run
from chopper_core.model.view import View, enter
from chopper_core.render.cells import SENTENCES, crumb
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.views import OVERVIEW, TABS, TREE, WHATIF, view_spec
from chopper_core.views.frame import Frame
from chopper_core.views.spec import SeveralRuns
from chopper_tui.config import CHART_SIZES, Config, save_splits
from chopper_tui.draw.canvas import UNLIMITED, WHOLE, Cell, Lens
from chopper_tui.draw.charts import drawer_of, lines_filled, lines_wanted, most_lines_below, seen
from chopper_tui.draw.figures import detail as detail_of
from chopper_tui.draw.table import plan
from chopper_tui.draw.timeline import bins_of
from chopper_tui.keymap import LIVE, Action
from chopper_tui.screen_data import ScreenData, on_every_gpu
from chopper_tui.steps import LOADING, StepQueue, run_in_thread
from chopper_tui.textual_internals import SteadyScreen
from chopper_tui.widgets.cards_pane import CardsPane
from chopper_tui.widgets.chart_panes import (
    Curves,
    EvidencePane,
    GpuPane,
    PicturePane,
    SecondPane,
    SignalPane,
)
from chopper_tui.widgets.detail import DetailPane
from chopper_tui.widgets.footer import KeyLine, Prompt, Status, TooSmall, pointed_text
from chopper_tui.widgets.frame_table import FrameTable
from chopper_tui.widgets.header import Crumbs, KeyFigures, PlaceLine, Position
from chopper_tui.widgets.pane import (
    Listing,
    PaneColumn,
    PaneRow,
    Room,
    divided_lines,
    size_classes,
)
from chopper_tui.widgets.tree import ScopeTree

_MAX_HEADLINE: Final = (4, 6)
_MIN_HEADED: Final = 12
"""Lines of a small screen from which one is the headline's."""
_DETAIL: Final = 12
"""Lines of the detail of a row, where they don't follow from other parts."""
_MAX_CURVES: Final = 20
"""Lines of curves, beyond which they only get higher."""
_MIN_PICTURE: Final = 7
"""Lines of a picture: three of its body, and title, legend and axis."""
_MIN_TABLE: Final = 5
"""Lines of a table below a whole picture."""
_MIN_SPARE: Final = 7
"""Lines from which curves, or the evidence of a row, are worth a place."""
_LEAST_EVIDENCE: Final = 4
"""Lines of a panel of evidence: a heading and three rows."""
_MOST_EVIDENCE: Final = 13
"""On a large screen: each move to another row sends its lines."""
_TALL: Final = 24
"""Lines from which two curves stand below each other."""
_BOTH_CURVES: Final = 16
"""Lines next to the evidence from which two curves stand below each other; else there is one."""
_SIDE: Final = 46
"""Columns of the detail next to a table that needs no more than the others."""
_SECOND: Final = 9
"""Lines of a second table below the detail."""
_FEW_ROWS: Final = 12
"""Lines of a table before others have their place."""
_SHARES: Final = {"small": 2 / 5, "full": 3 / 5, "off": 0.0}
"""Parts of the lines that pictures have at least."""
_CURVES: Final = {"small": 1 / 5, "full": 1 / 2, "off": 0.0}
_JOINED: Final = 6
"""Lines of the bars of a step with its parts by counters."""
_REST: Final = "1fr"
_WHOLE: Final = "100%"
_BINS_UNSEEN: Final = 100
_MANY: Final = 1 << 20
"""Activities beyond which details wait longer for a cursor that rests."""
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
    cards = getters.query_one(CardsPane)
    table = getters.query_one(FrameTable)
    side = getters.query_one(DetailPane)
    scope_tree = getters.query_one(ScopeTree)
    status = getters.query_one(Status)
    picture_pane = getters.query_one(PicturePane)
    evidence = getters.query_one(EvidencePane)
    prompt = getters.query_one(Prompt)

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
        self._seen: tuple[tuple[Frame, Lens, bool, bool], Sequence[Chart]] | None = None
        self.actions = {action.id: action for action in actions}
        self.config = config
        self.chart = config.chart or CHART_SIZES[0]
        self.zoom = False
        self._zoomed: Listing | None = None
        """The panel that has the screen alone, where the view has it."""
        self.splits = dict(config.splits)
        self.steps = StepQueue(self.say, self._loaded, partial(self.run_worker, group="steps"))
        self._sizes: dict[str, bool] = {}
        """The classes of the terminal's size."""
        self._arranged: dict[str, int | str] = {}
        """The height of each part; 0: it isn't shown."""
        self._fitted_to = Size(0, 0)
        """The size of the terminal that the parts have their room in."""
        self.joins = False
        """Whether counters and telemetry join the first screen: what they add has its room."""
        self._status_lines = 1
        self.unread = ""
        """The last message that had no room."""
        self._holder: Listing | None = None
        """The panel that was given the keys; None: the main one has them."""

    def compose(self) -> ComposeResult:
        # Before there are parts, so that the style of each is worked out once.
        self._sizes = size_classes(*self.app.size)
        self.update_classes(self._sizes, update=False)
        yield TooSmall()
        yield PlaceLine()
        with PaneRow(id="top"):
            yield Crumbs()
            yield Position()
        yield KeyFigures()
        with PaneRow(id="body"):
            yield ScopeTree()
            with PaneColumn(id="parts"):
                yield PicturePane()
                with PaneRow(id="middle"):
                    with PaneColumn(id="main"):
                        yield Curves(SignalPane(), SignalPane(1), id="curves")
                        yield FrameTable()
                    with PaneColumn(id="side"):
                        yield GpuPane()
                        yield DetailPane()
                        yield SecondPane()
                with PaneRow(id="below", classes="" if self._sizes["-panels"] else "-stacked"):
                    yield CardsPane()
                    yield EvidencePane()
                    yield Curves(SignalPane(), SignalPane(1), id="last")
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
        pane = self.picture_pane
        if self.lanes is None or not pane.display:
            return _BINS_UNSEEN
        return bins_of(self.lanes, pane.room)

    @property
    def signal_panes(self) -> list[SignalPane]:
        return [pane for pane in self.query(SignalPane) if pane.is_shown]

    @property
    def shows_picture(self) -> bool:
        return bool(self.picture_pane.display)

    def show_charts(self) -> None:
        self._show_pictures()
        for pane in () if isinstance(self.run, SeveralRuns) else self.signal_panes:
            name = self.data.signals[pane.number].signal.name
            pane.show(self.run, replace(self.view, signal=name))

    def _show_pictures(self) -> None:
        pane = self.picture_pane
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
    def part(self) -> View | None:
        """What the part under the bar's cursor leads to; None while others have the keys."""
        picture = self.listing
        return picture.part if isinstance(picture, PicturePane) else None

    @cached_property
    def _listings(self) -> Sequence[Listing]:
        """In the order that they are read in."""
        return [each for each in self.query(Widget) if isinstance(each, Listing)]

    @property
    def listing(self) -> Listing:
        """The panel that has the keys: the one they were given to, or else the main one."""
        if self._holder is not None and self._holder.takes_keys:
            return self._holder
        return self._main

    @property
    def _main(self) -> Listing:
        if isinstance(self.run, SeveralRuns) or (self.has_table_drawn and self.table.rows):
            return self.table
        if self.cards.takes_keys:
            return self.cards
        is_picture = bool(self.view.name) and not self.table.rows and self.picture_pane.takes_keys
        return self.picture_pane if is_picture else self.table

    def give_keys(self, panel: Listing | None) -> None:
        """Give the keys to a panel, or to the main one."""
        self._holder = panel
        self.mark_panels()

    def mark_panels(self) -> None:
        """Show by border and cursor which panel has the keys."""
        listing = self.listing
        for panel in self._listings:
            panel.give_keys(panel is listing)
        self.query_one(KeyLine).redraw()

    @property
    def panels(self) -> Sequence[Listing]:
        """The panels that take keys, in the order that they are read in; of a picture in the
        table's place also the table, whose cursor it shows."""
        return [each for each in self._listings if each.takes_keys or each is self._main]

    def next_panel(self, step: int) -> None:
        """Give the keys to the next panel of the screen that takes them."""
        panels = self.panels
        self.give_keys(panels[(panels.index(self.listing) + step) % len(panels)])

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
        is_in_cells = self._sizes.get("-panels") and not self._has_parts_above
        in_cells = self.data.bars.values() if is_in_cells else ()
        every = self.frame.charts or self.data.states
        return tuple(each for each in every if not any(each is other for other in in_cells))

    @property
    def _has_parts_above(self) -> bool:
        """Whether the parts of runs have a picture where their table could have them."""
        return self._sizes.get("-large", False) and isinstance(self.run, SeveralRuns)

    @property
    def _charts_seen(self) -> Sequence[Chart]:
        """The charts of the view; the same objects as long as nothing changes."""
        key = self.frame, self.lens, self._sizes.get("-panels", False), self._has_parts_above
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

    def say(self, message: str, error: bool = False) -> None:
        """Show a message until the next action, over the last line where none is free for it."""
        self.status.put(message=message, is_error=error)
        if message and self.status.is_cut(self.app.size.width):
            self.unread = message
        if self._arranged:
            self._show_status()
            self._fit_status()

    def _show_status(self) -> None:
        """Show the status line; a small screen has it for messages and a timeline's cursor."""
        is_wanted = self.has_lines or self.lanes is not None or bool(self.status.message)
        self.status.display = self.has_class("-fits") and is_wanted

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
        self.table.has_parts_above = self._has_parts_above
        heights = self._heights(sizes)
        if heights == self._arranged:
            return
        self._arranged = heights
        for name, lines in heights.items():
            part = self.query_one(name)
            part.display = bool(lines)
            part.styles.height = lines
        self.query_one("#top").display = sizes["-fits"]
        self._show_status()
        self.query_one(KeyLine).display = self.has_lines and not self.prompt.display
        self.mark_panels()  # Keys are never for what isn't shown.
        charts = len(self.signal_panes)
        has_curves = bool(heights["#curves"] or heights["#last"])
        self.set_class(has_curves and self.data.curves == 1, "-one-curve")
        self.table.spark_columns = 2 if self.data.has_signals else 0
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

    def _heights(self, sizes: Mapping[str, bool]) -> dict[str, int | str]:
        """The height of each part whose room depends on the others; 0: it isn't shown."""
        is_tree, is_open, is_timeline = not self.view.name, not self.zoom, self.lanes is not None
        headline = 1 if is_tree else len(self.query_one(KeyFigures).headline(self._fitted_to.width))
        if self.joins and self.view.name == OVERVIEW:
            headline = max(headline, 2 if sizes["-panels"] else 3)
        is_headed = sizes["-fits"] and self._fitted_to.height >= _MIN_HEADED
        most = _MAX_HEADLINE[sizes["-tall"]] if self.has_lines else int(is_headed)
        headline = min(max(headline, 1), most)
        if not (is_open or is_timeline):
            headline = 0
        around = headline + (4 if self.has_lines else 1 + is_timeline)
        body, frame = self._fitted_to.height - around, 2 * sizes["-panels"]
        if is_open and (self.has_lines or self._has_cards or is_timeline):
            lines = self._divided(body, frame, sizes)
        else:
            lines = {self._alone(sizes): body}
        below = [lines.get(part, 0) for part in ("CardsPane", "EvidencePane", "#last")]
        cards, evidence, last = below
        is_beside = last in (cards, evidence)
        self.query_one("#below").set_class(not is_beside, "-stacked")
        has_both = last == evidence and last >= _BOTH_CURVES
        self.query_one("#last").set_class(has_both, "-stacked")
        detail, curves = lines.get("#side", 0), lines.get("#curves", 0)
        table = lines.get("FrameTable", 0)
        second = _WHOLE if detail else (_SECOND if table >= 2 * _SECOND else 0)
        has_side = sizes["-wide"] and not self._has_cards and is_open
        in_scope = is_tree and "gpu" in dict(self.view.scope) and len(self.run.gpus) > 1
        self.query_one("#middle").set_class(bool(detail), "-stacked")
        self.query_one("#curves").set_class(curves > _TALL, "-stacked")
        self.scope_tree.set_class("ScopeTree" in lines, "-alone")
        has_tree = (sizes["-large"] and is_tree and is_open) or "ScopeTree" in lines
        if not sizes["-fits"]:
            table = 0
        return {
            "TooSmall": int(not sizes["-fits"]),
            "PlaceLine": int(self.has_lines),
            "KeyFigures": headline,
            "#body": _REST if sizes["-fits"] else 0,
            "ScopeTree": _WHOLE if has_tree else 0,
            "#parts": 0 if "ScopeTree" in lines else _REST,
            "PicturePane": lines.get("PicturePane", 0),
            "#middle": _REST if table or detail else 0,
            "#main": _REST if table else 0,
            "#curves": curves,
            "#side": detail or (_WHOLE if has_side and table else 0),
            "GpuPane": (len(self.run.gpus) + 2 + (frame or 1)) * in_scope,
            "#below": _REST if self.shows_sentences else sum(below) - (last if is_beside else 0),
            "CardsPane": _REST if cards else 0,
            "#last": last,
            "SecondPane": 0 if self.data.second is None else second,
            "EvidencePane": evidence,
        }

    def _alone(self, sizes: Mapping[str, bool]) -> str:
        """The part that has the screen alone: that of the panel with the keys, or the main one."""
        panel, is_tree = self._zoomed, not self.view.name
        if isinstance(panel, DetailPane) and sizes["-wide"] and not self._has_cards:
            return "#side"
        if isinstance(panel, ScopeTree) and sizes["-large"] and is_tree:
            return "ScopeTree"
        if self.shows_sentences or (isinstance(panel, CardsPane) and self._has_cards):
            return "CardsPane"
        is_picture = isinstance(panel, PicturePane) and self.charts
        if is_picture or self.lanes is not None:
            return "PicturePane"
        return "FrameTable"

    def zoom_panel(self) -> None:
        """Give the panel with the keys the whole screen, or show the others again."""
        self.zoom = not self.zoom
        self._zoomed = self.listing if self.zoom else None
        self.fit_parts()

    def _divided(self, body: int, frame: int, sizes: Mapping[str, bool]) -> dict[str, int]:
        """The lines of the parts below one another."""
        spare = _MIN_SPARE + bool(frame)
        if self.has_table_drawn and not self.shows_sentences:
            return self._in_place_of_table(body, frame)
        if self._has_cards:
            return self._over_cards(body, frame)
        signals = Room("#last", _MIN_SPARE + frame, _MIN_SPARE + frame, UNLIMITED)
        after = [signals] * (self.lanes is None and self.data.curves > 0)
        if self.shows_sentences:
            cards, evidence = self._cards_room(body, frame), self._evidence_room(spare, frame)
            return divided_lines(body, cards, evidence, *after)
        is_tree, rows = not self.view.name, len(self.frame) + self.table.heading_lines + frame
        # The lanes of a timeline are what it is for, its table is about them.
        has_few = frame and self.lanes is None
        least = min(rows, (_FEW_ROWS if has_few else _MIN_TABLE) + frame)
        picture, has_curves = self._picture_room(body, frame), bool(after) and self.chart != "off"
        # Below a table without pictures the detail has all of the width, until both have it.
        stacked = bool(frame) and not sizes["-large"] and (is_tree or not picture.wanted)
        # To plan the table of a view with many columns, which takes all of the width, costs a key.
        if stacked and not is_tree and sizes["-wide"] and len(self.frame.columns) <= _FEW_ROWS:
            width = self._fitted_to.width
            used = plan(self.frame, width, self.table.glyphs).used
            stacked = used > width - _SIDE
            rows = rows if stacked else max(rows, spare)  # The detail is next to it.
        side = [Room("#side", spare, _DETAIL if is_tree else spare, _DETAIL)] * stacked
        has_evidence = frame and self.lanes is None
        evidences = [self._evidence_room(spare, frame)] if has_evidence else []
        upper, middle = picture, [picture, *side]
        # On a large screen the curves are next to the evidence, which has the lines of its rows.
        are_beside = bool(evidences and after and sizes["-large"] and not is_tree)
        if are_beside:
            ((part, least_lines, wanted, _),) = evidences
            room = Room(part, max(least_lines, spare), max(wanted, spare), UNLIMITED)
            evidences = [room]
        # Below a table that would be cut for them they tell less than its rows.
        others = rows + picture.wanted + sum(each.least for each in evidences)
        has_room = others + signals.least <= body and not (stacked or are_beside)
        last = [*evidences, *after] if has_room else evidences
        if is_tree:
            share = round(_CURVES[self.chart] * body)
            upper = Room("#curves", max(share, frame and spare), _MAX_CURVES, UNLIMITED)
            tree_width = self.scope_tree.styles.width if sizes["-large"] else None
            width = self._fitted_to.width - frame - (tree_width.cells or 0 if tree_width else 0)
            bar = lines_wanted(self._pictures, width, self.table.glyphs)
            states = bar + 1 if frame and bar else 0
            curves = [upper] if has_curves else []
            middle = [Room("PicturePane", states, states)]
            middle += [*curves, *side] if self.chart == "full" else [*side, *curves]
            last = [] if stacked else evidences
        parts = [Room("FrameTable", least, rows, rows), *middle, *last]
        if self.lanes is not None:
            parts.insert(0, parts.pop(1))  # The table is left out before the lanes are.
        lines = divided_lines(body, *parts)
        # What nothing else uses is the detail's below the table, else the table's; a person moves
        # the line above it.
        lines["#side" if lines.get("#side") else "FrameTable"] += body - sum(lines.values())
        if are_beside:
            lines["#last"] = lines["EvidencePane"]
        moved = self.splits.get(self.view.name, 0)
        moved = min(max(moved, -lines.get(upper.part, 0)), lines["FrameTable"] - 2)
        if lines.get(upper.part) and lines["FrameTable"]:
            lines[upper.part] += moved
            lines["FrameTable"] -= moved
        return lines

    def _evidence_room(self, spare: int, frame: int) -> Room:
        """The lines of what the cursor's row leads to: inside of a node there are few rows."""
        # Of findings the lines of two change with a move, of questions the columns as well.
        is_large = self._sizes.get("-large", False)
        is_short = (self.shows_sentences or self.view.name == WHATIF) and not is_large
        wanted, rows = _DETAIL - (frame if is_short else 0), range(min(len(self.frame), _FEW_ROWS))
        most = _MOST_EVIDENCE if is_large and not self.shows_sentences else wanted
        targets = [self._evidence_of(self.frame, row) for row in rows]
        if all(target is None or not target.name for target in targets):
            children = (
                0
                if each is None or each.is_leaf
                else len(self._run_of(each).tree(each.order).children(each.path).groups)
                for each in targets
            )
            count = max(children, default=0)
            most = min(count + 1 + (frame or 1), most) if count else 0
        least = (spare if self.shows_sentences else _LEAST_EVIDENCE) + frame
        return Room("EvidencePane", min(least, most), min(wanted, most), most)

    def _picture_room(self, body: int, frame: int) -> Room:
        """The lines of a view's charts: a table scrolls, of a picture that is cut much is lost."""
        charts, glyphs, width = self._pictures, self.table.glyphs, self._fitted_to.width - frame
        wanted = lines_wanted(charts, width, glyphs) + frame
        if not charts or (self.chart == "off" and self.lanes is None):
            return Room("PicturePane", 0, 0)
        if self.lanes is not None or drawer_of(charts[0]).is_main:
            least = min(wanted, round(body * 2 / 3))
            if self.lanes is None:
                # The table below it has the lines that it needs to be scrolled.
                least = min(wanted, body - (_FEW_ROWS if frame else _MIN_TABLE) - frame)
            return Room("PicturePane", least, wanted, most_lines_below(charts, width, glyphs))
        share, fewest = round(_SHARES[self.chart] * body), min(_MIN_PICTURE, wanted)
        if share < fewest <= body - _MIN_TABLE:
            share = fewest
        elif share < fewest and not drawer_of(charts[0]).opens_with:
            return Room("PicturePane", 0, 0)  # Of one or two lines it shows nothing.
        least = max(share, wanted) if wanted <= body - _MIN_TABLE else share
        most = max(most_lines_below(charts, width, glyphs) + frame, least)
        least = lines_filled(charts, width - 2, min(least, most) - frame, glyphs) + frame
        most = lines_filled(charts, width - 2, min(most, max(body // 2, least)) - frame, glyphs)
        return Room("PicturePane", least, least, most + frame)

    def _in_place_of_table(self, body: int, frame: int) -> dict[str, int]:
        """A picture that has the table's rows; below it cards, and evidence where it has room."""
        width = self._fitted_to.width - 2 - frame
        most = most_lines_below(self._pictures[:1], width, self.table.glyphs) + frame
        cards = self._cards_room(body, frame) if self._has_cards else Room("CardsPane", 0, 0)
        evidence = self._evidence_room(_MIN_SPARE, frame)
        spare = evidence.least if self._sizes["-large"] else 0
        picture = min(most, body - min(cards.most, body // 4) - spare)
        # Rows get taller together: lines that are too few for that are of use below.
        first, glyphs = self._pictures[0], self.table.glyphs
        if picture - frame >= lines_wanted(self._pictures, width, glyphs):
            picture = drawer_of(first).fitted(first, width, glyphs, picture - frame) + frame
        below = [cards._replace(least=min(cards.least, body - picture - spare))] * self._has_cards
        below += [evidence] if frame else []
        lines = {"PicturePane": picture} | divided_lines(body - picture, *below)
        lines[below[-1].part if below else "PicturePane"] += body - sum(lines.values())
        return lines

    def _over_cards(self, body: int, frame: int) -> dict[str, int]:
        """A picture and the table over cards; curves next to these, or below where all fit."""
        wanted = lines_wanted(self._pictures, self._fitted_to.width, self.table.glyphs)
        wanted = max(wanted, _JOINED * self.joins)
        picture = min(wanted + frame - bool(frame), body // 3 + frame) if self.has_lines else 0
        cards, body = self._cards_room(body, frame), body - picture
        # Of GPUs without a figure, the names alone tell nothing.
        values = (self.frame.values[each.name] for each in self.frame.columns)
        is_told = self.view.name != LIVE or any(each.present().any() for each in values)
        rows = len(self.frame) + self.table.heading_lines + frame if is_told else 0
        most = cards.most or _MIN_SPARE
        table = min(rows, max(body // 2, body - most))
        below = body - table
        # Where little stands out and no curve is next to it, the row's detail has the lines.
        spare = below - max(cards.wanted, _MIN_SPARE + frame)
        has_room = bool(frame and cards.wanted and spare >= _MIN_SPARE + frame)
        is_history = self.view.name == LIVE
        has_room &= not is_history
        side = spare * (has_room and (below <= _MAX_CURVES or not self.data.curves))
        below -= side
        lines = {"PicturePane": picture, "FrameTable": table, "CardsPane": below, "#side": side}
        left = below - cards.wanted
        is_beside = bool(frame and below <= _MAX_CURVES)
        has_room = is_beside or bool(cards.wanted and left >= _MIN_SPARE)
        if has_room and self.chart != "off" and self.data.curves and not is_history:
            lines |= {"#last": below} if is_beside else {"CardsPane": cards.wanted, "#last": left}
        if is_history:
            # The signals of a GPU have the lines that its processes leave.
            most = most_lines_below(self._pictures, self._fitted_to.width, self.table.glyphs)
            more = max(min(lines["CardsPane"] - cards.most, most + frame - picture), 0)
            lines |= {"PicturePane": picture + more, "CardsPane": lines["CardsPane"] - more}
        return lines

    def _cards_room(self, body: int, frame: int) -> Room:
        """Of cards: in two lines each but the cursor's, all lines of all, and blank ones between.

        More to see below them is worth more than blank lines.
        """
        least, close, wanted = self.cards.lines_wanted(self._fitted_to.width)
        border = frame - 1 if frame and wanted else 0
        is_close = body - wanted < _MIN_SPARE <= body - close
        most = close if is_close else wanted
        return Room("CardsPane", min(least + border, body), close + border, most + border)

    @property
    def has_lines(self) -> bool:
        return self.has_class("-lines")

    def on_frame_table_moved(self, event: FrameTable.Moved) -> None:
        self.query_one(Position).put(row=event.row, rows=self.table.rows)
        if self.shows_sentences:
            self.cards.move_to(event.row)
        elif self.listing is not self.table or (self._has_cards and self.frame.is_pending):
            self.give_keys(self.table)  # Also once there are findings, which come later.
        self.query_one(KeyLine).redraw()
        self.follow_cursor()
        self.describe_soon(self.rest_s)

    @property
    def rest_s(self) -> float:
        """Seconds after which a cursor rests: the detail of millions of activities takes longer
        than the next key of a person."""
        return self.DETAIL_DELAY * (5 if len(self.run.table) > _MANY else 1)

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

    def explain_column(self, column: Metric | None) -> None:
        """Show what a column is in the line under the table; None: what stood there."""
        if column is None:
            self.status.put(pointed="")
            self.follow_cursor()
        else:
            text = f"{column.title}: {' '.join(column.definition.split())}"
            self.status.put(message="", is_error=False, pointed=text)

    def describe_soon(self, delay_s: float = 0.0) -> None:
        """Compute the detail of the cursor's row once the cursor rests and no step waits."""
        if self.query_one("#side").display or self.evidence.display:
            self._describe(self.DETAIL_DELAY if self.steps.waiting else delay_s)

    @work(exclusive=True, group="detail", description="detail")
    async def _describe(self, delay_s: float) -> None:
        pane = self.query_one(DetailPane)
        if pane.detail is not None and pane.detail.level != self.frame.level:
            pane.show(None)  # Of another place: that of millions of activities takes long.
        await asyncio.sleep(delay_s)
        frame, row, run = self.frame, self.table.cursor, self.run
        evidence, second = self.evidence, self.data.second
        if evidence.display:
            word, target = "evidence" if self.view.name else "inside", self._evidence_of(frame, row)
            opens = "none for this row" if target is None else _title_of(target)
            evidence.show(target, f"{word}  {opens}")
        if not self.query_one("#side").display:
            return
        title = "" if second is None else view_spec(second.name).title.lower()
        self.query_one(SecondPane).show(second, title)
        if not len(frame):
            self.query_one(DetailPane).show(None)
            return
        try:
            detail = await run_in_thread(detail_of, run, frame, row)
        except ChopperError as error:
            self.say(str(error), error=True)
            return
        self.query_one(DetailPane).show(detail)
        self.query_one(KeyLine).redraw()  # Tab leads to a detail that scrolls.
        name = crumb(frame.level, frame.labels[row])
        gpus = on_every_gpu(run, self.view, frame.labels[row])
        self.query_one(GpuPane).show(gpus, f"{name} on every GPU", *self.view.path[:1])

    def _run_of(self, view: View) -> Run:
        """The run of a row's view: the one on the screen, or its baseline."""
        return self.run.others.get(view.run, self.run)

    def _evidence_of(self, frame: Frame, row: int) -> View | None:
        """What a row leads to, unless that is a run that isn't open.

        Levels with one value only are passed through.
        """
        try:
            target = frame.target(row) if len(frame) and not frame.view.is_leaf else None
        except UsageError:
            target = None
        if target is None or isinstance(self.run, SeveralRuns):
            return None
        if target.run not in (self.run.name, *self.run.others):
            return None
        while target.name in ("", "icicle") and not target.is_leaf:
            children = self._run_of(target).tree(target.order).children(target.path)
            if len(children.groups) != 1 or target.level == "kernel":
                break
            target = enter(target, children.labels[0])
        return target

    def _loaded(self) -> None:
        if self.status.message.startswith(LOADING):
            self.say("")


def _title_of(view: View) -> str:
    """The name of a view's tab."""
    return view_spec(view.name).title if view.name else TABS[TREE].name
