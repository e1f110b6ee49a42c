"""Counters in a trace, as torch 2.10 and its CUPTI backend write them, are signals of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.charts import LineChart
from chopper_core.model.table import Category
from chopper_core.render.info import info_text
from chopper_core.views.query import query
from tests.align.traces import TinyTrace
from tests.wording import Wording

BASE_NS = 1_700_000_000_000_000_000


def counter(name: str, at_us: float, value: float, **more: Any) -> dict[str, Any]:
    return {
        "ph": "C",
        "name": name,
        "pid": "GPU 0 Counters",
        "ts": at_us,
        "args": {"": value},
    } | more


def traced(path: Path, rank: int, active: float, base_ns: int = 0, category: str = "") -> Path:
    """Two steps of 10 ms with a kernel of 8 ms each, sampled every ms."""
    trace = TinyTrace(members={"distributedInfo": {"rank": rank, "world_size": 2}})
    if base_ns:
        trace.members["baseTimeNanoseconds"] = base_ns
    for step in range(2):
        at = 10_000 * step
        trace.note(f"ProfilerStep#{step}", at, at + 10_000)
        trace.launch("gemm", at + 100, start=at + 1000, duration=8000)
    more = {"cat": category} if category else {}
    for at in range(20):
        is_busy = 1 <= at % 10 < 9
        trace.events += [
            counter("SM Active (%)", 1000 * at + 500, active if is_busy else 0, **more),
            counter("HBM BW (%)", 1000 * at + 500, 40, **more),
            counter("NVLink RX", 1000 * at + 500, 7, **more),
        ]
    return trace.write(path)


@pytest.mark.parametrize("category", ["", "hardware_counters"])
@pytest.mark.parametrize("base_ns", [0, BASE_NS])
def test_counters_of_a_trace_are_signals_of_its_gpu(
    tmp_path: Path, base_ns: int, category: str, wording: Wording
) -> None:
    for rank in range(2):
        traced(tmp_path / f"rank{rank}.json", rank, 80 - 10 * rank, base_ns, category)
    run = open_run(str(tmp_path), jobs=1)
    assert {"sm_active_pct", "mem_util_pct"} <= run.measured.keys() and not run.failed
    frame = query(run, parse("R?view=kernels&by=gpu&columns=sm_active_pct,mem_util_pct"))
    values = frame.values["sm_active_pct"]
    assert [values.at(at) for at in (0, 1)] == pytest.approx([80, 70])
    assert frame.values["mem_util_pct"].at(0) == pytest.approx(40)
    for source in run.sources:
        assert source.events["hardware_counters"] == 60
        assert "hardware_counters" not in source.unused
    assert [each.unused for each in run.telemetry] == [{"NVLink RX": 20}] * 2
    (method,) = {each.method for each in run.telemetry}
    wording(method, "known", "the trace's")


def test_use_of_units_is_shown_where_counters_are(tmp_path: Path, wording: Wording) -> None:
    """As columns of any view, over time, in `overlap` as it spreads over samples, in `info`."""
    run = open_run(str(traced(tmp_path / "rank0.json", 0, 80)), jobs=1)
    charts = query(run, parse("R?view=overlap")).charts
    (chart,) = (each for each in charts if "SM active" in each.title)
    assert isinstance(chart, LineChart)
    # All 16 samples at whose middle compute runs are at 80 %.
    assert set(np.concatenate(list(chart.x)).round(3).tolist()) == {80.0}
    wording.among(info_text(run, 10_000), "sampled over time", "sm_active_pct")
    lanes = query(run, parse("R?view=timeline&metric=sm_active_pct")).charts
    assert lanes


def test_values_that_no_percentage_has_are_dropped(tmp_path: Path) -> None:
    path = traced(tmp_path / "rank0.json", 0, 180)
    run = open_run(str(path), jobs=1)
    curve = run.measured["sm_active_pct"].curves[0]
    assert curve.mean == 0


def test_copies_of_torchs_cupti_backend_are_named_by_their_kind(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.note("ProfilerStep#0", 0, 1000)
    for at, kind, source, target in (
        (100, "HtoD", "pinned", "device"),
        (200, "DtoD", "device", "device"),
    ):
        trace.gpu("Memcpy", at, 10, cat="gpu_memcpy")
        trace.events[-1]["args"] |= {"copy kind": kind, "src kind": source, "dst kind": target}
    run = open_run(str(trace.write(tmp_path / "rank0.json")), jobs=1)
    rows = run.table.category != Category.OUTSIDE
    names = {run.table.names[code] for code in run.table.kernel[rows].tolist()}
    assert names == {"Memcpy HtoD (Pinned -> Device)", "Memcpy DtoD (Device -> Device)"}
