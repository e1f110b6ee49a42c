"""Causes planted in runs that no rule was tried on: the first finding, its cost and its range."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.elsewhere import CASES, Case, clean, planted, simulated
from tests.programs.bench.causes import findings_of
from tests.training import opened


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", [21, 22])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_cause_is_first_with_its_place_and_cost(case: Case, seed: int, tmp_path: Path) -> None:
    plan, cost_ns, run = planted(case, seed, 0.06, tmp_path)
    first = findings_of(run)[0]
    place = {"gpu": plan.gpu, "layer": plan.layer, "when": "|".join(map(str, plan.when))}
    for words in case.says:
        assert re.search(words.format(**place), first.detail), first.detail
    assert first.saving_ns == pytest.approx(cost_ns, rel=0.25)
    assert first.low_ns is not None and first.high_ns is not None
    # A host of no time still leaves the launch latency after each value that is read back.
    assert first.low_ns <= cost_ns <= 1.02 * first.high_ns


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(21, 27))
def test_nothing_is_found_where_nothing_is_wrong(seed: int, tmp_path: Path) -> None:
    assert findings_of(opened(simulated(clean(seed)).ranks, tmp_path)) == ()
