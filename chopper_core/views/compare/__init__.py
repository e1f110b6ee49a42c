"""Compare: what contributes most to the difference from a baseline, split by any level."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import Metric, metric
from chopper_core.model.charts import BarChart, Series
from chopper_core.model.run import Run
from chopper_core.model.view import Baseline, View
from chopper_core.query.comparison import delta_of
from chopper_core.util.arrays import Numbers
from chopper_core.util.errors import UsageError
from chopper_core.views.compare.columns import (
    USUAL,
    change_of,
    columns_of,
    totals,
    written,
)
from chopper_core.views.compare.sides import SUM, Half, Halves, halves
from chopper_core.views.shared.baselines import candidates
from chopper_core.views.shared.groups import into
from chopper_core.views.spec import SUMS, ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="compare",
    title="Compare",
    question="What contributes most to the difference from the baseline?",
    by=("operation", "kernel", "layer", "phase", "gpu", "iteration", "place"),
    of=SUMS,
    compares=True,
    no_statistic="shows parts of a difference that add up to it, which those of a statistic don't",
)


_DRAWN: Final = 12
_NAMED: Final = 3
_SHORTENED: Final = ("operation", "kernel")
"""Labels that pictures show in their short forms."""


def answer(run: Run, view: View) -> ViewResult:
    """A row for each part of the two nodes; without a baseline, what may be one."""
    figure = _figure(run, view.of or USUAL)
    if view.baseline is None:
        return candidates(run, view)
    both = halves(run, view)
    columns = columns_of(both, figure)
    numbers = next(
        values.numbers for known, values in columns if known.name == delta_of(figure).name
    )
    order = np.argsort(-np.abs(numbers), kind="stable")
    top = [row for row in order[:_DRAWN].tolist() if numbers[row]]
    return ViewResult(
        level=both.by,
        by=both.by,
        labels=both.pairs.labels,
        columns=tuple(columns),
        opens=lambda row: _opens(both, row),
        total=totals(both, figure, columns),
        sort=f"-{delta_of(figure).name}",
        headline=_headline(both, figure, numbers, top),
        notes=_notes(both),
        charts=(_picture(both, figure, numbers, top),) if top else (),
    )


def _figure(run: Run, name: str) -> Metric:
    figure = metric(name, run.table)
    if figure.reduces != SUM:
        raise UsageError(
            f"{name} is no sum: what parts differ by would not add up; the view compare is of "
            "times, counts, bytes or energy"
        )
    return figure


def _opens(both: Halves, row: int) -> View:
    """The row's part of our node beside that of the baseline's; or the one that there is."""
    ours, base = int(both.pairs.ours[row]), int(both.pairs.base[row])
    if ours < 0:
        return _part(both, both.base, base)
    view = _part(both, both.ours, ours)
    baseline = both.ours.view.baseline
    added = len(view.path) - len(both.ours.view.path)
    if baseline is None or not added:
        return view
    levels = [[level for level, _ in half.view.scope] for half in (both.ours, both.base)]
    if base < 0 or levels[0] != levels[1]:
        return replace(view, baseline=None)
    path = (*both.base.view.path, *both.base.parts[base][-added:])
    if baseline.path is None and path == view.path:
        return view
    return replace(view, baseline=Baseline(baseline.run, path))


def _part(both: Halves, half: Half, row: int) -> View:
    view = half.view
    for level, label in zip(both.levels, half.parts[row], strict=True):
        view = into(view, level, label)
    return view


def _headline(both: Halves, figure: Metric, numbers: Numbers, top: list[int]) -> tuple[str, ...]:
    ours, base = both.wholes(figure)
    change = change_of(both, figure)
    percent = f" ({100 * change / base:+.1f} %)" if base else ""
    of = " of one GPU's iteration" if both.is_per_step else ""
    whole = (
        f"{figure.title}{of}: "
        f"{written(figure, ours or 0)} against {written(figure, base or 0)} of "
        f"{both.baseline_name}: {written(figure, change, signed=True)}{percent}"
    )
    if not top:
        return (whole, f"no {both.by} differs")
    sizes = np.asarray(numbers, np.float64)
    grown, shrunk = (float(sizes[side].sum()) for side in (sizes > 0, sizes < 0))
    sums = " and ".join(written(figure, each, signed=True) for each in (grown, shrunk) if each)
    names = ", ".join(
        f"{both.pairs.labels[row]} {written(figure, sizes[row], signed=True)}"
        for row in top[:_NAMED]
        # Names of kernels are too long for a sentence; the table has them short.
        if both.by != "kernel"
    )
    return (whole, f"{sums} over {len(sizes)} rows{f'; the most: {names}' if names else ''}")


def _notes(both: Halves) -> tuple[str, ...]:
    notes = []
    if both.is_per_step:
        notes.append(
            f"sums are divided by the iterations of all GPUs: {both.ours.steps} here, "
            f"{both.base.steps} in the baseline"
        )
    for half, where in ((both.ours, "here"), (both.base, "in the baseline")):
        if half.left_out:
            which = ", ".join(map(str, half.left_out))
            notes.append(f"the profiler's start or end cuts iteration {which} {where}: left out")
    return tuple(notes)


def _picture(both: Halves, figure: Metric, numbers: Numbers, top: list[int]) -> BarChart:
    scale, unit = (1e6, "ms") if figure.unit == "ns" else (1.0, figure.unit)
    drawn = np.asarray(numbers, np.float64)[top] / scale
    return BarChart(
        f"difference in {figure.title} by {both.by}",
        unit,
        tuple(both.pairs.labels[row] for row in top),
        (
            Series("more than the baseline", np.maximum(drawn, 0.0)),
            Series("less", np.minimum(drawn, 0.0)),
        ),
        level=both.by if both.by in _SHORTENED else "",
    )
