"""The view of a whole run by its trainer's log, for the views that show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from chopper_core.analyses.log_figures import log_steps, logged
from chopper_core.analyses.memory import failed_allocations
from chopper_core.analyses.training import (
    Training,
    throughput_text,
    traced_steps,
)
from chopper_core.model.charts import Chart, LineChart, Series
from chopper_core.model.phrases import count, listed
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64
from chopper_core.views.shared.table_view import columns_of, known_columns, table_view
from chopper_core.views.spec import ViewResult

_POINTS: Final = 400
"""Of a curve."""


def of_windows(run: Run, view: View) -> ViewResult:
    """Windows of steps, or what else `by=` asks for that divides the steps of the run."""
    training = logged(run)
    by = view.by or "window"
    rows = log_steps(run, training, by)
    own = columns_of(rows.figures)
    return table_view(
        view,
        rows,
        own,
        columns_of(rows.whole),
        opens=lambda row: view,
        shown=known_columns(own),
        headline=log_headline(run, training),
        notes=log_notes(run, training),
        charts=log_charts(run, training),
    )


def log_headline(run: Run, training: Training) -> tuple[str, ...]:
    traced = traced_steps(run)
    return (
        throughput_text(training),
        *([] if traced is None else [traced.sentence]),
        *(each.sentence for each in failed_allocations(run)[:1]),
    )


def log_notes(run: Run, training: Training) -> tuple[str, ...]:
    formats = listed(dict.fromkeys(log.format for log in run.logs))
    lines = sum(log.rows for log in run.logs)
    found = [f"{formats}: {count(lines, 'line')} of {count(len(run.logs), 'file')}"]
    if (timed := len(training.timed_ranks)) > 1:
        found.append(f"{timed:,} ranks: times are the median over them")
    if run.logs and not any(log.is_stated for log in run.logs):
        found.append("the log states no step times: they are those between the stamps of its lines")
    traced = traced_steps(run)
    if traced is not None:
        if traced.steps is None:
            found.append("nothing places the traced steps in the log: their numbers aren't in it")
        else:
            first, last = traced.steps
            found.append(f"traced steps are {first:,} to {last:,} of the log, {traced.how}")
    return tuple(found)


def log_charts(run: Run, training: Training) -> tuple[Chart, ...]:
    """The step time, the throughput and the loss over the steps of the run."""
    x = training.step.astype(np.float64)
    found: list[Chart] = []
    curves: dict[str, tuple[Float64, Float64]] = {}
    if np.isfinite(training.step_ns).any():
        for attempt in training.attempts[-_MOST_CURVES:]:
            own = (training.attempt == attempt) & np.isfinite(training.step_ns) & ~training.is_first
            name = "step" if len(training.attempts) == 1 else f"start {attempt + 1}"
            curves[name] = _thinned(x[own], training.step_ns[own] / 1e6)
        traced = traced_steps(run)
        if traced is not None and (marked := traced.mask(training)).any():
            own = marked & np.isfinite(training.step_ns)
            curves["traced"] = _thinned(x[own], training.step_ns[own] / 1e6)
        curves = {name: each for name, each in curves.items() if len(each[0])}
        found.append(_lines("step time over the run", "ms", curves))
    for name, title, unit in (
        ("tokens_per_s", "tokens per second and GPU over the run", "tok/s"),
        ("loss", "loss over the run", ""),
    ):
        if name in training.figures:
            values = training.figures[name]
            own = np.isfinite(values)
            found.append(_lines(title, unit, {name: _thinned(x[own], values[own])}))
    sizes: dict[str, tuple[Float64, Float64]] = {}
    for name, figure in (("reserved", "reserved_bytes"), ("used", "memory_bytes")):
        values = training.figures.get(figure, np.empty(0))
        if len(own := np.flatnonzero(np.isfinite(values))):
            sizes[name] = _thinned(x[own], values[own])
    if sizes:
        found.append(_lines("memory of the GPU that needs most, over the run", "B", sizes))
    return tuple(found)


_MOST_CURVES: Final = 6


def _lines(title: str, unit: str, curves: Mapping[str, tuple[Float64, Float64]]) -> LineChart:
    series = tuple(Series(name, y) for name, (_, y) in curves.items())
    return LineChart(title, unit, "step", "", tuple(x for x, _ in curves.values()), series)


def _thinned(x: Float64, y: Float64) -> tuple[Float64, Float64]:
    """A curve of at most so many points that keeps the highest of those in a row."""
    if len(x) <= _POINTS:
        return x, y
    edges = np.linspace(0, len(x), _POINTS + 1).astype(np.intp)
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    return x[edges[:-1]], np.fmax.reduceat(y, edges[:-1])
