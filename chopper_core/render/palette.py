"""Colours that carry magnitude, difference and kind, for the screen and for text on a terminal.

Magnitude is on cividis and kinds use the Okabe-Ito palette: both are safe for people with
any colour vision (Nuñez, Anderton, Renslow 2018; Okabe, Ito 2008). In text that a command prints,
roles take the terminal's own 16 colours, so that they suit its background; scales are on 256.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

HEAT_LEVELS: Final = 16
"""Levels of a scale of magnitude that drawings name; a palette may have fewer colours."""
CHANGE_LEVELS: Final = 15
"""The same of differences: the one in the middle is none."""
CIVIDIS: Final = (
    *("#00224e", "#002e6c", "#1e3a6f", "#35456c", "#47516c", "#575d6d", "#666970", "#757575"),
    *("#848279", "#948e77", "#a59c74", "#b7a96e", "#c8b866", "#dbc75a", "#eed649", "#fee838"),
)
"""Dark blue to yellow in even steps of lightness."""

_CUBE: Final = (0, 95, 135, 175, 215, 255)
"""Values of a channel in a terminal's cube of 216 colours."""
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
    "gemm": "94",
    "attention": "34",
    "elementwise": "96",
    "norm": "36",
    "copy": "92",
    "optimizer": "32",
    "hidden": "35",
    "exposed": "95",
    "waiting": "90",
    "idle": "90",
    "useful": "97",
    "low_clock": "33",
    "maybe_clock": "34",
    "matrix": "93",
    "vector": "37",
    "extra": "91",
    "contention": "31",
    "unknown": "36",
    "below": "36",
    "far_below": "1;36",
    "above": "33",
    "far_above": "1;33",
    "poor": "31",
    "very_poor": "1;31",
}


_HUES: Final = {name for name, code in _CODES.items() if code.isdigit() and len(code) > 1}


def mixed(first: str, second: str, share: float) -> str:
    parts = zip(_channels(first), _channels(second), strict=True)
    blend = ((1 - share) * (a / 255) ** 2.2 + share * (b / 255) ** 2.2 for a, b in parts)
    return "#" + "".join(f"{round(255 * value ** (1 / 2.2)):02x}" for value in blend)


def diverging(low: str, middle: str, high: str) -> tuple[str, ...]:
    """A scale of differences: two hues that fade into a middle."""
    half = CHANGE_LEVELS // 2
    below = [mixed(low, middle, place / half) for place in range(half)]
    above = [mixed(middle, high, (place + 1) / half) for place in range(half)]
    return (*below, middle, *above)


def is_light(colour: str) -> bool:
    """Whether black text reads better on a colour than white (WCAG's relative luminance)."""
    red, green, blue = ((part / 255) ** 2.2 for part in _channels(colour))
    luminance: float = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return luminance > 0.179


def _channels(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue


def nearest_of_256(colour: str) -> int:
    own = _channels(colour)
    cube = [min(range(6), key=lambda step: abs(_CUBE[step] - part)) for part in own]
    grey = min(max(round((sum(own) / 3 - 8) / 10), 0), 23)
    of_cube = sum((_CUBE[step] - part) ** 2 for step, part in zip(cube, own, strict=True))
    of_grey = sum((8 + 10 * grey - part) ** 2 for part in own)
    red, green, blue = cube
    return 232 + grey if of_grey < of_cube else 16 + 36 * red + 6 * green + blue


_SCALES: Final = {
    "heat": tuple(map(nearest_of_256, CIVIDIS)),
    "change": tuple(map(nearest_of_256, diverging("#56b4e9", "#303030", "#f0a000"))),
}


def plain(text: str, ink: str) -> str:
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
        hue = _CODES.get(back, "")
        if len(hue) < 2:  # not a hue: the front alone keeps its shape
            return _CODES.get(front, "")
        return f"{_CODES[front]};{int(hue) + 10}" if front in _HUES else f"7;{hue}"
    over = _level(front)
    return f"38;5;{_text_on(ground) if over is None else over};48;5;{ground}"


def _level(ink: str) -> int | None:
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
