"""What explains what: no finding of a rule goes without another one that accounts for its cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.views.findings import RULES, _find
from chopper_core.views.findings.rule import EXPLAINED, SMALLEST_SAVING, Cost, context_of
from tests.bench import findings as bench
from tests.bench.findings import planted
from tests.training import Rank, opened, step

CAUSES = {rule.name: set(rule.explains) for rule in RULES}


def explained_by(rule: str) -> set[str]:
    """All rules that a rule explains, directly or by way of others."""
    found: set[str] = set()
    new = set(CAUSES[rule])
    while new:
        found |= new
        new = set().union(*(CAUSES[each] for each in new)) - found
    return found


def test_no_rule_explains_itself() -> None:
    assert not [rule for rule in CAUSES if rule in explained_by(rule)]
    assert set().union(*CAUSES.values()) <= set(CAUSES)


def assert_accounted(run: Run) -> None:
    """Each finding of each rule is there, or one that costs about as much of the same time is."""
    context = context_of(run, View(run.name))
    shown = _find(context)
    for rule in (each for each in RULES if not each.of_samples):
        for each in rule.find(context):
            saving = each.saving_ns or 0.0
            if each.saving_ns is not None and context.share(saving) < SMALLEST_SAVING.share:
                continue
            assert any(
                other.sentence == each.sentence
                or (
                    rule.name in explained_by(cause.name)
                    and other.gpu == each.gpu
                    and each.cost in (other.cost, Cost.UNKNOWN)
                    and (other.saving_ns or 0.0) >= EXPLAINED.share**2 * saving
                )
                for cause, other in shown
            ), (rule.name, each.sentence, [one.sentence for _, one in shown])


@pytest.mark.few(1)
@pytest.mark.parametrize("longer", [1.1, 1.3])
@pytest.mark.parametrize("whose", [(1,), (0, 3)])
def test_more_tokens_are_never_lost(tmp_path: Path, longer: float, whose: tuple[int, ...]) -> None:
    """As an expert with more load: all of its products are larger, and it delays the others."""
    ranks = [Rank(number, 4) for number in range(4)]
    for number in range(10, 16):
        begins = [each.now for each in ranks]
        tokens = [round(1000 * (longer if each.rank in whose else 1)) for each in ranks]
        step(ranks, number, tokens)
        for each, begin in zip(ranks, begins, strict=True):
            each.read_back()
            each.note(f"ProfilerStep#{number}", begin, each.now)
    run = opened(ranks, tmp_path)
    assert_accounted(run)
    shown = {finding.gpu for _, finding in _find(context_of(run, View(run.name)))}
    assert shown & set(whose)


@pytest.mark.few(1)
@pytest.mark.parametrize("cause", list(planted.CAUSES))
def test_every_planted_cost_is_accounted_for(cause: str) -> None:
    assert_accounted(bench.opened(planted.plant(cause, 2, 0.12).run))
