"""SQLite files of foreign tools: opened to be read, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    import sqlite3


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open a database without creating files beside it; raises sqlite3.Error.

    Views of a foreign file may call no function that does more than compute.
    """
    # Who reads traces in JSON imports this module too.
    import sqlite3

    connection = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True
    )
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def unwritten(path: Path) -> str:
    """What to do about rows in a write-ahead log beside a database; '' without a log.

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
