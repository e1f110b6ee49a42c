"""The latest samples of GPUs whose run is still going; older ones are thinned."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np

from chopper_core.model.signals import IntegralCurve, Signal, between
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64, Int64
from chopper_core.util.grouping import median_of

FRESH: Final = "live"
"""How fresh data is that was written in the last seconds."""
_MOST: Final = 2048
"""Spans that are kept of a signal of a GPU."""
_PERIODS: Final = 64
"""Of the latest samples, by which the period is known."""
_REACH: Final = 5
"""A sample holds until the next one, at most for so many periods."""


class ThinnedSamples:
    """A signal of a GPU as spans in rising order: one sample each, of older time several."""

    def __init__(self) -> None:
        self.begins_ns: Int64 = np.empty(0, np.int64)
        self.ends_ns: Int64 = np.empty(0, np.int64)
        self.figures: Float64 = np.empty((4, 0))
        """Least, mean and largest value of each span, and its number of samples."""

    def __len__(self) -> int:
        return len(self.begins_ns)

    def add(self, times_ns: Int64, values: Float64) -> None:
        known = np.isfinite(values)
        times, own = times_ns[known], np.stack([*[values[known]] * 3, np.ones(known.sum())])
        begins, ends = (np.concatenate([each, times]) for each in (self.begins_ns, self.ends_ns))
        figures = np.concatenate([self.figures, own], axis=1)
        if (begins[1:] < begins[:-1]).any():  # A clock was set back.
            order = np.argsort(begins, kind="stable")
            begins, ends, figures = begins[order], ends[order], figures[:, order]
        while len(begins) > _MOST:
            half = len(begins) // 4 * 2
            low, mean, high, count = figures[:, :half].reshape(4, -1, 2)
            total = count.sum(axis=1)
            merged = [low.min(1), (mean * count).sum(1) / total, high.max(1), total]
            figures = np.concatenate([np.stack(merged), figures[:, half:]], axis=1)
            begins = np.concatenate([begins[:half:2], begins[half:]])
            ends = np.concatenate([ends[1:half:2], ends[half:]])
        self.begins_ns, self.ends_ns, self.figures = begins, ends, figures

    def curve(self, since_ns: int) -> IntegralCurve:
        """The samples since then, and the one before."""
        first = max(int(np.searchsorted(self.ends_ns, since_ns)) - 1, 0)
        begins, ends = self.begins_ns[first:], self.ends_ns[first:]
        gaps = np.diff(begins[-_PERIODS:])
        period = max(int(median_of(gaps)), 1) if len(gaps) else 10**9
        nexts = np.append(begins[1:], begins[-1:] + period)
        stops = np.minimum(nexts, np.maximum(ends, begins) + _REACH * period)
        return between(begins, np.maximum(stops, begins), self.figures[1, first:])


class RecentSamples:
    """The latest samples of each signal of each GPU, and how fresh they are."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, int], ThinnedSamples] = {}
        self._units: dict[str, tuple[str, Unit]] = {}
        self._resolution: dict[tuple[str, int], tuple[int, str]] = {}
        self.newest_s = 0.0
        """When the newest data was written, in seconds since the epoch; 0 without any."""
        self.has_ended = False
        self.alarms: tuple[str, ...] = ()
        """Those that hold now, a sentence each."""
        self.alarmed: frozenset[int] = frozenset()
        """The GPUs that they are about."""

    def add(
        self,
        name: str,
        about: tuple[str, Unit],
        gpu: int,
        samples: tuple[Int64, Float64],
        source: tuple[int, str],
    ) -> None:
        """Add samples (times, values) of a source (resolution, path): of two the finer counts."""
        key = name, gpu
        owner = self._resolution.get(key) if key in self.series else None
        if owner is not None and owner[1] != source[1] and owner[0] <= source[0]:
            return
        if owner is None or owner[1] != source[1]:
            self._resolution[key], self.series[key] = source, ThinnedSamples()
            self._units[name] = about
        self.series[key].add(*samples)

    def age(self, now_s: float, stale_s: float = 3.0) -> str:
        """How fresh the data is, in a few words."""
        if self.has_ended:
            return "ended"
        if now_s - self.newest_s < stale_s:
            return FRESH
        return f"last data {now_s - self.newest_s:.0f} s ago"

    def signals(self, names: Collection[str], seconds: float) -> dict[str, Signal]:
        """Signals of the last seconds; their scale is that of all samples."""
        found: dict[str, dict[int, ThinnedSamples]] = {}
        known = {key: each for key, each in self.series.items() if len(each) and key[0] in names}
        newest = max((int(each.ends_ns[-1]) for each in known.values()), default=0)
        since_ns = newest - round(seconds * 1e9)
        for (name, gpu), series in sorted(known.items(), key=lambda item: item[0]):
            found.setdefault(name, {})[gpu] = series
        signals = {}
        for name, gpus in found.items():
            title, unit = self._units[name]
            low = min(float(each.figures[0].min()) for each in gpus.values())
            high = max(float(each.figures[2].max()) for each in gpus.values())
            if unit is Unit.PERCENT:
                low, high = 0.0, 100.0
            curves = {gpu: each.curve(since_ns) for gpu, each in gpus.items()}
            signals[name] = Signal(name, title, unit, curves, low, high)
        return signals
