"""From a run and a view to the frame that answers it."""

from __future__ import annotations

from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.query.children import children
from chopper_core.query.compared import compared
from chopper_core.query.frame import Frame
from chopper_core.views.frames import answered


def query(run: Run, view: View) -> Frame:
    """The frame of a view; raises NoSuchNode or UsageError where the view doesn't fit the run."""
    if view.name:
        return answered(run, view)
    if view.baseline is not None:
        return compared(run, view)
    return children(run, view)
