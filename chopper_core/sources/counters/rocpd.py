"""rocpd: the SQLite database of rocprofv3 (schemas 3 and 4), by its tables, suffixed or not.

Ids are unique within one process only, so every look-up is by (guid, id). It is done here and not
in SQL: the views `kernels` and `counters_collection` leave out dispatches without a region, event
or thread. Values are sums over the instances of a counter. Since schema 3.0.3 a value with a sample
is of a moment, not of its dispatch; in schema 4 a row has a track in place of agent, queue and
thread, and its times are in a table of their own.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property, partial
from itertools import chain, compress
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.hardware import Agent, CounterInfo, counter_info, hardware_of_agent
from chopper_core.model.operator_inputs import json_in
from chopper_core.sources import rpd
from chopper_core.sources.counters.references import gpus_by_id
from chopper_core.sources.counters.tables import DispatchTable, copy_name
from chopper_core.sources.dispatches import Dispatches, DispatchRun, SampledCounter
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.sources.trace import SyncKind, Syncs
from chopper_core.tables.columns import (
    Columns,
    GrowingColumn,
    GrowingColumns,
    codes_of,
    cut_name,
    float_column,
    int_column,
)
from chopper_core.tables.database import REPLACED, Database, opened_database, unwritten
from chopper_core.tables.losses import ABSENT, Losses, number_of
from chopper_core.tables.text import SQLITE_MAGIC, FileHead
from chopper_core.tables.unread import not_used
from chopper_core.util.arrays import Float64, Int64, Mask
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import (
    combined,
    distinct,
    isin,
    median_of,
    numbered_rows,
    places_by,
    ranked,
    run_mask,
    run_sizes,
    stable_order,
    sums_of,
)
from chopper_core.util.progress import Progress, silent

NAME: Final = "rocprofv3 (rocpd)"
FILES: Final = "the SQLite database, schemas 3.0 and 4, of one process or merged"
EXAMPLE: Final = "rocprofv3 --pmc SQ_WAVES --kernel-trace -f rocpd -- python train.py"
SUFFIXES: Final = ()

FORMAT: Final = "rocpd"
DISPATCHES: Final = "rocpd_kernel_dispatch"
_CHUNK_ROWS: Final = 4_000
_CHUNK_VALUES: Final = 20_000
"""Values of counters, which are of several dispatches then."""
_MOST_PROCESSES: Final = 1_000
_NEWEST: Final = {3: (3, 0, 5), 4: (4, 1, 0)}
"""The newest schema of each major version that this reader was checked against."""
_MAX_VERSION: Final = 40
"""Characters of a version that are read."""
_FIRST_REPLAYS: Final = (3, 0, 2)
"""Before, no profiler that writes these databases replayed kernels."""
_READ: Final = (DISPATCHES, *(f"rocpd_{name}" for name in (
    "metadata", "string", "event", "region", "pmc_event", "sample", "track", "timestamp",
    "hip_event", "graph_launch", "memory_copy",
)))  # fmt: skip
"""The relations that something is read from, besides those of `_INFO`."""
_INFO: Final = "rocpd_info_"
_OF_TRACK: Final = frozenset(("nid", "pid", "tid", "agent_id", "queue_id", "stream_id"))
"""Columns that are those of a row's track, in schema 4."""
_DIMENSIONS: Final = ("xcc", "shader_engine", "instance")
_GAP: Final = 8
"""Of so many usual distances between samples, the counter was off."""
_LZ4: Final = b"\x04\x22\x4d\x18"
_MOST_UNPACKED_BYTES: Final = 1 << 20
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
_KEYS: Final = frozenset(("id", "guid", "nid"))
"""Columns by which rows are found."""
_TIMES: Final = ("start", "end", "timestamp")
_REGION_COLUMNS: Final = ("tid", "start", "end", "name_id", "event_id")
_MARKER: Final = "MARKER"
_CALLS: Final = "HIP"
_COPY_COLUMNS: Final = {
    "start_ns": "start", "end_ns": "end", "queue": "queue_id", "bytes": "size", "event": "event_id",
}  # fmt: skip
_COPY_ENDS: Final = ("dst_agent_id", "src_agent_id", "name_id")
_REGISTERS: Final = {"vgprs": "arch_vgpr_count", "accumulators": "accum_vgpr_count"}
_LOOKED_UP: Final[Mapping[str, tuple[str, ...]]] = {
    "strings": ("rocpd_string", "string"),
    "kernels": ("rocpd_info_kernel_symbol", "display_name", "kernel_name", *_REGISTERS.values()),
    "hosts": ("rocpd_info_node", "hostname"),
    "pids": ("rocpd_info_process", "pid"),
    "threads": ("rocpd_info_thread", "tid"),
    "counters": ("rocpd_info_pmc", "name", "units", "description", "agent_id"),
    "categories": ("rocpd_info_category", "name"),
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
    """Raise DataError for a database that isn't rocpd of a known schema."""
    names = database.tables()
    if _of_relation(DISPATCHES, names):
        if (version := _schema(database)) and version[0] not in _NEWEST:
            known = " and ".join(map(str, _NEWEST))
            raise DataError(
                f"{path} is a rocpd database of schema {_dotted(version)}, which is unknown: "
                f"schemas {known} are read; write it with the rocprofv3 of ROCm 10 or before."
            )
        return
    for tables, meaning in _FOREIGN:
        if tables <= set(names):
            raise DataError(f"{path} {meaning}.")
    advice = " ".join(["", *unwritten(path)])
    raise DataError(
        f"{path} is an SQLite database, but not of rocprofv3: it has no {DISPATCHES}.{advice}"
    )


def _schema(database: Database) -> tuple[int, ...]:
    """The newest version of the schema that the database names; () without one."""
    found: list[tuple[int, ...]] = [()]
    for name in _of_relation("rocpd_metadata", database.tables()):
        query = f"SELECT value FROM \"{name}\" WHERE tag = 'schema_version'"
        for (value,) in chain.from_iterable(database.chunks(name, query, Losses(), 64)):
            numbers = re.findall(r"\d+", str(value)[:_MAX_VERSION])[:3]
            found.append(tuple(map(int, numbers)))
    return max(found)


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


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
        self.replays: dict[int, int] = {}
        """Code of a counter → how often each dispatch was replayed to measure it."""
        self.samples = GrowingColumns(_SAMPLE_COLUMNS)
        self.barriers = GrowingColumns(dict.fromkeys(_BARRIER_COLUMNS, np.int64))
        self.copied = GrowingColumn(np.int64)
        """The events of copies."""

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
        columns["name"] = codes_of(name_ids, self._call_name)
        table.host.add_calls({name: column[~is_marker] for name, column in columns.items()})

    def _call_name(self, name_id: Any) -> int:
        return self.table.call_name(str(self.of("strings", name_id) or ""))

    def add_copies(self, given: Mapping[str, Sequence[Any]]) -> None:
        """Add copies of memory."""
        table = self.table

        def name(name_id: Any) -> int:
            return table.names[copy_name(str(self.of("strings", name_id) or "copy"))]

        columns = {name: int_column(given[column]) for name, column in _COPY_COLUMNS.items()}
        ends = given["dst_agent_id"], given["src_agent_id"]
        columns["gpu"] = table.agents.of_copies(self.gpus, *ends)
        columns["name"] = codes_of(given["name_id"], name)
        columns["correlation"] = self.stacks.of(columns.pop("event"))
        table.add_copies(columns)

    def counter(self, counter_id: Any) -> int:
        name, units, description = self.known["counters"].get(counter_id, (None,) * 4)[:3]
        name = str(name or f"counter {counter_id}")
        self.infos[name] = counter_info(
            name, unit=str(units or ""), description=str(description or "")
        )
        return self.table.counter_names[name]

    def add_samples(
        self,
        sample: Int64,
        row: Int64,
        counters: Sequence[Any],
        codes: Int64,
        values: Float64,
        which: Mask,
    ) -> None:
        """Add values of moments: of the GPU of their dispatch, else of their counter."""

        def gpu_of(counter_id: Any) -> int:
            agent = self.known["counters"].get(counter_id, (None,) * 4)[3]
            return ABSENT if agent is None else self.table.agents.of_id(self.gpus, agent)

        own = codes_of(counters, gpu_of)[which]
        known = row[which] >= 0
        own[known] = self.table.gpu_of(row[which][known])
        columns = {"sample": sample[which], "gpu": own, "counter": codes[which]}
        self.samples.add({**columns, "value": values[which]})

    def sampled(self, times_of: Lookup) -> list[SampledCounter]:
        """The counters over time, of each GPU summed over its instances."""
        rows = self.samples.joined()
        times = times_of.of(rows["sample"])
        found, names = [], list(self.table.counter_names)
        timed = np.flatnonzero((times >= 0) & (rows["gpu"] >= 0))
        if not len(timed):
            return []
        series, place = combined((rows["gpu"][timed], rows["counter"][timed]))
        for number, (gpu, code) in enumerate(series.tolist()):
            own = timed[place == number]
            moments, at = ranked(times[own])
            if len(moments) > 1:
                period = int(median_of(np.diff(moments)))
                begins = np.append(moments[:1] - period, moments[:-1])
                is_off = moments - begins > _GAP * period
                begins[is_off] = moments[is_off] - period
                counted = sums_of(rows["value"][own], at, len(moments))
                found.append(SampledCounter(names[code], gpu, begins, moments, counted))
        return found

    def add_barriers(self, given: Mapping[str, Sequence[Any]]) -> None:
        """Add the records of HIP events, and the waits of queues for them."""

        def kind(name: Any) -> int:
            text = str(self.of("strings", name) or "")
            return SyncKind.BARRIER if _WAIT in text else SyncKind.RECORD

        columns = {name: int_column(given[column]) for name, column in _BARRIER_COLUMNS.items()}
        columns["kind"] = codes_of(given["name_id"], kind)
        columns["gpu"] = codes_of(given["agent_id"], partial(self.table.agents.of_id, self.gpus))
        self.barriers.add(columns)

    def syncs(self, dispatches: Dispatches) -> Syncs:
        """The waits of queues for each other: a wait is placed at the dispatch that it holds up,
        and a record at the dispatch before it. Ids that events share with dispatches rise with the
        calls that make them."""
        columns = self.barriers.joined()
        order = self.stacks.of(columns["event"])
        start = np.full(len(order), ABSENT)
        queues = columns["gpu"], columns["queue"]
        lanes = numbered_rows(
            [
                np.concatenate([own, of_event])
                for own, of_event in zip((dispatches.gpu, dispatches.queue), queues, strict=True)
            ]
        )
        is_wait = columns["kind"] == SyncKind.BARRIER
        of_dispatch, of_event = np.split(lanes, [len(dispatches)])
        for lane, events in places_by(of_event).items():
            rows = np.flatnonzero(of_dispatch == lane)
            rows = rows[stable_order(dispatches.correlation[rows])]
            after = np.searchsorted(dispatches.correlation[rows], order[events], "right")
            place = np.where(is_wait[events], after, after - 1)
            # Nothing was dispatched before a record, or after a wait.
            there = (place >= 0) & (place < len(rows))
            own = dispatches.start_ns[rows[place[there]]]
            start[events[there]] = own
            start[events[~there]] = np.where(is_wait[events[~there]], ABSENT, 0)
        recorded = _latest_records(columns["handle"], order, is_wait)
        kept = (start != ABSENT) & (order > 0)
        found = Syncs(
            kind=columns["kind"].astype(np.int8),
            device=columns["gpu"].astype(np.int32),
            stream=columns["queue"],
            start_ns=start,
            correlation=order,
            event=columns["handle"],
            awaited=np.where(is_wait, columns["source"], ABSENT),
            recorded=recorded,
            rank=np.zeros(len(order), np.int32),
        )
        return found.take(kept)

    def find_replays(self, row: Int64, codes: Int64, dimensions: Sequence[Int64]) -> list[str]:
        """Set which counters have a value for each of several replays of a dispatch; say so.

        Values without dimensions are those of instances, unless their number is no multiple of the
        dies that each have some.
        """
        notes: list[str] = []
        dies = [getattr(hardware_of_agent(agent), "xccs", 0) for agent in self.table.agents.agents]
        has_dimensions = np.any([each >= 0 for each in dimensions], axis=0)
        for code in distinct(codes).tolist():
            own = np.flatnonzero(codes == code)
            keys = (row[own], *(each[own] - ABSENT for each in dimensions))
            _, place = combined(keys)
            times = distinct(np.bincount(place)).tolist()
            is_by_dies = not has_dimensions[own].any()
            if len(times) != 1 or times[0] < 2 or (is_by_dies and not times[0] % max([*dies, 1])):
                continue
            self.replays[code] = times[0]
            name = list(self.table.counter_names)[code]
            notes.append(f"{name} has {times[0]} values of each dispatch, of as many replays of "
                         "the kernel: their mean is used.")  # fmt: skip
        return notes


def _latest_records(handle: Int64, order: Int64, is_wait: Mask) -> Int64:
    """Of each wait for an event the id of its last record before; ABSENT for others."""
    by_handle = np.lexsort((order, handle))
    latest = np.maximum.accumulate(np.where(is_wait[by_handle], -1, np.arange(len(handle))))
    before = by_handle[latest]
    found = np.full(len(handle), ABSENT)
    found[by_handle] = np.where(
        (latest >= 0) & (handle[before] == handle[by_handle]), order[before], ABSENT
    )
    return np.where(is_wait, found, ABSENT)


_WAIT: Final = "WAIT"
_BARRIER_COLUMNS: Final = {
    "event": "event_id", "queue": "queue_id", "source": "source_queue_id",
    "handle": "hip_event_handle", "kind": "name_id", "gpu": "agent_id",
}  # fmt: skip
_SAMPLE_COLUMNS: Final = {
    "sample": np.int64, "gpu": np.int64, "counter": np.int64, "value": np.float64,
}  # fmt: skip


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
        self._version = _schema(database)
        self._notes: list[str] = []
        self._columns_read: defaultdict[str, set[str]] = defaultdict(set)
        """Of each relation."""
        self._losses.newer = _newer(self._version)
        self._processes: defaultdict[str, _RocpdProcess] = defaultdict(_RocpdProcess)
        self._guids: dict[str, tuple[str, list[Any]]] = {}
        """The expression of each table that tells processes apart, and its values: text, or bytes
        where any isn't UTF-8."""

    def runs(self) -> list[DispatchRun]:
        for name, (relation, *columns) in _LOOKED_UP.items():
            for process, (ids, *values) in self._rows(relation, ("id", *columns)):
                process.known[name].update(zip(ids, zip(*values, strict=True), strict=True))
        profiled = self._read_dispatches()
        for process, given in self._rows("rocpd_hip_event", [*_BARRIER_COLUMNS.values()]):
            process.add_barriers(dict(zip(_BARRIER_COLUMNS.values(), given, strict=True)))
        for process, (events,) in self._rows("rocpd_memory_copy", ("event_id",), is_again=True):
            process.copied.append(int_column(events))
        self._read_events()
        barriers = {id(each): each.stacks for each in profiled if len(each.barriers)}
        for process in profiled:
            process.table.explain("correlation", process.stacks.of)
        for process, given in self._rows("rocpd_region", _REGION_COLUMNS):
            if process in profiled:
                process.add_regions(given)
        of_copies = (*_COPY_COLUMNS.values(), *_COPY_ENDS)
        for process, given in self._rows("rocpd_memory_copy", of_copies):
            if process in profiled:
                process.add_copies(dict(zip(of_copies, given, strict=True)))
        for process in self._processes.values():
            process.stacks = Lookup()
        self._read_values()
        runs: list[DispatchRun] = []
        for process in profiled:
            process.rows = Lookup()
            run = process.table.finish(self._path, FORMAT, process.infos)
            sampled = process.sampled(self._times_of_samples(process))
            if (stacks := barriers.get(id(process))) is not None:
                process.stacks = stacks
                run = replace(run, syncs=process.syncs(run.dispatches))
            named = (host for (host,) in process.known["hosts"].values() if host)
            runs.append(replace(run, sampled=sampled, host=cut_name(str(next(named, "")))))
        if runs:
            losses, folder = runs[0].losses, "/".join(self._path.parts[-2:])
            losses.truncated |= self._losses.truncated
            losses.newer = self._losses.newer
            losses.notes += [f"{folder}: {note}" for note in self._losses.notes]
            own = (
                *self._notes,
                *self._graph_launches(),
                *self._unread_columns(),
                *_unread(self._database),
            )
            notes = [*runs[0].join_notes, *(f"{folder}: {note}" for note in own)]
            runs[0] = replace(runs[0], join_notes=notes)
        return runs

    def _unread_columns(self) -> list[str]:
        """A note on the columns of relations that nothing is read from."""
        found: dict[str, None] = {}
        for relation, columns in self._columns_read.items():
            joined = {f"{name}_id" for name in (*_TIMES, "track")}
            for name in _of_relation(relation, self._tables):
                if self._database.count(name):
                    own = (column.lower() for column in self._database.columns(name))
                    unread = (each for each in own if each not in columns | joined | _KEYS)
                    found |= dict.fromkeys(f"{relation}.{each}" for each in unread)
        return not_used(found)

    def _graph_launches(self) -> list[str]:
        """A note on the dispatches of graphs: those of one launch share its correlation id."""
        tables = _of_relation("rocpd_graph_launch", self._tables)
        launches = sum(map(self._database.count, tables))
        dispatches = 0
        for _, (graphs,) in self._rows(DISPATCHES, ("graph_exec_id",), is_again=True):
            dispatches += sum(bool(graph) for graph in graphs)  # 0 is no graph.
        if not launches and not dispatches:
            return []
        return [f"{number_of(dispatches, 'dispatch')} of {number_of(launches, 'graph launch')}."]

    def _rows(
        self,
        relation: str,
        columns: Sequence[str],
        *,
        is_again: bool = False,
        rows: int = _CHUNK_ROWS,
    ) -> Iterator[tuple[_RocpdProcess, Sequence[Sequence[Any]]]]:
        """Yield chunks as a process and its columns; losses of a relation are noted once.

        Missing columns are None, and a missing relation has no rows. Rows after damage are lost.
        """
        losses = Losses() if is_again else self._losses
        for name in _of_relation(relation, self._tables):
            there = {column.lower() for column in self._database.columns(name)}
            self._columns_read[relation].update(columns)
            wanted, joins = self._columns(name, relation, there, columns)
            # Making a string of a guid takes longer than the rest of its row.
            guid = 'R."guid"' if "guid" in there else "NULL"
            if name not in self._guids:
                self._guids[name] = guid, self._distinct(name, guid, losses)
                if any(REPLACED in str(one) for one in self._guids[name][1]):
                    guid = f"CAST({guid} AS BLOB)"
                    self._guids[name] = guid, self._distinct(name, guid, losses)
            guid, guids = self._guids[name]
            for one in guids:
                selected = ", ".join(wanted.values())
                query = f'SELECT {selected} FROM "{name}" R {joins} WHERE {guid} IS ?'
                for found in self._database.column_chunks(
                    name, query, len(wanted), losses, rows, (one,)
                ):
                    none = [None] * len(found[0])
                    given = dict(zip(wanted, found, strict=True))
                    text = one.decode("utf-8", "replace") if isinstance(one, bytes) else one
                    yield (
                        self._processes[str(text or "")],
                        [given.get(column, none) for column in columns],
                    )

    def _distinct(self, name: str, guid: str, losses: Losses) -> list[Any]:
        query = f'SELECT DISTINCT {guid} FROM "{name}" R LIMIT {_MOST_PROCESSES}'
        chunks = self._database.chunks(name, query, losses, _CHUNK_ROWS)
        return [one for (one,) in chain.from_iterable(chunks)]

    def _columns(
        self, name: str, relation: str, there: Set[str], columns: Sequence[str]
    ) -> tuple[dict[str, str], str]:
        """What is selected for each column that there is, and the tables of schema 4 that hold a
        part of a row."""
        suffix = name.removeprefix(relation)
        track, timestamp = f"rocpd_track{suffix}", f"rocpd_timestamp{suffix}"
        of_track = self._database.columns(track) if {track} <= {*self._tables} else ()
        wanted, joins = dict[str, str](), {}
        for column in columns:
            if column in there:
                wanted[column] = f'R."{column}"'
            elif column in _OF_TRACK and "track_id" in there and column in of_track:
                wanted[column] = f'T."{column}"'
                joins["T"] = f'LEFT JOIN "{track}" T ON T.id = R.track_id'
            elif f"{column}_id" in there and column in _TIMES and timestamp in self._tables:
                alias = f"at_{column}"
                wanted[column] = f"{alias}.value"
                joins[alias] = f'LEFT JOIN "{timestamp}" {alias} ON {alias}.id = R.{column}_id'
        guids = [(f" AND {alias}.guid IS R.guid" if "guid" in there else "") for alias in joins]
        joined = " ".join(map("".join, zip(joins.values(), guids, strict=True)))
        return wanted or {columns[0]: "NULL"}, joined

    def _times_of_samples(self, process: _RocpdProcess) -> Lookup:
        found = Lookup()
        if len(process.samples):
            for other, (ids, times) in self._rows("rocpd_sample", ("id", "timestamp")):
                if other is process:
                    found.add(int_column(ids), int_column(times))
            untimed = int((found.of(process.samples.column("sample")) < 0).sum())
            self._losses.note(untimed, "sampled value", "without the time of its sample")
        return found

    def _read_events(self) -> None:
        columns = ("id", "category_id", "stack_id", "correlation_id")
        for process, (ids, categories, *numbers) in self._rows("rocpd_event", columns):
            events = int_column(ids)
            marks = codes_of(categories, partial(_is_of, process, _MARKER)) > 0
            process.marks |= dict.fromkeys(events[marks].tolist(), "")
            matters = marks | (process.rows.of(events) >= 0)
            matters |= isin(events, process.barriers.column("event"))
            matters |= isin(events, process.copied.whole())
            matters |= codes_of(categories, partial(_is_of, process, _CALLS)) > 0
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

    def _events_of_samples(self) -> dict[int, Int64]:
        """The events of samples of each process: their values are no counters of dispatches."""
        found: dict[int, Int64] = {}
        for process, (events,) in self._rows("rocpd_sample", ("event_id",), is_again=True):
            known = found.get(id(process), np.empty(0, np.int64))
            found[id(process)] = distinct(np.concatenate([known, int_column(events)]))
        return found

    def _read_values(self) -> None:
        stray, of_samples = 0, self._events_of_samples()
        columns = ("event_id", "pmc_id", "value", "sample_id", *_DIMENSIONS)
        seen: set[int] = set()
        for process, rows in self._rows("rocpd_pmc_event", columns, rows=_CHUNK_VALUES):
            sampled = of_samples.get(id(process))
            if sampled is not None:
                # A sample of a dispatch's counters may have its event.
                is_own = ~isin(int_column(rows[0]), sampled[process.rows.of(sampled) < 0])
                rows = [[*compress(each, is_own.tolist())] for each in rows]
                if not rows[0]:
                    continue
            events, counters, values, samples, *dimensions = rows
            value, sample = float_column(values), int_column(samples)
            # Instances of a counter follow each other.
            event, number = int_column(events), int_column(counters)
            first = np.flatnonzero(run_mask(event, number) | (number < 0))
            sizes = run_sizes(first, len(event))
            row = np.repeat(process.rows.of(event[first]), sizes)
            ids = [counters[place] for place in first.tolist()]
            codes = np.repeat(codes_of(ids, process.counter), sizes)
            is_sampled, known = sample >= 0, row >= 0
            stray += int((~known & ~is_sampled).sum())
            if is_sampled.any():
                process.add_samples(sample, row, counters, codes, value, is_sampled)
            known &= ~is_sampled
            if known.any() and id(process) not in seen and self._version >= _FIRST_REPLAYS:
                # The last dispatch may go on in the next chunk.
                seen.add(id(process))
                whole = np.flatnonzero(
                    known & ((row != row[known][-1]) | (len(row) < _CHUNK_VALUES))
                )
                given = [int_column(each)[whole] for each in dimensions]
                self._notes += process.find_replays(row[whole], codes[whole], given)
            if process.replays:
                replays = np.ones(int(codes.max(initial=0)) + 1)
                for code, times in process.replays.items():
                    replays[code : code + 1] = times
                value = value / replays[codes]
            process.table.add_values(row[known], codes[known], value[known])
        self._losses.note(stray, "counter value", "of no dispatch")


def _unread(database: Database) -> list[str]:
    """A note on the rows of relations that nothing is read from."""
    names = [name for name in database.tables() if name.startswith("rocpd_")]
    # A name such as rocpd_metadata may end like a suffix begins.
    unread = [name for name in names if not name.startswith((_INFO, *_READ))]
    counts: Counter[str] = Counter()
    for name in unread:
        relation = re.sub(_SUFFIX.replace("?", "", 1) + "$", "", name)
        if relation == name or relation not in names:
            counts[relation] += database.count(name)
    listed = ", ".join(f"{name} ({count:,})" for name, count in counts.items() if count)
    return [f"not used, with their number of rows: {listed}."] if listed else []


def _newer(version: tuple[int, ...]) -> str:
    """A schema that is newer than those the reader was checked against, else ''."""
    return _dotted(version) if version and version > _NEWEST[version[0]] else ""


def _is_of(process: _RocpdProcess, kind: str, category: Any) -> bool:
    names = "categories" if process.known["categories"] else "strings"
    return str(process.of(names, category) or "").startswith(kind)


def _first(stacks: Sequence[Any], correlations: Sequence[Any]) -> Int64:
    found, other = int_column(stacks), int_column(correlations)
    return np.where(found > 0, found, other)


def _object(text: Any) -> dict[str, Any]:
    """An object of JSON, which a database with `compression` in its metadata holds in an LZ4 frame;
    {} for anything else."""
    if isinstance(text, bytes):
        text = (_unpacked(text) if text.startswith(_LZ4) else text).decode("utf-8", "replace")
    value = json_in(str(text))
    return value if isinstance(value, dict) else {}


def _unpacked(frame: bytes) -> bytes:
    import pyarrow as pa

    try:
        with pa.input_stream(pa.BufferReader(frame), compression="lz4") as stream:
            return bytes(stream.read(_MOST_UNPACKED_BYTES))
    except (OSError, pa.ArrowInvalid):
        return b""
