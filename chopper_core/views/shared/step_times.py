"""The step time of a scope: one definition for the overview, throughput, findings and runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Int64, Numbers
from chopper_core.util.grouping import counted, distinct, first_equal, median_of
from chopper_core.views.shared.host_causes import moved_idle

_CACHED: Final = 32
"""Scopes whose step times are cached."""


def of_steps(
    cells: Groups,
    gpus: Sequence[int] | Int64,
    iterations: Sequence[int] | Int64,
    values: Numbers,
    empty: float = 0.0,
) -> Float64:
    """Values of cells of one GPU and iteration each, as GPUs x iterations."""
    found = np.full((len(gpus), len(iterations)), empty)
    whose = first_equal(np.asarray(gpus, np.int64), cells.codes("gpu"))
    when = first_equal(np.asarray(iterations, np.int64), cells.codes("iteration"))
    own = (whose >= 0) & (when >= 0)
    found[whose[own], when[own]] = values[own]
    return found


class StepTimes(Struct, frozen=True, eq=False):
    """The time charged to each complete iteration on each GPU of a scope.

    Idle time before launch calls belongs to the iteration that the host is in. A scope without
    iterations is one step.
    """

    gpus: Int64
    iterations: tuple[int, ...]
    """The complete iterations; empty: the scope has none."""
    left_out: tuple[int, ...]
    """Iterations that the profiling window truncates, or that a GPU lacks."""
    excluded: Mapping[str, Sequence[int]]
    """The codes of all iterations that take no part, as `Tree.split` excludes them."""
    times_ns: Int64
    """GPUs x iterations; 0 where a GPU lacks one."""
    moved_ns: Int64
    """What idle time of each GPU belongs to these iterations beyond that of their activities."""
    cells: int
    """The number of pairs of a GPU and an iteration."""

    @property
    def mean_ns(self) -> float:
        """The step time: the mean over the GPUs and iterations, to which the parts add up."""
        return float(self.times_ns.sum()) / self.cells

    @property
    def each_ns(self) -> Float64:
        """The step time of each iteration: its mean over the GPUs that have it."""
        there = np.maximum((self.times_ns > 0).sum(axis=0), 1)
        return np.asarray(self.times_ns.sum(axis=0) / there, np.float64)

    @property
    def by_gpu_ns(self) -> Float64:
        """The step time of each GPU: its mean over the iterations that it has."""
        there = np.maximum((self.times_ns > 0).sum(axis=1), 1)
        return np.asarray(self.times_ns.sum(axis=1) / there, np.float64)

    @property
    def typical(self) -> int:
        """The place of the iteration whose time is nearest to the median."""
        return int(np.abs(self.each_ns - median_of(self.each_ns)).argmin())

    def by_step(self, values: Int64, place: Index, empty: int) -> Int64:
        """Values of pairs of a GPU and an iteration, by their places, as GPUs x iterations."""
        found = np.full(self.times_ns.size, empty, np.int64)
        found[place] = values
        return found.reshape(self.times_ns.shape)


def step_times(run: Run, view: View) -> StepTimes:
    """The step times of a view's scope, computed once; raises NoSuchNode."""
    key = ("step times", view.order, view.path, view.cut)
    return run.memo(key, lambda: _step_times(run, view), keep=_CACHED)


def _step_times(run: Run, view: View) -> StepTimes:
    cells = run.tree(view.order).split(view.path, ("gpu", "iteration"))
    gpu_of, codes = (cells.codes(level).astype(np.int64) for level in ("gpu", "iteration"))
    gpus, (found, counts) = distinct(gpu_of), counted(codes[codes != NO_LABEL])
    everywhere = found[counts == len(gpus)].tolist()
    whole = [code for code in everywhere if code not in run.left_out(view)]
    # A run with only truncated iterations shows them.
    kept = np.array(whole or everywhere or found.tolist(), np.int64)
    own = np.isin(codes, kept) if len(kept) else np.ones(len(codes), np.bool_)
    others = distinct(codes[~own]).tolist()
    times = np.zeros((len(gpus), max(len(kept), 1)), np.int64)
    place = np.searchsorted(gpus, gpu_of[own]), np.searchsorted(kept, codes[own])
    if not len(kept):
        place = (place[0], np.zeros_like(place[0]))
    times[place] = cells.elapsed_ns[own]
    moved = moved_idle(run, view).without(() if view.cut else run.cut_iterations)
    moved_ns = moved.by_step(run, gpus, kept).astype(np.int64)
    times += moved_ns if len(kept) else 0
    return StepTimes(
        gpus=gpus.astype(np.int64),
        iterations=tuple(kept.tolist()),
        left_out=tuple(code for code in found.tolist() if code not in kept),
        excluded={"iteration": others} if others else {},
        times_ns=times,
        moved_ns=np.asarray(moved_ns.sum(axis=1), np.int64),
        cells=int(own.sum()),
    )
