"""Attributes and dependencies of the activities of a Chakra graph.

Attributes that labels, times and figures come from entirely are left out. Dependencies lead from
activity to activity; those that lead through host nodes become one, with the host's work on the
way. Of very many behind one host node only the last of each stream is kept: a stream runs its
activities in order.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import numpy as np

from chopper_core.extensions.chakra.graph import Edges, ExecutionGraph, followers_of
from chopper_core.extensions.chakra.schema import NODE_TYPE, NodeType
from chopper_core.model.attributes import (
    NO_NODE,
    Attributes,
    StatedEdges,
    TypedValue,
    attribute_table,
)
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.grouping import counts_of, stable_order

READ: Final = frozenset(
    (
        "is_cpu_op", "stream", "tid", "ts_ns", "dur_ns", "launch_ns", "iteration", "layer", "phase",
        "op", "category", "kind", "bytes", "group", "rules", "comm_type", "pg_name",
    )
)  # fmt: skip
"""Attributes that the kernel table has columns for."""
USED: Final = READ | {"comm_size", "num_ops", "num_ops_type", "fw_tid"}
"""Attributes that labels, times and figures come from."""
KEPT: Final = "kept_attributes"
"""In the metadata of Chopper's own files: the names of attributes that the run kept of a trace."""
STATED: Final = "dependencies_ns"
"""The attribute of Chopper's own files with an activity's dependencies: the host's work before it,
and for each dependency its id and the host's work on the way; in ns."""
CONTROL: Final = "control"
SHOWN_TYPES: Final = (
    NodeType.MEM_LOAD,
    NodeType.MEM_STORE,
    NodeType.COMM_SEND,
    NodeType.COMM_RECV,
)
_MAX_BEHIND: Final = 64
"""Activities behind a host node that are all kept."""
_NOTHING: Final[dict[int, int]] = {}
RANK_OF: Final = {"comm_src": "comm_src_rank", "comm_dst": "comm_dst_rank"}
"""Peers as numbers of files, and as the run's ranks where these differ."""


def attributes_of(graph: ExecutionGraph, rows: Index, *, is_own: bool) -> Attributes:
    """The attributes of the activities, whose nodes are their places in the file."""
    kept = graph.metadata.get(KEPT, []) if is_own else None
    names = set(kept) if isinstance(kept, list) else {*graph.attributes} - READ
    found: dict[int, dict[str, TypedValue]] = {int(row): {} for row in rows.tolist()}
    for name, column in graph.attributes.items():
        if name not in names:
            continue
        for at, node in enumerate(column.nodes.tolist()):
            if node in found:
                kind = column.type_of(at)
                found[node][name] = (kind, column.values[at] if kind else None)
    for name, stated in RANK_OF.items():
        ranks = graph.attributes.get(stated) if is_own else None
        if ranks is not None:
            for node, value in zip(ranks.nodes.tolist(), ranks.values, strict=True):
                if node in found and _is_time(value):
                    found[node][name] = ("int32", value)
    for node_type in SHOWN_TYPES:
        for node in rows[graph.type[rows] == node_type].tolist():
            found[node][NODE_TYPE] = ("string", node_type.name)
    return attribute_table((0, node, attributes) for node, attributes in found.items())


def stated_edges(
    graph: ExecutionGraph, rows: Index, lane: Int64, start_ns: Int64, *, is_own: bool
) -> StatedEdges | None:
    """The dependencies of the activities; None where the file is Chopper's own of a run without."""
    if is_own:
        return _restored(graph) if STATED in graph.attributes else None
    found: list[tuple[int, int, int, int]] = []
    reached = _Reached(graph, rows, lane, start_ns)
    controls = _controls(graph)
    for row in rows.tolist():
        edges, lead = reached.before(row)
        control = [] if controls is None else controls.of(row)
        if lead or not (edges or control):
            found.append((row, NO_NODE, lead, 0))
        found += [(row, before, host_ns, 0) for before, host_ns in edges.items()]
        found += [(row, before, 0, 1) for before in control]
    return _table(found)


def _controls(graph: ExecutionGraph) -> Edges | None:
    """The control dependencies, in a file without host nodes: else they lead to callers."""
    return None if graph.is_host.any() else graph.control


def needs_of(graph: ExecutionGraph) -> Edges:
    """The dependencies that a schedule obeys."""
    controls = _controls(graph)
    if controls is None or not len(controls.to):
        return graph.data
    counts = np.diff(graph.data.first) + np.diff(controls.first)
    after = np.concatenate(
        [np.repeat(np.arange(len(graph)), np.diff(each.first)) for each in (graph.data, controls)]
    )
    to = np.concatenate([graph.data.to, controls.to])
    return Edges(
        np.concatenate([[0], np.cumsum(counts)]),
        to[stable_order(after)],
        graph.data.dangling,
    )


def _restored(graph: ExecutionGraph) -> StatedEdges:
    """The dependencies that a file of Chopper's own states."""
    place = {number: at for at, number in enumerate(graph.ids)}
    found: list[tuple[int, int, int, int]] = []
    column = graph.attributes[STATED]
    for row, value in zip(column.nodes.tolist(), column.values, strict=True):
        numbers = value if isinstance(value, list) and all(map(_is_time, value)) else []
        pairs = list(zip(numbers[1::2], numbers[2::2], strict=False))
        control = set(graph.control.of(row))
        if numbers and (numbers[0] or not pairs):
            found.append((row, NO_NODE, numbers[0], 0))
        for number, host_ns in pairs:
            if (before := place.get(number)) is not None:
                found.append((row, before, host_ns, int(before in control)))
    return _table(found)


def _is_time(value: object) -> bool:
    """Whether a value is a number as Chopper writes ids, ranks and times."""
    return type(value) is int and 0 <= value < 2**62


def _table(found: list[tuple[int, int, int, int]]) -> StatedEdges:
    columns = np.array(sorted(found), np.int64).reshape(-1, 4).T
    return StatedEdges(
        (),
        gpu=np.zeros(len(columns[0]), np.int32),
        node=columns[0],
        before=columns[1],
        host_ns=columns[2],
        is_control=columns[3].astype(np.int8),
    )


class _Reached:
    """For each host node the activities that it waits for, and the host's work since."""

    def __init__(self, graph: ExecutionGraph, rows: Index, lane: Int64, start_ns: Int64) -> None:
        self._needs = graph.data
        self._is_activity = np.zeros(len(graph), np.bool_)
        self._is_activity[rows] = True
        self._lane: list[int] = lane.tolist()
        self._start: list[int] = start_ns.tolist()
        self._last: list[int] = (graph.duration_us * 1_000).tolist()
        self._lead = [0] * len(graph)
        self._behind: list[dict[int, int]] = [_NOTHING] * len(graph)
        """Of host nodes: activity → the host's work since, without their own."""
        self._follow()

    def before(self, node: int) -> tuple[dict[int, int], int]:
        """The activities that a node waits for with the host's work since, and its work before."""
        found: dict[int, int] = {}
        lead = 0
        for need in self._needs.of(node):
            if self._is_activity[need]:
                found.setdefault(need, 0)
                continue
            own = self._last[need]
            lead = max(lead, self._lead[need] + own)
            for before, host_ns in self._behind[need].items():
                found[before] = max(found.get(before, 0), host_ns + own)
        return found, lead

    def _latest(self, found: dict[int, int]) -> dict[int, int]:
        """Of many activities the last of each stream, which end after the others."""
        last: dict[int, int] = {}
        for before in sorted(found, key=lambda each: (self._start[each], each)):
            last[self._lane[before]] = before
        return {before: found[before] for before in last.values()}

    def _follow(self) -> None:
        """Go through the host nodes in the order of their dependencies; those of a cycle, which
        only a file with times may have, wait for nothing."""
        needs, count = self._needs, len(self._last)
        host = np.flatnonzero(~self._is_activity)
        after = np.repeat(np.arange(count), np.diff(needs.first))
        between = ~self._is_activity[after] & ~self._is_activity[needs.to]
        followers = followers_of(after[between], needs.to[between], count)
        waits: Any = counts_of(after[between], count).tolist()
        ready = deque(node for node in host.tolist() if not waits[node])
        while ready:
            node = ready.popleft()
            found, self._lead[node] = self.before(node)
            self._behind[node] = self._latest(found) if len(found) > _MAX_BEHIND else found
            for follower in followers(node):
                waits[follower] -= 1
                if not waits[follower]:
                    ready.append(follower)
