"""The row under the cursor: its figures in groups, zeros, unavailable ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from chopper_core.columns import Metric
from chopper_core.model.glossary import long_name
from chopper_core.model.phrases import level_title
from chopper_core.model.table import NO_LABEL_TEXT
from chopper_core.render.cells import display_name, wrapped
from chopper_core.render.glyphs import Glyphs
from chopper_core.util.escape import clean
from chopper_tui.draw.figures import Detail, Figure
from chopper_tui.draw.pieces import Pieces, fit
from chopper_tui.widgets.pane import Listing, Pane

_GAP: Final = 2
_MIN_CELLS_SHORT: Final = 19
_MIN_CELLS_FULL: Final = 26
"""Cells that a figure with its title takes at least; the same for all rows, so that none jumps."""
_FIGURE_CELLS: Final = 8
"""Cells of a figure with its unit."""
_DIGIT_CELLS: Final = 5
_WORD_CELLS: Final = 13
"""Cells of a word in the place of a figure."""
_MAX_ATTRIBUTE: Final = 1_000
"""Characters of an attribute; exports have all of it."""
_MAX_ACROSS: Final = 3


class DetailPane(Pane, Listing):
    """The name and the figures of a row."""

    detail: Detail | None = None
    _lines: Sequence[Pieces] = ()

    def show(self, detail: Detail | None) -> None:
        """Show a row's detail, from its first line on if it is another row's."""
        if detail is None or self.detail is None or detail.label != self.detail.label:
            self.cursor = 0
        self.detail = detail
        self.redraw()

    def show_cursor(self) -> None:
        self.redraw()

    def move_to(self, line: int) -> None:
        line = max(min(line, len(self._lines) - self.page), 0)
        if line != self.cursor:
            self.cursor = line
            self.redraw()

    @property
    def rows(self) -> int:
        return len(self._lines)

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        """The figures; zeros and unavailable ones in a line each, the address last."""
        if self.detail is None:
            self._lines = ()
            return self.headed((), ())
        detail, glyphs, room = self.detail, self.glyphs, width - 2
        name, *about = _name(detail, room, glyphs)
        lines = [*about, *_groups(detail, room, glyphs, short=True)]
        if self.is_panel and lines[:1] == [[]]:
            lines = lines[1:]
        for sign, metrics in (("0", detail.zeros), (glyphs.missing, detail.missing)):
            if metrics:
                lines += [[], [(f"{sign}  ", "text"), (_titles(metrics, room - 3, glyphs), "dim")]]
        lines += [[], *_wrapped(detail.address, room, "dim")]
        self._lines = lines
        height -= not self.is_panel
        self.cursor = max(min(self.cursor, len(lines) - height), 0)
        shown = lines[self.cursor : self.cursor + height]
        bar = (glyphs.cursor if self.has_keys else " ", "strong")
        drawn = [[bar, *line] for line in shown]
        hidden = len(lines) - len(shown)
        if hidden:
            place = f"{self.cursor + 1}-{self.cursor + len(shown)} of {len(lines)}"
            hint = place if self.has_keys else f"{place}, Tab scrolls"
            drawn[-1:] = [[bar, (fit(hint, room, glyphs), "dim")]]
        return self.headed([bar, *name], drawn)


def full_detail(detail: Detail, width: int, glyphs: Glyphs) -> Iterator[Pieces]:
    yield from _name(detail, width, glyphs)
    yield from _wrapped(detail.address, width, "dim")
    yield from _groups(detail, width, glyphs)
    more = glyphs.ellipsis
    attributes = [
        f"{name}: {text if len(text) <= _MAX_ATTRIBUTE else text[:_MAX_ATTRIBUTE] + more}"
        for name, text in detail.attributes.items()
    ]
    zeros = [", ".join(metric.title for metric in detail.zeros)] if detail.zeros else []
    unavailable = [
        f"{glyphs.missing} {', '.join(each.title for each in metrics)}: {reason}"
        for reason, metrics in detail.reasons.items()
    ]
    lacking = [
        f"{', '.join(names)}: {', '.join(each.title for each in own)}"
        for names, own in detail.lacking.items()
    ]
    for title, explained, lines in (
        ("attributes in the trace", "", attributes),
        ("zero", "", zeros),
        ("unavailable", "", unavailable),
        ("missing counters", ", and the figures that need them", lacking),
    ):
        if lines:
            yield []
            yield [(title, "strong"), (explained, "dim")]
        for line in lines:
            yield from _wrapped(line, width, "text")


def _name(detail: Detail, width: int, glyphs: Glyphs) -> Iterator[Pieces]:
    title = f"{level_title(detail.level)} "
    name = display_name(detail.label, detail.level)
    yield [(title, "dim"), (fit(name, max(width - len(title), 1), glyphs).rstrip(), "strong")]
    whole = clean(detail.label)
    if detail.label != NO_LABEL_TEXT and (whole != name or len(title + name) > width):
        yield from _wrapped(detail.label, width, "text")
    if long := long_name(detail.label) if detail.level == "operation" else "":
        yield from _wrapped(long, width, "dim")


def _groups(detail: Detail, width: int, glyphs: Glyphs, *, short: bool = False) -> Iterator[Pieces]:
    """Every group under its title, in columns; a figure that needs more has a line of its own."""
    least = (_MIN_CELLS_SHORT if short else _MIN_CELLS_FULL) + _GAP
    across = max(min((width + _GAP) // least, _MAX_ACROSS), 1)
    room = (width - _GAP * (across - 1)) // across
    for heading, figures in detail.groups.items():
        yield []
        yield [(heading, "strong")]
        fitting = [each for each in figures if across == 1 or _cells(each) <= room]
        down = -(-len(fitting) // across)
        for at in range(down):
            yield _line(fitting[at::down], room, glyphs, short=short)
        for figure in figures:
            if figure not in fitting:
                yield _line([figure], width, glyphs, short=short)


def _line(figures: Sequence[Figure], room: int, glyphs: Glyphs, *, short: bool) -> Pieces:
    pieces: list[tuple[str, str]] = []
    for figure in figures:
        title = figure.metric.title
        text = figure.text(glyphs, short=short, beside_title=True)
        if short and figure.word:
            # A word gives way to its title; the full detail has all of it.
            text = fit(text, max(room - len(title) - 1, _FIGURE_CELLS), glyphs).strip()
        shown = fit(title, max(room - len(text) - 1, 0), glyphs)
        pieces += [(f"{shown} ", "dim"), (text, "text"), (" " * _GAP, "text")]
    return pieces


def _cells(figure: Figure) -> int:
    """The cells that a figure needs with its title, by its metric: none moves from row to row."""
    figure_cells = max(_FIGURE_CELLS, _DIGIT_CELLS + 1 + len(figure.metric.unit))
    figure_cells += figure.metric.signed
    return len(figure.metric.title) + 1 + (_WORD_CELLS if figure.word else figure_cells)


def _titles(metrics: Sequence[Metric], width: int, glyphs: Glyphs) -> str:
    text = ", ".join(metric.title for metric in metrics)
    if len(text) <= width:
        return text
    return text[: max(width - 1, 0)].rpartition(",")[0] + "," + glyphs.ellipsis


def _wrapped(text: str, width: int, ink: str) -> Iterator[Pieces]:
    for line in wrapped(text, max(width, 8)):
        yield [(line, ink)]
