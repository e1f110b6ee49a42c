"""What the figures of samples are, and how those of several GPUs make that of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from chopper_core.columns.metric import parse_columns
from chopper_core.util.arrays import Float64, Index

TIME: Final = (
    "over the scope's time on the GPU: of steps from the first start to the last end, of "
    "deeper levels while any activity runs"
)
_WEIGHTED: Final = "is the mean over the durations of the activities"
NEEDS: Final = "no such telemetry of the GPU in the scope's time"
_PER_DIE: Final = "telemetry has no such value per die: MI300X needs amd-smi metric or gpu_metrics"
MOST_SAMPLED: Final = 2048
"""Rows of a GPU; the samples of more take seconds."""
_SUMS: Final = ("mean_power_w", "bursts")
_LARGEST: Final = ("peak", "hottest", "max", "longest")
_SMALLEST: Final = ("lowest", "busy_p05")
PEAK_AT: Final = "peak_at_ns"
_TEXTS: Final[dict[Callable[[Float64], float], str]] = {
    np.sum: "the sum",
    np.max: "the largest",
    np.min: "the smallest",
    np.mean: "the mean",
}
DECLARED: Final = parse_columns(
    f"""
    mean_power_w | W | mean power
        Mean power of the socket over the scope's time, idle time too: energy_j over elapsed_ns;
        where telemetry covers only part of it, the mean of its samples; power_w
        {_WEIGHTED}.
    p95_power_w | W | p95 power
        95th percentile of the power, {TIME}.
    peak_power_w | W | peak power
        The largest sample of the power, {TIME}.
    peak_at_ns | ns | peak at
        Time of that sample: the middle of its period, from the run's first activity on.
    sd_power_w | W | ± power
        Standard deviation of the power, {TIME}.
    power_x | x | of most power
        mean_power_w over that of the GPU with the largest.
    rolling_power_w | W | rolling p95
        Mean of the rolling 0.95 quantile of the power's samples (of=window:MS, 100 ms by default),
        {TIME}.
    limit_w | W | power limit
        The power cap in the telemetry, mean over the scope's time; else the product's power in
        hardware.toml.
        missing: no power cap in the telemetry, and the GPU is not in hardware.toml
        source: telemetry or hardware.toml
    at_limit_pct | % | at limit
        Share of the time with power in which it is at 98 % of limit_w or more.
        missing: {NEEDS}, or limit_w is unknown
    peak_over_w | W | peak - limit | signed
        peak_power_w minus limit_w.
        missing: {NEEDS}, or limit_w is unknown
        source: telemetry, and limit_w
    over_limit_ns | ns | over limit
        Time of the samples with more power than limit_w.
        missing: {NEEDS}, or limit_w is unknown
        source: telemetry, and limit_w
    bursts | | bursts
        How often the power rises above a level and falls again: 110 % of mean_power_w, or
        of=burst:W.
    burst_pct | % | in bursts
        Share of the time with power samples that is spent in bursts.
    longest_burst_ns | ns | longest burst
        The time of the longest burst.
    mean_gfx_mhz | MHz | mean gfx
        Mean clock of the compute units, {TIME}; gfx_mhz {_WEIGHTED}.
    p05_gfx_mhz | MHz | p05 gfx
        5th percentile of the compute units' clock, {TIME}.
    busy_p05_mhz | MHz | p05 gfx busy
        5th percentile of the compute units' clock while the GPU is busy, {TIME}: idle time doesn't
        lower it. Without a trace, of the samples while its utilization is 90 % or more.
    lowest_gfx_mhz | MHz | lowest gfx
        The least sample of the clock of the compute units, {TIME}.
    sd_gfx_mhz | MHz | ± gfx
        Standard deviation of the clock of the compute units, {TIME}.
    gfx_x | x | of lowest gfx
        mean_gfx_mhz over that of the GPU with the lowest.
    rolling_gfx_mhz | MHz | rolling p05
        Mean of the rolling 0.05 quantile of the clock's samples (of=window:MS, 100 ms by default),
        {TIME}.
    mean_mem_mhz | MHz | mean mem
        Mean clock of the memory, {TIME}; mem_mhz {_WEIGHTED}.
    sd_mem_mhz | MHz | ± mem
        Standard deviation of the clock of the memory, {TIME}.
    mean_hotspot_c | °C | hotspot
        Mean temperature of the hottest spot, {TIME}; hotspot_c {_WEIGHTED}.
    max_hotspot_c | °C | max hotspot
        Largest temperature of the hottest spot, {TIME}.
    mean_hot_c | °C | mean hot
        Mean temperature: of the hottest spot, else of the edge, {TIME}.
    hottest_c | °C | hottest
        Largest temperature: of the hottest spot, else of the edge, {TIME}.
    peak_vram_bytes | B | peak VRAM
        The most memory in use on the GPU, {TIME}.
    mean_mem_c | °C | mean mem °C
        Mean temperature of the memory, {TIME}; mem_c {_WEIGHTED}.
    mean_edge_c | °C | mean edge °C
        Mean temperature at the edge of the die, {TIME}; edge_c {_WEIGHTED}.
    throttled_pct | % | throttled
        Share of time under the driver's largest limiter, {TIME}.
    die_spread_mhz | MHz | dies MHz
        Largest minus smallest mean clock of the GPU's dies (XCDs).
        missing: {_PER_DIE}
    die_spread_c | °C | dies °C
        Largest minus smallest mean temperature of the GPU's dies, else of its stacks of memory.
        missing: {_PER_DIE}
""",
    missing=NEEDS,
    source="telemetry",
)
OF_ROWS: Final = ("power_x", "gfx_x")
"""Columns that compare a row with the others."""


def together(name: str) -> Callable[[Float64], float]:
    """How the figures of several GPUs make that of all of them."""
    if name in _SUMS:
        return np.sum
    if name.startswith(_LARGEST):
        return np.max
    return np.min if name.startswith(_SMALLEST) else np.mean


def of_several(name: str, figures: Mapping[str, Float64], at: Index) -> float:
    """A figure of several GPUs as that of all of them; NaN where one lacks it."""
    own = figures[name][at]
    if not np.isfinite(own).all():
        return np.nan
    if name == PEAK_AT:
        return float(own[figures["peak_power_w"][at].argmax()])
    return float(together(name)(own))


def text_of_several(name: str) -> str:
    text = "that of the largest" if name == PEAK_AT else _TEXTS[together(name)]
    return f" Of several GPUs together: {text}."
