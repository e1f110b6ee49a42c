"""Training: the whole run by its trainer's log, of which a trace shows a few steps."""

from __future__ import annotations

from typing import Final

from chopper_core.analyses.log_figures import LOG_ROWS, NO_LOG, log_ranks, log_stages, logged
from chopper_core.analyses.training import Training, training_of
from chopper_core.model.run import Run, SideSource
from chopper_core.model.view import View
from chopper_core.views.shared.log_rows import (
    log_charts,
    log_headline,
    log_notes,
    of_windows,
)
from chopper_core.views.shared.table_view import columns_of, known_columns, table_view
from chopper_core.views.spec import ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="training",
    title="Compare · training",
    question="How does the whole run go by its trainer's log, and where do the traced steps stand?",
    by=("window", "step", "attempt", "rank", "stage"),
    rows=(LOG_ROWS,),
    no_statistic="computes its figures from the log's lines",
    takes_samples=True,
    takes_logs=True,
)


def missing_from(run: Run) -> str:
    """Why no scope of a run has an answer; empty: one may."""
    if training_of(run) is not None:
        return ""
    return run.still_reading(SideSource.TRAINER) or NO_LOG


def answer(run: Run, view: View) -> ViewResult:
    training = logged(run)
    if view.by == "rank":
        return _by_rank(run, view, training)
    if view.by == "stage":
        return _by_stage(run, view, training)
    return of_windows(run, view)


def _by_rank(run: Run, view: View, training: Training) -> ViewResult:
    rows = log_ranks(training)
    own = columns_of(rows.figures)
    return table_view(
        view,
        rows,
        own,
        opens=lambda row: view,
        sort="-rank_slower_pct" if len(training.ranks) > 1 else "",
        shown=known_columns(own),
        headline=log_headline(run, training),
        notes=log_notes(run, training),
        charts=log_charts(run, training)[:1],
    )


def _by_stage(run: Run, view: View, training: Training) -> ViewResult:
    rows = log_stages(run, training)
    own = columns_of(rows.figures)
    return table_view(
        view,
        rows,
        own,
        total={},
        opens=lambda row: view,
        sort="-stage_ns",
        shown=known_columns(own),
        headline=log_headline(run, training),
        notes=(
            *log_notes(run, training),
            "stages may hold one another: their times don't add up to the step",
        ),
    )
