"""The granularity tree: nodes are contiguous slices of the kernel table in a level order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from chopper_core.errors import NoSuchNode
from chopper_core.schema import ACTIVITY, LEVELS, NO_LABEL_TEXT, KernelTable

Int64 = NDArray[np.int64]
Index = NDArray[np.intp]


@dataclass(frozen=True)
class Groups:
    """Neighbouring groups of rows of a kernel table, and reductions over each of them."""

    table: KernelTable
    rows: Index
    """Rows of the table, group after group."""
    first: Index
    """Where each group begins in `rows`; there is at least one group and none is empty."""
    _cache: dict[str, Int64] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.first)

    def sizes(self) -> Int64:
        """Number of activities of each group."""
        return np.diff(np.append(self.first, len(self.rows))).astype(np.int64)

    def sum(self, column: str) -> Int64:
        """Sum of a column over each group."""
        return self._reduced("sum", column, np.add.reduceat)

    def min(self, column: str) -> Int64:
        """Smallest value of a column in each group."""
        return self._reduced("min", column, np.minimum.reduceat)

    def max(self, column: str) -> Int64:
        """Largest value of a column in each group."""
        return self._reduced("max", column, np.maximum.reduceat)

    def sum_of(self, values: Callable[[KernelTable, Index], NDArray[np.generic]]) -> Int64:
        """Sum over each group of a value that is worked out per row, such as a condition."""
        per_row = values(self.table, self.rows).astype(np.int64)
        summed: Int64 = np.add.reduceat(per_row, self.first)
        return summed

    def known(self, column: str) -> tuple[NDArray[np.float64], Int64]:
        """Sum of a measured column over each group, and how many activities have it."""
        if column not in self.table.measured:
            return np.zeros(len(self)), np.zeros(len(self), np.int64)
        values = self.table.measured[column][self.rows]
        there = np.isfinite(values)
        summed: NDArray[np.float64] = np.add.reduceat(np.where(there, values, 0.0), self.first)
        return summed, np.add.reduceat(there.astype(np.int64), self.first)

    def known_together(
        self, columns: Sequence[str]
    ) -> tuple[dict[str, NDArray[np.float64]], Int64]:
        """Sums of measured columns over those activities that have all, and how many they are."""
        if any(column not in self.table.measured for column in columns):
            return {c: np.zeros(len(self)) for c in columns}, np.zeros(len(self), np.int64)
        values = {column: self.table.measured[column][self.rows] for column in columns}
        there = np.isfinite(np.stack(list(values.values()))).all(axis=0)
        sums = {
            column: np.add.reduceat(np.where(there, numbers, 0.0), self.first)
            for column, numbers in values.items()
        }
        return sums, np.add.reduceat(there.astype(np.int64), self.first)

    def split(self, levels: Sequence[str]) -> tuple[Groups, Index]:
        """The groups divided by the labels of levels, and the group that each part is of."""
        group = np.repeat(np.arange(len(self)), self.sizes())
        keys, rows = group.astype(np.int64), self.rows
        for level in levels:
            codes = self.table.column(level)[rows].astype(np.int64)
            codes -= codes.min()
            keys = keys * (int(codes.max()) + 1) + codes
        if (keys[1:] < keys[:-1]).any():
            order = np.argsort(keys, kind="stable")
            keys, rows = keys[order], rows[order]
        # Rows stay within their group, so that `group` fits their new order as well.
        first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        return Groups(self.table, rows, first), group[first]

    def rows_of(self, group: int) -> Index:
        """The rows of one group."""
        bounds = np.append(self.first, len(self.rows))
        return self.rows[bounds[group] : bounds[group + 1]]

    def _reduced(
        self, how: str, column: str, reduceat: Callable[[NDArray[np.int64], Index], Int64]
    ) -> Int64:
        key = f"{how} {column}"
        if key not in self._cache:
            values = self.table.column(column)[self.rows].astype(np.int64)
            self._cache[key] = reduceat(values, self.first)
        return self._cache[key]


@dataclass(frozen=True)
class Children:
    """The children of a node: their labels and their rows."""

    level: str
    labels: Sequence[str]
    groups: Groups


class Tree:
    """The tree of a kernel table in one order of the levels."""

    def __init__(self, table: KernelTable, order: Sequence[str] = LEVELS) -> None:
        self.table = table
        self.order = tuple(order)
        keys = [table.column(level) for level in self.order]
        self._rows = np.lexsort((table.stream, table.start_ns, *reversed(keys)))
        self._nodes: dict[tuple[str, ...], tuple[int, int]] = {(): (0, len(table))}

    def node(self, path: Sequence[str]) -> Groups:
        """The rows of a node as one group; raises NoSuchNode where the run has none."""
        low, high = self._slice(tuple(path))
        return Groups(self.table, self._rows[low:high], np.zeros(1, np.intp))

    def children(self, path: Sequence[str]) -> Children:
        """The children of a node, in the order of their codes; activities in order of start."""
        low, high = self._slice(tuple(path))
        rows = self._rows[low:high]
        depth = len(path)
        if depth == len(self.order):
            by_start = rows[np.lexsort((self.table.stream[rows], self.table.start_ns[rows]))]
            labels = [str(number) for number in range(len(rows))]
            return Children(ACTIVITY, labels, Groups(self.table, by_start, np.arange(len(rows))))
        level = self.order[depth]
        codes = self.table.column(level)[rows]
        changes = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
        labels = [self.table.text_of(level, int(code)) for code in codes[changes]]
        return Children(level, labels, Groups(self.table, rows, changes))

    def _slice(self, path: tuple[str, ...]) -> tuple[int, int]:
        if len(path) > len(self.order) + 1:
            raise NoSuchNode("an activity has nothing under it")
        if path not in self._nodes:
            low, high = self._slice(path[:-1])
            self._nodes[path] = self._narrow(low, high, path)
        return self._nodes[path]

    def _narrow(self, low: int, high: int, path: tuple[str, ...]) -> tuple[int, int]:
        text = path[-1]
        if len(path) > len(self.order):
            if not text.isdecimal() or int(text) >= high - low:
                raise NoSuchNode(f"no activity {text} here: there are {high - low}, counted from 0")
            return low + int(text), low + int(text) + 1
        level = self.order[len(path) - 1]
        code = self.table.code_of(level, text)
        codes = self.table.column(level)[self._rows[low:high]]
        begin = int(np.searchsorted(codes, code, "left")) if code is not None else 0
        end = int(np.searchsorted(codes, code, "right")) if code is not None else 0
        if begin == end:
            raise NoSuchNode(self._missing(level, text, codes))
        return low + begin, low + end

    def _missing(self, level: str, text: str, codes: NDArray[np.int64]) -> str:
        present = [self.table.text_of(level, int(code)) for code in np.unique(codes)]
        shown = ", ".join(label[:40] for label in present[:12])
        more = f" and {len(present) - 12} more" if len(present) > 12 else ""
        wanted = "unlabelled" if text == NO_LABEL_TEXT else text[:80]
        return f"no {level} {wanted} here; there is {shown}{more}"
