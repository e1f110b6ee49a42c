"""How a frame is laid out in a width: which columns, how wide, and the text of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len

from chopper_core.frame import Frame
from chopper_core.render.cells import (
    LEVEL_TITLES,
    ColumnText,
    clean,
    column_texts,
    display_name,
    fitting,
    scale_title,
)
from chopper_core.render.glyphs import Glyphs, bar
from chopper_tui.widgets.pane import Pieces, fit

PREFIX: Final = 3
"""Cells for the mark, the cursor and a space."""
GAP: Final = 2
_WIDE: Final = 110
_WIDE_SPARK: Final = 20
_MIN_NAME: Final = 16
_NAME_SHARE: Final = {"operation": 25, "kernel": 40}
"""Per cent of the width that names may take before columns do."""
_MEASURED: Final = 2000
"""With more rows, names are taken to be as long as their labels: to shorten all takes long."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column as it is drawn."""

    text: ColumnText
    header: str
    width: int
    bar: int
    """Cells of a bar after the figure; 0: none."""

    @property
    def name(self) -> str:
        """The name of the metric."""
        return self.text.metric.name

    @property
    def cells(self) -> int:
        """The cells of the figure and the bar."""
        return self.width + (self.bar + 1 if self.bar else 0)


@dataclass(frozen=True)
class TableLayout:
    """The columns of a frame that fit into a width."""

    frame: Frame
    glyphs: Glyphs
    full_names: bool
    name_width: int
    columns: tuple[Column, ...]
    spark: int
    """Cells of the sparkline; 0: none."""

    @property
    def spark_x(self) -> int:
        """The first cell of the sparkline."""
        return PREFIX + self.name_width + sum(GAP + c.cells for c in self.columns) + GAP

    def name(self, row: int) -> str:
        """The name of a row as it is shown."""
        label = self.frame.labels[row]
        return shown_name(label, self.frame.level, self.full_names)

    def header(self) -> Pieces:
        """The titles; that of the column that sorts in its own ink."""
        frame, glyphs = self.frame, self.glyphs
        by_name = frame.sort.removeprefix("-") == "name"
        title = LEVEL_TITLES[frame.level]
        if by_name:
            title += glyphs.down if frame.sort.startswith("-") else glyphs.up
        pieces = [
            (" " * PREFIX, "header"),
            (fit(title, self.name_width, glyphs), "chosen" if by_name else "header"),
        ]
        for column in self.columns:
            chosen = column.name == frame.sort.removeprefix("-")
            pieces.append((" " * (GAP + column.width - cell_len(column.header)), "header"))
            pieces.append((column.header, "chosen" if chosen else "header"))
            pieces.append((" " * (column.cells - column.width), "header"))
        if self.spark:
            pieces.append((" " * GAP + scale_title(self.frame.track).ljust(self.spark), "header"))
        return pieces

    def row(self, row: int, spark: str, cursor: bool) -> Pieces:
        """The cells of a row; the cursor's row is one piece."""
        frame, glyphs = self.frame, self.glyphs
        prefix = f" {glyphs.cursor} " if cursor else " " * PREFIX
        pieces = [(prefix + fit(self.name(row), self.name_width, glyphs), "text")]
        for column in self.columns:
            values = frame.values[column.name]
            number, cell = values.at(row), column.text.cell(values, row, glyphs)
            pieces.append((" " * GAP + cell.rjust(column.width), "text"))
            if column.bar:
                pieces.append((" " + bar((number or 0) / 100, column.bar, glyphs), "accent"))
        if self.spark:
            pieces.append((" " * GAP + spark.ljust(self.spark), "spark"))
        return [("".join(text for text, _ in pieces), "cursor")] if cursor else pieces


def shown_name(label: str, level: str, full: bool) -> str:
    """A label as the table shows it; only kernels have a full name and a short one."""
    return clean(label) if full and level == "kernel" else display_name(label, level)


def plan(frame: Frame, width: int, glyphs: Glyphs, full_names: bool = False) -> TableLayout:
    """The layout of a frame: columns that don't fit are left out, the least telling first."""
    wide = width >= _WIDE
    columns = [_column(frame, text, glyphs, 16 if wide else 10) for text in column_texts(frame)]
    longest = _longest_name(frame, full_names)
    share = width // 2 if full_names else width * _NAME_SHARE.get(frame.level, 20) // 100
    room = width - PREFIX - min(longest, max(_MIN_NAME, share)) - 1
    spark = _WIDE_SPARK if wide else max(12, len(scale_title(frame.track)))
    widths = [column.cells for column in columns]
    count = fitting(widths, room - spark - GAP, GAP)
    if count < min(3, len(columns)) or not len(frame):
        spark, count = 0, fitting(widths, room, GAP)
    shown = tuple(columns[:count])
    used = sum(column.cells + GAP for column in shown) + (spark + GAP if spark else 0)
    name_width = max(min(longest, width - PREFIX - used - 1), 1)
    return TableLayout(frame, glyphs, full_names, name_width, shown, spark)


def _column(frame: Frame, text: ColumnText, glyphs: Glyphs, bar_width: int) -> Column:
    name = text.metric.name
    header = text.header
    if frame.sort.removeprefix("-") == name:
        header += glyphs.down if frame.sort.startswith("-") else glyphs.up
    values = frame.values[name]
    present = values.numbers[values.present()]
    extremes = [present.min().item(), present.max().item()] if len(present) else []
    mark = "~" if values.held is not None and values.held.any() else ""
    cells = [mark + text.scale.cell(number) for number in (*extremes, frame.total[name])]
    width = max(cell_len(cell) for cell in (header, *cells))
    return Column(text, header, width, bar_width if name == "share_pct" else 0)


def _longest_name(frame: Frame, full_names: bool) -> int:
    names: Sequence[str] = frame.labels
    if len(names) <= _MEASURED:
        names = [shown_name(name, frame.level, full_names) for name in names]
    title = len(LEVEL_TITLES[frame.level]) + 1
    return max(title, max(map(cell_len, names), default=0))
