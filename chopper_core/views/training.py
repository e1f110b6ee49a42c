"""Training: the whole run by its trainer's log, of which a trace shows a few steps."""

from __future__ import annotations

from math import isfinite, nan
from typing import Final

import numpy as np

from chopper_core.analyses.rows import LabelledRows
from chopper_core.analyses.training import Training, phases_of, slowest_rank, training_of
from chopper_core.columns import Values, numbered, worded
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import means_of, sums_of
from chopper_core.views.shared.log_rows import (
    COLUMNS,
    NO_LOG,
    log_charts,
    log_headline,
    log_notes,
    logged,
    mean_known,
    of_windows,
)
from chopper_core.views.shared.table_view import columns_of, known_columns, table_view
from chopper_core.views.spec import ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="training",
    title="Compare · training",
    question="How does the whole run go by its trainer's log, and where do the traced steps stand?",
    by=("window", "step", "attempt", "rank", "stage"),
    no_statistic="computes its figures from the log's lines",
    takes_samples=True,
    takes_logs=True,
)


def missing_from(run: Run) -> str:
    """Why no scope of a run has an answer; empty: one may."""
    return "" if training_of(run) is not None else NO_LOG


def answer(run: Run, view: View) -> ViewResult:
    training = logged(run)
    if view.by == "rank":
        return _by_rank(run, view, training)
    if view.by == "stage":
        return _by_stage(run, view, training)
    return of_windows(run, view)


def _by_rank(run: Run, view: View, training: Training) -> ViewResult:
    if not len(training.ranks):
        raise NothingToShow("the log names no ranks: its lines are about the whole job")
    times, slow = training.by_rank()
    rows = training.rows
    whose = np.searchsorted(training.ranks, np.maximum(rows.rank, 0))
    whose = np.where(rows.rank >= 0, whose, len(training.ranks))
    figures = {
        "logged_step_ns": Values(times),
        "rank_slower_pct": Values(100.0 * (slow - 1.0)),
        "logged_steps": Values(sums_of(rows.steps, whose, len(training.ranks) + 1)[:-1]),
    }
    for name, figure in (("logged_tokens_per_s", "tokens_per_s"), ("loss", "loss")):
        values = getattr(rows, figure)
        known = np.isfinite(values)
        if known.any():
            means = means_of(values[known], whose[known], len(training.ranks) + 1)
            figures[name] = Values(means[:-1])
    own = columns_of(figures, COLUMNS)
    return table_view(
        view,
        LabelledRows("rank", list(map(str, training.ranks.tolist()))),
        own,
        opens=lambda row: view,
        sort="-rank_slower_pct" if len(training.ranks) > 1 else "",
        shown=known_columns(own),
        headline=log_headline(run, training),
        notes=log_notes(run, training),
        charts=log_charts(run, training)[:1],
    )


def _by_stage(run: Run, view: View, training: Training) -> ViewResult:
    phases = phases_of(run, training)
    if not phases:
        raise NothingToShow("the log times no stages of a step, such as forward")
    step_ns = training.mean("step_ns", training.steady)
    means = [mean_known(values[training.steady]) for values in phases.values()]
    means = [
        mean if isfinite(mean) else mean_known(values)
        for mean, values in zip(means, phases.values(), strict=True)
    ]
    slowest = [slowest_rank(run, training, name) for name in phases]
    figures = {
        "stage_ns": numbered(means),
        "stage_pct": numbered([100.0 * each / step_ns if step_ns > 0 else nan for each in means]),
    }
    if any(each is not None for each in slowest):
        figures["slowest_rank"] = worded([each and str(each[0]) for each in slowest])
        figures["stage_behind_pct"] = numbered([each and 100.0 * each[1] for each in slowest])
    own = columns_of(figures, COLUMNS)
    return table_view(
        view,
        LabelledRows("stage", [*phases]),
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
