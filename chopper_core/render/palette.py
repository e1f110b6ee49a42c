"""Colours that carry magnitude, difference and kind, for the screen and for text on a terminal.

Magnitude is on cividis and kinds use the Okabe-Ito palette: both are safe for people with
any colour vision (Nuñez, Anderton, Renslow 2018; Okabe, Ito 2008). In text that a command prints,
roles take the terminal's own 16 colours, so that they suit its background; scales are on 256.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Final

from chopper_core.render.drawing import GROUNDS

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

MEANINGS: Final = {
    "gemm": ("#5f95e4", "#2f90e9", "bright_blue"),
    "attention": ("#1049b8", "#1d2b9a", "blue"),
    "elementwise": ("#36e2cc", "#87debc", "bright_cyan"),
    "norm": ("#098483", "#158666", "cyan"),
    "copy": ("#99dd7c", "#6cd14c", "bright_green"),
    "optimizer": ("#114752", "#083a41", "green"),
    "hidden": ("#974ddb", "#9432da", "magenta"),
    "exposed": ("#ce4ab2", "#c11a98", "bright_magenta"),
    "waiting": ("#6b5270", "#ecb6f2", "bright_black"),
    "idle": ("#23282d", "#dce2e9", "black"),
    "useful": ("#cfebfe", "#94aece", "bright_white"),
    "low_clock": ("#ff8000", "#d96f11", "yellow"),
    "matrix": ("#bba46b", "#c2955e", "yellow"),
    "vector": ("#f6f7b2", "#cad589", "white"),
    "extra": ("#925712", "#69542c", "yellow"),
    "contention": ("#901515", "#7e0d0b", "red"),
    "unknown": ("#94999a", "#808f93", "white"),
    "warning": ("#f7b800", "#a16700", "bright_yellow"),
    "alarm": ("#e94a4e", "#b70100", "bright_red"),
    "good": ("#45bed6", "#026c75", "bright_green"),
}
"""Inks of one meaning each, in the whole program: classes of compute, kinds of communication, idle
time, what a step loses, and states. Their colours on dark and light ground, and of a terminal's
16, where three share theirs with a pattern; any two differ with any color blindness."""
NEUTRAL: Final = {
    "accent": ("#848d97", "#59636e", "white"),
    "second": ("#d3dae1", "#a3adb7", "bright_white"),
    "third": ("#58626d", "#2f3740", "bright_black"),
    "fourth": ("#aab3bc", "#7d8792", "white"),
    "shade": ("#39424d", "#c8d1da", "bright_black"),
}
"""Inks without a hue, of series without a meaning, and of what lies behind them."""
PATTERNED: Final = {"matrix": "▒", "extra": "░", "unknown": "▒"}
"""Inks that share one of 16 colours with another, and the fill that distinguishes them there."""
AGAIN: Final = "~"
"""Behind an ink: the same meaning once more in one picture, such as backward next to forward; half
as far from the ground."""
_SIXTEEN: Final = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")

_CODES: Final = {"dim": "2", "strong": "1", "header": "4", "chosen": "1;4"} | {
    name: str(
        (90 if few.startswith("bright_") else 30) + _SIXTEEN.index(few.removeprefix("bright_"))
    )
    for name, (_, _, few) in (MEANINGS | NEUTRAL).items()
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


def paint_for(is_terminal: bool, environment: Mapping[str, str]) -> Paint:
    """Colours on a terminal that has them and unless NO_COLOR is set."""
    has_none = environment.get("NO_COLOR") or environment.get("TERM", "dumb") in ("dumb", "vt100")
    if not is_terminal or has_none:
        return plain
    if environment.get("COLORTERM") not in ("truecolor", "24bit"):
        return painted
    is_light_ground = environment.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")
    return painted_on_light if is_light_ground else painted_on_dark


_FADED: Final = 0.4
_GROUNDS: Final = tuple(GROUNDS[name][0] for name in ("dark", "light"))


def painted(text: str, ink: str, ground: int | None = None) -> str:
    """Text in an ink; blank text and unknown inks stay as they are.

    In true colors on a dark ground (0) or a light one (1), else in the terminal's own.
    """
    code = _code(ink, ground)
    return f"\x1b[{code}m{text}\x1b[0m" if code and (text.strip() or "8;" in code) else text


painted_on_dark: Final = partial(painted, ground=0)
painted_on_light: Final = partial(painted, ground=1)


@cache
def _code(ink: str, ground: int | None) -> str:
    """The codes of an ink; in true colors where its colour on the ground is known."""
    front, on, back = ink.partition("/")
    if not on:
        level = _level(ink)
        if level is not None:
            return f"38;5;{level};48;5;{level}"
        return _true(ink, ground, 38) or _CODES.get(ink.removesuffix(AGAIN), "")
    behind = _level(back)
    if behind is None:
        if (over := _level(front)) is not None:
            return f"38;5;{over}"
        if true := _true(back, ground, 48):
            text = "#000000" if is_light(MEANINGS[back][ground or 0]) else "#ffffff"
            return f"{_true(front, ground, 38) or _rgb(text, 38)};{true}"
        hue = _CODES.get(back, "")
        if len(hue) < 2:  # not a hue: the front alone keeps its shape
            return _CODES.get(front, "")
        return f"{_CODES[front]};{int(hue) + 10}" if front in _HUES else f"7;{hue}"
    over = _level(front)
    return f"38;5;{_text_on(behind) if over is None else over};48;5;{behind}"


def again(colour: str, ground: str) -> str:
    """The colour of an ink that is used once more, on a ground."""
    return mixed(colour, ground, _FADED)


def _true(ink: str, ground: int | None, kind: int) -> str:
    name = ink.removesuffix(AGAIN)
    if ground is None or name not in MEANINGS:
        return ""
    colour = MEANINGS[name][ground]
    return _rgb(again(colour, _GROUNDS[ground]) if name != ink else colour, kind)


def _rgb(colour: str, kind: int) -> str:
    return f"{kind};2;{';'.join(map(str, _channels(colour)))}"


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
