"""Hosts that do what no step needs, and hardly anything else: what they save is no bound."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.jobs import Cause, clean, simulated


@pytest.mark.parametrize(
    ("kind", "word"), [("retries", "memory allocator"), ("data", "Data loading"), ("save", "check")]
)
def test_what_no_step_needs_is_sized_and_not_bounded(kind: str, word: str, tmp_path: Path) -> None:
    job = clean("fsdp", 87)
    found = simulated(replace(job, causes=(Cause(kind, 4000.0),)))
    cost_ns = 1e3 * (found.step_us - simulated(job).step_us)
    frame = query(found.write(tmp_path), View("R", name="findings"))
    first = frame.row(0)
    assert word in frame.labels[0]
    assert first["saving_ns"] == pytest.approx(cost_ns, rel=0.1)
    assert not first["remedy"].endswith("host x0")
    assert first["saving_low_ns"] <= cost_ns <= first["saving_high_ns"]
