"""Sampled counters as signals, where the run is the execution in which they were sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.column_names import COUNTS_PER_US, part_of
from chopper_core.model.signals import IntegralCurve, Signal, between
from chopper_core.model.table import KernelTable
from chopper_core.model.units import Unit
from chopper_core.sources.dispatches import SampledCounter
from chopper_core.util.arrays import Float64, Index, Int64

_ROUNDING_NS: Final = 2_000
"""Two tools give one execution's times within this: traces are written in µs."""
_DRIFT: Final = 1e-5
"""And two clocks of one host run apart by this share of the time at most."""
_NS_PER_US: Final = 1_000.0


class PlacedCounter(Struct, frozen=True):
    """A sampled counter and its place in the run."""

    counter: SampledCounter
    gpu: int
    offset_ns: int
    """Offset from the clock of the samples to the run's clock."""


def same_execution(table: KernelTable, rows: Index, start_ns: Int64, end_ns: Int64) -> int | None:
    """The offset from the dispatches' clock to that of the activities they match; None where the
    dispatches are another execution.

    Of one execution all starts differ by the same, and durations are equal; no other execution
    repeats its own times to the µs. One dispatch alone tells nothing.
    """
    known = start_ns >= 0
    if known.sum() < 2:
        return None
    apart = (table.start_ns[rows] - start_ns)[known]
    longer = (table.duration_ns[rows] - (end_ns - start_ns))[known]
    offset = int(np.median(apart))
    drift = _ROUNDING_NS + _DRIFT * float(np.ptp(start_ns[known]))
    same = (np.abs(apart - offset) <= drift) & (np.abs(longer) <= _ROUNDING_NS)
    return offset if same.all() else None


def counter_signals(counters: Sequence[PlacedCounter]) -> dict[str, Signal]:
    """A signal for each counter: its increments per µs, as means between samples.

    A GPU of several counter runs has the samples of the first.
    """
    curves: dict[str, dict[int, IntegralCurve]] = {}
    highest: dict[str, float] = {}
    for placed in counters:
        name, own = placed.counter.name, placed.counter
        if placed.gpu in curves.setdefault(name, {}):
            continue
        rate = _rate(own)
        shift = placed.offset_ns
        curves[name][placed.gpu] = between(own.begin_ns + shift, own.time_ns + shift, rate)
        known = rate[np.isfinite(rate)]
        highest[name] = max(highest.get(name, 0.0), float(known.max(initial=0.0)))
    return {
        part_of(COUNTS_PER_US, name): Signal(
            part_of(COUNTS_PER_US, name), name, Unit.PER_US, own, 0.0, highest[name]
        )
        for name, own in curves.items()
    }


def _rate(counter: SampledCounter) -> Float64:
    lasted_ns = np.maximum(counter.time_ns - counter.begin_ns, 1)
    rate: Float64 = counter.counted * (_NS_PER_US / lasted_ns)
    return rate
