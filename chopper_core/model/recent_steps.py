"""The steps of a job that is still going, by what its processes publish of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite, nan
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.phrases import age_text
from chopper_core.util.arrays import Float64, Int64, Mask
from chopper_core.util.grouping import (
    counts_of,
    maxima_of,
    means_of,
    median_of,
    quantile_of,
    ranked,
)

_MOST: Final = 1024
"""Steps that are kept of a process."""
_EARLY: Final = 3
"""Steps that allocate and compile: they aren't usual."""
_RECENT_NS: Final = 60 * 10**9
"""What is per second is that of so long."""
_STALL_S: Final = 10.0
_STALL_STEPS: Final = 5.0
"""A step is late after so long, and so many of the usual ones."""
SLOWER: Final = 0.01
"""A rank whose steps are longer than the median rank's by less isn't the slowest."""
_FIELDS: Final = 7


class ProcessNow(Struct, frozen=True):
    """What a process does."""

    rank: int
    """-1 where nothing names it."""
    born_ns: int
    doing: str
    """`the forward of step {}`; '' once it has ended."""
    is_step: bool
    """Whether that is part of a step, and not an evaluation, a checkpoint or a trace."""
    since_ns: int
    step: int


class _Process:
    """A process, and its last steps: rows of number, begin, duration, tokens, evaluation,
    checkpoint (ns, -1 for unknown tokens), and whether the profiler slowed it."""

    def __init__(self, now: ProcessNow) -> None:
        self.now = now
        self.rows: Int64 = np.empty((0, _FIELDS), np.int64)
        self.changed_s = 0.0
        """When the screen saw it change."""

    @property
    def last_ns(self) -> int:
        """Its last sign of life."""
        ends = self.rows[-1:, 1] + self.rows[-1:, 2]
        return max((self.now.since_ns, self.now.born_ns, *map(int, ends)))


class JobSteps(Struct, frozen=True, eq=False):
    """The steps of a job, in order of their numbers."""

    number: Int64
    time_ns: Float64
    """Until the next step begins: the mean over ranks."""
    end_ns: Int64
    """When the last rank ended it."""
    tokens: Float64
    """That a rank was given: the mean over those that have some; NaN without."""
    evaluation_ns: Float64
    """The part of it in evaluations, at most of any rank."""
    checkpoint_ns: Float64
    profiled: Mask
    """Whether a profiler recorded it on some rank, or was near."""
    ranks: Int64
    """How many have ended it."""

    def __len__(self) -> int:
        return len(self.number)

    @property
    def plain(self) -> Mask:
        """The steps that tell what is usual: none with anything else in it."""
        is_else = (self.evaluation_ns > 0) | (self.checkpoint_ns > 0) | self.profiled
        is_usual = ~is_else & (self.number >= _EARLY)
        return is_usual if is_usual.any() else ~is_else

    def usual_ns(self, share: float = 0.5) -> float:
        """A quantile of the step times; NaN without plain steps."""
        own = self.time_ns[self.plain]
        return float(quantile_of(own, (share,))[0]) if len(own) else nan

    def per_second(self) -> tuple[float, float]:
        """Steps, and tokens of a rank, in the last minute that had a step; NaN where unknown."""
        if not len(self):
            return nan, nan
        own = self.end_ns > self.end_ns[-1] - _RECENT_NS
        seconds = float(self.time_ns[own].sum()) / 1e9
        known = own & np.isfinite(self.tokens)
        of_known = float(self.time_ns[known].sum()) / 1e9
        tokens = float(self.tokens[known].sum()) / of_known if of_known > 0 else nan
        return (int(own.sum()) / seconds if seconds > 0 else nan), tokens

    def named(self, place: int) -> str:
        """What lies in a step, in words."""
        parts = [
            f"{part_ns[place] / 1e9:.3g} s {name}"
            for name, part_ns in (("evaluation", self.evaluation_ns),
                                  ("checkpoint", self.checkpoint_ns))
            if part_ns[place] > 0
        ]  # fmt: skip
        return ", ".join([*parts, *(["profiled"] if self.profiled[place] else [])])


_NONE: Final = np.empty(0)
_NO_NUMBERS: Final = np.empty(0, np.int64)
NO_STEPS: Final = JobSteps(
    _NO_NUMBERS, _NONE, _NO_NUMBERS, _NONE, _NONE, _NONE, np.empty(0, np.bool_), _NO_NUMBERS
)


class RecentSteps:
    """The last steps of each process of a job; of a job that was started again, of each start."""

    def __init__(self) -> None:
        self._processes: dict[str, _Process] = {}
        self._known: JobSteps | None = None

    def __bool__(self) -> bool:
        return bool(self._processes)

    def add(self, key: str, now: ProcessNow, rows: Int64, seen_s: float) -> bool:
        """Add what a process says; False where that is nothing new. `rows` as in `_Process`."""
        process = self._processes.get(key)
        if process is None:
            process = self._processes[key] = _Process(now)
            process.changed_s = min(seen_s, now.since_ns * 1e-9)
        elif now != process.now or len(rows):
            process.changed_s = seen_s
        else:
            return False
        process.now = now
        process.rows = np.concatenate([process.rows, rows])[-_MOST:]
        self._known = None
        return True

    def forget(self, keys: Mapping[str, object]) -> None:
        """Forget the processes that aren't among some."""
        gone = [key for key in self._processes if key not in keys]
        for key in gone:
            del self._processes[key]
            self._known = None

    def starts(self) -> list[list[_Process]]:
        """The processes of each start of the job, the newest last.

        A rank that comes again was started again; so was a job whose process begins after the last
        sign of life of another.
        """
        waiting = sorted(self._processes.values(), key=lambda each: each.now.born_ns)
        found: list[list[_Process]] = []
        for each in waiting:
            same = found[-1] if found else []
            ranks = {other.now.rank for other in same} - {-1}
            is_again = each.now.rank in ranks
            is_after = all(other.last_ns < each.now.born_ns for other in same)
            if not same or is_again or is_after:
                found.append([])
            found[-1].append(each)
        return found

    @property
    def current(self) -> list[_Process]:
        """The processes of the newest start."""
        return next(iter(self.starts()[-1:]), [])

    @property
    def born_ns(self) -> int:
        """When the newest start began; 0 without any."""
        return min((each.now.born_ns for each in self.current), default=0)

    def job(self) -> JobSteps:
        """The steps that all ranks of the newest start have ended, as far as these go on."""
        if self._known is None:
            self._known = _joined(self.current)
        return self._known

    def slowest(self) -> tuple[int, float]:
        """The rank with the longest steps, and by which part its median is beyond the ranks'; -1
        where none stands out."""
        medians = {}
        for each in self.current:
            plain = each.rows[(each.rows[:, 4:] == 0).all(axis=1) & (each.rows[:, 0] >= _EARLY)]
            if each.now.rank >= 0 and len(plain):
                medians[each.now.rank] = median_of(plain[:, 2])
        if len(medians) < 2:
            return -1, 0.0
        usual = median_of(np.array([*medians.values()], np.float64))
        rank = max(medians, key=lambda each: medians[each])
        slower = medians[rank] / usual - 1.0 if usual > 0 else 0.0
        return (rank, slower) if slower >= SLOWER else (-1, 0.0)

    def stall(self, now_s: float) -> str:
        """That no step ends, for how long, and where the ranks are; '' while steps do."""
        usual_s = self.job().usual_ns() / 1e9
        limit_s = max(_STALL_S, _STALL_STEPS * usual_s) if isfinite(usual_s) else 3 * _STALL_S
        running = [each for each in self.current if each.now.doing]
        if not running:
            return ""
        age_s = now_s - max(each.changed_s for each in running)
        if age_s < limit_s:
            return ""
        if not all(each.now.is_step for each in running):
            return ""
        return f"no step for {age_text(age_s)}: {'; '.join(_places(running, len(running)))}"

    def doing(self, now_s: float) -> str:
        """What else the job does now, and for how long; '' where it trains."""
        running = [each for each in self.current if each.now.doing]
        other = [each for each in running if not each.now.is_step]
        if not other:
            return ""
        age_s = now_s - min(each.changed_s for each in other)
        places = "; ".join(_places(other, len(running)))
        return f"{places} for {age_text(age_s)}" if age_s >= _STALL_S else ""


def _places(own: list[_Process], count: int) -> Iterator[str]:
    """Where some of so many ranks are, the fewest first: those that the others wait for are few."""
    by_place: dict[str, list[int]] = {}
    for each in own:
        by_place.setdefault(each.now.doing.format(each.now.step), []).append(each.now.rank)
    for doing, ranks in sorted(by_place.items(), key=lambda item: len(item[1])):
        if len(ranks) == count:
            who = f"all {len(ranks)} ranks are" if len(ranks) > 1 else "it is"
        elif len(ranks) == 1 and ranks[0] >= 0:
            who = f"rank {ranks[0]} is"
        else:
            who = f"{len(ranks)} rank{'s are' if len(ranks) > 1 else ' is'}"
        yield f"{who} in {doing}"


def _joined(processes: list[_Process]) -> JobSteps:
    own = [each for each in processes if len(each.rows)]
    if not own:
        return NO_STEPS
    # A rank that ended, or is gone while the others go on, holds none of them up.
    newest = max(int(each.rows[-1, 0]) for each in own)
    lasts = [int(each.rows[-1, 0]) for each in own]
    last = min((each for each in lasts if each >= newest - 1), default=newest)
    rows = np.concatenate([each.rows for each in own])
    rows = rows[rows[:, 0] <= last]
    number, place = ranked(rows[:, 0])
    size, is_known = len(number), rows[:, 3] >= 0
    return JobSteps(
        number,
        means_of(rows[:, 2], place, size),
        maxima_of(rows[:, 1] + rows[:, 2], place, size),
        means_of(rows[is_known, 3], place[is_known], size),
        maxima_of(rows[:, 4], place, size).astype(np.float64),
        maxima_of(rows[:, 5], place, size).astype(np.float64),
        maxima_of(rows[:, 6], place, size) > 0,
        counts_of(place, size),
    )
