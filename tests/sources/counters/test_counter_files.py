"""Finding files of counters, and sorting them into processes, passes and runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.sources.counters.files import _process_of, find_counters
from chopper_core.util.errors import DataError
from tests.sources.counters.counter_writers import (
    counter_rows,
    minimal_rocpd,
    read_counters,
    write_csv,
)
from tests.wording import Wording

KERNELS = ("a", "b", "a")


def write_counters(
    path: Path, counter: str, kernels: tuple[str, ...] = KERNELS, **fixed: Any
) -> None:
    columns, rows = counter_rows(kernels, {counter: list(range(len(kernels)))}, **fixed)
    write_csv(path, columns, rows)


@pytest.mark.parametrize(
    "layout",
    [
        "pass_{p}/host/{pid}_counter_collection.csv",
        "pmc_{p}/gpu{g}/{pid}_counter_collection.csv",
        "{pid}_counter_collection.csv",
        "c{p}/host/{pid}_counter_collection.csv",
        "pass_{p}/rank{g}/out_{pid}_counter_collection.csv",
    ],
)
def test_passes_and_gpus_in_nested_folders(tmp_path: Path, layout: str, wording: Wording) -> None:
    for p, counter in enumerate(("SQ_WAVES", "GRBM_COUNT", "TCC_HIT_sum"), 1):
        for g in (0, 1):
            pid = 100 + 10 * p + g
            path = tmp_path / layout.format(p=p, g=g, pid=pid)
            write_counters(path, counter, Agent_Id=f"Agent {4 + g}", Process_Id=pid)
    (run,) = read_counters([tmp_path])
    assert run.passes == 3 and len(run.dispatches) == 6 and len(run.paths) == 6
    assert sorted(run.dispatches.counters) == ["GRBM_COUNT", "SQ_WAVES", "TCC_HIT_sum"]
    for column in run.dispatches.counters.values():
        assert column.tolist() == [0, 1, 2, 0, 1, 2]
    (note,) = run.join_notes
    wording(note, "kernel_id")
    assert not run.losses.notes


def test_pass_10_comes_after_pass_2(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        path = tmp_path / f"pass_{number}" / "1_counter_collection.csv"
        write_counters(path, "SQ_WAVES", Process_Id=number)
    (run,) = read_counters([tmp_path])
    assert [path.parent.name for path in run.paths] == ["pass_1", "pass_2", "pass_10"]
    assert set(run.dispatches.process.tolist()) == {1}


def test_other_programs_are_other_runs(tmp_path: Path) -> None:
    write_counters(tmp_path / "one/1_counter_collection.csv", "SQ_WAVES")
    write_counters(tmp_path / "two/2_counter_collection.csv", "TCC_HIT_sum", ("x", "y"))
    write_counters(tmp_path / "three/3_counter_collection.csv", "SQ_WAVES")
    assert [len(run.dispatches) for run in read_counters([tmp_path])] == [3, 3, 2]


def test_hosts_of_one_pass_are_other_runs(tmp_path: Path) -> None:
    for host in ("n1a", "n2b"):
        write_counters(tmp_path / f"pass_1/{host}/1_counter_collection.csv", "SQ_WAVES")
    assert [len(run.dispatches) for run in read_counters([tmp_path])] == [3, 3]


def write_trace(path: Path, kernels: tuple[str, ...], first_ns: int, first_id: int = 1) -> None:
    columns, rows = counter_rows(kernels, {"x": [0.0] * len(kernels)})
    keep = [place for place, name in enumerate(columns) if not name.startswith("Counter_")]
    for number, row in enumerate(rows):
        row[columns.index("Dispatch_Id")] = first_id + number
        row[columns.index("Start_Timestamp")] = first_ns + 1000 * number
        row[columns.index("End_Timestamp")] = first_ns + 1000 * number + 500
    write_csv(path, [columns[place] for place in keep], [[row[p] for p in keep] for row in rows])


@pytest.mark.parametrize("with_traces", [True, False])
def test_programs_one_after_another_keep_all_kernels(
    tmp_path: Path, with_traces: bool, wording: Wording
) -> None:
    programs = {"prefill": ("g", "n", "g"), "decode": ("g", "h", "h", "k")}
    for number, (name, kernels) in enumerate(programs.items()):
        if with_traces:
            write_trace(tmp_path / f"{name}_kernel_trace.csv", kernels, 10**6 * number)
        for counter in ("SQ_WAVES", "FETCH_SIZE"):
            path = tmp_path / f"{name}_{counter.lower()}_counter_collection.csv"
            columns, rows = counter_rows(kernels, {counter: [10.0 * number + 1] * len(kernels)})
            for row in rows:
                row[columns.index("Start_Timestamp")] += 10**6 * (7 + number)
                row[columns.index("End_Timestamp")] += 10**6 * (7 + number)
            write_csv(path, columns, rows)
    (run,) = read_counters([tmp_path])
    rows_ = run.dispatches
    assert [run.names[code] for code in rows_.name.tolist()] == ["g", "n", "g", "g", "h", "h", "k"]
    assert rows_.counters["SQ_WAVES"].tolist() == rows_.counters["FETCH_SIZE"].tolist()
    assert rows_.counters["SQ_WAVES"].tolist() == [1.0] * 3 + [11.0] * 4
    assert (rows_.start_ns >= 0).all() and run.passes == 2
    wording(run.join_notes[0], "2 programs")


def test_kernel_traces_alone_are_never_passes(tmp_path: Path) -> None:
    write_trace(tmp_path / "1_kernel_trace.csv", ("a", "b"), 0)
    write_trace(tmp_path / "2_kernel_trace.csv", ("a", "b"), 10**6)
    write_trace(tmp_path / "3_kernel_trace.csv", ("a", "b"), 10**6 + 100)
    (run,) = read_counters([tmp_path])
    assert len(run.dispatches) == 6 and (run.dispatches.start_ns >= 0).all()
    assert run.passes == 1 and "2 programs" in run.join_notes[0]


def test_a_repeated_pass_of_one_program_is_no_second_program(tmp_path: Path) -> None:
    for number in (1, 2):
        columns, rows = counter_rows(KERNELS, {"SQ_WAVES": [number] * 3})
        for row in rows:
            row[columns.index("Start_Timestamp")] += 10**6 * number
            row[columns.index("End_Timestamp")] += 10**6 * number
        write_csv(tmp_path / f"{number}_counter_collection.csv", columns, rows)
    (run,) = read_counters([tmp_path])
    assert len(run.dispatches) == 3 and run.dispatches.counters["SQ_WAVES"].tolist() == [1, 1, 1]
    assert "measured again" in " ".join(run.join_notes)


def write_calls(path: Path, domain: str) -> None:
    columns = ["Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id"]
    times = ["Start_Timestamp", "End_Timestamp"]
    write_csv(path, [*columns, *times], [[domain, "layer 0", 1, 1, 1, 5, 9]])


def test_api_traces_and_agents_that_are_not_used_are_named(
    tmp_path: Path, wording: Wording
) -> None:
    write_trace(tmp_path / "1_kernel_trace.csv", KERNELS, 0)
    write_calls(tmp_path / "1_hip_api_trace.csv", "HIP_RUNTIME_API_EXT")
    write_calls(tmp_path / "1_hsa_api_trace.csv", "HSA_CORE_API")
    write_calls(tmp_path / "2_hip_api_trace.csv", "HIP_RUNTIME_API_EXT")
    copies = ["Kind", "Direction", "Source_Agent_Id", "Destination_Agent_Id", "Correlation_Id"]
    for number in (1, 2):
        columns = [*copies, "Start_Timestamp", "End_Timestamp"]
        write_csv(tmp_path / f"{number}_memory_copy_trace.csv", columns, [])
    write_csv(tmp_path / "1_agent_info.csv", ["Node_Id", "Agent_Type"], [[4, "GPU"]])
    write_csv(tmp_path / "other/2_agent_info.csv", ["Node_Id", "Agent_Type"], [[4, "GPU"]])
    reasons = {file.path.name: file.reason for file in find_counters([tmp_path]).skipped}
    wording(reasons.pop("1_hsa_api_trace.csv"), "neither HIP's nor roctx ranges")
    wording(reasons.pop("2_hip_api_trace.csv"), "kernels")
    wording(reasons.pop("2_memory_copy_trace.csv"), "copies", "kernels")
    wording(reasons.pop("2_agent_info.csv"), "no dispatches")
    assert not reasons
    write_calls(tmp_path / "1_marker_api_trace.csv", "MARKER_CORE_API")
    reasons = {file.path.name: file.reason for file in find_counters([tmp_path]).skipped}
    assert "1_marker_api_trace.csv" not in reasons
    (run,) = read_counters([tmp_path])
    assert "layer 0" in run.names and run.paths[0].name == "1_kernel_trace.csv"


@pytest.mark.parametrize("domain", ["hip_api", "hip_runtime_api", "hsa_core_api", "marker_api"])
@pytest.mark.parametrize("prefix", ["1", "out_12", "my_hip_app", "decode"])
def test_files_of_one_process_share_their_prefix(prefix: str, domain: str) -> None:
    names = (f"{prefix}_kernel_trace.csv", f"{prefix}_{domain}_trace.csv", f"{prefix}_results.db",
             f"{prefix}_memory_copy_trace.csv")  # fmt: skip
    assert {_process_of(Path(name))[1] for name in names} == {prefix}


COMPUTE_COLUMNS = ["Dispatch_ID", "GPU_ID", "Grid_Size", "Workgroup_Size", "Kernel_Name"]
COMPUTE_TIMES = ["Start_Timestamp", "End_Timestamp"]


def write_compute(path: Path, counters: dict[str, float], start: str, **extra: Any) -> None:
    """Write a file of rocprof-compute with two dispatches; passes have a queue, the join none."""
    columns = [*COMPUTE_COLUMNS, *extra, *COMPUTE_TIMES, *counters]
    rows = [
        [number, 0, 256, 64, "k", *extra.values(), start, f"{float(start) + 10:.1f}",
         *counters.values()]
        for number in (0, 1)
    ]  # fmt: skip
    write_csv(path, columns, rows)


def test_a_directory_of_rocprof_compute_is_its_joined_file(tmp_path: Path) -> None:
    write_compute(tmp_path / "pmc_perf.csv", {"SQ_WAVES": 4, "TCC_HIT_sum": 5}, "100000.4")
    write_compute(tmp_path / "pmc_perf_0.csv", {"SQ_WAVES": 4}, "50", Queue_ID=1)
    write_compute(tmp_path / "timestamps.csv", {}, "70", Queue_ID=1)
    level = {"SQ_WAVES": 9, "SQ_LEVEL_WAVES": 7, "SQ_ACCUM_PREV_HIRES": 70}
    write_compute(tmp_path / "SQ_LEVEL_WAVES.csv", level, "60", Queue_ID=1)
    (run,) = read_counters([tmp_path])
    assert {name: column.tolist() for name, column in run.dispatches.counters.items()} == {
        "SQ_WAVES": [4, 4],
        "TCC_HIT_sum": [5, 5],
    }
    assert run.dispatches.start_ns.tolist() == [100000, 100000]
    assert {file.path.name for file in find_counters([tmp_path]).skipped} == {
        "pmc_perf_0.csv",
        "timestamps.csv",
        "SQ_LEVEL_WAVES.csv",
    }
    (alone,) = read_counters([tmp_path / "SQ_LEVEL_WAVES.csv"])
    assert alone.dispatches.counters["SQ_LEVEL_WAVES_ACCUM"].tolist() == [70, 70]


def test_rocpd_processes_of_one_run(tmp_path: Path, wording: Wording) -> None:
    minimal_rocpd(tmp_path / "merged.db")
    (run,) = read_counters([tmp_path])
    assert len(run.dispatches) == 12 and run.passes == 1
    wording.among(run.join_notes, "Several processes", "same GPU")


def test_other_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": []}))
    (tmp_path / "notes.txt").write_text("a, b\n")
    (tmp_path / "gpu.csv").write_text("timestamp,gpu,power\n1,0,2\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "picture.csv").write_bytes(bytes(range(256)) * 9)
    (tmp_path / "1_kernel_stats.csv").write_text('"Name","Calls","TotalDurationNs"\n"a",1,2\n')
    found = find_counters([tmp_path])
    assert not found.files
    (skipped,) = found.skipped
    assert skipped.path.name == "1_kernel_stats.csv" and "totals" in skipped.reason


def test_one_bad_file_does_not_stop_the_others(tmp_path: Path, wording: Wording) -> None:
    write_counters(tmp_path / "1_counter_collection.csv", "SQ_WAVES")
    lone = write_csv(tmp_path / "2_kernel_trace.csv", ["Kernel_Name", "Start_Timestamp",
                                                       "End_Timestamp", "Kind"], [])  # fmt: skip
    (run,) = read_counters([tmp_path])
    wording.among(run.losses.notes, "2_kernel_trace.csv", "no dispatches")
    with pytest.raises(DataError, match="has no dispatches"):
        read_counters([lone])
    with pytest.raises(DataError, match="does not exist"):
        read_counters([tmp_path / "nowhere"])


def test_the_same_process_in_two_formats_is_read_once(tmp_path: Path, wording: Wording) -> None:
    write_counters(tmp_path / "1_counter_collection.csv", "SQ_WAVES")
    minimal_rocpd(tmp_path / "1_results.db", 1)
    found = find_counters([tmp_path])
    assert [file.format for file in found.files] == ["rocpd"]
    wording(found.skipped[0].reason, "1_results.db")


def test_files_found_under_odd_names(tmp_path: Path) -> None:
    write_counters(tmp_path / "1_counter_collection.csv", "SQ_WAVES")
    shutil.move(tmp_path / "1_counter_collection.csv", tmp_path / "mine.txt")
    (run,) = read_counters([tmp_path])
    assert np.array_equal(run.dispatches.counters["SQ_WAVES"], [0, 1, 2])
