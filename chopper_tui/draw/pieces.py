"""Lines as pieces of text in named inks, and their widths."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

import numpy as np

from chopper_core.model.units import Unit
from chopper_core.render.cells import cell_width, elide, pad
from chopper_core.render.glyphs import Glyphs
from chopper_core.render.palette import Paint

Pieces = Sequence[tuple[str, str]]
Line = list[tuple[str, str]]
"""A line that is being put together."""


SERIES_INKS: Final = (
    *("accent", "second", "third", "fourth", "fifth", "sixth"),
    *("seventh", "eighth", "ninth", "tenth"),
)
"""Inks of series in order, one hue each; without colour the fills tell series apart."""
COMPUTE, COPY, HIDDEN, EXPOSED, WAITING, IDLE = (
    *("gemm", "copy", "hidden", "exposed", "waiting", "idle"),
)
"""Inks of kinds of time, the same in bars and lanes."""
CLASS_INKS: Final = ("gemm", "attention", "elementwise", "norm", "copy", "optimizer")
"""Of the classes of compute that the timeline distinguishes."""
_TIMES: Final = {
    "useful": ("theoretical",),
    "low_clock": ("frequency",),
    "maybe_clock": ("possibly frequency",),
    "matrix": ("MFMA utilisation",),
    "vector": ("vector work",),
    "extra": ("extra instructions",),
    "contention": ("contention",),
    "unknown": ("unattributed compute", "other compute"),
    COMPUTE: ("compute",),
    COPY: ("exposed copies", "copies", "memory"),
    HIDDEN: ("compute during communication",),
    EXPOSED: ("exposed communication", "communication", "collective"),
    "optimizer": ("optimizer",),
    IDLE: ("idle", "launch"),
}
"""Ink → the names of its kind of time, whatever bar they are in."""
_TIME_INKS: Final = {name: ink for ink, names in _TIMES.items() for name in names}
_FILLS: Final = {"unicode": "█▓▒░▚▞▌▖▀▝·", "ascii": "#=+-ox*%~:."}
_FILLED_INKS: Final = dict(zip(SERIES_INKS, range(10), strict=True)) | {
    COMPUTE: 0,
    "useful": 0,
    "low_clock": 1,
    "matrix": 2,
    "optimizer": 2,
    "vector": 3,
    "extra": 4,
    "contention": 5,
    EXPOSED: 6,
    COPY: 7,
    "unknown": 8,
    "maybe_clock": 9,
    HIDDEN: 9,
    IDLE: 10,
}
"""Ink → the place of its pattern, where there are no colours."""


def series_inks(names: Sequence[str]) -> list[str]:
    """An ink per series: a kind of time has its own everywhere, others follow in order."""
    known = [_TIME_INKS.get(name) for name in names]
    free = [ink for ink in SERIES_INKS if ink not in known] or list(SERIES_INKS)
    others = iter(range(len(names)))
    return [ink or free[next(others) % len(free)] for ink in known]


def series_fills(inks: Sequence[str], glyphs: Glyphs) -> str:
    """The fills of the parts of bars in these inks: in colours alike, else a pattern per ink."""
    fills = _FILLS[glyphs.name]
    if glyphs.in_colour:
        return fills[0] * len(inks)
    return "".join(fills[_FILLED_INKS.get(ink, n % len(fills))] for n, ink in enumerate(inks))


_HUES: Final[dict[Unit, str]] = {
    Unit.MHZ: "clock",
    Unit.PERCENT: "use",
    Unit.WATTS: "power",
    Unit.CELSIUS: "warm",
}
TONES: Final = 3
_MAX_WRITTEN_OUT: Final = 1e15


def hue_of(unit: str) -> str:
    """The hue of a signal over time by its unit: clocks, utilization and power differ."""
    return _HUES.get(Unit(unit), "clock")


def toned(text: str, hue: str, levels: str) -> Line:
    """A line of levels in the tones of a hue: the higher, the lighter; blanks break no piece."""
    inks, ink = [], f"{hue}0"
    for char in text:
        place = levels.find(char)
        ink = ink if place < 0 else f"{hue}{place * TONES // len(levels)}"
        inks.append(ink)
    return inked(text, inks)


def inked(chars: Sequence[str], inks: Sequence[str]) -> Line:
    return [
        ("".join(char for char, _ in piece), ink)
        for ink, piece in groupby(zip(chars, inks, strict=True), key=itemgetter(1))
    ]


def marked(pieces: Pieces, begin: int, end: int, ink: str = "cursor", text: str = "") -> Line:
    """A line of characters of one cell with some of its cells in an ink, or replaced by a text."""
    chars = [char for own, _ in pieces for char in own]
    inks = [ink for own, ink in pieces for _ in own]
    chars[begin:end] = text or chars[begin:end]
    inks[begin:end] = [ink] * len(inks[begin:end])
    return inked(chars, inks)


def fit(text: str, width: int, glyphs: Glyphs) -> str:
    return pad(elide(text, width, glyphs), width)


def painted_line(pieces: Pieces, paint: Paint) -> str:
    """A line as text, painted, without the blanks at its end."""
    kept = list(pieces)
    while kept and not kept[-1][0].strip() and not kept[-1][1][-1:].isdigit():
        kept.pop()
    if kept and not kept[-1][1][-1:].isdigit():
        kept[-1] = (kept[-1][0].rstrip(), kept[-1][1])
    return "".join(paint(text, ink) for text, ink in kept)


def cut(line: Line, width: int, glyphs: Glyphs) -> Line:
    used, kept = 0, []
    for text, ink in line:
        room = width - used
        if room <= 0:
            break
        shown = text if cell_width(text) <= room else elide(text, room, glyphs)
        kept.append((shown, ink))
        used += cell_width(shown)
    return kept


def short_number(value: float) -> str:
    if not np.isfinite(value):
        return ""
    size = abs(value)
    if size >= _MAX_WRITTEN_OUT:
        return f"{value:.3g}"
    if size >= 1000 or value == round(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def width_of(pieces: Pieces) -> int:
    return sum(cell_width(text) for text, _ in pieces)
