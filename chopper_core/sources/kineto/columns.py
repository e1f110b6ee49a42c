"""Columns that grow by chunks, and the numbers and codes that fill them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from chopper_core.sources.trace import ABSENT
from chopper_core.util.arrays import AnyArray, Int64

Columns = dict[str, AnyArray]

_INT64_LIMIT: Final = 2**63


class Interner(dict[Any, int]):
    """Gives each different key the next number from 0."""

    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code


def int_column(values: Sequence[Any]) -> Int64:
    """Return the values as int64; what is missing or no integer is ABSENT."""
    try:
        # Twice as fast as numpy's own way.
        return np.frombuffer(struct.pack(f"={len(values)}q", *values), np.int64)
    except struct.error:
        found = [integer(value) for value in values]
        return np.array([ABSENT if value is None else value for value in found], np.int64)


def bounded(values: Int64, limit: int) -> Int64:
    """Return the values with ABSENT for those that are negative or not below the limit."""
    return np.where((values >= 0) & (values < limit), values, ABSENT)


def integer(value: Any) -> int | None:
    """Return the value as an integer, also from text like "7" or "0x0"; None if it is none."""
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -_INT64_LIMIT <= number < _INT64_LIMIT else None
