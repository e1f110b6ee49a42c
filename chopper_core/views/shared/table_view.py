"""The table view: rows that divide activities by a label, their columns and the total row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.base import NODE, Base, node_names
from chopper_core.columns import METRICS, Metric, Scope, Values
from chopper_core.model.charts import Chart
from chopper_core.model.cubes import Cells
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS, Selection, values_of
from chopper_core.model.tree import Tree
from chopper_core.model.view import View, pivot
from chopper_core.util.arrays import AnyArray, Codes, Float64, Index, Int64
from chopper_core.util.grouping import (
    distinct,
    places_by,
    quantile_of,
    quantiles_along,
    quantiles_of,
    run_starts,
    stable_order,
)
from chopper_core.views.spec import ViewResult

Own = list[tuple[Metric, Values]]
"""Columns with their values."""
Figures = Sequence[tuple[Metric, Values]]
ALL_GPUS: Final = "all GPUs"
"""A total row that isn't the mean of the GPUs."""
_MAX_SORTED: Final = 1 << 20
"""Values up to which quantiles are found by sorting all of them; more are brought together by
group, piece by piece."""
_MAX_LINES: Final = 12


class LabelledRows(Struct, frozen=True, eq=False):
    """What the rows are; those that divide no activities have no column of the registry."""

    level: str
    labels: list[str]


class Partition(LabelledRows, frozen=True, eq=False):
    """Activities divided into rows: each is in one row."""

    nodes: Groups
    whole: Groups

    @classmethod
    def of(cls, tree: Tree, view: View, level: str) -> Partition:
        nodes = tree.split(view.path, (level,))
        return cls(level, nodes.labels(level), nodes, tree.node(view.path))

    def scope(self, run: Run) -> Scope:
        return Scope.of(run, self.nodes, self.whole)

    def whole_scope(self, run: Run) -> Scope:
        return Scope.of(run, self.whole)


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
    is it. Where `opens` doesn't say otherwise, a row opens its part of the tree.
    """
    return ViewResult(
        level=rows.level,
        labels=rows.labels,
        columns=tuple(columns),
        opens=opens or (lambda row: child_of(view, rows.level, rows.labels[row])),
        total=total_row(columns, whole) if total is None else total,
        sort=sort,
        shown=tuple(shown),
        nodes=rows.nodes if isinstance(rows, Partition) else None,
        whole=rows.whole if isinstance(rows, Partition) else None,
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


def columns_of(figures: Mapping[str, Values], declared: Mapping[str, Metric]) -> Own:
    """Figures by name as columns: those declared for the view, else registered metrics."""
    return [(declared.get(name) or METRICS[name], values) for name, values in figures.items()]


def known_of(own: Figures, names: Sequence[str] = ()) -> tuple[str, ...]:
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


def grouped(parent: Groups, codes: Codes) -> tuple[Int64, Groups]:
    """The different codes in rising order, and the rows of each in their order.

    `codes` has one code per row of `parent.rows`.
    """
    if (codes[1:] >= codes[:-1]).all():
        ordered, rows = codes, parent.rows
    else:
        order = stable_order(codes)
        ordered, rows = codes[order], parent.rows[order]
    first = run_starts(ordered)
    return ordered[first].astype(np.int64), Groups(parent.table, rows, first)


def by_kernel_codes(parent: Groups, kernels: Groups, codes_of: Codes) -> tuple[Int64, Groups]:
    """As `grouped`, by a code of each kernel name, from the sums of the kernels where known.

    `kernels` are the rows of `parent` by kernel.
    """

    def found() -> tuple[Int64, Groups]:
        return grouped(parent, codes_of[parent.table.kernel[parent.selection]])

    cells = kernels.cells
    if cells is None:
        return found()
    codes = codes_of[cells.cube.codes["kernel"][cells.at]]
    order = stable_order(codes)
    codes = codes[order]
    first = run_starts(codes)

    def rows() -> tuple[Selection, Index]:
        nodes = found()[1]
        return nodes.selection, nodes.first

    of_code = Cells(cells.cube, cells.at[order], first)
    return codes[first].astype(np.int64), Groups(
        parent.table, None, None, of_code, rows, kernels.around
    )


def quantiles(groups: Groups, column: str, shares: tuple[float, ...]) -> Float64:
    """Quantiles of a column over each group, as groups x shares, by linear interpolation."""
    if groups.sizes().sum() <= _MAX_SORTED:
        values = groups.table.column(column)[groups.rows].astype(np.float64)
        owner = np.repeat(np.arange(len(groups)), groups.sizes())
        return quantiles_of(values, owner, len(groups), shares)
    parts: list[list[AnyArray]] = [[] for _ in range(len(groups))]
    for rows, group in groups.pieces():
        values = values_of(groups.table, column, rows)
        for number, own in places_by(group).items():
            parts[number].append(values[own])
    return np.array([quantile_of(np.concatenate(own), shares) for own in parts])


def by_level(parent: Groups, level: str) -> Partition:
    """A node's rows by the labels of a level, in the order of their codes."""
    nodes = grouped(parent, parent.table.column(level)[parent.rows])[1]
    return Partition(level, nodes.labels(level), nodes, parent)


def by_gpu(gpus: Sequence[int], lines: Float64) -> dict[str, Float64]:
    """A line per GPU by name; of many GPUs the least, the median and the largest of the lines."""
    if len(gpus) <= _MAX_LINES:
        return {f"GPU {gpu}": line for gpu, line in zip(gpus, lines, strict=True)}
    names = ("minimum of the GPUs", "median of the GPUs", "maximum of the GPUs")
    return dict(zip(names, quantiles_along(lines, (0.0, 0.5, 1.0)), strict=True))


def child_of(view: View, level: str, label: str) -> View:
    plain = replace(view, name="", by="", of="", columns=(), sort="", filter="")
    if level in view.order[: len(view.path)]:
        return plain
    split = pivot(plain, level)
    return replace(split, path=(*split.path, label))


class GpuRows(LabelledRows, frozen=True, eq=False):
    """GPUs as rows: each alone, or those of a node or a parallel coordinate together."""

    members: list[Index]
    """The places of each row's GPUs."""

    @classmethod
    def of(cls, run: Run, gpus: Sequence[int], by: str) -> GpuRows:
        """Rows of some GPUs; raises NothingToShow by node where the hosts are unknown."""
        names = node_names(run, gpus) if by == NODE else [str(gpu) for gpu in gpus]
        members: dict[str, list[int]] = {}
        if by in run.table.coordinates:
            codes = run.table.coordinates[by][list(gpus)]
            names = run.table.texts_of(by, codes)
            members = {label: [] for label in run.table.texts_of(by, distinct(codes))}
        for place, name in enumerate(names):
            members.setdefault(name, []).append(place)
        return cls(by, [*members], [np.array(own, np.intp) for own in members.values()])

    def reduced(self, numbers: Float64, how: Callable[[Float64], float]) -> Float64:
        """A figure of the GPUs as one of the rows, over the known values; NaN without any."""
        known = [numbers[own][np.isfinite(numbers[own])] for own in self.members]
        return np.array([how(each) if len(each) else np.nan for each in known], np.float64)


def activity_view(run: Run, view: View, row: int) -> View:
    """The view of one activity by its row of the kernel table, in the usual order of levels."""
    table = run.table
    path = tuple(table.text_of(level, int(table.column(level)[row])) for level in LEVELS)
    place = int(np.flatnonzero(run.tree().node(path).rows == row)[0])
    return View(run=view.run, path=(*path, str(place)), signal=view.signal)
