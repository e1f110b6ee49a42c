"""Colours that carry magnitude, difference and kind, for the screen and for text on a terminal.

Magnitude is on cividis and kinds are of the Okabe-Ito palette: both are told apart by people with
any colour vision (Nuñez, Anderton, Renslow 2018; Okabe, Ito 2008).
"""

from __future__ import annotations

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


def mixed(first: str, second: str, share: float) -> str:
    """A colour between two, by the share of the second one, mixed in linear light."""
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
    return luminance > 0.16


def _channels(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue


def nearest_of_256(colour: str) -> int:
    """The nearest colour of a terminal's 256: of its cube of 6 x 6 x 6, or of its greys."""
    own = _channels(colour)
    cube = [min(range(6), key=lambda step: abs(_CUBE[step] - part)) for part in own]
    grey = min(max(round((sum(own) / 3 - 8) / 10), 0), 23)
    of_cube = sum((_CUBE[step] - part) ** 2 for step, part in zip(cube, own, strict=True))
    of_grey = sum((8 + 10 * grey - part) ** 2 for part in own)
    red, green, blue = cube
    return 232 + grey if of_grey < of_cube else 16 + 36 * red + 6 * green + blue
