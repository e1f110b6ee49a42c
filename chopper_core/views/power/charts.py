"""The samples of the power view: their charts over time, and what goes with the clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.metrics import Metric, Values, numbered
from chopper_core.model.charts import BarChart, LineChart, Series, SignalRows
from chopper_core.model.column_names import EDGE, HEAT, HOTSPOT
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.signals import IntegralCurve
from chopper_core.model.table import Kind
from chopper_core.model.units import Unit, UnitScale
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Int64
from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import counts_of, distinct, means_of, ranked, sums_of
from chopper_core.views.power import power_columns as c
from chopper_core.views.shared.marks import outliers
from chopper_core.views.shared.samples import (
    Sampled,
    TimeSpans,
    all_sampled,
    beside_of,
    means_beside,
    sampled,
    spans_of,
)

_MAX_POINTS: Final = 240
"""With more samples, evenly chosen ones are drawn."""
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
Own = list[tuple[Metric, Values]]

CHANCE_Z: Final = 2.576
"""Of the normal distribution: chance exceeds it on either side in 1 % of the cases."""
_FEWEST: Final = 4
"""Independent samples; fewer say nothing about chance."""
_MAX_KERNELS: Final = 1 << 18
"""Of a GPU with more, evenly chosen ones are compared."""
_MAX_OVERLAP: Final = 0.1
"""Of a kernel's time; communication next to it slows it too."""


def charts(found: Sequence[GpuSamples], origin_ns: int) -> tuple[LineChart | SignalRows, ...]:
    """Power and clock over time, rolling quantiles, the clock against temperature and power."""
    few = found[:_MAX_LINES]
    drawn = (
        _over_time(found, "power_w", "power", "W", origin_ns),
        _over_time(found, "gfx_mhz", "gfx clock", "MHz", origin_ns),
        _rolling(found, "gfx_mhz", "rolling 0.05 quantile of gfx clock", "MHz", origin_ns),
        _rolling(found, "power_w", "rolling 0.95 quantile of power", "W", origin_ns),
        _against(few, HOTSPOT, "hotspot", "°C") or _against(few, EDGE, "edge", "°C"),
        _against(few, "power_w", "power", "W"),
    )
    return tuple(chart for chart in drawn if chart is not None)


def _thin(count: int) -> Index:
    """Places of at most `_MAX_POINTS` of so many, evenly."""
    return distinct(np.linspace(0, count - 1, min(count, _MAX_POINTS)).round().astype(np.intp))


def _chart(
    title: str,
    unit: str,
    x_title: str,
    x_unit: str,
    lines: list[tuple[int, Float64, Float64]],
    points: bool = False,
) -> LineChart | None:
    if not lines:
        return None
    return LineChart(
        title,
        unit,
        x_title,
        x_unit,
        tuple(x for _, x, _ in lines),
        tuple(Series(f"GPU {gpu}", y) for gpu, _, y in lines),
        points,
    )


def _against(found: Sequence[GpuSamples], other: str, title: str, unit: str) -> LineChart | None:
    """The clock's samples over another signal's means in their times."""
    clouds = []
    for gpu in found:
        samples = gpu.signals["gfx_mhz"]
        clock, beside = beside_of(samples.at(_thin(len(samples))), gpu.curves.get(other))
        if len(clock):
            clouds.append((gpu.gpu, beside, clock))
    return _chart(f"gfx clock against {title}", "MHz", title, unit, clouds, True)


def _rolling(
    found: Sequence[GpuSamples], name: str, title: str, unit: str, origin_ns: int
) -> LineChart | SignalRows | None:
    lines = [(gpu.gpu, *gpu.rolled[name]) for gpu in found]
    return _along(lines, title, unit, origin_ns)


def energy_bars(level: str, labels: Sequence[str], joules: Float64) -> tuple[BarChart, ...]:
    """The energy of the rows that take most."""
    known = np.flatnonzero(np.isfinite(joules))
    if not len(known):
        return ()
    if level in _LARGEST_FIRST:
        known = known[np.argsort(-joules[known], kind="stable")]
    some = known[:_MAX_BARS]
    words = tuple(labels[place] for place in some.tolist())
    return (BarChart(f"energy by {level}", "J", words, (Series("energy", joules[some]),), level),)


def _over_time(
    found: Sequence[GpuSamples], name: str, title: str, unit: str, origin_ns: int
) -> LineChart | SignalRows | None:
    signals = [(gpu.gpu, gpu.signals[name]) for gpu in found]
    lines = [(gpu, own.middles_ns, own.values) for gpu, own in signals]
    means = [own.mean() for _, own in signals if len(own)]
    return _along(lines, title, unit, origin_ns, means)


def _along(
    lines: list[tuple[int, Int64, Float64]],
    title: str,
    unit: str,
    origin_ns: int,
    means: Sequence[float] = (),
) -> LineChart | SignalRows | None:
    """Signals along time: of one GPU as a curve, of several as rows.

    Means are those over time, where they are known; else those of the values.
    """
    known = [line for line in lines if len(line[2])]
    if len(known) < _MIN_ROWS:
        scale = _time_scale(*(float(times[-1] - origin_ns) for _, times, _ in known))
        curves = []
        for gpu, times, values in known:
            some = _thin(len(values))
            curves.append((gpu, (times[some] - origin_ns) / scale.divisor, values[some]))
        return _chart(title, unit, "time", scale.text, curves)
    begin = min(int(times[0]) for _, times, _ in known)
    end = max(int(times[-1]) for _, times, _ in known)
    bins = max(min(_MAX_POINTS, max(len(values) for *_, values in known)), 1)
    numbers = np.stack([_binned(times, values, begin, end, bins) for _, times, values in known])
    scale = _time_scale(end - origin_ns)
    of_rows = np.array(means or [float(values.mean()) for *_, values in known])
    return SignalRows(
        title,
        unit,
        "time",
        scale.text,
        ((begin - origin_ns) / scale.divisor, (end - origin_ns) / scale.divisor),
        tuple(f"GPU {gpu}" for gpu, *_ in known),
        numbers,
        of_rows,
        _apart(of_rows),
    )


def _time_scale(*ends_ns: float) -> UnitScale:
    """The scale of a time axis from its end: ms up to 10 s."""
    return Unit.NS.scale(max((1e6, *ends_ns)), is_whole=True)


def _binned(times: Int64, values: Float64, begin: int, end: int, bins: int) -> Float64:
    """The mean of the values in equal parts of a stretch of time; NaN in those without any."""
    place = np.minimum((times - begin) * bins // max(end - begin, 1), bins - 1)
    known = np.isfinite(values)
    return means_of(values[known], place[known], bins)


def _apart(means: Float64) -> tuple[int, ...]:
    """The outliers among means; none where no rule applies."""
    try:
        return outliers(numbered(means)).rows
    except UsageError:
        return ()


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
        signals = all_sampled(curves, stretches)
        for name in SIGNALS:
            signals.setdefault(name, sampled(None, stretches))
        cap = signals["power_cap_w"].mean() if "power_cap_w" in signals else np.nan
        limit_w = cap if np.isfinite(cap) else tdp_w
        rolled = {}
        if window_ns is not None:
            rolled = {name: signals[name].rolling(window_ns, share) for name, share in ROLLED}
        found.append(GpuSamples(gpu, signals, curves, limit_w, rolled))
    return found


class Correlation(Struct, frozen=True):
    """Pearson's r of two series in time, and the number of independent samples it rests on."""

    r: float
    independent: float

    @classmethod
    def of(cls, one: Float64, other: Float64) -> Correlation:
        """That of two series, sample by sample.

        Neighbouring samples repeat each other, so that n of them are worth n (1 - ab) / (1 + ab),
        with a and b the autocorrelations at lag 1 (Bartlett 1935).
        """
        if len(one) < _FEWEST or np.ptp(one) == 0 or np.ptp(other) == 0:
            return NOTHING
        both = max(_lag_1(one) * _lag_1(other), 0.0)
        r = float(np.corrcoef(one, other)[0, 1])
        return cls(r, len(one) * (1 - both) / (1 + both))

    @property
    def by_chance(self) -> float:
        """The |r| that unrelated series exceed in 1 % of the cases (Fisher's z); NaN if unknown."""
        if self.independent < _FEWEST:
            return np.nan
        return float(np.tanh(CHANCE_Z / np.sqrt(self.independent - 3)))


NOTHING: Final = Correlation(np.nan, np.nan)


def _lag_1(values: Float64) -> float:
    apart = values - values.mean()
    return float((apart[1:] * apart[:-1]).sum() / (apart**2).sum())


def correlations(run: Run, view: View, found: list[GpuSamples]) -> Own:
    """The columns of the correlations, and of the |r| that chance may show."""
    rows = _compute_rows(run, view)
    pairs: dict[str, list[Correlation]] = {name: [] for name in _COLUMNS}
    for gpu in found:
        clock = gpu.signals["gfx_mhz"]
        slower = _slowdowns(run, rows.get(gpu.gpu), clock)
        heat = next((name for name in HEAT if name in gpu.curves), EDGE)
        beside = {name: means_beside(clock, gpu.curves.get(name)) for name in (*HEAT, "power_w")}
        for name, means in beside.items():
            pairs[name].append(_with(clock.values, means))
        pairs["time"].append(_with(slower, clock.values))
        pairs["heat"].append(_with(slower, beside[heat]))
    own: Own = [
        (metric, numbered([each.r for each in pairs[name]])) for name, metric in _COLUMNS.items()
    ]
    chances = np.array([[each.by_chance for each in pairs[name]] for name in _COLUMNS])
    fewest = np.array([[each.independent for each in pairs[name]] for name in _COLUMNS])
    known = np.isfinite(chances).any(axis=0)
    with np.errstate(invalid="ignore"):
        chance = np.where(known, np.where(np.isfinite(chances), chances, -1.0).max(axis=0), np.nan)
        least = np.where(np.isfinite(chances), fewest, np.inf).min(axis=0)
    own.append((c.CHANCE, numbered(chance)))
    own.append((c.INDEPENDENT, Values(np.where(known, least, 0).astype(np.int64), ~known)))
    return own


_COLUMNS: Final = {
    "hotspot_c": c.BY_TEMPERATURE,
    "edge_c": c.BY_EDGE,
    "power_w": c.BY_POWER,
    "time": c.TIME_BY_CLOCK,
    "heat": c.TIME_BY_HEAT,
}


def _with(one: Float64, other: Float64) -> Correlation:
    known = np.isfinite(one) & np.isfinite(other)
    return Correlation.of(one[known], other[known])


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
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(means > 0, sums / means, np.nan), np.float64)
