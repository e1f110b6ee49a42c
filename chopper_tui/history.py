"""Where a person is and how they got there: steps between trails, as pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.view import Baseline, View, enter, with_signal, with_view
from chopper_core.query.differences import is_difference


class Visit(Struct, frozen=True):
    """A view and its cursor."""

    view: View
    label: str | None = None
    """The row under the cursor; None: the first."""
    offset: int = 0
    """The cursor's distance from the first row on the screen."""
    is_passed: bool = False
    """Whether its level says nothing and was passed through on the way in."""


Columns = Mapping[str, tuple[str, ...]]
"""The chosen columns, by the level of the rows."""
Trail = tuple[Visit, ...]
"""The places from the root to here, one per step of the path."""


def trail_to(view: View) -> Trail:
    """The trail to a view that was opened by address."""
    parents = (
        Visit(
            replace(with_view(view, ""), path=view.path[:depth], sort="", filter=""),
            label=view.path[depth],
        )
        for depth in range(len(view.path))
    )
    return with_baseline((*parents, Visit(view)), view.baseline)


def child_of(
    trail: Trail, label: str, columns: Columns = MappingProxyType({}), partner: str = ""
) -> Trail:
    """Into a child of the last place, with the columns that were chosen for its level.

    `partner` is the child's name in the baseline, where it differs.
    """
    view = enter(trail[-1].view, label, partner)
    names = columns_for(view.level, trail[-1].view, columns)
    return (*trail, Visit(replace(view, columns=names)))


def passed(trail: Trail, labels: Sequence[str], columns: Columns) -> Trail:
    """On from the last place through levels that say nothing, which have one label each."""
    for label in labels:
        trail = child_of((*trail[:-1], replace(trail[-1], is_passed=True)), label, columns)
    return trail


def dressed(trail: Trail, columns: Columns) -> Trail:
    """The same places with the columns chosen for their levels; the last may have its own."""
    last = trail[-1].view
    if last.name:
        return trail
    views = [
        replace(place.view, columns=columns_for(place.view.level, last, columns))
        for place in trail[:-1]
    ]
    views.append(replace(last, columns=last.columns or columns.get(last.level, ())))
    return tuple(replace(place, view=view) for place, view in zip(trail, views, strict=True))


def columns_for(level: str, view: View, columns: Columns) -> tuple[str, ...]:
    """The columns of a level that is entered from a view: those chosen for it.

    Otherwise those of the address, but not those chosen for the view's own level.
    """
    inherited = () if view.columns == columns.get(view.level) else view.columns
    return columns.get(level, inherited)


def parent_of(trail: Trail) -> Trail:
    """To the parent, as it was left, back through passed levels; at the root, the trail itself."""
    parent = trail[:-1]
    while len(parent) > 1 and parent[-1].is_passed:
        parent = parent[:-1]
    return parent or trail


def changed(trail: Trail, view: View) -> Trail:
    """The same place with another sort, filter or order; the cursor stays on its row."""
    return (*trail[:-1], replace(trail[-1], view=view))


def to_sibling(trail: Trail, view: View) -> Trail:
    """To a neighbour of the scope; the parent's cursor goes along."""
    if len(trail) < 2:
        return trail
    parent = replace(trail[-2], label=view.path[-1])
    return (*trail[:-2], parent, replace(trail[-1], view=view))


def charted(trail: Trail, metric: str) -> Trail:
    """The same places, all with this signal: it stays chosen on the way up."""
    return tuple(replace(place, view=with_signal(place.view, metric)) for place in trail)


def with_statistic(trail: Trail, view: View) -> Trail:
    """The same places, all with the statistic of a view: it stays chosen on the way up."""
    return tuple(
        replace(place, view=replace(place.view, stat=view.stat, over=view.over)) for place in trail
    )


def with_cut(trail: Trail, cut: bool) -> Trail:
    """The same places, all with or without truncated iterations."""
    return tuple(replace(place, view=replace(place.view, cut=cut)) for place in trail)


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


def moved(trail: Trail, label: str | None, offset: int) -> Trail:
    """The same place with the cursor elsewhere."""
    return (*trail[:-1], replace(trail[-1], label=label, offset=offset))
