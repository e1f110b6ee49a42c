"""Bars, parts of a whole, cards: rows of text, which plotting libraries don't lay out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.charts import LEAST_SHARE, BarChart, Card, Cards, Composition
from chopper_core.model.units import significant, time_text
from chopper_core.render.cells import wrapped
from chopper_core.render.glyphs import Glyphs, bar
from chopper_core.util.arrays import Float64
from chopper_core.util.escape import clean
from chopper_tui.draw.canvas import (
    MAX_ZOOM,
    UNLIMITED,
    Canvas,
    Cell,
    Drawer,
    Lens,
    legend_entries,
    stack,
    stack_sizes,
    title_lines,
)
from chopper_tui.draw.pieces import (
    Line,
    lead,
    series_fills,
    series_inks,
    short_number,
    time_ink,
    width_of,
)

_MAX_THICK: Final = 3
_HAIR: Final = 1e-9
_LEAST_FIGURE: Final = 0.001


_MOST_ROWS: Final = 16
"""Rows that a chart of bars wants, at most."""


class BarParts(Struct, frozen=True, eq=False):
    """Bars of several parts on one scale, those below zero to the left of the others."""

    names: Sequence[str]
    inks: Sequence[str]
    parts: Float64
    """Parts x rows, 0 where unknown."""
    sums: Float64
    below: float
    span: float

    @classmethod
    def of(cls, chart: BarChart, labels: Sequence[str]) -> BarParts:
        """The bars of a chart in the order of some labels, which are its own."""
        numbers = np.stack([series.numbers for series in chart.series]).astype(np.float64)
        if labels is not chart.labels:
            places = {label: place for place, label in enumerate(chart.labels)}
            numbers = numbers[:, [places[label] for label in labels]]
        known = np.isfinite(numbers)
        parts = np.where(known, numbers, 0.0)
        sums = np.where(known.any(axis=0), parts.sum(axis=0), np.nan)
        below = float(-np.minimum(parts, 0.0).sum(axis=0).min(initial=0.0))
        above = float(np.maximum(parts, 0.0).sum(axis=0).max(initial=0.0))
        if chart.longest:
            parts = _cut_parts(parts, chart.longest)
            below, above = min(below, chart.longest), min(above, chart.longest)
        names = [chart.series[place].name for place in _visible(chart)]
        inks = _inks_of(chart) if len(names) > 1 else [time_ink(names[0]) or "accent"]
        return cls(names, inks, parts[_visible(chart)], sums, below, (above + below) or 1.0)

    def line(self, row: int, room: int, glyphs: Glyphs, fill: str = "") -> Line:
        """The bar of a row in so many cells; with a `fill` it is as a chart's."""
        lengths = self.parts[:, row] / self.span * room
        if len(self.names) == 1 and not self.below and fill:
            return [(bar(lengths[0] / room, room, glyphs), self.inks[0])]
        fills = series_fills(self.inks, glyphs)
        fills = fills if fill else fills.replace(glyphs.bar[-1], glyphs.row_bar)
        left, right = stack(-lengths, fills, self.inks), stack(lengths, fills, self.inks)
        zero = round(self.below / self.span * room)
        blank, rest = zero - width_of(left), 0 if fill else room - zero - width_of(right)
        return [(" " * blank, "text"), *reversed(left), *right, (" " * rest, "text")]

    def legend(self, glyphs: Glyphs, width: int) -> Line:
        """The names of the parts, the largest where not all have room."""
        entries = legend_entries(self.names, series_fills(self.inks, glyphs), self.inks)
        kept: set[int] = set()
        for place in np.argsort(-np.abs(self.parts).sum(axis=1), kind="stable").tolist():
            if width_of([*entries[place], *chain(*(entries[n] for n in kept))]) <= width:
                kept.add(place)
        return [*chain(*(entries[place] for place in sorted(kept)))]


class BarDrawer(Drawer[BarChart]):
    """A bar per label; a lens makes bars longer, and cuts those that get too long."""

    can_pan = False
    zoom = MAX_ZOOM
    tallest = _MAX_THICK

    def title(self, chart: BarChart, width: int, glyphs: Glyphs) -> list[Line]:
        # Each step of a waterfall has its name next to it.
        several = len(chart.series) > 1 and not _is_waterfall(chart)
        names = [chart.series[place].name for place in _visible(chart)] if several else []
        inks = _inks_of(chart)
        legend = legend_entries(names, series_fills(inks, glyphs), inks)
        return title_lines(chart.title, "" if chart.unit == "ns" else chart.unit, width, legend)

    def rows(self, chart: BarChart) -> int:
        return min(len(chart.labels), _MOST_ROWS)

    def body(self, chart: BarChart, on: Canvas) -> None:
        """A row per label: its sum and its parts, those below zero to the left of it."""
        count, glyphs = len(chart.labels), on.glyphs
        shown = on.rows_shown(count)
        bars = BarParts.of(chart, chart.labels)
        texts = [text or glyphs.missing for text in _beside(chart, bars.sums)]
        digits = max(map(len, texts), default=0)
        labels = on.labels(chart.labels, chart.level)
        before = len(labels[0]) + digits + 1 if labels else 0
        room = max(on.width - before - 1, 1)
        # Steps from one figure to the next are in the inks of their kinds of time.
        thick = min(max(on.left // max(count, 1), 1), _MAX_THICK) if on.spreads else 1
        for row in range(shown):
            own = time_ink(chart.labels[row].removesuffix(" ~"))
            if own and _is_waterfall(chart):
                # The first one is a part itself, below each other is what was reached before.
                bars = replace(bars, inks=["shade" if row else own, own])
            drawn = bars.line(row, room, glyphs, glyphs.bar[-1])
            if is_beyond(bars.sums[row], chart.longest):
                drawn[-1] = (drawn[-1][0].rstrip()[:-1] + glyphs.crumb, drawn[-1][1])
            named = (f"{labels[row]}{texts[row].rjust(digits)} ", "text")
            on.lines += [[named, *drawn], [(" " * before, "text"), *drawn], []][:thick]
        what = "parts: z shows all" if _is_waterfall(chart) else "rows in the table"
        on.add_rest(count, shown, what)

    def seen(self, chart: BarChart, lens: Lens) -> BarChart:
        sums = np.nansum([np.abs(each.numbers) for each in chart.series], axis=0)
        return replace(chart, longest=float(sums.max(initial=0.0)) / lens.factor)


def is_beyond(number: float, longest: float) -> bool:
    """Whether a bar extends beyond the end of its scale, where there is one: it is cut, and
    marked."""
    return bool(longest and abs(number) > longest * (1 + _HAIR))


def _is_waterfall(chart: BarChart) -> bool:
    return [each.name for each in chart.series] == ["reached", "adds"]


def _beside(chart: BarChart, sums: Float64) -> list[str]:
    """The figure next to each bar; a step of a waterfall has what it adds, not what it reaches."""
    texts = [_figure(value, chart.unit) for value in sums]
    named = {each.name: each.numbers for each in chart.series}
    if "reached" in named:
        steps = named["adds"] - named.get("saves", 0.0)
        texts[1:-1] = [
            ("+" if step >= 0 else "") + short_number(step) for step in steps[1:-1].tolist()
        ]
    return texts


def _figure(number: float, unit: str) -> str:
    """A bar's figure; a time in ns has the unit that suits it, which the title has of others."""
    if unit != "ns" and 0 < abs(number) < _LEAST_FIGURE:
        return f"<{_LEAST_FIGURE}" if number > 0 else f">-{_LEAST_FIGURE}"
    return time_text(number) if unit == "ns" and np.isfinite(number) else short_number(number)


def _visible(picture: BarChart) -> list[int]:
    """The series that can be seen: those too small for it take none of the hues."""
    numbers = np.nan_to_num(np.abs([each.numbers for each in picture.series]))
    longest = float(numbers.sum(axis=0).max(initial=0.0))
    largest = numbers.max(axis=1, initial=0.0)
    seen = np.flatnonzero(largest > LEAST_SHARE * longest).tolist()
    return seen or list(range(len(picture.series)))


def _cut_parts(parts: Float64, longest: float) -> Float64:
    """The parts of bars as far as the axis goes, from zero in both directions."""
    cut_parts = np.zeros_like(parts)
    for sign in (1.0, -1.0):
        ends = np.minimum(np.cumsum(np.maximum(sign * parts, 0.0), axis=0), longest)
        cut_parts += sign * np.diff(ends, axis=0, prepend=0.0)
    return cut_parts


def _inks_of(picture: BarChart) -> Sequence[str]:
    if len(picture.series) == 2:
        above, below = (series.numbers for series in picture.series)
        if not (above < 0).any() and (below < 0).any() and not (below > 0).any():
            return [("warning", "good")[place] for place in _visible(picture)]
    return series_inks([picture.series[place].name for place in _visible(picture)])


_GAP: Final = 2
_WITH_TIMES_FROM: Final = 100
"""Width from which parts have their time next to their share, and the bar has a title."""


class CompositionDrawer(Drawer[Composition]):
    """A bar per whole on one scale, then the parts with their figures in aligned columns."""

    is_quick = True
    opens_with = "enter"

    def bar(self, chart: Composition) -> Composition | None:
        return chart if chart.opens is not None and chart.listed else None

    def part_cell(self, place: int, row: int) -> Cell:
        return 1, place

    def part_at(self, cell: Cell) -> int | None:
        return cell[1]

    def cursor(
        self, chart: Composition, cell: Cell, row: int, label: str | None
    ) -> tuple[int, int | None]:
        """A part has the cursor while the bar has the keys."""
        return cell[0], cell[1] if cell[0] else None

    def followed(self, chart: Composition, cell: Cell, label: str | None) -> Cell:
        return 0, cell[1]

    def title(self, chart: Composition, width: int, glyphs: Glyphs) -> list[Line]:
        return [[(clean(chart.title), "strong")]] if width >= _WITH_TIMES_FROM else []

    def lines(self, chart: Composition, width: int, glyphs: Glyphs) -> int:
        on = Canvas(width, UNLIMITED, glyphs)
        self.draw(chart, on)
        return len(on.lines)

    def body(self, chart: Composition, on: Canvas) -> None:
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
        shares, listed = chart.shares, chart.listed
        # Those too small to be listed take none of the hues.
        hues = dict(zip(listed, series_inks([chart.series[n].name for n in listed]), strict=True))
        inks = [hues.get(place, "dim") for place in range(len(chart.series))]
        fills = series_fills(inks, on.glyphs)
        # A baseline is above that which is compared with it, as in a sentence.
        for row in reversed(range(len(names))):
            bar = stack(numbers[row] / longest * room, fills, inks)
            value = values[row].rjust(digits + room - width_of(bar))
            parts = np.repeat(np.arange(len(fills)), stack_sizes(numbers[row] / longest * room))
            begin = width_of([(names[row], "")])
            on.add([(names[row], "text"), *bar, (value, "strong")], 1, begin, parts)
        entries = {
            place: _entry(chart, known, shares, place, fills[place], inks[place], on.width)
            for place in listed
        }
        if on.column in entries:
            _, *texts = entries[on.column]
            own = (on.glyphs.cursor, *(text for text, _ in texts))
            entries[on.column] = [(text, "cursor") for text in own]
        if chart.some:
            entries[len(chart.series)] = [("~", "strong"), (f" as on {chart.some} GPUs", "dim")]
        by_size = sorted(listed, key=lambda place: float(np.abs(numbers[:, place]).max()))
        while len(legend := _legend(entries, on.width)) > on.left:
            del entries[by_size.pop(0)]
        for line, owners in legend:
            on.add(line, 1, 0, np.array(owners, np.intp))


def _entry(
    chart: Composition, numbers: Float64, shares: Float64, place: int, mark: str, ink: str,
    width: int,
) -> Line:  # fmt: skip
    name = chart.series[place].name
    about = "~" if name in chart.divided or name in chart.doubted else ""
    figure = f"{about}{100 * shares[0, place]:.1f} %"
    if len(numbers) > 1:
        figure = f"{numbers[0, place] - numbers[1, place]:+z.1f} {chart.unit}"
    elif width >= _WITH_TIMES_FROM:
        figure = f"{about}{_number(numbers[0, place], chart.unit)} {figure}"
    return [(mark, ink), (f" {clean(name)} ", "dim"), (figure, "strong")]


def _legend(entries: Mapping[int, Line], width: int) -> list[tuple[Line, list[int]]]:
    """The entries in as few lines as they need; with each line, whose entry each cell is."""
    if not entries:
        return []
    lines: list[tuple[Line, list[int]]] = [([], [])]
    for place, entry in entries.items():
        size = width_of(entry)
        if lines[-1][0] and width_of(lines[-1][0]) + size > width:
            lines.append(([], []))
        lines[-1][0].extend([*entry, (" " * _GAP, "text")])
        lines[-1][1].extend([place] * (size + _GAP))
    return lines


def _number(number: float, unit: str) -> str:
    return f"{significant(number)} {unit}"


_BESIDE_FROM: Final = 100
_SIGNS: Final = {"+": "warning", "-": "good"}


class CardsDrawer(Drawer[Cards]):
    """Cards as text; on the screen they have a pane of their own."""

    is_prose = True

    def lines(self, chart: Cards, width: int, glyphs: Glyphs) -> int:
        return len(self._lines(chart, width, glyphs))

    def body(self, chart: Cards, on: Canvas) -> None:
        on.lines += self._lines(chart, on.width, on.glyphs)

    def _lines(self, chart: Cards, width: int, glyphs: Glyphs) -> list[Line]:
        """The cards' lines, and the address below the last one that has it."""
        lines: list[Line] = []
        asked = [*(card.address for card in chart.cards), None]
        for place, own in enumerate(card_lines(chart.cards, width, glyphs)):
            lines += own
            if (address := asked[place]) and address != asked[place + 1]:
                lines.append([("  " + clean(address), "dim")])
        return lines


def card_lines(cards: Sequence[Card], width: int, glyphs: Glyphs) -> list[list[Line]]:
    in_row = width >= _BESIDE_FROM
    columns = zip_longest(*(card.figures for card in cards), fillvalue="")
    widths = [max(map(len, each)) for each in columns]
    cells = sum(widths) + _GAP * max(len(widths) - 1, 0) if in_row else max(widths, default=0)
    cells = max(cells, len(glyphs.missing) * any(card.figures for card in cards))
    longest = max((card.share_pct for card in cards), default=0.0)
    signs = [_signs(card, longest, glyphs) for card in cards]
    taken = max(map(width_of, signs), default=0)
    room = max(width - cells - _GAP - taken, 8)
    drawn = []
    for card, sign in zip(cards, signs, strict=True):
        figures = _figures(card, widths, cells, in_row, glyphs)
        indent = "  " * card.text.startswith("└ ")
        words = wrapped(card.text, room - len(indent)) if card.text else []
        text: list[Line] = [lead(line) for line in words[:1]]
        text += [[(indent + line, "text")] for line in words[1:]]
        text += [[(note, "dim")] for note in wrapped(card.note, room)]
        ink = _SIGNS.get(card.figures[0][:1] if card.figures else "", "strong")
        lines: list[Line] = []
        for left, right in zip_longest(figures, text):
            signed = sign if sign and not lines else [(" " * taken, "text")]
            gap = (" " * _GAP, "text")
            lines.append([(left or " " * cells, ink), *signed, gap, *(right or [])])
        rule = [(f"{glyphs.spelled('──')} {card.heading}", "dim")]
        drawn.append([rule, *lines] if card.heading else lines)
    return drawn


_SAVING_CELLS: Final = 6
_SEVERE_PCT: Final = ((10.0, "alarm"), (2.0, "warning"))
"""Of the step: from which saving on a finding has which mark."""
_RULES: Final = {
    "low_clock": ("overhead", "clock", "low-clock", "clock-drop", "throttled"),
    "waiting": ("straggler", "slow-stage", "long-stage"),
    "exposed": ("exposed", "slow-link", "slow-transfer"),
    "idle": ("host-bound", "launch-bound", "queue-bound", "late-host"),
    "contention": ("contention",),
    "copy": ("copies",),
    "matrix": ("products",),
}
_RULE_INKS: Final = {rule: ink for ink, rules in _RULES.items() for rule in rules}


def _signs(card: Card, longest: float, glyphs: Glyphs) -> Line:
    """How severe a finding is, a bar for what is to be saved, and dots for how sure it is."""
    if not card.sure:
        return []
    severity = next((ink for least, ink in _SEVERE_PCT if card.share_pct >= least), "")
    cells = round(_SAVING_CELLS * card.share_pct / (longest or 1.0)) or int(card.share_pct > 0)
    return [
        (f" {glyphs.up if severity else ' '} ", severity or "text"),
        (glyphs.row_bar * cells, _RULE_INKS.get(card.rule, "accent")),
        (" " * (_SAVING_CELLS + 1 - cells), "text"),
        (glyphs.spelled("●" * card.sure + "○" * (3 - card.sure)), "dim"),
    ]


def _figures(card: Card, widths: list[int], cells: int, in_row: bool, glyphs: Glyphs) -> list[str]:
    if not card.figures:
        return [glyphs.missing.rjust(cells) if card.text and cells else ""]
    if in_row:
        padded = (text.rjust(width) for text, width in zip(card.figures, widths, strict=False))
        return [(" " * _GAP).join(padded).ljust(cells)]
    return [text.rjust(cells) for text in card.figures]
