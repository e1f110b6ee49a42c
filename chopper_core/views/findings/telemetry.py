"""Findings of telemetry without a trace: GPUs that are throttled, hotter, slower or weaker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    FindingsContext,
    rule,
    spread_of,
    threshold,
)
from chopper_core.views.shared.phrases import by_number, percent
from chopper_core.views.shared.samples import (
    CLOCK,
    HEAT_FIGURE,
    LOW_CLOCK,
    POWER,
    THROTTLED,
    SampledFigure,
    figure,
    gpus_of,
    low_clock_pct,
)

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
    verb, whose = ("is", "its") if len(gpus) == 1 else ("are", "their")
    yield _finding(
        context.view,
        f"{_named(run, gpus)} {verb} {how.format(whose)} {range_of(share[slowed])} of the time",
        column,
    )


@rule("sampled-heat", saving=_UNKNOWN, thresholds=(HOTTER,), of_samples=True)
def sampled_heat(context: FindingsContext) -> Iterator[Finding]:
    """GPUs that are hotter than the others by far more than these differ."""

    def text(gpus: str, most: float, median: float, number: int) -> str:
        verb = "is" if number == 1 else "are"
        return (
            f"{gpus} {verb} hotter than the others: up to {most:.1f} vs a median of {median:.1f} °C"
        )

    yield from _apart(context, "-mean_hot_c", HEAT_FIGURE, lambda _: HOTTER.value, text)


@rule("sampled-clock", saving=_UNKNOWN, thresholds=(LOWER_CLOCK,), of_samples=True)
def sampled_clock(context: FindingsContext) -> Iterator[Finding]:
    """GPUs whose clocks are lower than those of the others by far more than these differ."""

    def text(gpus: str, least: float, median: float, number: int) -> str:
        return (
            f"{gpus} run{'s' * (number == 1)} at up to {percent(1 - least / median)} lower clocks "
            f"than the median GPU ({least:,.0f} vs {median:,.0f} MHz)"
        )

    yield from _apart(context, "mean_gfx_mhz", CLOCK, lambda usual: LOWER_CLOCK.share * usual, text)


@rule("sampled-power", saving=_UNKNOWN, thresholds=(MORE_POWER,), of_samples=True)
def sampled_power(context: FindingsContext) -> Iterator[Finding]:
    """GPUs that draw less power than the others by far more than these differ."""

    def text(gpus: str, least: float, median: float, number: int) -> str:
        verb = "draws" if number == 1 else "draw"
        return f"{gpus} {verb} as little as {least:,.0f} W (median {median:,.0f} W)"

    yield from _apart(context, "mean_power_w", POWER, lambda usual: MORE_POWER.share * usual, text)


def _apart(
    context: FindingsContext,
    sort: str,
    wanted: SampledFigure,
    least: Callable[[float], float],
    text: Callable[[str, float, float, int], str],
) -> Iterator[Finding]:
    """The GPUs that lie far from the others in a figure, on the side that `sort` puts first.

    The farthest is at least as far as `least` says of the median.
    """
    run, values = context.run, figure(context.run, wanted)
    known = np.flatnonzero(np.isfinite(values))
    if len(known) < 3:
        return
    sign = -1.0 if sort.startswith("-") else 1.0
    median = median_of(values[known])
    below = sign * (median - values[known])
    far: Index = known[below > ROBUST_Z.value * spread_of(values[known])]
    gpus = [gpus_of(run)[place] for place in far.tolist()]
    if not gpus or len(gpus) > len(known) // 2 or below.max() < least(median):
        return
    most = float(values[known[below.argmax()]])
    yield _finding(context.view, text(_named(run, gpus), most, median, len(gpus)), sort)


def _named(run: Run, gpus: list[int]) -> str:
    if len(gpus) == len(run.gpus) > 1:
        return "all GPUs"
    return by_number("GPU", gpus)


def _finding(view: View, sentence: str, sort: str) -> Finding:
    return Finding(sentence, replace(with_view(view, "overview"), sort=sort), Confidence.MEDIUM)
