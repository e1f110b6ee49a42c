"""Lines as pieces of text in named inks, and their widths."""

from __future__ import annotations

from collections.abc import Sequence

from chopper_core.render.cells import cell_width, elide, pad
from chopper_core.render.glyphs import Glyphs

Pieces = Sequence[tuple[str, str]]
"""A line: pieces of text, each with the name of its ink."""


def fit(text: str, width: int, glyphs: Glyphs) -> str:
    """Text of exactly `width` cells: its middle gives way, or spaces follow."""
    return pad(elide(text, width, glyphs), width)


def width_of(pieces: Pieces) -> int:
    """The cells that a line takes."""
    return sum(cell_width(text) for text, _ in pieces)
