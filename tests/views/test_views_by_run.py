"""Views of several runs: a row or a column for each, sweeps over a setting, Pareto fronts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from chopper_core.columns import Metric
from chopper_core.extensions.runs.run_rows import FAILED, Reading, RunRow
from chopper_core.extensions.runs.run_set import RunSet
from chopper_core.model.address import parse
from chopper_core.model.charts import BarChart, LineChart
from chopper_core.model.run import Run
from chopper_core.model.settings import Setting
from chopper_core.model.table import Kind, empty_table
from chopper_core.model.view import View
from chopper_core.util.errors import UsageError
from chopper_core.views import SET_VIEWS, VIEWS, view_module, view_spec
from chopper_core.views.frame import Frame
from chopper_core.views.query import frame_of, query
from chopper_core.views.spec import FIGURE
from tests.support import Row, details, rows_of, run_of
from tests.wording import Wording


def run_with(iterations: int, work_us: int) -> Run:
    rows = [
        Row(
            start=(step * 100 + at * 10) * 1000,
            duration=work_us * 1000,
            iteration=step,
            operation=operation,
            kernel=operation,
            kind=Kind.COMM if operation == "all_gather" else Kind.COMPUTE,
        )
        for step in range(iterations)
        for at, operation in enumerate(("gemm", "norm", "all_gather"))
    ]
    return run_of(rows)


def set_of(
    rows: Sequence[RunRow], others: Mapping[str, Run] | None = None, waiting: int = 0
) -> RunSet:
    reading = Reading(tuple(rows), waiting)
    return RunSet("all", empty_table(), (), (), others=others or {}, reading=lambda wait: reading)


@pytest.fixture
def runs() -> RunSet:
    others = {"a": run_with(2, 5), "b": run_with(2, 8), "c": run_with(4, 8)}
    rows = [RunRow(name, name) for name in others]
    return set_of([*rows, RunRow("d", "d", status=FAILED, reason="It stopped.")], others)


def figures(name: str, numbers: Mapping[str, float], **settings: Setting) -> RunRow:
    return RunRow(name, name, settings, figures=numbers)


def test_every_view_is_of_several_runs_or_says_why_not(runs: RunSet) -> None:
    for name in VIEWS:
        frame = frame_of(runs, View("all", name=name))
        if view_spec(name).of_one_run:
            assert not len(frame) and frame.notes
        elif name == "grid":
            assert frame.level == "gpu" and [each.name for each in frame.columns] == ["a", "b", "c"]
        elif name not in ("overview", "findings") and len(frame):
            assert frame.level == "run" and set(frame.labels) <= {"a", "b", "c"}


def test_a_row_has_the_totals_of_the_view_of_its_run(runs: RunSet) -> None:
    frame = query(runs, parse("all?view=overheads&filter=run:a,b"))
    assert list(frame.labels) == ["a", "b"]
    for at, label in enumerate(frame.labels):
        own = query(runs.others[label], View(label, name="overheads"))
        for column in frame.columns:
            assert frame.row(at)[column.name] == pytest.approx(own.total[column.name])
    chart = frame.charts[0]
    assert isinstance(chart, BarChart) and chart.labels == ("a", "b")
    assert np.sum([part.numbers for part in chart.series], axis=0) == pytest.approx([100, 100])
    assert frame.target(1).run == "b" and frame.target(1).name == "overheads"


def test_sums_of_runs_with_more_iterations_are_per_iteration(
    runs: RunSet, wording: Wording
) -> None:
    frame = query(runs, parse("all?view=overheads&columns=elapsed_ns"))
    times = [frame.row(at)["elapsed_ns"] for at in range(3)]
    totals = (query(runs.others[name], View(name, is_total=True)) for name in "abc")
    whole = [each.total["elapsed_ns"] for each in totals]
    assert times == [whole[0] / 2, whole[1] / 2, whole[2] / 4]
    assert frame.base == "per step"
    wording.among(frame.notes, "d is failed", "It stopped.")
    total = query(runs, parse("all?view=overheads&columns=elapsed_ns&base=total"))
    assert [total.row(at)["elapsed_ns"] for at in range(3)] == whole


def test_a_column_per_run(runs: RunSet) -> None:
    frame = query(
        runs, parse("all?view=kernels&by=name&columns=kernel_ns&base=total&filter=run:a,b")
    )
    assert [column.name for column in frame.columns] == ["a", "b"]
    assert frame.level == "kernel"
    cells = rows_of(frame)
    assert cells["gemm"] == {"a": 10_000, "b": 16_000}
    assert frame.total == {"a": 30_000, "b": 48_000}
    only = query(runs, parse("all?view=kernels&by=name&filter=run:a,b norm"))
    assert only.labels == ["norm"] and only.hidden == 2
    with pytest.raises(UsageError, match="no column 'weight'"):
        query(runs, parse("all?view=kernels&by=name&columns=weight"))
    with pytest.raises(UsageError, match="takes by=run, name"):
        query(runs, parse("all?view=kernels&by=tp"))


SWEPT = [
    figures("1", {"step_time_ns": 10.0}, microbatch=1, tp=2),
    figures("2", {"step_time_ns": 8.0}, microbatch=2, tp=2),
    figures("3", {"step_time_ns": 9.0}, microbatch=1, tp=8),
    RunRow("4", "4", {"microbatch": 2, "tp": 8}, FAILED, "Out of memory."),
    figures("5", {"step_time_ns": 5.0}, microbatch=10, tp=8),
]


def test_a_sweep_has_a_line_per_group_and_gaps(wording: Wording) -> None:
    frame = query(set_of(SWEPT), parse("all?view=sweep&by=microbatch"))
    assert frame.labels == ["1", "2", "10"]
    cells = {column.name: [frame.values[column.name].at(at) for at in range(3)]
             for column in frame.columns}  # fmt: skip
    assert cells == {"TP2": [10.0, 8.0, None], "TP8": [9.0, None, 5.0]}
    chart = frame.charts[0]
    assert isinstance(chart, LineChart)
    assert [line.name for line in chart.series] == ["TP2", "TP8"]
    assert np.isnan(chart.series[1].numbers).tolist() == [False, True, False]
    assert chart.x[0].tolist() == [1, 2, 10]
    wording.among(frame.notes, "4 failed: Out of memory.")
    wording(frame.headline[0], "mbs 10", "TP8")
    assert frame.target(0).filter == "microbatch=1"
    table = query(set_of(SWEPT), frame.target(0))
    assert table.labels == ["1", "3"]


def test_a_sweep_over_words_and_its_errors() -> None:
    rows = [figures("a", {"step_time_ns": 1.0}, options="base"),
            figures("b", {"step_time_ns": 2.0}, options="act"),
            figures("c", {"step_time_ns": 4.0}, options="act")]  # fmt: skip
    frame = query(set_of(rows), parse("all?view=sweep&by=options"))
    assert frame.labels == ["act", "base"]
    assert frame.values[frame.columns[0].name].at(0) == 3.0
    assert any("with several runs" in note for note in frame.notes)
    with pytest.raises(UsageError, match="no run has the setting 'tp'"):
        query(set_of(rows), parse("all?view=sweep&by=tp"))
    alike = frame_of(set_of([rows[0]]), parse("all?view=sweep"))
    assert "no setting differs" in alike.notes[0]


def test_the_front_has_the_runs_that_none_beats(wording: Wording) -> None:
    speeds = {"a": (10, 5), "b": (8, 3), "c": (8, 4), "d": (5, 3), "e": (1, 1), "f": (1, 1)}
    rows = [figures(name, {"run_tokens_per_s": float(speed), "j_per_token": float(energy)})
            for name, (speed, energy) in speeds.items()]  # fmt: skip
    frame = query(
        set_of([*rows, figures("g", {"run_tokens_per_s": 99.0})]), View("all", name="pareto")
    )
    words = {label: frame.row(at)["front"] for at, label in enumerate(frame.labels)}
    # By hand: c has b's speed and more energy; d b's energy and less speed.
    assert words == {"a": "front", "b": "front", "e": "front", "f": "front",
                     "c": "b", "d": "b", "g": None}  # fmt: skip
    (note,) = frame.headline
    wording(note, "4 of 6 runs", ": a, b, e, f")
    wording.among(frame.notes, "1 of 7 runs")
    with pytest.raises(UsageError, match="takes of=A,B"):
        query(set_of(rows), parse("all?view=pareto&of=j_per_token"))
    with pytest.raises(UsageError, match="neither better high nor"):
        query(set_of(rows), parse("all?view=pareto&of=j_per_token,kernels"))


def test_views_of_sets_alone_say_so_of_one_run(wording: Wording) -> None:
    for name in SET_VIEWS:
        frame: Frame = frame_of(run_with(2, 5), View("a", name=name))
        assert not len(frame)
        wording(frame.notes[0], "directory of runs")
        assert view_module(name).SPEC.of != FIGURE


def test_rows_that_are_still_read_are_pending(wording: Wording) -> None:
    frame = query(set_of(SWEPT, waiting=3), View("all"))
    assert frame.is_pending
    wording.among(frame.notes, "3 of 8 runs")
    assert len(frame) == 5 and isinstance(frame.columns[0], Metric)


def timed(name: str, step_ms: float, heat: float, joules: float, seed: int, count: int = 12,
          **settings: Setting) -> RunRow:  # fmt: skip
    """A run whose steps vary by 1 %, with 64 samples a step."""
    steps = step_ms * 1e6 * (1 + 0.01 * np.random.default_rng(seed).standard_normal(count))
    step_ns = float(np.median(steps))
    found = {
        "step_time_ns": step_ns, "samples_per_s": 64e9 / step_ns, "gpu_hotspot_c": heat,
        "peak_hotspot_c": heat + 8, "j_per_sample": joules / 64, "j_per_step": joules,
    }  # fmt: skip
    return RunRow(name, name, settings, figures=found, steps_ns=tuple(steps.tolist()))


def findings(rows: Sequence[RunRow], address: str = "all?view=findings") -> list[str]:
    return details(query(set_of(rows), parse(address)))


def test_the_coolest_at_equal_speed_is_named(wording: Wording) -> None:
    rows = [
        timed("tp2", 100.0, 78.0, 900.0, 1),
        timed("tp4", 100.2, 71.0, 850.0, 2),
        timed("tp8", 110.0, 64.0, 700.0, 3),
    ]
    sentences = findings([*rows, RunRow("pp8", "pp8", status=FAILED, reason="It stopped.")])
    fast, cool, cheap, failed = sentences
    first = min(rows[:2], key=lambda row: row.figures["step_time_ns"]).name
    other = {"tp2": "tp4", "tp4": "tp2"}[first]
    assert fast.startswith(f"{first}, {other} are equally fast within the noise of the steps: 6")
    # Neither headline calls one of several equal runs the fastest.
    (said,) = query(set_of(rows), parse("all?view=runs")).headline
    assert f"{first}, {other} are equally fast within noise: 6" in said
    # Not tp8, which is cooler still, but 10 % slower.
    wording(cool, "tp4", "71.0 °C", "peak 79", "78.0 °C", "peak 86", "tp2")
    wording(cheap, "tp8", "10.94 J", "17.6 %", "tp4")
    wording(failed, "1 of 4 runs is incomplete", "1 without figures", "pp8", "It stopped")
    evidence = query(set_of(rows), parse("all?view=findings")).target(1)
    table = query(set_of(rows), evidence)
    assert table.labels == ["tp8", "tp4", "tp2"] and table.columns[0].name == "gpu_hotspot_c"


def test_no_run_is_faster_by_nothing() -> None:
    rows = [RunRow(name, name, figures={"step_time_ns": 1e6}) for name in ("one", "other")]
    (fast,) = findings(rows)
    assert fast == "one and other are equally fast: 1 ms"


def test_a_slower_run_is_no_equal_however_cool(wording: Wording) -> None:
    rows = [timed("a", 100.0, 80.0, 900.0, 1), timed("b", 105.0, 60.0, 900.0, 2)]
    fast, cool, cheap = findings(rows)
    wording(fast, "a is the fastest", "faster than b", "beyond noise (")
    wording(cool, "b is", "60.0 °C", "peak 68", "80.0 °C", "peak 88")
    wording(cool, "no cooler run")
    wording(cheap, "within a percent")
    hot = [timed("a", 100.0, 70.5, 900.0, 1), timed("b", 105.0, 70.0, 900.0, 2)]
    wording(findings(hot)[1], "as cool as the coolest")


@pytest.mark.sweep
def test_equal_runs_are_found_equal_and_others_not() -> None:
    wrong = missed = 0
    for seed in range(100):
        alike = [timed("a", 100.0, 80.0, 1.0, seed), timed("b", 100.0, 60.0, 1.0, seed + 500)]
        wrong += "at equal speed" not in findings(alike)[1]
        apart = [timed("a", 100.0, 80.0, 1.0, seed), timed("b", 103.0, 60.0, 1.0, seed + 500)]
        missed += "at equal speed" in findings(apart)[1]
    # The test's level is 5 %.
    assert wrong <= 10 and missed <= 5


def test_too_few_iterations_make_no_runs_equal(wording: Wording) -> None:
    rows = [timed("a", 100.0, 80.0, 900.0, 1, 2), timed("b", 104.0, 60.0, 900.0, 2, 2)]
    fast, cool, _ = findings(rows)
    wording(fast, "too few steps")
    wording(cool, "no cooler run")


def test_models_are_compared_with_themselves() -> None:
    rows = [
        timed("l1", 100.0, 80.0, 900.0, 1, model="llama"),
        timed("l2", 103.0, 70.0, 800.0, 2, model="llama"),
        timed("g1", 900.0, 80.0, 900.0, 3, model="gpt"),
        timed("g2", 800.0, 85.0, 990.0, 4, model="gpt"),
    ]
    sentences = findings(rows)
    assert [each.partition(":")[0] for each in sentences] == ["llama"] * 3 + ["gpt"] * 3
    assert "l1 is the fastest" in sentences[0] and "g2 is the fastest" in sentences[3]
    evidence = query(set_of(rows), parse("all?view=findings")).target(3)
    assert query(set_of(rows), evidence).labels == ["g2", "g1"]
    with pytest.raises(UsageError, match="no run has the setting 'tp'"):
        query(set_of(rows), parse("all?view=findings&by=tp"))
    # Steps of different work are no speeds: neither are energies of them.
    bare = [
        RunRow("a", "a", {"global_batch": 1}, figures={"step_time_ns": 1.0, "j_per_step": 2.0}),
        RunRow("b", "b", {"global_batch": 2}, figures={"step_time_ns": 2.0, "j_per_step": 1.0}),
    ]
    assert findings(bare) == []


def test_findings_wait_for_all_runs(wording: Wording) -> None:
    rows = [timed("a", 100.0, 80.0, 900.0, 1), timed("b", 105.0, 60.0, 900.0, 2)]
    frame = query(set_of(rows, waiting=2), parse("all?view=findings"))
    assert frame.is_pending and not len(frame)
    (note,) = frame.headline
    wording(note, "2 of 4 runs")
