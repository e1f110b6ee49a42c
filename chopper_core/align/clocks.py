"""Clock offsets between hosts, from collectives that end together on all ranks.

No rank leaves an all-reduce, all-gather, reduce-scatter or all-to-all before the last one enters,
so its kernels end at about the same time everywhere. The median difference over many of them is
the offset between two clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.collective_ends import CommKernels, end_offsets
from chopper_core.align.collective_sets import collective_sets
from chopper_core.model.inputs import HostClock
from chopper_core.model.table import KernelTable
from chopper_core.util.arrays import Int64
from chopper_core.util.grouping import median_of, quantile_of, ranked

_MIN_COLLECTIVES: Final = 5
"""Minimum number of collectives for an estimate."""
_DISTINCT_NS: Final = 8_000
"""GPUs of one host leave a collective within a few µs of each other."""
_STAMP_NS: Final = 1_000
"""Older Kineto versions stamp whole µs, which limits the accuracy of a difference."""
_STANDARD_ERRORS: Final = 3
"""The uncertainty of a median in standard errors."""
_ABSENT: Final = np.iinfo(np.int64).min


class RankClock(Struct, frozen=True):
    """The offset of a rank's clock to that of the first rank."""

    correction_ns: int
    uncertainty_ns: int
    scatter_ns: int
    """Half the range in which 80 % of the differences lie."""
    collectives: int


def host_clocks(
    table: KernelTable,
    rank_of_gpu: Mapping[int, int],
    host_of_rank: Mapping[int, str],
    by_hand: Mapping[int, int],
) -> list[HostClock]:
    """The clocks of a run, the first rank's first; a single clock by default.

    Ranks of one host share a clock. If hosts are unknown (''), ranks whose ends are farther apart
    than they scatter have separate clocks. `by_hand` are corrections by rank that override the
    estimates.
    """
    ranks = sorted(set(rank_of_gpu.values()))
    found = {ranks[0]: RankClock(0, 0, 0, 0)}
    if len(ranks) > 1:
        found = rank_clocks(table, rank_of_gpu)
    if all(host_of_rank.get(rank) for rank in ranks):
        groups: dict[str, list[int]] = {}
        for rank in ranks:
            groups.setdefault(host_of_rank[rank], []).append(rank)
    else:
        parts = _apart(ranks, found)
        groups = {f"clock {number}": part for number, part in enumerate(parts, 1)}
    clocks = [_clock(name, group, found) for name, group in groups.items()]
    clocks = [_relative(clock, clocks[0]) for clock in clocks]
    return [part for clock in clocks for part in _with_hand(clock, by_hand)]


def rank_clocks(table: KernelTable, rank_of_gpu: Mapping[int, int]) -> dict[int, RankClock]:
    """The offset of each rank to the lowest rank, if collectives connect them."""
    ranks = sorted(set(rank_of_gpu.values()))
    ends = _ends(table, rank_of_gpu, ranks)
    reference = ends[0].copy()
    found = {ranks[0]: RankClock(0, 0, 0, int((reference != _ABSENT).sum()))}
    left = ranks[1:]
    while left:
        for rank in left:
            own = ends[ranks.index(rank)]
            both = (own != _ABSENT) & (reference != _ABSENT)
            if both.sum() < _MIN_COLLECTIVES:
                continue
            distance = reference[both] - own[both]
            correction = int(median_of(distance))
            low, high = quantile_of(distance - correction, (0.1, 0.9))
            count, scatter = int(both.sum()), int((high - low) / 2)
            doubt = max(int(_STANDARD_ERRORS * scatter / count**0.5), _STAMP_NS)
            found[rank] = RankClock(correction, doubt, scatter, count)
            new = (own != _ABSENT) & (reference == _ABSENT)
            reference[new] = own[new] + correction
        connected = [rank for rank in left if rank not in found]
        if connected == left:
            break
        left = connected
    return found


def _ends(table: KernelTable, rank_of_gpu: Mapping[int, int], ranks: Sequence[int]) -> Int64:
    """Ends of collectives: a row per rank, a column per collective that two ranks or more have."""
    kernels = CommKernels.of(table)
    if not len(kernels):
        return np.empty((len(ranks), 0), np.int64)
    sets = collective_sets(kernels, end_offsets(kernels))
    place_of_gpu = np.zeros(int(kernels.gpu.max()) + 1, np.int64)
    for gpu, number in rank_of_gpu.items():
        if gpu < len(place_of_gpu):
            place_of_gpu[gpu] = ranks.index(number)
    sets[kernels.is_rooted] = int(sets.max()) + 1 + np.arange(int(kernels.is_rooted.sum()))
    several = np.bincount(sets)[sets] > 1
    columns, column = ranked(sets[several])
    ends = np.full((len(ranks), len(columns)), _ABSENT, np.int64)
    ends[place_of_gpu[kernels.gpu[several]], column] = kernels.end_ns[several]
    return ends


def _apart(ranks: Sequence[int], found: Mapping[int, RankClock]) -> list[list[int]]:
    """Ranks grouped by their offsets alone: the first rank's group first."""
    known = sorted((found[rank].correction_ns, rank) for rank in ranks if rank in found)
    parts: list[list[int]] = []
    before: RankClock | None = None
    for _, rank in known:
        clock = found[rank]
        if before is not None:
            gap = clock.correction_ns - before.correction_ns
            if gap <= max(_DISTINCT_NS, clock.scatter_ns, before.scatter_ns):
                parts[-1].append(rank)
                before = clock
                continue
        parts.append([rank])
        before = clock
    # Ranks that no collective connects are assumed to be on the first rank's clock.
    of_first = next(part for part in parts if ranks[0] in part)
    of_first += [rank for rank in ranks if rank not in found]
    return sorted((sorted(part) for part in parts), key=lambda part: part[0])


def _clock(name: str, ranks: Sequence[int], found: Mapping[int, RankClock]) -> HostClock:
    """The common clock of some ranks: the median of their offsets, with their spread."""
    known = [found[rank] for rank in ranks if rank in found]
    if not known:
        return HostClock(name, tuple(ranks), 0, None, "no collectives connect it to the others")
    corrections = np.array([clock.correction_ns for clock in known])
    doubt = median_of(np.array([clock.uncertainty_ns for clock in known]))
    spread = max(int(doubt), int(corrections.max() - corrections.min()) // 2)
    count = sum(clock.collectives for clock in known)
    method = f"estimated from {count} collective ends"
    return HostClock(name, tuple(ranks), int(median_of(corrections)), spread, method)


def _relative(clock: HostClock, first: HostClock) -> HostClock:
    """The offset to the first host's clock; 0 within the uncertainty."""
    if clock is first:
        return replace(clock, correction_ns=0, uncertainty_ns=0, method="the run's clock")
    if clock.uncertainty_ns is None:
        return clock
    doubt = max(clock.uncertainty_ns, first.uncertainty_ns or 0)
    distance = clock.correction_ns - first.correction_ns
    return replace(
        clock, correction_ns=distance if abs(distance) > doubt else 0, uncertainty_ns=doubt
    )


def _with_hand(clock: HostClock, by_hand: Mapping[int, int]) -> list[HostClock]:
    """The clock, and separate clocks for ranks that the user corrected."""
    kept = tuple(rank for rank in clock.ranks if rank not in by_hand)
    parts = [replace(clock, ranks=kept)]
    given = sorted({by_hand[rank] for rank in clock.ranks if rank in by_hand})
    for correction in given:
        ranks = tuple(rank for rank in clock.ranks if by_hand.get(rank) == correction)
        parts.append(HostClock(clock.name, ranks, correction, 0, "by hand"))
    return [part for part in parts if part.ranks]
