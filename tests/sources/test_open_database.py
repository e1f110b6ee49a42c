"""Databases that a program still writes: rows in the log beside them are named as missing."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.render.info import info_text
from chopper_core.tables.database import opened_database
from chopper_core.util.errors import DataError
from tests.sources.counters.counter_writers import minimal_rocpd
from tests.sources.test_rpd import write as write_rpd
from tests.wording import Wording


def while_written(path: Path, statement: str) -> Path:
    """A copy of the database and of the log that a writer has open beside it."""
    folder = path.parent / "copied"
    folder.mkdir()
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute(statement)
    writer.commit()
    for each in path.parent.glob(f"{path.name}*"):
        shutil.copy(each, folder)
    writer.close()
    return folder / path.name


@pytest.mark.parametrize(
    ("name", "write", "statement"),
    [
        ("trace.rpd", write_rpd, "DELETE FROM rocpd_op WHERE id = 1"),
        ("a.db", lambda path: minimal_rocpd(path, 1), "CREATE TABLE more (id)"),
    ],
)
def test_what_lies_in_the_log_is_said_to_be_missing(
    name: str, write: Callable[[Path], Path], statement: str, tmp_path: Path, wording: Wording
) -> None:
    path = while_written(write(tmp_path / name), statement)
    before = sorted(each.name for each in path.parent.iterdir())
    text = info_text(open_run(str(path.parent)), 10_000)
    assert f"{name}-wal (" in text and "missing here" in text
    wording.among(text, f"{name}-wal: ")
    assert sorted(each.name for each in path.parent.iterdir()) == before, "nothing is written"
    path.with_name(f"{name}-wal").write_bytes(b"")
    assert "missing here" not in info_text(open_run(str(path.parent)))


def test_a_write_that_never_ended_is_named(tmp_path: Path, wording: Wording) -> None:
    """A journal that SQLite would roll back; one that it keeps for later begins with zeros."""
    path = minimal_rocpd(tmp_path / "a.db", 1)
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = PERSIST")
    writer.execute("CREATE TABLE more (id)")
    writer.commit()
    journal = tmp_path / "a.db-journal"
    assert journal.stat().st_size
    assert "never ended" not in info_text(open_run(str(path)), 10_000)
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("INSERT INTO more SELECT zeroblob(90000) FROM rocpd_pmc_event LIMIT 9")
    assert journal.read_bytes().strip(b"\0")
    text = info_text(open_run(str(path)), 10_000)
    writer.rollback()
    writer.close()
    assert "a.db-journal shows that a write to the database never ended" in text
    wording.among(text, "a.db-journal ")


def test_a_damaged_schema_is_refused_in_one_line(tmp_path: Path) -> None:
    path = minimal_rocpd(tmp_path / "a.db", 1)
    path.write_bytes(path.read_bytes().replace(b"(id INTEGER PRIMARY", b"(`d\nINTEGER PRIMARY"))
    with pytest.raises(DataError) as refused:
        open_run(str(path))
    text = str(refused.value)
    assert "malformed database schema" in text and text.endswith("Copy or write the file again.")
    assert text.isprintable() and len(text) < len(str(path)) + 220


@pytest.mark.parametrize(
    ("statement", "refusal"),
    [
        ("CREATE TABLE more (id)", "readonly"),
        ("PRAGMA writable_schema = 1; DELETE FROM sqlite_master", "one statement|readonly"),
        ("SELECT load_extension('/lib/evil.so')", "not authorized"),
        ("SELECT zeroblob(1100000)", "too big"),
        (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT count(*) FROM n",
            "interrupted",
        ),
    ],
)
def test_statements_only_read_and_end(
    statement: str, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chopper_core.tables.database._STEPS_OF_ANY", 10_000_000)
    path = tmp_path / "a.db"
    sqlite3.connect(path).execute("CREATE TABLE t (id)").connection.close()
    with opened_database(path, "a rocpd") as connection:
        with pytest.raises((sqlite3.Error, sqlite3.Warning), match=refusal):
            connection.execute(statement).fetchall()
        assert connection.execute("PRAGMA trusted_schema").fetchone() == (0,)
        assert connection.execute("SELECT zeroblob(1000000)").fetchone()


def test_a_database_that_is_in_its_log_alone_is_refused_with_the_way(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("CREATE TABLE rocpd_string (id)")
    writer.commit()
    folder = tmp_path / "copied"
    folder.mkdir()
    for each in tmp_path.glob("a.db*"):
        shutil.copy(each, folder)
    writer.close()
    with pytest.raises(DataError, match="wal_checkpoint"):
        open_run(str(folder / "a.db"))
