"""The longest path through the dependencies of activities, and how many of them it leaves free.

Lengths are work: the time that an activity runs, without the time that a collective waits for its
last member. The members of a collective begin their work together, so that the path crosses GPUs
there. Rows that follow one row of their stream, and nothing else, keep its distance plus their own
work; only the others, the junctions, are looked at one by one.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.labels import numbered
from chopper_core.graph.collectives import collectives_of
from chopper_core.graph.dependencies import Dependencies, dependencies_of, time_order
from chopper_core.model.run import Run
from chopper_core.model.table import NO_TIME
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.grouping import counts_of, maxima_of, minima_of, ranked, stable_order

GAPS: Final = ("host", "latency", "queued", "peer", "unknown")
"""Why the path doesn't run between two of its activities: the host launched late, the launch took
time, the activity waited in its queue, it waited for members on other GPUs, or nothing is known."""


class Graph(Struct, frozen=True, eq=False):
    """The activities of a scope in the order of time, GPU by GPU, with what they depend on."""

    rows: Index
    edges: Dependencies
    begin_ns: Int64
    """When the work of each begins: of a member of a collective, when the last one arrives."""
    end_ns: Int64
    """Its end, or the start of the next of its stream if that is some stamps earlier."""
    task: Index
    """The first place of those that begin their work together; its own place for most."""

    @property
    def work_ns(self) -> Int64:
        return self.end_ns - self.begin_ns


class LongestPath(Struct, frozen=True, eq=False):
    """The path with the most work; arrays go along it but `from_ns` and `to_ns`."""

    places: Index
    """The activities on it, in order, as places of the graph."""
    held_by: Index
    """The member of the collective that the path comes from; for others the activity itself."""
    evidence: Int64
    """`Evidence` of the edge from the activity before, -1 for the first."""
    work_ns: Int64
    gap_ns: Int64
    """GAPS x activities: the time before each since the one before it ended."""
    from_ns: Int64
    """For every activity of the graph, the work on the longest path before it."""
    to_ns: Int64
    """The same with its own work."""

    @property
    def length_ns(self) -> int:
        return int(self.to_ns.max())


def graph_of(run: Run, rows: Index) -> Graph:
    table = run.table
    rows = time_order(table, rows)
    edges = dependencies_of(run, rows)
    start = table.start_ns[rows]
    end = start + table.duration_ns[rows]
    previous = edges.in_stream
    held = np.flatnonzero(previous >= 0)
    end[previous[held]] = np.minimum(end[previous[held]], start[held])
    begin, task = _together(run, rows, start, end)
    return Graph(rows, edges, begin, end, task)


def _together(run: Run, rows: Index, start: Int64, end: Int64) -> tuple[Int64, Index]:
    begin, task = start.copy(), np.arange(len(rows))
    found = collectives_of(run)
    if found is None:
        return begin, task
    place_of = np.full(len(run.table), -1, np.intp)
    place_of[rows] = np.arange(len(rows))
    place, sets = place_of[found.rows], found.member_set
    last = found.last_start_ns[sets]
    # One that ended before the last arrived did not wait for it. For one that ended at that moment
    # only the end is known; all others end later than they begin, so there is no cycle.
    waits = (place >= 0) & found.complete[sets]
    waits &= end[place] >= last
    begin[place[waits]] = last[waits]
    waits &= end[place] > last
    place, sets = place[waits], sets[waits]
    task[place] = minima_of(place, sets, len(found), len(rows))[sets]
    return begin, task


class _Chains(Struct, frozen=True, eq=False):
    """The rows stream by stream, each with the junction that its distance is counted from."""

    order: Index
    """The places, stream after stream."""
    at: Index
    """Where each place stands in `order`."""
    junction: Index
    """Where the last junction up to each row stands in `order`."""
    work: Int64
    """Work up to and with each row, summed along `order`."""

    def offset(self, place: Index) -> Int64:
        """Work from the junction of each place, without that of the junction, with its own."""
        at = self.at[place]
        return self.work[at] - self.work[self.junction[at]]


def longest_path(run: Run, graph: Graph) -> LongestPath:
    """The path with the most work through a graph that isn't empty."""
    chains = _chains(run, graph)
    distance, best = _distances(graph, chains)
    to_ns = distance[chains.junction[chains.at]] + chains.offset(np.arange(len(graph.rows)))
    places, edges = _walked(graph, chains, best, int(to_ns.argmax()))
    work = graph.work_ns
    known = edges >= 0
    held_by, evidence = places.copy(), np.full(len(places), -1, np.int64)
    held_by[known] = graph.edges.after[edges[known]]
    evidence[known] = graph.edges.evidence[edges[known]]
    return LongestPath(
        places=places,
        held_by=held_by,
        evidence=evidence,
        work_ns=work[places],
        gap_ns=_gaps(run, graph, places, held_by, edges),
        from_ns=to_ns - work,
        to_ns=to_ns,
    )


def _chains(run: Run, graph: Graph) -> _Chains:
    table, rows, edges = run.table, graph.rows, graph.edges
    count = len(rows)
    order = stable_order(numbered((table.gpu[rows], table.stream[rows])))
    at = np.empty(count, np.intp)
    at[order] = np.arange(count)
    previous = edges.in_stream
    shared = counts_of(graph.task, count)[graph.task] > 1
    plain = (np.diff(edges.first) == 1) & (previous >= 0) & ~shared
    plain &= at[previous] == at - 1
    junction = np.maximum.accumulate(np.where(plain[order], 0, np.arange(count)))
    return _Chains(order, at, junction, np.cumsum(graph.work_ns[order]))


def _distances(graph: Graph, chains: _Chains) -> tuple[Int64, dict[int, int]]:
    """The work up to the end of each junction, by its place in the chains, and the edge by which
    the longest path comes to each task that has one."""
    edges, work = graph.edges, graph.work_ns
    stands = np.flatnonzero(chains.junction == np.arange(len(graph.rows)))
    heads = chains.order[stands]
    number = np.full(len(graph.rows), -1, np.intp)
    number[stands] = np.arange(len(stands))
    tasks, task_of = ranked(graph.task[heads])
    after = edges.after
    chosen = np.flatnonzero(number[chains.at[after]] >= 0)
    source = number[chains.junction[chains.at[edges.before[chosen]]]]
    target = task_of[number[chains.at[after[chosen]]]]
    members = stable_order(task_of).tolist()
    first = np.searchsorted(np.sort(task_of), np.arange(len(tasks) + 1)).tolist()
    by_source = stable_order(source)
    leaving = np.searchsorted(source[by_source], np.arange(len(heads) + 1)).tolist()
    # Work of the host leads to activities, where the trace has it.
    host = np.zeros(len(chosen), np.int64) if edges.host_ns is None else edges.host_ns[chosen]
    led = np.zeros(len(tasks), np.int64)
    if edges.lead_ns is not None:
        led = maxima_of(edges.lead_ns[heads], task_of, len(tasks))
    offset = (chains.offset(edges.before[chosen].astype(np.intp)) + host)[by_source].tolist()
    target_of, edge = target[by_source].tolist(), chosen[by_source].tolist()
    open_edges = counts_of(target, len(tasks)).tolist()
    reached = led.tolist()
    best: dict[int, int] = {}
    own = work[heads].tolist()
    distance = [0] * len(heads)
    ready = deque(task for task, count in enumerate(open_edges) if not count)
    while ready:
        task = ready.popleft()
        for member in members[first[task] : first[task + 1]]:
            distance[member] = ended = reached[task] + own[member]
            for k in range(leaving[member], leaving[member + 1]):
                to, length = target_of[k], ended + offset[k]
                open_edges[to] -= 1
                if length > reached[to] or (to not in best and length == reached[to]):
                    reached[to], best[to] = length, edge[k]
                if not open_edges[to]:
                    ready.append(to)
    found = np.zeros(len(graph.rows), np.int64)
    found[stands] = distance
    return found, {int(tasks[task]): edge for task, edge in best.items()}


def _walked(graph: Graph, chains: _Chains, best: dict[int, int], last: int) -> tuple[Index, Index]:
    """The places from the first to the last, and the edge by which each is reached, or -1."""
    places, edges = [], []
    while True:
        stands = int(chains.at[last])
        begin = int(chains.junction[stands])
        own = chains.order[begin : stands + 1]
        edge = best.get(int(graph.task[own[0]]), -1)
        # The first edge of a row is that from the row before it in its stream.
        places.append(own)
        edges.append(np.concatenate([[edge], graph.edges.first[own[1:]]]))
        if edge < 0:
            break
        last = int(graph.edges.before[edge])
    return np.concatenate(places[::-1]), np.concatenate(edges[::-1]).astype(np.intp)


def _gaps(run: Run, graph: Graph, places: Index, held_by: Index, edges: Index) -> Int64:
    """The time before each activity of a path, by cause: GAPS x activities."""
    begin, table = graph.begin_ns[places], run.table
    ended = np.append(begin[:1], graph.end_ns[places[:-1]])
    arrived = np.maximum(table.start_ns[graph.rows[held_by]], ended)
    arrived[:1] = begin[:1]
    launch = table.launch_ns[graph.rows[held_by]]
    own = arrived - ended
    is_known = launch != NO_TIME
    late = np.where(is_known, np.clip(launch - ended, 0, own), 0)
    is_late = late > 0
    latency, queued = np.where(is_late, own - late, 0), np.where(is_known & ~is_late, own, 0)
    host, lead = graph.edges.host_ns, graph.edges.lead_ns
    if host is not None and lead is not None:
        # The trace has the host's work itself, also that before the first activity.
        led = np.where(edges >= 0, np.append(host, 0)[edges], lead[held_by])
        late = np.where(is_known, late, np.minimum(led, own))
        late[:1] = led[:1]
    unknown = np.where(is_known, 0, np.maximum(own - late, 0))
    return np.stack([late, latency, queued, begin - arrived, unknown])
