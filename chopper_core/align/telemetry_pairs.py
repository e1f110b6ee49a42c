"""Telemetry files of the same GPUs that help each other to the run's clock.

Files on one clock share its offset. Files on clocks of their own that record the same signal of a
GPU show their distance by it, also where the signal doesn't follow the work of the trace, such as
a temperature.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from chopper_core.align.activity_fit import (
    STEPS,
    best_place,
    curves_of,
    likelihood_gain,
    peak_of,
    period_of,
    reach_of,
)
from chopper_core.align.telemetry_clock import LIKELIER, own_figure
from chopper_core.model.inputs import TelemetrySource
from chopper_core.sources.signals import ClockDomain, SignalName, SignalSamples, Telemetry
from chopper_core.util.arrays import Float64

Placed = tuple[Telemetry, TelemetrySource]

_OPEN: Final = (ClockDomain.MONOTONIC, ClockDomain.BOOTTIME, ClockDomain.UNKNOWN)
"""Clocks that alone say nothing of the time of the run."""
_SHARED: Final = (ClockDomain.MONOTONIC, ClockDomain.BOOTTIME)
"""Clocks that files of one host share."""
_MIN_CORRELATION: Final = 0.6
_TREND_PERIODS: Final = 16
"""Slower changes are left out: one record of warming up is like any other."""
_MIN_SAMPLES: Final = 20
_PERIODS: Final = 1.5
"""How far from the coarse place the refinement tries, in sampling periods."""


def together(placed: Sequence[Placed]) -> list[Placed]:
    """The files, those that others of the same GPUs place better than they do themselves with it.

    A file placed by a known clock, or by hand, is left unchanged.
    """
    found = list(placed)
    for number, (telemetry, source) in enumerate(found):
        by_signals = source.offset_ns is None or source.method.startswith("estimated")
        is_open = telemetry.clock in _OPEN and telemetry.resolution_ns > 0 and bool(source.gpus)
        if is_open and by_signals and "by hand" not in source.method:
            helped = _helped((telemetry, source), [*found[:number], *found[number + 1 :]])
            found[number] = (telemetry, helped)
    return found


def _helped(own: Placed, others: Sequence[Placed]) -> TelemetrySource:
    """A file's place with the help of placed ones of the same GPUs."""
    telemetry, source = own
    best = source
    for other, reference in others:
        if reference.offset_ns is None:
            continue
        if not set(source.gpus.values()) & set(reference.gpus.values()):
            continue
        if telemetry.clock in _SHARED and telemetry.clock is other.clock:
            offset_ns, doubt, how = reference.offset_ns, 0, "on the same clock"
        elif (found := _distance(own, (other, reference))) is not None:
            offset_ns = found.distance_ns + reference.offset_ns - reference.late_ns
            doubt = found.doubt_ns
            how = (
                f"by {found.signal} of the same GPUs, "
                f"correlation {found.fit:.2f} (next place {found.rival:.2f})"
            )
        else:
            continue
        doubt += reference.uncertainty_ns
        if best.offset_ns is None or (
            doubt < best.uncertainty_ns
            and abs(offset_ns - best.offset_ns) <= doubt + best.uncertainty_ns
        ):
            best = replace(
                source,
                offset_ns=offset_ns,
                uncertainty_ns=doubt,
                method=f"as {reference.path}, {how}",
                late_ns=0 if doubt else reference.late_ns,
            )
    return best


class _Distance(NamedTuple):
    """The shift of a file's stamps that puts another file's values at the same times."""

    distance_ns: int
    doubt_ns: int
    """Three standard deviations."""
    fit: float
    rival: float
    signal: SignalName


def _distance(own: Placed, other: Placed) -> _Distance | None:
    """The distance by the clearest signal that both have of a GPU; None without a clear one."""
    found = [
        _Distance(*distance, signal)
        for signal in SignalName
        for pairs in [list(_both(own, other, signal))]
        if pairs and (distance := _apart(pairs)) is not None
    ]
    return max(found, key=lambda each: each.fit, default=None)


def _both(
    own: Placed, other: Placed, signal: SignalName
) -> Iterator[tuple[SignalSamples, SignalSamples]]:
    theirs = {gpu: number for number, gpu in other[1].gpus.items()}
    for number, gpu in own[1].gpus.items():
        one = own_figure(own[0], number, signal)
        two = own_figure(other[0], theirs.get(gpu, -1), signal)
        if one is None or two is None or min(len(one), len(two)) < _MIN_SAMPLES:
            continue
        if min(np.nanstd(one.value), np.nanstd(two.value)) > 0:
            yield one, two


def _apart(
    pairs: Sequence[tuple[SignalSamples, SignalSamples]],
) -> tuple[int, int, float, float] | None:
    """The distance of two records, its doubt, its fit and that of the next place."""
    sides = list(zip(*pairs, strict=True))
    period = max(map(period_of, sides))
    own, theirs = ([_without_trend(each, period) for each in side] for side in sides)
    spans = reach_of(own), reach_of(theirs)
    is_longer = spans[0][1] - spans[0][0] >= spans[1][1] - spans[1][0]
    long, short = (own, theirs) if is_longer else (theirs, own)
    reach, (begin, end) = spans if is_longer else spans[::-1]
    curves, pieces = curves_of(long, period), curves_of(short, period)
    # All of the shorter record, or its middle where the longer one doesn't hold all of it.
    for margin in (0.0, 0.2):
        first = begin + int(margin * (end - begin))
        bins = int((end - begin) * (1 - 2 * margin) // period)
        if bins < _MIN_SAMPLES or reach[1] - reach[0] < (bins + 1) * period:
            continue
        values = [_filled(piece.means(first + period * np.arange(bins + 1.0))) for piece in pieces]
        peak = peak_of([(each, each) for each in values], curves, reach, period)
        is_clear = likelihood_gain(peak.best, peak.rival, bins) >= LIKELIER
        if peak.best >= _MIN_CORRELATION and is_clear:
            coarse = first - peak.place if is_longer else peak.place - first
            return (*_refined(own, theirs, coarse, period), peak.rival)
    return None


def _refined(
    own: Sequence[SignalSamples], theirs: Sequence[SignalSamples], coarse_ns: int, period: int
) -> tuple[int, int, float]:
    """The best distance near a coarse one, both of the stamps as they are; its doubt and fit."""
    width = min(period_of(own), period_of(theirs))
    curves = curves_of(theirs, period)
    places = coarse_ns + np.linspace(-_PERIODS, _PERIODS, int(2 * _PERIODS * STEPS) + 1) * period
    fits = np.empty(len(places))
    count = 0
    for number, place in enumerate(places.tolist()):
        each = []
        for samples, curve in zip(own, curves, strict=True):
            at = samples.time_ns + int(place)
            others = curve.means(np.stack([at - width // 2, at + width // 2], axis=1))[:, 0]
            known = np.isfinite(others) & np.isfinite(samples.value)
            count = int(known.sum())
            varies = known.any() and min(others[known].std(), samples.value[known].std()) > 0
            each.append(np.corrcoef(others[known], samples.value[known])[0, 1] if varies else 0.0)
        fits[number] = np.mean(each)
    best_ns, doubt_ns = best_place(places, fits, count, period)
    return best_ns, doubt_ns, float(fits.max())


def _without_trend(samples: SignalSamples, period: int) -> SignalSamples:
    """Samples less their mean over the time around them."""
    (curve,) = curves_of([samples], period)
    half = _TREND_PERIODS * period // 2
    around = np.stack([samples.time_ns - half, samples.time_ns + half], axis=1)
    return SignalSamples(samples.time_ns, samples.value - curve.means(around)[:, 0])


def _filled(values: Float64) -> Float64:
    known = np.isfinite(values)
    return np.where(known, values, values[known].mean() if known.any() else 0.0)
