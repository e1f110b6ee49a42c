"""Rows of telemetry by column: equal cells are read once, and columns of numbers at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import Struct

from chopper_core.tables.columns import Interner
from chopper_core.tables.text import csv_cells
from chopper_core.util.arrays import Float64, Int32, Int64, Mask
from chopper_core.util.grouping import first_equal, ranked, stable_order

if TYPE_CHECKING:
    import pyarrow as pa

Cells = Sequence[object]
Split = Callable[[str], list[str]]
_PLAIN: Final = frozenset((str, int, float))
_MAX_DIGITS: Final = 64
_NANO_DIGITS: Final = 9
_FEW_CODES: Final = 1 << 16
_SPACES: Final = (" ,", " \n", " \r", "\n ", "\t", ", ")
_LEAST_TEXT: Final = 1 << 16
"""Less text is split faster than pyarrow is loaded."""
_ODD_ENDS: Final = ("\x00", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e")
"""Ends of lines to Python, and not to pyarrow."""


class Decimals(Struct, frozen=True):
    """Numbers without sign, exactly."""

    whole: Int64
    nanos: Int64
    """Billionths; one for all where there are none."""
    digits: Int32
    """Written after the point; one for all where there are none."""


class CellColumn:
    """The cells of a column, in which each distinct one is read once."""

    def __init__(self, distinct: Sequence[Any], codes: Int32 | Int64) -> None:
        self.distinct = distinct
        """In the order of their first row."""
        self.codes = codes
        """The index into `distinct` of each row."""

    @staticmethod
    def of(cells: Sequence[Any]) -> CellColumn:
        """The column of text, or of values of JSON."""
        numbers = Interner()
        codes = np.fromiter(map(numbers.__getitem__, map(_key, cells)), np.int32, len(cells))
        first = first_equal(codes, np.arange(len(numbers)))
        return CellColumn([cells[row] for row in first.tolist()], codes)

    def take(self, rows: Mask | Int32) -> CellColumn:
        """The column of some of its rows, any of them more than once."""
        first, codes = distinct_codes(self.codes[rows])
        return CellColumn([self.distinct[code] for code in self.codes[rows][first].tolist()], codes)

    @property
    def is_filled(self) -> Mask:
        """Which rows have a cell that isn't empty."""
        filled = [cell is not None and cell != "" for cell in self.distinct]
        return np.array(filled, np.bool_)[self.codes]

    def decimals(self) -> Decimals | None:
        """The cells, where all are known to be plain decimals."""
        return None

    def numbers(self) -> tuple[Float64, str] | None:
        """The cells, where all are known to be numbers in the same unit, and that unit."""
        return None


def _key(cell: Any) -> Any:
    """True is 1 in Python, and an object can't be a key."""
    if type(cell) in _PLAIN:
        return cell
    if type(cell) is dict and _PLAIN.issuperset(map(type, cell.values())):
        return *cell, *cell.values()
    return (repr(cell),)


class ArrowColumn(CellColumn):
    """A column of text that pyarrow has split."""

    def __init__(self, texts: pa.StringArray) -> None:
        self._texts = texts

    @cached_property
    def _coded(self) -> tuple[Sequence[str], Int32]:
        from chopper_core.util.arrow_files import numbers_of

        coded = self._texts.dictionary_encode()
        return list(map(str.strip, coded.dictionary.to_pylist())), numbers_of(coded.indices)

    @property
    def distinct(self) -> Sequence[str]:  # type: ignore[override]
        """In the order of their first row."""
        return self._coded[0]

    @property
    def codes(self) -> Int32:  # type: ignore[override]
        """The index into `distinct` of each row."""
        return self._coded[1]

    def take(self, rows: Mask | Int32) -> CellColumn:
        """The column of some of its rows."""
        from chopper_core.util.arrow_files import array_of

        at = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return ArrowColumn(self._texts.take(array_of(at)))

    @property
    def is_filled(self) -> Mask:
        """Which rows have a cell that isn't empty."""
        return self._lengths > 0

    @cached_property
    def _lengths(self) -> Int32:
        import pyarrow.compute as pa_compute

        from chopper_core.util.arrow_files import numbers_of

        return numbers_of(pa_compute.binary_length(self._texts))

    def decimals(self) -> Decimals | None:
        """The cells, where all are plain decimals."""
        import pyarrow as pa
        import pyarrow.compute as pa_compute

        from chopper_core.util.arrow_files import numbers_of

        texts, digits, nanos = self._texts, np.zeros(1, np.int32), np.zeros(1, np.int64)
        points = numbers_of(pa_compute.count_substring(texts, "."))
        if len(texts) and (points == 1).all():
            parts = pa_compute.list_flatten(pa_compute.split_pattern(texts, "."))
            texts, fractions = parts[::2], parts[1::2]
            digits = numbers_of(pa_compute.binary_length(fractions))
            if digits.min() < 1 or digits.max() > _NANO_DIGITS:
                return None
            if not pa_compute.all(pa_compute.ascii_is_decimal(fractions)).as_py():
                return None
            padded = pa_compute.ascii_rpad(fractions, _NANO_DIGITS, "0")
            nanos = numbers_of(padded.cast(pa.int64()))
        if not pa_compute.all(pa_compute.ascii_is_decimal(texts)).as_py():
            return None
        try:
            return Decimals(numbers_of(texts.cast(pa.int64())), nanos, digits)
        except pa.ArrowInvalid:
            return None

    def numbers(self) -> tuple[Float64, str] | None:
        """The cells, where all are numbers in the same unit, and that unit."""
        import pyarrow as pa
        import pyarrow.compute as pa_compute

        from chopper_core.util.arrow_files import numbers_of

        texts = self._texts
        if not len(texts) or self._lengths.max() > _MAX_DIGITS:
            return None
        _, space, unit = texts[0].as_py().partition(" ")
        if space:
            if not pa_compute.all(pa_compute.ends_with(texts, space + unit)).as_py():
                return None
            texts = pa_compute.utf8_slice_codeunits(texts, 0, -len(space + unit))
        try:
            numbers = numbers_of(texts.cast(pa.float64()))
        except pa.ArrowInvalid:
            return None
        return (numbers, unit.strip().casefold()) if np.isfinite(numbers).all() else None


class RowBlock:
    """Some rows of a table, by column; equal lines are split once."""

    def __init__(self, lines: Sequence[str], width: int, split: Split) -> None:
        numbers = Interner()
        codes = np.fromiter(map(numbers.__getitem__, lines), np.int32, len(lines))
        rows = list(map(split, numbers))
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        is_long = counts > width
        for row in np.flatnonzero(is_long).tolist():
            is_long[row] = any(map(str.strip, rows[row][width:]))
            del rows[row][width:]
        for row in np.flatnonzero(counts < width).tolist():
            rows[row] += [""] * (width - len(rows[row]))
        self.width = width
        self.is_long = is_long[codes]
        self.is_short = (counts < width)[codes]
        self._codes = codes
        """Of each row, its place among the distinct ones."""
        self._rows = rows
        self._columns: dict[int, CellColumn] = {}
        self._is_whole = False

    @classmethod
    def of_columns(cls, columns: Sequence[CellColumn], count: int) -> RowBlock:
        """Rows of a file that has columns."""
        block = cls([], len(columns), csv_cells)
        block._codes = np.arange(count, dtype=np.int32)
        block.is_long = block.is_short = np.zeros(count, np.bool_)
        block._columns = dict(enumerate(columns))
        block._is_whole = True
        return block

    @classmethod
    def of_csv(cls, text: str, width: int) -> RowBlock | None:
        """Rows of whole lines of CSV, fast; None for text that only `split_csv` splits right."""
        if len(text) < _LEAST_TEXT or not text.isascii() or any(end in text for end in _ODD_ENDS):
            return None
        if text.count("\r") != text.count("\r\n"):
            return None
        import pyarrow as pa
        import pyarrow.compute as pa_compute
        from pyarrow import csv as pa_csv

        is_quoted = '"' in text
        if is_quoted and not _is_quoted_well(text):
            return None
        if not is_quoted:
            text = text.replace(", ", ",")
        is_spaced = any(space in text for space in _SPACES)
        names = [str(index) for index in range(width)]
        data = text.encode()
        try:
            table = pa_csv.read_csv(
                pa.BufferReader(data),
                pa_csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
                None,
                pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
            )
        except pa.ArrowInvalid:
            return None
        if is_quoted and len(table) != sum(map(bool, text.splitlines())):
            return None
        columns = [column.combine_chunks() for column in table.columns]
        if is_spaced:
            columns = list(map(pa_compute.ascii_trim_whitespace, columns))
        return cls.of_columns(list(map(ArrowColumn, columns)), len(table))

    def __len__(self) -> int:
        return len(self._codes)

    def column(self, index: int) -> CellColumn:
        """The cells of a column, without the space around them."""
        column = self._columns.get(index)
        if column is None:
            numbers = Interner()
            cells = [row[index] for row in self._rows]
            codes = np.fromiter(map(numbers.__getitem__, cells), np.int32, len(cells))
            column = self._columns[index] = CellColumn([*map(str.strip, numbers)], codes)
        return column if self._is_whole else column.take(self._codes)

    def take(self, rows: Mask) -> RowBlock:
        """Some of the rows."""
        if rows.all():
            return self
        block = copy(self)
        block._codes, block._is_whole = self._codes[rows], False
        block.is_long, block.is_short = self.is_long[rows], self.is_short[rows]
        return block

    def values_of(self, columns: Sequence[int], of: Callable[[Cells], Any]) -> CellColumn:
        """A function's result for each row that had these columns alone."""
        found = [self.column(index) for index in columns]
        codes = np.zeros(len(self), np.int64)
        for column in found:
            _, codes = distinct_codes(codes * len(column.distinct) + column.codes)
        first, codes = distinct_codes(codes)
        answers, cells = Interner(), [""] * self.width
        which = np.empty(len(first), np.int64)
        for at, row in enumerate(first.tolist()):
            for index, column in zip(columns, found, strict=True):
                cells[index] = column.distinct[column.codes[row]]
            which[at] = answers[of(cells)]
        return CellColumn(list(answers), which[codes])


def distinct_codes(codes: Int32 | Int64) -> tuple[Int64, Int64]:
    """The first row of each distinct code, in ascending order, and the place among these of each
    row's."""
    if not len(codes):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if int(codes.max()) > max(_FEW_CODES, len(codes)):
        codes = ranked(codes)[1]
    first = np.full(int(codes.max()) + 1, -1)
    # Of several rows the last one that is written stays.
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    order = stable_order(first)
    order = order[first[order] >= 0]
    places = np.empty(len(first), np.int64)
    places[order] = np.arange(len(order))
    return first[order], places[codes]


def collapsed(text: str) -> str:
    """CSV from lines of cells with spaces between them."""
    text = text.replace(",", " ").replace("\t", " ").replace("\r", "")
    while "  " in text:
        text = text.replace("  ", " ")
    text = text.replace("\n ", "\n").replace(" \n", "\n").strip(" ")
    return text.replace(" ", ",")


def split_csv(line: str) -> list[str]:
    """The cells of a line of CSV."""
    return csv_cells(line) if '"' in line else line.split(",")


def _is_quoted_well(text: str) -> bool:
    """Whether each quote opens or closes a cell."""
    text = text.replace("\r", "")
    opened = text.count(',"') + text.count('\n"') + text.startswith('"')
    closed = text.count('",') + text.count('"\n') + text.endswith('"')
    return opened == closed and text.count('"') == opened + closed
