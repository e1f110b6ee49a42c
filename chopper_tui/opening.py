"""Opening a run and its first view in a thread, while the terminal is prepared."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Final

from chopper_core.ingest.watch import RunFiles
from chopper_core.util import debug
from chopper_core.util.memory import is_out_of_memory, memory_error
from chopper_core.util.nearby import noted_looks
from chopper_core.util.progress import Cancelled, Progress, ShowingProgress, silent

if TYPE_CHECKING:
    from chopper_core.model.run import Run
    from chopper_core.model.view import View
    from chopper_core.util.atomic import FileState
    from chopper_tui.history import Columns
    from chopper_tui.last_screen import LastScreen, Lines
    from chopper_tui.screen_data import ScreenData

    Opened = tuple[Run, ScreenData, Columns]

HEAD_START_S: Final = 0.15
"""Seconds for which a run is opened alone: Textual is imported once it is there, or next to it."""
_REPORTS_PER_SECOND: Final = 10


class Opening:
    """Loads a run and its first screen; it starts before Textual is imported."""

    def __init__(self, load: Callable[[Progress], Run], start: View, columns: Columns) -> None:
        self._load = load
        self._start = start
        self._columns = columns
        self._thread = Thread(target=self._work, daemon=True)
        self._cancelled = Event()
        self.files = RunFiles(start.run, start.base_run)
        self._before: Mapping[str, FileState] = {}
        self._opened: Future[Opened] = Future()
        self.whole: Future[Run] = Future()
        """The run with all its sources, which may join it after its first screen."""
        self._last_step, self._last_time = "", 0.0
        self.joins = False
        """Whether counters and telemetry join the run of the traces on the first screen."""
        self.notice = ""
        """Why the tree is shown in place of the view that was asked for."""
        self.listener: Progress = silent

    def begin(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def cancel(self) -> None:
        self._cancelled.set()

    def is_there(self, wait_s: float) -> bool:
        wait([self._opened], wait_s)
        return self._opened.done() and self._opened.exception() is None

    def result(self) -> Opened:
        """The run and its first screen, once they are there; for the start alone."""
        return self._opened.result()

    def _work(self) -> None:
        opened, whole = self._opened, self.whole
        try:
            run = self._read(ShowingProgress(self._report, self._show))
            first = None if opened.done() else self._screen_of(run)
            # Before the screen, which would say that the rest still joins it.
            whole.set_result(run)
            if first is not None:
                opened.set_result(first)
        except BaseException as error:
            lacks_memory = is_out_of_memory(error)
            reason = memory_error(f"opening {self._start.run}", error) if lacks_memory else error
            if not opened.done():
                opened.set_exception(reason)
            whole.set_exception(reason)

    def _show(self, run: Run) -> None:
        """Show the overview of the traces, unless its columns are other ones without the rest."""
        from chopper_core.model.view import View, with_view
        from chopper_core.views import OVERVIEW
        from chopper_tui.config import fitting_columns

        overview = with_view(View(self._start.run), OVERVIEW)
        is_first = not self._opened.done() and self._start == overview
        if is_first and fitting_columns(self._columns, run.table) == self._columns:
            self.files.note(self._before)
            self.joins = True
            self._opened.set_result(self._screen_of(run))

    def keep(self, last: LastScreen, lines: Lines) -> None:
        """Keep the first screen with the states of all files that it was made of."""
        from chopper_core.ingest.cache import is_as_started, program_files
        from chopper_core.model.hardware import is_file, own_file
        from chopper_tui.config import config_path, state_path
        from chopper_tui.last_screen import states_now

        if self.files.news() or not is_as_started():
            return
        hardware = self._start.overrides.hardware
        given = [os.path.expanduser(hardware)] if is_file(hardware) else []
        settings = config_path(), state_path("columns"), state_path("layout"), own_file()
        others = states_now((*settings, *given, *program_files(), *self.files.folders()))
        last.keep(lines, {**others, **self.files.known})

    def reload(self) -> Run:
        """Read the run again, and let go of what was read first, with what still joins it."""
        run = self._read(self._report)
        self._opened, self.whole = Future(), Future()
        self._opened.cancel()
        self.whole.set_result(run)
        return run

    def _read(self, progress: Progress) -> Run:
        self._before = self.files.state()
        with noted_looks() as looks:
            run = self._load(progress)
        self.files.note(self._before, looks)
        return run

    def _screen_of(self, run: Run) -> Opened:
        # Imported in this thread, next to the import of Textual.
        from chopper_core.model.view import pivot, with_view
        from chopper_core.util.errors import NothingToShow, UsageError
        from chopper_core.views import OVERVIEW
        from chopper_tui.config import fitting_columns
        from chopper_tui.history import trail_to, with_columns_of
        from chopper_tui.screen_data import screen_data

        columns = fitting_columns(self._columns, run.table)
        view = with_columns_of(trail_to(self._start), columns)[-1].view
        try:
            return run, screen_data(run, view), columns
        except UsageError as error:
            # A run without times, say, has a tree all the same.
            if view.name != OVERVIEW:
                if not (view.name and isinstance(error, NothingToShow)):
                    raise
                self.notice = str(error)
                return run, screen_data(run, with_view(view, "")), columns
            return run, screen_data(run, pivot(with_view(view, ""), "kernel")), columns

    def _report(self, step: str, done: int, total: int) -> None:
        if self._cancelled.is_set():
            raise Cancelled
        now = monotonic()
        if step != self._last_step:
            debug.note(step)
        if step != self._last_step or now - self._last_time >= 1 / _REPORTS_PER_SECOND:
            self._last_step, self._last_time = step, now
            self.listener(step, done, total)
