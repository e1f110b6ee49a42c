"""Pareto: the runs of a set that no other run beats in two figures at once."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.extensions.runs.run_columns import HIGHER, is_better, known_column
from chopper_core.extensions.runs.run_set import RunSet
from chopper_core.extensions.runs.table import figure_values, frame_of_set, opened, shown_rows
from chopper_core.metrics import Metric, Values, column, worded
from chopper_core.model.charts import LineChart, Series
from chopper_core.model.run import Run
from chopper_core.model.view import RUN_LEVEL, View
from chopper_core.util.arrays import Float64, Mask
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.views.frame import Frame
from chopper_core.views.shared.filter import Rows, shown_of
from chopper_core.views.spec import ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="pareto",
    title="Pareto front",
    question="Which runs does no other run beat in two figures at once?",
    of="two figures of a run with a comma between, such as run_tokens_per_s,j_per_token",
    by_of_runs=RUN_LEVEL,
    no_statistic="shows two figures of each run",
)

FIGURES: Final = ("run_tokens_per_s", "j_per_token")
FRONT: Final = column("""front | | front
    `front` if no other run is at least as good in both figures and better in one; else the run
    that beats it.
    missing: the run lacks one of the figures""")


def answer(run: Run, view: View) -> ViewResult:
    """A front needs several runs: raises NothingToShow."""
    raise NothingToShow("a Pareto front compares several runs; open a directory of runs")


def set_frame(run: RunSet, view: View, *, wait: bool = False) -> Frame:
    """The runs with both figures, the front first; raises UsageError for unknown figures."""
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
    numbers = np.stack([_signed(name, each) for name, each in zip(names, values, strict=True)])
    known = np.asarray(np.isfinite(numbers).all(axis=0), np.bool_)
    if not known.any():
        raise NothingToShow(
            f"no run has both {names[0]} and {names[1]}: "
            + next((row.missing.get(name, "") for row in rows for name in names
                    if name in row.missing), "all of them failed")
        )  # fmt: skip
    labels = [row.name for row in rows]
    words = [_beaten_by(numbers, place, known, labels) for place in range(len(rows))]
    is_front = np.array([word == FRONT.name for word in words], np.bool_)
    found = {FRONT.name: worded(words), **dict(zip(names, values, strict=True))}
    shown = np.arange(len(rows))
    if view.sort:
        by_name = Rows(
            RUN_LEVEL,
            labels,
            lambda name: found[name] if name in found else figure_values(run, rows, name),
        )
        shown = shown_of(by_name, "", view.sort).at
    else:
        shown = shown[np.lexsort((-numbers[0], ~is_front, ~known))]
    columns = [*zip(metrics, values, strict=True), (FRONT, found[FRONT.name])]
    lacking = int((~known).sum())
    notes = [f"{lacking} of {len(rows)} runs lack one of the figures"] if lacking else []
    count = int(is_front.sum())
    fronts = ", ".join(labels[place] for place in shown.tolist() if is_front[place])
    return frame_of_set(
        run,
        view,
        RUN_LEVEL,
        [labels[place] for place in shown.tolist()],
        [(metric, each.take(shown)) for metric, each in columns],
        lambda row: opened(view, rows[int(shown[row])]),
        notes=notes,
        headline=(f"{count} of {int(known.sum())} runs on the front: {fronts}",),
        charts=(_chart(metrics, values, is_front, known),),
        is_pending=bool(reading.waiting),
    )


def _signed(name: str, values: Values) -> Float64:
    """A figure of which more is better."""
    numbers = np.where(values.present(), values.numbers, np.nan).astype(np.float64)
    return numbers if is_better(name) == HIGHER else -numbers


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
        numbers = np.where(each.present(), each.numbers, np.nan).astype(np.float64)
        scale = metric.unit.scale(float(np.nanmax(np.abs(numbers))), is_whole=False)
        scaled.append(numbers / scale.divisor)
        units.append(scale.text)
    parts = [(name, mask) for name, mask in (("front", is_front), ("other runs", known & ~is_front))
             if mask.any()]  # fmt: skip
    return LineChart(
        metrics[1].title,
        units[1],
        metrics[0].title,
        units[0],
        tuple(scaled[0][mask] for _, mask in parts),
        tuple(Series(name, scaled[1][mask]) for name, mask in parts),
        points=True,
    )
