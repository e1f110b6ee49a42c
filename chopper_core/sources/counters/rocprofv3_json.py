"""rocprofv3 JSON (`rocprofiler-sdk-tool`): dispatches, counters, agents and roctx ranges.

The text is read piece by piece; only the lists needed are decoded, a batch at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from chopper_core.model.hardware import Agent, counter_info
from chopper_core.sources.counters.references import AgentTable, gpus_by_id
from chopper_core.sources.counters.tables import DispatchTable, copy_name
from chopper_core.sources.dispatches import DispatchRun
from chopper_core.sources.registry import Recognised
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.columns import (
    Columns,
    GrowingColumns,
    Interner,
    codes_of,
    cut_name,
    int_column,
)
from chopper_core.tables.json_stream import JsonStream, TextEnded
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.tables.text import FileHead
from chopper_core.tables.unread import UnreadNames, unread_fields
from chopper_core.util.arrays import Int64
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import ranked
from chopper_core.util.progress import Progress, silent

NAME: Final = "rocprofv3 (JSON)"
FILES: Final = "`*_results.json`"
EXAMPLE: Final = "rocprofv3 --pmc SQ_WAVES --kernel-trace -f json -- python train.py"
SUFFIXES: Final = ()

FORMAT: Final = "rocprofv3 JSON"
TOOL_KEY: Final = "rocprofiler-sdk-tool"


_MAX_PID: Final = 1 << 32
_OPERATION_BITS: Final = 20
"""Of the number of an operation of a kind."""
_NUMBER: Final = (int, ABSENT)
_NEEDED: Final = (int, msgspec.NODEFAULT)
_TEXT: Final = (str, "")
_CALL_COLUMNS: Final = {
    "correlation": "correlation_id.internal",
    "thread": "thread_id",
    "start_ns": "start_timestamp",
    "end_ns": "end_timestamp",
}
_HIP_COLUMNS: Final = {**_CALL_COLUMNS, "kind": "kind", "operation": "operation"}
_COPY_COLUMNS: Final = {
    **{name: _HIP_COLUMNS[name] for name in ("correlation", "start_ns", "end_ns", "kind",
                                             "operation")},
    "target": "dst_agent_id.handle",
    "source": "src_agent_id.handle",
    "bytes": "bytes",
}  # fmt: skip
_DISPATCH_COLUMNS: Final = {
    "name": "dispatch_info.kernel_id",
    "gpu": "dispatch_info.agent_id.handle",
    "queue": "dispatch_info.queue_id.handle",
    "dispatch_id": "dispatch_info.dispatch_id",
    "lds": "dispatch_info.group_segment_size",
    **_CALL_COLUMNS,
    **{f"grid_{axis}": f"dispatch_info.grid_size.{axis}" for axis in "xyz"},
    **{f"workgroup_{axis}": f"dispatch_info.workgroup_size.{axis}" for axis in "xyz"},
}
"""Columns, and where the values are in a record of a call, or of a dispatch."""


def _record(fields: Mapping[str, tuple[Any, Any]]) -> Any:
    """The type of a record, by the type and the default of each field: `agent_id.handle`."""
    own: list[tuple[str, Any, Any]] = []
    nested: dict[str, dict[str, tuple[Any, Any]]] = {}
    for path, (kind, default) in fields.items():
        name, _, rest = path.partition(".")
        if rest:
            nested.setdefault(name, {})[rest] = kind, default
        else:
            own.append((name, kind, default))
    for name, inner in nested.items():
        kind = _record(inner)
        is_needed = any(default is msgspec.NODEFAULT for _, default in inner.values())
        own.append((name, kind, msgspec.NODEFAULT if is_needed else kind()))
    return msgspec.defstruct("Record", own, kw_only=True, frozen=True, gc=False)


_CALL: Final = _record(
    dict.fromkeys(_CALL_COLUMNS.values(), _NUMBER)
    | dict.fromkeys(("start_timestamp", "end_timestamp"), _NEEDED)
)
"""A call of the runtime, or a roctx range."""
_HIP_CALL: Final = _record(
    dict.fromkeys(_HIP_COLUMNS.values(), _NUMBER)
    | dict.fromkeys(("start_timestamp", "end_timestamp"), _NEEDED)
)
_COPY: Final = _record(dict.fromkeys(_COPY_COLUMNS.values(), _NUMBER))
_DISPATCH: Final = _record(
    dict.fromkeys(_DISPATCH_COLUMNS.values(), _NUMBER) | {_DISPATCH_COLUMNS["name"]: _NEEDED}
)
_VALUE: Final = _record({"counter_id.handle": _NEEDED, "value": (float | None, None)})
"""The value of one instance of a counter."""
_REGISTERS: Final = {"vgprs": "arch_vgpr_count", "accumulators": "accum_vgpr_count"}
_RECORD_TYPES: Final[Mapping[str, Any]] = {
    "agents": dict[str, Any],
    "counters": _record({"id.handle": _NEEDED, "name": _TEXT, "description": _TEXT}),
    "kernel_symbols": _record({
        "kernel_id": _NEEDED,
        **dict.fromkeys(("formatted_kernel_name", "demangled_kernel_name", "kernel_name"), _TEXT),
        **dict.fromkeys(_REGISTERS.values(), _NUMBER),
    }),
    "strings/buffer_records": _record({"kind": _TEXT, "operations": (list[str], [])}),
    "strings/marker_api": _record({"key": _NEEDED, "value": _TEXT}),
    "callback_records/counter_collection": _record({
        "dispatch_data": (_DISPATCH, msgspec.NODEFAULT),
        "thread_id": _NUMBER,
        "records": (list[_VALUE], []),  # type: ignore[valid-type]
    }),
    "buffer_records/kernel_dispatch": _DISPATCH,
    "buffer_records/hip_api": _HIP_CALL,
    "buffer_records/memory_copy": _COPY,
    "buffer_records/marker_api": _CALL,
}  # fmt: skip
"""The type of the elements of each list, by its path of keys."""

_DECODERS: Final = {
    name: msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
    for name, kind in _RECORD_TYPES.items()
}
_FIELDS: Final = {
    name: unread_fields(kind) for name, kind in _RECORD_TYPES.items() if kind != dict[str, Any]
}
_OBJECTS: Final = frozenset(name.partition("/")[0] for name in _RECORD_TYPES if "/" in name)


def recognise(head: FileHead) -> Recognised | None:
    is_json = head.data.lstrip().startswith((b"{", b"["))
    return Recognised(FORMAT) if is_json and f'"{TOOL_KEY}"'.encode() in head.data else None


def read(path: Path, progress: Progress = silent) -> list[DispatchRun]:
    """Read the processes of a file, plain or gzip.

    Damaged records are lost and counted. Raises DataError if the file can't be read or has no
    dispatches.
    """
    processes: list[_JsonProcess] = []
    with ByteSource(path) as source:
        try:
            stream = JsonStream(source, progress)
            if not stream.enter_list(TOOL_KEY):
                raise DataError(f"{path} is not rocprofv3 JSON: it has no list {TOOL_KEY}.")
            while stream.next_element():
                processes.append(_JsonProcess())
                processes[-1].read(stream)
        except TextEnded:
            if processes:
                problem = source.problem or "It ends, or is invalid, before its records end"
                processes[-1].losses.truncated = True
                processes[-1].losses.notes.append(f"{problem}.")
        progress(f"read {path.name}", source.size_bytes, source.size_bytes)
    runs = [process.finish(path) for process in processes if len(process.table)]
    if not runs:
        raise DataError(
            f"{path} has no dispatches; rocprofv3 records them with --kernel-trace or --pmc."
        )
    return runs


class _JsonProcess:
    """One element of the list: the dispatches of a process.

    Its lists may come in any order, so ids are looked up at the end.
    """

    def __init__(self) -> None:
        self.losses = Losses()
        self.table = DispatchTable(self.losses, sums_instances=True)
        self._pid = ABSENT
        self._host = ""
        self._known: dict[str, list[Any]] = {name: [] for name in _RECORD_TYPES}
        """The records that explain ids."""
        self._used: dict[str, Interner] = {"name": Interner(), "gpu": Interner()}
        """The ids that dispatches have in these columns."""
        self._counters = Interner()
        self._ranges = GrowingColumns(dict.fromkeys(_CALL_COLUMNS, np.int64))
        self._calls = GrowingColumns(dict.fromkeys(_HIP_COLUMNS, np.int64))
        self._copies = GrowingColumns(dict.fromkeys(_COPY_COLUMNS, np.int64))
        self._unread = {name: UnreadNames(fields) for name, fields in _FIELDS.items()}
        self._skipped: dict[str, None] = {}
        """The keys of values that nothing is read from."""
        self._looked_at: set[str] = set()

    def read(self, stream: JsonStream, prefix: str = "") -> None:
        """Read the lists needed of the next object."""
        if not stream.enter(b"{"):
            stream.skip_value()
            return
        while (key := stream.key()) is not None:
            name = prefix + key
            if name in _RECORD_TYPES and stream.enter(b"["):
                decode, repair = partial(self._decoded, name), partial(self._repaired, name)
                while (records := stream.records(decode, repair)) is not None:
                    self._take(name, records)
            elif name in _OBJECTS:
                self.read(stream, f"{name}/")
            elif name == "metadata":
                self._take_metadata(stream.value())
            elif stream.skip_value():
                self._skipped[name] = None

    def finish(self, path: Path) -> DispatchRun:
        table, known = self.table, self._known
        agents = gpus_by_id(
            {handle: one for one in known["agents"] if (handle := _handle(one)) is not None}
        )
        table.agents = AgentTable(agents.values())
        kernels = {
            one.kernel_id: one.formatted_kernel_name or one.demangled_kernel_name or one.kernel_name
            for one in known["kernel_symbols"]
        }
        nameless = sum(not kernels.get(kernel) for kernel in self._used["name"])
        self.losses.note(nameless, "kernel", "without a name in the file")
        gpus = [table.agents.of_id(agents, handle) for handle in self._used["gpu"]]
        codes = [
            table.kernel_code(kernels.get(kernel) or f"kernel {kernel}")
            for kernel in self._used["name"]
        ]
        table.explain("gpu", int_column(gpus).take)
        table.explain("name", int_column(codes).take)
        symbols = {one.kernel_id: one for one in known["kernel_symbols"]}
        for name, field in _REGISTERS.items():
            counts = [getattr(symbols.get(one), field, ABSENT) for one in self._used["name"]]
            table.explain(name, int_column(counts).take)
        table.explain("process", int_column([self._pid]).take)
        names = {one.id.handle: one.name for one in known["counters"]}
        counters = [names.get(handle, f"counter {handle}") for handle in self._counters]
        infos = {
            one.name: counter_info(one.name, description=one.description)
            for one in known["counters"]
        }
        texts = {one.key: one.value for one in known["strings/marker_api"]}
        ranges = self._ranges.joined()
        found = [texts.get(number) for number in ranges["correlation"].tolist()]
        has_text = np.array([text is not None for text in found], np.bool_)
        ranges = {name: column[has_text] for name, column in ranges.items()}
        ranges["name"] = int_column([table.names[text] for text in found if text is not None])
        table.host.add_ranges(ranges)
        self._add_calls()
        self._add_copies(agents)
        fields = (
            f"{name}.{field}" for name, unread in self._unread.items() for field in unread.names
        )
        table.unused |= dict.fromkeys(sorted((*self._skipped, *fields)))
        return replace(table.finish(path, FORMAT, infos, counters), host=self._host)

    def _operations(self, columns: Columns, of_text: Callable[[str], int]) -> Int64:
        """What a function makes of the name of each row's operation; ABSENT without a name."""
        names = [one.operations for one in self._known["strings/buffer_records"]]

        def code_of(key: int) -> int:
            kind, number = key >> _OPERATION_BITS, key & ((1 << _OPERATION_BITS) - 1)
            known = names[kind] if 0 <= kind < len(names) else []
            return of_text(known[number]) if number < len(known) else ABSENT

        number = np.clip(columns["operation"], 0, (1 << _OPERATION_BITS) - 1)
        return codes_of(((columns["kind"] << _OPERATION_BITS) + number).tolist(), code_of)

    def _add_calls(self) -> None:
        calls = self._calls.joined()
        calls["name"] = self._operations(calls, self.table.call_name)
        self.table.host.add_calls(calls)

    def _add_copies(self, agents: Mapping[Any, Agent]) -> None:
        """Add copies of memory."""
        table, copies = self.table, self._copies.joined()
        ends = (copies[end].tolist() for end in ("target", "source"))
        copies["gpu"] = table.agents.of_copies(agents, *ends)
        copies["name"] = self._operations(copies, lambda text: table.names[copy_name(text)])
        copies["name"][copies["name"] < 0] = table.names["copy"] if len(copies["name"]) else ABSENT
        copies["queue"] = np.full(len(copies["name"]), ABSENT)
        table.add_copies(copies)

    def _decoded(self, name: str, text: bytes) -> list[Any]:
        """The records of a text; the fields of the first ones are looked at."""
        found: list[Any] = _DECODERS[name].decode(text)
        if (unread := self._unread.get(name)) and name not in self._looked_at:
            self._looked_at.add(name)
            unread.look_at_text(text)
        return found

    def _repaired(self, name: str, element: bytes) -> list[Any]:
        """Return a record with control characters or invalid UTF-8 in its names; [] if damaged.

        Numbers written as text are converted.
        """
        try:
            fields = json.loads(element.decode("utf-8", "replace"), strict=False)
            record = msgspec.convert(fields, _RECORD_TYPES[name], strict=False)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.losses.unreadable_events += 1
            return []
        self.losses.repaired_pieces += 1
        return [record]

    def _take(self, name: str, records: list[Any]) -> None:
        if name == "buffer_records/marker_api":
            self._ranges.add(_columns(records, _CALL_COLUMNS))
        elif name == "buffer_records/hip_api":
            self._calls.add(_columns(records, _HIP_COLUMNS))
        elif name == "buffer_records/memory_copy":
            self._copies.add(_columns(records, _COPY_COLUMNS))
        elif name == "buffer_records/kernel_dispatch":
            self._add_dispatches(_columns(records, _DISPATCH_COLUMNS))
        elif name == "callback_records/counter_collection":
            self._add_counters(records)
        else:
            self._known[name] += records

    def _take_metadata(self, text: bytes) -> None:
        try:
            metadata = json.loads(text.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            return
        if not isinstance(metadata, dict):
            return
        pid, node = metadata.get("pid"), metadata.get("node")
        if type(pid) is int and 0 <= pid < _MAX_PID:
            self._pid = pid
        if isinstance(node, dict) and isinstance(host := node.get("hostname"), str):
            self._host = cut_name(host)

    def _add_dispatches(self, columns: Columns) -> Int64:
        for name, numbers in self._used.items():
            found, place = ranked(columns[name])
            columns[name] = int_column([numbers[one] for one in found.tolist()])[place]
        columns |= dict.fromkeys(("vgprs", "accumulators"), columns["name"])
        columns["process"] = np.zeros(len(columns["name"]), np.int64)
        return self.table.add_dispatches(columns)

    def _add_counters(self, records: Sequence[Any]) -> None:
        columns = _columns([record.dispatch_data for record in records], _DISPATCH_COLUMNS)
        threads = int_column([record.thread_id for record in records])
        columns["thread"] = np.maximum(columns["thread"], threads)
        counts = [len(record.records) for record in records]
        values = list(chain.from_iterable(record.records for record in records))
        numbers = self._counters
        self.table.add_values(
            np.repeat(self._add_dispatches(columns), counts),
            int_column([numbers[value.counter_id.handle] for value in values]),
            np.array([value.value for value in values], np.float64),
        )


def _columns(records: Sequence[object], paths: Mapping[str, str]) -> Columns:
    return {name: int_column(list(map(attrgetter(path), records))) for name, path in paths.items()}


def _handle(agent: Mapping[str, Any]) -> int | None:
    number = agent.get("id")
    handle = number.get("handle", ABSENT) if isinstance(number, dict) else None
    return handle if isinstance(handle, int) else None
