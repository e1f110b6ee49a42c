"""Cells of another type or magnitude than a format's, in each column or key of a file."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from chopper_core.extensions.chakra.et import EtFile, write_et
from chopper_core.extensions.chakra.schema import Attribute, Node

JSON_VALUES: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 2**31, 10**9, 2**62, 2**63, 2**64, 10**30, -(2**62), -(2**63), 1.5, 1e-320,
    1e308, -1e308, float("nan"), float("inf"), float("-inf"), "", "text", "1e308", "nan", "-inf",
    "9" * 5000, "2025-01-01T00:00:00Z", "٣", [], [1, 2], [[1], {}], {}, {"a": [1]},
)  # fmt: skip
ARROW_VALUES: Final[tuple[pa.Scalar, ...]] = (
    pa.scalar(None),
    pa.scalar(True),
    pa.scalar(0),
    pa.scalar(-1),
    pa.scalar(10**9),
    pa.scalar(2**62),
    pa.scalar(2**64 - 1, pa.uint64()),
    pa.scalar(-(2**63)),
    pa.scalar(1e308),
    pa.scalar(-1e308),
    pa.scalar(1.5, pa.float32()),
    pa.scalar(float("nan")),
    pa.scalar(float("inf")),
    pa.scalar("text"),
    pa.scalar(""),
    pa.scalar(b"\xff\x00"),
    pa.scalar([1, 2]),
    pa.scalar([[1], []]),
    pa.scalar({"a": 1}),
    pa.scalar([]),
    pa.scalar(date(2025, 1, 1)),
    pa.scalar(time(12, 30)),
    pa.scalar(timedelta(seconds=1)),
    pa.scalar(datetime(2025, 1, 1, tzinfo=UTC)),
    pa.scalar(datetime(2025, 1, 1), pa.timestamp("s")),
    pa.scalar(Decimal("1.5")),
    pa.scalar("word").cast(pa.dictionary(pa.int32(), pa.string())),
)
DATABASE_VALUES: Final = (
    None, 0, -1, 10**9, 2**62, 2**63 - 1, -(2**63), 1.5, 1e308, -1e308, float("inf"), "text", "",
    "1e308", "2025-01-01", b"\xff\x00",
)  # fmt: skip
WIRE_VALUES: Final = (
    Attribute("bool", True), Attribute("int64", -1), Attribute("int64", 2**62),
    Attribute("int64", -(2**63)), Attribute("uint64", 2**64 - 1), Attribute("int32", 2**31 - 1),
    Attribute("double", 1e308), Attribute("double", float("nan")), Attribute("float", float("inf")),
    Attribute("double", 1.5), Attribute("string", "text"), Attribute("string", ""),
    Attribute("string", "[1, 2]"), Attribute("bytes", b"\xff\x00"), Attribute("int64_list", []),
    Attribute("int64_list", [1, 2**62]), Attribute("double_list", [float("nan")]),
    Attribute("string_list", ["a", ""]), Attribute("sint64", -5), Attribute("fixed32", 2**32 - 1),
)  # fmt: skip

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


def _of_nodes(path: Path) -> Iterator[Change]:
    """Each field and attribute of each node of a Chakra trace, as one of another type."""
    with EtFile(path) as file:
        metadata, nodes = file.metadata, list(file)

    def write(place: int, node: Node) -> None:
        with path.open("wb") as out:
            write_et(out, metadata, [*nodes[:place], node, *nodes[place + 1 :]])

    for place, node in enumerate(nodes):
        for name in ("id", "type", "start_us", "duration_us"):
            for number in (0, -1, 10**9, 2**62, 2**63 - 1):
                changed = replace(node, **{name: number})
                yield f"{place} {name}: {number}", partial(write, place, changed)
        for name in node.attributes:
            for value in WIRE_VALUES:
                changed = replace(node, attributes={**node.attributes, name: value})
                yield f"{place} {name}: {value}", partial(write, place, changed)


def _of_packed(path: Path) -> Iterator[Change]:
    """The changes of what a packed file holds."""
    plain = path.with_suffix("")
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    for what, write in _BY_ENDING.get(plain.suffix, _of_csv)(plain):
        yield what, partial(_packed, write, plain, path)
    plain.unlink(missing_ok=True)


def _packed(write: Callable[[], object], plain: Path, path: Path) -> None:
    write()
    path.write_bytes(gzip.compress(plain.read_bytes(), 1))
    plain.unlink()


def _of_words(path: Path) -> Iterator[Change]:
    """Each number or word after a colon or an equals sign, or between blanks, as another one."""
    text = path.read_text()
    for word in islice(_WORD.finditer(text), _MOST_WORDS):
        for value in JSON_VALUES:
            cell = json.dumps(value, ensure_ascii=False).strip('"')
            yield (
                f"{word[0]!r} at {word.start()}: {cell[:40]}",
                partial(path.write_text, text[: word.start()] + cell + text[word.end() :]),
            )


def _of_csv(path: Path) -> Iterator[Change]:
    text = path.read_text()
    lines = enumerate(text.splitlines())
    first = next((n for n, line in lines if "," in line and line[:2] != "# "), None)
    if first is None:
        yield from _of_words(path)
        return
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
        for value in DATABASE_VALUES:
            for rows in ("", f" WHERE rowid = (SELECT min(rowid) FROM {table})"):
                query = f"UPDATE OR IGNORE {table} SET {column} = ?{rows}"
                yield f"{query} {value!r}", partial(_updated, path, query, value)


def _updated(path: Path, query: str, value: object) -> None:
    with closing(sqlite3.connect(path)) as database, suppress(sqlite3.Error):
        database.execute(query, (value,))
        database.commit()


_WORD: Final = re.compile(r"(?<=[\s:=])-?\d[\w.+-]*")
_MOST_WORDS: Final = 40
_BY_ENDING: Final = {
    ".yaml": _of_words, ".prom": _of_words, ".log": _of_words, ".txt": _of_words,
    ".parquet": _of_parquet, ".json": _of_json, ".db": _of_database, ".rpd": _of_database,
    ".sqlite": _of_database, ".et": _of_nodes, ".gz": _of_packed,
}  # fmt: skip
