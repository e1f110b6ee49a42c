"""Work launched before the window, where a trainer's ranges have no numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chopper_core.model.table import NO_LABEL
from tests.support import opened_events

STEPS, KERNELS = 3, 4


def events(name: str) -> list[Any]:
    """Steps of four kernels, and two kernels that were launched before the first one; they run
    while it copies its input."""
    found: list[Any] = []

    def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> None:
        on_gpu = cat in ("kernel", "gpu_memcpy")
        place = {"pid": 0, "tid": args["stream"]} if on_gpu else {"pid": 100, "tid": 1}
        found.append({"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, **place,
                      "args": {"device": 0, **args} if on_gpu else args})  # fmt: skip

    for number in range(2):
        event("kernel", "gemm", 1_020.0 + 60 * number, 50.0, stream=7, correlation=1 + number)
    for step in range(STEPS):
        begin = 1_000.0 + 1_000 * step
        event("user_annotation", name.format(step), begin, 990.0)
        calls = [("gpu_memcpy", "Memcpy HtoD", 13), *[("kernel", "gemm", 7)] * KERNELS]
        for number, (cat, what, stream) in enumerate(calls):
            correlation = 100 + 10 * step + number
            call = begin + 5 + 6 * number
            event("cuda_runtime", "cudaLaunchKernel", call, 4.0, correlation=correlation)
            start = call + 8 if number == 0 else begin + 200 + 60 * number
            event(cat, what, start, 50.0, stream=stream, correlation=correlation)
    return found


@pytest.mark.parametrize("name", ["training_step", "ProfilerStep#4{}", "ProfilerStep#{}"])
def test_work_from_before_is_of_no_step_unless_none_is_before(tmp_path: Path, name: str) -> None:
    """A range without a number says nothing of the steps before it."""
    run = opened_events(tmp_path, events(name))
    table = run.table
    early = (table.start_ns < table.start_ns.min() + 150_000) & (table.stream == 7)
    first = 0 if name == "ProfilerStep#{}" else NO_LABEL
    assert table.iteration[early].tolist() == [first, first]
    of_steps = table.iteration[table.iteration != NO_LABEL]
    assert len(of_steps) == STEPS * (KERNELS + 1) + (2 if first == 0 else 0)
