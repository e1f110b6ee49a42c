"""What follows a run as lines of JSON: steps, samples and alarms as they come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import isfinite
from typing import Final

import numpy as np

from chopper_core.analyses.step_times import step_times
from chopper_core.analyses.training import job_steps, training_of
from chopper_core.ingest.follow import Follower
from chopper_core.model.recent import AlarmEvent, RecentSamples
from chopper_core.model.recent_steps import NO_STEPS, JobSteps
from chopper_core.model.view import View
from chopper_core.util.arrays import json_of
from chopper_core.util.escape import Escaped, escape_each

SCHEMA: Final = "chopper.live/1"
_LOOKS: Final = 3
"""An ended run is left once so many looks found nothing new."""


def follow_lines(follower: Follower) -> Iterator[Escaped]:
    """A line of JSON per new step, alarm and time with samples, until the run has ended."""
    steps: set[int] = set()
    start = published = -1
    told: set[tuple[int, bool]] = set()
    samples, at_rest = NewSamples(), 0
    while at_rest < _LOOKS or not follower.recent.has_ended:
        run, recent = follower.run, follower.recent
        if run is not None and not run.is_sampled_only:
            times = step_times(run, View(run.name))
            rows = dict(zip(times.iterations, times.each_ns.tolist(), strict=True))
            for number in sorted(rows.keys() - steps):
                yield _line(step=number, step_time_ns=rows[number], gpus=len(times.gpus))
            steps |= rows.keys()
        job = NO_STEPS if run is None else job_steps(run)
        born, word = recent.steps.born_ns, "published_step"
        if not recent.steps and run is not None and (training := training_of(run)) is not None:
            born, word = -training.attempts[-1] - 2, "logged_step"
        if born != start:
            start, published = born, -1
        for place in np.flatnonzero(job.number > published).tolist():
            yield _line(**_described_step(job, place, word))
        published = max([published, *job.number[-1:].tolist()])
        for time_ns, gpus in samples.of(recent):
            yield _line(time_ns=time_ns, gpus=gpus)
        for event in recent.events:
            now = (id(event), event.holds)
            if now not in told:
                yield _line(**_described_alarm(event))
        told = {(id(event), event.holds) for event in recent.events}
        time.sleep(follower.every_s)
        is_new = follower.poll() is not None
        has_come = follower.tail() or is_new or follower.is_reading
        at_rest = 0 if has_come else at_rest + 1


def _described_step(job: JobSteps, place: int, word: str) -> dict[str, object]:
    """A step that processes publish, or that a log has, with what is known of it."""
    return {
        word: int(job.number[place]),
        "step_time_ns": float(job.time_ns[place]),
        "end_ns": int(job.end_ns[place]),
        "ranks": int(job.ranks[place]),
        "tokens_per_rank": float(job.tokens[place]),
        "evaluation_ns": float(job.evaluation_ns[place]),
        "checkpoint_ns": float(job.checkpoint_ns[place]),
        "profiled": bool(job.profiled[place]),
    }


def _described_alarm(event: AlarmEvent) -> dict[str, object]:
    """An alarm that began, or that ended."""
    return {
        "alarm": event.text,
        "state": "holds" if event.holds else "ended",
        "limit_text": event.alarm,
        "signal": event.name,
        "gpu": event.gpu,
        "value": event.value,
        "limit": event.limit,
        "began_ns": round(event.began_s * 1e9),
        "ended_ns": round(event.ended_s * 1e9) if isfinite(event.ended_s) else None,
    }


class NewSamples:
    """The samples that came since the last look; at first the newest of each signal."""

    def __init__(self) -> None:
        self._newest_ns: dict[tuple[str, int], int] = {}
        self._begin_ns: int | None = None
        """The newest sample of the first look."""

    def of(self, recent: RecentSamples) -> Iterator[tuple[int, dict[str, dict[str, float]]]]:
        """The first time of each tick, and the values of all its samples by GPU and signal.

        Samplers read one GPU after the other: samples within a period are of one tick.
        """
        found: list[tuple[int, str, str, float]] = []
        period_ns = min((each.period_ns for each in recent.series.values()), default=0)
        for (name, gpu), series in recent.series.items():
            if not len(series):
                continue
            begins, newest = series.begins_ns, len(series) - 1
            since = self._newest_ns.get((name, gpu), self._begin_ns)
            first = newest if since is None else int(np.searchsorted(begins, since, "right"))
            found += [
                (int(begins[at]), str(gpu), name, float(series.figures[1, at]))
                for at in range(first, newest + 1)
            ]
            self._newest_ns[name, gpu] = max(int(begins[newest]), since or 0)
        found.sort()
        if self._begin_ns is None and found:
            self._begin_ns = found[-1][0]
        tick_ns, gpus = 0, dict[str, dict[str, float]]()
        for time_ns, label, name, value in found:
            if gpus and (name in gpus.get(label, ()) or time_ns - tick_ns >= period_ns):
                yield tick_ns, gpus
                gpus = {}
            tick_ns = tick_ns if gpus else time_ns
            gpus.setdefault(label, {})[name] = value
        if gpus:
            yield tick_ns, gpus


def _line(**values: object) -> Escaped:
    return escape_each([json_of({"schema": SCHEMA, **values}).decode()], is_sentence=False)
