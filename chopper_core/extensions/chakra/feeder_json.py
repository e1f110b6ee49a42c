"""The JSON that Chakra's feeder reads: one object with the nodes in `workload_graph`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import structs

from chopper_core.extensions.chakra.graph import ExecutionGraph, GraphBuilder
from chopper_core.extensions.chakra.graph_run import TraceGraph
from chopper_core.extensions.chakra.schema import Attribute, Node, NodeFields, typed
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.text import FileHead
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

NAME: Final = "Chakra feeder"
FILES: Final = "`chakra.<rank>.json`, the feeder's JSON of the same graph"
EXAMPLE: Final = ""
SUFFIXES: Final = (".json",)
FORMAT: Final = "Chakra feeder JSON"
_KEY: Final = "workload_graph"
_FIELDS: Final = {
    "id": "id",
    "name": "name",
    "nodetype": "type",
    "data_deps": "data_deps",
    "datadeps": "data_deps",
    "ctrl_deps": "ctrl_deps",
    "ctrldeps": "ctrl_deps",
    "runtime": "duration_us",
    "start_time": "start_us",
}
"""Keys, of any case, and the fields of a node; every other key is an attribute."""
_MAX_BYTES: Final = 1 << 30


def recognise(head: FileHead) -> Recognised | Unusable | None:
    return Recognised(FORMAT) if head.is_json and f'"{_KEY}"' in head.text else None


def read(path: Path, progress: Progress = silent) -> ExecutionGraph:
    progress(f"read {path.name}", 0, 1)
    document, nodes = decoded_node(path)
    builder = GraphBuilder(path, FORMAT, TraceGraph)
    try:
        for node in nodes:
            builder.add(node)
        progress(f"read {path.name}", 1, 1)
        return builder.graph("", document)
    except OverflowError as error:
        raise DataError(f"{path} has a number of more than 64 bits: {error}.") from error


def decoded_node(path: Path) -> tuple[dict[str, Any], Iterator[Node]]:
    """The metadata and the nodes of a file; raises DataError, at an invalid node once it comes."""
    with ByteSource(path) as source:
        data = source.read_all(_MAX_BYTES, "; give the .et")
    try:
        document = msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        why = source.problem or error
        raise DataError(f"{path} can't be read as Chakra JSON: {why}.") from error
    nodes = document.pop(_KEY, None) if isinstance(document, dict) else None
    if not isinstance(nodes, list):
        raise DataError(f"{path} has no list {_KEY!r} of nodes.")
    return document, (_node(path, number, fields) for number, fields in enumerate(nodes, 1))


def _node(path: Path, number: int, fields: Any) -> Node:
    if not isinstance(fields, dict):
        raise DataError(f"{path} has a node, the {number}th, that is no object.")
    known: dict[str, Any] = {}
    attributes: dict[str, Attribute] = {}
    for key, value in fields.items():
        if name := _FIELDS.get(key.casefold()):
            known[name] = value
        else:
            attributes[key] = typed(value)
    try:
        if "id" not in known:
            raise msgspec.ValidationError("it has no id")
        own = msgspec.convert(known, NodeFields)
    except msgspec.ValidationError as error:
        raise DataError(f"{path} has an invalid node, the {number}th: {error}.") from error
    return Node(**structs.asdict(own), attributes=attributes)
