"""Runs of trainers' logs with a known truth: restarts, slow ranks, periods, the profiler."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import chopper_core
from chopper_core.analyses.training import restarts_of, traced_steps, training_of
from chopper_core.extensions.runs.run_set import open_runs
from chopper_core.findings import checked
from chopper_core.ingest.alarms import AlarmWatch, parse_alarm
from chopper_core.ingest.discovery import find_runs
from chopper_core.ingest.follow import Follower
from chopper_core.ingest.follow_lines import follow_lines
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.charts import StepBars
from chopper_core.model.run import Run
from chopper_core.model.training import TrainedSteps
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.util.errors import DataError, NothingToShow
from chopper_core.views.query import query
from tests.align.traces import TinyTrace
from tests.wording import Wording

START = datetime(2026, 3, 5, 8, 40, tzinfo=UTC)
Took = Callable[[int, int], float]
"""The time of a step on a rank, in s."""


def titan(
    took: Took, steps: range, ranks: int = 1, at: datetime = START, zone: str = ""
) -> tuple[str, datetime]:
    """The lines of a job of torchtitan, and when it ends."""
    text = ""
    for step in steps:
        at += timedelta(seconds=max(took(step, rank) for rank in range(ranks)))
        stamp = f"{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03}{zone}"
        for rank in range(ranks):
            text += (
                f"[rank{rank}]:[titan] {stamp} - root - INFO - step: {step:2}  "
                f"loss: {10 / step**0.5:8.5f}  memory: 30.00GiB(40%)  "
                f"tps: {8192 / took(step, rank):,.0f}  tflops: 400.00  mfu: 40.00%\n"
            )
    return text, at


def megatron(took: Took, steps: range, data_ms: Callable[[int], float] | None = None) -> str:
    return "".join(
        f" [2026-03-05 08:40:00.000000] iteration {step:8}/ 100000 | elapsed time per iteration "
        f"(ms): {1000 * took(step, 0):.3f} | lm loss: {10 / step**0.5:.6E} | grad norm: 1.0 |\n"
        for step in steps
    )


def sentences(run: Run) -> list[str]:
    """The titles and details of the findings."""
    return [f"{each.title}. {each.detail}" for (_, each), _ in checked(run, parse("R")).placed]


def test_a_log_is_a_run(tmp_path: Path) -> None:
    """Steps, times, tokens per second and percentiles equal an own count."""
    generator = random.Random(1)
    times = [round(generator.uniform(0.9, 1.1), 3) for _ in range(1001)]
    text, _ = titan(lambda step, _: times[step], range(1, 1001))
    (tmp_path / "train.log").write_text(text)
    run = open_run(str(tmp_path / "train.log"))
    assert run.is_logged_only and len(run.side(TrainedSteps)) == 1000
    frame = query(run, parse("R?view=training"))
    steady = sorted(times[2:])
    assert frame.total["logged_steps"] == 1000
    assert frame.total["logged_step_ns"] == pytest.approx(1e9 * np.median(steady), rel=1e-9)
    assert frame.total["logged_p95_ns"] == pytest.approx(1e9 * np.quantile(steady, 0.95), rel=1e-9)
    tokens = sum(round(8192 / each) * each for each in times[2:]) / sum(times[2:])
    assert frame.total["logged_tokens_per_s"] == pytest.approx(tokens, rel=1e-3)
    # Windows of a round number of steps: each has the median of its own.
    assert frame.labels[1] == "51-100" and sum(frame.values["logged_steps"].numbers) == 1000
    window = 1e9 * np.median(times[51:101])
    assert frame.values["logged_step_ns"].at(1) == pytest.approx(window, rel=1e-9)
    by_step = query(run, parse("R?view=training&by=step"))
    assert by_step.values["logged_step_ns"].at(499) == pytest.approx(1e9 * times[500], rel=1e-9)
    # The first screen of such a run, and its store.
    assert query(run, parse("R")).labels == frame.labels
    write_store(run, tmp_path / "store")
    again = query(read_store(tmp_path / "store"), parse("R?view=training"))
    assert again.labels == frame.labels and again.total == frame.total


def test_the_steps_of_a_log_in_python(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(titan(lambda *_: 1.0, range(1, 51))[0])
    frame = chopper_core.open(str(tmp_path / "train.log")).training(by="step")
    table = frame.to_pandas()
    assert table["name"].tolist() == [str(step) for step in range(1, 51)]
    assert table["logged_step_ns"].tolist()[1:] == [1e9] * 49


def test_costs_of_findings_are_per_step(tmp_path: Path) -> None:
    """A checkpoint of 5 s every 100 steps costs 50 ms per step, a slow rank 200 ms for a half."""
    text = "".join(
        f"{rank}: completed step: {step}, seconds: "
        f"{1 + 5 * (step % 100 == 0) + 0.2 * (rank == 2 and step > 500):.4f}, loss: 2.0\n"
        for step in range(1, 1001)
        for rank in range(4)
    )
    (tmp_path / "job.log").write_text(text)
    run = open_run(str(tmp_path / "job.log"))
    found = {rule.name: each.cost_ns for (rule, each), _ in checked(run, parse("R")).placed}
    assert found["periodic-steps"] == pytest.approx(50e6, rel=0.01)
    assert found["slow-rank-run"] == pytest.approx(0.2e9 / 2, rel=0.05)
    assert list(found) == ["slow-rank-run", "periodic-steps"]
    frame = query(run, parse("R?view=findings"))
    assert "cost_ns" in [column.name for column in frame.columns]


def test_restarts(tmp_path: Path, wording: Wording) -> None:
    """The job ends at step 120 and begins again at 101, an hour later, in another file."""
    first, end = titan(lambda *_: 1.0, range(1, 121))
    second, _ = titan(lambda *_: 1.0, range(101, 301), at=end + timedelta(hours=1))
    (tmp_path / "slurm-11.out").write_text(first)
    (tmp_path / "slurm-12.out").write_text(second)
    run = open_run(str(tmp_path))
    training = training_of(run)
    assert training is not None and training.attempts == [0, 1]
    (restart,) = restarts_of(training)
    assert (restart.last, restart.first, restart.again) == (120, 101, 20)
    assert restart.away_ns == 3601e9
    frame = query(run, parse("R?view=training&by=attempt"))
    assert frame.labels == ("start 1", "start 2") or list(frame.labels) == ["start 1", "start 2"]
    assert frame.values["steps_again"].at(1) == 20
    wording.among(sentences(run), "again once", "20 steps", "step 101")


def test_equal_lines_of_two_files_count_once(tmp_path: Path) -> None:
    text, _ = titan(lambda *_: 1.0, range(1, 51))
    for name in ("console.out", "console.err"):
        (tmp_path / name).write_text(text)
    run = open_run(str(tmp_path))
    assert len(run.side(TrainedSteps)) == 50 and len(run.logs) == 2


def test_a_slow_rank_and_since_when(tmp_path: Path) -> None:
    def took(step: int, rank: int) -> float:
        return 1.2 if rank == 5 and step >= 600 else 1.0 + 0.001 * ((step * 7 + rank) % 5)

    lines = [
        f"{rank}: completed step: {step}, seconds: {took(step, rank):.4f}, "
        f"TFLOP/s/device: 100.0, Tokens/s/device: 1000.0, loss: 2.0"
        for step in range(1, 1001)
        for rank in range(8)
    ]
    blocks = [lines[at : at + 8] for at in range(0, 8000, 8)]
    for block in blocks:
        random.Random(2).shuffle(block)
    text = "\n".join(line for block in blocks for line in block)
    (tmp_path / "job.log").write_text(f"{text}\n")
    run = open_run(str(tmp_path))
    frame = query(run, parse("R?view=training&by=rank"))
    assert frame.labels[0] == "5" and len(frame.labels) == 8
    (sentence,) = (text for text in sentences(run) if text.startswith("Rank "))
    assert sentence.startswith("Rank 5 takes ") and "since step 60" in sentence
    share = float(sentence.split()[3])
    assert share == pytest.approx(19.8, abs=0.5)


def test_periodic_steps_data_and_spikes(tmp_path: Path, wording: Wording) -> None:
    """A checkpoint of 5 s every 100 steps, an evaluation of 2 s every 40; data takes 20 %."""
    text = ""
    for step in range(1, 1001):
        seconds = 1.0 + 5.0 * (step % 100 == 0) + 2.0 * (step % 40 == 20)
        seconds += 3.0 * (step == 333)
        loss = 20.0 if step == 333 else 10 / step**0.5
        text += (
            f"03/05 08:40:00 - mmengine - INFO - Iter(train) [{step:5}/1000]  lr: 1e-4  eta: 1:00 "
            f" time: {seconds:.4f}  data_time: {0.2 * seconds:.4f}  memory: 100  loss: {loss:.5f}\n"
        )
    (tmp_path / "20260305.log").write_text(text)
    found = sentences(open_run(str(tmp_path)))
    periods = [text for text in found if text.startswith("Every ")]
    assert len(periods) == 2
    wording.among(periods, "100 steps", "5000 ms longer", "50 ms")
    wording.among(periods, "40 steps", "2000 ms longer", "50 ms")
    assert all(("10 times" in text) == ("Every 100" in text) for text in periods)
    wording.among(found, "20.0 %", "data")
    (spike,) = (text for text in found if text.startswith("The loss jumps"))
    wording(spike, "jumps once, next to a long step", "step 333")


def test_throughput_that_falls(tmp_path: Path) -> None:
    (tmp_path / "m.log").write_text(megatron(lambda step, _: 1 + step / 5000, range(1, 1001)))
    (text,) = (each for each in sentences(open_run(str(tmp_path))) if "ever longer" in each)
    first, last = (float(text.split(" ms in the ")[at].split()[-1]) for at in (1, 0))
    assert first == pytest.approx(1010, abs=2) and last == pytest.approx(1190, abs=2)
    steady = tmp_path / "steady"
    steady.mkdir()
    (steady / "m.log").write_text(megatron(lambda *_: 1.0, range(1, 1001)))
    assert sentences(open_run(str(steady))) == []


def traced(folder: Path, step_us: int, numbers: range, begin: datetime) -> None:
    trace = TinyTrace(members={"baseTimeNanoseconds": 0})
    at = round(begin.timestamp() * 1e6)
    for number in numbers:
        trace.note(f"ProfilerStep#{number}", at, at + step_us)
        trace.launch("gemm", at + 10, start=at + 20, duration=step_us - 100)
        at += step_us
    trace.write(folder / "rank0.json")


@pytest.mark.parametrize("zone", ["", "+00:00"])
def test_how_much_the_profiler_slows_the_steps(tmp_path: Path, zone: str, wording: Wording) -> None:
    """Steps of 1 s take 1.12 s while they are profiled, 50 to 52 by the log, 49 by the trace."""

    def took(step: int, _: int) -> float:
        return 1.12 if 50 <= step <= 52 else 1.0

    text, _ = titan(took, range(1, 201), zone=zone)
    (tmp_path / "train.log").write_text(text)
    traced(tmp_path, 1_120_000, range(49, 52), START + timedelta(seconds=49))
    run = open_run(str(tmp_path), jobs=1)
    found = traced_steps(run)
    assert found is not None and found.longer == pytest.approx(0.12, abs=0.01)
    wording(found.how, "stamps of the log")
    assert found.steps == (50, 52)
    line = "profiled steps take 12.0 % longer than the run's median (1120 ms vs 1000 ms)"
    assert line in query(run, parse("R")).notes
    assert line in query(run, parse("R?view=overview")).headline
    wording.among(sentences(run), "Profiled steps", "12.0 % longer")
    rows = query(run, parse("R?view=training&by=step")).values["traced"]
    assert (np.flatnonzero(rows.present()) + 1).tolist() == [50, 51, 52]


@pytest.mark.parametrize(("number", "steps"), [(7_000, (7_001, 7_003)), (5, None)])
def test_a_long_log_in_local_time(
    tmp_path: Path, number: int, steps: tuple[int, int] | None
) -> None:
    """10,000 steps of 1 s, 9 hours ahead: several zones fit, and the numbers tell which.

    A profiler that began to count during the job tells none, and nothing is marked.
    """
    text, _ = titan(lambda *_: 1.0, range(1, 10_001), at=START + timedelta(hours=9))
    (tmp_path / "train.log").write_text(text)
    traced(tmp_path, 1_100_000, range(number, number + 3), START + timedelta(seconds=7_000))
    found = traced_steps(open_run(str(tmp_path), jobs=1))
    assert found is not None and found.longer == pytest.approx(0.1, abs=0.01)
    assert found.steps is None or abs(found.steps[1] - 7_003) <= 1
    assert (found.steps is None) == (steps is None)


def test_traced_steps_are_placed_by_number_without_stamps(tmp_path: Path) -> None:
    text = megatron(lambda *_: 1.0, range(1, 201)).replace("[2026-03-05 08:40:00.000000] ", "")
    (tmp_path / "train.log").write_text(text)
    traced(tmp_path, 1_500_000, range(80, 83), START)
    found = traced_steps(open_run(str(tmp_path), jobs=1))
    assert found is not None and found.longer == pytest.approx(0.5, abs=0.01)
    assert (found.steps, found.how) == ((80, 82), "by their numbers")


def test_lines_about_several_steps(tmp_path: Path) -> None:
    """A line every 10 steps is about 10; after a start at 100 the first one, too."""
    text = megatron(lambda *_: 1.0, range(10, 121, 10))
    text += megatron(lambda *_: 1.0, range(110, 201, 10))
    (tmp_path / "m.log").write_text(text)
    run = open_run(str(tmp_path))
    training = training_of(run)
    assert training is not None and set(training.steps.tolist()) == {10}
    assert [each.again for each in restarts_of(training)] == [20]
    frame = query(run, parse("R?view=training"))
    assert frame.labels[0] == "1-10" and frame.total["logged_steps"] == 220


def test_checkpoints_of_one_job_are_one_run(tmp_path: Path) -> None:
    for last in (20, 40):
        history = [{"step": step, "loss": 3 - step / 100} for step in range(10, last + 1, 10)]
        folder = tmp_path / f"checkpoint-{last}"
        folder.mkdir()
        text = json.dumps({"global_step": last, "log_history": history})
        (folder / "trainer_state.json").write_text(text)
    steps = open_run(str(tmp_path)).side(TrainedSteps)
    assert steps.step.tolist() == [10, 20, 30, 40] and steps.steps.tolist() == [10] * 4


def test_logs_of_several_jobs_hide_no_run_below_them(tmp_path: Path) -> None:
    text, _ = titan(lambda *_: 1.0, range(1, 11))
    (tmp_path / "third").mkdir()
    for name in ("first.log", "second.log", "third/third.log"):
        (tmp_path / name).write_text(text)
    assert [found.name for found in find_runs([str(tmp_path)])] == [
        "first.log",
        "second.log",
        "third",
    ]


def test_logs_fill_tables_of_runs(tmp_path: Path) -> None:
    for name, seconds in (("base", 2.0), ("tuned", 1.5)):
        (tmp_path / name).mkdir()
        text, _ = titan(lambda *_, each=seconds: each, range(1, 51), ranks=2)  # type: ignore[misc]
        (tmp_path / name / "train.log").write_text(text)
    runs = open_runs("R", [str(tmp_path)], jobs=1, use_cache=False)
    while runs.waiting(wait=True):
        pass
    frame = query(runs, parse("R?view=runs&columns=step_time_ns,mfu_pct,gpus"))
    assert list(frame.labels) == ["base", "tuned"]
    assert frame.values["step_time_ns"].numbers.tolist() == [2e9, 1.5e9]
    assert frame.values["mfu_pct"].numbers.tolist() == [40.0, 40.0]


def test_a_log_is_followed_as_it_grows_and_rotates(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    path = folder / "train.log"
    text, end = titan(lambda *_: 1.0, range(1, 31))
    lines = text.splitlines(keepends=True)
    path.write_text("".join(lines[:10]) + lines[10][:40])
    follower = Follower(str(folder), jobs=1)
    try:

        def steps() -> list[int]:
            follower._read_run(lambda *_: None)
            assert follower.run is not None
            return follower.run.side(TrainedSteps).step.tolist()  # type: ignore[no-any-return]

        assert steps() == list(range(1, 11))
        path.write_text("".join(lines[:20]))
        assert steps() == list(range(1, 21))
        path.write_text(titan(lambda *_: 1.0, range(31, 36), at=end)[0])
        assert steps() == [*range(1, 21), *range(31, 36)]
    finally:
        follower.close()


def test_live_shows_the_steps_of_a_log(tmp_path: Path, wording: Wording) -> None:
    """The newest step, its usual time, the rate, tokens per second, and the slowest rank; a line of
    JSON per step, and an alarm of one that takes too long."""

    def took(step: int, rank: int) -> float:
        return 3.0 if step == 40 else 1.0

    folder = tmp_path / "job"
    folder.mkdir()
    path = folder / "train.log"
    text = "".join(
        f"{rank}: completed step: {step}, seconds: {took(step, rank) * (1 + 0.1 * (rank == 1)):.4f}"
        f", Tokens/s/device: 8192.0, loss: 2.0\n"
        for step in range(1, 41)
        for rank in range(3)
    )
    lines = text.splitlines(keepends=True)
    path.write_text("".join(lines[:90]))
    follower = Follower(str(folder), jobs=1)
    follower.alarms = AlarmWatch([parse_alarm("step_time>+50%")])
    try:
        follower.open()
        assert follower.run is not None
        (first, *_) = query(follower.run, parse("R?view=live")).headline
        wording(first, "step 30: 1000 ms", "median 1000 ms", "p95 1000 ms", "1 steps/s")
        assert "8,192 tok/s per rank" in first and "rank 1 is slowest, +10.0 %" in first
        path.write_text(text)
        follower._read_run(lambda *_: None)
        follower.tail()
        (chart, *_) = query(follower.run, parse("R?view=live")).charts
        assert isinstance(chart, StepBars) and chart.steps[-1] == 40
        assert chart.numbers[-1] == 3000.0
        assert any("step 40 took 3000 ms" in each.text for each in follower.recent.events)
        follower.recent.has_ended = True
        follower.every_s = 0.01
        written = [json.loads(str(line)) for line in follow_lines(follower)]
        steps = [each for each in written if "logged_step" in each]
        assert [each["logged_step"] for each in steps] == [*range(1, 41)]
        assert steps[-1]["step_time_ns"] == 3e9 and steps[-1]["ranks"] == 3
    finally:
        follower.close()


def test_facts_of_a_log_in_info(tmp_path: Path, wording: Wording) -> None:
    from chopper_core.render.info import info_text

    (tmp_path / "m.log").write_text(
        megatron(lambda *_: 1.0, range(1, 21)).replace("| grad", "| new key: 3 | grad")
    )
    text = str(info_text(open_run(str(tmp_path))))
    wording.among(text, "Megatron", "20 lines")
    wording.among(text, "1 field", "new key (20)")


@pytest.mark.parametrize(
    ("view", "said"),
    [
        ("training&by=rank", "the log names no ranks: its lines are about the whole job"),
        ("training&by=stage", "the log times no stages of a step, such as forward"),
        ("kernels", "Kernels · by name needs a trace, and this run has a trainer's log alone"),
    ],
)
def test_what_a_log_has_no_answer_to(tmp_path: Path, view: str, said: str) -> None:
    (tmp_path / "train.log").write_text(megatron(lambda step, rank: 1, range(1, 9)))
    run = open_run(str(tmp_path / "train.log"))
    with pytest.raises(NothingToShow, match=re.escape(said)):
        query(run, parse(f"R?view={view}"))


def test_a_trace_without_a_log_says_what_to_put_next_to_it(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.launch("gemm", 20)
    trace.write(tmp_path / "rank0.json")
    with pytest.raises(NothingToShow, match="the run has no log of a trainer; put the job's"):
        query(open_run(str(tmp_path)), parse("R?view=training"))


def test_logs_without_a_step_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.log"
    path.write_text(':::MLLOG {"key": "run_start", "value": null, "time_ms": 1, "metadata": {}}\n')
    with pytest.raises(DataError, match=r"\(MLPerf log\) holds no step of a training\."):
        open_run(str(path))
    path = tmp_path / "trainer_state.json"
    path.write_text('{"best_metric": null, "global_step": 20, "log_history": [{"step": 1')
    with pytest.raises(DataError, match=r"is a Trainer state, but can't be parsed; is it whole\?"):
        open_run(str(path))
