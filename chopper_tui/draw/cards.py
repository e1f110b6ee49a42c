"""Sentences with their figures as cards: wrapped, one below the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chopper_core.model.charts import Card, Cards
from chopper_core.render.cells import clean, wrapped
from chopper_core.render.glyphs import Glyphs
from chopper_tui.draw.canvas import UNLIMITED, Canvas
from chopper_tui.draw.drawer import Drawer
from chopper_tui.draw.pieces import Line

_BESIDE_FROM: Final = 100
"""Width from which the figures of a card stand side by side."""
_GAP: Final = 2
_SIGNS: Final = {"+": "above", "-": "below"}
"""The inks of differences, as in tables."""


class CardsDrawer(Drawer[Cards]):
    """Cards as text; on the screen they have a pane of their own."""

    is_prose = True

    def lines(self, chart: Cards, width: int, glyphs: Glyphs, *, is_below: bool = False) -> int:
        return sum(map(len, card_lines(chart.cards, width, glyphs))) + len(chart.cards)

    def body_lines(self, chart: Cards) -> int:
        return UNLIMITED

    def body(self, chart: Cards, on: Canvas) -> None:
        """All cards, each with the address of its evidence."""
        for card, drawn in zip(
            chart.cards, card_lines(chart.cards, on.width, on.glyphs), strict=True
        ):
            on.lines += [*drawn, [("  " + clean(card.address), "dim")]]


def card_lines(cards: Sequence[Card], width: int, glyphs: Glyphs) -> list[list[Line]]:
    """The lines of each card: figures at the left, the sentence next to them, the note below."""
    beside = width >= _BESIDE_FROM
    count = max((len(card.figures) for card in cards), default=0)
    widths = [
        max((len(card.figures[at]) for card in cards if len(card.figures) > at), default=0)
        for at in range(count)
    ]
    cells = sum(widths) + _GAP * max(count - 1, 0) if beside else max(widths, default=0)
    cells = max(cells, len(glyphs.missing))
    room = max(width - cells - _GAP, 8)
    drawn = []
    for card in cards:
        figures = _figures(card, widths, cells, beside, glyphs)
        text = [(line, "text") for line in wrapped(card.text, room)]
        text += [(line, "dim") for line in wrapped(card.note, room)]
        ink = _SIGNS.get(card.figures[0][:1] if card.figures else "", "accent")
        lines: list[Line] = []
        for at in range(max(len(text), len(figures))):
            left = figures[at] if at < len(figures) else " " * cells
            right = text[at] if at < len(text) else ("", "text")
            lines.append([(left, ink), (" " * _GAP, "text"), right])
        drawn.append(lines)
    return drawn


def _figures(card: Card, widths: list[int], cells: int, beside: bool, glyphs: Glyphs) -> list[str]:
    if not card.figures:
        return [glyphs.missing.rjust(cells)]
    if beside:
        padded = (text.rjust(width) for text, width in zip(card.figures, widths, strict=False))
        return [(" " * _GAP).join(padded).ljust(cells)]
    return [text.rjust(cells) for text in card.figures]
