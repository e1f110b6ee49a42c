"""Colours: the inks that text is drawn in, on the terminal's own background.

The accents are of the Okabe-Ito palette, which colour-blind people can tell apart. Without
colours, or with few, the cursor is reversed, titles are bold and asides are dim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from rich.style import Style
from textual.theme import BUILTIN_THEMES, Theme


@dataclass(frozen=True, slots=True)
class Inks:
    """A style for each role of a text."""

    text: Style
    dim: Style
    strong: Style
    accent: Style
    """Bars and lines."""
    spark: Style
    """Sparklines: there are many of them."""
    shade: Style
    """The band behind a line."""
    alert: Style
    """What must not be overlooked."""
    cursor: Style
    header: Style
    chosen: Style
    """The header of the column that the rows are sorted by."""

    def of(self, name: str) -> Style:
        """The ink of a name."""
        style: Style = getattr(self, name)
        return style


_PLAIN: Final = Inks(
    text=Style(),
    dim=Style(dim=True),
    strong=Style(bold=True),
    accent=Style(),
    spark=Style(),
    shade=Style(dim=True),
    alert=Style(bold=True),
    cursor=Style(reverse=True),
    header=Style(underline=True),
    chosen=Style(underline=True, bold=True),
)
_DARK: Final = Inks(
    text=Style(),
    dim=Style(color="#8a929c"),
    strong=Style(bold=True),
    accent=Style(color="#56b4e9"),
    spark=Style(color="#4a86ab"),
    shade=Style(color="#3f5a6e"),
    alert=Style(color="#e69f00", bold=True),
    cursor=Style(color="#ffffff", bgcolor="#1d4566", bold=True),
    header=Style(color="#8a929c"),
    chosen=Style(color="#e69f00", bold=True),
)
_LIGHT: Final = Inks(
    text=Style(),
    dim=Style(color="#6b7280"),
    strong=Style(bold=True),
    accent=Style(color="#0072b2"),
    spark=Style(color="#6ea3c4"),
    shade=Style(color="#a9c4d6"),
    alert=Style(color="#b34e00", bold=True),
    cursor=Style(color="#000000", bgcolor="#cfe4f3", bold=True),
    header=Style(color="#6b7280"),
    chosen=Style(color="#b34e00", bold=True),
)
_ENOUGH_COLOURS: Final = ("256", "truecolor")

THEMES: Final = ("dark", "light")


def inks(theme: str, color_system: str | None, no_color: bool) -> Inks:
    """The inks of a theme on a terminal with these colours."""
    if no_color or color_system not in _ENOUGH_COLOURS:
        return _PLAIN
    return _LIGHT if theme == "light" else _DARK


def textual_theme(name: str) -> Theme:
    """The theme for the parts that Textual draws itself: the palette and the prompt."""
    chosen = _LIGHT if name == "light" else _DARK
    base = BUILTIN_THEMES[f"ansi-{name}"]
    accent, cursor = chosen.accent.color, chosen.cursor
    assert accent is not None and cursor.color is not None and cursor.bgcolor is not None
    return replace(
        base,
        name=name,
        primary=accent.name,
        variables=base.variables
        | {
            "block-cursor-foreground": cursor.color.name,
            "block-cursor-background": cursor.bgcolor.name,
            "input-cursor-foreground": cursor.color.name,
            "input-cursor-background": cursor.bgcolor.name,
            "border": accent.name,
            "border-blurred": accent.name,
        },
    )
