"""Where a person is and how they got there: steps between trails, as pure functions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chopper_core.comparison import is_difference
from chopper_core.view import Baseline, View, charting, drill


@dataclass(frozen=True, slots=True)
class Place:
    """A view and where the cursor stands in it."""

    view: View
    label: str | None = None
    """The row under the cursor; None: the first."""
    offset: int = 0
    """The cursor's distance from the first row on the screen."""


Trail = tuple[Place, ...]
"""The places from the root to here, one per step of the path."""


def trail_to(view: View) -> Trail:
    """The trail of somebody who came to a view from outside."""
    parents = (
        Place(
            replace(view, path=view.path[:depth], sort="", filter=""),
            label=view.path[depth],
        )
        for depth in range(len(view.path))
    )
    return compared((*parents, Place(view)), view.baseline)


def into(trail: Trail, label: str) -> Trail:
    """Into a child of the last place."""
    return (*trail, Place(drill(trail[-1].view, label)))


def out(trail: Trail) -> Trail:
    """To the parent, as it was left; at the root, the trail itself."""
    return trail[:-1] or trail


def changed(trail: Trail, view: View) -> Trail:
    """The same place with another sort, filter or order; the cursor stays on its row."""
    return (*trail[:-1], replace(trail[-1], view=view))


def beside(trail: Trail, view: View) -> Trail:
    """To a neighbour of the scope; the parent's cursor goes along."""
    if len(trail) < 2:
        return trail
    parent = replace(trail[-2], label=view.path[-1])
    return (*trail[:-2], parent, replace(trail[-1], view=view))


def charted(trail: Trail, metric: str) -> Trail:
    """The same places, all with this signal: it stays chosen on the way up."""
    return tuple(replace(place, view=charting(place.view, metric)) for place in trail)


def tallied(trail: Trail, view: View) -> Trail:
    """The same places, all with the statistic of a view: it stays chosen on the way up."""
    return tuple(
        replace(place, view=replace(place.view, stat=view.stat, over=view.over)) for place in trail
    )


def compared(trail: Trail, baseline: Baseline | None) -> Trail:
    """The same places with a baseline for the last one, and its ancestors for those before.

    An ancestor that would be compared with itself has none.
    """
    places = []
    for above, place in enumerate(reversed(trail)):
        beside = baseline
        if beside is not None and beside.path is not None and above:
            beside = replace(beside, path=beside.path[:-above])
        itself = beside is not None and beside == Baseline("", place.view.path) and above > 0
        sort = place.view.sort
        if (itself or beside is None) and is_difference(sort.removeprefix("-")):
            sort = ""
        view = replace(place.view, baseline=None if itself else beside, sort=sort)
        places.append(replace(place, view=view))
    return tuple(reversed(places))


def moved(trail: Trail, label: str | None, offset: int) -> Trail:
    """The same place with the cursor elsewhere."""
    return (*trail[:-1], replace(trail[-1], label=label, offset=offset))
