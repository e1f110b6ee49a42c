"""Collectives matched across ranks: the kernels that, on each GPU, are the same collective."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.signals import time_within, union
from chopper_core.model.table import NO_LABEL, KernelTable, Kind
from chopper_core.util.arrays import Codes, Index, Int64, Mask, Numbers
from chopper_core.util.grouping import distinct, ranked, run_mask, run_starts, stable_order

PAIRWISE: Final = "send_recv"
"""The kind that is matched in groups of two only: in larger ones not all ranks take part."""
SYNCHRONOUS: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})
"""Kinds that no rank can leave before the last one has arrived."""
_UNEVEN: Final = frozenset({"all_to_all", "gather", "scatter"})
"""Kinds of which the ranks may state different sizes."""
_GROUP_SIZE: Final = re.compile(r" of (\d+)$")
_MAX_SHIFT: Final = 16
"""The largest shift of two sequences beyond their difference in length."""
_CLEARLY_BETTER: Final = 0.5
_MAX_CODES: Final = 2**62


class Collectives(Struct, frozen=True, eq=False):
    """Every collective of a run with its kernels on the GPUs, in the order of first arrival.

    The arrays have one value per collective, but `member_…`, which go along `members.rows`.
    """

    members: Groups
    """The kernels of each collective by GPU; at most one on each."""
    kind: Int64
    """Code of the operation."""
    group: Int64
    """Code of the process group among the table's names, or -1."""
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
    member_set: Index
    member_wait_ns: Int64
    """How long each kernel waits for the last arrival; 0 where not all are seen.

    A kernel of another kind than the synchronous ones that ends before the last arrival, such as
    a broadcast's root, did not wait for it.
    """
    member_exposed_ns: Int64
    """The part of that without compute, at most what the kernel is charged as exposed."""
    spread_ns: int | None
    """Median distance of the first from the last end of complete synchronous collectives."""
    shared_labels: tuple[str, ...]
    """Process groups with more GPUs than ranks: they aren't matched."""

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def transfer_ns(self) -> Int64:
        """From the last arrival to the last end."""
        return self.end_ns - self.last_start_ns

    @property
    def skew_ns(self) -> Int64:
        """From the first arrival to the last."""
        return self.last_start_ns - self.first_start_ns


def collectives_of(run: Run) -> Collectives | None:
    """The collectives of a run, matched once; None where it has none.

    On each GPU the collectives of a process group and kind come in the same order. Within an
    iteration the n-th of one GPU is the n-th of the others; where their numbers or sizes differ,
    or the profiler cut the iteration, sequences are shifted to where sizes and ends agree best.
    """
    return run.memo(("collectives",), lambda: _matched(run))


def _matched(run: Run) -> Collectives | None:
    table = run.table
    rows = np.flatnonzero(table.kind == Kind.COMM)
    if not len(rows):
        return None
    rows = rows[stable_order(table.start_ns[rows])]
    keys = (table.group, table.operation, table.iteration)
    rows = rows[stable_order(_together(*(key[rows] for key in (*keys, table.gpu))))]
    block = _numbers(_together(*(key[rows] for key in keys)))
    lane = _numbers(block, table.gpu[rows])
    place = _places(run, rows, block, lane)
    size, shared = group_sizes(run, rows)
    pairwise = (table.operation[rows] == _code(table, PAIRWISE)) & (size != 2)
    alone = (size == 0) | pairwise
    place = np.where(alone, np.arange(len(rows)) + 2 * len(rows), place)
    # Within a block the rows are in the order of their GPUs, and stay so.
    order = stable_order(_together(block, place))
    return _described(run, rows[order], _numbers(block[order], place[order]), size[order], shared)


def _together(*columns: Codes) -> Int64:
    """One number for the codes of each row, in the order of the columns."""
    code, codes = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        low, width = int(column.min()), int(column.max()) - int(column.min()) + 1
        if codes * width > _MAX_CODES:
            # Numbers that lie far apart, as of iterations: their places tell them apart as well.
            different, column = ranked(column)
            low, width = 0, len(different)
        code *= width
        code += column
        code -= low
        codes *= width
    return code


def _numbers(*columns: Numbers) -> Int64:
    """The number of the run of equal values that each row is in; the columns sort together."""
    return np.cumsum(run_mask(*columns)) - 1


def _code(table: KernelTable, operation: str) -> int:
    """The code of an operation; one that no row has where there is none."""
    return table.operations.index(operation) if operation in table.operations else NO_LABEL - 1


def _codes(table: KernelTable, operations: frozenset[str]) -> Int64:
    return np.array([_code(table, operation) for operation in operations], np.int64)


def _world_size(run: Run) -> int:
    """The ranks of the job that the traces state, those of other jobs aside; else those seen."""
    stated = [source.facts.get("world size", "") for source in run.sources]
    return max([len(run.gpus), *(int(text) for text in stated if text.isdigit())])


def group_sizes(run: Run, rows: Index) -> tuple[Int64, tuple[str, ...]]:
    """How many ranks each row's process group has, and the groups with more GPUs than ranks.

    0 where it isn't known: the group doesn't state it, and the job has more ranks than are seen.
    """
    table = run.table
    is_whole = _world_size(run) <= len(run.gpus)
    sizes = np.zeros(len(rows), np.int64)
    shared: list[str] = []
    for code in distinct(table.group[rows]).tolist():
        own = table.group[rows] == code
        seen = len(distinct(table.gpu[rows[own]]))
        found = _GROUP_SIZE.search(table.names[code]) if code >= 0 else None
        size = int(found.group(1)) if found else seen * is_whole
        if found and seen > size:
            shared.append(table.names[code])
            continue
        sizes[own] = size
    return sizes, tuple(shared)


def _places(run: Run, rows: Index, block: Int64, lane: Int64) -> Int64:
    """The number of each collective in its block (group, kind, iteration), shared by the GPUs."""
    table = run.table
    first = run_starts(lane)
    place = np.arange(len(rows)) - first[lane]
    lanes = np.diff(np.append(first, len(rows)))
    of_block = run_starts(block[first])
    cut = {iteration for cut in run.partial_iterations.values() for iteration in cut}
    iteration = table.iteration[rows[first[of_block]]]
    doubtful = np.minimum.reduceat(lanes, of_block) != np.maximum.reduceat(lanes, of_block)
    doubtful |= np.isin(iteration, [NO_LABEL, *cut])
    doubtful[block[_differing(table, rows, block, place)]] = True
    doubtful &= np.diff(np.append(of_block, len(first))) > 1
    if not doubtful.any():
        return place
    late = _clock_offsets(table, rows, block, place, doubtful)
    ends = (table.start_ns + table.duration_ns)[rows] - late[table.gpu[rows]]
    uneven = np.isin(table.operation[rows], _codes(table, _UNEVEN))
    size = np.where(uneven, -1, table.bytes[rows])
    bounds = np.append(first, len(rows))
    block_bounds = np.append(of_block, len(first))
    for number in np.flatnonzero(doubtful).tolist():
        own = range(block_bounds[number], block_bounds[number + 1])
        longest = max(own, key=lambda one: int(lanes[one]))
        base = slice(bounds[longest], bounds[longest + 1])
        for one in own:
            here = slice(bounds[one], bounds[one + 1])
            place[here] += _shift(ends[base], size[base], ends[here], size[here])
    return place


def _differing(table: KernelTable, rows: Index, block: Int64, place: Int64) -> Index:
    """Rows of sets whose members state different sizes, where that can't be."""
    size = table.bytes[rows]
    if int(size.min()) == int(size.max()):
        return np.empty(0, np.intp)
    order = stable_order(_together(block, place))
    size = size[order]
    first = run_starts(_numbers(block[order], place[order]))
    uneven = np.isin(table.operation[rows[order[first]]], _codes(table, _UNEVEN))
    largest = np.maximum.reduceat(size, first)
    least = np.minimum.reduceat(np.where(size < 0, np.iinfo(np.int64).max, size), first)
    return order[first[(least < largest) & ~uneven]]


def _clock_offsets(
    table: KernelTable, rows: Index, block: Int64, place: Int64, doubtful: Mask
) -> Int64:
    """How much later each GPU ends collectives that all leave together, by its clock."""
    sure = np.isin(table.operation[rows], _codes(table, SYNCHRONOUS)) & ~doubtful[block]
    offsets = np.zeros(int(table.gpu.max()) + 1, np.int64)
    order = np.flatnonzero(sure)
    if not len(order):
        return offsets
    order = order[np.lexsort((place[order], block[order]))]
    sets = _numbers(block[order], place[order])
    first = run_starts(sets)
    ends = (table.start_ns + table.duration_ns)[rows[order]]
    ends -= ends.min()
    mean = np.add.reduceat(ends, first) // np.diff(np.append(first, len(ends)))
    later, gpu = ends - mean[sets], table.gpu[rows[order]]
    for number in distinct(gpu).tolist():
        offsets[number] = int(np.median(later[gpu == number]))
    return offsets


def _shift(base_ends: Int64, base_size: Int64, ends: Int64, size: Int64) -> int:
    """By how much a sequence is shifted against a longer one so that sizes and ends agree best."""
    spare = len(base_ends) - len(ends)
    costs: dict[int, tuple[float, float]] = {}
    for shift in range(-_MAX_SHIFT, spare + _MAX_SHIFT + 1):
        low, high = max(0, -shift), min(len(ends), len(base_ends) - shift)
        if 2 * (high - low) < len(ends) or high <= low:
            continue
        own, other = slice(low, high), slice(low + shift, high + shift)
        known = (size[own] >= 0) & (base_size[other] >= 0)
        differ = float((known & (size[own] != base_size[other])).mean())
        costs[shift] = differ, float(np.median(np.abs(ends[own] - base_ends[other])))
    best = min(costs, key=lambda shift: costs[shift])
    if spare or best == 0:
        return best
    # Equally long sequences stay as they are unless shifting them is clearly better.
    (differ, distance), (differ_at_0, distance_at_0) = costs[best], costs[0]
    better = differ < differ_at_0 or distance < _CLEARLY_BETTER * distance_at_0
    return best if better else 0


def _described(
    run: Run, rows: Index, sets: Int64, size: Int64, shared: tuple[str, ...]
) -> Collectives:
    """The collectives of rows that stand set by set, put in the order of first arrival."""
    table = run.table
    arrival = np.minimum.reduceat(table.start_ns[rows], run_starts(sets))
    rank = np.empty(len(arrival), np.int64)
    rank[stable_order(arrival)] = np.arange(len(arrival))
    order = stable_order(rank[sets])
    rows, size = rows[order], size[order]
    member_set = rank[sets][order]
    first = run_starts(member_set)
    start = table.start_ns[rows]
    ends = start + table.duration_ns[rows]
    last_start = np.maximum.reduceat(start, first)
    end = np.maximum.reduceat(ends, first)
    seen = np.diff(np.append(first, len(rows)))
    complete = (seen == size[first]) & (seen > 1)
    synchronous = np.isin(table.operation[rows[first]], _codes(table, SYNCHRONOUS))
    waits = complete[member_set] & (synchronous[member_set] | (ends >= last_start[member_set]))
    wait = np.where(waits, np.minimum(last_start[member_set], ends) - start, 0)
    latest = np.where(start == last_start[member_set], table.gpu[rows], -1)
    spread = (end - np.minimum.reduceat(ends, first))[synchronous & complete]
    return Collectives(
        members=Groups(table, rows, first),
        kind=table.operation[rows[first]].astype(np.int64),
        group=table.group[rows[first]].astype(np.int64),
        bytes=np.maximum.reduceat(table.bytes[rows], first),
        size=size[first],
        complete=complete,
        first_start_ns=np.minimum.reduceat(start, first),
        last_start_ns=last_start,
        end_ns=end,
        last_gpu=np.maximum.reduceat(latest, first).astype(np.int64),
        member_set=member_set,
        member_wait_ns=wait,
        member_exposed_ns=_exposed(run, rows, wait),
        spread_ns=int(np.median(spread)) if len(spread) else None,
        shared_labels=shared,
    )


def _exposed(run: Run, rows: Index, wait: Int64) -> Int64:
    """The part of the kernels' waits during which no compute runs on their GPU."""
    table = run.table
    exposed = np.minimum(wait, table.exposed_comm_ns[rows])
    waiting = np.flatnonzero((exposed > 0) & (table.hidden_ns[rows] > 0))
    if not len(waiting):
        return exposed
    whose = table.gpu[rows[waiting]]
    order = stable_order(whose)
    waiting, whose = waiting[order], whose[order]
    begins = run_starts(whose)
    for gpu, own in zip(whose[begins].tolist(), np.split(waiting, begins[1:]), strict=True):
        selection = run.tree().node((str(gpu),)).selection
        # Whatever compute runs while a collective does, one of it is charged with the overlap.
        computes = np.flatnonzero(table.overlap_ns[selection] > 0)
        stretches = union(
            table.start_ns[selection][computes], table.duration_ns[selection][computes]
        )
        start = table.start_ns[rows[own]]
        hidden = time_within(*stretches, start + wait[own]) - time_within(*stretches, start)
        exposed[own] = np.minimum(exposed[own], wait[own] - hidden)
    return exposed
