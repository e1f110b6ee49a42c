"""Sentences as cards with a cursor of their own: the findings of the overview."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual import events

from chopper_core.metrics import Metric
from chopper_core.model.charts import Card, Cards
from chopper_core.model.units import Unit, time_text
from chopper_core.render.cells import SENTENCES, column_texts, level_title, scale_of
from chopper_core.views.frame import Frame
from chopper_tui.draw.bars import card_lines
from chopper_tui.draw.pieces import Pieces
from chopper_tui.widgets.pane import Pane


def cards_of(frame: Frame) -> Cards | None:
    """The cards of a frame: its own, or its rows where these are sentences; None without any."""
    if frame.level not in SENTENCES:
        return next((each for each in frame.charts if isinstance(each, Cards)), None)
    columns = column_texts(frame)
    numbers = [each for each in columns if not each.is_word]
    # A share and a time, as in the overview; other figures have their title in the note.
    numbers.sort(key=lambda each: each.scale.text != "%")
    first = numbers[: 1 + (numbers[0].scale.text == "%")] if numbers else []
    rest = [each for each in columns if each not in first]
    title = "  ".join(each.metric.title for each in first if each.metric.unit is not Unit.PERCENT)
    return Cards(
        level_title(frame.level) + "s",
        tuple(
            Card(
                tuple(text for each in first if (text := _figure(frame, each.metric, row))),
                frame.labels[row],
                frame.addresses(row),
                "  ".join(
                    f"{each.metric.title} {text}"
                    for each in rest
                    if (text := _figure(frame, each.metric, row))
                ),
            )
            for row in range(len(frame))
        ),
        figures=f"potential {title}" if title else "",
    )


def _figure(frame: Frame, metric: Metric, row: int) -> str:
    values = frame.values[metric.name]
    if values.words is not None:
        return str(values.cell(row) or "")
    number = values.at(row)
    if number is None:
        return ""
    if metric.unit is Unit.NS:
        return time_text(number)
    scale = scale_of(metric, abs(number))
    return f"{scale.cell(number)} {scale.text}".rstrip()


class CardsPane(Pane):
    """As many cards as fit, the cursor's among them; a bar at the left marks it."""

    cards: Cards | None = None
    cursor = 0
    is_active = True
    _last: Cards | None = None
    _first = 0
    _owners: Sequence[int] = ()

    def show(self, cards: Cards | None, row: int | None = None) -> None:
        """Show cards; the cursor stays on the same one, also after others were shown.

        With a row it is there, and the pane has the keys.
        """
        self.cards = cards
        if row is not None:
            self.cursor, self.is_active = row, True
        elif cards is not None:
            before, self._last = self._last, cards
            if before is not None and self.card not in before.cards:
                self.cursor = 0
        self.redraw()

    @property
    def has_keys(self) -> bool:
        return self.is_active and self.cards is not None

    @property
    def rows(self) -> int:
        return len(self.cards.cards) if self.cards is not None else 0

    @property
    def page(self) -> int:
        return max(len({owner for owner in self._owners if owner >= 0}), 1)

    def lines_wanted(self, width: int) -> int:
        """The lines of all cards, separated; 0 while they are unknown."""
        if self.cards is None or self.cards.is_pending:
            return 0
        drawn = card_lines(self.cards.cards, width - 4, self.glyphs)
        return 1 + sum(map(len, drawn)) + len(drawn)

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

    def on_click(self, event: events.Click) -> None:
        owner = self._owners[event.y] if event.y < len(self._owners) else -1
        if owner >= 0:
            is_again = self.has_keys and owner == self.cursor
            self.move_to(owner)
            self.explorer.point_at_card(is_again)

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        cards, glyphs = self.cards, self.glyphs
        if cards is None or height < 2:
            self._owners = ()
            return []
        drawn = card_lines(cards.cards, width - 4, glyphs)
        gap = int(sum(map(len, drawn)) + len(drawn) <= height)
        self._first = _first_shown([len(each) + gap for each in drawn], self._first, self.cursor,
                                   height - 1 + gap)  # fmt: skip
        owners, lines = [-1], []
        for place in range(self._first, len(drawn)):
            for number, line in enumerate([*drawn[place], *([[]] * gap)]):
                is_own = self.has_keys and place == self.cursor and number < len(drawn[place])
                lines.append([(glyphs.cursor if is_own else " ", "chosen"), (" ", "text"), *line])
                owners.append(place)
        self._owners = owners[:height]
        shown = len({owner for owner in self._owners if owner >= 0})
        return [self.titled(self._title(cards, shown), width), *lines]

    def _title(self, cards: Cards, shown: int) -> Pieces:
        if cards.is_pending:
            state = "computing" + self.glyphs.ellipsis
        elif not cards.cards:
            state = "none"
        elif shown < len(cards.cards):
            state = f"{self._first + 1}-{self._first + shown} of {len(cards.cards)}"
        else:
            state = str(len(cards.cards))
        if cards.figures and cards.cards:
            state += f"  {cards.figures}"
        return [("  ", "text"), (cards.title, "strong"), (f"  {state}", "dim")]


def _first_shown(heights: Sequence[int], first: int, cursor: int, room: int) -> int:
    """The first card to show so that the cursor's is whole, moved as little as can be."""
    first = min(first, cursor, max(len(heights) - 1, 0))
    while first < cursor and sum(heights[first : cursor + 1]) > room:
        first += 1
    return first
