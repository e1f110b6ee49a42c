"""Columns of the size of launches, against sizes and units written out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.overrides import Overrides
from chopper_core.model.run import Run
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from tests.support import opened_events

COLUMNS = "grid,block,waves_per_cu,unused_cus_pct,tail_pct,registers,lds_bytes"


def events(extended: bool) -> list[dict[str, object]]:
    """A kernel of 152 workgroups for 1 µs, one of 456 for 3 µs, on a GPU of 304 units."""
    made: list[dict[str, object]] = []
    call = "hipExtModuleLaunchKernel" if extended else "hipLaunchKernel"
    sizes = {"small": (152, 1.0), "tailed": (456, 3.0)}
    for number, (name, (grid, duration)) in enumerate(sizes.items(), 1):
        given = grid * 256 if extended else grid
        args = {"device": 0, "stream": 0, "correlation": number, "registers per thread": 64}
        args |= {"grid": [given, 1, 1], "block": [256, 1, 1], "shared memory": 4096 * number}
        at = 100.0 * number
        made += [
            {"ph": "X", "cat": "cuda_runtime", "name": call, "pid": 9, "tid": 9, "ts": at,
             "dur": 1.0, "args": {"correlation": number}},
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 0, "ts": at + 5,
             "dur": duration, "args": args},
        ]  # fmt: skip
    return made


def shown(run: Run, address: str) -> Frame:
    return query(run, parse(f"{address}&columns={COLUMNS}"))


@pytest.mark.parametrize("extended", [False, True])
def test_launches_have_the_size_that_was_recorded(tmp_path: Path, extended: bool) -> None:
    opened_events(tmp_path, events(extended))
    mi300x = Overrides(hardware="MI300X")
    run = open_run(str(tmp_path / "rank0.json"), jobs=1, overrides=mi300x)
    frame = shown(run, "R?view=kernels")
    rows = {name: frame.row(place) for place, name in enumerate(frame.labels)}
    small, tailed = rows["small"], rows["tailed"]
    assert (small["grid"], small["block"], small["registers"]) == (152, 256, 64)
    assert (small["lds_bytes"], tailed["lds_bytes"]) == (4096, 8192)
    # Four waves of 64 in each workgroup.
    assert small["waves_per_cu"] == 152 * 4 / 304
    assert (small["unused_cus_pct"], tailed["unused_cus_pct"]) == (50, 0)
    # Two rounds of 304 for 456 workgroups.
    assert small["tail_pct"] == 50
    assert tailed["tail_pct"] == pytest.approx(25)
    assert frame.total["grid"] == pytest.approx((152 * 1 + 456 * 3) / 4)


def test_extended_launches_that_fill_no_workgroups_count_them(tmp_path: Path) -> None:
    """A profiler that counts workgroups in every launch shows it by grids that aren't multiples."""
    made = events(True)
    for event in made:
        if event["cat"] == "kernel":
            event["args"]["grid"][0] //= 256  # type: ignore[index]
    run = opened_events(tmp_path, made)
    frame = shown(run, "R?view=kernels")
    assert sorted(frame.row(place)["grid"] for place in range(2)) == [152, 456]


def test_a_filter_finds_kernels_too_small_for_the_gpu(tmp_path: Path) -> None:
    run = opened_events(tmp_path, events(False))
    assert list(shown(run, "R?view=kernels&filter=grid<304").labels) == ["small"]


def test_what_the_trace_lacks_is_missing(tmp_path: Path) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "ts": 1.0, "dur": 2.0}
    run = opened_events(tmp_path, [{**kernel, "args": {"device": 0, "stream": 0}}])
    row = shown(run, "R?view=kernels").row(0)
    assert all(row[name] is None for name in COLUMNS.split(","))


FITS = [
    # GPU, registers, bytes of LDS, work-items, then workgroups x waves of the most, by hand.
    ("MI300X", 64, 8192, 256, 8 * 4 / 32),
    ("MI300X", 65, 0, 256, 7 * 4 / 32),  # 72 of 512 for each of 4 SIMDs: 7 waves
    ("MI300X", 256, 16384, 256, 2 * 4 / 32),
    ("MI300X", 32, 33000, 256, 1 * 4 / 32),
    ("MI300X", 512, 0, 1024, 0.0),  # 4 waves at once, of the workgroup's 16: it can't run so
    ("MI300X", 8, 0, 64, 32 / 32),
    ("MI355X", 128, 52200, 256, 3 * 4 / 32),
    ("H100", 255, 0, 256, 1 * 8 / 64),
    ("H100", 32, 100_000, 1024, 2 * 32 / 64),
    ("A100-SXM4-80GB", 64, 49152, 128, 3 * 4 / 64),
]


@pytest.mark.parametrize(("gpu", "registers", "lds", "block", "share"), FITS)
def test_registers_lds_and_workgroups_limit_the_waves_of_a_unit(
    tmp_path: Path, gpu: str, registers: int, lds: int, block: int, share: float
) -> None:
    (kernel,) = (each for each in events(False) if each["name"] == "small")
    kernel["args"] |= {  # type: ignore[operator]
        "registers per thread": registers,
        "shared memory": lds,
        "block": [block, 1, 1],
    }
    opened_events(tmp_path, [kernel])
    run = open_run(str(tmp_path / "rank0.json"), jobs=1, overrides=Overrides(hardware=gpu))
    frame = query(run, parse("R?view=kernels&columns=fitting_occupancy_pct"))
    assert frame.row(0)["fitting_occupancy_pct"] == pytest.approx(100 * share)


def test_rocprofv3_has_registers_and_lds_of_each_dispatch(tmp_path: Path) -> None:
    """As columns of CSV and in JSON, of the kernel's symbol; accumulators are registers too."""
    (tmp_path / "1_kernel_trace.csv").write_text(
        "Kind,Agent_Id,Queue_Id,Dispatch_Id,Kernel_Name,Correlation_Id,Start_Timestamp,"
        "End_Timestamp,LDS_Block_Size,VGPR_Count,Accum_VGPR_Count,Workgroup_Size_X,Grid_Size_X\n"
        "KERNEL_DISPATCH,4,1,1,gemm,1,1000,2000,8192,100,28,256,512\n"
        "KERNEL_DISPATCH,4,1,2,copy,2,3000,4000,0,8,0,64,64\n"
    )
    info = {"agent_id": {"handle": 7}, "queue_id": {"handle": 1}, "dispatch_id": 1, "kernel_id": 3,
            "grid_size": {"x": 512, "y": 1, "z": 1}, "workgroup_size": {"x": 256, "y": 1, "z": 1},
            "group_segment_size": 8192}  # fmt: skip
    dispatch = {"dispatch_info": info, "start_timestamp": 1000, "end_timestamp": 2000}
    tool = {
        "agents": [{"id": {"handle": 7}, "node_id": 4, "type": 2, "name": "gfx942"}],
        "kernel_symbols": [{"kernel_id": 3, "kernel_name": "gemm", "arch_vgpr_count": 100,
                            "accum_vgpr_count": 28}],
        "buffer_records": {"kernel_dispatch": [dispatch]},
    }  # fmt: skip
    path = tmp_path / "2_results.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [tool]}))
    for each in (tmp_path / "1_kernel_trace.csv", path):
        frame = shown(open_run(str(each), jobs=1), "R?view=kernels")
        row = frame.row(list(frame.labels).index("gemm"))
        assert (row["grid"], row["block"]) == (2, 256)
        assert (row["registers"], row["lds_bytes"]) == (128, 8192)
