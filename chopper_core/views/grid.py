"""Grid: a figure of every rank at its place along the parallel dimensions, with nodes and slots."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import base_of
from chopper_core.analyses.coverage import values_on_base
from chopper_core.analyses.rows import LabelledRows, Partition
from chopper_core.analyses.samples import gpus_of, sampled_columns
from chopper_core.columns import (
    Metric,
    Values,
    column,
    columns,
    computed_column,
    is_measured,
    metric_named,
    numbered,
    worded,
)
from chopper_core.columns.labels import LABELS
from chopper_core.graph.process_groups import Places, places_of
from chopper_core.model.charts import HeatMap
from chopper_core.model.column_names import HEAT
from chopper_core.model.glossary import figure_in_words
from chopper_core.model.parallel import DIMENSIONS
from chopper_core.model.phrases import count, differs
from chopper_core.model.run import Run
from chopper_core.model.units import scaled_text
from chopper_core.model.view import View, child_of
from chopper_core.util.arrays import Float64
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import distinct, median_of
from chopper_core.views.shared.rows_of_samples import power_of_gpu, result_of_samples
from chopper_core.views.shared.table_view import table_view
from chopper_core.views.spec import FIGURE, ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="grid",
    title="GPUs · grid",
    question="Where in the parallel layout, and in which node and slot, does a figure stand out?",
    of=FIGURE,
    by_of_runs="gpu",
    no_statistic="shows each GPU's figure over its whole time",
    takes_samples=True,
)

_USUAL: Final = (*HEAT, "gfx_mhz", "power_w")
_FLAT: Final = (*_USUAL, "gfx_util_pct")
_OTHERWISE: Final = "busy_pct"
_USUAL_SAMPLED: Final = ("mean_hot_c", "mean_power_w", "mean_gfx_mhz")
_AND: Final = ","
"""Between figures: each is a row."""
_GAP: Final = ""
"""The label of the empty cells between nodes."""
_NO_LAYOUT: Final = (
    "the ranks have no coordinates: neither the traces' process groups nor --parallel tp=2,pp=4 "
    "gives them; columns are the ranks of a node"
)

COLUMNS: Final = columns(
    """
    slot | | slot
        The GPU's place in its node, from slots.csv.
        missing: no slots.csv
"""
)
COORDINATES: Final = {
    name: column(f"{name} | | {name}\n The {name} coordinate of the rank.", missing="unknown")
    for name in DIMENSIONS
}
_LEAST_DIFFERENCE: Final = 0.001


def answer(run: Run, view: View) -> ViewResult:
    asked = view if view.of else replace(view, of=_usual_of(run, view))
    found = _several(run, asked) if _AND in asked.of else _one(run, asked)
    return result_of_samples(run, view, found) if run.is_sampled_only else found


def _usual_of(run: Run, view: View) -> str:
    """GPUs that are all in one place have no layout to show: they differ in several figures."""
    if run.is_sampled_only:
        return ""
    places = places_of(run, run.tree_of(view).split(view.path, ("gpu",)).codes("gpu").tolist())
    is_flat = not places.dimensions and len(set(places.nodes)) < 2
    names = [name for name in _FLAT if is_measured(name, run.table)]
    names += [_OTHERWISE, *(["exposed_comm_ns"] if run.communicates else [])]
    return _AND.join(names) if is_flat and len(places.nodes) > 1 else ""


def _one(run: Run, view: View) -> ViewResult:
    if run.is_sampled_only:
        own = {metric.name: (metric, values) for metric, values in sampled_columns(run)}
        name = view.of or next((each for each in _USUAL_SAMPLED if each in own), "")
        if name not in own:
            there = ", ".join(own) or "nothing"
            raise NothingToShow(run.status or f"of= takes {there} without a trace, not {name!r}")
        metric, values = own[name]
        return _result(run, view, metric, dict(zip(gpus_of(run), values.known(), strict=True)))
    name = view.of or next((n for n in _USUAL if is_measured(n, run.table)), _OTHERWISE)
    figure = metric_named(name, run.table, run.counter_info)
    rows = Partition.of(run.tree_of(view), view, "gpu")
    base = base_of(run, view)
    values = values_on_base(figure, base, view, rows.scope(run), {"gpu": rows.labels})
    if values.words is not None:
        raise UsageError(f"{figure.name} is text and has no grid")
    total = values_on_base(figure, base, view, rows.whole_scope(run), {"": [""]}).at(0)
    by_gpu = dict(zip(map(int, rows.labels), values.known(), strict=True))
    if not view.path:
        by_gpu |= _untraced(run, name)
    found = _result(run, view, figure, by_gpu)
    totals = {} if total is None else {figure.name: total}
    applied = base.applied if figure.adds_up else None
    return replace(found, total=totals, base=applied)


def _opens(run: Run, view: View, gpu: int) -> View:
    return power_of_gpu(view, str(gpu)) if run.is_sampled_only else child_of(view, "gpu", str(gpu))


def _several(run: Run, view: View) -> ViewResult:
    names = dict.fromkeys(name for each in view.of.split(_AND) if (name := each.strip()))
    if not names:
        raise UsageError("of= takes the names of columns, with commas between them")
    parts = [_one(run, replace(view, of=name)) for name in names]
    gpus = sorted({int(label) for part in parts for label in part.rows.labels})
    rows = {str(gpu): place for place, gpu in enumerate(gpus)}
    numbers = np.full((len(parts), len(gpus)), np.nan)
    for part, line in zip(parts, numbers, strict=True):
        line[[rows[label] for label in part.rows.labels]] = part.columns[0][1].known()
    own = [(part.columns[0][0], Values(line)) for part, line in zip(parts, numbers, strict=True)]
    medians = np.array([median_of(line[np.isfinite(line)]) for line in numbers])[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        beyond_median = np.where(medians != 0, 100.0 * (numbers / medians - 1), np.nan)
    nodes = places_of(run, gpus).nodes
    breaks = [at for at in range(1, len(gpus)) if nodes[at] != nodes[at - 1]]
    labels = [str(gpu) for gpu in gpus]
    for at in reversed(breaks):
        labels.insert(at, _GAP)
    chart = HeatMap(
        "difference from the median GPU, by figure",
        "%",
        tuple(figure.title for figure, _ in own),
        tuple(labels),
        "GPU",
        np.insert(beyond_median, breaks, np.nan, axis=1),
        has_own_rows=True,
        signed=True,
        opens=lambda row, _: replace(view, of=own[row][0].name),
    )
    return replace(
        parts[0],
        rows=LabelledRows("gpu", [str(gpu) for gpu in gpus]),
        columns=(*own, *parts[0].columns[2:])
        if len(parts[0].rows.labels) == len(gpus)
        else tuple(own),
        opens=lambda row: _opens(run, view, gpus[row]),
        total={name: value for part in parts for name, value in part.total.items()},
        headline=tuple(
            line for row in _most_different(beyond_median)[:2] for line in parts[row].headline
        ),
        charts=(chart,),
        base=next((part.base for part in parts if part.base is not None), None),
    )


def _most_different(beyond: Float64) -> list[int]:
    """The rows of a map of differences, that with the largest first."""
    largest = np.nan_to_num(np.abs(beyond)).max(axis=1)
    order: list[int] = np.argsort(-largest, kind="stable").tolist()
    return order


def _untraced(run: Run, name: str) -> dict[int, float]:
    """Means over the run's time of a signal of GPUs that only telemetry has."""
    signal = run.measured.get(name)
    others = [gpu.index for gpu in run.gpus if gpu.index not in run.traced]
    if signal is None:
        return {}
    bounds = np.array([run.origin_ns, run.end_ns])
    return {
        gpu: float(signal.curves[gpu].means(bounds)[0]) for gpu in others if gpu in signal.curves
    }


def _result(run: Run, view: View, figure: Metric, by_gpu: dict[int, float]) -> ViewResult:
    gpus = sorted(by_gpu)
    numbers = np.array([by_gpu[gpu] for gpu in gpus], np.float64)
    if not np.isfinite(numbers).any():
        reason = f": {figure.missing_because}" if figure.missing_because else ""
        raise NothingToShow(f"{figure.name} is unknown for the whole scope{reason}")
    places = places_of(run, gpus)
    nodes, beyond = np.array(places.nodes), np.full(len(numbers), np.nan)
    for node in distinct(nodes[np.isfinite(numbers) & (nodes != "")]):
        own_rows = nodes == node
        beyond[own_rows] = numbers[own_rows] - np.nanmean(numbers[own_rows])
    difference = computed_column(
        f"{figure.name}_beyond_node",
        figure.unit,
        "Δ node",
        f"{figure.name} minus the mean of the GPUs of its node.",
        missing_because="the GPU's node is unknown",
        signed=True,
    )
    own = [
        (figure, numbered(numbers)),
        (difference, numbered(beyond)),
        (LABELS["rank"], Values(np.array(places.ranks, np.int64))),
    ]
    for name in places.dimensions:
        codes = np.array(places.coordinates[name], np.int64)
        own.append((COORDINATES[name], Values(codes, codes < 0)))
    own.append((LABELS["node"], worded([node or None for node in places.nodes])))
    if any(places.slots):
        own.append((COLUMNS["slot"], worded([slot or None for slot in places.slots])))

    def opens(gpu: int) -> View:
        return _opens(run, view, gpu)

    return table_view(
        view,
        LabelledRows("gpu", [str(gpu) for gpu in gpus]),
        own,
        total={},
        opens=lambda row: opens(gpus[row]),
        headline=_headline(figure, gpus, numbers, places),
        notes=() if places.dimensions else (_NO_LAYOUT,),
        charts=(_chart(figure, gpus, numbers, places, opens),),
    )


def _chart(
    figure: Metric,
    gpus: list[int],
    numbers: Float64,
    places: Places,
    opens: Callable[[int], View],
) -> HeatMap:
    rows = list(dict.fromkeys(places.rows))
    labels: list[str] = []
    where: dict[tuple[tuple[int, ...], str], int] = {}
    before = -1
    number_of = {row: number for number, row in enumerate(rows)}
    nodes_in: dict[str, dict[str, int]] = {}
    for row, node in zip(places.rows, places.nodes, strict=True):
        of_row = nodes_in.setdefault(row, {})
        of_row.setdefault(node, len(of_row))
    first_of = {key: at for at, key in reversed([*enumerate(places.columns)])}
    for key in sorted(first_of):
        # The GPUs of a node are side by side; an empty column separates those of two nodes.
        first = first_of[key]
        block = nodes_in[places.rows[first]][places.nodes[first]]
        if labels and block != before:
            labels.append(_GAP)
        before = block
        where[key] = len(labels)
        labels.append(key[1])
    grid = np.full((len(rows), len(labels)), np.nan)
    owner: dict[tuple[int, int], int] = {}
    for place, gpu in enumerate(gpus):
        cell = number_of[places.rows[place]], where[places.columns[place]]
        grid[cell] = numbers[place]
        owner[cell] = gpu
    if len(labels) == 1 < len(rows):
        # Along one dimension the ranks are a strip, with room for their figures.
        rows, labels, grid = labels, rows, grid.T
        owner = {(row, col): gpu for (col, row), gpu in owner.items()}
    return HeatMap(
        f"{figure.title} of the ranks",
        figure.unit,
        tuple(rows),
        tuple(labels),
        places.across,
        grid,
        has_own_rows=True,
        opens=lambda row, col: opens(owner.get((row, col), gpus[0])),
    )


def _headline(figure: Metric, gpus: list[int], numbers: Float64, places: Places) -> tuple[str, ...]:
    high, low = int(np.nanargmax(numbers)), int(np.nanargmin(numbers))
    value = partial(scaled_text, unit=figure.unit)

    def end(place: int) -> str:
        where = f" ({text})" if (text := places.text(place)) else ""
        return f"{value(numbers[place])} on GPU {gpus[place]}{where}"

    text = end(high)
    if differs(numbers[high], numbers[low], _LEAST_DIFFERENCE):
        text = f"from {end(low)} to {end(high)}"
    elif len(gpus) > 1:
        text = f"{value(numbers[high])} on each of {count(len(gpus), 'GPU')}"
    lines = [f"{figure_in_words(figure.name, figure.title)} {text}"]
    slots = list(dict.fromkeys(slot for slot in places.slots if slot))
    if len(slots) > 1:
        of_slot = np.array(places.slots)
        means = [f"{slot} {value(np.nanmean(numbers[of_slot == slot]))}" for slot in slots]
        lines.append(f"mean by slot: {', '.join(means)}")
    return tuple(lines)
