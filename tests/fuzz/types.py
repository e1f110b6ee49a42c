"""Cells of another type or magnitude than a format's, in each column or key of a file."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

JSON_VALUES: Final[tuple[Any, ...]] = (
    None, True, -1, 2**31, 10**9, 2**62, 2**64, 10**30, 1.5, 1e308, float("nan"), float("inf"),
    "", "text", "1e308", "9" * 5000, [], [1, 2], [[1], {}], {}, {"a": [1]},
)  # fmt: skip
ARROW_VALUES: Final[tuple[pa.Scalar, ...]] = (
    pa.scalar(None),
    pa.scalar(True),
    pa.scalar(-1),
    pa.scalar(10**9),
    pa.scalar(2**62),
    pa.scalar(2**64 - 1, pa.uint64()),
    pa.scalar(1e308),
    pa.scalar(float("nan")),
    pa.scalar(float("inf")),
    pa.scalar("text"),
    pa.scalar(""),
    pa.scalar(b"\xff\x00"),
    pa.scalar([1, 2]),
    pa.scalar([[1], []]),
    pa.scalar({"a": 1}),
    pa.scalar(date(2025, 1, 1)),
    pa.scalar(datetime(2025, 1, 1, tzinfo=UTC)),
    pa.scalar(Decimal("1.5")),
    pa.scalar("word").cast(pa.dictionary(pa.int32(), pa.string())),
)

Change = tuple[str, Callable[[], object]]
"""What is changed, and a function that writes the file so."""


def changes(path: Path) -> Iterator[Change]:
    """Each change of a file, to be written before the next one is taken: without the others."""
    original = path.read_bytes()
    for what, write in _BY_ENDING.get(path.suffix, _of_csv)(path):
        yield what, partial(_afresh, path, original, write)


def _afresh(path: Path, original: bytes, write: Callable[[], object]) -> None:
    path.write_bytes(original)
    write()


def _of_parquet(path: Path) -> Iterator[Change]:
    table = pq.read_table(path)
    for at, name in enumerate(table.column_names):
        for value in ARROW_VALUES:
            for rows in (len(table), 1):
                column = pa.array([value.as_py()] * rows + [None] * (len(table) - rows), value.type)
                changed = table.set_column(at, name, column)
                yield (
                    f"{name}: {value!r} in {rows}",
                    lambda table=changed: pq.write_table(table, path),
                )


def _of_json(path: Path) -> Iterator[Change]:
    document = json.loads(path.read_text())
    places = list(_places(document))
    for holder, key, what in places:
        before = holder[key]
        for value in JSON_VALUES:
            holder[key] = value
            yield (
                f"{what}: {str(value)[:40]!r}",
                lambda: path.write_text(json.dumps(document)),
            )
        holder[key] = before


def _places(value: Any, what: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Each key of nested objects; in a list the first member of each kind stands for all."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value))
    kinds = set()
    for key, each in items:
        kind = (_kind(each),) if isinstance(value, list) else (key,)
        if kind in kinds:
            continue
        kinds.add(kind)
        yield value, key, f"{what}/{key}"
        if isinstance(each, dict | list):
            yield from _places(each, f"{what}/{key}")


def _kind(value: Any) -> object:
    if not isinstance(value, dict):
        return type(value)
    args = value.get("args")
    return *value, value.get("cat"), *(args if isinstance(args, dict) else ())


def _of_csv(path: Path) -> Iterator[Change]:
    text = path.read_text()
    first = next(n for n, line in enumerate(text.splitlines()) if "," in line and line[:2] != "# ")
    before = text.splitlines()[:first]
    headings, *rows = csv.reader(text.splitlines()[first:])
    for at, name in enumerate(headings):
        for value in JSON_VALUES:
            for count in (len(rows), 1):
                changed = [
                    [*row[:at], json.dumps(value).strip('"'), *row[at + 1 :]] if n < count else row
                    for n, row in enumerate(rows)
                ]
                out = io.StringIO()
                csv.writer(out, lineterminator="\n").writerows([headings, *changed])
                new = "\n".join([*before, out.getvalue()])
                yield (
                    f"{name}: {str(value)[:40]!r} in {count}",
                    lambda new=new: path.write_text(new),
                )


def _of_database(path: Path) -> Iterator[Change]:
    with closing(sqlite3.connect(path)) as database:
        tables = [
            row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        columns = [
            (table, row[1])
            for table in tables
            for row in database.execute(f"PRAGMA table_info({table})")
        ]
    for table, column in columns:
        for value in (None, -1, 10**9, 2**62, 1.5, 1e308, "text", "", b"\xff\x00"):
            for rows in ("", f" WHERE rowid = (SELECT min(rowid) FROM {table})"):
                query = f"UPDATE OR IGNORE {table} SET {column} = ?{rows}"
                yield f"{query} {value!r}", partial(_updated, path, query, value)


def _updated(path: Path, query: str, value: object) -> None:
    with closing(sqlite3.connect(path)) as database, suppress(sqlite3.Error):
        database.execute(query, (value,))
        database.commit()


_BY_ENDING: Final = {
    ".parquet": _of_parquet, ".json": _of_json, ".db": _of_database, ".rpd": _of_database,
    ".sqlite": _of_database,
}  # fmt: skip
