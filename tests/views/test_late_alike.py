"""Findings that save time only together are found with few replays, and the same as by all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from chopper_core.findings import parts
from chopper_core.findings.parts import PlacedFinding, _paired
from chopper_core.findings.rule import Confidence, Finding, FindingRule
from chopper_core.model.view import View

STEP_NS = 1e8
LATE_NS = 1e6


class Steps:
    """Steps as long as the latest GPU takes; the remedy of a finding takes one of its delays."""

    def __init__(self, delays: Sequence[tuple[int, float]]) -> None:
        self.delays, self.asked = delays, 0

    def saving_ns(self, remedies: Sequence[str], near: str = "") -> float:
        self.asked += 1
        return self._late_ns(()) - self._late_ns([int(each) for each in remedies])

    def _late_ns(self, without: Sequence[int]) -> float:
        sums: dict[int, float] = {}
        for number, (gpu, own) in enumerate(self.delays):
            sums[gpu] = sums.get(gpu, 0.0) + own * (number not in without)
        return max(sums.values())

    def share(self, time_ns: float) -> float:
        return time_ns / STEP_NS


def _said(steps: Steps) -> list[Any]:
    none, small = np.empty(0), []
    costs = np.random.default_rng(len(steps.delays)).uniform(1, 2, len(steps.delays))
    for number, (gpu, _) in enumerate(steps.delays):
        saving = steps.saving_ns([str(number)])
        found = Finding(f"{number} of GPU {gpu}", "", View(""), Confidence.HIGH, costs[number],
                        saving_ns=saving, gpu=gpu, remedy=str(number))  # fmt: skip
        if steps.share(saving) < parts.SMALLEST_SAVING.share:
            small.append(PlacedFinding(FindingRule("late"), found, none, none, 1.0, None, []))
    steps.asked = 0

    def told(each: PlacedFinding) -> Any:
        finding = each.finding
        return (finding.title, finding.together_with, finding.together_ns, finding.further_ns,
                [told(part) for part in each.parts])  # fmt: skip

    context: Any = steps
    return [told(each) for each in _paired(context, small, context)]


@pytest.mark.few(8)
@pytest.mark.parametrize("seed", range(40))
def test_pairs_are_those_that_trying_each_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that are late alike, several delays of one GPU, and many of which no two save time."""
    random = np.random.default_rng(seed)
    gpus, count = int(random.integers(2, 5)), int(random.integers(3, 20))
    late = LATE_NS * random.choice([1.0, 0.5, 0.05], count)
    delays = [*zip(random.integers(0, gpus, count).tolist(), late.tolist(), strict=True)]
    # Two more are as late as the latest one.
    steps = Steps([*delays, *((gpus + each, float(late.sum())) for each in range(2))])
    found, number = _said(steps), steps.asked
    monkeypatch.setattr(parts, "_may_join", lambda *asked: True)
    assert _said(steps) == found
    assert number <= 2 * steps.asked


def test_two_that_hide_each_other_are_one_and_many_take_few_replays() -> None:
    pair = Steps([(0, LATE_NS), (1, LATE_NS), (2, 0.1 * LATE_NS), (3, 0.1 * LATE_NS)])
    ((title, _, together, _, ((other, *_),)),) = _said(pair)
    assert {title, other} == {"0 of GPU 0", "1 of GPU 1"} and together == 0.9 * LATE_NS
    many = Steps([(gpu, LATE_NS) for gpu in range(40)])
    assert _said(many) == [] and many.asked < 1 + 40 + parts._MOST_PAIRED


def test_what_hides_behind_another_finding_is_placed_by_what_it_saves_alone() -> None:
    """Its parts are causes of its own time, and no finding that it saves time with."""
    none = np.empty(0)

    def placed(title: str, **fields: Any) -> PlacedFinding:
        found = Finding(title, "", View(""), Confidence.HIGH, 9.0, remedy=title, **fields)
        return PlacedFinding(FindingRule("late"), found, none, none, 1.0, None, [])

    behind = placed("slow", saving_ns=1.0, together_with="host", together_ns=100.0, further_ns=10.0)
    host = placed("host", saving_ns=90.0)
    behind.parts.append(placed("a slow operation", saving_ns=0.5))
    assert sorted([behind, host], key=lambda each: each.rank) == [host, behind]
    behind.parts.append(host)
    assert behind.is_of_pair
