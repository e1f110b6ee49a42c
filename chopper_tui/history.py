"""Where a person is and how they got there, and what they marked, as pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.columns.derived import is_difference
from chopper_core.columns.filter import only
from chopper_core.model.table import ACTIVITY, LEVELS, is_split
from chopper_core.model.view import (
    RUN_LEVEL,
    Baseline,
    View,
    child_of,
    enter,
    with_view,
)
from chopper_core.util.errors import UsageError


class Visit(Struct, frozen=True):
    """A view and its cursor."""

    view: View
    label: str | None = None
    """The row under the cursor; None: the first."""
    offset: int = 0
    is_passed: bool = False
    """Whether its level says nothing and was passed through on the way in."""


place_of: Final = attrgetter("run", "path", "order", "name", "by", "of", "baseline", "overrides")
"""What a view keeps when its rows are sorted, filtered or scrolled."""
Columns = Mapping[str, tuple[str, ...]]
"""The chosen columns, by the level of the rows."""
Trail = tuple[Visit, ...]
"""The places from the root to here, one per step of the path."""


def as_measured(view: View) -> View:
    """The view of a predicted run, of the measured one."""
    return replace(view, overrides=replace(view.overrides, predicted=""), baseline=None)


def trail_to(view: View) -> Trail:
    parents = (
        Visit(
            replace(with_view(view, ""), path=view.path[:depth], sort="", filter=""),
            label=view.path[depth],
        )
        for depth in range(len(view.path))
    )
    return with_baseline((*parents, Visit(view)), view.baseline)


def into_child(
    trail: Trail, label: str, columns: Columns = MappingProxyType({}), partner: str = ""
) -> Trail:
    """Into a child, in the baseline named `partner`, with the columns of its level."""
    view = enter(trail[-1].view, label, partner)
    names = columns_for(view.level, trail[-1].view, columns)
    return (*trail, Visit(replace(view, columns=names)))


def passed(trail: Trail, labels: Sequence[str], columns: Columns) -> Trail:
    for label in labels:
        trail = into_child((*trail[:-1], replace(trail[-1], is_passed=True)), label, columns)
    return trail


def with_columns_of(trail: Trail, columns: Columns) -> Trail:
    """The same places with the columns chosen for their levels; the last may have its own."""
    last = trail[-1].view
    if last.name:
        return trail
    own = changed(trail, replace(last, columns=last.columns or columns.get(last.level, ())))

    def chosen(view: View) -> View:
        return replace(view, columns=columns_for(view.level, last, columns))

    return (*everywhere(trail[:-1], chosen), own[-1])


def columns_for(level: str, view: View, columns: Columns) -> tuple[str, ...]:
    """The columns of a level that is entered from a view: those chosen for it.

    Otherwise those of the address, but not those chosen for the view's own level.
    """
    inherited = () if view.columns == columns.get(view.level) else view.columns
    return columns.get(level, inherited)


def parent_of(trail: Trail) -> Trail:
    """To the parent as it was left, back through passed levels; the root stays."""
    parent = trail[:-1]
    while len(parent) > 1 and parent[-1].is_passed:
        parent = parent[:-1]
    return parent or trail


def changed(trail: Trail, view: View) -> Trail:
    """The same place with another sort, filter or order; the cursor stays on its row.

    Rows of another level are other rows: layer 12 isn't step 12.
    """
    before = trail[-1].view
    is_split = before.name == view.name and before.by != view.by
    if is_split or (not before.name and not view.name and before.level != view.level):
        return (*trail[:-1], Visit(view))
    return (*trail[:-1], replace(trail[-1], view=view))


def to_sibling(trail: Trail, view: View) -> Trail:
    """To a neighbour of the scope; the parent's cursor goes along."""
    parent = replace(trail[-2], label=view.path[-1])
    return (*trail[:-2], parent, replace(trail[-1], view=view))


def everywhere(trail: Trail, change: Callable[[View], View]) -> Trail:
    return tuple(replace(place, view=change(place.view)) for place in trail)


def with_statistic(trail: Trail, view: View) -> Trail:
    return everywhere(trail, lambda each: replace(each, stat=view.stat, over=view.over))


def with_baseline(trail: Trail, baseline: Baseline | None) -> Trail:
    """The same places with a baseline for the last one, and its ancestors for those before.

    An ancestor that would be compared with itself has none.
    """
    places = []
    for above, place in enumerate(reversed(trail)):
        own = baseline
        if own is not None and own.path is not None and above:
            own = replace(own, path=own.path[:-above])
        itself = own is not None and own == Baseline("", place.view.path) and above > 0
        sort = place.view.sort
        if (itself or own is None) and is_difference(sort.removeprefix("-")):
            sort = ""
        view = replace(place.view, baseline=None if itself else own, sort=sort)
        places.append(replace(place, view=view))
    return tuple(reversed(places))


def moved_row(trail: Trail, label: str | None, offset: int) -> Trail:
    return (*trail[:-1], replace(trail[-1], label=label, offset=offset))


class Mark(Struct, frozen=True):
    """A marked node: a path in an order of levels."""

    order: tuple[str, ...]
    path: tuple[str, ...]

    @property
    def levels(self) -> tuple[str, ...]:
        return (*self.order, ACTIVITY)[: len(self.path)]

    @property
    def parent(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.levels, self.path[:-1]


Marks = tuple[Mark, ...]


def mark_of(view: View, label: str) -> Mark:
    return Mark(view.order, view.path if view.is_leaf else (*view.path, label))


def mark_of_row(view: View, level: str, label: str | None) -> Mark | None:
    """The mark of a row, in any table whose rows are places of the tree; None for other rows."""
    if label is None:
        return None
    if not view.name:
        return mark_of(view, label)
    if not (level in LEVELS or is_split(level)) or level in dict(view.scope):
        return None
    there = child_of(view, level, label)
    return Mark(there.order, there.path)


def toggled(marks: Marks, mark: Mark) -> Marks:
    rest = tuple(old for old in marks if not _same(old, mark))
    return rest if len(rest) < len(marks) else (*marks, mark)


def marked_in(marks: Marks, view: View, level: str = "") -> frozenset[str]:
    """The labels of a view's marked rows; in the tree its level is that of its order."""
    runs = frozenset(mark.path[0] for mark in marks if mark.order == (RUN_LEVEL,))
    if runs or not marks:
        return runs
    if view.name:
        row = mark_of_row(view, level, "")
        there = None if row is None else row.parent
        return frozenset(mark.path[-1] for mark in marks if mark.parent == there)
    if view.is_leaf:
        own = Mark(view.order, view.path)
        return frozenset(view.path[-1:] if any(_same(mark, own) for mark in marks) else ())
    here = mark_of(view, "").parent
    return frozenset(mark.path[-1] for mark in marks if mark.parent == here)


def comparison(marks: Marks, view: View, row: Mark | None) -> View:
    """The view that compares the marked rows, or the marked one with the cursor's row.

    Of two the first is the baseline of the other; more are shown alone in the table that they
    share. Raises UsageError where there is nothing to compare.
    """
    if not marks:
        raise UsageError("nothing is marked; space marks the row under the cursor")
    chosen = list(marks)
    if len(chosen) == 1 and row is not None:
        chosen.append(row)
    view = replace(view, name="", by="", of="")
    if len(chosen) > 2:
        return _alone(chosen, view)
    if len(chosen) == 1 or _same(*chosen):
        raise UsageError("one row is marked; mark another, or put the cursor on it")
    first, second = chosen
    if first.levels != second.levels:
        raise UsageError(
            f"the marked rows are of different kinds: {'/'.join(first.levels)} "
            f"and {'/'.join(second.levels)}"
        )
    baseline = Baseline("", first.path)
    return replace(
        view, path=second.path, order=second.order, sort="", filter="", baseline=baseline
    )


def _alone(marks: Sequence[Mark], view: View) -> View:
    first = marks[0]
    if any(mark.parent != first.parent for mark in marks):
        raise UsageError(
            "more than two marked rows are compared in one table; these are in several"
        )
    term = only(first.levels[-1], [mark.path[-1] for mark in marks])
    if mark_of(view, "").parent == first.parent:
        return replace(view, filter=term)
    path = first.path[:-1]
    return replace(view, path=path, order=first.order, sort="", filter=term, baseline=None)


def _same(one: Mark, other: Mark) -> bool:
    return (one.levels, one.path) == (other.levels, other.path)
