"""SQLite files of foreign tools: opened to be read, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

if TYPE_CHECKING:
    import sqlite3

_MAX_VALUE_BYTES: Final = 1 << 20
_STEPS: Final = 1_000_000
"""Instructions of SQLite's machine between two looks at the limit."""
_STEPS_OF_ANY: Final = 200 * _STEPS
_STEPS_PER_BYTE: Final = 100
"""A row takes 50 bytes or more, and some hundred steps in the longest statement."""


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open a database without creating files beside it; raises sqlite3.Error.

    Views of a foreign file may call no function that does more than compute, values are as long as
    in true files, and a statement takes a number of steps that fits the size of the file.
    """
    # Who reads traces in JSON imports this module too.
    import sqlite3

    connection = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True
    )
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
    left = _STEPS_OF_ANY + _STEPS_PER_BYTE * path.stat().st_size

    def take_steps() -> bool:
        nonlocal left
        left -= _STEPS
        return left < 0

    connection.set_progress_handler(take_steps, _STEPS)
    return connection


def unwritten(path: Path) -> str:
    """Advice about rows in a write-ahead log beside a database; '' without a log.

    SQLite could read them only by writing beside the file; whether the database has them already,
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
