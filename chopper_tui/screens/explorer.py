"""The Explore screen without its actions: its parts, and how a view gets onto them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from types import MappingProxyType
from typing import ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingsMap
from textual.reactive import Reactive
from textual.screen import Screen
from textual.widget import Widget

from chopper_core.model.charts import Chart, Lanes
from chopper_core.model.run import Run
from chopper_core.model.view import View, with_signal
from chopper_core.query.frame import Frame
from chopper_core.render.cells import crumb
from chopper_core.util.errors import ChopperError, UsageError
from chopper_tui import looks
from chopper_tui.actions import ACTIONS
from chopper_tui.background import away
from chopper_tui.config import AS_IT_COMES, Config
from chopper_tui.draw.charts import lines_below
from chopper_tui.draw.figures import detail as detail_of
from chopper_tui.history import Columns, Place, Trail, changed, dressed, moved, trail_to
from chopper_tui.keys import bindings_of
from chopper_tui.marks import Marks, marked_in
from chopper_tui.screens.arrangement import CHARTS, Arrangement, arrange
from chopper_tui.widgets.address_bar import AddressBar
from chopper_tui.widgets.crumbs import Crumbs, Position
from chopper_tui.widgets.detail import DetailPane
from chopper_tui.widgets.frame_table import FrameTable
from chopper_tui.widgets.gpu_pane import GpuPane
from chopper_tui.widgets.key_figures import KeyFigures
from chopper_tui.widgets.pane import Column, Row
from chopper_tui.widgets.picture_pane import PicturePane
from chopper_tui.widgets.prompt import Prompt
from chopper_tui.widgets.saying import Saying, lines_to_say
from chopper_tui.widgets.small import TooSmall
from chopper_tui.widgets.status import KeyLine, Status
from chopper_tui.widgets.track_chart import SignalPane

Step = Callable[[], Awaitable[None] | None]

UNDER_WAY: Final = "working on it"
"""How the line begins that says so of a step that takes long."""


class Explorer(Screen[None]):
    """Holds the trail of places; every change of view goes through `go`."""

    ALLOW_SELECT = False
    AUTO_FOCUS = ""
    focused: Reactive[Widget | None] = Reactive(None, repaint=False)
    """As every screen's; what gains it or loses it repaints itself, the others stay as they are."""
    DETAIL_DELAY: ClassVar[float] = 0.08
    """Seconds that the cursor rests on a row before its detail is worked out."""
    LONG_S: ClassVar[float] = 0.5
    """Seconds after which a step says that it is under way, and can be given up."""

    def __init__(
        self,
        run: Run,
        look: looks.Look,
        config: Config = AS_IT_COMES,
        columns: Columns = MappingProxyType({}),
    ) -> None:
        """Show a run, beginning with a look at one of its views."""
        super().__init__()
        if config.actions is not ACTIONS:
            self._bindings = BindingsMap(bindings_of(config.actions))
        self.config = config
        self.columns = dict(columns)
        """The columns that were chosen, by level."""
        self.run = run
        self.look = look
        self.trail: Trail = dressed(trail_to(look.frame.view), self.columns)
        self.last_trail: Trail | None = None
        self.marks: Marks = ()
        self.chart = config.chart or CHARTS[0]
        self.picture = 0
        """Which of a view's pictures is shown."""
        self.left: dict[object, Place] = {}
        """Views that were left for another question of the same scope, as they were."""
        self.latest: dict[str, str] = {}
        """Digit → the view that it opened last."""
        self.entries: list[tuple[View, Trail]] = []
        """Where rows of analyses led, and from where."""
        self.zoom = False
        self._arranged: Arrangement | None = None
        self._steps: deque[Step] = deque()
        self._stepping = False
        self._step: asyncio.Future[None] | None = None
        self._long_told: asyncio.TimerHandle | None = None
        self.is_long = False
        """Whether a step takes so long that keys no longer wait for it."""

    def compose(self) -> ComposeResult:
        """All parts; `fit_parts` decides which are shown."""
        yield TooSmall()
        with Row(id="top"):
            yield AddressBar()
            yield Crumbs()
            yield Position()
        yield KeyFigures()
        yield SignalPane()
        yield PicturePane()
        with Row(id="middle"):
            yield FrameTable()
            with Column(id="side"):
                yield PicturePane(id="side_picture")
                yield SignalPane(time_axis=False)
                yield SignalPane(1)
                yield GpuPane()
                yield DetailPane()
        yield Saying()
        yield Status()
        yield KeyLine()
        yield Prompt()

    def on_mount(self) -> None:
        """Give every part what it shows, before there is a layout: so it is painted once."""
        self.table.full_names = self.config.full_names
        self.show(self.look)
        if self.config.warnings:
            self.say(self.config.warnings[0], error=True)

    def trail_to(self, view: View) -> Trail:
        """The trail to a view from outside, with the columns chosen for each level."""
        return dressed(trail_to(view), self.columns)

    def on_resize(self) -> None:
        """Arrange the parts anew; the cursor stays."""
        self.fit_parts()

    @property
    def frame(self) -> Frame:
        """The frame on the screen."""
        return self.look.frame

    @property
    def view(self) -> View:
        """The view on the screen."""
        return self.frame.view

    @property
    def table(self) -> FrameTable:
        """The table."""
        return self.query_one(FrameTable)

    @property
    def here(self) -> Trail:
        """The trail with the cursor where it is now."""
        return moved(self.trail, self.table.label, self.table.offset_of_cursor)

    def say(self, message: str, error: bool = False) -> None:
        """Show a message until the next action; where there is no line for it, it takes one."""
        status = self.query_one(Status)
        status.say(message, error)
        if self._arranged is not None:
            status.display = not self._arranged.too_small and (
                self._arranged.lines or bool(message)
            )

    def take(self, step: Step) -> None:
        """Run a step after all steps that were taken before it, so that keys keep their order."""
        if self._stepping:
            self._steps.append(step)
            return
        pending = self._attempt(step)
        if pending is not None:
            self._stepping = True
            self._finish(pending)

    async def go(self, trail: Trail, message: str = "") -> None:
        """Show the last place of a trail; says why where that fails, and stays."""
        try:
            seen = await away(looks.look, self.run, trail[-1].view)
        except ChopperError as error:
            self.say(str(error), error=True)
            return
        self.arrive(trail, seen, message)

    def arrive(self, trail: Trail, seen: looks.Look, message: str = "") -> None:
        """Show a look at the last place of a trail."""
        before, after = self.view, trail[-1].view
        if (before.path, before.name) != (after.path, after.name):
            self.last_trail = self.here
        if (before.name, before.by) != (after.name, after.by):
            self.picture = 0
        self.trail = trail
        self.show(seen)
        self.say(message)

    async def change(self, view: View) -> None:
        """Show the same scope with another sort, filter, order or columns."""
        await self.go(changed(self.here, view))

    def show(self, seen: looks.Look) -> None:
        """Put a look on the screen, with the cursor where the trail says."""
        self.look = seen
        place = self.trail[-1]
        self.query_one(KeyFigures).show(seen)
        self.fit_parts()
        self.query_one(Crumbs).show(seen.frame, self.run.generated is not None)
        self.query_one(Status).show(seen.frame)
        self.query_one(KeyLine).show(seen.frame.view.name)
        self.table.show(seen.frame, seen.signals, _row_of(seen.frame, place), place.offset)
        self.query_one(Position).show(self.table.cursor, len(seen.frame))
        self.show_marks()
        self._show_charts()
        self.query_one(Saying).show(self.frame, self.table.cursor)
        self.follow()
        self.describe_soon()

    def follow(self) -> None:
        """Do what follows the cursor: a subclass knows what."""

    def show_marks(self) -> None:
        """Show which of the rows are marked, and how many there are in all."""
        self.table.mark(marked_in(self.marks, self.view))
        self.query_one(Status).count(len(self.marks))

    def fit_parts(self) -> None:
        """Give each part its room."""
        gpus = len(self.run.gpus) if "gpu" in dict(self.view.scope) else 0
        pictures, told = self._pictures, 0
        if self.view.name:
            gpus = 0
            told = len(self.query_one(KeyFigures).told(self.app.size.width))
        now = arrange(
            *self.app.size,
            chart=self.chart,
            zoom=self.zoom,
            gpus=gpus,
            picture=lines_below(pictures[:1], self.app.size.width, self.table.glyphs),
            pictures=lines_below(pictures, self.app.size.width, self.table.glyphs),
            rows=len(self.frame),
            told=told,
            said=lines_to_say(self.frame, self.app.size.width),
            along_time=bool(pictures) and isinstance(pictures[0], Lanes),
        )
        if now == self._arranged:
            return
        self._arranged = now
        self.query_one(TooSmall).display = now.too_small
        self.query_one("#middle").display = not now.too_small
        marked = self.run.generated is not None and not now.too_small
        self.query_one("#top").display = now.lines or marked or self.query_one(AddressBar).is_open
        self.query_one(Position).styles.width = 18 if now.lines else 12
        self.query_one(Status).display = now.lines or bool(
            self.query_one(Status).message and not now.too_small
        )
        self.query_one(KeyLine).display = now.lines and not self.query_one(Prompt).is_open
        self.query_one(KeyFigures).display = bool(now.figures)
        self.query_one(KeyFigures).styles.height = now.figures
        self.query_one("#side").styles.width = now.side
        self.query_one("#side").display = bool(now.side)
        self.table.spark_columns = now.sparks
        for chart, height in zip(self.query(SignalPane), now.charts, strict=True):
            chart.styles.height = height
            chart.display = bool(height)
        for pane, height in zip(self.query(PicturePane), now.pictures, strict=True):
            pane.styles.height = height
            pane.display = bool(height)
        self._show_charts()
        self.query_one(Saying).styles.height = now.said
        self.query_one(Saying).display = bool(now.said)
        self.query_one(GpuPane).styles.height = now.gpus
        self.describe_soon()

    def describe_soon(self, delay_s: float = 0.0) -> None:
        """Work out the detail of the cursor's row, once the cursor rests and no step waits."""
        if self._arranged is not None and self._arranged.side:
            self._describe(self.DETAIL_DELAY if self._steps else delay_s)

    def on_frame_table_moved(self, event: FrameTable.Moved) -> None:
        """Follow the cursor."""
        self.query_one(Position).show(event.row, self.table.rows)
        self.query_one(Saying).show(self.frame, event.row)
        self.follow()
        self.describe_soon(self.DETAIL_DELAY)

    def next_picture(self) -> None:
        """The picture after this one."""
        if len(self.frame.charts) < 2:
            raise UsageError("this view has no other picture")
        self.picture = (self.picture + 1) % len(self.frame.charts)
        self.fit_parts()
        self._show_charts()

    @property
    def _pictures(self) -> Sequence[Chart]:
        """Those of the view, from the chosen one on."""
        pictures = self.frame.charts
        at = min(self.picture, max(len(pictures) - 1, 0))
        return (*pictures[at:], *pictures[:at])

    def _show_pictures(self) -> None:
        for pane in self.query(PicturePane):
            if pane.display:
                pane.show(self._pictures, self.table.cursor)

    def _show_charts(self) -> None:
        self._show_pictures()
        names = [signal.signal.name for signal in self.look.signals]
        for chart in self.query(SignalPane):
            if chart.display:
                chart.show(self.run, with_signal(self.view, names[chart.number]))

    def _attempt(self, step: Step) -> Awaitable[None] | None:
        try:
            pending = step()
        except ChopperError as error:
            self.say(str(error), error=True)
            return None
        return pending if isawaitable(pending) else None

    @work(group="steps", description="steps")
    async def _finish(self, pending: Awaitable[None] | None) -> None:
        try:
            while True:
                if pending is not None:
                    await self._wait_for(pending)
                if not self._steps:
                    return
                pending = self._attempt(self._steps.popleft())
        finally:
            self._stepping = False

    async def _wait_for(self, pending: Awaitable[None]) -> None:
        """Wait for a step, and say so where it takes long; it may be given up meanwhile."""
        loop = asyncio.get_running_loop()
        self._step = asyncio.ensure_future(pending)
        self._long_told = loop.call_later(self.LONG_S, self._tell_long, loop.time())
        try:
            await asyncio.wait([self._step])
        finally:
            self._step.cancel()
            self._long_told.cancel()
        was_long, self.is_long = self.is_long, False
        if was_long and self.query_one(Status).message.startswith(UNDER_WAY):
            self.say("")
        if self._step.cancelled():
            self._steps.clear()
            self.say("given up")
            return
        error = self._step.exception()
        if isinstance(error, ChopperError):
            self.say(str(error), error=True)
        elif error is not None:
            raise error

    def _tell_long(self, since: float) -> None:
        loop = asyncio.get_running_loop()
        self.is_long = True
        self.say(f"{UNDER_WAY}, {loop.time() - since:.0f} s; Esc gives it up")
        self._long_told = loop.call_later(1.0, self._tell_long, since)

    def give_up(self) -> None:
        """Stay where the screen is: what was asked for is not shown when it is there."""
        if self._step is not None:
            self._step.cancel()

    @property
    def is_busy(self) -> bool:
        """Whether a step is under way: the view is about to change."""
        return self._stepping

    @work(exclusive=True, group="detail", description="detail")
    async def _describe(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        frame, row = self.frame, self.table.cursor
        if not len(frame):
            self.query_one(DetailPane).show(None)
            return
        try:
            detail = await away(detail_of, self.run, frame, row)
            times = await away(
                looks.on_gpus, self.run, frame, row, self.query_one(GpuPane).spark_cells
            )
        except ChopperError as error:
            self.say(str(error), error=True)
            return
        self.query_one(DetailPane).show(detail)
        self.query_one(GpuPane).show(crumb(frame.level, frame.labels[row]), times)


def _row_of(frame: Frame, place: Place) -> int:
    if place.label is None:
        return 0
    try:
        return frame.labels.index(place.label)
    except ValueError:
        return 0
