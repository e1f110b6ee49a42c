"""The characters of bars, sparklines and marks, in Unicode and ASCII; sparklines on one scale."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.signals import Signal
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.grouping import distinct, quantile_of

STAND_INS: Final = str.maketrans(
    dict.fromkeys("─━▔–—", "-")
    | dict.fromkeys("│┃▏▎▊▐▌", "|")
    | dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯±", "+")
    | {"▪": "#", "★": "*"}
    | dict.fromkeys("●•", "*")
    | {"○": ".", "□": ".", "■": "#", "▾": "-", "▸": "+"}
    | dict.fromkeys("↑▲", "^")
    | dict.fromkeys("↓▼", "v")
    | dict.fromkeys("⏎←◀‹", "<")
    | dict.fromkeys("→›▶", ">")
    | {"‘": "'", "’": "'", "“": '"', "”": '"', "µ": "u", "×": "x", "·": ".", "…": "~"}
    | {"Δ": "d", "°": " ", "≤": "<"}
    | dict(zip("▁▂▃▄▅▆▇█", "_.-=+*%#", strict=True))
)
"""Signs of titles, notes and drawings in ASCII, each one cell wide."""
SAMPLED: Final = 256
"""Of more rows, so many at even distances give the scale."""
_ENDS: Final = (0.01, 0.99)
_ROOFED: Final = 70
"""Percentage of a row's cells at the top of the scale from which they are a line, not a wall."""
_NARROW: Final = 0.02
"""Of its high end: the span of a scale whose levels are too close to matter."""
_FLAT: Final = 0.01
"""A scale that spans less of its high end shows noise: it is widened to this."""


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
    roof: str = '"'
    shaded: str = ":"
    """A cell of a band, without colours."""
    row_bar: str = "="
    """A cell of a bar in a row, which leaves a gap to the next row."""
    steps: str = "-"
    """A line within a cell, from its top to its bottom."""
    meter: str = "#."
    """A cell of a meter, filled and empty."""
    best: str = "*"
    """Before the best figure of a column."""
    in_colour: bool = False
    """Whether colours distinguish kinds and magnitudes; without them patterns and levels do."""
    has_few: bool = False
    """Whether there are 16 colours at most: some kinds then share one, in patterns."""

    @property
    def has_halves(self) -> bool:
        """Whether the two halves of a cell, or its front and its back, can differ in colour."""
        return self.in_colour and not self.is_ascii

    @property
    def band(self) -> str:
        return self.spark[-1] if self.has_halves else self.shaded

    @property
    def is_ascii(self) -> bool:
        return self.name == "ascii"

    def order(self, sort: str) -> str:
        """The mark behind the heading of a sorted column; in ASCII with a gap after letters."""
        mark = self.down if sort.startswith("-") else self.up
        return f" {mark}" if self.is_ascii else mark

    def coloured(self, in_colour: bool, has_few: bool = False) -> Glyphs:
        if (self.in_colour, self.has_few) == (in_colour, has_few):
            return self
        return replace(self, in_colour=in_colour, has_few=has_few)

    def spelled(self, text: str) -> str:
        """Text with units spelled as this set can show them."""
        text = text.replace("µ", self.micro)
        return text.translate(STAND_INS) if self.is_ascii else text


UNICODE: Final = Glyphs(
    "unicode",
    "▏▎▍▌▋▊▉█",
    "▁▂▃▄▅▆▇█",
    "…",
    "–",
    "›",
    "▼",
    "▲",
    "▌",
    "●",
    "µ",
    "→",
    "─",
    "▔",
    "░",
    "▆",
    "▔─▁",
    "■□",
    "★",
)
ASCII: Final = Glyphs("ascii", "#", "_.-=+*%#", "~", "-", ">", "v", "^", ">", "*", "u", ">")


def glyphs_for(encoding: str | None) -> Glyphs:
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


def column_glyphs(shares: Float64, height: int, glyphs: Glyphs) -> list[str]:
    """Columns as high as their shares (0..1), from the top line down; blank where unknown."""
    levels, known = glyphs.spark, np.isfinite(shares)
    top = height * len(levels) - 1
    filled = np.where(known, np.clip(np.where(known, shares, 0.0), 0.0, 1.0) * top, -1.0)
    lines = []
    for below in range(top + 1 - len(levels), -1, -len(levels)):
        own = np.clip(np.rint(filled).astype(int) + 1 - below, 0, len(levels))
        lines.append("".join((" " + levels)[level] for level in own.tolist()))
    return lines


def sparkline(shares: Float64, glyphs: Glyphs) -> str:
    return column_glyphs(shares, 1, glyphs)[0]


class SparkScale(Struct, frozen=True):
    """The ends of a scale, in the signal's unit."""

    low: float
    high: float

    @classmethod
    def of(cls, means: Float64) -> SparkScale:
        """From the 1st to the 99th percentile of rows x bins, at least 1 % of the high end wide."""
        known = means[np.isfinite(means)]
        if not len(known):
            return cls(0.0, 1.0)
        low, high = quantile_of(known, _ENDS).tolist()
        spare = max(_FLAT * abs(high) - (high - low), 0.0)
        return cls(low - spare, high)

    def title(self, signal: Signal) -> str:
        """The signal and the scale of a sparkline: `gfx 1557-1738 MHz`."""
        space = "" if signal.unit is Unit.PERCENT else " "
        scale = signal.unit.axis(self.low, self.high)
        low, high = map(scale.number, (self.low, self.high))
        ends = low if low == high else f"{low}-{high}"
        return f"{signal.title} {ends}{space}{scale.text}"

    def line(self, means: Float64, unit: Unit, glyphs: Glyphs) -> str:
        """A row as a sparkline; one that never leaves a level is a thin line with its value."""
        known = means[np.isfinite(means)]
        span = (self.high - self.low) or 1.0
        if len(known) and (known.max() - known.min()) * len(glyphs.spark) < span:
            value = f" {unit.axis(self.low, self.high).number(float(known.mean()))}"
            line = "".join(glyphs.flat if each else " " for each in np.isfinite(means).tolist())
            room = max(len(means) - len(value), 0)
            return (line[:room] + value)[: len(means)] if room > 1 else line
        line = sparkline((means - self.low) / span, glyphs)
        return _roofed(line, glyphs, is_narrow=span <= _NARROW * abs(self.high))


def _roofed(line: str, glyphs: Glyphs, is_narrow: bool) -> str:
    """A sparkline that is mostly at its top, or nearly on a narrow scale, as a line that drops."""
    below, top = glyphs.spark[-2], glyphs.spark[-1]
    known = len(line) - line.count(" ")
    high = line.count(top) + (line.count(below) if is_narrow else 0)
    if high * 100 < _ROOFED * known or not line.count(top):
        return line
    line = line.replace(top, glyphs.roof)
    return line.replace(below, glyphs.roof) if is_narrow else line


def evenly_sampled(rows: int) -> Index:
    return distinct(np.linspace(0, max(rows - 1, 0), min(rows, SAMPLED)).astype(np.intp))
