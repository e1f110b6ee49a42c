"""How well a signal follows the activity of a GPU, by where its samples are placed.

Power, use and clock follow any activity, compute more than communication. A fit is the multiple
correlation of the samples with the share of time in which anything ran and in which compute did.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.signals import (
    REACH_PERIODS,
    IntegralCurve,
    nearest_values,
    share_running,
)
from chopper_core.model.table import KernelTable, Kind
from chopper_core.sources.signals import SignalSamples
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.grouping import median_of, medians_along

_ALIKE: Final = 0.99
"""Shares that correlate so well are one."""
_STEPS: Final = 20
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
_PHASES: Final = 3
"""Places tried per sampling period."""


class Recorded:
    """The samples of a signal of some GPUs, and the rows of their activities."""

    def __init__(
        self, table: KernelTable, samples: Sequence[SignalSamples], rows: Sequence[Index]
    ) -> None:
        self.samples = samples
        self.period_ns = _period_of(samples)
        used = np.concatenate(rows)
        start_ns = table.start_ns[used]
        self.span = int(start_ns.min()), int((start_ns + table.duration_ns[used]).max())
        """From the first start to the last end of the activities."""
        self._table, self._rows = table, rows

    @cached_property
    def work(self) -> list[tuple[IntegralCurve, IntegralCurve]]:
        """Of each GPU the shares of time in which anything ran, and in which compute did."""
        found = []
        for rows in self._rows:
            own = rows[self._table.kind[rows] == Kind.COMPUTE]
            found.append((self._running(rows), self._running(own if len(own) else rows)))
        return found

    def _running(self, rows: Index) -> IntegralCurve:
        return share_running(self._table.start_ns[rows], self._table.duration_ns[rows], self.span)


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


def _together(one: Float64, other: Float64, shared: Float64 | float) -> Float64:
    """The multiple correlation from the correlations with two shares and of these."""
    largest = np.maximum(one, other)
    is_one = np.abs(shared) > _ALIKE
    rest = np.where(is_one, 1.0, 1 - np.square(shared))
    squared = (one**2 + other**2 - 2 * one * other * shared) / rest
    # A signal that falls while work runs doesn't follow it.
    both = np.where(largest > 0, np.sqrt(np.clip(squared, 0.0, 1.0)), 0.0)
    return np.where(is_one, largest, both)


def refined(recorded: Recorded, coarse_ns: int) -> Placed | None:
    """The best place near a coarse one, if samples are means or if they are instants.

    None where too few samples lie within the trace.
    """
    reach = _PERIODS * recorded.period_ns
    places = coarse_ns + np.linspace(-reach, reach, int(2 * _PERIODS * _STEPS) + 1)
    samples = _around(recorded, coarse_ns, int(reach))
    best: Placed | None = None
    for averages in (True, False):
        fits, counts = _fits(recorded, samples, places, averages=averages)
        top = int(np.argmax(fits))
        count = int(counts[top])
        if count >= _MIN_SAMPLES and (best is None or fits[top] > best.fit):
            place, doubt = _best_place(places, fits, count, recorded.period_ns)
            best = Placed(place, doubt, float(fits[top]), averages)
    return best


def _best_place(places: Float64, fits: Float64, samples: int, period_ns: int) -> tuple[int, int]:
    """The place with the best fit, and three standard deviations of it."""
    top = int(np.argmax(fits))
    near = places[likelihood_gain(float(fits[top]), fits, samples) <= _LIKELIER]
    return int(places[top]), int(float(np.abs(near - places[top]).max()) + period_ns / _STEPS)


def _period_of(samples: Sequence[SignalSamples]) -> int:
    return int(median_of(np.concatenate([np.diff(each.time_ns) for each in samples])))


def ends_of_samples(samples: Sequence[SignalSamples]) -> tuple[int, int]:
    """The first stamp and the last one."""
    return min(int(s.time_ns[0]) for s in samples), max(int(s.time_ns[-1]) for s in samples)


def nearest_curves(samples: Sequence[SignalSamples], period_ns: int) -> list[IntegralCurve]:
    return [nearest_values(s.time_ns, s.value, REACH_PERIODS * period_ns) for s in samples]


def averages_at(recorded: Recorded, begin_ns: int) -> bool:
    """Whether samples whose place is known are means since the previous sample, beyond doubt.

    `begin_ns` is the start of the span on the file's clock.
    """
    samples = _around(recorded, begin_ns, 0)
    here = np.array([float(begin_ns)])
    (fit,), (count,) = _fits(recorded, samples, here, averages=True)
    instants, _ = _fits(recorded, samples, here, averages=False)
    gain = likelihood_gain(float(fit), instants, int(count))
    return bool(count >= _MIN_SAMPLES and gain[0] >= _LIKELIER)


def _around(recorded: Recorded, begin_ns: int, reach_ns: int) -> list[SignalSamples]:
    """The samples that matter where the trace begins there on the file's clock, or near it."""
    begin, end = recorded.span
    margin = reach_ns + _MAX_WINDOW * recorded.period_ns
    bounds = [begin_ns - margin, begin_ns + (end - begin) + margin]
    found = []
    for each in recorded.samples:
        low, high = np.searchsorted(each.time_ns, bounds)
        found.append(SignalSamples(each.time_ns[low:high], each.value[low:high]))
    return found


def likelihood_gain(fit: float, others: Float64 | float, samples: int) -> Float64:
    """How much likelier than others a fit is, as the difference of log-likelihoods."""
    unexplained = np.maximum(1.0 - np.square(others), 1e-6)
    return np.asarray(0.5 * samples * np.log(unexplained / max(1.0 - fit**2, 1e-6)))


def _fits(
    recorded: Recorded, samples: Sequence[SignalSamples], places: Float64, *, averages: bool
) -> tuple[Float64, Int64]:
    """The mean fit of the GPUs' samples at each place, and the number of samples of a GPU."""
    begin, end = recorded.span
    period_ns = recorded.period_ns
    fits = np.zeros((len(samples), len(places)))
    counts = np.zeros((len(samples), len(places)), np.int64)
    for gpu, ((whole, compute), shown) in enumerate(zip(recorded.work, samples, strict=True)):
        if len(shown) <= _MIN_SAMPLES:
            continue
        values = shown.value[1:]
        stamps = (shown.time_ns - places[:, None]) + begin
        ends, windows = stamps[:, 1:], np.diff(shown.time_ns).astype(np.float64)
        inside = (ends - windows >= begin) & (ends <= end)
        inside &= (windows <= _MAX_WINDOW * period_ns) & np.isfinite(values)
        counts[gpu] = inside.sum(axis=1)
        enough = counts[gpu] >= _MIN_SAMPLES
        if enough.any():
            bounds = stamps[enough]
            if not averages:
                last_ns = min(_INSTANT_NS, period_ns / 4)
                bounds = np.stack([bounds[:, 1:] - last_ns, bounds[:, 1:]], axis=-1)
            shares = [curve.means(bounds).reshape(-1, len(values)) for curve in (whole, compute)]
            fits[gpu, enough] = _fit(
                shares[0], shares[1], np.broadcast_to(values, shares[0].shape), inside[enough]
            )
    return fits.mean(axis=0), medians_along(counts, 0).astype(np.int64)


def _fit(whole: Float64, compute: Float64, values: Float64, known: Mask) -> Float64:
    """The multiple correlation of the known values of each row; 0 where nothing varies."""
    columns = np.where(known, np.stack([whole, compute, values]), 0.0)
    means = columns.sum(axis=-1, keepdims=True) / known.sum(axis=-1, keepdims=True)
    columns = np.where(known, columns - means, 0.0)
    norms = np.sqrt((columns**2).sum(axis=-1))
    one, other, shared = (
        (columns[a] * columns[b]).sum(axis=-1) / np.maximum(norms[a] * norms[b], 1e-9)
        for a, b in ((0, 2), (1, 2), (0, 1))
    )
    largest = np.maximum(np.maximum(one, other), 0.0)
    fit = np.where(norms[:2].min(axis=0) < 1e-9, largest, _together(one, other, shared))
    return np.where((norms[2] < 1e-9) | (norms[:2].max(axis=0) < 1e-9), 0.0, fit)


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


class Peak(Struct, frozen=True):
    """The place on the file's clock at which signals follow activity best."""

    place: int
    best: float
    """Its correlation."""
    second: int
    """The best place elsewhere."""
    rival: float
    elsewhere: int
    """How many places there are, in bins."""


def peak_of(
    shares: Sequence[tuple[Float64, Float64]],
    curves: Sequence[IntegralCurve],
    reach_ns: tuple[int, int],
    step: int,
) -> Peak:
    """The best of all places at which activity can lie within the samples.

    Their distance is a part of a step: between two samples the correlation falls.
    """
    first, last = reach_ns
    bins = len(shares[0][0])
    places = int((last - first) // step) - bins + 1
    fits = []
    for phase in range(_PHASES):
        bounds = first + phase * step / _PHASES + step * np.arange(places + bins + 0.0)
        each = [
            sliding_fit(own, curve.means(bounds)) for own, curve in zip(shares, curves, strict=True)
        ]
        fits.append(np.mean(each, axis=0))
    coarse = np.stack(fits, axis=1).ravel()
    peak = int(np.argmax(coarse))
    away = np.abs(np.arange(len(coarse)) - peak) > _PHASES * max(bins // 50, 3)
    second = int(np.argmax(np.where(away, coarse, -1.0)))
    rival = float(coarse[second]) if away.any() else 0.0
    at = first + step / _PHASES * np.array([peak, second])
    elsewhere = int(away.sum()) // _PHASES
    return Peak(int(at[0]), float(coarse[peak]), int(at[1]), rival, elsewhere)
