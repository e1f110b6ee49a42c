"""Counters in real files: known figures to the digit, recomputed with csv, json and sqlite3."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.sources.counters.rocpd import read as read_rocpd
from chopper_core.sources.dispatches import DispatchRun
from tests.realdata.conftest import FOLDER
from tests.sources.counters.counter_writers import read_counters

KNOWN = {
    "SQ_WAVES": 16384,
    "SQ_BUSY_CYCLES": 334738,
    "GRBM_GUI_ACTIVE": 272355,
    "TCC_HIT_sum": 68496,
    "TCC_EA0_RDREQ_sum": 65757,
}


def only_run(name: str) -> DispatchRun:
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"no {path}; $CHOPPER_REALDATA says where the real files are")
    (run,) = read_counters([path])
    return run


def csv_rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_long_file_to_the_digit() -> None:
    run = only_run("mi300x_vcopy_long")
    assert len(run.dispatches) == 3 and len(run.dispatches.counters) == 2009
    assert {name: run.dispatches.counters[name][0] for name in KNOWN} == KNOWN
    times: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in csv_rows("mi300x_vcopy_long/pmc_perf.csv"):
        index = int(row["Dispatch_ID"]) - 1
        assert run.dispatches.counters[row["Counter_Name"]][index] == float(row["Counter_Value"])
        times[index].append((int(row["Start_Timestamp"]), int(row["End_Timestamp"])))
    for index, spans in times.items():
        assert (run.dispatches.start_ns[index], run.dispatches.end_ns[index]) == spans[0]
    assert run.passes == len(set(times[0])) == 12
    assert run.names == ["vecCopy(double*, double*, double*, int, int)"]


def test_wide_file_to_the_digit() -> None:
    run = only_run("mi300x_vcopy_wide")
    rows = csv_rows("mi300x_vcopy_wide/pmc_perf.csv")
    assert len(run.dispatches) == len(rows) == 3
    for index, row in enumerate(rows):
        for name, column in run.dispatches.counters.items():
            assert column[index] == float(row[name])
    left_out = set(rows[0]) - set(run.dispatches.counters)
    assert not [name for name in left_out if name.startswith(("SQ", "TC", "TA", "TD", "GRBM"))]
    assert (run.dispatches.start_ns == -1).all(), "8.1097E+14 is no time to the nanosecond"
    assert run.losses.bad_times == 3
    (agent,) = run.agents
    assert (agent.name, agent.compute_units, agent.xccs) == ("gfx942", 304, 8)
    assert run.names == ["vecCopy(double*, double*, double*, int, int)"]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "counters", "sums", "kernel_ns"),
    [
        (
            "rocprof_compute_vcopy_mi300x",
            2665,
            {"SQ_WAVES": 49152, "SQ_BUSY_CYCLES": 1649505, "TCC_HIT_sum": 197232},
            None,
        ),
        ("rocprof_compute_vcopy_mi350", 1021, {"SQ_WAVES": 49152}, 55_546),
    ],
)
def test_whole_directories_of_rocprof_compute(
    name: str, counters: int, sums: dict[str, float], kernel_ns: int | None
) -> None:
    run = only_run(name)
    rows = run.dispatches
    assert len(rows) == 3 and len(rows.counters) == counters
    assert {counter: rows.counters[counter].sum() for counter in sums} == sums
    lasted = int((rows.end_ns - rows.start_ns).sum()) if (rows.start_ns >= 0).all() else None
    assert lasted == kernel_ns


def test_two_programs_in_one_directory() -> None:
    run = only_run("rocprofv3_two_processes")
    timed = run.dispatches.start_ns >= 0
    lasted = (run.dispatches.end_ns - run.dispatches.start_ns)[timed]
    kernels = {}
    for part in ("prefill", "decode"):
        rows = csv_rows(f"rocprofv3_two_processes/{part}_kernel_trace.csv")
        kernels[part] = (
            len(rows),
            sum(int(row["End_Timestamp"]) - int(row["Start_Timestamp"]) for row in rows),
        )
    assert kernels == {"prefill": (1128, 66_066_571), "decode": (144, 1_857_381)}
    assert len(lasted) == 1128 + 144 and int(lasted.sum()) == 66_066_571 + 1_857_381
    for text in ("(1,128 dispatches, 66.067 ms)", "(144 dispatches, 1.857 ms)"):
        assert text in run.join_notes[0]


def test_one_counter_pass() -> None:
    run = only_run("rocprofv3_two_processes/prefill_stall_counter_collection.csv")
    counters = run.dispatches.counters
    assert len(run.dispatches) == 54
    assert counters["SQ_BUSY_CYCLES"].sum() == 399461797
    assert counters["Wavefronts"].sum() == 888328
    assert 9.592542 in counters["L2CacheHit"].tolist()


def test_long_made_wide_is_the_same(tmp_path: Path) -> None:
    long_run = only_run("mi300x_vcopy_long")
    by_dispatch: dict[str, dict[str, str]] = defaultdict(dict)
    for row in csv_rows("mi300x_vcopy_long/pmc_perf.csv"):
        wide = by_dispatch[row["Dispatch_ID"]]
        wide[row.pop("Counter_Name")] = row.pop("Counter_Value")
        for name, value in row.items():
            wide.setdefault(name, value)
    with (tmp_path / "pmc_perf.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(by_dispatch["1"]))
        writer.writeheader()
        writer.writerows(by_dispatch.values())
    (wide_run,) = read_counters([tmp_path])
    assert wide_run.dispatches.counters.keys() == long_run.dispatches.counters.keys()
    for name, column in long_run.dispatches.counters.items():
        assert np.array_equal(column, wide_run.dispatches.counters[name])
    assert np.array_equal(wide_run.dispatches.end_ns, long_run.dispatches.end_ns)


@pytest.mark.sweep
def test_json_dispatches() -> None:
    run = only_run("mi350x_aorta_rocprofv3")
    with gzip.open(FOLDER / "mi350x_aorta_rocprofv3/908_results.json.gz") as file:
        (tool,) = json.load(file)["rocprofiler-sdk-tool"]
    names = {
        symbol["kernel_id"]: symbol["formatted_kernel_name"] for symbol in tool["kernel_symbols"]
    }
    nodes = {agent["id"]["handle"]: agent["node_id"] for agent in tool["agents"]}
    wanted: list[Any] = []
    for record in tool["buffer_records"]["kernel_dispatch"]:
        info = record["dispatch_info"]
        wanted.append(
            (
                nodes[info["agent_id"]["handle"]],
                info["dispatch_id"],
                names[info["kernel_id"]],
                info["queue_id"]["handle"],
                record["start_timestamp"],
                record["end_timestamp"],
                tuple(info["grid_size"].values()),
                tuple(info["workgroup_size"].values()),
                record["correlation_id"]["internal"],
            )
        )
    rows = run.dispatches
    found = list(
        zip(
            (run.agents[gpu].node_id for gpu in rows.gpu),
            rows.dispatch_id.tolist(),
            (run.names[code] for code in rows.name),
            rows.queue.tolist(),
            rows.start_ns.tolist(),
            rows.end_ns.tolist(),
            map(tuple, rows.grid.tolist()),
            map(tuple, rows.workgroup.tolist()),
            rows.correlation.tolist(),
            strict=True,
        )
    )
    assert len(found) == 43_915
    assert found == sorted(wanted)
    assert sum("nccl" in row[2].lower() for row in found) == 1_310
    assert [agent.name for agent in run.agents] == ["gfx950"] * 8
    assert [agent.type_index for agent in run.agents] == list(range(8))
    assert set(rows.process.tolist()) == {908}


def test_counter_passes_of_csv_join() -> None:
    files = [
        FOLDER / f"rocprofv3_csv/prefill_{name}_counter_collection.csv"
        for name in ("fetch", "stall")
    ]
    if not files[0].exists():
        pytest.skip(f"no {files[0]}; $CHOPPER_REALDATA says where the real files are")
    (run,) = read_counters(files)
    assert run.passes == 2 and len(run.dispatches) == 54
    unused = "columns not used: kernel_id, scratch_size, sgpr_count."
    assert run.join_notes == [unused] and not run.losses.notes
    checked = 0
    for file in files:
        for row in csv_rows(str(file.relative_to(FOLDER))):
            (index,) = np.flatnonzero(run.dispatches.dispatch_id == int(row["Dispatch_Id"]))
            assert run.names[run.dispatches.name[index]] == row["Kernel_Name"]
            assert run.dispatches.counters[row["Counter_Name"]][index] == float(
                row["Counter_Value"]
            )
            checked += 1
    assert checked == 594


def test_kernel_trace_of_another_execution_says_so() -> None:
    run = only_run("rocprofv3_csv")
    trace = csv_rows("rocprofv3_csv/prefill_kernel_trace.csv")
    counters = csv_rows("rocprofv3_csv/prefill_fetch_counter_collection.csv")
    sizes: dict[str, list[int]] = defaultdict(list)
    for row in sorted(trace, key=lambda row: int(row["Dispatch_Id"])):
        size = int(row["Grid_Size_X"]) * int(row["Grid_Size_Y"]) * int(row["Grid_Size_Z"])
        sizes[row["Kernel_Name"]].append(size)
    seen: Counter[str] = Counter()
    matched = 0
    for row in counters:
        nth = seen[row["Kernel_Name"]]
        seen[row["Kernel_Name"]] += 1
        matched += sizes[row["Kernel_Name"]][nth : nth + 1] == [int(row["Grid_Size"])]
    rows = run.dispatches
    measured = ~np.isnan(rows.counters["FETCH_SIZE"])
    assert matched == 51
    assert int((measured & (rows.start_ns >= 0)).sum()) == matched
    assert len(rows) == len(trace) + len(counters) - matched == 1_131
    assert int(measured.sum()) == len(counters)
    notes = "\n".join(run.join_notes)
    # The ids of both executions differ by one number, so that the dispatches are known.
    assert "different grid" not in notes


def test_rocpd_without_higher_views() -> None:
    path = FOLDER / "rocpd/test_rocm_database.db"
    if not path.exists():
        pytest.skip(f"no {path}; $CHOPPER_REALDATA says where the real files are")
    (run,) = read_rocpd(path)
    assert [run.names[code] for code in run.dispatches.name] == [
        "vector_add_kernel",
        "matrix_multiply_kernel",
    ]
    assert run.dispatches.end_ns.tolist() == [1_003_500_000, 1_003_000_000]
    assert run.dispatches.process.tolist() == [1234, 1234]
