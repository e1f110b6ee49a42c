"""Idle time of the hosts: owned by a call only while the host is in it, and by the step that
the host is in."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chopper_core.analyses.host_causes import READ_BACK, UNSEEN
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.views.query import query
from tests.support import details
from tests.training import Rank, opened, step

SAVE = "torch/serialization.py(943): save"
TOKENS = 1000


def trained(
    folder: Path, after: Callable[[Rank, int], None], world: int = 4, layers: int = 4
) -> Run:
    """Eight steps from 10 on, each with work of the hosts after its loss is read back."""
    ranks = [Rank(number, world) for number in range(world)]
    for number in range(10, 18):
        begins = [each.now for each in ranks]
        for each in ranks:
            each.pause(40)
        step(ranks, number, [TOKENS] * world, layers)
        for each, begin in zip(ranks, begins, strict=True):
            each.read_back()
            after(each, number)
            each.note(f"ProfilerStep#{number}", begin, each.now)
    return opened(ranks, folder)


def sentences(run: Run) -> list[tuple[str, str]]:
    frame = query(run, parse("R?view=findings"))
    rules = [str(frame.values["rule"].cell(row)) for row in range(len(frame))]
    return [
        (rule, label)
        for rule, label in zip(rules, details(frame), strict=True)
        if rule != "missing"
    ]


@pytest.mark.parametrize("world", [1, 4])
def test_time_after_a_call_is_untraced_not_its_doing(tmp_path: Path, world: int) -> None:
    """The loss is read back 11 µs after the GPU is idle; then 2 ms pass in code without events."""
    run = trained(tmp_path, lambda rank, _: rank.pause(2_000), world)
    (rule, text), *_ = sentences(run)
    assert rule == "host-bound" and "by untraced code" in text
    frame = query(run, parse("R?view=launch&by=host&base=total"))
    idle = dict(zip(frame.labels, frame.values["idle_ns"].numbers.tolist(), strict=True))
    # 11 µs in the call and 200 µs after it, in each of eight iterations.
    assert idle[f"{READ_BACK} (aten::item)"] == pytest.approx(world * 8 * 211e3, rel=0.02)
    assert idle[UNSEEN] == pytest.approx(world * 8 * 1.84e6, rel=0.02)


@pytest.mark.few(1)
@pytest.mark.parametrize("saves", [(2,), (0, 1, 2, 3)])
def test_a_checkpoint_is_of_the_iteration_that_saves_it(
    tmp_path: Path, saves: tuple[int, ...]
) -> None:
    def save(rank: Rank, number: int) -> None:
        if rank.rank in saves and number in (12, 16):
            rank.pause(6_000, SAVE)

    run = trained(tmp_path, save)
    found = sentences(run)
    assert any("12" in text and "16" in text and "checkpoint" in text for _, text in found)
    assert not any(re.search(r"\b1[37]\b(?!\.| ms)", text) for _, text in found)


def test_an_iteration_takes_the_time_that_its_host_does(tmp_path: Path) -> None:
    run = trained(tmp_path, lambda rank, number: rank.pause(6_000 * (number == 12)), 1)
    frame = query(run, parse("R?view=throughput"))
    times = dict(zip(frame.labels, frame.values["iteration_ns"].numbers.tolist(), strict=True))
    usual = float(np.median(list(times.values())))
    assert [label for label, took in times.items() if took > 1.2 * usual] == ["12"]
    whole = query(run, parse("R:gpu=0?base=total"))
    assert "none" not in whole.labels
    assert sum(times.values()) == pytest.approx(whole.total["elapsed_ns"])
