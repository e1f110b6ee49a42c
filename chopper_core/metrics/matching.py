"""Metrics of how the counters of a node were found: at every level, so for each operation too."""

from __future__ import annotations

import numpy as np

from chopper_core.metrics.metric import Metric, Scope, Values
from chopper_core.model.column_names import COUNTER_MATCH, Match
from chopper_core.model.table import Category, KernelTable, Kind, Selection
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64, Mask


def _count(state: Match) -> Metric:
    words = {
        Match.MATCHED: ("matched", "with the counters of their own iteration's dispatch"),
        Match.BORROWED: ("borrowed", "with the counters of the same place in another iteration"),
        Match.AMBIGUOUS: ("ambiguous", "of which another alignment takes another dispatch"),
        Match.NONE: ("uncounted", "without counters"),
    }
    title, what = words[state]

    def is_so(table: KernelTable, rows: Selection) -> Mask:
        found: Float64 = table.measured[COUNTER_MATCH][rows]
        if state is not Match.NONE:
            return np.equal(found, float(state))
        computes = np.equal(table.kind[rows], Kind.COMPUTE)
        return computes & np.equal(table.category[rows], Category.KERNEL) & np.isnan(found)

    def compute(scope: Scope) -> Values:
        if COUNTER_MATCH not in scope.nodes.table.measured:
            nothing = np.zeros(len(scope.nodes), np.int64)
            return Values(nothing, np.ones(len(nothing), np.bool_))
        return Values(scope.nodes.sum_of(is_so))

    return Metric(
        f"counters_{title}",
        Unit.NONE,
        title,
        "sum",
        f"Number of compute kernels {what}.",
        compute,
        source="alignment of counters with the trace",
        missing_because="the run has no counters of another execution",
    )


METRICS = tuple(_count(state) for state in Match)
