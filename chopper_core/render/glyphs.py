"""The characters of bars, sparklines and marks, in Unicode and ASCII."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.util.arrays import Float64

_ASCII_SIGNS: Final = str.maketrans("°Δ–…×", " d-~x")
"""Signs of titles and notes in ASCII, each one cell wide."""


class Glyphs(Struct, frozen=True):
    """One set of characters, each one cell wide."""

    name: str
    bar: str
    """A bar's last cell from a thin slice to a full cell."""
    spark: str
    """A sparkline's levels from the lowest to the highest."""
    ellipsis: str
    missing: str
    crumb: str
    down: str
    up: str
    cursor: str
    mark: str
    micro: str
    arrow: str
    """Between a row's name in the baseline and its own."""
    flat: str = "-"
    """A sparkline that doesn't change."""
    roof: str = '"'
    """A sparkline at its top."""
    in_colour: bool = False
    """Whether colours tell kinds and magnitudes apart; without them patterns and levels do."""

    @property
    def is_ascii(self) -> bool:
        """Whether every character is ASCII."""
        return self.name == "ascii"

    def order(self, sort: str) -> str:
        """The mark behind the heading of a sorted column; in ASCII it stands apart from letters."""
        mark = self.down if sort.startswith("-") else self.up
        return f" {mark}" if self.is_ascii else mark

    def coloured(self, in_colour: bool) -> Glyphs:
        """The set for a medium with colours, or for one without."""
        return self if self.in_colour == in_colour else replace(self, in_colour=in_colour)

    def spelled(self, text: str) -> str:
        """Text with units spelled as this set can show them."""
        text = text.replace("µ", self.micro)
        return text.translate(_ASCII_SIGNS) if self.is_ascii else text


UNICODE: Final = Glyphs(
    "unicode", "▏▎▍▌▋▊▉█", "▁▂▃▄▅▆▇█", "…", "–", "›", "▼", "▲", "▌", "●", "µ", "→", "─", "▔"
)
ASCII: Final = Glyphs("ascii", "#", "_.-=+*%#", "~", "-", ">", "v", "^", ">", "*", "u", ">")


def glyphs_for(encoding: str | None) -> Glyphs:
    """The set that a stream of this encoding can show."""
    try:
        "".join((UNICODE.bar, UNICODE.spark, UNICODE.crumb)).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def bar(share: float, width: int, glyphs: Glyphs) -> str:
    """A horizontal bar of a share (0..1), padded to `width` cells; anything above 0 shows."""
    steps = len(glyphs.bar)
    filled = round(min(max(share, 0.0), 1.0) * width * steps)
    if share > 0:
        filled = max(filled, 1)
    whole, rest = divmod(filled, steps)
    return (glyphs.bar[-1] * whole + (glyphs.bar[rest - 1] if rest else "")).ljust(width)


def sparkline(shares: Float64, glyphs: Glyphs) -> str:
    """A line of levels for shares (0..1); a space where a value is missing."""
    top = len(glyphs.spark) - 1
    known = np.isfinite(shares)
    levels = np.rint(np.clip(np.where(known, shares, 0.0), 0.0, 1.0) * top).astype(int)
    return "".join(
        glyphs.spark[level] if ok else " " for level, ok in zip(levels, known, strict=True)
    )
