"""Icicles: a row of blocks per level, as wide as their time, in the colours of a figure."""

from __future__ import annotations

from itertools import groupby
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.charts import Icicle, IcicleRow
from chopper_core.model.units import time_text
from chopper_core.render.cells import cell_width, crumb, display_name, elide, first_cells
from chopper_core.render.glyphs import Glyphs
from chopper_core.util.arrays import Index
from chopper_tui.draw.canvas import MAX_ZOOM, Canvas, Cell, Lens, RowsDrawer, title_lines
from chopper_tui.draw.heat import ColourScale
from chopper_tui.draw.pieces import Line, short_number

_MIN_NAME: Final = 2
"""Cells from which a block has its name, if that is short enough."""
_MIN_CUT_NAME: Final = 8
"""Cells from which it has a shortened one."""
_AROUND: Final = 2
"""The lines of the scale and of the cursor's block."""


class IcicleDrawer(RowsDrawer[Icicle]):
    """Blocks that a cursor walks, from level to level."""

    follows_cursor = True
    opens_with = "open_block"
    shortest = 3
    tallest = 10

    def title(self, chart: Icicle, width: int, glyphs: Glyphs) -> list[Line]:
        return title_lines(chart.title, "", width)

    def body_lines(self, chart: Icicle) -> int:
        return self.shortest * len(chart.rows) + _AROUND

    def rows(self, chart: Icicle) -> int:
        return len(chart.rows)

    def body(self, chart: Icicle, on: Canvas) -> None:
        """The levels from the top, then the scale and the block of the cursor."""
        numbers = np.concatenate([row.numbers for row in chart.rows])
        scale = ColourScale.over(numbers, chart.unit, chart.signed)
        depth, block = _within(chart, on.cell) if on.cell is not None else (-1, -1)
        levels, room = len(chart.rows), max(on.left - _AROUND, 0)
        tall, more = divmod(min(room, levels * self.tallest), max(levels, 1))
        for number, row in enumerate(chart.rows):
            here = block if number == depth else None
            owners = _owners(chart, number, on.width, here)
            if not tall and number % 2 == 0 and len(on.lines) < on.height - _AROUND:
                below = np.full(on.width, np.nan)
                if number + 1 < levels:
                    below = chart.rows[number + 1].numbers[_owners(chart, number + 1, on.width)]
                on.add(scale.halves(row.numbers[owners], below, on), number, 0, owners)
            lines = tall + (number < more) * bool(tall)
            for y in range(lines):
                # The cursor is next to the names: along tall levels it took many bytes.
                off = abs(y - (lines - 1) // 2)
                near = here if off < 2 else None
                on.add(_row_line(row, owners, scale, on, near, named=not off), number, 0, owners)
        on.add(scale.line(chart.rows[0].numbers, chart.unit, 0, on))
        if on.cell is not None:
            on.add(_block_line(chart, depth, block, on))

    def max_zoom(self, chart: Icicle) -> float:
        return MAX_ZOOM

    def seen(self, chart: Icicle, lens: Lens) -> Icicle:
        """A part of the time; blocks keep their places."""
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


def _row_line(
    row: IcicleRow, owners: Index, scale: ColourScale, on: Canvas, here: int | None, *, named: bool
) -> Line:  # fmt: skip
    """One line of a level: every block in its colour, wide ones with an edge and their name."""
    line: Line = []
    glyphs = on.glyphs
    for owner, cells in groupby(owners.tolist()):
        wide = len(list(cells))
        number, is_here, name = float(row.numbers[owner]), owner == here, ""
        if named and wide >= _MIN_NAME:
            name = display_name(row.labels[owner], row.level)
            if cell_width(name) > wide - 1:
                # A name cut to a letter or two is useless.
                name = elide(name, wide - 2, glyphs) if wide >= _MIN_CUT_NAME else ""
        edge = glyphs.cursor if is_here else "▏" if wide > 1 else " "
        if glyphs.is_ascii:
            edge = "[" if is_here else "|" if wide > 1 else " "
        rest = wide - cell_width(name) - 1
        if not np.isfinite(number):
            text, ink = first_cells((edge + name).ljust(wide), wide), "dim"
        elif glyphs.in_colour:
            text, ink = edge + name + " " * rest, "text"
        else:
            level = scale.level(number, on)
            text, ink = edge + name + level * rest if wide > 1 or is_here else level, "accent"
        ink = "strong" if is_here else ink
        is_filled = glyphs.in_colour and np.isfinite(number)
        line.append((text, f"{ink}/{scale.ink_of(number)}" if is_filled else ink))
    return line


def _block_line(picture: Icicle, depth: int, block: int, on: Canvas) -> Line:
    """The cursor's block in words: its path, its time, its share, its figure."""
    row, glyphs = picture.rows[depth], on.glyphs
    steps: list[str] = []
    at = block
    for each in reversed(picture.rows[: depth + 1]):
        steps.insert(0, crumb(each.level, each.labels[at]))
        at = int(each.parents[at])
    time = int(row.ends_ns[block] - row.begins_ns[block])
    share = 100.0 * time / max(int(picture.rows[0].ends_ns[-1]), 1)
    figure = short_number(float(row.numbers[block])) or glyphs.missing
    value = f": {glyphs.spelled(time_text(time))}, {share:.1f} %, {figure} {picture.unit}".rstrip()
    room = max(on.width - 2 - cell_width(value), 1)
    path = elide(f" {glyphs.crumb} ".join(steps), room, glyphs)
    return [(f"{glyphs.cursor} ", "accent"), (path + value, "strong")]
