"""Outliers of a column, by a rule that is robust against them."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.columns import Values
from chopper_core.util.arrays import Float64, Mask
from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import median_of

FACTOR: Final = 3.5
MAD_TO_SIGMA: Final = 1.4826
"""The median absolute deviation times this is the standard deviation of normal data."""
RULE: Final = f"a distance from the median over {FACTOR} x {MAD_TO_SIGMA} x MAD"
MIN_VALUES: Final = 4
"""The fewest values with which outliers are looked for."""


class Outliers(Struct, frozen=True):
    """The outlying rows of a column, in row order, and the limit that they exceed."""

    rows: tuple[int, ...]
    median: float
    limit: float
    """The largest distance from the median that is no outlier, in the column's unit."""


def spread_of(values: Float64) -> float:
    """The standard deviation of most values, by the median of their distances from the median."""
    return MAD_TO_SIGMA * median_of(np.abs(values - median_of(values)))


def spread_limit(known: Float64) -> float:
    """The largest distance from the median of known values that is no outlier; 0 where half of them
    are equal."""
    return FACTOR * spread_of(known)


def outliers(values: Values, counted: Mask | None = None) -> Outliers:
    """The counted rows with |x - median| > 3.5 x 1.4826 x MAD; missing values take no part.

    Raises UsageError for too few values, and where half of them are equal: the MAD is then 0 and
    every other value would be an outlier.
    """
    known_rows = values.present() if counted is None else values.present() & counted
    numbers = np.where(known_rows, values.numbers.astype(np.float64), np.nan)
    known = numbers[np.isfinite(numbers)]
    if len(known) < MIN_VALUES:
        count = f"{len(known)} value{'s' if len(known) != 1 else ''}"
        raise UsageError(f"outliers need at least {MIN_VALUES} values, and the column has {count}")
    median, limit = median_of(known), spread_limit(known)
    if limit == 0:
        raise UsageError("no outliers: half of the values equal the median, so the MAD is 0")
    rows = np.flatnonzero(np.abs(numbers - median) > limit)
    return Outliers(tuple(int(row) for row in rows), median, limit)
