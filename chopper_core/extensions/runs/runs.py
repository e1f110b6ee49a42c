"""Runs: several runs side by side, a row for each."""

from __future__ import annotations

from typing import Final

from chopper_core.extensions.runs.run_set import RunSet
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.errors import NothingToShow
from chopper_core.views import RUNS
from chopper_core.views.frame import Frame
from chopper_core.views.spec import SETTINGS, ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name=RUNS,
    title="Runs",
    question="Which of the runs are the best in speed, power and heat, and which failed?",
    by_of_runs=SETTINGS,
    no_statistic="shows one figure of each run",
)


def answer(run: Run, view: View) -> ViewResult:
    raise NothingToShow("this is one run; open a directory of runs")


def set_frame(run: RunSet, view: View, *, wait: bool = False) -> Frame:
    from chopper_core.extensions.runs.table import runs_frame

    return runs_frame(run, view, wait=wait)
