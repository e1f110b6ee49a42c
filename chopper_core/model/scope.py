"""The stretch of a run's time that a view shows."""

from __future__ import annotations

from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.model.window import Stretch, resolved


def scope_of(run: Run, view: View) -> tuple[int, int]:
    """From the first start to the last end of a view's node, in ns since the run's first start."""
    node = run.tree(view.order).node(view.path)
    start, end = int(node.min("start_ns")[0]), int(node.max("end_ns")[0])
    return start - run.origin_ns, end - run.origin_ns


def seen_in(run: Run, view: View) -> Stretch:
    """The stretch that a view shows: that of its scope where it doesn't say.

    Raises NoSuchNode, and UsageError where its window holds no time of the run.
    """
    end = int(run.tree().node(()).max("end_ns")[0]) - run.origin_ns
    return resolved(view.window, scope_of(run, view), end)
