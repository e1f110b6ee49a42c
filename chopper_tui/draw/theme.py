"""Colours: the inks that text is drawn in, on the terminal's own background; and ASCII.

The inks of kinds of time have one meaning each; all of them can be told from each other with any
color blindness. The accents of `dark` and `light`, for what has no meaning of its own, start from
the Okabe-Ito palette, as distinct. `contrast` dims and tints nothing; `ansi` takes
the terminal's own 16 colours, and so does every other theme where there are no more. Without
colours the cursor is reversed, titles are bold and asides are dim. Without UTF-8 all that is drawn
has stand-ins in ASCII.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace  # noqa: TID251 (what Textual has is one)
from functools import lru_cache
from typing import Final

from msgspec import Struct, field
from rich.color import Color, ColorType
from rich.segment import Segment
from rich.style import Style
from textual.color import Color as TextualColor
from textual.filter import LineFilter
from textual.theme import BUILTIN_THEMES, Theme

from chopper_core.render.cells import cell_width
from chopper_core.render.glyphs import STAND_INS
from chopper_core.render.palette import (
    CHANGE_LEVELS,
    CIVIDIS,
    HEAT_LEVELS,
    MEANINGS,
    diverging,
    is_light,
)
from chopper_core.util.patterns import late

_STYLES: Final = """
             plain  dark                  light                 contrast  ansi
text         -      -                     -                     -         -
dim          d      color(246)            color(242)            -         d
strong       b      b                     b                     b         b
accent       -      #56b4e9               #0072b2               b         cyan
bar          -      color(74)             color(25)             b         cyan
spark        -      #4a86ab               #5b92b5               -         cyan
shade        d      #3f5a6e               #b0bcce               -         d
alert        b      b #e69f00             b #b34e00             b r       b yellow
cursor       r      b #ffffff on #1d4566  b #000000 on #cfe4f3  b r       r
header       u      color(246)            color(242)            b u       u
chosen       u b    b #e69f00             b #b34e00             b r       b u yellow
second       -      #e69f00               #f19115               -         yellow
third        d      #009e73               #48a474               -         green
fourth       -      #cc79a7               #ae4a85               -         magenta
fifth        d      #f0e442               #a2a252               -         bright_yellow
sixth        -      #d55e00               #d45c00               -         red
seventh      -      #0072b2               #6bc2ff               -         blue
eighth       -      #b3beaf               #4f524c               -         white
ninth        -      #c7a452               #75541a               -         bright_red
tenth        -      #938cff               #163daf               -         bright_magenta
below        -      color(74)             color(25)             -         cyan
far_below    b      b color(74)           b color(25)           b         b cyan
above        -      color(214)            color(130)            -         yellow
far_above    b      b color(214)          b color(130)          b         b yellow
poor         -      bright_red            red                   -         red
very_poor    b      b bright_red          b red                 b         b red
clock0       -      color(67)             color(67)             -         cyan
clock1       -      color(74)             color(25)             -         cyan
clock2       -      color(117)            color(18)             -         bright_cyan
use0         -      color(65)             color(65)             -         green
use1         -      color(71)             color(28)             -         green
use2         -      color(114)            color(22)             -         bright_green
power0       -      color(131)            color(136)            -         red
power1       -      color(173)            color(130)            -         yellow
power2       -      color(215)            color(88)             -         bright_yellow
warm0        -      color(96)             color(139)            -         magenta
warm1        -      color(139)            color(133)            -         magenta
warm2        -      color(182)            color(90)             -         bright_magenta
"""
"""The style of each role of a text in each theme, with Rich's short words: bold, dim, reverse.

`accent` is of bars and lines, and of the first of several series, the others of which have `second`
to `tenth`; `bar` and `spark`, which there are many of, have short codes. `shade` is the band behind
a line, `alert` must not be overlooked, `chosen` is the title of the column that rows are sorted by.
`below` its peers, `above` them or `poor`, a low utilization, is a cell that stands out. Signals
over time are `clock0` to `warm2`, the higher the lighter: of the 256 colours, whose codes are
short. In 16 colours none is blue, which can't be read on black in many terminals.
"""


def _styles() -> dict[str, dict[str, str]]:
    heads, *rows = (late(r" {2,}").split(line) for line in _STYLES.strip("\n").splitlines())
    rows += [[name, "", dark, light, "", few] for name, (dark, light, few) in MEANINGS.items()]
    return {
        theme: {row[0]: row[place].strip("-") for row in rows}
        for place, theme in enumerate(heads[1:], 1)
    }


class Inks(Struct, frozen=True):
    """A style for each role of a text, and the colours of scales."""

    styles: Mapping[str, str]
    heat: tuple[str, ...] = ()
    change: tuple[str, ...] = ()
    made: dict[str, Style] = field(default_factory=dict)

    @property
    def has_colours(self) -> bool:
        """Whether colours tell kinds and magnitudes apart."""
        return bool(self.heat)

    def of(self, name: str) -> Style:
        """The ink of a name.

        `heat7` (0 to 15) and `change7` (0 to 14) are cells filled with a level of a scale, and
        `front/back` is one on the other. A click on a text in
        `ink@action argument` performs the action.
        """
        style = self.made.get(name)
        if style is None:
            style = self.made[name] = self._style(name)
        return style

    def _style(self, name: str) -> Style:
        ink, click, performed = name.partition("@")
        if click:
            action, _, argument = performed.partition(" ")
            return self.of(ink) + Style(meta={"@click": ("screen.perform", (action, argument))})
        front, on, back = name.partition("/")
        if on:
            return self._on(front, self._colour(back))
        if ground := self._level(name):
            return Style(color=ground, bgcolor=ground)
        return Style.parse("" if name.startswith(("heat", "change")) else self.styles[name])

    def _on(self, front: str, ground: Color | None) -> Style:
        if ground is None:
            return self.of(front)
        if self._is_filled(front):
            return Style(color=self._colour(front), bgcolor=ground)
        black, white = _TEXTS[ground.type is ColorType.STANDARD]
        text = black if is_light(ground.get_truecolor().hex) else white
        return Style(color=text, bgcolor=ground, bold=self.of(front).bold)

    def _is_filled(self, name: str) -> bool:
        return name in _FILLED or name[-1].isdigit()

    def _colour(self, name: str) -> Color | None:
        return self._level(name) or (self.of(name).color if self._is_filled(name) else None)

    def _level(self, name: str) -> Color | None:
        """The colour of a level of a scale; None without colours."""
        scale = name.rstrip("0123456789")
        scales = {"heat": (self.heat, HEAT_LEVELS), "change": (self.change, CHANGE_LEVELS)}
        colours, levels = scales.get(scale, ((), 0))
        if not colours or scale == name:
            return None
        return Color.parse(
            colours[round(int(name[len(scale) :]) * (len(colours) - 1) / (levels - 1))]
        )


_TEXTS: Final = (("#000000", "#ffffff"), ("black", "bright_white"))
_FILLED: Final = (
    *("accent", "second", "third", "fourth", "fifth", "sixth"),
    *("seventh", "eighth", "ninth", "tenth", "shade"),
    *MEANINGS,
)
"""Inks that fill cells, as the colour that text stands on."""


_SCALES: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "dark": (CIVIDIS, diverging("#56b4e9", "#23272d", "#f0a000")),
    "light": (CIVIDIS[::-1], diverging("#0072b2", "#eef0f2", "#d55e00")),
    "ansi": (
        ("blue", "cyan", "green", "yellow", "bright_white"),
        ("bright_cyan", "cyan", "bright_black", "yellow", "bright_yellow"),
    ),
}
"""The colours of magnitudes and differences; none without colours."""
_INKS: Final = {name: Inks(styles, *_SCALES.get(name, ())) for name, styles in _styles().items()}
_MANY_COLOURS: Final = ("256", "truecolor")

THEMES: Final = ("dark", "light", "contrast", "ansi")


def inks(theme: str, color_system: str | None, no_color: bool) -> Inks:
    if no_color or color_system is None:
        return _INKS["contrast" if theme == "contrast" else "plain"]
    if color_system not in _MANY_COLOURS and theme != "contrast":
        return _INKS["ansi"]
    return _INKS[theme if theme in THEMES else THEMES[0]]


def textual_theme(name: str) -> Theme:
    base = BUILTIN_THEMES["ansi-light" if name == "light" else "ansi-dark"]
    variables, primary = base.variables | _SCROLLBARS, base.primary
    accent, cursor = (_INKS[name].of(role) for role in ("accent", "cursor"))
    if accent.color and cursor.color and cursor.bgcolor:
        primary = accent.color.name
        for part, colour in (("foreground", cursor.color), ("background", cursor.bgcolor)):
            variables |= {f"{each}-cursor-{part}": colour.name for each in ("block", "input")}
        variables |= {"border": primary, "border-blurred": primary}
    return replace(base, name=name, primary=primary, variables=variables)


_SCROLLBARS: Final = {
    f"scrollbar{part}{state}": "ansi_default" if part else "ansi_bright_black"
    for part in ("", "-background")
    for state in ("", "-hover", "-active")
}
"""Scrollbars in grey: the terminal's own blue outshines what they scroll."""


@lru_cache(4096)
def to_ascii(text: str) -> str:
    return "".join(
        char if char.isascii() else "?" * cell_width(char) for char in text.translate(STAND_INS)
    )


class AsciiFilter(LineFilter):
    """Replaces non-ASCII characters, as the last filter."""

    def apply(self, segments: list[Segment], background: TextualColor) -> list[Segment]:
        return [
            segment if segment.control else Segment(to_ascii(segment.text), segment.style)
            for segment in segments
        ]
