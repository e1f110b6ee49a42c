"""Colours: the inks that text is drawn in, on the terminal's own background; and ASCII.

The inks of kinds of time and of states have one meaning each; all of them can be told from each
other with any color blindness. What has no meaning of its own has no hue. `contrast` dims and
tints nothing; `ansi` takes the terminal's own 16 colours, and so does every other theme where there
are no more. Without colours the cursor is reversed, titles are bold and asides are dim. Without
UTF-8 all that is drawn has stand-ins in ASCII.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace  # noqa: TID251 (what Textual has is one)
from functools import cache, lru_cache
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
    AGAIN,
    CHANGE_LEVELS,
    CIVIDIS,
    HEAT_LEVELS,
    MEANINGS,
    NEUTRAL,
    again,
    diverging,
    is_light,
    mixed,
)

_ROLES: Final = ("text", "dim", "strong", "cursor", "header", "chosen")
"""Roles of a text; `chosen` is the title of the column that rows are sorted by, and the view on the
screen. All other inks are of meanings, or neutral."""
_STYLES: Final = {
    "plain": ("", "d", "b", "r", "u", "u b"),
    "dark": ("", "color(246)", "b", "b #ffffff on #2c3b4d", "color(246)", "b"),
    "light": ("", "color(242)", "b", "b #000000 on #dbe7f5", "color(242)", "b"),
    "contrast": ("", "", "b", "b r", "b u", "b r"),
    "ansi": ("", "d", "b", "r", "u", "b u"),
}
"""The style of each role in each theme, with Rich's short words: bold, dim, reverse."""
_BOLD: Final = dict.fromkeys(("warning", "alarm"), "b")
"""Inks to be seen without colours."""


def _styles(theme: str) -> dict[str, str]:
    place = {"dark": 0, "light": 1, "ansi": 2}.get(theme)
    inks = MEANINGS | NEUTRAL
    own = {name: _BOLD.get(name, "") if place is None else inks[name][place] for name in inks}
    return dict(zip(_ROLES, _STYLES[theme], strict=True)) | own


class Inks(Struct, frozen=True):
    """A style for each role of a text, and the colours of scales."""

    styles: Mapping[str, str]
    heat: tuple[str, ...] = ()
    change: tuple[str, ...] = ()
    has_few: bool = False
    """Whether they are of a terminal's 16 colours."""
    behind: str = ""
    """The colour of the ground, which fainter inks are nearer to."""
    ground: str = ""
    """What all is drawn on and in by default, in Rich's words; empty: the terminal's own."""
    made: dict[str, Style] = field(default_factory=dict)

    @property
    def has_colours(self) -> bool:
        """Whether colours distinguish kinds and magnitudes."""
        return bool(self.heat)

    def of(self, name: str) -> Style:
        """The ink of a name.

        `heat7` (0 to 15) and `change7` (0 to 14) are cells filled with a level of a scale, and
        `front/back` is one on the other. A click on a text in
        `ink@action argument` performs the action.
        """
        style = self.made.get(name)
        if style is None:
            style = self._style(name)
            if self.ground:
                style = Style.parse(self.ground) + style
            self.made[name] = style
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
        if name.endswith(AGAIN):
            return self._again(self.of(name.removesuffix(AGAIN)))
        return Style.parse("" if name.startswith(("heat", "change")) else self.styles[name])

    def _again(self, style: Style) -> Style:
        """A style once more: fainter in true colors, the same in a terminal's own."""
        colour = style.color
        if colour is None or colour.type is not ColorType.TRUECOLOR:
            return style
        faded = again(colour.get_truecolor().hex, self.behind)
        return style + Style(color=faded)

    def _on(self, front: str, ground: Color | None) -> Style:
        if ground is None:
            level = self._level(front)
            return self.of(front) if level is None else Style(color=level)
        if self._is_filled(front):
            return Style(color=self._colour(front), bgcolor=ground)
        black, white = _TEXTS[ground.type is ColorType.STANDARD]
        text = black if is_light(ground.get_truecolor().hex) else white
        return Style(color=text, bgcolor=ground, bold=self.of(front).bold)

    def _is_filled(self, name: str) -> bool:
        return name.removesuffix(AGAIN) in _FILLED or name[-1].isdigit()

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
_FILLED: Final = {*MEANINGS, *NEUTRAL}
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
_INKS: Final = {
    name: Inks(_styles(name), *_SCALES.get(name, ((), ())), has_few=name == "ansi")
    for name in _STYLES
}
_MANY_COLOURS: Final = ("256", "truecolor")

GROUNDS: Final = {
    "dark": ("#c9d1d9", "#0d1117"),
    "light": ("#24292f", "#ffffff"),
    "dracula": ("#f8f8f2", "#282a36"),
    "nord": ("#d8dee9", "#2e3440"),
    "gruvbox": ("#ebdbb2", "#282828"),
    "catppuccin": ("#cdd6f4", "#1e1e2e"),
    "solarized": ("#a9b7b7", "#002b36"),
}
"""Text and background of themes: the latter is painted where a person asks for it."""
THEMES: Final = ("dark", "light", "contrast", "ansi", *list(GROUNDS)[2:])


@cache
def _with_ground(theme: str, *, is_painted: bool) -> Inks:
    """The inks of a theme: dark ones differ in their text, what is dim, and the cursor's row."""
    base = _INKS.get(theme, _INKS["dark"])
    if theme not in GROUNDS:
        return base
    text, ground = GROUNDS[theme]
    styles = dict(base.styles)
    if theme not in _INKS:
        dim = mixed(text, ground, 0.35)
        cursor = f"b {text} on {mixed(text, ground, 0.85)}"
        styles |= {"dim": dim, "header": dim, "cursor": cursor}
        styles |= {"shade": mixed(text, ground, 0.92)}
    painted = f"{text} on {ground}" if is_painted else ""
    return Inks(styles, base.heat, base.change, behind=ground, ground=painted)


def inks(theme: str, color_system: str | None, no_color: bool, *, is_painted: bool = False) -> Inks:
    if no_color or color_system is None:
        return _INKS["contrast" if theme == "contrast" else "plain"]
    if color_system not in _MANY_COLOURS and theme != "contrast":
        return _INKS["ansi"]
    return _with_ground(theme if theme in THEMES else THEMES[0], is_painted=is_painted)


def textual_theme(name: str, *, is_painted: bool = False) -> Theme:
    drawn = _with_ground(name, is_painted=is_painted)
    base = BUILTIN_THEMES["ansi-light" if name == "light" else "ansi-dark"]
    # The terminal's own accent has a hue, which would have a meaning.
    variables, primary = base.variables | _SCROLLBARS, "ansi_bright_black"
    accent, cursor = (drawn.of(role) for role in ("accent", "cursor"))
    if accent.color and cursor.color and cursor.bgcolor:
        primary = accent.color.name
        for part, colour in (("foreground", cursor.color), ("background", cursor.bgcolor)):
            variables |= {f"{each}-cursor-{part}": colour.name for each in ("block", "input")}
    variables |= {"border": primary, "border-blurred": primary}
    variables |= _PANELS.get(name, _PANELS["ansi"])
    is_painted = is_painted and name in GROUNDS
    text, ground = GROUNDS[name] if is_painted else ("ansi_default", "ansi_default")
    variables |= {"ground": ground, "ink": text, "link-color": text, "link-style": "none"}
    if name not in _INKS:
        text, ground = GROUNDS[name]
        lines = (mixed(text, ground, 0.88), text, mixed(text, ground, 0.35))
        variables |= dict(zip(("line", "strong", "faint"), lines, strict=True))
    return replace(base, name=name, primary=primary, variables=variables)


_PANELS: Final = {
    name: dict(zip(("line", "strong", "faint"), colours, strict=True))
    for name, colours in {
        "dark": ("#39424d", "#f5f8fb", "#848d97"),
        "light": ("#c8d1da", "#000000", "#59636e"),
        "ansi": ("ansi_bright_black", "ansi_default", "ansi_bright_black"),
    }.items()
}
"""The borders of panels, the title of the focused one, and the subtitle."""
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
