"""Findings of telemetry without a trace: GPUs that are throttled, hotter, slower or weaker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.run import Run
from chopper_core.model.view import View, with_view
from chopper_core.util.arrays import Index
from chopper_core.util.grouping import median_of
from chopper_core.views.findings.clocks import THROTTLED as THROTTLED_SHARE
from chopper_core.views.findings.clocks import range_of
from chopper_core.views.findings.rule import (
    ROBUST_Z,
    Confidence,
    Finding,
    FindingRule,
    FindingsContext,
    Threshold,
    rule,
    spread_of,
    threshold,
)
from chopper_core.views.shared.phrases import by_number, percent
from chopper_core.views.shared.samples import LOW_CLOCK, THROTTLED, figure, gpus_of, low_clock_pct

_UNKNOWN: Final = "unknown without a trace"
LOWER_CLOCK: Final = threshold("""clock below that of the other GPUs | 2 | %
    GPUs of one model vary by about a percent""")
HOTTER: Final = threshold("""temperature above that of the other GPUs | 5 | °C
    neighbouring slots of a node differ by a few degrees""")
MORE_POWER: Final = threshold("""power below that of the other GPUs | 10 | %
    idle, or capped""")


@rule("stopped", saving=_UNKNOWN, of_samples=True)
def stopped(context: FindingsContext) -> Iterator[Finding]:
    """A run without a trace whose samples end early: out of memory, or stopped."""
    if context.run.status:
        evidence = with_view(context.view, "overview")
        yield Finding(context.run.status, evidence, Confidence.HIGH)


@rule("sampled-throttling", saving=_UNKNOWN, thresholds=(THROTTLED_SHARE,), of_samples=True)
def sampled_throttling(context: FindingsContext) -> Iterator[Finding]:
    """GPUs that are throttled by their driver's word, else whose clock is low under load."""
    run = context.run
    if "throttle_pct" in run.sampled:
        share = figure(run, "mean_throttle_pct")
        how, column = "throttled", "-mean_throttle_pct"
    else:
        share, column = low_clock_pct(run), f"-{THROTTLED.name}"
        how = f"below {100 * LOW_CLOCK:.0f} % of {{}} highest clock under load for"
    slowed = np.flatnonzero(np.nan_to_num(share) >= THROTTLED_SHARE.value)
    if not len(slowed):
        return
    gpus = [gpus_of(run)[place] for place in slowed.tolist()]
    verb, whose = ("is", "its") if len(gpus) == 1 else ("are", "their")
    yield _finding(
        context.view,
        f"{_named(run, gpus)} {verb} {how.format(whose)} {range_of(share[slowed])} of the time",
        column,
    )


def _far(
    name: str,
    looks_for: str,
    sort: str,
    least: Threshold,
    verb: tuple[str, str],
    text: str,
) -> FindingRule:
    """A rule: GPUs far from the others in the figure of `sort`, on the side that it puts first.

    The farthest is at least `least` from the median, in its unit or in % of the median. The verb
    is that of one GPU and of several.
    """

    def find(context: FindingsContext) -> Iterator[Finding]:
        run, values = context.run, figure(context.run, sort.removeprefix("-"))
        known = np.flatnonzero(np.isfinite(values))
        if len(known) < 3:
            return
        sign = -1.0 if sort.startswith("-") else 1.0
        median = median_of(values[known])
        below = sign * (median - values[known])
        far: Index = known[below > ROBUST_Z.value * spread_of(values[known])]
        gpus = [gpus_of(run)[place] for place in far.tolist()]
        limit = least.share * median if least.unit == "%" else least.value
        if not gpus or len(gpus) > len(known) // 2 or below.max() < limit:
            return
        most = float(values[known[below.argmax()]])
        figures = text.format(most=most, median=median, lower=percent(1 - most / median))
        how = f"{verb[len(gpus) > 1]} {figures}"
        yield _finding(context.view, f"{_named(run, gpus)} {how}", sort)

    find.__doc__ = f"{looks_for} by far more than these differ."
    return rule(name, saving=_UNKNOWN, thresholds=(least,), of_samples=True)(find)


sampled_heat: Final = _far(
    "sampled-heat",
    "GPUs that are hotter than the others",
    "-mean_hot_c",
    HOTTER,
    ("is", "are"),
    "hotter than the others: up to {most:.1f} vs a median of {median:.1f} °C",
)
sampled_clock: Final = _far(
    "sampled-clock",
    "GPUs whose clocks are lower than those of the others",
    "mean_gfx_mhz",
    LOWER_CLOCK,
    ("runs", "run"),
    "at up to {lower} lower clocks than the median GPU ({most:,.0f} vs {median:,.0f} MHz)",
)
sampled_power: Final = _far(
    "sampled-power",
    "GPUs that draw less power than the others",
    "mean_power_w",
    MORE_POWER,
    ("draws", "draw"),
    "as little as {most:,.0f} W (median {median:,.0f} W)",
)


def _named(run: Run, gpus: list[int]) -> str:
    if len(gpus) == len(run.gpus) > 1:
        return "all GPUs"
    return by_number("GPU", gpus)


def _finding(view: View, sentence: str, sort: str) -> Finding:
    return Finding(sentence, replace(with_view(view, "overview"), sort=sort), Confidence.MEDIUM)
