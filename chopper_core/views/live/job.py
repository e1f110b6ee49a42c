"""The steps of a running job, as it publishes or logs them: headline, cards and bars."""

from __future__ import annotations

from contextlib import suppress
from math import isfinite
from time import time as clock
from typing import Final

import numpy as np

from chopper_core.analyses.memory import failed_allocations
from chopper_core.analyses.outliers import outliers
from chopper_core.analyses.step_times import StepTimes
from chopper_core.analyses.training import job_steps, training_of
from chopper_core.columns import numbered
from chopper_core.model import address
from chopper_core.model.charts import Card, StepBars
from chopper_core.model.phrases import facts, percent, time
from chopper_core.model.recent_steps import SLOWER, JobSteps, RecentSteps
from chopper_core.model.run import Run
from chopper_core.model.view import View, child_of
from chopper_core.util.errors import UsageError

_MAX_STEPS: Final = 240
_MOST_WINDOWS: Final = 2


def job_headline(run: Run) -> tuple[str, ...]:
    """The newest step of a running job, its usual time, and the slowest rank."""
    recent = run.recent.steps if run.recent is not None else RecentSteps()
    job, now_s = job_steps(run), clock()
    if not len(job):
        return ()
    has_ended = run.recent is not None and run.recent.has_ended
    # Where the ranks are, the alarm says; lines that stay where they are cost nothing to draw.
    stall, *_ = ("" if has_ended else recent.stall(now_s) or recent.doing(now_s)).split(": ", 1)
    rate, tokens = job.per_second()
    rank, slower = recent.slowest() if recent else _slowest_by_log(run)
    within = job.named(len(job) - 1)
    parts = (
        stall,
        f"step {job.number[-1]:,}: {time(float(job.time_ns[-1]))}"
        f"{f' ({within})' if within else ''}",
        f"median {time(job.usual_ns())}, p95 {time(job.usual_ns(0.95))}" if job.plain.any() else "",
        f"{rate:.3g} steps/s" * isfinite(rate),
        f"{tokens:,.0f} tok/s per rank" * isfinite(tokens),
        f"rank {rank} is slowest, +{percent(slower)}" if rank >= 0 else "",
    )
    starts = recent.starts()
    before = ""
    if len(starts) > 1:
        lasts = [int(each.rows[-1, 0]) for each in starts[-2] if len(each.rows)]
        until = f", which ended after step {max(lasts):,}" if lasts else ""
        before = f"start {len(starts)} of the job; the one before{until}" if lasts else ""
    failed = [each.sentence for each in failed_allocations(run)[-1:]]
    return (facts(*parts), *([before] if before else []), *failed)


def _slowest_by_log(run: Run) -> tuple[int, float]:
    """The slowest rank by the job's log, and by which part; -1 where none stands out."""
    training = training_of(run)
    if training is None or len(training.timed_ranks) < 2:
        return -1, 0.0
    _, slow = training.by_rank()
    place = int(np.nanargmax(slow))
    slower = float(slow[place]) - 1.0
    return (int(training.ranks[place]), slower) if slower >= SLOWER else (-1, 0.0)


def window_cards(view: View, steps: StepTimes, job: JobSteps) -> list[Card]:
    """The newest traced windows among the steps of a job; each opens its last step."""
    if not len(job) or not steps.iterations:
        return []
    order = np.argsort(steps.iterations)
    numbers, times_ns = np.array(steps.iterations)[order], steps.each_ns[order]
    windows = np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(numbers) != 1) + 1)
    cards, usual_ns = [], job.usual_ns()
    for own in windows[: -1 - _MOST_WINDOWS : -1]:
        first, last, each_ns = numbers[own[0]], numbers[own[-1]], float(times_ns[own].mean())
        change = ""
        if isfinite(usual_ns) and usual_ns > 0:
            change = f", {100 * (each_ns / usual_ns - 1):+.0f} % to the median of the others"
        text = f"steps {first:,} to {last:,}: {time(each_ns)} each{change}"
        opens = child_of(View(view.run), "iteration", str(last))
        cards.append(Card(("traced",), text, address.render(opens)))
    return cards


def other_cards(view: View, job: JobSteps) -> list[Card]:
    """The newest evaluations and checkpoints, with the steps that they are in."""
    places = np.flatnonzero((job.evaluation_ns > 0) | (job.checkpoint_ns > 0))[-_MOST_WINDOWS:]
    opens = address.render(View(view.run, name="training", by="stage"))
    cards = []
    for place in places[::-1].tolist():
        text = f"step {job.number[place]:,}: {time(float(job.time_ns[place]))}"
        cards.append(Card(("step",), f"{text}, of it {job.named(place)}", opens))
    return cards


def step_bars(view: View, job: JobSteps, steps: StepTimes | None) -> StepBars | None:
    """The time of each step: of those that the job publishes or logs, else of the traced ones."""
    # Without steps the whole run is measured as one, which has no number.
    has_steps = steps is not None and len(steps.iterations) > 0
    traced = dict(zip(steps.iterations, steps.each_ns, strict=True)) if steps and has_steps else {}
    if len(job):
        shown = slice(-_MAX_STEPS, None)
        numbers, times_ns = job.number[shown], job.time_ns[shown]
        usual, profiled = job.plain[shown], job.profiled[shown]
    elif traced:
        numbers = np.array(sorted(traced)[-_MAX_STEPS:], np.int64)
        times_ns = np.array([traced[number] for number in numbers.tolist()], np.float64)
        usual, profiled = np.ones(len(numbers), np.bool_), np.zeros(len(numbers), np.bool_)
    else:
        return None
    first = len(job) - len(numbers)

    def described(place: int) -> str:
        number = int(numbers[place])
        parts = [f"step {number:,}: {time(float(times_ns[place]))}"]
        if len(job):
            parts.append(job.named(first + place))
        if number in traced:
            own = time(float(traced[number]))
            parts.append(f"traced ({own} there)" if len(job) else "traced")
        return ", ".join(filter(None, parts))

    def opens(place: int) -> View:
        number = int(numbers[place])
        if number not in traced:
            near = min(traced, key=lambda each: (abs(each - number), -each), default=None)
            known = "no step is" if near is None else f"the nearest one that is: step {near:,}"
            raise UsageError(f"step {number:,} isn't traced; {known}")
        return child_of(View(view.run), "iteration", str(number))

    apart: tuple[int, ...] = ()
    plain, times_ms = np.flatnonzero(usual), times_ns / 1e6
    with suppress(UsageError):  # of few steps
        apart = tuple(plain[[*outliers(numbered(times_ms[plain].tolist())).rows]].tolist())
    return StepBars(
        "step",
        "ms",
        numbers,
        times_ms,
        apart,
        tuple(np.flatnonzero(profiled).tolist()),
        tuple(place for place, number in enumerate(numbers.tolist()) if number in traced),
        described,
        opens,
    )
