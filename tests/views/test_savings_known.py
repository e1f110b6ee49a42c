"""What findings save is claimed only as far as the replay explains the steps, with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chopper_core.analyses.asked import Steady
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.programs.bench import causes as bench
from tests.programs.bench.causes import planted

CAUSE = "data late on all GPUs"


def savings(run: Run) -> tuple[list[float | None], str]:
    """Of the findings, and what the view notes."""
    frame = query(run, View(run.name, name="findings"))
    values = frame.values["saving_ns"]
    return [values.at(row) for row in range(len(frame.labels))], " ".join(frame.notes)


@pytest.mark.few(1)
@pytest.mark.parametrize(("error", "is_known"), [(0.01, True), (0.03, True), (0.08, False)])
def test_a_saving_is_far_above_the_error_of_the_replay(
    error: float, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fifth of the step is more than five times 3 % of it, and less than five times 8 %."""
    run = bench.opened(planted.plant(CAUSE, 3, 0.25, "module").run)
    monkeypatch.setattr(Steady, "error_ns", property(lambda steady: error * steady.times.mean_ns))
    found, notes = savings(run)
    assert (found[0] is not None) == is_known
    assert ("aren't shown" in notes) == (error > 0.02)


@pytest.mark.few(1)
def test_a_run_that_lost_its_launches_says_why_nothing_is_known_to_save_time() -> None:
    style = replace(planted.STYLES["module"], seed=3, lost_share=0.2)
    before = planted.simulated(style)
    cause = planted.Cause("data", 0.1 * before.step_ns, (), tuple(style.complete_iterations))
    run = bench.opened(planted.simulated(replace(style, causes=(cause,))))
    found, notes = savings(run)
    assert found and not any(found)
    assert "savings are unknown: " in notes and "no launch record" in notes
