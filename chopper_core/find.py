"""Names found anywhere in a run: operations and kernels, by the dictionaries, not by the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from chopper_core.errors import UsageError
from chopper_core.filter import Rows, matching
from chopper_core.frame import Frame
from chopper_core.metrics import Scope, Values, metric
from chopper_core.run import Run
from chopper_core.tree import Groups

NAMED: Final = (("operation", "operations"), ("kernel", "names"))
"""The levels with names, and their dictionaries in the kernel table."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A node whose operation or kernel has a name that matches."""

    level: str
    path: tuple[str, ...]
    elapsed_ns: int


@dataclass(frozen=True, slots=True)
class Found:
    """The hits with the most time, the longest first, and how many there are in all."""

    hits: tuple[Hit, ...]
    names: int
    """How many different names match."""
    nodes: int


def find(run: Run, order: tuple[str, ...], text: str, limit: int = 200) -> Found:
    """Nodes of the run whose name matches `text`: terms as in a filter, regular expressions."""
    if not text.strip():
        raise UsageError("find what? a part of a name, or a regular expression")
    rows = run.tree(order).node(()).rows
    hits: list[Hit] = []
    names = nodes = 0
    for level, dictionary in NAMED:
        mask = _matching_names(getattr(run.table, dictionary), text)
        codes = run.table.column(level)
        # A code of -1 is a missing label: it has no name that could match.
        wanted = np.append(mask, False)[codes]
        names += len(np.unique(codes[wanted]))
        found = rows[wanted[rows]]
        if len(found):
            own, count = _nodes(run, order, level, found, limit)
            hits += own
            nodes += count
    hits.sort(key=lambda hit: -hit.elapsed_ns)
    return Found(tuple(hits[:limit]), names, nodes)


def hit_rows(frame: Frame, text: str) -> tuple[int, ...]:
    """The rows of a frame that a filter or a sought name matches."""

    def values(column: str) -> Values:
        if column not in frame.values:
            raise UsageError(f"{column} is not in this table")
        return frame.values[column]

    mask = matching(Rows(frame.level, frame.labels, values), text)
    return tuple(int(row) for row in np.flatnonzero(mask))


def _matching_names(names: Sequence[str], text: str) -> NDArray[np.bool_]:
    def values(column: str) -> Values:
        raise UsageError(f"find looks for names; {column} is a figure: / filters by it")

    return matching(Rows("name", names, values), text)


def _nodes(
    run: Run, order: tuple[str, ...], level: str, rows: NDArray[np.intp], limit: int
) -> tuple[list[Hit], int]:
    """The longest nodes down to a level among rows in the order of the tree, and their number."""
    levels = order[: order.index(level) + 1]
    changed = np.zeros(len(rows), np.bool_)
    changed[0] = True
    for name in levels:
        codes = run.table.column(name)[rows]
        changed[1:] |= codes[1:] != codes[:-1]
    first = np.flatnonzero(changed)
    groups = Groups(run.table, rows, first)
    elapsed = metric("elapsed_ns", run.table).compute(Scope(groups, groups, run.origin_ns)).numbers
    longest = np.argsort(-elapsed, kind="stable")[:limit]
    hits = []
    for node in longest:
        row = rows[first[node]]
        path = tuple(run.table.text_of(name, int(run.table.column(name)[row])) for name in levels)
        hits.append(Hit(level, path, int(elapsed[node])))
    return hits, len(first)
