"""Any view of a set of runs: its totals with a row per run, or its rows with a column per run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.extensions.runs.run_set import FAILED, RunRow, RunSet
from chopper_core.extensions.runs.table import frame_of_set, shown_rows
from chopper_core.metrics import Metric, Reduces, Values, numbered
from chopper_core.model.charts import BarChart, Chart, HeatMap, Series
from chopper_core.model.run import Run
from chopper_core.model.units import Unit
from chopper_core.model.view import RUN_LEVEL, View
from chopper_core.util.errors import DataError, NoSuchNode, NothingToShow, UsageError
from chopper_core.views import OVERVIEW, RUNS, SET_VIEWS, view_spec
from chopper_core.views.frame import Frame
from chopper_core.views.query import run_frame
from chopper_core.views.shared.filter import Rows, shown_of
from chopper_core.views.shared.places import nodes_of
from chopper_core.views.spec import ViewSpec, splits_of

_LARGEST: Final = ("peak_", "max_", "longest_", "p95_")
_SMALLEST: Final = ("min_", "p05_")
_MAX_DRAWN: Final = 24
_PEERS: Final = ("gpu", "iteration")
"""Levels whose rows are alike, so that their mean says something of the run."""
_SCALED: Final = (Unit.NS, Unit.JOULES, Unit.BYTES, Unit.FLOP, Unit.NONE)
"""Units of figures that may grow with the GPUs and iterations of a run."""
_MAX_HEADLINES: Final = 6


class _Seen(Struct, frozen=True, eq=False):
    """A run of the set in the view."""

    row: RunRow
    frame: Frame
    steps: int
    """The pairs of a GPU and an iteration that its sums are over."""


def set_frame(run: RunSet, view: View, *, wait: bool = False) -> Frame:
    """The frame of a view of a set of runs; with `wait`, once more of its runs are read."""
    if view.name in ("", OVERVIEW):
        view = replace(view, name=RUNS)
    if view.name in (*SET_VIEWS, "findings"):
        own = import_module(f"chopper_core.extensions.runs.{view.name}")
        found: Frame = own.set_frame(run, view, wait=wait)
        return found
    return _frame_by_run(run, view, view_spec(view.name), wait=wait)


def _frame_by_run(run: RunSet, view: View, spec: ViewSpec, *, wait: bool) -> Frame:
    """A view of every run of a set that is shown; raises UsageError where it fits none."""
    if spec.of_one_run:
        raise NothingToShow(f"the view {view.name} {spec.of_one_run}")
    by = spec.by_of_runs or view.by or RUN_LEVEL
    rows, reading = shown_rows(run, view, wait=wait)
    split = "" if by == RUN_LEVEL or spec.by_of_runs else by
    seen: list[_Seen] = []
    notes: list[str] = []
    misfit: UsageError | None = None
    for row in rows:
        asked = View(row.path, name=view.name, by=split, of=view.of, cut=view.cut)
        if row.status == FAILED:
            notes.append(f"{row.name} is {row.status}: {row.reason}")
            continue
        try:
            own = run.others[row.path]
            if split and split not in (splits := splits_of(own, spec)):
                raise UsageError(
                    f"the view {spec.name} of several runs takes by="
                    f"{', '.join((RUN_LEVEL, *splits))}, not {view.by!r}"
                )
            columns = view.columns[:1] if split else view.columns
            seen.append(_Seen(row, _with_columns(own, asked, columns), _steps(run, row)))
        except UsageError as error:
            misfit = misfit or error
            notes.append(f"{row.name} is left out: {error}")
        except (NothingToShow, NoSuchNode, DataError) as error:
            notes.append(f"{row.name} is left out: {error}")
    if not seen:
        if misfit is not None:
            raise misfit
        raise NothingToShow(notes[0] if notes else f"no run to show in the view {spec.name}")
    if reading.waiting:
        notes.append(f"{reading.waiting} runs are still being read")
    per_step = len({each.steps for each in seen}) > 1
    if per_step:
        notes.append("sums are per GPU and iteration: the runs differ in their number")
    make = _rows if by == RUN_LEVEL else _matrix
    return make(run, view, seen, notes, per_step=per_step, pending=bool(reading.waiting))


def _with_columns(run: Run, asked: View, columns: Sequence[str]) -> Frame:
    def frame(names: Sequence[str]) -> Frame:
        return run_frame(run, replace(asked, columns=tuple(names)))

    def has(name: str) -> bool:
        try:
            return bool(frame((name,)).columns)
        except UsageError:
            return False

    try:
        return frame(columns)
    except UsageError:
        kept = [name for name in columns if has(name)]
        if len(kept) == len(columns):
            raise
        return frame(kept)


def _steps(run: RunSet, row: RunRow) -> int:
    own = run.others[row.path]
    if own.is_sampled_only:
        return 1
    return max(len(own.tree_of(View(row.path)).split((), ("gpu", "iteration"))), 1)


def _rows(
    run: RunSet,
    view: View,
    seen: Sequence[_Seen],
    notes: list[str],
    *,
    per_step: bool,
    pending: bool,
) -> Frame:
    metrics = _asked(view, seen)
    notes = [*notes, *(_lacking(metrics, seen) if view.columns else ())]
    columns: list[tuple[Metric, Values]] = []
    by_mean, left_out = False, []
    for metric in metrics:
        wholes = [_whole(own.frame, metric) for own in seen]
        is_mean = any(is_mean for _, is_mean in wholes)
        if per_step and not is_mean and not metric.reduces and metric.unit in _SCALED:
            left_out.append(metric.name)
            continue
        divides = per_step and not is_mean and metric.reduces == Reduces.SUM
        numbers = [
            None if number is None else number / (own.steps if divides else 1)
            for (number, _), own in zip(wholes, seen, strict=True)
        ]
        if view.columns or any(number is not None for number in numbers):
            by_mean |= is_mean
            columns.append((metric, numbered(numbers)))
    if not columns:
        raise NothingToShow(f"the view {view.name} has no figure of a whole run; split it with by=")
    if left_out:
        notes = [*notes, f"{', '.join(left_out)} left out: they may grow with the iterations"]
    labels = [own.row.name for own in seen]
    values = {metric.name: numbers for metric, numbers in columns}
    column = partial(_named, view, values)
    own = tuple(metric for metric, _ in columns)
    rows = Rows(RUN_LEVEL, labels, column, tuple(values), own)
    shown = shown_of(rows, view.filter, view.sort)
    notes = [*shown.hint, *notes]
    if by_mean:
        alike = "GPUs" if seen[0].frame.level == "gpu" else "iterations"
        notes = [
            *notes,
            f"figures without a total are the mean over the run's {alike}, peaks the largest",
        ]
    return frame_of_set(
        run,
        view,
        RUN_LEVEL,
        shown.labels,
        [(metric, numbers.take(shown.at)) for metric, numbers in columns],
        lambda row: _plain(view, seen[int(shown.at[row])].row),
        hidden=shown.hidden,
        notes=notes,
        headline=tuple(
            f"{own.row.name}: {own.frame.headline[0]}"
            for own in seen[:_MAX_HEADLINES]
            if own.frame.headline and len(seen) <= _MAX_HEADLINES
        ),
        charts=_charts(view, columns, labels),
        is_pending=pending,
    )


def _asked(view: View, seen: Sequence[_Seen]) -> list[Metric]:
    """The columns that the view names, else those of all runs; raises UsageError."""
    metrics = {each.name: each for own in seen for each in own.frame.columns}
    for name in view.columns:
        if name not in metrics:
            found = ", ".join(metrics)
            raise UsageError(f"the view {view.name} has no column {name!r}; it has {found}")
    return [metrics[name] for name in view.columns or metrics]


def _named(view: View, values: Mapping[str, Values], name: str) -> Values:
    """A column of the frame; raises UsageError for any other."""
    if name not in values:
        raise UsageError(f"the view {view.name} has no column {name!r}; it has {', '.join(values)}")
    return values[name]


def _plain(view: View, row: RunRow) -> View:
    return View(row.path, name=view.name, of=view.of, cut=view.cut)


def _whole(frame: Frame, metric: Metric) -> tuple[float | None, bool]:
    """The total of a column, or the mean, smallest or largest of GPUs or iterations without one.

    And whether it is one of these; None where neither is known.
    """
    number = frame.total.get(metric.name)
    if number is not None:
        return float(number), False
    values = frame.values.get(metric.name)
    if values is None or values.words is not None or frame.level not in _PEERS:
        return None, False
    counted = frame.counted()
    if not counted.any() or not values.present()[counted].all():
        return None, False
    known = values.numbers[counted].astype(np.float64)
    if metric.reduces == Reduces.MAX or metric.name.startswith(_LARGEST):
        return float(known.max()), True
    if metric.reduces == Reduces.MIN or metric.name.startswith(_SMALLEST):
        return float(known.min()), True
    return float(known.mean()), True


def _matrix(
    run: RunSet,
    view: View,
    seen: Sequence[_Seen],
    notes: list[str],
    *,
    per_step: bool,
    pending: bool,
) -> Frame:
    """The rows of the view, with one figure of every run beside each other."""
    figure = _figure(view, [own.frame for own in seen])
    notes = [*notes, *_lacking([figure], seen)]
    places = [dict(zip(own.frame.labels, range(len(own.frame)), strict=True)) for own in seen]
    labels = list(dict.fromkeys(label for own in places for label in own))
    columns: list[tuple[Metric, Values]] = []
    for own, at in zip(seen, places, strict=True):
        values = own.frame.values.get(figure.name)
        divides = own.steps if per_step and figure.reduces == Reduces.SUM else 1
        numbers = [
            _at(values, at[label], divides) if values is not None and label in at else None
            for label in labels
        ]
        metric = replace(
            figure,
            name=own.row.name,
            title=own.row.name,
            definition=f"{figure.name} of {own.row.name}.",
            missing_because="the run lacks the row",
            reduces=figure.reduces if figure.reduces == Reduces.SUM else Reduces.NONE,
        )
        columns.append((metric, numbered(numbers)))
    named = {metric.name: values for metric, values in columns}
    level = seen[0].frame.level
    of_run = partial(_named, view, named)
    rows = Rows(level, labels, of_run, tuple(named), tuple(metric for metric, _ in columns))
    sort = view.sort or f"-{columns[0][0].name}"
    shown = shown_of(rows, _own_filter(view), sort)
    notes = [*shown.hint, *notes]

    def target(row: int) -> View:
        label = labels[int(shown.at[row])]
        own, at = next((o, p) for o, p in zip(seen, places, strict=True) if label in p)
        return own.frame.target(at[label])

    chart = _of_gpus(run, view, seen, figure, columns, labels) if level == "gpu" else None
    found = frame_of_set(
        run,
        view,
        level,
        shown.labels,
        [(metric, values.take(shown.at)) for metric, values in columns],
        target,
        total={
            metric.name: _total(own, figure, per_step)
            for (metric, _), own in zip(columns, seen, strict=True)
        },
        hidden=shown.hidden,
        notes=[f"columns are runs: {figure.name} of each", *notes],
        charts=() if chart is None else (chart,),
        is_pending=pending,
    )
    return replace(found, sort=sort)


def _of_gpus(
    run: RunSet,
    view: View,
    seen: Sequence[_Seen],
    figure: Metric,
    columns: Sequence[tuple[Metric, Values]],
    labels: Sequence[str],
) -> HeatMap:
    """The figure of every run (rows) and GPU (columns), the GPUs of a node side by side."""
    gpus = sorted(int(label) for label in labels)
    place_of = {label: place for place, label in enumerate(labels)}
    # Runs of a study share their nodes; the one with most GPUs shows where each node ends.
    largest = max((run.others[own.row.path] for own in seen), key=lambda each: len(each.gpus))
    known = [gpu.index for gpu in largest.gpus]
    node_of = dict(zip(known, nodes_of(largest, known)[0], strict=True))
    nodes = [node_of.get(gpu, "") for gpu in gpus]
    headings: list[str] = []
    kept: list[int] = []
    for at, gpu in enumerate(gpus):
        if at and nodes[at] != nodes[at - 1]:
            headings.append("")
            kept.append(-1)
        headings.append(str(gpu))
        kept.append(place_of[str(gpu)])
    numbers = np.stack(
        [np.where(values.present(), values.numbers, np.nan)[kept] for _, values in columns]
    )
    numbers[:, np.array(kept) < 0] = np.nan
    scale, unit = _drawn_in(figure)
    return HeatMap(
        f"{figure.title} by run and GPU",
        unit,
        tuple(own.row.name for own in seen),
        tuple(headings),
        "GPU",
        numbers / scale,
        has_own_rows=True,
        signed=figure.signed,
        opens=lambda row, _: _plain(view, seen[row].row),
    )


def _own_filter(view: View) -> str:
    """The terms of the filter that are on the view's rows, not on runs."""
    return " ".join(term for term in view.filter.split() if not term.startswith(f"{RUN_LEVEL}:"))


def _lacking(metrics: Iterable[Metric], seen: Sequence[_Seen]) -> Iterator[str]:
    """A sentence for each column that some of the runs don't have."""
    for metric in metrics:
        names = [own.row.name for own in seen if metric.name not in own.frame.values]
        if names:
            yield f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no {metric.name}"


def _figure(view: View, frames: Sequence[Frame]) -> Metric:
    """The figure of a matrix: the column that is asked for, sorted by, or the first."""
    first = frames[0]
    named = {each.name: each for frame in frames for each in frame.columns}
    numeric = [each for each in first.columns if first.values[each.name].words is None]
    wanted = view.columns[0] if view.columns else first.sort.removeprefix("-")
    if view.columns and wanted not in named:
        raise UsageError(
            f"the view {view.name} has no column {wanted!r}; it has {', '.join(named)}"
        )
    return named.get(wanted) or numeric[0]


def _at(values: Values, row: int, divides: int) -> float | None:
    number = values.at(row)
    return None if number is None else number / divides


def _total(own: _Seen, figure: Metric, per_step: bool) -> float | None:
    number = own.frame.total.get(figure.name)
    if number is None or not per_step or figure.reduces != Reduces.SUM:
        return number
    return number / own.steps


def _charts(
    view: View, columns: Sequence[tuple[Metric, Values]], labels: Sequence[str]
) -> tuple[Chart, ...]:
    """A bar per run: the parts of its time where the view has them, else its first figure."""
    labels = labels[:_MAX_DRAWN]

    def series(metric: Metric, values: Values, scale: float) -> Series:
        numbers = np.where(values.present(), values.numbers, np.nan)[: len(labels)]
        return Series(metric.title.removesuffix(" %"), numbers / scale)

    parts = view_spec(view.name).parts
    drawn = [(metric, values) for metric, values in columns if metric.name in parts]
    if drawn and not view.columns:
        scale, unit = _drawn_in(drawn[0][0])
        bars = tuple(series(*each, scale) for each in drawn)
        return (BarChart("parts of the time by run", unit, tuple(labels), bars),)
    first = next(((m, v) for m, v in columns if v.words is None), None)
    if first is None:
        return ()
    scale, unit = _drawn_in(first[0])
    bars = (series(*first, scale),)
    return (BarChart(f"{first[0].title} by run", unit, tuple(labels), bars),)


def _drawn_in(metric: Metric) -> tuple[float, str]:
    """The divisor of a figure in a chart, and its unit there."""
    return (1e6, "ms") if metric.unit is Unit.NS else (1.0, str(metric.unit))
