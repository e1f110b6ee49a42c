"""From a run, or a set of runs, and a view to its frame."""

from __future__ import annotations

from chopper_core.extensions.runs.run_set import RunSet
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.query.frame import Frame
from chopper_core.util.errors import NothingToShow
from chopper_core.views.frames import run_frame, run_preview, without_rows


def query(run: Run, view: View) -> Frame:
    """The frame of a view; raises NoSuchNode or UsageError where the view doesn't fit the run."""
    return _of_set(run, view, wait=True) if isinstance(run, RunSet) else run_frame(run, view)


def preview(run: Run, view: View) -> Frame:
    """The frame of a view, pending where a part of it takes long; raises as `query`."""
    return _of_set(run, view, wait=False) if isinstance(run, RunSet) else run_preview(run, view)


def frame_of(run: Run, view: View) -> Frame:
    """The frame of a view as `query`; where it has nothing to show, no rows and the reason."""
    try:
        return query(run, view)
    except NothingToShow as reason:
        return without_rows(run, view, str(reason))


def _of_set(run: RunSet, view: View, *, wait: bool) -> Frame:
    from chopper_core.extensions.runs.by_run import set_frame  # most queries are of one run

    return set_frame(run, view, wait=wait)
