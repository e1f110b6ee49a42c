"""A step that takes more than twice the median: what it costs is said, and whose it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.jobs import FIRST, Cause, clean, simulated

STEP = FIRST + 4


def _findings(style: str, folder: Path, *causes: Cause) -> tuple[list[dict[str, Any]], float]:
    """The findings of a job with causes, the largest first, and what these cost a step."""
    job = clean(style, 85)
    found = simulated(replace(job, causes=causes))
    cost_ns = 1e3 * (found.step_us - simulated(job).step_us)
    frame = query(found.write(folder), View("R", name="findings"))
    return [{"title": frame.labels[at], **frame.row(at)} for at in range(len(frame))], cost_ns


@pytest.mark.few(2)
@pytest.mark.parametrize(("kind", "style"), [("gc", "fsdp"), ("data", "ddp"), ("save", "tp")])
def test_a_step_in_which_all_hosts_pause_is_said(kind: str, style: str, tmp_path: Path) -> None:
    """Though some GPU is the last one to go on, it isn't the reason."""
    pause = 3 * simulated(clean(style, 85)).step_us
    late = Cause("untraced", 0.1 * pause, (2,), (STEP,), 1)
    found, cost_ns = _findings(style, tmp_path, Cause(kind, pause, (), (STEP,)), late)
    first = found[0]
    assert "GPU" not in first["title"].partition(":")[0] and str(STEP) in first["detail"]
    assert first["saving_ns"] == pytest.approx(cost_ns, rel=0.1)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("kind", "steps"), [("data", (STEP - 1,)), ("kernels", (STEP,)), ("kernels", (STEP - 2, STEP))]
)
def test_a_gpu_that_makes_a_step_far_longer_is_said(
    kind: str, steps: tuple[int, ...], tmp_path: Path
) -> None:
    amount = 4.0 if kind == "kernels" else 3 * simulated(clean("ddp", 85)).step_us
    found, cost_ns = _findings("ddp", tmp_path, Cause(kind, amount, (1,), steps))
    first = found[0]
    assert first["title"].startswith("GPU 1")
    assert first["saving_ns"] == pytest.approx(cost_ns, rel=0.1)
    assert first["saving_low_ns"] <= 1.01 * cost_ns and cost_ns <= 1.01 * first["saving_high_ns"]
    # Its costs are of all steps, the far longer ones among them.
    assert "usual step" not in first["detail"]
