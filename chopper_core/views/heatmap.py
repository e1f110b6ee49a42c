"""Heat map: a figure of every GPU at every layer, iteration, operation, phase or kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import (
    METRICS,
    Metric,
    Scope,
    Values,
    column,
    computed_column,
    metric_named,
    numbered,
    worded,
)
from chopper_core.model.charts import HeatMap
from chopper_core.model.column_names import HEAT
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL_TEXT
from chopper_core.model.tree import Tree
from chopper_core.model.units import is_on_a_clock, moment_text, time_text
from chopper_core.model.view import View, pivot
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import (
    beyond_others,
    distinct,
    others_median,
    quantiles_along,
    ranked,
    sums_of,
)
from chopper_core.views.ranks.rank_columns import node_names
from chopper_core.views.shared.leads import of_all_gpus
from chopper_core.views.shared.phrases import differs
from chopper_core.views.shared.samples import (
    gpus_of,
    opened,
    result_of_samples,
    sampled,
    sampled_notes,
    spans_of_samples,
)
from chopper_core.views.shared.table_view import child_of
from chopper_core.views.spec import FIGURE, ViewResult, ViewSpec, any_level

SPEC: Final = ViewSpec(
    name="heatmap",
    title="Heat map",
    question="Where does a figure of one GPU differ from that of the others?",
    by=any_level("layer", "iteration", "operation", "phase", but=("gpu",)),
    of=FIGURE,
    takes_samples=True,
    any_split=True,
)


Own = list[tuple[Metric, Values]]

USUAL: Final = "elapsed_ns"
_SAMPLED: Final = (*HEAT, "power_w", "gfx_mhz")
"""Signals of a heat map along time, the first one that there is."""
_TIME_BINS: Final = 96
_MAX_DRAWN: Final = 256
"""Of more labels, the chart has those with the largest durations."""
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
_LARGEST_FIRST: Final = ("operation", "kernel")


def answer(run: Run, view: View) -> ViewResult:
    """A row per GPU: its figure, the spread over the labels, and where it differs from others."""
    if run.is_sampled_only:
        return result_of_samples(run, view, _of_samples(run, view))
    figure = metric_named(view.of or USUAL, run.table)
    view = of_all_gpus(view)
    tree = run.tree_of(view)
    parent = tree.node(view.path)
    gpus = tree.split(view.path, ("gpu",))
    by = view.by or _default_split(tree, view)
    cells = tree.split(view.path, ("gpu", by))
    numbers, codes = _matrix(run, figure, parent, gpus, cells, by)
    texts = [run.table.text_of(by, code) for code in codes.tolist()]
    labels = ["unlabelled" if text == NO_LABEL_TEXT else text for text in texts]
    names = [str(code) for code in gpus.codes("gpu").tolist()]
    whole = figure.compute(Scope(gpus, parent, run.origin_ns, run.hardware))
    own: Own = [(figure, whole), *_spread(figure, by, numbers, labels)]
    apart, at = _apart(numbers)
    rows = np.arange(len(names))
    usual = others_median(numbers)[rows, at]
    with np.errstate(invalid="ignore", divide="ignore"):
        percent = np.where(usual > 0, 100.0 * apart / usual, np.nan)
    missing = ~np.isfinite(apart)
    own += [
        (_APART_PCT, numbered(percent)),
        (
            _at("apart_at", "max Δ at", by, "with the largest difference from the other GPUs"),
            _words(labels, at, missing),
        ),
        (_difference(figure), _like(figure, apart)),
    ]
    total = figure.compute(Scope(parent, parent, run.origin_ns, run.hardware)).at(0)
    charts, notes = _charts(run, figure, by, numbers, labels, names, cells)
    if len(charts) > 1:
        opens = _opens(view, by, texts, names, _drawn(by, cells))
        charts = tuple(replace(chart, labels=tuple(names), opens=opens) for chart in charts)
    return ViewResult(
        level="gpu",
        labels=names,
        columns=tuple(own),
        opens=lambda row: pivot(child_of(view, "gpu", names[row]), by),
        total={} if total is None else {figure.name: total},
        nodes=gpus,
        whole=parent,
        headline=_headline(figure, by, numbers, labels, names),
        notes=notes,
        charts=charts,
        by=by,
    )


def _of_samples(run: Run, view: View) -> ViewResult:
    """A row per GPU of a run of telemetry alone: a signal along the time of its samples."""
    names = [name for name in run.measured if "." not in name]
    name = view.of or next((each for each in _SAMPLED if each in names), "")
    if view.by or name not in names:
        if not names:
            raise NothingToShow(run.status or "no telemetry with times")
        there = ", ".join(names)
        raise UsageError(f"without a trace the heat map is along time; of= takes {there}")
    figure, signal = METRICS[name], run.signal(name)
    begin, end = run.sampled_ns
    bounds = np.linspace(begin, end, _TIME_BINS + 1)
    gpus = [gpu for gpu in gpus_of(run) if gpu in signal.curves]
    numbers = np.stack([signal.curves[gpu].means(bounds) for gpu in gpus])
    labels = [f"{at / 1e9:.3g} s" for at in (bounds[:-1] - begin)]
    if is_on_a_clock(end - begin):
        labels = [moment_text(int(at), -1, end - begin) for at in bounds[:-1] - begin]
    texts = [str(gpu) for gpu in gpus]
    spans = spans_of_samples(run)
    means = numbered([sampled(signal.curves[gpu], spans[gpu]).mean() for gpu in gpus])
    mean = replace(figure, definition=f"{signal.title}, mean over the time of the samples.")
    chart = HeatMap(
        f"{signal.title} along time", figure.unit, tuple(texts), tuple(labels), "time", numbers
    )
    return ViewResult(
        level="gpu",
        labels=texts,
        columns=((mean, means), *_spread(figure, "time", numbers, labels)),
        opens=lambda row: opened(view, texts[row]),
        headline=_headline(figure, "time", numbers, labels, texts),
        notes=sampled_notes(run),
        charts=(chart,),
    )


def _opens(
    view: View, by: str, texts: list[str], names: list[str], drawn: Index
) -> Callable[[int, int], View]:
    """The view of a cell of the chart: the GPU's part with the column's label."""

    def opened(row: int, column: int) -> View:
        own = child_of(view, "gpu", names[row])
        return child_of(own, by, texts[int(drawn[column])])

    return opened


def _default_split(tree: Tree, view: View) -> str:
    """The first split that has more than one label in the scope."""
    for by in ("layer", "iteration", "operation", "phase"):
        if len(distinct(tree.split(view.path, (by,)).codes(by))) > 1:
            return by
    return "kernel"


def _matrix(
    run: Run, figure: Metric, parent: Groups, gpus: Groups, cells: Groups, by: str
) -> tuple[Float64, Int64]:
    """The figure as GPUs x labels, NaN where a GPU has none; and the codes of the labels."""
    values = figure.compute(Scope(cells, parent, run.origin_ns, run.hardware))
    if values.words is not None:
        raise UsageError(f"{figure.name} is text and has no heat map")
    codes = distinct(cells.codes(by)).astype(np.int64)
    row = np.searchsorted(gpus.codes("gpu"), cells.codes("gpu"))
    place = np.searchsorted(codes, cells.codes(by))
    numbers = np.full((len(gpus), len(codes)), np.nan)
    numbers[row, place] = np.where(values.present(), values.numbers, np.nan)
    if not np.isfinite(numbers).any():
        reason = f": {figure.missing_because}" if figure.missing_because else ""
        raise NothingToShow(f"{figure.name} is unknown for the whole scope{reason}")
    return numbers, codes


_APART_PCT: Final = column("""apart_pct | % | max Δ | signed
    The row's largest difference: of the GPU's figure from the median of the other GPUs at the
    same place (apart_at), in % of that median.
    missing: no other GPU has the figure at the same place""")


def _at(name: str, title: str, by: str, what: str) -> Metric:
    return computed_column(name, "", title, f"The {by} {what}.")


def _difference(figure: Metric) -> Metric:
    return computed_column(
        f"apart_{figure.name}",
        figure.unit,
        "max Δ",
        f"{figure.name} at apart_at, minus the median of the other GPUs.",
        missing_because=_APART_PCT.missing_because,
        signed=True,
    )


def _like(figure: Metric, numbers: Float64) -> Values:
    """Numbers as values; NaN is missing."""
    return Values(np.nan_to_num(numbers), ~np.isfinite(numbers))


def _words(labels: list[str], at: Index, missing: Mask) -> Values:
    pairs = zip(at.tolist(), missing.tolist(), strict=True)
    return worded([None if unknown else labels[place] for place, unknown in pairs])


def _spread(figure: Metric, by: str, numbers: Float64, labels: list[str]) -> Own:
    """The minimum, median and maximum of each row, and the labels of the extremes."""
    missing: Mask = np.logical_and.reduce(np.isnan(numbers), axis=1)
    padded = np.where(missing[:, None], 0.0, numbers)
    found: Own = []
    ends = (("min", np.nanmin, np.nanargmin), ("max", np.nanmax, np.nanargmax))
    middle = quantiles_along(numbers.T, (0.5,))[0]
    for name, value, place in ends:
        what = "smallest" if name == "min" else "largest"
        metric_of = computed_column(
            f"{name}_{figure.name}", figure.unit, name, f"The {what} {figure.name} of a {by}."
        )
        numbers_of = np.where(missing, np.nan, value(padded, axis=1))
        found.append((metric_of, _like(figure, numbers_of)))
        at = _at(f"{name}_at", f"{name} at", by, f"with the {what} {figure.name}")
        found.append((at, _words(labels, place(padded, axis=1), missing)))
    median = computed_column(
        f"median_{figure.name}",
        figure.unit,
        "median",
        f"The median of {figure.name} over the {by}s, unweighted.",
    )
    return [*found[:2], (median, _like(figure, middle)), *found[2:]]


def _apart(numbers: Float64) -> tuple[Float64, Index]:
    """The largest difference of each GPU from the others' median, and the position of its label."""
    beyond = beyond_others(numbers)
    size = np.where(np.isfinite(beyond), np.abs(beyond), -1.0)
    at = size.argmax(axis=1)
    return beyond[np.arange(len(beyond)), at], at


_LEAST_APART: Final = 0.001


def _headline(
    figure: Metric, by: str, numbers: Float64, labels: list[str], names: list[str]
) -> tuple[str, ...]:
    apart, at = _apart(numbers)
    if not np.isfinite(apart).any():
        return (f"only one GPU has {figure.title}: there is none to compare it with",)
    row = int(np.nanargmax(np.abs(apart)))
    usual = others_median(numbers)[row, at[row]]
    share = f" ({100 * apart[row] / usual:+z.1f} %)" if usual > 0 else ""
    number = numbers[row, at[row]]
    if not differs(number, usual, _LEAST_APART):
        return (f"no GPU differs from the others' median {figure.title} by more than 0.1 %",)
    if figure.unit == "ns":
        values = f"{time_text(number)} vs a median of {time_text(usual)}"
    else:
        values = f"{number:.4g} vs a median of {usual:.4g} {figure.unit}".rstrip()
    return (
        f"GPU {names[row]} differs most from the others at {by} {labels[at[row]]}: {figure.title} "
        f"is {values}{share}",
    )


def _by_node(run: Run, names: list[str], numbers: Float64) -> tuple[tuple[str, ...], Float64]:
    """The median of each node's GPUs at each label; nothing unless there are several nodes."""
    try:
        nodes = np.array(node_names(run, tuple(map(int, names))))
    except UsageError:
        nodes = np.array([""] * len(names))
    different = tuple(dict.fromkeys(nodes.tolist()))
    if not 1 < len(different) < len(names):
        return (), np.empty((0, numbers.shape[1]))
    medians = [quantiles_along(numbers[nodes == node], (0.5,)) for node in different]
    return different, np.vstack(medians)


def _drawn(by: str, cells: Groups) -> Index:
    """The labels that the chart has, in its order: of many those with the largest durations."""
    times = sums_of(cells.sum("duration_ns"), ranked(cells.codes(by))[1])
    order = np.argsort(-times, kind="stable")
    return order[:_MAX_DRAWN] if by in _LARGEST_FIRST else np.sort(order[:_MAX_DRAWN])


def _charts(
    run: Run,
    figure: Metric,
    by: str,
    numbers: Float64,
    labels: list[str],
    names: list[str],
    cells: Groups,
) -> tuple[tuple[HeatMap, ...], tuple[str, ...]]:
    """The figure, and below it how it differs from that of the other GPUs."""
    drawn = _drawn(by, cells)
    scale, unit = (1e6, "ms") if figure.unit == "ns" else (1.0, figure.unit)
    title, rows = f"{figure.title} of each GPU and {by}", tuple(f"GPU {name}" for name in names)
    if len(names) > _MAX_ROWS:
        title, rows = f"{figure.title} over {len(names)} GPUs by {by}", tuple(_SHARES)
        nodes, of_nodes = _by_node(run, names, numbers)
        if nodes:
            title += f", and the median of each of {len(nodes)} nodes"
        rows += nodes
        numbers = np.vstack([quantiles_along(numbers, tuple(_SHARES.values())), of_nodes])
    chart = HeatMap(
        title,
        unit,
        rows,
        tuple(labels[place] for place in drawn.tolist()),
        by,
        numbers[:, drawn] / scale,
        has_own_rows=len(names) > _MAX_ROWS,
    )
    charts: tuple[HeatMap, ...] = (chart,)
    if not chart.has_own_rows and len(names) > 1:
        charts = (chart, _differences(chart, figure, by, numbers[:, drawn]))
    if len(labels) <= _MAX_DRAWN:
        return charts, ()
    return charts, (
        f"the chart has the {_MAX_DRAWN} of {len(labels)} {by}s with the largest durations",
    )


def _differences(chart: HeatMap, figure: Metric, by: str, numbers: Float64) -> HeatMap:
    """Each cell against the median of the other GPUs at the same place, in % of it."""
    beyond, usual = beyond_others(numbers), others_median(numbers)
    title = f"difference of {figure.title} from the other GPUs at each {by}"
    if figure.unit == "%":
        return replace(chart, title=title, unit="points", numbers=beyond, signed=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        percent = np.where(usual > 0, 100.0 * beyond / usual, np.nan)
    return replace(chart, title=title, unit="%", numbers=percent, signed=True)
