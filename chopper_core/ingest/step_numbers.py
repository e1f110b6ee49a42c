"""One number for the steps of ranks at one time, where no annotation gives them one.

Such steps count from the first in a rank's trace, and one window may begin in the last kernels of a
step on one rank, and behind them on another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.collective_sets import rank_clocks
from chopper_core.model.inputs import Source
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, Rule
from chopper_core.sources.signals import ClockDomain
from chopper_core.util.arrays import Index, Int64, Mask
from chopper_core.util.grouping import (
    counts_of,
    distinct,
    isin,
    maxima_of,
    minima_of,
    numbered_rows,
    ranked,
    run_starts,
)

_NEAR: Final = 0.5
"""Part of a step by which windows of different hosts may begin apart: beyond, their clocks are."""


def numbered_alike(run: Run, host_of: Mapping[int, str], shift_of: Mapping[int, int]) -> Run:
    """The run with the numbers of steps that no annotation gives as other ranks have them at the
    time; `shift_of` has by how many ns times of ranks are to be moved.

    They are those of annotated ranks, or of the one with the most steps. `host_of` tells which have
    one clock; of others the ends of common collectives tell how far theirs are apart. Where times
    of ranks can't be compared, each counts from the first of those.
    """
    is_inferred = run.table.iteration_rule == Rule.BURST
    if not is_inferred.any():
        return run
    rank_of = np.zeros(1 + max(gpu.index for gpu in run.gpus), np.int64)
    for gpu in run.gpus:
        rank_of[gpu.index] = gpu.rank
    inferred, annotated = (
        distinct(rank_of[distinct(run.table.gpu[rows])])
        for rows in (is_inferred, run.table.iteration_rule == Rule.ANNOTATION)
    )
    apart = {} if all(host_of.values()) else _apart(run)
    steps = _RankSteps.of(run, rank_of, {**apart, **shift_of})
    like = steps.of_largest(annotated if len(annotated) else inferred)
    reference = int(steps.rank[like[0]])
    is_epoch = all(source.clock.startswith(ClockDomain.EPOCH) for source in run.sources)
    by = dict.fromkeys((rank for rank in inferred.tolist() if rank not in annotated), 0)
    for rank in by:
        is_one = host_of[reference] and host_of[rank] == host_of[reference]
        is_one = is_one or {rank, reference} <= apart.keys()
        if is_one or (is_epoch and steps.begins_near(rank, like)):
            by[rank] = steps.apart(rank, like)
        elif len(annotated):
            by[rank] = int(steps.number[like[0]]) - steps.first(rank)
    least = min((steps.first(rank) + number for rank, number in by.items()), default=0)
    if least < 0 and len(annotated):
        return run  # No step is before the first one.
    by = {rank: number - min(least, 0) for rank, number in by.items()}
    return _renumbered(run, by, rank_of) if any(by.values()) else run


def _apart(run: Run) -> dict[int, int]:
    """By how many ns the times of ranks that have collectives in common are to be moved."""
    clocks = rank_clocks(run.table, {gpu.index: gpu.rank for gpu in run.gpus})
    return {rank: clock.correction_ns for rank, clock in clocks.items() if clock.collectives}


class _RankSteps(Struct, frozen=True):
    """The steps of ranks, in order of rank and number."""

    rank: Int64
    number: Int64
    start_ns: Int64
    end_ns: Int64

    @classmethod
    def of(cls, run: Run, rank_of: Int64, shift_of: Mapping[int, int]) -> _RankSteps:
        table = run.table
        first = run_starts(table.gpu, table.iteration)
        rank, number = rank_of[table.gpu[first]], table.iteration[first].astype(np.int64)
        start = np.minimum.reduceat(table.start_ns, first)
        end = np.maximum.reduceat(table.start_ns + table.duration_ns, first)
        shift = np.zeros(int(rank.max()) + 1, np.int64)
        for one, by in shift_of.items():
            shift[one : one + 1] = by
        own = np.flatnonzero(number != NO_LABEL)
        rank, number, start, end = (each[own] for each in (rank, number, start, end))
        step = numbered_rows((rank, number))
        count, most = int(step.max(initial=-1)) + 1, np.iinfo(np.int64).max
        place = minima_of(np.arange(len(step)), step, count, most)
        moved = shift[rank[place]]
        return cls(
            rank[place],
            number[place],
            minima_of(start, step, count, most) + moved,
            maxima_of(end, step, count, -most) + moved,
        )

    def of_largest(self, ranks: Int64) -> Index:
        """The steps of the one of these ranks that has the most."""
        counts = counts_of(self.rank[isin(self.rank, ranks)], int(self.rank.max()) + 1)
        return self._of(int(counts.argmax()))

    def first(self, rank: int) -> int:
        return int(self.number[self._of(rank)[0]])

    def begins_near(self, rank: int, like: Index) -> bool:
        """Whether a rank's first step begins when that of the steps at `like` does."""
        apart = abs(self.start_ns[self._of(rank)[0]] - self.start_ns[like[0]])
        return bool(apart <= _NEAR * self._longest(like))

    def apart(self, rank: int, like: Index) -> int:
        """What to add to a rank's numbers, so that steps at most of the time have those that the
        steps at `like` have."""
        own = self._of(rank)
        middle = (self.start_ns[own] + self.end_ns[own]) // 2
        period = self._longest(like)
        begin, end = int(self.start_ns[like[0]]), int(self.end_ns[like[-1]])
        is_near: Mask = (middle >= begin - period) & (middle < end + period)
        place = np.searchsorted(self.start_ns[like], middle, "right") - 1
        place = place + (middle >= end)
        numbers = np.concatenate(
            [[self.number[like[0]] - 1], self.number[like], [self.number[like[-1]] + 1]]
        )
        by = (numbers[place + 1] - self.number[own])[is_near]
        if not len(by):
            return 0
        took = (self.end_ns[own] - self.start_ns[own])[is_near]
        kinds, kind = ranked(by)
        return int(kinds[np.bincount(kind, took).argmax()])

    def _longest(self, steps: Index) -> int:
        return int((self.end_ns[steps] - self.start_ns[steps]).max())

    def _of(self, rank: int) -> Index:
        begin, end = np.searchsorted(self.rank, [rank, rank + 1])
        return np.arange(begin, end)


def _renumbered(run: Run, by: Mapping[int, int], rank_of: Int64) -> Run:
    """The run with so much added to the numbers of the steps of some ranks."""
    by_gpu = np.array([by.get(rank, 0) for rank in rank_of.tolist()], np.int32)
    iteration = run.table.iteration
    iteration = np.where(iteration == NO_LABEL, NO_LABEL, iteration + by_gpu[run.table.gpu])
    return replace(
        run,
        table=replace(run.table, iteration=iteration.astype(np.int32)),
        side_tables={kind: each.renumbered(by_gpu) for kind, each in run.side_tables.items()},
        sources=tuple(_of_source(source, by.get(source.rank, 0)) for source in run.sources),
        partial_iterations={
            gpu: frozenset(number + int(by_gpu[gpu]) for number in cut)
            for gpu, cut in run.partial_iterations.items()
        },
    )


def _of_source(source: Source, by: int) -> Source:
    ends = source.iterations
    doubts = (
        replace(each, iterations=tuple(number + by for number in each.iterations))
        for each in source.doubts
    )
    return replace(source, iterations=ends and (ends[0] + by, ends[1] + by), doubts=tuple(doubts))
