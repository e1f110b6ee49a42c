"""Memory: what holds the peak of a GPU's memory, and which operators allocate."""

from __future__ import annotations

from typing import Final

from chopper_core.analyses.held_memory import HELD_ROWS, NO_EVENTS
from chopper_core.model.run import Run
from chopper_core.model.side_table import MemoryEvents
from chopper_core.model.view import View
from chopper_core.views.shared.held_memory import held_rows
from chopper_core.views.spec import ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="memory",
    title="GPUs · memory",
    question="What holds the GPU's memory at its peak, and which operators allocate it?",
    by=("operation", "operator", "phase", "layer", "iteration", "gpu"),
    rows=(HELD_ROWS,),
    no_statistic="counts the allocations of each row as a whole",
    takes_snapshots=True,
)


def missing_from(run: Run) -> str:
    """Why no scope of a run has an answer; empty: one may."""
    return "" if len(run.side(MemoryEvents)) else NO_EVENTS


def answer(run: Run, view: View) -> ViewResult:
    return held_rows(run, view)
