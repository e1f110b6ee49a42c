"""Differences of figures from a baseline: their columns, names and values."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import Metric, Reduces, Values, column
from chopper_core.model.units import Unit

DELTA: Final = "_delta"
RELATIVE: Final = "_delta_pct"


def difference(metric: Metric, ours: Values, base: Values) -> Values:
    """Ours less the baseline.

    A sum that one side lacks is 0 there, so that the differences of the rows add up to that of the
    total.
    """
    if metric.reduces == Reduces.SUM:
        numbers = [np.where(side.present(), side.numbers, 0) for side in (ours, base)]
        missing = ~(ours.present() | base.present())
    else:
        numbers = [side.numbers for side in (ours, base)]
        missing = ~(ours.present() & base.present())
    with np.errstate(invalid="ignore"):
        return Values(numbers[0] - numbers[1], missing)


def relative(ours: Values, base: Values) -> Values:
    """The difference in % of the baseline; missing where a side lacks it or the baseline is 0."""
    missing = ~(ours.present() & base.present()) | (base.numbers == 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = 100.0 * (ours.numbers - base.numbers) / base.numbers
    return Values(np.where(missing, np.nan, share), missing)


def delta_of(metric: Metric) -> Metric:
    """The column of a metric's difference from the baseline."""
    return column(
        f"{metric.name}{DELTA}",
        metric.unit,
        f"Δ {metric.title}",
        f"The row's {metric.title} minus that of the same row of the baseline.",
        reduces=metric.reduces,
        source=metric.source,
        missing_because="one of the two runs lacks the row or the figure",
        signed=True,
    )


def relative_of(metric: Metric) -> Metric:
    """The column of a metric's difference in % of the baseline."""
    return replace(
        delta_of(metric),
        name=f"{metric.name}{RELATIVE}",
        unit=Unit.PERCENT,
        title="Δ %",
        reduces=Reduces.RATIO,
        definition=f"The difference of {metric.title} in % of the baseline's.",
    )


def underlying(name: str) -> str:
    """The metric of a column: of a difference, the one that it is computed from."""
    return name.removesuffix(RELATIVE).removesuffix(DELTA)


def is_difference(name: str) -> bool:
    """Whether a column is a difference from the baseline."""
    return name.endswith((DELTA, RELATIVE))
