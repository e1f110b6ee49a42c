"""Colours: the inks that text is drawn in, on the terminal's own background; and ASCII.

The accents of `dark` and `light` start from the Okabe-Ito palette; all ten, and the shade of idle
time, are distinct with any color blindness. `contrast` dims and tints nothing; `ansi` takes
the terminal's own 16 colours, and so does every other theme where there are no more. Without
colours the cursor is reversed, titles are bold and asides are dim. Without UTF-8 all that is drawn
has stand-ins in ASCII.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace  # noqa: TID251 (what Textual has is one)
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

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
    diverging,
    is_light,
)


class Inks(Struct, frozen=True, kw_only=True):
    """A style for each role of a text, and the colours of scales."""

    text: Style = Style()
    dim: Style
    strong: Style = Style(bold=True)
    accent: Style
    """Bars and lines."""
    bar: Style = Style()
    """Bars in rows of tables: the accent, where there are 256 colours by a short code."""
    spark: Style
    """Sparklines: there are many of them."""
    shade: Style
    """The band behind a line."""
    alert: Style
    """For anything that must not be overlooked."""
    cursor: Style
    header: Style
    chosen: Style
    """The header of the column that the rows are sorted by."""
    second: Style = Style()
    """Of several series in a picture the second one; the first has the accent."""
    third: Style = Style()
    fourth: Style = Style()
    fifth: Style = Style()
    sixth: Style = Style()
    seventh: Style = Style()
    eighth: Style = Style()
    ninth: Style = Style()
    tenth: Style = Style()
    below: Style = Style()
    """A cell below its peers, or a difference below zero."""
    far_below: Style = Style(bold=True)
    above: Style = Style()
    far_above: Style = Style(bold=True)
    poor: Style = Style()
    """A low utilisation."""
    very_poor: Style = Style(bold=True)
    heat: tuple[str, ...] = ()
    """The colours of a scale of magnitude from low to high; none without colours."""
    tones: Mapping[str, Sequence[str]] = MappingProxyType({})
    """The colours of signals over time, from low to high: of clocks, use, power, heat."""
    change: tuple[str, ...] = ()
    """The colours of a scale of differences, from below over none to above."""
    made: dict[str, Style] = field(default_factory=dict)
    """The styles that were asked for, by name."""

    @property
    def has_colours(self) -> bool:
        """Whether colours tell kinds and magnitudes apart."""
        return bool(self.heat)

    def of(self, name: str) -> Style:
        """The ink of a name.

        `heat7` (0 to 15) and `change7` (0 to 14) are cells filled with a level of a scale, `clock2`
        (0 to 2) is a tone of a signal, and `front/back` is one on the other.
        """
        style = self.made.get(name)
        if style is None:
            style = self.made[name] = self._style(name)
        return style

    def _style(self, name: str) -> Style:
        front, on, back = name.partition("/")
        if on:
            return self._on(front, self._colour(back))
        hue = self.tones.get(name.rstrip("0123456789"))
        if hue is not None:
            return Style(color=hue[int(name[-1])])
        ground = self._level(name)
        if ground is not None:
            return Style(color=ground, bgcolor=ground)
        style: Style = Style() if name[-1].isdigit() else getattr(self, name)
        return style

    def _on(self, front: str, ground: Color | None) -> Style:
        """A front on a colour: a scale's level or a series in its own, text in black or white."""
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
        is_own = name in _FILLED or name.rstrip("0123456789") in self.tones
        return self.of(name).color if is_own else self._level(name)

    def _level(self, name: str) -> Color | None:
        """The colour of a level of a scale; None without colours."""
        for scale, top in (("heat", HEAT_LEVELS - 1), ("change", CHANGE_LEVELS - 1)):
            level = name.removeprefix(scale)
            colours: tuple[str, ...] = getattr(self, scale)
            if colours and level != name and level.isdigit():
                return Color.parse(colours[round(int(level) * (len(colours) - 1) / top)])
        return None


_TEXTS: Final = (("#000000", "#ffffff"), ("black", "bright_white"))
"""Text on colours, and on those of a terminal with 16."""
_FILLED: Final = (
    *("accent", "second", "third", "fourth", "fifth", "sixth"),
    *("seventh", "eighth", "ninth", "tenth", "shade"),
)
"""Inks that fill cells, as the colour that text stands on."""


def _series(*colours: str) -> dict[str, Any]:
    """The inks of series after the first, in order."""
    return dict(zip(_FILLED[1:10], (Style(color=colour) for colour in colours), strict=True))


def _tones(*hues: tuple[int, int, int]) -> dict[str, tuple[str, ...]]:
    """The tones of signals, of a terminal's 256 colours."""
    names = ("clock", "use", "power", "warm")
    return {
        name: tuple(f"color({code})" for code in hue) for name, hue in zip(names, hues, strict=True)
    }


def _tints(below: str, above: str, poor: str) -> dict[str, Any]:
    """The inks of cells that stand out; those far out are bold."""
    hues = {"below": below, "above": above, "poor": poor}
    far = {"below": "far_below", "above": "far_above", "poor": "very_poor"}
    mild = {name: Style(color=hue) for name, hue in hues.items()}
    return mild | {far[name]: Style(color=hue, bold=True) for name, hue in hues.items()}


_PLAIN: Final = Inks(
    dim=Style(dim=True),
    accent=Style(),
    spark=Style(),
    shade=Style(dim=True),
    alert=Style(bold=True),
    cursor=Style(reverse=True),
    header=Style(underline=True),
    chosen=Style(underline=True, bold=True),
    third=Style(dim=True),
    fifth=Style(dim=True),
)
_DARK: Final = Inks(
    dim=Style(color="color(246)"),
    accent=Style(color="#56b4e9"),
    bar=Style(color="color(74)"),
    spark=Style(color="#4a86ab"),
    shade=Style(color="#3f5a6e"),
    alert=Style(color="#e69f00", bold=True),
    cursor=Style(color="#ffffff", bgcolor="#1d4566", bold=True),
    header=Style(color="color(246)"),
    chosen=Style(color="#e69f00", bold=True),
    **_series(
        *("#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00"),
        *("#0072b2", "#b3beaf", "#c7a452", "#938cff"),
    ),
    **_tints("color(74)", "color(214)", "bright_red"),
    heat=CIVIDIS,
    change=diverging("#56b4e9", "#23272d", "#f0a000"),
    # Of the 256 colours, whose codes are short: there are many of them.
    tones=_tones((67, 74, 117), (65, 71, 114), (131, 173, 215), (96, 139, 182)),
)
_LIGHT: Final = Inks(
    dim=Style(color="color(242)"),
    accent=Style(color="#0072b2"),
    bar=Style(color="color(25)"),
    spark=Style(color="#5b92b5"),
    shade=Style(color="#b0bcce"),
    alert=Style(color="#b34e00", bold=True),
    cursor=Style(color="#000000", bgcolor="#cfe4f3", bold=True),
    header=Style(color="color(242)"),
    chosen=Style(color="#b34e00", bold=True),
    **_series(
        *("#f19115", "#48a474", "#ae4a85", "#a2a252", "#d45c00"),
        *("#6bc2ff", "#4f524c", "#75541a", "#163daf"),
    ),
    **_tints("color(25)", "color(130)", "red"),
    heat=CIVIDIS[::-1],
    change=diverging("#0072b2", "#eef0f2", "#d55e00"),
    tones=_tones((67, 25, 18), (65, 28, 22), (136, 130, 88), (139, 133, 90)),
)
_CONTRAST: Final = Inks(
    dim=Style(),
    accent=Style(bold=True),
    bar=Style(bold=True),
    spark=Style(),
    shade=Style(),
    alert=Style(bold=True, reverse=True),
    cursor=Style(bold=True, reverse=True),
    header=Style(bold=True, underline=True),
    chosen=Style(bold=True, reverse=True),
)
_ANSI: Final = Inks(
    dim=Style(dim=True),
    accent=Style(color="cyan"),
    bar=Style(color="cyan"),
    spark=Style(color="cyan"),
    shade=Style(dim=True),
    alert=Style(color="yellow", bold=True),
    cursor=Style(reverse=True),
    header=Style(underline=True),
    chosen=Style(color="yellow", bold=True, underline=True),
    **_series(
        *("yellow", "green", "magenta", "bright_yellow", "red"),
        *("blue", "white", "bright_red", "bright_magenta"),
    ),
    **_tints("cyan", "yellow", "red"),
    heat=("blue", "cyan", "green", "yellow", "bright_white"),
    change=("bright_cyan", "cyan", "bright_black", "yellow", "bright_yellow"),
    tones={
        # Blue on black can't be read on many terminals.
        "clock": ("cyan", "cyan", "bright_cyan"),
        "use": ("green", "green", "bright_green"),
        "power": ("red", "yellow", "bright_yellow"),
        "warm": ("magenta", "magenta", "bright_magenta"),
    },
)
_INKS: Final = {"dark": _DARK, "light": _LIGHT, "contrast": _CONTRAST, "ansi": _ANSI}
_MANY_COLOURS: Final = ("256", "truecolor")

THEMES: Final = tuple(_INKS)


def inks(theme: str, color_system: str | None, no_color: bool) -> Inks:
    """The inks of a theme on a terminal with these colours."""
    if no_color or color_system is None:
        return _CONTRAST if theme == "contrast" else _PLAIN
    if color_system not in _MANY_COLOURS and theme != "contrast":
        return _ANSI
    return _INKS.get(theme, _DARK)


def textual_theme(name: str) -> Theme:
    """The theme for the parts that Textual draws itself: the palette and the prompt."""
    chosen = _INKS[name]
    base = BUILTIN_THEMES["ansi-light" if name == "light" else "ansi-dark"]
    base = replace(base, variables=base.variables | _SCROLLBARS)
    if chosen.cursor.color is None or chosen.cursor.bgcolor is None or chosen.accent.color is None:
        return replace(base, name=name)
    accent, front, back = (
        color.name for color in (chosen.accent.color, chosen.cursor.color, chosen.cursor.bgcolor)
    )
    return replace(
        base,
        name=name,
        primary=accent,
        variables=base.variables
        | {
            "block-cursor-foreground": front,
            "block-cursor-background": back,
            "input-cursor-foreground": front,
            "input-cursor-background": back,
            "border": accent,
            "border-blurred": accent,
        },
    )


_SCROLLBARS: Final = {
    f"scrollbar{part}{state}": "ansi_default" if part else "ansi_bright_black"
    for part in ("", "-background")
    for state in ("", "-hover", "-active")
}
"""Scrollbars in grey: the terminal's own blue outshines what they scroll."""


@lru_cache(4096)
def to_ascii(text: str) -> str:
    """Text in ASCII of the same width."""
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
