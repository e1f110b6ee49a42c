"""What `chakra_trace_link` writes: a host trace whose operators and kernels have Kineto's times.

Kernels and copies are nodes of their own, with category, start, duration and stream, whose control
dependency is the operator that launched them; operators that Kineto has are timed too. The file
states no dependencies between activities and no time of a launch call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from chopper_core.align.collectives import message_bytes
from chopper_core.extensions.chakra.graph import ExecutionGraph, GraphBuilder
from chopper_core.extensions.chakra.graph_run import TraceGraph
from chopper_core.extensions.chakra.host_trace import (
    COMM,
    HostNode,
    document_of,
    groups_in,
    host_trace_head,
    is_linked,
    node_collective,
    node_texts,
)
from chopper_core.extensions.chakra.schema import Attribute, Node, NodeType, typed
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.tables.columns import nanoseconds
from chopper_core.tables.losses import number_of
from chopper_core.tables.text import FileHead
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent
from chopper_core.work.kernel_classes import is_communication

NAME: Final = "Chakra linked trace"
FILES: Final = "[`.json`](chakra.md#linked-traces) of `chakra_trace_link`, one per rank"
EXAMPLE: Final = "chakra_trace_link --rank 0 … --output-file linked.0.json"
SUFFIXES: Final = (".json",)
FORMAT: Final = "Chakra linked trace"
_CATEGORIES: Final = {"kernel": "", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
"""Kineto's category of an activity → its attribute `category`, where that isn't a kernel."""
_IDS: Final = range(2**64)
_MAX_CALLERS: Final = 4
"""Ranges around the launch of a collective up to the one with its arguments."""


class LinkedNode(HostNode):
    """A node of a linked trace; what only activities or timed operators have may lack."""

    cat: str | None = None
    ts: int | float | None = None
    inclusive_dur: int | float | None = None
    stream: int | None = None
    pg_name: str | None = None
    tid: int = 0
    seq_id: int = -1
    fw_tid: int = 0

    @property
    def is_activity(self) -> bool:
        return self.cat in _CATEGORIES


def recognise(head: FileHead) -> Recognised | Unusable | None:
    is_host = host_trace_head(head, linked=True) is not None
    return Recognised(FORMAT) if is_host and is_linked(head.path) else None


def read(path: Path, progress: Progress = silent) -> ExecutionGraph:
    """Read the graph of a file; raises DataError if it can't be decoded or has no activity.

    Activities without a valid time are left out and counted.
    """
    schema, nodes = document_of(path, LinkedNode, progress)
    builder = GraphBuilder(path, FORMAT, TraceGraph)
    calls = _CollectiveCalls(nodes)
    timed = [node for node in nodes if node.ts is not None and node.inclusive_dur is not None]
    starts, are_times = nanoseconds([node.ts for node in timed])
    lasts, are_lasts = nanoseconds([node.inclusive_dur for node in timed])
    usable = are_times & are_lasts & (lasts >= 0)
    times = {
        node.id: (start, duration)
        for node, start, duration, is_usable in zip(
            timed, starts.tolist(), lasts.tolist(), usable.tolist(), strict=True
        )
        if is_usable
    }
    lost = 0
    for node in nodes:
        if node.is_activity and node.id not in times:
            lost += 1
            continue
        own = _node(node, times.get(node.id), calls)
        if any(each not in _IDS for each in (own.id, *own.ctrl_deps)):
            raise DataError(f"{path} has a node ({node.id}) with a number that is no id.")
        builder.add(own)
    if lost:
        builder.losses.notes.append(f"{number_of(lost, 'GPU node')} without a valid time left out")
    return builder.graph("", {"schema": schema}, states_dependencies=False)


class _CollectiveCalls:
    """The arguments of collectives, by the operators around their launches."""

    def __init__(self, nodes: Sequence[LinkedNode]) -> None:
        self._nodes: Mapping[int, LinkedNode] = {node.id: node for node in nodes}
        self._groups = groups_in(nodes)

    def around(self, activity: LinkedNode) -> Iterator[LinkedNode]:
        """The operators around an activity's launch, the innermost first."""
        caller = self._nodes.get(activity.ctrl_deps)
        while caller is not None:
            yield caller
            caller = self._nodes.get(caller.parent)

    def sent_by(self, activity: LinkedNode) -> dict[str, Attribute]:
        around = islice(self.around(activity), _MAX_CALLERS)
        call = next((node for node in around if node.name == COMM), None)
        found = node_collective(call, self._groups) if call is not None else None
        known: dict[str, Any] = {}
        if found is not None:
            size = message_bytes(found)
            known = {"bytes": size} if size >= 0 else {}
            known |= {"pg_name": found.group_name} if found.group_name else {}
        if activity.pg_name:
            known["pg_name"] = activity.pg_name
        return {name: typed(value) for name, value in known.items()}


def _node(node: LinkedNode, times: tuple[int, int] | None, calls: _CollectiveCalls) -> Node:
    attributes: dict[str, Attribute] = {
        "is_cpu_op": typed(not node.is_activity),
        "tid": typed(node.tid or node.attributes.get("tid", 0)),
    }
    kind = NodeType.COMP
    if "process_group:init" in node.name:
        kind = NodeType.METADATA
    if node.is_activity:
        if is_communication(node.name):
            kind = NodeType.COMM_COLL
            attributes |= calls.sent_by(node)
        if category := _CATEGORIES[str(node.cat)]:
            attributes["category"] = typed(category)
        attributes["stream"] = typed(node.stream or 0)
    forward = node.fw_tid or node.attributes.get("fw_tid", 0)
    if isinstance(forward, int) and forward > 0:
        attributes["fw_tid"] = typed(forward)
    if times is not None:
        attributes["ts_ns"], attributes["dur_ns"] = map(typed, times)
    start_ns, duration_ns = times or (0, 0)
    texts = node_texts(node)
    return Node(
        id=node.id,
        name=node.name,
        type=kind,
        ctrl_deps=[node.ctrl_deps if node.is_activity else node.parent],
        start_us=max(start_ns // 1000, 0),
        duration_us=duration_ns // 1000,
        attributes=attributes,
        inputs={"values": texts.values, "shapes": texts.shapes, "types": texts.types},
        outputs={"values": texts.outputs},
    )
