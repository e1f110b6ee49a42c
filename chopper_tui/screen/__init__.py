"""The explorer's screen: where a person is in a run, how a view gets there, pointing."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace
from rich.text import Text
from textual import events, work
from textual.binding import Binding, BindingsMap
from textual.widgets import Input

from chopper_core.model import address
from chopper_core.model.charts import Lanes, StepBars
from chopper_core.model.memo import LazyMap
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.tables.mmap_columns import let_go
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.util.memory import give_back
from chopper_core.views.frame import Frame
from chopper_core.views.spec import SeveralRuns
from chopper_tui import screen_data
from chopper_tui.config import Config
from chopper_tui.draw.canvas import WHOLE, Cell
from chopper_tui.draw.charts import drawer_of
from chopper_tui.history import (
    Columns,
    Marks,
    Trail,
    Visit,
    changed,
    marked_in,
    moved_row,
    place_of,
    trail_to,
    with_columns_of,
)
from chopper_tui.keymap import EXPLORE, LIVE, Action
from chopper_tui.places import Tabs, reason_against, tabs_at, tabs_of
from chopper_tui.screen.parts import ScreenParts
from chopper_tui.screen_data import ScreenData
from chopper_tui.steps import run_in_thread
from chopper_tui.textual_internals import key_of_character, resume
from chopper_tui.widgets.cards_pane import cards_of
from chopper_tui.widgets.chart_panes import PicturePane
from chopper_tui.widgets.footer import KeyLine, Question
from chopper_tui.widgets.header import Crumbs, KeyFigures, PlaceLine, Position

if TYPE_CHECKING:
    from chopper_tui.widgets.dialogs import Dialog, Options, Search

T = TypeVar("T")
Answer = Callable[[T], Awaitable[None] | None]
_REST_S: Final = 3.0
"""Once nothing has changed for so long, memory that views no longer need is given back."""
_LONG_REST_S: Final = 20.0
"""The same of what was worked out of a run, but for this:"""
_KEPT_AT_REST: Final = 16 << 20
"""Bytes, the latest first: frames of the places that were seen, and what is behind the last one."""


class Explorer(ScreenParts):
    """Holds the trail of places; every change of view goes through `go`."""

    def __init__(
        self,
        run: Run,
        data: ScreenData,
        actions: Sequence[Action],
        config: Config,
        columns: Columns = MappingProxyType({}),
    ) -> None:
        super().__init__(run, data, actions, config)
        self._bindings = BindingsMap(bindings_of(actions))
        self._presses = 1
        """Of the key that is performed next."""
        self.notice = ""
        self._begin(run, data, columns)
        self.is_paused = False
        """Whether a run that is followed stays as it is on the screen."""
        self._rests: tuple[asyncio.TimerHandle, ...] = ()

    def _begin(self, run: Run, data: ScreenData, columns: Columns) -> None:
        """Be at the first view of a run that was opened, with no place before it."""
        self.columns = dict(columns)
        self.trail: Trail = with_columns_of(trail_to(data.frame.view), self.columns)
        self.landing = data.frame.view
        """The view that the run was opened at."""
        self.past: list[Trail] = []
        """Where a person was before, the latest last."""
        self._before_pending: tuple[Trail, list[Trail]] | None = None
        """Where a person was, and before that, when a view came that is still worked out."""
        self.future: list[Trail] = []
        """Where they came back from, the next last."""
        self.marks: Marks = ()
        self.searched = ""
        self.left: dict[object, Visit] = {}
        """Views that were left for another view of the same scope, as they were."""
        self.lacking: dict[tuple[str, tuple[str, ...], str], str] = {}
        """Run, path and view that were asked for in vain → the reason."""
        self.told_moved: set[str] = set()
        """Keys of views that moved, which said so."""
        self.entries: list[tuple[View, Trail]] = []
        """The evidence that rows of views led to, and runs that were entered from a set; with each
        the trail to come back on."""
        self.finding = (data.frame.view, "")
        """The evidence that was opened last, and the finding that it is of."""
        self.home = run
        """The run that was opened, or the set that the run on the screen is of."""
        self._was_complete = False
        self._marks_of: dict[str, Marks] = {}
        """The marks in runs that aren't on the screen."""

    def on_mount(self) -> None:
        """Fill every part before there is a layout, so that it is painted once."""
        self.table.full_names = self.config.full_names
        self.show(self.data)
        if self.config.warnings:
            self.say(self.config.warnings[0], error=True)
        elif self.notice:
            self.say(self.notice, error=True)
        elif self.config.is_first:
            self.say("new here? :tour shows around in a minute, ? helps")

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        """Keep the styles of all parts: nothing in them depends on which screen is on top."""
        event.prevent_default()
        resume(self)

    @property
    def target(self) -> View:
        """The view that the cursor's row, card or part leads to; raises UsageError without one."""
        if self.part is not None:
            return self.part
        if self.listing is self.cards and not self.shows_sentences:
            card = self.cards.card
            if card is None:
                raise UsageError("there is no finding to open")
            view = address.parse(card.address)
            return replace(view, overrides=self.view.overrides)
        if not self.table.rows:
            raise UsageError("there is no row to enter")
        return self.frame.target(self.table.cursor)

    @property
    def here(self) -> Trail:
        return moved_row(self.trail, self.table.label, self.table.offset_of_cursor)

    @property
    def accepts_keys(self) -> bool:
        """Whether a key can be performed now: no step runs, or one that keys don't wait for."""
        return self.is_mounted and (not self.steps.is_busy or self.steps.is_long)

    def adds_up(self, key: str) -> bool:
        """Whether several presses of a key in a row are performed as one."""
        bound = [each for each in self.actions.values() if each.view in ("", self.view.name)]
        bound = [each for each in bound if key in map(_textual_key, each.keys)]
        own = min(bound, key=lambda each: not each.view, default=None)
        return own is not None and own.adds_up and not self.prompt.display

    def press(self, times: int) -> None:
        """Say how often the key was pressed that is performed next."""
        self._presses = times

    def action_perform(self, action_id: str, argument: str = "") -> None:
        """Perform an action after those before it; while a step takes long, only what can be."""
        action, presses = self.actions[action_id], self._presses
        self._presses = 1
        if self.steps.is_long and action.cancels:
            self.steps.cancel()
            return

        def step() -> Awaitable[None] | None:
            if self.app.screen is not self:
                return None  # A dialog was opened during that time.
            self.say("")
            return action.perform(self, argument, presses)

        if self.steps.is_long and action.while_busy:
            action.perform(self, argument)
        else:
            self.steps.add(step)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        known = self.actions.get(str(parameters[0])) if action == "perform" and parameters else None
        return known is None or not known.view or known.view == self.view.name

    async def go(self, trail: Trail, message: str = "") -> None:
        """Show the last place of a trail; where that fails, say why and stay."""
        view = trail[-1].view
        try:
            run, data = await run_in_thread(self._load_shown, self.home, view)
        except ChopperError as error:
            self.say(str(error), error=True)
            return
        if isinstance(run, SeveralRuns):
            # A set has no tree: its table stands for it.
            trail = (replace(trail[-1], view=data.frame.view),)
        self.arrive(trail, data, message, run)

    def _load_shown(self, home: Run, view: View) -> tuple[Run, ScreenData]:
        run = screen_data.run_shown(home, view)
        return run, self._load(run, view)

    def _load(self, run: Run, view: View, *, is_complete: bool = False) -> ScreenData:
        width = self.size.width
        return screen_data.screen_data(run, view, is_complete=is_complete, width=width)

    async def change(self, view: View, message: str = "") -> None:
        await self.go(changed(self.here, view), message)

    async def open_evidence(self, view: View, message: str = "") -> None:
        """Go to the evidence of a row or a card, and remember the way back."""
        before = self.here
        await self.go(self.trail_to(view), message)
        if not self.status.is_error:
            self.entries.append((self.view, before))

    def arrive(
        self, trail: Trail, data: ScreenData, message: str = "", run: Run | None = None
    ) -> None:
        """Show the data of the last place of a trail, by default of the run on the screen."""
        before, after = self.view, trail[-1].view
        if not data.frame.is_pending:
            self._before_pending = None
        elif not self.frame.is_pending:
            self._before_pending = self.here, self.past
        if (before.run, before.path, before.name) != (after.run, after.path, after.name):
            self.past = [*self.past, self.here]
            self.future = []
        if (before.name, before.by) != (after.name, after.by):
            self.picture = 0
        if (before.name, before.by, before.path) != (after.name, after.by, after.path):
            self.lens = WHOLE
            self.cell = (0, self.cell[1])
            if isinstance(self._holder, PicturePane):
                self._holder = None
        if isinstance(self.run, SeveralRuns) and not isinstance(run or self.run, SeveralRuns):
            # However a run is entered, Esc goes back to the table of runs as it was left.
            others = [each for each in self.entries if each[0].run != after.run]
            self.entries = [*others, (data.frame.view, self.here)]
        self.trail = trail
        if run is not None and run.name != self.run.name:
            self._marks_of[self.run.name] = self.marks
            self.marks = self._marks_of.get(run.name, ())
        self.run = run or self.run
        self.show(data)
        self.say(message)

    def take(self, run: Run, data: ScreenData, columns: Columns, message: str) -> None:
        """Show a run that was opened in place of the one before, of which nothing stays."""
        self.is_paused = False
        self.tell("")
        self.arrive(trail_to(data.frame.view), data, message, run)
        self._begin(run, data, columns)
        self.show(data)

    async def reload(self, load: Callable[[], Run]) -> None:
        """Read the run again and show the same place of it, or the nearest above that it has."""
        self.home = await run_in_thread(load)
        self._was_complete = False
        self.lacking.clear()
        self.tell("")
        trail = self.here
        await self.go(trail)
        while self.status.is_error and len(trail) > 1:
            trail, why = trail[:-1], self.status.message
            await self.go(trail, why)

    def tell(self, news: str) -> None:
        """Show in the breadcrumb's line that files changed, or how fresh the data is."""
        for crumbs in self.query(Crumbs):
            crumbs.put(news=news)

    def follow(self, run: Run | None) -> bool:
        """Show the newest state of a run that is followed; False where that has to wait."""
        if not self.is_mounted or self.is_paused or self.steps.is_busy:
            return False
        if self.prompt.display or self.app.screen is not self:
            return False
        if run is not None or self.view.name == LIVE:
            self.steps.add(partial(self._show_newest, run or self.home))
        return True

    async def _show_newest(self, run: Run) -> None:
        """Show the same place of a run, with the cursor on the row that it is on now."""
        before = self.home if isinstance(self.home, SeveralRuns) else self.run
        view = self.view
        if run is not before and not isinstance(run, SeveralRuns) and view.run == run.name:
            from chopper_core.views.live import followed

            view = await run_in_thread(followed, before, run, view)
        try:
            shown, data = await run_in_thread(self._load_shown, run, view)
        except ChopperError as error:
            self.say(str(error), error=True)
            return
        here, holder = self.here, self._holder
        if self.frame.level == "iteration" and self.table.cursor == self._row_of(self.frame, None):
            here = (*here[:-1], replace(here[-1], label=None))
        if view.path != self.view.path:
            here = (*self.trail_to(view)[:-1], replace(here[-1], view=view))
        self.home, self.run, self.trail = run, shown, here
        self.show(data)
        if self._holder is not holder:
            self.give_keys(holder)

    @property
    def tabs(self) -> Tabs:
        return tabs_of(self.run)

    @property
    def place(self) -> str:
        """The digit of the place that the view is at; empty without one."""
        tabs, name = self.tabs, self.view.name or EXPLORE
        return tabs[name].place if name in tabs else ""

    @property
    def step(self) -> str:
        """The number of the step that the cursor is in or on; empty outside steps."""
        is_row = self.frame.level == "iteration" and self.listing is self.table
        label = dict(self.view.scope).get("iteration") or (is_row and self.table.label) or ""
        return label if label.isdecimal() else ""

    def reason_against(self, name: str) -> str:
        """Why the scope can't have a view, as far as is known; empty: it may."""
        known = self.lacking.get((self.run.name, self.view.path, name), "")
        return known or reason_against(self.home, self.run, name)

    def lack(self, name: str) -> None:
        """Remember why a view that was just asked for can't be shown, as the message says."""
        self.lacking[self.run.name, self.view.path, name] = self.status.message
        self._show_place(self.frame)

    def _show_place(self, frame: Frame) -> None:
        tabs, place = self.tabs, self.place
        shown = [
            (each, tabs[each].title, not self.reason_against(each)) for each in tabs_at(tabs, place)
        ]
        self.query_one(PlaceLine).put(place=place)
        self.query_one(Crumbs).put(frame=frame, marks=self.run.marks, tabs=shown)

    def trail_to(self, view: View) -> Trail:
        return with_columns_of(trail_to(view), self.columns)

    def show(self, data: ScreenData) -> None:
        """Put data on the screen, with the cursor at the trail's position."""
        is_same_place = place_of(self.data.frame.view) == place_of(data.frame.view)
        if not is_same_place:
            self.picture_pane.forget()
        self.data = data
        frame, place = data.frame, self.trail[-1]
        row = self._row_of(frame, place.label)
        if self._holder is self.side:
            self._holder = None
        self.cards.show(cards_of(frame), row if self.shows_sentences else None)
        self.query_one(KeyFigures).put(data=data)
        self.fit_parts()
        is_set = isinstance(self.run, SeveralRuns)
        self._show_place(frame)
        self.status.put(frame=frame, pointed="")
        self.table.show(data, row, place.offset)
        self.query_one(KeyLine).view = frame.view.name  # It is drawn with the marks of panels.
        self.query_one(Position).count(self.table.cursor, len(frame))
        self._mark_rows()
        self.show_charts()
        self.mark_panels()
        self.show_lanes()
        self.follow_cursor()
        self.describe_soon(self.rest_s if is_same_place and self.lanes is not None else 0.0)
        if self.scope_tree.display and not is_set:
            self.scope_tree.show(self.run, frame.view)
        if frame.is_pending:
            self.call_after_refresh(self._fill_in)  # What is there is painted first.
        elif not self._was_complete:
            self._was_complete = True
            self.call_after_refresh(self.app.verify_soon)  # type: ignore[attr-defined]
        for each in self._rests:
            each.cancel()
        loop = asyncio.get_running_loop()
        self._rests = (
            loop.call_later(_REST_S, run_in_thread, _give_back),
            loop.call_later(_LONG_REST_S, run_in_thread, _leave, self.home, self.run),
        )

    def _row_of(self, frame: Frame, label: str | None) -> int:
        """The row of a label, or else the first that counts: not a truncated step.

        Of the steps of a run that is followed it is the newest that counts.
        """
        if label is not None and label in frame.labels:
            return frame.labels.index(label)
        counted = (row for row in range(len(frame)) if not (frame.left_out and frame.is_cut(row)))
        is_followed = self.app.follower is not None  # type: ignore[attr-defined]
        if is_followed and frame.level == "iteration":
            numbered = [row for row in counted if frame.labels[row].isdecimal()]
            return max(numbered, key=lambda row: int(frame.labels[row]), default=0)
        return next(counted, 0)

    @work(exclusive=True, group="fill", description="fill")
    async def _fill_in(self) -> None:
        """Show the rest of a frame when it is there; nothing moves but rows sorted by the rest."""
        run, view = self.run, self.view
        try:
            made = run_in_thread(self._load, run, view, is_complete=True)
            data = await asyncio.shield(made)  # It is wanted again by who comes back.
        except ChopperError as error:
            self.steps.add(partial(self._leave_unanswered, view, str(error)))
            return
        if self.view == view and self.run is run:
            # A cursor that still waits on the first row is on the first of the sorted ones.
            here = self.listing
            is_chosen = bool(self.table.cursor) or self._holder is here
            if self.table.cursor:
                self.trail = self.here
            self.show(data)
            if is_chosen and self.listing is not here:
                self.give_keys(here)  # What arrives takes no keys from where a person is.

    async def _leave_unanswered(self, view: View, reason: str) -> None:
        """Go back from a view that has no answer, as found out behind its first rows."""
        if self.view == view and self.frame.is_pending and self._before_pending:
            before, past = self._before_pending
            await self.go(before)
            self.past = past
        self.say(reason, error=True)

    def _mark_rows(self) -> None:
        self.table.mark(marked_in(self.marks, self.view, self.frame.level))
        self.status.put(marks=len(self.marks))

    def show_marks(self) -> None:
        self._mark_rows()
        self.query_one(KeyLine).redraw()

    def move(self, rows: int) -> None:
        """Move the cursor; past the last row of the table it is on the cards, and back."""
        table, cards, here = self.table, self.cards, self.listing
        lanes = self.lanes
        if here is table and lanes is not None and rows < 0 and not table.cursor:
            # Above the first lane stands the straggler's, where it has no room at its own place.
            if lanes.late and self.picture_pane.is_above(lanes.late):
                table.move_to_label(lanes.late)
        elif here is cards and cards.cursor + rows < 0 and not self.shows_sentences:
            self.give_keys(table)
            table.move_to(table.rows - 1)
        elif here is table and rows > 0 and table.cursor == table.rows - 1 and cards.takes_keys:
            self.give_keys(cards)
            cards.move_to(0)
        else:
            here.move(rows)

    def explained(self) -> list[tuple[str, str]]:
        """What the cursor is on: a part of the bar, a finding, or else the sorted column."""
        from chopper_core.views.shared import evidence

        card, here = self.cards.card, self.listing
        if here is self.cards and card is not None:
            return evidence.explained_finding(self.run, self.view, card)
        if isinstance(here, PicturePane) and isinstance(here.bar, StepBars):
            return evidence.explained_step(here.bar, here.bar.listed[here.cursor])
        title = here.part_name if isinstance(here, PicturePane) else ""
        return evidence.explained_column(self.frame, (self.part or self.frame).sort, title)

    def point_at_lane(self, label: str, cell: int) -> None:
        """Put the cursor on the lane that a label begins with, and at a time."""
        lanes = self.lanes.lanes if self.lanes is not None else ()
        named = [name for name in lanes if f"{label} ".startswith(f"{name} ")]
        self.table.move_to_label(max(named, key=len, default=None))
        self.perform_at("at", cell)

    def point_at_cell(self, cell: Cell) -> None:
        """Put the cursor on a cell of a picture; the cursor's own opens."""
        if cell != self.cell_shown:
            self.move_to_cell(cell)
        elif action_id := drawer_of(self._pictures[0]).opens_with:
            self.action_perform(action_id)

    def perform_at(self, action_id: str, cell: int) -> None:
        if self.lanes is not None and 0 <= cell < self.time_cells:
            self.action_perform(action_id, self._time_of(self.lanes, cell))

    def measure_cells(self, *ends: int) -> None:
        if self.lanes is not None and not self.steps.is_busy:
            cells = [min(max(cell, 0), self.time_cells - 1) for cell in ends]
            times = [self._time_of(self.lanes, cell) for cell in cells]
            self.action_perform("measure", " ".join(times))

    def _time_of(self, lanes: Lanes, cell: int) -> str:
        seen = lanes.seen
        return f"{seen.from_ns + (2 * cell + 1) * seen.length_ns // (2 * self.time_cells)}ns"

    def open_dialog(self, dialog: Dialog[T], then: Answer[T] | None = None) -> None:
        """Open a dialog over the explorer; its answer, if there is one, is a step."""
        if self.app.screen is not self:
            return
        if then is not None:
            dialog.answered = lambda answer: self.steps.add(partial(then, answer))
        self.app.push_screen(dialog)

    def choose(
        self,
        title: str,
        options: Options,
        current: str | None,
        then: Answer[str],
        search: Search | None = None,
    ) -> None:
        from chopper_tui.widgets.dialogs import Chooser

        self.open_dialog(Chooser(title, options, current, search), then)

    def read(self, title: str, text: Text, *, passes_digits: bool = False, at: str = "") -> None:
        """Show a text over the explorer, from the first line on that has the words of `at`."""
        from chopper_tui.widgets.reader import TextReader

        perform = self.action_perform
        self.open_dialog(TextReader(title, text, perform, passes_digits=passes_digits, at=at))

    def ask(self, sign: str, text: str, entered: Answer[str], **options: Any) -> None:
        """Take a line of text at the bottom."""
        self.query_one(KeyLine).display = False
        self.prompt.open(Question(sign, text, entered, **options))

    @property
    def typed(self) -> str:
        return self.prompt.line.value

    def close_prompt(self) -> None:
        self.prompt.display = False
        self.set_focus(None)
        self.query_one(KeyLine).display = self.has_lines
        self.status.put(pointed="")
        self.follow_cursor()

    def on_input_changed(self, event: Input.Changed) -> None:
        prompt = self.prompt
        if prompt.display and prompt.line.question.changed is not None:
            self.steps.add(prompt.line.question.changed)


def _give_back() -> None:
    give_back()
    let_go()


def _leave(*runs: Run) -> None:
    """Leave to others on the node what was needed for places that were seen a while ago."""
    for run in runs:
        others = run.others
        opened = others.made() if isinstance(others, LazyMap) else others.values()
        for each in (run, *opened):
            each.memo.trim(_KEPT_AT_REST)
    gc.collect()  # Much of it refers to itself.
    _give_back()


def bindings_of(actions: Iterable[Action]) -> list[Binding]:
    return [
        Binding(
            ",".join(map(_textual_key, keys)),
            f"perform('{action.id}', '{given}')" if given else f"perform('{action.id}')",
            action.title,
            show=False,
            id=action.id + given,
            tooltip=action.help,
        )
        # The keys of a view come before those of all views: the first that holds is performed.
        for action in sorted(actions, key=lambda each: not each.view)
        for keys, given in action.bound
    ]


@cache
def _textual_key(key: str) -> str:
    *modifiers, last = key.split("+") if len(key) > 1 else [key]
    return "+".join([*modifiers, key_of_character(last) if len(last) == 1 else last])
