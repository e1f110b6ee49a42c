"""From a run and a view to the frame that answers it."""

from __future__ import annotations

from collections.abc import Iterable

from chopper_core.frame import Frame
from chopper_core.metrics import Scope, Values, metric
from chopper_core.query.answered import answered
from chopper_core.query.children import children
from chopper_core.query.compared import compared
from chopper_core.run import Run
from chopper_core.view import View

__all__ = ["figures", "query"]


def query(run: Run, view: View) -> Frame:
    """The frame of a view; raises NoSuchNode or UsageError where the view doesn't fit the run."""
    if view.analysis:
        return answered(run, view)
    if view.baseline is not None:
        return compared(run, view)
    return children(run, view)


def figures(run: Run, view: View, names: Iterable[str]) -> dict[str, Values]:
    """Figures of a view's node itself, one value each; raises NoSuchNode where there is none."""
    node = run.tree(view.order).node(view.path)
    scope = Scope(node, node, run.origin_ns, run.hardware, run.measured)
    return {name: metric(name, run.table, run.counter_info).compute(scope) for name in names}
