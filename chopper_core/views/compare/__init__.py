"""Compare: the parts of the difference from a baseline, split by any level, largest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import (
    Metric,
    Reduces,
    Values,
    column,
    computed_column,
    is_measured,
    metric_named,
    worded,
)
from chopper_core.model.charts import BarChart, Series
from chopper_core.model.run import Run
from chopper_core.model.table import STATES
from chopper_core.model.units import time_text
from chopper_core.model.view import Baseline, View
from chopper_core.util.arrays import Float64, Numbers
from chopper_core.util.errors import UsageError
from chopper_core.views.compare.sides import ComparedNode, Sides, candidates, sides_of
from chopper_core.views.shared.children import cut_note
from chopper_core.views.shared.derived import (
    DELTA,
    delta_of,
    difference,
    relative,
    relative_of,
)
from chopper_core.views.shared.table_view import child_of
from chopper_core.views.spec import SUMS, ViewResult, ViewSpec, any_level

SPEC: Final = ViewSpec(
    name="compare",
    title="Compare",
    question="What contributes most to the difference from the baseline?",
    by=(*any_level("operation", "kernel", "layer", "phase", "gpu"), "place"),
    of=SUMS,
    compares=True,
    of_one_run="compares two runs: mark them and press =, or `chopper diff A B`",
    no_statistic="shows parts of a difference that add up to it, which those of a statistic don't",
    any_split=True,
)


USUAL: Final = "elapsed_ns"
_COMPARED_MEANS: Final = ("gfx_mhz", "mfma_util_pct", "power_w")

SHARE: Final = column("""of_change_pct | % | share of Δ | signed
    The row's difference in % of the sum of the sizes of all differences.
    missing: no row differs""")
PARTNER: Final = column("""partner | | partner
    `new` if only this side has the row, `removed` if only the baseline has it; the name of a
    kernel in the baseline if it was renamed.
    missing: both sides have the row, by the same name""")

_MAX_DRAWN: Final = 12
_MAX_LISTED: Final = 3
_SHORTENED: Final = ("operation", "kernel")
"""Levels whose labels charts shorten."""

Columns = list[tuple[Metric, Values]]


def answer(run: Run, view: View) -> ViewResult:
    """A row for each part of the two nodes; without a baseline, the nodes that may be one."""
    figure = _figure(run, view.of or USUAL)
    if view.baseline is None:
        return candidates(run, view)
    both = sides_of(run, view)
    columns = _columns(both, figure)
    numbers = next(
        values.numbers for known, values in columns if known.name == delta_of(figure).name
    )
    order = np.argsort(-np.abs(numbers), kind="stable")
    top = [row for row in order[:_MAX_DRAWN].tolist() if numbers[row]]
    return ViewResult(
        level=both.by,
        by=both.by,
        labels=both.pairs.labels,
        columns=tuple(columns),
        opens=lambda row: _opens(both, row),
        total=_totals(both, figure, columns),
        sort=f"-{delta_of(figure).name}",
        headline=_headline(both, figure, numbers, top),
        notes=_notes(both),
        charts=(_chart(both, figure, numbers, top),) if top else (),
    )


def _figure(run: Run, name: str) -> Metric:
    figure = metric_named(name, run.table)
    if figure.reduces != Reduces.SUM:
        raise UsageError(
            f"{name} does not add up over parts; the view compare needs a time, a count, bytes or "
            "energy"
        )
    return figure


def _opens(both: Sides, row: int) -> View:
    """The row's part of our node with that of the baseline; or the part that exists."""
    ours, base = int(both.pairs.ours[row]), int(both.pairs.base[row])
    if ours < 0:
        return _part(both, both.base, base)
    view = _part(both, both.ours, ours)
    baseline = both.ours.view.baseline
    added = len(view.path) - len(both.ours.view.path)
    if baseline is None or not added:
        return view
    levels = [[level for level, _ in side.view.scope] for side in (both.ours, both.base)]
    if base < 0 or levels[0] != levels[1]:
        return replace(view, baseline=None)
    path = (*both.base.view.path, *both.base.parts[base][-added:])
    if baseline.path is None and path == view.path:
        return view
    return replace(view, baseline=Baseline(baseline.run, path))


def _part(both: Sides, side: ComparedNode, row: int) -> View:
    view = side.view
    for level, label in zip(both.levels, side.parts[row], strict=True):
        view = child_of(view, level, label)
    return view


def _columns(both: Sides, figure: Metric) -> Columns:
    """All columns, the most important first."""
    ours, base = both.values(figure)
    change = difference(figure, ours, base)
    found: Columns = [
        (_of_step(figure, both), ours),
        (delta_of(figure), change),
        (relative_of(figure), relative(ours, base)),
        (SHARE, _share(change)),
    ]
    pairs = both.pairs
    if (pairs.ours < 0).any() or (pairs.base < 0).any() or any(pairs.partners):
        found.append((PARTNER, _partners(both)))
    measured = [
        name
        for name in _COMPARED_MEANS
        if all(is_measured(name, side.run.table) for side in (both.ours, both.base))
    ]
    found += [_changed(both, name) for name in measured[:1]]
    found.append((_of_step(_in_base(figure), both), base))
    found += _effects(both, figure, ours, base)
    others = [*measured[1:], *(STATES if figure.name == USUAL else ()), "kernels"]
    return [*found, *(_changed(both, name) for name in others if name != figure.name)]


def _changed(both: Sides, name: str) -> tuple[Metric, Values]:
    known = metric_named(name)
    return delta_of(known), difference(known, *both.values(known))


def _change(both: Sides, figure: Metric) -> float:
    """The difference of the two nodes."""
    ours, base = both.wholes(figure)
    return (ours or 0) - (base or 0)


def _totals(both: Sides, figure: Metric, columns: Columns) -> Mapping[str, int | float]:
    """The figures of the two nodes, to which the differences of the rows add up."""
    found: dict[str, int | float] = {}
    ours, base = both.wholes(figure)
    change = _change(both, figure)
    if ours is not None:
        found[figure.name] = ours
    if base is not None:
        found[_in_base(figure).name] = base
    if base:
        found[relative_of(figure).name] = 100.0 * change / base
    for known, values in columns:
        if known is SHARE and values.present().all():
            found[known.name] = float(values.numbers.sum())
        elif known.name.endswith(DELTA):
            own = metric_named(known.name.removesuffix(DELTA), both.ours.run.table)
            left, right = both.wholes(own)
            if own.reduces == Reduces.SUM:
                found[known.name] = (left or 0) - (right or 0)
            elif left is not None and right is not None:
                found[known.name] = left - right
        elif known.reduces == Reduces.SUM and known.name.startswith(("number_", "each_")):
            found[known.name] = float(values.numbers.sum())
    return found


def _written(figure: Metric, number: float, *, signed: bool = False) -> str:
    sign = "+" if signed else ""
    if figure.unit == "ns":
        return time_text(number, sign)
    text = f"{number:{sign}.4g}"
    return f"{text} {figure.unit}" if figure.unit else text


def _in_base(figure: Metric) -> Metric:
    return replace(
        figure,
        name=f"base_{figure.name}",
        title="base",
        definition=f"{figure.name} of the row in the baseline.",
    )


def _of_step(known: Metric, both: Sides) -> Metric:
    if not both.is_per_step:
        return known
    return replace(known, definition=f"{known.definition} Here per GPU and iteration.")


def _share(change: Values) -> Values:
    numbers = change.numbers.astype(np.float64)
    sizes = float(np.abs(numbers).sum())
    if not sizes:
        return Values(np.full(len(numbers), np.nan), np.ones(len(numbers), np.bool_))
    return Values(100.0 * numbers / sizes, change.missing)


def _partners(both: Sides) -> Values:
    pairs = both.pairs
    places = zip(pairs.ours.tolist(), pairs.base.tolist(), pairs.partners, strict=True)
    return worded(
        [
            "removed" if ours < 0 else "new" if base < 0 else partner or None
            for ours, base, partner in places
        ]
    )


def _effects(both: Sides, figure: Metric, ours: Values, base: Values) -> Columns:
    """The parts of a difference due to more activities and to larger ones; they add up to it."""
    if figure.name == "kernels":
        return []
    now, before = (_numbers(each) for each in (ours, base))
    more, fewer = (_numbers(each) for each in both.values(metric_named("kernels")))
    paired = (more > 0) & (fewer > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        grown = (more - fewer) * before / fewer
    # If one side has no activities, the whole difference is due to their number.
    by_number = np.where(paired, grown, now - before)
    count = (
        "from count",
        "The part of the difference due to more or fewer activities: the difference of their "
        f"number, times {figure.name} of one in the baseline.",
    )
    size = (
        "from size",
        f"The part of the difference due to more or less {figure.name} per activity: the "
        f"difference minus the part due to their number.",
    )
    return [
        (
            computed_column(
                f"{name}_{figure.name}", figure.unit, title, text, reduces=Reduces.SUM, signed=True
            ),
            Values(numbers),
        )
        for name, (title, text), numbers in (
            ("number", count, by_number),
            ("each", size, now - before - by_number),
        )
    ]


def _numbers(values: Values) -> Float64:
    return np.where(values.present(), values.numbers, 0).astype(np.float64)


def _headline(both: Sides, figure: Metric, numbers: Numbers, top: list[int]) -> tuple[str, ...]:
    ours, base = both.wholes(figure)
    change = _change(both, figure)
    percent = f" ({100 * change / base:+z.1f} %)" if base else ""
    of = " per GPU and iteration" if both.is_per_step else ""
    whole = (
        f"{figure.title}{of}: "
        f"{_written(figure, ours or 0)} vs {_written(figure, base or 0)} in "
        f"{both.baseline_name}: {_written(figure, change, signed=True)}{percent}"
    )
    if not top:
        return (whole, f"no {both.by} differs")
    sizes = np.asarray(numbers, np.float64)
    grown, shrunk = (float(sizes[side].sum()) for side in (sizes > 0, sizes < 0))
    sums = " and ".join(_written(figure, each, signed=True) for each in (grown, shrunk) if each)
    names = ", ".join(
        f"{both.pairs.labels[row]} {_written(figure, sizes[row], signed=True)}"
        for row in top[:_MAX_LISTED]
        # Names of kernels are too long for a sentence.
        if both.by != "kernel"
    )
    return (whole, f"{sums} over {len(sizes)} rows{f'; largest: {names}' if names else ''}")


def _notes(both: Sides) -> tuple[str, ...]:
    notes = []
    if both.is_per_step:
        notes.append(
            f"sums are per GPU and iteration: divided by {both.ours.steps} here, by "
            f"{both.base.steps} in the baseline"
        )
    if both.base.run is not both.ours.run or both.base.view.path != both.ours.view.path:
        notes += cut_note(both.base.run, both.base.view, "of the baseline")
    return tuple(notes)


def _chart(both: Sides, figure: Metric, numbers: Numbers, top: list[int]) -> BarChart:
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
