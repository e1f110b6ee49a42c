"""CSV as profilers write it: headers in any case, rows in pieces, damaged rows counted.

Pieces without anything odd are parsed by pyarrow, in which a row costs little; all others row by
row, as Python's reader takes them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pa_compute
import pyarrow.csv as pa_csv

from chopper_core.sources.shared.bytes import ByteSource
from chopper_core.sources.trace import ABSENT, Losses
from chopper_core.util.arrays import Float64, Int64
from chopper_core.util.arrow_files import numbers_of, texts_of
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

_INT64_LIMIT: Final = 2**63
_QUOTE: Final = ord('"')
_BEFORE_OPENING: Final = np.isin(np.arange(256), list(b',\n"'))
_AFTER_CLOSING: Final = np.isin(np.arange(256), list(b',\r\n"'))


def normalised(name: str) -> str:
    """Return the name of a column as the readers ask for it: `Agent-Id` is `agent_id`."""
    return name.strip().strip("\ufeff\"' ").lower().replace("-", "_").replace(" ", "_")


class CsvBatch:
    """Some rows, as long as the header each."""

    def __init__(self, header: dict[str, int], columns: Sequence[pa.StringArray]) -> None:
        self._header = header
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns[0])

    def has(self, *names: str) -> bool:
        """Whether the file has one of the named columns."""
        return self._named(*names) is not None

    def text(self, *names: str) -> Sequence[str] | None:
        """Return the first of the named columns that the file has."""
        column = self._named(*names)
        return None if column is None else column.to_pylist()

    def at(self, index: int) -> Sequence[str]:
        """Return the column at this place."""
        return self._columns[index].to_pylist()  # type: ignore[no-any-return]

    def coded(self, *names: str, missing: str = "") -> tuple[Sequence[str], Int64]:
        """Return the different texts of a column, and which of them each row has."""
        column = self._named(*names)
        return ([missing], np.zeros(len(self), np.int64)) if column is None else _coded(column)

    def integers(self, *names: str) -> Int64:
        """Return the first of the named columns that the file has; ABSENT for what is no number."""
        column = self._named(*names)
        if column is None:
            return np.full(len(self), ABSENT, np.int64)
        numbers = _plain_integers(column)
        if numbers is None:
            texts, codes = _coded(column)
            numbers = integers(texts)[codes]
        return numbers

    def times_ns(self, *names: str) -> Int64:
        """Return a column of times; ABSENT for what is no time to the nanosecond."""
        column = self._named(*names)
        if column is None:
            return np.full(len(self), ABSENT, np.int64)
        numbers = _plain_integers(column)
        return times_ns(column.to_pylist()) if numbers is None else numbers

    def floats(self, *names: str) -> Float64:
        """Return a column of numbers; NaN for what is none."""
        column = self._named(*names)
        return np.full(len(self), np.nan) if column is None else _floats(column)

    def floats_at(self, index: int) -> Float64:
        """Return the numbers of the column at this place; NaN for what is none."""
        return _floats(self._columns[index])

    def _named(self, *names: str) -> pa.StringArray | None:
        found = next((name for name in names if name in self._header), None)
        return None if found is None else self._columns[self._header[found]]


class CsvFile:
    """One pass over a CSV file: its header, then its rows.

    Rows of another length than the header, and rows that the CSV reader refuses, are counted as
    unreadable. Raises DataError if the file can't be read or is empty.
    """

    def __init__(self, source: ByteSource, losses: Losses) -> None:
        self._source = source
        self._losses = losses
        self._lines = b""
        """Whole lines, of which those before the position are done with."""
        self._position = 0
        self._rest: list[bytes] = []
        self._is_read = False
        self._ends_in_line = True
        self._reader = csv.reader(self._next_lines())
        first = self._next_row() or []
        if not any(first):
            raise DataError(f"{source.path} is empty.")
        self.columns = [name.strip().strip("\ufeff") for name in first]
        self.header: dict[str, int] = {}
        for index, name in enumerate(self.columns):
            self.header.setdefault(normalised(name), index)
        self._first = first

    def batches(self, progress: Progress = silent) -> Iterator[CsvBatch]:
        """Yield the rows, some at a time."""
        step = f"read {self._source.path.name}"
        while self._has_lines():
            columns = self._plain_columns() or self._odd_columns()
            if columns:
                yield CsvBatch(self.header, columns)
            progress(step, self._source.file_position, self._source.size_bytes)
        if self._source.problem:
            self._losses.truncated = True
            self._losses.notes.append(f"{self._source.problem}.")
        progress(step, self._source.size_bytes, self._source.size_bytes)

    def _plain_columns(self) -> list[pa.StringArray] | None:
        """Return the columns of the lines that were read, if nothing about them is odd."""
        lines = self._lines[self._position :] if self._position else self._lines
        if not self._ends_in_line or not _is_plain(lines):
            return None
        names = [str(index) for index in range(len(self._first))]
        try:
            table = pa_csv.read_csv(
                pa.BufferReader(lines),
                pa_csv.ReadOptions(
                    use_threads=False, block_size=len(lines) + 1, column_names=names
                ),
                convert_options=pa_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string())
                ),
            )
        except pa.ArrowInvalid:
            return None
        columns = [column.combine_chunks() for column in table.columns]
        is_header = pa_compute.any(pa_compute.equal(columns[0], texts_of(self._first[:1])[0]))
        if len(table) != lines.count(b"\n") or is_header.as_py():
            return None
        self._position = len(self._lines)
        return columns

    def _odd_columns(self) -> list[pa.StringArray]:
        """Return the columns of the lines that were read, row by row; [] if no row is whole.

        A quoted field with line feeds may lead on to the next lines.
        """
        width = len(self._first)
        rows: list[list[str]] = []
        last: list[str] = []
        while self._position < len(self._lines) and (row := self._next_row()) is not None:
            last = row
            if len(row) == width:
                if row != self._first:
                    rows.append(row)
            elif any(row):
                self._losses.unreadable_events += 1
        if not self._ends_in_line and (len(last) != width or self._source.problem):
            self._losses.truncated = True
            self._losses.notes.append("The file ends in the middle of a row.")
            if len(last) == width and rows:
                rows.pop()
                self._losses.unreadable_events += 1
        return [texts_of(column) for column in zip(*rows, strict=True)]

    def _next_row(self) -> list[str] | None:
        while True:
            try:
                return next(self._reader)
            except StopIteration:
                return None
            except csv.Error:
                self._losses.unreadable_events += 1

    def _next_lines(self) -> Iterator[str]:
        """Yield lines that end at a line feed and nowhere else: names hold odd characters."""
        while self._has_lines():
            end = self._lines.find(b"\n", self._position) + 1 or len(self._lines)
            line = self._lines[self._position : end]
            self._position = end
            yield line.decode("utf-8", "replace")

    def _has_lines(self) -> bool:
        """Whether there are lines that aren't done with; they are read where they are needed."""
        while self._position == len(self._lines) and not self._is_read:
            piece = self._source.read()
            begun, end, rest = piece.rpartition(b"\n")
            if end:
                self._lines, self._rest = b"".join([*self._rest, begun, end]), [rest]
                self._position = 0
            elif piece:
                self._rest.append(piece)
            else:
                self._is_read = True
                self._lines, self._rest = b"".join(self._rest), []
                self._position = 0
                self._ends_in_line = not self._lines
        return self._position < len(self._lines)


def _is_plain(lines: bytes) -> bool:
    """Whether any two readers agree on lines: what is quoted is quoted from end to end."""
    if lines.count(b"\r") != lines.count(b"\r\n"):
        return False
    text = np.frombuffer(lines, np.uint8)
    quotes = np.flatnonzero(text == _QUOTE)
    if len(quotes) % 2:
        return False
    # The lines end in a line feed, which also stands before their first byte here.
    before, after = text[quotes[::2] - 1], text[quotes[1::2] + 1]
    return bool(_BEFORE_OPENING[before].all() and _AFTER_CLOSING[after].all())


def _coded(column: pa.StringArray) -> tuple[Sequence[str], Int64]:
    coded = column.dictionary_encode()
    return coded.dictionary.to_pylist(), numbers_of(coded.indices).astype(np.int64)


def _plain_integers(column: pa.StringArray) -> Int64 | None:
    """The numbers of a column of nothing else, none of them negative; they may be written 0x7."""
    try:
        found: Int64 = numbers_of(column.cast(pa.int64()))
    except pa.ArrowInvalid:
        return None
    return found if (found >= 0).all() else None


def _floats(column: pa.StringArray) -> Float64:
    try:
        found: Float64 = numbers_of(column.cast(pa.float64()))
    except pa.ArrowInvalid:
        return floats(column.to_pylist())
    return found if np.isfinite(found).all() else np.where(np.isfinite(found), found, np.nan)


def integers(values: Sequence[str]) -> Int64:
    """Return the values as int64, also those written like `7.0` or `0x7`; ABSENT for others."""
    try:
        return np.fromiter(map(int, values), np.int64, len(values))
    except (ValueError, OverflowError):
        return np.fromiter((_integer(value, 99) for value in values), np.int64, len(values))


def times_ns(values: Sequence[str]) -> Int64:
    """Return times in ns as int64; ABSENT for what isn't one, as `8.1097E+14`, which is rounded."""
    try:
        found = np.fromiter(map(int, values), np.int64, len(values))
    except (ValueError, OverflowError):
        found = np.fromiter((_integer(value, 0) for value in values), np.int64, len(values))
    return np.where(found >= 0, found, ABSENT)


def floats(values: Sequence[str]) -> Float64:
    """Return the values as float64; NaN for what is no number."""
    try:
        found = np.fromiter(map(float, values), np.float64, len(values))
    except ValueError:
        found = np.fromiter(map(_float, values), np.float64, len(values))
    return np.where(np.isfinite(found), found, np.nan)


def _integer(text: str, most_exponent: int) -> int:
    try:
        exact = Decimal(text.strip())
    except InvalidOperation:
        try:
            number = int(text.strip(), 0)
        except ValueError:
            return ABSENT
        return number if abs(number) < _INT64_LIMIT else ABSENT
    exponent = exact.as_tuple().exponent
    if not isinstance(exponent, int) or not -99 <= exponent <= most_exponent:
        return ABSENT
    if exact.adjusted() > 18 or exact != exact.to_integral_value():
        return ABSENT
    number = int(exact)
    return number if abs(number) < _INT64_LIMIT else ABSENT


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
