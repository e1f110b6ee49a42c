"""The parts of one or two wholes: a bar over the whole width each, and every part's figure."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.charts import Composition
from chopper_core.render.cells import cell_width, clean, pad
from chopper_core.render.glyphs import Glyphs
from chopper_tui.draw.drawer import UNLIMITED, Canvas, Drawer
from chopper_tui.draw.pieces import Line, series_fills, series_inks

_LEAST_SHARE: Final = 0.0005
"""Smaller parts are not listed: their figure would be 0.0 %."""
_GAP: Final = 2
_WITH_TIMES_FROM: Final = 100
"""Width from which parts have their time beside their share, and the bar has a title."""


class CompositionDrawer(Drawer[Composition]):
    """A bar per whole on one scale, then the parts with their figures in aligned columns."""

    is_quick = True

    def lines(self, chart: Composition, width: int, glyphs: Glyphs) -> int:
        """All."""
        return len(_draw(chart, width, glyphs))

    def draw(self, chart: Composition, on: Canvas) -> list[Line]:
        """The bars and the legend."""
        return _draw(chart, on.width, on.glyphs, max(on.height, 0))


class _LegendEntry(Struct, frozen=True):
    """A part in the legend."""

    place: int
    """Among all parts."""
    mark: str
    ink: str
    name: str
    figure: str

    @property
    def pieces(self) -> Line:
        """Its mark, name and figure."""
        return [(self.mark, self.ink), (f" {self.name} ", "dim"), (self.figure, "strong")]

    @property
    def cells(self) -> int:
        """Its width."""
        return sum(cell_width(text) for text, _ in self.pieces)


def _draw(picture: Composition, width: int, glyphs: Glyphs, most: int = UNLIMITED) -> list[Line]:
    """The bars and the legend; of parts that don't fit into `most` lines, the smallest go."""
    numbers = np.stack([each.numbers for each in picture.series], axis=1)
    numbers = np.nan_to_num(numbers)
    wholes = numbers.sum(axis=1)
    # Parts below zero make a whole shorter than the bar of its other parts.
    longest = float(np.maximum(numbers, 0.0).sum(axis=1).max(initial=0.0)) or 1.0
    many = len(picture.labels) > 1
    names = [clean(label) for label in picture.labels] if many else [""]
    # A baseline is above that which is compared with it, as in a sentence.
    order = range(len(names) - 1, -1, -1)
    has_title = width >= _WITH_TIMES_FROM
    word = f"{picture.reduction} " if picture.reduction and not has_title else ""
    texts = [word + _number(whole, picture.unit) for whole in wholes.tolist()]
    label_width = max(map(cell_width, names)) if many else 0
    value_width = max(map(len, texts)) + 1
    room = max(width - value_width - (label_width + 1 if many else 0), 1)
    looks = _looks(picture, numbers, wholes, glyphs)
    lines: list[Line] = []
    for row in order:
        label = [(pad(names[row], label_width) + " ", "text")] if many else []
        bar = _bar(numbers[row] / longest * room, looks)
        used = sum(len(text) for text, _ in bar)
        value = (texts[row].rjust(value_width + room - used), "strong")
        lines.append([*label, *bar, value])
    entries = _entries(picture, numbers, wholes, width, looks)
    if has_title:
        lines.insert(0, [(clean(picture.title), "strong")])
    sizes = [np.abs(series.numbers).max() for series in picture.series]
    for smallest in sorted(entries, key=lambda each: sizes[each.place]):
        if len(lines) + len(_legend(entries, width)) <= most:
            break
        entries.remove(smallest)
    return [*lines, *_legend(entries, width)][:most]


def _looks(
    picture: Composition, numbers: np.ndarray, wholes: np.ndarray, glyphs: Glyphs
) -> list[tuple[str, str]]:
    """Fill and ink of every part: those too small to be listed take none of the hues."""
    shares = np.abs(numbers / np.where(wholes > 0, wholes, 1.0)[:, None]).max(axis=0)
    listed = np.flatnonzero(shares >= _LEAST_SHARE).tolist()
    inks = series_inks([picture.series[place].name for place in listed])
    looks = dict(zip(listed, zip(series_fills(inks, glyphs), inks, strict=True), strict=True))
    return [
        looks.get(place, (series_fills(("dim",), glyphs), "dim")) for place in range(len(shares))
    ]


def _bar(lengths: np.ndarray, looks: list[tuple[str, str]]) -> Line:
    """The parts of a bar, rounded so that their total length is exact."""
    ends = np.rint(np.cumsum(np.maximum(lengths, 0.0))).astype(int)
    return [
        (looks[number][0] * size, looks[number][1])
        for number, size in enumerate(np.diff(ends, prepend=0).tolist())
        if size
    ]


def _entries(
    picture: Composition,
    numbers: np.ndarray,
    wholes: np.ndarray,
    width: int,
    looks: list[tuple[str, str]],
) -> list[_LegendEntry]:
    """The parts that are large enough to be listed."""
    entries = []
    shares = numbers / np.where(wholes > 0, wholes, 1.0)[:, None]
    for place, series in enumerate(picture.series):
        if np.abs(shares[:, place]).max() < _LEAST_SHARE:
            continue
        figure = f"{100 * shares[0, place]:.1f} %"
        if len(wholes) > 1:
            change = numbers[0, place] - numbers[1, place]
            figure = f"{change:+z.1f} {picture.unit}"
        elif width >= _WITH_TIMES_FROM:
            figure = f"{_number(numbers[0, place], picture.unit)} {figure}"
        entries.append(_LegendEntry(place, *looks[place], clean(series.name), figure))
    return entries


def _legend(entries: list[_LegendEntry], width: int) -> list[Line]:
    """The entries in as few lines as they need, in columns where these take no more."""
    if not entries:
        return []
    flowing = _flowing(entries, width)
    if not entries:
        return []
    for across in range(len(entries), 0, -1):
        columns = [entries[at::across] for at in range(across)]
        widths = [max(each.cells for each in column) for column in columns]
        if sum(widths) + _GAP * (across - 1) <= width or across == 1:
            break
    if len(flowing) < -(-len(entries) // across):
        return flowing
    lines: list[Line] = []
    for first in range(0, len(entries), across):
        line: Line = []
        for entry, cells in zip(entries[first : first + across], widths, strict=False):
            line += [*entry.pieces, (" " * (cells - entry.cells + _GAP), "text")]
        lines.append(line[:-1])
    return lines


def _flowing(entries: list[_LegendEntry], width: int) -> list[Line]:
    """The entries one after another."""
    lines: list[Line] = []
    used = width
    for entry in entries:
        if used + _GAP + entry.cells > width:
            lines.append([])
            used = -_GAP
        lines[-1] += [(" " * _GAP, "text")] * (used >= 0) + entry.pieces
        used += _GAP + entry.cells
    return lines


def _number(number: float, unit: str) -> str:
    """A figure with at most four digits and its unit."""
    decimals = max(min(3 - len(f"{abs(number):.0f}"), 3), 0)
    return f"{number:.{decimals}f} {unit}"
