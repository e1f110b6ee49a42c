"""The tree's frames: children of a node, alone or compared with a baseline."""

from __future__ import annotations

from collections.abc import Iterable

from chopper_core.metrics import Scope, Values, metric_named, numbered
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.query.marks import Coverage

__all__ = ["figures"]


def figures(run: Run, view: View, names: Iterable[str]) -> dict[str, Values]:
    """Figures of a view's node itself, one value each; raises NoSuchNode for an unknown node."""
    known = [metric_named(name, run.table, run.counter_info) for name in names]
    if not len(run.table):
        return {each.name: numbered([None]) for each in known}
    node = run.tree_of(view).node(view.path)
    scope = Scope(node, node, run.origin_ns, run.hardware, run.measured)
    coverage = Coverage(run, view, "", node, node)
    return {each.name: coverage.marked(each, each.compute(scope)) for each in known}
