"""Stalls of hosts: of all of them at one place, and of each of them somewhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.align.traces import GEMM
from tests.training import Rank, opened, step
from tests.wording import Wording

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


def _without_and_with(
    folder: Path,
    count: int,
    stall_us: int,
    load: int,
    forward: Callable[[Rank, int, int], None],
) -> tuple[Run, float]:
    """A job whose hosts stall within the forward of each step, and how much longer its steps are
    than those of the same job without stalls, in ns."""
    times = []
    for pause_us in (0, stall_us):
        own = folder / str(pause_us)
        own.mkdir()
        ranks = [Rank(number, count) for number in range(count)]
        begins = ranks[0].now
        for number in range(STEPS):
            start = ranks[0].now
            for each in ranks:
                with each.note_around("forward"):
                    forward(each, number, pause_us)
            step(ranks, number, [load] * count, layers=2)
            for each in ranks:
                each.read_back()
                each.now = max(other.now for other in ranks)
                each.note(f"ProfilerStep#{number}", start, each.now)
        run = opened(ranks, own)
        times.append(1e3 * (ranks[0].now - begins) / STEPS)
    return run, times[1] - times[0]


def test_hosts_of_a_whole_phase_are_peers_of_each_other(tmp_path: Path) -> None:
    """Each stalls somewhere else: no other host does at the same place."""

    def forward(each: Rank, number: int, stall_us: int) -> None:
        # Stalls are in different layers, as interpreters collect garbage.
        for layer in range(8):
            with each.note_around(f"Layer{layer}"):
                each.product("q_ip", 200)
                if layer == (each.rank + number) % 3 + 2:
                    each.pause(stall_us)

    run, lost_ns = _without_and_with(tmp_path, 3, 4000, 200, forward)
    asked = query(run, View(run.name, name="whatif", of="phase:forward host as peers"))
    assert asked.row(1)["saving_ns"] == pytest.approx(lost_ns, rel=0.05)


def test_hosts_that_stall_in_turn_are_one_finding(tmp_path: Path, wording: Wording) -> None:
    """In each step another one does, in another operation: what no trace names may be anywhere."""

    def forward(each: Rank, number: int, stall_us: int) -> None:
        for part in range(STEPS):
            with each.note_around(f"part_{part}_ip"):
                each.kernel(GEMM, 60, "aten::mm")
                if each.rank == number % 4 and part == number:
                    each.pause(stall_us)

    run, lost_ns = _without_and_with(tmp_path, 4, 2500, 2000, forward)
    frame = query(run, View(run.name, name="findings", columns=("+advice",)))
    figures = frame.row(0)
    wording(frame.labels[0], "Another GPU", "its host")
    assert figures["saving_ns"] == pytest.approx(lost_ns, rel=0.1)
    assert "gc.freeze()" in str(figures["advice"])
