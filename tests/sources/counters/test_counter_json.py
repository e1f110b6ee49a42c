"""rocprofv3 JSON: counters summed over instances, roctx, several processes, any order of keys."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.table import Category
from chopper_core.sources.counters.rocprofv3_json import read as read_json
from chopper_core.tables.bytes import PIECE_BYTES, ByteSource
from chopper_core.tables.json_stream import JsonStream, TextEnded
from chopper_core.util.errors import DataError
from chopper_core.views.query import query
from tests.sources.counters.counter_writers import table_of
from tests.wording import Wording


def dispatch(number: int) -> dict[str, Any]:
    return {
        "size": 1,
        "thread_id": 78,
        "correlation_id": {"internal": number, "external": 0},
        "start_timestamp": 1000 * number,
        "end_timestamp": 1000 * number + 50,
        "dispatch_info": {
            "agent_id": {"handle": 901 + number % 2},
            "queue_id": {"handle": 16},
            "kernel_id": 1 + number % 2,
            "dispatch_id": number,
            "workgroup_size": {"x": 64, "y": 1, "z": 1},
            "grid_size": {"x": 256, "y": 2, "z": 1},
        },
    }


def process(pid: int = 77, count: int = 4) -> dict[str, Any]:
    call = {"thread_id": 78, "kind": 1, "operation": 1}
    return {
        "metadata": {"pid": pid, "command": ['a "quoted" [thing]']},
        "agents": [
            {
                "id": {"handle": 900 + node},
                "type": 1 if node == 0 else 2,
                "node_id": node,
                "logical_node_id": node,
                "name": "gfx942",
                "cu_count": 304,
                "num_xcc": 8,
            }
            for node in (0, 1, 2)
        ],
        "counters": [
            {"id": {"handle": 5}, "name": "SQ_WAVES", "description": "waves"},
            {"id": {"handle": 6}, "name": "MfmaUtil", "description": "share"},
        ],
        "strings": {"marker_api": [{"key": 500, "value": "layer 1"}], "other": [1, {"a": []}]},
        "kernel_symbols": [
            {"kernel_id": 1, "formatted_kernel_name": "gemm.kd"},
            {"kernel_id": 2, "formatted_kernel_name": 'add<"{[", 1> [clone .kd]'},
        ],
        "callback_records": {
            "counter_collection": [
                {
                    "thread_id": 78,
                    "dispatch_data": {
                        key: value for key, value in dispatch(number).items() if key != "thread_id"
                    },
                    "records": [
                        {"counter_id": {"handle": 5}, "value": 10.0 * number},
                        {"counter_id": {"handle": 5}, "value": 1.0},
                        {"counter_id": {"handle": 6}, "value": 0.5},
                    ],
                }
                for number in (1, 2)
            ]
        },
        "buffer_records": {
            "kernel_dispatch": [dispatch(number) for number in range(count, 0, -1)],
            "hip_api": [
                {
                    **call,
                    "correlation_id": {"internal": number},
                    "start_timestamp": 100 * number,
                    "end_timestamp": 100 * number + 5,
                }
                for number in range(1, count + 1)
            ],
            "marker_api": [
                {
                    **call,
                    "correlation_id": {"internal": 500},
                    "start_timestamp": 150,
                    "end_timestamp": 350,
                }
            ],
            "pc_sample_host_trap": [],
        },
    }


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return value


def write(path: Path, value: Any, **options: Any) -> Path:
    path.write_text(json.dumps(value, **options), encoding="utf-8")
    return path


def test_counters_regions_and_agents(tmp_path: Path) -> None:
    (run,) = read_json(write(tmp_path / "a.json", {"rocprofiler-sdk-tool": [process()]}))
    rows = {row[4]: row for row in table_of(run)}
    assert [rows[number][0] for number in (1, 2, 3, 4)] == ['add<"{[", 1>', "gemm"] * 2
    assert [rows[number][1] for number in (1, 2, 3, 4)] == [2, 1, 2, 1]
    assert rows[1][-1] == {"SQ_WAVES": 11.0, "MfmaUtil": 0.5}
    assert rows[2][-1] == {"SQ_WAVES": 21.0, "MfmaUtil": 0.5}
    assert rows[3][-1] == {"SQ_WAVES": None, "MfmaUtil": None}
    assert [rows[number][-2] for number in (1, 2, 3, 4)] == [None, "layer 1", "layer 1", None]
    assert {row[2] for row in rows.values()} == {77}
    assert [agent.node_id for agent in run.agents] == [1, 2]
    assert run.counter_info["SQ_WAVES"].description == "waves"
    assert run.counter_info["MfmaUtil"].unit == "%"


@pytest.mark.parametrize("options", [{}, {"indent": 2}, {"separators": (",", ":")}])
def test_layout_and_order_of_keys_mean_nothing(tmp_path: Path, options: dict[str, Any]) -> None:
    value = {"rocprofiler-sdk-tool": [process(), process(78)]}
    plain = read_json(write(tmp_path / "a.json", value))
    other = write(tmp_path / "b.json", reordered({"x": [], **value}), **options)
    packed = tmp_path / "c.json.gz"
    packed.write_bytes(gzip.compress(other.read_bytes()))
    assert len(plain) == 2
    for path in (other, packed):
        assert list(map(table_of, read_json(path))) == list(map(table_of, plain))


@pytest.mark.parametrize("piece_bytes", [1, 7, 64, PIECE_BYTES])
def test_pieces_of_any_size(tmp_path: Path, piece_bytes: int) -> None:
    value = {
        "a": [{"b": '"}]\\'}, {"b": [1, {"c": 2}]}, 7, {"b": 8}, [{"b": 9}]],
        "skipped": {"x": ["]", {}]},
        "last": 3,
    }
    decode = msgspec.json.Decoder(list[dict[str, Any]]).decode
    path = write(tmp_path / "a.json", value)
    with ByteSource(path, piece_bytes) as source:
        pieces = JsonStream(source)
        assert pieces.enter(b"{") and pieces.key() == "a" and pieces.enter(b"[")
        found = []
        while (batch := pieces.records(decode, lambda one: [("repaired", one)])) is not None:
            found += batch
        objects = value["a"]
        assert found == [*objects[:2], ("repaired", b"7"), objects[3], ("repaired", b'[{"b": 9}]')]
        assert pieces.key() == "skipped"
        pieces.skip_value()
        assert pieces.key() == "last" and pieces.value() == b"3" and pieces.key() is None
        with pytest.raises(TextEnded):
            pieces.key()


def test_truncated_text_keeps_what_was_whole(tmp_path: Path, wording: Wording) -> None:
    value = process(count=300)
    text = json.dumps({"rocprofiler-sdk-tool": [value]})
    path = tmp_path / "cut.json"
    counts = []
    for share in (0.2, 0.4, 0.6, 0.8, 0.9, 0.999):
        path.write_text(text[: int(len(text) * share)])
        try:
            (run,) = read_json(path)
        except DataError as error:
            assert str(path) in str(error)
            continue
        assert run.losses.truncated
        wording.among(run.losses.notes, "records end")
        counts.append(len(run.dispatches))
    assert counts == sorted(counts) and counts[-1] == 300 and counts[0] > 2


def test_odd_records_are_counted_or_repaired(tmp_path: Path) -> None:
    value = process()
    value["buffer_records"]["kernel_dispatch"][0] = {"dispatch_info": "none"}
    value["buffer_records"]["kernel_dispatch"][1]["thread_id"] = "78"
    value["buffer_records"]["kernel_dispatch"] += [7, None]
    text = json.dumps({"rocprofiler-sdk-tool": [value]}).replace("gemm.kd", "ge\x01mm.kd")
    path = tmp_path / "a.json"
    path.write_text(text)
    (run,) = read_json(path)
    assert len(run.dispatches) == 3
    assert run.losses.unreadable_events == 3 and run.losses.repaired_pieces == 2
    assert "ge\x01mm" in run.names


@pytest.mark.parametrize("text", ["", "{}", "[]", "{", '{"rocprofiler-sdk-tool": []}', "\x00"])
def test_other_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"a\.json"):
        read_json(path)


@pytest.mark.parametrize("handle", [{"a": [1]}, [1], "text", 1.5, None])
def test_an_agent_whose_id_is_no_number_is_unknown(tmp_path: Path, handle: object) -> None:
    written = process()
    written["agents"][0]["id"] = {"handle": handle}
    path = tmp_path / "a_results.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [written]}))
    (run,) = read_json(path)
    assert len(run.dispatches)


def test_calls_of_hip_and_copies_are_in_the_run(tmp_path: Path) -> None:
    """A launch of each of two kernels, a copy to the GPU, and one from the host to itself."""
    calls = [
        {"kind": 1, "operation": int(number > 2), "correlation_id": {"internal": number},
         "thread_id": 7, "start_timestamp": 100 * number,
         "end_timestamp": 100 * number + 9}
        for number in (1, 2, 3)
    ]  # fmt: skip
    dispatches = [
        {"correlation_id": {"internal": number}, "thread_id": 7, "start_timestamp": 1000 * number,
         "end_timestamp": 1000 * number + 400, "dispatch_info": {
             "kernel_id": 1, "dispatch_id": number, "agent_id": {"handle": 5}}}
        for number in (1, 2)
    ]  # fmt: skip
    copies = [
        {"kind": 2, "operation": 1, "correlation_id": {"internal": 3}, "start_timestamp": 5000,
         "end_timestamp": 5060, "bytes": 64, "src_agent_id": {"handle": 4},
         "dst_agent_id": {"handle": to}}
        for to in (5, 4)
    ]  # fmt: skip
    process = {
        "metadata": {"pid": 6},
        "buffer_records": {"hip_api": calls, "memory_copy": copies, "kernel_dispatch": dispatches},
        "agents": [
            {"id": {"handle": 4}, "type": 1}, {"id": {"handle": 5}, "type": 2, "node_id": 2},
        ],
        "kernel_symbols": [{"kernel_id": 1, "kernel_name": "gemm"}],
        "strings": {"buffer_records": [
            {"kind": "NONE", "operations": []},
            {"kind": "HIP_RUNTIME_API", "operations": ["hipLaunchKernel", "hipMemcpyAsync"]},
            {"kind": "MEMORY_COPY", "operations": ["MEMORY_COPY_NONE",
                                                   "MEMORY_COPY_HOST_TO_DEVICE"]},
        ]},
    }  # fmt: skip
    path = tmp_path / "1_results.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [process]}))
    run = open_run(str(path), jobs=1)
    table = run.table
    rows = sorted(
        zip(
            table.start_ns.tolist(), table.duration_ns.tolist(), table.launch_ns.tolist(),
            table.bytes.tolist(), [table.names[code] for code in table.kernel], strict=True,
        )
    )  # fmt: skip
    assert rows == [
        (1000, 400, 100, -1, "gemm"),
        (2000, 400, 200, -1, "gemm"),
        (5000, 60, 300, 64, "Memcpy HtoD (Host -> Device)"),
    ]
    assert run.sources[0].events == {"dispatch": 2, "copy": 1, "call": 3}


def steps_of_process(
    pid: int, agent: int, shift_ns: int, steps: Sequence[int] = (3, 4, 5)
) -> dict[str, Any]:
    """Steps of 100 µs with a kernel each, launched at the end of the step."""
    launches = [(step, 100_000 * step + shift_ns + 90_000) for step in steps]
    times = [
        {"correlation_id": {"internal": step}, "thread_id": pid, "kind": 1, "operation": 0,
         "start_timestamp": at, "end_timestamp": at + 2_000}
        for step, at in launches
    ]  # fmt: skip
    return {
        "metadata": {"pid": pid},
        "agents": [{"id": {"handle": 5}, "type": 2, "node_id": agent}],
        "kernel_symbols": [{"kernel_id": 1, "kernel_name": "gemm"}],
        "strings": {
            "marker_api": [{"key": step, "value": f"step {step}"} for step, _ in launches],
            "buffer_records": [
                {"kind": "NONE", "operations": []},
                {"kind": "HIP_RUNTIME_API", "operations": ["hipLaunchKernel"]},
            ],
        },
        "buffer_records": {
            "hip_api": times,
            "marker_api": [
                {"correlation_id": {"internal": step}, "thread_id": pid,
                 "start_timestamp": at - 90_000, "end_timestamp": at + 9_000}
                for step, at in launches
            ],
            "kernel_dispatch": [
                {"correlation_id": {"internal": step}, "thread_id": pid,
                 "start_timestamp": at + 5_000, "end_timestamp": at + 45_000,
                 "dispatch_info": {"kernel_id": 1, "dispatch_id": step, "agent_id": {"handle": 5}}}
                for step, at in launches
            ],
        },
    }  # fmt: skip


def test_processes_with_gpus_of_their_own_are_ranks_with_their_own_steps(tmp_path: Path) -> None:
    """Half a step apart: a launch of one is in another step of the other. The ids are the same."""
    path = tmp_path / "results.json"
    processes = [steps_of_process(900, 3, 50_000), steps_of_process(800, 2, 0)]
    path.write_text(json.dumps({"rocprofiler-sdk-tool": processes}))
    run = open_run(str(path), jobs=1)
    assert [(gpu.rank, gpu.device) for gpu in run.gpus] == [(0, 2), (1, 3)]
    table = run.table
    kernels = table.category == Category.KERNEL
    found = sorted(
        zip(
            table.gpu[kernels].tolist(), table.iteration[kernels].tolist(),
            table.start_ns[kernels].tolist(), table.launch_ns[kernels].tolist(), strict=True,
        )
    )  # fmt: skip
    launches = [
        (gpu, step, 100_000 * step + 90_000 + 50_000 * gpu) for gpu in (0, 1) for step in (3, 4, 5)
    ]
    assert found == [(gpu, step, at + 5_000, at) for gpu, step, at in launches]
    assert [source.rank for source in run.sources] == [0, 1]
    assert [source.events for source in run.sources] == [{"dispatch": 3, "call": 3}] * 2


def test_ranges_of_processes_that_share_a_gpu_are_not_used(
    tmp_path: Path, wording: Wording
) -> None:
    path = tmp_path / "results.json"
    processes = [steps_of_process(900, 3, 50_000), steps_of_process(800, 3, 0)]
    path.write_text(json.dumps({"rocprofiler-sdk-tool": processes}))
    run = open_run(str(path), jobs=1)
    assert [(gpu.rank, gpu.device) for gpu in run.gpus] == [(0, 3)]
    assert not set(run.table.iteration.tolist()) & {3, 4, 5}
    wording.among(run.sources[0].notes, "Several processes", "ranges are not used")


def test_dispatches_without_a_valid_time_are_in_doubt(tmp_path: Path) -> None:
    process = steps_of_process(800, 2, 0)
    dispatches = process["buffer_records"]["kernel_dispatch"]
    dispatches[1]["end_timestamp"] = dispatches[1]["start_timestamp"] - 1
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [process]}))
    run = open_run(str(path), jobs=1)
    assert int((run.table.category == Category.KERNEL).sum()) == 2
    assert [(doubt.code, doubt.count, doubt.of) for doubt in run.doubts] == [("untimed", 1, 3)]


def test_hosts_of_a_run_are_ranks_on_one_clock(tmp_path: Path) -> None:
    """Each host has one GPU, of the same number, and a clock since its own boot. An all-reduce ends
    at one moment on both; the host that the name of its folder hides is in the file."""
    boot_ns = {"frontier-2": 77_000_000_000, "frontier-10": 0}
    for number, (host, since_boot) in enumerate(boot_ns.items()):
        process = steps_of_process(800, 2, since_boot, range(3, 11))
        process["metadata"]["node"] = {"hostname": host}
        process["kernel_symbols"].append({
            "kernel_id": 2, "kernel_name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        })  # fmt: skip
        dispatches = process["buffer_records"]["kernel_dispatch"]
        for one in list(dispatches):
            begin = one["end_timestamp"] + 1_000 * (1 + number)
            end = one["end_timestamp"] + 8_000
            info = {**one["dispatch_info"], "kernel_id": 2}
            info["dispatch_id"] += 100
            dispatches.append({**one, "start_timestamp": begin, "end_timestamp": end,
                               "dispatch_info": info})  # fmt: skip
        folder = tmp_path / f"node{number}"
        folder.mkdir()
        text = json.dumps({"rocprofiler-sdk-tool": [process]})
        (folder / "800_results.json").write_text(text)
    run = open_run(str(tmp_path), jobs=1)
    assert [(gpu.rank, gpu.device) for gpu in run.gpus] == [(0, 2), (1, 2)]
    assert [source.host for source in run.sources] == ["frontier-2", "frontier-10"]
    assert [(clock.name, clock.correction_ns) for clock in run.hosts] == [
        ("frontier-2", 0), ("frontier-10", 77_000_000_000),
    ]  # fmt: skip
    table = run.table
    kernels = table.category == Category.KERNEL
    ends = [
        sorted((table.start_ns + table.duration_ns)[kernels & (table.gpu == gpu)].tolist())
        for gpu in (0, 1)
    ]
    assert ends[0] == ends[1] and len(ends[0]) == 16
    assert not run.skipped


def test_passes_on_different_hosts_are_passes(tmp_path: Path) -> None:
    """Of one program, with other counters each: the hosts didn't take part in one run."""
    for number, host in enumerate(("a", "b")):
        written = process()
        written["metadata"]["node"] = {"hostname": host}
        written["counters"][0]["name"] = f"SQ_{host}"
        (tmp_path / f"{number}_results.json").write_text(
            json.dumps({"rocprofiler-sdk-tool": [written]})
        )
    run = open_run(str(tmp_path), jobs=1)
    assert {gpu.rank for gpu in run.gpus} == {0} and not run.skipped
    assert {"SQ_a", "SQ_b"} <= set(run.table.measured)


def test_what_the_host_did_is_known_where_its_calls_are(tmp_path: Path) -> None:
    """Each of three kernels begins 5 µs after its launch call does, which takes 2; before it the
    host was in nothing that was traced."""
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [steps_of_process(800, 2, 0)]}))
    run = open_run(str(path), jobs=1)
    frame = query(run, parse("R?view=launch&by=host&base=total&cut=1"))
    causes = {frame.labels[row]: frame.row(row)["idle_ns"] for row in range(len(frame.labels))}
    assert sum(causes.values()) == int(run.table.idle_ns.sum()) > 0
    assert causes["launch calls"] == 3 * 2_000
