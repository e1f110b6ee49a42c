"""Since when the clock of a GPU is low, and by how much: from the samples along the run."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.run import Run
from chopper_core.model.signals import bounds_of
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import median_of

CLOCK: Final = "gfx_mhz"
_PARTS: Final = 96
"""Equal parts of the run's time whose means are compared."""
_LOW: Final = 0.97
"""Of the usual clock: GPUs of one kind differ by less."""
_STEADY: Final = 0.8
"""The part of the time from a drop on in which the clock has to be low."""


class ClockDrop(Struct, frozen=True):
    """A clock that is low from some time on."""

    gpu: int
    since_ns: int | None
    """On the run's clock; None: from the first sample on."""
    mhz: float
    """The mean from then on."""
    usual_mhz: float
    """The median of the other GPUs during that time, or its own mean before."""
    is_of_others: bool

    @property
    def share(self) -> float:
        """By how much of the usual clock it is lower."""
        return 1 - self.mhz / self.usual_mhz


def clock_drop(run: Run, gpu: int | None = None) -> ClockDrop | None:
    """The largest drop of the clock of a GPU, or of all: against the others, or else against its
    own time before. None: no clock is low, or none was sampled."""
    if CLOCK not in run.signal_names:
        return None
    curves = run.signal(CLOCK).curves
    bounds = bounds_of(run.origin_ns, run.end_ns, _PARTS)
    means = {each: curve.means(bounds) for each, curve in curves.items()}
    found = []
    for each in means if gpu is None else {gpu} & means.keys():
        others = [means[other] for other in means if other != each]
        drop = _against_others(each, bounds, means[each], others)
        if drop is None:
            drop = _against_before(each, bounds, means[each])
        if drop is not None:
            found.append(drop)
    return max(found, key=lambda each: each.share, default=None)


def _against_others(
    gpu: int, bounds: np.ndarray, own: Float64, others: list[Float64]
) -> ClockDrop | None:
    if len(others) < 2:
        return None
    with np.errstate(all="ignore"):
        usual = np.array([median_of(each[np.isfinite(each)]) for each in np.stack(others).T])
    known = np.flatnonzero(np.isfinite(own) & np.isfinite(usual))
    low = known[own[known] < _LOW * usual[known]]
    for at in low.tolist():
        later = known[known >= at]
        if np.isin(later, low).mean() >= _STEADY:
            since = None if at == known[0] else int(bounds[at])
            mhz, peers = float(own[later].mean()), float(usual[later].mean())
            return ClockDrop(gpu, since, mhz, peers, is_of_others=True)
    return None


def _against_before(gpu: int, bounds: np.ndarray, own: Float64) -> ClockDrop | None:
    """The moment that divides the clock into the highest before and the lowest after."""
    known = np.flatnonzero(np.isfinite(own))
    found = None
    for at in range(1, len(known)):
        before, after = float(own[known[:at]].mean()), own[known[at:]]
        mhz = float(after.mean())
        is_lower = mhz < _LOW * before and (after < _LOW * before).mean() >= _STEADY
        if is_lower and (found is None or mhz / before < found.mhz / found.usual_mhz):
            found = ClockDrop(gpu, int(bounds[known[at]]), mhz, before, is_of_others=False)
    return found
