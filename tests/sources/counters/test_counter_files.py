"""Finding files of counters, and sorting them into processes, passes and runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.sources.counters.files import find_counters, read_counters
from chopper_core.util.errors import DataError
from tests.sources.counters.counter_writers import counter_rows, minimal_rocpd, write_csv

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
def test_passes_and_gpus_in_nested_folders(tmp_path: Path, layout: str) -> None:
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
    assert not run.join_notes and not run.losses.notes


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


def test_rocpd_processes_of_one_run(tmp_path: Path) -> None:
    minimal_rocpd(tmp_path / "merged.db")
    (run,) = read_counters([tmp_path])
    assert len(run.dispatches) == 12 and run.passes == 1
    assert "Several processes used the same GPU" in run.join_notes[0]


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


def test_one_bad_file_does_not_stop_the_others(tmp_path: Path) -> None:
    write_counters(tmp_path / "1_counter_collection.csv", "SQ_WAVES")
    lone = write_csv(tmp_path / "2_kernel_trace.csv", ["Kernel_Name", "Start_Timestamp",
                                                       "End_Timestamp", "Kind"], [])  # fmt: skip
    (run,) = read_counters([tmp_path])
    assert "2_kernel_trace.csv has no dispatches" in " ".join(run.losses.notes)
    with pytest.raises(DataError, match="has no dispatches"):
        read_counters([lone])
    with pytest.raises(DataError, match="does not exist"):
        read_counters([tmp_path / "nowhere"])


def test_the_same_process_in_two_formats_is_read_once(tmp_path: Path) -> None:
    write_counters(tmp_path / "1_counter_collection.csv", "SQ_WAVES")
    minimal_rocpd(tmp_path / "1_results.db", 1)
    found = find_counters([tmp_path])
    assert [file.format for file in found.files] == ["rocpd"]
    assert "1_results.db, which is read instead" in found.skipped[0].reason


def test_files_found_under_odd_names(tmp_path: Path) -> None:
    write_counters(tmp_path / "1_counter_collection.csv", "SQ_WAVES")
    shutil.move(tmp_path / "1_counter_collection.csv", tmp_path / "mine.txt")
    (run,) = read_counters([tmp_path])
    assert np.array_equal(run.dispatches.counters["SQ_WAVES"], [0, 1, 2])
