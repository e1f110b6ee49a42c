"""Findings of a run of telemetry alone: low clocks, throttling, heat, energy apart from peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.run import Run
from chopper_core.model.view import View, with_view
from chopper_core.query.marks import MAD_TO_SIGMA
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.grouping import median_of
from chopper_core.views.findings.rule import Confidence, Finding, Threshold
from chopper_core.views.findings.throttled import THROTTLED as THROTTLED_SHARE
from chopper_core.views.shared.phrases import by_number, count, percent
from chopper_core.views.shared.sampled_gpus import (
    CLOCK,
    HEAT,
    LOW_CLOCK,
    POWER,
    THROTTLED,
    figure,
    low_clock_pct,
)
from chopper_core.views.shared.samples import gpus_of

APART_Z: Final = 6.0
LOWER_CLOCK: Final = Threshold(
    "clock below that of the other GPUs", 2.0, "%", "GPUs of one model vary by about a percent"
)
HOTTER: Final = Threshold(
    "temperature above that of the other GPUs",
    5.0,
    "°C",
    "neighbouring slots of a node differ by a few degrees",
)
MORE_POWER: Final = Threshold("power below that of the other GPUs", 10.0, "%", "idle, or capped")


def findings_of_samples(run: Run, view: View) -> list[Finding]:
    """Differences of GPUs in their telemetry, the surest first; nothing of their cost is known."""
    found = [
        *([_stopped(run, view)] if run.status else []),
        *_throttled(run, view),
        *_apart(run, view, "-mean_hot_c", figure(run, HEAT), _hotter),
        *_apart(run, view, "mean_gfx_mhz", figure(run, CLOCK), _slower),
        *_apart(run, view, "mean_power_w", figure(run, POWER), _weaker),
    ]
    return sorted(found, key=lambda each: -each.confidence)


def _stopped(run: Run, view: View) -> Finding:
    return Finding(run.status, with_view(view, "overview"), Confidence.HIGH)


def _throttled(run: Run, view: View) -> Iterator[Finding]:
    """GPUs that are throttled by their driver's word, else whose clock is low under load."""
    if "throttle_pct" in run.sampled:
        own = run.sampled["throttle_pct"]
        share = np.array([own[gpu].mean if gpu in own else np.nan for gpu in gpus_of(run)])
        how, column = "throttled", "-mean_throttle_pct"
    else:
        share, column = low_clock_pct(run), f"-{THROTTLED.name}"
        how = f"below {100 * LOW_CLOCK:.0f} % of {{}} highest clock under load for"
    slowed = np.flatnonzero(np.nan_to_num(share) >= THROTTLED_SHARE.value)
    if not len(slowed):
        return
    gpus = [gpus_of(run)[place] for place in slowed.tolist()]
    least, most = float(share[slowed].min()), float(share[slowed].max())
    size = f"{most:.0f} %" if most - least < 1 else f"{least:.0f} to {most:.0f} %"
    verb, whose = ("is", "its") if len(gpus) == 1 else ("are", "their")
    yield Finding(
        f"{_named(run, gpus)} {verb} {how.format(whose)} {size} of the time",
        _evidence(view, column),
        Confidence.MEDIUM,
    )


def _apart(
    run: Run,
    view: View,
    sort: str,
    values: Float64,
    sentence: Callable[[str, float, float, int], str | None],
) -> Iterator[Finding]:
    """The GPUs that lie far from the others in a figure, on the side that `sort` puts first."""
    known = np.flatnonzero(np.isfinite(values))
    if len(known) < 3:
        return
    sign = -1.0 if sort.startswith("-") else 1.0
    median = median_of(values[known])
    spread = MAD_TO_SIGMA * median_of(np.abs(values[known] - median))
    far: Index = known[sign * (median - values[known]) > APART_Z * spread]
    gpus = [gpus_of(run)[place] for place in far.tolist()]
    if not gpus or len(gpus) > len(known) // 2:
        return
    most = float(values[far].min() if sign > 0 else values[far].max())
    text = sentence(_named(run, gpus), most, median, len(gpus))
    if text is not None:
        yield Finding(text, _evidence(view, sort), Confidence.MEDIUM)


def _hotter(gpus: str, most: float, median: float, number: int) -> str | None:
    if most - median < HOTTER.value:
        return None
    verb = "is" if number == 1 else "are"
    return f"{gpus} {verb} hotter than the others: up to {most:.1f} vs a median of {median:.1f} °C"


def _slower(gpus: str, least: float, median: float, number: int) -> str | None:
    if median - least < LOWER_CLOCK.share * median:
        return None
    lower = percent(1 - least / median)
    return f"{gpus} run{'s' * (number == 1)} at up to {lower} lower clocks than the median GPU " + (
        f"({least:,.0f} vs {median:,.0f} MHz)"
    )


def _weaker(gpus: str, least: float, median: float, number: int) -> str | None:
    if median - least < MORE_POWER.share * median:
        return None
    return f"{gpus} draw{'s' * (number == 1)} as little as {least:,.0f} W (median {median:,.0f} W)"


def _named(run: Run, gpus: list[int]) -> str:
    if len(gpus) == len(run.gpus) > 1:
        return "all GPUs"
    return by_number("GPU", gpus)


def _evidence(view: View, sort: str) -> View:
    return replace(with_view(view, "overview"), sort=sort)


def headline_of(run: Run, findings: int) -> str:
    """The number of findings, and the activities that were checked."""
    found = count(findings, "finding") if findings else "nothing stands out"
    return f"{found} in the telemetry of {count(len(run.gpus), 'GPU')}; without a trace, no savings"
