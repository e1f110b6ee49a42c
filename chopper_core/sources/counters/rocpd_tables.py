"""The relations of a rocpd database, whether it has views or only suffixed tables, and its events.

Only events of dispatches, of their launches and of roctx are kept, as numbers; a database has
millions of others.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np

from chopper_core.tables.bytes import open_read_only, unwritten
from chopper_core.tables.columns import GrowingColumn, int_column
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.util.arrays import Index, Int64, Mask
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import distinct, stable_order

SQLITE_MAGIC: Final = b"SQLite format 3\x00"
DISPATCHES: Final = "rocpd_kernel_dispatch"

_NOTHING: Final = np.empty(0, np.int64)

SQLITE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""Errors from a damaged database, whose error messages may be invalid UTF-8."""

_PROCESSES: Final = "rocpd_info_process"
_CHUNK_ROWS: Final = 20_000
_STEPS: Final = 1_000_000
_MAX_STEPS: Final = 1_000 * _STEPS
"""Instructions of SQLite for a chunk of rows."""
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

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._names = _relation_names(path, connection)
        self._guids: list[str] | None = None
        self._steps = 0
        self._max_rows = _ROWS_OF_ANY + path.stat().st_size // _BYTES_PER_ROW
        connection.set_progress_handler(self._take_steps, _STEPS)

    def _take_steps(self) -> bool:
        """Count instructions of a statement; True interrupts it."""
        self._steps += _STEPS
        return self._steps > _MAX_STEPS

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
        connection.text_factory = _text
        try:
            return cls(path, connection)
        except DataError as error:
            connection.close()
            raise DataError(f"{error} {unwritten(path)}".rstrip()) from error
        except BaseException:
            connection.close()
            raise

    def __enter__(self) -> Relations:
        return self

    def __exit__(self, *_error: object) -> None:
        self._connection.close()

    def count(self, relation: str) -> int:
        """Return the number of rows, at most that which fits into the file."""
        self._steps = 0
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
            try:
                yield from self._rows_of(name, columns, coded)
            except SQLITE_ERRORS as error:
                losses.truncated = True
                losses.notes.append(f"{name} is damaged ({error}); its remaining rows are lost.")

    def by_guid(
        self, relation: str, columns: Sequence[str], losses: Losses
    ) -> Iterator[tuple[str, Sequence[Sequence[Any]]]]:
        """Yield chunks as a guid and its columns."""
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
        self._steps, left = 0, self._max_rows
        while rows := cursor.fetchmany(_CHUNK_ROWS):
            yield rows
            self._steps, left = 0, left - len(rows)
            if left <= 0:
                raise sqlite3.DataError("it has more rows than fit into the file")

    def _sources(self, relation: str) -> list[str]:
        """Return the view of the relation, or the tables that the view would unite."""
        if relation in self._names:
            return [relation]
        pattern = re.compile(re.escape(relation) + _SUFFIX)
        return [name for name in self._names if pattern.fullmatch(name)]


def why_no_rocpd(path: Path) -> str | None:
    """Return why an SQLite file isn't a rocpd database, as the rest of a sentence; or None."""
    try:
        with Relations.opened(path):
            return None
    except DataError as error:
        return str(error).removeprefix(f"{path} ").rstrip(".")


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


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def integers(values: Sequence[Any]) -> Int64:
    """Return the values as int64; ABSENT for anything but integers."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return int_column([ABSENT if value is None else value for value in values])


class Lookup:
    """Numbers by event id, appended in any order; the first of an id is used."""

    def __init__(self) -> None:
        self._ids, self._values = GrowingColumn(np.int64), GrowingColumn(np.int64)
        self._ordered: tuple[Int64, Int64] | None = None

    def add(self, ids: Int64, values: Int64) -> None:
        """Append numbers."""
        self._ids.append(ids)
        self._values.append(values)
        self._ordered = None

    def of(self, ids: Int64) -> Int64:
        """Return the number of each id, or ABSENT."""
        if self._ordered is None:
            known, values = self._ids.whole(), self._values.whole()
            if not (known[1:] > known[:-1]).all():
                order = stable_order(known)
                known, values = known[order], values[order]
            self._ordered = known, values
        known, values = self._ordered
        place, found = _places(ids, known)
        return np.where(found, values[place], ABSENT) if len(known) else np.full_like(ids, ABSENT)

    def distinct_values(self) -> Int64:
        """Return the numbers above 0, in order, each once."""
        values = distinct(self._values.whole())
        return values[values > 0]


class Events:
    """The events that are needed, by guid."""

    def __init__(
        self, relations: Relations, is_marker: Callable[[str, Any], bool], losses: Losses
    ) -> None:
        """Find them; `is_marker` returns whether a guid's category belongs to roctx."""
        self.stacks: dict[str, Lookup] = {}
        self.marks: dict[str, set[int]] = {}
        """The events of roctx."""
        self._is_marker = is_marker
        dispatched = _dispatched(relations)
        columns = ("id", "category_id", "stack_id", "correlation_id")
        for guid, (ids, categories, stacks, correlations) in relations.by_guid(
            "rocpd_event", columns, losses
        ):
            events = integers(ids)
            marks = self._marks(guid, categories)
            self.marks.setdefault(guid, set()).update(events[marks].tolist())
            matters = marks | _is_in(events, dispatched.get(guid, _NOTHING))
            self._add(guid, events, _first(stacks, correlations), matters)
        if not any(self.marks.values()):
            return  # Launches are needed only to find the roctx range of a dispatch.
        wanted = {guid: stacks.distinct_values() for guid, stacks in self.stacks.items()}
        # Losses are noted already. Launches share the stack ids of their dispatches.
        for guid, (ids, _, stacks, correlations) in relations.by_guid(
            "rocpd_event", columns, Losses()
        ):
            events, numbers = integers(ids), _first(stacks, correlations)
            known = _is_in(events, dispatched.get(guid, _NOTHING))
            self._add(guid, events, numbers, _is_in(numbers, wanted.get(guid, _NOTHING)) & ~known)

    def _marks(self, guid: str, categories: Sequence[Any]) -> Mask:
        is_marker = {one: self._is_marker(guid, one) for one in set(categories)}
        return np.array([is_marker[one] for one in categories], np.bool_)

    def _add(self, guid: str, events: Int64, stacks: Int64, which: Mask) -> None:
        self.stacks.setdefault(guid, Lookup()).add(events[which], stacks[which])


def _dispatched(relations: Relations) -> Mapping[str, Int64]:
    """Return the events of dispatches of each guid, in order."""
    found: dict[str, list[Int64]] = {}
    for guid, (events,) in relations.by_guid(DISPATCHES, ("event_id",), Losses()):
        found.setdefault(guid, []).append(integers(events))
    return {guid: distinct(np.concatenate(parts)) for guid, parts in found.items()}


def _first(stacks: Sequence[Any], correlations: Sequence[Any]) -> Int64:
    found, other = integers(stacks), integers(correlations)
    return np.where(found > 0, found, other)


def _is_in(ids: Int64, ordered: Int64) -> Mask:
    return _places(ids, ordered)[1]


def _places(ids: Int64, ordered: Int64) -> tuple[Index, Mask]:
    if not len(ordered):
        return np.zeros(len(ids), np.intp), np.zeros(len(ids), np.bool_)
    place = np.minimum(np.searchsorted(ordered, ids), len(ordered) - 1)
    return place, (ordered[place] == ids) & (ids >= 0)
