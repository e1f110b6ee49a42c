"""Columns of SQLite databases: those of rows, however the cells are read."""

from __future__ import annotations

import signal
import sqlite3
from pathlib import Path

import pytest

from chopper_core.tables.database import opened_database
from chopper_core.tables.losses import Losses
from chopper_core.util.progress import Cancelled

ROWS = 25
QUERY = "SELECT number, cell FROM t WHERE number % 3 > 0 ORDER BY number DESC"


def write(path: Path, cells: str = "number * 2", rows: int = ROWS) -> Path:
    """A table of numbers and of cells, which are an expression."""
    numbers = f"WITH n(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM n LIMIT {rows})"
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE t AS {numbers} SELECT number, {cells} AS cell FROM n")
    database.close()
    return path


@pytest.mark.parametrize("rows", [1, 4, 17, 100])
@pytest.mark.parametrize(
    "cells",
    [
        "number * 0.5",
        "iif(number % 2, NULL, 'text')",
        "iif(number % 2, x'00ff', -(1 << 62))",
        # What isn't UTF-8 can't be given to a function, be it in the first chunk or a later one.
        "iif(number = 20, CAST(x'61ff' AS TEXT), number)",
        "iif(number = 2, CAST(x'61ff' AS TEXT), number)",
    ],
)
def test_columns_are_those_of_the_rows(cells: str, rows: int, tmp_path: Path) -> None:
    losses = Losses()
    with opened_database(write(tmp_path / "a.db", cells), "a") as database:
        chunks = [*database.chunks("t", QUERY, losses, rows)]
        columns = [*database.column_chunks("t", QUERY, 2, losses, rows)]
    assert [[*zip(*chunk, strict=True)] for chunk in columns] == chunks
    assert [number for chunk in chunks for number, _ in chunk] == [
        number for number in range(ROWS, 0, -1) if number % 3
    ]
    assert losses == Losses()


@pytest.mark.parametrize("way", ["chunks", "columns"])
def test_rows_beyond_what_fits_into_the_file_are_lost(way: str, tmp_path: Path) -> None:
    losses = Losses()
    with opened_database(write(tmp_path / "a.db"), "a") as database:
        database.max_rows = 12
        if way == "chunks":
            found = [len(rows) for rows in database.chunks("t", QUERY, losses, 4)]
        else:
            given = database.column_chunks("t", QUERY, 2, losses, 4)
            found = [len(columns[0]) for columns in given]
    assert found == [4, 4, 4]
    assert losses.truncated and "more rows than fit" in losses.notes[0]


@pytest.mark.parametrize("way", ["chunks", "columns"])
def test_a_signal_ends_reading_and_is_no_damage(way: str, tmp_path: Path) -> None:
    """SQLite makes errors of its own of what is raised in a function that it calls."""
    path, losses = write(tmp_path / "a.db", rows=400_000), Losses()

    def raise_it(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raise_it)
    try:
        with (
            pytest.raises((KeyboardInterrupt, Cancelled)),
            opened_database(path, "a") as database,
        ):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            while True:
                if way == "chunks":
                    [*database.chunks("t", QUERY, losses, 100_000)]
                else:
                    [*database.column_chunks("t", QUERY, 2, losses, 100_000)]
                assert losses == Losses()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert losses == Losses()
