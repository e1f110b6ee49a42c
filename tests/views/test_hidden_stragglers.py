"""Three GPUs that are late for three causes: each is said, with what it saves then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.jobs import Cause, clean, simulated


@pytest.mark.few(1)
@pytest.mark.parametrize(("style", "seed"), [("fsdp", 82), ("ddp", 81), ("accumulating", 83)])
def test_a_straggler_that_others_hide_is_said(style: str, seed: int, tmp_path: Path) -> None:
    job = clean(style, seed)
    causes = (
        Cause("clock", 0.06, (1,)),
        Cause("data", simulated(job).step_us * 0.05, (2,)),
        Cause("kernels", 0.25, (3,), (), None, "gate_up_proj"),
    )
    found = simulated(replace(job, causes=causes))
    frame = query(found.write(tmp_path), View("R", name="findings"))
    for cause in causes:
        rest = tuple(each for each in causes if each is not cause)
        cost_ns = 1e3 * (found.step_us - simulated(replace(job, causes=rest)).step_us)
        (gpu,) = cause.gpus
        saved = [
            frame.row(row)["saving_ns"]
            for row in range(len(frame))
            if f"GPU {gpu}" in frame.labels[row]
        ]
        # The step takes as long without one that others hide.
        assert saved and max(saved) == pytest.approx(cost_ns, rel=0.1, abs=30e3), cause
