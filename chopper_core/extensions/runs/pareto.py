"""Pareto: the runs of a set that no other run beats in two figures at once."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.columns import Metric, Values, column, worded
from chopper_core.columns.filter import FilterRows, shown_of
from chopper_core.extensions.runs.figures import HIGHER, is_better, known_column
from chopper_core.extensions.runs.run_rows import RunRows
from chopper_core.extensions.runs.runs import (
    figure_values,
    frame_of_set,
    shown_rows,
    view_of_run,
)
from chopper_core.model.charts import LineChart
from chopper_core.model.run import Run
from chopper_core.model.view import RUN_LEVEL, View
from chopper_core.util.arrays import Float64, Mask
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.views.frame import Frame
from chopper_core.views.spec import ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="pareto",
    title="Compare · Pareto front",
    question="Which runs does no other run beat in two figures at once?",
    of="two figures of a run with a comma between, such as run_tokens_per_s,j_per_token",
    by_of_runs=RUN_LEVEL,
    no_statistic="shows two figures of each run",
)

FIGURES: Final = ("run_tokens_per_s", "j_per_token")
FRONT: Final = column(
    """front | | front
    `front` if no other run is at least as good in both figures and better in one; else the run
    that beats it.
    missing: the run lacks one of the figures""",
    source="runs",
)


def answer(run: Run, view: View) -> ViewResult:
    raise NothingToShow("a Pareto front compares several runs; open a directory of runs")


def set_frame(run: RunRows, view: View, *, wait: bool = False) -> Frame:
    names = tuple(view.of.split(",")) if view.of else FIGURES
    if len(names) != 2 or names[0] == names[1]:
        raise UsageError(
            f"the view pareto takes of=A,B, two figures such as {','.join(FIGURES)}, not "
            f"{view.of!r}"
        )
    rows, reading = shown_rows(run, view, wait=wait)
    metrics = [known_column(name) for name in names]
    for name in names:
        if not is_better(name):
            raise UsageError(f"{name} is neither better high nor better low; choose another figure")
    values = [figure_values(run, rows, name) for name in names]
    # Of both more is better.
    numbers = np.stack([
        each.known() if is_better(name) == HIGHER else -each.known()
        for name, each in zip(names, values, strict=True)
    ])  # fmt: skip
    known = np.asarray(np.isfinite(numbers).all(axis=0), np.bool_)
    if not known.any():
        reasons = [row.missing[name] for row in rows for name in names if name in row.missing]
        why = reasons[0] if reasons else "all of them failed"
        raise NothingToShow(f"no run has both {names[0]} and {names[1]}: {why}")
    labels = [row.name for row in rows]
    words = [_beaten_by(numbers, place, known, labels) for place in range(len(rows))]
    is_front = np.array([word == FRONT.name for word in words], np.bool_)
    columns = [*zip(metrics, values, strict=True), (FRONT, worded(words))]
    found = {metric.name: each for metric, each in columns}

    def of_name(name: str) -> Values:
        return found[name] if name in found else figure_values(run, rows, name)

    shown = shown_of(FilterRows(RUN_LEVEL, labels, of_name), "", view.sort)
    if not view.sort:
        shown = replace(shown, at=np.lexsort((-numbers[0], ~is_front, ~known)))
    lacking, count = int((~known).sum()), int(is_front.sum())
    fronts = ", ".join(labels[place] for place in shown.at.tolist() if is_front[place])
    return frame_of_set(
        run,
        view,
        RUN_LEVEL,
        labels,
        columns,
        lambda row: view_of_run(view, rows[row]),
        shown=shown,
        notes=[f"{lacking} of {len(rows)} runs lack one of the figures"] if lacking else [],
        headline=(f"{count} of {int(known.sum())} runs on the front: {fronts}",),
        charts=(_chart(metrics, values, is_front, known),),
        is_pending=bool(reading.waiting),
    )


def _beaten_by(numbers: Float64, place: int, known: Mask, labels: list[str]) -> str | None:
    """The run that beats one in both figures most, `front` if none does, None if unknown."""
    if not known[place]:
        return None
    own = numbers[:, place, None]
    better = known & (numbers >= own).all(axis=0) & (numbers > own).any(axis=0)
    if not better.any():
        return FRONT.name
    return labels[int(np.where(better, numbers[0], -np.inf).argmax())]


def _chart(metrics: list[Metric], values: list[Values], is_front: Mask, known: Mask) -> LineChart:
    """The runs as points over the two figures: the front, and the others."""
    scaled, units = [], []
    for metric, each in zip(metrics, values, strict=True):
        scale = metric.unit.scale(float(np.nanmax(np.abs(each.known()))), is_whole=False)
        scaled.append(each.known() / scale.divisor)
        units.append(scale.text)
    parts = {"front": is_front, "other runs": known & ~is_front}
    clouds = {
        name: (scaled[0][mask], scaled[1][mask]) for name, mask in parts.items() if mask.any()
    }
    return LineChart.clouds(metrics[1].title, units[1], metrics[0].title, units[0], clouds)
