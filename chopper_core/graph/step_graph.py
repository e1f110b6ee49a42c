"""The step graph: activities, the host's work and collectives, each with what it waits for.

A node begins when all that it waits for has ended, each after the lag of its edge, and ends after
its own work. An activity's work is its duration, that of a member of a collective the time from the
arrival of the last member on. The host's work is the time between its launches, calls and step
boundaries, without what it waits for in calls that block. Nothing else is kept: the time that no
edge explains is the error of the replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import cached_property
from typing import Final

import msgspec.structs
import numpy as np
from msgspec import Struct

from chopper_core.model.table import NO_LABEL, STATES, KernelTable
from chopper_core.util.arrays import AnyArray, Index, Int8, Int32, Int64, Rows
from chopper_core.util.grouping import (
    counts_of,
    places_by,
    run_starts,
    stable_order,
    sums_of,
)

_LISTED_SLOTS: Final = 100_000
_FAR: Final = np.iinfo(np.int64).max >> 2


class NodeKind(IntEnum):
    """What a node is."""

    HOST = 0
    """The host's work up to a launch, a blocking call, or a boundary of its steps."""
    RETURN = 1
    """A blocking call returns."""
    ARRIVAL = 2
    """A member of a collective starts; its work begins at the meeting."""
    MEETING = 3
    """The last member of a collective arrives."""
    ACTIVITY = 4
    """An activity works."""


class ReplayPlan(Struct, frozen=True, eq=False, dict=True):
    """How the replay walks a graph: chains of nodes that wait for one node each, and junctions.

    A junction's begin is the largest of its edges, taken two at a time: one slot has the larger of
    two earlier slots, each plus an offset. Slot 0 is time 0.
    """

    order: Int32
    """The nodes, chain after chain; a chain begins with its junction."""
    chain: Int32
    """The chain of each place of `order`."""
    head: Int64
    """Where each chain begins in `order`."""
    inner: Int32
    """The edge by which each place of `order` follows the one before; -1 for a junction."""
    slot: Int32
    """The slot of each chain's junction."""
    sources: tuple[Int32, Int32]
    """The two slots that each slot from 1 on is the larger of."""
    edges: tuple[Int32, Int32]
    """Their edges: of the graph, then no offset, then the measured begin of each node."""

    @property
    def listed(self) -> tuple[list[int], list[int]]:
        """`sources` as lists, which a walk goes through in two thirds of the time. Those of a few
        are kept for the next replay; of 100,000 they take 7 MB."""
        return self._kept if len(self.sources[0]) <= _LISTED_SLOTS else self._made

    @cached_property
    def _kept(self) -> tuple[list[int], list[int]]:
        return self._made

    @property
    def _made(self) -> tuple[list[int], list[int]]:
        one, other = self.sources
        return one.tolist(), other.tolist()


class StepGraph(Struct, frozen=True, eq=False, dict=True):
    """Nodes in an order in which each comes after what it waits for, and edges by their target."""

    kind: Int8
    """Of `NodeKind`."""
    row: Int32
    """The row of the kernel table; -1 for the host and meetings."""
    gpu: Int32
    """-1 for meetings."""
    iteration: Int32
    begin_ns: Int64
    """As measured."""
    work_ns: Int64
    first: Int64
    """Where the edges of each node begin, and one value more for the end."""
    source: Int32
    evidence: Int8
    """`Evidence` of each edge."""
    lag_ns: Int64
    """From the end of the source to the target."""
    host_ends: Index
    """The nodes at which the host leaves the steps of `host_iterations`."""
    unlaunched: int = 0
    """Activities without a launch record: what their host did before them is unknown."""
    unseen_ns: int = 0
    """Waits for what isn't in the run, such as absent ranks, in all: they stay as measured."""
    contradicted: int = 0
    """Edges left out because the target begins before the source, by the measured times."""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def end_ns(self) -> Int64:
        return self.begin_ns + self.work_ns

    @cached_property
    def target(self) -> Int32:
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.first))

    @cached_property
    def activities(self) -> Index:
        """The nodes of the activities, in the order of their rows."""
        found = np.flatnonzero(self.kind == NodeKind.ACTIVITY)
        return found[stable_order(self.row[found])]

    @cached_property
    def arrivals(self) -> Index:
        """The nodes at which the same activities start: their own, or their arrival."""
        found = self.activities.copy()
        arrived = np.flatnonzero(self.kind == NodeKind.ARRIVAL)
        found[np.searchsorted(self.row[found], self.row[arrived])] = arrived
        return found

    @cached_property
    def plan(self) -> ReplayPlan:
        return _planned(self)


class Replayed(Struct, frozen=True, eq=False):
    """When each node of a graph begins and ends."""

    begin_ns: Int64
    work_ns: Int64

    @property
    def end_ns(self) -> Int64:
        return self.begin_ns + self.work_ns


def replay(
    graph: StepGraph,
    work_ns: Int64 | None = None,
    lag_ns: Int64 | None = None,
    begin_ns: Int64 | None = None,
) -> Replayed:
    """Each node's times if it begins as soon as all that it waits for has ended.

    Nodes that wait for nothing begin when they were measured to, or at `begin_ns`.
    """
    work = graph.work_ns if work_ns is None else work_ns
    lag = graph.lag_ns if lag_ns is None else lag_ns
    plan = graph.plan
    inside = _inside(plan, work, lag)
    begins = graph.begin_ns if begin_ns is None else begin_ns
    origin = begins.min(initial=_FAR)
    offsets = _offsets(graph, plan, inside, work, lag, begins - origin)
    # Sums of floats take half as long, and from the first begin on they are exact for 100 days.
    by_edge = offsets.astype(np.float64)
    bys, laters = (by_edge[edge].tolist() for edge in plan.edges)
    slots = [0.0]
    add = slots.append
    ones, others = plan.listed
    for one, by, other, later in zip(ones, bys, others, laters, strict=True):
        first, second = slots[one] + by, slots[other] + later
        add(first if first > second else second)
    begin = np.empty(len(graph), np.int64)
    junction = np.array(slots).astype(np.int64) + origin
    begin[plan.order] = junction[plan.slot][plan.chain] + inside
    return Replayed(begin, work)


def latest_ends(graph: StepGraph, replayed: Replayed, due_ns: Int64) -> Int64:
    """The latest end of each node for which no node ends after it is due."""
    plan = graph.plan
    work, lag = replayed.work_ns, graph.lag_ns
    inside = _inside(plan, work, lag)
    offsets = _offsets(graph, plan, inside, work, lag, graph.begin_ns)
    # When the junction of each chain must begin for each of its nodes to be in time.
    late = (due_ns - work)[plan.order] - inside
    slots = np.full(len(plan.sources[0]) + 1, _FAR)
    slots[plan.slot] = np.minimum.reduceat(late, plan.head)
    found = slots.tolist()
    ones, others = plan.listed
    bys, laters = (offsets[edge].tolist() for edge in plan.edges)
    for slot in range(len(found) - 1, 0, -1):
        due = found[slot]
        one, other = ones[slot - 1], others[slot - 1]
        found[one] = min(found[one], due - bys[slot - 1])
        found[other] = min(found[other], due - laters[slot - 1])
    # Within a chain, what later nodes lead to holds the earlier ones back too.
    at = np.empty(len(graph), np.intp)
    at[plan.order] = np.arange(len(graph))
    leaving = _leaving(graph, plan)
    slot_of = np.full(len(graph), -1)
    slot_of[plan.order[plan.head]] = plan.slot
    due = np.array(found)[slot_of[graph.target[leaving]]] - offsets[leaving]
    np.minimum.at(late, at[graph.source[leaving]], due)
    late = minimum_to_end(late, plan.chain)
    latest = np.empty(len(graph), np.int64)
    latest[plan.order] = late + inside
    return latest + work


def minimum_to_end(values: Int64, chain: Int32 | Int64) -> Int64:
    """The least value from each place to the end of its chain."""
    offset = chain.astype(np.int64) * (np.ptp(values) + 1) - values.min()
    least = np.minimum.accumulate((values + offset)[::-1])[::-1]
    return np.asarray(least - offset, np.int64)


def _leaving(graph: StepGraph, plan: ReplayPlan) -> Index:
    """The edges that lead to a junction."""
    is_inner = np.zeros(len(graph.source), np.bool_)
    is_inner[plan.inner[plan.inner >= 0]] = True
    return np.flatnonzero(~is_inner)


def _inside(plan: ReplayPlan, work: Int64, lag: Int64) -> Int64:
    """The time from when each chain's junction begins until each place of `order` does."""
    before = np.append(0, work[plan.order][:-1]) + np.append(lag, 0)[plan.inner]
    whole = np.cumsum(before)
    return np.asarray(whole - whole[plan.head][plan.chain], np.int64)


def _offsets(
    graph: StepGraph, plan: ReplayPlan, inside: Int64, work: Int64, lag: Int64, begin_ns: Int64
) -> Int64:
    """The time from when the junction of each edge's source begins until its target may."""
    to_end = np.empty(len(graph), np.int64)
    to_end[plan.order] = inside
    to_end += work
    return np.concatenate([to_end[graph.source] + lag, [0], begin_ns])


def _planned(graph: StepGraph) -> ReplayPlan:
    count = len(graph)
    degree = np.diff(graph.first)
    # Of the nodes that wait for the same one alone, one continues its chain.
    plain = np.flatnonzero(degree == 1)
    edge = graph.first[plain]
    rank = np.lexsort((plain, graph.evidence[edge], graph.source[edge]))
    chosen = rank[run_starts(graph.source[edge][rank])] if len(rank) else rank
    follows = np.full(count, -1, np.int64)
    follows[plain[chosen]] = edge[chosen]
    order, chain, head = _chains(graph, follows)
    heads = order[head]
    # Slots in the order of the nodes, so that each comes after those that it needs.
    by_node = stable_order(heads)
    width = np.maximum(degree[heads] - 1, 1)
    slot = np.empty(len(heads), np.int64)
    slot[by_node] = np.cumsum(width[by_node])
    slot_of = np.full(count, -1, np.int64)
    slot_of[order] = slot[chain]
    nodes = heads[by_node]
    owner = np.repeat(nodes, width[by_node])
    number = np.arange(len(owner)) - np.repeat(
        np.cumsum(width[by_node]) - width[by_node], width[by_node]
    )
    none = len(graph.source)
    start = none + 1 + owner
    many, is_first = degree[owner], number == 0
    one_edge = np.where(is_first, np.where(many > 0, graph.first[owner], start), none)
    other_edge = np.where(many > 0, graph.first[owner] + np.minimum(number + 1, many - 1), start)
    source = np.append(slot_of[graph.source], np.zeros(1 + count, np.int64))
    one = np.where(is_first, source[one_edge], np.arange(len(owner)))
    return ReplayPlan(
        order=order.astype(np.int32),
        chain=chain.astype(np.int32),
        head=head,
        inner=follows[order].astype(np.int32),
        slot=slot.astype(np.int32),
        sources=(one.astype(np.int32), source[other_edge].astype(np.int32)),
        edges=(one_edge.astype(np.int32), other_edge.astype(np.int32)),
    )


def _chains(graph: StepGraph, follows: Int64) -> tuple[Index, Index, Index]:
    """Nodes chain after chain, the chain of each place, and where each chain begins.

    The distance from its junction is found by doubling the steps towards it.
    """
    count = len(graph)
    root = np.arange(count)
    inner = follows >= 0
    root[inner] = graph.source[follows[inner]]
    while True:
        further = root[root]
        if (further == root).all():
            break
        root = further
    # Nodes come after their sources, so that those of a chain are in order by number.
    order = stable_order(root)
    head = run_starts(root[order])
    chain = np.repeat(np.arange(len(head)), np.diff(head, append=count))
    return order, chain, head


class NodeRows(Rows, frozen=True, eq=False):
    """Nodes in any order: fields as of `StepGraph`."""

    kind: Int8
    row: Int32
    gpu: Int32
    iteration: Int32
    begin_ns: Int64
    work_ns: Int64


class EdgeRows(Rows, frozen=True, eq=False):
    """Edges in any order."""

    source: Index
    target: Index
    evidence: Int8
    lag_ns: Int64


def joined_edges(parts: Sequence[EdgeRows]) -> EdgeRows:
    columns = EdgeRows.__struct_fields__
    return EdgeRows(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))


def sorted_graph(
    nodes: NodeRows, edges: EdgeRows, moment: Int64, host_ends: Index, unlaunched: int = 0
) -> StepGraph:
    """The graph of nodes in the order of their moments, those of the same by kind and place; edges
    that don't lead forward are left out."""
    order = np.lexsort((np.maximum(nodes.kind, NodeKind.RETURN), moment))
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    source, target = place[edges.source], place[edges.target]
    forward = np.flatnonzero(source < target)
    forward = forward[stable_order(target[forward])]
    return StepGraph(
        **msgspec.structs.asdict(nodes.take(order)),
        first=np.append(0, np.cumsum(counts_of(target[forward], len(order)))),
        source=source[forward].astype(np.int32),
        evidence=edges.evidence[forward],
        lag_ns=edges.lag_ns[forward],
        host_ends=place[host_ends],
        unlaunched=unlaunched,
        contradicted=len(source) - len(forward),
    )


class Steps(Struct, frozen=True, eq=False):
    """The cells of GPU and step of a graph, GPU by GPU in the order of steps."""

    gpu: Int64
    iteration: Int64
    activities: Index
    """Places in `StepGraph.activities`, cell by cell."""
    first: Index
    host_end: Int64
    """The node at which the host leaves the step, or -1."""
    begin_ns: Int64
    """When each begins on the GPU in the identity replay, with its host's time before the first
    activity."""
    outside_ns: Int64
    """Measured time of no step between the step before and each."""

    def times_ns(self, graph: StepGraph, replayed: Replayed) -> Int64:
        """The time of each cell: from the end of the step before it, without time of no step;
        of the first of a GPU from its begin in the identity replay.

        A step ends with its last activity, or while the GPU is idle after that, when its host
        leaves it.
        """
        every = replayed.end_ns
        start = replayed.begin_ns[graph.arrivals[self.activities]]
        starts = np.minimum.reduceat(start, self.first)
        ends = np.maximum.reduceat(every[graph.activities[self.activities]], self.first)
        host = np.append(every, ends.min(initial=0))[self.host_end]
        is_last = np.append(self.gpu[1:] != self.gpu[:-1], True)
        until = np.where(is_last, _FAR, np.append(starts[1:], 0))
        ends = np.maximum(ends, np.minimum(host, until))
        # What comes later does not begin its step later: it takes longer.
        is_first = np.append(True, is_last[:-1])
        begins = np.where(is_first, self.begin_ns, np.append(0, ends[:-1] + self.outside_ns[1:]))
        return np.asarray(np.maximum(ends - begins, 0), np.int64)


def steps_of_graph(graph: StepGraph, table: KernelTable, identity: Replayed) -> Steps:
    rows = graph.row[graph.activities]
    gpu, iteration = table.gpu[rows].astype(np.int64), table.iteration[rows].astype(np.int64)
    known = np.flatnonzero(iteration != NO_LABEL)
    known = known[np.lexsort((iteration[known], gpu[known]))]
    first = run_starts(gpu[known], iteration[known])
    cells = gpu[known][first], iteration[known][first]
    ends = {
        (int(graph.gpu[node]), int(graph.iteration[node])): int(node) for node in graph.host_ends
    }
    host = [ends.get(cell, -1) for cell in zip(*(each.tolist() for each in cells), strict=True)]
    begins = identity.begin_ns[graph.arrivals[known]]
    begin = np.minimum.reduceat(begins, first)
    before = table.idle_ns[rows[known]] - table.idle_after_ns[rows[known]]
    is_opening = begins == np.repeat(begin, np.diff(first, append=len(known)))
    begin = begin - np.maximum.reduceat(np.where(is_opening, before, 0), first)
    starts = np.minimum.reduceat(table.start_ns[rows[known]], first)
    none = np.flatnonzero(table.iteration == NO_LABEL)
    spent = np.zeros(len(none), np.int64)
    for state in STATES:
        spent += getattr(table, state)[none]
    cell = _cells_after(table.gpu[none], table.start_ns[none], cells[0], starts)
    outside = sums_of(spent[cell >= 0], cell[cell >= 0], len(starts))
    return Steps(
        *cells,
        known,
        first,
        np.array(host, np.int64),
        begin,
        outside_ns=outside,
    )


def _cells_after(gpu: AnyArray, start_ns: Int64, cell_gpu: Int64, cell_start: Int64) -> Index:
    """The cell that begins after each instant on its GPU, after others of it; -1 without one."""
    found = np.full(len(gpu), -1, np.intp)
    whose = places_by(gpu)
    for one, cells in places_by(cell_gpu).items():
        own = whose.get(one, np.zeros(0, np.intp))
        order = cells[np.argsort(cell_start[cells], kind="stable")]
        at = np.searchsorted(cell_start[order], start_ns[own], "left")
        found[own] = np.where(at > 0, np.append(order, -1)[at], -1)
    return found
