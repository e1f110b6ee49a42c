"""Counters that only rise, except where they wrap or are reset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from chopper_core.util.arrays import AnyArray, Float64, Mask

_WIDTHS: Final = (32, 64)
_LARGEST_STEP_SHARE: Final = 8
"""A fall is a wrap only if the step is below this part of the counter's range, else a reset."""

_EXACT_TOTAL: Final = 2.0**62
"""Sums below it fit into int64."""


def array_steps(readings: AnyArray, bits: int = 0) -> tuple[AnyArray, Mask]:
    """Return the differences between neighbours, 0 over a reset, and where these are.

    Integer counters of 32 and 64 bits may wrap between two readings. One of a known number of
    `bits` wraps wherever it falls, however far. Readings are not negative; int64, or float64 that
    holds them exactly, is many times faster than objects.
    """
    amounts, is_reset = _steps(readings, bits)
    return (amounts.astype(np.float64) if amounts.dtype == object else amounts), is_reset


def array_unwrapped(readings: AnyArray, bits: int = 0) -> tuple[Float64, int]:
    """Return the amounts since the first reading, and the number of resets.

    The amount over a reset is unknown, so nothing is added.
    """
    amounts, is_reset = _steps(readings, bits)
    if amounts.dtype == np.int64 and float(amounts.sum(dtype=np.float64)) >= _EXACT_TOTAL:
        amounts = amounts.astype(object)
    totals = np.append(np.zeros(1, amounts.dtype), np.cumsum(amounts))
    return totals.astype(np.float64), int(is_reset.sum())


def _steps(readings: AnyArray, bits: int) -> tuple[AnyArray, Mask]:
    amounts = np.diff(readings)
    falls = (amounts < 0).astype(np.bool_)
    if not falls.any():
        return amounts, falls
    if bits:
        return np.where(falls, amounts + (1 << bits), amounts), np.zeros_like(falls)
    # An array of objects alone holds what 64 bits do and int64 doesn't.
    widths: Sequence[int] = _WIDTHS[:1]
    is_whole = np.ones(len(readings), np.bool_)
    if readings.dtype == object:
        widths, is_whole = _WIDTHS, np.array([isinstance(each, int) for each in readings])
    elif readings.dtype.kind == "f":
        is_whole = np.floor(readings) == readings
    is_reset, may_wrap = falls, falls & is_whole[:-1] & is_whole[1:]
    for width in widths:
        fits = may_wrap & (readings[:-1] < 1 << width).astype(np.bool_)
        wrapped = amounts + (1 << width)
        is_wrap = fits & (wrapped < (1 << width) // _LARGEST_STEP_SHARE).astype(np.bool_)
        amounts = np.where(is_wrap, wrapped, amounts)
        is_reset, may_wrap = is_reset & ~is_wrap, may_wrap & ~fits
    return np.where(is_reset, 0, amounts), is_reset
