"""Gaps: how long a GPU idles before each activity, by operation; and the metric of it."""

from __future__ import annotations

from typing import Final

from chopper_core.analyses.rows import Partition
from chopper_core.columns import METRICS, Reduces, Scope, Values
from chopper_core.columns.metric import metric, quotient
from chopper_core.model.run import Run
from chopper_core.model.units import Unit
from chopper_core.model.view import View
from chopper_core.views.shared.table_view import table_view
from chopper_core.views.spec import ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="gaps",
    title="Gaps",
    question="Before which operations do the GPUs idle?",
    by=("operation", "phase", "gpu"),
)


@metric(
    "mean_gap_ns", Unit.NS, "mean gap", reduces=Reduces.RATIO, missing="the row has no activities"
)
def mean_gap(scope: Scope) -> Values:
    """Idle time per activity: idle_ns over the number of activities."""
    return quotient(scope.nodes.sum("idle_ns"), scope.nodes.activities())


def answer(run: Run, view: View) -> ViewResult:
    """The rows of a scope, those with the most idle time first."""
    rows = Partition.of(run.tree_of(view), view, view.by or SPEC.by[0])
    gap = quotient(rows.nodes.sum("idle_ns"), rows.nodes.activities())
    shown = ("idle_ns", "mean_gap_ns")
    return table_view(view, rows, [(METRICS["mean_gap_ns"], gap)], sort="-idle_ns", shown=shown)
