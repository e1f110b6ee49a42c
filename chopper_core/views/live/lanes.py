"""The latest samples of each GPU as lanes, and those of one GPU over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import Final

import numpy as np

from chopper_core.analyses.base import node_labels
from chopper_core.analyses.outliers import MIN_VALUES, spread_limit
from chopper_core.model.charts import GpuLanes, LineChart, Series, SignalRows
from chopper_core.model.column_names import EDGE, HOTSPOT
from chopper_core.model.run import Run
from chopper_core.model.signals import IntegralCurve, Signal, bounds_of
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64, Int64
from chopper_core.util.grouping import median_of
from chopper_core.views.shared.marks import mark_limits

NEAR_LIMIT: Final = 0.98
_LEAST_SHARE: Final = 0.02
"""A clock or use that is nearer to the others' median doesn't stand out."""
_BINS: Final = 240
LANES: Final = ("gfx_mhz", "gfx_util_pct", "power_w", HOTSPOT, EDGE)
_LINKS: Final = (
    *("nvlink_gbps", "nvlink_read_gbps", "nvlink_write_gbps"),
    *("xgmi_read_gbps", "xgmi_write_gbps", "pcie_gbps"),
)
FIGURES: Final = ("throttle_pct", "vram_bytes", "fan_pct", *_LINKS)
HISTORY: Final = (*LANES, "mem_mhz", "mem_util_pct", "mem_c", *FIGURES)
"""The signals of one GPU."""


def history_charts(
    measured: Mapping[str, Signal], gpu: int, limit_w: float, window: tuple[int, float]
) -> tuple[LineChart, ...]:
    """A chart of each signal of a GPU, with its limit."""
    end_ns, seconds = window
    hot_c = mark_limits().hot_c[1]
    limits = {"power_w": limit_w, HOTSPOT: hot_c, EDGE: hot_c}
    drawn = []
    for name in HISTORY:
        curve = measured[name].curves.get(gpu) if name in measured else None
        if curve is None or len(curve.edges_ns) < 2:
            continue
        begin_ns = max(int(curve.edges_ns[0]), end_ns - round(seconds * 1e9))
        if end_ns <= begin_ns:
            continue
        bounds = bounds_of(begin_ns, end_ns, _BINS)
        lines = {f"GPU {gpu}": curve.means(bounds)}
        if isfinite(limits.get(name, nan)):
            lines["limit"] = np.full(_BINS, limits[name])
        signal, ago_s = measured[name], (bounds[:-1] - end_ns) / 1e9
        drawn.append(LineChart.over(signal.title, signal.unit, "time", "s", ago_s, lines))
    return tuple(drawn)


def gpu_lanes(
    run: Run,
    measured: Mapping[str, Signal],
    gpus: list[int],
    now: Mapping[str, Float64],
    limit: Float64,
    window: tuple[int, float],
) -> tuple[GpuLanes, ...]:
    """The signals of all GPUs over the last minutes."""
    end_ns, seconds = window
    known = [measured[name] for name in LANES if name in measured]
    known = [each for each in known if each.name != EDGE or HOTSPOT not in measured]
    starts = [int(c.edges_ns[0]) for each in known for c in each.curves.values() if len(c.edges_ns)]
    begin_ns = max(end_ns - round(seconds * 1e9), min(starts, default=end_ns))
    if end_ns <= begin_ns:
        return ()
    bounds, nothing = bounds_of(begin_ns, end_ns, _BINS), np.full(_BINS, np.nan)
    alarms = run.recent.open_alarms if run.recent is not None else ()
    rows: list[SignalRows] = []
    raised: list[tuple[int, ...]] = []
    for signal in known:
        means = [_means(signal.curves.get(gpu), bounds, nothing) for gpu in gpus]
        latest = now[signal.name]
        alarmed = [(each.gpu, each.is_above) for each in alarms if each.name == signal.name]
        above, below = (
            np.array([(gpu, side) in alarmed for gpu in gpus], np.bool_) for side in (True, False)
        )
        if signal.name == "power_w":
            above |= latest >= NEAR_LIMIT * limit
        elif signal.name in (HOTSPOT, EDGE):
            above |= latest >= mark_limits().hot_c[1]
        else:
            far = _far(latest)
            above, below = above | (far > 0), below | (far < 0)
        raised.append(tuple(np.flatnonzero(above).tolist()))
        standing_out = tuple(np.flatnonzero(above | below).tolist())
        span = (begin_ns - end_ns) / 1e9, 0.0
        labels = tuple(map(str, gpus))
        drawn = np.array(means), latest, standing_out
        rows.append(SignalRows(signal.title, signal.unit, "time", "s", span, labels, *drawn))
    if not rows:
        return ()
    under = now.get("throttle_pct", nothing)
    last = Series("throttled", under) if np.isfinite(under).any() else None
    names = [" ".join(filter(None, each)) for each in zip(*name_words(run, gpus), strict=True)]
    whole = tuple(_of_all(each) for each in rows)
    caps = dict.fromkeys((HOTSPOT, EDGE), mark_limits().hot_c[1])
    if np.isfinite(limit).any():
        caps["power_w"] = float(np.nanmin(limit))
    limits = tuple(caps.get(each.name) for each in known)
    lanes = (tuple(rows), whole, limits, tuple(raised), last)
    return (GpuLanes("GPUs", rows[0].labels, tuple(names), *lanes),)


def _far(latest: Float64) -> Float64:
    """How far each GPU is from the others' median, where it stands out; 0 for the others.

    Where most of them are equal, whoever differs by more than a fiftieth stands out.
    """
    known = latest[np.isfinite(latest)]
    if len(known) < MIN_VALUES:
        return np.zeros(len(latest))
    distance = np.nan_to_num(latest - median_of(known))
    limit = max(spread_limit(known), _LEAST_SHARE * abs(median_of(known)))
    return np.where(np.abs(distance) > limit, distance, 0.0)


def _of_all(signal: SignalRows) -> float | None:
    """The latest value of all GPUs: of power the sum, if all are known, else the mean."""
    known = signal.means[np.isfinite(signal.means)]
    if signal.unit == Unit.WATTS:
        return float(known.sum()) if len(known) == len(signal.means) else None
    return float(known.mean()) if len(known) else None


def _means(curve: IntegralCurve | None, bounds: Int64, nothing: Float64) -> Float64:
    return nothing if curve is None or not len(curve.edges_ns) else curve.means(bounds)


def name_words(run: Run, gpus: Sequence[int]) -> tuple[list[str], list[str]]:
    """Node and rank (`r13`) of each GPU; '' where there is one node, or a rank has its number."""
    nothing = [""] * len(gpus)
    nodes = node_labels(run, gpus)
    is_other = any(run.rank_of[gpu] != gpu for gpu in gpus)
    ranks = [f"r{run.rank_of[gpu]}" for gpu in gpus] if is_other else nothing
    return nodes if len(set(nodes)) > 1 else nothing, ranks
