"""A Chakra graph as a kernel table: labels from attributes and callers, times or a schedule.

Files of Chopper's own export give every label and time as an attribute. Others give a graph: a GPU
node's operation and phase are those of the CPU nodes that called it, and without start times the
nodes are scheduled along their dependencies, one at a time on each thread and stream.
"""

from __future__ import annotations

import ast
import heapq
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from chopper_core.align.collectives import group_label
from chopper_core.align.kernel_classes import (
    UNKNOWN_COLLECTIVE,
    collective_name,
    is_communication,
    kernel_class,
)
from chopper_core.align.labels import Labels
from chopper_core.align.phases import range_phase
from chopper_core.align.rank import NO_NAME, AlignedRank, gpu_by_gpu, used_names
from chopper_core.extensions.chakra.graph import (
    ExecutionGraph,
    attributes_of,
    cycle_of,
    needs_of,
    stated_edges,
)
from chopper_core.extensions.chakra.schema import COMMUNICATION, CommType, NodeType
from chopper_core.model.accounting import account, launch_overheads
from chopper_core.model.column_names import FLOPS, FLOPS_TYPE, NODE
from chopper_core.model.hardware import ElementType
from chopper_core.model.side_table import side_tables
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
from chopper_core.tables.columns import Interner
from chopper_core.tables.losses import ABSENT
from chopper_core.util.arrays import Index, Int8, Int32, Int64
from chopper_core.util.errors import DataError

SCHEMA: Final = "chopper.et/"
"""The schema of Chopper's own export begins so: its attributes are the whole truth."""
RULES: Final = tuple(f"{level}_rule" for level in LABELLED)
"""The columns behind the attribute `rules`."""
_NS_PER_US: Final = 1_000
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, SyntaxError, LookupError, TypeError)
_LATEST_NS: Final = 2**62
_MEMORY: Final = (NodeType.MEM_LOAD, NodeType.MEM_STORE)
_PIECE: Final = re.compile(r"\(\d+\)$")
"""Upstream's converter cuts an operator at its launches and numbers the pieces."""
_STEP: Final = re.compile(r"^(?:ProfilerStep#|Iteration[ _]?#?)(\d{1,9})$")
_LAYER: Final = re.compile(r"^Layer[ _]?(\d{1,9})$")
_COPY: Final = re.compile(r"^Memcpy|^CopyDevice|^CopyHost", re.IGNORECASE)
_FILL: Final = re.compile(r"^Memset|^FillBuffer", re.IGNORECASE)
_OPERATOR: Final = re.compile(r"^(?:aten|c10d|torch|[a-z]\w*)::\w")
_WRAPPER: Final = re.compile(r"^autograd::|^record_param_comms|^c10d::")


class GraphTimes(Struct, frozen=True):
    """Start and duration of each node in ns."""

    start_ns: Int64
    duration_ns: Int64
    is_scheduled: bool
    """Whether the file has no start times, so that these are a schedule."""


def times_of(graph: ExecutionGraph) -> GraphTimes:
    """The times in a file, else a schedule along its dependencies; raises DataError for a cycle."""
    duration = graph.duration_us * _NS_PER_US
    exact = graph.numbers("dur_ns")
    duration = np.where(exact >= 0, exact, duration)
    own = graph.numbers("ts_ns", NO_TIME)
    scheduled = bool(graph.metadata.get("reconstructed"))
    origin = _origin_ns(graph)
    if (np.abs(own[own != NO_TIME]) >= _LATEST_NS).any() or (duration >= _LATEST_NS).any():
        raise DataError(f"{graph.path} has times that are not valid nanoseconds.")
    if (own != NO_TIME).any():
        start = np.where(own != NO_TIME, own, graph.start_us * _NS_PER_US)
        return GraphTimes(start + origin, duration, scheduled)
    if graph.start_us.any():
        return GraphTimes(graph.start_us * _NS_PER_US + origin, duration, scheduled)
    return GraphTimes(_schedule(graph, duration), duration, is_scheduled=True)


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


def align_graph(graph: ExecutionGraph, times: GraphTimes) -> AlignedRank:
    rows = np.flatnonzero(graph.is_gpu)
    if not len(rows):
        raise DataError(
            f"{graph.path} has {len(graph):,} nodes, none of them a kernel or copy on a GPU "
            "(is_cpu_op false): it is a host trace. Give it together with the Kineto trace."
        )
    reader = _NodeReader(graph, rows)
    start, duration = times.start_ns[rows], times.duration_ns[rows]
    stream = lanes(graph)[rows]
    kind, category = reader.kinds()
    iteration, phase, layer = reader.iterations(), reader.phases(), reader.layers()
    operations, operation_names = reader.operations(kind)
    launch = graph.numbers("launch_ns", NO_TIME)[rows]
    launch = np.where(launch == NO_TIME, NO_TIME, launch + _origin_ns(graph))
    group, groups = reader.groups()
    gpu = np.zeros(len(rows), np.intp)
    columns: dict[str, Any] = gpu_by_gpu(
        gpu, lambda own: account(start[own], duration[own], kind[own], stream[own], launch[own])
    )
    columns |= gpu_by_gpu(
        gpu,
        lambda own: launch_overheads(
            start[own], duration[own], kind[own], launch[own], iteration.codes[own]
        ),
    )
    names = [*(name or NO_NAME for name in graph.names), *groups]
    edges = stated_edges(graph, rows, lanes(graph), times.start_ns, is_own=reader.is_own)
    beside = side_tables(
        attributes_of(graph, rows, is_own=reader.is_own), *(() if edges is None else (edges,))
    )
    table = KernelTable(
        names=names,
        operations=operation_names,
        gpu=gpu.astype(np.int32),
        iteration=iteration.codes,
        phase=phase.codes.astype(np.int8),
        layer=layer.codes,
        operation=operations.codes,
        kernel=graph.name[rows],
        kind=kind,
        category=category,
        stream=stream,
        start_ns=start,
        duration_ns=duration,
        launch_ns=launch,
        bytes=reader.bytes(kind),
        group=np.where(group >= 0, group + len(graph.names), -1).astype(np.int32),
        iteration_rule=iteration.rules,
        phase_rule=phase.rules,
        layer_rule=layer.rules,
        operation_rule=operations.rules,
        measured=reader.measured() | ({NODE: rows.astype(np.float64)} if beside else {}),
        **columns,
    )
    node = np.lexsort((table.start_ns, *(table.column(level) for level in reversed(LEVELS))))
    device = graph.metadata.get("device", 0)
    cut = graph.metadata.get("truncated_iterations", [])
    return AlignedRank(
        table=used_names(table.take(node)),
        devices=(device if isinstance(device, int) else 0,),
        partial_iterations=frozenset(cut if isinstance(cut, list) else ()),
        side_tables=beside,
        findings={
            "activities without a launch record": int((launch == NO_TIME).sum()),
            "communication kernels": int((kind == Kind.COMM).sum()),
            "streams": len(set(stream.tolist())),
            "dependencies on nodes that the file lacks": graph.data.dangling,
        },
    )


class _NodeReader:
    """The labels of the GPU nodes: attributes of their own, else those of their callers."""

    def __init__(self, graph: ExecutionGraph, rows: Index) -> None:
        self._graph = graph
        self._rows = rows
        self.is_own = str(graph.metadata.get("schema", "")).startswith(SCHEMA)
        self._rules = self._stated_rules()
        self._callers = [] if self.is_own else _callers(graph, rows)

    def _texts(self, name: str) -> list[str]:
        texts = self._graph.texts(name)
        return [texts[node] for node in self._rows.tolist()]

    def kinds(self) -> tuple[Int8, Int8]:
        """Kind and category: by type, else by name."""
        graph = self._graph
        stated, categories = graph.texts("kind"), graph.texts("category")
        kind = np.full(len(self._rows), Kind.COMPUTE, np.int8)
        category = np.full(len(self._rows), Category.KERNEL, np.int8)
        known = {each.name.lower(): each for each in Category}
        for place, node in enumerate(self._rows.tolist()):
            name = graph.names[graph.name[node]]
            of = known.get(categories[node])
            if of is None and not self.is_own:
                of = Category.MEMCPY if _COPY.match(name) else None
                of = Category.MEMSET if _FILL.match(name) else of
            category[place] = Category.KERNEL if of is None else of
            communicates = int(graph.type[node]) in COMMUNICATION or stated[node] == "comm"
            if communicates or (not self.is_own and of is None and is_communication(name)):
                kind[place] = Kind.COMM
            elif of == Category.MEMCPY or graph.type[node] in _MEMORY:
                kind[place] = Kind.COPY
        return kind, category

    def iterations(self) -> Labels:
        return self._numbered("iteration", _STEP, 0)

    def layers(self) -> Labels:
        return self._numbered("layer", _LAYER, 2)

    def _numbered(self, name: str, pattern: re.Pattern[str], level: int) -> Labels:
        stated = self._graph.numbers(name)[self._rows]
        stated = np.where((stated >= 0) & (stated < 2**31), stated, NO_LABEL)

        def number(names: Sequence[str]) -> int:
            return next((int(at[1]) for each in names if (at := pattern.match(each))), NO_LABEL)

        return self._labels(stated, number, Rule.ANNOTATION, level)

    def phases(self) -> Labels:
        """The phase in an attribute, else of the innermost caller that has one."""
        code = {name: number for number, name in enumerate(PHASES)}
        stated = np.array([code.get(text, NO_LABEL) for text in self._texts("phase")], np.int64)

        def innermost(names: Sequence[str]) -> int:
            found = (phase for each in names[::-1] if (phase := range_phase(each)) is not None)
            return next(found, NO_LABEL)

        labels = self._labels(stated, innermost, Rule.HOST_OPERATOR, 1)
        backward = self._graph.numbers("fw_tid", 0)[self._rows] > 0
        labels.fill(Phase.BACKWARD, Rule.HOST_OPERATOR, backward & (not self.is_own))
        return labels

    def _labels(
        self, stated: Int64, of: Callable[[Sequence[str]], int], rule: Rule, level: int
    ) -> Labels:
        """The labels that attributes state, else those of the names of callers."""
        labels = Labels.none(len(self._rows))
        labels.fill(stated, Rule.ANNOTATION)
        if self._callers:
            labels.fill(np.array([of(names) for names in self._callers], np.int64), rule)
        return self._with_stated_rules(labels, level)

    def operations(self, kind: Int8) -> tuple[Labels, tuple[str, ...]]:
        """The collective of communication, else the operation in an attribute, else the operator
        that called the kernel, else the kernel's class."""
        graph, names = self._graph, Interner()
        labels = Labels.none(len(self._rows))
        stated = graph.texts("op")
        comm_type = graph.numbers("comm_type")
        for place, node in enumerate(self._rows.tolist()):
            kernel = graph.names[graph.name[node]]
            callers = self._callers[place] if self._callers else ()
            if stated[node]:
                name, rule = stated[node], Rule.ANNOTATION
            elif self.is_own:
                continue
            elif kind[place] == Kind.COMM:
                of = int(graph.type[node]), int(comm_type[node])
                name, rule = _collective(*of, kernel, callers)
            else:
                operator = next((each for each in reversed(callers) if _is_operator(each)), "")
                rule = Rule.HOST_OPERATOR if operator else Rule.KERNEL_NAME
                name = operator or kernel_class(kernel)
            labels.codes[place], labels.rules[place] = names[name], rule
        return self._with_stated_rules(labels, 3), tuple(names)

    def bytes(self, kind: Int8) -> Int64:
        graph = self._graph
        stated, sent = graph.numbers("bytes"), graph.numbers("comm_size")
        found = stated if self.is_own else np.where(stated >= 0, stated, sent)
        return np.maximum(found[self._rows], ABSENT)

    def groups(self) -> tuple[Int32, list[str]]:
        """Code and names of the process groups, with their descriptions where the file has them."""
        graph, labels = self._graph, Interner()
        own, numbers = graph.texts("group"), graph.texts("pg_name")
        described = _described_groups(graph)
        code = np.full(len(self._rows), -1, np.int32)
        for place, node in enumerate(self._rows.tolist()):
            number = "" if self.is_own else numbers[node]
            if label := own[node] or described.get(number, number):
                code[place] = labels[label]
        return code, list(labels)

    def measured(self) -> dict[str, Any]:
        """The model's FLOPs and their type, where the file is Chopper's own and has them."""
        if not self.is_own or "num_ops" not in self._graph.attributes:
            return {}
        flops = self._graph.numbers("num_ops")[self._rows].astype(np.float64)
        known = {each.name: float(each) for each in ElementType}
        element = np.array([known.get(text, np.nan) for text in self._texts("num_ops_type")])
        return {FLOPS: np.where(flops >= 0, flops, np.nan), FLOPS_TYPE: element}

    def _stated_rules(self) -> Int8:
        """The rule of each level that the nodes state, -1 where one states none."""
        known = {rule.name: int(rule) for rule in Rule}
        found = np.full((len(self._rows), len(RULES)), -1, np.int8)
        for place, text in enumerate(self._texts("rules")):
            rules = [known.get(name, -1) for name in text.split()]
            if len(rules) == len(RULES) and min(rules) >= 0:
                found[place] = rules
        return found

    def _with_stated_rules(self, labels: Labels, number: int) -> Labels:
        own = self._rules[:, number]
        labels.rules[own >= 0] = own[own >= 0]
        return labels


def _is_operator(name: str) -> bool:
    return _OPERATOR.match(name) is not None and _WRAPPER.match(name) is None


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
