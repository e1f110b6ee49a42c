"""Which communication kernels of the GPUs are the same collective.

Kernels that end together are one collective if each GPU has one of them and their labels don't
contradict. Sequences of ends are cut where they are clearly apart; between two cuts the n-th
kernels belong together if all GPUs have as many. Kernels without labels take part. A kernel for
which several collectives come into question stays alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.collective_ends import UNKNOWN, CommKernels, EndOffsets, end_offsets
from chopper_core.align.kernel_classes import UNKNOWN_COLLECTIVE
from chopper_core.align.labels import numbered
from chopper_core.model.table import KernelTable, Rule
from chopper_core.model.tree import level_order
from chopper_core.util.arrays import Index, Int64, Mask
from chopper_core.util.grouping import (
    distinct,
    ranked,
    run_mask,
    run_sizes,
    run_starts,
    stable_order,
)

_SCATTERS: Final = 10
"""Ends farther apart than this many times their usual scatter belong to different collectives."""
_TOLERANCE_NS: Final = (5_000, 500_000)
"""The least and the largest distance at which ends may be the same."""
_FINER: Final = 3
_CLEAR_SCATTERS: Final = 3
"""Ends closer together than this can't be distinguished."""
_MIN_GAP_NS: Final = 1_000
_FAR: Final = np.iinfo(np.int64).max


def collective_sets(kernels: CommKernels, offsets: EndOffsets) -> Int64:
    """The number of the collective that each kernel is part of; each kernel alone where unknown.

    Time is that of sorting the kernels a few times.
    """
    sets = np.full(len(kernels), UNKNOWN, np.int64)
    end = kernels.end_ns - offsets.late_ns[kernels.gpu]
    usable = ~np.isin(kernels.gpu, [*offsets.apart]) & ~kernels.is_unmatched
    together = np.flatnonzero(usable & ~kernels.is_rooted)
    together = together[stable_order(end[together])]
    least, most = _TOLERANCE_NS
    limits = _Limits(
        min(max(_SCATTERS * offsets.scatter_ns, least), most),
        max(_CLEAR_SCATTERS * offsets.scatter_ns, _MIN_GAP_NS),
    )
    universe = _universes(kernels, end, together, limits.tolerance_ns)
    part = offsets.part[kernels.gpu]
    # Kernels of an unknown group are matched within a part alone.
    universe = np.where(universe == UNKNOWN, UNKNOWN - part[together], universe)
    count = _assign(kernels, end, together, universe, limits, sets)
    rest = together[(sets[together] == UNKNOWN) & (kernels.kind[together] != UNKNOWN)]
    if len(rest):
        labels = numbered((part[rest], kernels.group[rest], kernels.kind[rest], kernels.size[rest]))
        count = _assign(kernels, end, rest, labels, limits, sets, count)
    rooted = np.flatnonzero(usable & kernels.is_rooted)
    if len(rooted):
        count = _assign_rooted(kernels, end, rooted, sets, count)
    alone = sets == UNKNOWN
    sets[alone] = count + np.arange(int(alone.sum()))
    return sets


def ordered_sets(kernels: CommKernels, operations: Sequence[str]) -> Int64:
    """The collective of each kernel of a schedule, whose groups and order are exact.

    The n-th of a group, kind and iteration on each of its GPUs are one, a send and its receive too.
    """
    sent = [name.replace("recv", "send") for name in operations]
    kind = np.array([*map(sent.index, sent), UNKNOWN], np.int64)[kernels.kind]
    part = numbered((kernels.iteration, kernels.group, kind))
    order = stable_order(kernels.end_ns)
    order = order[stable_order(part[order])]
    place, even = _places(part[order], kernels.gpu[order])
    number = np.arange(len(kernels)) + len(kernels)
    known = even[part[order]] & (kernels.group[order] != UNKNOWN)
    number[order[known]] = place[known]
    return numbered((part, number))


class _Limits(Struct, frozen=True):
    tolerance_ns: int
    clear_ns: int
    """The smallest gap that separates two collectives."""


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
    labelled = labelled[stable_order(group[labelled])]
    bounds = np.append(run_starts(group[labelled]), len(labelled))
    for begin, stop in pairwise(bounds.tolist()):
        own = labelled[begin:stop]
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


def _assign(
    kernels: CommKernels,
    end: Int64,
    order: Index,
    universe: Int64,
    limits: _Limits,
    sets: Int64,
    count: int = 0,
) -> int:
    """Number the collectives of kernels that are in the order of their ends, universe by universe.

    Ends are cut apart at ever finer gaps until each part is one collective, or as many on all GPUs.
    """
    by_universe = stable_order(universe)
    order, universe = order[by_universe], universe[by_universe]
    threshold = limits.tolerance_ns
    while len(order):
        new = run_mask(universe)
        new[1:] |= np.diff(end[order]) > threshold
        part = np.cumsum(new) - 1
        place, even = _places(part, kernels.gpu[order])
        number = part * (int(place.max()) + 1) + place
        sure = even[part] & _agreeing(kernels, end, order, part, number)
        if sure.any():
            found = ranked(number[sure])
            sets[order[sure]] = found[1] + count
            count += len(found[0])
        order, universe = order[~sure], universe[~sure]
        threshold //= _FINER
        if threshold < limits.clear_ns:
            break
    return count


def _places(part: Int64, gpu: Int64) -> tuple[Int64, Mask]:
    """The place of each kernel among its GPU's in its part; whether a part has as many of each."""
    by_lane = stable_order(part * (int(gpu.max()) + 1) + gpu)
    lane_start = run_mask(part[by_lane], gpu[by_lane])
    position = np.arange(len(part))
    first = np.maximum.accumulate(np.where(lane_start, position, 0))
    place = np.empty(len(part), np.int64)
    place[by_lane] = position - first
    begins = np.flatnonzero(lane_start)
    sizes = run_sizes(begins, len(part))
    of_part = run_starts(part[by_lane][begins])
    even = np.minimum.reduceat(sizes, of_part) == np.maximum.reduceat(sizes, of_part)
    return place, even


def _agreeing(kernels: CommKernels, end: Int64, order: Index, part: Int64, number: Int64) -> Mask:
    """Whether the labels of each kernel's part agree, collective by collective, and its ends do.

    Of several collectives in a part the ends must be nearer to each other than to those of the next
    one: else a kernel that is lost would shift the others.
    """
    by_set = stable_order(number)
    first = run_starts(number[by_set])
    fits = np.ones(len(first), np.bool_)
    for label in (kernels.kind, kernels.group, kernels.size):
        values = label[order][by_set]
        largest = np.maximum.reduceat(values, first)
        least = np.minimum.reduceat(np.where(values == UNKNOWN, _FAR, values), first)
        fits &= (largest == UNKNOWN) | (least == largest)
    ends = end[order][by_set]
    count = run_sizes(first, len(by_set))
    fits &= count <= np.minimum.reduceat(kernels.most[order][by_set], first)
    low, high = ends[first], np.maximum.reduceat(ends, first)
    of_part = part[by_set[first]]
    begins = run_starts(of_part)
    spread = np.maximum.reduceat(high - low, begins)
    step = np.full(len(first), _FAR)
    step[:-1] = np.where(np.diff(of_part) == 0, np.diff(low), _FAR)
    clear = 2 * spread <= np.minimum.reduceat(step, begins)
    whole = np.logical_and.reduceat(fits, begins) & clear
    there = np.zeros(int(part.max(initial=0)) + 1, np.bool_)
    there[of_part[begins]] = whole
    return there[part]


def _assign_rooted(kernels: CommKernels, end: Int64, rows: Index, sets: Int64, count: int) -> int:
    """Match kinds that ranks may leave early by their order between two matched collectives.

    Between the same two the n-th of a group, kind and size are one where all GPUs have as many.
    """
    before = _anchors(kernels, end, rows, sets)
    order = np.lexsort((end[rows], kernels.kind[rows], kernels.group[rows], before))
    rows, before = rows[order], before[order]
    part = numbered((before, kernels.group[rows], kernels.kind[rows]))
    by_part = stable_order(part)
    rows, part = rows[by_part], part[by_part]
    place, even = _places(part, kernels.gpu[rows])
    number = part * (int(place.max()) + 1) + place
    by_set = stable_order(number)
    first = run_starts(number[by_set])
    size = kernels.size[rows][by_set]
    least = np.minimum.reduceat(np.where(size == UNKNOWN, _FAR, size), first)
    largest = np.maximum.reduceat(size, first)
    differs = (largest != UNKNOWN) & (least != largest)
    wrong = np.zeros(int(part.max()) + 1, np.bool_)
    wrong[part[by_set[first]][differs]] = True
    sure = even[part] & ~wrong[part]
    found = ranked(number[sure])
    sets[rows[sure]] = found[1] + count
    return count + len(found[0])


def _anchors(kernels: CommKernels, end: Int64, rows: Index, sets: Int64) -> Int64:
    """The matched collective with most GPUs that ended last before each row on its GPU, or -1."""
    matched = np.flatnonzero(sets != UNKNOWN)
    if len(matched):
        sizes = np.bincount(sets[matched])
        matched = matched[sizes[sets[matched]] == sizes.max()]
    anchors = np.full(len(rows), UNKNOWN, np.int64)
    for gpu in distinct(kernels.gpu[rows]).tolist():
        own = np.flatnonzero(kernels.gpu[rows] == gpu)
        there = matched[kernels.gpu[matched] == gpu]
        if len(there):
            at = np.searchsorted(end[there], end[rows[own]], "right") - 1
            anchors[own] = np.where(at >= 0, sets[there[at]], UNKNOWN)
    return anchors
