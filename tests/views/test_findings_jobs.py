"""Causes planted in jobs of a third family, alone and two at a time: found, with place and cost."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from chopper_core.analyses.asked import Steady, answer_of, change_of
from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.jobs import CASES, Cause, clean, planted, simulated, words_of
from tests.programs.bench.causes import findings_of
from tests.support import Row, run_of

STYLES = ("ddp", "fsdp", "tp", "pp", "accumulating")


@pytest.mark.few(2)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("seed", [41, 42])
def test_a_job_with_lost_launches_is_replayed(style: str, seed: int, tmp_path: Path) -> None:
    run = simulated(clean(style, seed)).write(tmp_path)
    lost = run.table.launch_ns.min() if len(run.table) else 0
    assert lost < 0
    steady = Steady.of(run, View(run.name))
    assert abs(steady.error_ns) < 0.005 * steady.times.mean_ns


@pytest.mark.few(2)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("seed", [51, 52])
def test_nothing_is_found_in_a_clean_job(style: str, seed: int, tmp_path: Path) -> None:
    found = findings_of(simulated(clean(style, seed)).write(tmp_path))
    # Members of a tensor group truly wait for their sums.
    assert [each.rule for each in found if (each.rule, style) != ("exposed", "tp")] == []


FORMS = (
    "as peers",
    "x0.8",
    "comm at peak",
    "comm hidden",
    "compute no contention",
    "compute contention as peers",
    "host as peers",
    "host x0.5",
    "launch x0.5",
)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Steady:
    job = clean("pp", 61)
    slow = replace(job, causes=(Cause("clock", 0.1, (3,)),))
    run = simulated(slow).write(tmp_path_factory.mktemp("pipeline"))
    return Steady.of(run, View(run.name))


@pytest.mark.parametrize("form", FORMS)
def test_what_two_names_ask_is_done_once(pipeline: Steady, form: str) -> None:
    names = ("gpu:3", "stage:1 dp:1", "stage=1 gpu=3")
    changes = [change_of(pipeline.predictor, f"{name} {form}") for name in names]
    alone = answer_of(pipeline, changes[:1])
    assert answer_of(pipeline, changes).saving_ns == alone.saving_ns
    twice = [change_of(pipeline.predictor, f"stage=1 {form}"), changes[0]]
    if form in FORMS[:1] + FORMS[2:4]:
        assert answer_of(pipeline, twice).saving_ns == answer_of(pipeline, twice[:1]).saving_ns


PAIRS = (
    ("accumulating", 94, "more tokens", "data everywhere"),
    ("tp", 97, "collection everywhere", "a checkpoint everywhere"),
    ("fsdp", 91, "more tokens once", "a slow optimizer"),
    ("fsdp", 76, "a slow operation in a layer", "a slow GPU once"),
    ("ddp", 75, "a slow GPU once", "data everywhere"),
    ("pp", 78, "data of a GPU once", "a slow backward"),
    ("tp", 82, "a checkpoint", "a slow operation on a GPU"),
)


@pytest.mark.few(2)
@pytest.mark.parametrize(("style", "seed", "one", "other"), PAIRS)
def test_two_causes_are_found_with_what_each_costs(
    style: str, seed: int, one: str, other: str, tmp_path: Path
) -> None:
    by_name = {case.name: case for case in CASES}
    job = clean(style, seed)
    jobs = job, replace(job, seed=seed + 1)
    cases = [by_name[one], by_name[other]]
    # Each at the place that its own seed says.
    moved = [
        replace(case, make=lambda _, case=case, own=own: case.make(own))
        for case, own in zip(cases, jobs, strict=True)
    ]
    truth = planted(moved, job, (0.05, 0.04))
    found = findings_of(truth.run.write(tmp_path))
    for case, own, cost in zip(cases, jobs, truth.cost_us, strict=True):
        said = words_of(case, own)
        savings = [
            (each.saving_ns or 0.0) / 1e3
            for each in found
            if all(re.search(words, each.detail) for words in said)
        ]
        assert savings, (case.name, [each.detail for each in found])
        assert min(abs(each / cost - 1) for each in savings) < 0.2


@pytest.mark.parametrize("waits", [False, True])
def test_a_first_step_that_begins_with_its_first_activity_is_no_short_one(waits: bool) -> None:
    """GPU 1 waits for GPU 0 at the begin of each step: of the first one the trace doesn't show it.
    Where GPU 0 is faster in the first step, too, the others do take longer."""
    ms, begin, rows = 1_000_000, 0, []
    for iteration in range(3):
        first = 50 if waits or iteration else 20
        rows.append(Row(begin * ms, first * ms, gpu=0, iteration=iteration))
        rows.append(Row((begin + first) * ms, 45 * ms, gpu=1, iteration=iteration))
        rows.append(Row((begin + first + 45) * ms, 5 * ms, gpu=0, iteration=iteration))
        begin += first + 50
    titles = query(run_of(rows), View("R", name="findings")).labels
    assert any("longer" in title or "as long" in title for title in titles) is not waits
