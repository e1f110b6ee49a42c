"""The terminal around the app: whether it can be drawn on, and in which characters."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, Final, TextIO

from chopper_core.render.glyphs import ASCII, UNICODE, Glyphs, glyphs_for
from chopper_core.util.patterns import late

_DEFAULTS: Final = {
    "TEXTUAL_ANIMATIONS": "none",
    "TEXTUAL_SMOOTH_SCROLL": "0",
    # A key's change is drawn at most 8 ms after it; nothing is drawn where nothing changes.
    "TEXTUAL_FPS": "120",
}
_NARROW_FONTS: Final = ("linux", "vt100", "vt220")
"""Terminals whose fonts have neither braille nor parts of blocks."""
_WITHOUT_COLOURS: Final = ("vt100", "vt102", "vt220", "xterm-mono")
_OLD: Final = (*_NARROW_FONTS, "putty", "screen")
_NEW: Final = late(r"\x1b(?:\[[<>=][\d;]*u|\[\?\d+\$p|\]22;[^\x07\x1b]*(?:\x07|\x1b\\))")
"""Of keys that tell more (kitty), asking for modes (DECRQM), and the pointer's shape (OSC 22)."""
_STYLE: Final = late(r"\x1b\[([\d;]*)m")
_MOVES: Final = late(r"(?:\x1b\[\d+(?:;\d+)?[CH]|\r\n)*")
"""Moves of the cursor, which paint nothing."""
_COLOURS: Final = {"38": "fg", "48": "bg"}
_ENDS: Final = {
    "fg": "39", "bg": "49", "1": "22", "2": "22", "3": "23", "4": "24", "5": "25", "7": "27",
    "8": "28", "9": "29", "53": "55",
}  # fmt: skip
"""What ends each part of a style."""
_BRIGHT: Final = ("1", "2")
"""Bold and dim: one sequence ends both."""


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
    from chopper_core.render.cells import escape_lines

    with suppress(OSError):
        sys.stderr.write(f"{escape_lines(text)}\n")


def can_draw(
    stdin: TextIO | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    environment: Mapping[str, str] = os.environ,
) -> str | None:
    """Why the explorer can't be drawn here, or None where it can; it draws on standard error."""
    streams = (
        ("input", stdin or sys.stdin),
        ("output", stdout or sys.stdout),
        ("error", stderr or sys.stderr),
    )
    for name, stream in streams:
        if not stream.isatty():
            return f"standard {name} is not a terminal"
    term = environment.get("TERM", "")
    if term in ("", "dumb"):
        return f"the terminal can't move its cursor (TERM is {term or 'not set'})"
    return None


def glyphs_of(stream: TextIO, environment: Mapping[str, str] = os.environ) -> Glyphs:
    """The characters to draw with: CHOPPER_GLYPHS, or what locale, font and stream take."""
    wanted = environment.get("CHOPPER_GLYPHS", "")
    if wanted in (UNICODE.name, ASCII.name):
        return UNICODE if wanted == UNICODE.name else ASCII
    # Python takes UTF-8 in the C locale; a person who sets LC_ALL to C means ASCII.
    locale = environment.get("LC_ALL", "")
    if locale in ("C", "POSIX") or environment.get("TERM", "") in _NARROW_FONTS:
        return ASCII
    return glyphs_for(stream.encoding)


def is_old(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the terminal may print parts of newer escape sequences: consoles, PuTTY, GNU screen.

    tmux, whose TERM is often screen, understands more.
    """
    return not _is_tmux(environment) and environment.get("TERM", "").startswith(_OLD)


def _is_tmux(environment: Mapping[str, str]) -> bool:
    """Whether the output goes to tmux: a GNU screen that was started in it has both marks."""
    return "TMUX" in environment and "STY" not in environment


def has_clipboard(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a text can be put on a clipboard by OSC 52: a console has none."""
    return environment.get("TERM", "") not in _NARROW_FONTS


def understood(output: str) -> str:
    """The same without questions and modes that an old terminal doesn't know."""
    return _NEW.sub("", output)


def terse(output: str) -> str:
    """The same on the screen in fewer bytes: of a change of style, only the parts that change."""
    text, *rest = _STYLE.split(output)
    pieces, shown, wanted = [text], "", ""
    for sequence, text in zip(rest[::2], rest[1::2], strict=True):
        is_reset = sequence in ("", "0") or sequence.startswith("0;")
        wanted = (
            sequence.removeprefix("0").removeprefix(";")
            if is_reset
            else (f"{wanted};{sequence}" if wanted else sequence)
        )
        if wanted != shown and not _MOVES.fullmatch(text):
            pieces.append(_change(shown, wanted))
            shown = wanted
        pieces.append(text)
    if shown != wanted:
        pieces.append(_change(shown, wanted))
    return "".join(pieces)


@lru_cache(maxsize=8192)
def _change(before: str, after: str) -> str:
    """The shortest sequence from one style to another."""
    old, new = _parts(before), _parts(after)
    whole = f"\x1b[{';'.join(filter(None, ('0' * bool(before or not after), after)))}m"
    if old is None or new is None:
        return whole
    ended = [part for part in old if part not in new]
    dims = {part for part in ended if part in _BRIGHT}
    kept = {part for part in new if dims and part in _BRIGHT}
    codes = dict.fromkeys(_ENDS[part] for part in ended)
    begun = [code for part, code in new.items() if part in kept or old.get(part) != code]
    if not codes and not begun:
        return ""
    return min(f"\x1b[{';'.join((*codes, *begun))}m", whole, key=len)


@lru_cache(maxsize=8192)
def _parts(style: str) -> dict[str, str] | None:
    """The parts of a style with their codes; None with a code that isn't known."""
    found: dict[str, str] = {}
    codes = iter(style.split(";") if style else ())
    for code in codes:
        if (name := _COLOURS.get(code)) is not None:
            kind = next(codes, "")
            count = {"5": 1, "2": 3}.get(kind, 0)
            found[name] = ";".join((code, kind, *(next(codes, "") for _ in range(count))))
        elif code in ("39", "49"):
            found.pop("fg" if code == "39" else "bg", None)
        elif code.isdecimal() and (30 <= int(code) <= 37 or 90 <= int(code) <= 97):
            found["fg"] = code
        elif code.isdecimal() and (40 <= int(code) <= 47 or 100 <= int(code) <= 107):
            found["bg"] = code
        elif code in _ENDS:
            found[code] = code
        else:
            return None
    return found
