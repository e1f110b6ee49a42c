"""Stalls of hosts: of all of them at one place, and of each of them somewhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.align.traces import GEMM
from tests.training import Rank, opened, step

STEPS, STALL_US = 6, 150


def _with_stalls(folder: Path, name: str, stall_us: int) -> tuple[Run, float]:
    """A run whose hosts can't keep up, and all stall at each step's begin; its mean step in ns."""
    ranks = [Rank(number, 2) for number in range(2)]
    begins = [each.now for each in ranks]
    for number in range(STEPS):
        starts = [each.now for each in ranks]
        for each in ranks:
            each.pause(stall_us, name)
            with each.note_around("forward"):
                for layer in range(12):
                    with each.note_around(f"Layer{layer}"):
                        each.product("q_ip", 8)
                        each.pause(30)
        step(ranks, number, [8, 8], layers=1)
        for each, start in zip(ranks, starts, strict=True):
            each.read_back()
            each.now = max(other.now for other in ranks)
            each.note(f"ProfilerStep#{number}", start, each.now)
    folder.mkdir()
    return opened(ranks, folder), 1e3 * (ranks[0].now - begins[0]) / STEPS


@pytest.mark.parametrize("name", ["threading.py(1165): join", ""])
def test_a_stall_is_named_next_to_hosts_that_cant_keep_up(name: str, tmp_path: Path) -> None:
    usual_ns = _with_stalls(tmp_path / "usual", name, 0)[1]
    run, long_ns = _with_stalls(tmp_path / "long", name, STALL_US)
    frame = query(run, View(run.name, name="findings"))
    own = next(
        row for row, title in enumerate(frame.labels)
        if title.startswith(name or "Untraced code")
    )  # fmt: skip
    figures = frame.row(own)
    assert figures["rule"] == "host-bound"
    assert figures["cost_ns"] == pytest.approx(long_ns - usual_ns, rel=0.1)
    assert figures["saving_ns"] == pytest.approx(long_ns - usual_ns, rel=0.1)


def test_hosts_of_a_whole_phase_are_peers_of_each_other(tmp_path: Path) -> None:
    """Each stalls somewhere else: no other host does at the same place."""
    times = {}
    for stall_us in (0, 4000):
        folder = tmp_path / str(stall_us)
        folder.mkdir()
        ranks = [Rank(number, 3) for number in range(3)]
        begins = ranks[0].now
        for number in range(STEPS):
            start = ranks[0].now
            for each in ranks:
                # Stalls are in different layers, as interpreters collect garbage.
                with each.note_around("forward"):
                    for layer in range(8):
                        with each.note_around(f"Layer{layer}"):
                            each.product("q_ip", 200)
                            if layer == (each.rank + number) % 3 + 2:
                                each.pause(stall_us)
            step(ranks, number, [200] * 3, layers=2)
            for each in ranks:
                each.read_back()
                each.now = max(other.now for other in ranks)
                each.note(f"ProfilerStep#{number}", start, each.now)
        run = opened(ranks, folder)
        times[stall_us] = 1e3 * (ranks[0].now - begins) / STEPS
    asked = query(run, View(run.name, name="whatif", of="phase:forward host as peers"))
    assert asked.row(1)["saving_ns"] == pytest.approx(times[4000] - times[0], rel=0.05)


def test_hosts_that_stall_in_turn_are_one_finding(tmp_path: Path) -> None:
    """In each step another one does, in another operation: what no trace names may be anywhere."""
    times = {}
    for stall_us in (0, 2500):
        folder = tmp_path / str(stall_us)
        folder.mkdir()
        ranks = [Rank(number, 4) for number in range(4)]
        begins = ranks[0].now
        for number in range(STEPS):
            start = ranks[0].now
            for each in ranks:
                with each.note_around("forward"):
                    for part in range(STEPS):
                        with each.note_around(f"part_{part}_ip"):
                            each.kernel(GEMM, 60, "aten::mm")
                            if each.rank == number % 4 and part == number:
                                each.pause(stall_us)
            step(ranks, number, [2000] * 4, layers=2)
            for each in ranks:
                each.read_back()
                each.now = max(other.now for other in ranks)
                each.note(f"ProfilerStep#{number}", start, each.now)
        run = opened(ranks, folder)
        times[stall_us] = 1e3 * (ranks[0].now - begins) / STEPS
    frame = query(run, View(run.name, name="findings", columns=("+advice",)))
    figures = frame.row(0)
    assert frame.labels[0].startswith("Another GPU in turn is held back by its host")
    assert figures["saving_ns"] == pytest.approx(times[2500] - times[0], rel=0.1)
    assert "gc.freeze()" in str(figures["advice"])
