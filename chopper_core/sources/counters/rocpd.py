"""rocpd: the SQLite database of rocprofv3 (schema 3), by its tables, suffixed or not.

Ids are unique within one process only, so every look-up is by (guid, id). It is done here and not
in SQL: the views `kernels` and `counters_collection` leave out dispatches without a region, event
or thread. Values are sums over the instances of a counter.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np

from chopper_core.model.hardware import Agent, CounterInfo, counter_info
from chopper_core.model.operator_inputs import json_in
from chopper_core.sources import rpd
from chopper_core.sources.counters.references import gpus_by_id
from chopper_core.sources.counters.tables import DispatchTable
from chopper_core.sources.dispatches import DispatchRun
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.tables.columns import (
    Columns,
    GrowingColumn,
    codes_of,
    float_column,
    int_column,
)
from chopper_core.tables.database import Database, opened_database, unwritten
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.tables.text import SQLITE_MAGIC, FileHead
from chopper_core.util.arrays import Int64
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import stable_order
from chopper_core.util.progress import Progress, silent

NAME: Final = "rocprofv3 (rocpd)"
FILES: Final = "the SQLite database, schema 3, of one process or merged"
EXAMPLE: Final = "rocprofv3 --pmc SQ_WAVES --kernel-trace -f rocpd -- python train.py"
SUFFIXES: Final = ()

FORMAT: Final = "rocpd"
DISPATCHES: Final = "rocpd_kernel_dispatch"
_CHUNK_ROWS: Final = 20_000
_MOST_PROCESSES: Final = 1_000
_SUFFIX: Final = r"_?[0-9a-fA-F][0-9a-fA-F_-]{7,}"
_FOREIGN: Final = (
    (
        frozenset(("CUPTI_ACTIVITY_KIND_KERNEL",)),
        "is a database of Nsight Systems that lacks its StringIds or the start of its session",
    ),
    (
        frozenset(("TARGET_INFO_SESSION_START_TIME",)),
        "is a database of Nsight Systems without GPU activity; record with --trace=cuda,nvtx",
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
_DISPATCH_COLUMNS: Final = {
    "start_ns": "start",
    "end_ns": "end",
    "dispatch_id": "dispatch_id",
    "queue": "queue_id",
    "event": "event_id",
    "lds": "group_segment_size",
    "grid_x": "grid_size_x",
    "grid_y": "grid_size_y",
    "grid_z": "grid_size_z",
    "workgroup_x": "workgroup_size_x",
    "workgroup_y": "workgroup_size_y",
    "workgroup_z": "workgroup_size_z",
}
_OTHER_COLUMNS: Final = ("agent_id", "kernel_id", "pid", "tid", "region_name_id")
_AGENT_COLUMNS: Final = (
    "id", "type", "absolute_index", "logical_index", "type_index", "name", "product_name",
    "model_name", "extdata",
)  # fmt: skip
_REGION_COLUMNS: Final = ("tid", "start", "end", "name_id", "event_id")
_MARKER: Final = "MARKER"
_REGISTERS: Final = {"vgprs": "arch_vgpr_count", "accumulators": "accum_vgpr_count"}
_LOOKED_UP: Final[Mapping[str, tuple[str, ...]]] = {
    "strings": ("rocpd_string", "string"),
    "kernels": ("rocpd_info_kernel_symbol", "display_name", "kernel_name", *_REGISTERS.values()),
    "pids": ("rocpd_info_process", "pid"),
    "threads": ("rocpd_info_thread", "tid"),
    "counters": ("rocpd_info_pmc", "name", "units", "description"),
    "agents": ("rocpd_info_agent", *_AGENT_COLUMNS),
}
"""What ids refer to: the relation and its columns."""


def recognise(head: FileHead) -> Recognised | Unusable | None:
    if head.magic != SQLITE_MAGIC or rpd.recognise(head):
        return None
    try:
        with opened_database(head.path, "a rocpd") as database:
            _check(head.path, database)
            return Recognised(FORMAT)
    except DataError as error:
        return Unusable(str(error).removeprefix(f"{head.path} ").rstrip("."))


def read(path: Path, progress: Progress = silent) -> list[DispatchRun]:
    """Read the processes of a database, one run each.

    Raises DataError if the file isn't a rocpd database, can't be read or has no dispatches.
    """
    with opened_database(path, "a rocpd") as database:
        _check(path, database)
        runs = _Reader(path, database, progress).runs()
    if not runs:
        raise DataError(
            f"{path} has no dispatches; rocprofv3 records them with --kernel-trace or --pmc."
        )
    return runs


def _check(path: Path, database: Database) -> None:
    """Raise DataError for a database that isn't rocpd of schema 3."""
    names = database.tables()
    if _of_relation(DISPATCHES, names):
        return
    for tables, meaning in _FOREIGN:
        if tables <= set(names):
            raise DataError(f"{path} {meaning}.")
    advice = " ".join(["", *unwritten(path)])
    raise DataError(
        f"{path} is an SQLite database, but not of rocprofv3: it has no {DISPATCHES}.{advice}"
    )


def _of_relation(relation: str, names: Sequence[str]) -> list[str]:
    """The table of a relation, or those with a suffix that a view would unite."""
    pattern = re.compile(re.escape(relation) + _SUFFIX)
    return [relation] if relation in names else [*filter(pattern.fullmatch, names)]


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


class _RocpdProcess:
    """What a database has of one guid."""

    def __init__(self) -> None:
        self.known: dict[str, dict[Any, Sequence[Any]]] = {name: {} for name in _LOOKED_UP}
        """Values by their ids, of each of `_LOOKED_UP`."""
        self.infos: dict[str, CounterInfo] = {}
        self.rows = Lookup()
        """The row of the dispatch of each event."""
        self.marks: dict[int, str] = {}
        """The events of roctx and their texts; '' where only the region has a name."""
        self.stacks = Lookup()
        """What an event shares with the launch of its dispatch."""

    def of(self, name: str, number: Any) -> Any:
        return self.known[name].get(number, (None,))[0]

    @cached_property
    def table(self) -> DispatchTable:
        return DispatchTable(Losses(), self.gpus.values(), sums_instances=True)

    @cached_property
    def gpus(self) -> dict[Any, Agent]:
        agents = {}
        for number, values in self.known["agents"].items():
            fields = dict(zip(_AGENT_COLUMNS, values, strict=True))
            given = {name: value for name, value in fields.items() if value is not None}
            fields = {**_object(fields["extdata"]), **given}
            if "node_id" not in fields and "absolute_index" not in fields:
                fields["node_id"] = number
            if number is not None:
                agents[number] = fields
        return gpus_by_id(agents)

    def add_dispatches(self, given: Mapping[str, Sequence[Any]]) -> None:
        table = self.table

        def kernel(kernel_id: Any) -> int:
            names = self.known["kernels"].get(kernel_id, ())[:2]
            return table.kernel_code(str(next(filter(None, names), f"kernel {kernel_id}")))

        def region(name_id: Any) -> int:
            text = self.of("strings", name_id)
            return table.names[str(text)] if text else ABSENT

        columns = {name: int_column(given[column]) for name, column in _DISPATCH_COLUMNS.items()}
        columns["gpu"] = codes_of(given["agent_id"], partial(table.agents.of_id, self.gpus))
        columns["name"] = codes_of(given["kernel_id"], kernel)
        none = (None,) * 4
        symbols = [self.known["kernels"].get(one, none) for one in given["kernel_id"]]
        for place, name in enumerate(_REGISTERS, start=2):
            columns[name] = int_column([values[place] for values in symbols])
        columns["process"] = int_column([self.of("pids", one) for one in given["pid"]])
        columns["thread"] = int_column([self.of("threads", one) for one in given["tid"]])
        columns["correlation"] = columns["event"]  # Explained once the events are read.
        columns["region"] = codes_of(given["region_name_id"], region)
        columns["region"][columns["region"] == columns["name"]] = ABSENT
        self.rows.add(columns["event"], table.add_dispatches(columns))

    def add_regions(self, given: Sequence[Sequence[Any]]) -> None:
        table = self.table
        tids, starts, ends, name_ids, event_ids = given
        columns: Columns = {
            "thread": int_column([self.of("threads", one) for one in tids]),
            "start_ns": int_column(starts),
            "end_ns": int_column(ends),
            "correlation": self.stacks.of(int_column(event_ids)),
        }
        is_marker = np.array([event in self.marks for event in event_ids], np.bool_)
        marks = {name: column[is_marker] for name, column in columns.items()}
        marks["name"] = int_column(
            [
                table.names[self.marks[event] or str(self.of("strings", name) or "")]
                for event, name in zip(event_ids, name_ids, strict=True)
                if event in self.marks
            ]
        )
        table.host.add_ranges(marks)
        table.host.add_calls({name: column[~is_marker] for name, column in columns.items()})

    def counter(self, counter_id: Any) -> int:
        name, units, description = self.known["counters"].get(counter_id, (None, None, None))
        name = str(name or f"counter {counter_id}")
        self.infos[name] = counter_info(
            name, unit=str(units or ""), description=str(description or "")
        )
        return self.table.counter_names[name]


class _Reader:
    """One pass over the relations that are needed.

    Only events of dispatches, of their launches and of roctx are kept, as numbers; a database has
    millions of others.
    """

    def __init__(self, path: Path, database: Database, progress: Progress) -> None:
        self._path = path
        self._database = database
        self._tables = database.tables()
        self._progress = progress
        self._losses = Losses(notes=unwritten(path))
        self._processes: defaultdict[str, _RocpdProcess] = defaultdict(_RocpdProcess)

    def runs(self) -> list[DispatchRun]:
        for name, (relation, *columns) in _LOOKED_UP.items():
            for process, (ids, *values) in self._rows(relation, ("id", *columns)):
                process.known[name].update(zip(ids, zip(*values, strict=True), strict=True))
        profiled = self._read_dispatches()
        self._read_events()
        for process in profiled:
            process.table.explain("correlation", process.stacks.of)
        if any(process.marks for process in self._processes.values()):
            for process, given in self._rows("rocpd_region", _REGION_COLUMNS):
                if process in profiled:
                    process.add_regions(given)
        for process in self._processes.values():
            process.stacks = Lookup()
        self._read_values()
        runs: list[DispatchRun] = []
        for process in profiled:
            process.rows = Lookup()
            runs.append(process.table.finish(self._path, FORMAT, process.infos))
        if runs:
            losses, folder = runs[0].losses, "/".join(self._path.parts[-2:])
            losses.truncated |= self._losses.truncated
            losses.notes += [f"{folder}: {note}" for note in self._losses.notes]
        return runs

    def _rows(
        self, relation: str, columns: Sequence[str], *, is_again: bool = False
    ) -> Iterator[tuple[_RocpdProcess, Sequence[Sequence[Any]]]]:
        """Yield chunks as a process and its columns; losses of a relation are noted once.

        Missing columns are None, and a missing relation has no rows. Rows after damage are lost.
        """
        losses = Losses() if is_again else self._losses
        for name in _of_relation(relation, self._tables):
            there = {column.lower() for column in self._database.columns(name)}
            wanted = ", ".join(f'"{one}"' if one in there else "NULL" for one in columns)
            # Making a string of a guid takes longer than the rest of its row.
            guid = '"guid"' if "guid" in there else "NULL"
            each = f'SELECT DISTINCT {guid} FROM "{name}" LIMIT {_MOST_PROCESSES}'
            guids = [*chain.from_iterable(self._database.chunks(name, each, losses, _CHUNK_ROWS))]
            for (one,) in guids:
                query = f'SELECT {wanted} FROM "{name}" WHERE {guid} IS ?'
                for rows in self._database.chunks(name, query, losses, _CHUNK_ROWS, (one,)):
                    yield self._processes[str(one or "")], list(zip(*rows, strict=True))

    def _read_events(self) -> None:
        columns = ("id", "category_id", "stack_id", "correlation_id")
        for process, (ids, categories, *numbers) in self._rows("rocpd_event", columns):
            events = int_column(ids)
            marks = codes_of(categories, partial(_is_marker, process)) > 0
            process.marks |= dict.fromkeys(events[marks].tolist(), "")
            matters = marks | (process.rows.of(events) >= 0)
            process.stacks.add(events[matters], _first(*numbers)[matters])
        if not any(process.marks for process in self._processes.values()):
            return  # Launches are needed only to find the roctx range of a dispatch.
        for process, (ids, texts) in self._rows("rocpd_event", ("id", "extdata"), is_again=True):
            for event, extdata in zip(ids, texts, strict=True):
                if event in process.marks:
                    process.marks[event] = str(_object(extdata).get("message") or "")
        # Launches share the stack ids of their dispatches.
        wanted = {id(process): process.stacks.values() for process in self._processes.values()}
        for process, (ids, _, *numbers) in self._rows("rocpd_event", columns, is_again=True):
            events, stacks = int_column(ids), _first(*numbers)
            is_launch = wanted[id(process)].of(stacks) >= 0
            is_launch &= process.rows.of(events) < 0
            process.stacks.add(events[is_launch], stacks[is_launch])

    def _read_dispatches(self) -> list[_RocpdProcess]:
        """Return the processes in the order of their first dispatches."""
        found: list[_RocpdProcess] = []
        columns = (*_DISPATCH_COLUMNS.values(), *_OTHER_COLUMNS)
        tables = _of_relation(DISPATCHES, self._tables)
        total, done = sum(map(self._database.count, tables)), 0
        for process, given in self._rows(DISPATCHES, columns):
            if process not in found:
                found.append(process)
            process.add_dispatches(dict(zip(columns, given, strict=True)))
            done += len(given[0])
            self._progress(f"read {self._path.name}", done, total)
        return found

    def _read_values(self) -> None:
        stray = 0
        columns = ("event_id", "pmc_id", "value")
        for process, (events, counters, values) in self._rows("rocpd_pmc_event", columns):
            row = process.rows.of(int_column(events))
            known = row >= 0
            stray += int((~known).sum())
            codes = codes_of(counters, process.counter)
            process.table.add_values(row[known], codes[known], float_column(values)[known])
        self._losses.note(stray, "counter value", "of no dispatch")


def _is_marker(process: _RocpdProcess, category: Any) -> bool:
    return str(process.of("strings", category) or "").startswith(_MARKER)


def _first(stacks: Sequence[Any], correlations: Sequence[Any]) -> Int64:
    found, other = int_column(stacks), int_column(correlations)
    return np.where(found > 0, found, other)


def _object(text: Any) -> dict[str, Any]:
    value = json_in(str(text))
    return value if isinstance(value, dict) else {}
