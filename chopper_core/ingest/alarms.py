"""Alarms: limits on the step time and on signals of GPUs that a run is followed with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import nan
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.step_times import step_times
from chopper_core.analyses.training import job_steps
from chopper_core.model.recent import RecentSamples, ThinnedSamples
from chopper_core.model.run import Run
from chopper_core.model.signals import TRACKS
from chopper_core.model.units import Unit
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Mask
from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import median_of

STEP_TIME: Final = "step_time"
STALL: Final = "stall"
"""The alarm that needs no limit: no step ends."""
_ALARM: Final = re.compile(
    r"\s*(\w+)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*(%?)(?:\s+for\s+(\d+(?:\.\d+)?)\s*s)?\s*"
)
_UNITS: Final = {name: each.unit for name, each in TRACKS.items()}
_ALMOST: Final = 0.9
"""Samples rarely have the distance that was asked for."""
_USUAL: Final = 50
"""The moving median is that of so many steps or samples before."""


Found = tuple[str, bool, tuple[float, float, bool]]
"""A sentence, whether it holds now, and value, limit and whether the value is above it."""
_NOTHING: Final[Found] = "", False, (nan, nan, True)


class Alarm(Struct, frozen=True):
    """A limit: `step_time>+5%`, `gfx_mhz<1500 for 10s`; % are of the usual or the baseline."""

    text: str
    name: str
    is_above: bool
    limit: float
    is_relative: bool
    for_s: float

    def limit_of(self, usual: float) -> float:
        return usual * (1 + self.limit / 100) if self.is_relative else self.limit

    def beyond(self, values: Float64, usual: float) -> Mask:
        limit = self.limit_of(usual)
        return values > limit if self.is_above else values < limit


def parse_alarm(text: str) -> Alarm:
    """Raises UsageError."""
    found = _ALARM.fullmatch(text)
    names = [STEP_TIME, *TRACKS]
    if found is None or found[1] not in names:
        raise UsageError(
            f"alarm {text!r} is none like 'step_time>+5%', 'step_time>800' (in ms) or "
            f"'gfx_mhz<1500 for 10s'; its names are {', '.join(names)}"
        )
    percent = bool(found[4]) and (
        found[1] == STEP_TIME or found[3][0] in "+-" or _UNITS[found[1]] is not Unit.PERCENT
    )
    for_s = float(found[5] or 0)
    return Alarm(text, found[1], found[2] == ">", float(found[3]), percent, for_s)


class AlarmWatch:
    """Compares what came since the last look with limits, so that nothing is missed."""

    def __init__(self, alarms: Sequence[Alarm]) -> None:
        self.alarms = tuple(alarms)
        self._newest_ns: dict[tuple[str, int], int] = {}
        """The newest sample of each signal of each GPU at the last look."""
        self._steps: frozenset[int] | None = None

    def look(self, run: Run, recent: RecentSamples) -> None:
        """Note the alarms that begin, hold or end; at first, only of the newest data."""
        base = next(iter(run.others.values()), None)
        for alarm in self.alarms:
            if alarm.name == STEP_TIME:
                for text, holds, figures in self._of_steps(run, base, alarm):
                    recent.note(alarm.text, STEP_TIME, None, text, holds=holds, figures=figures)
                continue
            for (name, gpu), series in recent.series.items():
                if name == alarm.name and len(series):
                    since_ns = self._newest_ns.get((name, gpu))
                    usual = _usual(base, name, gpu)
                    text, holds, figures = _of_signal(series, alarm, since_ns, usual)
                    said = text and f"GPU {gpu}: {text}"
                    recent.note(alarm.text, name, gpu, said, holds=holds, figures=figures)
        known = {key: each for key, each in recent.series.items() if len(each)}
        self._newest_ns = {key: int(each.begins_ns[-1]) for key, each in known.items()}

    def _of_steps(self, run: Run, base: Run | None, alarm: Alarm) -> Iterator[Found]:
        """A sentence per new step, '' within the limit, and whether it is the newest."""
        times_ms, numbers = _steps_of(run)
        if not numbers:
            return
        before, self._steps = self._steps, frozenset(numbers)
        new = [
            at for at, number in enumerate(numbers) if before is not None and number not in before
        ]
        for at in new or ([len(numbers) - 1] if before is None else []):
            usual, whose = float("nan"), "the steps before"
            if base is not None:
                usual, whose = step_times(base, View(base.name)).mean_ns / 1e6, "the baseline"
            elif at:
                usual = median_of(times_ms[max(at - _USUAL, 0) : at])
            is_known = np.isfinite(usual) or not alarm.is_relative
            text = ""
            if is_known and alarm.beyond(times_ms[at : at + 1], usual)[0]:
                change = (
                    f", {100 * (times_ms[at] / usual - 1):+.1f} % to {whose}" if usual > 0 else ""
                )
                text = f"step {numbers[at]} took {times_ms[at]:.4g} ms{change} ({alarm.text})"
            figures = float(times_ms[at]), alarm.limit_of(usual), alarm.is_above
            yield text, at == len(numbers) - 1, figures


def _steps_of(run: Run) -> tuple[Float64, list[int]]:
    """The times of steps in ms, and their numbers: of a job that publishes each, all of them but
    those that a profiler slows."""
    if len(job := job_steps(run)):
        own = ~job.profiled
        return job.time_ns[own] / 1e6, job.number[own].tolist()
    steps = None if run.is_sampled_only else step_times(run, View(run.name))
    if steps is None or not steps.iterations:
        return np.empty(0), []
    order = np.argsort(steps.iterations)
    return steps.each_ns[order] / 1e6, np.array(steps.iterations)[order].tolist()


def _of_signal(series: ThinnedSamples, alarm: Alarm, since_ns: int | None, usual: float) -> Found:
    """What a new sample is beyond for long enough, '' for nothing; whether the newest one is."""
    begins, values = series.begins_ns, series.figures[1]
    newest = len(begins) - 1
    first = newest if since_ns is None else int(np.searchsorted(begins, since_ns, "right"))
    first = min(first, newest)
    begin = int(np.searchsorted(begins, begins[first] - alarm.for_s * 1e9, "left"))
    if not np.isfinite(usual) and begin:
        usual = median_of(values[max(begin - _USUAL, 0) : begin])
    if alarm.is_relative and not np.isfinite(usual):
        return _NOTHING
    beyond = alarm.beyond(values[begin:], usual)
    # How long each sample and all before it have been beyond the limit.
    last_good = np.maximum.accumulate(np.where(beyond, -1, np.arange(len(beyond))))
    held_s = (begins[begin:] - begins[begin:][np.minimum(last_good + 1, len(beyond) - 1)]) / 1e9
    rings = np.flatnonzero(beyond & (held_s >= alarm.for_s * _ALMOST))
    rings = rings[rings >= first - begin]
    if not len(rings):
        return _NOTHING
    title, unit = TRACKS[alarm.name].title, TRACKS[alarm.name].unit
    holds = bool(rings[-1] == len(beyond) - 1)
    value = float(values[begin + rings[-1]])
    figures = value, alarm.limit_of(usual), alarm.is_above
    return f"{title} {value:.4g} {unit} ({alarm.text})", holds, figures


def _usual(base: Run | None, name: str, gpu: int) -> float:
    """The mean of a GPU's signal in the baseline; NaN where unknown."""
    curve = base.measured[name].curves.get(gpu) if base and name in base.measured else None
    return curve.mean if curve is not None else float("nan")
