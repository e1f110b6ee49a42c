"""The samples of GPUs in a scope's time: the columns of the power view, and their correlations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.rows import Own
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
from chopper_core.analyses.step_times import step_windows, untraced_in
from chopper_core.columns import Values, columns, computed_column, numbered
from chopper_core.columns.metric import quotient
from chopper_core.model.column_names import EDGE, HEAT, HOTSPOT
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.signals import IntegralCurve, TimeSpans
from chopper_core.model.table import Kind
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Int64
from chopper_core.util.grouping import counts_of, ranked, ratios, sums_of

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
_TIME: Final = (
    "over the scope's time on the GPU: of steps from the first start to the last end, of "
    "deeper levels while any activity runs"
)
_WEIGHTED: Final = "is the mean over the durations of the activities"
_NEEDS: Final = "no such telemetry of the GPU in the scope's time"
_SLOWER: Final = (
    "the duration of the kernels that start in the time of a sample of the clock, over the mean of "
    "kernels of the same name, operation and phase; compute that nothing overlaps"
)
_PER_DIE: Final = "telemetry has no such value per die: MI300X needs amd-smi metric or gpu_metrics"
_ALL_TIME: Final = "no telemetry of power or energy for all of the row's time"

OF_SAMPLES: Final = columns(
    f"""
    mean_power_w | W | mean power
        Mean power of the socket over the scope's time, idle time too: energy_j over elapsed_ns;
        where telemetry covers only part of it, the mean of its samples; power_w
        {_WEIGHTED}.
    p95_power_w | W | p95
        95th percentile of the power, {_TIME}.
    peak_power_w | W | peak
        The largest sample of the power, {_TIME}.
    peak_at_ns | ns | peak at
        Time of that sample: the middle of its period, from the run's first activity on.
    sd_power_w | W | ± power
        Standard deviation of the power, {_TIME}.
    power_x | x | of largest
        mean_power_w over that of the GPU with the largest.
    rolling_power_w | W | rolling p95
        Mean of the rolling 0.95 quantile of the power's samples (of=window:MS, 100 ms by default),
        {_TIME}.
    limit_w | W | limit
        The power cap in the telemetry, mean over the scope's time; else the product's power in
        hardware.toml.
        missing: no power cap in the telemetry, and the GPU is not in hardware.toml
        source: telemetry or hardware.toml
    at_limit_pct | % | at limit
        Share of the time with power in which it is at 98 % of limit_w or more.
        missing: {_NEEDS}, or limit_w is unknown
    peak_over_w | W | peak - limit | signed
        peak_power_w minus limit_w.
        missing: {_NEEDS}, or limit_w is unknown
        source: telemetry, and limit_w
    over_limit_ns | ns | over limit
        Time of the samples with more power than limit_w.
        missing: {_NEEDS}, or limit_w is unknown
        source: telemetry, and limit_w
    bursts | | bursts
        How often the power rises above a level and falls again: 110 % of mean_power_w, or
        of=burst:W.
    burst_pct | % | in bursts
        Share of the time with power samples that is spent in bursts.
    longest_burst_ns | ns | longest
        The time of the longest burst.
    mean_gfx_mhz | MHz | mean gfx
        Mean clock of the compute units, {_TIME}; gfx_mhz {_WEIGHTED}.
    p05_gfx_mhz | MHz | p05
        5th percentile of the compute units' clock, {_TIME}.
    busy_p05_mhz | MHz | p05 busy
        5th percentile of the compute units' clock while the GPU is busy, {_TIME}: idle time doesn't
        lower it. Without a trace, of the samples while its utilization is 90 % or more.
    lowest_gfx_mhz | MHz | lowest gfx
        The least sample of the clock of the compute units, {_TIME}.
    sd_gfx_mhz | MHz | ± gfx
        Standard deviation of the clock of the compute units, {_TIME}.
    gfx_x | x | of lowest
        mean_gfx_mhz over that of the GPU with the lowest.
    rolling_gfx_mhz | MHz | rolling p05
        Mean of the rolling 0.05 quantile of the clock's samples (of=window:MS, 100 ms by default),
        {_TIME}.
    mean_mem_mhz | MHz | mean mem
        Mean clock of the memory, {_TIME}; mem_mhz {_WEIGHTED}.
    sd_mem_mhz | MHz | ± mem
        Standard deviation of the clock of the memory, {_TIME}.
    mean_hotspot_c | °C | hotspot
        Mean temperature of the hottest spot, {_TIME}; hotspot_c {_WEIGHTED}.
    max_hotspot_c | °C | max
        Largest temperature of the hottest spot, {_TIME}.
    mean_hot_c | °C | mean hot
        Mean temperature: of the hottest spot, else of the edge, {_TIME}.
    hottest_c | °C | hottest
        Largest temperature: of the hottest spot, else of the edge, {_TIME}.
    peak_vram_bytes | B | peak VRAM
        The most memory in use on the GPU, {_TIME}.
    mean_mem_c | °C | mean mem °C
        Mean temperature of the memory, {_TIME}; mem_c {_WEIGHTED}.
    mean_edge_c | °C | mean edge °C
        Mean temperature at the edge of the die, {_TIME}; edge_c {_WEIGHTED}.
    throttled_pct | % | throttled
        Share of time under the driver's largest limiter, {_TIME}.
    die_spread_mhz | MHz | dies MHz
        Largest minus smallest mean clock of the GPU's dies (XCDs).
        missing: {_PER_DIE}
    die_spread_c | °C | dies °C
        Largest minus smallest mean temperature of the GPU's dies, else of its stacks of memory.
        missing: {_PER_DIE}
""",
    missing=_NEEDS,
    source="telemetry",
)
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
        missing: {_NEEDS}, no kernels in the time of four samples, or one doesn't change
        source: trace and telemetry
    r_time_heat | | r time °C | signed
        Pearson's correlation with the temperature (of the hotspot, else of the edge) of how slow
        kernels are: {_SLOWER}.
        missing: {_NEEDS}, no kernels in the time of four samples, or one doesn't change
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
    missing=f"{_NEEDS}, or one of the two doesn't change",
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
        Energy of a step over its tokens (see the view throughput): of a GPU its own, of an
        step those of all GPUs.
        missing: the tokens are unknown, or telemetry covers only part of a step
        source: telemetry, and trace or address
    energy_pct | % | of energy
        Share of the scope's energy.
        missing: {_ALL_TIME}
""",
    source="telemetry",
)


def columns_of_samples(run: Run, found: Sequence[GpuSamples], burst_w: float | None) -> Own:
    """The columns of some GPUs' samples: `OF_SAMPLES`, and one per limiter."""
    figures = [_figures(run, gpu, burst_w) for gpu in found]
    limiters = sorted({n for gpu in found for n in gpu.signals if n.startswith(LIMITER)})
    of_gpus = {name: np.array([each[name] for each in figures]) for name in figures[0]}
    power, gfx = of_gpus["mean_power_w"], of_gpus["mean_gfx_mhz"]
    made = {
        **{name: numbered(numbers) for name, numbers in of_gpus.items()},
        "power_x": quotient(power, np.full_like(power, np.fmax.reduce(power))),
        "gfx_x": quotient(gfx, np.full_like(gfx, np.fmin.reduce(gfx))),
    }
    own = [(metric, made[name]) for name, metric in OF_SAMPLES.items()]
    for name in limiters:
        part = name.removeprefix(LIMITER)
        metric = computed_column(
            f"throttled_{part}_pct",
            "%",
            part,
            f"Share of time under the limiter {part}, {_TIME}.",
            source="telemetry",
            missing_because=_NEEDS,
        )
        own.append((metric, numbered([gpu.sampled(name).mean() for gpu in found])))
    return own


def _figures(run: Run, gpu: GpuSamples, burst_w: float | None) -> dict[str, float]:
    power, gfx, mem, hotspot = map(gpu.sampled, ("power_w", "gfx_mhz", "mem_mhz", "hotspot_c"))
    hot = next((gpu.signals[name] for name in HEAT if len(gpu.signals[name])), hotspot)
    limit, whole = gpu.limit_w, float(power.weights_ns.sum())
    peak_at, bursts, at, over = np.nan, (np.nan,) * 3, np.nan, np.nan
    if len(power):
        peak_at = float(power.middles_ns[power.values.argmax()] - run.origin_ns)
        bursts = power.above(BURST * power.mean() if burst_w is None else burst_w)
        if np.isfinite(limit):
            at = 100.0 * float(power.weights_ns[power.values >= AT_LIMIT * limit].sum()) / whole
            over = float(power.weights_ns[power.values > limit].sum())
    return {
        "mean_power_w": gpu.power_w,
        "p95_power_w": power.quantile(0.95),
        "peak_power_w": power.most(),
        "peak_at_ns": peak_at,
        "sd_power_w": power.deviation(),
        "rolling_power_w": gpu.mean_rolled("power_w"),
        "limit_w": limit,
        "at_limit_pct": at,
        "peak_over_w": power.most() - limit,
        "over_limit_ns": over,
        "bursts": bursts[0],
        "burst_pct": 100.0 * bursts[1] / whole if len(power) else np.nan,
        "longest_burst_ns": bursts[2],
        "mean_gfx_mhz": gfx.mean(),
        "p05_gfx_mhz": gfx.quantile(0.05),
        "busy_p05_mhz": gpu.busy.quantile(0.05),
        "lowest_gfx_mhz": gfx.least(),
        "sd_gfx_mhz": gfx.deviation(),
        "rolling_gfx_mhz": gpu.mean_rolled("gfx_mhz"),
        "mean_mem_mhz": mem.mean(),
        "sd_mem_mhz": mem.deviation(),
        "mean_hotspot_c": hotspot.mean(),
        "max_hotspot_c": hotspot.most(),
        "mean_hot_c": hot.mean(),
        "hottest_c": hot.most(),
        "peak_vram_bytes": gpu.sampled("vram_bytes").most(),
        "mean_mem_c": gpu.sampled("mem_c").mean(),
        "mean_edge_c": gpu.sampled("edge_c").mean(),
        "throttled_pct": gpu.sampled("throttle_pct").mean(),
        "die_spread_mhz": gpu.spread_of(DIES[-1:]),
        "die_spread_c": gpu.spread_of(DIES[:-1]),
    }


class GpuSamples(Struct, frozen=True, eq=False):
    """The samples of one GPU's signals in the scope's time."""

    gpu: int
    signals: dict[str, Sampled]
    curves: dict[str, IntegralCurve]
    """The whole signals."""
    limit_w: float
    """NaN where it isn't known."""
    rolled: dict[str, tuple[Int64, Float64]]
    """The ends of the windows of rolling quantiles, and the quantiles."""
    busy: Sampled
    """The samples of the clock while the GPU is busy."""
    power_w: float
    """The mean power; NaN where it isn't known."""

    def sampled(self, name: str) -> Sampled:
        return self.signals.get(name, NO_SAMPLES)

    def mean(self, name: str) -> float:
        """The mean over the scope's time; NaN where it isn't known."""
        return self.power_w if name == "power_w" else self.sampled(name).mean()

    def mean_rolled(self, name: str) -> float:
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


def samples_of(
    run: Run,
    view: View,
    window_ns: float | None = None,
    spans: Mapping[int, TimeSpans] | None = None,
) -> list[GpuSamples]:
    """The samples of the scope's GPUs, or of some spans; rolling quantiles only with a window."""
    tdp_w = float(run.hardware.tdp_w) if run.hardware else np.nan
    limiters = [name for name in run.measured if name.startswith((LIMITER, *DIES))]
    found: list[GpuSamples] = []
    powers = powers_of(run, view) if spans is None else {}
    if spans is None:
        spans = spans_of(run, view)
        if untraced := untraced_in(run, view):
            of_steps = spans_of_windows(step_windows(run, view))
            spans = dict(sorted({**spans, **dict.fromkeys(untraced, of_steps)}.items()))
    for gpu, stretches in spans.items():
        curves = {
            name: curve
            for name in (*SIGNALS, "power_cap_w", "vram_bytes", *limiters)
            if (curve := run.curve(name, gpu)) is not None
        }
        signals = dict.fromkeys(SIGNALS, NO_SAMPLES)
        signals |= {name: sampled(curve, stretches) for name, curve in curves.items()}
        cap = signals["power_cap_w"].mean() if "power_cap_w" in signals else np.nan
        limit_w = cap if np.isfinite(cap) else tdp_w
        rolled = {}
        if window_ns is not None:
            rolled = {name: signals[name].rolling(window_ns, share) for name, share in ROLLED}
        busy = clock_while_busy(run, gpu, stretches)
        power_w = powers.get(gpu, signals["power_w"].mean())
        found.append(GpuSamples(gpu, signals, curves, limit_w, rolled, busy, power_w))
    return found


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
