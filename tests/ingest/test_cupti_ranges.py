"""CUPTI's range counters in a Kineto trace: alone, and beside the trace of the same program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from chopper_core.ingest.open import open_run
from chopper_core.sources.counters.cupti_ranges import read

KERNELS = ("gemm", "add", "gemm", "norm", "add", "copy")
METRIC = "smsp__cycles_active.sum"
COLUMN = "smsp__cycles_active_sum"


def call(number: int) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": "aten::mm " + "x" * 200, "pid": 7, "tid": 7,
            "ts": 100 + number, "dur": 1}  # fmt: skip


def ranges(padding: int = 0) -> str:
    events = [call(number) for number in range(padding)]
    events += [
        {"ph": "X", "cat": "cuda_profiler_range", "name": name, "pid": 0, "tid": 0,
         "ts": 100 + 10 * number, "dur": 10,
         "args": {METRIC: 1000 + number, "sm__inst_executed.sum": 5.5, "other": "x"}}
        for number, name in enumerate(KERNELS)
    ]  # fmt: skip
    return json.dumps({"schemaVersion": 1, "traceEvents": events})


def trace() -> str:
    kernels = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 500 + 10 * number,
         "dur": 5, "args": {"device": 0, "stream": 7}}
        for number, name in enumerate(KERNELS)
    ]  # fmt: skip
    return json.dumps({"schemaVersion": 1, "traceEvents": kernels})


def test_ranges_are_dispatches_in_order_without_times(tmp_path: Path) -> None:
    path = tmp_path / "cupti.json"
    path.write_text(ranges())
    (run,) = read(path)
    assert [run.names[code] for code in run.dispatches.name.tolist()] == list(KERNELS)
    assert run.dispatches.counters[COLUMN].tolist() == [1000 + n for n in range(len(KERNELS))]
    assert sorted(run.dispatches.counters) == ["sm__inst_executed_sum", COLUMN]
    assert (run.dispatches.start_ns == -1).all() and "no times" in run.join_notes[0]


def test_alone_they_are_a_run_of_counts_wherever_they_stand(tmp_path: Path) -> None:
    for name, padding in (("near.json", 0), ("far.json", 500)):
        path = tmp_path / name
        path.write_text(ranges(padding))
        run = open_run(str(path), jobs=1)
        assert len(run.table) == len(KERNELS) and not run.table.has_times
        assert np.nansum(run.table.measured[COLUMN]) == 6015
        assert run.failed == () and run.skipped == ()


def test_beside_a_trace_they_are_its_counters(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text(trace())
    (tmp_path / "cupti.json").write_text(ranges(500))
    run = open_run(str(tmp_path), jobs=1)
    assert run.table.has_times and len(run.gpus) == 1 and run.failed == ()
    by_start = np.argsort(run.table.start_ns)
    assert run.table.measured[COLUMN][by_start].tolist() == [1000 + n for n in range(6)]
    assert run.counters[0].matched == 6 and run.skipped == ()
