"""Telemetry files of the same GPUs that help each other to the run's clock.

Files on one clock share its offset. Files on clocks of their own that record the same signal of a
GPU show their distance by it, also where the signal doesn't follow the work of the trace, such as
a temperature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.activity_fit import STEPS, best_place, likelihood_gain, period_of
from chopper_core.align.telemetry_clock import LIKELIER, REACH_PERIODS, own_figure, peak_of
from chopper_core.model.inputs import TelemetrySource
from chopper_core.model.signals import nearest
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
        offset_ns = reference.offset_ns
        if offset_ns is None or not set(source.gpus.values()) & set(reference.gpus.values()):
            continue
        if telemetry.clock in _SHARED and telemetry.clock is other.clock:
            doubt, method = 0, f"as {reference.path}, on the same clock"
        else:
            found = _distance(telemetry, source, other, reference, offset_ns - reference.late_ns)
            if found is None:
                continue
            offset_ns, doubt = found.offset_ns, found.doubt_ns
            method = (
                f"as {reference.path}, by {found.signal} of the same GPUs, "
                f"correlation {found.fit:.2f} (next place {found.rival:.2f})"
            )
        doubt += reference.uncertainty_ns
        if best.offset_ns is None or (
            doubt < best.uncertainty_ns
            and abs(offset_ns - best.offset_ns) <= doubt + best.uncertainty_ns
        ):
            late_ns = reference.late_ns if not doubt else 0
            best = replace(
                source,
                offset_ns=offset_ns,
                uncertainty_ns=doubt,
                method=method,
                late_ns=late_ns,
            )
    return best


class _Distance(Struct, frozen=True):
    """The shift of a file's stamps that puts another file's values at the same times."""

    offset_ns: int
    doubt_ns: int
    """Three standard deviations."""
    signal: str
    fit: float
    rival: float


def _distance(
    telemetry: Telemetry,
    source: TelemetrySource,
    other: Telemetry,
    reference: TelemetrySource,
    offset_ns: int,
) -> _Distance | None:
    """The distance of a file from another whose stamps need `offset_ns`; None without a clear one.

    The clearest of the signals that both have of a GPU decides.
    """
    theirs = {gpu: number for number, gpu in reference.gpus.items()}
    best: _Distance | None = None
    for signal in SignalName:
        pairs = list(_both(telemetry, source.gpus, other, theirs, signal))
        if not pairs:
            continue
        found = _apart(pairs, signal, offset_ns)
        if found is not None and (best is None or found.fit > best.fit):
            best = found
    return best


def _both(
    telemetry: Telemetry,
    gpus: Mapping[int, int],
    other: Telemetry,
    theirs: Mapping[int, int],
    signal: SignalName,
) -> Iterator[tuple[SignalSamples, SignalSamples]]:
    for number, gpu in gpus.items():
        if gpu in theirs:
            own = own_figure(telemetry, number, signal)
            reference = own_figure(other, theirs[gpu], signal)
            if own is not None and reference is not None:
                enough = min(len(own), len(reference)) >= _MIN_SAMPLES
                if enough and min(np.nanstd(own.value), np.nanstd(reference.value)) > 0:
                    yield own, reference


def _apart(
    pairs: Sequence[tuple[SignalSamples, SignalSamples]], signal: SignalName, offset_ns: int
) -> _Distance | None:
    period = max(period_of([pair[side] for pair in pairs]) for side in (0, 1))
    own, theirs = ([_without_trend(pair[side], period) for pair in pairs] for side in (0, 1))
    spans = [(min(int(s.time_ns[0]) for s in side), max(int(s.time_ns[-1]) for s in side))
             for side in (own, theirs)]  # fmt: skip
    is_longer = spans[0][1] - spans[0][0] >= spans[1][1] - spans[1][0]
    long, short = (own, theirs) if is_longer else (theirs, own)
    reach, (begin, end) = (spans[0], spans[1]) if is_longer else (spans[1], spans[0])
    curves = [nearest(s.time_ns, s.value, REACH_PERIODS * period) for s in long]
    pieces = [nearest(s.time_ns, s.value, REACH_PERIODS * period) for s in short]
    # All of the shorter record, or its middle where the longer one doesn't hold all of it.
    for margin in (0.0, 0.2):
        first = begin + int(margin * (end - begin))
        bins = int((end - begin) * (1 - 2 * margin) // period)
        if bins < _MIN_SAMPLES or reach[1] - reach[0] < (bins + 1) * period:
            continue
        values = [_filled(piece.means(first + period * np.arange(bins + 1.0))) for piece in pieces]
        peak = peak_of([(each, each) for each in values], curves, reach, period)
        is_clear = likelihood_gain(peak.best, peak.rival, bins) >= LIKELIER
        if peak.best < _MIN_CORRELATION or not is_clear:
            continue
        coarse = first - peak.place if is_longer else peak.place - first
        flat = list(zip(own, theirs, strict=True))
        return _refined(flat, signal, coarse, period, peak.rival, offset_ns)
    return None


def _refined(
    pairs: Sequence[tuple[SignalSamples, SignalSamples]],
    signal: SignalName,
    coarse_ns: int,
    period: int,
    rival: float,
    offset_ns: int,
) -> _Distance:
    """The best distance near a coarse one, both of the stamps as they are."""
    width = min(period_of([own for own, _ in pairs]), period_of([their for _, their in pairs]))
    curves = [nearest(s.time_ns, s.value, REACH_PERIODS * period) for _, s in pairs]
    places = coarse_ns + np.linspace(-_PERIODS, _PERIODS, int(2 * _PERIODS * STEPS) + 1) * period
    fits = np.empty(len(places))
    count = 0
    for number, place in enumerate(places.tolist()):
        each = []
        for (own, _), curve in zip(pairs, curves, strict=True):
            at = own.time_ns + int(place)
            theirs = curve.means(np.stack([at - width // 2, at + width // 2], axis=1))[:, 0]
            known = np.isfinite(theirs) & np.isfinite(own.value)
            count = int(known.sum())
            varies = known.any() and min(theirs[known].std(), own.value[known].std()) > 0
            each.append(np.corrcoef(theirs[known], own.value[known])[0, 1] if varies else 0.0)
        fits[number] = np.mean(each)
    best_ns, doubt_ns = best_place(places, fits, count, period)
    return _Distance(best_ns + offset_ns, doubt_ns, signal.value, float(fits.max()), rival)


def _without_trend(samples: SignalSamples, period: int) -> SignalSamples:
    """Samples less their mean over the time around them."""
    curve = nearest(samples.time_ns, samples.value, REACH_PERIODS * period)
    half = _TREND_PERIODS * period // 2
    around = np.stack([samples.time_ns - half, samples.time_ns + half], axis=1)
    return SignalSamples(samples.time_ns, samples.value - curve.means(around)[:, 0])


def _filled(values: Float64) -> Float64:
    known = np.isfinite(values)
    return np.where(known, values, values[known].mean() if known.any() else 0.0)
