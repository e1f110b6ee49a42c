"""From a Chakra graph to a run of one rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from chopper_core.extensions.chakra.execution_graph import SCHEMA, align_graph, times_of
from chopper_core.extensions.chakra.graph import (
    IDLE,
    STATED,
    USED,
    AttributeColumn,
    ExecutionGraph,
)
from chopper_core.extensions.chakra.host_pieces import HOST
from chopper_core.extensions.chakra.schema import NodeType
from chopper_core.model.doubts import Doubt
from chopper_core.model.inputs import NO_RANK, ONE_CLOCK, SCHEDULE, SIMULATED, Gpu, Source
from chopper_core.model.parallel import ProcessGroup
from chopper_core.model.run import Run
from chopper_core.model.table import NO_TIME, Kind
from chopper_core.util.escape import cut_text
from chopper_core.util.grouping import distinct

TICK_CLOCK: Final = f"{SIMULATED}: one clock, 1 tick taken as 1 ns"
_MAX_SHOWN: Final = 40


class TraceGraph(ExecutionGraph, frozen=True):
    """The graph of a trace file, which is a run of its own."""

    def as_run(self) -> Run:
        return graph_run(self)


def graph_run(graph: ExecutionGraph) -> Run:
    start_ns, duration_ns, is_scheduled = times_of(graph)
    table, extras = align_graph(graph, start_ns, duration_ns)
    stated = graph.metadata.get

    def number(name: str, otherwise: int) -> int:
        value = stated(name)
        return value if isinstance(value, int) and 0 <= value < 2**31 else otherwise

    device, hardware, generated = (stated(name) for name in ("device", "hardware", "generated"))
    cut = stated("truncated_iterations")
    unused = _unused(graph)
    source = Source(
        path=str(graph.path),
        size_bytes=graph.size_bytes,
        rank=number("rank", NO_RANK),
        rank_from="",
        events=_counts(graph),
        unused=unused,
        findings={
            "activities without a launch record": int((table.launch_ns == NO_TIME).sum()),
            "communication kernels": int((table.kind == Kind.COMM).sum()),
            "streams": len(distinct(table.stream)),
            "dependencies on nodes that the file lacks": graph.data.dangling,
        },
        losses=tuple(graph.losses.notes),
        clock=_clock(graph, is_scheduled=is_scheduled),
        facts=_facts(graph),
        notes=tuple(_unread(graph.attributes)),
        doubts=tuple(
            Doubt(
                "types",
                len(names),
                len(graph),
                f"the schema known here has no type {kind}, that of {_shortened(names[0])}",
            )
            for kind, names in sorted(graph.unknown.items())
        ),
    )
    gpu = Gpu(
        0,
        source.rank,
        device if isinstance(device, int) else 0,
        hardware if isinstance(hardware, str) else "",
    )
    return Run(
        name=str(graph.path),
        table=table,
        side_tables=extras,
        gpus=(gpu,),
        sources=(source,),
        generated=generated if isinstance(generated, str) else None,
        partial_iterations={0: frozenset(cut if isinstance(cut, list) else ())},
        groups=_groups(graph),
        world=number("world_size", 0),
    )


def _groups(graph: ExecutionGraph) -> tuple[ProcessGroup, ...]:
    text = graph.metadata.get("process_groups")
    try:
        return msgspec.json.decode(str(text), type=tuple[ProcessGroup, ...]) if text else ()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ()


def _counts(graph: ExecutionGraph) -> dict[str, int]:
    is_gpu, is_host = graph.is_gpu, graph.is_host
    counts = {"GPU node": int(is_gpu.sum()), "CPU node": int(is_host.sum())}
    rest = len(graph) - sum(counts.values())
    return counts | ({"other node": rest} if rest else {})


def _unused(graph: ExecutionGraph) -> dict[str, int]:
    """Nodes that are neither activities nor anything known of the host, by why."""
    known = {
        f"node of the unknown type {kind}": len(names)
        for kind, names in sorted(graph.unknown.items())
    }
    untyped = ~graph.is_host & (graph.type == NodeType.INVALID)
    invalid = int(untyped.sum()) - sum(known.values())
    return known | ({"node without a type": invalid} if invalid > 0 else {})


def _clock(graph: ExecutionGraph, *, is_scheduled: bool) -> str:
    if is_scheduled:
        return SCHEDULE
    if graph.metadata.get(SIMULATED):
        return TICK_CLOCK
    if str(graph.metadata.get("schema", "")).startswith(SCHEMA):
        return f"{ONE_CLOCK}: the run that was exported"
    return "unknown: start times in µs from 0"


def _facts(graph: ExecutionGraph) -> dict[str, str]:
    collectives = int((graph.type == NodeType.COMM_COLL).sum())
    facts = {"format": graph.format}
    facts |= {"version": graph.version} if graph.version else {}
    stated = graph.metadata
    facts |= {name: str(stated[name]) for name in ("schema", "generator") if name in stated}
    if isinstance(ranks := graph.metadata.get("world_size"), int):
        facts["world size"] = str(ranks)
    facts["nodes"] = f"{len(graph):,}"
    facts["collectives"] = f"{collectives:,}"
    if "comm_size" in graph.attributes:
        facts["sent by collectives"] = f"{int(graph.numbers('comm_size', 0).sum()):,} B"
    facts["durations"] = f"{int(graph.duration_us.sum()):,} µs"
    facts["dependencies"] = f"{len(graph.data.to):,}"
    return facts


def _unread(attributes: Mapping[str, AttributeColumn]) -> list[str]:
    """A sentence for each attribute that no figure comes from."""
    found = []
    for name, column in attributes.items():
        if name not in USED and name not in (STATED, HOST, IDLE):
            types = ", ".join(dict.fromkeys(column.types))
            found.append(
                f"attribute {name}{f' ({types})' if types else ''} of {len(column.nodes):,} nodes, "
                f"such as {_shortened(column.values[0])}"
            )
    return found


def _shortened(value: object) -> str:
    return cut_text(repr(value), _MAX_SHOWN)
