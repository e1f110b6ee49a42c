"""The driver of a terminal: terse output, and a terminal that is given back whole.

The terminal can vanish, and the process can be stopped and continued, at any moment.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

from textual.drivers.linux_driver import LinuxDriver

from chopper_tui.terminal import is_old, terse, understood

HUNG_UP = 129
"""The exit code of a process whose terminal is gone: 128 + SIGHUP."""


class TerminalDriver(LinuxDriver):
    """Writes few bytes, and leaves when its terminal is gone."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take the arguments of Textual's driver."""
        super().__init__(*args, **options)
        self._is_old = is_old()
        self._is_watched = False
        self._wants_terminal = False
        """Whether the app is to be seen: it has started, and hasn't ended."""
        self._hung_up = Event()
        self._file: Any = _Output(self._file, self._hang_up)
        # A Python signal handler interrupts anything: in the middle of a write, whose lock it then
        # needs, it would deadlock. The loop calls these between two events.
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTSTP, self._sigtstp_application)
        loop.add_signal_handler(signal.SIGCONT, self._sigcont_application)

    def write(self, data: str) -> None:
        """Write tersely, since every byte may cross a slow line."""
        super().write(terse(understood(data) if self._is_old else data))

    def start_application_mode(self) -> None:
        """Take the terminal, and leave once it is gone."""
        self._wants_terminal = True
        super().start_application_mode()  # type: ignore[no-untyped-call]
        if not self._is_watched:
            self._is_watched = True
            Thread(target=self._watch, name="chopper-terminal", daemon=True).start()

    def stop_application_mode(self) -> None:
        """Give the terminal back."""
        self._wants_terminal = False
        super().stop_application_mode()

    def suspend_application_mode(self) -> None:
        """Give the terminal back for a while."""
        super().suspend_application_mode()
        self._wants_terminal = True

    def run_input_thread(self) -> None:
        """Read keys until the app leaves or the terminal is gone."""
        try:
            super().run_input_thread()
        except OSError:
            self._hang_up()

    def _sigtstp_application(self, *_: object) -> None:
        """Stop; a terminal that the app has given back for good is left alone."""
        if self._wants_terminal:
            super()._sigtstp_application()
        else:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _sigcont_application(self, *_: object) -> None:
        """Take the terminal again, which a shell may have had: SIGSTOP can't be caught."""
        if not (self._auto_restart and self._wants_terminal):
            return
        if self._key_thread is not None and self._key_thread.is_alive():
            self.suspend_application_mode()
            self._must_signal_resume = True
        self.resume_application_mode()

    def _watch(self) -> None:
        """Wait for the terminal's end: a read that returns nothing would not tell."""
        poll = select.poll()
        poll.register(self.fileno, 0)
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll()):
            self._hang_up()

    def _hang_up(self) -> None:
        if not self._hung_up.is_set():
            self._hung_up.set()
            # Reading a lost terminal keeps a processor busy, and flushing to it fails at exit.
            self.exit_event.set()
            with open(os.devnull, "w") as nothing:
                for stream in (1, 2):
                    os.dup2(nothing.fileno(), stream)
            self._app.call_later(self._app.exit, None, HUNG_UP)


class _Output:
    """The terminal's file; once it is gone, writes are discarded instead of blocking the writer."""

    def __init__(self, file: Any, lost: Callable[[], None]) -> None:
        self._file = file
        self._lost = lost

    def write(self, text: str) -> None:
        try:
            self._file.write(text)
        except (OSError, ValueError):
            self._lost()

    def flush(self) -> None:
        try:
            self._file.flush()
        except (OSError, ValueError):
            self._lost()

    def fileno(self) -> int:
        return int(self._file.fileno())
