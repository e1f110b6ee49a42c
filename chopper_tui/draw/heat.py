"""Heat maps: cells filled with the colours of a scale, or with levels of glyphs without colours.

A map has regular ticks below it, its scale, and a cursor whose cell is spelled out.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.charts import HeatMap
from chopper_core.render.cells import cell_width, clean, display_name, elide, pad
from chopper_core.render.glyphs import Glyphs
from chopper_core.render.names import fitting_names
from chopper_core.render.palette import CHANGE_LEVELS, HEAT_LEVELS
from chopper_core.util.arrays import Float64
from chopper_tui.draw.axes import scale_ends
from chopper_tui.draw.drawer import MIN_COLUMNS, Canvas, Cell, Lens, TitledDrawer, title_lines
from chopper_tui.draw.pieces import Line, short_number

_NUMBERED: Final = 7
"""Width from which a cell shows its number."""
_MAX_CELL: Final = 9
_MAX_ROW_LINES: Final = 3
_MAX_LABEL: Final = 40
_MIN_TICK_NAME: Final = 8
_HALF: Final = "▀"
_STEPS: Final = (1, 2, 5)
_MIN_CHANGE_PCT: Final = 2.0
"""The least end of a scale of differences: smaller ones are noise and must not look large."""


class HeatDrawer(TitledDrawer[HeatMap]):
    """A map whose cells a cursor walks: the row of the table's, and a column of its own."""

    follows_cursor = True
    opens_with = "open_cell"

    def title(self, chart: HeatMap, width: int, glyphs: Glyphs) -> list[Line]:
        """Its scale is below it."""
        return title_lines(chart.title, chart.unit, width)

    def body_lines(self, chart: HeatMap) -> int:
        """The fewest: with more its rows are taller."""
        return len(chart.rows) + _around(chart)

    def most_lines(self, chart: HeatMap, width: int, glyphs: Glyphs) -> int:
        """With the tallest rows."""
        more = (_MAX_ROW_LINES - 1) * self.rows(chart)
        return self.lines(chart, width, glyphs) + more

    def rows(self, chart: HeatMap) -> int:
        """Those of the map."""
        return max(len(chart.rows), 1)

    def body(self, chart: HeatMap, on: Canvas) -> list[Line]:
        """Its rows, ticks, scale and the cell of the cursor."""
        return _draw(chart, on.width, on.height, on.glyphs, on.cell)

    def body_cell_at(self, chart: HeatMap, on: Canvas, x: int, y: int) -> Cell | None:
        """The row and the column of the map."""
        if chart.opens is None:
            return None
        return _cell_at(chart, on.width, on.height, on.glyphs, x, y)

    def max_zoom(self, chart: HeatMap) -> float:
        """Until few columns are left."""
        return max(len(chart.columns) / MIN_COLUMNS, 1.0)

    def seen(self, chart: HeatMap, lens: Lens) -> HeatMap:
        """Some of its columns."""
        first, end = lens.columns(len(chart.columns))
        opens = chart.opens
        return replace(
            chart,
            columns=chart.columns[first:end],
            numbers=chart.numbers[:, first:end],
            opens=opens and (lambda row, column: opens(row, first + column)),
        )

    def centred(self, chart: HeatMap, lens: Lens, cell: Cell) -> Lens:
        """Over the column of the cursor."""
        first, end = lens.columns(len(chart.columns))
        at = first + min(cell[1], end - first - 1)
        return replace(lens, centre=(at + 0.5) / len(chart.columns))

    def cell_through(self, chart: HeatMap, cell: Cell, before: Lens, after: Lens) -> Cell:
        """The same column."""
        row, column = cell
        column += before.columns(len(chart.columns))[0]
        first, end = after.columns(len(chart.columns))
        return row, min(max(column, first), end - 1) - first

    def cursor(
        self, chart: HeatMap, cell: Cell, row: int, label: str | None
    ) -> tuple[int, int | None]:
        """The row of a label, and the screen's column."""
        if chart.opens is None or label is None:
            return row, None
        own = chart.labels.index(label) if label in chart.labels else -1
        return own, min(cell[1], len(chart.columns) - 1)

    def label_of(self, chart: HeatMap, cell: Cell) -> str | None:
        """The label of its row; None where a filter has left fewer."""
        return chart.labels[cell[0]] if cell[0] < len(chart.labels) else None


class ColourScale(Struct, frozen=True):
    """The ends of a scale, and how a number is drawn on it."""

    low: float
    high: float
    ink: str
    levels: int

    @classmethod
    def of(cls, picture: HeatMap) -> ColourScale:
        """The scale of a map: of its values, or around 0 for differences."""
        return cls.over(picture.numbers, picture.unit, picture.signed)

    @classmethod
    def over(cls, numbers: Float64, unit: str, signed: bool) -> ColourScale:
        """The scale of numbers in a unit."""
        low, high = scale_ends(numbers[np.isfinite(numbers)])
        if signed:
            high = max(abs(low), abs(high), _MIN_CHANGE_PCT if unit == "%" else 0.0) or 1.0
            return cls(-high, high, "change", CHANGE_LEVELS)
        return cls(low, high, "heat", HEAT_LEVELS)

    def share(self, number: float) -> float:
        """A number's place on the scale, 0 to 1."""
        if self.high <= self.low:
            return 0.5
        return min(max((number - self.low) / (self.high - self.low), 0.0), 1.0)

    def ink_of(self, number: float) -> str:
        """The ink that fills a cell with a number."""
        return f"{self.ink}{round(self.share(number) * (self.levels - 1))}"


class _MapLayout(Struct, frozen=True):
    """Where the cells of a map are."""

    label: int
    """Cells of the names of rows, with the space after them."""
    wide: int
    """Cells of a column."""
    bins: int
    """Columns that are drawn; of more, each shows the largest value of those in it."""
    tall: int
    """Lines of a row; 0: two rows in a line."""
    shown: int
    """Rows that are drawn."""


def _around(picture: HeatMap) -> int:
    """The lines for the ticks, the scale, and the cell of the cursor."""
    return 2 + (picture.opens is not None)


def _layout(picture: HeatMap, width: int, height: int, glyphs: Glyphs) -> _MapLayout:
    count, columns = len(picture.rows), len(picture.columns)
    longest = max((cell_width(clean(row)) for row in picture.rows), default=0)
    label = max(min(longest, _MAX_LABEL, width // 3), min(8, longest)) + 1
    room = max(width - label, 1)
    lines = max(height - _around(picture), 0)
    # Without colours a glyph has a meaning in one line only.
    tall = min(lines // max(count, 1), _MAX_ROW_LINES if glyphs.in_colour else 1)
    shown = count
    if not tall and not (glyphs.in_colour and not glyphs.is_ascii and count <= 2 * lines):
        tall, shown = 1, max(lines - 1, 0)
    return _MapLayout(
        label=label,
        wide=max(min(room // max(columns, 1), _MAX_CELL), 1),
        bins=min(columns, room),
        tall=tall,
        shown=shown,
    )


def _draw(
    picture: HeatMap, width: int, height: int, glyphs: Glyphs, cell: tuple[int, int] | None = None
) -> list[Line]:
    """A map as at most `height` lines; `cell` is the row and the column of the cursor."""
    lay, scale = _layout(picture, width, height, glyphs), ColourScale.of(picture)
    if cell is not None and not (0 <= cell[0] < lay.shown and 0 <= cell[1] < len(picture.columns)):
        cell = None
    numbers = _binned(picture.numbers, lay.bins)
    at = None if cell is None else (cell[0], cell[1] * lay.bins // len(picture.columns))
    labels = [
        pad(name, lay.label)
        for name in fitting_names(tuple(map(clean, picture.rows)), lay.label - 1, glyphs)
    ]
    lines: list[Line] = []
    whole = lay.bins == len(picture.columns)
    gaps = frozenset(at for at, name in enumerate(picture.columns) if whole and not name)
    if lay.tall:
        for row in range(lay.shown):
            ink = "strong" if at is not None and at[0] == row else "text"
            for line in range(lay.tall):
                name = labels[row] if line == (lay.tall - 1) // 2 else " " * lay.label
                numbered = line == (lay.tall - 1) // 2
                here = at[1] if at is not None and at[0] == row and numbered else None
                cells = _cells(numbers[row], lay.wide, scale, glyphs, here, numbered, gaps)
                lines.append([(name, ink), *cells])
    else:
        for row in range(0, lay.shown, 2):
            ink = "strong" if at is not None and at[0] // 2 == row // 2 else "text"
            lines.append([(labels[row], ink), *_halves(numbers, row, lay.wide, scale, at)])
    if lay.shown < len(picture.rows) and height > _around(picture):
        left = len(picture.rows) - lay.shown
        own = picture.has_own_rows
        text = f"{left} more rows need more room" if own else f"{left} more rows in the table"
        lines.append([(text, "dim")])
    if picture.columns:
        lines.append(_ticks(picture, lay, width, glyphs, None if cell is None else cell[1]))
    lines.append(scale_line(picture.numbers, picture.unit, scale, lay.label, glyphs))
    if cell is not None:
        lines.append(_cell_line(picture, cell, width, glyphs))
    return lines


def _cell_at(
    picture: HeatMap, width: int, height: int, glyphs: Glyphs, x: int, y: int
) -> tuple[int, int] | None:
    """The row and the column of the map at a cell of its lines; None beside them."""
    lay = _layout(picture, width, height, glyphs)
    column = (x - lay.label) // lay.wide
    rows = [y // lay.tall] if lay.tall else [2 * y]
    if x < lay.label or column >= lay.bins or not 0 <= rows[0] < lay.shown:
        return None
    return rows[0], -(-column * len(picture.columns) // lay.bins)


def _binned(numbers: Float64, bins: int) -> Float64:
    """The columns in so many bins: the largest value of each, by its size."""
    columns = numbers.shape[1]
    if bins == columns:
        return numbers
    owner = np.arange(columns) * bins // columns
    found = np.full((len(numbers), bins), np.nan)
    size = np.where(np.isfinite(numbers), np.abs(numbers), -1.0)
    for place in range(bins):
        own = np.flatnonzero(owner == place)
        best = own[size[:, own].argmax(axis=1)]
        found[:, place] = numbers[np.arange(len(numbers)), best]
    return found


def _cells(
    numbers: Float64,
    wide: int,
    scale: ColourScale,
    glyphs: Glyphs,
    here: int | None,
    numbered: bool,
    gaps: frozenset[int],
) -> Line:
    """A row: each cell in its colour, and in the glyph of its level; gaps are blank."""
    line: Line = []
    for place, number in enumerate(numbers.tolist()):
        if not np.isfinite(number):
            text = " " if place in gaps else glyphs.missing
            text = text if place != here else f"[{text}]"
            line.append((pad(text, wide)[:wide], "strong" if place == here else "dim"))
            continue
        ink = scale.ink_of(number)
        level = glyphs.spark[round(scale.share(number) * (len(glyphs.spark) - 1))]
        if numbered and wide >= _NUMBERED:
            text = short_number(number if abs(number) >= 0.01 else round(number, 3))
            text = f"[{text}]" if place == here else f" {text}"
            head = "" if glyphs.in_colour else level
            own = f"{head}{pad(text[: wide - 1], wide - 1 - len(head))} "
            line.append((own[:wide], f"{'strong' if place == here else 'text'}/{ink}"))
        elif place == here:
            line.append((_marked(level, wide), f"strong/{ink}"))
        else:
            line.append((level * wide, ink))
    return line


def _marked(level: str, wide: int) -> str:
    """The cell of the cursor."""
    return "X" if wide == 1 else f"[{level * (wide - 2)}]"


def _halves(
    numbers: Float64, row: int, wide: int, scale: ColourScale, at: tuple[int, int] | None
) -> Line:
    """Two rows in a line, by the colours of the upper and the lower half of its cells."""
    line: Line = []
    lower = numbers[row + 1] if row + 1 < len(numbers) else np.full(numbers.shape[1], np.nan)
    for place, pair in enumerate(zip(numbers[row].tolist(), lower.tolist(), strict=True)):
        up, down = (scale.ink_of(each) if np.isfinite(each) else "" for each in pair)
        if at is not None and at[1] == place and at[0] // 2 == row // 2:
            own = (up, down)[at[0] % 2]
            line.append((_marked(" ", wide), f"strong/{own}" if own else "strong"))
        elif up and down:
            line.append((_HALF * wide, f"{up}/{down}"))
        elif up or down:
            line.append(((_HALF if up else "▄") * wide, f"{up or down}/text"))
        else:
            line.append((" " * wide, "dim"))
    return line


def _ticks(picture: HeatMap, lay: _MapLayout, width: int, glyphs: Glyphs, here: int | None) -> Line:
    """The names of columns at even distances, as many as have room; that of the cursor too."""
    names = [display_name(name, picture.x_title) for name in picture.columns]
    counted = all(name.isdigit() for name in names[1:])
    if counted:
        names = [name if name.isdigit() else glyphs.missing for name in names]
    longest = max(map(cell_width, names))
    need = longest + 1 if counted else min(longest + 1, _MIN_TICK_NAME)
    end = lay.bins * lay.wide
    step = _step(-(-need * len(names) // end), counted)
    begins = [place * lay.bins // len(names) * lay.wide for place in range(len(names) + step)]
    ticks: dict[int, tuple[str, str]] = {}
    for place, name in enumerate(names):
        # Labels are at round numbers, so that the columns between can be counted.
        if place == here or (int(name) if counted and name.isdigit() else place) % step == 0:
            stop = end if place == here else min(begins[place + step] - 1, end)
            room = stop - begins[place]
            text = elide(name, room, glyphs) if room >= min(cell_width(name), 3) else ""
            ticks[begins[place]] = (text, "strong" if place == here else "dim")
    line, used = [(" " * lay.label, "text")], 0
    mine = None if here is None else begins[here]
    for begin, (text, ink) in ticks.items():
        stop = begin + cell_width(text)
        if not text or begin < used or (mine is not None and begin < mine <= stop):
            continue
        line += [(" " * (begin - used), "text"), (text, ink)]
        used = stop + 1
        line.append((" ", "text"))
    title = " " * max(end - used, 0) + f" {clean(picture.x_title)}"
    if sum(cell_width(text) for text, _ in line) + cell_width(title) <= width:
        line.append((title, "dim"))
    return line


def _step(least: int, round_: bool) -> int:
    """The columns between ticks: a round number where they are counted."""
    size = 1
    while round_:
        for factor in _STEPS:
            if factor * size >= least:
                return factor * size
        size *= 10
    return max(least, 1)


def scale_line(
    numbers: Float64, unit: str, scale: ColourScale, margin: int, glyphs: Glyphs
) -> Line:
    """The scale from its low end to its high one, and the range of all where some lie beyond."""
    known = numbers[np.isfinite(numbers)]
    least, most = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    ends = ("<=" if least < scale.low else "", ">=" if most > scale.high else "")
    line: Line = [(" " * margin, "text"), (f"{ends[0]}{short_number(scale.low)} ", "dim")]
    levels = len(glyphs.spark)
    if glyphs.in_colour:
        steps = range(scale.levels)
        line += [(_level_glyph(glyphs, at, scale.levels), f"{scale.ink}{at}") for at in steps]
    else:
        line.append((glyphs.spark[:levels], "accent"))
    line.append((f" {ends[1]}{short_number(scale.high)} {unit}", "dim"))
    if any(ends):
        line.append((f"  all: {short_number(least)} to {short_number(most)}", "dim"))
    return line


def _level_glyph(glyphs: Glyphs, at: int, levels: int) -> str:
    return glyphs.spark[round(at * (len(glyphs.spark) - 1) / (levels - 1))]


def _cell_line(picture: HeatMap, cell: tuple[int, int], width: int, glyphs: Glyphs) -> Line:
    """The cell of the cursor in words: its row, its column, its number."""
    row, column = cell
    number = float(picture.numbers[row, column])
    text = short_number(number) or glyphs.missing
    sign = "+" if picture.signed and number > 0 else ""
    name = display_name(picture.columns[column], picture.x_title)
    value = f": {sign}{text} {picture.unit}".rstrip()
    where = f"{clean(picture.rows[row])}, {clean(picture.x_title)} "
    name = elide(name, max(width - len(where) - len(value) - 2, 1), glyphs)
    return [(f"{glyphs.cursor} ", "accent"), (where, "dim"), (name, "strong"), (value, "strong")]
