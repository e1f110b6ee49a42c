"""The relations of a rocpd database, whether it has views or only suffixed tables."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote

from chopper_core.sources.trace import Losses
from chopper_core.util.errors import DataError

SQLITE_MAGIC: Final = b"SQLite format 3\x00"
DISPATCHES: Final = "rocpd_kernel_dispatch"

SQLITE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""What reading a damaged database raises: its messages can be no UTF-8 either."""

_PROCESSES: Final = "rocpd_info_process"
_CHUNK_ROWS: Final = 20_000
_MOST_CODED: Final = 64
"""Processes whose guid is compared in SQL; the database of one node has fewer."""
_SUFFIX: Final = r"_?[0-9a-fA-F][0-9a-fA-F_-]{7,}"
_FOREIGN: Final = (
    (
        frozenset(("rocpd_api", "rocpd_op")),
        "is a database of the RPD tracer (rocpd_api, rocpd_op), not of rocprofv3; profile with "
        "rocprofv3, or use the Kineto trace of the run",
    ),
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
    """An open database: rows of a relation by the schema's names, in chunks."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._names = _relation_names(path, connection)
        self._guids: list[str] | None = None

    @classmethod
    def opened(cls, path: Path) -> Relations:
        """Open a database for reading only, touching nothing beside it.

        Raises DataError if the file can't be read or is no rocpd database of schema 3.
        """
        try:
            with path.open("rb") as file:
                magic = file.read(len(SQLITE_MAGIC))
        except OSError as error:
            raise DataError(f"{path} can't be read: {error.strerror or error}.") from error
        if magic != SQLITE_MAGIC:
            raise DataError(f"{path} is no SQLite database.")
        uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
        try:
            connection = sqlite3.connect(uri, uri=True)
        except SQLITE_ERRORS as error:
            raise DataError(f"{path} can't be opened: {error}.") from error
        connection.text_factory = _text
        try:
            return cls(path, connection)
        except BaseException:
            connection.close()
            raise

    def __enter__(self) -> Relations:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._connection.close()

    def count(self, relation: str) -> int:
        """Return the number of rows."""
        return sum(
            self._connection.execute(f'SELECT COUNT(*) FROM "{name}"').fetchone()[0]
            for name in self._sources(relation)
        )

    def rows(
        self, relation: str, columns: Sequence[str], losses: Losses, coded: Sequence[str] = ()
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield rows in chunks; a column that the relation lacks is None.

        A guid among those to be coded is its place there. What lies behind damage is lost, and
        said. A relation that is missing has no rows.
        """
        for name in self._sources(relation):
            try:
                yield from self._rows_of(name, columns, coded)
            except SQLITE_ERRORS as error:
                losses.truncated = True
                losses.notes.append(f"{name} is damaged ({error}): the rest of it is lost.")

    def by_guid(
        self, relation: str, columns: Sequence[str], losses: Losses
    ) -> Iterator[tuple[str, Sequence[Sequence[Any]]]]:
        """Yield columns of rows in chunks of one guid each, which comes before them."""
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
            # To make a string of the guid takes longer than all else of a row.
            cases = " ".join(f"WHEN ? THEN {code}" for code in range(len(coded)))
            wanted[columns.index("guid")] = f'CASE "guid" {cases} ELSE "guid" END'
        else:
            coded = ()
        cursor = self._connection.execute(f'SELECT {", ".join(wanted)} FROM "{name}"', coded)
        while rows := cursor.fetchmany(_CHUNK_ROWS):
            yield rows

    def _sources(self, relation: str) -> list[str]:
        """Return the view of the relation, or the tables that such a view would unite."""
        if relation in self._names:
            return [relation]
        pattern = re.compile(re.escape(relation) + _SUFFIX)
        return [name for name in self._names if pattern.fullmatch(name)]


def why_no_rocpd(path: Path) -> str | None:
    """Return why an SQLite file is no rocpd database, as the rest of a sentence; or None."""
    try:
        with Relations.opened(path):
            return None
    except DataError as error:
        return str(error).removeprefix(f"{path} ").rstrip(".")


def _relation_names(path: Path, connection: sqlite3.Connection) -> list[str]:
    try:
        rows = connection.execute(
            "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY rowid"
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


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
