"""The terminal around the app: signals, its environment, and giving it back whole.

Imported before anything that takes long, so that a signal always ends in a sentence.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
from _thread import get_ident, start_new_thread
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from queue import Full
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

from chopper_core.util.patterns import late

if TYPE_CHECKING:
    from textual.drivers.linux_driver import LinuxDriver

    from chopper_core.render.glyphs import Glyphs
else:
    LinuxDriver = object

_MAIN_THREAD: Final = get_ident()
FATAL_SIGNALS: Final = tuple(
    getattr(signal, f"SIG{name}")
    for name in (
        *("TERM", "HUP", "INT", "QUIT", "ABRT", "USR1", "USR2", "ALRM", "VTALRM"),
        *("PROF", "XCPU", "IO", "PWR", "STKFLT", "TRAP", "SYS"),
    )
    if hasattr(signal, f"SIG{name}")
)
"""Signals that would end the process with the terminal as the explorer needs it; not those of
faults, after which nothing can be trusted."""
_PATIENCE_S: Final = 2.0
"""For which further signals leave the first one's clean-up alone."""

_begun_s = 0.0
_end_lost: Any = None
_restore: Callable[[], object] = int
_taken = 0
"""The signal that was raised; 0: none."""


class Ended(BaseException):
    """A signal asked the program to end; half-written output is removed on the way out."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)


def sentence(number: int) -> str:
    name = signal.Signals(number).name
    return "chopper: interrupted" if number == signal.SIGINT else f"chopper: ended by {name}"


def end_at_once(number: int, _: object = None) -> NoReturn:
    """Handle a signal while modules load, and after all is done."""
    with suppress(OSError):
        os.write(2, f"{sentence(number)}\n".encode())
    os._exit(128 + number)


def guard_mapped_files() -> None:
    """End in a sentence where a mapped file is cut short, which the next access of it raises
    SIGBUS for: Python's own handlers are called after the access, which never ends then.
    """
    global _end_lost
    if _end_lost is not None:
        return
    import ctypes  # numpy has imported it

    def end_lost(number: int) -> None:
        with suppress(Exception):
            _restore()
        with suppress(OSError):
            why = "a file that it reads was cut short, or its disk fails"
            os.write(2, f"{sentence(number)}: {why}\n".encode())
        os._exit(128 + number)

    _end_lost = ctypes.CFUNCTYPE(None, ctypes.c_int)(end_lost)
    ctypes.CDLL(None).signal(signal.SIGBUS, _end_lost)


def end(number: int, _: object = None) -> None:
    """Handle a signal while a command runs: raise it, once; one that comes much later ends it."""
    global _begun_s, _taken
    now_s = time.monotonic()
    if _begun_s:
        if now_s - _begun_s > _PATIENCE_S:
            end_at_once(number)
        return
    _begun_s, _taken = now_s, number
    raise_taken()


def raise_taken() -> None:
    """Raise the signal that came, if one did: C code turns what is raised into errors of its own.

    Raises KeyboardInterrupt for SIGINT, else Ended.
    """
    if _taken:
        raise KeyboardInterrupt if _taken == signal.SIGINT else Ended(_taken)


def handlers() -> dict[int, Any]:
    """The handlers of all signals that end the program, but those that are ignored."""
    if get_ident() != _MAIN_THREAD:
        return {}
    before = ((number, signal.getsignal(number)) for number in FATAL_SIGNALS)
    return {number: old for number, old in before if old is not signal.SIG_IGN}


def take(handler: Callable[[int, Any], object]) -> dict[int, Any]:
    """Handle all signals that end the program; returns the handlers before, to `give_back`.

    One that is ignored, as by `nohup`, stays so.
    """
    global _begun_s, _taken
    if get_ident() != _MAIN_THREAD:
        return {}
    _begun_s, _taken = 0.0, 0
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _raise_again
    taken = handlers()
    for number in taken:
        signal.signal(number, handler)
    return taken


def give_back(before: dict[int, Any]) -> None:
    """Set earlier handlers again; the program is about to end, and isn't interrupted again."""
    global _begun_s
    _begun_s = _begun_s or time.monotonic()
    for number, handler in before.items():
        signal.signal(number, handler)


def _raise_again(lost: Any) -> None:
    """Send a signal again that came where nothing can be raised, as in a finaliser."""
    global _begun_s
    if isinstance(lost.exc_value, KeyboardInterrupt | Ended):
        _begun_s = 0.0
        number = getattr(lost.exc_value, "signal", signal.SIGINT)
        start_new_thread(os.kill, (os.getpid(), number))
    else:
        sys.__unraisablehook__(lost)


HUNG_UP = 129
_STALLED_S = 2.0
"""After which a terminal that takes no output isn't waited for by a process that is to end."""
_SIGNALS_S = 0.2
_LEAVE = b"\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[?1004l"
"""Mouse, pastes, wrapping, screen, cursor and focus as a shell expects them."""
_DEFAULTS: Final = {
    "TEXTUAL_ANIMATIONS": "none",
    "TEXTUAL_SMOOTH_SCROLL": "0",
    # A key's change is drawn at most 8 ms after it; nothing is drawn where nothing changes.
    "TEXTUAL_FPS": "120",
}
MOST_CELLS: Final = 1000
"""In a row or a column of the screen; terminals may claim 65,535."""
_MOST_DIGITS: Final = 9
_NARROW_FONTS: Final = ("linux", "vt100", "vt220")
"""Terminals whose fonts have neither braille nor parts of blocks."""
_WITHOUT_COLOURS: Final = ("vt100", "vt102", "vt220", "xterm-mono")
_OLD: Final = (*_NARROW_FONTS, "putty", "screen")
_FILLING: Final = ("xterm", "tmux", "rxvt", "alacritty", "foot", "wezterm", "ghostty")
_NEW: Final = late(r"\x1b(?:\[[<>=][\d;]*u|\[\?\d+\$p|\]22;[^\x07\x1b]*(?:\x07|\x1b\\))")
"""Of keys that tell more (kitty), asking for modes (DECRQM), and the pointer's shape (OSC 22)."""


def prepare_environment(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what Textual reads when it is imported: call this first."""
    for name, value in _DEFAULTS.items():
        environment.setdefault(name, value)
    if environment.get("TERM", "") in _WITHOUT_COLOURS:
        environment.setdefault("NO_COLOR", "1")
    # GNU screen misreads 24-bit colours, whatever the terminal that it runs in has.
    is_screen = environment.get("TERM", "").startswith("screen") and not _is_tmux(environment)
    if is_screen and environment.get("COLORTERM"):
        environment.setdefault("TEXTUAL_COLOR_SYSTEM", "256")
    set_size(environment, *_own_size())


def _own_size() -> tuple[int, int]:
    """Columns and lines of the terminal; 0 where it doesn't tell."""
    try:
        columns, lines = os.get_terminal_size((sys.__stdout__ or sys.stdout).fileno())
    except (OSError, ValueError):
        return 0, 0
    return columns, lines


def terminal_size() -> tuple[int, int]:
    """Columns and lines of the terminal, as many as are drawn; 0 where it doesn't tell."""
    columns, lines = _own_size()
    return min(columns, MOST_CELLS), min(lines, MOST_CELLS)


def size_in(text: str) -> int:
    """The number of columns or lines that a variable says, as many as are drawn; 0 for none."""
    return min(int(text[:_MOST_DIGITS]), MOST_CELLS) if text.isdecimal() else 0


def set_size(environment: MutableMapping[str, str], columns: int, lines: int) -> None:
    """Let the terminal's own size count where it tells one that can be drawn.

    Textual believes the variables first, and lays out for hours what nobody sees.
    """
    for name, own in (("COLUMNS", columns), ("LINES", lines)):
        given = environment.pop(name, "")
        if own > MOST_CELLS or (not own and size_in(given)):
            environment[name] = str(min(own or size_in(given), MOST_CELLS))


_before: list[Any] | None = None
"""The attributes of the terminal before `keys_kept`, until the app takes it over."""


def take_attributes() -> list[Any] | None:
    """The attributes to leave the terminal with, once, if `keys_kept` has changed them."""
    global _before
    attributes, _before = _before, None
    return attributes


@contextmanager
def keys_kept() -> Iterator[None]:
    """Let keys wait in the terminal for the app as they come, without an echo.

    Ctrl+C interrupts; Ctrl+Z and Ctrl+\\ wait as other keys do.
    """
    global _before
    try:
        terminal = sys.stdin.fileno()
        if os.tcgetpgrp(terminal) == os.getpgrp():
            _before = termios.tcgetattr(terminal)
            iflag, oflag, cflag, lflag, *speeds, characters = _before
            iflag &= ~(termios.IXON | termios.IXOFF | termios.ICRNL | termios.INLCR | termios.IGNCR)
            lflag &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
            characters = list(characters)
            characters[termios.VMIN], characters[termios.VTIME] = 1, 0
            characters[termios.VSUSP] = characters[termios.VQUIT] = b"\0"
            quiet = [iflag, oflag, cflag, lflag, *speeds, characters]
            termios.tcsetattr(terminal, termios.TCSANOW, quiet)
    except (OSError, ValueError, termios.error):
        _before = None
    try:
        yield
    finally:
        if (before := take_attributes()) is not None:
            with suppress(OSError, ValueError, termios.error):
                termios.tcsetattr(terminal, termios.TCSANOW, before)


def remark(text: str) -> None:
    """Print on standard error, where names can't act; that nobody can read it is no error."""
    from chopper_core.util.escape import escape_lines

    with suppress(OSError):
        sys.stderr.write(f"{escape_lines(text)}\n")


def can_draw(
    stdin: TextIO | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    environment: Mapping[str, str] = os.environ,
) -> str | None:
    """Why the explorer can't be drawn here, or None where it can; it draws on standard error."""
    streams = (stdin or sys.stdin, stdout or sys.stdout, stderr or sys.stderr)
    for name, stream in zip(("input", "output", "error"), streams, strict=True):
        if not stream.isatty():
            return f"standard {name} is not a terminal"
    term = environment.get("TERM", "")
    if term in ("", "dumb"):
        return f"the terminal can't move its cursor (TERM is {term or 'not set'})"
    return None


def glyphs_of(stream: TextIO, environment: Mapping[str, str] = os.environ) -> Glyphs:
    """The characters to draw with: CHOPPER_GLYPHS, or what locale, font and stream take."""
    from chopper_core.render.glyphs import ASCII, UNICODE, glyphs_for

    wanted = environment.get("CHOPPER_GLYPHS", "")
    if wanted in (UNICODE.name, ASCII.name):
        return UNICODE if wanted == UNICODE.name else ASCII
    # Python takes UTF-8 in the C locale; a person who sets LC_ALL to C means ASCII.
    locale = environment.get("LC_ALL", "")
    if locale in ("C", "POSIX") or environment.get("TERM", "") in _NARROW_FONTS:
        return ASCII
    return glyphs_for(stream.encoding)


def is_old(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether parts of newer sequences may be printed: consoles, PuTTY, GNU screen."""
    return not _is_tmux(environment) and environment.get("TERM", "").startswith(_OLD)


def can_erase(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether cells that are erased take the background: GNU screen leaves it out."""
    return _is_tmux(environment) or environment.get("TERM", "").startswith(_FILLING)


def _is_tmux(environment: Mapping[str, str]) -> bool:
    """Whether the output goes to tmux: a GNU screen that was started in it has both marks."""
    return "TMUX" in environment and "STY" not in environment


def has_clipboard(environment: Mapping[str, str] = os.environ) -> bool:
    return environment.get("TERM", "") not in _NARROW_FONTS


def understood(output: str) -> str:
    return _NEW.sub("", output)


class SafeTerminal(LinuxDriver):
    """Mixed into a driver: leaves when its terminal is gone.

    The terminal can vanish, and the process can be stopped and continued, at any moment.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_old = is_old()
        self._is_watched = False
        self._wants_terminal = False
        """Whether the app is to be seen: it has started, and hasn't ended."""
        self._hung_up = Event()
        self._file: Any = _Output(self._file, self._hang_up)
        # A Python signal handler interrupts anything: in the middle of a write, whose lock it then
        # needs, it would deadlock. The loop calls these between two events.
        from asyncio import get_running_loop

        loop = get_running_loop()
        loop.add_signal_handler(signal.SIGTSTP, self._sigtstp_application)
        loop.add_signal_handler(signal.SIGCONT, self._sigcont_application)

    def write(self, data: str) -> None:
        self._queue(understood(data) if self._is_old else data)

    def close(self) -> None:
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
        global _restore
        self._wants_terminal = True
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self.attrs_before = take_attributes() or self.attrs_before
        _restore = self._leave_at_once
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
