"""Compute matched across GPUs: the same kernel at the same place of the step, and who leads.

Compared are peers: GPUs that run the same operations, such as those of one stage of a pipeline.
An occurrence is one kernel of a step, phase, layer and operation, the n-th of its name
there, where all peers have as many; kernels that go by other names on a GPU are matched by their
operation alone. Durations are compared where all do the same work, of equal shapes and FLOPs. Its
lead on a GPU is how much earlier it starts there than on the peer that starts it last (Lit Silicon,
algorithm 1, over every occurrence).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.graph.collectives import PAIRWISE, Collectives
from chopper_core.graph.contention import slowed_by
from chopper_core.graph.process_groups import known_group_sizes, split_groups
from chopper_core.model.groups import Groups, is_same_work, work_of
from chopper_core.model.run import Run
from chopper_core.model.signals import SpansOfGpus
from chopper_core.model.table import LEVELS, NO_LABEL, PLACES, KernelTable, Kind
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Int64, Mask, Numbers
from chopper_core.util.grouping import (
    beyond_others,
    combined,
    counts_of,
    distinct,
    evenly,
    isin,
    others_median,
    places_by,
    ranked,
    run_sizes,
    run_starts,
    stable_order,
    sums_of,
    united,
)


class Occurrences(Struct, frozen=True, eq=False):
    """The compute that runs on every one of some peers, as occurrences x GPUs, by time."""

    table: KernelTable
    gpus: tuple[int, ...]
    rows: Index
    """Rows of the kernel table, occurrences x GPUs, GPU by GPU in memory."""
    lead_ns: Int64
    """How much earlier than on the last GPU each starts, as the rows."""
    last_start_ns: Int64
    """When the last GPU starts each occurrence."""
    is_same: Mask
    """Whether all GPUs do the same work there, so that durations can be compared."""

    def __len__(self) -> int:
        return len(self.rows)

    def durations_ns(self, gpus: slice = slice(None)) -> Int64:
        """Of all GPUs or some, as these x occurrences."""
        return self.table.duration_ns[self.rows.T[gpus]]

    def pieces(self) -> Iterator[slice]:
        """Some GPUs at a time."""
        yield from _pieces(*self.rows.T.shape)

    def take(self, chosen: Mask) -> Occurrences:
        if chosen.all():
            return self
        places = np.flatnonzero(chosen)
        return replace(
            self,
            rows=np.take(self.rows.T, places, axis=1).T,
            lead_ns=np.take(self.lead_ns.T, places, axis=1).T,
            last_start_ns=self.last_start_ns[chosen],
            is_same=self.is_same[chosen],
        )


MAX_MATCHED: Final = 1 << 21
"""With more activities, evenly chosen steps are compared: a first view takes 2 s at most."""
_PAIR: Final = 2
_MIN_SHARED: Final = 0.5
"""The share of activities in the same phase, layer and operation, or of their time, that makes
GPUs peers."""


def occurrences_of(run: Run, iterations: tuple[int, ...] = ()) -> tuple[Occurrences, ...]:
    """The occurrences of each set of peers, of some steps or all; matched once.

    Every GPU with compute is in one set.
    """
    key = ("matched kernels", iterations)
    return run.memo(key, lambda: _matched(run, iterations))


def compared_iterations(run: Run, view: View) -> tuple[int, ...]:
    """The steps of a scope that are compared where those of the run are too many, else ()."""
    whole = run.tree().split((), ("iteration",))
    if int(whole.sizes().sum()) <= MAX_MATCHED:
        return ()
    scope = run.tree_of(view).split(view.path, ("iteration",))
    numbers, sizes = whole.codes("iteration").tolist(), whole.sizes().tolist()
    costs = dict(zip(numbers, sizes, strict=True))
    here = [int(code) for code in scope.codes("iteration")]
    fitting = max(1, int(MAX_MATCHED * len(here) / sum(costs[code] for code in here)))
    return evenly(here, fitting)


def within(run: Run, found: Occurrences, node: Groups) -> Occurrences:
    """The occurrences with any kernel in a node, on the GPUs that the node has."""
    own = node.holds(found.rows)
    chosen: Mask = np.logical_or.reduce(own, axis=1)
    there: Mask = np.logical_or.reduce(own, axis=0)
    if there.all() or not there.any():
        return found.take(chosen)
    # A scope of coordinates has some of the peers alone, which are compared with each other.
    gpus = tuple(gpu for gpu, kept in zip(found.gpus, there.tolist(), strict=True) if kept)
    rows = found.rows.T[there].T[chosen]
    return _compared(run, gpus, list(rows.T) if len(gpus) > 1 else [rows[:0, 0]])


def _matched(run: Run, iterations: tuple[int, ...]) -> tuple[Occurrences, ...]:
    table = run.table
    rows, stages = _compute_of(run, iterations), _stages(run)
    parts = [own for own in np.split(rows, run_starts(table.gpu[rows])[1:]) if len(own)]
    found: list[tuple[list[Index], list[Index] | Index]]
    if not stages and len(parts) > 1 and _are_equal(table, parts, LEVELS[1:]):
        # Most often all GPUs run the same kernels: none is copied.
        found = [(parts, rows.reshape(len(parts), -1))]
    else:
        found = [
            (own, _common(table, own) if len(own) > 1 else [rows[:0]])
            for own in _peers(table, parts, stages)
        ]
    return tuple(
        _compared(run, tuple(int(table.gpu[each[0]]) for each in own), matched)
        for own, matched in found
    )


def _compared(run: Run, gpus: tuple[int, ...], matched: list[Index] | Index) -> Occurrences:
    """The matched rows of some GPUs by time; one array of them is put in order itself."""
    # GPU by GPU, so that the values of the GPUs are adjacent.
    rows = matched if isinstance(matched, np.ndarray) else np.stack(matched)
    start_ns = run.table.start_ns
    pieces = [*_pieces(*rows.shape)]
    last = np.max([start_ns[rows[some]].max(axis=0) for some in pieces], axis=0)
    order = stable_order(last)
    last, lead = last[order], np.empty_like(rows)
    for some in pieces:
        rows[some] = np.take(rows[some], order, axis=1)
        np.subtract(last, start_ns[rows[some]], out=lead[some])
    return Occurrences(run.table, gpus, rows.T, lead.T, last, is_same_work(run.table, list(rows)))


def _peers(
    table: KernelTable, parts: list[Index], stages: frozenset[frozenset[int]]
) -> list[list[Index]]:
    if not parts:
        return []
    if not stages and _are_equal(table, parts, PLACES):
        return [parts]
    rows = np.concatenate(parts)
    names, cell = combined([table.column(level)[rows] for level in PLACES])
    ends = np.cumsum([len(own) for own in parts])
    cells = np.split(cell, ends[:-1])
    counts = [counts_of(own, len(names)) for own in cells]
    # One that runs many small kernels more, as an optimizer that isn't fused, is a peer still.
    times = [
        sums_of(table.duration_ns[rows], own, len(names))
        for rows, own in zip(parts, cells, strict=True)
    ]
    gpus = [int(table.gpu[own[0]]) for own in parts]
    found: list[list[int]] = []
    for place, gpu in enumerate(gpus):
        for own in found:
            is_alike = any(
                _share(each[place], each[own[0]]) >= _MIN_SHARED for each in (counts, times)
            )
            if is_alike and stages.isdisjoint(frozenset((gpu, gpus[peer])) for peer in own):
                own.append(place)
                break
        else:
            found.append([place])
    return [[parts[place] for place in own] for own in found]


def _share(one: Numbers, other: Numbers) -> float:
    """The part of either that both have, of all that they have."""
    return float(np.minimum(one, other).sum() / max(np.maximum(one, other).sum(), 1))


def _stages(run: Run) -> frozenset[frozenset[int]]:
    """Pairs of GPUs that are stages of one pipeline: linked by what they send each other."""
    table = split_groups(run)
    if PAIRWISE not in table.operations:
        return frozenset()
    sends = (table.operation == table.operations.index(PAIRWISE)) & (table.group != NO_LABEL)
    rows = np.flatnonzero(sends)
    sizes, _ = known_group_sizes(run, table.group[rows], table.gpu[rows])
    everyone = len(distinct(table.gpu))
    groups = (distinct(table.gpu[rows[table.group[rows] == code]]).tolist() for code in sizes)
    # A group of everyone doesn't tell stages from replicas, unless it is a pair.
    pipelines = united(own for own in groups if len(own) < everyone or everyone == _PAIR)
    return frozenset(frozenset(pair) for own in pipelines for pair in combinations(sorted(own), 2))


def _compute_of(run: Run, iterations: tuple[int, ...]) -> Index:
    """The rows of the compute of some steps or all, in the order of the levels."""
    table = run.table
    computes = table.kind == Kind.COMPUTE
    if iterations:
        computes &= isin(table.iteration, iterations)
    every = run.tree().node(()).selection
    return np.flatnonzero(computes) if isinstance(every, slice) else every[computes[every]]


def _common(table: KernelTable, parts: list[Index]) -> list[Index]:
    """Of each GPU's rows those that all GPUs have, one next to the other."""
    by_name = same_kernels(table, parts, LEVELS[1:])
    if by_name is parts:
        return parts
    is_left = table.operation != NO_LABEL
    for own in by_name:
        is_left[own] = False
    rest = [own[is_left[own]] for own in parts]
    levels = LEVELS[1:-1]
    for place, own in enumerate(rest):
        labels = (table.column(level)[own] for level in reversed(levels))
        rest[place] = own[np.lexsort((table.start_ns[own], *labels))]
    by_operation = same_kernels(table, rest, levels)
    return [np.concatenate(own) for own in zip(by_name, by_operation, strict=True)]


def _are_equal(table: KernelTable, parts: list[Index], levels: Sequence[str]) -> bool:
    if len(parts) < 2 or len({len(own) for own in parts}) > 1:
        return len(parts) < 2
    columns = [table.column(level) for level in levels]
    first = [each[parts[0]] for each in columns]
    return all(
        (each[rows] == own).all()
        for rows in (np.stack(parts[some]) for some in _pieces(len(parts), len(parts[0])))
        for each, own in zip(columns, first, strict=True)
    )


def same_kernels(table: KernelTable, parts: list[Index], levels: Sequence[str]) -> list[Index]:
    """Of the rows of GPUs, or of steps of one, those that all have: the n-th of their labels.

    Labels that one has more often than another are unmatched. Rows are in the order of the levels.
    """
    if _are_equal(table, parts, levels):
        return parts
    rows, sizes = np.concatenate(parts), [len(own) for own in parts]
    labels = [table.column(level)[rows] for level in levels]
    first = run_starts(np.repeat(np.arange(len(parts)), sizes), *labels)
    count = run_sizes(first, len(rows))
    # Where a GPU has more of a kernel than the others, its n-th there may not be their n-th.
    place = np.arange(len(rows)) - np.repeat(first, count)
    code = combined([*labels, np.repeat(count, count), place])[1]
    # None comes twice in a part, as its rows of the same labels follow each other.
    is_everywhere = counts_of(code) == len(parts)
    found = []
    for own, mine in zip(parts, np.split(code, np.cumsum(sizes)[:-1]), strict=True):
        order = stable_order(mine)
        found.append(own[order[is_everywhere[mine[order]]]])
    return found


def others_lead(found: Occurrences, place: int) -> Float64:
    """How much earlier than a column's GPU the others start each occurrence, mean over them."""
    others = found.lead_ns.sum(axis=1) - found.lead_ns[:, place]
    mean: Float64 = others / (len(found.gpus) - 1) - found.lead_ns[:, place]
    return mean


def sums_by(codes: Index, values: Numbers, count: int) -> Float64:
    """Sums of a figure of GPUs x occurrences by the codes of these, as codes x GPUs."""
    sums = np.zeros((count, len(values)))
    if (codes[1:] < codes[:-1]).any():
        order = stable_order(codes)
        codes, values = codes[order], np.take(values, order, axis=1)
    if len(first := run_starts(codes)):
        sums[codes[first]] = np.add.reduceat(values, first, axis=1).T
    return sums


def beyond_peers(peers: Sequence[Occurrences], gpus: Sequence[int], values: Numbers) -> Float64:
    """Each GPU's value less the median of its peers'; NaN without any."""
    found = np.full(values.shape, np.nan)
    for each in peers:
        own = np.flatnonzero(np.isin(gpus, each.gpus))
        found[own] = beyond_others(values[own])
    return found


_MIN_VARIATION: Final = 0.005
"""The least variance of a share that shows how communication slows a kernel."""
_LESS: Final = 1 + 1e-9
"""More than the error of a sum of squares."""
_MAX_LOST: Final = 0.5
"""Twice as slow: more is not the communication."""
_PIECE: Final = 1 << 19


def matched_work(
    peers: Sequence[Occurrences],
    gpus: Int64,
    iterations: Int64,
    collectives: Collectives | None,
) -> tuple[Float64, Float64]:
    """Durations of the same compute, GPUs x steps; and without waiting collectives.

    Where most of the peers do the same and others more, or less, what most take for it is the part
    of all of them that is the same.
    """
    plain = np.zeros((len(gpus), len(iterations)))
    unhindered = np.zeros(plain.shape)
    waits = None if collectives is None else _waits_of(collectives)
    for own in (each.take(each.is_same) for each in peers):
        if not len(own):
            continue
        when = np.searchsorted(iterations, own.table.iteration[own.rows[:, 0]])
        places = np.searchsorted(gpus, own.gpus)
        slowed = [] if waits is None else [*_slowed_by_waits(own, waits)]
        for some in own.pieces():
            took = own.durations_ns(some)
            sums = sums_by(when, took, len(iterations)).T
            plain[places[some]] = unhindered[places[some]] = sums
            if slowed:
                fair = took.astype(np.float64)
                for each in slowed:
                    fair[:, each.at] /= slowed_by(each.rate * each.waiting[some])
                unhindered[places[some]] = sums_by(when, fair, len(iterations)).T
    for own in (each.take(~each.is_same) for each in peers if len(each.gpus) > _PAIR):
        if len(own):
            usual = _usual_work(own, iterations)
            places = np.searchsorted(gpus, own.gpus)
            plain[places] += usual
            unhindered[places] += usual
    return plain, unhindered


def _usual_work(found: Occurrences, iterations: Int64) -> Float64:
    """Of occurrences in which peers do different work, the durations of the GPUs that do what most
    do, and of the others the median of these, as GPUs x steps; nothing where no work is that of
    most."""
    table, sums = found.table, np.zeros((len(found.gpus), len(iterations)))
    step = max(_PIECE // len(found.gpus), 1)
    for begin in range(0, len(found), step):
        rows = found.rows[begin : begin + step].T
        work = work_of(table, rows.ravel()).reshape(rows.shape)
        # The work of more than half is in the middle of their order.
        is_usual = work == np.sort(work, axis=0)[len(work) // 2]
        of_most = 2 * is_usual.sum(axis=0) > len(work)
        rows, is_usual = rows[:, of_most], is_usual[:, of_most]
        if not rows.size:
            continue
        took = table.duration_ns[rows]
        usual = others_median(np.where(is_usual, took, np.nan))
        when = np.searchsorted(iterations, table.iteration[rows[0]])
        sums += sums_by(when, np.where(is_usual, took, usual), len(iterations)).T
    return sums


def _pieces(gpus: int, rows: int) -> Iterator[slice]:
    """Some GPUs at a time: all occurrences of thousands don't fit into the processor's cache."""
    step = max(_PIECE // max(rows, 1), 1)
    yield from (slice(begin, begin + step) for begin in range(0, gpus, step))


def _waits_of(collectives: Collectives) -> SpansOfGpus | None:
    """The time in which collectives of each GPU wait for other GPUs; None without any."""
    table, waits = collectives.members.table, np.flatnonzero(collectives.member_wait_ns > 0)
    rows, wait = collectives.rows[waits], collectives.member_wait_ns[waits]
    return SpansOfGpus.running(table.gpu[rows], table.start_ns[rows], wait) if len(rows) else None


def _shares_during_comm(
    table: KernelTable, gpus: Index, rows: Index, took_ns: Int64, waits: SpansOfGpus
) -> tuple[Float64, Float64]:
    """The shares of kernels during waiting and during other communication, as GPUs x
    occurrences."""
    shares = np.zeros(rows.shape), np.zeros(rows.shape)
    for own in _pieces(*rows.shape):
        took = took_ns[own]
        whole = np.minimum(table.overlap_ns[rows[own]], took)
        at = np.nonzero(whole)
        start, length, whole = table.start_ns[rows[own][at]], took[at], whole[at]
        within = waits.within(gpus[own][at[0]], start, start + length)
        waiting = np.minimum(within, whole)
        shares[0][own][at] = waiting / length
        shares[1][own][at] = (whole - waiting) / length
    return shares


class SlowedByWaits(Struct, frozen=True, eq=False):
    """Occurrences that waiting collectives slow down."""

    at: Index
    rate: float
    waiting: Float64
    """The share of each kernel during them, as GPUs x occurrences."""


def _slowed_by_waits(found: Occurrences, waits: SpansOfGpus) -> Iterator[SlowedByWaits]:
    """How waiting collectives slow each occurrence down, by its operation.

    The rate is the part of its time in which it gets nothing done, as replays have it: least
    squares of the speed over the shares during either kind of communication, with a constant per
    occurrence and one per GPU and operation. None where the shares don't differ enough.
    """
    table, gpus = found.table, np.array(found.gpus)
    code = ranked(table.operation[found.rows[:, 0]])[1]
    for at in places_by(code).values():
        rows = np.take(found.rows.T, at, axis=1)
        took = table.duration_ns[rows]
        during, beside = _shares_during_comm(table, gpus, rows, took, waits)
        # What is left of them without their means is no more.
        if not _varies(during) or not _varies(apart := _without_means(during)):
            continue
        speed = 1 / np.maximum(took, 1)
        # A slow GPU's is as much lower in all of them.
        speed /= speed.mean(axis=0, keepdims=True)
        speed /= np.maximum(speed.mean(axis=1, keepdims=True), 1e-9)
        fitted = np.stack([_without_means(-speed), apart, _without_means(beside)])
        flat = fitted.reshape(len(fitted), -1)
        products = flat @ flat.T
        normal = products[1:, 1:]
        used = np.flatnonzero(np.diagonal(normal) > _MIN_VARIATION * flat.shape[1])
        if len(used) and used[0] == 0:
            known = normal[np.ix_(used, used)], products[0, 1 + used]
            slope = np.linalg.lstsq(*known, 1e-3)[0]
            # Relative to the speed without either, instead of the mean one.
            usual = np.array([during.mean(), beside.mean()])
            rate = slope[0] / max(1 + float(slope @ usual[used]), 1e-9)
            if rate > 0:
                yield SlowedByWaits(at, min(float(rate), _MAX_LOST), during)


def _varies(shares: Float64) -> bool:
    return bool(_LESS * np.vdot(shares, shares) > _MIN_VARIATION * shares.size)


def _without_means(values: Float64) -> Float64:
    """Values of GPUs x occurrences without the means of each."""
    apart: Float64 = values - values.mean(axis=0, keepdims=True)
    apart -= apart.mean(axis=1, keepdims=True)
    return apart
