"""Links that are slow always or at times: whose, when, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.jobs import FIRST, Cause, clean, simulated
from tests.wording import Wording


@pytest.mark.few(1)
@pytest.mark.parametrize("lost", [0.0, 0.05])
@pytest.mark.parametrize("when", [(), (FIRST + 2, FIRST + 5), (FIRST + 4,)])
def test_a_rail_that_flaps_is_named_with_all_its_iterations(
    when: tuple[int, ...], lost: float, tmp_path: Path, wording: Wording
) -> None:
    job = replace(clean("tp", 90), lost=lost)
    found = simulated(replace(job, causes=(Cause("link", 3.0 if when else 1.5, (2, 3), when),)))
    cost_ns = 1e3 * (found.step_us - simulated(job).step_us)
    run = found.write(tmp_path)
    frame = query(run, View(run.name, name="findings"))
    rules = [frame.row(row)["rule"] for row in range(len(frame))]
    row = rules.index("slow-link")
    wording(frame.labels[row], "GPUs 2 and 3")
    assert all(str(number) in frame.labels[row] for number in when)
    assert ("in step" in frame.labels[row]) == bool(when)
    figures = frame.row(row)
    assert figures["saving_ns"] == pytest.approx(cost_ns, rel=0.1)
    assert figures["saving_low_ns"] <= cost_ns <= figures["saving_high_ns"]
    asked = query(run, View(run.name, name="whatif", of="comm as peers"))
    assert asked.row(1)["saving_ns"] == pytest.approx(cost_ns, rel=0.2)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(91, 95))
def test_links_that_are_alike_are_not_slow(seed: int, tmp_path: Path) -> None:
    run = simulated(clean("tp", seed)).write(tmp_path)
    frame = query(run, View(run.name, name="findings"))
    assert "slow-link" not in [frame.row(row)["rule"] for row in range(len(frame))]
