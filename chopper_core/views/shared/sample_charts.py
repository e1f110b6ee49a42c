"""The charts of the samples of GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from chopper_core.analyses.outliers import outliers
from chopper_core.analyses.power_samples import (
    GpuSamples,
)
from chopper_core.analyses.samples import MAX_POINTS, even_places, paired_with
from chopper_core.columns import numbered
from chopper_core.model.charts import LineChart, SignalRows
from chopper_core.model.column_names import EDGE, HOTSPOT
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64, Int64
from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import means_of

_MAX_LINES: Final = 16
_MIN_ROWS: Final = 2


def charts(found: Sequence[GpuSamples], origin_ns: int) -> tuple[LineChart | SignalRows, ...]:
    drawn: list[LineChart | SignalRows | None] = []
    for name, title, unit in (("power_w", "power", "W"), ("gfx_mhz", "gfx clock", "MHz")):
        signals = {f"GPU {gpu.gpu}": gpu.signals[name] for gpu in found if len(gpu.signals[name])}
        lines = {gpu: (own.middles_ns, own.values) for gpu, own in signals.items()}
        means = [gpu.mean(name) for gpu in found if len(gpu.signals[name])]
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
        clock, others = paired_with(samples.take(even_places(len(samples))), gpu.curves.get(other))
        if len(clock):
            clouds[f"GPU {gpu.gpu}"] = (others, clock)
    if not clouds:
        return None
    return LineChart.clouds(f"gfx clock against {title}", "MHz", title, unit, clouds)


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
        some = even_places(len(values))
        x = (times[some] - origin_ns) / scale.divisor
        return LineChart.over(title, unit, "time", scale.text, x, {name: values[some]})
    bins = min(MAX_POINTS, max(len(values) for _, values in lines.values()))
    numbers = []
    for times, values in lines.values():
        place = np.minimum((times - begin) * bins // max(end - begin, 1), bins - 1)
        numbers.append(means_of(values, place, bins))
    try:
        standing_out = outliers(numbered(means)).rows
    except UsageError:
        standing_out = ()
    ends = (begin - origin_ns) / scale.divisor, (end - origin_ns) / scale.divisor
    rows = np.stack(numbers)
    return SignalRows(
        title, unit, "time", scale.text, ends, tuple(lines), rows, np.array(means), standing_out
    )
