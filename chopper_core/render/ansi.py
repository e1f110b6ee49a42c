"""Colours of text that a command prints on a terminal: the inks of tables and charts as SGR codes.

Roles take the terminal's own 16 colours, so that they suit its background; scales are on 256.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from chopper_core.render.palette import CIVIDIS, diverging, nearest_of_256

Paint = Callable[[str, str], str]
"""(text, name of an ink) → the text in it."""

_CODES: Final = {
    "dim": "2",
    "strong": "1",
    "header": "4",
    "chosen": "1;4",
    "alert": "1;33",
    "accent": "36",
    "spark": "36",
    "shade": "2",
    "second": "33",
    "third": "32",
    "fourth": "35",
    "fifth": "93",
    "sixth": "31",
    "seventh": "34",
    "eighth": "37",
    "ninth": "91",
    "tenth": "95",
    "below": "36",
    "far_below": "1;36",
    "above": "33",
    "far_above": "1;33",
    "poor": "31",
    "very_poor": "1;31",
}
_SCALES: Final = {
    "heat": tuple(map(nearest_of_256, CIVIDIS)),
    "change": tuple(map(nearest_of_256, diverging("#56b4e9", "#303030", "#f0a000"))),
}


def plain(text: str, ink: str) -> str:
    """Text as it is."""
    return text


def painted(text: str, ink: str) -> str:
    """Text in an ink; blank text and unknown inks stay as they are."""
    code = _code(ink)
    return f"\x1b[{code}m{text}\x1b[0m" if code and (text.strip() or "8;5" in code) else text


def paint_for(is_terminal: bool, environment: Mapping[str, str]) -> Paint:
    """Colours on a terminal that has them and unless NO_COLOR is set."""
    has_none = environment.get("NO_COLOR") or environment.get("TERM", "dumb") in ("dumb", "vt100")
    return painted if is_terminal and not has_none else plain


@cache
def _code(ink: str) -> str:
    front, on, back = ink.partition("/")
    if not on:
        level = _level(ink)
        return _CODES.get(ink, "") if level is None else f"38;5;{level};48;5;{level}"
    ground = _level(back)
    if ground is None:
        return f"7;{_CODES[back]}" if back in _CODES else ""
    over = _level(front)
    return f"38;5;{_text_on(ground) if over is None else over};48;5;{ground}"


def _level(ink: str) -> int | None:
    """The colour of a level of a scale, of 256."""
    for scale, colours in _SCALES.items():
        level = ink.removeprefix(scale)
        if level != ink and level.isdigit():
            return colours[int(level)]
    return None


def _text_on(ground: int) -> int:
    """Black or white, whichever reads better on a colour of the cube of 256."""
    if ground >= 232:
        return 16 if ground > 243 else 231
    red, green, blue = (ground - 16) // 36, (ground - 16) // 6 % 6, (ground - 16) % 6
    return 16 if 2 * red + 7 * green + blue > 20 else 231
