"""Collectives matched across ranks: the kernels that, on each GPU, are the same collective.

And sends and receives whose other end is known, with those of them that are one transfer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.collective_ends import (
    PAIRWISE,
    SYNCHRONOUS,
    UNKNOWN,
    CommKernels,
    end_offsets,
)
from chopper_core.align.collective_sets import collective_sets, ordered_sets
from chopper_core.graph.kept_collectives import StoredCollectives
from chopper_core.graph.process_groups import known_group_sizes, split_groups
from chopper_core.model.attributes import (
    NO_NODE,
    NODE_TYPE,
    RECEIVE,
    SEND,
    Attributes,
    nodes_at,
)
from chopper_core.model.column_names import MICROBATCH
from chopper_core.model.groups import Groups, gpu_by_gpu
from chopper_core.model.run import Run
from chopper_core.model.signals import SpansOfGpus
from chopper_core.model.table import NO_LABEL, RECOMPUTE_SUFFIX, KernelTable, Kind
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.grouping import (
    combined,
    counts_of,
    hashes,
    median_of,
    minima_of,
    others_median_of,
    places_by,
    ranked,
    run_mask,
    run_maxima,
    run_minima,
    run_sizes,
    run_starts,
    run_sums,
    runs_of,
    stable_order,
    sums_of,
)
from chopper_core.work.kernel_classes import UNKNOWN_COLLECTIVE

__all__ = ["PAIRWISE", "Collectives", "collectives_of"]


_PAIR: Final = 2
_PAIRWISE: Final = frozenset((PAIRWISE,))
_SAME_END_NS: Final = 5_000
"""A send and its receive end within this time."""


class Collectives(Struct, frozen=True, eq=False):
    """The collectives of a run or a scope, in the order of first arrival, with their kernels.

    The arrays have one value per collective, but `member_…`, which go along `rows`.
    """

    members: Groups
    """The kernels of each collective by GPU, at most one on each."""
    number: Index
    """The number of each among those of the run."""
    kind: Int64
    group: Int64
    """Code of the process group among the names of `split_groups`, or -1."""
    bytes: Int64
    """The largest that a rank states, or -1."""
    size: Int64
    """How many ranks take part; 0 where that isn't known."""
    complete: Mask
    """Whether all of them are seen."""
    first_start_ns: Int64
    last_start_ns: Int64
    end_ns: Int64
    last_gpu: Int64
    """The GPU that arrives last of those seen."""
    member_place: Index
    """The place of each kernel among those of the run's collectives."""
    member_set: Index
    member_wait_ns: Int64
    """How long each kernel waits for the last arrival; 0 where not all are seen.

    A kernel of another kind than the synchronous ones that ends before the last arrival, such as
    a broadcast's root, did not wait for it.
    """
    member_exposed_ns: Int64
    """The part of that without compute, at most what the kernel is charged as exposed."""
    spread_ns: int | None
    """Median distance of the first from the last end of the run's complete synchronous ones."""
    shared_labels: tuple[str, ...]
    """Process groups with more GPUs than ranks: they aren't matched."""
    is_scheduled: bool
    """Whether the times are a schedule, in which ranks don't meet: no collective is complete."""
    iterations: tuple[int, ...] = ()
    """Those that the run's collectives are matched in; none: all."""

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def table(self) -> KernelTable:
        return self.members.table

    @property
    def rows(self) -> Index:
        """The kernels, collective by collective."""
        return self.members.rows

    @property
    def transfer_ns(self) -> Int64:
        """From the last arrival to the last end."""
        return self.end_ns - self.last_start_ns

    @property
    def skew_ns(self) -> Int64:
        """From the first arrival to the last."""
        return self.last_start_ns - self.first_start_ns

    def of_kind(self, kind: str) -> Mask:
        codes = [code for code, name in enumerate(self.table.operations) if name == kind]
        codes += [NO_LABEL] if kind == UNKNOWN_COLLECTIVE else []
        return np.isin(self.kind, codes)

    def take(self, taken: Mask) -> Collectives:
        """Some of the kernels, with the collectives of which there are any."""
        places = np.flatnonzero(taken)
        numbers, owner = ranked(self.member_set[places])
        values = {name: getattr(self, name) for name in self.__struct_fields__[1:-4]}
        # Most scopes have some of the GPUs, which take part in all.
        own = slice(None) if len(numbers) == len(self) else numbers
        found = {
            name: each[places if name.startswith("member_") else own]
            for name, each in values.items()
        }
        members = Groups(self.table, self.rows[places], run_starts(owner))
        return replace(self, **(found | {"members": members, "member_set": owner}))


def collectives_of(run: Run, iterations: tuple[int, ...] = ()) -> Collectives | None:
    """The collectives of a run, or of some steps of a large one, matched once; None where
    there are none.

    Kernels of the GPUs are one collective where they end together and their labels don't contradict
    (`align.collective_sets`); one without labels takes those of its partners.
    """
    key = "collectives", iterations
    return run.memo(
        key,
        lambda: run.kept(
            key,
            StoredCollectives,
            lambda: _matched(run, iterations),
            _stored,
            lambda known: _restored(run.table, known),
        ),
    )


def _stored(found: Collectives | None) -> StoredCollectives:
    if found is None:
        raise ValueError("no collectives")
    rows, first = found.rows.astype(np.int32), found.members.first.astype(np.int32)
    names = StoredCollectives.__struct_fields__[2:]
    return StoredCollectives(rows, first, **{name: getattr(found, name) for name in names})


def _restored(table: KernelTable, known: StoredCollectives) -> Collectives:
    known.check(len(table))
    names = StoredCollectives.__struct_fields__[2:]
    return Collectives(
        members=Groups(table, known.rows.astype(np.intp), known.first.astype(np.intp)),
        number=np.arange(len(known.first)),
        member_place=np.arange(len(known.rows)),
        member_set=known.owner,
        **{name: getattr(known, name) for name in names},
    )


def collectives_in(
    run: Run, scope: Groups, left_out: Sequence[int] = (), iterations: tuple[int, ...] = ()
) -> Collectives | None:
    """The collectives of a scope, but those of some steps; None where it has none."""
    found = collectives_of(run, iterations)
    if found is None:
        return None
    taken = scope.holds(found.rows)
    if len(left_out):
        taken &= ~np.isin(run.table.iteration[found.rows], left_out)
    return found.take(taken) if taken.any() else None


def comm_rows(table: KernelTable, iterations: tuple[int, ...]) -> Index:
    """The communication of all steps, or of some."""
    rows = np.flatnonzero(table.kind == Kind.COMM)
    return rows[np.isin(table.iteration[rows], iterations)] if iterations else rows


def _matched(run: Run, iterations: tuple[int, ...]) -> Collectives | None:
    table = run.table
    rows = comm_rows(table, iterations)
    if not len(rows):
        return None
    names, kernels = split_groups(run).names, CommKernels.of(split_groups(run), rows)
    if MICROBATCH in table.measured:
        found = ordered_sets(kernels, table.operations)
    else:
        found = collective_sets(kernels, end_offsets(kernels))
    kernels, owner = _by_arrival(table, kernels, _with_transfers(run, kernels, found))
    rows, first = kernels.rows, run_starts(owner)
    start, seen = table.start_ns[rows], run_sizes(first, len(rows))
    kind, group = run_maxima(kernels.kind, first), run_maxima(kernels.group, first)
    size_of, shared = known_group_sizes(run, kernels.group, kernels.gpu)
    size = np.array([size_of.get(code, 0) for code in range(-1, len(names))])[group + 1]
    if len(size_of) > 1:
        # Kernels of an unknown group, of several: one of all GPUs is whole.
        size[(group < 0) & (seen != size_of.get(UNKNOWN, 0))] = 0
    size[np.isin(kind, _codes(table, _PAIRWISE)) & (seen == _PAIR)] = _PAIR
    if UNKNOWN_COLLECTIVE in table.operations:
        kind[kind < 0] = table.operations.index(UNKNOWN_COLLECTIVE)
    # A group of one rank waits for none.
    alone = [code for code, ranks in size_of.items() if ranks == 1 and code != UNKNOWN]
    complete = (seen == size) & ((seen > 1) | np.isin(group, alone)) & (not run.is_reconstructed)
    synchronous = np.isin(kind, _codes(table, SYNCHRONOUS))
    last_start, end = run_maxima(start, first), run_maxima(kernels.end_ns, first)
    last = last_start[owner]
    waits = complete[owner] & (synchronous[owner] | (kernels.end_ns >= last))
    wait = np.where(waits, np.minimum(last, kernels.end_ns) - start, 0)
    spread = (end - run_minima(kernels.end_ns, first))[synchronous & complete]
    return Collectives(
        members=Groups(table, rows, first),
        number=np.arange(len(first)),
        kind=kind,
        group=group,
        bytes=run_maxima(table.bytes[rows], first),
        size=size,
        complete=complete,
        first_start_ns=run_minima(start, first),
        last_start_ns=last_start,
        end_ns=end,
        last_gpu=run_maxima(np.where(start == last, kernels.gpu, -1), first).astype(np.int64),
        member_place=np.arange(len(rows)),
        member_set=owner,
        member_wait_ns=wait,
        member_exposed_ns=_exposed(run, rows, wait),
        spread_ns=int(median_of(spread)) if len(spread) else None,
        shared_labels=tuple(names[code] for code in shared),
        is_scheduled=run.is_reconstructed,
        iterations=iterations,
    )


def _by_arrival(table: KernelTable, kernels: CommKernels, sets: Int64) -> tuple[CommKernels, Int64]:
    """The kernels set by set in the order of first arrival, and the number of each one's set."""
    codes, owner = ranked(sets)
    start = table.start_ns[kernels.rows]
    arrival = minima_of(start, owner, len(codes), int(start.max()))
    number = np.empty(len(codes), np.int64)
    number[stable_order(arrival)] = np.arange(len(codes))
    order = stable_order(number[owner])
    return kernels.take(order), number[owner][order]


def _with_transfers(run: Run, kernels: CommKernels, found: Int64) -> Int64:
    """The sets, with a send and its receive as one where the trace names their ends.

    The n-th send and receive of the same ends and tag are one, where there are as many of both.
    """
    pairwise = kernels.rows[np.isin(kernels.kind, _codes(run.table, _PAIRWISE))]
    if not len(pairwise):
        return found
    place = {row: at for at, row in enumerate(kernels.rows.tolist())}
    number = int(found.max(initial=0))
    for sides in by_ends(run.table, transfers(run, pairwise)).values():
        if len(sides[0]) == len(sides[1]):
            for ends in zip(*sides, strict=True):
                number += 1
                found[[place[row] for row in ends]] = number
    return found


def transfer_pairs(matched: Collectives) -> Index:
    """The rows of sends and receives that are one transfer by their ends alone, as pairs x 2, that
    which ends first before the other: the only two in a larger process group that end at a time.

    Such pairs tell which stream of a GPU, in which phase, sends to which one of another. Where all
    that these run follows in that order, the n-th of both are one: a send may be buffered, and end
    long before its receive begins.
    """
    table, group = matched.table, matched.group[matched.member_set]
    is_open = np.isin(matched.kind, _codes(table, _PAIRWISE)) & (matched.members.sizes() == 1)
    own = np.flatnonzero(is_open[matched.member_set] & (group != UNKNOWN))
    end = table.start_ns[matched.rows] + table.duration_ns[matched.rows]
    own = own[np.lexsort((end[own], group[own]))]
    rows, end, begins = matched.rows[own], end[own], run_mask(group[own])
    begins[1:] |= np.diff(end) > _SAME_END_NS
    first = np.flatnonzero(begins)
    first = first[run_sizes(first, len(rows)) == _PAIR]
    first = first[table.gpu[rows[first]] != table.gpu[rows[np.minimum(first + 1, len(rows) - 1)]]]
    pairs = np.stack([first, first + 1], axis=1)
    labels = [group[own], *(each[rows] for each in (table.gpu, table.stream, table.phase))]
    side = combined(labels)[1]
    places, known = places_by(side), np.zeros(len(rows), np.bool_)
    found = []
    ways, way = combined(list(np.sort(side[pairs], axis=1).T))
    for which in np.argsort(-counts_of(way, len(ways)), kind="stable").tolist():
        ends = [places[each] for each in ways[which].tolist()]
        if len(ends[0]) != len(ends[1]) or known[np.concatenate(ends)].any():
            continue
        later = end[ends[1]] - end[ends[0]]
        if later.min() < -_SAME_END_NS:
            ends, later = ends[::-1], -later
        if later.min() >= -_SAME_END_NS:
            found.append(np.stack(ends, axis=1))
            known[np.concatenate(ends)] = True
    pairs = np.concatenate([*found, pairs[~known[pairs].any(axis=1)]])
    return np.asarray(rows[pairs], np.intp)


def sent_and_received(found: Collectives) -> Index:
    """The rows of all sends and receives that are one transfer, as pairs x 2, that which ends first
    before the other: those matched as a set of two, and `transfer_pairs`."""
    table = found.table
    whole = found.complete & np.isin(found.kind, _codes(table, _PAIRWISE))
    first = found.members.first[whole & (found.members.sizes() == _PAIR)]
    pairs = np.stack([found.rows[first], found.rows[np.minimum(first + 1, len(found.rows) - 1)]], 1)
    later = np.argsort(table.start_ns[pairs] + table.duration_ns[pairs], axis=1, kind="stable")
    pairs = np.take_along_axis(pairs, later, axis=1)
    return np.concatenate([pairs, transfer_pairs(found)]).astype(np.intp)


def _codes(table: KernelTable, operations: frozenset[str]) -> Index:
    plain = [name.removesuffix(RECOMPUTE_SUFFIX) for name in table.operations]
    return np.flatnonzero([name in operations for name in plain])


def _exposed(run: Run, rows: Index, wait: Int64) -> Int64:
    """The part of the kernels' waits during which no compute runs on their GPU."""
    table = run.table
    exposed = np.minimum(wait, table.exposed_comm_ns[rows])
    waiting = np.flatnonzero((exposed > 0) & (table.hidden_ns[rows] > 0))
    waiting = waiting[stable_order(rows[waiting])]
    waiting_rows = rows[waiting]
    for piece in gpu_by_gpu(table, slice(0, len(table))) if len(waiting) else ():
        assert isinstance(piece, slice)
        own = waiting[slice(*np.searchsorted(waiting_rows, (piece.start, piece.stop)))]
        if not len(own):
            continue
        start, end = table.start_ns[rows[own]], table.start_ns[rows[own]] + wait[own]
        # Of all compute that runs during a collective, one activity is charged with the overlap.
        computes = piece.start + np.flatnonzero(table.overlap_ns[piece] > 0)
        begins = table.start_ns[computes]
        is_near = (begins < end.max()) & (begins + table.duration_ns[computes] > start.min())
        computes = computes[is_near]
        spans = SpansOfGpus.running(
            table.gpu[computes], table.start_ns[computes], table.duration_ns[computes]
        )
        hidden = spans.within(table.gpu[rows[own]], start, end)
        exposed[own] = np.minimum(exposed[own], wait[own] - hidden)
    return exposed


_PEERS: Final = {SEND: "comm_dst", RECEIVE: "comm_src"}
"""The attribute that names the other end."""


class Transfer(Struct, frozen=True):
    """A send or a receive whose peer is one of the run's GPUs."""

    kind: str
    sender: int
    receiver: int
    tag: int
    bytes: int


def transfers(run: Run, rows: Index) -> dict[int, Transfer]:
    """The sends and receives among some rows, by their row, as far as the trace names the peer."""
    table, attributes = run.table, run.side(Attributes)
    if not len(attributes):
        return {}
    ranks = Counter(gpu.rank for gpu in run.gpus)
    gpu_of = {gpu.rank: gpu.index for gpu in run.gpus if ranks[gpu.rank] == 1}
    comm = rows[table.kind[rows] == Kind.COMM]
    found = {}
    for row, node in zip(comm.tolist(), nodes_at(table, comm).tolist(), strict=True):
        gpu = int(table.gpu[row])
        own = attributes.of(gpu, node) if node != NO_NODE else {}
        kind = own.get(NODE_TYPE, ("", ""))[1]
        tag = own.get("comm_tag", ("", 0))[1]
        if kind not in _PEERS or type(tag) is not int:
            continue
        peer = gpu_of.get(own.get(_PEERS[kind], ("", None))[1])
        if peer is None or peer == gpu:
            continue
        ends = (gpu, peer) if kind == SEND else (peer, gpu)
        found[row] = Transfer(kind, *ends, tag, int(table.bytes[row]))
    return found


def by_ends(
    table: KernelTable, found: Mapping[int, Transfer]
) -> dict[tuple[int, int, int], tuple[list[int], list[int]]]:
    """Sender, receiver and tag → the rows of its sends and of its receives, in order of start."""
    sides: dict[tuple[int, int, int], tuple[list[int], list[int]]] = {}
    for row in sorted(found, key=lambda row: (int(table.start_ns[row]), row)):
        one = found[row]
        both = sides.setdefault((one.sender, one.receiver, one.tag), ([], []))
        both[one.kind == RECEIVE].append(row)
    return sides


_MIN_PEERS: Final = 2
_AMONG_LAST: Final = 0.5
"""The share of the longest lag of a step from which on others aren't hidden behind it."""


def delays_in(
    run: Run,
    scope: Collectives,
    peers: tuple[tuple[int, ...], ...],
    gpus: tuple[int, ...],
    iterations: tuple[int, ...],
    extra_ns: Float64,
) -> Float64:
    """By how much each GPU delays the others, as GPUs x steps, in a scope.

    GPUs leave a collective together, so lateness starts from zero until the next one of the same
    GPUs. A GPU's lateness there is how much later than the usual one of its peers (the lower
    median) it arrives, minus the exposed communication that it had with other GPUs then: the GPU it
    waited for is late, not it. A GPU without peers there, such as a stage of a pipeline, is late by
    design. Only the part for which the others wait without compute counts. A GPU's delay of an
    step is the sum over the collectives of the same GPUs, minus the usual sum among those
    GPUs, since every GPU is last by chance at times; of several sets of GPUs, such as those of
    tensor and data parallelism, the one that it delays most counts, because a delay in one is a
    delay in the next.

    Where compute hides the waiting, it ends in a later transfer that compute no longer hides. So a
    GPU for which the others wait, hidden or not, delays them at least by the exposed communication
    that they have more than it, if it is among the last of them.

    What a GPU is late for by waiting is the delay of one that it exchanges with, as far as that
    takes longer than its own peers (`extra_ns`, as the delays): the first stage of a pipeline
    delays the second one's peers.
    """
    found, table = collectives_of(run, scope.iterations), run.table
    assert found is not None
    kin = np.zeros(int(table.gpu.max()) + 1, np.int64)
    for number, own in enumerate(peers):
        kin[list(own)] = number
    key = ("lateness", peers, scope.iterations)
    team_of, *late_ns, behind_ns = run.memo(key, lambda: _lateness(found, kin))
    chosen = np.isin(table.gpu[scope.rows], gpus) & np.isin(table.iteration[scope.rows], iterations)
    rows, members = scope.rows[chosen], scope.member_place[chosen]
    whose = np.searchsorted(gpus, table.gpu[rows])
    when = np.searchsorted(iterations, table.iteration[rows])
    # A GPU has a seat in each team that it takes part in, next to those of its peers there.
    seats, seat = combined([team_of[found.member_set[members]], whose])
    (team, place), count = seats.T, len(iterations)
    side = ranked(team * (int(kin.max()) + 1) + kin[np.array(gpus)[place]])[1]
    cell = (side[:, None] * count + np.arange(count)).ravel()
    of_gpu, of_side = stable_order(place), stable_order(side)
    first, first_of_side = run_starts(place[of_gpu]), run_starts(side[of_side])
    seated = place[of_gpu[first]]

    def beyond_others_of(of_rows: Int64) -> Float64:
        sums = sums_of(of_rows, seat * count + when, len(cell)).astype(np.float64)
        return np.nan_to_num(sums - others_median_of(sums, cell)).reshape(-1, count)

    def most(beyond: Float64) -> Float64:
        delays = np.zeros((len(gpus), count))
        delays[seated] = np.maximum(run_maxima(beyond[of_gpu], first), 0.0)
        return delays

    delays, passed_on = (most(beyond_others_of(each[members])) for each in late_ns)
    less = -beyond_others_of(table.exposed_comm_ns[rows])
    least = _AMONG_LAST * run_maxima(less[of_side], first_of_side)[side]
    hidden = np.where(less > least, np.minimum(beyond_others_of(behind_ns[members]), less), 0.0)
    delays = np.maximum(delays, most(hidden))
    of_team = run_starts(team[of_side[first_of_side]])
    if len(of_team) < len(first_of_side):
        # The end of an iteration delays the next one.
        extra_ns = np.maximum(extra_ns, np.pad(extra_ns[:, :-1], ((0, 0), (1, 0))))
        most_on = run_maxima(passed_on[place[of_side]], first_of_side)
        through = np.minimum(_most_of_others(most_on, of_team)[side], extra_ns[place])
        delays[seated] = np.maximum(delays[seated], run_maxima(through[of_gpu], first))
    return delays


def _most_of_others(values: Float64, first: Index) -> Float64:
    """The largest of the other rows of the same run, by column; -inf without any."""
    most = run_maxima(values, first)
    run = np.repeat(np.arange(len(first)), run_sizes(first, len(values)))
    is_most = values == most[run]
    next_most = run_maxima(np.where(is_most, -np.inf, values), first)
    several = run_sums(is_most.astype(np.int64), first) > 1
    return np.where(is_most, np.where(several, most, next_most)[run], most[run])


def _lateness(found: Collectives, kin: Int64) -> tuple[Index, Int64, Int64, Int64]:
    """The set of GPUs of each collective, and how long the others wait for each kernel, exposed:
    for its own work, and for what its GPU waited for; and for its own work, hidden waits included.

    `kin` is the set of peers of each GPU, as a number.
    """
    table, rows, first = found.table, found.rows, found.members.first
    team = ranked(run_sums(hashes(int(table.gpu.max()) + 1)[table.gpu[rows]], first))[1]
    waits, exposed = (
        run_sums(values, first).astype(np.float64)
        for values in (found.member_wait_ns, found.member_exposed_ns)
    )
    share = np.divide(exposed, waits, out=np.zeros(len(first)), where=waits > 0)
    start = table.start_ns[rows]
    # Arrivals as they would be, had the GPU not communicated with others in between.
    hidden = np.where(waits > 0, 1 - share, 0.0)[found.member_set]
    fair = start - _exposed_elsewhere(table, rows, team[found.member_set], hidden)
    side = ranked(found.member_set * (int(kin.max()) + 1) + kin[table.gpu[rows]])[1]
    begin = run_starts(side[stable_order(side)])
    sizes = run_sizes(begin, len(rows))
    middle = begin + (sizes - 1) // 2
    usual, usual_start = (values[np.lexsort((values, side))][middle] for values in (fair, start))
    reach = found.last_start_ns[found.member_set] - usual_start[side]
    late = np.minimum(np.maximum(fair - usual[side], 0), reach)
    waited = np.minimum(np.maximum(start - usual_start[side], 0), reach) - late
    for each in (late, waited):
        each[sizes[side] < _MIN_PEERS] = 0
    # A stage of a pipeline waits for the stage before it by design.
    is_pairwise = found.of_kind(PAIRWISE)
    share[is_pairwise] = 0.0
    behind = np.where(is_pairwise[found.member_set], 0, late)
    late, waited = (
        np.rint(each * share[found.member_set]).astype(np.int64) for each in (late, waited)
    )
    return team, late, waited, behind


def _exposed_elsewhere(table: KernelTable, rows: Index, team: Index, hidden: Float64) -> Int64:
    """Exposed communication with other teams since the GPU's last collective of the team.

    Behind a wait that compute hides GPUs stay as late as they were, and for the same reason: of
    what was before, that share (`hidden`, of each row's collective) counts on.
    """
    gpu, exposed = table.gpu[rows].astype(np.int64), table.exposed_comm_ns[rows]
    lane = gpu * (int(team.max(initial=0)) + 1) + team
    order = stable_order(table.start_ns[rows])
    order = order[stable_order(gpu[order])]
    sums = np.cumsum(exposed[order]) - exposed[order]
    first = run_starts(gpu[order])
    before = np.empty(len(rows), np.int64)
    before[order] = sums - np.repeat(sums[first], run_sizes(first, len(order)))
    order = order[stable_order(lane[order])]
    place, is_first = np.arange(len(order)), run_mask(lane[order])
    later = np.flatnonzero(~is_first)
    last, total = order[later - 1], before
    total[order[later]] -= before[last] + exposed[last]
    # Of all lanes at once: the collectives right behind one that hands nothing on, those behind
    # them, and so on.
    total, share = total[order], np.append(0.0, hidden[order[:-1]])
    is_carried = ~is_first & (share != 0)
    turn = place - np.maximum.accumulate(np.where(is_carried, 0, place))
    by_turn = np.flatnonzero(is_carried)
    by_turn = by_turn[stable_order(turn[by_turn])]
    for _, own in runs_of(turn[by_turn]):
        each = by_turn[own]
        total[each] += np.rint(share[each] * total[each - 1]).astype(np.int64)
    found = np.empty_like(total)
    found[order] = total
    return found
