"""CSV as profilers write it: headers in any case, rows in batches, damaged rows counted.

pyarrow parses pieces of whole lines. Its streaming reader is not used: it would call back from its
own thread for each block, wait for the interpreter lock there, and read 32 blocks ahead.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.columns import Columns
from chopper_core.tables.losses import Losses
from chopper_core.tables.text import FileHead
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_core.tables.column import TableColumn

_MAX_ROW_BYTES: Final = 1 << 21
"""A longer row has lost its closing quote."""
_MAX_COMMENTS: Final = 100
"""Lines before the headings."""
_MAX_COLUMNS: Final = 10_000
"""No profiler writes more: some 2,000 are the counters of each channel of a cache."""
_MIN_BYTES_PER_COLUMN: Final = 1 << 10
"""Of a piece that is parsed: a column costs as much as some hundred of its fields."""
_PARSED_PER_BYTE: Final = 4
"""What parsing takes at most of the text's size: a copy, and an offset of 4 bytes per cell."""
_THREAD_BYTES: Final = 10 << 20
"""The stack of the thread that Arrow starts with the first piece, and what is allocated there."""
_MARK: Final = b"\x00\x01"
_EMPTY_FIELDS: Final = ',"\r\n'


def normalised(name: str) -> str:
    """Return a column name as readers look it up: `Agent-Id` becomes `agent_id`."""
    return name.strip().strip("\ufeff\"' ").lower().replace("-", "_").replace(" ", "_")


def header_of(head: FileHead) -> set[str]:
    """Return the normalised column names of a CSV file; empty for other files."""
    first = head.rows[0] if head.rows else []
    return set(map(normalised, first)) if len(first) > 1 else set()


class CsvBatch:
    """Some rows, each with as many fields as the header."""

    def __init__(self, header: Mapping[str, int], columns: Sequence[TableColumn]) -> None:
        self._header = header
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns[0])

    def has(self, *names: str) -> bool:
        return any(name in self._header for name in names)

    def column(self, *names: str, missing: str = "") -> TableColumn:
        """Return the first of the named columns that exists; if none does, one of missing cells."""
        for name in names:
            if name in self._header:
                return self._columns[self._header[name]]
        return self._columns[0].repeated(missing, len(self))

    def at(self, index: int) -> TableColumn:
        return self._columns[index]

    def read(self, columns: Mapping[str, Sequence[str]]) -> Columns:
        """Return columns by the headings that they may have: times (`…_ns`), or integers.

        ABSENT where a cell is of another kind, or missing.
        """
        cells = {name: self.column(*headings) for name, headings in columns.items()}
        return {
            name: column.times_ns() if name.endswith("_ns") else column.integers()
            for name, column in cells.items()
        }


class CsvFile:
    """One pass over a CSV file: its header, then its rows.

    Rows of another length than the header are counted as unreadable. Raises DataError if the file
    can't be read or is empty.
    """

    def __init__(self, source: ByteSource, losses: Losses) -> None:
        self._source = source
        self._losses = losses
        self._rest = b""
        self.comments: list[str] = []
        """The lines before the headings that begin with `#`."""
        self._line = self._next_line()
        while len(self.comments) < _MAX_COMMENTS and (
            self._line.startswith(b"#") or (not self._line.strip() and self._rest)
        ):
            self.comments.append(self._line.decode("utf-8", "replace"))
            self._line = self._next_line()
        self._first = _cells(self._line)
        if not any(self._first):
            raise DataError(f"{source.path} is empty.")
        if len(self._first) > _MAX_COLUMNS:
            columns = f"{len(self._first):,} columns"
            raise DataError(f"{source.path} has {columns}, more than any profiler writes.")
        source.piece_bytes = max(source.piece_bytes, _MIN_BYTES_PER_COLUMN * len(self._first))
        self.columns = [name.strip().strip("\ufeff") for name in self._first]
        self.header: dict[str, int] = {}
        for index, name in enumerate(self.columns):
            self.header.setdefault(normalised(name), index)

    def batches(self, progress: Progress = silent) -> Iterator[CsvBatch]:
        from chopper_core.tables.column import TableColumn

        step = f"read {self._source.path.name}"
        lines, longest = b"", max(_MAX_ROW_BYTES, 2 * self._source.piece_bytes)
        while (more := self._whole_lines()) or lines:
            lines += more
            columns = self._parsed(lines, is_last=not more or len(lines) > longest)
            if columns is None:
                continue
            lines = b""
            if len(columns[0]):
                yield CsvBatch(self.header, [TableColumn(column) for column in columns])
            progress(step, self._source.file_position, self._source.size_bytes)
        if self._source.problem:
            self._losses.truncated = True
            self._losses.notes.append(f"{self._source.problem}.")
        progress(step, self._source.size_bytes, self._source.size_bytes)

    def _next_line(self) -> bytes:
        while b"\n" not in self._rest and (piece := self._source.read()):
            self._rest += piece
            if len(self._rest) > _MAX_ROW_BYTES:
                most = f"{_MAX_ROW_BYTES >> 20} MiB"
                raise DataError(f"{self._source.path} has headings of more than {most}.")
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _whole_lines(self) -> bytes:
        """Return the next lines in UTF-8, without a truncated last one; empty at the end."""
        parts = [self._rest]
        waiting = len(self._rest)
        while piece := self._source.read():
            parts.append(piece)
            if b"\n" in piece:
                break
            waiting += len(piece)
            if waiting > _MAX_ROW_BYTES:
                whole, mark, _ = b"".join(parts).rpartition(b"\n")
                # The commas make what remains of the row one of too many fields, which is skipped.
                parts, waiting = [whole + mark, b"," * len(self._first)], 0
        lines, mark, self._rest = b"".join(parts).rpartition(b"\n")
        lines += mark
        if not piece:
            lines += self._last_line()
        return lines if lines.isascii() else lines.decode("utf-8", "replace").encode()

    def _last_line(self) -> bytes:
        line, self._rest = self._rest, b""
        if line and (len(_cells(line)) != len(self._first) or self._source.problem):
            self._losses.truncated = True
            self._losses.notes.append("The file ends in the middle of a row.")
            self._losses.unreadable_events += 1
            return b""
        return line

    def _parsed(self, lines: bytes, *, is_last: bool) -> list[pa.StringArray] | None:
        """Return the columns of whole lines; None if a quoted field continues after them."""
        import pyarrow as pa
        import pyarrow.compute as pc

        width, bad = len(self._first), 0

        def skip(row: Any) -> str:
            nonlocal bad
            bad += bool(row.text.strip(_EMPTY_FIELDS))
            return "skip"

        # The parser returns this row of marks only if no quote is open before it.
        text = lines if is_last else b"%s%s\n" % (lines, b",".join([_MARK] * width))
        try:
            table = csv_table(text, width, newlines_in_values=True, invalid_row_handler=skip)
        except pa.ArrowInvalid:
            names = map(str, range(width))
            table, bad = pa.table(dict.fromkeys(names, pa.array([], pa.string()))), 1
        if not is_last:
            if not len(table) or table.column(0)[-1].as_py() != _MARK.decode():
                return None
            table = table.slice(0, len(table) - 1)
        self._losses.unreadable_events += bad
        columns = [column.combine_chunks() for column in table.columns]
        if self._line not in lines:
            return columns
        # Concatenated files repeat the headings.
        same = [pc.equal(each, name) for each, name in zip(columns, self._first, strict=True)]
        is_row = pc.invert(reduce(pc.and_, same))
        return [column.filter(is_row) for column in columns]


def csv_table(text: bytes, width: int, **options: Any) -> pa.Table:
    """The cells of CSV as text; `options` are those of pyarrow's parser.

    Raises MemoryError where there is no room for them: Arrow would end the process.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv as pa_csv

    # Raises; costs nothing else: the system gives pages when they are written.
    np.empty(_THREAD_BYTES + _PARSED_PER_BYTE * len(text), np.uint8)
    names = [str(index) for index in range(width)]
    return pa_csv.read_csv(
        pa.BufferReader(text),
        pa_csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
        pa_csv.ParseOptions(**options),
        pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    )


def _cells(line: bytes) -> list[str]:
    try:
        return next(csv.reader([line.decode("utf-8", "replace").strip("\r\n")]), [])
    except csv.Error:
        return []
