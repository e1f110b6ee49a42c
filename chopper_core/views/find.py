"""Search a run for operations and kernels by name, in the dictionaries instead of the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from chopper_core.util.arrays import AnyArray, Index, Int64, Mask
from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import counts_of, ranked
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


class NamesFound(Struct, frozen=True):
    """The names that match with the most time, the longest first, and how many there are."""

    by_name: tuple[NameFound, ...]
    names: int
    nodes: int
    """Number of their places."""


def names_everywhere(run: Run, view: View, text: str, limit: int = 200) -> NamesFound:
    """The names of the run that match `text`: terms as in a filter, regular expressions. Their
    places, which can be as many as activities, are counted and not looked at."""
    named: list[NameFound] = []
    whole = base_of(run, replace(view, path=()))
    matching_names = list(_matching(run, view, text))
    for level, codes, levels, left_out in matching_names:
        counted = _counted(run, tuple(levels), tuple(left_out), codes)
        if not counted:
            continue
        # Sums by level are known; those of the rows of a name are as many as these.
        sums = run.tree(view.order, left_out).split((), (level,))
        times = dict(zip(sums.codes(level).tolist(), sums.elapsed_ns.tolist(), strict=True))
        for code, places in counted.items():
            name = run.table.text_of(level, code)
            named.append(NameFound(level, name, places, whole.each(times[code])))
    named.sort(key=lambda each: -each.elapsed_ns)
    names = sum(int(codes[run.tree().codes_of(level)].sum()) for level, codes, *_ in matching_names)
    return NamesFound(tuple(named[:limit]), names, sum(each.places for each in named))


def find_everywhere(
    run: Run, view: View, text: str, limit: int = 200, one: NameFound | None = None
) -> Found:
    """Nodes of the run, in the order of a view, whose name matches `text`, as in
    `names_everywhere`; or those of one name."""
    hits: list[Hit] = []
    names = nodes = 0
    for level, wanted, levels, left_out in _matching(run, view, text):
        if one is not None:
            known = getattr(run.table, dict(NAMED)[level])
            own = [one.level == level and name == one.name for name in known]
            wanted &= np.array([*own, False])
        names += int(wanted[run.tree().codes_of(level)].sum())
        found = _places(run, levels, left_out, wanted)
        if found is None:
            continue
        nodes += len(found)
        codes = [found.codes(each) for each in levels]
        for node in _longest(found.elapsed_ns, limit).tolist():
            labels = zip(levels, codes, strict=True)
            path = tuple(run.table.text_of(each, int(code[node])) for each, code in labels)
            base = base_of(run, replace(view, path=path))
            hits.append(Hit(level, path, base.each(int(found.elapsed_ns[node]))))
    hits.sort(key=lambda hit: -hit.elapsed_ns)
    return Found(tuple(hits[:limit]), names, nodes)


def _matching(
    run: Run, view: View, text: str
) -> Iterator[tuple[str, Mask, tuple[str, ...], tuple[int, ...]]]:
    """Of each level with names, which of its codes match, the levels down to it, and the
    iterations that take no part in its places."""
    if not text.strip():
        raise UsageError("find needs part of a name, or a regular expression")
    without = run.left_out(replace(view, path=()))
    for level, dictionary in NAMED:
        levels = view.order[: view.order.index(level) + 1]
        left_out = () if "iteration" in levels else tuple(without)
        yield level, _wanted(run, dictionary, text), levels, left_out


def _places(
    run: Run, levels: Sequence[str], left_out: Sequence[int], wanted: Mask
) -> Groups | None:
    """The nodes of the codes that are wanted of the last level; None without any."""
    if not wanted.any():
        return None
    rows = np.flatnonzero(wanted[run.table.column(levels[-1])])
    if left_out:
        rows = rows[~np.isin(run.table.iteration[rows], left_out)]
    return Groups.single(run.table, rows).split(levels)[0] if len(rows) else None


def _counted(
    run: Run, levels: tuple[str, ...], left_out: tuple[int, ...], wanted: Mask
) -> dict[int, int]:
    """How many places have each of the codes that are wanted of the last level: who filters view
    after view by the same text has them counted once."""

    def made() -> dict[int, int]:
        found = _places(run, levels, left_out, wanted)
        return {} if found is None else dict(zip(*_counts(found.codes(levels[-1])), strict=True))

    return run.memo(("places of names", levels, left_out, wanted.tobytes()), made)


def _counts(codes: AnyArray) -> tuple[list[int], list[int]]:
    """The distinct codes, and how often each comes."""
    distinct, place = ranked(codes)
    return distinct.tolist(), counts_of(place, len(distinct)).tolist()


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
