"""The tree as a view: the children of a node as a frame."""

from __future__ import annotations

import numpy as np

from chopper_core.analyses.rows import Partition
from chopper_core.columns import default_columns
from chopper_core.columns.filter import LONGEST_FIRST
from chopper_core.model.run import Run, interval_of
from chopper_core.model.view import View, enter
from chopper_core.views.frame import Frame
from chopper_core.views.shared.framing import arranged, framed
from chopper_core.views.shared.row_columns import Columns
from chopper_core.views.shared.run_notes import notes_of
from chopper_core.views.spec import ViewResult


def tree_result(run: Run, view: View) -> ViewResult:
    """The children of a node, or the single activity that a view names."""
    tree, level = run.tree_of(view), view.level
    whole = tree.node(view.path)
    if view.is_leaf:
        rows = Partition(level, [view.path[-1]], whole, whole)
    else:
        found = tree.children(view.path)
        rows = Partition(level, list(found.labels), found.groups, whole)
    return ViewResult(
        rows,
        columns=(),
        opens=lambda row: view if view.is_leaf else enter(view, rows.labels[row]),
        sort="-elapsed_ns" if level in LONGEST_FIRST else "",
        shown=default_columns(level, run.table, run.hardware),
    )


def children(run: Run, view: View) -> Frame:
    if view.window:
        interval_of(run, view)
    result, left_out = tree_result(run, view), run.uncounted(view)
    rows = result.rows
    assert isinstance(rows, Partition)
    skipped: set[str] = set()
    if rows.level == "iteration":
        skipped = {run.table.text_of(rows.level, code) for code in left_out}
    counted = np.array([label not in skipped for label in rows.labels], np.bool_)
    columns = Columns(run, view, result, counted)
    shown = arranged(run, view, result, columns, counted)
    elapsed_ns, base = rows.nodes.elapsed_ns, columns.base
    hidden_ns = float(base.each(elapsed_ns[~shown.mask & counted].sum()))
    notes = (
        *shown.hint,
        *notes_of(run, view, len(rows.labels), shown.hidden, hidden_ns),
        *columns.notes,
        *columns.unavailable,
    )
    return framed(
        run,
        view,
        result,
        columns,
        shown,
        notes=notes,
        left_out=left_out,
        hidden_ns=hidden_ns,
        parent_ns=float(base.each(rows.whole.elapsed_ns[0])),
        elapsed_ns=(elapsed_ns / base.of_rows({rows.level: rows.labels}))[shown.at],
    )


def silent_levels(run: Run, view: View) -> tuple[str, ...]:
    """The labels of the levels below a view's node that say nothing: one value each.

    They lead to the next level that splits; empty where the node's own children do, and where
    nothing below it does.
    """
    if not len(run.table):
        return ()
    tree, path = run.tree(view.order), view.path
    while len(path) < len(view.order):
        labels = tree.children(path).labels
        if len(labels) > 1:
            return path[len(view.path) :]
        path = (*path, labels[0])
    return ()
