"""A Chakra graph as a kernel table: labels from attributes and callers, times or a schedule.

Files of Chopper's own export give every label and time as an attribute. Others give a graph: a GPU
node's operation and phase are those of the CPU nodes that called it, and without start times the
nodes are scheduled along their dependencies, one at a time on each thread and stream.
"""

from __future__ import annotations

import ast
import heapq
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import Meta, Struct

from chopper_core.align.collectives import group_label
from chopper_core.align.labels import Labels
from chopper_core.align.phases import range_phase
from chopper_core.align.rank import NO_NAME, used_names
from chopper_core.align.rank_account import OUTSIDE_NAMES, OutsideTime, with_outside
from chopper_core.extensions.chakra.graph import (
    IDLE,
    IDLE_PARTS,
    OUTSIDE,
    STEPS,
    ExecutionGraph,
    attributes_of,
    cycle_of,
    needs_of,
    stated_edges,
)
from chopper_core.extensions.chakra.host_pieces import graph_host_lane
from chopper_core.extensions.chakra.schema import COMMUNICATION, MEMORY, CommType, NodeType
from chopper_core.model.accounting import OutsideGaps, accounted
from chopper_core.model.column_names import FLOPS, FLOPS_TYPE, NODE
from chopper_core.model.hardware import ElementType
from chopper_core.model.side_table import HostSteps, SideTables, side_tables
from chopper_core.model.step_spans import StepSpans
from chopper_core.model.table import (
    LABELLED,
    LEVELS,
    NO_LABEL,
    NO_TIME,
    PHASES,
    Category,
    KernelTable,
    Kind,
    Phase,
    Rule,
)
from chopper_core.sources.trace import Collective
from chopper_core.tables.columns import MAX_FLOPS, Interner
from chopper_core.tables.losses import ABSENT
from chopper_core.util.arrays import Float64, Index, Int8, Int32, Int64
from chopper_core.util.errors import DataError
from chopper_core.work.kernel_classes import (
    UNKNOWN_COLLECTIVE,
    collective_name,
    is_communication,
    kernel_class,
)

SCHEMA: Final = "chopper.et/"
"""The schema of Chopper's own export begins so: its attributes are the whole truth."""
RULES: Final = tuple(f"{level}_rule" for level in LABELLED)
"""The columns behind the attribute `rules`."""
_NS_PER_US: Final = 1_000
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, SyntaxError, LookupError, TypeError)
_LATEST_NS: Final = 2**62
_Time = Annotated[int, Meta(gt=-(2**60), lt=2**60)]
_Length = Annotated[int, Meta(ge=0, lt=2**60)]
_Steps = list[tuple[Annotated[int, Meta(ge=0, lt=2**31)], _Time, _Length]]
_Outside = list[tuple[str, _Time, _Length]]
_Idle = list[tuple[_Length, _Length, _Length, _Length]]
_PIECE: Final = re.compile(r"\(\d+\)$")
"""Upstream's converter cuts an operator at its launches and numbers the pieces."""
_STEP: Final = re.compile(r"^(?:ProfilerStep#|Iteration[ _]?#?)(\d{1,9})$")
_LAYER: Final = re.compile(r"^Layer[ _]?(\d{1,9})$")
_COPY: Final = re.compile(r"^Memcpy|^CopyDevice|^CopyHost", re.IGNORECASE)
_FILL: Final = re.compile(r"^Memset|^FillBuffer", re.IGNORECASE)
_OPERATOR: Final = re.compile(r"^(?:aten|c10d|torch|[a-z]\w*)::\w")
_WRAPPER: Final = re.compile(r"^autograd::|^record_param_comms|^c10d::")


def times_of(graph: ExecutionGraph) -> tuple[Int64, Int64, bool]:
    """Start and duration of each node in ns, and whether the starts are a schedule.

    The times in the file, else a schedule along its dependencies; raises DataError for a cycle.
    """
    exact, own = graph.numbers("dur_ns"), graph.numbers("ts_ns", NO_TIME)
    has_start = own != NO_TIME
    duration = np.where(exact >= 0, exact, graph.duration_us * _NS_PER_US)
    if (np.abs(own[has_start]) >= _LATEST_NS).any() or (duration >= _LATEST_NS).any():
        raise DataError(f"{graph.path} has times that are not valid nanoseconds.")
    if not has_start.any() and not graph.start_us.any():
        return _schedule(graph, duration), duration, True
    start = np.where(has_start, own, graph.start_us * _NS_PER_US) + _origin_ns(graph)
    return start, duration, bool(has_start.any() and graph.metadata.get("reconstructed"))


def _origin_ns(graph: ExecutionGraph) -> int:
    """The time of 0 in a file of Chopper's own; 0 in others."""
    origin = graph.metadata.get("time_origin_ns", 0)
    return origin if isinstance(origin, int) and abs(origin) < _LATEST_NS else 0


def lanes(graph: ExecutionGraph) -> Int64:
    """The stream of GPU nodes and the thread of CPU nodes; 0 where the file gives neither."""
    thread, stream = graph.numbers("tid", 0), graph.numbers("stream", NO_TIME)
    return np.where(graph.is_host | (stream == NO_TIME), thread, stream)


def _schedule(graph: ExecutionGraph, duration_ns: Int64) -> Int64:
    """Starts along the dependencies; each thread and stream runs one node at a time.

    Of the nodes that could start, those of lower places in the file come first.
    """
    count, needs = len(graph), needs_of(graph)
    followers: list[list[int]] = [[] for _ in range(count)]
    for node in range(count):
        for need in needs.of(node):
            followers[need].append(node)
    waits = np.diff(needs.first).tolist()
    lane = list(zip(graph.is_host.tolist(), lanes(graph).tolist(), strict=True))
    free: dict[tuple[bool, int], int] = {}
    ready, start = [0] * count, [0] * count
    lasts = duration_ns.tolist()
    heap = [node for node in range(count) if not waits[node]]
    while heap:
        node = heapq.heappop(heap)
        start[node] = max(ready[node], free.get(lane[node], 0))
        end = free[lane[node]] = start[node] + lasts[node]
        for follower in followers[node]:
            ready[follower] = max(ready[follower], end)
            waits[follower] -= 1
            if not waits[follower]:
                heapq.heappush(heap, follower)
    if any(waits):
        cycle = cycle_of({node: needs.of(node) for node in range(count)}, graph.ids)
        raise DataError(
            f"{graph.path} has no start times, and its dependencies form a cycle "
            f"({cycle}): there is no schedule."
        )
    return np.array(start, np.int64)


def align_graph(
    graph: ExecutionGraph, start_ns: Int64, duration_ns: Int64
) -> tuple[KernelTable, SideTables]:
    """The table of the GPU nodes in the order of the levels, and their attributes and edges."""
    rows = np.flatnonzero(graph.is_gpu)
    if not len(rows):
        raise DataError(
            f"{graph.path} has {len(graph):,} nodes, none of them a kernel or copy on a GPU "
            "(is_cpu_op false): it is a host trace. Give it together with the Kineto trace."
        )
    nodes = _GpuNodes(graph, rows)
    start, duration, stream = start_ns[rows], duration_ns[rows], lanes(graph)[rows]
    kind, category = nodes.kinds()
    iteration, phase = nodes.numbered("iteration", _STEP), nodes.phases()
    layer = nodes.numbered("layer", _LAYER)
    operation, operations = nodes.operations(kind)
    launch = nodes.numbers("launch_ns", NO_TIME)
    launch = np.where(launch == NO_TIME, NO_TIME, launch + _origin_ns(graph))
    group, groups = nodes.groups()
    edges = stated_edges(graph, rows, lanes(graph), start_ns, is_own=nodes.is_own)
    extras = side_tables(
        attributes_of(graph, rows, is_own=nodes.is_own), *(() if edges is None else (edges,))
    )
    measured = nodes.measured() | ({NODE: rows.astype(np.float64)} if extras else {})
    extras = {**extras, **side_tables(graph_host_lane(graph, _origin_ns(graph)))}
    labels = (iteration, phase, layer, operation)
    columns: dict[str, Any] = {
        name: np.where(stated >= 0, stated, own.rules)
        for name, stated, own in zip(RULES, nodes.stated_rules(), labels, strict=True)
    }
    columns |= accounted(start, duration, kind, stream, launch, iteration.codes).columns
    if (times := _own_times(graph, rows)) is not None:
        columns |= times.idle
        extras = {**extras, **side_tables(HostSteps.of({0: times.steps}))}
    table = KernelTable(
        names=[*(name or NO_NAME for name in graph.names), *groups],
        operations=operations,
        gpu=np.zeros(len(rows), np.int32),
        iteration=iteration.codes,
        phase=phase.codes.astype(np.int8),
        layer=layer.codes,
        operation=operation.codes,
        kernel=graph.name[rows],
        kind=kind,
        category=category,
        stream=stream,
        start_ns=start,
        duration_ns=duration,
        launch_ns=launch,
        bytes=nodes.bytes(),
        group=np.where(group >= 0, group + len(graph.names), -1).astype(np.int32),
        measured=measured,
        **columns,
    )
    table = table if times is None else with_outside(table, times.outside)
    order = np.lexsort((table.start_ns, *(table.column(level) for level in reversed(LEVELS))))
    return used_names(table.take(order)), extras


class _OwnTimes(Struct, frozen=True):
    """What a file of Chopper's own says of the time in which nothing runs."""

    steps: StepSpans
    outside: OutsideTime
    idle: Mapping[str, Int64]
    """Columns in ns, a value per activity."""


def _own_times(graph: ExecutionGraph, rows: Index) -> _OwnTimes | None:
    """None where the file, or a part of it, doesn't say so."""
    if not str(graph.metadata.get("schema", "")).startswith(SCHEMA):
        return None
    idle = np.zeros((len(IDLE_PARTS), len(graph)), np.int64)
    try:
        steps = msgspec.json.decode(str(graph.metadata[STEPS]), type=_Steps)
        outside = msgspec.json.decode(str(graph.metadata.get(OUTSIDE, "[]")), type=_Outside)
        if column := graph.attributes.get(IDLE):
            idle[:, column.nodes] = np.array(msgspec.convert(column.values, _Idle)).T
    except _UNREADABLE:
        return None
    number, begin, lasts = np.array(steps, np.int64).reshape(-1, 3).T
    begin = begin + _origin_ns(graph)
    spans = StepSpans(number, begin, begin + lasts)
    if (begin[1:] < spans.end_ns[:-1]).any():
        return None
    known = [OUTSIDE_NAMES.index(name) if name in OUTSIDE_NAMES else 0 for name, _, _ in outside]
    begin, lasts = np.array([each[1:] for each in outside], np.int64).reshape(-1, 2).T
    begin = begin + _origin_ns(graph)
    gaps = OutsideGaps(begin, begin + lasts, np.zeros(len(outside), np.intp))
    parts = dict(zip(IDLE_PARTS, idle[:, rows], strict=True))
    idle_ns = sum(each for name, each in parts.items() if name != "idle_after_ns")
    return _OwnTimes(
        spans,
        OutsideTime.of_gpu(0, gaps, np.array(known, np.int8)),
        {**parts, "idle_ns": np.asarray(idle_ns, np.int64)},
    )


class _GpuNodes:
    """The labels of the GPU nodes: attributes of their own, else those of their callers."""

    def __init__(self, graph: ExecutionGraph, rows: Index) -> None:
        self._graph = graph
        self._rows = rows
        self._names = [graph.names[code] for code in graph.name[rows].tolist()]
        self._types: list[int] = graph.type[rows].tolist()
        self.is_own = str(graph.metadata.get("schema", "")).startswith(SCHEMA)
        self._callers = [()] * len(rows) if self.is_own else _callers(graph, rows)

    def _texts(self, name: str) -> list[str]:
        texts = self._graph.texts(name)
        return [texts[node] for node in self._rows.tolist()]

    def numbers(self, name: str, missing: int = ABSENT) -> Int64:
        return self._graph.numbers(name, missing)[self._rows]

    def kinds(self) -> tuple[Int8, Int8]:
        """Kind and category: by type, else by name."""
        kind = np.full(len(self._rows), Kind.COMPUTE, np.int8)
        category = np.full(len(self._rows), Category.KERNEL, np.int8)
        known = {each.name.lower(): each for each in Category}
        stated = zip(self._texts("kind"), self._texts("category"), strict=True)
        for place, (stated_kind, stated_category) in enumerate(stated):
            name, node_type = self._names[place], self._types[place]
            of = known.get(stated_category)
            if of is None and not self.is_own:
                of = Category.MEMCPY if _COPY.match(name) else None
                of = Category.MEMSET if _FILL.match(name) else of
            category[place] = Category.KERNEL if of is None else of
            communicates = node_type in COMMUNICATION or stated_kind == "comm"
            if communicates or (not self.is_own and of is None and is_communication(name)):
                kind[place] = Kind.COMM
            elif of == Category.MEMCPY or node_type in MEMORY:
                kind[place] = Kind.COPY
        return kind, category

    def numbered(self, name: str, pattern: re.Pattern[str]) -> Labels:
        """The number in an attribute, else in the name of the outermost caller that has one."""

        def number(names: Sequence[str]) -> int:
            return next((int(at[1]) for each in names if (at := pattern.match(each))), NO_LABEL)

        stated = self.numbers(name)
        stated = np.where((stated >= 0) & (stated < 2**31), stated, NO_LABEL)
        return self._labels(stated, number, Rule.ANNOTATION)

    def phases(self) -> Labels:
        """The phase in an attribute, else of the innermost caller that has one."""

        def innermost(names: Sequence[str]) -> int:
            found = (phase for each in names[::-1] if (phase := range_phase(each)) is not None)
            return next(found, NO_LABEL)

        code = {name: number for number, name in enumerate(PHASES)}
        stated = np.array([code.get(text, NO_LABEL) for text in self._texts("phase")], np.int64)
        labels = self._labels(stated, innermost, Rule.HOST_OPERATOR)
        if not self.is_own:
            labels.fill(Phase.BACKWARD, Rule.HOST_OPERATOR, self.numbers("fw_tid", 0) > 0)
        return labels

    def _labels(self, stated: Int64, of: Callable[[Sequence[str]], int], rule: Rule) -> Labels:
        labels = Labels.none(len(self._rows))
        labels.fill(stated, Rule.ANNOTATION)
        labels.fill(np.array([of(names) for names in self._callers], np.int64), rule)
        return labels

    def operations(self, kind: Int8) -> tuple[Labels, tuple[str, ...]]:
        """The collective of communication, else the operation in an attribute, else the operator
        that called the kernel, else the kernel's class."""
        names, labels = Interner(), Labels.none(len(self._rows))
        comm_types: list[int] = self.numbers("comm_type").tolist()
        for place, stated in enumerate(self._texts("op")):
            kernel, callers = self._names[place], self._callers[place]
            if stated:
                name, rule = stated, Rule.ANNOTATION
            elif self.is_own:
                continue
            elif kind[place] == Kind.COMM:
                name, rule = _collective(self._types[place], comm_types[place], kernel, callers)
            else:
                operators = filter(_OPERATOR.match, reversed(callers))
                operator = next((each for each in operators if not _WRAPPER.match(each)), "")
                rule = Rule.HOST_OPERATOR if operator else Rule.KERNEL_NAME
                name = operator or kernel_class(kernel)
            labels.codes[place], labels.rules[place] = names[name], rule
        return labels, tuple(names)

    def bytes(self) -> Int64:
        found = self.numbers("bytes")
        if not self.is_own:
            found = np.where(found >= 0, found, self.numbers("comm_size"))
        return np.maximum(found, ABSENT)

    def groups(self) -> tuple[Int32, list[str]]:
        """Code and names of the process groups, with their descriptions where the file has them."""
        labels, described = Interner(), _described_groups(self._graph)
        numbers = [""] * len(self._rows) if self.is_own else self._texts("pg_name")
        found = [
            own or described.get(number, number)
            for own, number in zip(self._texts("group"), numbers, strict=True)
        ]
        code = np.array([labels[label] if label else -1 for label in found], np.int32)
        return code, list(labels)

    def measured(self) -> dict[str, Float64]:
        """The model's FLOPs and their type, where the file is Chopper's own and has them."""
        if not self.is_own or "num_ops" not in self._graph.attributes:
            return {}
        flops = self.numbers("num_ops").astype(np.float64)
        flops[(flops < 0) | (flops > MAX_FLOPS)] = np.nan
        known = {each.name: float(each) for each in ElementType}
        element = np.array([known.get(text, np.nan) for text in self._texts("num_ops_type")])
        return {FLOPS: flops, FLOPS_TYPE: element}

    def stated_rules(self) -> Int8:
        """Levels x nodes: the rule of each level that the nodes state, -1 where one states none."""
        known = {rule.name: int(rule) for rule in Rule}
        found = np.full((len(RULES), len(self._rows)), -1, np.int8)
        for place, text in enumerate(self._texts("rules")):
            rules = [known.get(name, -1) for name in text.split()]
            if len(rules) == len(RULES) and min(rules) >= 0:
                found[:, place] = rules
        return found


def _collective(
    node_type: int, comm_type: int, kernel: str, callers: Sequence[str]
) -> tuple[str, Rule]:
    if node_type in (NodeType.COMM_SEND, NodeType.COMM_RECV):
        return "send_recv", Rule.COLLECTIVE
    if 0 <= comm_type <= max(CommType):
        return CommType(comm_type).name.lower(), Rule.COLLECTIVE
    called = next((found for each in callers[::-1] if (found := collective_name(each))), None)
    if called:
        return called, Rule.HOST_OPERATOR
    return collective_name(kernel) or UNKNOWN_COLLECTIVE, Rule.KERNEL_NAME


def _callers(graph: ExecutionGraph, rows: Index) -> list[Sequence[str]]:
    """The names of the CPU nodes around each GPU node, the outermost first.

    Control dependencies lead from a node to its caller. Older files keep ids there of before they
    were renumbered, which shows where one leads to a GPU node: then only the CPU node that a
    kernel depends on counts.
    """
    is_host = graph.is_host
    first = graph.control.first[:-1]
    has = np.diff(graph.control.first) > 0
    parent = np.full(len(graph), -1, np.intp)
    parent[has] = graph.control.to[first[has]]
    trusted = not (~is_host[parent[parent >= 0]]).any()
    if not trusted:
        parent[:] = -1
    names = [_PIECE.sub("", name) for name in graph.names]
    found: list[Sequence[str]] = []
    known: dict[int, tuple[str, ...]] = {}
    for node in rows.tolist():
        caller = int(parent[node])
        if caller < 0:
            caller = next((each for each in graph.data.of(node) if is_host[each]), -1)
        chain: list[int] = []
        while caller >= 0 and caller not in known and caller not in chain:
            chain.append(caller)
            caller = int(parent[caller])
        above = known.get(caller, ())
        for each in reversed(chain):
            above = known[each] = (*above, names[graph.name[each]])
        found.append(above)
    return found


def _described_groups(graph: ExecutionGraph) -> dict[str, str]:
    """The labels of process groups by their names, from nodes that list them."""
    found: dict[str, str] = {}
    for text in graph.process_groups:
        try:
            listed = msgspec.json.decode(ast.literal_eval(text)[0])
        except (*_UNREADABLE, RecursionError, MemoryError):
            continue
        for each in listed if isinstance(listed, list) else ():
            if isinstance(each, dict) and "pg_name" in each:
                size = each.get("group_size")
                name = str(each["pg_name"])
                found[name] = group_label(
                    Collective(
                        group_name=name,
                        group_description=str(each.get("pg_desc", "")),
                        group_size=size if isinstance(size, int) else ABSENT,
                    )
                )
    return found
