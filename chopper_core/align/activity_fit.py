"""How well a signal follows the activity of a GPU, by where its samples are placed.

Power, use and clock follow any activity, compute more than communication. A fit is the multiple
correlation of the samples with the share of time in which anything ran and in which compute did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.signals import IntegralCurve, share_running
from chopper_core.sources.signals import SignalSamples
from chopper_core.util.arrays import Float64, Int64, Mask
from chopper_core.util.grouping import median_of

_ALIKE: Final = 0.99
"""Shares that correlate so well are one."""
STEPS: Final = 20
"""Places per sampling period that the refinement tries."""
_PERIODS: Final = 2.5
"""How far from the coarse place it does, in sampling periods."""
_INSTANT_NS: Final = 1_000_000
"""The window that a reading averages whose stamp is its instant."""
_MAX_WINDOW: Final = 3
"""Longer windows, in sampling periods, lack samples."""
_LIKELIER: Final = 4.5
"""The drop of the log-likelihood at three standard deviations."""
_MIN_SAMPLES: Final = 8


class Activity(Struct, frozen=True):
    """The shares of time in which anything ran on a GPU, and in which compute did."""

    any: IntegralCurve
    compute: IntegralCurve

    @classmethod
    def of(
        cls, start_ns: Int64, duration_ns: Int64, computes: Mask, span: tuple[int, int]
    ) -> Activity:
        whole = share_running(start_ns, duration_ns, span)
        if not computes.any():
            return cls(whole, whole)
        return cls(whole, share_running(start_ns[computes], duration_ns[computes], span))

    def means(self, bounds_ns: Float64) -> tuple[Float64, Float64]:
        return self.any.means(bounds_ns), self.compute.means(bounds_ns)


class Placed(Struct, frozen=True):
    """The place of a trace's start on a file's clock."""

    begin_ns: int
    doubt_ns: int
    """Three standard deviations."""
    fit: float
    averages: bool
    """Whether samples average the time since the sample before, rather than an instant."""


def sliding_fit(shares: tuple[Float64, Float64], values: Float64) -> Float64:
    """The fit of binned shares with each section of binned values."""
    whole, compute = shares
    one, other = sliding(whole, values), sliding(compute, values)
    if whole.std() < 1e-9 or compute.std() < 1e-9:
        return np.maximum(one, other)
    return _together(one, other, float(np.corrcoef(whole, compute)[0, 1]))


def _together(one: Float64, other: Float64, shared: float) -> Float64:
    """The multiple correlation from the correlations with two shares and of these."""
    largest = np.maximum(one, other)
    if abs(shared) > _ALIKE:
        return largest
    squared = (one**2 + other**2 - 2 * one * other * shared) / (1 - shared**2)
    # A signal that falls while work runs doesn't follow it.
    both: Float64 = np.where(largest > 0, np.sqrt(np.clip(squared, 0.0, 1.0)), 0.0)
    return both


def refined(
    work: Sequence[Activity],
    samples: Sequence[SignalSamples],
    span: tuple[int, int],
    coarse_ns: int,
    period_ns: int,
) -> Placed | None:
    """The best place near a coarse one, if samples are means or if they are instants.

    None where too few samples lie within the trace.
    """
    reach = _PERIODS * period_ns
    places = coarse_ns + np.linspace(-reach, reach, int(2 * _PERIODS * STEPS) + 1)
    margin = int(reach) + _MAX_WINDOW * period_ns
    first, last = coarse_ns - margin, coarse_ns + (span[1] - span[0]) + margin
    samples = [_between(shown, first, last) for shown in samples]
    tried: list[tuple[float, Float64, int, bool]] = []
    for averages in (True, False):
        found = [
            _fits(work, samples, span, float(place), period_ns, averages=averages)
            for place in places
        ]
        fits, counts = np.array([fit for fit, _ in found]), [count for _, count in found]
        top = int(np.argmax(fits))
        if counts[top] >= _MIN_SAMPLES:
            tried.append((float(fits[top]), fits, counts[top], averages))
    if not tried:
        return None
    fit, fits, count, averages = max(tried, key=lambda each: each[0])
    place, doubt = best_place(places, fits, count, period_ns)
    return Placed(place, doubt, fit, averages)


def best_place(places: Float64, fits: Float64, samples: int, period_ns: int) -> tuple[int, int]:
    """The place with the best fit, and three standard deviations of it."""
    top = int(np.argmax(fits))
    near = places[likelihood_gain(float(fits[top]), fits, samples) <= _LIKELIER]
    return int(places[top]), int(float(np.abs(near - places[top]).max()) + period_ns / STEPS)


def period_of(samples: Sequence[SignalSamples]) -> int:
    return int(median_of(np.concatenate([np.diff(each.time_ns) for each in samples])))


def averages_at(
    work: Sequence[Activity],
    samples: Sequence[SignalSamples],
    span: tuple[int, int],
    begin_ns: int,
    period_ns: int,
) -> bool:
    """Whether samples whose place is known are means since the previous sample, beyond doubt.

    `begin_ns` is the start of the span on the file's clock.
    """
    margin = _MAX_WINDOW * period_ns
    last = begin_ns + (span[1] - span[0]) + margin
    samples = [_between(shown, begin_ns - margin, last) for shown in samples]
    means, instants = (
        _fits(work, samples, span, float(begin_ns), period_ns, averages=averages)
        for averages in (True, False)
    )
    gain = likelihood_gain(means[0], instants[0], means[1])
    return means[1] >= _MIN_SAMPLES and bool(gain >= _LIKELIER)


def _between(samples: SignalSamples, first_ns: int, last_ns: int) -> SignalSamples:
    low, high = np.searchsorted(samples.time_ns, [first_ns, last_ns])
    return SignalSamples(samples.time_ns[low:high], samples.value[low:high])


def likelihood_gain(fit: float, others: Float64 | float, samples: int) -> Float64:
    """How much likelier than others a fit is, as the difference of log-likelihoods."""
    unexplained = np.maximum(1.0 - np.square(others), 1e-6)
    return np.asarray(0.5 * samples * np.log(unexplained / max(1.0 - fit**2, 1e-6)))


def _fits(
    work: Sequence[Activity],
    samples: Sequence[SignalSamples],
    span: tuple[int, int],
    place: float,
    period_ns: int,
    *,
    averages: bool,
) -> tuple[float, int]:
    """The mean fit of the GPUs' samples at a place, and the number of samples of a GPU."""
    fits, counts = [], []
    for own, shown in zip(work, samples, strict=True):
        if len(shown) <= _MIN_SAMPLES:
            counts.append(0)
            fits.append(0.0)
            continue
        ends = (shown.time_ns[1:] - place) + span[0]
        windows = np.diff(shown.time_ns).astype(np.float64)
        lasts = windows if averages else np.full(len(windows), min(_INSTANT_NS, period_ns / 4))
        inside = (ends - windows >= span[0]) & (ends <= span[1])
        inside &= (windows <= _MAX_WINDOW * period_ns) & np.isfinite(shown.value[1:])
        counts.append(int(inside.sum()))
        if counts[-1] < _MIN_SAMPLES:
            fits.append(0.0)
            continue
        bounds = np.stack([ends[inside] - lasts[inside], ends[inside]], axis=1)
        whole, compute = (share[:, 0] for share in own.means(bounds))
        fits.append(_fit(whole, compute, shown.value[1:][inside]))
    return float(np.mean(fits)), int(median_of(np.array(counts)))


def _fit(whole: Float64, compute: Float64, values: Float64) -> float:
    columns = np.stack([whole, compute, values])
    columns = columns - columns.mean(axis=1, keepdims=True)
    norms = np.sqrt((columns**2).sum(axis=1))
    if norms[2] < 1e-9 or norms[:2].max() < 1e-9:
        return 0.0
    one, other, shared = (
        float(columns[a] @ columns[b]) / max(norms[a] * norms[b], 1e-9)
        for a, b in ((0, 2), (1, 2), (0, 1))
    )
    if norms[:2].min() < 1e-9:
        return float(max(one, other, 0.0))
    return float(_together(np.array([one]), np.array([other]), shared).item())


def sliding(short: Float64, long: Float64) -> Float64:
    """Pearson's correlation of `short` with each section of `long`, without unknown values."""
    known = np.isfinite(long)
    filled = np.where(known, long, np.nanmean(long) if known.any() else 0.0)
    filled = filled - filled.mean()
    own = short - short.mean()
    count = len(short)
    size = 1 << int(np.ceil(np.log2(len(long) + count)))
    product = np.fft.irfft(np.fft.rfft(filled, size) * np.conj(np.fft.rfft(own, size)), size)
    places = len(long) - count + 1
    sums = np.concatenate([[0.0], np.cumsum(filled)])
    squares = np.concatenate([[0.0], np.cumsum(filled**2)])
    mean = (sums[count:] - sums[:-count]) / count
    variance = (squares[count:] - squares[:-count]) / count - mean**2
    scale = np.sqrt(np.maximum(variance, 0.0)) * own.std() * count
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation: Float64 = np.where(scale > 1e-9, product[:places] / scale, 0.0)
    return correlation
