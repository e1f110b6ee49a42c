"""Rows of a table by column: pyarrow splits blocks of CSV; what it can't is split line by line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from chopper_core.tables.arrow_files import texts_of
from chopper_core.tables.column import TableColumn
from chopper_core.tables.columns import Interner
from chopper_core.tables.csv_stream import csv_table
from chopper_core.util.arrays import Int32, Int64, Mask
from chopper_core.util.grouping import distinct_codes

Cells = Mapping[str, str]
"""The cells of a row by their headings; '' for others."""
Split = Callable[[str], list[str]]
_SPACES: Final = (" ,", " \n", " \r", "\n ", "\t", ", ")
_ODD_ENDS: Final = ("\x00", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
"""Ends of lines to Python, and not to pyarrow."""


class Coded(Struct, frozen=True):
    """A value of each row, each distinct one once."""

    distinct: Sequence[Any]
    codes: Int32 | Int64


class TableRows:
    """Some rows of a table."""

    def __init__(self, columns: Sequence[TableColumn], rows: int) -> None:
        self.is_long = np.zeros(rows, np.bool_)
        """Which rows have more cells than headings."""
        self.is_short = np.zeros(rows, np.bool_)
        self._columns = columns

    @classmethod
    def of_lines(cls, lines: Sequence[str], width: int, split: Split) -> TableRows:
        """Rows of lines, split one by one; equal lines are split once."""
        known = {line: [*map(str.strip, split(line))] for line in dict.fromkeys(lines)}
        cells = [known[line] for line in lines]
        counts = np.fromiter(map(len, cells), np.int64, len(cells))
        full = [row if len(row) >= width else row + [""] * (width - len(row)) for row in cells]
        columns = [TableColumn(texts_of([row[at] for row in full])) for at in range(width)]
        block = cls(columns, len(lines))
        block.is_short = counts < width
        for row in np.flatnonzero(counts > width).tolist():
            block.is_long[row] = any(cells[row][width:])
        return block

    @classmethod
    def of_csv(cls, text: str, width: int) -> TableRows | None:
        """Rows of whole lines of CSV, fast; None for text that has to be split line by line."""
        if any(end in text for end in _ODD_ENDS) or text.count("\r") != text.count("\r\n"):
            return None
        is_quoted = '"' in text
        if is_quoted and not _is_quoted_well(text):
            return None
        if not is_quoted:
            text = text.replace(", ", ",")
        is_spaced = any(space in text for space in _SPACES)
        try:
            table = csv_table(text.encode("utf-8", "replace"), width)
        except pa.ArrowInvalid:
            return None
        if is_quoted and len(table) != sum(map(bool, text.splitlines())):
            return None
        columns = table.columns
        if is_spaced:
            columns = list(map(pc.utf8_trim_whitespace, columns))
        return cls(list(map(TableColumn, columns)), len(table))

    def __len__(self) -> int:
        return len(self.is_long)

    def column(self, index: int) -> TableColumn:
        """The cells of a column, without the space around them."""
        return self._columns[index]

    def take(self, rows: Mask) -> TableRows:
        if rows.all():
            return self
        block = TableRows([column.take(rows) for column in self._columns], int(rows.sum()))
        block.is_long, block.is_short = self.is_long[rows], self.is_short[rows]
        return block

    def values_of(self, columns: Mapping[str, int], of: Callable[[Cells], Any]) -> Coded:
        """A function's result for each row that had these columns alone."""
        found = {name: self.column(index).coded for name, index in columns.items()}
        codes = np.zeros(len(self), np.int64)
        for texts, of_rows in found.values():
            _, codes = distinct_codes(codes * len(texts) + of_rows)
        first, codes = distinct_codes(codes)
        answers, which = Interner(), []
        for row in first.tolist():
            cells = {name: texts[of_rows[row]] for name, (texts, of_rows) in found.items()}
            which.append(answers[of(defaultdict(str, cells))])
        return Coded(list(answers), np.array(which, np.int64)[codes])


def _is_quoted_well(text: str) -> bool:
    """Whether each quote opens or closes a cell."""
    text = text.replace("\r", "")
    opened = text.count(',"') + text.count('\n"') + text.startswith('"')
    closed = text.count('",') + text.count('"\n') + text.endswith('"')
    return opened == closed and text.count('"') == opened + closed
