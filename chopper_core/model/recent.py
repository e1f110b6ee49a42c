"""The latest samples of GPUs whose run is still going; older ones are thinned."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from math import nan
from time import time
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.memo import LazyMap
from chopper_core.model.phrases import age_text, count
from chopper_core.model.recent_steps import RecentSteps
from chopper_core.model.signals import IntegralCurve, Signal, between
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64, Int64
from chopper_core.util.grouping import median_of

FRESH: Final = "live"
"""How fresh data is that was written in the last seconds."""
STALE_S: Final = 10.0
"""A GPU without a sample for so long has no figures."""
_MOST: Final = 2048
"""Spans that are kept of a signal of a GPU."""
_PERIODS: Final = 64
"""Of the latest samples, by which the period is known."""
_MOST_EVENTS: Final = 100
_REACH: Final = 5
"""A sample holds until the next one, at most for so many periods."""


class ThinnedSamples:
    """A signal of a GPU as spans in rising order: one sample each, of older time several."""

    def __init__(self) -> None:
        self._spans: tuple[Int64, Int64, Float64]
        """Set at once: other threads read them."""
        self._spans = self._room = np.empty(0, np.int64), np.empty(0, np.int64), np.empty((4, 0))
        """The spans, and the arrays that they are the beginning of: more are added behind them."""

    @property
    def begins_ns(self) -> Int64:
        return self._spans[0]

    @property
    def ends_ns(self) -> Int64:
        return self._spans[1]

    @property
    def figures(self) -> Float64:
        """Least, mean and largest value of each span, and its number of samples."""
        return self._spans[2]

    def __len__(self) -> int:
        return len(self.begins_ns)

    def add(self, times_ns: Int64, values: Float64) -> None:
        """Add samples; one at a known time replaces that, one older than a merged span is known."""
        new = np.isfinite(values)
        is_later = not len(self) or not len(times_ns) or times_ns[0] > self.begins_ns[-1]
        if is_later and (times_ns[1:] > times_ns[:-1]).all():
            self._append(times_ns[new], values[new])
            return
        merged = int(np.count_nonzero(self.figures[3] > 1))
        if merged:
            new &= times_ns > self.ends_ns[merged - 1]
        times, own = times_ns[new], np.stack([*[values[new]] * 3, np.ones(new.sum())])
        kept = np.ones(len(self), np.bool_)
        if len(self) and len(times) and times[0] <= self.begins_ns[-1]:
            kept[merged:] = ~np.isin(self.begins_ns[merged:], times)
        begins = np.concatenate([self.begins_ns[kept], times])
        ends = np.concatenate([self.ends_ns[kept], times])
        figures = np.concatenate([self.figures[:, kept], own], axis=1)
        if (begins[1:] < begins[:-1]).any():
            order = np.argsort(begins, kind="stable")
            begins, ends, figures = begins[order], ends[order], figures[:, order]
        self._set(begins, ends, figures)

    def _append(self, times_ns: Int64, values: Float64) -> None:
        """Add samples in rising order that are later than all before, behind these."""
        count, size = len(self), len(self) + len(times_ns)
        if size > len(self._room[0]):
            more = size - count + _MOST // 4
            begins, ends = (np.append(own, np.empty(more, np.int64)) for own in self._spans[:2])
            figures = np.append(self.figures, np.empty((4, more)), axis=1)
            self._room = begins, ends, figures
        begins, ends, figures = self._room
        begins[count:size] = ends[count:size] = times_ns
        figures[:3, count:size], figures[3, count:size] = values, 1.0
        if size > _MOST:
            self._set(begins[:size], ends[:size], figures[:, :size])
        else:
            self._spans = begins[:size], ends[:size], figures[:, :size]

    def _set(self, begins: Int64, ends: Int64, figures: Float64) -> None:
        """Take spans in rising order; of too many the earlier half is merged in pairs."""
        while len(begins) > _MOST:
            half = len(begins) // 4 * 2
            low, mean, high, count = figures[:, :half].reshape(4, -1, 2)
            total = count.sum(axis=1)
            pairs = [low.min(1), (mean * count).sum(1) / total, high.max(1), total]
            figures = np.concatenate([np.stack(pairs), figures[:, half:]], axis=1)
            begins = np.concatenate([begins[:half:2], begins[half:]])
            ends = np.concatenate([ends[1:half:2], ends[half:]])
        self._spans = self._room = begins, ends, figures

    @property
    def period_ns(self) -> int:
        gaps = np.diff(self.begins_ns[-_PERIODS:])
        return max(int(median_of(gaps)), 1) if len(gaps) else 10**9

    def curve(self, since_ns: int) -> IntegralCurve:
        """The samples since then, and the one before."""
        begins, ends, figures = self._spans
        first = max(int(np.searchsorted(ends, since_ns)) - 1, 0)
        begins, ends, period_ns = begins[first:], ends[first:], self.period_ns
        nexts = np.append(begins[1:], begins[-1:] + period_ns)
        stops = np.minimum(nexts, np.maximum(ends, begins) + _REACH * period_ns)
        return between(begins, np.maximum(stops, begins), figures[1, first:])


class AlarmEvent(Struct, eq=False):
    """A limit that something went beyond."""

    alarm: str
    name: str
    """Of the signal, or `step_time`."""
    gpu: int | None
    """None where it is about a step."""
    text: str
    """A sentence with the latest figure."""
    holds: bool
    began_s: float
    """When it was noticed, in seconds since the epoch."""
    value: float = nan
    """The latest figure beyond the limit, and the limit, in the unit of the signal; of a step in
    ms."""
    limit: float = nan
    is_above: bool = True
    ended_s: float = nan
    """When it was noticed that it holds no more."""


class NodeGpu(Struct, frozen=True):
    """What a library knows of a GPU of this node."""

    model: str
    pci: str
    memory_bytes: int
    """0 where unknown."""


class NodeProcess(Struct, frozen=True):
    """A process with memory on a GPU of this node."""

    gpu: int
    pid: int
    memory_bytes: int
    """-1 where unknown."""
    user: str
    command: str
    """'' where unknown, as of processes outside a container."""


class OtherRun(Struct, frozen=True):
    """A run in the directory of the one that is followed, as far as is known without reading it."""

    name: str
    """Its path below the directory."""
    ranks: int
    step: int
    """Its newest step; -1 where that isn't known."""
    newest_s: float
    """When it was written last, in seconds since the epoch."""

    def text(self, now_s: float) -> str:
        """What it is, in a few words."""
        parts = [count(self.ranks, "rank")] if self.ranks > 0 else []
        parts += [f"newest step {self.step:,}"] if self.step >= 0 else []
        parts.append(f"written {age_text(now_s - self.newest_s)} ago")
        return f"{self.name}: {', '.join(parts)}"


class RecentSamples:
    """The latest samples of each signal of each GPU, and how fresh they are."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, int], ThinnedSamples] = {}
        self._units: dict[str, tuple[str, Unit]] = {}
        self._resolution: dict[tuple[str, int], tuple[int, str]] = {}
        self._came_s: dict[tuple[str, int], float] = {}
        """When the newest sample of each came here: clocks of files may be others."""
        self.newest_s = 0.0
        """When the newest data was written, in seconds since the epoch; 0 without any."""
        self.has_ended = False
        self.steps = RecentSteps()
        self.gpus: Mapping[int, NodeGpu] = {}
        """Of this node, by their number."""
        self.processes: tuple[NodeProcess, ...] = ()
        """On the GPUs of this node."""
        self.lacks = ""
        """What isn't read of this node's GPUs, and why."""
        self.silent: dict[int, str] = {}
        """The GPUs of this node that give no samples: since when, and the library's error."""
        self.problem = ""
        """Why the run can't be read as its files are now."""
        self.gone = ""
        """The files that are gone or renamed since they were read, in a few words."""
        self.others: tuple[OtherRun, ...] = ()
        """The runs in the same directory, the newest first."""
        self.events: list[AlarmEvent] = []
        """The latest alarms, the newest last."""

    @property
    def open_alarms(self) -> tuple[AlarmEvent, ...]:
        """Those that hold now."""
        return tuple(event for event in self.events if event.holds)

    def note(
        self,
        alarm: str,
        name: str,
        gpu: int | None,
        text: str,
        *,
        holds: bool,
        figures: tuple[float, float, bool] = (nan, nan, True),
    ) -> None:
        """Note what an alarm says of a GPU, or of a step; '' where it is within its limit.

        `figures` are the value, the limit, and whether the value is above it.
        """
        last = next(
            (e for e in self.events if (e.alarm, e.gpu, e.holds) == (alarm, gpu, True)), None
        )
        if last is not None:
            last.holds = bool(text) and holds
            last.text = text or last.text
            if text:
                last.value, last.limit, last.is_above = figures
            if not last.holds:
                last.ended_s = time()
        elif text:
            self.events = [
                *self.events[1 - _MOST_EVENTS :],
                AlarmEvent(
                    alarm, name, gpu, text, holds, time(), *figures, nan if holds else time()
                ),
            ]

    def add(
        self,
        name: str,
        about: tuple[str, Unit],
        gpu: int,
        samples: tuple[Int64, Float64],
        source: tuple[int, str],
    ) -> None:
        """Add samples (times, values) of a source (resolution, path).

        Of two sources the finer counts, as long as it gives any.
        """
        key, series = (name, gpu), self.series.get((name, gpu))
        owner = self._resolution.get(key)
        if series is None or owner is None:
            self.series[key] = series = ThinnedSamples()
        elif owner[1] != source[1] and len(series) and len(samples[0]):
            silent_ns = samples[0][0] - series.ends_ns[-1]
            if silent_ns <= _REACH * series.period_ns:
                if owner[0] <= source[0]:
                    return
                self.series[key] = series = ThinnedSamples()
        self._resolution[key] = source
        if len(samples[0]) and (not len(series) or samples[0][-1] > series.ends_ns[-1]):
            self._came_s[key] = time()
        self._units[name] = about
        series.add(*samples)

    def age(self, now_s: float, stale_s: float = 3.0) -> str:
        """How fresh the data is, in a few words."""
        if self.has_ended:
            return "ended"
        if now_s - self.newest_s < stale_s:
            return FRESH
        return f"last data {now_s - self.newest_s:.0f} s ago"

    def stale(self, now_s: float) -> frozenset[tuple[str, int]]:
        """The signals of GPUs without a sample for `STALE_S`, unless the recording is over."""
        if self.has_ended:
            return frozenset()
        return frozenset(key for key, at in self._came_s.items() if now_s - at > STALE_S)

    def signals(self, names: Collection[str], seconds: float) -> dict[str, Signal]:
        """Signals of the last seconds; their scale is that of all samples."""
        found: dict[str, dict[int, ThinnedSamples]] = {}
        known = {k: each for k, each in [*self.series.items()] if len(each) and k[0] in names}
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
            curves = LazyMap(gpus, partial(_curve, gpus, since_ns))
            signals[name] = Signal(name, title, unit, curves, low, high)
        return signals

    def latest(self, name: str, gpus: Sequence[int], since_ns: int) -> Float64:
        """The newest value of a signal of each GPU; NaN where it held only until before then."""
        found = np.full(len(gpus), np.nan)
        for place, gpu in enumerate(gpus):
            series = self.series.get((name, gpu))
            if series is not None and len(series):
                begin_ns = int(series.begins_ns[-1])
                if begin_ns >= since_ns or begin_ns + series.period_ns >= since_ns:
                    found[place] = series.figures[1, -1]
        return found


def _curve(series: Mapping[int, ThinnedSamples], since_ns: int, gpu: int) -> IntegralCurve:
    return series[gpu].curve(since_ns)
