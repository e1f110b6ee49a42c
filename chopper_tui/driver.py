"""The driver of the explorer's terminal: what it reads, what it writes, and how it leaves."""

from __future__ import annotations

import os
import select
import signal
import termios
import time
from _thread import start_new_thread
from asyncio import get_running_loop
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Full
from threading import Event, Thread
from typing import Any, Final

from textual.constants import ESCAPE_DELAY
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Key

from chopper_tui import terminal
from chopper_tui.last_screen import ENTER, own_screen
from chopper_tui.terminal_input import TerminalInput, Typed
from chopper_tui.textual_internals import MessageParser

INTERRUPT: Final = "ctrl+c"
HUNG_UP: Final = 129
_STALLED_S: Final = 2.0
"""After which a terminal that takes no output isn't waited for by a process that is to end."""
_STUCK_S: Final = 10.0
"""After which a process that is to end doesn't wait for the app."""
_SIGNALS_S: Final = 0.2
_LOOK_S: Final = 0.1
"""Between two looks whether the app is left."""
_READ_BYTES: Final = 1 << 12
_LEAVE: Final = (
    b"\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[?1004l"
)
"""Mouse, pastes, wrapping, screen, cursor and focus as a shell expects them."""


class TerminalDriver(LinuxDriver):
    """Textual's driver, for a terminal that can send anything and vanish at any moment.

    The process can be stopped and continued at any moment, too.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_old = terminal.is_old()
        self._is_watched = False
        self._wants_terminal = False
        """Whether the app is to be seen: it has started, and hasn't ended."""
        self._hung_up = Event()
        self._file: Any = _Output(self._file, self._hang_up)
        # A Python signal handler interrupts anything: in the middle of a write, whose lock it then
        # needs, it would deadlock. The loop calls these between two events.
        loop = get_running_loop()
        loop.add_signal_handler(signal.SIGTSTP, self._sigtstp_application)
        loop.add_signal_handler(signal.SIGCONT, self._sigcont_application)

    def write(self, data: str) -> None:
        last = own_screen()
        if data == ENTER and last is not None and last.take():
            return  # The terminal shows the screen already, and might clear it.
        self._queue(terminal.understood(data) if self._is_old else data)

    def close(self) -> None:
        writer = self._writer_thread
        if writer is not None and writer.ident is None:
            self._writer_thread = None  # It couldn't be started: that is what the app ends by.
        elif writer is not None:
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
        self.attrs_before = terminal.take_attributes() or self.attrs_before
        terminal.restore_with(self._leave_at_once)
        if not self._is_watched:
            self._is_watched = True
            Thread(target=self._watch, name="chopper-terminal", daemon=True).start()

    def stop_application_mode(self) -> None:
        self._wants_terminal = False
        super().stop_application_mode()

    def suspend_application_mode(self) -> None:
        super().suspend_application_mode()
        self._wants_terminal = True

    def run_input_thread(self) -> None:
        """Read the terminal until the app is left; an error here is one of the app."""
        try:
            self._read_input()
        except OSError:
            self._hang_up()
        except Exception as error:
            self._app.call_later(self._app._handle_exception, error)

    def _read_input(self) -> None:
        cut, parser, since_s = TerminalInput(), MessageParser(), time.monotonic()
        while not self.exit_event.is_set():
            typed: Iterable[Typed] = ()
            if select.select([self.fileno], [], [], min(ESCAPE_DELAY, _LOOK_S))[0]:
                data, since_s = os.read(self.fileno, _READ_BYTES), time.monotonic()
                typed = cut.feed(data)
            elif cut.is_waiting and (idle_s := time.monotonic() - since_s) >= ESCAPE_DELAY:
                typed = cut.rest(idle_s)
            for each in typed:
                for message in parser.messages(each):
                    if isinstance(message, Key) and message.key == INTERRUPT:
                        self._interrupt()
                    else:
                        self.process_message(message)

    def _interrupt(self) -> None:
        """Have the app leave before it handles what was typed earlier, or without it."""
        self._loop.call_soon_threadsafe(self._app.interrupt)  # type: ignore[attr-defined]
        self.end_if_stalled(signal.SIGINT)

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

        Where nobody reads the terminal, the loop waits to write and never sees the signal; and
        whatever the app is stuck in, the process ends.
        """
        start_new_thread(self._end_once_stalled, (number,))

    def _end_once_stalled(self, number: int) -> None:
        began_s = time.monotonic()
        while self._file.waits_s < _STALLED_S and time.monotonic() - began_s < _STUCK_S:
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
            self.end_if_stalled(signal.SIGHUP)


class _Output:
    """The terminal's file; once it is gone, writes are discarded instead of blocking the writer."""

    def __init__(self, file: Any, lost: Callable[[], None]) -> None:
        self._file = file
        self._lost = lost
        self._since: float | None = None

    @property
    def waits_s(self) -> float:
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
