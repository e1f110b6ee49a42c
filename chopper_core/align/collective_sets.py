"""Which communication kernels of the GPUs are one collective; the clocks of hosts, by their ends.

Kernels that end together are one collective if each GPU has one of them and their labels don't
contradict. Sequences of ends are cut at clear gaps; between two cuts the n-th
kernels belong together if all GPUs have as many. Kernels without labels take part. A kernel for
which several collectives come into question stays alone.

No rank leaves an all-reduce, all-gather, reduce-scatter or all-to-all before the last one enters,
so its kernels end at about the same time everywhere. The median difference over many of them is
the offset between two clocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.collective_ends import UNKNOWN, CommKernels, EndOffsets, end_offsets
from chopper_core.model.inputs import HostClock
from chopper_core.model.table import KernelTable, Rule
from chopper_core.model.tree import level_order
from chopper_core.util.arrays import Index, Int64, Mask
from chopper_core.util.grouping import (
    combined,
    distinct,
    grouped_by,
    median_of,
    minima_of,
    nth_of,
    numbered_rows,
    places_by,
    quantile_of,
    ranked,
    run_mask,
    run_sizes,
    run_starts,
    runs_of,
    stable_order,
)
from chopper_core.work.kernel_classes import UNKNOWN_COLLECTIVE

_MIN_COLLECTIVES: Final = 5
"""Minimum number of collectives for an estimate."""
_DISTINCT_NS: Final = 8_000
"""GPUs of one host leave a collective within a few µs of each other."""
_STAMP_NS: Final = 1_000
"""Older Kineto versions stamp whole µs, which limits the accuracy of a difference."""
_STANDARD_ERRORS: Final = 3
"""The uncertainty of a median in standard errors."""
_ABSENT: Final = np.iinfo(np.int64).min
_SCATTERS: Final = 10
"""A gap of more than this many times their usual scatter separates the ends of two collectives."""
_TOLERANCE_NS: Final = (5_000, 500_000)
"""The least and the largest distance at which ends may be the same."""
_FINER: Final = 3
_CLEAR_SCATTERS: Final = 3
"""Ends closer together than this can't be distinguished."""
_MIN_GAP_NS: Final = 1_000
_FAR: Final = np.iinfo(np.int64).max
_YEAR_NS: Final = 365 * 86_400 * 10**9
"""Profiling windows of one job are nearer: one of the clocks has no date."""
_UNPLACED: Final = (
    "taken to begin with the first rank: no collectives connect it, and its times are years away"
)


def collective_sets(kernels: CommKernels, offsets: EndOffsets) -> Int64:
    """The number of the collective that each kernel is part of; each kernel alone where unknown.

    Time is that of sorting the kernels a few times.
    """
    found = _Matching(kernels, kernels.end_ns - offsets.late_ns[kernels.gpu])
    usable = ~np.isin(kernels.gpu, [*offsets.unmatched]) & ~kernels.is_unmatched
    together = np.flatnonzero(usable & ~kernels.is_rooted)
    together = together[stable_order(found.end[together])]
    least, most = _TOLERANCE_NS
    tolerance_ns = min(max(_SCATTERS * offsets.scatter_ns, least), most)
    clear_ns = max(_CLEAR_SCATTERS * offsets.scatter_ns, _MIN_GAP_NS)
    universe = _universes(kernels, found.end, together, tolerance_ns)
    part = offsets.part[kernels.gpu]
    # Kernels of an unknown group are matched within a part alone.
    universe = np.where(universe == UNKNOWN, UNKNOWN - part[together], universe)
    found.by_ends(together, universe, tolerance_ns, clear_ns)
    rest = together[(found.sets[together] == UNKNOWN) & (kernels.kind[together] != UNKNOWN)]
    if len(rest):
        labels = numbered_rows(
            (part[rest], kernels.group[rest], kernels.kind[rest], kernels.size[rest])
        )
        found.by_ends(rest, labels, tolerance_ns, clear_ns)
    rooted = np.flatnonzero(usable & kernels.is_rooted)
    if len(rooted):
        found.by_order(rooted)
    found.number(np.flatnonzero(found.sets == UNKNOWN))
    return found.sets


def ordered_sets(kernels: CommKernels, operations: Sequence[str]) -> Int64:
    """The collective of each kernel of a schedule, whose groups and order are exact.

    The n-th of a group, kind and iteration on each of its GPUs are one, a send and its receive too.
    """
    sent = [name.replace("recv", "send") for name in operations]
    kind = np.array([*map(sent.index, sent), UNKNOWN], np.int64)[kernels.kind]
    part = numbered_rows((kernels.iteration, kernels.group, kind))
    order = stable_order(kernels.end_ns)
    order = order[stable_order(part[order])]
    place, even = _places(part[order], kernels.gpu[order])
    number = np.arange(len(kernels)) + int(place.max(initial=0)) + 1
    known = even[part[order]] & (kernels.group[order] != UNKNOWN)
    number[order[known]] = place[known]
    return numbered_rows((part, number))


def labelled_by_partners(table: KernelTable) -> KernelTable:
    """The table with collectives of unknown kind named like their partners on other GPUs.

    The same table where none is known; else in the order of the levels.
    """
    if UNKNOWN_COLLECTIVE not in table.operations:
        return table
    kernels = CommKernels.of(table)
    sets = collective_sets(kernels, end_offsets(kernels))
    kind = np.full(int(sets.max(initial=-1)) + 1, UNKNOWN, np.int64)
    np.maximum.at(kind, sets, kernels.kind)
    named = (kernels.kind == UNKNOWN) & (kind[sets] != UNKNOWN)
    if not named.any():
        return table
    operation, rule = table.operation.copy(), table.operation_rule.copy()
    operation[kernels.rows[named]] = kind[sets[named]]
    rule[kernels.rows[named]] = Rule.PARTNER
    table = replace(table, operation=operation, operation_rule=rule)
    return table.take(level_order(table))


def _universes(kernels: CommKernels, end: Int64, order: Index, tolerance: int) -> Int64:
    """The process group in which each kernel of the order is matched.

    One without a group is matched in the only group of its GPU that has a collective at its end in
    which the GPU lacks; else among those without a group.
    """
    group = kernels.group[order]
    known = distinct(group[group != UNKNOWN])
    if len(known) < 2:
        return np.zeros(len(order), np.int64)
    universe = group.copy()
    open_rows = np.flatnonzero(group == UNKNOWN)
    if not len(open_rows):
        return universe
    choices = np.zeros(len(open_rows), np.int64)
    chosen = np.full(len(open_rows), UNKNOWN, np.int64)
    gpu, kind = kernels.gpu[order], kernels.kind[order]
    ends = end[order]
    labelled = np.flatnonzero(group != UNKNOWN)
    for there in places_by(group[labelled]).values():
        own = labelled[there]
        members = distinct(gpu[own])
        ours = np.flatnonzero(np.isin(gpu[open_rows], members))
        cuts = np.diff(ends[own]) > tolerance
        part = np.concatenate([[0], np.cumsum(cuts)])
        first = run_starts(part)
        low, high = ends[own][first], np.maximum.reduceat(ends[own], first)
        part_kind = np.maximum.reduceat(kind[own], first)
        width = int(members.max()) + 1
        per_gpu = np.bincount(part * width + gpu[own], minlength=len(first) * width)
        per_gpu = per_gpu.reshape(len(first), width)
        rows = open_rows[ours]
        place = np.searchsorted(low, ends[rows] + tolerance, "right") - 1
        near = (place >= 0) & (high[place] >= ends[rows] - tolerance)
        near &= per_gpu[place, gpu[rows]] < per_gpu[place].max(axis=1)
        near &= (kind[rows] == UNKNOWN) | (part_kind[place] == kind[rows])
        choices[ours[near]] += 1
        chosen[ours[near]] = group[own[0]]
    sure = choices == 1
    universe[open_rows[sure]] = chosen[sure]
    return universe


class _Matching:
    """The numbers of the collectives that were found, -1 for kernels that are still alone."""

    def __init__(self, kernels: CommKernels, end: Int64) -> None:
        self.kernels = kernels
        self.end = end
        self.sets = np.full(len(kernels), UNKNOWN, np.int64)
        self._count = 0

    def number(self, rows: Index, codes: Int64 | None = None) -> None:
        """Rows of one code are one collective; without codes each row is one."""
        found, place = ranked(np.arange(len(rows)) if codes is None else codes)
        self.sets[rows] = place + self._count
        self._count += len(found)

    def by_ends(self, order: Index, universe: Int64, threshold: int, least_gap_ns: int) -> None:
        """Match kernels that are in the order of their ends, universe by universe.

        Ends are cut at ever finer gaps, from the threshold to the least gap, until each part
        is one collective, or as many on all GPUs.
        """
        by_universe = stable_order(universe)
        order, universe = order[by_universe], universe[by_universe]
        while len(order):
            new = run_mask(universe)
            new[1:] |= np.diff(self.end[order]) > threshold
            part = np.cumsum(new) - 1
            number, even = _places(part, self.kernels.gpu[order])
            sure = even[part] & self._agreeing(order, part, number)
            self.number(order[sure], number[sure])
            order, universe = order[~sure], universe[~sure]
            threshold //= _FINER
            if threshold < least_gap_ns:
                break

    def _agreeing(self, order: Index, part: Int64, number: Int64) -> Mask:
        """Whether the labels and the ends of each kernel's part agree, collective by collective.

        Of several collectives in a part the ends must be nearer to each other than to those of the
        next one: else a kernel that is lost would shift the others.
        """
        by_set = stable_order(number)
        first = run_starts(number[by_set])
        rows = order[by_set]
        fits = run_sizes(first, len(rows)) <= np.minimum.reduceat(self.kernels.most[rows], first)
        for label in self.kernels.labels:
            fits &= _are_equal(label[rows], first)
        low, high = self.end[rows[first]], np.maximum.reduceat(self.end[rows], first)
        of_part = part[by_set[first]]
        begins = run_starts(of_part)
        spread = np.maximum.reduceat(high - low, begins)
        step = np.full(len(first), _FAR)
        step[:-1] = np.where(np.diff(of_part) == 0, np.diff(low), _FAR)
        clear = 2 * spread <= np.minimum.reduceat(step, begins)
        return (np.logical_and.reduceat(fits, begins) & clear)[part]

    def by_order(self, rows: Index) -> None:
        """Match kinds that ranks may leave early by their order between two matched collectives.

        Between the same two the n-th of a group, kind and size are one where all GPUs have as many.
        """
        kernels, before = self.kernels, self._anchors(rows)
        order = np.lexsort((self.end[rows], kernels.kind[rows], kernels.group[rows], before))
        rows = rows[order]
        part = numbered_rows((before[order], kernels.group[rows], kernels.kind[rows]))
        number, even = _places(part, kernels.gpu[rows])
        by_set = stable_order(number)
        first = run_starts(number[by_set])
        even[part[by_set[first]][~_are_equal(kernels.size[rows][by_set], first)]] = False
        self.number(rows[even[part]], number[even[part]])

    def _anchors(self, rows: Index) -> Int64:
        """The last matched collective of most GPUs that ended before each row on its GPU, or -1."""
        matched = np.flatnonzero(self.sets != UNKNOWN)
        if len(matched):
            sizes = np.bincount(self.sets[matched])
            matched = matched[sizes[self.sets[matched]] == sizes.max()]
        anchors = np.full(len(rows), UNKNOWN, np.int64)
        gpu = self.kernels.gpu
        of_gpu = places_by(gpu[matched])
        for number, own in places_by(gpu[rows]).items():
            there = matched[of_gpu.get(number, np.empty(0, np.intp))]
            at = np.searchsorted(self.end[there], self.end[rows[own]], "right") - 1
            anchors[own] = np.where(at >= 0, np.append(self.sets[there], UNKNOWN)[at], UNKNOWN)
        return anchors


def _are_equal(values: Int64, first: Index) -> Mask:
    """Whether the known values of each run are equal."""
    largest = np.maximum.reduceat(values, first)
    least = np.minimum.reduceat(np.where(values == UNKNOWN, _FAR, values), first)
    equal: Mask = (largest == UNKNOWN) | (least == largest)
    return equal


def _places(part: Int64, gpu: Int64) -> tuple[Int64, Mask]:
    """A number for the n-th kernels of the GPUs in each part, in the order of the parts; whether a
    part has as many on each GPU."""
    lanes, lane = combined((part, gpu))
    sizes, of_part = np.bincount(lane), run_starts(lanes[:, 0])
    place = nth_of(lane)
    even = np.minimum.reduceat(sizes, of_part) == np.maximum.reduceat(sizes, of_part)
    return part * (int(place.max()) + 1) + place, even


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

    Ranks of one host share a clock. If hosts are unknown (''), ranks whose ends differ by more
    than they scatter have separate clocks. Ranks that no collectives connect, and whose times are
    years away, begin with the first rank. `by_hand` are corrections by rank that override the
    estimates.
    """
    ranks = sorted(set(rank_of_gpu.values()))
    found = {ranks[0]: RankClock(0, 0, 0, 0)}
    if len(ranks) > 1:
        found = rank_clocks(table, rank_of_gpu)
    unconnected = set(ranks) - found.keys()
    begins = _begins(table, rank_of_gpu) if unconnected else {}
    far = [
        rank
        for rank in sorted(unconnected, key=begins.__getitem__)
        if abs(begins[rank] - begins[ranks[0]]) > _YEAR_NS
    ]
    near = [rank for rank in ranks if rank not in far]
    if all(host_of_rank.get(rank) for rank in ranks):
        groups = grouped_by(near, host_of_rank.__getitem__)
    else:
        parts = _apart(near, found)
        groups = {f"clock {number}": part for number, part in enumerate(parts, 1)}
    clocks = [*_clocks(groups, found)]
    for part in grouped_by(far, lambda rank: (begins[rank] - begins[far[0]]) // _YEAR_NS).values():
        name, correction = f"clock {len(clocks) + 1}", begins[ranks[0]] - begins[part[0]]
        clocks.append(HostClock(name, tuple(sorted(part)), correction, None, _UNPLACED))
    return [part for clock in clocks for part in _with_hand(clock, by_hand)]


def _begins(table: KernelTable, rank_of_gpu: Mapping[int, int]) -> dict[int, int]:
    """When the first activity of each rank begins."""
    first = minima_of(table.start_ns, table.gpu, max(rank_of_gpu) + 1, _FAR)
    begins: dict[int, int] = {}
    for gpu, rank in rank_of_gpu.items():
        begins[rank] = min(begins.get(rank, int(first[gpu])), int(first[gpu]))
    return begins


def rank_clocks(table: KernelTable, rank_of_gpu: Mapping[int, int]) -> dict[int, RankClock]:
    """The offset of each rank to the lowest rank, if collectives connect them."""
    ranks = sorted(set(rank_of_gpu.values()))
    ends, count = _ends(table, rank_of_gpu)
    reference = np.full(count, _ABSENT)
    nothing = np.empty((2, 0), np.int64)
    first, own = ends.get(ranks[0], nothing)
    reference[first] = own
    found = {ranks[0]: RankClock(0, 0, 0, len(first))}
    left = ranks[1:]
    while left:
        for rank in left:
            sets, own = ends.get(rank, nothing)
            both = reference[sets] != _ABSENT
            if both.sum() < _MIN_COLLECTIVES:
                continue
            distance = reference[sets[both]] - own[both]
            correction = int(median_of(distance))
            low, high = quantile_of(distance - correction, (0.1, 0.9))
            count, scatter = int(both.sum()), int((high - low) / 2)
            doubt = max(int(_STANDARD_ERRORS * scatter / count**0.5), _STAMP_NS)
            found[rank] = RankClock(correction, doubt, scatter, count)
            reference[sets[~both]] = own[~both] + correction
        connected = [rank for rank in left if rank not in found]
        if connected == left:
            break
        left = connected
    return found


def _ends(
    table: KernelTable, rank_of_gpu: Mapping[int, int]
) -> tuple[dict[int, tuple[Int64, Int64]], int]:
    """The collectives of each rank, as numbers, with their ends; and how many there are in all."""
    kernels = CommKernels.of(table)
    if not len(kernels):
        return {}, 0
    sets = collective_sets(kernels, end_offsets(kernels))
    rank_of = np.array([rank_of_gpu.get(gpu, -1) for gpu in range(int(kernels.gpu.max()) + 1)])
    sets[kernels.is_rooted] = int(sets.max()) + 1 + np.arange(int(kernels.is_rooted.sum()))
    own = np.flatnonzero((np.bincount(sets)[sets] > 1) & (rank_of[kernels.gpu] >= 0))
    names, number = ranked(sets[own])
    rank, order = rank_of[kernels.gpu[own]], stable_order(number)
    order = order[stable_order(rank[order])]
    # Of several GPUs of a rank the last one counts.
    order = order[np.append(run_mask(rank[order], number[order])[1:], True)[: len(order)]]
    of_rank = runs_of(rank[order])
    return {
        one: (number[order[at]].astype(np.int64), kernels.end_ns[own[order[at]]])
        for one, at in of_rank
    }, len(names)


def _apart(ranks: Sequence[int], found: Mapping[int, RankClock]) -> list[list[int]]:
    """Ranks grouped by their offsets alone: the first rank's group first."""
    known = sorted((rank for rank in ranks if rank in found), key=lambda r: found[r].correction_ns)
    parts = [known[:1]]
    for before, rank in pairwise(known):
        one, other = found[before], found[rank]
        near = max(_DISTINCT_NS, one.scatter_ns, other.scatter_ns)
        if other.correction_ns - one.correction_ns <= near:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    # Ranks that no collective connects are assumed to be on the first rank's clock.
    of_first = next(part for part in parts if ranks[0] in part)
    of_first += [rank for rank in ranks if rank not in found]
    return sorted(map(sorted, parts))


def _clocks(
    groups: Mapping[str, Sequence[int]], found: Mapping[int, RankClock]
) -> Iterator[HostClock]:
    """The offset of each group's clock to that of the first group; 0 within the uncertainty."""
    first: tuple[int, int] | None = None
    for name, ranks in groups.items():
        known = [found[rank] for rank in ranks if rank in found]
        if not known:
            method = "no collectives connect it to the others"
            yield HostClock(name, tuple(ranks), 0, None, method)
            continue
        corrections = np.array([clock.correction_ns for clock in known])
        correction, spread = int(median_of(corrections)), int(np.ptp(corrections)) // 2
        doubt = max(int(median_of(np.array([clock.uncertainty_ns for clock in known]))), spread)
        if first is None:
            first = correction, doubt
            yield HostClock(name, tuple(ranks), 0, 0, "the run's clock")
            continue
        distance, doubt = correction - first[0], max(doubt, first[1])
        method = f"estimated from {sum(clock.collectives for clock in known)} collective ends"
        distance = distance if abs(distance) > doubt else 0
        yield HostClock(name, tuple(ranks), distance, doubt, method)


def _with_hand(clock: HostClock, by_hand: Mapping[int, int]) -> list[HostClock]:
    """The clock, and separate clocks for ranks that the user corrected."""
    kept = tuple(rank for rank in clock.ranks if rank not in by_hand)
    parts = [replace(clock, ranks=kept)]
    given = sorted({by_hand[rank] for rank in clock.ranks if rank in by_hand})
    for correction in given:
        ranks = tuple(rank for rank in clock.ranks if by_hand.get(rank) == correction)
        parts.append(HostClock(clock.name, ranks, correction, 0, "by hand"))
    return [part for part in parts if part.ranks]
