"""The step graph of a run: from its activities, launches, calls that block, and collectives."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.graph.collectives import collectives_of, transfer_pairs
from chopper_core.graph.dependencies import Evidence, dependencies, stated, time_order
from chopper_core.graph.host_nodes import (
    HostMoment,
    HostNodes,
    TimedRows,
    host_nodes,
    iterations_of,
    queue_times,
    with_lost_launches,
)
from chopper_core.graph.stated_waits import StatedWaits, stated_waits
from chopper_core.graph.step_graph import (
    EdgeRows,
    NodeKind,
    NodeRows,
    StepGraph,
    joined_edges,
    sorted_graph,
)
from chopper_core.graph.waits import inferred_waits
from chopper_core.model.run import Run
from chopper_core.model.side_table import GraphEdges, StreamWaits
from chopper_core.model.table import NO_LABEL, NO_TIME, Kind, activity_count, activity_rows
from chopper_core.util.arrays import Codes, Float64, Index, Int32, Int64
from chopper_core.util.grouping import (
    counts_of,
    distinct,
    first_equal,
    maxima_of,
    numbered_rows,
    run_starts,
    stable_order,
    sums_of,
)

_LONG_WAKE_NS: Final = 100_000
"""A call that returns later than this after what it waits for works in between."""
_UNSEEN_NS: Final = 200_000
"""A longer time from when an activity may begin to its start is a wait."""
_MIDDLE: Final = 4
"""A typical value is the mean without the lowest and the highest quarter."""


def step_graph(run: Run) -> StepGraph:
    """The graph of all activities of a run, made once."""
    return run.memo(("step graph",), lambda: build_graph(run, np.arange(len(run.table))))


def build_graph(run: Run, rows: Index) -> StepGraph:
    """The graph of some rows of a run, in any order, that have times.

    Of rows with others between them, the first after a gap begin as their host's work or the end
    of those before has them begin: what comes first is there for the sake of the next.
    """
    rows = activity_rows(run.table, rows)
    timed, edges, lead, waits = _timed(run, rows)
    hosts = host_nodes(run, timed, waits.of_calls)
    wakes, hosts = _wakes(hosts, timed)
    launched = hosts.launches(timed)
    edges = _with_lags(timed, edges) if lead is None else edges
    transfers = _transfers(run, timed)
    begin, member, number = _meetings(run, timed, transfers)
    count, arrivals = len(timed.rows), len(member)
    first = run_starts(number)
    met = begin[member[first]]
    enters = np.arange(count)
    enters[member] = count + np.arange(arrivals)
    nodes = _node_rows(run, timed, hosts, launched, begin, member, met)
    led = np.zeros(0, np.intp) if lead is None else np.flatnonzero(lead)
    leads = np.arange(len(led)) + len(nodes)
    if lead is not None:
        nodes = nodes.joined(_leads(nodes, timed, led, lead[led]))
    meeting = count + arrivals + number
    host = count + arrivals + len(met)
    known = np.flatnonzero(launched >= 0)
    latency = _latency(timed, edges, known)
    unseen = 0
    if lead is None:
        is_whole = len(timed.rows) == activity_count(run.table)
        iteration = None if is_whole else run.table.iteration[timed.rows]
        has_all = run.world <= len(run.ranks)
        edges, latency, unseen = _with_unseen_waits(
            timed, iteration, edges, known, latency, only_first=has_all
        )
    follows = np.flatnonzero(hosts.gpu[1:] == hosts.gpu[:-1]) + 1
    behind = np.maximum(hosts.time[hosts.follows] - timed.end[hosts.followed], 0)
    parts = (
        _between_gpus(run, timed),
        EdgeRows(edges.source, enters[edges.target], edges.evidence, edges.lag_ns),
        _edges(host + launched[known], enters[known], Evidence.LAUNCH, latency),
        _edges(host + follows - 1, host + follows, Evidence.SEQUENCE),
        _edges(hosts.awaited, host + hosts.returns, Evidence.BLOCKED, wakes),
        _edges(hosts.followed, host + hosts.follows, Evidence.FOLLOWED, behind),
        _buffered(timed, transfers, enters),
        _edges(enters[member], meeting, Evidence.MEETING),
        _edges(meeting, member, Evidence.MEETING),
        _edges(leads, enters[led], Evidence.LAUNCH),
    )
    # A node of the host stands for the moment at which its work ends.
    moment = np.append(nodes.begin_ns[:host], (nodes.begin_ns + nodes.work_ns)[host:])
    left = host + np.flatnonzero(
        (hosts.iteration != NO_LABEL) & (hosts.moment == HostMoment.STEP_END)
    )
    unlaunched = int(np.count_nonzero(launched < 0)) if lead is None else 0
    graph = sorted_graph(nodes, joined_edges(parts), moment, left, unlaunched)
    contradicted = graph.contradicted + waits.contradicted
    return replace(graph, unseen_ns=unseen, contradicted=contradicted)


def _leads(nodes: NodeRows, timed: TimedRows, led: Index, lead: Int64) -> NodeRows:
    """The hosts' work that a trace states before rows that wait for no activity."""
    begin = np.minimum(timed.start.min(), timed.start[led] - lead)
    kind = np.full(len(led), NodeKind.HOST, np.int8)
    nowhere = np.full(len(led), -1, np.int32)
    return NodeRows(kind, nowhere, timed.gpu[led], nodes.iteration[led], begin, lead)


def _edges(source: Index, target: Index, evidence: Evidence, lag: Int64 | None = None) -> EdgeRows:
    count = len(source)
    lags = np.zeros(count, np.int64) if lag is None else lag
    return EdgeRows(source, target, np.full(count, evidence, np.int8), lags)


def _between_gpus(run: Run, timed: TimedRows) -> EdgeRows:
    """The dependencies on activities of other GPUs that the run states."""
    found = stated(run, timed.rows)
    if found is None:
        return _edges(np.zeros(0, np.intp), np.zeros(0, np.intp), Evidence.STATED)
    edges = found[0].take(timed.gpu[found[0].source] != timed.gpu[found[0].target])
    return _edges(edges.source, edges.target, Evidence.STATED)


def _timed(run: Run, rows: Index) -> tuple[TimedRows, EdgeRows, Int64 | None, StatedWaits]:
    """The rows, the edges between them, where the trace states these the host's work before each
    row that waits for no activity, and the waits of streams and calls that it states.

    Of those that are inferred between streams, an activity waited only for what ended right before
    it started; one that was launched later than that waited for its host. Nothing is inferred
    where the waits of streams are stated, but between the activities of one launch: a graph's.
    """
    table = run.table
    rows = time_order(table, rows)
    found = stated(run, rows) if len(rows) else None
    edges = dependencies(table, rows) if found is None else _forward(found[0], table.gpu[rows])
    start, launch = table.start_ns[rows], table.launch_ns[rows]
    end = start + table.duration_ns[rows]
    in_stream = edges.take(edges.evidence == Evidence.STREAM)
    end[in_stream.source] = np.minimum(end[in_stream.source], start[in_stream.target])
    launch = np.where(launch > start, NO_TIME, launch)
    gpu, stream = table.gpu[rows], table.stream[rows]
    queued = queue_times(gpu, stream, start, launch)
    timed = TimedRows(rows, gpu, stream, table.kind[rows], start, end, launch, queued)
    timed = with_lost_launches(run, timed)
    said = stated_waits(run.side(StreamWaits), run.side(GraphEdges), timed)
    if found is not None:
        return timed, edges, found[1], said
    is_inferred = np.isin(edges.evidence, (Evidence.QUEUED, Evidence.UNKNOWN))
    waits = inferred_waits(table, timed, edges.take(is_inferred))
    kept = edges.take(~is_inferred & (edges.evidence != Evidence.HOST))
    launches = timed.launch[waits.source], timed.launch[waits.target]
    is_own_graph = (launches[0] == launches[1]) & (launches[0] != NO_TIME)
    is_stated = is_own_graph & said.has_graph[waits.target]
    waits = waits.take((said.is_open[waits.target] | is_own_graph) & ~is_stated)
    return timed, joined_edges([kept, waits, said.edges]), None, said


def shown_dependencies(run: Run, rows: Index) -> EdgeRows:
    """The dependencies among rows, which come in `time_order`, as `dependencies` has them; those
    between streams as the trace states them, where it does.
    """
    edges = dependencies(run.table, rows)
    if not len(run.side(StreamWaits)) and not len(run.side(GraphEdges)):
        return edges
    timed, _, _, said = _timed(run, rows)
    launches = timed.launch[edges.source], timed.launch[edges.target]
    is_own_graph = (launches[0] == launches[1]) & (launches[0] != NO_TIME)
    is_stated = np.where(is_own_graph, said.has_graph[edges.target], ~said.is_open[edges.target])
    kept = edges.take((edges.evidence == Evidence.STREAM) | ~is_stated)
    every = joined_edges([said.edges, kept])
    pairs = numbered_rows((every.source, every.target))
    is_first = first_equal(pairs, pairs) == np.arange(len(pairs))
    every = every.take(is_first)
    return every.take(np.lexsort((every.evidence, every.target)))


def _forward(edges: EdgeRows, gpu: Int32) -> EdgeRows:
    """Those that lead forward between rows of one GPU, in the order of their targets."""
    edges = edges.take((gpu[edges.source] == gpu[edges.target]) & (edges.source < edges.target))
    return edges.take(np.lexsort((edges.source, edges.target)))


def _transfers(run: Run, timed: TimedRows) -> Index:
    """The places of the rows of sends and receives that are one transfer, as pairs x 2."""
    found = collectives_of(run)
    if found is None:
        return np.zeros((0, 2), np.intp)
    pairs = _places_of(timed.rows, transfer_pairs(found))
    return pairs[(pairs >= 0).all(axis=1)]


def _buffered(timed: TimedRows, transfers: Index, enters: Index) -> EdgeRows:
    """The dependencies of receives on sends that ended before they began."""
    sent, received = transfers[timed.end[transfers[:, 0]] < timed.start[transfers[:, 1]]].T
    return _edges(sent, enters[received], Evidence.REPEATED)


def _places_of(rows: Index, others: Index) -> Index:
    """The place of each of some other rows among the rows; -1: it is none of them."""
    order = stable_order(rows)
    place = order[np.searchsorted(rows[order], others).clip(max=len(rows) - 1)]
    return np.where(rows[place] == others, place, -1)


def _meetings(run: Run, timed: TimedRows, transfers: Index) -> tuple[Int64, Index, Index]:
    """When the work of each row begins; the places of members of collectives and transfers,
    meeting by meeting, and the number of each one's meeting."""
    begin = timed.start.copy()
    found = collectives_of(run)
    if found is None:
        return begin, np.zeros(0, np.intp), np.zeros(0, np.intp)
    place = np.append(_places_of(timed.rows, found.rows), transfers)
    sets = np.append(found.member_set, np.repeat(len(found) + np.arange(len(transfers)), 2))
    met = np.append(found.last_start_ns, timed.start[transfers].max(axis=1, initial=0))
    last = met[sets]
    # One that ended before the last arrived did not wait for it.
    waits = (place >= 0) & np.append(found.complete, np.ones(len(transfers), np.bool_))[sets]
    waits &= timed.end[place] >= last
    begin[place[waits]] = last[waits]
    sets = sets[waits]
    return begin, place[waits], np.searchsorted(distinct(sets), sets)


def _node_rows(
    run: Run,
    timed: TimedRows,
    hosts: HostNodes,
    launched: Index,
    begin: Int64,
    member: Index,
    met: Int64,
) -> NodeRows:
    """Activities, arrivals, meetings and moments of the hosts."""
    iteration = run.table.iteration[timed.rows]
    count = len(timed.rows), len(member), len(met), len(hosts)
    kinds = [NodeKind.ACTIVITY, NodeKind.ARRIVAL, NodeKind.MEETING, NodeKind.HOST]
    kind = np.repeat(np.array(kinds, np.int8), count)
    kind[sum(count[:3]) :][hosts.moment == HostMoment.RETURN] = NodeKind.RETURN
    nowhere, of_host = np.full(count[2], -1, np.int32), np.full(count[3], -1, np.int32)
    rows, none = timed.rows.astype(np.int32), np.zeros(count[1] + count[2], np.int64)
    host_iteration = iterations_of(hosts, launched, iteration)
    host_begin = hosts.begin
    return NodeRows(
        kind=kind,
        row=np.concatenate([rows, rows[member], nowhere, of_host]),
        gpu=np.concatenate([timed.gpu, timed.gpu[member], nowhere, hosts.gpu]),
        iteration=np.concatenate([iteration, iteration[member], nowhere, host_iteration]),
        begin_ns=np.concatenate([begin, timed.start[member], met, host_begin]),
        work_ns=np.concatenate([timed.end - begin, none, hosts.time - host_begin]),
    )


def _typical(values: Int64, owner: Codes, count: int) -> Float64:
    """The mean of the middle half of each group; that of the least group for an empty one."""
    order = np.lexsort((values, owner))
    of, size = owner[order], counts_of(owner, count)
    number = np.arange(len(order)) - np.repeat(np.cumsum(size) - size, size)
    cut = size // _MIDDLE
    inner = (number >= cut[of]) & (number < (size - cut)[of])
    total = sums_of(values[order][inner].astype(np.float64), of[inner], count)
    found = total / np.maximum(size - 2 * cut, 1)
    return np.where(size > 0, found, found[size > 0].min(initial=np.inf) if size.any() else 0.0)


def _typical_lag(lag_ns: Int64, kind: Codes) -> Float64:
    """The typical lag of each kind of activity: those that start far later wait for something that
    no edge shows, unless all do."""
    is_short = lag_ns <= _UNSEEN_NS
    own = is_short if is_short.any() else ~is_short
    return _typical(lag_ns[own], kind[own], len(Kind))


def _ready(timed: TimedRows, edges: EdgeRows) -> Int64:
    """The last end of what each row waits for; NO_TIME for nothing."""
    return maxima_of(timed.end[edges.source], edges.target, len(timed.rows), NO_TIME)


def _latency(timed: TimedRows, edges: EdgeRows, launched: Index) -> Int64:
    """The typical time from the launch to the start of some rows, by their kind: that of rows
    that had nothing else to wait for."""
    free = launched[_ready(timed, edges)[launched] <= timed.launch[launched]]
    found = _typical_lag(timed.start[free] - timed.launch[free], timed.kind[free])
    return np.rint(found[timed.kind[launched]]).astype(np.int64)


def _with_lags(timed: TimedRows, edges: EdgeRows) -> EdgeRows:
    """Edges between activities with their typical lags, by kind, in and between streams: those of
    rows that were launched before what they waited for ended."""
    ended, after = timed.end[edges.source], edges.target
    binding = (timed.launch[after] != NO_TIME) & (timed.launch[after] <= ended)
    binding &= ended == _ready(timed, edges)[after]
    gap = np.maximum(timed.start[after] - ended, 0)
    lag = np.zeros(len(after), np.int64)
    is_stream = edges.evidence == Evidence.STREAM
    for same in (is_stream, ~is_stream):
        chosen = np.flatnonzero(binding & same)
        found = _typical_lag(gap[chosen], timed.kind[after[chosen]])
        lag[same] = np.rint(found[timed.kind[after[same]]]).astype(np.int64)
    return EdgeRows(edges.source, after, edges.evidence, lag)


def _with_unseen_waits(
    timed: TimedRows,
    iteration: Int32 | None,
    edges: EdgeRows,
    launched: Index,
    latency: Int64,
    *,
    only_first: bool,
) -> tuple[EdgeRows, Int64, int]:
    """The edges and latencies of launches with the waits that nothing in the run explains, and
    their sum: without all ranks a trace doesn't show what its GPU waits for. With all of them that
    is so for the first activity of a stream only: what ran there before may be in no trace.

    Steps that are left out, by the step of each row, are no wait.
    """
    ready = maxima_of(
        timed.end[edges.source] + edges.lag_ns, edges.target, len(timed.rows), NO_TIME
    )
    ready[launched] = np.maximum(ready[launched], timed.launch[launched] + latency)
    is_late = (ready != NO_TIME) & (timed.start - np.maximum(ready, 0) > _UNSEEN_NS)
    if iteration is not None:
        since, until = iteration[edges.source], iteration[edges.target]
        is_late[edges.target[(since != NO_LABEL) & (until > since + 1)]] = False
    own = is_late[edges.target] & (edges.evidence == Evidence.STREAM)
    gap = timed.start[edges.target] - timed.end[edges.source]
    follows = np.zeros(len(ready), np.bool_)
    follows[edges.target[own]] = True
    alone = (is_late & ~follows)[launched]
    latency = np.where(alone, (timed.start - timed.launch)[launched], latency)
    if only_first:
        own[:], is_late = False, is_late & ~follows
    waits = int((timed.start - ready)[is_late].sum())
    return replace(edges, lag_ns=np.where(own, gap, edges.lag_ns)), latency, waits


def _wakes(hosts: HostNodes, timed: TimedRows) -> tuple[Int64, HostNodes]:
    """The typical time from the end of what a call waits for to its return, by its name; and the
    hosts with the work of calls that return far later, such as those that free memory."""
    returns, ended = hosts.returns, timed.end[hosts.awaited]
    latest = maxima_of(ended, returns, len(hosts), NO_TIME)
    held = np.flatnonzero(hosts.waited[returns] & (ended == latest[returns]))
    names = hosts.name[returns]
    wake = np.maximum(hosts.time[returns[held]] - ended[held], 0)
    short = np.minimum(wake, _LONG_WAKE_NS)
    found = np.rint(_typical(short, names[held], int(names.max(initial=0)) + 1)).astype(np.int64)
    works = held[wake > _LONG_WAKE_NS]
    begin = hosts.begin.copy()
    begin[returns[works]] = ended[works] + found[names[works]]
    return found[names], replace(hosts, begin=begin)
