"""The longest path through a step graph, what is on it, and how much could run at a time.

The path ends with the last activity of a scope. Each of its nodes begins when the one before it on
the path has ended, with the lag of the edge, so that works and lags add up to the time from the
first to the last. It crosses GPUs where a collective waits for its last member.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.graph.dependencies import Evidence
from chopper_core.graph.step_graph import NodeKind, Replayed, StepGraph, replay
from chopper_core.util.arrays import Index, Int64

GAPS: Final = ("host", "latency", "dispatch")
"""What is on the path between two of its activities: the host's work, the latency of a launch, and
the time until a queue starts its next activity."""
_GAP_OF: Final = {
    Evidence.STATED: "host",
    Evidence.CONTROL: "host",
    Evidence.BLOCKED: "host",
    Evidence.FOLLOWED: "host",
    Evidence.SEQUENCE: "host",
    Evidence.LAUNCH: "latency",
}
_OF_EVIDENCE: Final = np.array(
    [GAPS.index(_GAP_OF.get(each, "dispatch")) for each in Evidence], np.intp
)


class LongestPath(Struct, frozen=True, eq=False, dict=True):
    """The nodes of a path in the order of time."""

    graph: StepGraph
    nodes: Index
    edges: Index
    """The edge by which the path comes to each node; -1 for the first."""

    @cached_property
    def _places(self) -> Index:
        return np.flatnonzero(self.graph.kind[self.nodes] == NodeKind.ACTIVITY)

    @property
    def activities(self) -> Index:
        """The nodes on it that are activities; the other arrays go along these."""
        return self.nodes[self._places]

    @property
    def rows(self) -> Index:
        return self.graph.row[self.activities].astype(np.intp)

    @property
    def work_ns(self) -> Int64:
        return self.graph.work_ns[self.activities]

    @cached_property
    def gap_ns(self) -> Int64:
        """GAPS x activities: the time on the path before each, since the one before it ended."""
        graph, count = self.graph, len(self._places)
        before = np.searchsorted(self._places, np.arange(len(self.nodes)), "left")
        found = np.zeros((len(GAPS), count), np.int64)
        own = np.flatnonzero(graph.kind[self.nodes] != NodeKind.ACTIVITY)
        np.add.at(found[0], before[own], graph.work_ns[self.nodes[own]])
        led = np.flatnonzero(self.edges >= 0)
        cause = _OF_EVIDENCE[graph.evidence[self.edges[led]]]
        np.add.at(found, (cause, before[led]), graph.lag_ns[self.edges[led]])
        return found

    @property
    def evidence(self) -> Int64:
        """`Evidence` of the edge by which the path comes to each activity, or to the member of its
        collective that arrives last; -1 for one that begins the path."""
        evidence = np.append(self.graph.evidence.astype(np.int64), -1)[self.edges]
        shown = np.where(evidence == Evidence.MEETING, -1, np.arange(len(evidence)))
        last = np.maximum.accumulate(shown)[self._places]
        return evidence[np.maximum(last, 0)]


def longest_path(graph: StepGraph, replayed: Replayed, among: Index) -> LongestPath:
    """The path to the last end of some nodes of a replayed graph."""
    end = replayed.end_ns
    leads = end[graph.source] + graph.lag_ns == replayed.begin_ns[graph.target]
    chosen = np.flatnonzero(leads)[::-1]
    best = np.full(len(graph), -1, np.int64)
    # Of several edges the first one counts: order in the stream before others.
    best[graph.target[chosen]] = chosen
    source = np.where(best >= 0, np.append(graph.source, np.int32(-1))[best], -1).tolist()
    node = int(among[end[among].argmax()])
    nodes = []
    while node >= 0:
        nodes.append(node)
        node = source[node]
    along = np.array(nodes[::-1], np.intp)
    return LongestPath(graph, along, best[along].astype(np.intp))


def work_alone(graph: StepGraph) -> Replayed:
    """The activities one after another along what they wait for, without any time between.

    Work of the host counts where the trace itself states it between activities.
    """
    is_stated = np.isin(graph.evidence, (Evidence.STATED, Evidence.CONTROL))
    is_work = graph.kind == NodeKind.ACTIVITY
    if is_stated.any():
        is_work |= graph.kind == NodeKind.HOST
    work, lag = np.where(is_work, graph.work_ns, 0), np.where(is_stated, graph.lag_ns, 0)
    return replay(graph, work, lag, np.zeros(len(graph), np.int64))
