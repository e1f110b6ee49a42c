"""The columns of the tree's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_core.metrics import Metric, default_columns, metric_named
from chopper_core.metrics.time import INSTANCES
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.query.statistic import Statistic

if TYPE_CHECKING:
    pass


def names_of(run: Run, view: View) -> tuple[str, ...]:
    """The columns of a view: those asked for, else the level's; a statistic says of how many."""
    if view.columns:
        return view.columns
    names = default_columns(view.level, run.table, run.hardware)
    return (*names[:2], INSTANCES, *names[2:]) if view.stat else names


def column_of(name: str, run: Run, statistic: Statistic | None) -> Metric:
    """The metric of a column; raises UsageError where there is none of the name."""
    known = metric_named(name, run.table, run.counter_info)
    return statistic.metric(known) if statistic else known
