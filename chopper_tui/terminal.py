"""The terminal around the app: signals, its environment, and the keys that wait for the app.

Imported before anything that takes long, so that a signal always ends in a sentence.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
import time
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

from chopper_core.util.patterns import late

if TYPE_CHECKING:
    from chopper_core.render.glyphs import Glyphs

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


class Ended(KeyboardInterrupt):
    """A signal asked the program to end; half-written output is removed on the way out.

    Python's compiler, at work while a module is imported, ignores any error but its base.
    """

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


def restore_with(restore: Callable[[], object]) -> None:
    """Have a function give the terminal back where a lost file ends the process."""
    global _restore
    _restore = restore


def guard_mapped_files() -> None:
    """End in a sentence where a mapped file is cut short, which the next access of it raises
    SIGBUS for: Python's own handlers are called after the access, which never ends then.
    """
    global _end_lost
    if _end_lost is not None:
        return
    import ctypes  # numpy has imported it

    is_ending = allocate_lock()

    def end_lost(number: int) -> None:
        is_ending.acquire()  # Never released: of threads that read it together the first says so.
        with suppress(Exception):
            _restore()
        with suppress(OSError):
            why = "a file that it reads was cut short, or its disk fails"
            os.write(2, f"{sentence(number)}: {why}\n".encode())
        os._exit(128 + number)

    _end_lost = ctypes.CFUNCTYPE(None, ctypes.c_int)(end_lost)
    ctypes.CDLL(None).signal(signal.SIGBUS, _end_lost)


def end_program(number: int, _: object = None) -> None:
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
    """Handle all signals that end the program; returns the handlers before, for
    `give_terminal_back`.

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


def give_terminal_back(before: dict[int, Any]) -> None:
    """Set earlier handlers again; the program is about to end, and isn't interrupted again."""
    global _begun_s
    _begun_s = _begun_s or time.monotonic()
    for number, handler in before.items():
        signal.signal(number, handler)


def _raise_again(lost: Any) -> None:
    """Send a signal again that came where nothing can be raised, as in a finaliser."""
    global _begun_s
    if isinstance(lost.exc_value, KeyboardInterrupt):
        _begun_s = 0.0
        number = getattr(lost.exc_value, "signal", signal.SIGINT)
        start_new_thread(os.kill, (os.getpid(), number))
    else:
        sys.__unraisablehook__(lost)


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


def give_keys_back() -> None:
    """Undo what `keys_kept` has changed, unless the app has taken the terminal over."""
    if (before := take_attributes()) is not None:
        with suppress(OSError, ValueError, termios.error):
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, before)


@contextmanager
def keys_kept() -> Iterator[None]:
    """Let keys wait in the terminal for the app as they come, without an echo.

    Ctrl+C interrupts; Ctrl+Z and Ctrl+\\ wait as other keys do. Within itself it changes nothing.
    """
    global _before
    if _before is not None:
        yield
        return
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
        give_keys_back()


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
