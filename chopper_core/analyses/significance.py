"""Whether a difference is beyond noise: rank tests, and how several of them are read together."""

from __future__ import annotations

from math import atan, comb, cos, erfc, pi, sin, sqrt
from typing import Final

import numpy as np

from chopper_core.util.arrays import Float64, Mask

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
    difference = (ours - base)[np.isfinite(ours - base)]
    if len(difference) >= FEWEST_PAIRS and not difference.any():
        return 1.0
    difference = difference[difference != 0]
    if len(difference) < FEWEST_PAIRS:
        return np.nan
    rank = ranks(np.abs(difference))
    return _chance_of(rank, difference > 0, sqrt(float((rank**2).sum()) / 4.0))


def can_differ(count: int, other: int) -> bool:
    """Whether the clearest result of so many figures against so many is beyond noise."""
    return min(count, other) > 0 and 2.0 / comb(count + other, count) < LEVEL


def unpaired(ours: Float64, base: Float64) -> float:
    """The two-sided p of the Wilcoxon-Mann-Whitney test.

    NaN if even the clearest result would not be beyond noise, as with three against three.
    """
    ours, base = ours[np.isfinite(ours)], base[np.isfinite(base)]
    count, every = len(ours), len(ours) + len(base)
    if not can_differ(count, len(base)):
        return np.nan
    rank = ranks(np.concatenate([ours, base]))
    variance = float(((rank - rank.mean()) ** 2).sum()) * count * len(base) / (every * (every - 1))
    return _chance_of(rank, np.arange(every) < count, sqrt(variance), count)


def _chance_of(rank: Float64, own: Mask, deviation: float, count: int | None = None) -> float:
    """The two-sided p of a sum of some of the ranks: of `count` of them, or of any number."""
    share = 0.5 if count is None else count / len(rank)
    middle = float(rank.sum()) * share
    distance = abs(float(rank[own].sum()) - middle)
    if len(rank) > _MAX_EXACT:
        return erfc(distance / deviation / sqrt(2.0)) if deviation else 1.0
    # In halves, since equal values share ranks: the ways to each sum, by how many ranks it has.
    steps = np.rint(2 * rank).astype(np.int64)
    ways = np.zeros((len(rank) + 1, int(steps.sum()) + 1))
    ways[0, 0] = 1.0
    for step in steps.tolist():
        ways[1:, step:] = ways[1:, step:] + ways[:-1, : ways.shape[1] - step]
    possible = ways.sum(axis=0) if count is None else ways[count]
    as_far = np.abs(np.arange(ways.shape[1]) / 2.0 - middle) >= distance - 1e-9
    return min(1.0, float(possible[as_far].sum() / possible.sum()))


def one_more(value: float, others: Float64) -> float:
    """The two-sided p of Student's test that one more value belongs with some others.

    NaN with fewer than two others.
    """
    others = others[np.isfinite(others)]
    count = len(others)
    if count < 2 or not np.isfinite(value):
        return np.nan
    difference = abs(value - float(others.mean()))
    deviation = float(others.std(ddof=1)) * sqrt(1.0 + 1.0 / count)
    if deviation == 0.0:
        return 1.0 if difference == 0.0 else 0.0
    return _beyond(difference / deviation, count - 1)


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
