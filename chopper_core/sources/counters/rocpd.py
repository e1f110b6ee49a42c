"""rocpd: the SQLite database of rocprofv3 (schema 3), by its views or its suffixed tables.

Ids are unique within one process only, so every look-up is by (guid, id). It is done here and not
in SQL: the views `kernels` and `counters_collection` leave out dispatches without a region, event
or thread. Values are sums over the instances of a counter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from chopper_core.model.hardware import Agent, CounterInfo, counter_info, counter_infos
from chopper_core.sources import rpd
from chopper_core.sources.counters.references import UNKNOWN_NODE, AgentTable, gpus_by_id
from chopper_core.sources.counters.rocpd_tables import (
    DISPATCHES,
    SQLITE_ERRORS,
    SQLITE_MAGIC,
    Events,
    Lookup,
    Relations,
    integers,
    why_no_rocpd,
)
from chopper_core.sources.counters.tables import DispatchTable
from chopper_core.sources.dispatches import DispatchRun
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.tables.bytes import unwritten
from chopper_core.tables.columns import Columns, float_column, int_column
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.tables.text import FileHead
from chopper_core.util.arrays import Int64
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

NAME: Final = "rocprofv3 (rocpd)"
FILES: Final = "the SQLite database, schema 3, of one process or merged"
EXAMPLE: Final = "rocprofv3 --pmc SQ_WAVES --kernel-trace -f rocpd -- python train.py"
SUFFIXES: Final = ()

FORMAT: Final = "rocpd"

_DISPATCH_COLUMNS: Final = {
    "start_ns": "start",
    "end_ns": "end",
    "dispatch_id": "dispatch_id",
    "queue": "queue_id",
    "event": "event_id",
    "grid_x": "grid_size_x",
    "grid_y": "grid_size_y",
    "grid_z": "grid_size_z",
    "workgroup_x": "workgroup_size_x",
    "workgroup_y": "workgroup_size_y",
    "workgroup_z": "workgroup_size_z",
}
_LOOKED_UP: Final = ("agent_id", "kernel_id", "pid", "tid", "region_name_id")
_AGENT_COLUMNS: Final = (
    "guid", "id", "type", "absolute_index", "logical_index", "type_index", "name", "product_name",
    "model_name", "extdata",
)  # fmt: skip
_MARKER: Final = "MARKER"
_Ids = dict[str, dict[int, Any]]
"""guid → id → value."""


def recognise(head: FileHead) -> Recognised | Unusable | None:
    """Recognise SQLite by its first bytes, and rocprofv3 by its tables."""
    if head.magic != SQLITE_MAGIC or rpd.recognise(head):
        return None
    reason = why_no_rocpd(head.path)
    return Recognised(FORMAT) if reason is None else Unusable(reason)


def read(path: Path, progress: Progress = silent) -> list[DispatchRun]:
    """Read the processes of a database, one run each.

    Raises DataError if the file isn't a rocpd database, can't be read or has no dispatches.
    """
    with Relations.opened(path) as relations:
        try:
            runs = _Database(path, relations, progress).runs()
        except SQLITE_ERRORS as error:
            raise DataError(f"{path} can't be read as a rocpd database: {error}.") from error
    if not runs:
        raise DataError(
            f"{path} has no dispatches; rocprofv3 records them with --kernel-trace or --pmc."
        )
    return runs


class _RocpdProcess:
    """The dispatches of one guid."""

    def __init__(self, agents: Iterable[Agent]) -> None:
        self.table = DispatchTable(Losses(), AgentTable(agents), sums_repeated_values=True)
        self.infos: dict[str, CounterInfo] = {}
        self.rows = Lookup()
        """The row of the dispatch of each event."""

    def add_dispatches(self, columns: Columns) -> None:
        self.rows.add(columns["event"], self.table.add_dispatches(columns))


class _Database:
    """One pass over the relations that are needed."""

    def __init__(self, path: Path, relations: Relations, progress: Progress) -> None:
        self._path = path
        self._relations = relations
        self._progress = progress
        self._losses = Losses()
        if missing := unwritten(path):
            self._losses.notes.append(missing)
        self._processes: dict[str, _RocpdProcess] = {}
        self._strings = self._looked_up("rocpd_string", "string")
        self._kernels = self._looked_up("rocpd_info_kernel_symbol", "display_name", "kernel_name")
        self._pids = self._looked_up("rocpd_info_process", "pid")
        self._threads = self._looked_up("rocpd_info_thread", "tid")
        self._counters = self._looked_up("rocpd_info_pmc", "name", "units", "description")
        self._agents = self._read_agents()
        self._events = Events(relations, self._is_marker, self._losses)

    def runs(self) -> list[DispatchRun]:
        self._read_dispatches()
        self._read_regions()
        self._events.stacks.clear()
        self._read_values()
        runs: list[DispatchRun] = []
        for process in self._processes.values():
            process.rows = Lookup()
            infos = {**counter_infos(process.table.counter_names), **process.infos}
            runs.append(process.table.finish([self._path], FORMAT, infos))
        if runs:
            _add_losses(runs[0].losses, self._losses, self._path)
        return runs

    def _looked_up(self, relation: str, *columns: str) -> _Ids:
        """Return the value of each id; a list of several values."""
        found: _Ids = {}
        for rows in self._relations.rows(relation, ("guid", "id", *columns), self._losses):
            for guid, number, *values in rows:
                found.setdefault(guid or "", {})[number] = values[0] if len(values) == 1 else values
        return found

    def _read_agents(self) -> dict[str, dict[int, Agent]]:
        found: dict[str, dict[int, dict[str, Any]]] = {}
        for rows in self._relations.rows("rocpd_info_agent", _AGENT_COLUMNS, self._losses):
            for row in rows:
                fields = dict(zip(_AGENT_COLUMNS, row, strict=True))
                fields = {**_object(fields["extdata"]), **_given(fields)}
                if "node_id" not in fields and "absolute_index" not in fields:
                    fields["node_id"] = fields.get("id")
                if "id" in fields:
                    found.setdefault(fields.get("guid", ""), {})[fields["id"]] = fields
        return {guid: gpus_by_id(agents) for guid, agents in found.items()}

    def _read_dispatches(self) -> None:
        columns = (*_DISPATCH_COLUMNS.values(), *_LOOKED_UP)
        total = self._relations.count(DISPATCHES)
        done = 0
        for guid, given in self._relations.by_guid(DISPATCHES, columns, self._losses):
            self._add_dispatches(guid, dict(zip(columns, given, strict=True)))
            done += len(given[0])
            self._progress(f"read {self._path.name}", done, total)

    def _add_dispatches(self, guid: str, given: dict[str, Sequence[Any]]) -> None:
        agents, kernels = self._agents.get(guid, {}), self._kernels.get(guid, {})
        process = self._processes.setdefault(guid, _RocpdProcess(agents.values()))
        table = process.table
        strings, stacks = self._strings.get(guid, {}), self._events.stacks.get(guid, Lookup())
        pids, threads = self._pids.get(guid, {}), self._threads.get(guid, {})

        def gpu(agent_id: Any) -> int:
            agent = agents.get(agent_id) or Agent(UNKNOWN_NODE, product=f"agent {agent_id}")
            if agent not in table.agents.agents:
                table.agents.agents.append(agent)
            return table.agents.agents.index(agent)

        def kernel(kernel_id: Any) -> int:
            names = kernels.get(kernel_id, ())
            return table.kernel_codes[str(next(filter(None, names), f"kernel {kernel_id}"))]

        def region(name_id: Any) -> int:
            return table.names[str(strings[name_id])] if strings.get(name_id) else ABSENT

        columns = {name: integers(given[column]) for name, column in _DISPATCH_COLUMNS.items()}
        columns["gpu"] = _coded(given["agent_id"], gpu)
        columns["name"] = _coded(given["kernel_id"], kernel)
        columns["process"] = integers([pids.get(one) for one in given["pid"]])
        columns["thread"] = integers([threads.get(one) for one in given["tid"]])
        columns["correlation"] = stacks.of(columns["event"])
        columns["region"] = _coded(given["region_name_id"], region)
        columns["region"][columns["region"] == columns["name"]] = ABSENT
        process.add_dispatches(columns)

    def _read_regions(self) -> None:
        if not any(self._events.marks.values()):
            return
        columns = ("tid", "start", "end", "name_id", "event_id")
        messages = self._messages()
        for guid, given in self._relations.by_guid("rocpd_region", columns, self._losses):
            process = self._processes.get(guid)
            if process is not None:
                self._add_regions(guid, process.table, given, messages.get(guid, {}))

    def _add_regions(
        self,
        guid: str,
        table: DispatchTable,
        given: Sequence[Sequence[Any]],
        messages: dict[int, str],
    ) -> None:
        tids, starts, ends, name_ids, event_ids = given
        threads = self._threads.get(guid, {})
        stacks = self._events.stacks.get(guid, Lookup())
        strings = self._strings.get(guid, {})
        columns: Columns = {
            "thread": integers([threads.get(one) for one in tids]),
            "start_ns": integers(starts),
            "end_ns": integers(ends),
            "correlation": stacks.of(integers(event_ids)),
        }
        is_marker = np.array([event in messages for event in event_ids], np.bool_)
        marks = {name: column[is_marker] for name, column in columns.items()}
        marks["name"] = int_column(
            [
                table.names[messages[event] or str(strings.get(name) or "")]
                for event, name in zip(event_ids, name_ids, strict=True)
                if event in messages
            ]
        )
        table.host.add_ranges(marks)
        table.host.add_calls({name: column[~is_marker] for name, column in columns.items()})

    def _messages(self) -> dict[str, dict[int, str]]:
        """Return the text of roctx events; '' where only the region has a name."""
        found: dict[str, dict[int, str]] = {}
        marked = self._events.marks
        if any(marked.values()):
            columns = ("guid", "id", "extdata")
            for rows in self._relations.rows("rocpd_event", columns, self._losses):
                for guid, event, extdata in rows:
                    if event in marked.get(guid or "", ()):
                        message = _object(extdata).get("message")
                        found.setdefault(guid or "", {})[event] = str(message or "")
        return found

    def _is_marker(self, guid: str, category: Any) -> bool:
        return str(self._strings.get(guid, {}).get(category, "")).startswith(_MARKER)

    def _read_values(self) -> None:
        stray = 0
        columns = ("event_id", "pmc_id", "value")
        for guid, (events, counters, values) in self._relations.by_guid(
            "rocpd_pmc_event", columns, self._losses
        ):
            process = self._processes.get(guid)
            if process is None:
                stray += len(events)
                continue
            row = process.rows.of(integers(events))
            known = row >= 0
            stray += int((~known).sum())
            codes = _coded(counters, self._counter_coder(guid, process))
            process.table.add_values(row[known], codes[known], float_column(values)[known])
        if stray:
            self._losses.notes.append(f"{stray:,} counter values belong to no dispatch.")

    def _counter_coder(self, guid: str, process: _RocpdProcess) -> Callable[[Any], int]:
        counters = self._counters.get(guid, {})

        def code(counter_id: Any) -> int:
            name, units, description = counters.get(counter_id) or (None, None, None)
            name = str(name or f"counter {counter_id}")
            process.infos[name] = counter_info(
                name, unit=str(units or ""), description=str(description or "")
            )
            return process.table.counter_names[name]

        return code


def _coded(ids: Sequence[Any], code: Callable[[Any], int]) -> Int64:
    """Return the code of each id, computed once per distinct id."""
    codes = {one: code(one) for one in dict.fromkeys(ids)}
    return np.fromiter((codes[one] for one in ids), np.int64, len(ids))


def _object(text: Any) -> dict[str, Any]:
    """Return the members of a JSON object; empty for other text."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _add_losses(losses: Losses, more: Losses, path: Path) -> None:
    losses.truncated |= more.truncated
    losses.notes += [f"{'/'.join(path.parts[-2:])}: {note}" for note in more.notes]
