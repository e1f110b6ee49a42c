"""Long runs: some steps are replayed for all, and what that leaves open is in the range."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.asked import Steady, activities_replayed, change_of, typical_step
from chopper_core.analyses.step_times import step_times
from chopper_core.api import OpenRun
from chopper_core.graph import window
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.errors import NothingToShow
from tests.demo import generated_run
from tests.wording import Wording

QUESTIONS = ("operation:mlp_dp x0.8", "no contention", "comm x0.7")


@pytest.fixture(scope="module")
def long_run() -> Run:
    return generated_run("steps", ranks=4, iterations=12, layers=4, with_counters=False)


def few(patch: pytest.MonkeyPatch, run: Run, iterations: float) -> Run:
    """The run, with nothing remembered of it, where so many steps can be replayed."""
    patch.setattr(window, "MAX_ROWS", int(len(run.table) / 12 * iterations))
    return replace(run)


@pytest.mark.few(1)
@pytest.mark.parametrize("fitting", [2.5, 5.5, 9.5])
def test_some_iterations_stand_for_all(
    long_run: Run, monkeypatch: pytest.MonkeyPatch, fitting: float, wording: Wording
) -> None:
    whole = OpenRun(long_run).what_if(*QUESTIONS)
    run = few(monkeypatch, long_run, fitting)
    found = OpenRun(run).what_if(*QUESTIONS)
    wording.among(found.notes, "of 12 steps")
    for row, label in enumerate(whole.labels[1:], 1):
        truth, step, low, high = (
            values.cell(row)
            for values in (
                whole.values["step_ns"],
                found.values["step_ns"],
                found.values["step_low_ns"],
                found.values["step_high_ns"],
            )
        )
        assert isinstance(truth, int) and isinstance(low, int) and isinstance(high, int)
        assert low <= truth <= high, label
        assert low <= step <= high  # type: ignore[operator]
    steady = Steady.of(run, View(run.name), ["iteration=15 as peers"])
    assert 15 in steady.replays.steps.iteration[steady.replays.own]
    steady = Steady.of(run, View(run.name))
    assert abs(steady.error_ns) < 0.005 * steady.times.mean_ns
    assert len(steady.predictor.graph.activities) <= window.MAX_ROWS


def test_each_iteration_is_replayed_from_the_end_of_the_one_before(
    long_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Steady.of(long_run, View(long_run.name)).replays
    run = few(monkeypatch, long_run, 5.5)
    some = Steady.of(run, View(run.name)).replays
    times = [each.times_ns(each.predictor.identity.replayed) for each in (whole, some)]
    cells = [
        list(zip(steps.gpu[own].tolist(), steps.iteration[own].tolist(), strict=True))
        for steps, own in ((each.steps, each.own) for each in (whole, some))
    ]
    of_whole = dict(zip(cells[0], times[0].tolist(), strict=True))
    assert set(cells[1]) < set(cells[0])
    assert times[1].tolist() == pytest.approx([of_whole[cell] for cell in cells[1]], rel=0.002)


def test_unlike_iterations_stand_for_themselves_and_named_ones_come_first() -> None:
    took = np.full(100, 50.0)
    took[[7, 60]] = 80.0, 65.0
    numbers = np.arange(100)
    unlike, others = window._sampled(numbers, took, (), 20)
    assert sorted(unlike) == [7, 60] and len(others) == 8 and not {*unlike} & {*others}
    # Pairs in the middle of four parts.
    assert others.tolist() == [12, 13, 37, 38, 62, 63, 87, 88]
    unlike, others = window._sampled(numbers, took, (31,), 4)
    assert unlike.tolist() == [31] and len(others) == 1


def test_an_iteration_that_is_too_long_is_said(
    long_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "MAX_ROWS", 100)
    monkeypatch.setattr(window, "_MOST_ROWS", 1000)
    run = replace(long_run)
    with pytest.raises(NothingToShow, match=" activities: too many to replay"):
        Steady.of(run, View(run.name))
    # Nothing is replayed, so that no saving is claimed.
    assert not OpenRun(run).frame("?view=findings").values["saving_ns"].present().any()


def test_findings_of_a_long_run_come_from_its_replay(
    long_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = OpenRun(long_run).frame("?view=findings")
    found = OpenRun(few(monkeypatch, long_run, 6.5)).frame("?view=findings")
    savings = [
        {
            label: float(each.values["saving_ns"].numbers[row])
            for row, label in enumerate(each.labels)
        }
        for each in (whole, found)
    ]
    assert found.values["saving_ns"].present().any()
    largest = max(savings[0], key=lambda label: savings[0][label])
    assert savings[1][largest] == pytest.approx(savings[0][largest], rel=0.1)


def test_a_predicted_long_run_has_the_replayed_iterations(
    long_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = few(monkeypatch, long_run, 5.5)
    steady = Steady.of(run, View(run.name))
    predicted = OpenRun(run).predicted("gpu:3 as peers").run
    times = step_times(predicted, View(predicted.name))
    # What leads to them is there, truncated.
    assert set(times.iterations) == set(steady.replays.steps.iteration[steady.replays.own].tolist())
    assert set(times.left_out) == set(steady.replays.leads) != set()
    expected = steady.predictor.predict([change_of(steady.predictor, "gpu:3 as peers")])
    assert times.mean_ns == pytest.approx(steady.mean_ns(expected), rel=1e-3)


@pytest.mark.parametrize("fitting", [2.5, 5.5, 20])
@pytest.mark.parametrize("asked", [[], ["iteration=15 as peers"], ["iteration=13 x0.8"]])
def test_the_step_that_a_question_opens_is_known_without_a_replay(
    long_run: Run, monkeypatch: pytest.MonkeyPatch, fitting: float, asked: list[str]
) -> None:
    """A replay of thousands of GPUs takes a minute, and every row of answers opens a step."""
    run = few(monkeypatch, long_run, fitting)
    steady = Steady.of(run, View(run.name), asked)
    counted = set(steady.replays.steps.iteration[steady.replays.own].tolist())
    times = dict(zip(steady.times.iterations, steady.times.each_ns.tolist(), strict=True))
    middle = np.median([*times.values()])
    distance = {step: abs(times[step] - middle) for step in counted}
    fresh = replace(run)
    with monkeypatch.context() as patch:
        patch.setattr(window.ReplayedSteps, "of_run", None)
        typical = typical_step(fresh, View(run.name), asked)
        activities = activities_replayed(fresh, View(run.name), asked)
    assert distance[typical] == min(distance.values())
    outside = np.count_nonzero(run.table.iteration < 0)
    assert 0 <= activities - len(steady.predictor.graph.activities) <= outside


def test_of_many_unlike_iterations_some_of_each_distance_stand_for_all() -> None:
    took = np.full(400, 50.0)
    took[::10] = np.linspace(60.0, 99.0, 40)
    unlike, others = window._sampled(np.arange(400), took, (), 36)
    assert len(unlike) == 6 and len(others)
    assert {int(took[unlike].min()), int(took[unlike].max())} == {60, 99}
    # One that is rare is replayed however little fits.
    took[:] = 50.0
    took[123] = 90.0
    assert window._sampled(np.arange(400), took, (), 2)[0].tolist() == [123]


def test_steps_without_time_are_not_divided_by() -> None:
    numbers = np.arange(3)
    with np.errstate(all="raise"):
        assert window._unlike(numbers, np.zeros(3), []).tolist() == []
        assert window._unlike(numbers, np.array([0.0, 0.0, 5.0]), [1]).tolist() == [1]
        assert window._unlike(numbers, np.array([10.0, 10.0, 90.0]), []).tolist() == [2]
