"""A view: what a person looks at, as a value; and the steps from one view to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.overrides import NO_OVERRIDES, Overrides
from chopper_core.model.table import ACTIVITY, LEVELS
from chopper_core.model.window import ALL_TIME, Window
from chopper_core.util.errors import UsageError

STATISTICS: Final = {
    "sum": "all instances of the row together: the row itself",
    "mean": "of the row's instances, each counting once",
    "median": "half of the instances lie below it",
    "p95": "95% of the instances lie below it",
    "max": "the largest of the instances",
    "min": "the smallest of the instances",
    "spread": "the largest less the smallest",
}
"""What a figure may be of the instances of a row (see `statistic`), with what it is."""
SUM: Final = "sum"


class Baseline(Struct, frozen=True):
    """What a view is compared with."""

    run: str = ""
    """Another run, as the user named it; empty: the view's own."""
    path: tuple[str, ...] | None = None
    """Another node of the view's order; None: the node of the view's own path."""


class View(Struct, frozen=True):
    """A node of a run and how its children are shown."""

    run: str
    """The run as the user named it: a file or a directory."""
    path: tuple[str, ...] = ()
    """Labels for a prefix of `order`, as a path spells them; one more picks an activity."""
    order: tuple[str, ...] = LEVELS
    columns: tuple[str, ...] = ()
    """Names of metrics; empty: the defaults of the level."""
    sort: str = ""
    """A column, `-column` for the largest first, or empty: the level's own order."""
    filter: str = ""
    signal: str = ""
    """The signal of the chart and the sparklines; empty: the first one of the run."""
    baseline: Baseline | None = None
    name: str = ""
    """The question that is asked of the node (see `analyses`); empty: its children."""
    by: str = ""
    """What an analysis splits its rows by; empty: its first choice."""
    of: str = ""
    """The figure that an analysis is of, where it takes any."""
    overrides: Overrides = NO_OVERRIDES
    """How the files of the run are read where they don't say it themselves."""
    stat: str = ""
    """One of `STATISTICS` over each row's instances; empty: the sum."""
    over: tuple[str, ...] = ()
    """The levels whose values tell instances apart; empty: those of `statistic`."""
    window: Window = ALL_TIME
    """The time that a view along time shows, its cursor and its mark."""

    @property
    def level(self) -> str:
        """The level of the rows: what the node's children are."""
        depth = len(self.path)
        return self.order[depth] if depth < len(self.order) else ACTIVITY

    @property
    def scope(self) -> tuple[tuple[str, str], ...]:
        """The path as (level, label) pairs."""
        return tuple(zip((*self.order, ACTIVITY), self.path, strict=False))

    @property
    def is_leaf(self) -> bool:
        """Whether the node is a single activity, with nothing under it."""
        return len(self.path) > len(self.order)


def enter(view: View, label: str, partner: str = "") -> View:
    """Into a child; its rows come unsorted and unfiltered, with the same columns chosen.

    `partner` is what the child is called in the baseline, where that is another name.
    """
    if view.is_leaf:
        return view
    baseline = view.baseline
    if baseline is not None and (baseline.path is not None or partner):
        above = view.path if baseline.path is None else baseline.path
        baseline = replace(baseline, path=(*above, partner or label))
    sort = view.sort if baseline is not None else ""
    return replace(
        view,
        path=(*view.path, label),
        sort=sort,
        filter="",
        baseline=baseline,
        name="",
        by="",
        of="",
        window=ALL_TIME,
    )


def with_view(view: View, name: str) -> View:
    """The same node with another question asked of it; empty: its children."""
    if name == view.name:
        return view
    return replace(view, name=name, by="", of="", columns=(), sort="", filter="", window=ALL_TIME)


def up(view: View) -> View:
    """To the parent; at the root, the view itself."""
    if not view.path:
        return view
    baseline = view.baseline
    if baseline is not None and baseline.path is not None:
        baseline = replace(baseline, path=baseline.path[:-1])
    sort = view.sort if baseline is not None else ""
    return replace(
        view, path=view.path[:-1], sort=sort, filter="", baseline=baseline, window=ALL_TIME
    )


def sibling(view: View, labels: Sequence[str], step: int) -> View:
    """To a neighbour of the node among `labels`; at the end of the list, the view itself."""
    if not view.path or view.path[-1] not in labels:
        return view
    position = labels.index(view.path[-1]) + step
    if not 0 <= position < len(labels):
        return view
    # The same time of another GPU can be looked at; another iteration is at another time.
    is_gpu = view.scope[-1][0] == "gpu"
    window = view.window if is_gpu else ALL_TIME
    return replace(view, path=(*view.path[:-1], labels[position]), window=window)


def at_level(view: View, level: str, label: str) -> View:
    """The same path with another label at one of its levels."""
    path = tuple(label if name == level else old for name, old in view.scope)
    return replace(view, path=path)


def pivot(view: View, level: str) -> View:
    """The same node, split by another level next; the levels of the path stay where they are."""
    depth = len(view.path)
    rest = view.order[depth:]
    if level not in rest:
        return view
    order = (*view.order[:depth], level, *(name for name in rest if name != level))
    return replace(view, order=order, sort="", filter="")


def sorted_by(view: View, sort: str) -> View:
    """The same rows in another order."""
    return replace(view, sort=sort)


def filtered(view: View, text: str) -> View:
    """The rows that match a filter (see `filter`)."""
    return replace(view, filter=text)


def as_statistic(view: View, stat: str, over: Sequence[str] = ()) -> View:
    """The same view with its figures as a statistic over instances; raises UsageError."""
    if stat not in STATISTICS:
        raise UsageError(f"no statistic {stat!r}; there are {', '.join(STATISTICS)}")
    for level in over:
        if level not in LEVELS:
            raise UsageError(f"no level {level!r}; the levels are {', '.join(LEVELS)}")
    is_sum = stat == SUM
    return replace(view, stat="" if is_sum else stat, over=() if is_sum else tuple(over))


def baseline_view(view: View) -> View:
    """The baseline of a view as a view of its own; raises UsageError where there is none."""
    if view.baseline is None:
        raise UsageError("the view has no baseline")
    path = view.path if view.baseline.path is None else view.baseline.path
    run = view.baseline.run or view.run
    return replace(
        view,
        run=run,
        path=path,
        sort="",
        filter="",
        columns=(),
        baseline=None,
        window=ALL_TIME,
    )


def with_signal(view: View, signal: str) -> View:
    """The same view with another signal in its chart and sparklines."""
    return replace(view, signal=signal)


def complete_order(levels: Sequence[str]) -> tuple[str, ...]:
    """A full order that begins with the given levels; the others follow in their usual order."""
    for level in levels:
        if level not in LEVELS:
            raise UsageError(f"no level {level!r}; the levels are {', '.join(LEVELS)}")
    if len(set(levels)) != len(levels):
        raise UsageError(f"a level is named twice in the order {','.join(levels)}")
    return (*levels, *(level for level in LEVELS if level not in levels))
