"""The memory chart: boxes of the GPU's units from left to right, with what flows between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chopper_core.model.charts import DataPath, GpuUnit, MemoryChart, UnitFigure
from chopper_core.render.cells import cell_width, elide
from chopper_core.render.glyphs import Glyphs
from chopper_tui.draw.canvas import Canvas, Drawer, title_lines
from chopper_tui.draw.pieces import Line, inked

_STAGES: Final = 4
_WIDTHS: Final = (16, 15, 14, 13)
"""The least cells of a box of each stage."""
_GAP: Final = 6
"""The least cells between two stages."""
_MAX_GAP: Final = 16
_METER: Final = 3
"""The least cells of a meter."""
_PERCENT: Final = 3
"""The cells of its figure in percent."""
_WANTED: Final = 21
_LEAST_LINES: Final = 3
"""Of a box: its borders and a figure."""
_WARM: Final = 0.5
_HOT: Final = 0.8
"""Shares of a peak from which a unit may be what limits the scope."""


class Sheet:
    """Cells of a picture, each with a character and an ink."""

    def __init__(self, width: int, height: int, glyphs: Glyphs) -> None:
        self.width, self.height, self.glyphs = width, height, glyphs
        self._chars = [[" "] * width for _ in range(height)]
        self._inks = [["text"] * width for _ in range(height)]

    def put(self, x: int, y: int, text: str, ink: str) -> None:
        """Write a text; what is outside of the picture is left out."""
        for place, char in enumerate(self.glyphs.spelled(text), x):
            if 0 <= place < self.width and 0 <= y < self.height:
                self._chars[y][place], self._inks[y][place] = char, ink

    def box(self, x: int, y: int, width: int, height: int, title: str, *, is_dim: bool) -> None:
        """A rounded box with its title in the border."""
        inner = width - 2
        name = f" {elide(title, max(inner - 3, 0), self.glyphs)} "
        self.put(x, y, f"╭─{'─' * (inner - 1)}╮", "third")
        self.put(x + 2, y, name, "dim" if is_dim else "strong")
        for line in range(y + 1, y + height - 1):
            self.put(x, line, "│", "third")
            self.put(x + width - 1, line, "│", "third")
        self.put(x, y + height - 1, f"╰{'─' * inner}╯", "third")

    def lines(self) -> list[Line]:
        """The lines of the picture."""
        return [inked(chars, inks) for chars, inks in zip(self._chars, self._inks, strict=True)]


class MemoryChartDrawer(Drawer[MemoryChart]):
    """Units as boxes in four stages, as tall as their figures; data flows along arrows."""

    is_main = True

    def rows(self, chart: MemoryChart) -> int:
        return 1

    def title(self, chart: MemoryChart, width: int, glyphs: Glyphs) -> list[Line]:
        legend: list[Line] = [
            [(f"  {2 * glyphs.meter[0]}", ink), (f" {text}", "dim")]
            for ink, text in (
                (_ink(0.0), "% of its peak"),
                (_ink(_WARM), f"from {100 * _WARM:.0f} %"),
                (_ink(_HOT), f"from {100 * _HOT:.0f} %"),
            )
        ]
        return title_lines(chart.title, "", width, legend)

    def body_lines(self, chart: MemoryChart) -> int:
        return _WANTED

    def fitted(self, chart: MemoryChart, width: int, glyphs: Glyphs, lines: int) -> int:
        """All figures of the unit that has most, and not more."""
        most = max(
            sum(_lines_of(unit) for unit in chart.units if unit.stage == stage)
            for stage in range(_STAGES)
        )
        own = self.lines(chart, width, glyphs)
        return max(own, min(lines, own - _WANTED + most))

    def body(self, chart: MemoryChart, on: Canvas) -> None:
        height = max(on.left, 1)
        sheet = Sheet(max(on.width, 1), height, on.glyphs)
        lefts, widths = _columns(sheet.width)
        tops: dict[int, tuple[int, int]] = {}
        for stage in range(_STAGES):
            places = [at for at, unit in enumerate(chart.units) if unit.stage == stage]
            heights = _heights([chart.units[at] for at in places], height)
            top = 0
            for at, lines in zip(places, heights, strict=True):
                if lines:
                    tops[at] = top, lines
                    _draw_unit(sheet, chart.units[at], lefts[stage], top, widths[stage], lines)
                top += lines
            if stage == _STAGES - 1 and len(places) > 1 and places[-1] in tops:
                # The memory is behind the fabric, below it.
                x, arrows = lefts[stage] + widths[stage] - 5, f"{on.glyphs.up}{on.glyphs.down}"
                sheet.put(x, tops[places[-1]][0], arrows, _ink(0.0))
        for path in chart.paths:
            _draw_path(sheet, chart, path, tops, lefts, widths)
        for line in sheet.lines():
            on.add(line)


def _columns(width: int) -> tuple[list[int], list[int]]:
    """Where each stage begins and how wide its boxes are, of a picture so wide."""
    spare = max(width - sum(_WIDTHS) - _GAP * (_STAGES - 1), 0)
    gap = min(_GAP + spare // 6, _MAX_GAP)
    rest = max(width - sum(_WIDTHS) - gap * (_STAGES - 1), 0)
    widths = [own + rest // _STAGES for own in _WIDTHS]
    widths[0] += rest % _STAGES
    lefts = [sum(widths[:stage]) + gap * stage for stage in range(_STAGES)]
    return lefts, widths


def _lines_of(unit: GpuUnit) -> int:
    """The lines of a box with all the figures that are known, or with the first ones."""
    known = sum(1 for each in unit.figures if each.text)
    return 2 + max(known, 1)


def _heights(units: Sequence[GpuUnit], height: int) -> list[int]:
    """The lines of boxes below each other: what each needs, by turns; 0 where there is no room."""
    fitting = min(len(units), height // _LEAST_LINES)
    found = [_LEAST_LINES if place < fitting else 0 for place in range(len(units))]
    wanted = [_lines_of(unit) for unit in units]
    spare = height - sum(found)
    while spare > 0:
        short = [at for at in range(fitting) if found[at] < wanted[at]]
        if not short:
            # The picture ends in one line: what nobody needs, the boxes share.
            short = [max(range(fitting), key=lambda at: len(units[at].figures))] if fitting else []
            if not short:
                break
        for at in short[:spare]:
            found[at] += 1
        spare = height - sum(found)
    return found


def _draw_unit(sheet: Sheet, unit: GpuUnit, x: int, y: int, width: int, height: int) -> None:
    known = [each for each in unit.figures if each.text]
    sheet.box(x, y, width, height, unit.title, is_dim=not known)
    inner = width - 4
    if not known:
        sheet.put(x + 2, y + 1, elide("not counted", inner, sheet.glyphs), "dim")
    shown = known[: height - 2]
    # The meters of a box are aligned; a name that leaves them no room has none.
    most = inner - _METER - _PERCENT - 2
    metered = [each for each in shown if each.share is not None and cell_width(each.title) <= most]
    names = max((cell_width(each.title) for each in metered), default=0)
    for line, each in enumerate(shown, y + 1):
        if each.share is not None and each in metered:
            text = _percent(each.share).rjust(_PERCENT)
            ink = _ink(each.share if each.is_load else None)
            _meter(sheet, x + 3 + names, line, inner - names - _PERCENT - 2, each.share, ink)
        else:
            text = _fitting(each, inner - cell_width(each.title))
        name = elide(each.title, max(inner - cell_width(text) - 1, 1), sheet.glyphs)
        sheet.put(x + 2, line, name, "dim")
        sheet.put(x + 2 + inner - cell_width(text), line, text, "strong")


def _percent(share: float) -> str:
    number = 100.0 * share
    if number >= 1 or number == 0:
        return f"{number:.0f}"
    return "<1"


def _meter(sheet: Sheet, x: int, y: int, width: int, share: float, ink: str) -> None:
    filled = round(share * width) or int(share > 0)
    full, empty = sheet.glyphs.meter[:1], sheet.glyphs.meter[1:]
    sheet.put(x, y, full * filled, ink)
    sheet.put(x + filled, y, empty * (width - filled), "shade")


def _ink(share: float | None) -> str:
    if share is None or share < _WARM:
        return "good"
    return "alarm" if share >= _HOT else "warning"


def _draw_path(
    sheet: Sheet,
    chart: MemoryChart,
    path: DataPath,
    tops: dict[int, tuple[int, int]],
    lefts: Sequence[int],
    widths: Sequence[int],
) -> None:
    """An arrow per direction between two boxes, in the lines that both have, with its rate."""
    if path.near not in tops or path.far not in tops:
        return
    near, far = chart.units[path.near], chart.units[path.far]
    begin, end = lefts[near.stage] + widths[near.stage], lefts[far.stage]
    (top, lines), (other, others) = tops[path.near], tops[path.far]
    first, last = max(top, other) + 1, min(top + lines, other + others) - 2
    ways = [(path.inward, path.outward is None), *([(path.outward, False)] if path.outward else [])]
    middle = first + max(last - first - 2 * len(ways) + 1, 0) // 2
    for place, (figure, is_both) in enumerate(ways):
        line = middle + 2 * place
        if line > max(last, first):
            return
        room = end - begin
        ink = _ink(figure.share) if figure.text else "dim"
        shaft = "─" * (room - 1 - is_both)
        arrow = f"◀{shaft}{'▶' if is_both else ''}" if place == 0 else f"{shaft}▶"
        text = _fitting(figure, room)
        if line + 1 <= last and text:
            sheet.put(begin + (room - cell_width(text)) // 2, line, text, "strong")
            sheet.put(begin, line + 1, arrow, ink)
        else:
            # In one line the rate is part of the arrow.
            sheet.put(begin, line, arrow, ink)
            if cell_width(text) <= room - 2:
                sheet.put(begin + (room - cell_width(text)) // 2, line, text, "strong")


def _fitting(figure: UnitFigure, room: int) -> str:
    """The figure as it fits: with its unit, the unit's first letters, or one of them."""
    if not figure.text:
        return ""
    words = figure.text.partition(" ")
    number, unit = words[0], words[2]
    short = f"{number}{unit[:1]}"
    choices = (figure.text, f"{number} {unit[:3]}", f"{number} {unit[:2]}", short)
    return next((text for text in choices if cell_width(text) <= room - 1), short)
