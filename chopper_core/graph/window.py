"""The steps that are replayed: all of a run, or of a long one some that stand for all.

Of a long run, those unlike the others are replayed, each for itself, and evenly chosen others that
stand for the rest. The step before each is replayed too: a step begins with what it leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.graph.questions import Predictor, student
from chopper_core.graph.step_graph import Replayed, Steps, steps_of_graph
from chopper_core.model.run import Run
from chopper_core.util.arrays import AnyArray, Float64, Index, Int64, Mask
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import (
    distinct,
    distinct_without,
    median_of,
    ranked,
    ratios,
    sums_of,
)

MAX_ROWS: Final = 1 << 18
"""With more activities, some steps are replayed."""
_MOST_ROWS: Final = 1 << 21
"""The activities of the largest step that is replayed, with the one before it: each takes more than
a kilobyte, and a million of them ten seconds."""
_STRETCHES: Final = 12
_LENGTH: Final = 3
"""The steps of each at least, with the one before it, where more than two fit."""
_UNLIKE: Final = 0.02
"""A step is unlike the others if its time is that far from the median, as a share of it."""


class ReplayedSteps(Struct, frozen=True, eq=False, dict=True):
    """Steps that are replayed, and how many of a run's each of them stands for."""

    predictor: Predictor
    steps: Steps
    own: Mask
    """The cells of GPU and step that count."""
    weight: Float64
    """Of each of these in a mean; they add up to 1."""
    is_sample: Mask
    """Whether each stands for others too."""
    iterations: int
    """How many are replayed."""
    of: int
    """How many these stand for."""

    @classmethod
    def of_run(
        cls,
        run: Run,
        gpus: Sequence[int] | Int64,
        iterations: Sequence[int],
        took_ns: Float64,
        named: Collection[int] = (),
    ) -> ReplayedSteps:
        """The steps of some GPUs and steps, each of which took so long; raises NothingToShow.

        Of a long run those that are `named` are replayed before others.
        """
        numbers = np.array(iterations, np.int64)
        chosen = _chosen(run, numbers, took_ns, named)
        alone, sample = chosen.alone, chosen.sample
        predictor = Predictor.of(run, chosen.replayed, tuple(sorted([*alone, *sample])))
        steps = steps_of_graph(predictor.graph, run.table, predictor.identity.replayed)
        own = np.isin(steps.iteration, [*alone, *sample]) & np.isin(steps.gpu, gpus)
        if not own.any():
            raise NothingToShow("no steps to replay: the run has no complete step")
        is_sample = np.isin(steps.iteration[own], sample) & (len(sample) < len(iterations))
        # Of more that are unlike the others, those that are replayed stand for these.
        others = distinct_without(np.asarray(alone), list(named))
        far = len(distinct_without(numbers[_unlike(numbers, took_ns, ())], list(named)))
        share = max(far, len(others)) / max(len(others), 1) if sample else 1.0
        each = (len(numbers) - len(alone) + len(others) * (1 - share)) / max(len(sample), 1)
        is_other = np.isin(steps.iteration[own], others)
        weight = np.where(is_sample, each, np.where(is_other, share, 1.0))
        whole = weight / weight.sum()
        count = len(alone) + len(sample)
        return cls(predictor, steps, own, whole, is_sample, count, len(iterations))

    def times_ns(self, replayed: Replayed) -> Int64:
        """The times of the steps that count."""
        return self.steps.times_ns(self.predictor.graph, replayed)[self.own]

    @cached_property
    def now_ns(self) -> Int64:
        """The same as measured, by replay."""
        return self.times_ns(self.predictor.identity.replayed)

    def measured(
        self, values: AnyArray, gpus: Sequence[int] | Int64, steps: Sequence[int]
    ) -> Float64:
        """Values of GPUs x steps at the steps that count."""
        places = (
            np.searchsorted(labels, codes[self.own])
            for labels, codes in ((gpus, self.steps.gpu), (steps, self.steps.iteration))
        )
        return np.asarray(values[tuple(places)], np.float64)

    def mean(self, values: AnyArray) -> float:
        """The mean of a value of each step that counts."""
        return float(values @ self.weight)

    def by_gpu(self, values: AnyArray) -> Float64:
        """The mean of each GPU."""
        gpu = ranked(self.steps.gpu[self.own])[1]
        return sums_of(values * self.weight, gpu) / sums_of(self.weight, gpu)

    def error(self, values: AnyArray) -> float:
        """How far from that the mean of all steps may be: by the spread between those replayed."""
        if not self.is_sample.any():
            return 0.0
        place = ranked(self.steps.iteration[self.own][self.is_sample])[1]
        weight, count = self.weight[self.is_sample], int(place.max()) + 1
        each = sums_of(values[self.is_sample] * weight, place) / sums_of(weight, place)
        if count < 2:
            return float(np.abs(each).max())
        stood_for = self.of - (self.iterations - count)
        fewer = np.sqrt(1 - count / stood_for)
        return float(student(count) * weight.sum() * fewer * each.std(ddof=1) / np.sqrt(count))

    @property
    def leads(self) -> frozenset[int]:
        """The steps of a long run that are replayed for the next ones' sake."""
        if not self.predictor.iterations:
            return frozenset()
        others = set(self.steps.iteration.tolist()) - set(self.steps.iteration[self.own].tolist())
        return frozenset(others)

    @property
    def note(self) -> str:
        """That not all are replayed; empty where they are."""
        if self.iterations == self.of:
            return ""
        unlike = self.iterations - len(distinct(self.steps.iteration[self.own][self.is_sample]))
        which = "evenly chosen"
        if unlike:
            which += f" but for the {unlike} unlike the others"
        return f"{self.iterations} of {self.of} steps are replayed, {which}"


def steps_replayed(
    run: Run, iterations: Sequence[int], took_ns: Float64, named: Collection[int] = ()
) -> tuple[list[int], int]:
    """The steps that `ReplayedSteps.of_run` would replay and count, and the activities of all that
    it would replay; raises NothingToShow where these are too many."""
    numbers = np.array(iterations, np.int64)
    chosen = _chosen(run, numbers, took_ns, named)
    return [*chosen.alone, *chosen.sample], chosen.activities


class _Chosen(Struct, frozen=True):
    """Which steps are replayed."""

    alone: list[int]
    """Those unlike the others, each for itself."""
    sample: list[int]
    """Some of the others, which stand for all of them."""
    replayed: tuple[int, ...]
    """All these with those that lead to them; () for the whole run."""
    activities: int
    """How many are replayed."""


def _chosen(run: Run, iterations: Int64, took_ns: Float64, named: Collection[int]) -> _Chosen:
    """Of a short run all steps are replayed, each for itself."""
    if len(run.table) <= MAX_ROWS or not len(iterations):
        return _Chosen(iterations.tolist(), [], (), len(run.table))
    every = run.tree().split((), ("iteration",))
    codes, sizes = every.codes("iteration").astype(np.int64), every.sizes()
    sizes, codes = sizes[codes >= 0], codes[codes >= 0]
    place = np.searchsorted(codes, iterations)
    if sizes[_with_leads(place, len(codes))].sum() <= MAX_ROWS:
        unlike, sample = np.arange(len(iterations)), place[:0]
    else:
        unlike, sample = _sampled(iterations, took_ns, named, int(MAX_ROWS / sizes[place].mean()))
    alone, others = (iterations[each].tolist() for each in (unlike, np.sort(sample)))
    chosen = np.searchsorted(codes, np.sort(iterations[np.append(unlike, sample)]))
    there = _with_leads(chosen, len(codes))
    activities = int(sizes[there].sum())
    if activities > _MOST_ROWS:
        most = int(sizes[place].max())
        raise NothingToShow(
            f"a step has {most:,} activities: too many to replay; open the traces of some ranks"
        )
    return _Chosen(alone, others, tuple(codes[there].tolist()), activities)


def _unlike(iterations: Int64, took_ns: Float64, named: Collection[int]) -> Index:
    """The places of the steps that are named or unlike the others, the farthest first."""
    is_named = np.isin(iterations, list(named))
    far = np.abs(ratios(took_ns, np.full(len(took_ns), median_of(took_ns))) - 1)
    order = np.lexsort((-far, ~is_named))
    return order[(far > _UNLIKE)[order] | is_named[order]]


def _sampled(
    iterations: Int64, took_ns: Float64, named: Collection[int], fitting: int
) -> tuple[Index, Index]:
    """The places of steps unlike the others, one at least, and of some of the rest, if so many
    fit."""
    count = min(max(fitting // _LENGTH, min(fitting // 2, 2)), _STRETCHES)
    order = _unlike(iterations, took_ns, named)
    most, first = max(count // 2, 1), np.count_nonzero(np.isin(iterations, list(named)))
    unlike = order[: min(first, most)]
    # The farthest, which are rare, and of many others some of each distance.
    others = order[first:]
    if len(others) > most - len(unlike):
        places = np.linspace(0, len(others) - 1, most - len(unlike))
        others = others[distinct(places.astype(np.intp))]
    unlike, rest = np.append(unlike, others), distinct_without(np.arange(len(iterations)), order)
    if count - len(unlike) > 1:
        rest = rest[_evenly(len(rest), count - len(unlike), max(fitting // count - 1, 1))]
    elif len(rest):
        rest = rest[[np.abs(took_ns[rest] / median_of(took_ns) - 1).argmin()]]
    return unlike, rest


def _with_leads(chosen: Index, count: int) -> Mask:
    """Whether each of so many steps is one of some, or right before one."""
    there = np.zeros(count, np.bool_)
    there[chosen] = there[np.maximum(chosen - 1, 0)] = True
    return there


def _evenly(size: int, count: int, length: int) -> Index:
    """The places of stretches in the middle of equal parts."""
    begins = np.rint((np.arange(count) + 0.5) / count * size - length / 2).astype(np.intp)
    places = (begins[:, None] + np.arange(length)).ravel()
    return np.asarray(distinct(np.clip(places, 0, size - 1)), np.intp)
