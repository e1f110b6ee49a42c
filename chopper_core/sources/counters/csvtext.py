"""CSV as profilers write it: headers in any case, rows in pieces, damaged rows counted."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Final

import numpy as np

from chopper_core.errors import DataError
from chopper_core.progress import Progress, silent
from chopper_core.sources.bytesource import ByteSource
from chopper_core.sources.dispatches import Float64, Int64
from chopper_core.sources.trace import ABSENT, Losses

_BATCH_FIELDS: Final = 400_000
_INT64_LIMIT: Final = 2**63


def normalised(name: str) -> str:
    """Return the name of a column as the readers ask for it: `Agent-Id` is `agent_id`."""
    return name.strip().strip("\ufeff\"' ").lower().replace("-", "_").replace(" ", "_")


class CsvBatch:
    """Some rows, as long as the header each."""

    def __init__(self, header: dict[str, int], rows: Sequence[Sequence[str]]) -> None:
        self._header = header
        self._columns = list(zip(*rows, strict=True))
        self._count = len(rows)

    def __len__(self) -> int:
        return self._count

    def text(self, *names: str) -> Sequence[str] | None:
        """Return the first of the named columns that the file has."""
        for name in names:
            if name in self._header:
                return self._columns[self._header[name]]
        return None

    def at(self, index: int) -> Sequence[str]:
        """Return the column at this place."""
        return self._columns[index]

    def integers(self, *names: str) -> Int64:
        """Return the first of the named columns that the file has; ABSENT for what is no number."""
        values = self.text(*names)
        return np.full(self._count, ABSENT, np.int64) if values is None else integers(values)

    def times_ns(self, *names: str) -> Int64:
        """Return a column of times; ABSENT for what is no time to the nanosecond."""
        values = self.text(*names)
        return np.full(self._count, ABSENT, np.int64) if values is None else times_ns(values)


class CsvFile:
    """One pass over a CSV file: its header, then its rows.

    Rows of another length than the header, and rows that the CSV reader refuses, are counted as
    unreadable. Raises DataError if the file can't be read or is empty.
    """

    def __init__(self, source: ByteSource, losses: Losses) -> None:
        self._source = source
        self._losses = losses
        self._ends_in_line = True
        self._reader = csv.reader(self._lines())
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
        width = len(self._first)
        most_rows = max(1, _BATCH_FIELDS // width)
        step = f"read {self._source.path.name}"
        rows: list[list[str]] = []
        last: list[str] = []
        while (row := self._next_row()) is not None:
            last = row
            if len(row) == width:
                if row != self._first:
                    rows.append(row)
            elif any(row):
                self._losses.unreadable_events += 1
            if len(rows) >= most_rows:
                progress(step, self._source.file_position, self._source.size_bytes)
                yield CsvBatch(self.header, rows)
                rows = []
        if not self._ends_in_line and (len(last) != width or self._source.problem):
            self._losses.truncated = True
            self._losses.notes.append("The file ends in the middle of a row.")
            if len(last) == width and rows:
                rows.pop()
                self._losses.unreadable_events += 1
        if self._source.problem:
            self._losses.truncated = True
            self._losses.notes.append(f"{self._source.problem}.")
        if rows:
            yield CsvBatch(self.header, rows)
        progress(step, self._source.size_bytes, self._source.size_bytes)

    def _next_row(self) -> list[str] | None:
        while True:
            try:
                return next(self._reader)
            except StopIteration:
                return None
            except csv.Error:
                self._losses.unreadable_events += 1

    def _lines(self) -> Iterator[str]:
        """Yield lines that end at a line feed and nowhere else: names hold odd characters."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        rest = ""
        while piece := self._source.read():
            lines = (rest + decoder.decode(piece)).split("\n")
            rest = lines.pop()
            for line in lines:
                yield line + "\n"
        rest += decoder.decode(b"", final=True)
        if rest:
            self._ends_in_line = False
            yield rest


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
