"""SQLite databases of profilers, opened read-only."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import numpy as np

from chopper_core.tables.columns import int_column
from chopper_core.tables.losses import Losses
from chopper_core.util.arrays import Int64
from chopper_core.util.errors import DataError
from chopper_core.util.nearby import file_nearby
from chopper_core.util.progress import Cancelled

SQLITE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""Errors from a damaged database, whose error messages may be invalid UTF-8."""
_MAX_VALUE_BYTES: Final = 1 << 20
ROWS_PER_CHUNK: Final = 50_000
REPLACED: Final = "\N{REPLACEMENT CHARACTER}"
"""In text in place of what isn't UTF-8."""
_STEPS: Final = 1_000_000
"""Instructions of SQLite's machine between two looks at the limit."""
_STEPS_OF_ANY: Final = 200 * _STEPS
_MAX_TABLES: Final = 20_000
"""Reading a schema takes a time that grows with the square of their number."""
_STEPS_PER_TABLE: Final = 7
_STEPS_PER_BYTE: Final = 100
"""A row takes 50 bytes or more, and some hundred steps in the longest statement."""
_ROWS_OF_ANY: Final = 100_000
_BYTES_PER_ROW: Final = 8
"""The fewest that a row takes; pages that are read again and again have more rows."""
_JOURNAL_MAGIC: Final = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
_MAX_SAID: Final = 120
_TOO_MANY: Final = "it has more rows than fit into the file"
_INTERRUPTED: Final = "interrupted"
_NOT_CALLED: Final = "user-defined function raised exception"
_Chunk = TypeVar("_Chunk")


class Database(sqlite3.Connection):
    """A database whose statements take as many steps, and give as many rows, as fit its size."""

    max_rows = 0
    _max_steps = _steps_left = 0

    def limit(self, size_bytes: int) -> None:
        self.max_rows = _ROWS_OF_ANY + size_bytes // _BYTES_PER_ROW
        self._max_steps = self._steps_left = _STEPS_OF_ANY + _STEPS_PER_BYTE * size_bytes
        self.set_progress_handler(self._take_steps, _STEPS)

    def _take_steps(self) -> bool:
        """Count instructions of a statement; True interrupts it."""
        self._steps_left -= _STEPS
        return self._steps_left < 0

    def tables(self) -> list[str]:
        names = self.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 ORDER BY rowid"
        )
        return [str(name) for (name,) in names]

    def columns(self, table: str) -> list[str]:
        """The names of a table's columns; none without that table."""
        return [str(row[1]) for row in self.execute(f'PRAGMA table_info("{table}")')]

    def count(self, table: str) -> int:
        """Return the number of rows, at most that which fits into the file."""
        rows = f'SELECT count(*) FROM (SELECT 1 FROM "{table}" LIMIT {self.max_rows})'
        return int(self.execute(rows).fetchone()[0])

    def integers(
        self,
        table: str,
        query: str,
        width: int,
        losses: Losses,
        advance: Callable[[int], None] = lambda done: None,
    ) -> list[Int64]:
        """Return the columns of a query as integers; ABSENT for anything else.

        `advance` takes the number of rows so far.
        """
        parts: list[Sequence[Int64]] = []
        done = 0
        for columns in self.column_chunks(table, query, width, losses, ROWS_PER_CHUNK):
            parts.append([*map(int_column, columns)])
            done += len(columns[0])
            advance(done)
        if not parts:
            return [np.empty(0, np.int64)] * width
        return [np.concatenate(columns) for columns in zip(*parts, strict=True)]

    def chunks(
        self, table: str, query: str, losses: Losses, rows: int, values: Sequence[str] = ()
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a query in chunks; those after damage are lost and noted."""
        return self._before_damage(table, self._rows(query, rows, values), losses)

    def column_chunks(
        self,
        table: str,
        query: str,
        width: int,
        losses: Losses,
        rows: int,
        values: Sequence[str] = (),
    ) -> Iterator[list[Sequence[Any]]]:
        """Yield the columns of a query in chunks of rows, in half the time that `chunks` takes."""
        return self._before_damage(table, self._columns(query, width, rows, values), losses)

    def _before_damage(
        self, table: str, chunks: Iterator[_Chunk], losses: Losses
    ) -> Iterator[_Chunk]:
        try:
            yield from chunks
        except SQLITE_ERRORS as error:
            if _INTERRUPTED in str(error) and self._steps_left >= 0:
                raise Cancelled from error  # By a signal, which SQLite has turned into this.
            losses.truncated = True
            why = f"{table} is damaged ({_said(error)}); its remaining rows are lost."
            losses.notes.append(why)

    def _rows(
        self, query: str, rows: int, values: Sequence[str]
    ) -> Iterator[list[tuple[Any, ...]]]:
        self._steps_left, left = self._max_steps, self.max_rows
        cursor = self.execute(query, values)
        while found := cursor.fetchmany(rows):
            yield found
            left -= len(found)
            if left <= 0:
                raise sqlite3.DataError(_TOO_MANY)

    def _columns(
        self, query: str, width: int, rows: int, values: Sequence[str]
    ) -> Iterator[list[Sequence[Any]]]:
        """Have SQLite call a function with each row: fetching one takes twice the time."""
        cells, whole = list[Any](), rows * width

        def take(*row: Any) -> bool:
            nonlocal cells
            cells += row
            return len(cells) >= whole

        names = ", ".join(f"c{number}" for number in range(width))
        # The limit keeps SQLite from calling the function with rows that the query leaves out.
        taken = (
            f"WITH asked({names}) AS ({query} LIMIT -1) SELECT NULL FROM asked WHERE take({names})"
        )
        self._steps_left, done = self._max_steps, 0
        self.create_function("take", width, take)
        try:
            for _ in chain(self.execute(taken, values), (None,)):
                if not cells:
                    return
                # Python asks SQLite for a row before it gives the one before.
                found, cells = cells[:whole], cells[whole:]
                yield [found[number::width] for number in range(width)]
                done += 1
                if done * rows >= self.max_rows:
                    raise sqlite3.DataError(_TOO_MANY)
            return
        except sqlite3.DatabaseError as error:
            if _NOT_CALLED not in str(error):
                if cells:
                    yield [cells[number::width] for number in range(width)]
                raise
        at = done * rows + len(cells) // width
        failed = self.execute(f"{query} LIMIT 1 OFFSET {at}", values).fetchone() or ()
        if not any(REPLACED in str(cell) for cell in failed):
            raise Cancelled  # By a signal: only text that isn't UTF-8 is no argument.
        for chunk in islice(self._rows(query, rows, values), done, None):
            yield [*zip(*chunk, strict=True)]


@contextmanager
def opened_database(path: Path, kind: str) -> Iterator[Database]:
    """Open a database of a kind; raises DataError if it, or what is read of it, can't be read.

    No files are created next to it. Views of a foreign file may call no function that does more
    than compute, and values are as long as in true files.
    """
    name = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(name, uri=True, factory=Database)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
            database.set_progress_handler(lambda: True, _MAX_TABLES * _STEPS_PER_TABLE)
            try:
                database.execute("SELECT 1 FROM sqlite_master LIMIT 1").close()
            except sqlite3.OperationalError as error:
                if _INTERRUPTED not in str(error):
                    raise
                raise sqlite3.DataError(f"it has more than {_MAX_TABLES:,} tables") from error
            database.text_factory = lambda value: value.decode("utf-8", "replace")
            database.limit(path.stat().st_size)
            yield database
    except SQLITE_ERRORS as error:
        said = _said(error)
        raise DataError(
            f"{path} can't be read as {kind} database: {said}. Copy or write the file again."
        ) from error


def _said(error: Exception) -> str:
    """What SQLite says of a database, without the text of a damaged schema that it quotes."""
    text = str(error).partition(" - ")[0]
    return "".join(each if each.isprintable() else "?" for each in text[:_MAX_SAID])


def logs_of(path: Path) -> tuple[Path, Path]:
    """Where SQLite keeps the write-ahead log and the journal of a database."""
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-journal")


def unwritten(path: Path) -> list[str]:
    """Advice about rows in a log next to a database that SQLite would apply; [] without one.

    It could do so only by writing next to the file; whether the database has the rows of a
    write-ahead log already, the log's size doesn't tell.
    """
    found = []
    log, journal = map(file_nearby, logs_of(path))
    if log.is_file() and (size := log.stat().st_size):
        found.append(
            f"{log.name} ({size:,} bytes) may hold rows that the database lacks; they are missing "
            "here. End the program that writes it, or run: "
            f"sqlite3 {path.name} 'PRAGMA wal_checkpoint'."
        )
    with suppress(OSError), journal.open("rb") as file:
        if file.read(len(_JOURNAL_MAGIC)) == _JOURNAL_MAGIC:
            found.append(
                f"{journal.name} shows that a write to the database never ended; its rows may be "
                "incomplete or damaged. End the program that writes it, or run: "
                f"sqlite3 {path.name} .tables"
            )
    return found
