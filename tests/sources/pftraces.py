"""Perfetto traces as their writers make them, by the messages of the official package."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

REALTIME, BOOTTIME, INCREMENTAL, ABSOLUTE = 1, 6, 64, 65
CLEARED, NEEDS = 1, 2


def messages() -> Any:
    pytest.importorskip("perfetto", reason="the extra [perfetto] isn't installed")
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    return perfetto_trace_pb2


class TraceWriter:
    """A trace of one sequence."""

    def __init__(self) -> None:
        self.trace = messages().Trace()
        self.names: dict[tuple[str, str], int] = {}

    def packet(self, time: int | None = None, flags: int = NEEDS) -> Any:
        packet = self.trace.packet.add()
        packet.trusted_packet_sequence_id = 1
        packet.sequence_flags = flags
        if time is not None:
            packet.timestamp = time
        return packet

    def clocks(self, *clocks: tuple[int, int], time: int | None = None) -> None:
        snapshot = self.packet(time, CLEARED).clock_snapshot
        for number, at in clocks:
            clock = snapshot.clocks.add(clock_id=number, timestamp=at)
            clock.is_incremental = number == INCREMENTAL

    def track(self, uuid: int, **fields: Any) -> None:
        descriptor = self.packet().track_descriptor
        descriptor.uuid = uuid
        for name, value in fields.items():
            if isinstance(value, dict):
                for key, each in value.items():
                    setattr(getattr(descriptor, name), key, each)
            else:
                setattr(descriptor, name, value)

    def interned(self, **tables: dict[int, str]) -> None:
        data = self.packet().interned_data
        for table, texts in tables.items():
            for iid, text in texts.items():
                getattr(data, table).add(iid=iid, name=text)

    def begin(self, time: int, uuid: int, name: str, category: str, **annotations: Any) -> None:
        event = self.packet(time).track_event
        event.type = messages().TrackEvent.TYPE_SLICE_BEGIN
        event.track_uuid, event.name = uuid, name
        event.categories.append(category)
        for key, value in annotations.items():
            annotation = event.debug_annotations.add(name=key.replace("__", " "))
            annotate(annotation, value)

    def end(self, time: int, uuid: int) -> None:
        event = self.packet(time).track_event
        event.type = messages().TrackEvent.TYPE_SLICE_END
        event.track_uuid = uuid

    def stage(
        self, time: int, duration: int, lane: int, stage: int, name: int = 0, **facts: Any
    ) -> Any:
        event = self.packet(time).gpu_render_stage_event
        event.duration, event.gpu_id = duration, 0
        event.hw_queue_iid, event.stage_iid = lane, stage
        if name:
            event.name_iid = name
        for key, value in facts.items():
            event.extra_data.add(name=key.replace("_", " "), value=str(value))
        return event

    def write(self, path: Path) -> Path:
        data = self.trace.SerializeToString()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path


def annotate(annotation: Any, value: Any) -> None:
    if isinstance(value, bool):
        annotation.bool_value = value
    elif isinstance(value, int):
        annotation.int_value = value
    elif isinstance(value, float):
        annotation.double_value = value
    elif isinstance(value, str):
        annotation.string_value = value
    elif isinstance(value, list):
        for each in value:
            annotate(annotation.array_values.add(), each)


def torch_trace(folder: Path, base: int, write: Callable[[Any], None] = lambda _: None) -> Path:
    """A step of torch's CUPTI backend: all begins of a group of slices, then all their ends."""
    trace = TraceWriter()
    trace.clocks((BOOTTIME, base), (REALTIME, base), time=base)
    trace.track(1, process={"pid": 500, "process_name": "python"})
    trace.track(2, parent_uuid=1, thread={"pid": 500, "tid": 501, "thread_name": "thread 501"})
    trace.interned(
        event_names={1: "gemm_kernel", 2: "relu_kernel"},
        gpu_specifications={1: "Kernel", 2: "Memcpy", 4: "Annotation", 100: "[07] stream 7",
                            101: "[20] stream 20"},
    )  # fmt: skip
    data = trace.packet().interned_data
    name = messages().InternedComputeArgName(iid=1, name="registers_per_thread")
    text = name.SerializeToString()
    # The messages of the package lack the field 1001, which torch writes by its number.
    data.MergeFromString(b"\xca\x3e" + bytes([len(text)]) + text)
    slices = [
        (0, 90_000, "ProfilerStep#3", "user_annotation", {"External__id": 1}),
        (1_000, 9_000, "aten::mm", "cpu_op",
         {"External__id": 2, "Input__Dims": [[64, 32], [32, 16]], "Sequence__number": 5}),
        (9_000, 12_000, "aten::relu", "cpu_op", {"External__id": 3}),
    ]  # fmt: skip
    for begin, _, name, category, arguments in slices:
        trace.begin(base + begin, 2, name, category, **arguments)
    for _, end, *_ in slices:
        trace.end(base + end, 2)
    calls = [(2_000, 5_000, 11), (10_000, 11_000, 12), (13_000, 14_000, 13)]
    for begin, _, correlation in calls:
        name = "cudaMemcpyAsync" if correlation == 13 else "cudaLaunchKernel"
        trace.begin(base + begin, 2, name, "cuda_runtime", correlation=correlation)
    for _, end, _ in calls:
        trace.end(base + end, 2)
    event = trace.stage(base + 20_001, 30_000, 100, 1, 1, device_id=0, stream_id=7,
                        correlation=11, context_id=1)  # fmt: skip
    launch = event.launch
    launch.grid_size.x, launch.grid_size.y, launch.grid_size.z = 16, 2, 1
    launch.workgroup_size.x, launch.workgroup_size.y, launch.workgroup_size.z = 128, 1, 1
    launch.args.add(name_iid=1, uint_value=96)
    trace.stage(base + 50_002, 10_003, 101, 1, 2, device_id=0, stream_id=20, correlation=12)
    trace.stage(base + 70_000, 1_000, 100, 2, 0, device_id=0, stream_id=7, correlation=13,
                bytes=4096)  # fmt: skip
    trace.stage(base + 20_000, 60_000, 100, 4, 0, device_id=0, stream_id=7)
    descriptor = trace.packet().interned_data.gpu_counter_descriptors.add(iid=1, gpu_id=0)
    descriptor.counter_descriptor.specs.add(counter_id=0, name="Power (W)")
    for number in range(5):
        event = trace.packet(base + 20_000 * number).gpu_counter_event
        event.counter_descriptor_iid = 1
        event.counters.add(counter_id=0, double_value=500.0 + number)
    write(trace)
    return trace.write(folder / "rank2.pftrace.gz")


def rocprofv3_trace(folder: Path, rows: Iterable[tuple[str, int, int, int, int]]) -> Path:
    """Kernels and copies as (name, begin, end, queue, id), with their calls, by rocprofv3: times
    are of a clock of the sequence, and slices state them once more."""
    trace, base, last = TraceWriter(), 5_000_000_000, 5_000_000_000
    trace.clocks((BOOTTIME, base), (REALTIME, 1_700_000_000_000_000_000), (INCREMENTAL, base),
                 (ABSOLUTE, base), time=base)  # fmt: skip
    defaults = trace.packet().trace_packet_defaults
    defaults.timestamp_clock_id = INCREMENTAL
    trace.track(10, process={"pid": 700})
    trace.track(11, parent_uuid=10, name="THREAD 1 (701)")

    def timed(at: int) -> int:
        """The time since the packet before; of an earlier one the time itself."""
        nonlocal last
        if at < last:
            return at
        last, since = at, at - last
        return since

    def on_clock(at: int) -> None:
        packet = trace.trace.packet[-1]
        if packet.timestamp == at:
            packet.timestamp_clock_id = ABSOLUTE

    for name, begin, end, queue, number in rows:
        times = {"begin_ns": base + begin, "end_ns": base + end}
        is_copy = name.startswith("MEMORY_COPY")
        agents = {"agent": "Agent-4"}
        if is_copy:
            agents = {"src_agent": "CPU-0", "dst_agent": "Agent-4", "copy_bytes": 1 << 20}
        call = {"begin_ns": base + begin - 900, "end_ns": base + begin - 500}
        sizes = {} if is_copy else {"workgroup_size": 256, "grid_size": 2560, "kernel_id": 3,
                                    "VGPR_Count": 32, "Accum_VGPR_Count": 8,
                                    "LDS_Block_Size": 512}  # fmt: skip
        lane = 20 + queue
        trace.track(lane, name=f'STREAM [" {queue} "] ')
        for begun, ended, place, title, kind, more in (
            (call["begin_ns"], call["end_ns"], 11, "hipLaunchKernel", "hip_api", call),
            (base + begin, base + end, lane, name, "memory_copy" if is_copy else "kernel_dispatch",
             {**times, **agents, **sizes, "queue": queue, "stream_ID": queue}),
        ):  # fmt: skip
            trace.begin(timed(begun), place, title, kind, corr_id=number, tid=701, **more)
            on_clock(begun)
            trace.end(timed(ended), place)
            on_clock(ended)
    return trace.write(folder / "700_results.pftrace")
