"""Rows of activities divided by a label, and of GPUs together, with their reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.base import NODE, node_labels, node_names
from chopper_core.columns import Metric, Scope, Values, column
from chopper_core.model.groups import Groups, by_codes_of, grouped
from chopper_core.model.run import Run
from chopper_core.model.tree import Tree
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Mask
from chopper_core.util.grouping import distinct

Own = list[tuple[Metric, Values]]
"""Columns with their values."""
Figures = Sequence[tuple[Metric, Values]]
ALL_GPUS: Final = "all GPUs"
"""A total row that isn't the mean of the GPUs."""
GROUP_GPUS: Final = column("""group_gpus | | its GPUs
    The number of the row's GPUs with data.""")


class LabelledRows(Struct, frozen=True, eq=False):
    """What the rows are; those that divide no activities have no column of the registry."""

    level: str
    labels: list[str]


class FigureRows(LabelledRows, frozen=True, eq=False):
    """Rows that aren't made of activities, such as windows of a log, with figures by column."""

    figures: dict[str, Values]
    whole: dict[str, Values] = {}
    """Those of all rows as one, where they aren't sums."""


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


def by_level(parent: Groups, level: str) -> Partition:
    """A node's rows by the labels of a level, in the order of their codes."""
    nodes = grouped(parent, parent.table.column(level)[parent.rows])[1]
    return Partition(level, nodes.labels(level), nodes, parent)


def by_node(run: Run, parent: Groups, parts: Groups) -> tuple[list[str], Groups]:
    """The nodes of the GPUs of a part of the tree, and the activities of each; `parts` are those of
    each GPU."""
    gpus = parts.codes("gpu")
    names = node_labels(run, gpus.tolist())
    place_of = {name: place for place, name in enumerate(sorted(set(names)))}
    code_of = np.zeros(int(gpus.max()) + 1, np.int32)
    code_of[gpus] = [place_of[name] for name in names]
    return [*place_of], by_codes_of(parent, parts, "gpu", code_of)[1]


class GpuRows(LabelledRows, frozen=True, eq=False):
    """GPUs as rows: each alone, or those of a node or a parallel coordinate together."""

    members: list[Index]
    """The places of each row's GPUs, one at least."""

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

    @property
    def _in_turn(self) -> tuple[Index, Index]:
        """The GPUs row by row, and where each row begins."""
        sizes = [len(own) for own in self.members]
        return np.concatenate([*self.members, np.empty(0, np.intp)]), np.cumsum([0, *sizes])[:-1]

    def largest(self, numbers: Float64) -> Float64:
        """The largest known figure of each row's GPUs; NaN without any."""
        places, first = self._in_turn
        return np.fmax.reduceat(np.where(np.isfinite(numbers), numbers, np.nan)[places], first)

    def lacking(self, numbers: Float64) -> Mask:
        """The rows with a GPU whose figure isn't known."""
        places, first = self._in_turn
        return np.logical_or.reduceat(~np.isfinite(numbers)[places], first)

    def reduced(self, numbers: Float64, how: Callable[[Float64], float]) -> Float64:
        """A figure of the GPUs as one of the rows, over the known values; NaN without any."""
        known = [numbers[own][np.isfinite(numbers[own])] for own in self.members]
        return np.array([how(each) if len(each) else np.nan for each in known], np.float64)
