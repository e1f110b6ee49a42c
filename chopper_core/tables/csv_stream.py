"""CSV as profilers write it: headers in any case, rows in batches, damaged rows counted.

pyarrow parses blocks of whole lines. Its streaming reader is not used: it would call back from its
own thread for each block, wait for the interpreter lock there, and read 32 blocks ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from chopper_core.tables.losses import Losses
from chopper_core.tables.text import MAX_LINE, FileHead, FileText, csv_cells, split_lines
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

if TYPE_CHECKING:
    from chopper_core.tables.column import TableRows

_MAX_COMMENTS: Final = 100
"""Lines before the headings."""
MAX_COLUMNS: Final = 10_000
"""No profiler writes more: some 2,000 are the counters of each channel of a cache."""


def normalised(name: str) -> str:
    """Return a column name as readers look it up: `Agent-Id` becomes `agent_id`."""
    return name.strip().strip("\ufeff\"' ").lower().replace("-", "_").replace(" ", "_")


def header_of(head: FileHead) -> set[str]:
    """Return the normalised column names of a CSV file; empty for other files."""
    first = head.rows[0] if head.rows else []
    return set(map(normalised, first)) if len(first) > 1 else set()


def refuse_width(path: Path, width: int, what: str) -> None:
    if width > MAX_COLUMNS:
        raise DataError(
            f"{path} has {width:,} {what}, more than any profiler writes; give a file with at most "
            f"{MAX_COLUMNS:,} of them."
        )


class CsvFile:
    """One pass over a CSV file: its header, then its rows.

    Rows of another length than the header are counted as unreadable. Raises DataError if the file
    can't be read or is empty.
    """

    def __init__(self, path: Path, losses: Losses) -> None:
        self._text = FileText(path, losses)
        self._blocks = self._text.blocks()
        lines = iter(split_lines(next(filter(None, self._blocks), "")))
        self.comments: list[str] = []
        """The lines before the headings that begin with `#`."""
        self._line = next(lines, "")
        while len(self.comments) < _MAX_COMMENTS and (
            self._line[:1] == "#" or self._line.isspace()
        ):
            self.comments.append(self._line)
            self._line = next(lines, "")
        if self._text.too_long:
            raise DataError(f"{path} has headings of more than {MAX_LINE >> 10} KiB.")
        self._rest = "\n".join(lines)
        self._first = csv_cells(self._line)
        if not any(self._first):
            raise DataError(f"{path} is empty.")
        refuse_width(path, len(self._first), "columns")
        self.columns = [name.strip("\ufeff") for name in self._first]
        self.header: dict[str, int] = {}
        for index, name in enumerate(self.columns):
            self.header.setdefault(normalised(name), index)

    def batches(self, progress: Progress = silent) -> Iterator[TableRows]:
        from chopper_core.tables.column import TableRows

        text, width = self._text, len(self._first)
        for block in chain([self._rest], self._blocks):
            rows = TableRows.of_csv(block, width)
            if rows is None:
                lines = filter(str.strip, split_lines(block))
                rows = TableRows.of_lines([*lines], width, csv_cells)
            is_whole = ~(rows.is_long | rows.is_short)
            text.losses.unreadable_events += len(rows) - int(is_whole.sum())
            if self._line in block:
                # Concatenated files repeat the headings.
                found = (rows.column(at).is_equal(name) for at, name in enumerate(self._first))
                is_whole &= ~np.logical_and.reduce([*found])
            if is_whole.any():
                rows = rows.take(is_whole)
                rows.header = self.header
                yield rows
            progress(f"read {text.path.name}", text.position, text.size_bytes)
