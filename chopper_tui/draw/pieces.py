"""Lines as pieces of text in named inks, and their widths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chopper_core.render.ansi import Paint
from chopper_core.render.cells import cell_width, elide, pad
from chopper_core.render.glyphs import Glyphs

Pieces = Sequence[tuple[str, str]]
"""A line: pieces of text, each with the name of its ink."""


SERIES_INKS: Final = (
    *("accent", "second", "third", "fourth", "fifth", "sixth"),
    *("seventh", "eighth", "ninth", "tenth"),
)
"""Inks of series in order, one hue each; without colour the fills tell series apart."""
_FILLS: Final = {"unicode": "█▓▒░▚▞▌▖▀▝", "ascii": "#=+-ox*%~:"}


def series_fills(glyphs: Glyphs) -> str:
    """What fills the parts of bars: in colours alike, else patterns."""
    return _FILLS[glyphs.name][:1] if glyphs.in_colour else _FILLS[glyphs.name]


def fit(text: str, width: int, glyphs: Glyphs) -> str:
    """Text of exactly `width` cells: its middle gives way, or spaces follow."""
    return pad(elide(text, width, glyphs), width)


def painted_line(pieces: Pieces, paint: Paint) -> str:
    """A line as text, painted, without the blanks at its end."""
    kept = list(pieces)
    while kept and not kept[-1][0].strip() and not kept[-1][1][-1:].isdigit():
        kept.pop()
    if kept and not kept[-1][1][-1:].isdigit():
        kept[-1] = (kept[-1][0].rstrip(), kept[-1][1])
    return "".join(paint(text, ink) for text, ink in kept)


def width_of(pieces: Pieces) -> int:
    """The cells that a line takes."""
    return sum(cell_width(text) for text, _ in pieces)
