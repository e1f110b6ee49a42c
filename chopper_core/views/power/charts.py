"""The charts of the power view: clocks and power over time and against each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from chopper_core.metrics import numbered
from chopper_core.model.charts import BarChart, LineChart, Series, SignalRows
from chopper_core.model.column_names import EDGE, HOTSPOT
from chopper_core.query.outliers import outliers
from chopper_core.util.arrays import Float64, Index, Int64
from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import distinct
from chopper_core.views.power.samples import GpuSamples
from chopper_core.views.shared.samples import beside_of

_MAX_POINTS: Final = 240
"""With more samples, evenly chosen ones are drawn."""
_MAX_LINES: Final = 16
_MAX_BARS: Final = 40
_MIN_ROWS: Final = 2
_LARGEST_FIRST: Final = ("operation", "kernel")


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
        curves = []
        for gpu, times, values in known:
            some = _thin(len(values))
            curves.append((gpu, (times[some] - origin_ns) / 1e6, values[some]))
        return _chart(title, unit, "time", "ms", curves)
    begin = min(int(times[0]) for _, times, _ in known)
    end = max(int(times[-1]) for _, times, _ in known)
    bins = max(min(_MAX_POINTS, max(len(values) for *_, values in known)), 1)
    numbers = np.stack([_binned(times, values, begin, end, bins) for _, times, values in known])
    of_rows = np.array(means or [float(values.mean()) for *_, values in known])
    return SignalRows(
        title,
        unit,
        "time",
        "ms",
        ((begin - origin_ns) / 1e6, (end - origin_ns) / 1e6),
        tuple(f"GPU {gpu}" for gpu, *_ in known),
        numbers,
        of_rows,
        _apart(of_rows),
    )


def _binned(times: Int64, values: Float64, begin: int, end: int, bins: int) -> Float64:
    """The mean of the values in equal parts of a stretch of time; NaN in those without any."""
    place = np.minimum((times - begin) * bins // max(end - begin, 1), bins - 1)
    known = np.isfinite(values)
    count = np.bincount(place[known], minlength=bins)
    total = np.bincount(place[known], weights=values[known], minlength=bins)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Float64 = np.where(count > 0, total / count, np.nan)
    return mean


def _apart(means: Float64) -> tuple[int, ...]:
    """The outliers among means; none where no rule tells them."""
    try:
        return outliers(numbered(means)).rows
    except UsageError:
        return ()
