"""Rows of activities divided by a label, and of GPUs together, with their reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.base import NODE, node_names
from chopper_core.columns import Metric, Scope, Values
from chopper_core.model.cubes import Cells
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import Selection, values_of
from chopper_core.model.tree import Tree
from chopper_core.model.view import View
from chopper_core.util.arrays import AnyArray, Codes, Float64, Index, Int64
from chopper_core.util.grouping import (
    distinct,
    places_by,
    quantile_of,
    quantiles_of,
    run_starts,
    stable_order,
)

Own = list[tuple[Metric, Values]]
"""Columns with their values."""
Figures = Sequence[tuple[Metric, Values]]
ALL_GPUS: Final = "all GPUs"
"""A total row that isn't the mean of the GPUs."""
_MAX_SORTED: Final = 1 << 20
"""Values up to which quantiles are found by sorting all of them; more are brought together by
group, piece by piece."""


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
