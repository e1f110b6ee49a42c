"""The cards of findings and figures: what stands out, each with a way to its evidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from textual import events

from chopper_core.columns import Metric
from chopper_core.model.charts import Card, Cards
from chopper_core.model.phrases import level_title
from chopper_core.model.units import scaled_text
from chopper_core.render.cells import SENTENCES, ColumnText, column_texts
from chopper_core.render.glyphs import UNICODE, Glyphs
from chopper_core.views.frame import Frame
from chopper_tui.draw.bars import card_lines
from chopper_tui.draw.pieces import Line, Pieces, cut_line
from chopper_tui.widgets.pane import Listing, Pane

_ORIGINS: Final = ("group", "rule", "gpu_time_ns", "confidence", "remedy", "detail", "advice")
"""How a finding is known and what is long: its dots, its table, its address and `?` say it."""
_FIRST: Final = ("cost_ns", "saving_ns")
"""What stands before the line of a finding."""
_NOTE: Final = 150
"""Characters of a detail next to its line, at most; `?` has all of it, and what to do."""
_CUT: Final = 2
"""Lines of a card that isn't under the cursor, where not all have room."""


def cards_of(frame: Frame) -> Cards | None:
    """The cards of a frame: its own, or its rows where these are sentences; None without any."""
    if frame.level not in SENTENCES:
        return next((each for each in frame.charts if isinstance(each, Cards)), None)
    columns = [*column_texts(frame)]
    numbers = [each for each in columns if not each.is_word]
    # As in the overview; other figures have their title in the note.
    first = [each for each in numbers if each.metric.name in _FIRST] or numbers[:1]
    rest = [each for each in columns if each not in first and each.metric.name not in _ORIGINS]
    shares, sure, rules = (frame.values.get(name) for name in ("saving_pct", "confidence", "rule"))
    # In their own order those that explain another hang below it, as in the overview.
    owners = None if frame.view.sort else frame.values.get("part_of")
    heading = _headings(frame)
    level = {"low": 1, "medium": 2, "high": 3}
    title = ", ".join(each.metric.title for each in first)
    return Cards(
        level_title(frame.level) + "s",
        tuple(
            Card(
                _figures(frame, first, row),
                "└ " * (owners is not None and owners.at(row) is not None) + frame.labels[row],
                frame.addresses(row),
                _note(frame, rest, row),
                float(shares.at(row) or 0.0) if shares is not None else 0.0,
                level.get(str(sure.cell(row)), 0) if sure is not None else 0,
                str(rules.cell(row)) if rules is not None else "",
                heading[row],
            )
            for row in range(len(frame))
        ),
        figures=title,
    )


def _note(frame: Frame, columns: Sequence[ColumnText], row: int) -> str:
    """The range of what a finding saves and the beginning of its detail; other sentences have their
    other figures."""
    if "detail" not in frame.values:
        shown = ((each.metric.title, _figure(frame, each.metric, row)) for each in columns)
        return "  ".join(f"{title} {text}" for title, text in shown if text)
    ends = [
        _figure(frame, each.metric, row)
        for each in columns
        if each.metric.name in ("saving_low_ns", "saving_high_ns")
    ]
    detail = str(frame.values["detail"].cell(row) or "")
    short = detail if len(detail) <= _NOTE else f"{detail[: _NOTE - 1].rpartition(' ')[0]}…"
    return f"{' to '.join(ends)}: {short}" if len(ends) == 2 and all(ends) else short


def _headings(frame: Frame) -> list[str]:
    """The heading above each row: the name of a group whose first it is, beyond the first group."""
    groups = frame.values.get("group")
    if groups is None or frame.view.sort:
        return [""] * len(frame)
    names = [str(groups.cell(row) or "") for row in range(len(frame))]
    return [name * (row > 0 and name != names[row - 1]) for row, name in enumerate(names)]


def _figures(frame: Frame, columns: Sequence[ColumnText], row: int) -> tuple[str, ...]:
    """What stands before the line of a row, with a dash for what isn't known; nothing where all
    isn't."""
    found = [_figure(frame, each.metric, row) for each in columns]
    return tuple(text or UNICODE.missing for text in found) if any(found) else ()


def _figure(frame: Frame, metric: Metric, row: int) -> str:
    values = frame.values[metric.name]
    if values.words is not None:
        return str(values.cell(row) or "")
    number = values.at(row)
    if number is None:
        return ""
    return ("≤" if values.is_bound(row) else "") + scaled_text(number, metric.unit)


def _place_of(chosen: Sequence[Card], cards: Sequence[Card]) -> int:
    """Where a card is among others, by its evidence; 0 where none is it."""
    addresses = [card.address for card in chosen]
    return next((at for at, card in enumerate(cards) if card.address in addresses), 0)


class CardsPane(Pane, Listing):
    """As many cards as fit, the cursor's among them; a bar at the left marks it."""

    cards: Cards | None = None
    _last: Cards | None = None
    _first = 0
    _owners: Sequence[int] = ()

    def show(self, cards: Cards | None, row: int | None = None) -> None:
        """Show cards, the cursor on a row; else it stays on the first, or on the same one."""
        self.cards = cards
        if row is not None:
            self.cursor = row
        elif cards is not None:
            before, self._last = self._last, cards
            if before is not None and self.cursor:
                self.cursor = _place_of(before.cards[self.cursor : self.cursor + 1], cards.cards)
        self.redraw()

    def show_cursor(self) -> None:
        self.redraw()

    @property
    def rows(self) -> int:
        return len(self.cards.cards) if self.cards is not None else 0

    @property
    def page(self) -> int:
        return max(len({owner for owner in self._owners if owner >= 0}), 1)

    def lines_wanted(self, width: int) -> tuple[int, int, int]:
        """The lines of cards with a title: cut but for one, whole, separated; 0 if unknown."""
        if self.cards is None or self.cards.is_pending or not self.cards.cards:
            return 0, 0, 0
        sizes = [*map(len, card_lines(self.cards.cards, width - 4, self.glyphs))]
        close = 1 + sum(sizes)
        cut = 1 + sum(min(size, _CUT) for size in sizes) + max(max(sizes) - _CUT, 0)
        return cut, close, close + len(sizes)

    @property
    def card(self) -> Card | None:
        if self.cards is None or self.cursor >= len(self.cards.cards):
            return None
        return self.cards.cards[self.cursor]

    def move_to(self, row: int) -> None:
        row = max(min(row, self.rows - 1), 0)
        if row != self.cursor:
            self.cursor = row
            self.redraw()
            if self.explorer.shows_sentences:
                self.explorer.table.move_to(row)

    def on_click(self, event: events.Click) -> None:
        y = event.y - self.gutter.top
        owner = self._owners[y] if 0 <= y < len(self._owners) else -1
        if owner >= 0:
            is_again = self.has_keys and owner == self.cursor
            self.explorer.give_keys(self)
            self.move_to(owner)
            if is_again:
                self.explorer.action_perform("enter")

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        cards, glyphs = self.cards, self.glyphs
        if cards is None or height < 2:
            self._owners = ()
            return []
        drawn = card_lines(cards.cards, width - 4, glyphs)
        titles = int(not self.is_panel)
        if sum(map(len, drawn)) + titles > height:
            # The cursor's is seen next to two others; where lines are left, the first are whole.
            room = height - titles
            own = max(room - _CUT * min(len(drawn) - 1, 2), _CUT)
            left = room - sum(min(len(lines), _CUT) for lines in drawn)
            left -= max(min(len(lines), own) - _CUT for lines in drawn)
            for place, lines in enumerate(drawn):
                more = max(len(lines) - _CUT, 0)
                most = own if place == self.cursor else _CUT + (more if more <= left else 0)
                left -= more if more <= left else 0
                drawn[place] = _cut(lines, most, width - 2, glyphs)
        gap = int(sum(map(len, drawn)) + len(drawn) <= height + 1 - titles)
        self._first = _first_shown([len(each) + gap for each in drawn], self._first, self.cursor,
                                   height - titles + gap)  # fmt: skip
        owners, lines = [-1] * titles, []
        for place in range(self._first, len(drawn)):
            for number, line in enumerate([*drawn[place], *([[]] * gap)]):
                is_own = self.has_keys and place == self.cursor and number < len(drawn[place])
                lines.append([(glyphs.cursor if is_own else " ", "strong"), (" ", "text"), *line])
                owners.append(place)
        self._owners = owners[:height]
        shown = len({owner for owner in self._owners if owner >= 0})
        return self.headed(self._title(cards, shown), lines)

    def _title(self, cards: Cards, shown: int) -> Pieces:
        if cards.is_pending:
            state = "computing" + self.glyphs.ellipsis
        elif not cards.cards:
            state = "none"
        else:
            state = cards.number or str(len(cards.cards))
            if shown < len(cards.cards):
                lines = f"{self._first + 1}-{self._first + shown}"
                state = f"{state}  {lines}" if cards.number else f"{lines} of {state}"
        if cards.figures and cards.cards:
            state += f"  {cards.figures}"
        return [("  ", "text"), (cards.title, "strong"), (f"  {state}", "dim")]


def _cut(lines: list[Line], most: int, width: int, glyphs: Glyphs) -> list[Line]:
    if len(lines) <= most:
        return lines
    *kept, last = lines[:most]
    more = f" {glyphs.ellipsis}"
    return [*kept, [*cut_line(last, width - len(more), glyphs), (more, "dim")]]


def _first_shown(heights: Sequence[int], first: int, cursor: int, room: int) -> int:
    """The first card to show so that the cursor's is whole, moved as little as can be."""
    first = min(first, cursor, max(len(heights) - 1, 0))
    while first < cursor and sum(heights[first : cursor + 1]) > room:
        first += 1
    return first
