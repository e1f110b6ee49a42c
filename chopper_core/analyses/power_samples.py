"""The samples of GPUs in a scope's time: the columns of the power view, and their correlations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.rows import Own
from chopper_core.analyses.sample_definitions import (
    DECLARED,
    MOST_SAMPLED,
    NEEDS,
    PEAK_AT,
    TIME,
    of_several,
)
from chopper_core.analyses.samples import (
    NO_SAMPLES,
    Sampled,
    clock_while_busy,
    means_during,
    powers_of,
    sampled,
    spans_of,
    spans_of_windows,
)
from chopper_core.analyses.step_columns import StepCells
from chopper_core.analyses.step_times import step_windows, untraced_in
from chopper_core.columns import (
    METRICS,
    Scope,
    Values,
    columns,
    computed_column,
    numbered,
)
from chopper_core.columns.metric import quotient
from chopper_core.model.column_names import EDGE, HEAT, HOTSPOT
from chopper_core.model.groups import Groups
from chopper_core.model.memo import LazyMap
from chopper_core.model.run import Run
from chopper_core.model.signals import IntegralCurve, TimeSpans
from chopper_core.model.table import Kind
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.grouping import counts_of, ranked, ratios, run_starts, stable_order, sums_of

ROLLED: Final = (("gfx_mhz", 0.05), ("power_w", 0.95))
"""The quantiles that the original takes of windows."""
SIGNALS: Final = ("power_w", "gfx_mhz", "mem_mhz", "hotspot_c", "mem_c", "edge_c", "throttle_pct")
DIES: Final = ("hotspot_c.", "mem_c.", "gfx_mhz.xcd")
"""How the signals of single dies begin."""
LIMITER: Final = "throttle_pct."
"""How the signals of single limiters begin."""
CHANCE_Z: Final = 2.576
"""Of the normal distribution: chance exceeds it on either side in 1 % of the cases."""
_FEWEST: Final = 4
"""Independent samples; fewer say nothing about chance."""
_MAX_KERNELS: Final = 1 << 18
"""Of a GPU with more, evenly chosen ones are compared."""
_MAX_OVERLAP: Final = 0.1
"""Of a kernel's time; communication next to it slows it too."""
WINDOW_NS: Final = 100e6
BURST: Final = 1.1
"""A burst of power exceeds the mean by this factor."""
AT_LIMIT: Final = 0.98
_SLOWER: Final = (
    "the duration of the kernels that start in the time of a sample of the clock, over the mean of "
    "kernels of the same name, operation and phase; compute that nothing overlaps"
)
_ALL_TIME: Final = "no telemetry of power or energy for all of the row's time"

CORRELATED: Final = columns(
    f"""
    r_gfx_hotspot | | r gfx °C | signed
        Pearson's correlation of the clock's samples with the hottest spot's temperature over their
        times.
    r_gfx_edge | | r gfx edge °C | signed
        Pearson's correlation of the clock's samples with the edge's temperature over their times.
    r_gfx_power | | r gfx W | signed
        Pearson's correlation of the clock's samples with the power over their times.
    r_time_gfx | | r time MHz | signed
        Pearson's correlation with the clock of how slow kernels are: {_SLOWER}.
        missing: {NEEDS}, no kernels in the time of four samples, or one doesn't change
        source: trace and telemetry
    r_time_heat | | r time °C | signed
        Pearson's correlation with the temperature (of the hotspot, else of the edge) of how slow
        kernels are: {_SLOWER}.
        missing: {NEEDS}, no kernels in the time of four samples, or one doesn't change
        source: trace and telemetry
    r_chance | | r by chance
        The correlation, of either sign, that unrelated series of so few samples exceed in 1 % of
        the cases: tanh(2.576 / sqrt(n - 3)), n the fewest independent samples of the row's
        coefficients. One that isn't larger says nothing.
        missing: fewer than four independent samples
    r_samples | | independent
        The fewest independent samples of the row's correlations: n (1 - ab) / (1 + ab) of n
        samples with autocorrelations a and b of neighbours (Bartlett).
        missing: fewer than four independent samples
""",
    missing=f"{NEEDS}, or one of the two doesn't change",
    source="telemetry",
)
OF_STEPS: Final = columns(
    f"""
    iteration_energy_j | J | per step
        Mean energy_j of the GPU over the scope's complete steps; whole steps, even if
        the scope is deeper. Of a GPU without a trace its mean power while the others are in the
        step, for the mean time of it on these; ~ marks steps that begin or end up to a
        sampling period outside of the samples, where the first or the last one counts.
        missing: no complete step in the scope, or telemetry for only part of one
    step_energy_j | J | all GPUs
        Energy of the step on all GPUs in scope, those without a trace too (see
        iteration_energy_j).
        missing: the step is truncated, or telemetry covers only part of it on some GPU
    token_energy_mj | mJ | per token
        Energy of a step over its tokens (see the view throughput): of a GPU its own, of a
        step those of all GPUs.
        missing: the tokens are unknown, or telemetry covers only part of a step
        source: telemetry, and trace or address
    energy_pct | % | of energy
        Share of the scope's energy.
        missing: {_ALL_TIME}
""",
    source="telemetry",
)


def columns_of_samples(run: Run, found: Sequence[GpuSamples]) -> Own:
    """The columns of some GPUs' samples: those declared, and one per limiter."""
    limiters = sorted({n for gpu in found for n in gpu.signals if n.startswith(LIMITER)})
    made = {name: numbered([of(gpu) for gpu in found]) for name, of in FIGURES_OF_SAMPLES.items()}
    power, gfx = made["mean_power_w"].numbers, made["mean_gfx_mhz"].numbers
    made["power_x"] = quotient(power, np.full_like(power, np.fmax.reduce(power)))
    made["gfx_x"] = quotient(gfx, np.full_like(gfx, np.fmin.reduce(gfx)))
    own = [(METRICS.get(name, metric), made[name]) for name, metric in DECLARED.items()]
    for name in limiters:
        part = name.removeprefix(LIMITER)
        metric = computed_column(
            f"throttled_{part}_pct",
            "%",
            part,
            f"Share of time under the limiter {part}, {TIME}.",
            source="telemetry",
            missing_because=NEEDS,
        )
        own.append((metric, numbered([gpu.sampled(name).mean() for gpu in found])))
    return own


def of_all(own: Own) -> Own:
    """The figures of samples of GPUs as those of all of them together."""
    known = {metric.name: (metric, values.known()) for metric, values in own}
    figures = {name: numbers for name, (_, numbers) in known.items()}
    return [
        (known[name][0], numbered([of_several(name, figures, np.arange(len(numbers)))]))
        for name, numbers in figures.items()
        if name in FIGURES_OF_SAMPLES and len(numbers)
    ]


class GpuSamples(Struct, frozen=True, eq=False, dict=True):
    """The samples of one GPU's signals in some spans of time, each taken when it is asked for."""

    run: Run
    gpu: int
    spans: TimeSpans
    curves: Mapping[str, IntegralCurve]
    """The whole signals."""
    signals: Mapping[str, Sampled]
    window_ns: float | None
    """Of rolling quantiles; None: there are none."""
    burst_w: float | None
    """The level of bursts; None: 110 % of the mean."""
    known_w: float
    """The mean power by energy over time; NaN: that of the samples is taken."""

    @classmethod
    def of(
        cls,
        run: Run,
        gpu: int,
        spans: TimeSpans,
        window_ns: float | None = None,
        burst_w: float | None = None,
        known_w: float = np.nan,
    ) -> GpuSamples:
        curves = curves_of(run, gpu)

        def taken(name: str) -> Sampled:
            return sampled(curves[name], spans) if name in curves else NO_SAMPLES

        signals = LazyMap((*SIGNALS, *curves), taken)
        return cls(run, gpu, spans, curves, signals, window_ns, burst_w, known_w)

    @cached_property
    def limit_w(self) -> float:
        """NaN where it isn't known."""
        cap = self.sampled("power_cap_w").mean()
        tdp_w = float(self.run.hardware.tdp_w) if self.run.hardware else np.nan
        return cap if np.isfinite(cap) else tdp_w

    @cached_property
    def rolled(self) -> Mapping[str, tuple[Int64, Float64]]:
        """The ends of the windows of rolling quantiles, and the quantiles."""
        window_ns = self.window_ns
        if window_ns is None:
            return {}
        return {name: self.signals[name].rolling(window_ns, share) for name, share in ROLLED}

    @cached_property
    def busy(self) -> Sampled:
        """The samples of the clock while the GPU is busy."""
        return clock_while_busy(self.run, self.gpu, self.spans)

    @cached_property
    def power_w(self) -> float:
        """The mean power; NaN where it isn't known."""
        return self.known_w if np.isfinite(self.known_w) else self.sampled("power_w").mean()

    @cached_property
    def bursts(self) -> tuple[float, float, float]:
        """How many bursts of power there are, their time and that of the longest in ns; NaN without
        samples."""
        power = self.sampled("power_w")
        if not len(power):
            return (np.nan,) * 3
        return power.above(BURST * power.mean() if self.burst_w is None else self.burst_w)

    def power_time(self, where: Callable[[Float64], Mask]) -> float:
        """The time of the samples of power that are so, in ns; NaN without samples or a limit."""
        power = self.sampled("power_w")
        if not len(power) or not np.isfinite(self.limit_w):
            return np.nan
        return float(power.weights_ns[where(power.values)].sum())

    def hot(self) -> Sampled:
        """The temperature of the hottest spot, else of the edge."""
        known = (self.signals[name] for name in HEAT if len(self.signals[name]))
        return next(known, self.sampled(HOTSPOT))

    def peak_at_ns(self) -> float:
        power = self.sampled("power_w")
        if not len(power):
            return np.nan
        return float(power.middles_ns[power.values.argmax()] - self.run.origin_ns)

    def of_power_time(self, time_ns: float) -> float:
        """A time in % of that of the samples of power."""
        whole = float(self.sampled("power_w").weights_ns.sum())
        return 100.0 * time_ns / whole if whole else np.nan

    def sampled(self, name: str) -> Sampled:
        return self.signals.get(name, NO_SAMPLES)

    def mean(self, name: str) -> float:
        """The mean over the scope's time; NaN where it isn't known."""
        return self.power_w if name == "power_w" else self.sampled(name).mean()

    def mean_rolled(self, name: str) -> float:
        if name not in self.rolled:
            return np.nan
        quantiles = self.rolled[name][1]
        return float(quantiles.mean()) if len(quantiles) else np.nan

    def spread_of(self, kinds: Sequence[str]) -> float:
        """Largest minus smallest mean of the dies, by the first kind that two of them have."""
        for kind in kinds:
            means = [own.mean() for name, own in self.signals.items() if name.startswith(kind)]
            known = [mean for mean in means if np.isfinite(mean)]
            if len(known) > 1:
                return max(known) - min(known)
        return np.nan


def curves_of(run: Run, gpu: int) -> Mapping[str, IntegralCurve]:
    """The signals of a GPU that figures of samples are of."""

    def found() -> dict[str, IntegralCurve]:
        parts = [name for name in run.measured if name.startswith((LIMITER, *DIES))]
        names = (*SIGNALS, "power_cap_w", "vram_bytes", *parts)
        known = {name: run.curve(name, gpu) for name in names}
        return {name: curve for name, curve in known.items() if curve is not None}

    return run.memo(("curves of samples", gpu), found)


def samples_of(
    run: Run, view: View, window_ns: float | None = None, burst_w: float | None = None
) -> list[GpuSamples]:
    """The samples of the scope's GPUs; rolling quantiles only with a window."""
    powers, spans = powers_of(run, view), spans_of(run, view)
    if untraced := untraced_in(run, view):
        of_steps = spans_of_windows(step_windows(run, view))
        spans = dict(sorted({**spans, **dict.fromkeys(untraced, of_steps)}.items()))
    return [
        GpuSamples.of(run, gpu, own, window_ns, burst_w, powers.get(gpu, np.nan))
        for gpu, own in spans.items()
    ]


FIGURES_OF_SAMPLES: Final[dict[str, Callable[[GpuSamples], float]]] = {
    "mean_power_w": lambda gpu: gpu.power_w,
    "p95_power_w": lambda gpu: gpu.sampled("power_w").quantile(0.95),
    "peak_power_w": lambda gpu: gpu.sampled("power_w").most(),
    "peak_at_ns": GpuSamples.peak_at_ns,
    "sd_power_w": lambda gpu: gpu.sampled("power_w").deviation(),
    "rolling_power_w": lambda gpu: gpu.mean_rolled("power_w"),
    "limit_w": lambda gpu: gpu.limit_w,
    "at_limit_pct": lambda gpu: gpu.of_power_time(
        gpu.power_time(lambda power: power >= AT_LIMIT * gpu.limit_w)
    ),
    "peak_over_w": lambda gpu: gpu.sampled("power_w").most() - gpu.limit_w,
    "over_limit_ns": lambda gpu: gpu.power_time(lambda power: power > gpu.limit_w),
    "bursts": lambda gpu: gpu.bursts[0],
    "burst_pct": lambda gpu: gpu.of_power_time(gpu.bursts[1]),
    "longest_burst_ns": lambda gpu: gpu.bursts[2],
    "mean_gfx_mhz": lambda gpu: gpu.sampled("gfx_mhz").mean(),
    "p05_gfx_mhz": lambda gpu: gpu.sampled("gfx_mhz").quantile(0.05),
    "busy_p05_mhz": lambda gpu: gpu.busy.quantile(0.05),
    "lowest_gfx_mhz": lambda gpu: gpu.sampled("gfx_mhz").least(),
    "sd_gfx_mhz": lambda gpu: gpu.sampled("gfx_mhz").deviation(),
    "rolling_gfx_mhz": lambda gpu: gpu.mean_rolled("gfx_mhz"),
    "mean_mem_mhz": lambda gpu: gpu.sampled("mem_mhz").mean(),
    "sd_mem_mhz": lambda gpu: gpu.sampled("mem_mhz").deviation(),
    "mean_hotspot_c": lambda gpu: gpu.sampled(HOTSPOT).mean(),
    "max_hotspot_c": lambda gpu: gpu.sampled(HOTSPOT).most(),
    "mean_hot_c": lambda gpu: gpu.hot().mean(),
    "hottest_c": lambda gpu: gpu.hot().most(),
    "peak_vram_bytes": lambda gpu: gpu.sampled("vram_bytes").most(),
    "mean_mem_c": lambda gpu: gpu.sampled("mem_c").mean(),
    "mean_edge_c": lambda gpu: gpu.sampled(EDGE).mean(),
    "throttled_pct": lambda gpu: gpu.sampled("throttle_pct").mean(),
    "die_spread_mhz": lambda gpu: gpu.spread_of(DIES[-1:]),
    "die_spread_c": lambda gpu: gpu.spread_of(DIES[:-1]),
}


class RowSamples(Struct, frozen=True, eq=False):
    """The samples of each GPU in the time of rows of activities, and the row of each."""

    found: Sequence[GpuSamples]
    owner: Index
    count: int

    @classmethod
    def of(cls, run: Run, nodes: Groups) -> RowSamples | None:
        """Of whole steps from the first start to the last end, of others while any activity runs;
        None of too many."""
        cells, owner = nodes.split(("gpu",))
        if len(cells) > MOST_SAMPLED:
            return None
        joules = METRICS["energy_j"].compute(Scope.of(run, cells)).known()
        watts = ratios(1e9 * joules, cells.elapsed_ns).tolist()
        starts, ends = cells.min("start_ns"), cells.max("end_ns")
        is_whole, found = StepCells.of(run, nodes).is_all, []
        for cell, gpu in enumerate(cells.codes("gpu").tolist()):
            if is_whole[owner[cell]]:
                spans = TimeSpans(starts[cell : cell + 1], ends[cell : cell + 1])
            else:
                rows = cells.part(cell)
                spans = TimeSpans.running(nodes.table.start_ns[rows], nodes.table.duration_ns[rows])
            found.append(GpuSamples.of(run, gpu, spans, WINDOW_NS, None, watts[cell]))
        return cls(found, owner, len(nodes))

    def figure(self, name: str) -> Values:
        names = (name, "peak_power_w") if name == PEAK_AT else (name,)
        figures = {
            each: np.array([FIGURES_OF_SAMPLES[each](gpu) for gpu in self.found], np.float64)
            for each in names
        }
        numbers, order = np.full(self.count, np.nan), stable_order(self.owner)
        for own in np.split(order, run_starts(self.owner[order])[1:]):
            numbers[self.owner[own[0]]] = of_several(name, figures, own)
        return numbered(numbers)


class Correlation(Struct, frozen=True):
    """Pearson's r of two series in time, and the number of independent samples it rests on."""

    r: float = np.nan
    independent: float = np.nan

    @classmethod
    def of(cls, one: Float64, other: Float64) -> Correlation:
        """That of two series, sample by sample, where both are known.

        Neighbouring samples repeat each other, so that n of them are worth n (1 - ab) / (1 + ab),
        with a and b the autocorrelations at lag 1 (Bartlett 1935).
        """
        known = np.isfinite(one) & np.isfinite(other)
        one, other = one[known], other[known]
        if len(one) < _FEWEST or np.ptp(one) == 0 or np.ptp(other) == 0:
            return cls()
        both = max(_lag_1(one) * _lag_1(other), 0.0)
        r = float(np.corrcoef(one, other)[0, 1])
        return cls(r, len(one) * (1 - both) / (1 + both))

    @property
    def by_chance(self) -> float:
        """The |r| that unrelated series exceed in 1 % of the cases (Fisher's z); NaN if unknown."""
        if self.independent < _FEWEST:
            return np.nan
        return float(np.tanh(CHANCE_Z / np.sqrt(self.independent - 3)))


def _lag_1(values: Float64) -> float:
    difference = values - values.mean()
    return float((difference[1:] * difference[:-1]).sum() / (difference**2).sum())


def correlations(run: Run, view: View, found: list[GpuSamples]) -> dict[str, Values]:
    """The correlations by the names of their columns, and the |r| that chance may show."""
    rows = _compute_rows(run, view)
    names = ("r_gfx_hotspot", "r_gfx_edge", "r_gfx_power", "r_time_gfx", "r_time_heat")
    of_gpus = []
    for gpu in found:
        clock = gpu.signals["gfx_mhz"]
        slower = _slowdowns(run, rows.get(gpu.gpu), clock)
        hotspot, edge, power = (
            means_during(clock, gpu.curves.get(name)) for name in (HOTSPOT, EDGE, "power_w")
        )
        pairs = [(clock.values, each) for each in (hotspot, edge, power)]
        pairs += [(slower, clock.values), (slower, hotspot if HOTSPOT in gpu.curves else edge)]
        of_gpus.append([Correlation.of(*pair) for pair in pairs])
    chances = np.array([[each.by_chance for each in own] for own in of_gpus])
    fewest = np.array([[each.independent for each in own] for own in of_gpus])
    known = np.isfinite(chances).any(axis=1)
    fewest = np.where(np.isfinite(chances), fewest, np.inf).min(axis=1)
    return {
        **{name: numbered([own[n].r for own in of_gpus]) for n, name in enumerate(names)},
        "r_chance": Values(np.fmax.reduce(chances, axis=1)),
        "r_samples": Values(np.where(known, fewest, 0).astype(np.int64), ~known),
    }


def _compute_rows(run: Run, view: View) -> dict[int, Index]:
    """The compute of each GPU of the scope that nothing overlaps, evenly thinned."""
    if run.is_sampled_only or not run.table.has_times:
        return {}
    table = run.table
    nodes: Groups = run.tree_of(view).split(view.path, ("gpu",))
    found = {}
    for place, gpu in enumerate(nodes.codes("gpu").tolist()):
        rows = nodes.rows_of(place)
        rows = rows[:: -(-len(rows) // _MAX_KERNELS)]
        alone = table.overlap_ns[rows] <= _MAX_OVERLAP * table.duration_ns[rows]
        found[int(gpu)] = rows[alone & (table.kind[rows] == Kind.COMPUTE)]
    return found


def _slowdowns(run: Run, rows: Index | None, clock: Sampled) -> Float64:
    """In the time of each sample, the duration of kernels over the mean of kernels of their name.

    A ratio of sums over the kernels that start then; NaN without any.
    """
    slower = np.full(len(clock), np.nan)
    if rows is None or not len(rows) or not len(clock):
        return slower
    table = run.table
    codes = table.kernel[rows].astype(np.int64) * (len(table.operations) + 1)
    _, kind = ranked((codes + table.operation[rows] + 1) * 16 + table.phase[rows] + 1)
    took = table.duration_ns[rows].astype(np.float64)
    usual = (sums_of(took, kind) / np.maximum(counts_of(kind), 1))[kind]
    start = table.start_ns[rows]
    place = np.searchsorted(clock.begins_ns, start, "right") - 1
    inside = (place >= 0) & (start < clock.ends_ns[place])
    sums, means = (sums_of(each[inside], place[inside], len(clock)) for each in (took, usual))
    return ratios(sums, means)
