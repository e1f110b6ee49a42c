"""Figures derived from others: statistics over a row's instances, differences from a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.columns import Metric, Reduces, Scope, Values, computed_column, numbered
from chopper_core.columns.metric import Theme
from chopper_core.columns.time import INSTANCE_LEVELS, INSTANCES, KERNEL_SHARE, SHARE
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import ACTIVITY
from chopper_core.model.units import Unit
from chopper_core.model.view import View
from chopper_core.util.arrays import AnyArray, Float64, Index, Mask, Numbers
from chopper_core.util.grouping import (
    counts_of,
    means_of,
    quantiles_of,
    run_maxima,
    run_minima,
    run_starts,
    sums_of,
)

_FIXED: Final = (Reduces.COMMON, Reduces.MIN, Reduces.MAX, Reduces.QUANTILE)
"""How figures reduce that a statistic leaves alone: points in time, extremes, identities."""
_OVER: Final = ("gpu", "iteration")
_NAMED: Final = ("operation", "kernel", ACTIVITY, "class", "kind")
"""Levels whose rows occur in several layers."""
_QUANTILES: Final = {"median": 0.5, "p95": 0.95}
_MEASURED: Final = (Theme.TELEMETRY, Theme.COUNTERS)
"""Figures that may be unknown of any row that is there."""
_WHOLES: Final = {
    **dict.fromkeys(
        ("idle_host_ns", "idle_launch_ns", "idle_latency_ns", "idle_queued_ns"), "idle_ns"
    ),
    **dict.fromkeys(("prep_overhead_ns", "call_overhead_ns"), "launch_overhead_ns"),
}
"""Parts that a row without launch records doesn't tell apart, and what each is a part of."""
DELTA: Final = "_delta"
RELATIVE: Final = "_delta_pct"


def instance_levels(view: View, level: str = "") -> tuple[str, ...]:
    """The levels whose values distinguish the instances of a view's rows.

    `level` is the level of the rows, by default that of the view.
    """
    return view.over or (INSTANCE_LEVELS if (level or view.level) in _NAMED else _OVER)


class Statistic(Struct, frozen=True, dict=True):
    """A statistic and the levels whose values distinguish instances."""

    name: str
    over: tuple[str, ...]

    @cached_property
    def _made(self) -> dict[int, tuple[Groups, Groups, Index]]:
        return {}

    def metric(self, metric: Metric) -> Metric:
        """A metric as this statistic; shares, words, moments and identities are unchanged."""
        if metric.name == INSTANCES:
            return replace(metric, compute=self._counts)
        if metric.has_words or metric.reduces in _FIXED or metric.name in (SHARE, KERNEL_SHARE):
            return metric
        return replace(statistic_column(metric, self.name), compute=partial(self._compute, metric))

    def instances(self, nodes: Groups) -> tuple[Groups, Index]:
        """The instances of nodes as groups of rows, node by node, and the node of each."""
        if id(nodes) not in self._made:
            # The nodes stay referred to, so that no others get their id.
            self._made[id(nodes)] = (nodes, *nodes.split(self.over))
        return self._made[id(nodes)][1:]

    def _counts(self, scope: Scope) -> Values:
        return Values(counts_of(self.instances(scope.nodes)[1], len(scope.nodes)))

    def _compute(self, metric: Metric, scope: Scope) -> Values:
        groups, node = self.instances(scope.nodes)
        values = metric.compute(replace(scope, nodes=groups))
        return reduced(self.name, values, node, len(scope.nodes))


def statistic_column(metric: Metric, name: str) -> Metric:
    return replace(
        metric,
        title=f"{name} {metric.title}",
        reduces=Reduces.OF_SUMS if metric.reduces == Reduces.SUM else Reduces.OF_MEANS,
        definition=f"The {name} of {metric.title} over the row's instances.",
    )


def reduced_along(name: str, numbers: Numbers) -> Float64:
    values = np.asarray(numbers, np.float64)
    rest = values.shape[1:]
    columns = values.reshape(len(values), -1)
    count = columns.shape[1]
    node = np.repeat(np.arange(count), len(values))
    found = reduced(name, numbered(columns.T.ravel()), node, count)
    return found.known().reshape(rest)


def reduced(name: str, values: Values, node: Index, count: int) -> Values:
    """One statistic per node, over the values of its instances; `node` ascends."""
    present = values.present()
    numbers, node = values.numbers[present], node[present]
    sizes = counts_of(node, count)
    extrapolated = None
    if values.extrapolated is not None:
        extrapolated = sums_of(values.extrapolated[present], node, count) > 0
    if name == "mean":
        found: AnyArray = means_of(numbers, node, count)
    elif name in _QUANTILES:
        found = quantiles_of(numbers, node, count, (_QUANTILES[name],))[:, 0]
    else:
        first = run_starts(node)
        least, most = run_minima(numbers, first), run_maxima(numbers, first)
        found = np.zeros(count, numbers.dtype)
        found[sizes > 0] = {"min": least, "max": most}.get(name, most - least)
    return Values(found, sizes == 0, extrapolated)


def run_without(metric: Metric, sides: Sequence[Values], runs: Sequence[Run]) -> Run | None:
    """The run of a side of which nothing has a figure: its telemetry, counters or shapes may
    lack."""
    for side, run in zip(sides, runs, strict=True):
        if not _knows(metric, side, run):
            return run
    return None


def _knows(metric: Metric, values: Values, run: Run) -> bool:
    """Whether a run has a figure, of the rows that are shown or of others."""
    return bool(values.present().any()) or _has(run, metric)


def _has(run: Run, metric: Metric) -> bool:
    def has_any() -> bool:
        return bool(metric.compute(Scope.of(run, run.pairs)).present().any())

    return run.memo(("has", metric.name), has_any)


def whole_of(metric: Metric) -> str | None:
    """What a figure that adds up is a part of, where it can be unknown of what is there.

    It is 0 where that is 0, and unknown where that isn't and nothing measured it. Empty: it is
    unknown of any row that is there. None: a row that lacks it has none of it.
    """
    if metric.theme in _MEASURED:
        return ""
    return "compute_busy_ns" if metric.theme is Theme.BREAKDOWN else _WHOLES.get(metric.name)


def of_sides(
    metric: Metric, sides: Sequence[Values], runs: Sequence[Run], could: Sequence[Mask]
) -> tuple[Values, Values]:
    """A figure of the same rows of two runs, with 0 where a side has a row none of whose time,
    work or energy could be the figure's; a row that isn't there has none.

    `could` are the rows of each side in which it could be: all that are there, or those that have
    any of its whole. What a run lacks altogether is unknown everywhere.
    """
    found = []
    for side, run, there in zip(sides, runs, could, strict=True):
        none = ~there & ~side.present()
        if metric.reduces == Reduces.SUM and none.any() and _knows(metric, side, run):
            numbers = np.where(none, np.zeros((), side.numbers.dtype), side.numbers)
            side = replace(side, numbers=numbers, missing=~side.present() & ~none)
        found.append(side)
    return found[0], found[1]


def difference(metric: Metric, ours: Values, base: Values, runs: Sequence[Run]) -> Values:
    """Ours less the baseline, of the two runs, as `of_sides` has them.

    A sum of which a row has none counts as 0 there, so that the differences of the rows add up to
    that of the total. What isn't measured isn't 0: it has no difference.
    """
    sides = (ours, base)
    if run_without(metric, sides, runs) is not None:
        return Values(np.zeros(len(ours)), np.ones(len(ours), np.bool_))
    numbers = [side.numbers for side in sides]
    missing = ~(ours.present() & base.present())
    if metric.reduces == Reduces.SUM and whole_of(metric) is None:
        missing = ~(ours.present() | base.present())
        numbers = [np.where(side.present(), side.numbers, 0) for side in sides]
    if ours.words is not None:
        missing = np.ones(len(ours), np.bool_)
    with np.errstate(invalid="ignore"):
        return Values(np.where(missing, 0, numbers[0] - numbers[1]), missing)


def relative(ours: Values, base: Values) -> Values:
    """The difference in % of the baseline; missing where a side lacks it or the baseline is 0."""
    missing = ~(ours.present() & base.present()) | (base.numbers == 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = 100.0 * (ours.numbers - base.numbers) / base.numbers
    return Values(np.where(missing, np.nan, share), missing)


def delta_of(metric: Metric) -> Metric:
    return computed_column(
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
    return replace(
        delta_of(metric),
        name=f"{metric.name}{RELATIVE}",
        unit=Unit.PERCENT,
        title="Δ %",
        reduces=Reduces.RATIO,
        definition=f"The difference in {metric.title}, in % of the baseline's.",
    )


def underlying(name: str) -> str:
    """The metric of a column: of a difference, the one that it is computed from."""
    return name.removesuffix(RELATIVE).removesuffix(DELTA)


def is_difference(name: str) -> bool:
    return name.endswith((DELTA, RELATIVE))
