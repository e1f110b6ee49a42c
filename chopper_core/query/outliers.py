"""Outliers of a column, by a rule that the outliers themselves don't move."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.metrics import Values
from chopper_core.util.errors import UsageError

FACTOR: Final = 3.5
MAD_TO_SIGMA: Final = 1.4826
"""The median absolute deviation times this is the standard deviation of normal data."""
RULE: Final = f"a distance from the median over {FACTOR} x {MAD_TO_SIGMA} x MAD"
FEWEST: Final = 4
"""Fewer values than these have no outliers worth the name."""


class Outliers(Struct, frozen=True):
    """The outlying rows of a column, in the order of the rows, and what they lie outside of."""

    rows: tuple[int, ...]
    median: float
    limit: float
    """The largest distance from the median that is no outlier, in the column's unit."""


def outliers(values: Values) -> Outliers:
    """The rows with |x - median| > 3.5 x 1.4826 x MAD; raises UsageError where that says nothing.

    Missing values take no part. Where more than half of the values are equal the MAD is 0 and
    every other value would be an outlier: there is no rule to go by then.
    """
    numbers = np.where(values.present(), values.numbers.astype(np.float64), np.nan)
    known = numbers[np.isfinite(numbers)]
    if len(known) < FEWEST:
        raise UsageError(f"{len(known)} values are too few to tell outliers; it takes {FEWEST}")
    median = float(np.median(known))
    mad = float(np.median(np.abs(known - median)))
    if mad == 0:
        raise UsageError("at least half of the values equal the median: the MAD is 0, no rule")
    limit = FACTOR * MAD_TO_SIGMA * mad
    rows = np.flatnonzero(np.abs(numbers - median) > limit)
    return Outliers(tuple(int(row) for row in rows), median, limit)
