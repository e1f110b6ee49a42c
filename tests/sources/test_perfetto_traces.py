"""Perfetto traces: what each writer's packets become, clocks, damage, and the missing package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.graph.build import step_graph
from chopper_core.graph.dependencies import Evidence
from chopper_core.ingest.open import open_run
from chopper_core.model.table import Category, KernelTable
from chopper_core.sources.perfetto import reader
from chopper_core.sources.perfetto.packets import Slice, paired_slices
from chopper_core.util.errors import DataError
from tests.sources.pftraces import (
    BOOTTIME,
    REALTIME,
    TraceWriter,
    messages,
    rocprofv3_trace,
    torch_trace,
)
from tests.wording import Wording

BASE = 1_768_000_000_123_456_789


def activities(table: KernelTable) -> list[tuple[str, int, int, int, int]]:
    """Name, stream, start, duration and launch of each, by start."""
    found = zip(
        [table.names[code] for code in table.kernel],
        table.stream.tolist(),
        table.start_ns.tolist(),
        table.duration_ns.tolist(),
        table.launch_ns.tolist(),
        strict=True,
    )
    return sorted(found, key=lambda row: row[2])


def test_a_trace_of_torch_is_that_of_its_json(tmp_path: Path) -> None:
    run = open_run(str(torch_trace(tmp_path, BASE)), jobs=1)
    table = run.table
    assert run.ranks == (2,)
    assert activities(table) == [
        ("gemm_kernel", 7, BASE + 20_001, 30_000, BASE + 2_000),
        ("relu_kernel", 20, BASE + 50_002, 10_003, BASE + 10_000),
        ("Memcpy", 7, BASE + 70_000, 1_000, BASE + 13_000),
    ]
    assert set(table.iteration.tolist()) == {3}
    (gemm,) = np.flatnonzero([table.names[code] == "gemm_kernel" for code in table.kernel])
    assert table.measured["grid"][gemm] == 32 and table.measured["block"][gemm] == 128
    assert table.measured["registers"][gemm] == 96
    assert table.measured["model_flops"][gemm] == 2 * 64 * 32 * 16
    assert table.bytes[table.category == Category.MEMCPY].tolist() == [4096]
    assert (run.measured["power_w"].curves.keys(), run.telemetry[0].unused) == ({2}, {})
    assert run.sources[0].clock.startswith("epoch")
    assert run.sources[0].unused == {"gpu_user_annotation": 1}


def test_a_call_without_an_end_is_no_activity_without_a_time(
    tmp_path: Path, wording: Wording
) -> None:
    path = torch_trace(tmp_path, BASE, lambda trace: trace.begin(BASE + 95_000, 2, "op", "cpu_op"))
    (source,) = open_run(str(path), jobs=1).sources
    (note,) = source.losses
    wording(note, "1 event")
    assert "untimed" not in [doubt.code for doubt in source.doubts]


def test_a_trace_of_rocprofv3_has_kernels_copies_and_calls(tmp_path: Path) -> None:
    rows = [
        ("gemm", 10_000, 40_000, 1, 7),
        ("relu", 30_000, 60_000, 2, 8),
        ("MEMORY_COPY_HOST_TO_DEVICE", 2_000, 9_000, 1, 6),
        ("gemm", 35_000, 50_000, 1, 9),  # overlaps the first on its track
    ]
    run = open_run(str(rocprofv3_trace(tmp_path, rows)), jobs=1)
    epoch = 1_700_000_000_000_000_000
    expected = [
        (name.replace("MEMORY_COPY_HOST_TO_DEVICE", "Memcpy HtoD (Host -> Device)"), queue,
         epoch + begin, end - begin, epoch + begin - 900)
        for name, begin, end, queue, _ in sorted(rows, key=lambda row: row[1])
    ]  # fmt: skip
    assert activities(run.table) == expected
    assert [gpu.device for gpu in run.gpus] == [4]
    kernels = run.table.category == Category.KERNEL
    assert set(run.table.measured["grid"][kernels]) == {10}
    assert set(run.table.measured["registers"][kernels]) == {40}
    assert set(run.table.measured["lds_bytes"][kernels]) == {512}
    assert run.table.bytes[~kernels].tolist() == [1 << 20]


@pytest.mark.parametrize("by_stream", [True, False])
def test_a_trace_of_rocprof_sys_groups_by_queue_or_stream(
    tmp_path: Path, by_stream: bool, wording: Wording
) -> None:
    trace = TraceWriter()
    trace.clocks((BOOTTIME, 1_000), time=1_000)
    trace.track(1, process={"pid": 9})
    trace.track(2, parent_uuid=1, thread={"pid": 9, "tid": 10})
    name = "HIP Activity Stream 3" if by_stream else "GPU Kernel Dispatch [1] Queue 5"
    category = "rocm_hip_stream" if by_stream else "rocm_kernel_dispatch"
    trace.track(3, parent_uuid=1, name=name)
    trace.begin(1_000, 2, "step 4", "rocm_marker_api", stack_id=1)
    trace.begin(2_000, 2, "hipLaunchKernel", "rocm_hip_api", stack_id=2)
    trace.end(2_500, 2)
    trace.begin(4_000, 3, "k", category, begin_ns=4_000, end_ns=9_000, stack_id=2, stream_id=3,
                queue=5, dispatch_id=1, kernel_id=2, workgroup_size="(64,2,1)",
                grid_size="(640,4,1)")  # fmt: skip
    trace.end(9_000, 3)
    trace.end(20_000, 2)
    run = open_run(str(trace.write(tmp_path / "perfetto-trace-9.proto")), jobs=1)
    assert activities(run.table) == [("k", 3, 4_000, 5_000, 2_000)]
    assert run.table.iteration.tolist() == [4] and run.gpus[0].device == (0 if by_stream else 1)
    assert run.table.measured["grid"].tolist() == [20]
    assert run.table.measured["block"].tolist() == [128]
    wording(run.sources[0].clock, "boottime")
    notes = [each for each in run.sources[0].losses if "names no GPU" in each]
    assert len(notes) == by_stream


def test_waits_of_a_graph_s_activities_are_stated(tmp_path: Path) -> None:
    trace = TraceWriter()
    trace.clocks((BOOTTIME, 1), time=1)
    trace.interned(gpu_specifications={1: "Kernel"}, event_names={1: "a", 2: "b", 3: "c"})
    waits: dict[int, list[int]] = {1: [], 2: [1], 3: [1]}
    for number, at in ((1, 1_000), (2, 9_000), (3, 20_000)):
        event = trace.stage(at, 5_000, 7, 1, number, device_id=0, stream_id=6 + number,
                            correlation=4, graph_node_id=number)  # fmt: skip
        event.event_id = number
        event.event_wait_ids.extend(waits[number])
    run = open_run(str(trace.write(tmp_path / "a.pftrace")), jobs=1)
    graph = step_graph(run)
    own = graph.evidence == Evidence.EVENT
    name = [run.table.names[code] for code in run.table.kernel]
    assert {(name[graph.row[s]], name[graph.row[t]])
            for s, t in zip(graph.source[own], graph.target[own], strict=True)} == {
        ("a", "b"), ("a", "c"),
    }  # fmt: skip


def test_slices_of_a_track_nest_by_time() -> None:
    def row(time: int, name: str = "") -> Slice:
        return Slice(1, time, not name, name)

    def ends(*rows: Slice) -> dict[str, int]:
        return {each.name: each.end_ns for each in paired_slices(list(rows))}

    # Begins, then ends in the same order, as torch's encoder writes; siblings that touch.
    assert ends(row(0, "a"), row(10, "b"), row(20, "c"), row(100), row(20), row(30)) == {
        "a": 100, "b": 20, "c": 30,
    }  # fmt: skip
    # As calls come and go; one takes no time.
    assert ends(row(0, "a"), row(5, "b"), row(5), row(7, "c"), row(9), row(9)) == {
        "a": 9, "b": 5, "c": 9,
    }  # fmt: skip
    assert ends(row(0, "a"), row(3, "b"), row(4)) == {"a": -1, "b": 4}


def test_damage_costs_what_it_hits(tmp_path: Path, wording: Wording) -> None:
    whole = torch_trace(tmp_path, BASE)
    import gzip

    data = gzip.decompress(whole.read_bytes())
    cut = tmp_path / "cut.pftrace"
    cut.write_bytes(data[:-7])
    run = open_run(str(cut), jobs=1)
    assert len(run.table) == 3
    wording.among(run.sources[0].losses, "middle of a packet")
    odd = tmp_path / "odd.pftrace"
    odd.write_bytes(data + b"\xff" * 50)
    run = open_run(str(odd), jobs=1)
    assert len(run.table) == 3
    assert any("damaged" in each for each in run.sources[0].losses)
    for name, text in (("text.pftrace", b"\nhello"), ("zeros.pftrace", b"\n\x00" * 9)):
        (tmp_path / name).write_bytes(text)
        with pytest.raises(DataError, match=name):
            open_run(str(tmp_path / name), jobs=1)


def test_a_compressed_packet_is_unpacked(tmp_path: Path) -> None:
    import zlib

    inner = TraceWriter()
    inner.clocks((BOOTTIME, 1), time=1)
    inner.interned(gpu_specifications={1: "Kernel"}, event_names={1: "k"})
    inner.stage(1_000, 500, 7, 1, 1, device_id=0, stream_id=7)
    outer = messages().Trace()
    outer.packet.add().compressed_packets = zlib.compress(inner.trace.SerializeToString())
    (tmp_path / "a.pftrace").write_bytes(outer.SerializeToString())
    run = open_run(str(tmp_path / "a.pftrace"), jobs=1)
    assert activities(run.table)[0][:4] == ("k", 7, 1_000, 500)


def test_packets_that_nothing_reads_are_in_info(tmp_path: Path) -> None:
    def more(trace: TraceWriter) -> None:
        trace.packet(BASE).cpu_info.SetInParent()
        trace.packet(BASE).track_event.type = messages().TrackEvent.TYPE_INSTANT
        lost = trace.packet(7)
        lost.timestamp_clock_id = 99
        lost.track_event.type = messages().TrackEvent.TYPE_SLICE_END

    run = open_run(str(torch_trace(tmp_path, BASE, more)), jobs=1)
    unused = run.sources[0].unused
    assert unused["cpu_info"] == 1 and unused["track_event TYPE_INSTANT"] == 1
    assert any("no snapshot ties" in each for each in run.sources[0].losses)


def test_without_the_package_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pftrace"
    path.write_bytes(b"\n\x02\x40\x05" * 3)  # three packets with a timestamp
    monkeypatch.setitem(sys.modules, "perfetto", None)
    monkeypatch.setattr(reader, "find_spec", lambda _: None)
    with pytest.raises(DataError, match=r"package perfetto reads: pip install 'chopper-tui\[perf"):
        open_run(str(path), jobs=1)


def test_clocks_are_tied_by_snapshots(tmp_path: Path) -> None:
    """Times on the realtime clock, in a trace whose main clock is since boot."""
    trace = TraceWriter()
    trace.clocks((BOOTTIME, 5_000), (REALTIME, BASE + 5_000), time=5_000)
    trace.interned(gpu_specifications={1: "Kernel"}, event_names={1: "k"})
    for at, clock in ((BASE + 9_000, REALTIME), (12_000, 0)):
        trace.stage(at, 100, 7, 1, 1, device_id=0, stream_id=7)
        trace.trace.packet[-1].timestamp_clock_id = clock
    run = open_run(str(trace.write(tmp_path / "a.pftrace")), jobs=1)
    assert sorted(run.table.start_ns.tolist()) == [BASE + 9_000, BASE + 12_000]


def test_ranks_of_a_folder_are_one_run_and_other_traces_come_first(
    tmp_path: Path, wording: Wording
) -> None:
    for rank in range(2):
        path = torch_trace(tmp_path, BASE)
        path.rename(tmp_path / f"job_rank{rank}.pftrace.gz")
    run = open_run(str(tmp_path), jobs=1)
    assert run.ranks == (0, 1) and len(run.table) == 6
    (tmp_path / "rank0.json").write_text(
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "pid": 0,'
        ' "tid": 7}], "distributedInfo": {"rank": 0}}'
    )
    run = open_run(str(tmp_path), jobs=1)
    assert len(run.table) == 1
    assert len(run.skipped) == 2
    (why,) = {why for _, why in run.skipped}
    wording(why, "Perfetto", "alone")


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda trace: None, "is a Perfetto trace without slices or activities of GPUs"),
        (lambda trace: trace.track(1, name="x"), "is a Perfetto trace without slices"),
    ],
)
def test_a_trace_without_activities_is_refused(tmp_path: Path, write: Any, says: str) -> None:
    trace = TraceWriter()
    trace.clocks((BOOTTIME, 1), time=1)
    write(trace)
    with pytest.raises(DataError, match=says):
        open_run(str(trace.write(tmp_path / "a.pftrace")), jobs=1)


def test_calls_of_several_processes_in_one_file_are_said(tmp_path: Path, wording: Wording) -> None:
    """Their ids are the same, and an activity doesn't name its process."""
    trace = TraceWriter()
    for pid in (500, 600):
        trace.track(pid, process={"pid": pid, "process_name": "python"})
        trace.track(pid + 1, parent_uuid=pid, thread={"pid": pid, "tid": pid})
        trace.begin(1000 + pid, pid + 1, "hipLaunchKernel", "hip_api", corr_id=1, tid=pid)
        trace.end(1100 + pid, pid + 1)
        lane = pid + 2
        trace.track(lane, name=f"COMPUTE AGENT [{pid // 100}] QUEUE [1] (GPU)")
        trace.begin(2000 + pid, lane, "gemm", "kernel_dispatch", corr_id=1, agent=pid // 100)
        trace.end(2400 + pid, lane)
    run = open_run(str(trace.write(tmp_path / "node.pftrace")), jobs=1)
    wording.among(run.sources[0].losses, "2 processes", "steps may be another's")
