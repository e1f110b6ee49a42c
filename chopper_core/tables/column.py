"""Rows of a table by column: its cells as texts, numbers, times or codes, read at once.

pyarrow splits blocks of CSV; what it can't is split line by line.

Cells may have any type that a file can give them. What isn't what it is read as is missing; nothing
is raised. Numbers are exact: text becomes a number only if all of it is one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from chopper_core.tables.arrow_files import array_of, numbers_of, numbers_or, texts_of
from chopper_core.tables.columns import Columns, Interner, float_column
from chopper_core.tables.losses import ABSENT
from chopper_core.tables.text import split_lines
from chopper_core.util.arrays import Float64, Int32, Int64, Mask
from chopper_core.util.children import readied_threads
from chopper_core.util.grouping import distinct_codes
from chopper_core.util.memory import lacks_threads

_MAX_DIGITS: Final = 64
_INT64_LIMIT: Final = 2**63
_PLAIN_DECIMAL: Final = re.compile(r"\s*\d+\.\d*\s*")
_EXPONENTS: Final = 99
Cells = Mapping[str, str]
"""The cells of a row by their headings; '' for others."""
Split = Callable[[str], list[str] | None]
"""The cells of a line of headings or of a row; None for any other line."""
_SPACES: Final = (" ,", " \n", " \r", "\n ", "\t", ", ")


class TableColumn:
    """The cells of a column: text, int64 or float64 in Arrow; any other type is read as text."""

    def __init__(self, cells: pa.Array | pa.ChunkedArray) -> None:
        self._cells = _plain(cells)
        self._is_text = self._cells.type == pa.string()

    @staticmethod
    def of(cells: Sequence[object]) -> TableColumn:
        """The column of texts, or of values of JSON; an object of a value and a unit is text."""
        return TableColumn(texts_of([_text(cell) for cell in cells]))

    @staticmethod
    def of_another_program(cells: pa.Array | pa.ChunkedArray) -> TableColumn:
        """The column of an array whose texts may be no UTF-8."""
        array = cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells
        try:
            array.validate(full=True)
        except pa.ArrowException:
            if pa.types.is_dictionary(array.type):
                array = array.dictionary_decode()
            if array.type in (pa.string(), pa.large_string()):
                array = array.cast(pa.large_binary())
        return TableColumn(array)

    @staticmethod
    def repeated(text: str, rows: int) -> TableColumn:
        return TableColumn(texts_of([text]).take(array_of(np.zeros(rows, np.int64))))

    def __len__(self) -> int:
        return len(self._cells)

    def take(self, rows: Mask | Int32 | Int64) -> TableColumn:
        if rows.dtype == np.bool_ and rows.all():
            return self
        at = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return TableColumn(self._cells.take(array_of(at)))

    def mapped(self, of: Callable[[str], object]) -> TableColumn:
        """What a function makes of each text, which it is given once."""
        return self.spread([of(text) for text in self.distinct])

    def mapped_codes(self, code_of: Callable[[str], int]) -> Int64:
        """The code that a function gives each text, in the order of their first rows."""
        texts, codes = self.coded
        return np.fromiter(map(code_of, texts), np.int64, len(texts))[codes]

    def spread(self, values: Sequence[object]) -> TableColumn:
        """Values for the distinct texts, in their rows."""
        return TableColumn(texts_of(list(map(_text, values))).take(array_of(self.codes)))

    @cached_property
    def coded(self) -> tuple[Sequence[str], Int32]:
        """The distinct texts in the order of their first row, and each row's place among them."""
        coded = self._texts.dictionary_encode()
        return list(map(str.strip, coded.dictionary.to_pylist())), numbers_of(coded.indices)

    @property
    def distinct(self) -> Sequence[str]:
        return self.coded[0]

    @property
    def codes(self) -> Int32:
        return self.coded[1]

    @property
    def texts(self) -> Sequence[str]:
        return self._texts.to_pylist()  # type: ignore[no-any-return]

    def is_equal(self, text: str) -> Mask:
        return numbers_of(pc.equal(self._texts, text).cast(pa.uint8())) > 0

    @property
    def is_filled(self) -> Mask:
        if self._is_text:
            return self._lengths > 0
        return numbers_of(pc.invert(self._cells.is_null(nan_is_null=True)).cast(pa.uint8())) > 0

    def integers(self, below: int = _INT64_LIMIT) -> Int64:
        """Whole numbers from 0, also those written like `7.0` or `0x7`; ABSENT for others."""
        numbers = np.maximum(self._integers(_EXPONENTS), ABSENT)
        return numbers if below == _INT64_LIMIT else np.where(numbers < below, numbers, ABSENT)

    def times_ns(self) -> Int64:
        """Times in ns, fractions rounded; ABSENT for others.

        Times without all their digits, like `8.1097E+14`, are ABSENT too.
        """
        if self._is_text:
            return np.maximum(self._integers(0, _without_fraction), ABSENT)
        if self._cells.type == pa.float64():
            whole = TableColumn(pc.round(self._cells, round_mode="half_to_even"))
            return np.maximum(whole._integers(0), ABSENT)
        return np.maximum(self._integers(0), ABSENT)

    def floats(self) -> Float64:
        if not self._is_text:
            found = numbers_or(self._cells.cast(pa.float64(), safe=False), np.nan)
        elif (found := self._cast(pa.float64())) is None:
            texts, codes = self.coded
            found = float_column(texts)[codes]
        return np.where(np.isfinite(found), found, np.nan)

    def numbers(self) -> tuple[Int64 | Float64, str] | None:
        """The cells, where all are numbers in the same unit, and that unit; integers are exact."""
        texts = self._cells
        if not len(texts) or texts.null_count:
            return None
        unit, is_whole = "", texts.type == pa.int64()
        if self._is_text:
            if self._lengths.max() > _MAX_DIGITS:
                return None
            _, space, unit = texts[0].as_py().partition(" ")
            if space:
                if not pc.all(pc.ends_with(texts, space + unit)).as_py():
                    return None
                texts = pc.utf8_slice_codeunits(texts, 0, -len(space + unit))
            is_whole = pc.all(pc.ascii_is_decimal(texts)).as_py()
        try:
            numbers = numbers_of(texts.cast(pa.int64() if is_whole else pa.float64()))
        except pa.ArrowInvalid:
            return None
        return (numbers, unit.strip().casefold()) if np.isfinite(numbers).all() else None

    @cached_property
    def _texts(self) -> pa.StringArray:
        return self._cells if self._is_text else self._cells.cast(pa.string()).fill_null("")

    @cached_property
    def _lengths(self) -> Int32:
        return numbers_of(pc.binary_length(self._cells))

    def _cast(self, kind: pa.DataType) -> Any:
        """Text as numbers; None where any isn't one."""
        # Arrow formats an error for each text that it can't parse.
        if len(self._cells) and integer_in(self._cells[0].as_py().partition(".")[0]) == ABSENT:
            return None
        try:
            return numbers_of(self._cells.cast(kind))
        except pa.ArrowInvalid:
            return None

    def _integers(self, max_exponent: int, prepared: Any = str.strip) -> Int64:
        """Whole numbers of either sign; ABSENT for others."""
        if self._cells.type == pa.int64():
            return numbers_or(self._cells, ABSENT)
        if not self._is_text:
            numbers = numbers_or(self._cells, np.nan)
            is_whole = (np.abs(numbers) < _INT64_LIMIT) & (numbers == np.rint(numbers))
            return np.where(is_whole, numbers, ABSENT).astype(np.int64)
        found: Int64 | None = self._cast(pa.int64())
        if found is not None and (found >= 0).all():
            return found
        texts, codes = self.coded
        whole = [integer_in(prepared(text), max_exponent) for text in texts]
        return np.array(whole, np.int64)[codes]


def integer_in(text: str, max_exponent: int = _EXPONENTS) -> int:
    """The integer that a text is, also one written like `7.0` or `0x7`; ABSENT for others."""
    try:
        exact = Decimal(text)
    except InvalidOperation:
        try:
            number = int(text, 0)
        except ValueError:
            return ABSENT
        return number if abs(number) < _INT64_LIMIT else ABSENT
    exponent = exact.as_tuple().exponent
    if not isinstance(exponent, int) or not -_EXPONENTS <= exponent <= max_exponent:
        return ABSENT
    if exact.adjusted() > 18 or exact != exact.to_integral_value():
        return ABSENT
    number = int(exact)
    return number if abs(number) < _INT64_LIMIT else ABSENT


def _without_fraction(text: str) -> str:
    """A plain decimal rounded to an integer, any other text as it is."""
    if "." not in text or not _PLAIN_DECIMAL.fullmatch(text) or len(text) > _MAX_DIGITS:
        return text.strip()
    return str(Decimal(text.strip()).to_integral_value())


def _plain(cells: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The cells as text, int64 or float64 in one piece; text has no nulls."""
    array = cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells
    kind = array.type
    try:
        if pa.types.is_dictionary(kind):
            array, kind = array.dictionary_decode(), kind.value_type
        if kind == pa.string():
            return array.fill_null("") if array.null_count else array
        if pa.types.is_integer(kind):
            return array.cast(pa.int64())
        if pa.types.is_floating(kind):
            return array.cast(pa.float64())
        if pa.types.is_large_string(kind):
            return array.cast(pa.string()).fill_null("")
    except pa.ArrowException:
        pass  # Numbers beyond int64, and more text than Arrow's offsets reach.
    return texts_of([_text(cell) for cell in _values(array)])


def _values(array: pa.Array) -> Iterator[object]:
    """The values of an array of any type; None for those that Python can't hold."""
    for cell in array:
        try:
            yield cell.as_py()
        except (ValueError, OverflowError, KeyError):  # The last one for an unknown time zone.
            yield None


def _text(cell: object) -> str:
    if isinstance(cell, str):
        return cell
    if cell is None:
        return ""
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace")
    if isinstance(cell, dict):
        value, unit = _text(cell.get("value")), cell.get("unit")
        return f"{value} {unit}" if unit and value[-1:].isdigit() else value
    try:
        return str(cell)
    except ValueError:
        return ""  # An integer of more digits than Python writes.


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
        self.header: Mapping[str, int] = {}
        """The number of each column by its heading, where columns are asked for by these."""
        self._columns = columns

    @classmethod
    def of_lines(cls, lines: Sequence[str], width: int, split: Split) -> TableRows:
        """Rows of lines, split one by one; equal lines are split once."""
        known = {line: [*map(str.strip, split(line) or ())] for line in dict.fromkeys(lines)}
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
    def of_csv(cls, text: str, width: int, *, is_spaced: bool = False) -> TableRows | None:
        """Rows of whole lines of CSV, fast; None for text that has to be split line by line.

        Cells of text that `is_spaced` may have spaces around them.
        """
        if "\0" in text or ("\r" in text and text.count("\r") != text.count("\r\n")):
            return None
        if is_spaced and '"' not in text:
            text = text.replace(", ", ",")
        data = text.encode("utf-8", "replace")
        try:
            table = csv_table(data, width)
        except pa.ArrowInvalid:
            return None
        if table is None:
            return None
        # A quote without its end makes one row of several lines; empty lines make none.
        lines = np.count_nonzero(np.frombuffer(data, np.uint8) == ord("\n"))
        lines += text[-1:] not in ("", "\n")
        if len(table) != lines and len(table) != sum(map(bool, split_lines(text))):
            return None
        columns = table.columns
        if is_spaced and any(space in text for space in _SPACES):
            columns = list(map(pc.utf8_trim_whitespace, columns))
        return cls(list(map(TableColumn, columns)), len(table))

    def __len__(self) -> int:
        return len(self.is_long)

    def has(self, *headings: str) -> bool:
        return any(heading in self.header for heading in headings)

    def column(self, *asked: str | int, missing: str = "") -> TableColumn:
        """The first of the columns that there is, by heading or number; else missing cells."""
        for each in asked:
            index = self.header.get(each) if isinstance(each, str) else each
            if index is not None:
                return self._columns[index]
        return TableColumn.repeated(missing, len(self))

    def read(self, columns: Mapping[str, Sequence[str]]) -> Columns:
        """Columns by the headings that they may have: times (`…_ns`), or integers.

        ABSENT where a cell is of another kind, or missing.
        """
        cells = {name: self.column(*headings) for name, headings in columns.items()}
        return {
            name: column.times_ns() if name.endswith("_ns") else column.integers()
            for name, column in cells.items()
        }

    def take(self, rows: Mask) -> TableRows:
        if rows.all():
            return self
        block = TableRows([column.take(rows) for column in self._columns], int(rows.sum()))
        block.is_long, block.is_short = self.is_long[rows], self.is_short[rows]
        block.header = self.header
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


_PARSED_PER_BYTE: Final = 4
"""What parsing takes at most of the text's size: a copy, and an offset of 4 bytes per cell."""
_THREAD_BYTES: Final = 10 << 20
"""The stack of the thread that Arrow starts with the first piece, and what is allocated there."""


def csv_table(text: bytes, width: int) -> pa.Table | None:
    """The cells of CSV as text; None without a thread for Arrow, raises MemoryError without memory:
    it would end the process."""
    from pyarrow import csv as pa_csv

    # Raises; costs nothing else: the system gives pages when they are written.
    np.empty(_THREAD_BYTES + _PARSED_PER_BYTE * len(text), np.uint8)
    if lacks_threads():
        return None
    names = [str(index) for index in range(width)]
    with readied_threads():
        return pa_csv.read_csv(
            pa.BufferReader(text),
            pa_csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
            convert_options=pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        )
