"""Serving: a trace of prefill and decode steps whose batches and times are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.model.address import parse
from chopper_core.model.column_names import ENERGY
from chopper_core.model.run import Run
from chopper_core.views.query import query
from tests.align.traces import GEMM, TinyTrace, align

STEPS = (("EXTEND bs=2 toks=64", 400), ("DECODE bs=8", 100), ("DECODE bs=4", 60))
"""Name, and its time in µs: of a kernel that fills it."""
NAMES = "first_token_ns,output_token_ns,output_token_j,requests"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    trace, at = TinyTrace(), 0
    for name, took in STEPS:
        trace.note(f"step[{name}]", at, at + took)
        trace.launch(GEMM, at + 1, start=at + 5, duration=took - 10)
        at += took
    return align(trace, tmp_path).run


def test_times_of_tokens(run: Run) -> None:
    columns = "first_token_ns,output_token_ns,elapsed_ns"
    frame = query(run, parse(f"R?order=phase&columns={columns}&cut=1&base=total"))
    rows = {label: frame.row(row) for row, label in enumerate(frame.labels)}
    # A step has the idle time before its kernel.
    assert rows["prefill"]["first_token_ns"] == rows["prefill"]["elapsed_ns"]
    assert rows["prefill"]["output_token_ns"] is None
    assert rows["decode"]["first_token_ns"] is None
    total = {name: frame.total[name] for name in ("first_token_ns", "output_token_ns")}
    assert total["first_token_ns"] == pytest.approx(400_000, rel=0.02)
    assert total["output_token_ns"] == pytest.approx((100_000 + 60_000) / 2, rel=0.03)


def test_energy_of_an_output_token_is_over_requests(run: Run) -> None:
    joules = np.where(run.table.duration_ns > 0, run.table.duration_ns * 1e-6, 0.0)
    measured = replace(run, table=run.table.with_measured({**run.table.measured, ENERGY: joules}))
    frame = query(measured, parse(f"R?columns={NAMES}&cut=1&base=total"))
    of_decode = sum(took - 10 for name, took in STEPS if "DECODE" in name) * 1e-3
    assert frame.total["output_token_j"] == pytest.approx(of_decode / (8 + 4))
    assert frame.total["requests"] == 2 + 8 + 4
    without = query(run, parse("R?columns=output_token_j&cut=1"))
    assert without.total["output_token_j"] is None
    (metric,) = without.columns
    assert "telemetry of power" in metric.missing_because
