"""The granularity tree: nodes are slices of the kernel table, in any order of the levels.

Rows lie in the order of the levels, so a path in that order is a slice and nothing is sorted. In
another order a node's rows are searched for by their labels, in as few rows as possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import takewhile
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.cubes import Cubes
from chopper_core.model.groups import Groups, contiguous
from chopper_core.model.memo import Memo
from chopper_core.model.table import (
    ACTIVITY,
    LEVELS,
    NO_LABEL_TEXT,
    KernelTable,
    Selection,
    selected_count,
)
from chopper_core.util.arrays import AnyArray, Index
from chopper_core.util.errors import NoSuchNode
from chopper_core.util.grouping import distinct, isin

_MAX_ADDED_ROWS: Final = 1 << 15
"""Contiguous rows that are summed as fast as cells are looked up."""
_ITERATION: Final = "iteration"


class Children(Struct, frozen=True, dict=True):
    """The children of a node: their rows, and their labels."""

    level: str
    groups: Groups

    @cached_property
    def labels(self) -> Sequence[str]:
        if self.level == ACTIVITY:
            return [str(number) for number in range(len(self.groups))]
        return self.groups.labels(self.level)


def level_order(table: KernelTable) -> Index:
    keys = [table.column(level) for level in reversed(LEVELS)]
    return np.lexsort((table.stream, table.start_ns, *keys))


def ordered(table: KernelTable) -> KernelTable:
    """The table in the order of the levels, as stores have it."""
    return table if in_order(table) else table.take(level_order(table))


def in_order(table: KernelTable) -> bool:
    open_ = np.ones(max(len(table) - 1, 0), np.bool_)
    for name in (*LEVELS, "start_ns", "stream"):
        values = table.column(name)
        if (open_ & (values[1:] < values[:-1])).any():
            return False
        open_ &= values[1:] == values[:-1]
        if not open_.any():
            break
    return True


class Tree:
    """The tree of a kernel table in one order of the levels.

    A tree `without` some iterations still has their nodes, but their activities are only in nodes
    whose path names an iteration.
    """

    def __init__(
        self, table: KernelTable, order: Sequence[str] = LEVELS, cubes: Cubes | None = None
    ) -> None:
        self.table = table
        self.order = tuple(order)
        if cubes is None or cubes.table is not table:
            cubes = Cubes(table) if in_order(table) else None
        self._cubes = cubes
        # An unsorted table is addressed through its sorted permutation.
        self._places = None if cubes is not None else level_order(table)
        self._memo = Memo()
        self._left_out: tuple[int, ...] = ()

    def without(self, iterations: Sequence[int]) -> Tree:
        """This tree without some iterations; it shares what this one has computed."""
        made = copy(self)
        made._left_out = tuple(iterations)
        return made

    def node(self, path: Sequence[str]) -> Groups:
        """The rows of a node as one group; raises NoSuchNode where there are none."""
        return self.split(path, ())

    def children(self, path: Sequence[str]) -> Children:
        """The children of a node, in the order of their codes; activities in order of start.

        All iterations are children, also those that take no part in the node.
        """
        path = tuple(path)
        if len(path) >= len(self.order):
            rows = self._by_start(path)
            return Children(ACTIVITY, Groups(self.table, rows, np.arange(len(rows))))
        level = self.order[len(path)]
        tree = self.without(()) if level == _ITERATION else self
        # What is computed of them stays, such as their lines over time.
        key = ("children", path, tree._left_out)
        return self._memo(key, lambda: Children(level, tree.split(path, (level,))))

    def by_gpu(self) -> dict[int, Selection]:
        """The rows of each GPU."""
        gpus = self.split((), ("gpu",))
        return {gpu: gpus.part(place) for place, gpu in enumerate(gpus.codes("gpu").tolist())}

    def split(
        self,
        path: Sequence[str],
        levels: Sequence[str],
        without: Mapping[str, Sequence[int]] | None = None,
    ) -> Groups:
        """A node's rows grouped by each combination of the labels of levels, sorted.

        Rows with one of the codes in `without` (by level) are excluded, also where it names an
        iteration; raises NoSuchNode where none remain.
        """
        made = self._split(tuple(path), levels, without)
        excluded = {level: tuple(codes) for level, codes in (without or {}).items()}
        made.origin = self.order, self._left_out, tuple(path), tuple(levels), excluded
        return made

    def _split(
        self,
        path: tuple[str, ...],
        levels: Sequence[str],
        without: Mapping[str, Sequence[int]] | None,
    ) -> Groups:
        wanted = self._codes(path)
        more = without or {}

        def found() -> tuple[Selection, Index]:
            rows = self._rows_of(path)
            for level, codes in more.items():
                rows = _without(rows, self.table.column(level), codes)
            if not selected_count(rows):
                raise self._missing(path)
            parts = Groups.single(self.table, rows)
            if levels:
                parts, _ = parts.split(levels)
            return parts.selection, parts.first

        cells = None
        is_node = len(path) <= len(self.order)
        excluded = dict(more)
        if is_node and self._cubes is not None and not self._is_small(wanted):
            if self._left_out and _ITERATION not in wanted:
                excluded[_ITERATION] = [*more.get(_ITERATION, ()), *self._left_out]
            cells = self._cubes.cells(wanted, levels, excluded)
        if cells is None or not len(cells.at):
            return Groups(self.table, *found())
        around = slice(*self._narrowed(wanted, [*takewhile(lambda each: each in wanted, LEVELS)]))
        sizes, named = cells.sum("activities"), (*wanted, *levels)

        def in_turn() -> tuple[Selection, Index]:
            return around, np.cumsum(sizes) - sizes

        # In the order of the levels the groups lie one behind the other.
        is_in_turn = not excluded and named == LEVELS[: len(named)]
        return Groups(self.table, None, None, cells, in_turn if is_in_turn else found, around)

    def rows_without(self, path: Sequence[str], iterations: Sequence[int]) -> Selection:
        """The rows of a node, in the order of the table, without some iterations."""
        if self._places is None and not self._left_out:
            return self._kept(tuple(path), tuple(iterations))
        rows = self.node(path).selection
        rows = rows if isinstance(rows, slice) else np.sort(rows)
        return _without(rows, self.table.iteration, iterations)

    def _kept(self, path: tuple[str, ...], left_out: tuple[int, ...]) -> Selection:
        """The places of a node's rows without those of some iterations."""
        key = ("kept", path, left_out)
        return self._memo(key, lambda: self._complete(path, left_out))

    def _complete(self, path: tuple[str, ...], left_out: Sequence[int]) -> Selection:
        places, rest = self._places_of(path), LEVELS[len(path) : 2]
        if self._places is None and rest and self._is_default(self.order[: len(path)]):
            # Of millions of rows the labels of each take ten times as long as those of groups.
            parts = self.without(()).split(path, rest)
            kept = np.repeat(~isin(parts.codes(_ITERATION), left_out), parts.sizes())
            assert isinstance(places, slice)
            return contiguous(places.start + np.flatnonzero(kept))
        return _without(places, self._key(_ITERATION), left_out)

    def codes_of(self, level: str) -> AnyArray:
        cube = None if self._cubes is None else self._cubes.by_levels.get(frozenset([level]))
        return distinct(self.table.column(level)) if cube is None else cube.codes[level]

    def _key(self, level: str) -> AnyArray:
        if self._places is None:
            return self.table.column(level)
        places = self._places
        return self._memo(("key", level), lambda: self.table.column(level)[places])

    @staticmethod
    def _is_default(levels: Sequence[str]) -> bool:
        return set(levels) == set(LEVELS[: len(levels)])

    def _codes(self, path: tuple[str, ...]) -> dict[str, int]:
        """The codes of a path's labels; raises NoSuchNode for an unknown label."""
        codes = {}
        for depth, (level, text) in enumerate(zip(self.order, path, strict=False)):
            code = self.table.code_of(level, text)
            if code is None or code >= 2**31:
                raise self._missing(path[: depth + 1])
            codes[level] = code
        return codes

    def _is_small(self, wanted: dict[str, int]) -> bool:
        if not wanted or not self._is_default(list(wanted)):
            return False
        low, high = self._narrowed(wanted, list(wanted))
        return high - low <= _MAX_ADDED_ROWS

    def _narrowed(self, wanted: Mapping[str, int], levels: Sequence[str]) -> tuple[int, int]:
        """The slice with the codes of consecutive levels of the default order."""
        low, high = 0, len(self.table)
        for level in sorted(levels, key=LEVELS.index):
            codes = self._key(level)[low:high]
            # A code of another type would convert the whole column.
            code = codes.dtype.type(wanted[level])
            begin = int(np.searchsorted(codes, code, "left"))
            high = low + int(np.searchsorted(codes, code, "right"))
            low += begin
        return low, high

    def _rows_of(self, path: tuple[str, ...]) -> Selection:
        """A node's rows without the iterations that take no part in it."""
        if len(path) > len(self.order):
            return self._activity(path)
        left_out = self._left_out
        if left_out and _ITERATION not in self.order[: len(path)]:
            places = self._kept(path, left_out)
        else:
            places = self._places_of(path)
        return places if self._places is None else self._places[places]

    def _places_of(self, path: tuple[str, ...]) -> Selection:
        """The places of a node's rows; raises NoSuchNode where there are none."""
        wanted = self._codes(path)
        places: Selection
        if self._is_default(tuple(wanted)):
            places = slice(*self._narrowed(wanted, tuple(wanted)))
        else:
            places = self._memo(("places", path), lambda: self._located(wanted))
        if not selected_count(places):
            raise self._missing(path)
        return places

    def _located(self, wanted: Mapping[str, int]) -> Index:
        above = [*takewhile(lambda each: each in wanted, LEVELS)]
        low, high = self._narrowed(wanted, above)
        kept = np.ones(high - low, np.bool_)
        for level in wanted.keys() - above:
            kept &= self._key(level)[low:high] == np.int32(wanted[level])
        return low + np.flatnonzero(kept)

    def _by_start(self, path: tuple[str, ...]) -> Index:
        """The rows of a node with a path of full length, in order of start."""
        rows = self._rows_of(path)
        if isinstance(rows, slice):
            rows = np.arange(rows.start, rows.stop)
        return rows[np.lexsort((self.table.stream[rows], self.table.start_ns[rows]))]

    def _activity(self, path: tuple[str, ...]) -> Index:
        if len(path) > len(self.order) + 1:
            raise NoSuchNode("an activity has no children")
        rows, text = self._by_start(path[:-1]), path[-1]
        if not text.isdecimal() or int(text) >= len(rows):
            raise NoSuchNode(f"unknown activity {text}: there are {len(rows)}, counted from 0")
        return rows[int(text) : int(text) + 1]

    def _missing(self, path: tuple[str, ...]) -> NoSuchNode:
        """The error for a path that doesn't exist: it names the first missing label."""
        if not path:
            return NoSuchNode("the run has no activities")
        for depth in range(1, len(path)):
            try:
                self.node(path[:depth])
            except NoSuchNode as error:
                return error
        level, text = self.order[len(path) - 1], path[-1]
        present = self.children(path[:-1]).labels
        shown = ", ".join(label[:40] for label in present[:12])
        more = f" and {len(present) - 12} more" if len(present) > 12 else ""
        wanted = "unlabelled" if text == NO_LABEL_TEXT else text[:80]
        return NoSuchNode(f"no {level} {wanted} here; available: {shown}{more}")


def _without(places: Selection, codes: AnyArray, left_out: Sequence[int]) -> Selection:
    kept = ~isin(codes[places], left_out)
    if isinstance(places, slice):
        return contiguous(places.start + np.flatnonzero(kept))
    return contiguous(places[kept])
