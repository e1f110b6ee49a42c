"""Tests whether two sets of figures differ by more than chance, exact and on ranks."""

from __future__ import annotations

from math import atan, comb, cos, erfc, pi, sin, sqrt
from typing import Final

import numpy as np

from chopper_core.util.arrays import Float64

LEVEL: Final = 0.05
"""A difference with a lower probability by chance is beyond noise."""
FEWEST_PAIRS: Final = next(count for count in range(1, 64) if 2.0 / 2.0**count < LEVEL)
"""The fewest pairs that are beyond noise if all differ in one direction."""
_MAX_EXACT: Final = 40
"""With more figures, the normal distribution replaces the count of all arrangements."""


def ranks(values: Float64) -> Float64:
    """The rank of each value from 1; equal values share their mean rank."""
    _, place, count = np.unique(  # noqa: TID251 (figures, not codes)
        values, return_inverse=True, return_counts=True
    )
    last = np.cumsum(count)
    shared: Float64 = (last - (count - 1) / 2.0)[place.ravel()]
    return shared


def paired(ours: Float64, base: Float64) -> float:
    """The two-sided p of Wilcoxon's signed-rank test; pairs without a difference don't count.

    NaN if even the clearest result would not be beyond noise: with fewer than `FEWEST_PAIRS`.
    """
    apart = (ours - base)[np.isfinite(ours - base)]
    apart = apart[apart != 0]
    if len(apart) == 0:
        return 1.0 if np.isfinite(ours - base).sum() >= FEWEST_PAIRS else np.nan
    if len(apart) < FEWEST_PAIRS:
        return np.nan
    rank = ranks(np.abs(apart))
    low = min(float(rank[apart > 0].sum()), float(rank[apart < 0].sum()))
    if len(apart) > _MAX_EXACT:
        deviation = sqrt(float((rank**2).sum()) / 4.0)
        return erfc((float(rank.sum()) / 2.0 - low) / deviation / sqrt(2.0))
    # In halves, since equal values share ranks. Each rank is on either side by chance.
    steps = np.rint(2 * rank).astype(np.int64)
    ways = np.zeros(int(steps.sum()) + 1)
    ways[0] = 1.0
    for step in steps.tolist():
        ways[step:] = ways[step:] + ways[: len(ways) - step]
    return min(1.0, 2.0 * float(ways[: round(2 * low) + 1].sum()) / 2.0 ** len(steps))


def unpaired(ours: Float64, base: Float64) -> float:
    """The two-sided p of the Wilcoxon-Mann-Whitney test.

    NaN if even the clearest result would not be beyond noise, as with three against three.
    """
    ours, base = ours[np.isfinite(ours)], base[np.isfinite(base)]
    count, every = len(ours), len(ours) + len(base)
    if not len(ours) or not len(base) or 2.0 / comb(every, count) >= LEVEL:
        return np.nan
    rank = ranks(np.concatenate([ours, base]))
    own = float(rank[:count].sum())
    middle = count * (every + 1) / 2.0
    if every > _MAX_EXACT:
        spread = float(((rank - rank.mean()) ** 2).sum())
        deviation = sqrt(spread * count * len(base) / (every * (every - 1)))
        return erfc(abs(own - middle) / deviation / sqrt(2.0)) if deviation else 1.0
    steps = np.rint(2 * rank).astype(np.int64)
    ways = np.zeros((count + 1, int(steps.sum()) + 1))
    ways[0, 0] = 1.0
    for step in steps.tolist():
        ways[1:, step:] = ways[1:, step:] + ways[:-1, : ways.shape[1] - step]
    sums = np.arange(ways.shape[1]) / 2.0
    as_far = np.abs(sums - middle) >= abs(own - middle) - 1e-9
    return min(1.0, float(ways[count, as_far].sum() / ways[count].sum()))


def one_more(value: float, others: Float64) -> float:
    """The two-sided p of Student's test that one more value belongs with some others.

    NaN with fewer than two others.
    """
    others = others[np.isfinite(others)]
    count = len(others)
    if count < 2 or not np.isfinite(value):
        return np.nan
    apart = abs(value - float(others.mean()))
    deviation = float(others.std(ddof=1)) * sqrt(1.0 + 1.0 / count)
    if deviation == 0.0:
        return 1.0 if apart == 0.0 else 0.0
    return _beyond(apart / deviation, count - 1)


def _beyond(t: float, freedom: int) -> float:
    """The two-sided p of Student's t (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(freedom))
    square = cos(angle) ** 2
    term = cos(angle) if freedom % 2 else 1.0
    total = term if freedom > 1 else 0.0
    for step in range(2 + freedom % 2, freedom - 1, 2):
        term *= square * (step - 1) / step
        total += term
    if freedom % 2:
        return max(0.0, 1.0 - 2.0 / pi * (angle + sin(angle) * total))
    return max(0.0, 1.0 - sin(angle) * total)


def adjusted(chances: Float64) -> Float64:
    """The p of several tests, adjusted for their number (Benjamini and Hochberg).

    Of those below a level, at most that share is wrong on average. NaN, a test without a result,
    stays and does not count.
    """
    known = np.flatnonzero(np.isfinite(chances))
    order = known[np.argsort(chances[known], kind="stable")]
    raised = chances[order] * len(order) / np.arange(1, len(order) + 1)
    found = np.full(len(chances), np.nan)
    found[order] = np.minimum(np.minimum.accumulate(raised[::-1])[::-1], 1.0)
    return found
