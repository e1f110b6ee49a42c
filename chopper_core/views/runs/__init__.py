"""Several runs side by side: a row for each, sweeps over a setting, and any view by run."""

from __future__ import annotations

from typing import Final, Protocol, cast

from msgspec.structs import replace

from chopper_core.model.run import Run
from chopper_core.model.run_set import RunSet
from chopper_core.model.view import View
from chopper_core.query.frame import Frame
from chopper_core.util.errors import NothingToShow
from chopper_core.views import OVERVIEW, RUNS, SET_VIEWS, view_module
from chopper_core.views.spec import ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name=RUNS,
    title="Runs",
    question="Which of the runs are the best in speed, power and heat, and which failed?",
    no_statistic="shows one figure of each run",
)


def answer(run: Run, view: View) -> ViewResult:
    """A table of runs needs several runs: raises NothingToShow."""
    raise NothingToShow("this is one run; open a directory of runs")


def set_frame(run: RunSet, view: View, *, wait: bool = False) -> Frame:
    """The frame of a view of a set of runs; with `wait`, once more of its runs are read."""
    if view.name in ("", OVERVIEW, RUNS):
        from chopper_core.views.runs.table import runs_frame

        return runs_frame(run, replace(view, name=RUNS), wait=wait)
    if view.name in SET_VIEWS:
        module = cast(SetView, view_module(view.name))
        return module.set_frame(run, view, wait=wait)
    from chopper_core.views.runs.by_run import frame_by_run

    return frame_by_run(run, view, wait=wait)


class SetView(Protocol):
    """The interface of a view of sets alone, besides that of any view."""

    def set_frame(self, run: RunSet, view: View, *, wait: bool = False) -> Frame:
        """The frame of a set of runs."""
