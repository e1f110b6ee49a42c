"""Heat map: one figure of every GPU at every layer, iteration, operation, phase or kernel."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.metrics import Metric, Scope, Values, column, metric, numbered, worded
from chopper_core.model.charts import HeatMap
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL_TEXT
from chopper_core.model.tree import Groups, Tree
from chopper_core.model.view import View, pivot
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import distinct, quantiles_along, ranked
from chopper_core.views.ranks.nodes import node_names
from chopper_core.views.shared.groups import into
from chopper_core.views.shared.leads import beyond_others, of_all_gpus, others_median
from chopper_core.views.shared.matched_kernels import cut_iterations
from chopper_core.views.spec import FIGURE, ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="heatmap",
    title="Heat map",
    question="Where does a figure of one GPU differ from that of the others?",
    by=("layer", "iteration", "operation", "phase", "kernel"),
    of=FIGURE,
)


Own = list[tuple[Metric, Values]]

USUAL: Final = "elapsed_ns"
_DRAWN: Final = 256
"""Columns of the picture; of more, those with the largest times are drawn."""
_ROWS: Final = 64
"""Rows of the picture; of more GPUs, quantiles are drawn."""
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
    """A row per GPU: its figure, how that spreads over the labels, and where it stands apart."""
    figure = metric(view.of or USUAL, run.table)
    view = of_all_gpus(view)
    tree = run.tree(view.order)
    parent = tree.node(view.path)
    gpus = tree.split(view.path, ("gpu",))
    by = view.by or _telling(tree, view)
    cells = tree.split(view.path, ("gpu", by))
    numbers, codes = _matrix(run, figure, parent, gpus, cells, by)
    texts = [run.table.text_of(by, code) for code in codes.tolist()]
    labels = ["unlabelled" if text == NO_LABEL_TEXT else text for text in texts]
    names = [str(code) for code in gpus.codes("gpu").tolist()]
    whole = figure.compute(Scope(gpus, parent, run.origin_ns, run.hardware))
    own: Own = [(figure, whole), *_spread(figure, by, numbers, labels)]
    cut = [place for place, code in enumerate(codes.tolist()) if code in cut_iterations(run)]
    cut = cut if by == "iteration" and len(cut) < len(codes) else []
    compared = numbers.copy()
    compared[:, cut] = np.nan
    apart, at = _apart(compared)
    rows = np.arange(len(names))
    usual = others_median(numbers)[rows, at]
    with np.errstate(invalid="ignore", divide="ignore"):
        percent = np.where(usual > 0, 100.0 * apart / usual, np.nan)
    missing = ~np.isfinite(apart)
    own += [
        (_APART_PCT, numbered(percent)),
        (_at("apart_at", by, "where it differs most"), _words(labels, at, missing)),
        (_difference(figure), _like(figure, apart)),
    ]
    total = figure.compute(Scope(parent, parent, run.origin_ns, run.hardware)).at(0)
    chart, notes = _picture(run, figure, by, numbers, labels, names, cells)
    return ViewResult(
        level="gpu",
        labels=names,
        columns=tuple(own),
        opens=lambda row: pivot(into(view, "gpu", names[row]), by),
        total={} if total is None else {figure.name: total},
        nodes=gpus,
        whole=parent,
        headline=_headline(figure, by, compared, labels, names),
        notes=(*_cut_notes([labels[place] for place in cut]), *notes),
        charts=(chart,),
        by=by,
    )


def _cut_notes(labels: list[str]) -> tuple[str, ...]:
    if not labels:
        return ()
    return (f"iteration {', '.join(labels)} is not compared: the profiler's start or end cuts it",)


def _telling(tree: Tree, view: View) -> str:
    """The first split that has more than one label here; of a run without layers, another one."""
    for by in ("layer", "iteration", "operation", "phase"):
        if len(np.unique(tree.split(view.path, (by,)).codes(by))) > 1:
            return by
    return "kernel"


def _matrix(
    run: Run, figure: Metric, parent: Groups, gpus: Groups, cells: Groups, by: str
) -> tuple[Float64, Int64]:
    """The figure as GPUs x labels, NaN where a GPU has none; and the codes of the labels."""
    values = figure.compute(Scope(cells, parent, run.origin_ns, run.hardware))
    if values.words is not None:
        raise UsageError(f"{figure.name} is a word, not a number: no heat map of it")
    codes = distinct(cells.codes(by)).astype(np.int64)
    row = np.searchsorted(gpus.codes("gpu"), cells.codes("gpu"))
    place = np.searchsorted(codes, cells.codes(by))
    numbers = np.full((len(gpus), len(codes)), np.nan)
    numbers[row, place] = np.where(values.present(), values.numbers, np.nan)
    if not np.isfinite(numbers).any():
        reason = f": {figure.missing_because}" if figure.missing_because else ""
        raise UsageError(f"{figure.name} isn't known of anything here{reason}")
    return numbers, codes


_APART_PCT: Final = column(
    "apart_pct",
    "%",
    "apart",
    "The difference that is the largest in the row: of the GPU's figure from the median of the "
    "other GPUs' at the same place (apart_at), in % of that median.",
    missing_because="no other GPU has the figure at the same place",
    signed=True,
)


def _at(name: str, by: str, what: str) -> Metric:
    return column(name, "", name.replace("_", " "), f"The {by} {what}.")


def _difference(figure: Metric) -> Metric:
    return column(
        f"apart_{figure.name}",
        figure.unit,
        "apart by",
        f"{figure.name} at the {_APART_PCT.name} place, less the median of the other GPUs.",
        missing_because=_APART_PCT.missing_because,
        signed=True,
    )


def _like(figure: Metric, numbers: Float64) -> Values:
    """Numbers as they are written for a figure; NaN is missing."""
    return Values(np.nan_to_num(numbers), ~np.isfinite(numbers))


def _words(labels: list[str], at: Index, missing: Mask) -> Values:
    pairs = zip(at.tolist(), missing.tolist(), strict=True)
    return worded([None if unknown else labels[place] for place, unknown in pairs])


def _spread(figure: Metric, by: str, numbers: Float64, labels: list[str]) -> Own:
    """The least, the median and the largest of each row, and where the ends are."""
    missing: Mask = np.logical_and.reduce(np.isnan(numbers), axis=1)
    padded = np.where(missing[:, None], 0.0, numbers)
    found: Own = []
    ends = (("min", np.nanmin, np.nanargmin), ("max", np.nanmax, np.nanargmax))
    middle = np.where(missing, np.nan, np.nanmedian(padded, axis=1))
    for name, value, place in ends:
        what = "smallest" if name == "min" else "largest"
        metric_of = column(
            f"{name}_{figure.name}", figure.unit, name, f"The {what} {figure.name} of a {by}."
        )
        numbers_of = np.where(missing, np.nan, value(padded, axis=1))
        found.append((metric_of, _like(figure, numbers_of)))
        at = _at(f"{name}_at", by, f"that has the {what} {figure.name}")
        found.append((at, _words(labels, place(padded, axis=1), missing)))
    median = column(
        f"median_{figure.name}",
        figure.unit,
        "median",
        f"The median of {figure.name} over the {by}s, each counting once.",
    )
    return [*found[:2], (median, _like(figure, middle)), *found[2:]]


def _apart(numbers: Float64) -> tuple[Float64, Index]:
    """Of each GPU the largest difference from the others' median, and at which label that is."""
    beyond = beyond_others(numbers)
    size = np.where(np.isfinite(beyond), np.abs(beyond), -1.0)
    at = size.argmax(axis=1)
    return beyond[np.arange(len(beyond)), at], at


def _headline(
    figure: Metric, by: str, numbers: Float64, labels: list[str], names: list[str]
) -> tuple[str, ...]:
    apart, at = _apart(numbers)
    if not np.isfinite(apart).any():
        return (f"{figure.title} is known of one GPU only: there is none to compare it with",)
    row = int(np.nanargmax(np.abs(apart)))
    usual = others_median(numbers)[row, at[row]]
    share = f" ({100 * apart[row] / usual:+.1f} %)" if usual > 0 else ""
    number, unit = _written(figure, numbers[row, at[row]])
    return (
        f"GPU {names[row]} differs most from the others at {by} {labels[at[row]]}: {figure.title} "
        f"is {number} against a median of {_written(figure, usual)[0]}{unit}{share}",
    )


def _written(figure: Metric, number: float) -> tuple[str, str]:
    if figure.unit == "ns":
        return f"{number / 1e6:.3f}", " ms"
    return f"{number:.4g}", f" {figure.unit}" if figure.unit else ""


def _by_node(run: Run, names: list[str], numbers: Float64) -> tuple[tuple[str, ...], Float64]:
    """The median of each node's GPUs at each label; no node where the run doesn't say them."""
    try:
        nodes = np.array(node_names(run, tuple(map(int, names))))
    except UsageError:
        nodes = np.array([""] * len(names))
    different = tuple(dict.fromkeys(nodes.tolist()))
    if not 1 < len(different) < len(names):
        return (), np.empty((0, numbers.shape[1]))
    medians = [quantiles_along(numbers[nodes == node], (0.5,)) for node in different]
    return different, np.vstack(medians)


def _picture(
    run: Run,
    figure: Metric,
    by: str,
    numbers: Float64,
    labels: list[str],
    names: list[str],
    cells: Groups,
) -> tuple[HeatMap, tuple[str, ...]]:
    codes = cells.codes(by)
    times = np.bincount(ranked(codes)[1], weights=cells.sum("duration_ns"))
    order = np.argsort(-times, kind="stable")
    drawn = order[:_DRAWN] if by in _LARGEST_FIRST else np.sort(order[:_DRAWN])
    scale, unit = (1e6, "ms") if figure.unit == "ns" else (1.0, figure.unit)
    title, rows = f"{figure.title} of each GPU and {by}", tuple(f"GPU {name}" for name in names)
    if len(names) > _ROWS:
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
        has_own_rows=len(names) > _ROWS,
    )
    if len(labels) <= _DRAWN:
        return chart, ()
    return chart, (
        f"the picture has the {_DRAWN} of {len(labels)} {by}s with the largest durations",
    )
