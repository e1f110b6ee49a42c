"""Counters that a profiler measured in the process of the trace itself: its numbers tell all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.column_names import Match
from chopper_core.model.run import Run
from chopper_core.render.info import info_text
from tests.sources.counters.counter_writers import minimal_rocpd

PROCESS = 1000
LAUNCHED = (5, 1, 3)
"""Numbers of the launches on node 5 in the order of the trace; the database has 1, 3, 5."""


def write_trace(path: Path, process: int, names: tuple[str, ...] = ("add",) * 3) -> None:
    events = []
    for at, (number, name) in enumerate(zip(LAUNCHED, names, strict=True)):
        events += [
            {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": process, "tid": 7,
             "ts": 10 * at, "dur": 2, "args": {"correlation": number}},
            {"ph": "X", "cat": "kernel", "name": name, "pid": 5, "tid": 0, "ts": 10 * at + 5,
             "dur": 4, "args": {"device": 5, "stream": 0, "correlation": number}},
        ]  # fmt: skip
    path.write_text(json.dumps({"traceEvents": events}))


def opened(folder: Path, process: int, names: tuple[str, ...] = ("add",) * 3) -> Run:
    write_trace(folder / "rank0.json", process, names)
    minimal_rocpd(folder / "1000_results.db", 1)
    return open_run(str(folder), jobs=1)


def fetched(run: Run) -> list[float]:
    """FETCH_SIZE in the order of the trace: 3 * (100 n + 20) + 3 of dispatch n."""
    values = run.table.measured["FETCH_SIZE"]
    return [float(value) for value in values[np.argsort(run.table.start_ns)]]


def size(number: int) -> float:
    return 3 * (100.0 * number + 20) + 3


@pytest.mark.filterwarnings("error")
def test_correlation_ids_of_the_same_process_pair_kernels_and_dispatches(tmp_path: Path) -> None:
    run = opened(tmp_path, PROCESS)
    assert fetched(run) == [size(number) for number in LAUNCHED]
    assert (run.table.measured["counter_match"] == Match.MATCHED).all()
    assert "3 by correlation id" in info_text(run)


def test_numbers_of_another_process_tell_nothing(tmp_path: Path) -> None:
    run = opened(tmp_path, PROCESS + 1)
    assert np.isnan(fetched(run)).all(), "three kernels of one name have no order to go by"
    assert "by correlation id" not in info_text(run)


def test_numbers_that_pair_other_kernels_tell_nothing(tmp_path: Path) -> None:
    """The process id came round again: another program, of which one kernel is the same."""
    run = opened(tmp_path, PROCESS, ("add", "mul", "sub"))
    assert "by correlation id" not in info_text(run)
    values = fetched(run)
    assert np.isnan(values[1:]).all()


def test_a_finished_run_keeps_none_of_the_numbers(tmp_path: Path) -> None:
    run = opened(tmp_path, PROCESS)
    assert {"correlation", "launch_shape"}.isdisjoint(run.table.measured)
