"""Several runs side by side: a row for each, sweeps over a setting, and any view by run."""

from __future__ import annotations

from chopper_core.model.run_set import RunSet
from chopper_core.model.view import View, with_view
from chopper_core.query.frame import Frame
from chopper_core.views import OVERVIEW


def set_frame(run: RunSet, view: View, *, wait: bool = False) -> Frame:
    """The frame of a view of a set of runs; with `wait`, once more of its runs are read."""
    from chopper_core.views.runs.table import runs_frame

    if view.name == OVERVIEW:
        view = with_view(view, "")
    return runs_frame(run, view, wait=wait)
