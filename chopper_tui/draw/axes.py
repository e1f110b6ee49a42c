"""Axes around data: ticks at even numbers, few enough that their labels have room."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import Final

from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import quantile_of

_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_MIN_SPAN: Final = 0.1
"""Share of its far end that an axis of a signal spans at least: less is noise drawn large."""


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from `low` to `high`, at most `most` of them.

    With `whole` they are integers, as of iterations.
    """
    if high <= low:
        return [low]
    step = step_of(low, high, most, whole=whole)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def step_of(low: float, high: float, most: int, *, whole: bool = False) -> float:
    """The distance between even numbers of which at most `most` lie in a range."""
    rough = (high - low) / max(most, 1)
    size = 10.0 ** floor(log10(rough)) if rough > 0 else 1.0
    for factor in (*_STEPS, 20.0, 50.0):
        step = max(factor * size, 1.0) if whole else factor * size
        if floor(high / step + 1e-9) - ceil(low / step - 1e-9) < max(most, 1):
            return step
    return 100.0 * size


def labels(places: list[float]) -> list[str]:
    """The numbers of ticks, with as many decimals as tell them apart."""
    if len(places) < 2:
        return [f"{place:.4g}" for place in places]
    step = places[1] - places[0]
    decimals = max(-floor(log10(step) + 1e-9), 0)
    return [f"{place:.{decimals}f}" for place in places]


def scale_ends(known: Float64) -> tuple[float, float]:
    """The ends of a scale: of all values, or of the middle 90 % where a few lie far out."""
    if not len(known):
        return 0.0, 1.0
    least, low, high, most = quantile_of(known, [0.0, 0.05, 0.95, 1.0]).tolist()
    span = high - low
    if span <= 0:
        return least, most
    return (
        low if low - least > span else least,
        high if most - high > span else most,
    )


def around(low: float, high: float) -> tuple[float, float]:
    """The range of an axis around data that lie from `low` to `high`: flat ones in its middle."""
    least = _MIN_SPAN * max(abs(low), abs(high)) or 1.0
    spare = max(least - (high - low), 0.0) / 2
    return low - spare, high + spare
