"""The samples of the power view: their charts over time, and what goes with the clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.metrics import Values, numbered
from chopper_core.model.charts import BarChart, LineChart, Series, SignalRows
from chopper_core.model.column_names import EDGE, HOTSPOT
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.signals import IntegralCurve, TimeSpans
from chopper_core.model.table import Kind
from chopper_core.model.units import Unit
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Int64
from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import counts_of, means_of, ranked, ratios, sums_of
from chopper_core.views.shared.marks import outliers
from chopper_core.views.shared.samples import (
    MAX_POINTS,
    NO_SAMPLES,
    Sampled,
    beside_of,
    evenly,
    means_beside,
    sampled,
    spans_of,
)

_MAX_LINES: Final = 16
_MAX_BARS: Final = 40
_MIN_ROWS: Final = 2
_LARGEST_FIRST: Final = ("operation", "kernel")
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


def charts(found: Sequence[GpuSamples], origin_ns: int) -> tuple[LineChart | SignalRows, ...]:
    drawn: list[LineChart | SignalRows | None] = []
    for name, title, unit in (("power_w", "power", "W"), ("gfx_mhz", "gfx clock", "MHz")):
        signals = {f"GPU {gpu.gpu}": gpu.signals[name] for gpu in found if len(gpu.signals[name])}
        lines = {gpu: (own.middles_ns, own.values) for gpu, own in signals.items()}
        means = [own.mean() for own in signals.values()]
        drawn.append(_along(lines, title, unit, origin_ns, means))
    for name, title, unit in (
        ("gfx_mhz", "rolling 0.05 quantile of gfx clock", "MHz"),
        ("power_w", "rolling 0.95 quantile of power", "W"),
    ):
        lines = {f"GPU {gpu.gpu}": own for gpu in found if len((own := gpu.rolled[name])[0])}
        means = [float(values.mean()) for _, values in lines.values()]
        drawn.append(_along(lines, title, unit, origin_ns, means))
    few = found[:_MAX_LINES]
    drawn.append(_against(few, HOTSPOT, "hotspot", "°C") or _against(few, EDGE, "edge", "°C"))
    drawn.append(_against(few, "power_w", "power", "W"))
    return tuple(chart for chart in drawn if chart is not None)


def _against(found: Sequence[GpuSamples], other: str, title: str, unit: str) -> LineChart | None:
    clouds = {}
    for gpu in found:
        samples = gpu.signals["gfx_mhz"]
        clock, beside = beside_of(samples.at(evenly(len(samples))), gpu.curves.get(other))
        if len(clock):
            clouds[f"GPU {gpu.gpu}"] = (beside, clock)
    if not clouds:
        return None
    return LineChart.clouds(f"gfx clock against {title}", "MHz", title, unit, clouds)


def energy_bars(level: str, labels: Sequence[str], joules: Float64) -> tuple[BarChart, ...]:
    known = np.flatnonzero(np.isfinite(joules))
    if not len(known):
        return ()
    if level in _LARGEST_FIRST:
        known = known[np.argsort(-joules[known], kind="stable")]
    some = known[:_MAX_BARS]
    words = tuple(labels[place] for place in some.tolist())
    return (BarChart(f"energy by {level}", "J", words, (Series("energy", joules[some]),), level),)


def _along(
    lines: Mapping[str, tuple[Int64, Float64]],
    title: str,
    unit: str,
    origin_ns: int,
    means: Sequence[float],
) -> LineChart | SignalRows | None:
    """Signals along time, which have samples: of one GPU as a curve, of several as rows."""
    if not lines:
        return None
    begin = min(int(times[0]) for times, _ in lines.values())
    end = max(int(times[-1]) for times, _ in lines.values())
    scale = Unit.NS.scale(max(1e6, float(end - origin_ns)), is_whole=True)
    if len(lines) < _MIN_ROWS:
        name, (times, values) = next(iter(lines.items()))
        some = evenly(len(values))
        x = (times[some] - origin_ns) / scale.divisor
        return LineChart.over(title, unit, "time", scale.text, x, {name: values[some]})
    bins = min(MAX_POINTS, max(len(values) for _, values in lines.values()))
    numbers = []
    for times, values in lines.values():
        place = np.minimum((times - begin) * bins // max(end - begin, 1), bins - 1)
        numbers.append(means_of(values, place, bins))
    try:
        apart = outliers(numbered(means)).rows
    except UsageError:
        apart = ()
    ends = (begin - origin_ns) / scale.divisor, (end - origin_ns) / scale.divisor
    rows = np.stack(numbers)
    return SignalRows(
        title, unit, "time", scale.text, ends, tuple(lines), rows, np.array(means), apart
    )


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

    def sampled(self, name: str) -> Sampled:
        return self.signals.get(name, NO_SAMPLES)

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
    found = []
    for gpu, stretches in (spans_of(run, view) if spans is None else spans).items():
        curves = {
            name: run.measured[name].curves[gpu]
            for name in (*SIGNALS, "power_cap_w", "vram_bytes", *limiters)
            if name in run.measured and gpu in run.measured[name].curves
        }
        signals = dict.fromkeys(SIGNALS, NO_SAMPLES)
        signals |= {name: sampled(curve, stretches) for name, curve in curves.items()}
        cap = signals["power_cap_w"].mean() if "power_cap_w" in signals else np.nan
        limit_w = cap if np.isfinite(cap) else tdp_w
        rolled = {}
        if window_ns is not None:
            rolled = {name: signals[name].rolling(window_ns, share) for name, share in ROLLED}
        found.append(GpuSamples(gpu, signals, curves, limit_w, rolled))
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
    apart = values - values.mean()
    return float((apart[1:] * apart[:-1]).sum() / (apart**2).sum())


def correlations(run: Run, view: View, found: list[GpuSamples]) -> dict[str, Values]:
    """The correlations by the names of their columns, and the |r| that chance may show."""
    rows = _compute_rows(run, view)
    names = ("r_gfx_hotspot", "r_gfx_edge", "r_gfx_power", "r_time_gfx", "r_time_heat")
    of_gpus = []
    for gpu in found:
        clock = gpu.signals["gfx_mhz"]
        slower = _slowdowns(run, rows.get(gpu.gpu), clock)
        hotspot, edge, power = (
            means_beside(clock, gpu.curves.get(name)) for name in (HOTSPOT, EDGE, "power_w")
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
