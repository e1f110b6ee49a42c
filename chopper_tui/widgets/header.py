"""The lines over the table: the breadcrumb, the cursor's position, and the key figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Final

from textual import events

from chopper_core.model.phrases import BETWEEN_FACTS, facts
from chopper_core.model.recent import FRESH
from chopper_core.render.cells import (
    baseline_title,
    beginning,
    cell_width,
    crumb,
    cut_title,
    elide,
    first_cells,
    statistic_title,
    title_of,
    wrapped,
)
from chopper_core.render.glyphs import Glyphs
from chopper_core.util.escape import clean
from chopper_core.views import PLACES
from chopper_core.views.frame import Frame
from chopper_tui.draw.pieces import Line, Pieces, fit, lead, width_of
from chopper_tui.keymap import EXPLORE
from chopper_tui.screen_data import ScreenData, key_line
from chopper_tui.widgets.pane import Pane

_LONG_MARKS: Final = {
    "generated": "generated data",
    "reconstructed": "reconstructed times",
    "simulated": "simulated times",
    "predicted": "predicted times",
}
_WIDE: Final = 80
_HELP_HINT: Final = "? help"
_SHORT: Final = 4
"""Letters of a place's name on a narrow screen."""
_MIN_NEWS: Final = 24
"""Cells of what changed in the run's files."""
_MIN_STEP_CELLS: Final = 24
"""Cells that a long step keeps before the first steps give way to it."""
_LEAST_STEP_CELLS: Final = 12
"""Cells that a long step keeps before the tab gives way to it."""


class Crumbs(Pane):
    """The path from the run to the scope."""

    frame: Frame | None = None
    marks: tuple[str, ...] = ()
    """Marks that set the run's figures except for measured ones: keys of `_LONG_MARKS`."""
    tabs: Sequence[tuple[str, str, bool]] = ()
    """View, title, and whether it can be shown, of each tab of the place."""
    news = ""
    """What changed in the run's files since they were read."""

    def on_click(self, event: events.Click) -> None:
        """Next to the steps and the views, which a click opens, the path is edited."""
        if "@click" not in event.style.meta:
            self.explorer.action_perform("go")

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        if self.frame is None:
            return []
        mark = ", ".join(self.marks)
        if width >= _WIDE:
            mark = _LONG_MARKS.get(mark, mark)
        right = [(f" {mark}", "dim")] if mark else []
        if self.news:
            room = max(width - width_of(right) - _MIN_STEP_CELLS, _MIN_NEWS)
            news = _shortened(clean(self.news), room, self.glyphs)
            right = [(f"  {news} ", "good" if news == FRESH else "warning"), *right]
        base = baseline_title(self.frame.view)
        if base and width >= 2 * len(base) + 40:
            right = [(f"  base {base} ", "strong"), *right]
        totals = clean(self.frame.base) if self.frame.view.is_total else ""
        cut = cut_title(self.frame)
        # On a narrow screen the tabs are worth more than the words of the chip.
        cut = cut if width >= _WIDE else cut.removesuffix(", left out")
        steps = self._names(self.frame)
        widths = [cell_width(step) for step in steps]
        # The path is worth more than the chip of a cut run, whose note is below the table.
        named = len(title_of(self.frame.view)) + 3 if self.frame.view.path else 0
        least = min(sum(widths) + 3 * (len(widths) - 1) + named, width // 2)
        for chip, needed in ((totals, _MIN_STEP_CELLS), (cut, max(_MIN_STEP_CELLS, least))):
            if chip and width >= len(chip) + 3 + width_of(right) + needed:
                right = [(f"  {chip} ", "dim"), *right]
        if statistic_title(self.frame):
            right = [(f"  {self.frame.view.stat} ", "strong"), *right]
        room = max(width - width_of(right) - 1, 0)
        # A long step gives way to the strip: the file's name, as a rule.
        cells = (max(widths), _MIN_STEP_CELLS, _LEAST_STEP_CELLS)
        shortened = ([min(each, most) for each in widths] for most in cells)
        strips = (
            strip_of_tabs(self.frame.view.name, room - sum(each) - 3 * (len(each) - 1), self.tabs)
            for each in shortened
        )
        strip = next(filter(None, strips), [])
        if strip:
            right = [("  ", "text"), *strip, (" " if right else "", "text"), *right]
            room = max(width - width_of(right) - 1, 0)
        elif self.frame.view.name:
            steps = [*steps, self._titles.get(self.frame.view.name, title_of(self.frame.view))]
        above = len(self.frame.view.path)
        left = [(" ", "text"), *path_pieces(steps, room, self.glyphs, above)]
        gap = " " * (width - width_of(left) - width_of(right))
        return [[*left, (gap, "text"), *right]]

    @property
    def _titles(self) -> Mapping[str, str]:
        return {name: title for name, title, _ in self.tabs}

    def _names(self, frame: Frame) -> list[str]:
        view = frame.view
        run = clean(PurePath(view.run.rstrip("/")).name or view.run)
        return [run, *(crumb(level, label) for level, label in view.scope)]


def _shortened(news: str, room: int, glyphs: Glyphs) -> str:
    """What changed in a room: its last fact, which is how fresh the data is, stays whole.

    What is left out of the others is in the notes.
    """
    if cell_width(news) <= room:
        return news
    *_, age = news.split(BETWEEN_FACTS)
    more = f" (!){BETWEEN_FACTS}{age}"
    before = news.removesuffix(age).removesuffix(BETWEEN_FACTS)
    if not before or cell_width(more) + len(glyphs.ellipsis) >= room:
        return elide(news, room, glyphs)
    return beginning(before, room - cell_width(more), glyphs) + more


def strip_of_tabs(current: str, room: int, tabs: Sequence[tuple[str, str, bool]]) -> Pieces:
    """The tabs of a place, the current one lit, those that can't be shown in brackets.

    Where not all have room, those next to the current one are named, the next ones first.
    """
    current = current or EXPLORE
    names = [name for name, _, _ in tabs]
    if current not in names:
        return []
    titles = [title if can else f"({title})" for _, title, can in tabs]
    at, count = names.index(current), len(names)
    forms = [(0, count, " · "), (0, count, "  ")]
    for shown in range(count - 1, 0, -1):
        last = min(at + shown, count)
        forms.append((max(last - shown, 0), last, "  "))
    for first, last, gap in forms:
        strip: list[tuple[str, str]] = [("‹ ", "dim")] if first > 0 else []
        for place in range(first, last):
            strip += [(gap, "dim")] if place > first else []
            ink = "chosen" if place == at else "dim"
            strip.append((titles[place], f"{ink}@view {names[place]}"))
        strip += [(" ›", "dim")] if last < count else []
        if width_of(strip) + 3 <= room:
            return strip
    return []


class PlaceLine(Pane):
    """The places by their keys, the current one lit: in the same order at every width."""

    place = ""

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        forms = (
            (PLACES, "  "),
            (PLACES, " "),
            ({key: name[:_SHORT] for key, name in PLACES.items()}, " "),
        )
        lines = (self._line(names, gap) for names, gap in forms)
        line = next((each for each in lines if width_of(each) <= width), [])
        room = width - width_of(line) - len(_HELP_HINT) - 1
        if room > 0:
            line += [(" " * room, "text"), (_HELP_HINT, "dim@help")]
        return [line]

    def _line(self, names: Mapping[str, str], gap: str) -> Line:
        line: Line = []
        for key, name in names.items():
            line.append((gap if line else " ", "text"))
            line.append((f"{key} {name}", f"{'chosen' if key == self.place else 'dim'}@view {key}"))
        return line


class Position(Pane):
    """The cursor's row of all rows; separate, so that a step repaints these few cells only."""

    row = 0
    rows = 0

    def count(self, row: int, rows: int) -> None:
        """Show another table's rows, in as many cells as they need."""
        cells = 2 * len(str(rows)) + 3
        if self.styles.width is None or self.styles.width.cells != cells:
            self.styles.width = cells
        self.put(row=row, rows=rows)

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        position = f"{min(self.row + 1, self.rows)}/{self.rows}"
        return [[(f"{position:>{max(width - 1, 0)}} ", "dim")]]


class KeyFigures(Pane):
    """The key figures of a scope, or the headline of a view."""

    data: ScreenData | None = None

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        if self.data is None:
            return []
        if self.data.frame.view.name:
            text = self.headline(width)
            if len(text) > height > 0:
                more = f" {self.glyphs.ellipsis}"
                room, last = width - len(more) - 1, []
                for phrase, ink in text[height - 1]:
                    # A sentence ends early; without its middle it would say something else.
                    is_cut = cell_width(phrase) > room
                    last.append((first_cells(phrase, room).rstrip() if is_cut else phrase, ink))
                    room = max(room - cell_width(phrase), 0)
                text[height - 1 :] = [[*last, (more, "text")]]
            return text
        line: list[tuple[str, str]] = [(" ", "text")]
        for title, figure in key_line(self.data.figures, self.data.frame.view, self.glyphs):
            piece = [(f"{title} " if title else "", "dim"), (f"{figure}  ", "strong")]
            if width_of(line) + width_of(piece) - 2 > width:
                break
            line += piece
        return [line]

    def headline(self, width: int) -> list[Line]:
        """The lines of a view's sentences, which go on in a line where that takes fewer of them."""
        sentences = self.data.frame.headline if self.data is not None else ()
        room = max(width - 2, 20)
        spaced, joined = (
            [wrapped(each, room) for each in texts if each]
            for texts in (sentences, [facts(*sentences)])
        )
        shown = joined if sum(map(len, joined)) < sum(map(len, spaced)) else spaced
        return [
            [(" ", "text"), *([(line, "text")] if at else lead(line))]
            for lines in shown
            for at, line in enumerate(lines)
        ]


def path_pieces(steps: Sequence[str], room: int, glyphs: Glyphs, above: int = 0) -> Pieces:
    """A path in at most `room` cells: long steps give way in their middle, then the first ones.

    A click on one of the first `above` steps goes there.
    """
    arrow = f" {glyphs.crumb} "
    *before, last = _narrowed(steps, room - len(arrow) * (len(steps) - 1), glyphs)
    path = shown = [
        (step + arrow, f"dim@ascend {depth}" if depth < above else "dim")
        for depth, step in enumerate(before)
    ]
    for dropped in range(1, len(path) + 1):
        if width_of(shown) + cell_width(last) <= room:
            break
        shown = [(glyphs.ellipsis + arrow, "dim"), *path[dropped:]]
    last = fit(steps[-1], max(room - width_of(shown), 0), glyphs).rstrip()
    return [*shown, (last, "strong")]


def _narrowed(steps: Sequence[str], room: int, glyphs: Glyphs) -> list[str]:
    """The steps, of which the longest give way in their middle as far as there isn't room."""
    widths = [cell_width(step) for step in steps]
    while sum(widths) > room and max(widths) > _MIN_STEP_CELLS:
        widest = widths.index(max(widths))
        widths[widest] = max(widths[widest] - (sum(widths) - room), _MIN_STEP_CELLS)
    return [elide(step, width, glyphs) for step, width in zip(steps, widths, strict=True)]
