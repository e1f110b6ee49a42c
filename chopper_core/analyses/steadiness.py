"""The steadiness of each GPU's clocks, power and durations over the steps of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.matched_kernels import compared_iterations, same_kernels
from chopper_core.analyses.samples import busy_curve, sampled, spans_of_samples
from chopper_core.analyses.step_times import step_times
from chopper_core.columns import Metric, column
from chopper_core.model.column_names import integral_of, known_of
from chopper_core.model.run import Run
from chopper_core.model.signals import IntegralCurve, TimeSpans
from chopper_core.model.table import NO_LABEL, KernelTable, Kind
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Int64
from chopper_core.util.grouping import median_of, ratios, runs_of

_SIGNALS: Final = (
    ("gfx_mhz", "MHz", "gfx", "clock of the compute units", "clock"),
    ("mem_mhz", "MHz", "mem", "memory clock", "memory clock"),
    ("power_w", "W", "power", "power", "power"),
)
_CLOCKS: Final = ("gfx_mhz", "mem_mhz")
_PLACE: Final = ("phase", "layer", "operation", "kernel")

_STEPS: Final = "in the scope's complete steps"
_SAME: Final = (
    "of the same kernel in different steps (phase, layer, operation, name, number): the "
    "largest minus the smallest, in % of the smallest, median over the kernels that all complete "
    "steps of the scope have"
)
_NO_SAMPLES: Final = f"the GPU has no telemetry of it {_STEPS}"
_ONE_STEP: Final = "fewer than two complete steps in the scope"


class SteadinessFigure(Struct, frozen=True):
    """A figure of a GPU that can be compared with the baseline."""

    metric: Metric
    is_spread: bool = False
    """Whether more of it is less steady."""

    @property
    def scale(self) -> tuple[float, str]:
        """The unit in which people read it, and how many of its own unit that is."""
        return (1e6, "ms") if self.metric.unit == "ns" else (1.0, self.metric.unit)


def _of_signals() -> Iterator[SteadinessFigure]:
    for signal, unit, title, what, short in _SIGNALS:
        is_clock = signal in _CLOCKS
        busy = " Samples of a clock while the GPU idles don't count." if is_clock else ""
        level = column(f"""steady_{signal} | {unit} | steady {title}
            Time-weighted mean {what} {_STEPS}, each from its first start to its last end.{busy}
            missing: {_NO_SAMPLES}
            source: telemetry""")
        deviation = column(f"""steady_sd_{signal} | {unit} | ± steady {title}
            Standard deviation of the {what} over time {_STEPS}, without samples while the GPU
            idles.
            missing: {_NO_SAMPLES}
            source: telemetry""")
        spread = column(f"""{title}_spread_pct | % | {title} spread
            Spread of the {short} during the activity {_SAME}.
            missing: {_ONE_STEP}, or {_NO_SAMPLES}
            source: telemetry""")
        yield SteadinessFigure(level)
        if is_clock:
            yield SteadinessFigure(deviation, is_spread=True)
        yield SteadinessFigure(spread, is_spread=True)


_OF_KERNELS: Final = column(f"""kernel_spread_pct | % | kernel spread
    Spread of the duration {_SAME}.
    missing: {_ONE_STEP}""")
_TIME: Final = column(f"""iteration_time_ns | ns | median step
    Median of the GPU's step times {_STEPS}; their mean is the step time of other views.
    missing: no complete step in the scope""")
_OF_TIMES: Final = column(f"""iteration_spread_pct | % | step spread
    The longest minus the shortest step, in % of the shortest {_STEPS}.
    missing: {_ONE_STEP}""")
FIGURES: Final = (
    *_of_signals(),
    SteadinessFigure(_OF_KERNELS, is_spread=True),
    SteadinessFigure(_TIME),
    SteadinessFigure(_OF_TIMES, is_spread=True),
)


class Steadiness(Struct, frozen=True, eq=False):
    """The figures of the GPUs of a scope."""

    gpus: tuple[int, ...]
    values: dict[str, Float64]
    """Name of a figure → its value of each GPU; NaN if unknown."""
    cells: dict[str, Float64] = {}
    """Name of a figure → its values of each GPU and step, in no order; of a shared figure its
    values of each step, on the GPU that takes longest."""
    iterations: tuple[int, ...] = ()
    """The complete ones."""
    compared: tuple[int, ...] = ()
    """The complete steps whose kernels are compared."""
    is_stepped: bool = True
    """Whether it covers steps; else the window of telemetry alone."""

    def medians(self) -> list[tuple[SteadinessFigure, float]]:
        return [
            (figure, median_of(values[known]))
            for figure in FIGURES
            if (known := np.isfinite(values := self.values[figure.metric.name])).any()
        ]


def complete_gpus(run: Run, view: View) -> tuple[int, ...]:
    codes = run.tree_of(view).split(view.path, ("gpu",)).codes("gpu")
    return tuple(int(gpu) for gpu in codes)


def steadiness(run: Run, view: View, with_cells: bool = True) -> Steadiness:
    key = ("steadiness", view.order, view.path, view.cut, with_cells)
    return run.memo(key, lambda: _steadiness(run, view, with_cells))


def sampled_steadiness(run: Run) -> Steadiness:
    spans = spans_of_samples(run)
    found = [_of_samples(_curves(run, gpu), own) for gpu, own in spans.items()]
    return Steadiness(tuple(spans), _by_name(found), is_stepped=False)


def _steadiness(run: Run, view: View, with_cells: bool) -> Steadiness:
    tree = run.tree_of(view)
    steps = tree.split(view.path, ("gpu", "iteration"))
    gpu_of, number_of = (steps.codes(level).astype(np.int64) for level in ("gpu", "iteration"))
    numbers, gpus = set(number_of.tolist()) - {NO_LABEL}, complete_gpus(run, view)
    complete = tuple(sorted(numbers - (frozenset() if view.cut else run.cut_iterations)))
    few = compared_iterations(run, view)
    compared = tuple(number for number in complete if not few or number in few)
    compared = compared if len(compared) > 1 else complete[:2]
    times = step_times(run, view)
    took = times.times_ns.astype(np.float64)[:, np.isin(times.iterations, complete)]
    spans = np.stack([steps.min("start_ns"), steps.max("end_ns")], axis=1).astype(np.int64)
    cells: dict[str, list[float]] = {"iteration_time_ns": took.max(axis=0, initial=0.0).tolist()}
    found = []
    is_complete, is_compared = (np.isin(number_of, own) for own in (complete, compared))
    steps_of, times_of = dict(runs_of(gpu_of)), dict(runs_of(times.gpus))
    for gpu in gpus:
        own = np.arange(len(gpu_of))[steps_of.get(gpu, slice(0))]
        own = own[is_complete[own]]
        own_ns = took[times_of.get(gpu, slice(0))]
        own_ns = own_ns[own_ns > 0]
        figures = {"iteration_time_ns": median_of(own_ns)}
        if len(own_ns) > 1:
            longer = float(own_ns.max() / own_ns.min() - 1)
            figures["iteration_spread_pct"] = 100.0 * longer
        if len(own):
            curves = _curves(run, gpu, is_traced=True)
            figures |= _of_samples(curves, _without_overlap(spans[own]))
            for span in spans[own] if with_cells else ():
                for name, number in _of_samples(curves, _without_overlap(span[None])).items():
                    cells.setdefault(name, []).append(number)
        chosen = own[is_compared[own]].tolist()
        rows_of = [np.sort(steps.rows_of(step)) for step in chosen]
        parts = [rows[run.table.kind[rows] == Kind.COMPUTE] for rows in rows_of]
        if 1 < len(compared) == len(parts) and all(map(len, parts)):
            rows = np.stack(same_kernels(run.table, parts, _PLACE))
            if rows.shape[1]:
                figures |= _of_kernels(run.table, rows)
        found.append(figures)
    return Steadiness(
        gpus=gpus,
        values=_by_name(found),
        cells={name: np.array(each) for name, each in cells.items()},
        iterations=complete,
        compared=compared,
    )


def _by_name(of_gpus: Sequence[Mapping[str, float]]) -> dict[str, Float64]:
    names = [each.metric.name for each in FIGURES]
    return {name: np.array([own.get(name, np.nan) for own in of_gpus]) for name in names}


def _curves(run: Run, gpu: int, *, is_traced: bool = False) -> dict[str, IntegralCurve]:
    found = {}
    for signal, *_ in _SIGNALS:
        curve = run.curve(signal, gpu)
        if curve is not None and is_traced and signal in _CLOCKS:
            curve = busy_curve(run, gpu, curve)
        if curve is not None:
            found[signal] = curve
    return found


def _of_samples(curves: Mapping[str, IntegralCurve], spans: TimeSpans) -> dict[str, float]:
    found = {}
    for signal, curve in curves.items():
        samples = sampled(curve, spans)
        found[f"steady_{signal}"] = samples.mean()
        if signal in _CLOCKS:
            found[f"steady_sd_{signal}"] = samples.deviation()
    return found


def _of_kernels(table: KernelTable, rows: Index) -> dict[str, float]:
    """The spreads over steps of a GPU's matched kernels, steps x kernels."""
    found = {"kernel_spread_pct": median_of(_spread(table.duration_ns[rows].astype(np.float64)))}
    for signal, _, title, *_ in _SIGNALS:
        if table.measured.keys() >= {integral_of(signal), known_of(signal)}:
            spread = _spread(_signal_at(table, signal, rows))
            found[f"{title}_spread_pct"] = median_of(spread[np.isfinite(spread)])
    return found


def _without_overlap(spans: Int64) -> TimeSpans:
    """Spans that don't overlap: each ends where the next begins, at the latest."""
    ordered = spans[np.lexsort(spans.T[::-1])]
    ends = ordered[:, 1].copy()
    ends[:-1] = np.minimum(ends[:-1], ordered[1:, 0])
    return TimeSpans(ordered[:, 0], ends)


def _signal_at(table: KernelTable, signal: str, rows: Index) -> Float64:
    """The mean of a signal over each activity; NaN unless known for all of it."""
    integral, known = (table.measured[name(signal)][rows] for name in (integral_of, known_of))
    return ratios(integral, np.where(known >= table.duration_ns[rows], known, 0))


def _spread(values: Float64) -> Float64:
    return 100.0 * (ratios(values.max(axis=0), values.min(axis=0)) - 1)
