"""The tables of a run: against loops over activities, against views, and as others read them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import Row, run_of, sample_run

import chopper_core as chopper
from chopper_core.api import OpenRun
from chopper_core.model.table import STATES, Kind
from chopper_core.render.arrow import about_field
from chopper_core.render.exports import export
from chopper_core.render.exports import tables as exported
from chopper_core.render.tables import TABLE_NAMES
from chopper_core.util.errors import UsageError
from tests.conftest import ROOT
from tests.demo import as_kept, demo_run
from tests.wording import Wording


@pytest.fixture(scope="module")
def run() -> OpenRun:
    demo_run()
    with pytest.MonkeyPatch.context() as patch:
        as_kept(patch)
        return chopper.open("demo_data/fsdp2")


def rows(run: OpenRun, name: str) -> list[dict[str, Any]]:
    return run.table(name).to_pylist()


def test_iterations_are_sums_of_activities_and_totals_of_the_tree(run: OpenRun) -> None:
    sums: dict[tuple[Any, Any], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in run.kernels().to_pylist():
        for name in STATES:
            sums[row["gpu"], row["iteration"]][name] += row[name]
        sums[row["gpu"], row["iteration"]]["kernels"] += row["category"] == "kernel"
    found = {(row["gpu"], row["iteration"]): row for row in rows(run, "iterations")}
    assert found.keys() == sums.keys()
    for key, own in sums.items():
        for name, expected in own.items():
            assert found[key][name] == expected, (key, name)
        assert found[key]["elapsed_ns"] == sum(own[name] for name in STATES)
    complete = [row for row in found.values() if row["is_counted"]]
    assert {row["iteration"] for row in complete} == {11, 12}
    mean = sum(row["elapsed_ns"] for row in complete) / len(complete)
    assert mean == pytest.approx(run.frame().total["elapsed_ns"])
    one = found[5, 11]
    frame = run.frame(one["address"])
    for name in ("elapsed_ns", "idle_host_ns", "gfx_mhz", "power_w"):
        figures = run.frame(f"gpu=5/iteration=11?columns={name}").total[name]
        assert one[name] == pytest.approx(figures)
    assert frame.total["elapsed_ns"] == one["elapsed_ns"]


def test_collectives_wait_for_their_last_arrival(run: OpenRun) -> None:
    starts = {
        (row["gpu"], row["start_ns"]): row for row in run.kernels().to_pylist()
        if row["kind"] == "comm"
    }  # fmt: skip
    instances = defaultdict(list)
    for row in rows(run, "collectives"):
        instances[row["collective"]].append(row)
        kernel = starts[row["gpu"], row["arrive_ns"]]
        assert row["end_ns"] - row["arrive_ns"] == kernel["duration_ns"]
        assert row["operation"] is None or kernel["operation"] in (row["operation"], None)
    assert sum(map(len, instances.values())) == len(starts)
    for own in instances.values():
        last = max(row["arrive_ns"] for row in own)
        assert {row["gpu"] for row in own if row["is_last"]} <= {
            row["gpu"] for row in own if row["arrive_ns"] == last
        }
        for row in own:
            assert row["is_complete"] == (row["ranks"] == len(own))
            if row["is_complete"]:
                assert row["begin_ns"] == last
                assert row["wait_ns"] == min(last, row["end_ns"]) - row["arrive_ns"]
            else:
                assert row["begin_ns"] is None and row["wait_ns"] is None


def test_launches_samples_hosts_gpus_and_findings_are_those_of_views(run: OpenRun) -> None:
    kernels = [row for row in run.kernels().to_pylist() if row["category"] != "outside"]
    linked = [row for row in kernels if row["launch_ns"] is not None]
    launches = rows(run, "launches")
    assert len(launches) == len(linked)
    for launch, kernel in zip(launches, linked, strict=True):
        assert launch["latency_ns"] == kernel["start_ns"] - kernel["launch_ns"]
    clock = [row for row in rows(run, "samples") if row["signal"] == "gfx_mhz" and row["gpu"] == 5]
    signal = run.signal("gfx_mhz", gpu=5).to_pylist()
    assert [(row["start_ns"], row["end_ns"], row["value"]) for row in clock] == [
        tuple(row.values()) for row in signal
    ]
    assert {row["unit"] for row in clock} == {"MHz"}
    for row in rows(run, "gpus"):
        total = run.frame(f"gpu={row['gpu']}?cut=1&base=total").total["elapsed_ns"]
        assert row["elapsed_ns"] == total and row["rank"] == row["gpu"]
    found = run.frame("?view=findings")
    assert [row["name"] for row in rows(run, "findings")] == list(found.labels)
    assert {row["kind"] for row in rows(run, "host_operators")} == {"operator", "call"}


def test_every_column_says_what_it_is(run: OpenRun) -> None:
    for name in TABLE_NAMES:
        table = run.table(name)
        about = table.schema.metadata
        assert about[b"table"] == name.encode() and b"generated" in about
        for field in table.schema:
            unit, definition = about_field(field)
            assert definition, (name, field.name)
            assert unit == "ns" or not field.name.endswith("_ns"), (name, field.name)
    with pytest.raises(UsageError, match="unknown table 'kernel'; the tables are activities"):
        run.table("kernel")


@pytest.mark.parametrize(
    "made",
    [sample_run(), run_of([Row(0, 10)]), run_of([Row(0, 10, Kind.COMM, iteration=3)])],
    ids=["without telemetry", "one kernel", "one collective"],
)
def test_a_run_that_lacks_things_has_tables_with_fewer_rows(made: Any) -> None:
    opened = OpenRun(made)
    sizes = {name: len(opened.table(name)) for name in TABLE_NAMES}
    assert sizes["activities"] == len(made.table) and sizes["samples"] == 0
    assert sizes["gpus"] == len(made.gpus) and sizes["iterations"] == len(made.pairs)


def test_what_a_run_without_times_or_trace_lacks_is_null(tmp_path: Path) -> None:
    folder = tmp_path / "counters"
    folder.mkdir()
    names = "Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,"
    names += "Scratch_Per_Workitem,Arch_VGPR,Accum_VGPR,SGPR,wave_size,Kernel_Name,SQ_WAVES"
    lines = [f"{number},0,0,1,1,64,64,0,0,8,0,16,64,add,{number + 1}" for number in range(3)]
    (folder / "pmc_1.csv").write_text("\n".join([names, *lines, ""]))
    counted = chopper.open(folder, cache=False)
    for name in ("activities", "iterations", "gpus"):
        for row in rows(counted, name):
            times = {key: each for key, each in row.items() if key.endswith("_ns")}
            assert times and set(times.values()) == {None}, (name, times)
    assert [row["SQ_WAVES"] for row in rows(counted, "activities")] == [1, 2, 3]
    assert rows(counted, "gpus")[0]["kernels"] == 3
    sampled = chopper.open(ROOT / "demo_data" / "fsdp2" / "telemetry", cache=False)
    for name in ("iterations", "gpus"):
        for row in rows(sampled, name):
            assert row["compute_ns"] is row["kernels"] is None and row["gfx_mhz"] > 100


def test_others_read_frames_and_tables_without_pandas(run: OpenRun) -> None:
    frame = run.frame("?view=ranks")
    own = polars.DataFrame(frame)
    assert own["name"].to_list() == list(frame.labels)
    assert own["gfx_mhz"].to_list() == frame.values["gfx_mhz"].numbers.tolist()
    ((least,),) = duckdb.sql("select name from frame order by gfx_mhz limit 1").fetchall()
    assert least == "5"
    assert polars.DataFrame(run.table("collectives"))["wait_ns"].null_count() > 0
    assert pa.table(frame).column_names[:2] == ["name", "address"]


def test_the_folder_reads_back_by_its_schema(
    run: OpenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    assert export(run.run, "tables", tmp_path / "one") == []
    monkeypatch.setattr(exported, "ONE_FILE", 1_000)
    run.export(tmp_path / "many", "tables")
    for folder in ("one", "many"):
        monkeypatch.chdir(tmp_path / folder)
        session = duckdb.connect()
        session.execute(Path("schema.sql").read_text("utf-8"))
        for name in TABLE_NAMES:
            ((count,),) = session.sql(f"select count(*) from {name}").fetchall()
            assert count == len(run.table(name)), (folder, name)
        comments = dict(
            session.sql(
                "select column_name, comment from duckdb_columns() where table_name = 'collectives'"
            ).fetchall()
        )
        wording(comments["wait_ns"], "ns: ")
    assert len([*(tmp_path / "many" / "activities").iterdir()]) == 8
    read = pq.read_table(tmp_path / "one" / "iterations.parquet")
    assert read.to_pylist() == rows(run, "iterations")
    with pytest.raises(UsageError, match="exists already"):
        run.export(tmp_path / "one", "tables")
