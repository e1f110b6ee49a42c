"""Heat map: a figure of every GPU at every layer, step, operation, phase or kernel."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.base import NODE, Base, base_of, divided
from chopper_core.analyses.leads import all_gpus_note, of_all_gpus
from chopper_core.analyses.rows import GpuRows, LabelledRows, Own, Partition
from chopper_core.analyses.samples import gpus_of, sampled, sampled_notes, spans_of_samples
from chopper_core.columns import (
    METRICS,
    Metric,
    Scope,
    Values,
    metric_named,
    numbered,
    parse_columns,
    worded,
)
from chopper_core.model.charts import HeatMap
from chopper_core.model.column_names import HEAT
from chopper_core.model.glossary import figure_in_words
from chopper_core.model.groups import Groups
from chopper_core.model.phrases import change_text, differs, level_title
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL_TEXT, UNLABELLED
from chopper_core.model.units import drawn_in, is_on_a_clock, moment_text, scaled_text
from chopper_core.model.view import View, child_of, pivot
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import (
    beyond_others,
    distinct,
    first_equal,
    others_median,
    quantiles_along,
    ranked,
    ratios,
    sums_of,
)
from chopper_core.views.shared.rows_of_samples import result_of_samples
from chopper_core.views.shared.table_view import table_view
from chopper_core.views.spec import FIGURE, ViewResult, ViewSpec, any_level

SPEC: Final = ViewSpec(
    name="heatmap",
    title="GPUs · heat map",
    question="Where does a figure of one GPU differ from that of the others?",
    by=any_level("layer", "iteration", "operation", "phase", but=("gpu",)),
    of=FIGURE,
    takes_samples=True,
    any_split=True,
)


USUAL: Final = "elapsed_ns"
_SAMPLED: Final = (*HEAT, "power_w", "gfx_mhz")
"""Signals of a heat map along time, the first one that there is."""
_TIME_BINS: Final = 96
_MAX_DRAWN: Final = 256
"""Of more labels, the chart has those with the largest durations."""
_MOST_CELLS: Final = 1 << 22
"""Of more, the view has the labels with the largest durations: each GPU may have others."""
_MAX_ROWS: Final = 64
"""Of more GPUs, the chart has quantiles."""
_SHARES: Final = {
    "least": 0.0,
    "p5": 0.05,
    "p25": 0.25,
    "median": 0.5,
    "p75": 0.75,
    "p95": 0.95,
    "largest": 1.0,
}
_SPREAD: Final = 5
"""The first columns, which don't compare GPUs."""
_LARGEST_FIRST: Final = ("operation", "kernel")


_LEAST_DIFFERENCE: Final = 0.001
_ALONE: Final = "no other GPU has the figure at the same place"


class _Matrix(Struct, frozen=True, eq=False, dict=True):
    """A figure of GPUs x labels; NaN where a GPU has none."""

    figure: Metric
    by: str
    numbers: Float64
    labels: list[str]
    names: list[str]

    @cached_property
    def farthest(self) -> tuple[Float64, Index, Float64]:
        """The largest difference of each GPU from the others' median, its place, the median."""
        beyond = beyond_others(self.numbers)
        size = np.where(np.isfinite(beyond), np.abs(beyond), -1.0)
        at = size.argmax(axis=1)
        rows = np.arange(len(beyond))
        return beyond[rows, at], at, others_median(self.numbers)[rows, at]

    def columns(self) -> Own:
        """Where each row is least and most, and where it differs most from the other GPUs."""
        by, name, unit, numbers = self.by, self.figure.name, self.figure.unit, self.numbers
        known: Mask = np.logical_or.reduce(np.isfinite(numbers), axis=1)
        padded = np.where(known[:, None], numbers, 0.0)
        beyond, at, usual = self.farthest

        def words(places: Index, known: Mask) -> Values:
            pairs = zip(places.tolist(), known.tolist(), strict=True)
            return worded([self.labels[place] if there else None for place, there in pairs])

        declared = parse_columns(
            f"""
    min_{name} | {unit} | min
        The smallest {name} of a {level_title(by)}.
    min_at | | min at
        The {level_title(by)} with the smallest {name}.
    median_{name} | {unit} | median
        The median of {name} over the {level_title(by)}s, unweighted.
    max_{name} | {unit} | max
        The largest {name} of a {level_title(by)}.
    max_at | | max at
        The {level_title(by)} with the largest {name}.
    apart_pct | % | max Δ % | signed
        The row's largest difference: of the GPU's figure from the median of the other GPUs at the
        same place (apart_at), in % of that median.
        missing: {_ALONE}
    apart_at | | max Δ at
        The {level_title(by)} with the largest difference from the other GPUs.
    apart_{name} | {unit} | max Δ | signed
        {name} at apart_at, minus the median of the other GPUs.
        missing: {_ALONE}
"""
        )
        values = (
            Values(np.fmin.reduce(numbers, axis=1)),
            words(np.nanargmin(padded, axis=1), known),
            Values(quantiles_along(numbers.T, (0.5,))[0]),
            Values(np.fmax.reduce(numbers, axis=1)),
            words(np.nanargmax(padded, axis=1), known),
            Values(ratios(100.0 * beyond, usual)),
            words(at, np.isfinite(beyond)),
            Values(beyond),
        )
        return list(zip(declared.values(), values, strict=True))

    def headline(self) -> tuple[str, ...]:
        (beyond, at, usual), title = self.farthest, self.figure.title
        if not np.isfinite(beyond).any():
            return (f"only one GPU has {title}: there is none to compare it with",)
        row = int(np.nanargmax(np.abs(beyond)))
        number, other = self.numbers[row, at[row]], usual[row]
        share = f" ({change_text(beyond[row], other)})" if other > 0 else ""
        if not differs(number, other, _LEAST_DIFFERENCE):
            return (f"no GPU differs from the others' median {title} by more than 0.1 %",)
        own, theirs = (scaled_text(float(each), self.figure.unit) for each in (number, other))
        where = f"{level_title(self.by)} {self.labels[at[row]]}"
        named = figure_in_words(self.figure.name, title)
        return (
            f"GPU {self.names[row]} differs most, in {where}: {named} {own}, median of the others "
            f"{theirs}{share}",
        )


def answer(run: Run, view: View) -> ViewResult:
    if run.is_sampled_only:
        return result_of_samples(run, view, _of_samples(run, view))
    figure = metric_named(view.of or USUAL, run.table)
    note, view = all_gpus_note(view), of_all_gpus(view)
    tree = run.tree_of(view)
    # The first split that has more than one label in the scope.
    several = (
        by
        for by in ("layer", "iteration", "operation", "phase")
        if len(distinct(tree.split(view.path, (by,)).codes(by))) > 1
    )
    by = view.by or next(several, "kernel")
    rows = Partition.of(tree, view, "gpu")
    cells = tree.split(view.path, ("gpu", by))
    base = base_of(run, view)
    every, column = ranked(cells.codes(by))
    times = sums_of(cells.sum("duration_ns"), column)
    largest = np.argsort(-times, kind="stable")
    kept = np.sort(largest[: max(_MOST_CELLS // len(rows.labels), 1)])
    codes, times = every[kept].astype(np.int64), times[kept]
    numbers = _numbers(base, figure, rows, cells, by, codes)
    texts = run.table.texts_of(by, codes)
    labels = [UNLABELLED if text == NO_LABEL_TEXT else text for text in texts]
    names = rows.labels
    matrix = _Matrix(figure, by, numbers, labels, names)
    scopes = (rows.scope(run), rows.whole_scope(run))
    own, whole = ((figure, figure.compute(scope)) for scope in scopes)
    drawn = np.argsort(-times, kind="stable")[:_MAX_DRAWN]
    drawn = drawn if by in _LARGEST_FIRST else np.sort(drawn)

    def opens(row: int, column: int) -> View:
        return child_of(child_of(view, "gpu", names[row]), by, texts[int(drawn[column])])

    shown = [
        f"the {what} has the {most} of {len(every)} {level_title(by)}s with the largest durations"
        for what, most in (("table", len(kept)), ("chart", len(drawn)))
        if most < len(every)
    ]
    found = table_view(
        view,
        rows,
        [own, *matrix.columns()],
        [whole],
        opens=lambda row: pivot(child_of(view, "gpu", names[row]), by),
        headline=matrix.headline(),
        notes=(*note, *shown),
        charts=_charts(run, matrix, drawn, opens),
        base=base,
    )
    return replace(found, by=by)


def _of_samples(run: Run, view: View) -> ViewResult:
    known = [name for name in run.measured if "." not in name]
    name = view.of or next((each for each in _SAMPLED if each in known), "")
    if view.by or name not in known:
        if not known:
            raise NothingToShow(run.status or "no telemetry with times")
        there = ", ".join(known)
        raise UsageError(f"without a trace the heat map is along time; of= takes {there}")
    figure, signal = METRICS[name], run.signal(name)
    begin, end = run.sampled_ns
    bounds = np.linspace(begin, end, _TIME_BINS + 1)
    gpus = [gpu for gpu in gpus_of(run) if gpu in signal.curves]
    numbers = np.stack([signal.curves[gpu].means(bounds) for gpu in gpus])
    labels = [f"{at / 1e9:.3g} s" for at in (bounds[:-1] - begin)]
    if is_on_a_clock(end - begin):
        labels = [moment_text(int(at), -1, end - begin) for at in bounds[:-1] - begin]
    names = [str(gpu) for gpu in gpus]
    matrix = _Matrix(figure, "time", numbers, labels, names)
    spans = spans_of_samples(run)
    means = numbered([sampled(signal.curves[gpu], spans[gpu]).mean() for gpu in gpus])
    mean = replace(figure, definition=f"{signal.title}, mean over the time of the samples.")
    title = f"{signal.title} along time"
    return table_view(
        view,
        LabelledRows("gpu", names),
        [(mean, means), *matrix.columns()[:_SPREAD]],
        total={},
        headline=matrix.headline(),
        notes=sampled_notes(run),
        charts=(HeatMap(title, figure.unit, tuple(names), tuple(labels), "time", numbers),),
    )


def _numbers(
    base: Base, figure: Metric, rows: Partition, cells: Groups, by: str, codes: Int64
) -> Float64:
    """The figure as GPUs x labels of these codes, NaN where a GPU has none."""
    values = figure.compute(Scope.of(base.run, cells, rows.whole))
    if values.words is not None:
        raise UsageError(f"{figure.name} is text and has no heat map")
    if figure.adds_up:
        values = divided(values, base.of_rows({each: cells.labels(each) for each in ("gpu", by)}))
    row = np.searchsorted(rows.nodes.codes("gpu"), cells.codes("gpu"))
    column = first_equal(codes, cells.codes(by))
    there = column >= 0
    numbers = np.full((len(rows.labels), len(codes)), np.nan)
    numbers[row[there], column[there]] = values.known()[there]
    if not np.isfinite(numbers).any():
        reason = f": {figure.missing_because}" if figure.missing_because else ""
        raise NothingToShow(f"{figure.name} is unknown for the whole scope{reason}")
    return numbers


def _charts(
    run: Run, matrix: _Matrix, drawn: Index, opens: Callable[[int, int], View]
) -> tuple[HeatMap, ...]:
    figure, by, names = matrix.figure, matrix.by, matrix.names
    numbers = matrix.numbers[:, drawn]
    labels = tuple(matrix.labels[place] for place in drawn.tolist())
    scale, unit = drawn_in(figure.unit)
    if len(names) > _MAX_ROWS:
        title, rows = f"{figure.title} over {len(names)} GPUs by {level_title(by)}", tuple(_SHARES)
        lines = quantiles_along(numbers, tuple(_SHARES.values()))
        with suppress(NothingToShow):
            nodes = GpuRows.of(run, list(map(int, names)), NODE)
            if 1 < len(nodes.labels) < len(names):
                title += f", and the median of each of {len(nodes.labels)} nodes"
                rows += tuple(nodes.labels)
                medians = [quantiles_along(numbers[own], (0.5,)) for own in nodes.members]
                lines = np.vstack([lines, *medians])
        return (HeatMap(title, unit, rows, labels, by, lines / scale, True),)
    title, rows = (
        f"{figure.title} of each GPU and {level_title(by)}",
        tuple(f"GPU {name}" for name in names),
    )
    chart = HeatMap(title, unit, rows, labels, by, numbers / scale)
    if len(names) == 1:
        return (chart,)
    chart = replace(chart, labels=tuple(names), opens=opens)
    beyond, title = beyond_others(numbers), f"difference of {figure.title} from the other GPUs"
    unit = "points" if figure.unit == "%" else "%"
    if figure.unit != "%":
        beyond = ratios(100.0 * beyond, others_median(numbers))
    title = f"{title} at each {level_title(by)}"
    return chart, replace(chart, title=title, unit=unit, numbers=beyond, signed=True)
