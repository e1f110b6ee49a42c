"""Samples of a signal within spans of time: means, quantiles, rolling quantiles, bursts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.lib.stride_tricks import sliding_window_view

from chopper_core.model.run import Run
from chopper_core.model.signals import IntegralCurve, union
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Int64
from chopper_core.util.grouping import distinct, median_of, quantiles_along

_MAX_ROLLED: Final = 1 << 16
"""With more values, rolling quantiles use evenly chosen windows."""


class TimeSpans(Struct, frozen=True, eq=False):
    """Spans of a GPU's time, in order, without overlap."""

    starts_ns: Int64
    ends_ns: Int64

    @property
    def total_ns(self) -> int:
        """How long they are together."""
        return int((self.ends_ns - self.starts_ns).sum())

    def up_to(self, times_ns: Int64) -> Int64:
        """How much of the stretches lies before each time."""
        if len(self.starts_ns) == 1:
            only = np.clip(times_ns, self.starts_ns[0], self.ends_ns[0])
            return np.asarray(only - self.starts_ns[0], np.int64)
        lengths = self.ends_ns - self.starts_ns
        before = np.concatenate([[0], np.cumsum(lengths)])
        place = np.searchsorted(self.starts_ns, times_ns, "right")
        last = np.maximum(place - 1, 0)
        within = np.clip(times_ns - self.starts_ns[last], 0, lengths[last])
        return np.where(place > 0, before[last] + within, 0)


class Sampled(Struct, frozen=True, eq=False):
    """The samples of a signal within spans of time."""

    begins_ns: Int64
    ends_ns: Int64
    """For which time each sample stands, beyond the stretches too."""
    values: Float64
    weights_ns: Int64
    """How much of that time lies within the stretches; never 0."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def middles_ns(self) -> Int64:
        """The middle of each sample's time."""
        return self.begins_ns + (self.ends_ns - self.begins_ns) // 2

    def at(self, places: Index) -> Sampled:
        """Some of the samples."""
        return Sampled(
            self.begins_ns[places],
            self.ends_ns[places],
            self.values[places],
            self.weights_ns[places],
        )

    def mean(self) -> float:
        """The mean over time; NaN without samples."""
        return float(np.average(self.values, weights=self.weights_ns)) if len(self) else np.nan

    def deviation(self) -> float:
        """The standard deviation over time."""
        if not len(self):
            return np.nan
        apart = (self.values - self.mean()) ** 2
        return float(np.sqrt(np.average(apart, weights=self.weights_ns)))

    def quantile(self, share: float) -> float:
        """The least value that isn't exceeded in at least this share of the time."""
        return float(self.quantiles((share,))[0])

    def quantiles(self, shares: Sequence[float]) -> Float64:
        """Such values of several shares; NaN without samples."""
        if not len(self):
            return np.full(len(shares), np.nan)
        order = np.argsort(self.values, kind="stable")
        time = np.cumsum(self.weights_ns[order])
        places = np.searchsorted(time, np.asarray(shares) * time[-1], "left")
        found: Float64 = self.values[order][np.minimum(places, len(order) - 1)]
        return found

    def period_ns(self) -> float:
        """The usual distance of the samples."""
        return median_of(np.diff(self.middles_ns)) if len(self) > 1 else np.nan

    def window(self, window_ns: float) -> int:
        """How many samples a window of this length has, at least one."""
        period = self.period_ns()
        return max(round(window_ns / period), 1) if np.isfinite(period) else 1

    def rolling(self, window_ns: float, share: float) -> tuple[Int64, Float64]:
        """The quantile over each window of neighbouring samples, and the ends of the windows.

        As pandas' rolling(n).quantile(): windows of n samples, those that have all of them.
        """
        size = self.window(window_ns)
        if len(self) < size or not len(self):
            return np.empty(0, np.int64), np.empty(0)
        step = max((len(self) - size + 1) * size // _MAX_ROLLED, 1)
        windows = sliding_window_view(self.values, size)[::step]
        return self.ends_ns[size - 1 :][::step], quantiles_along(windows.T, (share,))[0]

    def above(self, level: float) -> tuple[int, int, int]:
        """Runs of neighbouring samples above a level: how many, their time, the longest one's."""
        over = np.concatenate([[False], self.values > level, [False]])
        edges = np.flatnonzero(over[1:] != over[:-1])
        if not len(edges):
            return 0, 0, 0
        time = np.concatenate([[0], np.cumsum(self.weights_ns)])
        lengths = time[edges[1::2]] - time[edges[::2]]
        return len(lengths), int(lengths.sum()), int(lengths.max())


def gpus_of(run: Run) -> list[int]:
    """The numbers of the run's GPUs."""
    return [gpu.index for gpu in run.gpus]


def spans_of_samples(run: Run) -> dict[int, TimeSpans]:
    """The time of each GPU's samples; of a GPU without any, that of the run's."""

    def found() -> dict[int, TimeSpans]:
        spans = {}
        for gpu in gpus_of(run):
            own = [by_gpu[gpu] for by_gpu in run.sampled.values() if gpu in by_gpu]
            begin = min((each.first_ns for each in own), default=run.sampled_ns[0])
            end = max((each.last_ns for each in own), default=run.sampled_ns[1])
            spans[gpu] = TimeSpans(np.array([begin], np.int64), np.array([end], np.int64))
        return spans

    return run.memo(("spans of samples",), found)


def spans_of(run: Run, view: View) -> dict[int, TimeSpans]:
    """The time of a view's scope on each of its GPUs.

    Of GPUs and iterations the span from the first start to the last end; of what lies deeper the
    time in which any of its activities runs.
    """
    if run.is_sampled_only:
        return spans_of_samples(run)
    tree = run.tree_of(view)
    levels = {level for level, _ in view.scope}
    if levels <= {"gpu", "iteration"}:
        groups = tree.split(view.path, ("gpu",))
        starts, ends = groups.min("start_ns"), groups.max("end_ns")
        return {
            int(gpu): TimeSpans(starts[place : place + 1], ends[place : place + 1])
            for place, gpu in enumerate(groups.codes("gpu").tolist())
        }
    node, table = tree.node(view.path), run.table
    gpu_of = table.gpu[node.selection]
    start, duration = table.start_ns[node.selection], table.duration_ns[node.selection]
    found = {}
    for gpu in distinct(gpu_of).tolist():
        own = gpu_of == gpu
        found[int(gpu)] = TimeSpans(*union(start[own], duration[own]))
    return found


def all_sampled(curves: Mapping[str, IntegralCurve], stretches: TimeSpans) -> dict[str, Sampled]:
    """The samples of several curves; those of one file stand for the same times, once."""
    found: dict[str, Sampled] = {}
    known: tuple[Int64, Int64] | None = None
    for name, curve in curves.items():
        begins, ends, near = _near(curve, stretches)
        if known is None or not np.array_equal(known[0], curve.edges_ns[near]):
            weights = stretches.up_to(ends) - stretches.up_to(begins)
            known = curve.edges_ns[near], weights
        found[name] = _taken(curve, near, known[1])
    return found


def sampled(curve: IntegralCurve | None, stretches: TimeSpans) -> Sampled:
    """The samples of a curve that stand for some of the stretches' time."""
    if curve is None:
        nothing = np.empty(0, np.int64)
        return Sampled(nothing, nothing, np.empty(0), nothing)
    return all_sampled({"": curve}, stretches)[""]


def _near(curve: IntegralCurve, stretches: TimeSpans) -> tuple[Int64, Int64, slice]:
    """Begins and ends of the samples around the stretches, and where their edges are."""
    edges = curve.edges_ns
    low = 2 * (int(np.searchsorted(edges, stretches.starts_ns[0], "left")) // 2)
    high = 2 * ((int(np.searchsorted(edges, stretches.ends_ns[-1], "right")) + 1) // 2)
    near = slice(low, high)
    return edges[near][::2], edges[near][1::2], near


def _taken(curve: IntegralCurve, near: slice, weights: Int64) -> Sampled:
    begins, ends = curve.edges_ns[near][::2], curve.edges_ns[near][1::2]
    covered = np.diff(curve.covered_ns[near].reshape(-1, 2), axis=1)[:, 0]
    area = np.diff(curve.integral[near].reshape(-1, 2), axis=1)[:, 0]
    kept = (covered > 0) & (weights > 0)
    values = area[kept] / covered[kept]
    return Sampled(begins[kept], ends[kept], values, weights[kept])


def beside_of(one: Sampled, other: IntegralCurve | None) -> tuple[Float64, Float64]:
    """The samples for whose time another signal is known, and its means over their times."""
    means = means_beside(one, other)
    known = np.isfinite(means)
    return one.values[known], means[known]


def means_beside(one: Sampled, other: IntegralCurve | None) -> Float64:
    """The mean of another signal over the time of each sample; NaN where it is unknown."""
    if other is None or not len(one):
        return np.full(len(one), np.nan)
    area, covered = other.integrals(np.stack([one.begins_ns, one.ends_ns]))
    time = covered[1] - covered[0]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(time > 0, (area[1] - area[0]) / time, np.nan), np.float64)
