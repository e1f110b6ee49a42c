"""The time of each step as bars along their numbers, with marks below those that were traced."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.model.charts import StepBars
from chopper_core.model.phrases import count
from chopper_core.render.glyphs import Glyphs
from chopper_core.util.grouping import median_of
from chopper_tui.draw import axes
from chopper_tui.draw.canvas import UNLIMITED, Canvas, Cell, Drawer, area
from chopper_tui.draw.pieces import Line, inked, whole_text

_LINES: Final = 8
"""Of bars without anything else."""
_LEAST_MARKED: Final = 3
"""Lines from which one of them has marks."""


class StepBarsDrawer(Drawer[StepBars]):
    """Bars of steps where nothing else is measured."""

    opens_with = "enter"

    def bar(self, chart: StepBars) -> StepBars:
        return chart

    def part_cell(self, place: int, row: int) -> Cell:
        return part_cell(place, row)

    def part_at(self, cell: Cell) -> int | None:
        return part_at(cell)

    def title(self, chart: StepBars, width: int, glyphs: Glyphs) -> list[Line]:
        return [steps_title(chart, glyphs)]

    def body_lines(self, chart: StepBars) -> int:
        return _LINES

    def fitted(self, chart: StepBars, width: int, glyphs: Glyphs, lines: int) -> int:
        return min(lines, UNLIMITED)

    def body(self, chart: StepBars, on: Canvas) -> None:
        add_steps(chart, on, on.left)


def part_cell(place: int, row: int) -> Cell:
    """The cursor on a bar; column 0 is what the row has next to them."""
    return row, place + 1


def part_at(cell: Cell) -> int | None:
    return cell[1] - 1 if cell[1] else None


def steps_title(steps: StepBars, glyphs: Glyphs) -> Line:
    numbers, (low, _) = steps.numbers, _ends(steps)
    more = f"  median {whole_text(median_of(numbers))} of {count(len(numbers), 'step')}"
    more += axes.begins_at(whole_text(low)) if low else ""
    title: Line = [(f" {steps.title} {steps.unit}", "strong")]
    title += [(f"  last {whole_text(numbers[-1])}", "text"), (more, "dim")]
    marks: Line = [(f"  {_mark(glyphs)}", "third"), (" traced", "dim")]
    return [*title, *marks] if steps.has_marks else title


def _mark(glyphs: Glyphs) -> str:
    return "=" if glyphs.is_ascii else "━"


def _ends(steps: StepBars) -> tuple[float, float]:
    known = steps.numbers[np.isfinite(steps.numbers)]
    low, high = axes.scale_ends(known)
    ends = (float(known.min()), float(known.max())) if len(known) else (low, high)
    return axes.area_ends(*axes.around(*ends))


def add_steps(steps: StepBars, on: Canvas, lines: int) -> None:
    """Add the bars, with their axes, in so many lines: the last steps where not all have room.

    Below the bars are marks of traced steps and of the cursor. A single line has no axis below it.
    """
    if lines < 1:
        return
    place = part_at(on.cell) if on.cell is not None else None
    place = place if place in steps.listed else None
    is_marked = lines >= _LEAST_MARKED and (steps.has_marks or place is not None)
    height = max(lines - 1 - is_marked, 1)
    axis = axes.Axis.over(*_ends(steps), max(height // 2, 2))
    width = axis.label_width + 1
    cells = max(on.width - width - 1, 1)
    first = _first_shown(len(steps.numbers), cells, place)
    numbers = steps.numbers[first : first + cells]
    places = first + np.arange(cells) * len(numbers) // cells
    inks = ["accent"] * len(steps.numbers)
    for own, ink in ((steps.profiled, "third"), (steps.outliers, "alarm")):
        for at in own:
            inks[at] = ink
    if place is not None:
        inks[place] = "strong"
    shares = axes.axis_shares(steps.numbers[None], axis)[:, places]
    drawn = area(shares, height, [inks[at] for at in places], on.glyphs)
    for line in axes.framed_lines(drawn, axis, width, on.glyphs.is_ascii):
        on.add(line, on.row, width + 1, places + 1)
    if is_marked:
        on.add([(" " * (width + 1), "text"), *_marks(steps, places.tolist(), place, on.glyphs)])
    if lines < 2:
        return
    last = f"{whole_text(steps.steps[first + len(numbers) - 1])} {steps.title}"
    first_text = whole_text(steps.steps[first]) if len(numbers) > 1 else ""
    gap = max(cells - len(first_text + last), len(first_text) and 1)
    on.add([(" " * (width + 1) + first_text + " " * gap + last, "dim")])


def _first_shown(count: int, cells: int, place: int | None) -> int:
    """The first step to show: the last ones, or those around the cursor."""
    newest = max(count - cells, 0)
    return newest if place is None else min(newest, max(place - cells // 2, 0))


def _marks(steps: StepBars, places: list[int], place: int | None, glyphs: Glyphs) -> Line:
    """A mark in each cell of a traced step, and one in the middle of the cursor's."""
    traced = {*steps.traced} if steps.has_marks else set()
    chars = [_mark(glyphs) if at in traced else " " for at in places]
    inks = ["third" if at in traced else "text" for at in places]
    own = [x for x, at in enumerate(places) if at == place]
    if own:
        chars[own[len(own) // 2]], inks[own[len(own) // 2]] = glyphs.up, "strong"
    return inked(chars, inks)
