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
    """A sentence about rows that lie in a write-ahead log beside a database; '' if there are none.

    SQLite could read them only by writing beside the file.
    """
    log = path.with_name(f"{path.name}-wal")
    try:
        size = log.stat().st_size
    except OSError:
        return ""
    if not size:
        return ""
    return (
        f"{log.name} holds {size:,} bytes that aren't in the database yet and are missing here; "
        f"end the program that writes it, or run: sqlite3 {path.name} 'PRAGMA wal_checkpoint'."
    )
