"""Counters without times of their dispatches: a run that has counts, and says why no more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.columns import METRICS
from chopper_core.columns.lookup import NO_COUNTERS, NO_SPECIFICATION, why_missing
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse, render
from chopper_core.model.column_names import NO_TIMES
from chopper_core.model.hardware import hardware_of
from chopper_core.model.overrides import overrides_of
from chopper_core.model.run import Run
from chopper_core.render.glyphs import UNICODE
from chopper_core.render.info import describe, info_text
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.util.errors import UsageError
from chopper_core.views.query import query
from chopper_tui.draw.figures import Figure, detail
from tests.support import rows_of
from tests.wording import Wording

HEADINGS = (
    "Dispatch_ID,GPU_ID,Grid_Size,Workgroup_Size,Kernel_Name,"
    "SQ_WAVES,SQ_INSTS,SQ_BUSY_CYCLES,GRBM_GUI_ACTIVE"
)
ROWS = ("0,2,1048576,256,copy (.kd),16384,800,334738,272355",
        "1,2,1048576,256,copy (.kd),16384,400,334738,272355",
        "2,2,524288,256,add (.kd),8192,200,1000,2000")  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("untimed")
    (made / "pmc_perf.csv").write_text("\n".join((HEADINGS, *ROWS)) + "\n")
    return made


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return open_run(str(folder))


def test_counts_are_there_and_times_are_not(run: Run, wording: Wording) -> None:
    frame = query(
        run, parse("R?order=kernel&columns=kernels,SQ_WAVES,elapsed_ns,busy_pct,share_pct")
    )
    rows = rows_of(frame)
    assert (rows["copy"]["kernels"], rows["copy"]["SQ_WAVES"]) == (2, 32768)
    assert (rows["add"]["kernels"], rows["add"]["SQ_WAVES"]) == (1, 8192)
    assert frame.total["SQ_WAVES"] == 40960
    for name in ("elapsed_ns", "busy_pct", "share_pct"):
        assert {row[name] for row in rows.values()} == {frame.total[name]} == {None}
    wording(frame.notes[-1], "elapsed_ns, busy_pct, share_pct", "no dispatch times")


def test_what_is_shown_by_itself_is_what_was_counted(run: Run) -> None:
    frame = query(run, parse("R"))
    assert frame.columns[0].name == "kernels"
    assert all(frame.total[column.name] is not None for column in frame.columns)
    counted = {"SQ_BUSY_CU_CYCLES": run.table.measured["SQ_BUSY_CYCLES"]}
    more = replace(run, table=run.table.with_measured(counted))
    assert "cu_util_pct" not in {column.name for column in query(more, parse("R")).columns}
    described = replace(more, described_hardware=hardware_of("MI300X"))
    assert "cu_util_pct" in {column.name for column in query(described, parse("R")).columns}
    assert np.isnan(frame.means(np.array([0]), 8)).all()


def test_every_figure_of_time_is_missing(run: Run) -> None:
    timed = [name for name, metric in METRICS.items() if metric.unit in ("ns", "MHz", "GB/s")]
    frame = query(run, parse(f"R?columns={','.join(timed)}"))
    assert {frame.total[name] for name in timed} == {None}


def test_other_questions_are_refused(run: Run) -> None:
    with pytest.raises(UsageError, match="Kernels · by name needs times: the counter run has no"):
        query(run, parse("R?view=kernels"))


def test_info_says_it(run: Run, wording: Wording) -> None:
    assert describe(run)["gpus"][0]["span_ns"] is None
    shown = info_text(run)
    wording.among(shown, "no dispatch times")
    wording.among(shown, "% of the dispatches")
    assert "clock: none" in shown


def test_a_store_keeps_it(run: Run, tmp_path: Path) -> None:
    write_store(run, tmp_path / "store")
    again = query(read_store(tmp_path / "store"), parse("R?columns=SQ_WAVES,elapsed_ns"))
    assert again.total == {"SQ_WAVES": 40960, "elapsed_ns": None}


def test_the_detail_of_a_row_has_counts_and_one_reason_for_all_times(run: Run) -> None:
    frame = query(run, parse("R"))
    told = detail(run, frame, 0)
    titles = {figure.metric.name: figure for each in told.groups.values() for figure in each}
    assert titles["kernels"].number == 3 and "elapsed_ns" not in titles
    assert all(told.reasons)
    timeless = {metric.name for metric in told.reasons[NO_TIMES]}
    assert {"elapsed_ns", "busy_pct", "idle_host_ns", "start_ns", "theoretical_ns"} <= timeless


def test_a_ratio_without_a_unit_keeps_its_digits() -> None:
    assert Figure(METRICS["ipc"], 0.1234).text(UNICODE) == "0.12"
    assert Figure(METRICS["waves"], 49152.0).text(UNICODE) == "49152"


def test_the_person_says_what_the_gpu_is(folder: Path, run: Run) -> None:
    said = open_run(str(folder), overrides=overrides_of(hardware="MI300X"))
    assert run.hardware is None and said.hardware is not None
    assert said.hardware.name == "MI300X"
    with pytest.raises(UsageError, match="'MI9' is an unknown GPU; known models: MI300X"):
        open_run(str(folder), overrides=overrides_of(hardware="MI9"))
    view = parse("R?hardware=MI300X")
    assert view.overrides.hardware == "MI300X" and parse(render(view)) == view


def test_the_reason_is_what_the_run_lacks(run: Run, wording: Wording) -> None:
    def why(name: str) -> str:
        return why_missing(METRICS[name], run.table, None)

    wording(why("l2_hit_pct"), "rocprofv3 --pmc TCC_HIT_sum TCC_MISS_sum")
    wording(why("counter_mhz"), "no dispatch times")
    wording(why("gfx_mhz"), "telemetry")
    bare = run.table.without_measured(*run.table.measured)
    assert why_missing(METRICS["mix_valu_pct"], bare, None) == NO_COUNTERS
    whole = run.table.with_measured({"SQ_BUSY_CU_CYCLES": run.table.measured["SQ_WAVES"]})
    assert why_missing(METRICS["cu_util_pct"], whole, None) == NO_SPECIFICATION


@pytest.mark.sweep
def test_the_command_line_opens_it(folder: Path, wording: Wording) -> None:
    command = [sys.executable, "-m", "chopper_tui.cli", "show", str(folder), "--no-cache",
               "--columns", "SQ_WAVES,cu_util_pct,gfx_mhz"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "40960" in done.stdout
    wording.among(done.stdout, "cu_util_pct", "rocprofv3 --pmc SQ_BUSY")
    wording.among(done.stdout, "gfx_mhz", "no dispatch times")
