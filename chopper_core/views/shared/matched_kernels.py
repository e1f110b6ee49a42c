"""Compute matched across GPUs: the same kernel at the same place of the step, and who leads.

Compared are peers: GPUs that run the same operations, such as those of one stage of a pipeline.
An occurrence is one kernel of an iteration, phase, layer and operation, the n-th of its name
there, where all peers have as many; kernels that go by other names on a GPU are matched by their
operation alone. Durations are compared where all do the same work, of equal shapes and FLOPs. Its
lead on a GPU is how much earlier it starts there than on the peer that starts it last (Lit Silicon,
algorithm 1, over every occurrence).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.groups import Groups
from chopper_core.model.peers import is_same_work
from chopper_core.model.run import Run
from chopper_core.model.signals import TimeSpans
from chopper_core.model.table import LEVELS, NO_LABEL, KernelTable, Kind
from chopper_core.model.view import View
from chopper_core.util.arrays import AnyArray, Float64, Index, Int64, Mask, Numbers
from chopper_core.util.grouping import (
    counts_of,
    distinct,
    ranked,
    run_mask,
    run_sizes,
    run_starts,
    run_sums,
    stable_order,
    sums_of,
    united,
)
from chopper_core.views.shared.collectives import PAIRWISE, Collectives
from chopper_core.views.shared.process_groups import known_group_sizes, split_groups


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

    def durations_ns(self) -> Iterator[Int64]:
        """How long each takes, GPU by GPU."""
        return (self.table.duration_ns[own] for own in self.rows.T)

    def take(self, chosen: Numbers) -> Occurrences:
        if chosen.dtype == np.bool_ and chosen.all():
            return self
        return replace(
            self,
            rows=self.rows.T[:, chosen].T,
            lead_ns=self.lead_ns.T[:, chosen].T,
            last_start_ns=self.last_start_ns[chosen],
            is_same=self.is_same[chosen],
        )


_CACHED_SETS: Final = 8
"""Sets of iterations whose occurrences are cached."""
MAX_MATCHED: Final = 1 << 21
"""With more activities, evenly chosen iterations are compared: a first view takes 2 s at most."""
_PAIR: Final = 2
_MIN_RUN: Final = 4
"""Neighbouring occurrences of one label from which on they are added up together."""
_MIN_ALIKE: Final = 0.5
"""The share of activities in the same phase, layer and operation that makes GPUs peers."""


def occurrences_of(run: Run, iterations: tuple[int, ...] = ()) -> tuple[Occurrences, ...]:
    """The occurrences of each set of peers, of some iterations or all; matched once.

    Every GPU with compute is in one set.
    """
    key = ("matched kernels", iterations)
    return run.memo(key, lambda: _matched(run, iterations), keep=_CACHED_SETS)


def compared_iterations(run: Run, view: View) -> tuple[int, ...]:
    """The iterations of a scope that are compared where those of the run are too many, else ()."""
    whole = run.tree().split((), ("iteration",))
    if int(whole.sizes().sum()) <= MAX_MATCHED:
        return ()
    scope = run.tree_of(view).split(view.path, ("iteration",))
    numbers, sizes = whole.codes("iteration").tolist(), whole.sizes().tolist()
    costs = dict(zip(numbers, sizes, strict=True))
    here = [int(code) for code in scope.codes("iteration")]
    fitting = max(1, int(MAX_MATCHED * len(here) / sum(costs[code] for code in here)))
    if fitting >= len(here):
        return tuple(here)
    places = np.linspace(0, len(here) - 1, fitting + 2)[1:-1].round().astype(np.intp)
    return tuple(here[place] for place in places.tolist())


def within(run: Run, found: Occurrences, node: Groups) -> Occurrences:
    """The occurrences of which a node has any kernel, on those of the GPUs that it has."""
    inside = np.zeros(len(run.table), np.bool_)
    inside[node.selection] = True
    own = inside[found.rows]
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
    rows = _compute_of(run, iterations)
    whose, gpus = table.gpu[rows], run.tree().codes_of("gpu")
    begin, end = (np.searchsorted(whose, gpus, side) for side in ("left", "right"))
    gpus, begin, end = (values[end > begin] for values in (gpus, begin, end))
    parts = [rows[low:high] for low, high in zip(begin.tolist(), end.tolist(), strict=True)]
    found = []
    for places in _peers(run, parts, gpus.tolist()):
        own = [parts[place] for place in places]
        numbers = tuple(int(gpus[place]) for place in places)
        found.append(_compared(run, numbers, _common(run, own) if len(own) > 1 else [rows[:0]]))
    return tuple(found)


def _compared(run: Run, gpus: tuple[int, ...], matched: list[Index]) -> Occurrences:
    table = run.table
    last = table.start_ns[matched[0]]
    for own in matched[1:]:
        np.maximum(last, table.start_ns[own], out=last)
    order = stable_order(last)
    last = last[order]
    # GPU by GPU, so that what is reduced over the GPUs lies side by side.
    places = np.empty((len(matched), len(last)), np.intp)
    lead = np.empty(places.shape, np.int64)
    for at, own in enumerate(matched):
        np.take(own, order, out=places[at], mode="clip")
        np.take(table.start_ns[own], order, out=lead[at], mode="clip")
        np.subtract(last, lead[at], out=lead[at])
    return Occurrences(table, gpus, places.T, lead.T, last, is_same_work(table, list(places)))


def _peers(run: Run, parts: list[Index], gpus: list[int]) -> list[list[int]]:
    table = run.table
    levels = ("phase", "layer", "operation")
    labels = [[table.column(level)[own] for level in levels] for own in parts]
    apart = _stages(run)
    if not apart and _are_alike(labels, [slice(0, len(own)) for own in parts]):
        return [list(range(len(parts)))] if parts else []
    widths = [max(int(own[at].max()) for own in labels) + 2 for at in range(len(levels))]
    found: list[list[int]] = []
    counts: list[Int64] = []
    for place, columns in enumerate(labels):
        code = np.zeros(len(columns[0]), np.int64)
        for column, width in zip(columns, widths, strict=True):
            code = code * width + column + 1
        count = counts_of(code, int(np.prod(widths)))
        for own, other in zip(found, counts, strict=True):
            alike = int(np.minimum(count, other).sum())
            pairs = (frozenset((gpus[place], gpus[peer])) for peer in own)
            if alike >= _MIN_ALIKE * np.maximum(count, other).sum() and apart.isdisjoint(pairs):
                own.append(place)
                break
        else:
            found.append([place])
            counts.append(count)
    return found


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
    """The rows of the compute of some iterations or all, in the order of the levels."""
    tree = run.tree()
    selection = tree.node(()).selection
    if iterations:
        others = tree.codes_of("iteration")
        selection = tree.rows_without((), others[~np.isin(others, iterations)].tolist())
    computes = np.flatnonzero(run.table.kind[selection] == Kind.COMPUTE)
    return computes + selection.start if isinstance(selection, slice) else selection[computes]


def _common(run: Run, parts: list[Index]) -> list[Index]:
    """Of each GPU's rows those that all GPUs have, one beside the other."""
    table = run.table
    numbers = [table.iteration[own] for own in parts]
    labels = [[table.column(level)[own] for level in LEVELS[2:]] for own in parts]
    everything = [slice(0, len(own)) for own in parts]
    if _are_alike(
        [[number, *each] for number, each in zip(numbers, labels, strict=True)], everything
    ):
        return parts
    iterations = run.tree().codes_of("iteration")
    edges = [
        [np.searchsorted(own, iterations, side) for side in ("left", "right")] for own in numbers
    ]
    same: list[list[Index]] = [[] for _ in parts]
    others: list[list[Index]] = [[] for _ in parts]
    for number in range(len(iterations)):
        spans = [slice(int(begin[number]), int(end[number])) for begin, end in edges]
        into = same if _are_alike(labels, spans) else others
        for own, span, kept in zip(parts, spans, into, strict=True):
            kept.append(own[span])
    rest = [np.concatenate([own[:0], *left]) for own, left in zip(parts, others, strict=True)]
    by_name = _by_code(table, rest, LEVELS)
    unnamed = [
        own[~np.isin(own, named) & (table.operation[own] != NO_LABEL)]
        for own, named in zip(rest, by_name, strict=True)
    ]
    unnamed = [own[stable_order(table.start_ns[own])] for own in unnamed]
    for level in reversed(LEVELS[1:-1]):
        unnamed = [own[stable_order(table.column(level)[own])] for own in unnamed]
    by_operation = _by_code(table, unnamed, LEVELS[:-1])
    return [
        np.concatenate([*kept, named, like])
        for kept, named, like in zip(same, by_name, by_operation, strict=True)
    ]


def _are_alike(columns: list[list[AnyArray]], spans: list[slice]) -> bool:
    return all(
        np.array_equal(first[spans[0]], own[span])
        for others, span in zip(columns[1:], spans[1:], strict=True)
        for first, own in zip(columns[0], others, strict=True)
    )


def same_kernels(table: KernelTable, parts: list[Index], levels: Sequence[str]) -> list[Index]:
    """Of the rows of GPUs, or of iterations of one, those that all have: the n-th of their labels.

    A label of which one has more than another has no matches. Rows are in the order of the levels.
    """
    labels = [[table.column(level)[own] for level in levels] for own in parts]
    if _are_alike(labels, [slice(0, len(own)) for own in parts]):
        return parts
    return _by_code(table, parts, ("iteration", *levels))


def _by_code(table: KernelTable, parts: list[Index], levels: Sequence[str]) -> list[Index]:
    """The rows that all parts have: of the same labels at all levels but the first, and the n-th
    of those."""
    rows = np.concatenate(parts)
    keys = [table.column(level)[rows] for level in levels]
    changes = run_mask(*keys)
    first = np.flatnonzero(changes)
    lane = np.cumsum(changes) - 1
    place = np.arange(len(rows)) - first[lane]
    # Where a GPU has more of a kernel than the others, its n-th there may not be their n-th.
    size = run_sizes(first, len(rows))[lane]
    code = np.zeros(len(rows), np.int64)
    for key in (*keys[1:], size, place) if len(rows) else ():
        known = np.asarray(key, np.int64)
        low, width = int(known.min()), int(np.ptp(known)) + 1
        if int(code.max() + 1) > np.iinfo(np.int64).max // width:
            code = ranked(code)[1]
        code = code * width + (known - low)
    # Rows are in the order of the keys, so each GPU's codes rise, and none comes twice.
    codes = np.split(code, np.cumsum([len(own) for own in parts])[:-1])
    common = codes[0]
    for own in codes[1:]:
        common = np.intersect1d(common, own, assume_unique=True)
    return [
        own[np.searchsorted(mine, common)] if len(common) else own[:0]
        for own, mine in zip(parts, codes, strict=True)
    ]


def others_lead(found: Occurrences, place: int) -> Float64:
    """How much earlier than a column's GPU the others start each occurrence, mean over them."""
    others = found.lead_ns.sum(axis=1) - found.lead_ns[:, place]
    mean: Float64 = others / (len(found.gpus) - 1) - found.lead_ns[:, place]
    return mean


def sums_by(codes: Index, values: Iterable[Int64], count: int) -> Float64:
    """Sums of a figure of the occurrences, GPU by GPU, as codes x GPUs."""
    first = run_starts(codes)
    if len(codes) and _MIN_RUN * len(first) < len(codes):
        # Adding up neighbours of one code is faster than scattering them.
        codes, values = codes[first], (run_sums(own, first) for own in values)
    sums = [sums_of(own, codes, count) for own in values]
    return np.stack(sums, axis=1).astype(np.float64)


def leads_by(codes: Index, found: Occurrences, count: int) -> tuple[Float64, Int64]:
    """Sums of leads by a code per occurrence, as codes x GPUs, and how many occurrences."""
    return sums_by(codes, found.lead_ns.T, count), counts_of(codes, count)


_MIN_VARIATION: Final = 0.005
"""The least variance of a share that shows how communication slows a kernel."""
_MAX_RATE: Final = 0.7
"""Twice as slow: more is not the communication."""


def matched_work(
    peers: Sequence[Occurrences],
    gpus: Int64,
    iterations: Int64,
    collectives: Collectives | None,
) -> tuple[Float64, Float64]:
    """Durations of the same compute, GPUs x iterations; and without waiting collectives beside."""
    plain = np.zeros((len(gpus), len(iterations)))
    unhindered = np.zeros(plain.shape)
    for own in (each.take(each.is_same) for each in peers):
        if not len(own):
            continue
        when = np.searchsorted(iterations, own.table.iteration[own.rows[:, 0]])
        durations = list(own.durations_ns())
        beside = [
            _shares_beside_comm(own, gpu, took, collectives) for gpu, took in enumerate(durations)
        ]
        code, rates = _slowdown_beside_comm(own, durations, beside)
        for gpu, took, shares in zip(own.gpus, durations, beside, strict=True):
            place = int(np.searchsorted(gpus, gpu))
            plain[place] = sums_of(took, when, len(iterations))
            fair = took / np.exp(rates[code, 0] * shares[0])
            unhindered[place] = sums_of(fair, when, len(iterations))
    return plain, unhindered


def _shares_beside_comm(
    found: Occurrences, column: int, took_ns: Int64, collectives: Collectives | None
) -> Float64:
    """The shares of each occurrence on a GPU beside waiting and beside other communication."""
    table, rows = found.table, found.rows[:, column]
    took = np.maximum(took_ns, 1)
    whole = np.minimum(table.overlap_ns[rows], took)
    waiting = np.zeros(len(rows), np.int64)
    if collectives is not None:
        members = collectives.members.rows
        waits = collectives.member_wait_ns
        own = np.flatnonzero((table.gpu[members] == found.gpus[column]) & (waits > 0))
        if len(own):
            windows = TimeSpans.running(table.start_ns[members[own]], waits[own])
            start = table.start_ns[rows]
            waiting = windows.within(start, start + took)
    waiting = np.minimum(waiting, whole)
    return np.stack([waiting, whole - waiting]) / took


def _slowdown_beside_comm(
    found: Occurrences, durations_ns: list[Int64], beside: list[Float64]
) -> tuple[Index, Float64]:
    """The operation of each occurrence, and how either kind of communication slows it.

    Rates are differences of logarithms, operations x kinds: least squares of the logarithm of
    the duration over the shares beside communication, with a constant per occurrence and one per
    GPU and operation. 0 where the shares don't differ enough.
    """
    code = ranked(found.table.operation[found.rows[:, 0]])[1]
    count = counts_of(code)
    values = [
        [np.log(np.maximum(took, 1)), *shares]
        for took, shares in zip(durations_ns, beside, strict=True)
    ]
    means = [sum(column) / len(values) for column in zip(*values, strict=True)]
    products = np.zeros((3, 3, len(count)))
    for own in values:
        centred = []
        for value, mean in zip(own, means, strict=True):
            apart = value - mean
            centred.append(apart - (sums_of(apart, code) / count)[code])
        for one in range(3):
            for other in range(one, 3):
                products[one, other] += sums_of(centred[one] * centred[other], code)
    rates = np.zeros((len(count), 2))
    enough = _MIN_VARIATION * count * len(values)
    for operation in range(len(count)):
        squares = products[[1, 2], [1, 2], operation]
        used = np.flatnonzero(squares > enough[operation])
        if not len(used):
            continue
        normal = np.triu(products[1:, 1:, operation])
        normal = (normal + np.triu(normal, 1).T)[np.ix_(used, used)]
        found_rates = np.linalg.lstsq(normal, products[0, 1 + used, operation], rcond=1e-3)[0]
        rates[operation, used] = np.clip(found_rates, 0.0, _MAX_RATE)
    return code, rates
