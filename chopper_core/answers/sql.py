"""SQL over the tables of a run, by DuckDB, without a copy, files, extensions or a network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from threading import Timer
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from chopper_core.answers.extras import extra
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.render.arrow import about_field, field_of
from chopper_core.render.tables import TABLE_NAMES, run_table, table_rows
from chopper_core.util.errors import DataError, UsageError
from chopper_core.util.grouping import grouped_by
from chopper_core.views.shared.run_notes import run_notes

if TYPE_CHECKING:
    import pyarrow as pa

MAX_S: Final = 60.0
"""Seconds of a query without another limit."""
_MEMORY: Final = "4GB"
"""Of what DuckDB allocates next to the tables."""
_SETTINGS: Final = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
    "memory_limit": _MEMORY,
    "temp_directory": "",
}
_ALLOWED: Final = ("SELECT", "EXPLAIN")
_CATALOGUE: Final = re.compile(r"\b(show|information_schema|duckdb_\w+|pg_\w+|pragma_\w+)\b", re.I)


class SqlAnswer(Struct, frozen=True, eq=False):
    """The rows that a query gives."""

    run: str
    query: str
    rows: pa.Table
    """The first rows, up to the limit; the metadata of a field has its unit where that is known."""
    total: int
    """The number of all rows."""
    notes: tuple[str, ...]


def sql(run: Run, query: str, *, limit: int | None = None, seconds: float = MAX_S) -> SqlAnswer:
    """The answer to one SELECT over the tables of a run; with a `limit`, its first rows.

    Raises UsageError for a query that is no single SELECT, that DuckDB refuses, or that reads
    anything but the tables, and where DuckDB isn't installed; DataError where it takes longer than
    so many seconds or too much memory.
    """
    duckdb = extra("duckdb", "SQL", "sql")
    import pyarrow as pa

    session = duckdb.connect(":memory:", config=_SETTINGS)
    try:
        with _sentences(duckdb, seconds), _stopped_after(session, seconds):
            _check(session, query)
            tables = {name: table_rows(run, name) for name in _tables_in(query)}
            for name, rows in tables.items():
                session.register(name, rows)
            session.execute("SET lock_configuration = true")
            reader = pa.RecordBatchReader.from_stream(session.sql(query))
            batches, total = _first_rows(reader, limit)
            found = pa.Table.from_batches(batches, reader.schema)
    finally:
        session.close()
    notes = run_notes(run, View(run.name, cut=True))
    return SqlAnswer(run.name, query, _with_units(found, tables.values()), total, tuple(notes))


def _tables_in(query: str) -> list[str]:
    """The tables that a query may read; all where it asks what there is."""
    if _CATALOGUE.search(query):
        return list(TABLE_NAMES)
    words = {word.lower() for word in re.findall(r"\w+", query)}
    return [name for name in TABLE_NAMES if name in words]


def _check(session: Any, query: str) -> None:
    statements = session.extract_statements(query)
    kinds = [str(each.type).rpartition(".")[2] for each in statements]
    if len(kinds) != 1:
        raise UsageError(f"one SELECT at a time, not {len(kinds)} statements")
    if kinds[0] not in _ALLOWED:
        raise UsageError(f"only SELECT is possible, not {kinds[0]}: the run is read-only")


def _first_rows(
    reader: pa.RecordBatchReader, limit: int | None
) -> tuple[list[pa.RecordBatch], int]:
    batches, total = [], 0
    for batch in reader:
        room = len(batch) if limit is None else max(limit - total, 0)
        if room:
            batches.append(batch.slice(0, room))
        total += len(batch)
    return batches, total


@contextmanager
def _stopped_after(session: Any, seconds: float) -> Iterator[None]:
    timer = Timer(seconds, session.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _sentences(duckdb: Any, seconds: float) -> Iterator[None]:
    """DuckDB's errors in a sentence each."""
    try:
        yield
    except duckdb.InterruptException as error:
        raise DataError(f"the query was stopped after {seconds:g} s; ask for less") from error
    except duckdb.OutOfMemoryException as error:
        raise DataError(f"the query needs more than {_MEMORY} of memory; ask for less") from error
    except duckdb.PermissionException as error:
        raise UsageError("SQL reads the tables of the run alone: no files, no settings") from error
    except duckdb.Error as error:
        what = " ".join(str(error).partition("\n\nLINE ")[0].split())
        hint = f"; the tables are {', '.join(TABLE_NAMES)}" if "Table with name" in what else ""
        raise UsageError(f"SQL: {what}{hint}") from error


def _with_units(found: pa.Table, tables: Any) -> pa.Table:
    """The rows with the units of columns that have the name of a table's, and of names in ns."""
    import pyarrow as pa

    fields = chain.from_iterable(each.schema for each in tables)
    by_name = grouped_by(fields, lambda field: str(field.name))
    made = []
    for field in found.schema:
        units = {about_field(each) for each in by_name.get(field.name, ())}
        unit, definition = units.pop() if len(units) == 1 else ("", "")
        unit = unit or ("ns" if field.name.endswith("_ns") else "")
        made.append(field_of(field.name, field.type, unit, definition))
    return pa.Table.from_arrays(found.columns, schema=pa.schema(made))


def described_tables(run: Run, names: Sequence[str] = TABLE_NAMES) -> list[dict[str, Any]]:
    """What the tables of a run are, with the unit and definition of each column."""
    found = []
    for name in names:
        # The rows of no GPU have the columns of all.
        schema = table_rows(run, name, () if run_table(name).is_large else None).schema
        columns = [
            {"name": field.name, "type": str(field.type), "unit": about_field(field)[0],
             "definition": about_field(field)[1]}
            for field in schema
        ]  # fmt: skip
        found.append({"table": name, "rows": run_table(name).about, "columns": columns})
    return found
