"""A view beside its baseline: every figure gains the difference, and nothing falls out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.metrics import Metric, Reduces, Values, column
from chopper_core.model.table import ACTIVITY
from chopper_core.model.units import Unit

DELTA: Final = "_delta"
RELATIVE: Final = "_delta_pct"

Lookup = Callable[[str], Values]


class Pairs(Struct, frozen=True):
    """The rows of a view and of its baseline, matched by their labels.

    `labels` has ours in their order, then those that only the baseline has. `ours` and `base` give
    the position of each among its own rows, -1 where it has none.
    """

    labels: tuple[str, ...]
    ours: np.ndarray[tuple[int], np.dtype[np.intp]]
    base: np.ndarray[tuple[int], np.dtype[np.intp]]
    partners: tuple[str, ...]
    """The label that a row has in the baseline, where that is another one."""


def matched(
    ours: Sequence[str], base: Sequence[str], renamed: Mapping[str, str] | None = None
) -> Pairs:
    """Pairs of rows with the same label, or as `renamed` says: ours → the baseline's."""
    renamed = renamed or {}
    places = {label: place for place, label in enumerate(base)}
    own = {renamed.get(label, label) for label in ours}
    alone = [label for label in base if label not in own]
    labels = (*ours, *alone)
    partners = [*(renamed.get(label, label) for label in ours), *alone]
    return Pairs(
        labels,
        np.array([*range(len(ours)), *(-1 for _ in alone)], np.intp),
        np.array([places.get(label, -1) for label in partners], np.intp),
        tuple(renamed.get(label, "") for label in ours) + ("",) * len(alone),
    )


def aligned(values: Values, places: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Values:
    """Values in the order of pairs; missing where a row has no partner."""
    if not len(values):
        return Values(np.full(len(places), np.nan), np.ones(len(places), np.bool_))
    taken = values.take(np.maximum(places, 0))
    return Values(taken.numbers, ~taken.present() | (places < 0), taken.extrapolated)


def difference(metric: Metric, ours: Values, base: Values) -> Values:
    """Ours less the baseline; a sum that one side lacks counts as nothing there, so that the
    differences of the rows add up to that of the total."""
    if metric.reduces == Reduces.SUM:
        numbers = [np.where(side.present(), side.numbers, 0) for side in (ours, base)]
        missing = ~(ours.present() | base.present())
    else:
        numbers = [side.numbers for side in (ours, base)]
        missing = ~(ours.present() & base.present())
    with np.errstate(invalid="ignore"):
        return Values(numbers[0] - numbers[1], missing)


def relative(ours: Values, base: Values) -> Values:
    """The difference in % of the baseline; missing where one lacks or the baseline is 0."""
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
        f"The row's {metric.title} less that of the same row of the baseline.",
        reduces=metric.reduces,
        source=metric.source,
        missing_because="the row has no partner in the baseline, or one of the two no figure",
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
    """The metric whose difference a column is; the column itself where it is none."""
    return name.removesuffix(RELATIVE).removesuffix(DELTA)


def is_difference(name: str) -> bool:
    """Whether a column is a difference from the baseline."""
    return name.endswith((DELTA, RELATIVE))


def with_differences(names: Sequence[str], level: str) -> tuple[str, ...]:
    """Default columns with the differences that tell most: in time, and in % of it."""
    first = "kernel_ns" if level == ACTIVITY else "elapsed_ns"
    rest = [name for name in names if name != first]
    compared = [name for name in rest if name in _COMPARED]
    others = [name for name in rest if name not in _COMPARED]
    pairs = [part for name in compared for part in (name, f"{name}{DELTA}")]
    return (first, f"{first}{DELTA}", f"{first}{RELATIVE}", *pairs, *others)


def each_with_difference(names: Sequence[str]) -> tuple[str, ...]:
    """Columns that somebody chose, each with its difference; as they are where one is asked for."""
    if any(map(is_difference, names)):
        return tuple(names)
    return tuple(part for name in names for part in (name, f"{name}{DELTA}"))


_COMPARED: Final = ("kernels", "gfx_mhz", "exposed_comm_ns", "idle_ns", "compute_ns", "overlap_ns")
