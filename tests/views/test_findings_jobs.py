"""Causes planted in jobs of a third family, alone and two at a time: found, with place and cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.model.view import View
from chopper_core.views.whatif import Steady
from tests.bench.causes import findings_of
from tests.jobs import clean, simulated

STYLES = ("ddp", "fsdp", "tp", "pp", "accumulating")


@pytest.mark.few(5)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("seed", [41, 42])
def test_a_job_with_lost_launches_is_replayed(style: str, seed: int, tmp_path: Path) -> None:
    run = simulated(clean(style, seed)).write(tmp_path)
    lost = run.table.launch_ns.min() if len(run.table) else 0
    assert lost < 0
    steady = Steady.of(run, View(run.name))
    assert abs(steady.error_ns) < 0.005 * steady.times.mean_ns


@pytest.mark.few(5)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("seed", [51, 52])
def test_nothing_is_found_in_a_clean_job(style: str, seed: int, tmp_path: Path) -> None:
    found = findings_of(simulated(clean(style, seed)).write(tmp_path))
    # Members of a tensor group truly wait for their sums.
    assert [each.rule for each in found if (each.rule, style) != ("exposed", "tp")] == []
