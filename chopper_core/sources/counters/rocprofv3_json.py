"""rocprofv3 JSON (`rocprofiler-sdk-tool`): dispatches, counters, agents and roctx ranges.

The text is read piece by piece; only the lists needed are decoded, a batch at a time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from chopper_core.model.hardware import counter_info
from chopper_core.sources.counters.references import AgentTable, gpus_by_id
from chopper_core.sources.counters.tables import DispatchTable
from chopper_core.sources.dispatches import DispatchRun
from chopper_core.sources.registry import Recognised
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.columns import Columns, GrowingColumns, Interner, int_column
from chopper_core.tables.json_stream import JsonStream, TextEnded
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.tables.text import FileHead
from chopper_core.util.arrays import Int64
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

NAME: Final = "rocprofv3 (JSON)"
FILES: Final = "`*_results.json`"
EXAMPLE: Final = "rocprofv3 --pmc SQ_WAVES --kernel-trace -f json -- python train.py"
SUFFIXES: Final = ()

FORMAT: Final = "rocprofv3 JSON"
TOOL_KEY: Final = "rocprofiler-sdk-tool"


class Handle(Struct, frozen=True, gc=False):
    """An id."""

    handle: int = ABSENT


class Size(Struct, frozen=True, gc=False):
    """Work-items in three directions."""

    x: int = 0
    y: int = 0
    z: int = 0


class CorrelationIds(Struct, frozen=True, gc=False):
    """The number that an API call and its dispatches share."""

    internal: int = ABSENT


class DispatchInfo(Struct, gc=False):
    """A dispatch: kernel, device, queue and sizes."""

    kernel_id: int
    agent_id: Handle = Handle()
    queue_id: Handle = Handle()
    dispatch_id: int = ABSENT
    workgroup_size: Size = Size()
    grid_size: Size = Size()


class KernelDispatch(Struct, gc=False):
    """An element of `kernel_dispatch`, and the `dispatch_data` of `counter_collection`."""

    dispatch_info: DispatchInfo
    thread_id: int = ABSENT
    correlation_id: CorrelationIds = CorrelationIds()
    start_timestamp: int = ABSENT
    end_timestamp: int = ABSENT


class CounterRecord(Struct, gc=False):
    """The value of one instance of a counter."""

    counter_id: Handle
    value: float | None = None


class CounterCollection(Struct, gc=False):
    """The counter values of one dispatch."""

    dispatch_data: KernelDispatch
    thread_id: int = ABSENT
    records: list[CounterRecord] = []


class ApiCall(Struct, gc=False):
    """A call of the runtime, or a roctx range."""

    start_timestamp: int
    end_timestamp: int
    thread_id: int = ABSENT
    correlation_id: CorrelationIds = CorrelationIds()


class Message(Struct, gc=False):
    """The text of a roctx range, by its correlation id."""

    key: int
    value: str


class KernelSymbol(Struct, gc=False):
    """The names of a kernel."""

    kernel_id: int
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    kernel_name: str = ""


class CounterDescription(Struct, gc=False):
    """Name and description of a counter."""

    id: Handle
    name: str
    description: str = ""


_MAX_PID: Final = 1 << 32
_RECORD_TYPES: Final[Mapping[str, Any]] = {
    "agents": dict[str, Any],
    "counters": CounterDescription,
    "kernel_symbols": KernelSymbol,
    "strings/marker_api": Message,
    "callback_records/counter_collection": CounterCollection,
    "buffer_records/kernel_dispatch": KernelDispatch,
    "buffer_records/hip_api": ApiCall,
    "buffer_records/marker_api": ApiCall,
}
"""The type of the elements of each list, by its path of keys."""

_DECODERS: Final = {
    name: msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
    for name, kind in _RECORD_TYPES.items()
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
        self._agents: dict[int, dict[str, Any]] = {}
        self._kernels: dict[int, str] = {}
        self._messages: dict[int, str] = {}
        self._descriptions: dict[int, CounterDescription] = {}
        self._used: dict[str, Interner] = {"name": Interner(), "gpu": Interner()}
        """The ids that dispatches have in these columns."""
        self._counters = Interner()
        self._ranges = GrowingColumns(
            dict.fromkeys(("correlation", "thread", "start_ns", "end_ns"), np.int64)
        )

    def read(self, stream: JsonStream, prefix: str = "") -> None:
        """Read the lists needed of the next object."""
        if not stream.enter(b"{"):
            stream.skip_value()
            return
        while (key := stream.key()) is not None:
            name = prefix + key
            if name in _RECORD_TYPES and stream.enter(b"["):
                decode, repair = _DECODERS[name].decode, partial(self._repaired, name)
                while (records := stream.records(decode, repair)) is not None:
                    self._take(name, records)
            elif name in _OBJECTS:
                self.read(stream, f"{name}/")
            elif name == "metadata":
                self._take_metadata(stream.value())
            else:
                stream.skip_value()

    def finish(self, path: Path) -> DispatchRun:
        table = self.table
        agents = gpus_by_id(self._agents)
        table.agents = AgentTable(agents.values())
        names = {kernel: self._kernels.get(kernel) for kernel in self._used["name"]}
        if nameless := sum(not name for name in names.values()):
            self.losses.notes.append(f"{nameless:,} kernels have no name in the file.")
        codes = {
            "process": [self._pid],
            "gpu": [table.agents.of_id(agents, handle) for handle in self._used["gpu"]],
            "name": [table.kernel_code(name or f"kernel {one}") for one, name in names.items()],
        }
        known = self._descriptions
        counters = [known[one].name if one in known else f"counter {one}" for one in self._counters]
        infos = {
            each.name: counter_info(each.name, description=each.description)
            for each in known.values()
        }
        table.host.add_ranges(self._named(self._ranges.joined()))
        return table.finish(path, FORMAT, infos, codes, counters)

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
        if name == "agents":
            for record in records:
                number = record.get("id")
                handle = number.get("handle", ABSENT) if isinstance(number, dict) else None
                if isinstance(handle, int):
                    self._agents[handle] = record
        elif name == "counters":
            self._descriptions.update((record.id.handle, record) for record in records)
        elif name == "kernel_symbols":
            for record in records:
                names = (record.formatted_kernel_name, record.demangled_kernel_name)
                self._kernels[record.kernel_id] = next(filter(None, names), record.kernel_name)
        elif name == "strings/marker_api":
            self._messages.update((record.key, record.value) for record in records)
        elif name == "buffer_records/marker_api":
            ends = int_column([record.end_timestamp for record in records])
            self._ranges.add({**_call_columns(records), "end_ns": ends})
        elif name == "buffer_records/hip_api":
            self.table.host.add_calls(_call_columns(records))
        elif name == "buffer_records/kernel_dispatch":
            self._add_dispatches(records, [record.thread_id for record in records])
        else:
            self._add_counters(records)

    def _take_metadata(self, text: bytes) -> None:
        try:
            pid = json.loads(text.decode("utf-8", "replace"), strict=False)["pid"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        if type(pid) is int and 0 <= pid < _MAX_PID:
            self._pid = pid

    def _add_dispatches(self, records: Sequence[KernelDispatch], threads: Sequence[int]) -> Int64:
        infos = [record.dispatch_info for record in records]
        sizes = {
            f"{what}_{axis}": int_column([getattr(size, axis) for size in of])
            for what, of in (
                ("grid", [info.grid_size for info in infos]),
                ("workgroup", [info.workgroup_size for info in infos]),
            )
            for axis in ("x", "y", "z")
        }
        kernels, agents = self._used["name"], self._used["gpu"]
        for kernel in sorted({info.kernel_id for info in infos}):
            kernels[kernel]  # Numbers it: ids rise in the order in which kernels were loaded.
        return self.table.add_dispatches(
            {
                "process": np.zeros(len(infos), np.int64),
                "name": int_column([kernels[info.kernel_id] for info in infos]),
                "gpu": int_column([agents[info.agent_id.handle] for info in infos]),
                "thread": int_column(threads),
                "queue": int_column([info.queue_id.handle for info in infos]),
                "dispatch_id": int_column([info.dispatch_id for info in infos]),
                "correlation": int_column([record.correlation_id.internal for record in records]),
                "start_ns": int_column([record.start_timestamp for record in records]),
                "end_ns": int_column([record.end_timestamp for record in records]),
                **sizes,
            }
        )

    def _add_counters(self, records: Sequence[CounterCollection]) -> None:
        dispatches = [record.dispatch_data for record in records]
        rows = self._add_dispatches(
            dispatches,
            [max(record.thread_id, record.dispatch_data.thread_id) for record in records],
        )
        counts = [len(record.records) for record in records]
        values = list(chain.from_iterable(record.records for record in records))
        numbers = self._counters
        self.table.add_values(
            np.repeat(rows, counts),
            int_column([numbers[value.counter_id.handle] for value in values]),
            np.array([value.value for value in values], np.float64),
        )

    def _named(self, ranges: Columns) -> Columns:
        names, known = self.table.names, self._messages
        texts = [known.get(number) for number in ranges["correlation"].tolist()]
        has_text = np.array([text is not None for text in texts], np.bool_)
        return {
            **{name: column[has_text] for name, column in ranges.items()},
            "name": int_column([names[text] for text in texts if text is not None]),
        }


def _call_columns(calls: Sequence[ApiCall]) -> Columns:
    return {
        "correlation": int_column([call.correlation_id.internal for call in calls]),
        "thread": int_column([call.thread_id for call in calls]),
        "start_ns": int_column([call.start_timestamp for call in calls]),
    }
