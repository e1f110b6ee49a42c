"""The parts of one or two wholes: a bar over the whole width each, and every part's figure."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.model.charts import Composition
from chopper_core.render.cells import clean
from chopper_core.render.glyphs import Glyphs
from chopper_core.util.arrays import Float64
from chopper_tui.draw.canvas import UNLIMITED, Canvas, stack
from chopper_tui.draw.drawer import Drawer
from chopper_tui.draw.pieces import Line, series_fills, series_inks, width_of

_LEAST_SHARE: Final = 0.0005
"""Smaller parts are not listed: their figure would be 0.0 %."""
_GAP: Final = 2
_WITH_TIMES_FROM: Final = 100
"""Width from which parts have their time next to their share, and the bar has a title."""


class CompositionDrawer(Drawer[Composition]):
    """A bar per whole on one scale, then the parts with their figures in aligned columns."""

    is_quick = True

    def title(self, chart: Composition, width: int, glyphs: Glyphs) -> list[Line]:
        return [[(clean(chart.title), "strong")]] if width >= _WITH_TIMES_FROM else []

    def lines(
        self, chart: Composition, width: int, glyphs: Glyphs, *, is_below: bool = False
    ) -> int:
        on = Canvas(width, UNLIMITED, glyphs)
        self.draw(chart, on)
        return len(on.lines)

    def body_lines(self, chart: Composition) -> int:
        return len(chart.labels)

    def body(self, chart: Composition, on: Canvas) -> None:
        """The bars and the legend; of parts that don't fit, the smallest go."""
        known = np.stack([each.numbers for each in chart.series], axis=1)
        numbers = np.nan_to_num(known)
        wholes = numbers.sum(axis=1)
        # Parts below zero make a whole shorter than the bar of its other parts.
        longest = float(np.maximum(numbers, 0.0).sum(axis=1).max(initial=0.0)) or 1.0
        has_title = on.width >= _WITH_TIMES_FROM
        word = f"{chart.reduction} " if chart.reduction and not has_title else ""
        values = [word + _number(whole, chart.unit) for whole in wholes.tolist()]
        names = on.labels(chart.labels) if len(chart.labels) > 1 else [""]
        digits = max(map(len, values)) + 1
        room = max(on.width - digits - width_of([(names[0], "")]), 1)
        shares = numbers / np.where(wholes > 0, wholes, 1.0)[:, None]
        listed = np.flatnonzero(np.abs(shares).max(axis=0) >= _LEAST_SHARE).tolist()
        # Those too small to be listed take none of the hues.
        hues = dict(zip(listed, series_inks([chart.series[n].name for n in listed]), strict=True))
        inks = [hues.get(place, "dim") for place in range(len(chart.series))]
        fills = series_fills(inks, on.glyphs)
        # A baseline is above that which is compared with it, as in a sentence.
        order = range(len(names)) if chart.some else reversed(range(len(names)))
        for row in order:
            bar = stack(numbers[row] / longest * room, fills, inks)
            value = values[row].rjust(digits + room - width_of(bar))
            on.add([(names[row], "text"), *bar, (value, "strong")])
        entries = {
            place: _entry(chart, known, shares, place, fills[place], inks[place], on.width)
            for place in listed
        }
        by_size = sorted(listed, key=lambda place: float(np.abs(numbers[:, place]).max()))
        while len(legend := _legend([*entries.values()], on.width)) > on.left:
            del entries[by_size.pop(0)]
        on.lines += legend


def _entry(
    chart: Composition, numbers: Float64, shares: Float64, place: int, mark: str, ink: str,
    width: int,
) -> Line:  # fmt: skip
    """A part in the legend: its mark, name and figure."""
    only_some = bool(chart.some) and np.isnan(numbers[0, place])
    whole = int(only_some)
    figure = f"{100 * shares[whole, place]:.1f} %"
    if len(numbers) > 1 and not chart.some:
        figure = f"{numbers[0, place] - numbers[1, place]:+z.1f} {chart.unit}"
    elif width >= _WITH_TIMES_FROM:
        figure = f"{_number(numbers[whole, place], chart.unit)} {figure}"
    if only_some:
        figure = f"{figure} {chart.some}"
    return [(mark, ink), (f" {clean(chart.series[place].name)} ", "dim"), (figure, "strong")]


def _legend(entries: list[Line], width: int) -> list[Line]:
    """The entries in as few lines as they need, in columns where these take no more."""
    if not entries:
        return []
    sizes = [*map(width_of, entries)]
    flowing: list[list[int]] = [[]]
    for place, size in enumerate(sizes):
        if flowing[-1] and sum(_GAP + sizes[each] for each in flowing[-1]) + size > width:
            flowing.append([])
        flowing[-1].append(place)
    for across in range(len(entries), 0, -1):
        widths = [max(sizes[at::across]) for at in range(across)]
        if sum(widths) + _GAP * (across - 1) <= width or across == 1:
            break
    rows = [[*range(at, min(at + across, len(entries)))] for at in range(0, len(entries), across)]
    if len(flowing) < len(rows):
        rows, widths = flowing, [0] * len(entries)
    lines: list[Line] = []
    for row in rows:
        line: Line = []
        for place, cells in zip(row, widths, strict=False):
            blank = max(cells - sizes[place], 0) + _GAP
            line += [*entries[place], (" " * blank, "text")]
        lines.append(line[:-1])
    return lines


def _number(number: float, unit: str) -> str:
    """A figure with at most four digits and its unit."""
    decimals = max(min(3 - len(f"{abs(number):.0f}"), 3), 0)
    return f"{number:.{decimals}f} {unit}"
