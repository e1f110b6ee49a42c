"""Marked rows, wherever they are, and the view that compares them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.run_set import RUN_LEVEL
from chopper_core.model.table import ACTIVITY
from chopper_core.model.view import Baseline, View, filtered
from chopper_core.query.filter import only
from chopper_core.util.errors import UsageError


class Mark(Struct, frozen=True):
    """A marked node: a path in an order of levels."""

    order: tuple[str, ...]
    path: tuple[str, ...]

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels of the path."""
        return (*self.order, ACTIVITY)[: len(self.path)]

    @property
    def parent(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The table of the row: its levels, and the path above it."""
        return self.levels, self.path[:-1]


Marks = tuple[Mark, ...]
"""The marks in the order in which they were made."""


def mark_of(view: View, label: str) -> Mark:
    """The mark of a row of a view; raises UsageError where its rows are no nodes."""
    if view.name:
        raise UsageError("only rows of the tree can be marked")
    return Mark(view.order, view.path if view.is_leaf else (*view.path, label))


def toggled(marks: Marks, mark: Mark) -> Marks:
    """With a mark more, or without it where it is there already."""
    rest = tuple(old for old in marks if not _same(old, mark))
    return rest if len(rest) < len(marks) else (*marks, mark)


def marked_in(marks: Marks, view: View) -> frozenset[str]:
    """The labels of a view's rows that are marked; rows of other views are no nodes."""
    runs = frozenset(mark.path[0] for mark in marks if mark.order == (RUN_LEVEL,))
    if runs or view.name:
        return runs
    if view.is_leaf:
        own = Mark(view.order, view.path)
        return frozenset(view.path[-1:] if any(_same(mark, own) for mark in marks) else ())
    here = mark_of(view, "").parent
    return frozenset(mark.path[-1] for mark in marks if mark.parent == here)


def comparison(marks: Marks, view: View, label: str | None) -> View:
    """The view that compares the marked rows, or the marked one with a view's row.

    Of two the first is the baseline of the other; more are shown alone in the table that they
    share. Raises UsageError where there is nothing to compare.
    """
    if not marks:
        raise UsageError("nothing is marked; space marks the row under the cursor")
    if len(marks) > 2:
        return _alone(marks, replace(view, name="", by="", of=""))
    chosen = list(marks)
    if len(chosen) == 1 and label is not None and not view.name:
        chosen.append(mark_of(view, label))
    if len(chosen) == 1 or _same(*chosen):
        raise UsageError("one row is marked; mark another, or put the cursor on it")
    first, second = chosen
    view = replace(view, name="", by="", of="")
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
        return filtered(view, term)
    path = first.path[:-1]
    return replace(view, path=path, order=first.order, sort="", filter=term, baseline=None)


def _same(one: Mark, other: Mark) -> bool:
    return (one.levels, one.path) == (other.levels, other.path)
