"""Signals over time: of GPUs as curves with exact means, of host processors as samples.

And samples of a telemetry file in a few exact figures: they come from the samples themselves,
before these become curves on the run's clock, so that they are what another tool computes from the
same file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from chopper_core.model.inputs import SampledFile
from chopper_core.model.table import NO_TIME
from chopper_core.model.units import Unit, UnitScale
from chopper_core.util.arrays import Codes, Float64, Index, Int64, Numbers
from chopper_core.util.grouping import (
    distinct,
    maxima_of,
    median_of,
    minima_of,
    quantile_of,
    ratios,
    run_sums,
)

FEWEST_SAMPLES: Final = 10
"""A monitored run with fewer samples of a GPU was stopped before its step was over."""
PART: Final = 64
"""Activities that are read together for a busy share."""
REACH_PERIODS: Final = 8
"""Sampling periods around a sample in which it is valid."""
_BUSY: Final = 0.9
"""The part of the busiest samples' busy time from which a sample tells of the kernels."""


class Track(Struct, frozen=True):
    """A signal of GPUs that is a level or a rate: its texts on charts and as a column."""

    unit: Unit
    title: str
    column: str
    """The title of its mean over activities."""
    subject: str


_TRACKS: Final = """
gfx_mhz | MHz | gfx | gfx MHz | Clock of the compute units
gfx_util_pct | % | gfx util | util % | Utilization of the compute units, as reported by the driver
power_w | W | power | busy W | Power of the socket
hotspot_c | °C | hotspot | hot °C | Temperature of the hottest spot
throttle_pct | % | throttle | throttle | Share of time under the driver's strongest limiter
mem_mhz | MHz | mem clk | mem MHz | Clock of the memory
mem_c | °C | mem temp | mem °C | Temperature of the memory
edge_c | °C | edge | edge °C | Temperature at the edge of the die
mem_util_pct | % | mem util | mem util | Utilization of the memory, as reported by the driver
sm_active_pct | % | SM active | SM active % | Share of cycles in which an SM has a warp, mean of SMs
tensor_active_pct | % | tensor active | tensor % | Share of cycles with active tensor cores
power_cap_w | W | power cap | cap W | Power cap of the socket
mem_power_w | W | mem power | mem W | Power of the memory, a part of the socket's
energy_rate_w | W | power (energy) | power (energy) | Power by the increments of the energy counter
pcie_gbps | GB/s | PCIe | PCIe GB/s | PCIe traffic, both directions
xgmi_read_gbps | GB/s | xGMI in | xGMI in | Data read over the links to other GPUs
xgmi_write_gbps | GB/s | xGMI out | xGMI out | Data written over the links to other GPUs
nvlink_read_gbps | GB/s | NVLink in | NVLink in | Data received over NVLink
nvlink_write_gbps | GB/s | NVLink out | NVLink out | Data sent over NVLink
nvlink_gbps | GB/s | NVLink | NVLink GB/s | NVLink traffic, both directions
ib_read_gbps | GB/s | IB in | IB in | Data received over InfiniBand by the node, at one of its GPUs
ib_write_gbps | GB/s | IB out | IB out | Data sent over InfiniBand by the node, at one of its GPUs
vram_bytes | B | VRAM | VRAM | Memory in use on the GPU
fan_pct | % | fan | fan % | Speed of the fan, of its fastest
"""
TRACKS: Final[Mapping[str, Track]] = {
    name: Track(Unit(unit), *texts)
    for line in _TRACKS.strip().splitlines()
    for name, unit, *texts in [[part.strip() for part in line.split("|")]]
}
"""Of accumulated signals the rates are tracks."""


class IntegralCurve(Struct, frozen=True):
    """A signal as its running integral, linear between the edges.

    `integral` is the signal's value times ns up to each edge, `covered_ns` the time up to it for
    which the signal is known. Means over an interval are exact and cost two look-ups.
    """

    edges_ns: Int64
    integral: Float64
    covered_ns: Float64
    reach: Float64 = field(default_factory=partial(np.empty, 0))
    """The first sample's value, how many ns before the first edge it may stand in for what isn't
    known, and the same of the last sample after the last edge; empty: no sample may."""

    def integrals(self, times_ns: Numbers) -> tuple[Float64, Float64]:
        edges = self.edges_ns
        # Only the edges near the times: a curve may have millions.
        low = max(int(np.searchsorted(edges, int(np.min(times_ns)), "left")) - 1, 0)
        high = int(np.searchsorted(edges, int(np.max(times_ns)) + 1, "right")) + 1
        # Differences from the first edge keep ns exact in float64.
        at = (times_ns - edges[0]).astype(np.float64)
        near = (edges[low:high] - edges[0]).astype(np.float64)
        integral, covered = (each[low:high] for each in (self.integral, self.covered_ns))
        # Most curves are known everywhere, and looking up is what takes the time.
        is_known = len(near) > 0 and np.array_equal(covered, near)
        known = np.clip(at, near[0], near[-1]) if is_known else np.interp(at, near, covered)
        return np.interp(at, near, integral), known

    @property
    def mean(self) -> float:
        """Over all time for which it is known; NaN without any."""
        return (
            float(ratios(self.integral[-1:], self.covered_ns[-1:])[0])
            if len(self.edges_ns)
            else np.nan
        )

    def held_for_a_period(self) -> IntegralCurve:
        """The curve with its first and last sample standing in for up to a period more."""
        if not len(self.reach) or not len(self.edges_ns):
            return self
        first, before, last, after = self.reach.tolist()
        begin, end = self.edges_ns[0] - round(before), self.edges_ns[-1] + round(after)
        return IntegralCurve(
            np.concatenate([[begin], self.edges_ns, [end]]),
            _extended(self.integral, first * before, last * after),
            _extended(self.covered_ns, before, after),
        )

    def interval_values(self) -> Float64:
        """The value of each interval of a curve of intervals (`between`), NaN where unknown."""
        return ratios(np.diff(self.integral)[::2], np.diff(self.covered_ns)[::2])

    def means(self, bounds_ns: Numbers) -> Float64:
        """The mean between neighbouring bounds, along the last axis; NaN where nothing is known."""
        integral, covered = self.integrals(bounds_ns)
        return ratios(np.diff(integral, axis=-1), np.diff(covered, axis=-1))


def bounds_of(begin_ns: int | Int64, end_ns: int | Int64, bins: int) -> Int64:
    """The bounds of equal parts of stretches of time, along the last axis, to the ns: a float
    since 1970 has 256."""
    since: Int64 = np.rint(np.linspace(0, end_ns - begin_ns, bins + 1, axis=-1)).astype(np.int64)
    return np.asarray(begin_ns)[..., None] + since


def _extended(running: Float64, before: float, after: float) -> Float64:
    """A running sum from 0 on with more before and after it."""
    return np.concatenate([[0.0], running + before, [running[-1] + before + after]])


class BusyCurve(IntegralCurve, frozen=True, kw_only=True):
    """The share of time (in %) in which anything ran, or any compute, from the accounting.

    Idle time is charged to the activity that starts next, but for the rest of a step after its
    last activity. So the idle time up to an instant is that of all activities started and of all
    rests over by then, plus the time since the last of them ended. Compute is charged to the
    running one that started first: up to an instant it is that of all that started by then, less
    the time until the last of them ends. Of parts of the rows, which have activities near each
    other in time, only those with an instant in them are read.
    """

    parts: tuple[Int64, Int64, Int64]
    """Of each `PART` of the rows the first start, the last end, and its time of the state."""
    activities: Callable[[Index], tuple[Int64, Int64, Int64]]
    """Places among the GPU's rows → the same of each activity."""
    count: int
    is_idle: bool
    """Whether the state is that in which nothing runs."""
    unseen: TimeSpans
    """The time between two windows of the profiler, which is charged to nothing."""
    rests: TimeSpans
    """The idle time after the last activities of steps."""

    def with_all_edges(self) -> IntegralCurve:
        """The curve with an edge wherever its value changes."""
        starts, ends, _ = self.activities(np.arange(self.count))
        (begin, end), runs = self.edges_ns.tolist(), np.flatnonzero(ends > starts)
        return share_running(starts[runs], (ends - starts)[runs], (begin, end), self.unseen)

    def integrals(self, times_ns: Numbers) -> tuple[Float64, Float64]:
        begin, end = (int(edge) for edge in self.edges_ns)
        at = np.clip((times_ns - self.edges_ns[0]).astype(np.float64), 0, end - begin)
        # Between two whole ns the integral is linear.
        low = np.floor(at).astype(np.int64)
        busy, rest = self._busy(low + begin), at - low
        if rest.any():
            busy += (self._busy(np.minimum(low + 1, end - begin) + begin) - busy) * rest
        return 100.0 * busy, at - self.unseen.until(low + begin)

    def _busy(self, at_ns: Int64) -> Float64:
        in_turn = np.argsort(at_ns, axis=None, kind="stable")
        times, count = at_ns.ravel()[in_turn], at_ns.size
        gone, latest = self._begun(times)
        if self.is_idle:
            for spans in (self.rests, self.unseen):
                latest = np.maximum(latest, spans.last_end(times))
                gone += spans.passed(times)
            gone += np.maximum(times - latest, 0)
            gone = times - self.edges_ns[0] - gone
        else:
            gone -= np.maximum(latest - times, 0)
        busy = np.empty(count)
        busy[in_turn] = gone
        return busy.reshape(at_ns.shape)

    def _begun(self, times: Int64) -> tuple[Int64, Int64]:
        """Of all activities that have started by each of some rising times: the time that they
        are charged with, and when the last of them ends."""
        begun, over = np.searchsorted(times, np.stack(self.parts[:2]))
        read = np.flatnonzero(over > begun)
        places = (PART * read[:, None] + np.arange(PART)).ravel()
        starts, *own = self.activities(places[places < self.count])
        # Each counts from the first instant on that doesn't come before it; a part that contains
        # none is as one activity. Sums are exact to 2^53 ns.
        since = np.append(np.delete(over, read), np.searchsorted(times, starts))
        parts = (np.delete(whole, read) for whole in self.parts[1:])
        ends, charged = (np.append(*each) for each in zip(parts, own, strict=True))
        gone = np.cumsum(np.bincount(since, charged, len(times) + 1)[:-1]).astype(np.int64)
        latest = np.full(len(times) + 1, self.edges_ns[0])
        np.maximum.at(latest, since, ends)
        return gone, np.maximum.accumulate(latest[:-1])


class Signal(Struct, frozen=True):
    """A signal of all GPUs that have it."""

    name: str
    """The name of its metric, which includes the unit."""
    title: str
    unit: Unit
    curves: Mapping[int, IntegralCurve]
    low: float
    high: float
    """The bounds of the scale shared by all its charts and sparklines."""

    @property
    def scale(self) -> UnitScale:
        return self.unit.axis(self.low, self.high)


def reach_of(times_ns: Int64, values: Float64, curve: IntegralCurve, period_ns: int) -> Float64:
    """`IntegralCurve.reach` of a curve of samples: up to a period from the first and the last."""
    if not len(curve.edges_ns) or not np.isfinite(values[[0, -1]]).all():
        return np.empty(0)
    before = curve.edges_ns[0] - (times_ns[0] - period_ns)
    after = times_ns[-1] + period_ns - curve.edges_ns[-1]
    return np.array([values[0], max(before, 0), values[-1], max(after, 0)], np.float64)


def nearest_values(times_ns: Int64, values: Float64, reach_ns: int) -> IntegralCurve:
    """A curve of samples, each valid for the times nearest to it, at most `reach_ns` away.

    Before the first and after the last sample the reach is half the median sampling period.
    Whether a tool stamps the start or the end of its averaging period is rarely documented; with
    the middle the error is at most half a period.
    """
    middles = times_ns[:-1] + np.diff(times_ns) // 2
    half = int(median_of(np.diff(times_ns))) // 2 if len(times_ns) > 1 else reach_ns
    begins = np.maximum(np.concatenate([times_ns[:1] - half, middles]), times_ns - reach_ns)
    ends = np.minimum(np.concatenate([middles, times_ns[-1:] + half]), times_ns + reach_ns)
    return between(begins, ends, values)


def holding(times_ns: Int64, values: Float64, reach_ns: int) -> IntegralCurve:
    """A curve of samples, each valid until the next one, at most for `reach_ns`.

    The last one ends the curve.
    """
    ends = np.minimum(times_ns[1:], times_ns[:-1] + reach_ns)
    return between(times_ns[:-1], ends, values[:-1])


def between(begins_ns: Int64, ends_ns: Int64, values: Float64) -> IntegralCurve:
    """A curve of values, each valid for one interval; the intervals rise and don't overlap."""
    stands = np.where(np.isfinite(values), ends_ns - begins_ns, 0).astype(np.float64)
    area = np.cumsum(np.where(np.isfinite(values), values, 0.0) * stands)
    covered = np.cumsum(stands)
    zero = np.zeros(1)
    return IntegralCurve(
        np.stack([begins_ns, ends_ns], axis=1).ravel(),
        np.stack([np.concatenate([zero, area])[:-1], area], axis=1).ravel(),
        np.stack([np.concatenate([zero, covered])[:-1], covered], axis=1).ravel(),
    )


def summed(curves: Sequence[IntegralCurve]) -> IntegralCurve:
    """The sum of curves, from where the last of them begins to where the first one ends."""
    begin = max(int(each.edges_ns[0]) for each in curves)
    end = min(int(each.edges_ns[-1]) for each in curves)
    edges = distinct(np.concatenate([[begin, end], *(each.edges_ns for each in curves)]))
    edges = edges[(edges >= begin) & (edges <= end)]
    if not len(edges):
        return replace(curves[0], edges_ns=edges, integral=np.empty(0), covered_ns=np.empty(0))
    every = np.array([each.integrals(edges) for each in curves])
    every -= every[:, :, :1]
    return IntegralCurve(edges, every[:, 0].sum(axis=0), every[:, 1].min(axis=0), _reach(curves))


def filled(curve: IntegralCurve, other: IntegralCurve) -> IntegralCurve:
    """A curve, with another one of the same quantity for the time in which it is unknown: but for
    that before its begin and after its end in which its own samples may stand in."""
    if not len(other.edges_ns) or not len(curve.edges_ns):
        return curve if len(curve.edges_ns) else other
    begin, end = (int(curve.edges_ns[at]) for at in (0, -1))
    _, before, _, after = curve.reach.tolist() if len(curve.reach) else (0, 0, 0, 0)
    begin = begin if other.edges_ns[0] >= begin - before else int(other.edges_ns[0])
    end = end if other.edges_ns[-1] <= end + after else int(other.edges_ns[-1])
    edges = distinct(np.concatenate([curve.edges_ns, other.edges_ns]))
    edges = edges[(edges >= begin) & (edges <= end)]
    own, more = (
        np.diff(np.array(each.integrals(edges)), axis=-1, prepend=0.0) for each in (curve, other)
    )
    own[:, 0] = more[:, 0] = 0.0
    integral, covered = np.cumsum(np.where(own[1] > 0, own, more), axis=-1)
    reach = np.empty(0)
    if len(curve.reach) and len(other.reach):
        first = curve if curve.edges_ns[0] == begin else other
        last = curve if curve.edges_ns[-1] == end else other
        reach = np.concatenate([first.reach[:2], last.reach[2:]])
    return IntegralCurve(edges, integral, covered, reach)


def _reach(curves: Sequence[IntegralCurve]) -> Float64:
    if not all(len(each.reach) for each in curves):
        return np.empty(0)
    reaches = np.array([each.reach for each in curves])
    first, _, last, _ = reaches.sum(axis=0)
    _, before, _, after = reaches.min(axis=0)
    return np.array([first, before, last, after], np.float64)


def share_running(
    start_ns: Int64, duration_ns: Int64, span: tuple[int, int], unseen: TimeSpans | None = None
) -> IntegralCurve:
    """The share (in %) of time in which any of the activities ran, over the span (start, end).

    In the time that was not seen it is unknown.
    """
    spans = TimeSpans.running(start_ns, duration_ns)
    begins, ends = spans.starts_ns, spans.ends_ns
    running = np.cumsum(ends - begins)
    edges = np.stack([begins, ends], axis=1).ravel()
    busy = np.stack([running - (ends - begins), running], axis=1).ravel()
    edges = np.concatenate([[span[0]], edges, [span[1]]])
    busy = np.concatenate([[0], busy, busy[-1:] if len(busy) else [0]])
    covered = edges - span[0]
    if unseen is not None and len(unseen.starts_ns):
        before, edges = edges, np.sort(np.concatenate([edges, unseen.starts_ns, unseen.ends_ns]))
        busy = np.interp(edges - span[0], before - span[0], busy)
        covered = edges - span[0] - unseen.until(edges)
    return IntegralCurve(edges, 100.0 * busy, covered.astype(np.float64))


class TimeSpans(Struct, frozen=True, eq=False, dict=True):
    """Spans of time in rising order, without overlap."""

    starts_ns: Int64
    ends_ns: Int64

    @classmethod
    def running(cls, start_ns: Int64, duration_ns: Int64) -> TimeSpans:
        """The time in which any of some activities runs."""
        if not len(start_ns):
            return cls(np.empty(0, np.int64), np.empty(0, np.int64))
        start, end = start_ns, start_ns + duration_ns
        if (start[1:] >= start[:-1]).all():
            return cls.in_order(start, np.maximum.accumulate(end, out=end))
        # A span starts where as many activities have ended as have started before.
        # Both are nearly sorted, which a stable sort exploits: it takes a tenth of the time.
        return cls.in_order(*(np.sort(each, kind="stable") for each in (start, end)))

    @classmethod
    def in_order(cls, start_ns: Int64, latest_ns: Int64) -> TimeSpans:
        """The same of activities in the order of their start, by the latest end up to each."""
        # By place: where a mask changes at random, numpy takes three times as long.
        closes = np.flatnonzero(start_ns[1:] > latest_ns[:-1])
        if not len(start_ns):
            return cls(start_ns, latest_ns)
        return cls(
            start_ns[np.append(0, closes + 1)], latest_ns[np.append(closes, len(latest_ns) - 1)]
        )

    @cached_property
    def _before_ns(self) -> Int64:
        return np.concatenate([[0], np.cumsum(self.ends_ns - self.starts_ns)])

    @property
    def length_ns(self) -> int:
        return int(self._before_ns[-1])

    def until(self, times_ns: Int64) -> Int64:
        if not len(self.starts_ns):
            return np.zeros(times_ns.shape, np.int64)
        begun = np.searchsorted(self.starts_ns, times_ns, "right")
        # The rest of the span that has begun; 0 before the first one.
        ahead = self.ends_ns[begun - 1] - times_ns
        ahead[begun == 0] = 0
        within: Int64 = self._before_ns[begun] - np.maximum(ahead, 0, out=ahead)
        return within

    def passed(self, times_ns: Int64) -> Int64:
        """The length of the spans that are over by each time."""
        return self._before_ns[np.searchsorted(self.ends_ns, times_ns, "right")]

    def last_end(self, times_ns: Int64) -> Int64:
        """The end of the last span that is over by each time; before the first one the least
        time."""
        ends = np.append(np.iinfo(np.int64).min, self.ends_ns)
        return ends[np.searchsorted(self.ends_ns, times_ns, "right")]

    def within(self, begins_ns: Int64, ends_ns: Int64) -> Int64:
        return self.until(ends_ns) - self.until(begins_ns)

    def between(self, times_ns: Int64) -> Int64:
        """How much of the spans lies between neighbouring times."""
        return np.diff(self.until(times_ns))


class SpansOfGpus(Struct, frozen=True, eq=False):
    """The time in which any of some activities runs on their GPU, GPU after GPU on one axis."""

    spans: TimeSpans
    first_ns: Int64
    """When the first one starts on each GPU."""
    length_ns: Int64
    """How long after that the last one ends."""

    @classmethod
    def running(cls, gpu: Codes, start_ns: Int64, duration_ns: Int64) -> SpansOfGpus:
        count = int(gpu.max(initial=-1)) + 1
        first = minima_of(start_ns, gpu, count, int(start_ns.max(initial=0)))
        length = maxima_of(start_ns + duration_ns - first[gpu], gpu, count)
        on_axis = _begins(length)[gpu] + start_ns - first[gpu]
        return cls(TimeSpans.running(on_axis, duration_ns), first, length)

    def within(self, gpu: Codes, begins_ns: Int64, ends_ns: Int64) -> Int64:
        """How long any of them runs on the GPU of each span of time."""
        found, own = np.zeros(len(gpu), np.int64), np.flatnonzero(gpu < len(self.first_ns))
        whose = gpu[own]
        first, length = self.first_ns[whose], self.length_ns[whose]
        begins = _begins(self.length_ns)[whose]
        # Outside of all activities of its GPU nothing runs.
        found[own] = self.spans.within(
            *(begins + np.clip(each[own] - first, 0, length) for each in (begins_ns, ends_ns))
        )
        return found


def _begins(length_ns: Int64) -> Int64:
    """Where GPUs begin on the axis: the activities of two never touch."""
    return np.asarray(np.cumsum(length_ns + 1) - length_ns, np.int64)


def while_busy(curve: IntegralCurve, start_ns: Int64, duration_ns: Int64) -> IntegralCurve:
    """The curve of the samples taken while the GPU had work, held over idle time. The clock of an
    idle GPU says nothing about the kernels near the sample. Samples count that are nearly as busy
    as the busiest; the curve is unchanged where there is no sample.
    """
    begins, ends = curve.edges_ns[::2], curve.edges_ns[1::2]
    if len(begins) != len(ends) or not len(start_ns) or not len(begins):
        return curve
    running = TimeSpans.running(start_ns, duration_ns)
    length = np.maximum(ends - begins, 1)
    busy = running.within(begins, ends) / length
    known = np.diff(curve.covered_ns)[::2] > 0
    if not (known & (busy > 0)).any():
        return curve
    enough = _BUSY * float(quantile_of(busy[known & (busy > 0)], (0.9,))[0])
    kept = np.flatnonzero(known & (busy >= enough))
    if len(kept) == len(begins):
        return curve
    values = (np.diff(curve.integral)[::2] / np.maximum(np.diff(curve.covered_ns)[::2], 1))[kept]
    begins, ends = begins[kept], ends[kept]
    reach = REACH_PERIODS * int(median_of(length))
    middle = ends[:-1] + (begins[1:] - ends[:-1]) // 2
    until = np.minimum(np.append(middle, ends[-1] + reach), ends + reach)
    since = np.maximum(np.concatenate(([begins[0] - reach], middle)), begins - reach)
    return between(since, until, values)


class Queue(Struct, frozen=True, eq=False):
    """When work enters a queue and when it leaves it, each in rising order."""

    times_ns: tuple[Int64, Int64]

    @classmethod
    def of(cls, enters_ns: Int64, leaves_ns: Int64) -> Queue:
        """Work without an entry (`NO_TIME`), or that leaves before it, is never in the queue."""
        waits = (leaves_ns > enters_ns) & (enters_ns != NO_TIME)
        # Nearly in order, as in `TimeSpans.running`.
        enters, leaves = (np.sort(each[waits], kind="stable") for each in (enters_ns, leaves_ns))
        return cls((enters, leaves))

    def __len__(self) -> int:
        return len(self.times_ns[0])

    def depths(self, edges_ns: Int64 | Float64) -> Float64:
        """The mean amount of work in the queue between neighbouring edges."""
        since = []
        for times in self.times_ns:
            begun = np.searchsorted(times, edges_ns, "right")
            first = np.append(0, begun[:-1])
            some = np.flatnonzero(first < begun)
            sums = np.zeros(len(begun), np.int64)
            sums[some] = run_sums(times[: begun[-1]], first[some])
            # Modulo 2^64: differences are exact.
            since.append(begun * edges_ns - np.cumsum(sums))
        waited: Float64 = np.diff(since[0] - since[1])
        return waited / np.maximum(np.diff(edges_ns), 1e-9)


NO_CORE: Final = -1


class CpuSamples(SampledFile, frozen=True, eq=False):
    """Samples of how busy the processors of a host were."""

    cpus: Int64
    cores: Int64
    """The physical core of each, `NO_CORE` where the file has none."""
    times_ns: Int64
    """Instants within the run, on its clock: each ends the period of its percentages."""
    percent: Float64
    """Instants x logical processors: the busy share of the time since the previous instant, NaN
    where unknown."""

    @property
    def has_cores(self) -> bool:
        return bool(len(self.cores)) and bool((self.cores != NO_CORE).all())

    @property
    def period_ns(self) -> int:
        """The median distance of the instants; 0 for fewer than two."""
        return int(median_of(np.diff(self.times_ns))) if len(self.times_ns) > 1 else 0


class SampleSummary(Struct, frozen=True):
    """The samples of one signal of one GPU or node."""

    first_ns: int
    """On the run's clock, where that of the file is known."""
    last_ns: int
    samples: int
    mean: float
    """Over time: each sample holds until the next one, or is that of its span; of a single sample
    its value."""
    low: float
    high: float
    area: float
    """Integral over time by the trapezoidal rule, or over spans, in the signal's unit times
    seconds."""
    amount: float
    """Of a counter, how much it rose from the first to the last sample; else 0."""
    is_timed: bool = True
    """Whether samples have times; else they are numbered, as if one a second."""

    @property
    def span_ns(self) -> int:
        return self.last_ns - self.first_ns


class NodeSamples(Struct, frozen=True):
    """The samples of a figure of a whole node."""

    rank: int
    """The rank whose process sampled it."""
    signal: str
    label: str
    """The device, such as `ib0`; '' for the node itself."""
    summary: SampleSummary


Sampled = Mapping[str, Mapping[int, SampleSummary]]
"""Signal → GPU → its samples."""


def summary_of(
    times_ns: Int64, values: Float64, begins_ns: Int64 | None = None, *, counts: bool = False
) -> SampleSummary | None:
    """The figures of samples in rising order of time; None without any known value.

    Values that are means of a span have its begin, too.
    """
    known = np.isfinite(values)
    times, values = times_ns[known], values[known].astype(np.float64)
    if not len(times):
        return None
    first = times[0] if begins_ns is None else begins_ns[known][0]
    seconds = 1e-9 * (np.diff(times) if begins_ns is None else times - begins_ns[known])
    held = area = float(values[: len(seconds)] @ seconds)
    if begins_ns is None:
        area = float((values[1:] + values[:-1]) @ seconds / 2)
    span = float(seconds.sum())
    return SampleSummary(
        first_ns=int(first),
        last_ns=int(times[-1]),
        samples=len(times),
        mean=held / span if span > 0 else float(values.mean()),
        low=float(values.min()),
        high=float(values.max()),
        area=area,
        amount=float(values[-1] - values[0]) if counts else 0.0,
    )
