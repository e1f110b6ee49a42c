"""Counters that only rise, except where they wrap or are reset."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from chopper_core.util.arrays import AnyArray, Float64, Mask

_WIDTHS: Final = (32, 64)
_LARGEST_STEP_SHARE: Final = 8
"""A fall is a wrap only if the step is below this part of the counter's range, else a reset."""

_EXACT_TOTAL: Final = 2.0**62
"""Sums below it fit into int64."""


def steps(readings: Sequence[int | float], bits: int = 0) -> list[int | float | None]:
    """Return the differences between neighbours, exact for integers; None over a reset.

    Integer counters of 32 and 64 bits may wrap between two readings. One of a known number of
    `bits` wraps wherever it falls, however far.
    """
    if bits:
        return [
            later - earlier + ((1 << bits) if later < earlier else 0)
            for earlier, later in pairwise(readings)
        ]
    return [_step(earlier, later) for earlier, later in pairwise(readings)]


def unwrapped(readings: Sequence[int | float], bits: int = 0) -> tuple[list[int | float], int]:
    """Return the amounts since the first reading, and the number of resets.

    The amount over a reset is unknown, so nothing is added.
    """
    total: list[int | float] = [0] if readings else []
    resets = 0
    for step in steps(readings, bits):
        resets += step is None
        total.append(total[-1] + (step or 0))
    return total, resets


def array_steps(readings: AnyArray, bits: int = 0) -> tuple[AnyArray, Mask]:
    """Return `steps` of an array, 0 over a reset, and where these are.

    Readings are not negative; int64, or float64 that holds them exactly, is many times faster than
    objects.
    """
    if readings.dtype == object:
        found = steps(readings.tolist(), bits)
        amounts = np.array([step or 0 for step in found], np.float64)
        return amounts, np.array([step is None for step in found], np.bool_)
    amounts = np.diff(readings)
    falls = amounts < 0
    if not falls.any():
        return amounts, falls
    if bits:
        amounts[falls] += amounts.dtype.type(1 << bits)
        return amounts, np.zeros_like(falls)
    width = _WIDTHS[0]
    wrapped = amounts + amounts.dtype.type(1 << width)
    is_wrap = falls & (readings[:-1] < 1 << width) & (wrapped < (1 << width) // _LARGEST_STEP_SHARE)
    if readings.dtype.kind == "f":
        is_wrap &= (np.floor(readings[:-1]) == readings[:-1]) & (
            np.floor(readings[1:]) == readings[1:]
        )
    amounts = np.where(is_wrap, wrapped, np.where(falls, 0, amounts))
    return amounts, falls & ~is_wrap


def array_unwrapped(readings: AnyArray, bits: int = 0) -> tuple[Float64, int]:
    """Return `unwrapped` of an array, as floats."""
    if readings.dtype != object:
        amounts, is_reset = array_steps(readings, bits)
        if float(amounts.sum(dtype=np.float64)) < _EXACT_TOTAL:
            totals = np.append(amounts.dtype.type(0), np.cumsum(amounts))
            return totals.astype(np.float64), int(is_reset.sum())
    counted, resets = unwrapped(readings.tolist(), bits)
    return np.array(counted, np.float64), resets


def _step(earlier: int | float, later: int | float) -> int | float | None:
    if later >= earlier:
        return later - earlier
    if not (isinstance(earlier, int) and isinstance(later, int)):
        return None
    for width in _WIDTHS:
        if earlier < 1 << width:
            step = later - earlier + (1 << width)
            return step if step < (1 << width) // _LARGEST_STEP_SHARE else None
    return None
