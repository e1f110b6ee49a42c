"""Microseconds as a trace writes them, as exact int64 nanoseconds."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import numpy as np

from chopper_core.sources.kineto.events import FLOAT_EXACT_BELOW_US
from chopper_core.util.arrays import Int64, Mask

_LATEST_US: Final = 2**52
"""142 years; leaves room to add the base time within int64."""


def nanoseconds(values_us: Sequence[Any]) -> tuple[Int64, Mask]:
    """Return the values as nanoseconds, and which of them are usable times.

    Values are int, float, Decimal or text; what has more than three decimals is rounded to the
    nearest nanosecond. Unusable ones are 0.
    """
    count = len(values_us)
    try:
        as_float = np.frombuffer(struct.pack(f"={count}d", *values_us), np.float64)
    except (struct.error, OverflowError):
        return _one_by_one(values_us)
    if np.abs(as_float).max(initial=0) < FLOAT_EXACT_BELOW_US:
        whole = np.floor(as_float)
        part_ns = np.rint((as_float - whole) * 1000)
        return whole.astype(np.int64) * 1000 + part_ns.astype(np.int64), np.ones(count, np.bool_)
    usable = np.abs(as_float) < _LATEST_US
    types = set(map(type, values_us))
    if types == {int}:
        return np.where(usable, as_float, 0.0).astype(np.int64) * 1000, usable
    if types <= {int, Decimal} and usable.all():
        return _from_decimals(values_us), usable
    return _one_by_one(values_us)


def _from_decimals(values_us: Sequence[Any]) -> Int64:
    count = len(values_us)
    whole_us = np.fromiter(map(int, values_us), np.int64, count)
    fraction_us = np.fromiter((value % 1 for value in values_us), np.float64, count)
    return whole_us * 1000 + np.rint(fraction_us * 1000).astype(np.int64)


def _one_by_one(values_us: Sequence[Any]) -> tuple[Int64, Mask]:
    exact = [_exact_nanoseconds(value) for value in values_us]
    usable = np.fromiter((value is not None for value in exact), np.bool_, len(exact))
    return np.fromiter((value or 0 for value in exact), np.int64, len(exact)), usable


def _exact_nanoseconds(value_us: Any) -> int | None:
    """Return whole nanoseconds; None for what is no time."""
    if isinstance(value_us, int):
        return value_us * 1000 if abs(value_us) < _LATEST_US else None
    try:
        exact = Decimal(value_us)
    except (InvalidOperation, TypeError, ValueError):
        return None
    return round(exact * 1000) if exact.is_finite() and abs(exact) < _LATEST_US else None
