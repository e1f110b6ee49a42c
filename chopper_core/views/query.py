"""From a run, or a set of runs, and a view to its frame."""

from __future__ import annotations

from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.errors import NothingToShow
from chopper_core.views.frame import Frame
from chopper_core.views.frames import run_frame, run_preview, without_rows
from chopper_core.views.spec import SeveralRuns


def query(run: Run, view: View) -> Frame:
    """The frame of a view; raises NoSuchNode or UsageError where the view doesn't fit the run."""
    return run.frame(view, wait=True) if isinstance(run, SeveralRuns) else run_frame(run, view)


def preview(run: Run, view: View) -> Frame:
    """The frame of a view, pending where a part of it takes long; raises as `query`."""
    return run.frame(view, wait=False) if isinstance(run, SeveralRuns) else run_preview(run, view)


def frame_of(run: Run, view: View) -> Frame:
    """The frame of a view as `query`; where it has nothing to show, no rows and the reason."""
    try:
        return query(run, view)
    except NothingToShow as reason:
        return without_rows(run, view, str(reason))
