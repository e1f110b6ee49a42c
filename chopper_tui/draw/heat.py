"""Cells filled with the colours of a scale, or with levels of glyphs: heat maps and icicles.

Both have a scale and a cursor, whose cell or block is spelled out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.charts import HeatMap, Icicle, IcicleRow
from chopper_core.model.phrases import level_title
from chopper_core.model.table import UNLABELLED
from chopper_core.model.units import time_text
from chopper_core.render.cells import (
    cell_width,
    crumb,
    display_name,
    elide,
    first_cells,
    pad,
)
from chopper_core.render.glyphs import Glyphs
from chopper_core.render.palette import CHANGE_LEVELS, HEAT_LEVELS
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.escape import clean
from chopper_tui.draw.axes import axis_step, scale_ends
from chopper_tui.draw.canvas import (
    MAX_ZOOM,
    MIN_COLUMNS,
    Canvas,
    Cell,
    Drawer,
    Lens,
    title_lines,
)
from chopper_tui.draw.pieces import IDLE, Line, marked, short_number, width_of

_NUMBERED: Final = 7
_MAX_CELL: Final = 48
_LEAST_FIGURE: Final = 0.01
_MIN_TICK_NAME: Final = 8
_MIN_CHANGE_PCT: Final = 2.0
"""The least end of a scale of differences: smaller ones are noise and must not look large."""


class HeatDrawer(Drawer[HeatMap]):
    """A map whose cells a cursor walks: the row of the table's, and a column of its own."""

    follows_cursor = True
    opens_with = "open_cell"
    tallest = 3

    def title(self, chart: HeatMap, width: int, glyphs: Glyphs) -> list[Line]:
        # Kinds are named below; the unit is that of their time.
        return title_lines(chart.title, chart.x_title if chart.kinds else chart.unit, width)

    def around(self, chart: HeatMap) -> int:
        return 2 + (chart.opens is not None)

    def body(self, chart: HeatMap, on: Canvas) -> None:
        count, columns = len(chart.rows), len(chart.columns)
        cells = _Grid.of(chart, on, self.around(chart))
        # What is outside layers takes far longer than one of them: it doesn't set the scale.
        inside = chart.numbers[:, [each != UNLABELLED for each in chart.columns]]
        scaled = inside if np.isfinite(inside).any() else chart.numbers
        scale = _OF_KINDS
        if not chart.kinds:
            scale = ColourScale.over(scaled, chart.unit, chart.signed)
        row, column = on.cell or (-1, -1)
        is_in = 0 <= row < cells.rows and 0 <= column < columns
        at = (row, column * cells.bins // columns) if is_in else (-1, -1)
        for top in range(0, cells.rows, 1 if cells.tall else 2):
            ink = "strong" if top <= at[0] <= top + (not cells.tall) else "text"
            cells.draw(chart, top, ink, at, scale, on)
        if cells.rows < count and on.left > self.around(chart):
            rest = "more rows need more room" if chart.has_own_rows else "more rows in the table"
            on.add([(f"{count - cells.rows} {rest}", "dim")])
        here = column if is_in else None
        if columns:
            on.add(_ticks(chart, cells, on, here))
        on.add(
            scale.line_of(chart.kinds, cells.margin, on)
            if chart.kinds
            else scale.line(chart.numbers, chart.unit, cells.margin, on)
        )
        if is_in:
            on.add(_cell_line(chart, row, column, on))

    def max_zoom(self, chart: HeatMap) -> float:
        return max(len(chart.columns) / MIN_COLUMNS, 1.0)

    def seen(self, chart: HeatMap, lens: Lens) -> HeatMap:
        first, end = lens.columns(len(chart.columns))
        opens = chart.opens
        return replace(
            chart,
            columns=chart.columns[first:end],
            numbers=chart.numbers[:, first:end],
            opens=opens and (lambda row, column: opens(row, first + column)),
        )

    def centred(self, chart: HeatMap, lens: Lens, cell: Cell) -> Lens:
        first, end = lens.columns(len(chart.columns))
        at = first + min(cell[1], end - first - 1)
        return replace(lens, centre=(at + 0.5) / len(chart.columns))

    def cell_through(self, chart: HeatMap, cell: Cell, before: Lens, after: Lens) -> Cell:
        row, column = cell
        column += before.columns(len(chart.columns))[0]
        first, end = after.columns(len(chart.columns))
        return row, min(max(column, first), end - 1) - first

    def cursor(
        self, chart: HeatMap, cell: Cell, row: int, label: str | None
    ) -> tuple[int, int | None]:
        if chart.opens is None or label is None:
            return row, None
        own = chart.labels.index(label) if label in chart.labels else -1
        return own, min(cell[1], len(chart.columns) - 1)

    def label_of(self, chart: HeatMap, cell: Cell) -> str | None:
        return chart.labels[cell[0]] if cell[0] < len(chart.labels) else None


class _Grid(Struct, frozen=True, eq=False):
    """The cells of a map in a room: how many lines a row has, and which cells a column."""

    labels: list[str]
    margin: int
    numbers: Float64
    """Of each row and each bin: a column, or several where they are more than cells."""
    places: Index
    """The bin of each cell: all of the width, so that one may be a cell wider than the next."""
    rows: int
    tall: int
    """Lines of a row; 0: two rows share a line."""

    @classmethod
    def of(cls, chart: HeatMap, on: Canvas, around: int) -> _Grid:
        labels, count, columns = on.labels(chart.rows), len(chart.rows), len(chart.columns)
        margin = cell_width(labels[0]) if labels else 1
        room, lines = max(on.width - margin, 1), max(on.left - around, 0)
        bins, used = min(columns, room), min(room, columns * _MAX_CELL)
        places = np.arange(used) * bins // max(used, 1)
        # Without colours a glyph has a meaning in one line only.
        tall, rows = min(lines // max(count, 1), 3 if on.glyphs.in_colour else 1), count
        if not tall and not (on.glyphs.has_halves and count <= 2 * lines):
            tall, rows = 1, max(lines - 1, 0)
        return cls(labels, margin, _binned(chart.numbers, bins), places, rows, tall)

    @property
    def bins(self) -> int:
        return int(self.numbers.shape[1])

    def draw(
        self, chart: HeatMap, top: int, ink: str, at: Cell, scale: ColourScale, on: Canvas
    ) -> None:
        """Draw the row, or the two rows of a line; `at` is the bin of the cursor."""
        columns = len(chart.columns)
        owners = -(-self.places * columns // max(self.bins, 1))
        hits = owners if chart.opens is not None else None
        if not self.tall:
            halves = self._halves(top, at if ink == "strong" else None, scale, on)
            on.add([(self.labels[top], ink), *halves], top, self.margin, hits)
            return
        gaps = self.bins == columns and [not name for name in chart.columns]
        for line in range(self.tall):
            is_middle = line == (self.tall - 1) // 2
            texts = self._texts(chart.unit, top, is_middle, gaps or [], on)
            here = at[1] if at[0] == top and is_middle else -1
            cells = _blocks(self.places, self.numbers[top], texts.__getitem__, scale, on, here)
            name = self.labels[top] if is_middle else " " * self.margin
            on.add([(name, ink), *cells], top, self.margin, hits)

    def _halves(self, top: int, at: Cell | None, scale: ColourScale, on: Canvas) -> Line:
        is_last = top + 1 == len(self.numbers)
        below = np.full(self.bins, np.nan) if is_last else self.numbers[top + 1]
        upper, lower = (each[self.places] for each in (self.numbers[top], below))
        drawn = scale.halves(upper, lower, on)
        if at is None:
            return drawn
        begin, end = np.searchsorted(self.places, (at[1], at[1] + 1)).tolist()
        mark, filled = on.glyphs.cursor.ljust(end - begin), scale.ink_of(self.numbers[at])
        return marked(drawn, begin, end, f"strong/{filled}", mark)

    def _texts(
        self, unit: str, row: int, is_middle: bool, gaps: list[bool], on: Canvas
    ) -> list[str]:
        before, wide = "" if on.glyphs.in_colour else " ", len(self.places) // max(self.bins, 1)
        return [
            pad(before + _figure(number, unit), wide - 1) * (is_middle and wide >= _NUMBERED)
            if np.isfinite(number)
            else (on.glyphs.missing if not (gaps and gaps[place]) else "")
            for place, number in enumerate(self.numbers[row].tolist())
        ]


class ColourScale(Struct, frozen=True):
    """The ends of a scale, and how a number is drawn on it."""

    low: float
    high: float
    ink: str
    levels: int

    @classmethod
    def over(cls, numbers: Float64, unit: str, signed: bool) -> ColourScale:
        """The scale of numbers in a unit: of their values, or around 0 for differences."""
        low, high = scale_ends(numbers[np.isfinite(numbers)])
        if signed:
            high = max(abs(low), abs(high), _MIN_CHANGE_PCT if unit == "%" else 0.0) or 1.0
            return cls(-high, high, "change", CHANGE_LEVELS)
        return cls(low, high, "heat", HEAT_LEVELS)

    def share(self, number: float) -> float:
        if self.high <= self.low:
            return 0.5
        return min(max((number - self.low) / (self.high - self.low), 0.0), 1.0)

    def ink_of(self, number: float) -> str:
        if not np.isfinite(number):
            return "text"
        level = round(self.share(number) * (self.levels - 1))
        return f"{self.ink}{level}" if self.ink else _KINDS[level]

    def level(self, number: float, on: Canvas) -> str:
        if not self.ink:
            full = on.glyphs.spark[-1]
            fills = full * 3 if on.glyphs.in_colour else (on.glyphs.spark[3], " ", full)
            return fills[round(self.share(number) * (self.levels - 1))]
        return on.level(self.share(number)) if np.isfinite(number) else " "

    def halves(self, upper: Float64, lower: Float64, on: Canvas) -> Line:
        """Two rows in a line, by the colours of the halves of its cells; else the upper one."""
        line: Line = []
        pairs = zip(np.nan_to_num(upper, nan=np.inf).tolist(),
                    np.nan_to_num(lower, nan=np.inf).tolist(), strict=True)  # fmt: skip
        for (up, down), cells in groupby(pairs):
            wide = len(list(cells))
            if on.glyphs.has_halves:
                half, front, back = ("▄", down, up) if np.isinf(up) else ("▀", up, down)
                half = " " if np.isinf(front) else half
                line.append((half * wide, f"{self.ink_of(front)}/{self.ink_of(back)}"))
            else:
                line.append((self.level(up, on) * wide, "accent"))
        return line

    def line_of(self, kinds: Sequence[str], margin: int, on: Canvas) -> Line:
        line: Line = [(" " * margin, "text")]
        for at, kind in enumerate(kinds):
            ink = _KINDS[at] if on.glyphs.in_colour else "accent"
            line += [(self.level(100.0 * (at - 1), on), ink), (f" {kind}  ", "dim")]
        return line

    def line(self, numbers: Float64, unit: str, margin: int, on: Canvas) -> Line:
        known = numbers[np.isfinite(numbers)]
        least, most = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
        hair = (self.high - self.low) / 1000
        if self.high <= self.low:
            return [(" " * margin, "text"), (f"all {short_number(self.low)} {unit}", "dim")]
        ends = ("<=" if least < self.low - hair else "", ">=" if most > self.high + hair else "")
        line: Line = [(" " * margin, "text"), (f"{ends[0]}{short_number(self.low)} ", "dim")]
        if on.glyphs.in_colour:
            steps = range(self.levels)
            line += [(on.level(at / (self.levels - 1)), f"{self.ink}{at}") for at in steps]
        else:
            line.append((on.glyphs.spark, "accent"))
        line.append((f" {ends[1]}{short_number(self.high)} {unit}", "dim"))
        if any(ends):
            line.append((f"  all: {short_number(least)} to {short_number(most)}", "dim"))
        return line


_KINDS: Final = ("second", IDLE, "third")
"""Kinds without a meaning elsewhere, with what is none of them in the middle."""
_OF_KINDS: Final = ColourScale(-100.0, 100.0, "", len(_KINDS))


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


def _blocks(
    owners: Index,
    numbers: Float64,
    text_of: Callable[[int], str],
    scale: ColourScale,
    on: Canvas,
    here: int | None,
    edge: str = "",
) -> Line:
    """Blocks of cells, each filled with the level of its number, with a text that fits into it.

    The cursor is at the left of its block, as is the `edge` of the others.
    """
    line: Line = []
    for owner, cells in groupby(owners.tolist()):
        wide, number, is_here = len(list(cells)), float(numbers[owner]), owner == here
        text = text_of(owner) if wide >= _MIN_NAME or not edge else ""
        if cell_width(text) >= wide > 1:
            # A name cut to a letter or two is useless.
            text = elide(text, wide - 2, on.glyphs) if wide >= _MIN_CUT_NAME else ""
        is_known = bool(np.isfinite(number))
        is_filled = not (edge or text or is_here) and is_known
        level = scale.level(number, on)
        fill = " " if on.glyphs.in_colour and not is_filled else level
        cursor = "[" if on.glyphs.is_ascii else on.glyphs.cursor
        first = cursor if is_here else edge if edge and wide > 1 else fill
        if not (is_known or edge or is_here):
            first, text = text[:1] or fill, ""
        ink = "strong" if is_here else "text" if is_known else "dim"
        if is_known and on.glyphs.in_colour:
            ink = scale.ink_of(number) if is_filled else f"{ink}/{scale.ink_of(number)}"
        elif is_known and not is_here:
            ink = "accent"
        line.append((first_cells(first + text + fill * wide, wide), ink))
    return line


def _ticks(chart: HeatMap, cells: _Grid, on: Canvas, here: int | None) -> Line:
    """The names of columns at even distances, as many as have room; that of the cursor too."""
    names = [display_name(name, chart.x_title) for name in chart.columns]
    is_counted = all(name.isdigit() for name in names[1:])
    spacing = 1
    if is_counted:
        spacing = int(np.gcd.reduce([int(name) for name in names if name.isdigit()] or [1])) or 1
        names = [name if name.isdigit() else on.glyphs.missing for name in names]
    longest = max(map(cell_width, names))
    need = longest + 1 if is_counted else min(longest + 1, _MIN_TICK_NAME)
    count, end = len(names), len(cells.places)
    step = max(-(-need * count // end), 1)
    if is_counted and step > 1:
        # Labels are at round numbers, so that the columns between can be counted.
        step = int(axis_step(0, count, max(count // step, 1), whole=True))
        while step * end < need * count:
            step += step
    owners = np.arange(count + step) * cells.bins // count
    begins = np.searchsorted(cells.places, owners).tolist()
    ticks: dict[int, tuple[str, str]] = {}
    for place, name in enumerate(names):
        number = int(name) // spacing if is_counted and name.isdigit() else place
        if place == here or number % step == 0:
            stop = end if place == here else min(begins[place + step] - 1, end)
            room = stop - begins[place]
            text = elide(name, room, on.glyphs) if room >= min(cell_width(name), 3) else ""
            ticks[begins[place]] = (text, "strong" if place == here else "dim")
    line: Line = [(" " * cells.margin, "text")]
    used = 0
    mine = None if here is None else begins[here]
    for begin, (text, ink) in ticks.items():
        stop = begin + cell_width(text)
        if not text or begin < used or (mine is not None and begin < mine <= stop):
            continue
        line += [(" " * (begin - used), "text"), (text, ink), (" ", "text")]
        used = stop + 1
    title = " " * max(end - used, 0) + f" {clean(level_title(chart.x_title))}"
    return [*line, (title, "dim")] if width_of(line) + cell_width(title) <= on.width else line


def _cell_line(chart: HeatMap, row: int, column: int, on: Canvas) -> Line:
    number = float(chart.numbers[row, column])
    text = short_number(number) or on.glyphs.missing
    sign = "+" if chart.signed and number > 0 else ""
    value = f": {sign}{text} {chart.unit}".rstrip()
    where = f"{clean(chart.rows[row])}, {clean(level_title(chart.x_title))} "
    room = max(on.width - len(where) - len(value) - 2, 1)
    name = elide(display_name(chart.columns[column], chart.x_title), room, on.glyphs)
    return [(f"{on.glyphs.cursor} ", "accent"), (where, "dim"), (name + value, "strong")]


_MIN_NAME: Final = 2
"""Cells from which a block has its name, if that is short enough."""
_MIN_CUT_NAME: Final = 8
_AROUND: Final = 2


class IcicleDrawer(Drawer[Icicle]):
    """Blocks that a cursor walks, from level to level."""

    follows_cursor = True
    opens_with = "open_block"
    shortest = 3
    tallest = 10
    zoom = MAX_ZOOM

    def title(self, chart: Icicle, width: int, glyphs: Glyphs) -> list[Line]:
        return title_lines(chart.title, "", width)

    def around(self, chart: Icicle) -> int:
        return _AROUND

    def body(self, chart: Icicle, on: Canvas) -> None:
        numbers = np.concatenate([row.numbers for row in chart.rows])
        whole, many = replace(chart, seen=(0.0, 1.0)), range(len(chart.rows))
        # Many short blocks don't set the scale of a long one.
        shares = [chart.rows[n].numbers[_owners(whole, n, on.width)] for n in many]
        scale = ColourScale.over(np.concatenate(shares), chart.unit, chart.signed)
        depth, block = _within(chart, on.cell) if on.cell is not None else (-1, -1)
        levels, room = len(chart.rows), max(on.left - _AROUND, 0)
        edge = "|" if on.glyphs.is_ascii else "▏"
        tall, more = divmod(min(room, levels * self.tallest), max(levels, 1))
        for number, row in enumerate(chart.rows):
            here = block if number == depth else None
            owners = _owners(chart, number, on.width, here)
            if not tall and number % 2 == 0 and len(on.lines) < on.height - _AROUND:
                below = np.full(on.width, np.nan)
                if number + 1 < levels:
                    below = chart.rows[number + 1].numbers[_owners(chart, number + 1, on.width)]
                on.add(scale.halves(row.numbers[owners], below, on), number, 0, owners)
            lines = tall + (number < more if tall else 0)
            for y in range(lines):
                # The cursor is next to the names: along tall levels it took many bytes.
                off = abs(y - (lines - 1) // 2)
                near = here if off < 2 else None
                name = partial(_name_of, row) if not off else "".format
                line = _blocks(owners, row.numbers, name, scale, on, near, edge)
                on.add(line, number, 0, owners)
        on.add(scale.line(numbers, chart.unit, 0, on))
        if on.cell is not None:
            on.add(_block_line(chart, depth, block, on))

    def seen(self, chart: Icicle, lens: Lens) -> Icicle:
        return replace(chart, seen=lens.range)

    def centred(self, chart: Icicle, lens: Lens, cell: Cell) -> Lens:
        depth, block = _within(chart, cell)
        row, total = chart.rows[depth], max(int(chart.rows[0].ends_ns[-1]), 1)
        return replace(lens, centre=float(row.begins_ns[block] + row.ends_ns[block]) / 2 / total)

    def cursor(
        self, chart: Icicle, cell: Cell, row: int, label: str | None
    ) -> tuple[int, int | None]:
        return cell

    def label_of(self, chart: Icicle, cell: Cell) -> str:
        """The label of the block of the first level that holds it."""
        depth, block = cell
        for row in reversed(chart.rows[1 : depth + 1]):
            block = int(row.parents[block])
        return chart.rows[0].labels[block]

    def followed(self, chart: Icicle, cell: Cell, label: str | None) -> Cell:
        """On the row of the table's cursor, unless it is in it."""
        cell = _within(chart, cell)
        if label is None or self.label_of(chart, cell) == label:
            return cell
        return 0, chart.rows[0].labels.index(label)


def _within(chart: Icicle, cell: Cell) -> Cell:
    """The cursor, which may come from another chart, on a block of this one."""
    depth = min(max(cell[0], 0), len(chart.rows) - 1)
    return depth, min(max(cell[1], 0), len(chart.rows[depth].labels) - 1)


def _owners(picture: Icicle, depth: int, width: int, here: int | None = None) -> Index:
    """The block of each cell: the one in its middle; that of the cursor has one at least."""
    row = picture.rows[depth]
    total = max(int(row.ends_ns[-1]), 1) if len(row.ends_ns) else 1
    begin, end = (share * total for share in picture.seen)
    middles = begin + (np.arange(width) + 0.5) * (end - begin) / width
    found = np.minimum(np.searchsorted(row.ends_ns, middles, "right"), len(row.labels) - 1)
    if here is not None and here not in found and begin <= row.begins_ns[here] < end:
        found[int((row.begins_ns[here] - begin) / (end - begin) * width)] = here
    return found.astype(np.intp)


def _name_of(row: IcicleRow, block: int) -> str:
    return display_name(row.labels[block], row.level)


def _figure(number: float, unit: str) -> str:
    if unit == "%":
        return f"{number:z.1f}"
    return short_number(number if abs(number) >= _LEAST_FIGURE else round(number, 3))


def _block_line(picture: Icicle, depth: int, block: int, on: Canvas) -> Line:
    row, glyphs = picture.rows[depth], on.glyphs
    steps: list[str] = []
    at = block
    for each in reversed(picture.rows[: depth + 1]):
        steps.insert(0, crumb(each.level, each.labels[at]))
        at = int(each.parents[at])
    part = int(row.ends_ns[block] - row.begins_ns[block])
    share = 100.0 * part / max(int(picture.rows[0].ends_ns[-1]), 1)
    figure = short_number(float(row.numbers[block])) or glyphs.missing
    time = glyphs.spelled(time_text(row.times_ns[block]))
    colour = picture.title.rpartition("colour ")[2].removesuffix(f" {picture.unit}")
    value = f": {time}, {share:.1f} %, {colour} {figure} {picture.unit}".rstrip()
    room = max(on.width - 2 - cell_width(value), 1)
    path = elide(f" {glyphs.crumb} ".join(steps), room, glyphs)
    return [(f"{glyphs.cursor} ", "accent"), (path + value, "strong")]
