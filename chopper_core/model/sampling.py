"""Samples of a telemetry file in a few exact figures: mean, peak, integral, amount counted.

They come from the samples themselves, before these become curves on the run's clock, so that they
are what another tool computes from the same file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.util.arrays import Float64, Int64

FEWEST_SAMPLES: Final = 10
"""A monitored run with fewer samples of a GPU was stopped before its step was over."""


class SampleSummary(Struct, frozen=True):
    """The samples of one signal of one GPU or node."""

    first_ns: int
    """On the run's clock, where that of the file is known."""
    last_ns: int
    samples: int
    mean: float
    """Over time: each sample holds until the next one; of a single sample its value."""
    low: float
    high: float
    area: float
    """Integral over time by the trapezoidal rule, in the signal's unit times seconds."""
    amount: float
    """Of a counter, how much it rose from the first to the last sample; else 0."""
    is_timed: bool = True
    """Whether samples have times; else they are numbered, as if one a second."""

    @property
    def span_ns(self) -> int:
        """From the first to the last sample."""
        return self.last_ns - self.first_ns


class NodeSamples(Struct, frozen=True):
    """The samples of a figure of a whole node."""

    rank: int
    """The rank whose process sampled it."""
    signal: str
    label: str
    """The device, such as `ib0`; '' for the node itself."""
    summary: SampleSummary


Sampled = Mapping[str, Mapping[int, SampleSummary]]
"""Signal → GPU → its samples."""


def summary_of(times_ns: Int64, values: Float64, *, counts: bool = False) -> SampleSummary | None:
    """The figures of samples in rising order of time; None without any known value."""
    known = np.isfinite(values)
    times, values = times_ns[known], values[known].astype(np.float64)
    if not len(times):
        return None
    seconds = np.diff(times) * 1e-9
    span = float(seconds.sum())
    return SampleSummary(
        first_ns=int(times[0]),
        last_ns=int(times[-1]),
        samples=len(times),
        mean=float(values[:-1] @ seconds / span) if span > 0 else float(values.mean()),
        low=float(values.min()),
        high=float(values.max()),
        area=float((values[1:] + values[:-1]) @ seconds / 2),
        amount=float(values[-1] - values[0]) if counts else 0.0,
    )
