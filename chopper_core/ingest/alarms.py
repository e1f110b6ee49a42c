"""Alarms: limits on the step time and on signals of GPUs that a run is followed with."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.telemetry import TITLES
from chopper_core.model.recent import RecentSamples, ThinnedSamples
from chopper_core.model.run import Run
from chopper_core.model.units import Unit
from chopper_core.model.view import View
from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import median_of
from chopper_core.views.shared.step_times import step_times

STEP_TIME: Final = "step_time"
_ALARM: Final = re.compile(
    r"\s*(\w+)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*(%?)(?:\s+for\s+(\d+(?:\.\d+)?)\s*s)?\s*"
)
_UNITS: Final = {str(name): unit for name, (_, unit) in TITLES.items()}
_ALMOST: Final = 0.9
"""Samples are rarely as far apart as asked for."""
_USUAL: Final = 50
"""The moving median is that of so many steps or samples before."""


class Alarm(Struct, frozen=True):
    """A limit: `step_time>+5%`, `gfx_mhz<1500 for 10s`; % are of the usual or the baseline."""

    text: str
    name: str
    is_above: bool
    limit: float
    is_relative: bool
    for_s: float

    def beyond(self, value: float, usual: float) -> bool:
        limit = usual * (1 + self.limit / 100) if self.is_relative else self.limit
        return value > limit if self.is_above else value < limit


def parse_alarm(text: str) -> Alarm:
    """Raises UsageError."""
    found = _ALARM.fullmatch(text)
    names = [STEP_TIME, *TITLES]
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


def alarms_of(run: Run, recent: RecentSamples, alarms: tuple[Alarm, ...]) -> dict[str, int | None]:
    """The alarms that hold, a sentence each, and its GPU; None for the step time."""
    found: dict[str, int | None] = {}
    for alarm in alarms:
        if alarm.name == STEP_TIME:
            if text := _of_step(run, alarm):
                found[text] = None
            continue
        for (name, gpu), series in recent.series.items():
            if name == alarm.name and (text := _of_signal(series, alarm)):
                found[f"GPU {gpu}: {text}"] = gpu
    return found


def _of_signal(series: ThinnedSamples, alarm: Alarm) -> str:
    """All samples of the last seconds are beyond the limit, and there are so many seconds."""
    if not len(series):
        return ""
    begins, values = series.begins_ns, series.figures[1]
    since = int(np.searchsorted(begins, begins[-1] - alarm.for_s * 1e9, "left"))
    if alarm.for_s and begins[-1] - begins[since] < alarm.for_s * 1e9 * _ALMOST:
        return ""
    before = values[max(since - _USUAL, 0) : since]
    if alarm.is_relative and not len(before):
        return ""
    usual = median_of(before) if len(before) else np.nan
    if not all(alarm.beyond(float(each), usual) for each in values[since:]):
        return ""
    title, unit = next(each for name, each in TITLES.items() if name == alarm.name)
    return f"{title} {values[-1]:.4g} {unit} ({alarm.text})"


def _of_step(run: Run, alarm: Alarm) -> str:
    if run.is_sampled_only:
        return ""
    steps = step_times(run, View(run.name))
    if not steps.iterations:
        return ""
    order = np.argsort(steps.iterations)
    times_ms = steps.each_ns[order] / 1e6
    usual, whose = float("nan"), "the steps before"
    if base := next(iter(run.others.values()), None):
        usual, whose = step_times(base, View(base.name)).mean_ns / 1e6, "the baseline"
    elif len(times_ms) > 1:
        usual = median_of(times_ms[:-1][-_USUAL:])
    if (alarm.is_relative and not np.isfinite(usual)) or not alarm.beyond(times_ms[-1], usual):
        return ""
    number = steps.iterations[int(order[-1])]
    change = f", {100 * (times_ms[-1] / usual - 1):+.1f} % to {whose}" if usual > 0 else ""
    return f"iteration {number} took {times_ms[-1]:.4g} ms{change} ({alarm.text})"
