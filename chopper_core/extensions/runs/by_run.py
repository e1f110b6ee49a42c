"""Any view of a set of runs: its totals with a row per run, or its rows with a column per run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Final, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.step_times import replicas, replicas_of
from chopper_core.columns import Metric, Reduces, numbered
from chopper_core.columns.filter import FilterRows, shown_of
from chopper_core.extensions.runs.run_rows import FAILED, RunRow, RunRows
from chopper_core.extensions.runs.runs import Column, frame_of_set, shown_rows, terms_on_runs
from chopper_core.graph.process_groups import nodes_of
from chopper_core.model import address
from chopper_core.model.charts import BarChart, Card, Cards, Chart, HeatMap, Series
from chopper_core.model.parallel import SHARING, layout_of_settings
from chopper_core.model.phrases import count
from chopper_core.model.run import Run, located
from chopper_core.model.units import drawn_in
from chopper_core.model.view import RUN_LEVEL, View
from chopper_core.util.errors import ChopperError, NothingToShow, UsageError
from chopper_core.views import OVERVIEW, RUNS, SET_VIEWS, view_spec
from chopper_core.views.frame import Frame
from chopper_core.views.query import run_frame
from chopper_core.views.spec import ViewSpec, splits_of

_LARGEST: Final = ("peak_", "max_", "longest_", "p95_")
_SMALLEST: Final = ("min_", "p05_")
_MAX_DRAWN: Final = 24
_PEERS: Final = ("gpu", "iteration")
"""Levels whose rows do the same work, so that their mean says something of the run."""
_MAX_HEADLINES: Final = 6
T = TypeVar("T")


class _Seen(Struct, frozen=True, eq=False):
    """A run of the set in the view."""

    row: RunRow
    frame: Frame


def dispatch_frame(run: RunRows, view: View, *, wait: bool = False) -> Frame:
    """The frame of a view of a set of runs; with `wait`, once more of its runs are read."""
    if view.name in ("", OVERVIEW):
        view = replace(view, name=RUNS)
    if view.name in (*SET_VIEWS, "findings"):
        own = import_module(f"chopper_core.extensions.runs.{view.name}")
        found: Frame = own.set_frame(run, view, wait=wait)
        return _with_findings(run, found) if view.name == RUNS else found
    return _frame_by_run(run, view, view_spec(view.name), wait=wait)


def _with_findings(run: RunRows, found: Frame) -> Frame:
    """A table of runs with its findings below it, once all of them are read."""
    from chopper_core.extensions.runs.findings import findings_of_runs

    view = View(run.name, name="findings", by=found.view.by, filter=found.view.filter)
    rows = [] if found.is_pending else shown_rows(run, view)[0]
    findings = findings_of_runs(rows, view) if len(rows) > 1 else []
    cards = [
        Card((), each.title, address.render(each.evidence), sure=each.confidence)
        for each in findings
    ]
    if not cards:
        return found
    number = str(len(cards))
    return replace(found, charts=(*found.charts, Cards("findings", tuple(cards), number=number)))


def _frame_by_run(run: RunRows, view: View, spec: ViewSpec, *, wait: bool) -> Frame:
    """A view of every run of a set that is shown; raises UsageError where it fits none."""
    if spec.of_one_run:
        raise NothingToShow(f"the view {view.name} {spec.of_one_run}")
    by = spec.by_of_runs or view.by or RUN_LEVEL
    rows, reading = shown_rows(run, view, wait=wait)
    split = "" if by == RUN_LEVEL or spec.by_of_runs else by
    seen: list[_Seen] = []
    notes: list[str] = []
    misfit: ChopperError | None = None
    for row in rows:
        asked = replace(_plain(view, row), by=split)
        if row.status == FAILED:
            notes.append(f"{row.name} is {row.status}: {row.reason}")
            continue
        try:
            own = _located(run.others[row.path], row)
            if split and split not in (splits := splits_of(own, spec)):
                raise UsageError(
                    f"the view {spec.name} of several runs takes by="
                    f"{', '.join((RUN_LEVEL, *splits))}, not {view.by!r}"
                )
            columns = view.columns[:1] if split else view.columns
            seen.append(_Seen(row, _with_columns(own, asked, columns)))
        except ChopperError as error:
            misfit = misfit or error
            notes.append(f"{row.name} is left out: {error}")
    if not seen:
        nothing = notes[0] if notes else f"no run to show in the view {spec.name}"
        raise misfit or NothingToShow(nothing)
    if reading.waiting:
        notes.append(f"still reading {count(reading.waiting, 'run')}")
    make = _rows if by == RUN_LEVEL else _matrix
    bases = " or ".join(dict.fromkeys(each.frame.base for each in seen if each.frame.base))
    return replace(make(run, view, seen, notes), is_pending=bool(reading.waiting), base=bases)


def _located(run: Run, row: RunRow) -> Run:
    """The run with the layout that the settings of its row add to what its files say: views share
    tokens among GPUs as the table of runs does."""
    shared = {name: row.settings[name] for name in SHARING if name in row.settings}
    layout = layout_of_settings(shared)
    if layout is None or replicas(shared) == replicas_of(run):
        return run
    try:
        return run.memo(("located", layout.text), lambda: located(run, layout.text))
    except UsageError:
        return run  # The settings are of another number of ranks.


def _with_columns(run: Run, asked: View, columns: Sequence[str]) -> Frame:
    """The view with those of the columns that it has for the run."""
    try:
        return run_frame(run, replace(asked, columns=tuple(columns)))
    except UsageError:
        kept: list[str] = []
        for name in columns:
            with suppress(UsageError):
                kept += [name] if run_frame(run, replace(asked, columns=(name,))).columns else []
        if len(kept) == len(columns):
            raise
        return run_frame(run, replace(asked, columns=tuple(kept)))


def _rows(run: RunRows, view: View, seen: Sequence[_Seen], notes: list[str]) -> Frame:
    named = {each.name: each for own in seen for each in own.frame.columns}
    metrics = [_known(view, named, name) for name in view.columns or named]
    notes += _lacking(metrics, seen) if view.columns else ()
    columns: list[Column] = []
    by_mean = False
    for metric in metrics:
        wholes = [_whole(own, metric) for own in seen]
        is_mean = any(is_mean for _, is_mean in wholes)
        if view.columns or any(number is not None for number, _ in wholes):
            by_mean |= is_mean
            columns.append((metric, numbered([number for number, _ in wholes])))
    if not columns:
        raise NothingToShow(f"the view {view.name} has no figure of a whole run; split it with by=")
    if by_mean:
        peers = "GPUs" if seen[0].frame.level == "gpu" else "steps"
        notes.append(
            f"figures without a total are the mean over the run's {peers}, peaks the largest"
        )
    labels = [own.row.name for own in seen]
    lines = [f"{own.row.name}: {own.frame.headline[0]}" for own in seen if own.frame.headline]
    return frame_of_set(
        run,
        view,
        RUN_LEVEL,
        labels,
        columns,
        lambda row: _plain(view, seen[row].row),
        shown=shown_of(
            _filtered(view, RUN_LEVEL, labels, columns),
            terms_on_runs(view.filter, run.reading(False).rows)[1],
            view.sort,
        ),
        notes=notes,
        headline=tuple(lines) if len(seen) <= _MAX_HEADLINES else (),
        charts=_charts(view, columns, labels),
    )


def _filtered(
    view: View, level: str, labels: Sequence[str], columns: Sequence[Column]
) -> FilterRows:
    known = {metric.name: values for metric, values in columns}
    metrics = tuple(metric for metric, _ in columns)
    return FilterRows(level, labels, partial(_known, view, known), tuple(known), metrics)


def _known(view: View, known: Mapping[str, T], name: str) -> T:
    if name not in known:
        raise UsageError(f"the view {view.name} has no column {name!r}; it has {', '.join(known)}")
    return known[name]


def _plain(view: View, row: RunRow) -> View:
    return View(row.path, name=view.name, of=view.of, cut=view.cut, is_total=view.is_total)


def _whole(own: _Seen, metric: Metric) -> tuple[float | None, bool]:
    """The total of a column, or the mean, smallest or largest of GPUs or steps without one.

    And whether it is one of these; None where neither is known.
    """
    frame = own.frame
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


def _matrix(run: RunRows, view: View, seen: Sequence[_Seen], notes: list[str]) -> Frame:
    figure = _figure(view, [own.frame for own in seen])
    labels = list(dict.fromkeys(label for own in seen for label in own.frame.labels))
    columns: list[Column] = []
    total: dict[str, float | None] = {}
    for own in seen:
        name = own.row.name
        total[name] = own.frame.total.get(figure.name)
        values = own.frame.values.get(figure.name, numbered([]))
        cells = dict(zip(own.frame.labels, values.known(), strict=False))
        metric = replace(
            figure,
            name=name,
            title=name,
            definition=f"{figure.name} of {name}.",
            missing_because="the run lacks the row",
            reduces=figure.reduces if figure.reduces == Reduces.SUM else Reduces.NONE,
        )
        columns.append((metric, numbered([cells.get(label) for label in labels])))

    def target(row: int) -> View:
        frame = next(own.frame for own in seen if labels[row] in own.frame.labels)
        return frame.target(list(frame.labels).index(labels[row]))

    level, sort = seen[0].frame.level, view.sort or f"-{columns[0][0].name}"
    _, terms = terms_on_runs(view.filter, run.reading(False).rows)
    return frame_of_set(
        run,
        view,
        level,
        labels,
        columns,
        target,
        shown=shown_of(_filtered(view, level, labels, columns), terms, sort),
        notes=[f"columns are runs: {figure.name} of each", *_lacking([figure], seen), *notes],
        total=total,
        charts=(_of_gpus(run, view, seen, figure, columns, labels),) if level == "gpu" else (),
        sort=sort,
    )


def _of_gpus(
    run: RunRows,
    view: View,
    seen: Sequence[_Seen],
    figure: Metric,
    columns: Sequence[Column],
    labels: Sequence[str],
) -> HeatMap:
    """The figure of every run (rows) and GPU (columns), the GPUs of a node side by side."""
    order = sorted(range(len(labels)), key=lambda place: int(labels[place]))
    # Runs of a study share their nodes; the one with most GPUs shows where each node ends.
    largest = max((run.others[own.row.path] for own in seen), key=lambda each: len(each.gpus))
    known = [gpu.index for gpu in largest.gpus]
    node_of = dict(zip(known, nodes_of(largest, known)[0], strict=True))
    headings = [labels[place] for place in order]
    nodes = [node_of.get(int(heading), "") for heading in headings]
    ends = [at for at in range(1, len(nodes)) if nodes[at] != nodes[at - 1]]
    numbers = np.stack([values.known()[order] for _, values in columns])
    scale, unit = drawn_in(figure.unit)
    return HeatMap(
        f"{figure.title} by run and GPU",
        unit,
        tuple(own.row.name for own in seen),
        tuple(np.insert(np.array(headings, object), ends, "").tolist()),
        "GPU",
        np.insert(numbers, ends, np.nan, axis=1) / scale,
        has_own_rows=True,
        signed=figure.signed,
        opens=lambda row, _: _plain(view, seen[row].row),
    )


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
    if view.columns:
        return _known(view, named, view.columns[0])
    numeric = [each for each in first.columns if first.values[each.name].words is None]
    return named.get(first.sort.removeprefix("-")) or numeric[0]


def _charts(view: View, columns: Sequence[Column], labels: Sequence[str]) -> tuple[Chart, ...]:
    """A bar per run: the parts of its time where the view has them, else its first figure."""
    parts = view_spec(view.name).parts
    drawn = [each for each in columns if each[0].name in parts]
    title = "parts of the time by run"
    if not drawn or view.columns:
        drawn = [each for each in columns if each[1].words is None][:1]
        title = f"{drawn[0][0].title} by run" if drawn else ""
    if not drawn:
        return ()
    scale, unit = drawn_in(drawn[0][0].unit)
    bars = tuple(
        Series(metric.title.removesuffix(" %"), values.known()[:_MAX_DRAWN] / scale)
        for metric, values in drawn
    )
    return (BarChart(title, unit, tuple(labels[:_MAX_DRAWN]), bars),)
