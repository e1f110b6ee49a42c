"""The driver of a terminal: terse output, and a terminal that is given back whole.

The terminal can vanish, and the process can be stopped and continued, at any moment.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import termios
import time
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from queue import Full
from threading import Event, Thread
from typing import Any

from textual.drivers.linux_driver import LinuxDriver

from chopper_tui.endings import restore_by
from chopper_tui.terminal import is_old, take_attributes, terse, understood

HUNG_UP = 129
"""The exit code of a process whose terminal is gone: 128 + SIGHUP."""
_STALLED_S = 2.0
"""After which a terminal that takes no output isn't waited for by a process that is to end."""
_SIGNALS_S = 0.2
_LEAVE = b"\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[?1004l"
"""Mouse, pastes, wrapping, screen, cursor and focus as a shell expects them."""


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
        self._queue(terse(understood(data) if self._is_old else data))

    def close(self) -> None:
        """End the writer; it may wait for the terminal for long."""
        if (writer := self._writer_thread) is not None:
            self._queue(None)
            while writer.is_alive():
                writer.join(_SIGNALS_S)
        super().close()

    def _queue(self, data: str | None) -> None:
        """Hand output to the writer; while it has too much, look for signals again and again.

        Another thread may have taken one, and then nothing wakes this one up.
        """
        assert self._writer_thread is not None, "the terminal isn't taken"
        while True:
            with suppress(Full):
                return self._writer_thread._queue.put(data, timeout=_SIGNALS_S)

    def start_application_mode(self) -> None:
        """Take the terminal, and leave once it is gone."""
        self._wants_terminal = True
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self.attrs_before = take_attributes() or self.attrs_before
        restore_by(self._leave_at_once)
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

    def end_if_stalled(self, number: int, *_: object) -> None:
        """Handle a signal that ends the process, in any state of the loop.

        Where nobody reads the terminal, the loop waits to write and never sees the signal.
        """
        start_new_thread(self._end_once_stalled, (number,))

    def _end_once_stalled(self, number: int) -> None:
        while self._file.waits_s < _STALLED_S:
            time.sleep(0.1)
        with suppress(OSError, termios.error):
            termios.tcflush(self.fileno, termios.TCOFLUSH)
        self._leave_at_once()
        os._exit(128 + number)

    def _leave_at_once(self) -> None:
        """Give the terminal back from any thread, if it takes anything."""
        with suppress(OSError, termios.error):
            if self.attrs_before is not None:
                termios.tcsetattr(self.fileno, termios.TCSANOW, self.attrs_before)
            if self._wants_terminal and select.select((), (self.fileno,), (), 0)[1]:
                os.write(self.fileno, _LEAVE)

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
        self._since: float | None = None
        """When the write under way began."""

    @property
    def waits_s(self) -> float:
        """Seconds for which the terminal has not taken the write under way."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def write(self, text: str) -> None:
        self._attempt(self._file.write, text)

    def flush(self) -> None:
        self._attempt(self._file.flush)

    def _attempt(self, call: Callable[..., object], *text: str) -> None:
        self._since = time.monotonic()
        try:
            call(*text)
        except (OSError, ValueError):
            self._lost()
        self._since = None

    def fileno(self) -> int:
        return int(self._file.fileno())
