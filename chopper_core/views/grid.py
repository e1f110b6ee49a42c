"""Grid: a figure of every rank at its place along the parallel dimensions, with nodes and slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import (
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
from chopper_core.model.charts import HeatMap
from chopper_core.model.column_names import HEAT
from chopper_core.model.parallel import DIMENSIONS
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import distinct, median_of
from chopper_core.views.shared.phrases import count, differs
from chopper_core.views.shared.process_groups import Places, places_of
from chopper_core.views.shared.samples import columns_of, gpus_of, opened, result_of_samples
from chopper_core.views.shared.table_view import LabelledRows, Partition, child_of, table_view
from chopper_core.views.spec import FIGURE, ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="grid",
    title="Grid",
    question="Where in the parallel layout, and in which node and slot, does a figure stand out?",
    of=FIGURE,
    by_of_runs="gpu",
    no_statistic="shows each GPU's figure over its whole time",
    takes_samples=True,
)

_USUAL: Final = (*HEAT, "gfx_mhz", "power_w")
_OTHERWISE: Final = "busy_pct"
_USUAL_SAMPLED: Final = ("mean_hot_c", "mean_power_w", "mean_gfx_mhz")
_AND: Final = ","
"""Between figures of which each is a row."""
_GAP: Final = ""
"""The label of the empty cells between nodes."""
_NO_LAYOUT: Final = (
    "the ranks have no coordinates: neither the traces' process groups nor --parallel tp=2,pp=4 "
    "gives them; columns are the ranks of a node"
)

COLUMNS: Final = columns(
    """
    node | | node
        The host of the rank; else its number by devices.
    slot | | slot
        The GPU's place in its node, from slots.csv.
        missing: no slots.csv
    rank | | rank
        The rank of the GPU.
"""
)
COORDINATES: Final = {
    name: column(f"{name} | | {name}\n The {name} coordinate of the rank.", missing="unknown")
    for name in DIMENSIONS
}
_LEAST_APART: Final = 0.001


def answer(run: Run, view: View) -> ViewResult:
    if run.is_sampled_only:
        return result_of_samples(run, view, _of_samples(run, view))
    name = view.of or next((n for n in _USUAL if is_measured(n, run.table)), _OTHERWISE)
    if _AND in name:
        return _several(run, view, answer)
    figure = metric_named(name, run.table, run.counter_info)
    rows = Partition.of(run.tree_of(view), view, "gpu")
    values = figure.compute(rows.scope(run))
    if values.words is not None:
        raise UsageError(f"{figure.name} is text and has no grid")
    numbers = dict(zip(map(int, rows.labels), values.known(), strict=True))
    if not view.path:
        numbers |= _untraced(run, name)
    total = figure.compute(rows.whole_scope(run)).at(0)
    found = _result(run, view, figure, numbers, lambda gpu: child_of(view, "gpu", str(gpu)))
    totals = {} if total is None else {figure.name: total}
    return replace(found, total=totals, whole=rows.whole)


def _several(run: Run, view: View, one: Callable[[Run, View], ViewResult]) -> ViewResult:
    names = dict.fromkeys(name for each in view.of.split(_AND) if (name := each.strip()))
    if not names:
        raise UsageError("of= takes the names of columns, with commas between them")
    parts = [one(run, replace(view, of=name)) for name in names]
    opens = {label: (part, row) for part in parts for row, label in enumerate(part.labels)}
    gpus = sorted({int(label) for part in parts for label in part.labels})
    rows = {gpu: place for place, gpu in enumerate(gpus)}
    places = places_of(run, gpus)
    numbers = np.full((len(parts), len(gpus)), np.nan)
    for part, line in zip(parts, numbers, strict=True):
        line[[rows[int(label)] for label in part.labels]] = part.columns[0][1].known()
    own = [(part.columns[0][0], Values(line)) for part, line in zip(parts, numbers, strict=True)]
    medians = np.array([median_of(line[np.isfinite(line)]) for line in numbers])[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.where(medians != 0, 100.0 * (numbers / medians - 1), np.nan)
    breaks = [at for at in range(1, len(gpus)) if places.nodes[at] != places.nodes[at - 1]]
    where = list(np.insert(np.arange(len(gpus)), breaks, -1))
    chart = HeatMap(
        "difference from the median GPU, by figure",
        "%",
        tuple(figure.title for figure, _ in own),
        tuple(str(gpus[place]) if place >= 0 else _GAP for place in where),
        "GPU",
        np.where(np.array(where) < 0, np.nan, apart[:, where]),
        has_own_rows=True,
        signed=True,
        opens=lambda row, _: replace(view, of=own[row][0].name),
    )
    return replace(
        parts[0],
        labels=[str(gpu) for gpu in gpus],
        columns=(*own, *parts[0].columns[2:]) if len(parts[0].labels) == len(gpus) else tuple(own),
        opens=lambda row: (at := opens[str(gpus[row])])[0].opens(at[1]),
        total={name: value for part in parts for name, value in part.total.items()},
        headline=tuple(line for part in parts for line in part.headline),
        charts=(chart,),
    )


def _of_samples(run: Run, view: View) -> ViewResult:
    if _AND in view.of:
        return _several(run, view, _of_samples)
    own = {metric.name: (metric, values) for metric, values in columns_of(run)}
    name = view.of or next((each for each in _USUAL_SAMPLED if each in own), "")
    if name not in own:
        there = ", ".join(own) or "nothing"
        raise NothingToShow(run.status or f"of= takes {there} without a trace, not {name!r}")
    metric, values = own[name]
    by_gpu = dict(zip(gpus_of(run), values.known().tolist(), strict=True))
    return _result(run, view, metric, by_gpu, lambda gpu: opened(view, str(gpu)))


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


def _result(
    run: Run,
    view: View,
    figure: Metric,
    by_gpu: dict[int, float],
    opens: Callable[[int], View],
) -> ViewResult:
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
        (COLUMNS["rank"], Values(np.array(places.ranks, np.int64))),
    ]
    for name in places.dimensions:
        codes = np.array(places.coordinates[name], np.int64)
        own.append((COORDINATES[name], Values(codes, codes < 0)))
    own.append((COLUMNS["node"], worded([node or None for node in places.nodes])))
    if any(places.slots):
        own.append((COLUMNS["slot"], worded([slot or None for slot in places.slots])))
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
    rows = dict.fromkeys(places.row_labels)
    at = {label: place for place, label in enumerate(rows)}
    columns = dict.fromkeys(sorted(places.column_keys))
    labels: list[str] = []
    where: dict[tuple[int, ...], int] = {}
    before = ""
    for key in columns:
        own = [row for row, other in enumerate(places.column_keys) if other == key]
        block = places.block_of(own[0])
        # An empty column separates the GPUs of two nodes.
        if labels and block != before:
            labels.append(_GAP)
        before = block
        where[key] = len(labels)
        labels.append(places.column_labels[own[0]])
    grid = np.full((len(rows), len(labels)), np.nan)
    owner: dict[tuple[int, int], int] = {}
    for place, gpu in enumerate(gpus):
        cell = at[places.row_labels[place]], where[places.column_keys[place]]
        grid[cell] = numbers[place]
        owner[cell] = gpu
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
    unit = f" {figure.unit}" if figure.unit else ""
    scale, text = (1e6, " ms") if figure.unit == "ns" else (1.0, unit)

    def named(place: int) -> str:
        where = places.text(place)
        return f"GPU {gpus[place]} ({where})" if where else f"GPU {gpus[place]}"

    def end(place: int) -> str:
        return f"{named(place)}, {numbers[place] / scale:.4g}{text}"

    ends = end(high)
    if differs(numbers[high], numbers[low], _LEAST_APART):
        ends = f"largest on {end(high)}; smallest on {end(low)}"
    elif high != low or len(gpus) > 1:
        ends = f"{numbers[high] / scale:.4g}{text} on each of {count(len(gpus), 'GPU')}"
    lines = [f"{figure.title}: {ends}"]
    slots = list(dict.fromkeys(slot for slot in places.slots if slot))
    if len(slots) > 1:
        of_slot = np.array(places.slots)
        means = [np.nanmean(numbers[of_slot == slot]) / scale for slot in slots]
        each = [f"{slot} {mean:.4g}{text}" for slot, mean in zip(slots, means, strict=True)]
        lines.append(f"mean by slot: {', '.join(each)}")
    return tuple(lines)
