"""Communication that slows all compute alike: no operation is slower than the others, but all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chopper_core.analyses.asked import Steady
from chopper_core.findings import communication
from chopper_core.model.view import View, child_of
from chopper_core.views.query import query
from tests.jobs import BLOCK, Cause, clean, simulated


@pytest.mark.parametrize("slower", [0.4, 0.8])
def test_what_slows_all_compute_is_said_and_sized(slower: float, tmp_path: Path) -> None:
    job = clean("fsdp", 86)
    causes = tuple(Cause("contention", slower, operation=name) for name, *_ in BLOCK)
    found = simulated(replace(job, causes=causes))
    cost_ns = 1e3 * (found.step_us - simulated(job).step_us)
    frame = query(found.write(tmp_path), View("R", name="findings"))
    rows = [frame.row(at) for at in range(len(frame))]
    (whole,) = [row for row in rows if row["rule"] == "contention" and row["part_of"] is None]
    assert whole["saving_ns"] == pytest.approx(cost_ns, rel=0.25)
    assert whole["saving_low_ns"] <= cost_ns <= 1.1 * whole["saving_high_ns"]


def test_no_part_of_very_many_activities_is_replayed_for_contention_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole is replayed for what all findings save; of a part none is told."""
    causes = tuple(Cause("contention", 0.8, operation=name) for name, *_ in BLOCK)
    run = simulated(replace(clean("fsdp", 86), causes=causes)).write(tmp_path)
    monkeypatch.setattr(communication, "_MOST_REPLAYED", 0)
    asked: list[View] = []
    steady = Steady.of
    monkeypatch.setattr(
        Steady, "of", lambda run, view, *rest: asked.append(view) or steady(run, view, *rest)
    )
    step = str(int(run.table.iteration.max()))
    query(run, child_of(View("R", name="findings"), "iteration", step))
    assert not asked
    query(run, View("R", name="findings"))
    assert asked and all(not view.path for view in asked)


def test_what_slows_little_is_not_said(tmp_path: Path) -> None:
    job = clean("fsdp", 86)
    causes = tuple(Cause("contention", 0.05, operation=name) for name, *_ in BLOCK)
    frame = query(
        simulated(replace(job, causes=causes)).write(tmp_path), View("R", name="findings")
    )
    assert all(frame.row(at)["rule"] != "contention" for at in range(len(frame)))
