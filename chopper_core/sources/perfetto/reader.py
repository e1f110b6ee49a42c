"""Perfetto: the `.pftrace` of torch's CUPTI backend, of rocprofv3 and of rocprof-sys.

What packets have becomes events of the PyTorch profiler, whose tables they fill: torch gives its
slices the same categories and arguments, and rocprof's are translated. Stages of a GPU are its
activities; where activities are slices of tracks, their arguments say the GPU.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from chopper_core.sources.dispatches import CLOCK_BOOTTIME
from chopper_core.sources.kineto.events import (
    COUNTER_CATEGORY,
    FIRST_ARROW,
    HOST_DEVICE,
    Event,
    event_of,
)
from chopper_core.sources.kineto.tables import TraceTables
from chopper_core.sources.perfetto.packets import (
    NEEDED,
    PACKET_TAG,
    GpuCounterSample,
    PacketTrack,
    PerfettoTrace,
    Slice,
    Stage,
    packets_at,
    paired_slices,
)
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.sources.trace import TIMES_SINCE, Trace
from chopper_core.tables.losses import Losses, Repeats
from chopper_core.tables.text import FileHead
from chopper_core.util.compression import has_ending
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

NAME: Final = "Perfetto"
FILES: Final = (
    "`.pftrace`, of torch's CUPTI backend, rocprofv3 and rocprof-sys; needs `chopper-tui[perfetto]`"
)
EXAMPLE: Final = "rocprofv3 --sys-trace -f pftrace -- python train.py"
SUFFIXES: Final = (".pftrace", ".perfetto-trace", ".proto")

_BATCH: Final = 4_096
_FEWEST: Final = 2
"""Whole packets at the start of a file that is known by them alone."""
_STAGES: Final = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset",
                  "Annotation": "gpu_user_annotation", "EventRecord": "graph_event_node",
                  "HostNode": "graph_host_node"}  # fmt: skip
_CALLS: Final = re.compile(r"(?:rocm_)?(?:hip|hip_runtime|hip_compiler)_api(?:_ext)?")
_MARKERS: Final = re.compile(r"(?:rocm_)?marker_api|user")
_KERNELS: Final = re.compile(r"(?:rocm_)?kernel_dispatch")
_COPIES: Final = re.compile(r"(?:rocm_)?memory_copy")
_STREAMS: Final = "rocm_hip_stream"
"""The category of all activities that rocprof-sys groups by stream."""
_KERNEL_KEYS: Final = frozenset(("kernel_id", "dispatch_id"))
_COPY_NAME: Final = re.compile(r"(?:MEMORY_COPY_)?(HOST|DEVICE)_TO_(HOST|DEVICE)$")
_NUMBER: Final = re.compile(r"\d+")
_IN_TRACK: Final = re.compile(r"\[\s*\"?\s*(\d+)\s*\"?\s*\]")
_FIGURES: Final = {"registers_per_thread": "registers per thread",
                   "shared_mem_dynamic": "shared memory"}  # fmt: skip
_MOST_SIZE: Final = 1 << 31
_SEVERAL: Final = (
    "It has calls of {} processes, and doesn't say which of them an activity is of: launches and "
    "steps may be another's. Give a file per process, or the databases that it was made of."
)


def recognise(head: FileHead) -> Recognised | Unusable | None:
    """Recognise a trace by its packets; one without the package that reads it is unusable."""
    data = head.data
    if data[:1] != bytes([PACKET_TAG]):
        return None
    count = 0
    # A damaged file has the packets before the damage.
    with suppress(ValueError):
        for _ in packets_at(data):
            count += 1
    is_named = has_ending(head.path.name, SUFFIXES)
    if count < (1 if is_named else _FEWEST):
        return None
    if find_spec("perfetto") is None:
        return Unusable(f"is a Perfetto trace, which the package perfetto reads: {NEEDED}")
    return Recognised("Perfetto trace")


def read(path: Path, progress: Progress = silent) -> Trace:
    """Read the trace of one process.

    Damaged packets are lost and counted. Raises DataError if the file can't be read or has none.
    """
    losses = Losses()
    source = PerfettoTrace(path, losses)
    reader = _PacketReader(path, source)
    for row in source.rows(progress):
        reader.add(row)
    reader.finish()
    tables = reader.tables
    if not tables.event_counts:
        raise DataError(f"{path} is a Perfetto trace without slices or activities of GPUs.")
    offset = source.epoch_offset_ns
    base_ns = reader.base_ns + (offset or 0)
    losses.bad_times, losses.bad_host_times = tables.bad_times, tables.bad_host_times
    losses.note(losses.bad_times, "event", "without a valid time left out")
    losses.note(losses.unreadable_events, "packet", "could not be read")
    losses.note(reader.without_gpu, "activity", "names no GPU: they count as those of one")
    if len(reader.processes) > 1:
        losses.notes.append(_SEVERAL.format(len(reader.processes)))
    finished = tables.finished(base_ns)
    unused = {**finished.pop("unused_events"), **source.unused}
    counts = {**finished.pop("event_counts"), **source.unused}
    return Trace(
        path=path,
        size_bytes=path.stat().st_size,
        metadata={} if offset is not None else {TIMES_SINCE: CLOCK_BOOTTIME},
        base_time_ns=base_ns if offset is not None else None,
        losses=losses,
        event_counts=counts,
        unused_events=unused,
        **finished,
    )


def counter_samples(
    path: Path, progress: Progress, losses: Losses
) -> tuple[list[GpuCounterSample], int | None]:
    """The values of counters of GPUs, and from their times to those since the epoch, if known."""
    source = PerfettoTrace(path, losses)
    found = [row for row in source.rows(progress) if isinstance(row, GpuCounterSample)]
    return found, source.epoch_offset_ns


class _PacketReader:
    """The tables that packets fill, as they come."""

    def __init__(self, path: Path, source: PerfettoTrace) -> None:
        self.tables = TraceTables(Repeats(path))
        self.base_ns = -1
        self.without_gpu = 0
        self.processes: set[int] = set()
        """Those with calls or markers of rocprof."""
        self._source = source
        self._slices: defaultdict[int, list[Slice]] = defaultdict(list)
        self._events: list[Event] = []
        self._stages: dict[int, tuple[Any, Any, int, int]] = {}
        """Number of an activity of a GPU → its device, lane, begin and end."""
        self._waits: list[tuple[int, int]] = []

    def add(self, row: Slice | Stage | GpuCounterSample) -> None:
        if isinstance(row, Slice):
            self._slices[row.track].append(row)
        elif isinstance(row, Stage):
            fields = _event_of_stage(row)
            lane = fields["pid"], fields["tid"]
            self._add(fields, row.start_ns, row.duration_ns)
            self._stages[row.number] = *lane, row.start_ns, row.start_ns + row.duration_ns
            self._waits += [(each, row.number) for each in row.waits]
        else:
            self.tables.event_counts[COUNTER_CATEGORY] += 1

    def finish(self) -> None:
        """Add the slices, whose ends are known once all are there."""
        for number, slices in self._slices.items():
            track = self._source.tracks.get(number, PacketTrack())
            place = self._thread(number)
            for each in paired_slices(slices):
                fields = self._translated(each, track, place)
                begin, end = _own_times(each)
                self._add(fields, begin, end - begin if end >= 0 else -1)
        for number, (source, target) in enumerate(self._waits, FIRST_ARROW):
            if source in self._stages and target in self._stages:
                for ph, (pid, tid, *times) in zip(
                    "sf", (self._stages[source], self._stages[target]), strict=True
                ):
                    ts = (times[ph == "s"] - self.base_ns) / 1000
                    arrow = {"ph": ph, "cat": HOST_DEVICE, "pid": pid, "tid": tid, "ts": ts}
                    self._events.append(event_of({**arrow, "id": number}))
        self._flush()

    def _add(self, fields: dict[str, Any], start_ns: int, duration_ns: int) -> None:
        if self.base_ns < 0:
            self.base_ns = start_ns
        fields["ts"] = (start_ns - self.base_ns) / 1000
        # A slice without an end has no valid time.
        fields["dur"] = duration_ns / 1000 if duration_ns >= 0 else None
        self.tables.unread.see({"ph": "X", **fields})
        self._events.append(event_of({"ph": "X", **fields}))
        if len(self._events) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        if self._events:
            self.tables.add(self._events)
            self._events = []

    def _thread(self, number: int) -> tuple[int, int]:
        """Process and thread of a track, of itself or of those above it."""
        process, thread = None, None
        at: int | None = number
        seen: set[int] = set()
        while at and at not in seen and (track := self._source.tracks.get(at)):
            seen.add(at)
            process = track.process if process is None else process
            thread = track.thread if thread is None else thread
            at = track.parent
        return process or 0, number if thread is None else thread

    def _translated(
        self, each: Slice, track: PacketTrack, place: tuple[int, int]
    ) -> dict[str, Any]:
        """The event of a slice; that of torch is one but for its place."""
        category, arguments = each.category, each.arguments
        fields = {"cat": category, "name": each.name, "pid": place[0], "tid": place[1]}
        thread = arguments.get("tid")
        if _CALLS.fullmatch(category) or _MARKERS.fullmatch(category):
            fields["cat"] = "cuda_runtime" if _CALLS.fullmatch(category) else "user_annotation"
            self.processes.add(place[0])
            fields["tid"] = thread if isinstance(thread, int) else place[1]
            return {**fields, "args": {"correlation": _correlation(arguments)}}
        is_copy = _COPIES.fullmatch(category) or _COPY_NAME.search(each.name)
        by_stream = category == _STREAMS
        if _KERNELS.fullmatch(category) or (by_stream and _KERNEL_KEYS & arguments.keys()):
            return {**fields, "cat": "kernel", **self._activity(each, track, "agent")}
        if is_copy and (by_stream or _COPIES.fullmatch(category)):
            match = _COPY_NAME.search(each.name)
            of, to = match.groups() if match else ("?", "?")
            agent = "src_agent" if to == "HOST" else "dst_agent"
            name = f"Memcpy {of[0]}to{to[0]} ({of.title()} -> {to.title()})"
            own = self._activity(each, track, agent)
            return {**fields, "cat": "gpu_memcpy", "name": name if match else each.name, **own}
        return {**fields, "args": arguments}

    def _activity(self, each: Slice, track: PacketTrack, agent: str) -> dict[str, Any]:
        given = each.arguments
        in_track = _IN_TRACK.findall(track.name)
        device = _number(given.get(agent))
        if device is None and "stream" not in track.name.casefold() and in_track:
            device = int(in_track[0])
        self.without_gpu += device is None
        streams = (given.get("stream_ID"), given.get("stream_id"), given.get("queue"))
        known = [each for each in map(_number, streams) if each]
        block, items = _sizes(given.get("workgroup_size")), _sizes(given.get("grid_size"))
        registers = [_number(given.get(key)) for key in ("VGPR_Count", "Accum_VGPR_Count")]
        lds = given.get("LDS_Block_Size", given.get("group_segment_size"))
        arguments = {
            "device": device or 0,
            "stream": known[0] if known else 0,
            "correlation": _correlation(given),
            "bytes": given.get("copy_bytes", given.get("size", -1)),
        }
        if block and items:
            groups = [-(-item // own) for item, own in zip(items, block, strict=False)]
            arguments |= {"grid": groups, "block": block}
        if registers[0] is not None:
            arguments["registers per thread"] = sum(each or 0 for each in registers)
        if isinstance(lds, int):
            arguments["shared memory"] = lds
        return {"args": arguments}


def _own_times(each: Slice) -> tuple[int, int]:
    """Begin and end of a slice: those that it states, else of its packets; the end may be -1."""
    begin, end = each.arguments.get("begin_ns"), each.arguments.get("end_ns")
    if isinstance(begin, int) and isinstance(end, int) and end >= begin == each.time_ns:
        return begin, end
    return each.time_ns, each.end_ns


def _event_of_stage(stage: Stage) -> dict[str, Any]:
    facts = stage.facts
    device, stream = facts.get("device id"), facts.get("stream id")
    number = _number(stage.queue)
    arguments: dict[str, Any] = {
        **facts,
        "device": stage.gpu if device is None else device,
        "stream": stream if stream is not None else number if number is not None else stage.queue,
        **{_FIGURES[name]: value for name, value in stage.arguments.items() if name in _FIGURES},
    }
    if stage.sizes:
        arguments |= {"grid": list(stage.sizes[0]), "block": list(stage.sizes[1])}
    return {
        "cat": _STAGES.get(stage.stage, stage.stage),
        "name": stage.name or stage.stage,
        "pid": stage.gpu,
        "tid": arguments["stream"],
        "args": arguments,
    }


def _correlation(arguments: dict[str, Any]) -> Any:
    return next(
        (arguments[key] for key in ("corr_id", "stack_id", "correlation") if key in arguments), -1
    )


def _number(value: Any) -> int | None:
    """A number, or the last one in a text such as `Agent-4`; None without one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _NUMBER.findall(value) if isinstance(value, str) else []
    return int(found[-1]) if found else None


def _sizes(value: Any) -> list[int]:
    """A size as three numbers: of `(64,1,1)`, or the product alone; [] for none."""
    sizes = [value] if isinstance(value, int) else [*map(int, _texts_of(value))]
    usable = bool(sizes) and all(0 < each < _MOST_SIZE for each in sizes)
    return [*sizes, 1, 1][:3] if usable else []


def _texts_of(value: Any) -> Sequence[str]:
    return _NUMBER.findall(value) if isinstance(value, str) else ()
