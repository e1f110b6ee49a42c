"""SQLite databases of profilers, opened read-only."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import quote

SQLITE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""Errors from a damaged database, whose error messages may be invalid UTF-8."""
_MAX_VALUE_BYTES: Final = 1 << 20
_STEPS: Final = 1_000_000
"""Instructions of SQLite's machine between two looks at the limit."""
_STEPS_OF_ANY: Final = 200 * _STEPS
_MAX_TABLES: Final = 20_000
"""Reading a schema takes a time that grows with the square of their number."""
_STEPS_PER_TABLE: Final = 7
_STEPS_PER_BYTE: Final = 100
"""A row takes 50 bytes or more, and some hundred steps in the longest statement."""


class Database(sqlite3.Connection):
    """A database whose statements take a number of steps that fits the size of the file."""

    steps_left = 0

    def renew_steps(self, size_bytes: int) -> None:
        """Let the statements that follow take as many steps as a file of so many bytes needs."""
        self.steps_left = _STEPS_OF_ANY + _STEPS_PER_BYTE * size_bytes

    def take_steps(self) -> bool:
        """Count instructions of a statement; True interrupts it."""
        self.steps_left -= _STEPS
        return self.steps_left < 0


def open_read_only(path: Path) -> Database:
    """Open a database without creating files next to it; raises sqlite3.Error.

    Views of a foreign file may call no function that does more than compute, and values are as long
    as in true files.
    """
    name = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"
    connection = sqlite3.connect(name, uri=True, factory=Database)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
    connection.set_progress_handler(lambda: True, _MAX_TABLES * _STEPS_PER_TABLE)
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").close()
    except sqlite3.Error as error:
        connection.close()
        if "interrupted" in str(error):
            raise sqlite3.DataError(f"it has more than {_MAX_TABLES:,} tables") from error
        raise
    connection.renew_steps(path.stat().st_size)
    connection.set_progress_handler(connection.take_steps, _STEPS)
    return connection


def unwritten(path: Path) -> str:
    """Advice about rows in a write-ahead log next to a database; '' without a log.

    SQLite could read them only by writing next to the file; whether the database has them already,
    the log's size doesn't tell.
    """
    log = path.with_name(f"{path.name}-wal")
    try:
        size = log.stat().st_size
    except OSError:
        return ""
    if not size:
        return ""
    return (
        f"{log.name} ({size:,} bytes) may hold rows that the database lacks; they are missing "
        "here. End the program that writes it, or run: "
        f"sqlite3 {path.name} 'PRAGMA wal_checkpoint'."
    )
