"""GPUs that have more to do than their peers, and slow hosts: what it costs, and what is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chopper_core.analyses.asked import Steady, answer_of, change_of
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.jobs import Cause, clean, simulated

EXPERTS = (
    Cause("tokens", 0.8, (3,), (), 2, "gate_up_proj"),
    Cause("tokens", 0.8, (3,), (), 4, "gate_up_proj"),
)
"""Experts of one GPU that are 1.8 times as loaded as the others, in two layers."""
DEBUG = (Cause("extra", 900.0, (2,), (), 3),)
"""Kernels that only one rank runs."""


def planted(style: str, seed: int, causes: tuple[Cause, ...], folder: Path) -> tuple[Run, float]:
    """The run, and what its causes cost: the same job without them takes less."""
    job = clean(style, seed)
    without, found = simulated(job), simulated(replace(job, causes=causes))
    return found.write(folder), 1e3 * (found.step_us - without.step_us)


def saved(run: Run, question: str) -> float:
    steady = Steady.of(run, View(run.name))
    return answer_of(steady, [change_of(steady.predictor, question)]).saving_ns


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("style", "seed", "causes", "gpu", "words"),
    [
        ("ddp", 81, EXPERTS, 3, "mostly gate_up_proj in layers 2 and 4"),
        ("ddp", 83, DEBUG, 2, "has more work"),
        ("fsdp", 82, EXPERTS, 3, "mostly gate_up_proj in layers 2 and 4"),
    ],
)
def test_more_work_costs_what_it_has_more(
    style: str, seed: int, causes: tuple[Cause, ...], gpu: int, words: str, tmp_path: Path
) -> None:
    run, cost_ns = planted(style, seed, causes, tmp_path)
    frame = query(run, View(run.name, name="findings"))
    first = frame.row(0)
    assert frame.labels[0].startswith(f"GPU {gpu} ") and words in str(first["detail"])
    assert first["saving_ns"] == pytest.approx(cost_ns, rel=0.1)
    for question in (f"gpu:{gpu} as peers", "no stragglers"):
        assert saved(run, question) == pytest.approx(cost_ns, rel=0.1)


@pytest.mark.few(1)
@pytest.mark.parametrize(("style", "seed"), [("ddp", 84), ("fsdp", 85), ("accumulating", 86)])
def test_hosts_as_their_peers_never_take_longer(style: str, seed: int, tmp_path: Path) -> None:
    run, cost_ns = planted(style, seed, (Cause("host", 8.0, (1,)),), tmp_path)
    assert saved(run, "gpu:1 host as peers") == pytest.approx(cost_ns, rel=0.25, abs=30e3)
    for question in ("host as peers", *(f"gpu:{gpu} host as peers" for gpu in range(4))):
        assert saved(run, question) >= 0
