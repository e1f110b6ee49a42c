"""Waits between streams, and of calls for streams, as the trace states them.

A stream that waits for an event runs what is launched to it from then on after what was launched to
the event's stream until the event was recorded. That is one edge: from the last activity launched
to the one stream to the first launched to the other. What the first stream itself waited for since
its last activity, the second waits for too. The activities of a graph are one launch: all of them
wait, and all of them are waited for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct, field

from chopper_core.graph.dependencies import STAMP_NS, Evidence
from chopper_core.graph.host_nodes import TimedRows
from chopper_core.graph.step_graph import EdgeRows
from chopper_core.model.side_table import NO_STREAM, GraphEdges, StreamWaits, WaitKind
from chopper_core.model.table import NO_TIME
from chopper_core.util.arrays import Index, Mask
from chopper_core.util.grouping import isin, places_by, stable_order

_Sources = dict[int, int]
"""Stream → the place of the last activity of it that is waited for."""
_BEFORE_ALL: Final = np.iinfo(np.int64).min


class StatedWaits(Struct, frozen=True, eq=False):
    """What is stated of some rows."""

    edges: EdgeRows
    """Between streams."""
    is_open: Mask
    """Rows of which the trace doesn't state what other streams they wait for."""
    of_calls: Mapping[tuple[int, int], list[int]]
    """GPU and begin of a call that waits → the places of the activities that it waits for."""
    has_graph: Mask
    """Rows of launches whose edges between activities are stated."""
    contradicted: int = 0
    """Stated waits for activities that end after what waits for them has started."""


class _Pending(Struct):
    """What a stream waits for since its last activity."""

    times: list[int] = field(default_factory=list)
    sources: list[_Sources] = field(default_factory=list)
    """At each of the times."""
    is_known: list[bool] = field(default_factory=list)


def graph_pairs(edges: GraphEdges, timed: TimedRows) -> set[tuple[int, int]]:
    """The places of some rows between which a trace states edges of graphs."""
    if not len(edges.gpu):
        return set()
    place = {
        key: at
        for at, key in enumerate(
            zip(timed.gpu.tolist(), timed.stream.tolist(), timed.start.tolist(), strict=True)
        )
    }
    columns = (edges.gpu, edges.stream, edges.start_ns, edges.before, edges.before_ns)
    pairs = set()
    for gpu, stream, start, before, before_ns in zip(
        *(each.tolist() for each in columns), strict=True
    ):
        target, source = place.get((gpu, stream, start)), place.get((gpu, before, before_ns))
        if source is not None and target is not None and source < target:
            pairs.add((source, target))
    return pairs


def stated_waits(waits: StreamWaits, edges: GraphEdges, timed: TimedRows) -> StatedWaits:
    """What a run's trace states of some rows, in `time_order`.

    A GPU without any wait of a stream whose awaited event is known states nothing; one with
    barriers states those of what waits at them.
    """
    pairs: set[tuple[int, int]] = set()
    of_calls: dict[tuple[int, int], list[int]] = {}
    is_open = np.ones(len(timed.rows), np.bool_)
    for gpu, mine in places_by(timed.gpu).items():
        own = waits.of_gpu(gpu)
        if own.stop > own.start:
            of_gpu = _OfGpu(timed, mine)
            of_gpu.add(waits, own)
            pairs |= of_gpu.pairs
            of_calls |= {(gpu, time): places for time, places in of_gpu.of_calls.items()}
            is_stated = (waits.kind[own] == WaitKind.STREAM) & (waits.awaited[own] != NO_STREAM)
            is_open[mine if is_stated.any() else list(of_gpu.known)] = False
            is_open[list(of_gpu.unknown)] = True
    of_graphs = graph_pairs(edges, timed)
    is_own_graph = np.zeros(len(timed.rows), np.bool_)
    stated = timed.launch[[target for _, target in of_graphs]]
    is_own_graph[isin(timed.launch, stated) & (timed.launch != NO_TIME)] = True
    pairs |= of_graphs
    source, target = np.array(sorted(pairs), np.intp).reshape(-1, 2).T
    is_right = timed.end[source] <= timed.start[target] + STAMP_NS
    found = EdgeRows(
        source, target, np.full(len(source), Evidence.EVENT, np.int8), np.zeros_like(source)
    )
    contradicted = int(np.sum(~is_right))
    return StatedWaits(found.take(is_right), is_open, of_calls, is_own_graph, contradicted)


class _OfGpu:
    """The waits of one GPU, taken in the order of their time."""

    def __init__(self, timed: TimedRows, mine: Index) -> None:
        self.pairs: set[tuple[int, int]] = set()
        self.of_calls: dict[int, list[int]] = {}
        self.known: set[int] = set()
        """Activities of which all stated waits are known."""
        self.unknown: set[int] = set()
        """Activities that wait for what isn't stated."""
        self._stream = timed.stream
        self._lanes: dict[int, tuple[list[int], list[int]]] = {}
        """Stream → when its activities were launched, and their places, in that order."""
        for stream, own in places_by(timed.stream[mine]).items():
            lane = mine[own]
            lane = lane[stable_order(timed.queued[lane])]
            self._lanes[stream] = timed.queued[lane].tolist(), lane.tolist()
        self._pending: dict[int, _Pending] = {}
        self._launch = timed.launch
        self._launched = {
            launch: mine[own].tolist()
            for launch, own in places_by(timed.launch[mine]).items()
            if launch != NO_TIME and len(own) > 1
        }
        """Launches of several activities, those of graphs, with their places."""

    def add(self, waits: StreamWaits, own: slice) -> None:
        columns = (waits.kind, waits.stream, waits.time_ns, waits.awaited, waits.until_ns)
        rows = zip(*(each[own].tolist() for each in columns), strict=True)
        for kind, stream, time, awaited, until in rows:
            sources, is_known = self._sources(awaited, until)
            if kind != WaitKind.CALL:
                self._add_stream(stream, time, sources, is_known)
            elif is_known:
                self.of_calls[time] = sorted(sources.values())

    def _add_stream(self, stream: int, time: int, sources: _Sources, is_known: bool) -> None:
        launched, places = self._lanes.get(stream, ([], []))
        at = bisect_left(launched, time)
        pending = self._pending.setdefault(stream, _Pending())
        last = launched[at - 1] if at else _BEFORE_ALL
        if pending.times and pending.times[-1] > last:
            sources = _later(pending.sources[-1], sources)
            is_known = is_known and pending.is_known[-1]
        pending.times.append(time)
        pending.sources.append(sources)
        pending.is_known.append(is_known)
        if at == len(launched):
            return
        targets = self._of_launch(places[at], first=True)
        self.pairs |= {
            (source, target)
            for target in targets
            for waited_for, source in sources.items()
            if waited_for != self._stream[target] and source < target
        }
        (self.known if is_known else self.unknown).update(targets)

    def _sources(self, awaited: int, until: int) -> tuple[_Sources, bool]:
        """The last activities that a wait for a stream is for, and whether these are all."""
        if awaited == NO_STREAM:
            return {}, False
        launched, places = self._lanes.get(awaited, ([], []))
        at = bisect_right(launched, until)
        own = self._of_launch(places[at - 1], first=False) if at else []
        found, is_known = {int(self._stream[each]): each for each in own}, True
        pending = self._pending.get(awaited)
        before = bisect_right(pending.times, until) if pending else 0
        last = launched[at - 1] if at else _BEFORE_ALL
        if pending and before and pending.times[before - 1] > last:
            found = _later(pending.sources[before - 1], found)
            is_known = pending.is_known[before - 1]
        return found, is_known

    def _of_launch(self, place: int, *, first: bool) -> list[int]:
        """An activity; of a graph the first or the last of each of its streams."""
        every = self._launched.get(int(self._launch[place]), [place])
        by_stream = {int(self._stream[each]): each for each in (every[::-1] if first else every)}
        return list(by_stream.values())


def _later(one: _Sources, other: _Sources) -> _Sources:
    return {
        stream: max(one.get(stream, -1), other.get(stream, -1)) for stream in one.keys() | other
    }
