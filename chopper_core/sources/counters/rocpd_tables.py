"""The relations of a rocpd database, whether it has views or only suffixed tables."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np

from chopper_core.tables.columns import GrowingColumn
from chopper_core.tables.database import SQLITE_ERRORS, Database, open_read_only, unwritten
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.tables.text import SQLITE_MAGIC
from chopper_core.util.arrays import Int64
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import stable_order

DISPATCHES: Final = "rocpd_kernel_dispatch"
_PROCESSES: Final = "rocpd_info_process"
_CHUNK_ROWS: Final = 20_000
_ROWS_OF_ANY: Final = 100_000
_BYTES_PER_ROW: Final = 8
"""The fewest that a row takes; pages that are read again and again have more rows."""
_MOST_CODED: Final = 64
"""Maximum number of guids compared in SQL; the database of one node has fewer."""
_SUFFIX: Final = r"_?[0-9a-fA-F][0-9a-fA-F_-]{7,}"
_FOREIGN: Final = (
    (
        frozenset(("CUPTI_ACTIVITY_KIND_KERNEL",)),
        "is a database of Nsight Systems, which holds no counters of AMD GPUs",
    ),
    (
        frozenset(("A", "HIP", "rocTX")),
        "is a database of rocprof v1; give its results.csv instead",
    ),
    (
        frozenset(("A", "KernelExecution")),
        "is a database of rocprof v1; give its results.csv instead",
    ),
)


class Relations:
    """An open database: chunks of rows, by the relation names of the schema."""

    def __init__(self, path: Path, connection: Database) -> None:
        self.path = path
        self._connection = connection
        self._names = _relation_names(path, connection)
        self._guids: list[str] | None = None
        self._size_bytes = path.stat().st_size
        self._max_rows = _ROWS_OF_ANY + self._size_bytes // _BYTES_PER_ROW

    @classmethod
    def opened(cls, path: Path) -> Relations:
        """Open a database read-only, without creating files next to it.

        Raises DataError if the file can't be read or isn't a rocpd database of schema 3.
        """
        try:
            with path.open("rb") as file:
                magic = file.read(len(SQLITE_MAGIC))
        except OSError as error:
            raise DataError(f"{path} can't be read: {error.strerror or error}.") from error
        if magic != SQLITE_MAGIC:
            raise DataError(f"{path} is not an SQLite database.")
        try:
            connection = open_read_only(path)
        except SQLITE_ERRORS as error:
            raise DataError(f"{path} can't be opened: {error}.") from error
        connection.text_factory = lambda value: value.decode("utf-8", "replace")
        try:
            return cls(path, connection)
        except DataError as error:
            connection.close()
            raise DataError(f"{error} {unwritten(path)}".rstrip()) from error
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def count(self, relation: str) -> int:
        """Return the number of rows, at most that which fits into the file."""
        rows = f'SELECT COUNT(*) FROM (SELECT 1 FROM "{{}}" LIMIT {self._max_rows})'
        return sum(
            self._connection.execute(rows.format(name)).fetchone()[0]
            for name in self._sources(relation)
        )

    def rows(
        self, relation: str, columns: Sequence[str], losses: Losses, coded: Sequence[str] = ()
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield rows in chunks; missing columns are None, and a missing relation has no rows.

        A guid in `coded` is replaced by its index there. Rows after damage are lost and noted.
        """
        for name in self._sources(relation):
            self._connection.renew_steps(self._size_bytes)
            try:
                yield from self._rows_of(name, columns, coded)
            except SQLITE_ERRORS as error:
                losses.truncated = True
                losses.notes.append(f"{name} is damaged ({error}); its remaining rows are lost.")

    def by_guid(
        self, relation: str, columns: Sequence[str], losses: Losses
    ) -> Iterator[tuple[str, Sequence[Sequence[Any]]]]:
        if self._guids is None:
            every = chain.from_iterable(self.rows(_PROCESSES, ("guid",), Losses()))
            self._guids = list(dict.fromkeys(guid for (guid,) in every if guid))[:_MOST_CODED]
        guids = dict(enumerate(self._guids))
        for rows in self.rows(relation, ("guid", *columns), losses, self._guids):
            codes, *values = zip(*rows, strict=True)
            if codes.count(codes[0]) == len(codes):
                yield str(guids.get(codes[0], codes[0]) or ""), values
                continue
            places: dict[str, list[int]] = {}
            for place, code in enumerate(codes):
                places.setdefault(str(guids.get(code, code) or ""), []).append(place)
            for guid, own in places.items():
                yield guid, [[column[place] for place in own] for column in values]

    def _rows_of(
        self, name: str, columns: Sequence[str], coded: Sequence[str]
    ) -> Iterator[list[tuple[Any, ...]]]:
        cursor = self._connection.execute(f'SELECT * FROM "{name}" LIMIT 0')
        there = {description[0].lower() for description in cursor.description}
        wanted = [f'"{one}"' if one in there else "NULL" for one in columns]
        if coded and "guid" in there:
            # Making a string of the guid takes longer than the rest of the row.
            cases = " ".join(f"WHEN ? THEN {code}" for code in range(len(coded)))
            wanted[columns.index("guid")] = f'CASE "guid" {cases} ELSE "guid" END'
        else:
            coded = ()
        cursor = self._connection.execute(f'SELECT {", ".join(wanted)} FROM "{name}"', coded)
        left = self._max_rows
        while rows := cursor.fetchmany(_CHUNK_ROWS):
            yield rows
            left -= len(rows)
            if left <= 0:
                raise sqlite3.DataError("it has more rows than fit into the file")

    def _sources(self, relation: str) -> list[str]:
        """Return the view of the relation, or the tables that the view would unite."""
        if relation in self._names:
            return [relation]
        pattern = re.compile(re.escape(relation) + _SUFFIX)
        return [name for name in self._names if pattern.fullmatch(name)]


def _relation_names(path: Path, connection: sqlite3.Connection) -> list[str]:
    try:
        rows = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 ORDER BY rowid"
        ).fetchall()
    except SQLITE_ERRORS as error:
        raise DataError(f"{path} is a damaged SQLite database: {error}.") from error
    names = [str(name) for (name,) in rows]
    pattern = re.compile(DISPATCHES + f"(?:{_SUFFIX})?")
    if any(pattern.fullmatch(name) for name in names):
        return names
    for tables, meaning in _FOREIGN:
        if tables <= set(names):
            raise DataError(f"{path} {meaning}.")
    raise DataError(f"{path} is an SQLite database, but not of rocprofv3: it has no {DISPATCHES}.")


class Lookup:
    """Numbers by event id, appended in any order; the first of an id is used."""

    def __init__(self) -> None:
        self._ids, self._values = GrowingColumn(np.int64), GrowingColumn(np.int64)
        self._ordered: tuple[Int64, Int64] | None = None

    def add(self, ids: Int64, values: Int64) -> None:
        self._ids.append(ids)
        self._values.append(values)
        self._ordered = None

    def of(self, ids: Int64) -> Int64:
        if self._ordered is None:
            known, values = self._ids.whole(), self._values.whole()
            if not (known[1:] > known[:-1]).all():
                order = stable_order(known)
                known, values = known[order], values[order]
            self._ordered = known, values
        known, values = self._ordered
        if not len(known):
            return np.full(len(ids), ABSENT)
        place = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        return np.where((known[place] == ids) & (ids >= 0), values[place], ABSENT)

    def values(self) -> Lookup:
        found, values = Lookup(), self._values.whole()
        found.add(values[values > 0], values[values > 0])
        return found
