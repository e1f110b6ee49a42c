"""The table view: rows that divide activities by a label, their columns and the total row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.base import Base
from chopper_core.analyses.rows import Figures, LabelledRows, Own
from chopper_core.columns import METRICS, OTHER_COLUMNS, Metric, Values
from chopper_core.model.charts import Chart
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS
from chopper_core.model.view import View, child_of
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import (
    quantiles_along,
)
from chopper_core.views.spec import ViewResult

_MAX_LINES: Final = 12


class OpensPart(Struct, frozen=True):
    """What a row opens by default: its part of the tree."""

    view: View
    level: str
    labels: Sequence[str]

    def __call__(self, row: int) -> View:
        return child_of(self.view, self.level, self.labels[row])


def table_view(
    view: View,
    rows: LabelledRows,
    columns: Figures,
    whole: Figures = (),
    *,
    total: Mapping[str, int | float] | None = None,
    opens: Callable[[int], View] | None = None,
    sort: str = "",
    shown: Sequence[str] = (),
    over: tuple[str, ...] = (),
    headline: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    charts: tuple[Chart, ...] = (),
    base: Base | None = None,
    total_title: str = "",
) -> ViewResult:
    """The result of a view whose rows divide activities, instances or steps.

    `whole` has columns of all rows as one group, with one value each: the total row, unless `total`
    is it. Without `opens` a row opens its part of the tree.
    """
    return ViewResult(
        rows=rows,
        columns=tuple(columns),
        opens=opens or OpensPart(view, rows.level, rows.labels),
        total=total_row(columns, whole) if total is None else total,
        sort=sort,
        shown=tuple(shown),
        over=over,
        headline=headline,
        notes=notes,
        charts=charts,
        base=base,
        total_title=total_title,
        extrapolated_total=frozenset(
            metric.name for metric, values in whole if len(values) and values.is_extrapolated(0)
        ),
    )


def columns_of(figures: Mapping[str, Values], declared: Mapping[str, Metric] = {}) -> Own:
    """Figures by name as columns: those declared for the view, else registered ones."""
    return [
        (declared.get(name) or METRICS.get(name) or OTHER_COLUMNS[name], values)
        for name, values in figures.items()
    ]


def known_columns(own: Figures, names: Sequence[str] = ()) -> tuple[str, ...]:
    """The columns that have any value, of some names or of all."""
    known = [metric.name for metric, values in own if values.present().any()]
    return tuple(name for name in names or known if name in known)


def total_row(columns: Figures, whole: Figures = ()) -> dict[str, int | float]:
    """The total row: columns of the whole, and sums of the other columns that add up."""
    total = {
        metric.name: values.numbers[values.present()].sum().item()
        for metric, values in columns
        if metric.adds_up and values.present().any()
    }
    for metric, values in whole:
        total.pop(metric.name, None)
        if values.words is None and (number := values.at(0)) is not None:
            total[metric.name] = number
    return total


def by_gpu(gpus: Sequence[int], lines: Float64) -> dict[str, Float64]:
    """A line per GPU by name; of many GPUs the least, the median and the largest of the lines."""
    if len(gpus) <= _MAX_LINES:
        return {f"GPU {gpu}": line for gpu, line in zip(gpus, lines, strict=True)}
    names = ("minimum of the GPUs", "median of the GPUs", "maximum of the GPUs")
    return dict(zip(names, quantiles_along(lines, (0.0, 0.5, 1.0)), strict=True))


def activity_view(run: Run, view: View, row: int) -> View:
    """The view of one activity by its row of the kernel table, in the usual order of levels."""
    table = run.table
    path = tuple(table.text_of(level, int(table.column(level)[row])) for level in LEVELS)
    place = int(np.flatnonzero(run.tree().node(path).rows == row)[0])
    return View(run=view.run, path=(*path, str(place)), signal=view.signal)
