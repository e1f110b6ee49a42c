"""A Chakra graph as columns: nodes in the order of the file, dependencies resolved to places.

Every attribute is kept with its type, whether or not anything here reads it.

Attributes that labels, times and figures come from entirely are left out of the run. Dependencies
lead from activity to activity; those that lead through host nodes become one, with the host's work
on the way. Of very many behind one host node only the last of each stream is kept: a stream runs
its activities in order.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import Struct

from chopper_core.extensions.chakra.schema import NODE_TYPE, Attribute, Node, NodeType, Value
from chopper_core.model.attributes import (
    NO_NODE,
    Attributes,
    StatedEdges,
    TypedValue,
    attribute_table,
)
from chopper_core.tables.columns import NameInterner
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.util.arrays import Index, Int8, Int32, Int64, Mask
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import stable_order

_GROUPS: Final = "process_group:init"
IO_SIDES: Final = ("inputs.", "outputs.")
"""The prefixes of a node's inputs and outputs among its attributes: `inputs.shapes`."""
_LONG_CYCLE: Final = 5
_INT64: Final = range(-(2**63), 2**63)
_MOST_DIGITS: Final = 20


class AttributeColumn(Struct, frozen=True):
    """The values of one attribute."""

    types: list[str]
    """The schema's name of the type of each value, '' in JSON."""
    nodes: array[int]
    """Places of the nodes that have it, rising."""
    values: list[Value]


class Edges(Struct, frozen=True):
    """Dependencies of one kind: those of node n are `to[first[n]:first[n + 1]]`, as places."""

    first: Index
    to: Index
    """Places of nodes; dangling ones are left out."""
    dangling: int
    """Dependencies on ids that the file lacks."""

    def of(self, node: int) -> list[int]:
        found: list[int] = self.to[self.first[node] : self.first[node + 1]].tolist()
        return found


def cycle_of(needs: Mapping[int, Iterable[int]], ids: Sequence[int]) -> str:
    """A cycle among nodes that wait for others, by their ids; '' without one."""
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        path = [str(ids[each]) for each in error.args[1][::-1]]
        return " waits for ".join(path if len(path) <= _LONG_CYCLE else [*path[:4], "…", path[0]])
    return ""


class ExecutionGraph(Struct, frozen=True):
    """The nodes of one file."""

    path: Path
    size_bytes: int
    format: str
    version: str
    metadata: Mapping[str, Value]
    names: Sequence[str]
    ids: Sequence[int]
    name: Int32
    type: Int8
    start_us: Int64
    duration_us: Int64
    data: Edges
    control: Edges
    attributes: Mapping[str, AttributeColumn]
    process_groups: Sequence[str]
    """The inputs of nodes that list process groups, as the file spells them."""
    losses: Losses
    states_dependencies: bool = True
    """False of a file that has none between activities, so that they come from the times."""
    unknown: Mapping[int, Sequence[str]] = {}
    """Types that the schema known here lacks → names of their nodes, which are INVALID here."""

    def __len__(self) -> int:
        return len(self.ids)

    def numbers(self, name: str, missing: int = ABSENT) -> Int64:
        """An attribute of all nodes as integers; `missing` where a node lacks it."""
        found = np.full(len(self), missing, np.int64)
        if column := self.attributes.get(name):
            for node, value in zip(column.nodes, column.values, strict=True):
                if isinstance(value, str) and value.isdecimal() and len(value) <= _MOST_DIGITS:
                    value = int(value)
                if isinstance(value, int) and value in _INT64:
                    found[node] = value
        return found

    def texts(self, name: str) -> list[str]:
        found = [""] * len(self)
        if column := self.attributes.get(name):
            for node, value in zip(column.nodes, column.values, strict=True):
                found[node] = value if isinstance(value, str) else str(value)
        return found

    @property
    def is_host(self) -> Mask:
        """Which nodes ran on the CPU; without `is_cpu_op` a node ran on the GPU."""
        return np.equal(self.numbers("is_cpu_op", 0), 1)

    @property
    def is_gpu(self) -> Mask:
        return ~self.is_host & (self.type > NodeType.METADATA)


def _io_attributes(node: Node) -> Iterator[tuple[str, Attribute]]:
    """The inputs and outputs of an activity; those of host nodes are never used."""
    if (node.inputs or node.outputs) and not node.get("is_cpu_op"):
        for side, io in zip(IO_SIDES, (node.inputs, node.outputs), strict=True):
            for part, text in io.items():
                if text:
                    yield f"{side}{part}", Attribute("string", text)


class GraphBuilder:
    """Collects nodes one by one."""

    def __init__(
        self, path: Path, format_name: str, made: type[ExecutionGraph] = ExecutionGraph
    ) -> None:
        self._made = made
        self._path = path
        self._format = format_name
        self._names: dict[str, int] = NameInterner()
        self._texts: dict[str, str] = {}
        self._ids = array("Q")
        self._columns = array("q")
        self._deps = {name: (array("q", (0,)), array("Q")) for name in ("data", "control")}
        self._attributes: dict[str, AttributeColumn] = {}
        self._groups: list[str] = []
        self._unknown: dict[int, list[str]] = {}
        self.losses = Losses()

    def add(self, node: Node) -> None:
        place = len(self._ids)
        if not (0 <= node.start_us < 2**52 and 0 <= node.duration_us < 2**52):
            raise DataError(
                f"{self._path} has a node ({node.id}) whose time is not a number of microseconds."
            )
        self._ids.append(node.id)
        if _GROUPS in node.name:
            self._groups.append(node.inputs.get("values", ""))
        kind = node.type
        if not NodeType.INVALID <= kind <= NodeType.COMM_COLL:
            self._unknown.setdefault(kind, []).append(node.name)
            kind = NodeType.INVALID
        self._columns.extend((self._names[node.name], kind, node.start_us, node.duration_us))
        for name, ids in (("data", node.data_deps), ("control", node.ctrl_deps)):
            first, to = self._deps[name]
            to.extend(ids)
            first.append(len(to))
        for name, attribute in (*node.attributes.items(), *_io_attributes(node)):
            value = attribute.value
            if isinstance(value, str):
                # Schemas of operators repeat on thousands of nodes.
                value = self._texts.setdefault(value, value)
            if name not in self._attributes:
                self._attributes[name] = AttributeColumn([], array("q"), [])
            column = self._attributes[name]
            column.types.append(attribute.type)
            column.nodes.append(place)
            column.values.append(value)

    def graph(
        self, version: str, metadata: Mapping[str, Value], *, states_dependencies: bool = True
    ) -> ExecutionGraph:
        if not self._ids:
            raise DataError(f"{self._path} is a Chakra trace without nodes.")
        ids = np.array(self._ids)
        order = np.argsort(ids, kind="stable")
        repeated = np.flatnonzero(np.diff(ids[order]) == 0)
        if len(repeated):
            raise DataError(
                f"{self._path} has the node id {int(ids[order][repeated[0]])} twice; "
                "`chopper check` lists what is wrong with a trace."
            )
        name, kind, start_us, duration_us = np.array(self._columns).reshape(-1, 4).T.copy()
        return self._made(
            path=self._path,
            size_bytes=self._path.stat().st_size,
            format=self._format,
            version=version,
            metadata=metadata,
            names=list(self._names),
            ids=self._ids,
            name=name.astype(np.int32),
            type=kind.astype(np.int8),
            start_us=start_us,
            duration_us=duration_us,
            data=self._edges("data", ids, order),
            control=self._edges("control", ids, order),
            attributes=self._attributes,
            process_groups=self._groups,
            losses=self.losses,
            states_dependencies=states_dependencies,
            unknown=self._unknown,
        )

    def _edges(self, name: str, ids: Any, order: Index) -> Edges:
        first, to = self._deps[name]
        wanted = np.array(to, np.uint64)
        at = np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)
        known = ids[order][at] == wanted
        kept = np.concatenate([[0], np.cumsum(known)])
        return Edges(
            kept[np.array(first, np.intp)], order[at[known]], int(len(known) - known.sum())
        )


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
IDLE: Final = "idle_ns"
"""The attribute of Chopper's own files with the idle time that an activity is charged with, by
`IDLE_PARTS`; where a node lacks it, there is none."""
IDLE_PARTS: Final = ("idle_host_ns", "idle_launch_ns", "idle_unknown_ns", "idle_after_ns")
STEPS: Final = "steps_ns"
"""In the metadata of Chopper's own files: number, begin and duration of each step that the host
annotates. A file without it has no idle time of its own: it comes from the activities' times."""
OUTSIDE: Final = "outside_steps_ns"
"""There, too: name, begin and duration of each time outside the steps."""
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


def attributes_of(graph: ExecutionGraph, rows: Index, *, is_own: bool) -> Attributes:
    """The attributes of the activities, whose nodes are their places in the file."""
    kept = graph.metadata.get(KEPT, []) if is_own else None
    names = set(kept) if isinstance(kept, list) else {*graph.attributes} - READ
    found: dict[int, dict[str, TypedValue]] = {int(row): {} for row in rows.tolist()}
    for name, column in graph.attributes.items():
        if name not in names:
            continue
        for node, kind, value in zip(column.nodes, column.types, column.values, strict=True):
            if node in found:
                found[node][name] = (kind, value if kind else None)
    for node_type in SHOWN_TYPES:
        for node in rows[graph.type[rows] == node_type].tolist():
            found[node][NODE_TYPE] = ("string", node_type.name)
    return attribute_table((0, node, attributes) for node, attributes in found.items())


def stated_edges(
    graph: ExecutionGraph, rows: Index, lane: Int64, start_ns: Int64, *, is_own: bool
) -> StatedEdges | None:
    """The dependencies of the activities; None where the file states none."""
    if not graph.states_dependencies:
        return None
    if is_own:
        return _restored(graph) if STATED in graph.attributes else None
    found: list[tuple[int, int, int, int]] = []
    before = _reached(graph, rows, lane, start_ns)
    controls = _controls(graph)
    for row in rows.tolist():
        edges, lead = before(row)
        control = [] if controls is None else controls.of(row)
        if lead or not (edges or control):
            found.append((row, NO_NODE, lead, 0))
        found += [(row, activity, host_ns, 0) for activity, host_ns in edges.items()]
        found += [(row, activity, 0, 1) for activity in control]
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
    for row, value in zip(column.nodes, column.values, strict=True):
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
        gpu_offset=np.zeros(len(columns[0]), np.int32),
    )


def _reached(
    graph: ExecutionGraph, rows: Index, lane: Int64, start_ns: Int64
) -> Callable[[int], tuple[dict[int, int], int]]:
    """A function from a node to the activities that it waits for, with the host's work since, and
    the host's work before it."""
    needs, is_activity = graph.data, np.zeros(len(graph), np.bool_)
    is_activity[rows] = True
    lanes, starts = lane.tolist(), start_ns.tolist()
    own_ns: list[int] = (graph.duration_us * 1_000).tolist()
    leads = [0] * len(graph)
    behind: list[dict[int, int]] = [_NOTHING] * len(graph)
    """Of host nodes: activity → the host's work since, without their own."""

    def before(node: int) -> tuple[dict[int, int], int]:
        found: dict[int, int] = {}
        lead = 0
        for need in needs.of(node):
            if is_activity[need]:
                found.setdefault(need, 0)
                continue
            lead = max(lead, leads[need] + own_ns[need])
            for activity, host_ns in behind[need].items():
                found[activity] = max(found.get(activity, 0), host_ns + own_ns[need])
        return found, lead

    # Host nodes in the order of their dependencies; those of a cycle, which only a file with times
    # may have, wait for nothing.
    sorter = TopologicalSorter({
        node: [need for need in needs.of(node) if not is_activity[need]]
        for node in np.flatnonzero(~is_activity).tolist()
    })  # fmt: skip
    with suppress(CycleError):
        sorter.prepare()
    while ready := sorter.get_ready():
        for node in ready:
            found, leads[node] = before(node)
            if len(found) > _MAX_BEHIND:
                # The last of each stream ends after the others.
                by_start = sorted(found, key=lambda each: (starts[each], each))
                last = {lanes[each]: each for each in by_start}
                found = {each: found[each] for each in last.values()}
            behind[node] = found
        sorter.done(*ready)
    return before
