"""The pictures of the view of power: clocks and power over time and against each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from chopper_core.analyses.samples import Sampled, beside_of
from chopper_core.pictures import BarChart, LineChart, Series
from chopper_core.tracks import Curve

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

_POINTS: Final = 240
"""Points of a line or a cloud, at most."""
_LINES: Final = 16
_BARS: Final = 40
_LARGEST_FIRST: Final = ("operation", "kernel")


class Samples(Protocol):
    """The samples of one GPU."""

    @property
    def gpu(self) -> int:
        """Its number."""

    @property
    def signals(self) -> dict[str, Sampled]:
        """What is known in the scope's time."""

    @property
    def rolled(self) -> dict[str, tuple[Int64, Float64]]:
        """The ends of windows, and the quantiles over them."""

    @property
    def curves(self) -> dict[str, Curve]:
        """The whole signals."""


def pictures(found: Sequence[Samples], origin_ns: int) -> tuple[LineChart, ...]:
    """Power over time, rolling quantiles, and the clock against temperature and power."""
    found = found[:_LINES]
    drawn = (
        _over_time(found, "power_w", "power", "W", origin_ns),
        _rolling(found, "gfx_mhz", "rolling 0.05 quantile of gfx clock", "MHz", origin_ns),
        _rolling(found, "power_w", "rolling 0.95 quantile of power", "W", origin_ns),
        _against(found, "hotspot_c", "hotspot", "°C"),
        _against(found, "power_w", "power", "W"),
    )
    return tuple(chart for chart in drawn if chart is not None)


def _thin(count: int) -> NDArray[np.intp]:
    """Places of at most `_POINTS` of so many, evenly."""
    return np.unique(np.linspace(0, count - 1, min(count, _POINTS)).round().astype(np.intp))


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


def _against(found: Sequence[Samples], other: str, title: str, unit: str) -> LineChart | None:
    """The clock's samples over another signal's means in their times."""
    clouds = []
    for gpu in found:
        samples = gpu.signals["gfx_mhz"]
        clock, beside = beside_of(samples.at(_thin(len(samples))), gpu.curves.get(other))
        if len(clock):
            clouds.append((gpu.gpu, beside, clock))
    return _chart(f"gfx clock against {title}", "MHz", title, unit, clouds, True)


def _rolling(
    found: Sequence[Samples], name: str, title: str, unit: str, origin_ns: int
) -> LineChart | None:
    lines = []
    for gpu in found:
        ends, values = gpu.rolled[name]
        if len(values):
            some = _thin(len(values))
            lines.append((gpu.gpu, (ends[some] - origin_ns) / 1e6, values[some]))
    return _chart(title, unit, "time", "ms", lines)


def energy_bars(level: str, labels: Sequence[str], joules: Float64) -> tuple[BarChart, ...]:
    """The energy of what takes most of it."""
    known = np.flatnonzero(np.isfinite(joules))
    if not len(known):
        return ()
    if level in _LARGEST_FIRST:
        known = known[np.argsort(-joules[known], kind="stable")]
    some = known[:_BARS]
    words = tuple(labels[place] for place in some.tolist())
    return (BarChart(f"energy by {level}", "J", words, (Series("energy", joules[some]),), level),)


def _over_time(
    found: Sequence[Samples], name: str, title: str, unit: str, origin_ns: int
) -> LineChart | None:
    lines = []
    for gpu in found:
        own = gpu.signals[name]
        if len(own):
            some = _thin(len(own))
            lines.append((gpu.gpu, (own.middles_ns[some] - origin_ns) / 1e6, own.values[some]))
    return _chart(title, unit, "time", "ms", lines)
