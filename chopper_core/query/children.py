"""The rows of the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_core.metrics import Scope, Values, metric_named
from chopper_core.metrics.lookup import reason_notes
from chopper_core.model import address
from chopper_core.model.run import Run, interval_of
from chopper_core.model.view import View, enter
from chopper_core.query.columns import column_of, names_of
from chopper_core.query.filter import Rows, matching
from chopper_core.query.frame import Frame
from chopper_core.query.notes import notes_of
from chopper_core.query.rows import LONGEST_FIRST, means_of, ordered
from chopper_core.query.statistic import instance_levels, statistic_of

if TYPE_CHECKING:
    pass


def children(run: Run, view: View) -> Frame:
    """The children of a view's node and their figures, whatever its screen and baseline."""
    if view.window:
        interval_of(run, view)
    tree = run.tree(view.order)
    parent = tree.node(view.path)
    signal = run.signal(view.signal)
    if view.is_leaf:
        labels: list[str] = [view.path[-1]]
        nodes = parent
    else:
        children = tree.children(view.path)
        labels, nodes = list(children.labels), children.groups
    scope = Scope(nodes, parent, run.origin_ns, run.hardware, run.measured)
    computed: dict[str, Values] = {}

    statistic = statistic_of(view, run.partial_iterations)

    def values(name: str) -> Values:
        if name not in computed:
            computed[name] = column_of(name, run, statistic).compute(scope)
        return computed[name]

    columns = tuple(column_of(name, run, statistic) for name in names_of(run, view))
    mask = matching(Rows(view.level, labels, values), view.filter)
    shown = np.flatnonzero(mask)
    elapsed = metric_named("elapsed_ns", run.table).compute(scope).numbers.astype(np.int64)
    hidden_ns = 0 if mask.all() else int(elapsed[~mask].sum())
    sort = view.sort or ("-elapsed_ns" if view.level in LONGEST_FIRST else "")
    shown = shown[ordered(shown, view.level, labels, sort, values)]
    totals = Scope(parent, parent, run.origin_ns, run.hardware, run.measured)
    total = {column.name: column.compute(totals).at(0) for column in columns}
    nowhere = [
        column
        for column in columns
        if column.name in view.columns
        and total[column.name] is None
        and not values(column.name).present().any()
    ]
    shown_labels = [labels[row] for row in shown]
    return Frame(
        view=view,
        address=address.render(view),
        level=view.level,
        columns=columns,
        labels=shown_labels,
        values={column.name: values(column.name).take(shown) for column in columns},
        total=total,
        sort=sort,
        hidden=len(labels) - len(shown),
        hidden_ns=hidden_ns,
        parent_ns=int(metric_named("elapsed_ns", run.table).compute(totals).numbers[0]),
        elapsed_ns=elapsed[shown],
        notes=(
            *notes_of(run, view, labels, len(shown), hidden_ns),
            *reason_notes(nowhere, run.table, run.hardware),
        ),
        opens=lambda row: view if view.is_leaf else enter(view, shown_labels[row]),
        signal=signal,
        means=means_of(signal, nodes, shown),
        over=instance_levels(view),
    )
