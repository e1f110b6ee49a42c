"""Arrows between the nodes of a replayed graph: what each of its activities waits for."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np

from chopper_core.model.side_table import GraphEdges, empty
from chopper_core.sources.trace import Trace
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.grouping import first_equal

_LANES: Final = 1_000_000
"""Kineto adds this to the stream in the lanes of synchronizations."""

_Node = int
"""The row of an activity; below 0 a node that is none."""


def arrow_pairs(trace: Trace) -> Index:
    """Pairs of rows of activities, the one that waits second; n x 2.

    An arrow starts as one node ends and ends as another begins, on their devices and lanes. Of
    several activities of a device at that moment, that drawn in the lane counts, or on a stream of
    its number;
    an arrow that leads to none of them is left out. Nodes that are no activities hand on what they
    wait for.
    """
    arrows, activities = trace.arrows, trace.activities
    if not len(arrows):
        return np.zeros((0, 2), np.intp)
    ends_ns = activities.start_ns + activities.duration_ns
    own = np.flatnonzero(activities.graph_node > 0)
    drawn = trace.figures.get("logical_lane", np.full(len(activities), np.nan))
    lanes = np.where(np.isfinite(drawn), np.nan_to_num(drawn), activities.stream).astype(np.int64)
    # Activity or node by device and moment: at its end where an arrow starts, else at its begin.
    at: dict[tuple[bool, int, int], list[tuple[_Node, int]]] = defaultdict(list)
    for is_start, times in ((True, ends_ns), (False, activities.start_ns)):
        columns = (own, activities.device[own], times[own], lanes[own])
        rows = zip(*(each.tolist() for each in columns), strict=True)
        for row, device, time, stream in rows:
            at[is_start, device, time].append((row, stream))
    of_arrows = (arrows.id, arrows.is_start, arrows.device, arrows.time_ns, arrows.lane)
    given = [*zip(*(each.tolist() for each in of_arrows), strict=True)]
    for number, is_start, device, time, lane in given:
        if number < 0:
            at[is_start, device, time].append((number, lane))
    ends: dict[int, dict[bool, _Node]] = defaultdict(dict)
    for number, is_start, device, time, lane in given:
        found = at.get((is_start, device, time), []) if number >= 0 else []
        if len(found) > 1:
            found = [each for each in found if each[1] % _LANES == lane % _LANES]
        if len(found) == 1:
            ends[number][is_start] = found[0][0]
    before: dict[_Node, set[_Node]] = defaultdict(set)
    for both in ends.values():
        if len(both) == 2:
            before[both[False]].add(both[True])
    pairs = [
        (source, row) for row in before if row >= 0 for source in _activities_before(before, row)
    ]
    return np.array(sorted(pairs), np.intp).reshape(-1, 2)


def _activities_before(before: dict[_Node, set[_Node]], node: _Node) -> set[int]:
    """The activities that a node waits for, through nodes that are none."""
    found, seen, left = set[int](), {node}, [*before[node]]
    while left:
        one = left.pop()
        if one >= 0:
            found.add(one)
        elif one not in seen:
            seen.add(one)
            left += before.get(one, ())
    return found


def graph_edges(trace: Trace, pairs: Index, devices: Int64) -> GraphEdges:
    """The pairs as edges of a run; on one GPU each."""
    activities = trace.activities
    source, target = pairs.T
    same = activities.device[source] == activities.device[target]
    source, target = source[same], target[same]
    if not len(source):
        return empty(GraphEdges)
    gpu = first_equal(devices, activities.device[target].astype(np.int64))
    order = np.lexsort((activities.start_ns[target], gpu))
    source, target = source[order], target[order]
    return GraphEdges(
        (),
        gpu=gpu[order].astype(np.int32),
        stream=activities.stream[target].astype(np.int64),
        start_ns=activities.start_ns[target],
        before=activities.stream[source].astype(np.int64),
        before_ns=activities.start_ns[source],
    )
