"""The whole run by its trainer's logs: step times, throughput, restarts, ranks and phases, and how
the traced steps compare with the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import nan
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.outliers import MAD_TO_SIGMA
from chopper_core.analyses.step_times import step_times
from chopper_core.model.phrases import facts, percent, time
from chopper_core.model.recent_steps import NO_STEPS, JobSteps
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL
from chopper_core.model.training import UNKNOWN, TrainedPhases, TrainedSteps
from chopper_core.model.view import View
from chopper_core.sources.signals import ClockDomain
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.grouping import (
    counted,
    counts_of,
    distinct,
    means_of,
    median_of,
    quantile_of,
    quantiles_of,
    ratios,
    run_starts,
)

FEWEST: Final = 10
"""Logged steps that tell what is usual."""
MEANS: Final = ("tokens_per_s", "samples_per_s", "tflops", "mfu_pct", "loss", "grad_norm")
MEMORY: Final = ("memory_bytes", "reserved_bytes", "capacity_bytes")
"""The figures of which the largest of any rank and step counts."""
_OWN_MEANS: Final = (*MEANS, "learning_rate", "data_ns")
MEDIAN: Final = 0.5


class Training(Struct, frozen=True, eq=False, dict=True):
    """The logged steps of a job: a place per attempt and line, in this order."""

    rows: TrainedSteps
    first: Index
    """The first row of each place; its others are of other ranks."""
    attempt: Int64
    step: Int64
    steps: Int64
    """The steps that a place is about, up to its `step`."""
    step_ns: Float64
    """The time of a step: the median over ranks; NaN where it isn't known."""
    fastest_ns: Float64
    slowest_ns: Float64
    figures: Mapping[str, Float64]
    """Means over ranks; the largest memory of any."""
    stamp_ns: Int64
    is_stated: bool
    """Whether the trainer states step times; those between stamps are the same for all ranks."""

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def place(self) -> Index:
        """The place of each row."""
        return np.repeat(np.arange(len(self)), np.diff(self.first, append=len(self.rows)))

    @cached_property
    def spread_pct(self) -> Float64:
        """How much longer the slowest rank of a place takes than the fastest; NaN for one row."""
        timed = counts_of(self.place[np.isfinite(self.rows.step_ns)], len(self))
        is_shared = timed > 1
        spread = 100.0 * (ratios(self.slowest_ns, self.fastest_ns) - 1.0)
        return np.where(is_shared, spread, np.nan)

    @cached_property
    def is_first(self) -> Mask:
        """The first place of each attempt, in which a job warms up."""
        return np.append(True, self.attempt[1:] != self.attempt[:-1])[: len(self)]

    @cached_property
    def steady(self) -> Mask:
        """The places with a time, but for the first one of each attempt."""
        return np.isfinite(self.step_ns) & ~self.is_first

    @cached_property
    def usual_ns(self) -> float:
        """The median time of a step over the whole run; NaN with too few."""
        return self.quantiles(self.steady, (MEDIAN,))[0]

    @property
    def attempts(self) -> list[int]:
        found: list[int] = distinct(self.attempt).tolist()
        return found

    @property
    def logged(self) -> int:
        """The steps that the lines are about, those that were run again included."""
        return int(self.steps.sum())

    @property
    def elapsed_ns(self) -> float:
        """From the first line to the last one; NaN without stamps."""
        known = self.stamp_ns[self.stamp_ns != UNKNOWN]
        return float(known.max() - known.min()) if len(known) > 1 else nan

    def quantiles(self, own: Mask, shares: Sequence[float]) -> list[float]:
        """Quantiles of the step times of some places, each as often as it has steps."""
        own = own & np.isfinite(self.step_ns)
        if not own.any():
            return [nan] * len(shares)
        order = np.argsort(self.step_ns[own], kind="stable")
        values, weights = self.step_ns[own][order], self.steps[own][order]
        ends = np.cumsum(weights)
        places = np.asarray(shares) * (ends[-1] - 1)
        low = values[np.searchsorted(ends, np.floor(places), "right")]
        high = values[np.searchsorted(ends, np.ceil(places), "right")]
        found: list[float] = (low + (high - low) * (places - np.floor(places))).tolist()
        return found

    def mean(self, name: str, own: Mask) -> float:
        """A figure of some places: a mean over their steps, of rates over their time."""
        values = self.figures.get(name)
        if name == "step_ns":
            values = self.step_ns
        if values is None:
            return nan
        own = own & np.isfinite(values)
        if name in MEMORY:
            return float(values[own].max()) if own.any() else nan
        weights = self.steps[own].astype(np.float64)
        if name in ("tokens_per_s", "samples_per_s", "tflops", "mfu_pct"):
            took = self.step_ns[own]
            weights = np.where(np.isfinite(took), weights * took, 0.0)
            if not weights.any():
                weights = self.steps[own].astype(np.float64)
        return float((values[own] * weights).sum() / weights.sum()) if weights.any() else nan

    @cached_property
    def ranks(self) -> Int64:
        """The ranks that lines name."""
        return distinct(self.rows.rank[self.rows.rank >= 0]).astype(np.int64)

    @cached_property
    def timed_ranks(self) -> Int64:
        """Those of `ranks` whose lines have the time of a step."""
        own = (self.rows.rank >= 0) & np.isfinite(self.rows.step_ns)
        return distinct(self.rows.rank[own]).astype(np.int64)

    @cached_property
    def capacity_bytes(self) -> float:
        """The GPU's memory: the median of what is logged; NaN where it isn't."""
        known = self.figures.get("capacity_bytes", np.empty(0))
        return median_of(known[np.isfinite(known)]) if np.isfinite(known).any() else nan

    @cached_property
    def free_bytes(self) -> Float64:
        """The GPU's memory without what is in use or reserved, by place; NaN if unknown."""
        used = np.full(len(self), nan)
        for name in ("memory_bytes", "reserved_bytes"):
            used = np.fmax(used, self.figures.get(name, used))
        return np.maximum(self.capacity_bytes - used, 0.0)

    @cached_property
    def relative(self) -> Float64:
        """The time of each row over that of its place: how slow its rank is there.

        Without step times of its own a rank is as slow as its tokens per second are few.
        """
        rates = self.rows.tokens_per_s
        if self.is_stated or not np.isfinite(rates).any():
            return ratios(self.rows.step_ns, self.step_ns[self.place])
        known = np.flatnonzero(np.isfinite(rates))
        usual = quantiles_of(rates[known], self.place[known], len(self), (MEDIAN,))[:, 0]
        return ratios(usual[self.place], rates)

    def by_rank(self) -> tuple[Float64, Float64]:
        """The median time of each rank, and the median of how slow it is."""
        own = np.flatnonzero((self.rows.rank >= 0) & self.steady[self.place])
        own = own[np.isfinite(self.rows.step_ns[own])]
        whose = np.searchsorted(self.ranks, self.rows.rank[own])
        count = len(self.ranks)
        times, slow = (
            quantiles_of(each[own], whose, count, (MEDIAN,))[:, 0]
            for each in (self.rows.step_ns, self.relative)
        )
        return times, slow


def training_of(run: Run) -> Training | None:
    """The steps of a run's logs, worked out once; None without any."""
    rows = run.side(TrainedSteps)
    is_stated = any(log.is_stated for log in run.logs)
    return run.memo(("training",), lambda: _training(rows, is_stated)) if len(rows) else None


def _training(rows: TrainedSteps, is_stated: bool) -> Training:
    first = run_starts(rows.attempt, rows.step)
    count = len(first)
    place = np.repeat(np.arange(count), np.diff(first, append=len(rows)))
    if count == len(rows):
        times = np.stack([rows.step_ns] * 3, axis=1)
    else:
        known = np.flatnonzero(np.isfinite(rows.step_ns))
        times = quantiles_of(rows.step_ns[known], place[known], count, (0.0, MEDIAN, 1.0))
    figures: dict[str, Float64] = {}
    for name in _OWN_MEANS:
        values = getattr(rows, name)
        is_known = np.isfinite(values)
        if is_known.any():
            figures[name] = means_of(values[is_known], place[is_known], count)
    for name in MEMORY:
        if np.isfinite(getattr(rows, name)).any():
            figures[name] = np.fmax.reduceat(getattr(rows, name), first)
    return Training(
        rows,
        first,
        rows.attempt[first].astype(np.int64),
        rows.step[first].astype(np.int64),
        np.maximum.reduceat(rows.steps, first).astype(np.int64),
        times[:, 1],
        times[:, 0],
        times[:, 2],
        figures,
        np.maximum.reduceat(rows.stamp_ns, first),
        is_stated,
    )


def job_steps(run: Run) -> JobSteps:
    """The steps of a running job: as its processes publish them, else by its log's last start."""
    if run.recent is not None and len(published := run.recent.steps.job()):
        return published
    training = training_of(run)
    return NO_STEPS if training is None else run.memo(("job steps",), lambda: _of_job(training))


def _of_job(training: Training) -> JobSteps:
    own = np.flatnonzero(np.isfinite(training.step_ns))
    own = own[training.attempt[own] == training.attempt.max()]
    time_ns, end_ns = training.step_ns[own], training.stamp_ns[own]
    if (end_ns == UNKNOWN).any():
        end_ns = np.cumsum(time_ns * training.steps[own]).astype(np.int64)
    rates = training.figures.get("tokens_per_s", np.full(len(training), nan))[own]
    count = len(own)
    sizes = np.diff(training.first, append=len(training.rows))
    return JobSteps(
        number=training.step[own],
        time_ns=time_ns,
        end_ns=end_ns,
        tokens=rates * time_ns / 1e9,
        evaluation_ns=np.zeros(count),
        checkpoint_ns=np.zeros(count),
        profiled=np.zeros(count, np.bool_),
        ranks=sizes[own].astype(np.int64),
    )


class TracedSteps(Struct, frozen=True, eq=False):
    """The steps that the profiler traced, among those of the whole run."""

    step_ns: float
    """Their step time, by the trace."""
    usual_ns: float
    """The median of the steps that weren't traced, by the log."""
    attempt: int = UNKNOWN
    steps: tuple[int, int] | None = None
    """The first and the last one by the log's numbers; None where nothing places them."""
    how: str = ""
    """What places them."""

    @property
    def longer(self) -> float:
        """By which share they take longer; negative: shorter."""
        return self.step_ns / self.usual_ns - 1.0

    @property
    def sentence(self) -> str:
        how = "longer" if self.longer > 0 else "less"
        if abs(self.longer) < _SAME:
            return f"profiled steps take as long as the run's median of {time(self.usual_ns)}"
        return (
            f"profiled steps take {percent(abs(self.longer))} {how} than the run's median "
            f"({time(self.step_ns)} vs {time(self.usual_ns)})"
        )

    def mask(self, training: Training) -> Mask:
        """The places that are about any of them."""
        if self.steps is None:
            return np.zeros(len(training), np.bool_)
        first, last = self.steps
        begins = training.step - training.steps + 1
        own: Mask = training.attempt == self.attempt
        return own & (training.step >= first) & (begins <= last)


_SAME: Final = 0.005
"""Of the step: step times vary by as much."""


def traced_steps(run: Run) -> TracedSteps | None:
    """The traced steps next to those of the log; None without both, or with too few."""
    return run.memo(("traced steps",), lambda: _traced_steps(run))


def _traced_steps(run: Run) -> TracedSteps | None:
    training = training_of(run)
    if training is None or run.is_sampled_only or not run.table.has_times or run.times_mark:
        return None
    times = step_times(run, View(run.name))
    if not times.iterations or training.steady.sum() < FEWEST:
        return None
    found = _placed(run, training, list(times.iterations))
    traced = TracedSteps(times.mean_ns, nan, *found)
    usual_ns = training.quantiles(training.steady & ~traced.mask(training), (MEDIAN,))[0]
    return TracedSteps(times.mean_ns, usual_ns, *found) if usual_ns > 0 else None


def _placed(
    run: Run, training: Training, iterations: list[int]
) -> tuple[int, tuple[int, int] | None, str]:
    """The attempt and steps of the traced steps: by stamps, else by their numbers.

    Where a log in local time is long enough for several zones, the one that puts the steps at
    steps of about their numbers counts.
    """
    first, last = min(iterations), max(iterations)
    clocks = {ClockDomain(log.clock) for log in run.logs if log.clock}
    is_epoch = all(source.clock.startswith(ClockDomain.EPOCH) for source in run.sources)
    zones = []
    if len(clocks) == 1 and is_epoch and run.sources:
        span = run.origin_ns, run.end_ns
        zones = zones_of(training.stamp_ns, clocks.pop(), span)
        found = []
        for zone_ns in zones:
            begin, end = (attempt_at(training, at - zone_ns) for at in span)
            if begin is not None and end is not None and begin[0] == end[0]:
                found.append((abs(begin[1] - first), begin[0], (begin[1], end[1])))
        near = [each for each in found if each[0] <= _NEAR_STEPS] if len(zones) > 1 else found
        if len(near) >= 1:
            _, attempt, steps = min(near)
            return attempt, steps, "by the stamps of the log"
    if len(zones) > 1:
        return UNKNOWN, None, ""
    last_attempt = int(training.attempt.max(initial=0))
    for attempt in range(last_attempt, -1, -1):
        own = training.step[training.attempt == attempt]
        if first != NO_LABEL and len(own) and own.min() <= first and last <= own.max():
            return attempt, (first, last), "by their numbers"
    return UNKNOWN, None, ""


_NEAR_STEPS: Final = 3
"""A profiler counts from 0 or 1, and a line is written at the end of its step."""
_BACK_NS: Final = 60 * 10**9
"""Lines of several writers may be out of order by less."""
_QUARTER_NS: Final = 15 * 60 * 10**9
_MOST_QUARTERS: Final = 14 * 4
"""Zones are at most 14 hours from UTC."""


def zones_of(stamps_ns: Int64, clock: ClockDomain, traced_ns: tuple[int, int]) -> list[int]:
    """What may have to be added to the stamps of a log to get the epoch.

    Those zones that put the time that traces are about into that of the log; none without stamps.
    """
    known = stamps_ns[stamps_ns != UNKNOWN]
    if not len(known) or clock is ClockDomain.UNKNOWN:
        return []
    if clock is ClockDomain.EPOCH:
        return [0]
    begin, end = int(known.min()), int(known.max())
    zones = np.arange(-_MOST_QUARTERS, _MOST_QUARTERS + 1) * _QUARTER_NS
    fits = (begin + zones - _BACK_NS <= traced_ns[0]) & (traced_ns[1] <= end + zones + _BACK_NS)
    found: list[int] = zones[fits].tolist()
    return found


def attempt_at(training: Training, stamp_ns: int) -> tuple[int, int] | None:
    """The attempt and the step in progress at a time of the logs' clock; None outside of it."""
    known = np.flatnonzero(training.stamp_ns != UNKNOWN)
    later = known[training.stamp_ns[known] >= stamp_ns]
    if not len(later) or len(later) == len(known):
        return None
    at = later[np.argmin(training.stamp_ns[later])]
    return int(training.attempt[at]), int(training.step[at])


class Restart(Struct, frozen=True):
    """A job that was started again."""

    attempt: int
    """The one that follows."""
    last: int
    """The last step that was logged before."""
    first: int
    """The first one after it."""
    again: int
    """Steps that were run again."""
    away_ns: float
    """From the last line before to the first one after it; NaN without stamps."""


def restarts_of(training: Training) -> list[Restart]:
    found = []
    for before, after in pairwise(training.attempts):
        one, other = (np.flatnonzero(training.attempt == each) for each in (before, after))
        last, first = int(training.step[one[-1]]), int(training.step[other[0]])
        stamps = training.stamp_ns[one[-1]], training.stamp_ns[other[0]]
        away = float(stamps[1] - stamps[0]) if min(stamps) != UNKNOWN else nan
        begin = first - int(training.steps[other[0]])
        found.append(Restart(after, last, first, max(last - begin, 0), away))
    return found


class Periodic(Struct, frozen=True):
    """Steps at equal distances that take longer: a checkpoint, an evaluation, logging."""

    every: int
    first: int
    count: int
    more_ns: float
    """How much longer such a step takes."""

    @property
    def each_ns(self) -> float:
        """Its price per step."""
        return self.more_ns / self.every


_SLOW: Final = 0.1
"""Of the median: how much longer a step takes at least that is looked for."""
_SIGMAS: Final = 6.0
_MOST_PERIODS: Final = 4
_MOST_HITS: Final = 10_000
_MOST_PAIRED: Final = 64
_MOST_TRIED: Final = 64
_FEWEST_TIMES: Final = 3
_TYPICAL: Final = 0.25
_PRESENT: Final = 0.8
"""The part of a period's steps that are long, at least."""


def periodic_steps(training: Training) -> list[Periodic]:
    """The long steps that come at equal distances, the dearest per step first.

    A step may be one of several: its time beyond the usual one is divided among them.
    """
    own = np.flatnonzero(training.steady)
    if len(own) < FEWEST:
        return []
    took, logged = training.step_ns[own], training.step[own]
    more = (took - training.usual_ns) * training.steps[own]
    spread = MAD_TO_SIGMA * median_of(np.abs(took - training.usual_ns))
    limit = max(_SLOW * training.usual_ns, _SIGMAS * spread)
    slow = np.flatnonzero(more > limit)[:_MOST_HITS]
    step, more = logged[slow], more[slow]
    first = np.sort(step)[:_MOST_PAIRED]
    gaps, counts = counted(np.abs(first[:, None] - first[None, :]).ravel().astype(np.int64))
    gaps = gaps[np.argsort(-counts, kind="stable")]
    candidates = gaps[gaps > 1][:_MOST_TRIED].tolist()
    found: list[Periodic] = []
    while len(found) < _MOST_PERIODS:
        best: tuple[float, Periodic, Mask] | None = None
        is_long = more > limit
        for every in candidates:
            rest = step % every
            which, times = counted(rest[is_long])
            if not len(which):
                continue
            offset = int(which[times.argmax()])
            hits = is_long & (rest == offset)
            expected = int((logged % every == offset).sum())
            if hits.sum() < _FEWEST_TIMES or hits.sum() < _PRESENT * expected:
                continue
            # What other periods add to some of them is no part of its price.
            cost = float(quantile_of(more[hits], (_TYPICAL,))[0])
            each = Periodic(every, int(step[hits].min()), int(hits.sum()), cost)
            if best is None or cost * each.count > best[0]:
                best = cost * each.count, each, hits
        if best is None:
            break
        found.append(best[1])
        more = np.where(best[2], more - best[1].more_ns, more)
    return sorted(found, key=lambda each: -each.each_ns)


def throughput_text(training: Training) -> str:
    """The run in a line: steps, time, the usual step, throughput, and restarts."""
    p95 = training.quantiles(training.steady, (0.95,))[0]
    rate, mfu = (training.mean(name, training.steady) for name in ("tokens_per_s", "mfu_pct"))
    usual = training.usual_ns
    again = len(training.attempts) - 1
    return facts(
        f"{training.logged:,} steps"
        + (f" in {time(training.elapsed_ns)}" if training.elapsed_ns > 0 else ""),
        f"median {time(usual)}, 95th percentile {time(p95)}" if usual > 0 else "no step times",
        f"{rate:,.0f} tok/s per GPU" if rate > 0 else "",
        f"{mfu:.1f} % MFU" if mfu > 0 else "",
        f"{again} restart{'s' if again > 1 else ''}" if again else "",
    )


def phases_of(run: Run, training: Training) -> dict[str, Float64]:
    """The mean time of each phase per step, by place; NaN where a place lacks it."""
    phases = run.side(TrainedPhases)
    place = training.place[phases.row]
    members = {name: phases.phase == code for code, name in enumerate(phases.names)}
    return {
        name: means_of(phases.time_ns_each[own], place[own], len(training))
        for name, own in members.items()
    }


def slowest_rank(run: Run, training: Training, name: str) -> tuple[int, float] | None:
    """The rank with the longest mean time of a phase, and by which share it is beyond the median
    of the ranks; None for fewer than two. The first line of a start doesn't count."""
    phases = run.side(TrainedPhases)
    own = phases.phase == phases.names.index(name)
    own &= (training.rows.rank[phases.row] >= 0) & ~training.is_first[training.place[phases.row]]
    whose = np.searchsorted(training.ranks, training.rows.rank[phases.row[own]])
    means = means_of(phases.time_ns_each[own], whose, len(training.ranks))
    known = means[np.isfinite(means)]
    middle = median_of(known) if len(known) > 1 else 0.0
    if not middle > 0:
        return None
    rank = int(np.nanargmax(means))
    return int(training.ranks[rank]), float(means[rank]) / middle - 1.0
