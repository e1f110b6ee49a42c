"""Search a run for operations and kernels by name, in the dictionaries instead of the rows."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.base import base_of
from chopper_core.analyses.lanes import lanes_in, nearest_start
from chopper_core.columns import Values
from chopper_core.columns.filter import FilterRows, matching
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.view import Interval, View
from chopper_core.util.arrays import Index, Int64, Mask
from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import counts_of, ranked, sums_of
from chopper_core.views.frame import Frame

NAMED: Final = (("operation", "operations"), ("kernel", "names"))
"""The levels with names, and their dictionaries in the kernel table."""


class Hit(Struct, frozen=True):
    """A node whose operation or kernel has a name that matches."""

    level: str
    path: tuple[str, ...]
    elapsed_ns: float


class NameFound(Struct, frozen=True):
    """A name that matches, with all of its places."""

    level: str
    name: str
    places: int
    elapsed_ns: float
    """Time of all of its places, on the base of the view."""


class Found(Struct, frozen=True):
    """The hits with the most time, the longest first, and how many there are in all."""

    hits: tuple[Hit, ...]
    names: int
    """Number of distinct names that match."""
    nodes: int
    by_name: tuple[NameFound, ...] = ()
    """Each name once, that with the most time first."""


def find_everywhere(
    run: Run, view: View, text: str, limit: int = 200, one: NameFound | None = None
) -> Found:
    """Nodes of the run, in the order of a view, whose name matches `text`: terms as in a filter,
    regular expressions; or those of one name."""
    if not text.strip():
        raise UsageError("find needs part of a name, or a regular expression")
    table, order, left_out = run.table, view.order, run.left_out(replace(view, path=()))
    hits: list[Hit] = []
    named: list[NameFound] = []
    whole = base_of(run, replace(view, path=()))
    names = nodes = 0
    for level, dictionary in NAMED:
        wanted = _wanted(run, dictionary, text)
        if one is not None:
            known = getattr(table, dictionary)
            own = [one.level == level and name == one.name for name in known]
            wanted &= np.array([*own, False])
        names += int(wanted[run.tree().codes_of(level)].sum())
        levels = order[: order.index(level) + 1]
        rows = np.flatnonzero(wanted[table.column(level)])
        if left_out and "iteration" not in levels:
            rows = rows[~np.isin(table.iteration[rows], left_out)]
        if not len(rows):
            continue
        found, _ = Groups.single(table, rows).split(levels)
        nodes += len(found)
        codes = [found.codes(each) for each in levels]
        of_name, place = ranked(codes[-1])
        places = counts_of(place, len(of_name))
        times = sums_of(found.elapsed_ns, place, len(of_name))
        for code, count, time_ns in zip(of_name, places.tolist(), times.tolist(), strict=True):
            name = table.text_of(level, int(code))
            named.append(NameFound(level, name, count, whole.each(time_ns)))
        for node in _longest(found.elapsed_ns, limit).tolist():
            labels = zip(levels, codes, strict=True)
            path = tuple(table.text_of(each, int(code[node])) for each, code in labels)
            base = base_of(run, replace(view, path=path))
            hits.append(Hit(level, path, base.each(int(found.elapsed_ns[node]))))
    hits.sort(key=lambda hit: -hit.elapsed_ns)
    named.sort(key=lambda each: -each.elapsed_ns)
    return Found(tuple(hits[:limit]), names, nodes, tuple(named[:limit]))


def names_found(run: Run, text: str) -> tuple[int, int]:
    """The number of operations and of kernels whose name matches, as `find` finds them."""
    operations, kernels = (int(_wanted(run, each, text).sum()) for _, each in NAMED)
    return operations, kernels


def next_named(run: Run, view: View, step: int, text: str) -> tuple[str, Interval] | None:
    """The cursor of a timeline at the next start of what matches, and the lane; None at the end."""
    wanted = {level: _wanted(run, dictionary, text) for level, dictionary in NAMED}
    by_lane: dict[tuple[int, int | None], Int64] = run.memo(("timeline names", text), dict)
    lanes = lanes_in(run, view)[0]
    for lane in lanes:
        if (place := (lane.gpu, lane.stream)) not in by_lane:
            codes = [(level, run.table.column(level)[lane.rows]) for level in wanted]
            there = np.logical_or.reduce([wanted[level][each] for level, each in codes])
            by_lane[place] = lane.starts_ns[there]
    return nearest_start(
        run, view, step, [(lane, by_lane[lane.gpu, lane.stream]) for lane in lanes]
    )


def _wanted(run: Run, dictionary: str, text: str) -> Mask:
    """Which names match, by code; the code -1 is a missing label, which matches nothing."""

    def values(column: str) -> Values:
        raise UsageError(f"find searches names; use / to filter by {column}")

    names = getattr(run.table, dictionary)
    return np.append(matching(FilterRows("name", names, values), text), False)


def _longest(elapsed_ns: Int64, limit: int) -> Index:
    # The shortest that is shown; of equally long ones the first are shown.
    place = max(len(elapsed_ns) - limit, 0)
    bound = np.partition(elapsed_ns, place)[place] if len(elapsed_ns) else 0
    among = np.flatnonzero(elapsed_ns >= bound)
    return among[np.argsort(-elapsed_ns[among], kind="stable")[:limit]]


def hit_rows(frame: Frame, text: str) -> tuple[int, ...]:
    def values(column: str) -> Values:
        if column not in frame.values:
            raise UsageError(f"{column} is not in this table")
        return frame.values[column]

    mask = matching(FilterRows(frame.level, frame.labels, values), text)
    return tuple(np.flatnonzero(mask).tolist())
