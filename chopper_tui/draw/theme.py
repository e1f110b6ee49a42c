"""Colours: the inks that text is drawn in, on the terminal's own background.

The accents of `dark` and `light` are of the Okabe-Ito palette, which colour-blind people can tell
apart. `contrast` dims and tints nothing; `ansi` takes the terminal's own 16 colours, and so does
every other theme where there are no more. Without colours the cursor is reversed, titles are bold
and asides are dim.
"""

from __future__ import annotations

from dataclasses import replace  # noqa: TID251 (what Textual has is one)
from typing import Final

from msgspec import Struct
from rich.style import Style
from textual.theme import BUILTIN_THEMES, Theme


class Inks(Struct, frozen=True):
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
    second: Style
    """Of several series in a picture the second one; the first has the accent."""
    third: Style
    fourth: Style
    fifth: Style
    sixth: Style

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
    second=Style(),
    third=Style(dim=True),
    fourth=Style(),
    fifth=Style(dim=True),
    sixth=Style(),
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
    second=Style(color="#e69f00"),
    third=Style(color="#009e73"),
    fourth=Style(color="#cc79a7"),
    fifth=Style(color="#f0e442"),
    sixth=Style(color="#d55e00"),
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
    second=Style(color="#b37400"),
    third=Style(color="#007a5a"),
    fourth=Style(color="#a8508a"),
    fifth=Style(color="#8a7f00"),
    sixth=Style(color="#d55e00"),
)
_CONTRAST: Final = Inks(
    text=Style(),
    dim=Style(),
    strong=Style(bold=True),
    accent=Style(bold=True),
    spark=Style(),
    shade=Style(),
    alert=Style(bold=True, reverse=True),
    cursor=Style(bold=True, reverse=True),
    header=Style(bold=True, underline=True),
    chosen=Style(bold=True, reverse=True),
    second=Style(),
    third=Style(),
    fourth=Style(),
    fifth=Style(),
    sixth=Style(),
)
_ANSI: Final = Inks(
    text=Style(),
    dim=Style(dim=True),
    strong=Style(bold=True),
    accent=Style(color="cyan"),
    spark=Style(color="blue"),
    shade=Style(dim=True),
    alert=Style(color="yellow", bold=True),
    cursor=Style(reverse=True),
    header=Style(underline=True),
    chosen=Style(color="yellow", bold=True, underline=True),
    second=Style(color="yellow"),
    third=Style(color="green"),
    fourth=Style(color="magenta"),
    fifth=Style(color="bright_yellow"),
    sixth=Style(color="red"),
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
