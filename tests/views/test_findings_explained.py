"""What is a part of what: findings that cost the same time are one group, and groups add up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chopper_core.analyses.time_parts import parts_of
from chopper_core.findings import RULES, _find, _largest
from chopper_core.findings.parts import Worth, group_of
from chopper_core.findings.rule import (
    SMALLEST_SAVING,
    Confidence,
    Cost,
    Finding,
    FindingRule,
    FindingsContext,
    Group,
    context_of,
)
from chopper_core.model.charts import Cards
from chopper_core.model.phrases import by_number, percent
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.views.query import query
from chopper_core.views.shared.told_findings import told
from tests.demo import demo_run, small_run
from tests.programs.bench import causes as bench
from tests.programs.bench.causes import planted
from tests.support import details
from tests.training import GEMM, Rank, opened, step
from tests.wording import Wording


def assert_accounted(run: Run) -> None:
    """Each finding of each rule is there once; groups fit into what the step can lose."""
    context = context_of(run, View(run.name))
    shown = _find(context, Worth.of(context))
    rules = [rule for rule in RULES if not rule.of_samples]
    everything = [each for rule in rules for each in rule.find(context)]
    expected = [
        each.detail
        for each in everything
        if each.cost_ns is None or context.share(each.cost_ns) >= SMALLEST_SAVING.share
    ]
    assert sorted(each.detail for (_, each), _ in shown) == sorted(expected)
    for place, ((rule, each), whose) in enumerate(shown):
        if whose is not None and each.saving_ns is not None:
            whole = shown[whose][0][1].saving_ns
            assert whole is None or each.saving_ns <= whole
        # What saves nothing until another one is fixed isn't to be fixed first.
        is_first = group_of(rule, each) == Group.FIX and whose is None
        parts = sum(other == place for _, other in shown)
        if is_first and each.saving_ns is not None and not parts and each.further_ns is None:
            assert context.share(each.saving_ns) >= SMALLEST_SAVING.share
    ideal = float(parts_of(run, context.split()).numbers("theoretical_ns").sum()) / context.spots
    for group in Group:
        own = [each for each, whose in shown if whose is None and group_of(*each) == group]
        # Bounds are placed by what is expected of them, which is less than they are.
        known = [each for _, each in own if each.saving_ns is not None]
        savings = [each.saving_ns for each in known if not each.is_bound]
        assert sum(savings) <= context.step_ns - ideal + 1 or len(savings) == 1
        assert savings == sorted(savings, reverse=True)


def assert_answered(run: Run) -> None:
    """What-if gives the saving of each finding, to the nanosecond, when asked for its remedy; what
    no change attains is within its range."""
    found = query(run, View(run.name, name="findings"))
    rows = [row for row in range(len(found)) if found.values["remedy"].present()[row]]
    savings = found.values["saving_ns"].present()
    assert np.flatnonzero(savings).tolist() == rows
    for row in rows:
        remedy = str(found.values["remedy"].cell(row))
        answer = query(run, View(run.name, name="whatif", of=remedy))
        last, measured = answer.row(len(answer) - 1), answer.row(0)["step_ns"]
        least = most = last["saving_ns"]
        if found.values["saving_ns"].is_bound(row):
            most = measured - last["step_low_ns"]
        # A replay that takes longer saves nothing; a part saves no more than its whole.
        whole = found.row(row)["part_of"]
        limit = np.inf if whole is None else found.row(int(whole) - 1)["saving_ns"] or np.inf
        least, most = (min(max(each, 0), limit) for each in (least, most))
        assert least - 1 <= found.row(row)["saving_ns"] <= most + 1, (remedy, found.labels[row])


def test_the_cells_of_a_finding_are_those_of_its_gpu_and_its_cells() -> None:
    run = demo_run()
    context = context_of(run, View(run.name))
    gpus, phase = context.codes("gpu"), context.codes("phase")
    for gpu in (None, *context.gpus):
        for cells in (None, context.cells_of(phase=1)):
            said = Finding("", "", context.view, Confidence.LOW, gpu=gpu, cells=cells)
            expected = [
                at
                for at, (whose, when) in enumerate(zip(gpus.tolist(), phase.tolist(), strict=True))
                if gpu in (None, whose) and (cells is None or when == 1)
            ]
            assert context.cells_about(said).tolist() == expected


def test_of_a_rule_with_something_on_each_gpu_the_largest_are_listed(wording: Wording) -> None:
    """Those that save most stay, in the order of the rule, and how many more there are is said."""
    run = demo_run()
    context = context_of(run, View(run.name))
    savings = [None, *(((at * 37) % 101 + 1) * 10_000_000.0 for at in range(100)), 1.0]

    def find(context: FindingsContext) -> Iterator[Finding]:
        for saving in savings:
            text = f"costs {saving}"
            yield context.finding(text, text, context.view, Cost.UNKNOWN, saving)

    found = _largest(context, FindingRule("each", find=find), has_replay=False)
    largest = sorted((each for each in savings if each), reverse=True)[:63]
    shown = [None, *(each for each in savings if each in largest)]
    assert [each.detail for each in found[:-1]] == [f"costs {each}" for each in shown]
    wording(found[-1].detail, "37 more")


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
    context = context_of(run, View(run.name))
    shown = _find(context, Worth.of(context))
    named = by_number("GPU", whose)
    assert any(finding.detail.startswith(named) for (_, finding), _ in shown)


@pytest.mark.few(1)
@pytest.mark.parametrize("cause", list(planted.CAUSES))
def test_every_planted_cost_is_accounted_for(cause: str) -> None:
    run = bench.opened(planted.plant(cause, 2, 0.12).run)
    assert_accounted(run)
    assert_answered(run)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["small", "fsdp2", "fsdp1"])
def test_what_if_answers_the_remedies_of_the_demo_with_the_savings_of_its_findings(
    name: str,
) -> None:
    run = small_run() if name == "small" else demo_run(name)
    assert query(run, View(run.name, name="findings")).values["remedy"].present().any()
    assert_answered(run)


def test_the_throttling_of_a_gpu_is_a_part_of_its_lag() -> None:
    """A lower clock is why GPU 5 of the demo run is late: one thing, seen twice."""
    run = demo_run()
    context = context_of(run, View(run.name))
    shown = _find(context, Worth.of(context))
    (whole,) = (place for place, ((rule, _), _) in enumerate(shown) if rule.name == "straggler")
    throttled = [whose for (rule, _), whose in shown if rule.name == "throttled"]
    assert throttled == [whole]
    # Communication costs other time than a low clock: it stands next to it.
    exposed = [whose for (rule, _), whose in shown if rule.name == "exposed"]
    assert exposed == [None]


@pytest.mark.few(1)
def test_a_replay_values_two_slow_gpus_together(wording: Wording) -> None:
    """They are one finding: the one that remains still delays the others."""
    truth = planted.plant("two GPUs at a lower clock", 1, 0.04, "module")
    found = bench.findings_of(bench.opened(truth.run))
    first = found[0]
    wording(first.detail, "the others")
    assert first.saving_ns is not None
    assert first.saving_ns == pytest.approx(truth.cost_ns, rel=0.2)
    assert [each for each in found[1:] if each.rule == "straggler"] == []


def with_blocking_launches(folder: Path) -> Run:
    """Steps with four launches that block for 20 ms each, after work that has ended."""
    rank = Rank(0, 1)
    for number in range(3):
        begin = rank.now
        for place in range(40):
            lasts = 20_000 if place % 10 == 0 else 6
            rank.launch(GEMM, rank.now, start=rank.now + lasts, duration=500)
            rank.events[-2]["dur"] = lasts - 1
            rank.now += lasts + 500
        rank.note(f"ProfilerStep#{number}", begin, rank.now)
    return opened([rank], folder)


@pytest.mark.few(1)
def test_an_estimate_is_not_lost_behind_a_replay_that_saves_next_to_nothing(
    tmp_path: Path, wording: Wording
) -> None:
    """Launch calls that last, as those that load code: no latency, nor a thing unseen."""
    run = with_blocking_launches(tmp_path)
    assert_accounted(run)
    found = query(run, View(run.name, name="findings"))
    rules = [found.values["rule"].cell(row) for row in range(len(found))]
    place = rules.index("queue-bound")
    wording(details(found)[place], "launch calls")
    # The first step's first call is outside, so that it is truncated; the others have four.
    assert found.row(place)["cost_ns"] == pytest.approx(4 * 20e6, rel=0.001)


@pytest.mark.parametrize("name", ["fsdp1", "fsdp2"])
def test_a_part_is_time_of_the_kind_of_its_whole(name: str) -> None:
    """What costs another kind of time isn't explained by it, and stands next to it."""
    run = demo_run(name)
    context = context_of(run, View(run.name))
    shown = _find(context, Worth.of(context))
    parts = [(each, shown[whose][0][1]) for (_, each), whose in shown if whose is not None]
    assert parts and all(one.kind.may_be(whole.kind) for one, whole in parts)
    # Planted apart from late hosts, kernels next to communication are slow with and without them.
    (slowed,) = (whose for (rule, _), whose in shown if rule.name == "contention")
    assert slowed is None


def test_evidence_is_of_the_run_as_it_is_asked_for() -> None:
    """Findings are remembered with the run: another name that it was asked by leads nowhere."""
    run = demo_run()
    asked = query(run, View("R", name="findings"))
    assert {asked.target(row).run for row in range(len(asked))} == {"R"}
    assert {each.evidence.run for each in told(run, View(run.name))} == {run.name}


def test_what_saves_nothing_alone_is_not_to_be_fixed_first() -> None:
    """The demo's exposed communication costs 6 % of the step: without it GPUs wait for GPU 5."""
    run = demo_run()
    found = {each.rule: each for each in told(run, View(run.name))}
    assert found["exposed"].group == "could be better"
    assert found["straggler"].group == "fix first"


def test_two_gpus_that_hide_each_other_name_each_other() -> None:
    """One has a lower clock, one more tokens: each alone is late as long as the other is."""
    before = planted.clean("fsdp", 11)
    every = planted._from_start(before)
    clock = planted.Cause("clock", 1 / 1.05, (1,), every)
    tokens = planted.Cause("imbalance", 0.05, (2,), every)
    found = planted.simulated(replace(before.config, telemetry=True, causes=(clock, tokens)))
    both_ns = planted.cost_of(found, (clock, tokens))
    run = bench.opened(found)
    first, second = told(run, View(run.name))[:2]
    assert {first.group, second.group} == {"fix first"}
    assert first.title in second.detail and second.title in first.detail
    context = context_of(run, View(run.name))
    (_, pair), *_ = (each for each, _ in _find(context, Worth.of(context)))
    assert pair.together_ns == pytest.approx(both_ns, rel=0.2)


def test_the_headline_says_how_much_of_the_step_has_no_known_cause(tmp_path: Path) -> None:
    """Four launches of a step block for 20 ms each, after work that has ended."""
    run = with_blocking_launches(tmp_path)
    asked = query(run, View(run.name, name="findings"))
    share = 4 * 20e6 / context_of(run, View(run.name)).step_ns
    assert f"no known cause for {percent(share)} of the step" in asked.headline[0]
    shown = query(run, View(run.name, name="overview"))
    (cards,) = (chart for chart in shown.charts if isinstance(chart, Cards))
    assert cards.number.endswith(f"no known cause for {percent(share)} of the step")
    assert "known cause" not in query(demo_run(), View("R", name="findings")).headline[0]
