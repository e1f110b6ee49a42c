"""Ends of communication kernels: what matches collectives across GPUs and compares their clocks.

No rank leaves an all-reduce, all-gather, reduce-scatter or all-to-all before the last one enters,
so its kernels end at about the same time on all GPUs, whatever the profiler lost of their launches.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.table import RECOMPUTE_SUFFIX, KernelTable, Kind
from chopper_core.util.arrays import Index, Int64, Mask, Numbers, Rows
from chopper_core.util.grouping import (
    combined,
    distinct,
    median_of,
    medians_along,
    numbered_rows,
    places_by,
    run_sizes,
    run_starts,
    runs_of,
    stable_order,
    united,
)
from chopper_core.util.patterns import late
from chopper_core.work.kernel_classes import UNKNOWN_COLLECTIVE, UNNAMED

SYNCHRONOUS: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})
"""Kinds that no rank can leave before the last one has arrived."""
PAIRWISE: Final = "send_recv"
"""The kind that is matched in groups of two only: in larger ones not all ranks take part."""
_UNEVEN: Final = frozenset({"all_to_all", "gather", "scatter"})
"""Kinds of which the ranks may state different sizes."""
_ROOTED: Final = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""Kinds that ranks may leave before the others."""
UNKNOWN: Final = -1
_PAIR: Final = 2
_FAR: Final = np.iinfo(np.int64).max
_GROUP_SIZE: Final = late(r" of (\d+)$")

_CLOSE: Final = 0.1
"""Ends are compared directly where they differ by at most this share of their distance."""
_WINDOWS_NS: Final = (20_000, 100_000)
"""Widths of a peak of end differences, the narrower one first."""
_MIN_VOTES: Final = 3
_MIN_VOTE_SHARE: Final = 0.3
"""The part of the smaller sequence that must agree on an offset."""
_CLEAR: Final = 0.8
"""The part of the votes that the second offset may have at most."""
_MAX_ITERATIONS: Final = 3
"""The iterations in which offsets are searched for: each costs the square of `_MAX_ENDS`."""
_MAX_ENDS: Final = 256
_MAX_TRIES: Final = 3
"""GPUs with which the ends of another one are compared."""
_NEIGHBOURS: Final = 32
_MAX_FAILURES: Final = 16
"""Where the ends of so many GPUs agree with no others, those of the rest aren't compared."""


class CommKernels(Rows, frozen=True, eq=False):
    """The communication kernels of a run by GPU and end, with the labels that they have."""

    rows: Index
    gpu: Int64
    end_ns: Int64
    kind: Int64
    """Code of the operation without its recompute mark; UNKNOWN where nothing gives it."""
    group: Int64
    """UNKNOWN also where the trace doesn't name it."""
    most: Int64
    """How many GPUs may take part, as the group states it."""
    size: Int64
    """Bytes; UNKNOWN also for kinds of which the ranks may state different sizes."""
    iteration: Int64
    is_unmatched: Mask
    """Whether it is pairwise in a group of more than two, or its group has more GPUs than ranks."""
    is_rooted: Mask
    """Whether ranks may leave it before the others."""

    @property
    def labels(self) -> tuple[Int64, Int64, Int64]:
        return self.kind, self.group, self.size

    def by_iteration(self) -> dict[int, Index]:
        """Iteration → the places of its first kernels, as many as are used to search for an
        offset.
        """
        return {number: own[:_MAX_ENDS] for number, own in places_by(self.iteration).items()}

    @classmethod
    def of(cls, table: KernelTable, rows: Index | None = None) -> CommKernels:
        """The communication kernels of a table, or those among the rows."""
        if rows is None:
            rows = np.flatnonzero(table.kind == Kind.COMM)
        rows = rows[stable_order(table.start_ns[rows] + table.duration_ns[rows])]
        rows = rows[stable_order(table.gpu[rows])]
        plain = [name.removesuffix(RECOMPUTE_SUFFIX) for name in table.operations]
        code = {name: number for number, name in enumerate(plain)}
        code |= {name: number for number, name in enumerate(table.operations)}
        codes = [UNKNOWN if name == UNKNOWN_COLLECTIVE else code[name] for name in plain]
        operation = table.operation[rows]
        kind = np.array([*codes, UNKNOWN], np.int64)[operation]

        def among(kinds: Iterable[str]) -> Mask:
            return np.isin(kind, [code[name] for name in kinds if name in code])

        gpu, label = table.gpu[rows].astype(np.int64), table.group[rows].astype(np.int64)
        group = without_unnamed(table.names, label)
        sizes, shared = group_sizes(table.names, group, gpu)
        pairs = [own for own, size in sizes.items() if size == _PAIR]
        most = np.full(len(rows), _FAR)
        for named, own in places_by(label).items():
            most[own] = (stated_size(table.names[named]) if named >= 0 else None) or _FAR
        return cls(
            rows=rows,
            gpu=gpu,
            end_ns=table.start_ns[rows] + table.duration_ns[rows],
            kind=kind,
            group=group,
            most=most,
            size=np.where(among(_UNEVEN), UNKNOWN, table.bytes[rows]),
            iteration=table.iteration[rows].astype(np.int64),
            is_unmatched=(among([PAIRWISE]) & ~np.isin(group, pairs)) | np.isin(group, shared),
            is_rooted=among(_ROOTED),
        )


def stated_size(label: str) -> int | None:
    """The number of ranks that the label of a process group states; None without one."""
    found = _GROUP_SIZE.search(label)
    return int(found[1]) if found else None


def without_unnamed(names: Sequence[str], group: Numbers) -> Int64:
    unnamed = [
        code for code in distinct(group).tolist() if code >= 0 and names[code].startswith(UNNAMED)
    ]
    return np.where(np.isin(group, unnamed), UNKNOWN, group).astype(np.int64)


def group_sizes(
    names: Sequence[str], group: Numbers, gpu: Numbers
) -> tuple[dict[int, int], list[int]]:
    """Group → number of its ranks; and the groups of one label with more GPUs than ranks.

    A group that doesn't state its size has as many ranks as GPUs.
    """
    sizes: dict[int, int] = {}
    shared: list[int] = []
    pairs = combined([np.asarray(group, np.int64), np.asarray(gpu, np.int64)])[0]
    for code, own in places_by(pairs[:, 0]).items():
        seen = len(own)
        size = (stated_size(names[code]) if code >= 0 else None) or seen
        if seen > size:
            shared.append(code)
        else:
            sizes[code] = size
    return sizes, shared


class EndOffsets(Struct, frozen=True, eq=False):
    """How much later each GPU ends the same collectives by its clock."""

    late_ns: Int64
    """By GPU; 0 where nothing shows it."""
    unmatched: frozenset[int]
    """GPUs whose ends agree with those of no other one: their collectives can't be matched."""
    part: Int64
    """By GPU; the offsets are to the first GPU of its part, those of two parts aren't comparable:
    no process group connects them, as with stages that only send to each other."""
    scatter_ns: int
    """Median distance of an end from the nearest one of another GPU, offsets removed."""


def end_offsets(kernels: CommKernels) -> EndOffsets:
    """Compare the ends of each GPU with those of one that has a process group in common.

    Time is linear in the kernels if their clocks nearly agree; else an offset is the most frequent
    difference of ends that may belong to the same collective, within an iteration.
    """
    late = np.zeros(int(kernels.gpu.max(initial=0)) + 1, np.int64)
    if (kernels.is_unmatched | kernels.is_rooted).any():
        kernels = kernels.take(~kernels.is_unmatched & ~kernels.is_rooted)
    if (found := _offsets_in_turn(kernels, np.zeros_like(late))) is not None:
        return found
    lanes = {gpu: kernels.take(own) for gpu, own in runs_of(kernels.gpu)}
    groups = {gpu: Counter(lane.group.tolist()) for gpu, lane in lanes.items()}
    part = np.zeros(len(late), np.int64)
    unmatched: set[int] = set()
    distances: list[Int64] = []
    parts = _parts(groups)
    for number, gpus in enumerate(parts):
        part[gpus] = number
        if len(gpus) > 1 or len(parts) == 1:
            unmatched.update(_place(gpus, lanes, groups, late, distances))
        else:
            unmatched.update(gpus)
    scatter = int(median_of(np.concatenate(distances))) if distances else 0
    return EndOffsets(late, frozenset(unmatched), part, scatter)


def _offsets_in_turn(kernels: CommKernels, late: Int64) -> EndOffsets | None:
    """The offsets of GPUs that all run the same collectives, each compared with the one before it;
    None where it takes a search."""
    first = run_starts(kernels.gpu)
    count = len(first)
    if count < 2 or len(distinct(run_sizes(first, len(kernels)))) > 1:
        return None
    for column in (*kernels.labels, kernels.iteration):
        lines = column.reshape(count, -1)
        if (lines != lines[0]).any():
            return None
    ends = kernels.end_ns.reshape(count, -1)
    if count * int(np.ptp(ends)) > _FAR // 2:
        return None
    own, base = ends[1:], ends[:-1]
    found, agree = _agreed(own, base, own - base)
    if not agree.all():
        return None
    late[kernels.gpu[first[1:]]] = np.cumsum(found)
    distances = np.abs(_nearest(own - found[:, None], base))
    return EndOffsets(late, frozenset(), np.zeros_like(late), int(median_of(distances)))


def _parts(groups: Mapping[int, Counter[int]]) -> list[list[int]]:
    """The GPUs that known process groups connect; those without any are with the first ones."""
    known = {gpu: {code for code in own if code != UNKNOWN} for gpu, own in groups.items()}
    # A GPU is -1 minus its number: codes of groups aren't negative.
    found = united({-1 - gpu, *codes} for gpu, codes in known.items() if codes)
    named = [sorted(-1 - each for each in part if each < 0) for part in found]
    named.sort(key=len, reverse=True)
    bare = [gpu for gpu, codes in known.items() if not codes]
    if not named:
        return [sorted(bare)] if bare else []
    return [sorted([*named[0], *bare]), *named[1:]]


def _place(
    gpus: Sequence[int],
    lanes: Mapping[int, CommKernels],
    groups: Mapping[int, Counter[int]],
    late: Int64,
    distances: list[Int64],
) -> list[int]:
    """Set the offsets of the GPUs of a part; returns those that agree with no other one."""
    first, *rest = sorted(gpus, key=lambda gpu: -len(lanes[gpu]))
    placed, left = _PlacedGpus(groups), sorted(rest)
    placed.add(first)
    failures = 0
    while left:
        waiting = []
        for gpu in left:
            for base in placed.closest(gpu) if failures < _MAX_FAILURES else ():
                own, other = lanes[gpu], lanes[base]
                if groups[gpu].keys() != groups[base].keys():
                    own, other = _common(own, groups[base]), _common(other, groups[gpu])
                found = _late(own, other, _same_places(own, other))
                if found is not None:
                    placed.add(gpu)
                    late[gpu] = found + late[base]
                    near = _nearest(own.end_ns[None] - found, other.end_ns[None])
                    distances.append(np.abs(near[0]))
                    break
            else:
                failures += 1
                waiting.append(gpu)
        if len(waiting) == len(left):
            break
        left = waiting
    return left


class _PlacedGpus:
    """The GPUs of known offset, by their number and by process group: of ten thousand GPUs,
    comparing each with all takes minutes."""

    def __init__(self, groups: Mapping[int, Counter[int]]) -> None:
        self._groups = groups
        self._gpus: list[int] = []
        self._turn: dict[int, int] = {}
        self._members: defaultdict[int, list[int]] = defaultdict(list)

    def add(self, gpu: int) -> None:
        insort(self._gpus, gpu)
        self._turn[gpu] = len(self._turn)
        for code in self._groups[gpu]:
            self._members[code].append(gpu)

    def closest(self, gpu: int) -> list[int]:
        """The few with which another one has most kernels of common groups, neighbours first.

        Kernels without a group count where no known group is common.
        """

        def nearest(some: Iterable[int]) -> list[int]:
            return sorted(some, key=lambda one: (abs(one - gpu), self._turn[one]))

        own, groups, at = self._groups[gpu], self._groups, bisect(self._gpus, gpu)
        codes = own.keys() - {UNKNOWN}
        tried = _NEIGHBOURS if codes else _MAX_TRIES
        near = nearest(self._gpus[max(at - tried, 0) : at + tried])[:tried]
        members = (one for code in codes for one in self._members[code])
        for some in (near, members) if codes else ():
            shared = {
                one: sum(min(own[code], groups[one][code]) for code in codes)
                for one in dict.fromkeys(some)
            }
            known = nearest(one for one, kernels in shared.items() if kernels)
            if known:
                return sorted(known, key=lambda one: -shared[one])[:_MAX_TRIES]
        may = near if UNKNOWN in own else nearest(self._members[UNKNOWN])
        return may[:_MAX_TRIES]


def _common(kernels: CommKernels, groups: Mapping[int, int]) -> CommKernels:
    shared = np.isin(kernels.group, [code for code in groups if code != UNKNOWN])
    chosen = shared | (kernels.group == UNKNOWN)
    if not shared.any():
        chosen |= UNKNOWN in groups
    return kernels.take(chosen)


def _late(own: CommKernels, base: CommKernels, same_place: Int64) -> int | None:
    """How much later the ends are than the base's; None if they don't agree at any offset."""
    late, agree = _agreed(own.end_ns[None], base.end_ns[None], same_place[None])
    if agree[0]:
        return int(late[0])
    for window in _WINDOWS_NS:
        found = _voted(own, base, same_place, window)
        if found is not None:
            return found
    return None


def _agreed(ends: Int64, others: Int64, same_place: Int64) -> tuple[Int64, Mask]:
    """How much later each line of ends is than that of the others, and whether they agree on it."""
    distance = _nearest(ends, others)
    late = medians_along(distance, 1).astype(np.int64)
    usual = medians_along(np.diff(others, prepend=0), 1)
    agree: Mask = medians_along(np.abs(distance), 1) <= np.minimum(_CLOSE * usual, _WINDOWS_NS[-1])
    if same_place.shape[1] >= _MIN_VOTES:
        agree &= np.abs(medians_along(same_place, 1) - late) <= _WINDOWS_NS[0]
    return late, agree


def _nearest(ends: Int64, others: Int64) -> Int64:
    """The signed distance of each end from the nearest of the others of its line, which rise."""
    count, low = others.shape[1], min(int(ends.min()), int(others.min()))
    line = np.arange(len(ends))[:, None]
    # Far from each other, all lines are one that rises.
    shift = line * (max(int(ends.max()), int(others.max())) - low + 1) - low
    after = np.searchsorted((others + shift).ravel(), ends + shift) - line * count
    after = np.minimum(after, count - 1)
    before = np.maximum(after - 1, 0)
    later, earlier = (ends - np.take_along_axis(others, at, 1) for at in (before, after))
    return np.where(np.abs(later) < np.abs(earlier), later, earlier)


def _voted(own: CommKernels, base: CommKernels, same_place: Int64, window_ns: int) -> int | None:
    """The offset that most pairs of ends agree on within the window, if it is a clear one.

    Pairs are kernels of one iteration whose labels don't contradict. Training repeats itself, so
    that another offset fits nearly as many: pairs of the same place count twice, among kernels of
    equal labels of which both GPUs have as many.
    """
    firsts, others = own.by_iteration(), base.by_iteration()
    lanes = [(firsts[number], others[number]) for number in sorted(firsts.keys() & others.keys())]
    lanes.sort(key=lambda pair: -min(map(len, pair)))
    found, possible = [same_place], 0
    for lane, other in lanes[:_MAX_ITERATIONS]:
        here, there = own.take(lane), base.take(other)
        may = np.ones((len(here), len(there)), np.bool_)
        for ours, theirs in zip(here.labels, there.labels, strict=True):
            may &= (ours[:, None] == theirs) | (ours[:, None] == UNKNOWN) | (theirs == UNKNOWN)
        found.append((here.end_ns[:, None] - there.end_ns)[may])
        possible += min(len(here), len(there))
    differences = np.sort(np.concatenate(found))
    if not len(differences):
        return None
    votes = np.searchsorted(differences, differences + window_ns, "right")
    votes -= np.arange(len(differences))
    best = int(np.argmax(votes))
    rival = votes[np.abs(differences - differences[best]) > window_ns].max(initial=0)
    needed = max(_MIN_VOTES, _MIN_VOTE_SHARE * possible, rival / _CLEAR)
    if votes[best] < needed:
        return None
    return int(median_of(differences[best : best + votes[best]]))


def _same_places(own: CommKernels, base: CommKernels) -> Int64:
    """Distances of the n-th ends of an iteration and labels, where both have as many of them."""
    pairs = zip((*own.labels, own.iteration), (*base.labels, base.iteration), strict=True)
    if all(np.array_equal(ours, theirs) for ours, theirs in pairs):
        return own.end_ns - base.end_ns
    both = own.joined(base)
    code = numbered_rows((*both.labels, both.iteration))
    here, there = code[: len(own)], code[len(own) :]
    even = np.bincount(here, minlength=len(code)) == np.bincount(there, minlength=len(code))
    first, second = stable_order(here), stable_order(there)
    first, second = first[even[here[first]]], second[even[there[second]]]
    found: Int64 = own.end_ns[first] - base.end_ns[second]
    return found
