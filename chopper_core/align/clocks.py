"""Clock offsets between hosts, from collectives that end together on all ranks.

No rank leaves an all-reduce, all-gather, reduce-scatter or all-to-all before the last one enters,
so its kernels end at about the same time everywhere. The median difference over many of them is
the offset between two clocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.run import HostClock
from chopper_core.model.table import KernelTable, Kind
from chopper_core.util.arrays import Int64
from chopper_core.util.grouping import run_starts

SYNCHRONOUS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_GROUP_SIZE: Final = re.compile(r" of (\d+)$")
_MIN_COLLECTIVES: Final = 5
"""Minimum number of collectives for an estimate."""
_IMPLAUSIBLE_NS: Final = 1_000_000
"""On GPUs of one host the ends of a collective are closer."""
_STAMP_NS: Final = 1_000
"""Older Kineto versions stamp whole µs, which limits the accuracy of a difference."""
_CLEAR: Final = 10
"""Multiples of the uncertainty by which distinct clocks differ."""
_ABSENT: Final = np.iinfo(np.int64).min


class RankClock(Struct, frozen=True):
    """The offset of a rank's clock to that of the first rank."""

    correction_ns: int
    uncertainty_ns: int
    collectives: int


def host_clocks(
    table: KernelTable,
    rank_of_gpu: Mapping[int, int],
    host_of_rank: Mapping[int, str],
    partial_iterations: Set[int],
    by_hand: Mapping[int, int],
) -> list[HostClock]:
    """The clocks of a run, the first rank's first; a single clock by default.

    Ranks of one host share a clock. If hosts are unknown (''), ranks whose ends are implausibly far
    apart have separate clocks. `by_hand` are corrections by rank that override the estimates.
    """
    ranks = sorted(set(rank_of_gpu.values()))
    found = {ranks[0]: RankClock(0, 0, 0)}
    if len(ranks) > 1:
        found = rank_clocks(table, rank_of_gpu, partial_iterations)
    if all(host_of_rank.get(rank) for rank in ranks):
        groups: dict[str, list[int]] = {}
        for rank in ranks:
            groups.setdefault(host_of_rank[rank], []).append(rank)
    else:
        parts = _apart(ranks, found)
        groups = {f"clock {number}": part for number, part in enumerate(parts, 1)}
    clocks = [_clock(name, group, found) for name, group in groups.items()]
    first = clocks[0]
    clocks = [_first(first), *(_relative(clock, first) for clock in clocks[1:])]
    return [part for clock in clocks for part in _with_hand(clock, by_hand)]


def rank_clocks(
    table: KernelTable, rank_of_gpu: Mapping[int, int], partial_iterations: Set[int]
) -> dict[int, RankClock]:
    """The offset of each rank to the lowest rank, if collectives connect them."""
    ranks = sorted(set(rank_of_gpu.values()))
    ends = _ends(table, rank_of_gpu, ranks, partial_iterations)
    reference = ends[0].copy()
    found = {ranks[0]: RankClock(0, 0, int((reference != _ABSENT).sum()))}
    left = ranks[1:]
    while left:
        for rank in left:
            own = ends[ranks.index(rank)]
            both = (own != _ABSENT) & (reference != _ABSENT)
            if both.sum() < _MIN_COLLECTIVES:
                continue
            distance = reference[both] - own[both]
            correction = int(np.median(distance))
            low, high = np.percentile(distance - correction, [10, 90])
            doubt = max(int((high - low) / 2), _STAMP_NS)
            found[rank] = RankClock(correction, doubt, int(both.sum()))
            new = (own != _ABSENT) & (reference == _ABSENT)
            reference[new] = own[new] + correction
        connected = [rank for rank in left if rank not in found]
        if connected == left:
            break
        left = connected
    return found


def _ends(
    table: KernelTable,
    rank_of_gpu: Mapping[int, int],
    ranks: Sequence[int],
    partial_iterations: Set[int],
) -> Int64:
    """Ends of collectives: a row per rank, a column per collective matched with certainty.

    The n-th of a process group, kind and iteration matches where all ranks have the same number of
    them, of the same sizes.
    """
    codes = [table.operations.index(name) for name in SYNCHRONOUS if name in table.operations]
    rows = np.flatnonzero((table.kind == Kind.COMM) & np.isin(table.operation, codes))
    rows = rows[~np.isin(table.iteration[rows], list(partial_iterations))]
    place_of_gpu = np.full(int(table.gpu.max(initial=0)) + 1, -1, np.int64)
    for gpu, number in rank_of_gpu.items():
        place_of_gpu[gpu] = ranks.index(number)
    rank = place_of_gpu[table.gpu[rows]]
    keys = table.group[rows], table.operation[rows], table.iteration[rows]
    order = np.lexsort((table.start_ns[rows], rank, *keys))
    rows, rank = rows[order], rank[order]
    bounds = [*run_starts(*(key[order] for key in keys)).tolist(), len(rows)]
    columns = [np.empty((len(ranks), 0), np.int64)]
    for begin, end in pairwise(bounds):
        own, places = rows[begin:end], rank[begin:end]
        there, counts = np.unique(places, return_counts=True)
        if len(there) < 2 or counts.min() != counts.max():
            continue
        if len(there) > _group_size(table, int(table.group[own[0]]), len(ranks)):
            continue
        by_rank = own.reshape(len(there), -1)
        if (table.bytes[by_rank] != table.bytes[by_rank[0]]).any():
            continue
        block = np.full((len(ranks), by_rank.shape[1]), _ABSENT, np.int64)
        block[there] = table.start_ns[by_rank] + table.duration_ns[by_rank]
        columns.append(block)
    return np.concatenate(columns, axis=1)


def _group_size(table: KernelTable, group: int, ranks: int) -> int:
    """Size of a process group: a larger set of ranks under its name is several groups."""
    size = _GROUP_SIZE.search(table.names[group]) if group >= 0 else None
    return int(size.group(1)) if size else ranks


def _apart(ranks: Sequence[int], found: Mapping[int, RankClock]) -> list[list[int]]:
    """Ranks grouped by their offsets alone: the first rank's group first."""
    known = sorted((found[rank].correction_ns, rank) for rank in ranks if rank in found)
    parts: list[list[int]] = []
    before: RankClock | None = None
    for _, rank in known:
        clock = found[rank]
        if before is not None:
            doubt = max(clock.uncertainty_ns, before.uncertainty_ns)
            gap = clock.correction_ns - before.correction_ns
            if gap <= max(_IMPLAUSIBLE_NS, _CLEAR * doubt):
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
    doubt = np.median([clock.uncertainty_ns for clock in known])
    spread = max(int(doubt), int(corrections.max() - corrections.min()) // 2)
    count = sum(clock.collectives for clock in known)
    method = f"estimated from {count} collective ends"
    return HostClock(name, tuple(ranks), int(np.median(corrections)), spread, method)


def _first(clock: HostClock) -> HostClock:
    return HostClock(clock.name, clock.ranks, 0, 0, "the run's clock")


def _relative(clock: HostClock, first: HostClock) -> HostClock:
    """The offset to the first host's clock; 0 within the uncertainty."""
    if clock.uncertainty_ns is None:
        return clock
    doubt = max(clock.uncertainty_ns, first.uncertainty_ns or 0)
    distance = clock.correction_ns - first.correction_ns
    if abs(distance) <= doubt:
        distance = 0
    return HostClock(clock.name, clock.ranks, distance, doubt, clock.method)


def _with_hand(clock: HostClock, by_hand: Mapping[int, int]) -> list[HostClock]:
    """The clock, and separate clocks for ranks with a correction by hand."""
    kept = tuple(rank for rank in clock.ranks if rank not in by_hand)
    parts = [HostClock(clock.name, kept, clock.correction_ns, clock.uncertainty_ns, clock.method)]
    given = sorted({by_hand[rank] for rank in clock.ranks if rank in by_hand})
    for correction in given:
        ranks = tuple(rank for rank in clock.ranks if by_hand.get(rank) == correction)
        parts.append(HostClock(clock.name, ranks, correction, 0, "by hand"))
    return [part for part in parts if part.ranks]
