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
from chopper_tui.draw.drawer import MAX_ZOOM, Canvas, Cell, Lens, TitledDrawer, title_lines
from chopper_tui.draw.heat import ColourScale, scale_line
from chopper_tui.draw.pieces import Line, short_number

_LINES: Final = 3
_MAX_LINES: Final = 10
"""Lines of a level."""
_MIN_NAME: Final = 2
"""Cells from which a block has its name, if that is short enough."""
_MIN_CUT_NAME: Final = 8
"""Cells from which it has a shortened one."""
_AROUND: Final = 2
"""The lines of the scale and of the cursor's block."""
_HALF: Final = "▀"


class IcicleDrawer(TitledDrawer[Icicle]):
    """Blocks that a cursor walks, from level to level."""

    follows_cursor = True
    opens_with = "open_block"

    def title(self, chart: Icicle, width: int, glyphs: Glyphs) -> list[Line]:
        """Its unit is at its scale."""
        return title_lines(chart.title, "", width)

    def body_lines(self, chart: Icicle) -> int:
        """Of levels tall enough to read."""
        return _LINES * len(chart.rows) + _AROUND

    def most_lines(self, chart: Icicle, width: int, glyphs: Glyphs) -> int:
        """With the tallest levels."""
        return self.lines(chart, width, glyphs) + (_MAX_LINES - _LINES) * self.rows(chart)

    def rows(self, chart: Icicle) -> int:
        """Its levels."""
        return max(len(chart.rows), 1)

    def body(self, chart: Icicle, on: Canvas) -> list[Line]:
        """The levels, the scale and the block of the cursor."""
        return _draw(chart, on.width, on.height, on.glyphs, on.cell)

    def body_cell_at(self, chart: Icicle, on: Canvas, x: int, y: int) -> Cell | None:
        """The level and the block; None beside them."""
        heights, _ = _layout(chart, on.height)
        ends = np.cumsum(heights)
        depth = int(np.searchsorted(ends, y, "right")) if heights[0] else 2 * y
        if not (0 <= x < on.width and 0 <= depth < len(chart.rows)):
            return None
        return depth, int(_owners(chart, depth, on.width)[x])

    def max_zoom(self, chart: Icicle) -> float:
        """Any."""
        return MAX_ZOOM

    def seen(self, chart: Icicle, lens: Lens) -> Icicle:
        """A part of the time; blocks keep their places."""
        return replace(chart, seen=lens.range)

    def centred(self, chart: Icicle, lens: Lens, cell: Cell) -> Lens:
        """Over the block of the cursor."""
        depth = min(cell[0], len(chart.rows) - 1)
        row, total = chart.rows[depth], max(int(chart.rows[0].ends_ns[-1]), 1)
        block = min(cell[1], len(row.labels) - 1)
        return replace(lens, centre=float(row.begins_ns[block] + row.ends_ns[block]) / 2 / total)

    def cursor(
        self, chart: Icicle, cell: Cell, row: int, label: str | None
    ) -> tuple[int, int | None]:
        """That of the screen."""
        return cell

    def label_of(self, chart: Icicle, cell: Cell) -> str:
        """The label of the block of the first level that holds it."""
        depth, block = cell
        for row in reversed(chart.rows[1 : depth + 1]):
            block = int(row.parents[block])
        return chart.rows[0].labels[block]

    def followed(self, chart: Icicle, cell: Cell, label: str | None) -> Cell:
        """On the row of the table's cursor, unless it is in it."""
        depth = min(cell[0], len(chart.rows) - 1)
        # It may come from another chart.
        cell = depth, min(cell[1], len(chart.rows[depth].labels) - 1)
        if label is None or self.label_of(chart, cell) == label:
            return cell
        return 0, chart.rows[0].labels.index(label)


def _draw(
    picture: Icicle, width: int, height: int, glyphs: Glyphs, cell: Cell | None
) -> list[Line]:
    """The levels from the top, then the scale and the block of the cursor."""
    scale = ColourScale.over(
        np.concatenate([row.numbers for row in picture.rows]), picture.unit, picture.signed
    )
    depth = block = -1
    if cell is not None:
        depth = min(max(cell[0], 0), len(picture.rows) - 1)
        block = min(max(cell[1], 0), len(picture.rows[depth].labels) - 1)
    heights, room = _layout(picture, height)
    lines: list[Line] = []
    if heights[0]:
        for number, (row, tall) in enumerate(zip(picture.rows, heights, strict=True)):
            here = block if number == depth else None
            owners = _owners(picture, number, width, here)
            middle = (tall - 1) // 2
            names = _row_line(row, owners, width, scale, glyphs, here)
            # The cursor is beside the names: along tall levels it took many bytes.
            near, far = (
                _row_line(row, owners, width, scale, glyphs, own, named=False)
                for own in (here, None)
            )
            lines += [
                names if y == middle else near if abs(y - middle) == 1 else far for y in range(tall)
            ]
    else:
        for number in range(0, len(picture.rows), 2):
            lines.append(_halves(picture, number, width, scale, glyphs))
    lines = lines[: max(room, 0)]
    lines.append(scale_line(picture.rows[0].numbers, picture.unit, scale, 0, glyphs))
    if cell is not None:
        lines.append(_block_line(picture, depth, block, width, glyphs))
    return lines[: max(height, 0)]


def _layout(picture: Icicle, height: int) -> tuple[list[int], int]:
    """Lines per level (0: two levels in a line), and in total; the first levels get the
    remainder.
    """
    room = height - _AROUND
    levels = max(len(picture.rows), 1)
    tall, left = divmod(min(max(room, 0), levels * _MAX_LINES), levels)
    return [tall + (place < left) * (tall > 0) for place in range(levels)], room


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
    row: IcicleRow,
    owners: Index,
    width: int,
    scale: ColourScale,
    glyphs: Glyphs,
    here: int | None,
    named: bool = True,
) -> Line:
    """One line of a level: every block in its colour, wide ones with an edge and their name."""
    line: Line = []
    for owner, cells in groupby(owners.tolist()):
        wide = len(list(cells))
        number = float(row.numbers[owner])
        is_here = owner == here
        name = ""
        if named and wide >= _MIN_NAME:
            name = display_name(row.labels[owner], row.level)
            # A name cut to a letter or two is useless.
            is_long = cell_width(name) > wide - 1
            name = (
                elide(name, wide - 1 - is_long, glyphs)
                if not is_long or wide >= _MIN_CUT_NAME
                else ""
            )
        edge = glyphs.cursor if is_here else "▏" if wide > 1 else " "
        if glyphs.is_ascii:
            edge = "[" if is_here else "|" if wide > 1 else " "
        if not np.isfinite(number):
            line.append(
                (first_cells((edge + name).ljust(wide), wide), "strong" if is_here else "dim")
            )
            continue
        ink = scale.ink_of(number)
        if glyphs.in_colour:
            front = "strong" if is_here else "text"
            text = edge + name + " " * (wide - cell_width(name) - 1)
            line.append((text, f"{front}/{ink}"))
        else:
            level = glyphs.spark[round(scale.share(number) * (len(glyphs.spark) - 1))]
            text = edge + name + level * (wide - cell_width(name) - 1)
            text = text if wide > 1 or is_here else level
            line.append((text, "strong" if is_here else "accent"))
    return line


def _halves(picture: Icicle, depth: int, width: int, scale: ColourScale, glyphs: Glyphs) -> Line:
    """Two levels in a line, by the colours of the halves of its cells."""
    both = range(depth, min(depth + 2, len(picture.rows)))
    own = [picture.rows[at].numbers[_owners(picture, at, width)] for at in both]
    lower = own[1] if len(own) > 1 else [np.nan] * width
    line: Line = []
    for pair, cells in groupby(zip(own[0], lower, strict=True)):
        inks = [scale.ink_of(float(each)) if np.isfinite(each) else "text" for each in pair]
        wide = len(list(cells))
        if glyphs.in_colour and not glyphs.is_ascii:
            line.append((_HALF * wide, f"{inks[0]}/{inks[1]}"))
        else:
            share = scale.share(float(pair[0])) if np.isfinite(pair[0]) else 0.0
            line.append((glyphs.spark[round(share * (len(glyphs.spark) - 1))] * wide, "accent"))
    return line


def _block_line(picture: Icicle, depth: int, block: int, width: int, glyphs: Glyphs) -> Line:
    """The cursor's block in words: its path, its time, its share, its figure."""
    row = picture.rows[depth]
    steps: list[str] = []
    at = block
    for each in reversed(picture.rows[: depth + 1]):
        steps.insert(0, crumb(each.level, each.labels[at]))
        at = int(each.parents[at])
    time = int(row.ends_ns[block] - row.begins_ns[block])
    share = 100.0 * time / max(int(picture.rows[0].ends_ns[-1]), 1)
    figure = short_number(float(row.numbers[block])) or glyphs.missing
    value = f": {glyphs.spelled(time_text(time))}, {share:.1f} %, {figure} {picture.unit}".rstrip()
    path = elide(f" {glyphs.crumb} ".join(steps), max(width - 2 - cell_width(value), 1), glyphs)
    return [(f"{glyphs.cursor} ", "accent"), (path, "strong"), (value, "strong")]
