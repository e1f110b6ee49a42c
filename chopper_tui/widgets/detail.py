"""The row under the cursor: its figures in groups, then zeros and unavailable figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from textual import events

from chopper_core.metrics import Metric
from chopper_core.model.glossary import long_name
from chopper_core.model.table import NO_LABEL_TEXT
from chopper_core.render.cells import clean, display_name, level_title, wrapped
from chopper_core.render.glyphs import Glyphs
from chopper_tui.draw.figures import Detail
from chopper_tui.draw.pieces import Pieces, fit
from chopper_tui.widgets.pane import Pane

_GAP: Final = 2
_MIN_CELLS_SHORT: Final = 19
_MIN_CELLS_FULL: Final = 26
"""Cells that a figure with its title takes at least; the same for all rows, so that none jumps."""
_MAX_TITLES: Final = 24
"""Titles that are named for one reason."""
_MAX_ATTRIBUTE: Final = 1_000
"""Characters of an attribute; exports have all of it."""
_MAX_ACROSS: Final = 3
"""The most figures of one line."""


class DetailPane(Pane):
    """The name and the figures of a row."""

    detail: Detail | None = None
    has_keys = False
    """Whether the keys that move scroll it."""
    _first = 0
    """The first line on the screen."""
    _lines: Sequence[Pieces] = ()

    def show(self, detail: Detail | None) -> None:
        """Show a row's detail, from its first line on if it is another row's."""
        if detail is None or self.detail is None or detail.label != self.detail.label:
            self._first = 0
        self.detail = detail
        self.redraw()

    def give_keys(self, has_keys: bool) -> None:
        """Scroll with the keys that move, or no longer."""
        if has_keys != self.has_keys:
            self.has_keys = has_keys
            self.redraw()

    @property
    def page(self) -> int:
        """Lines that are on the screen at once."""
        return max(self.size.height - 1, 1)

    def move(self, lines: int) -> None:
        """Scroll by some lines."""
        self.move_to(self._first + lines)

    def move_to(self, line: int) -> None:
        """Scroll to a line, or as near as there is one."""
        line = max(min(line, len(self._lines) - self.size.height), 0)
        if line != self._first:
            self._first = line
            self.redraw()

    @property
    def rows(self) -> int:
        """Its lines."""
        return len(self._lines)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel scrolls."""
        event.stop()
        self.move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel scrolls."""
        event.stop()
        self.move(-3)

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        """The figures; zeros and unavailable ones in a line each, the address last."""
        if self.detail is None:
            self._lines = ()
            return []
        detail, glyphs, room = self.detail, self.glyphs, width - 2
        lines = [*_name(detail, room, glyphs), *_groups(detail, room, glyphs, short=True)]
        for sign, metrics in (("0", detail.zeros), (glyphs.missing, detail.missing)):
            if metrics:
                lines += [[], [(f"{sign}  ", "text"), (_titles(metrics, room - 3, glyphs), "dim")]]
        lines += [[], *_wrapped(detail.address, room, "dim")]
        self._lines = lines
        self._first = max(min(self._first, len(lines) - height), 0)
        shown = lines[self._first : self._first + height]
        bar = (glyphs.cursor if self.has_keys else " ", "chosen")
        drawn = [[bar, *line] for line in shown]
        if drawn and not self._first:
            drawn[0] = [*self.titled(drawn[0], width)]
        hidden = len(lines) - len(shown)
        if hidden:
            place = f"{self._first + 1}-{self._first + len(shown)} of {len(lines)}"
            hint = place if self.has_keys else f"{place}, Tab scrolls"
            drawn[-1] = [bar, (fit(hint, room, glyphs), "dim")]
        return drawn


def full_detail(detail: Detail, width: int, glyphs: Glyphs) -> Iterator[Pieces]:
    """The whole detail of a row in lines of a width, with reasons for unavailable ones."""
    yield from _name(detail, width, glyphs)
    yield from _wrapped(detail.address, width, "dim")
    yield from _groups(detail, width, glyphs)
    if detail.attributes:
        yield []
        yield [("attributes in the trace", "strong")]
    for name, text in detail.attributes.items():
        shown = text if len(text) <= _MAX_ATTRIBUTE else text[:_MAX_ATTRIBUTE] + glyphs.ellipsis
        yield from _wrapped(f"{name}: {clean(shown)}", width, "text")
    if detail.zeros:
        yield []
        yield [("zero", "strong")]
        yield from _wrapped(", ".join(metric.title for metric in detail.zeros), width, "text")
    if detail.reasons:
        yield []
        yield [("unavailable", "strong")]
    for reason, metrics in detail.reasons.items():
        yield from _wrapped(f"{glyphs.missing} {_joined(metrics)}: {reason}", width, "text")
    if detail.lacking:
        yield []
        yield [("missing counters", "strong"), (", and the figures that need them", "dim")]
    for counters, metrics in detail.lacking.items():
        yield from _wrapped(f"{', '.join(counters)}: {_joined(metrics)}", width, "text")


def _name(detail: Detail, width: int, glyphs: Glyphs) -> Iterator[Pieces]:
    title = f"{level_title(detail.level)} "
    name = display_name(detail.label, detail.level)
    yield [(title, "dim"), (fit(name, max(width - len(title), 1), glyphs).rstrip(), "strong")]
    whole = clean(detail.label)
    if detail.label != NO_LABEL_TEXT and (whole != name or len(title + name) > width):
        yield from _wrapped(whole, width, "text")
    if long := long_name(detail.label) if detail.level == "operation" else "":
        yield from _wrapped(long, width, "dim")


def _groups(detail: Detail, width: int, glyphs: Glyphs, *, short: bool = False) -> Iterator[Pieces]:
    """Every group under its title; the columns of all groups stand under each other."""
    across = max(
        min(
            (width + _GAP) // ((_MIN_CELLS_SHORT if short else _MIN_CELLS_FULL) + _GAP), _MAX_ACROSS
        ),
        1,
    )
    room = (width - _GAP * (across - 1)) // across
    for heading, figures in detail.groups.items():
        yield []
        yield [(heading, "strong")]
        cells = [
            (figure.metric.title, figure.text(glyphs, short=short, beside_title=True))
            for figure in figures
        ]
        down = -(-len(cells) // across)
        for line in range(down):
            pieces: list[tuple[str, str]] = []
            for title, text in cells[line::down]:
                shown = fit(title, max(room - len(text) - 1, 0), glyphs)
                pieces += [(f"{shown} ", "dim"), (text, "text"), (" " * _GAP, "text")]
            yield pieces


def _joined(metrics: Sequence[Metric]) -> str:
    """The titles of metrics; of many the first."""
    titles = [metric.title for metric in metrics]
    more = len(titles) - _MAX_TITLES
    if more > 1:
        titles[_MAX_TITLES:] = [f"{more} more"]
    return ", ".join(titles)


def _titles(metrics: Sequence[Metric], width: int, glyphs: Glyphs) -> str:
    """As many titles as fit on a line."""
    text = ", ".join(metric.title for metric in metrics)
    if len(text) <= width:
        return text
    return text[: max(width - 1, 0)].rpartition(",")[0] + "," + glyphs.ellipsis


def _wrapped(text: str, width: int, ink: str) -> Iterator[Pieces]:
    for line in wrapped(text, max(width, 8)):
        yield [(line, ink)]
