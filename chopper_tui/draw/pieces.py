"""Lines as pieces of text in named inks, and their widths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count, groupby
from operator import itemgetter
from typing import Final

import numpy as np

from chopper_core.model.phrases import BETWEEN_FACTS
from chopper_core.model.units import Unit
from chopper_core.render.cells import cell_width, elide, pad
from chopper_core.render.glyphs import Glyphs
from chopper_core.render.palette import AGAIN, PATTERNED, Paint

Pieces = Sequence[tuple[str, str]]
Line = list[tuple[str, str]]
"""A line that is being put together."""


SERIES_INKS: Final = ("accent", "third", "fourth", "second")
"""Inks of series without a meaning, in order; fills distinguish those that share one."""
COMPUTE, COPY, HIDDEN, EXPOSED, WAITING, IDLE = (
    *("gemm", "copy", "hidden", "exposed", "waiting", "idle"),
)
"""Inks of kinds of time, the same in bars and lanes."""
CLASS_INKS: Final = ("gemm", "attention", "elementwise", "norm", "copy", "optimizer")
"""Of the classes of compute that the timeline distinguishes."""
_TIMES: Final = {
    "useful": ("ideal",),
    "low_clock": ("low clock", "possibly low clock"),
    "matrix": ("idle matrix units",),
    "vector": ("vector work",),
    "extra": ("extra instructions", "recomputation"),
    "contention": ("contention",),
    "unknown": ("not explained", "other compute"),
    COMPUTE: ("compute", "GEMM"),
    "attention": ("attention",),
    "elementwise": ("vector",),
    COPY: ("exposed copies", "copies", "memory", "sharding copies"),
    HIDDEN: ("compute during communication",),
    EXPOSED: ("exposed communication", "communication", "collective"),
    WAITING: ("after launch, under communication",),
    "optimizer": ("optimizer",),
    IDLE: ("idle", "launch"),
}
"""Ink → the names of its kind of time, whatever bar they are in."""
_TIME_INKS: Final = {name: ink for ink, names in _TIMES.items() for name in names}
_FILLS: Final = {"unicode": "█▓▒░▚▞▌▖▀▝·", "ascii": "#=+-ox*%~:."}
_PLACES: Final = {
    ink: place
    for place, inks in enumerate(
        (
            *("gemm useful", "low_clock", "matrix optimizer attention", "vector elementwise"),
            *("extra norm", "contention", "exposed", "copy", "unknown", "hidden waiting", "idle"),
        )
    )
    for ink in inks.split()
}
"""Ink → the place of its pattern, where there are no colours."""
_PHASES: Final = ("forward ", "backward ", "prefill ", "decode ")


def series_inks(names: Sequence[str]) -> list[str]:
    """An ink per series: a kind of time has its own everywhere, others follow in order. One that is
    there already is a fainter one the second time."""
    known = [time_ink(name) for name in names]
    others = count()
    inks = [ink or SERIES_INKS[next(others) % len(SERIES_INKS)] for ink in known]
    return [ink + (AGAIN if inks[:place].count(ink) == 1 else "") for place, ink in enumerate(inks)]


def _kind(name: str) -> str:
    return next((name.removeprefix(each) for each in _PHASES if name.startswith(each)), name)


def time_ink(name: str) -> str:
    """The ink of a kind of time; empty for other names."""
    return _TIME_INKS.get(_kind(name), "")


def series_fills(inks: Sequence[str], glyphs: Glyphs) -> str:
    """The fills of the parts of bars in these inks: those of one colour differ in their pattern."""
    fills, before = _FILLS[glyphs.name], Counter[str]()
    chosen: list[str] = []
    if not glyphs.in_colour:
        owned = {fills[_PLACES[ink]] for ink in inks if ink in _PLACES}
        for n, ink in enumerate(inks):
            own = fills[_PLACES.get(ink.removesuffix(AGAIN), n % len(fills))]
            # Parts of one meaning differ, too, as far as there are patterns.
            is_free = own not in chosen and not ink.endswith(AGAIN)
            others = (fill for fill in fills[::-1] if fill not in owned and fill not in chosen)
            chosen.append(own if is_free else next(others, own))
        return "".join(chosen)
    for ink in inks:
        if glyphs.has_few:
            ink = ink.removesuffix(AGAIN)
        first = fills.find(PATTERNED[ink]) if glyphs.has_few and ink in PATTERNED else 0
        chosen.append(fills[(max(first, 0) + before[ink]) % len(fills)])
        before[ink] += 1
    return "".join(chosen)


_MAX_WRITTEN_OUT: Final = 1e15


def signal_ink(unit: str, deviation: float = 0.0) -> str:
    """The ink of a signal over time, so far above its peers: a clock is to be seen if it is low."""
    if unit == Unit.MHZ:
        return "low_clock" if deviation < 0 else "good"
    return "warning" if deviation else "good"


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


_LEAD_ENDS: Final = (": ", "; ", " (", ", ", BETWEEN_FACTS)
_MIN_LEAD: Final = 4


def lead(text: str) -> Line:
    """A sentence whose first phrase is strong; all of it where it is one phrase."""
    ends = [at for end in _LEAD_ENDS if (at := text.find(end, _MIN_LEAD)) > 0]
    end = min(ends, default=len(text))
    return [(text[:end], "strong"), *([(text[end:], "text")] if end < len(text) else [])]


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


def cut_line(line: Line, width: int, glyphs: Glyphs) -> Line:
    used, kept = 0, []
    for text, ink in line:
        room = width - used
        if room <= 0:
            break
        shown = text if cell_width(text) <= room else elide(text, room, glyphs)
        kept.append((shown, ink))
        used += cell_width(shown)
    return kept


def whole_text(value: float) -> str:
    """A number of three digits or more without decimals."""
    return f"{value:.0f}" if abs(value) >= 100 else short_number(value)


def short_number(value: float) -> str:
    if not np.isfinite(value):
        return ""
    size = abs(value)
    if size >= _MAX_WRITTEN_OUT:
        return f"{value:.3g}"
    if size >= 1000 or value == round(value):
        return f"{value:z.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def joined_rows(rows: Sequence[Pieces], width: int, gap: int) -> Pieces:
    """Rows side by side, each in so many cells but the last, which ends where it does."""
    joined: list[tuple[str, str]] = []
    for place, row in enumerate(rows):
        joined += row
        if place < len(rows) - 1:
            joined.append((" " * (width - width_of(row) + gap), "text"))
    return joined


def width_of(pieces: Pieces) -> int:
    return sum(cell_width(text) for text, _ in pieces)
