"""The steadiness of each GPU's clocks, power and durations over the iterations of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.telemetry import while_busy
from chopper_core.metrics import Metric, computed_column
from chopper_core.model.column_names import integral_of, known_of
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, STATES, KernelTable, Kind
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Int64
from chopper_core.util.grouping import (
    distinct,
    median_of,
    quantile_of,
    run_starts,
)
from chopper_core.views.shared.matched_kernels import same_kernels
from chopper_core.views.shared.samples import TimeSpans, sampled, spans_of_samples

MAX_COMPARED_ROWS: Final = 1 << 18
"""With more activities, evenly chosen iterations are compared."""
_CACHED_SCOPES: Final = 4
_CLOCKS: Final = ("gfx_mhz", "mem_mhz")
_SIGNALS: Final = (*_CLOCKS, "power_w")
_PLACE: Final = ("phase", "layer", "operation", "kernel")
_QUARTILES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)

_STEPS: Final = "in the scope's complete iterations"
_SAME: Final = (
    "of the same kernel in different iterations (phase, layer, operation, name, number): the "
    "largest minus the smallest, in % of the smallest, median over the kernels that all complete "
    "iterations of the scope have"
)
_NO_SAMPLES: Final = f"the GPU has no telemetry of it {_STEPS}"
_ONE_STEP: Final = "fewer than two complete iterations in the scope"


class SteadinessFigure(Struct, frozen=True):
    """A figure of a GPU that can be compared with the baseline."""

    metric: Metric
    phrase: str
    """Its name in a sentence."""
    is_spread: bool
    """Whether more of it is less steady."""
    is_shared: bool = False
    """Whether GPUs that wait for each other share it, so that they are no separate samples."""

    @property
    def scale(self) -> tuple[float, str]:
        """The unit in which people read it, and how many of its own unit that is."""
        return (1e6, "ms") if self.metric.unit == "ns" else (1.0, self.metric.unit)


def _figure(
    name: str, unit: str, title: str, phrase: str, definition: str, *, spread: bool, missing: str
) -> SteadinessFigure:
    is_shared = name.startswith("iteration")
    source = "trace" if is_shared or name.startswith("kernel") else "telemetry"
    metric = computed_column(name, unit, title, definition, source=source, missing_because=missing)
    return SteadinessFigure(metric, phrase, spread, is_shared)


def _level(name: str, unit: str, title: str, what: str) -> SteadinessFigure:
    text = f"Time-weighted mean {what} {_STEPS}, each from its first start to its last end"
    text += ". Samples of a clock while the GPU idles don't count." if "clock" in what else "."
    return _figure(f"steady_{name}", unit, title, what, text, spread=False, missing=_NO_SAMPLES)


def _deviation(name: str, unit: str, title: str, what: str) -> SteadinessFigure:
    text = (
        f"Standard deviation of the {what} over time {_STEPS}, without samples while the GPU idles."
    )
    phrase = f"deviation of the {what}"
    return _figure(f"sd_{name}", unit, title, phrase, text, spread=True, missing=_NO_SAMPLES)


def _by_kernel(name: str, title: str, what: str, phrase: str) -> SteadinessFigure:
    return _figure(
        f"{name}_spread_pct",
        "%",
        title,
        f"spread of {phrase} over iterations",
        f"Spread of the {what} {_SAME}.",
        spread=True,
        missing=_ONE_STEP if name == "kernel" else f"{_ONE_STEP}, or {_NO_SAMPLES}",
    )


FIGURES: Final = (
    _level("gfx_mhz", "MHz", "gfx", "clock of the compute units"),
    _deviation("gfx_mhz", "MHz", "± gfx", "clock of the compute units"),
    _by_kernel("gfx", "gfx spread", "clock during the activity", "the compute units' clock"),
    _level("mem_mhz", "MHz", "mem", "memory clock"),
    _deviation("mem_mhz", "MHz", "± mem", "memory clock"),
    _by_kernel("mem", "mem spread", "memory clock during the activity", "the memory clock"),
    _level("power_w", "W", "power", "power"),
    _by_kernel("power", "power spread", "power during the activity", "power"),
    _by_kernel("kernel", "kernel spread", "duration", "durations"),
    _figure(
        "iteration_time_ns",
        "ns",
        "iteration",
        "iteration time",
        f"Median elapsed time of an iteration {_STEPS}.",
        spread=False,
        missing="no complete iteration in the scope",
    ),
    _figure(
        "iteration_spread_pct",
        "%",
        "it. spread",
        "spread of iteration times",
        f"The longest minus the shortest iteration, in % of the shortest {_STEPS}.",
        spread=True,
        missing=_ONE_STEP,
    ),
)


class Steadiness(Struct, frozen=True, eq=False):
    """The figures of the GPUs of a scope."""

    gpus: tuple[int, ...]
    iterations: tuple[int, ...]
    """The complete ones."""
    compared: tuple[int, ...]
    """The complete iterations whose kernels are compared."""
    places: int
    """The number of compared kernels on all GPUs."""
    values: dict[str, Float64]
    """Name of a figure → its value of each GPU; NaN if unknown."""
    cells: dict[str, Float64]
    """Name of a figure → its values of each GPU and iteration, in no order; of a shared figure its
    values of each iteration, on the GPU that takes longest."""
    clock_quartiles: Float64
    """GPUs x (least, quartiles, largest) of the compute units' clock over time."""
    kernel_quartiles: Float64
    """The same of the spread of durations, over kernels; the largest is the 0.95 quantile."""
    is_stepped: bool = True
    """Whether it covers iterations; else the window of telemetry alone."""

    def medians(self) -> list[tuple[SteadinessFigure, float]]:
        return [
            (figure, median_of(values[known]))
            for figure in FIGURES
            if (known := np.isfinite(values := self.values[figure.metric.name])).any()
        ]


def gpus_of(run: Run, view: View) -> tuple[int, ...]:
    codes = run.tree_of(view).split(view.path, ("gpu",)).codes("gpu")
    return tuple(int(gpu) for gpu in codes)


def steadiness(run: Run, view: View, with_cells: bool = True) -> Steadiness:
    """The figures of a view's scope, cached; `with_cells` also those of single iterations."""
    key = ("steadiness", view.order, view.path, view.cut, with_cells)
    return run.memo(key, lambda: _steadiness(run, view, with_cells), _CACHED_SCOPES)


def sampled_steadiness(run: Run) -> Steadiness:
    """The figures of a run of telemetry alone, over the window of each GPU's samples."""
    spans = spans_of_samples(run)
    values = {each.metric.name: np.full(len(spans), np.nan) for each in FIGURES}
    clocks = np.full((len(spans), len(_QUARTILES)), np.nan)
    for place, (gpu, span) in enumerate(spans.items()):
        for signal in _SIGNALS:
            curve = run.measured[signal].curves.get(gpu) if signal in run.measured else None
            samples = sampled(curve, span)
            values[f"steady_{signal}"][place] = samples.mean()
            if signal in _CLOCKS:
                values[f"sd_{signal}"][place] = samples.deviation()
            if signal == "gfx_mhz" and len(samples):
                clocks[place] = samples.quantiles(_QUARTILES)
    nothing = np.full((len(spans), len(_QUARTILES)), np.nan)
    return Steadiness(tuple(spans), (), (), 0, values, {}, clocks, nothing, is_stepped=False)


def _steadiness(run: Run, view: View, with_cells: bool) -> Steadiness:
    tree, table = run.tree_of(view), run.table
    node, steps = tree.node(view.path), tree.split(view.path, ("gpu", "iteration"))
    gpu_of, number_of = (steps.codes(level).astype(np.int64) for level in ("gpu", "iteration"))
    numbers, gpus = set(number_of.tolist()) - {NO_LABEL}, distinct(gpu_of).tolist()
    complete = tuple(sorted(numbers - set(() if view.cut else run.truncated(view))))
    is_complete = np.isin(number_of, complete)
    steps_of = [np.flatnonzero(is_complete & (gpu_of == gpu)) for gpu in gpus]
    values = {each.metric.name: np.full(len(gpus), np.nan) for each in FIGURES}
    elapsed = np.sum([steps.sum(state) for state in STATES], axis=0).astype(np.float64)
    _add_iterations(values, elapsed, steps_of)
    cells = {"iteration_time_ns": [float(elapsed[number_of == one].max()) for one in complete]}
    clocks = np.full((len(gpus), len(_QUARTILES)), np.nan)
    spans = np.stack([steps.min("start_ns"), steps.max("end_ns")], axis=1).astype(np.int64)
    for place, (gpu, own) in enumerate(zip(gpus, steps_of, strict=True)):
        if len(own):
            of_cells = cells if with_cells else None
            _add_signals(run, gpu, spans[own], values, place, clocks, of_cells)
    compared = _chosen(node, complete)
    places, kernels = 0, np.full((len(gpus), len(_QUARTILES)), np.nan)
    selected = _by_step(table, node, compared) if len(compared) > 1 else {}
    for place, gpu in enumerate(gpus):
        parts = [selected.get((gpu, number), np.empty(0, np.intp)) for number in compared]
        if len(parts) > 1 and all(map(len, parts)):
            rows = np.stack(same_kernels(table, parts, _PLACE))
            places += rows.shape[1]
            _add_kernels(table, rows, values, place, kernels)
    return Steadiness(
        gpus=tuple(gpus),
        iterations=complete,
        compared=compared,
        places=places,
        values=values,
        cells={name: np.array(each) for name, each in cells.items()},
        clock_quartiles=clocks,
        kernel_quartiles=kernels,
    )


def _add_iterations(
    values: dict[str, Float64], elapsed: Float64, steps_of: Sequence[Index]
) -> None:
    """The time of the iterations of each GPU, and their spread."""
    for place, own in enumerate(steps_of):
        if len(own):
            values["iteration_time_ns"][place] = median_of(elapsed[own])
        if len(own) > 1 and elapsed[own].min() > 0:
            spread = elapsed[own].max() / elapsed[own].min() - 1
            values["iteration_spread_pct"][place] = 100.0 * spread


def _add_signals(
    run: Run,
    gpu: int,
    spans: Int64,
    values: dict[str, Float64],
    place: int,
    clocks: Float64,
    cells: dict[str, list[float]] | None,
) -> None:
    """The level and deviation of a GPU's signals over spans; in `cells` those of single ones."""
    table = run.table
    for signal in _SIGNALS:
        curve = run.measured[signal].curves.get(gpu) if signal in run.measured else None
        if curve is None:
            continue
        if signal in _CLOCKS:
            # The clock of an idle GPU doesn't count as unsteadiness.
            busy = run.tree().node((str(gpu),)).selection
            curve = while_busy(curve, table.start_ns[busy], table.duration_ns[busy])
        samples = sampled(curve, _apart(spans))
        values[f"steady_{signal}"][place] = samples.mean()
        if signal in _CLOCKS:
            values[f"sd_{signal}"][place] = samples.deviation()
        if signal == "gfx_mhz" and len(samples):
            clocks[place] = samples.quantiles(_QUARTILES)
        for span in spans if cells is not None else ():
            part = sampled(curve, _apart(span[None]))
            assert cells is not None
            cells.setdefault(f"steady_{signal}", []).append(part.mean())
            if signal in _CLOCKS:
                cells.setdefault(f"sd_{signal}", []).append(part.deviation())


def _add_kernels(
    table: KernelTable, rows: Index, values: dict[str, Float64], place: int, kernels: Float64
) -> None:
    """The spreads over iterations of a GPU's matched kernels, iterations x kernels."""
    if not rows.shape[1]:
        return
    durations = _spread(table.duration_ns[rows].astype(np.float64))
    values["kernel_spread_pct"][place] = median_of(durations)
    kernels[place] = quantile_of(durations, (*_QUARTILES[:-1], 0.95))
    for signal, name in zip(_SIGNALS, ("gfx", "mem", "power"), strict=True):
        found = _spread(_signal_at(table, signal, rows))
        values[f"{name}_spread_pct"][place] = median_of(found[np.isfinite(found)])


def _apart(spans: Int64) -> TimeSpans:
    """Spans that don't overlap: each ends where the next begins, at the latest."""
    ordered = spans[np.lexsort(spans.T[::-1])]
    ends = ordered[:, 1].copy()
    ends[:-1] = np.minimum(ends[:-1], ordered[1:, 0])
    return TimeSpans(ordered[:, 0], ends)


def _chosen(node: Groups, whole: tuple[int, ...]) -> tuple[int, ...]:
    """The complete iterations, or evenly chosen ones if there are too many activities."""
    size = int(node.sizes()[0])
    if size <= MAX_COMPARED_ROWS or len(whole) < 3:
        return whole
    count = max(2, min(len(whole), len(whole) * MAX_COMPARED_ROWS // size))
    places = distinct(np.linspace(0, len(whole) - 1, count).round().astype(np.intp))
    return tuple(whole[place] for place in places.tolist())


def _by_step(
    table: KernelTable, node: Groups, compared: tuple[int, ...]
) -> dict[tuple[int, int], Index]:
    """The compute of each GPU and compared iteration, in the order of the table."""
    rows = node.rows
    if not (np.diff(rows) > 0).all():
        rows = np.sort(rows)
    rows = rows[np.isin(table.iteration[rows], np.array(compared))]
    rows = rows[table.kind[rows] == Kind.COMPUTE]
    if not len(rows):
        return {}
    gpu, iteration = table.gpu[rows], table.iteration[rows]
    edges = run_starts(gpu, iteration)
    return {
        (int(gpu[begin]), int(iteration[begin])): own
        for begin, own in zip(edges.tolist(), np.split(rows, edges[1:]), strict=True)
    }


def _signal_at(table: KernelTable, signal: str, rows: Index) -> Float64:
    """The mean of a signal over each activity; NaN unless known for all of it."""
    names = integral_of(signal), known_of(signal)
    if any(name not in table.measured for name in names):
        return np.full(rows.shape, np.nan)
    integral, known = (table.measured[name][rows] for name in names)
    whole = known >= table.duration_ns[rows]
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Float64 = np.where(whole & (known > 0), integral / known, np.nan)
    return means


def _spread(values: Float64) -> Float64:
    """The largest less the smallest of each column in % of the smallest; NaN if any is unknown."""
    low, high = values.min(axis=0), values.max(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread: Float64 = np.where(low > 0, 100.0 * (high / low - 1), np.nan)
    return spread
