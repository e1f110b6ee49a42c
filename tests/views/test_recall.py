"""Planted causes and clean runs: what a run truly loses, and that nothing accuses a clean one.

`python -m tests.programs.bench.causes` measures all causes, sizes and seeds.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from chopper_core.findings import RULES
from chopper_core.findings.rule import context_of
from chopper_core.model.view import View
from tests.programs.bench import causes as bench
from tests.programs.bench import causes_together as together
from tests.programs.bench import twins
from tests.programs.bench.causes import planted

SILENT = tuple(style for style in planted.STYLES if not style.startswith("stages"))


@pytest.mark.few(1)
@pytest.mark.parametrize("style", ["module", "fsdp accumulating", "noisy"])
def test_a_clean_run_has_no_findings(style: str) -> None:
    assert not bench.clean(style, 1).false


@pytest.mark.sweep
@pytest.mark.parametrize("style", SILENT)
def test_clean_runs_of_every_style_have_no_findings(style: str) -> None:
    assert not bench.clean(style, 2).false


def test_every_cause_has_its_right_finding() -> None:
    assert set(bench.EXPECTED) == set(planted.CAUSES) and len(planted.CAUSES) >= 60


@pytest.mark.few(1)
@pytest.mark.parametrize("cause", ["data of one GPU late, always", "one layer slow"])
def test_a_cause_costs_what_the_run_without_it_lacks(cause: str) -> None:
    """Of a stall that nothing hides, that is the stall itself, less what the host wakes for."""
    found = planted.plant(cause, 1, 0.04, "module")
    assert found.share == pytest.approx(0.04, rel=0.1)
    assert found.cause.iterations[-1] == found.run.config.last_iteration


FAST = (
    "one GPU at a lower clock",
    "a clock that drops",
    "one operation slow on one GPU",
    "an extra operation in one layer",
    "slow memory of one GPU",
    "more tokens on one GPU",
    # Its GPUs 0 and 3 have few collectives in common, and are placed by the others.
    "a slow link of one group",
    "garbage collection on one GPU",
    "a checkpoint on one GPU",
    "values read back every third step",
    "a heavy last stage",
    "experts of one GPU with more tokens",
    "one operation slow from then on",
)
MORE = (
    "two GPUs at a lower clock",
    "all GPUs at a lower clock",
    "a throttled GPU",
    "slow optimizer kernels on one GPU",
    "one operation slow in one layer",
    "one layer slow",
    "slow memory of all GPUs",
    "parameters not gathered ahead",
    "copies from pageable memory",
    "a stall after the optimizer",
    "a rail that flaps",
    "hipMalloc in one layer",
    "a clock that sinks slowly",
    "slow memory of all GPUs from then on",
    "debug kernels on one GPU",
    "half of the GPUs capped",
    "a step that compiles",
    "data that take ever longer",
)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "cause", [*FAST, *(pytest.param(each, marks=pytest.mark.sweep) for each in MORE)]
)
def test_a_planted_cause_is_the_first_finding(cause: str) -> None:
    """With its GPU, place and cause, and a range of the saving that holds what it truly costs."""
    found = bench.measure(cause, 1, 0.04)
    assert found.level == 3, found.found
    assert found.is_in_range, (found.cost_ns, found.first)


@pytest.mark.sweep
@pytest.mark.parametrize(("seed", "size"), [(3, 0.12), (5, 0.04)])
def test_an_operation_slowed_by_communication_is_the_first_finding(seed: int, size: float) -> None:
    """Beside it more or less by the layer, or always, next to a like one of another operation."""
    found = bench.measure("an operation slowed by communication", seed, size)
    assert found.level == 3 and found.is_in_range, found.found


@pytest.mark.sweep
@pytest.mark.slow
def test_every_rule_stays_silent_in_a_run_that_it_could_judge() -> None:
    """With telemetry, collectives, launches, layers and eight GPUs, and nothing wrong."""
    run = bench.opened(planted.clean("wide", 3))
    context = context_of(run, View(run.name))
    silent = {rule.name for rule in RULES if not list(rule.find(context))}
    assert {rule.name for rule in RULES} - silent == {"missing"}


PAIRS = (
    ("experts of one GPU with more tokens", "one operation slow in one layer"),
    ("logging on all GPUs every third step", "a device synchronised in every layer"),
    ("a throttled GPU", "one operation slow from then on"),
    ("a stall of all hosts after the optimizer", "a host late in one layer, once"),
    ("slow optimizer kernels on one GPU", "backward slow on one GPU"),
    ("one operation slow on one GPU", "two GPUs at a lower clock"),
    ("data of one GPU late, every third", "more tokens on another GPU each time"),
    ("a throttled GPU", "hosts that can't keep up"),
    ("slow memory of all GPUs from then on", "a clock that sinks slowly"),
    ("a checkpoint on one GPU", "more tokens in one iteration"),
    ("evaluation between steps", "copies from pageable memory"),
    ("an allocator that retries", "a checkpoint on all GPUs"),
    # Without its copies of data the host still waits for the one that it reads a value back with.
    ("copies from pageable memory", "untraced time of one host, always"),
    # What one host does in all steps stays where some steps are as the others.
    ("slow optimizer host on one GPU", "data that take ever longer"),
    # A GPU that waits slows down, until another one waits for it: replays settle in between. Late
    # GPUs cost the others no waits here, but slower compute.
    ("an operation slowed by communication", "untraced time of one host, always"),
    ("an operation slowed by communication", "a clock that drops"),
)


@pytest.mark.few(1)
@pytest.mark.parametrize("names", PAIRS)
def test_two_causes_at_once_are_named_and_save_together_what_both_cost(
    names: tuple[str, ...],
) -> None:
    """By GPU and place, each of its own size: what the run without it alone takes less."""
    found = together.measure_together(names, 12)
    assert found is not None and all(found.named) and all(found.sized), found.listed
    assert found.is_together, (found.saved_ns, found.all_ns)


def test_waits_for_what_has_ended_end_at_once() -> None:
    """An allocator that waits for its GPU, and right after it a host that does: all steps run."""
    names = "an allocator that retries", "a device synchronised in every layer"
    (found, _) = planted.plant_together(names, 3, 0.05)
    without = planted.simulated(replace(found.run.config, causes=()))
    counts = [len(trace.activities) for trace in found.run.traces]
    assert counts == [len(trace.activities) for trace in without.traces]
    assert found.run.step_ns > without.step_ns


def test_a_wait_of_a_host_that_is_late_for_more_has_its_own_finding() -> None:
    """All hosts are slow, that of GPU 1 more than the others, and it alone waits for data."""
    config = planted.clean("module", 1).config
    steps = tuple(config.complete_iterations)
    every, late = (planted.c.FIRST_ITERATION, *steps), planted.Cause("data", 3e6, (1,), steps)
    slow = planted.Cause("host", 27.6, (1,), every), planted.Cause("host", 24.0, (), every)
    simulated = planted.simulated(replace(config, causes=(*slow, late)))
    true_ns = simulated.step_ns - planted.simulated(replace(config, causes=slow)).step_ns
    found = bench.findings_of(bench.opened(simulated))
    (one,) = (each for each in found if each.title.startswith("Data loading leaves GPU 1 idle"))
    assert true_ns == pytest.approx(3e6, rel=0.1)
    assert one.saving_ns == pytest.approx(true_ns, rel=0.25)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "title",
    [
        "layer as peers, an extra operation",
        "GPU as peers, more tokens",
        *(pytest.param(each, marks=pytest.mark.sweep) for each in ("no contention", "host x2")),
    ],
)
def test_an_answer_is_the_step_of_the_run_that_it_asks_for(title: str) -> None:
    """The same run generated with the change takes as long as the replay says."""
    found = twins.measure_twins(title, 1001)
    assert found.is_right, found


@pytest.mark.few(1)
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "cause", ["values read back in every layer", "parameters not gathered ahead"]
)
def test_no_change_saves_more_than_a_bound(cause: str) -> None:
    """A host that reads values back waits for the GPU, whose queue runs empty: without that its
    launches don't wait to arrive, either. Gathers that wait for the slowest GPU end earlier."""
    found = bench.measure(cause, 4202, 0.04, "fsdp")
    assert found.first is not None and found.first.saving_ns is not None
    assert re.search(r"x0|hidden", found.first.remedy)
    assert found.cost_ns <= found.first.saving_ns == found.first.high_ns < 1.1 * found.cost_ns


def test_a_wait_is_named_however_much_its_host_does_after_it() -> None:
    """A longer wait than one that is named: most of it is untraced by then."""
    assert bench.measure("a device synchronised in every layer", 5402, 0.025, "fsdp").level == 3


def test_what_more_work_takes_longer_is_a_part_of_it() -> None:
    """Small kernels of the same layers, whose size no trace tells, are no second cause; and kernels
    that lost their layer with their launch record don't hide the layers."""
    name = "experts of one GPU with more tokens"
    found = bench.measure(name, 4740, 0.04, "annotated", is_rough=True)
    assert found.level == 3, found.found
    assert [each.rule for each in found.found if each.part_of is None] == ["straggler"]


@pytest.mark.few(1)
def test_since_when_is_a_time_of_day_too_where_the_clock_is_that_of_the_day() -> None:
    found = planted.plant("one operation slow from then on", 3, 0.06, "module")
    run, step = bench.opened(found.run), found.cause.iterations[0]
    begin_ns = min(
        int(run.table.start_ns[row]) for row in range(len(run.table))
        if run.table.iteration[row] == step
    )  # fmt: skip
    day_ns = begin_ns % (86_400 * 10**9)
    hours, minutes, seconds = (day_ns // (unit * 10**9) % most for unit, most in
                               ((3600, 24), (60, 60), (1, 60)))  # fmt: skip
    first = bench.findings_of(run)[0]
    assert f"since step {step} ({hours:02}:{minutes:02}:{seconds:02} UTC)" in first.detail


@pytest.mark.few(1)
def test_a_slow_first_layer_is_no_slow_start_of_steps() -> None:
    """Its kernels are as slow in backward, at the end."""
    found = bench.measure("one layer slow", 87467, 0.04, "fsdp")
    assert found.cost_ns > 0 and found.level == 3, found.found
