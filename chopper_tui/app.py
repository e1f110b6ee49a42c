"""The app: it loads the run, then shows the screens."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import Event
from typing import Any, ClassVar

from textual import events, on, work
from textual.app import App, SystemCommand
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.filter import LineFilter
from textual.geometry import Size
from textual.screen import Screen
from textual.worker import WorkerFailed

from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.render.glyphs import UNICODE, Glyphs
from chopper_core.util.errors import ChopperError
from chopper_core.util.progress import Cancelled, Progress
from chopper_tui.actions import ACTIONS
from chopper_tui.actions.action import Action
from chopper_tui.actions.key_names import PALETTE_KEY
from chopper_tui.ahead import work_ahead
from chopper_tui.background import away
from chopper_tui.config import AS_IT_COMES, Config
from chopper_tui.draw.ascii import AsciiFilter
from chopper_tui.draw.theme import THEMES, Inks, inks, textual_theme
from chopper_tui.opening import Opening
from chopper_tui.screens.explore import ExploreScreen
from chopper_tui.screens.loading import LoadingScreen
from chopper_tui.terminal import glyphs_of, is_old, terse, understood
from chopper_tui.widgets.prompt import Line

INTERRUPTED = 130


class ChopperApp(App[None], inherit_bindings=False):
    """An explorer of one run."""

    TITLE = "Chopper"
    CSS_PATH = "chopper.tcss"
    COMMAND_PALETTE_BINDING = PALETTE_KEY
    ALLOW_SELECT = False
    SETTLING: ClassVar[float] = 0.03
    """Seconds in which nothing is drawn while a screen that opens over another finds its layout: it
    is painted once. The first screen is drawn as soon as it can be."""
    PATIENCE: ClassVar[float] = 0.2
    """Seconds after which it is shown how the loading goes."""
    RESIZED: ClassVar[float] = 0.3
    """Seconds after which a resize is over."""
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
        config: Config = AS_IT_COMES,
    ) -> None:
        """Load a run with `load`, in a thread, and show the view `start` of it.

        An opening of them may have begun already.
        Without `glyphs` the locale and standard error, where Textual draws, decide on them.
        """
        super().__init__(ansi_color=True)
        self.glyphs = glyphs or glyphs_of(sys.__stderr__ or sys.stderr)
        self.failure: ChopperError | None = None
        """Why the run or the view can't be shown; the app has left then."""
        self._opening = load if isinstance(load, Opening) else Opening(load, start, config.columns)
        self._start = start
        self._left = Event()
        self._inks: tuple[str, Inks] | None = None
        for name in THEMES:
            self.register_theme(textual_theme(name))
        self.theme = config.theme or THEMES[0]
        self.config = config

    @property
    def inks(self) -> Inks:
        """The styles to draw with."""
        if self._inks is None or self._inks[0] != self.theme:
            self._inks = (self.theme, inks(self.theme, self.console.color_system, self.no_color))
        return self._inks[1]

    @property
    def actions(self) -> tuple[Action, ...]:
        """The registry with the person's keys."""
        return self.config.actions

    @property
    def crash(self) -> BaseException | None:
        """The error that nobody expected, if one ended the app."""
        error = self._exception
        return error.error if isinstance(error, WorkerFailed) else error

    def get_driver_class(self) -> type[Driver]:
        """What writes to the terminal: tersely, since every byte may cross a slow line."""
        plain = super().get_driver_class()

        old = is_old()

        def write(driver: Driver, data: str) -> None:
            plain.write(driver, terse(understood(data) if old else data))

        return type("TerseDriver", (plain,), {"write": write})

    async def on_event(self, event: events.Event) -> None:
        """Give keys to an open prompt at once: none may overtake what came before it."""
        if isinstance(event, events.Key | events.Paste):
            if not self.screen_stack:
                return
            line = self.focused
            if isinstance(line, Line):
                if isinstance(event, events.Paste):
                    line.pasted(event)
                    return
                if event.is_printable and line.typed(event):
                    return
                bound = self.screen.active_bindings.get(event.key)
                if bound is not None and bound.node is line and bound.enabled:
                    await self.run_action(bound.binding.action, line)
                    return
        await super().on_event(event)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Without UTF-8 nothing else may reach the terminal than ASCII."""
        filters = super().get_line_filters()
        return filters if self.glyphs is UNICODE else [*filters, AsciiFilter()]

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: every action of the registry."""
        if isinstance(screen, ExploreScreen):
            for action in ACTIONS:
                perform = partial(screen.action_perform, action.id)
                yield SystemCommand(action.title, action.help, perform)

    def get_default_screen(self) -> Screen[None]:
        """What is there soon is shown at once; else how the loading goes comes first."""
        self._opening.begin()
        if self._opening.is_there(self.PATIENCE):
            run, seen, columns = self._opening.result()
            return ExploreScreen(run, seen, self.config, columns)
        return LoadingScreen(self._start.run)

    def on_mount(self) -> None:
        """Load what isn't there yet."""
        if isinstance(self.screen, LoadingScreen):
            self._open(self.screen)
        else:
            self._settle()

    @on(Driver.SignalResume)
    def redraw(self) -> None:
        """Draw all anew: the shell had the terminal."""
        self.refresh(layout=True)

    def on_resize(self) -> None:
        """Look again when it is over: of several changes at once the last may go unnoticed."""
        self.set_timer(self.RESIZED, self.fit_terminal)

    def fit_terminal(self) -> None:
        """Take the size that the terminal says it has."""
        try:
            size = Size(*os.get_terminal_size((sys.__stdout__ or sys.stdout).fileno()))
        except (OSError, ValueError):
            return
        if self.is_headless or not self.screen_stack:
            return
        if size != self.screen.size and all(size):
            event = events.Resize(size, size)
            self.post_message(event)
            self.screen.post_message(event)

    def push_screen(self, *args: Any, **options: Any) -> Any:
        """Open a screen; else it is painted before it is laid out, as it is, and once more."""
        self.delay_update(self.SETTLING)
        return super().push_screen(*args, **options)

    def pop_screen(self) -> AwaitComplete:
        """Close the screen; what is below it is painted once."""
        self.delay_update(self.SETTLING / 3)
        return super().pop_screen()

    def on_unmount(self) -> None:
        """Tell the loader, and who works ahead, that nobody waits any longer."""
        self._left.set()
        self._opening.cancel()

    def action_leave(self) -> None:
        """Quit; before the run is there, that is an interruption."""
        shown = isinstance(self.screen_stack[-1], LoadingScreen)
        self.exit(return_code=INTERRUPTED if shown else 0)

    @work(group="load", description="load")
    async def _open(self, loading: LoadingScreen) -> None:

        def told(step: str, done: int, total: int) -> None:
            self.call_later(loading.report, step, done, total)

        self._opening.listener = told
        try:
            run, seen, columns = await away(self._opening.result)
        except Cancelled:
            self.exit(return_code=INTERRUPTED)
        except ChopperError as error:
            self.failure = error
            self.exit(return_code=error.exit_code)
        else:
            await self.push_screen(ExploreScreen(run, seen, self.config, columns))
            self._settle()

    def _settle(self) -> None:
        """Do what the first screen need not wait for."""
        run, seen, _ = self._opening.result()
        _collect_garbage()
        away(work_ahead, run, seen.frame.view, self._left)

    def _fatal_error(self) -> None:
        """Leave without the traceback on the terminal: `run_app` writes it to a file."""
        self._close_messages_no_wait()


def _collect_garbage() -> None:
    """Begin to, where the start went without: what is there now stays, and is not looked at."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
