"""GPUs that are late for several causes: each is said, with what it saves then."""

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


@pytest.mark.few(1)
@pytest.mark.parametrize(("style", "seed"), [("fsdp", 84), ("ddp", 85), ("accumulating", 86)])
def test_a_gpu_that_is_late_for_two_causes_has_a_finding_for_each(
    style: str, seed: int, tmp_path: Path
) -> None:
    """Kernels that are slower and data that are late, on one GPU and in the same steps."""
    job = clean(style, seed)
    causes = (
        Cause("data", simulated(job).step_us * 0.06, (2,)),
        Cause("kernels", 0.25, (2,), (), None, "gate_up_proj"),
    )
    found = simulated(replace(job, causes=causes))
    frame = query(found.write(tmp_path), View("R", name="findings"))
    for cause, word in zip(causes, ("host", "slower"), strict=True):
        rest = tuple(each for each in causes if each is not cause)
        cost_ns = 1e3 * (found.step_us - simulated(replace(job, causes=rest)).step_us)
        saved = [
            frame.row(row)["saving_ns"]
            for row in range(len(frame))
            if "GPU 2" in frame.labels[row] and word in frame.labels[row]
        ]
        assert saved and max(saved) == pytest.approx(cost_ns, rel=0.15, abs=50e3), cause


@pytest.mark.few(1)
@pytest.mark.parametrize(("style", "seed"), [("fsdp", 87), ("fsdp", 88), ("ddp", 89)])
def test_a_slow_gpu_is_told_from_more_work_of_others_in_turn(
    style: str, seed: int, tmp_path: Path
) -> None:
    """In each step another GPU has more tokens, so that no kernel is the same on all of them."""
    causes = (Cause("rotating", 0.08), Cause("clock", 0.06, (2,)))
    found = simulated(replace(clean(style, seed), causes=causes))
    titles = query(found.write(tmp_path), View("R", name="findings")).labels
    assert any("GPU 2" in each and "slower" in each for each in titles), titles
    assert any("in turn has more work" in each for each in titles), titles
