"""The app: it loads the run, shows the explorer, and hands keys to it in order."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Event
from time import monotonic, time
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.console import RenderableType
from textual import events, on, work
from textual.app import App
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.filter import LineFilter
from textual.geometry import Size
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Input
from textual.worker import WorkerFailed

from chopper_core.answers.opening import ReadOptions, asked_view, home_of, open_view
from chopper_core.model import address
from chopper_core.model.phrases import facts
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.render.glyphs import Glyphs
from chopper_core.util import debug
from chopper_core.util.errors import ChopperError
from chopper_core.util.escape import printable
from chopper_core.util.memory import give_back, internal_error, is_out_of_memory, memory_error
from chopper_core.util.progress import Cancelled, Progress
from chopper_core.views.spec import SeveralRuns
from chopper_tui.actions import ACTIONS
from chopper_tui.config import DEFAULTS, Config, typed_setting, write_crash
from chopper_tui.draw.theme import THEMES, AsciiFilter, Inks, inks, textual_theme
from chopper_tui.driver import INTERRUPT, TerminalDriver
from chopper_tui.history import Columns
from chopper_tui.keymap import Action, is_key
from chopper_tui.last_screen import LastScreen
from chopper_tui.opening import Opening
from chopper_tui.screen import Explorer
from chopper_tui.screen_data import ScreenData, screen_data
from chopper_tui.steps import run_in_thread
from chopper_tui.terminal import can_erase, glyphs_of, terminal_size
from chopper_tui.textual_internals import ShownCells, fire, perform_key, without_toasts
from chopper_tui.widgets.footer import PromptLine

if TYPE_CHECKING:
    from chopper_core.ingest.follow import Follower
    from chopper_core.model.recent import AlarmEvent
    from chopper_tui.widgets.dialogs import LoadingScreen

INTERRUPTED = 130
EXCEEDED = 4
_MAX_TYPED = 1000
_KEY_CHECK_S = 0.002
"""Seconds between looks whether the next key can be performed."""
_KEEPS_AFTER_S = 1.0
"""Seconds after the first paint at which a first screen is kept, unless a key comes before."""
_KEEPS_WITHIN_S = 0.25
"""Seconds between looks whether one that takes longer is complete: a person may leave soon."""
_COMPLETE_S = 0.1
"""Seconds after which the parts that follow a first paint are there."""
_KEPT_PATIENCE_S = 2.0
"""Seconds of opening a run after which its progress replaces the screen as it was seen last."""
_JOIN_S = 0.05
"""Seconds between tries to show the rest of a run."""

_POLL_SHARE: Final = 20
"""Looking at files takes at most one part in so many of the time: directories may be large."""
_FOLLOW_SHARE: Final = 4
_GIVE_BACK_S: Final = 60.0
"""Between two times that freed memory is given back while a run is followed."""
_AT_ONCE: Final = ("ctrl+z",)
_CANCELS: Final = ("escape", "q")
"""Keys that cancel loading unless others wait for it."""
_TURNS: Final = events.MouseDown | events.MouseScrollDown | events.MouseScrollUp
"""Events of the mouse that stand for keys."""


class ChopperApp(App[None], inherit_bindings=False):
    """An explorer of one run."""

    TITLE = "Chopper"
    CSS_PATH = "chopper.tcss"
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    SETTLING: ClassVar[float] = 0.03
    """Seconds in which nothing is drawn while a screen that opens over another finds its layout: it
    is painted once. The first screen is drawn as soon as it can be."""
    PATIENCE: ClassVar[float] = 0.2
    """Seconds after which the progress of loading is shown."""
    RESIZED: ClassVar[float] = 0.3
    POLL_S: ClassVar[float] = 2.0
    """Seconds between two looks at the state of the run's files."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "leave", "Quit", priority=True, show=False),
        Binding("ctrl+z", "suspend_process", "To the shell", priority=True, show=False),
    ]

    def __init__(
        self,
        load: Callable[[Progress], Run] | Opening,
        start: View,
        *,
        glyphs: Glyphs | None = None,
        config: Config = DEFAULTS,
        as_text: bool = False,
    ) -> None:
        """Load a run in a thread, unless its opening has begun, and show the view `start` of it.

        With `as_text` the screen is read as text: patterns distinguish what colours do else.
        Without `glyphs` the locale and standard error, where Textual draws, decide on them.
        """
        super().__init__(ansi_color=True)
        without_toasts(self)
        self._as_text = as_text
        self._shown = ShownCells(can_erase=can_erase())
        self._glyphs = glyphs or glyphs_of(sys.__stderr__ or sys.stderr)
        self.failure: ChopperError | None = None
        self.check: Callable[[Progress], None] | None = None
        """Verifies what was read, once its first screen is there; raises DataError."""
        self._checked: Callable[[Progress], None] | None = None
        self.follower: Follower | None = None
        """Follows the run while it is written."""
        self.reading = ReadOptions()
        """How runs are read that `:open` opens."""
        self.exits_on_alarm = False
        self.alarm = ""
        """The alarm that the app was left with."""
        self._newest: Run | None = None
        """Its state that isn't shown yet."""
        self.ended_by: signal.Signals | None = None
        self._opening = load if isinstance(load, Opening) else Opening(load, start, config.columns)
        self._start = start
        self._loading: LoadingScreen | None = None
        self._left = Event()
        for name in THEMES:
            self.register_theme(textual_theme(name, is_painted=config.background))
        self.theme = config.theme or THEMES[0]
        self._styled: str = self.theme
        """The theme that the style sheet is parsed with."""
        self.stylesheet.set_variables(self.get_css_variables())
        self.config = config
        self._keys: deque[events.Key | events.Paste] = deque()
        self._performs_keys = False
        self._is_ending = False
        """Whether a signal or Ctrl-C ends it: keys that wait are not performed."""
        self._typed: deque[str] = deque(maxlen=_MAX_TYPED)
        self._last: LastScreen | None = None
        """Where the first screen is kept, until it is or can't be."""
        self._is_settled = False
        """Whether the first screen of the run was drawn."""
        self._size_of_last: Size | None = None
        """That of the terminal while it shows the first screen as it was seen last: nothing is
        drawn until all of it is there, so that no part vanishes for a moment."""
        self._crashed_at = start

    def draw_over(self, last: LastScreen) -> None:
        """Draw over a screen that the terminal shows, and keep the one of this time."""
        self._last, self._size_of_last = last, Size(*last.size) if last.lines else None
        self._shown.put(last.lines)

    def _is_size_of_last(self, size: Size) -> bool:
        """Whether the app learns at its start of the size that the terminal has."""
        return size == self._size_of_last

    def _draw_over_last(self) -> None:
        if self._size_of_last and self._is_settled:
            self._size_of_last = None
            self.screen.refresh()

    def _keep_screen(self) -> None:
        """Keep the first screen once it is complete, before anything is typed."""
        last, screen = self._last, self._explorers[0] if self._explorers else None
        if last is None or screen is None:
            return
        if not self._is_first_screen(screen):
            self.set_timer(_KEEPS_WITHIN_S, self._keep_screen)
            return
        self._last, lines = None, self._shown.lines(*self.size)
        if lines and lines != last.lines:
            self._behind(self._opening.keep, last, lines)

    def _is_first_screen(self, screen: Explorer) -> bool:
        """Whether a screen is complete, and says nothing of this start alone."""
        whole, says = self._opening.whole, self.config.is_first or self.config.warnings
        is_whole = whole.done() and whole.exception() is None and whole.result() is screen.run
        is_complete = self._is_settled and is_whole
        is_complete &= not (screen.frame.is_pending or screen.steps.is_busy)
        # Lanes and charts are drawn behind the rows.
        is_complete &= all(worker.is_finished for worker in self.workers)
        is_complete &= not (isinstance(screen.run, SeveralRuns) and screen.run.waiting(wait=False))
        is_quiet = not (says or self._opening.notice or self.follower)
        return self.screen is screen and is_complete and is_quiet

    @property
    def inks(self) -> Inks:
        system, painted = self.console.color_system, self.config.background
        return inks(self.theme, system, self.no_color, is_painted=painted)

    @property
    def glyphs(self) -> Glyphs:
        inks = self.inks
        return self._glyphs.coloured(inks.has_colours and not self._as_text, inks.has_few)

    @property
    def actions(self) -> tuple[Action, ...]:
        return self.config.actions or ACTIONS

    @property
    def crash(self) -> BaseException | None:
        error = self._exception
        return error.error if isinstance(error, WorkerFailed) else error

    def get_driver_class(self) -> type[Driver]:
        """Our driver in place of Textual's for a terminal; other ones are as it chooses."""
        chosen = super().get_driver_class()
        return TerminalDriver if chosen.__name__ == "LinuxDriver" else chosen

    async def on_event(self, event: events.Event) -> None:
        """Take keys one after another: each is performed on the screen that those before it left.

        So it doesn't matter how fast they come: a key that follows one which opens a dialog is
        for that dialog.
        """
        if isinstance(event, events.InputEvent) and (self._is_ending or not self.screen_stack):
            return
        if isinstance(event, events.InputEvent):
            self._draw_over_last()
            self._keep_screen()
            self._last = None
        if isinstance(event, events.Resize) and not self._is_size_of_last(event.size):
            self._shown.forget()
            self._draw_over_last()
            if event.size == self.screen.size:
                self.screen.refresh()  # It was of another size meanwhile.
        if not isinstance(event, events.Key | events.Paste) or event.is_forwarded:
            if isinstance(event, _TURNS) and isinstance(self.screen, Explorer):
                self.screen.clear_message()
            await super().on_event(event)
            return
        self._note(event)
        if isinstance(event, events.Key) and event.key == INTERRUPT:
            self.interrupt()
            return
        if self._loading is not None and self.screen is self._loading:
            await self._take_early(event)
            return
        self._keys.append(event)
        if not self._performs_keys:
            await self._perform_keys()

    def _note(self, event: events.Key | events.Paste) -> None:
        if isinstance(event, events.Paste):
            self._typed.append(typed_setting(event.text))
        elif event.is_printable and event.character:
            self._typed.append(typed_setting(event.character))
        else:
            self._typed.append(event.key if is_key(event.key) else f"# {event.key}")

    async def _take_early(self, event: events.Key | events.Paste) -> None:
        """Keep a key until the run is open; the first one may cancel loading."""
        at_once = _AT_ONCE if self._keys else (*_AT_ONCE, *_CANCELS)
        if isinstance(event, events.Key) and event.key in at_once:
            await perform_key(self, event)
        else:
            self._keys.append(event)

    async def _perform_keys(self) -> None:
        self._performs_keys = True
        try:
            while self._keys and self.screen_stack and not self._is_ending:
                if not self._accepts_keys:
                    self._wait_for_keys()
                    return
                event = self._keys.popleft()
                self._press_together(event)
                await self._perform_key(event)
            self._performs_keys = False
        except BaseException:
            self._performs_keys = False
            raise

    def _press_together(self, event: events.Key | events.Paste) -> None:
        """Take presses of a held key that wait together, where their action adds them up."""
        screen, times = self.screen, 1
        if not isinstance(screen, Explorer) or not isinstance(event, events.Key):
            return
        if self._keys and screen.adds_up(event.key):
            while self._keys and getattr(self._keys[0], "key", "") == event.key:
                self._keys.popleft()
                times += 1
        screen.press(times)

    @work(group="keys", description="keys")
    async def _wait_for_keys(self) -> None:
        while self.screen_stack and not self._accepts_keys:
            await asyncio.sleep(_KEY_CHECK_S)
        await self._perform_keys()

    @property
    def _accepts_keys(self) -> bool:
        """Whether the screen on top is mounted and has performed the keys before."""
        screen = self.screen
        return screen.accepts_keys if isinstance(screen, Explorer) else screen.is_mounted

    async def _perform_key(self, event: events.Key | events.Paste) -> None:
        line = self.focused
        if isinstance(event, events.Paste):
            first, *_ = event.text.splitlines() or [""]
            event = events.Paste(printable(first))
            if isinstance(line, PromptLine):
                line.pasted(event)
            elif not self._searches(event.text):
                await super().on_event(event)
        elif isinstance(line, Input) and event.is_printable and event.character:
            if line.selection.is_empty:
                line.insert_text_at_cursor(event.character)
            else:
                line.replace(event.character, *sorted(line.selection))
        elif isinstance(self.screen, Explorer) or not self._is_taken(event):
            await perform_key(self, event)

    def _searches(self, text: str) -> bool:
        """Whether the dialog on top takes a pasted text."""
        from chopper_tui.widgets.dialogs import Sought

        return isinstance(self.screen, Sought) and self.screen.takes_text(text)

    def _is_taken(self, event: events.Key) -> bool:
        """Whether the dialog on top takes a key for itself, or gives way to the command line, which
        one that searches doesn't."""
        from chopper_tui.widgets.dialogs import Dialog, Sought

        screen = self.screen
        searches = isinstance(screen, Sought) and (screen.is_typing or screen.types_at_once)
        if isinstance(screen, Dialog) and event.character == ":" and not searches:
            screen.dismiss(None)
            self._keys.appendleft(event)
            return True
        return isinstance(screen, Sought) and screen.takes_key(event)

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *([AsciiFilter()] if self.glyphs.is_ascii else [])]

    def set_timer(self, *args: Any, **options: Any) -> Timer:
        """Set a timer that fires, however late it starts: one ends a pause in drawing."""
        return fire(super().set_timer(*args, **options))

    def get_default_screen(self) -> Screen[None]:
        self._opening.begin()
        if self._opening.is_there(_KEPT_PATIENCE_S if self._size_of_last else self.PATIENCE):
            return self._explorer(*self._opening.result())
        self._size_of_last = None
        from chopper_tui.widgets.dialogs import LoadingScreen

        self._loading = LoadingScreen(self._start.run)
        return self._loading

    def _explorer(self, run: Run, data: ScreenData, columns: Columns) -> Explorer:
        explorer = Explorer(run, data, self.actions, self.config, columns)
        explorer.notice, explorer.joins = self._opening.notice, self._opening.joins
        return explorer

    def on_mount(self) -> None:
        if self._loading is not None:
            self._open(self._loading)
        else:
            self._settle_soon(*self._explorers)

    def refresh_css(self, animate: bool = True) -> None:
        """Parse the style sheet again for another theme; Textual does so at first, too."""
        if self._styled != self.theme:
            self._styled = self.theme
            super().refresh_css(animate)
            # What is drawn has inks of its own, of which no style sheet knows.
            for widget in chain.from_iterable(screen.query() for screen in self.screen_stack):
                widget.notify_style_update()
                widget.refresh()

    @on(Driver.SignalResume)
    def redraw(self) -> None:
        self._shown.forget()
        self.refresh(layout=True)

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        if not self._size_of_last:
            update = renderable if self.is_headless else self._shown.whole(screen, renderable)
            super()._display(screen, self._shown.changes(update))

    def on_resize(self) -> None:
        """Check again later: of several changes at once the last may be missed."""
        self.set_timer(self.RESIZED, self.fit_terminal)

    def fit_terminal(self) -> None:
        size = Size(*terminal_size())
        if self.is_headless or not self.screen_stack:
            return
        if size != self.screen.size and all(size):
            event = events.Resize(size, size)
            self.post_message(event)
            self.screen.post_message(event)

    def push_screen(self, *args: Any, **options: Any) -> Any:
        self.delay_update(self.SETTLING)
        return super().push_screen(*args, **options)

    def pop_screen(self) -> AwaitComplete:
        self.delay_update(self.SETTLING / 3)
        return super().pop_screen()

    def hurry(self, number: int, _: object) -> None:
        """Leave by a signal at once: no further key is handled, and output may stay unread."""
        self._is_ending = True
        # Drivers without a terminal have none.
        if (end := getattr(self._driver, "end_if_stalled", None)) is not None:
            end(number)

    def on_unmount(self) -> None:
        self._left.set()
        self._opening.cancel()

    def interrupt(self) -> None:
        """Leave at once: keys that wait are not performed."""
        if self.screen_stack and not self._is_ending:
            self._is_ending = True
            self.action_leave()

    def action_leave(self) -> None:
        is_loading = self.screen_stack[-1] is self._loading
        self.exit(return_code=INTERRUPTED if is_loading else 0)

    @work(group="load", description="load")
    async def _open(self, loading: LoadingScreen) -> None:

        def report(step: str, done: int, total: int) -> None:
            self.call_later(loading.report, step, done, total)

        self._opening.listener = report
        try:
            opened = await run_in_thread(self._opening.result)
        except Cancelled:
            self.exit(return_code=INTERRUPTED)
        except ChopperError as error:
            self._fail(error)
        else:
            explorer = self._explorer(*opened)
            await self.push_screen(explorer)
            self._settle_soon(explorer)
            await self._perform_keys()

    def _settle_soon(self, explorer: Explorer) -> None:
        """Start the work behind the first screen, once it is painted.

        Nothing here waits for the opening: a key may have begun to read the run again.
        """
        explorer.call_after_refresh(self._settle, explorer.run, self._opening.whole)

    def _settle(self, shown: Run, whole: Future[Run]) -> None:
        self._is_settled = True
        if self._last is None:  # A key came before: its answer waits for nothing more.
            self._draw_over_last()
        else:
            self.set_timer(_COMPLETE_S, self._draw_over_last)
        self._behind(self._complete, shown, whole)
        self.set_timer(_KEEPS_AFTER_S, self._keep_screen)
        if not gc.isenabled():  # The start does without; what it made is exempt.
            gc.freeze()
            gc.enable()
        self._behind(self._watch)

    def _behind(self, work: Callable[..., None], *given: object) -> None:
        """Do work behind the screen; an error that it doesn't expect is one of the app."""

        def done(outcome: asyncio.Future[None]) -> None:
            error = None if outcome.cancelled() else outcome.exception()
            if isinstance(error, Exception):
                self._handle_exception(error)

        asyncio.ensure_future(run_in_thread(work, *given)).add_done_callback(done)

    def _complete(self, shown: Run, whole: Future[Run]) -> None:
        """Show counters and telemetry in the run of the traces, once they are placed."""
        if not whole.done():
            self.call_later(self._announce, whole, news="placing counters and telemetry…")
        try:
            run = whole.result()
        except Cancelled:
            return
        except (ChopperError, OSError) as error:
            # The screen shows what was read before; reading all of it again may succeed.
            news = "no counters and telemetry · R reloads"
            self.call_later(self._announce, whole, str(error), news, is_error=True)
            return
        if run is shown or self._opening.whole is not whole:
            return
        for screen in self._explorers:  # All of it, so that no part is empty again.
            with suppress(ChopperError):
                screen_data(run, screen.view, is_complete=True)
        self._newest = run
        while self._opening.whole is whole and self._newest is run and not self._left.wait(_JOIN_S):
            self.call_later(self._follow, None, "", False)
        self.call_later(self._announce, whole, "counters and telemetry are in")

    def _announce(
        self, whole: Future[Run], text: str = "", news: str = "", *, is_error: bool = False
    ) -> None:
        """Say what joins a run, once the screen shows it and unless it was read again."""

        def tell(screen: Explorer) -> None:
            if self._opening.whole is whole:
                screen.say(text, error=is_error)
                screen.tell(news)

        for screen in self._explorers:
            screen.steps.add(partial(tell, screen))

    async def open_run(self, name: str) -> None:
        """Open another run, or a view of one, in place of this one; where that fails, stay."""
        start = home_of(asked_view(os.path.expanduser(name)))
        opening = Opening(partial(open_view, start, self.reading), start, self.config.columns)
        opening.begin()
        try:
            run, data, columns = await run_in_thread(opening.result)
        except asyncio.CancelledError:
            opening.cancel()
            raise
        # What follows, verifies or completes the run before sees that it is another's turn.
        self._opening, self._start = opening, start
        self._newest = self.follower = self.check = self._checked = None
        for screen in self._explorers:
            screen.take(run, data, columns, opening.notice or f"opened {run.name}")

    def load(self) -> Run:
        """Read the run again; it is verified again."""
        self.check = self._checked
        run = self._opening.reload()
        self._newest = None
        return run

    def _watch(self) -> None:
        """Tell the explorer when files of the run change, until the app is left."""
        told, pause, freed_s = "", self.POLL_S, monotonic()
        rung: Sequence[AlarmEvent] = ()
        rings: AlarmEvent | None = None  # Its message stays until its end.
        message = ""
        while not self._left.wait(pause):
            began = monotonic()
            follower, news = self.follower, ""
            if follower is None:
                if (news := self._opening.files.news()) != told:
                    self.call_later(self._tell, news)
            else:
                run, has_samples, problem = None, False, ""
                try:
                    run, has_samples = follower.poll(), follower.tail()
                except Exception as error:  # Of one look: the next may succeed.
                    problem = str(error) if isinstance(error, OSError) else internal_error(error)
                recent = follower.recent
                holding, problem = len(recent.open_alarms), problem or follower.problem
                alarms = f"{holding} alarm{'s' if holding > 1 else ''}" if holding else ""
                said = (alarms, follower.beside, recent.gone, problem, recent.age(time()))
                news = facts(*said)
                self.call_later(self._followed, follower, run, news, has_samples)
                if new := [event for event in recent.events if event not in rung]:
                    rings, message = new[-1] if new[-1].holds else None, new[-1].text
                    self.call_later(self._alarm, message)
                if rings is not None and not rings.holds:
                    rings = None
                    self.call_later(self._end_alarm, message)
                rung = recent.events
            told = news
            if follower is not None and began - freed_s > _GIVE_BACK_S:
                # What is followed never rests, and keeps what its updates needed.
                freed_s = began
                give_back()
            every = self.POLL_S if follower is None else follower.every_s
            share = _POLL_SHARE if follower is None else _FOLLOW_SHARE
            pause = max(every, share * (monotonic() - began))
        if self.follower is not None:
            self.follower.close()

    def _alarm(self, text: str) -> None:
        """Ring for a new alarm and show it, or leave with it."""
        if self.exits_on_alarm:
            self.alarm = text
            self.exit(return_code=EXCEEDED)
        self.bell()
        for screen in self._explorers:
            screen.say(text, error=True)

    def _end_alarm(self, text: str) -> None:
        """Clear the message of an alarm that has ended; its line among the others stays."""
        for screen in self._explorers:
            if screen.status.message == text:
                screen.say("")

    @property
    def _explorers(self) -> list[Explorer]:
        return [screen for screen in self.screen_stack if isinstance(screen, Explorer)]

    def _tell(self, news: str) -> None:
        for screen in self._explorers:
            screen.tell(f"{news} · R reloads" if news else "")

    def _followed(self, follower: Follower, run: Run | None, news: str, has_samples: bool) -> None:
        """Show what came, unless it is no longer followed: another run may be on the screen."""
        if self.follower is follower:
            self._follow(run, news, has_samples)

    def _follow(self, run: Run | None, news: str, has_samples: bool) -> None:
        """Show what came; on a slow line nothing queues: what is left out is shown next time."""
        self._newest = run or self._newest
        writer = getattr(self._driver, "_writer_thread", None)
        if writer is not None and not writer._queue.empty():
            return
        for screen in self._explorers:
            if not screen.is_paused:
                screen.tell(news)
            if (self._newest or has_samples) and screen.follow(self._newest):
                self._newest = None

    def verify_soon(self) -> None:
        self._behind(self._verify)

    def _verify(self) -> None:
        check, self.check = self.check, None
        self._checked = check or self._checked
        try:
            if check is not None:
                check(self._go_on)
        except Cancelled:
            return
        except (ChopperError, OSError) as error:
            # Files that changed since are no damage: what is shown was read before.
            if news := self._opening.files.news():
                self.call_later(self._tell, news)
            elif isinstance(error, ChopperError):
                self.call_later(self._fail, error)
            else:
                raise

    def _go_on(self, step: str, done: int, total: int) -> None:
        if self._left.is_set():
            raise Cancelled

    def _fail(self, error: ChopperError) -> None:
        self.failure = error
        self.exit(return_code=error.exit_code)

    def _handle_exception(self, error: Exception) -> None:
        """Treat an error as a crash, unless the app is ending, when a half-mounted screen fails.
        An error that the user can act on is shown on the screen instead."""
        cause = error.error if isinstance(error, WorkerFailed) else None
        place = next((each for each in self.screen_stack if isinstance(each, Explorer)), None)
        self._crashed_at = place.view if place is not None else self._start
        if self._exit:
            self._fatal_error()
        elif place is not None and cause is not None and is_out_of_memory(cause):
            place.say(str(memory_error("this view", cause)), error=True)
        elif isinstance(cause, ChopperError) and place is not None:
            debug.note_error(cause)
            place.say(str(cause), error=True)
        else:
            super()._handle_exception(error)

    def write_crash(self, crash: BaseException) -> Path | None:
        return write_crash(crash, address.render(self._crashed_at), self._typed)

    def _fatal_error(self) -> None:
        self._close_messages_no_wait()
