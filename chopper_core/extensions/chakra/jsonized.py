"""The text of an `.et` that `chakra_jsonizer` writes: its messages as JSON, one after another."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import Any, Final

from chopper_core.extensions.chakra.graph import ExecutionGraph, GraphBuilder
from chopper_core.extensions.chakra.graph_run import TraceGraph
from chopper_core.extensions.chakra.schema import Attribute, Node, NodeType
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.text import FileHead
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

NAME: Final = "Chakra jsonizer"
FILES: Final = "`NAME.<rank>.json` of `chakra_jsonizer`, the text of an `.et`"
EXAMPLE: Final = "chakra_jsonizer --input_filename chakra.0.et --output_filename chakra.0.json"
SUFFIXES: Final = (".json",)
FORMAT: Final = "Chakra jsonizer text"
_TYPES: Final = {f"{each.name}_NODE": each for each in NodeType}
_NODE: Final = re.compile(rf'"type"\s*:\s*"(?:{"|".join(_TYPES)})"')
_SPACE: Final = re.compile(r"\s*")
_VALUE: Final = re.compile(r"(double|float|[us]?int\d\d|s?fixed\d\d|bool|string|bytes)(Val|List)")
_FLOATS: Final = ("double", "float")
_MAX_BYTES: Final = 1 << 30


def recognise(head: FileHead) -> Recognised | Unusable | None:
    is_text = head.is_json and _NODE.search(head.text) is not None
    return Recognised(FORMAT) if is_text and '"traceEvents"' not in head.text else None


def read(path: Path, progress: Progress = silent) -> ExecutionGraph:
    """Read the graph of a file.

    Nodes before damage are kept and losses are noted; raises DataError if there are none.
    """
    progress(f"read {path.name}", 0, 1)
    with ByteSource(path) as source:
        data = source.read_all(_MAX_BYTES, "; give the .et")
    builder = GraphBuilder(path, FORMAT, TraceGraph)
    version, metadata, nodes = "", dict[str, Any](), 0
    for number, message in enumerate(_messages(path, data, builder)):
        try:
            if number == 0 and "id" not in message:
                version = str(message.get("version", ""))
                metadata = {name: each.value for name, each in _attributes(message).items()}
                continue
            builder.add(_node(message))
            nodes += 1
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            if not nodes:
                raise DataError(f"{path} has an invalid node: {error}.") from error
            builder.losses.notes.append(
                f"node {nodes + 1:,} of the file is invalid; those before it are used"
            )
            break
    progress(f"read {path.name}", 1, 1)
    return builder.graph(version, metadata)


def _messages(path: Path, data: bytes, builder: GraphBuilder) -> Iterator[Mapping[str, Any]]:
    """The objects of a text; damage ends them and is noted."""
    text, at, decoder = data.decode("utf-8", "replace"), 0, JSONDecoder()
    while (at := _space(text, at)) < len(text):
        try:
            message, at = decoder.raw_decode(text, at)
        except (JSONDecodeError, RecursionError):
            builder.losses.truncated = True
            builder.losses.notes.append(f"{path} is damaged or truncated behind {at:,} characters")
            return
        if isinstance(message, dict):
            yield message


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _node(message: Mapping[str, Any]) -> Node:
    """A node; 64-bit numbers are text in protobuf's JSON, and defaults are left out."""
    return Node(
        id=_id(message.get("id", 0)),
        name=str(message.get("name", "")),
        type=_type(message.get("type", "INVALID_NODE")),
        ctrl_deps=[_id(each) for each in message.get("ctrlDeps", [])],
        data_deps=[_id(each) for each in message.get("dataDeps", [])],
        start_us=int(message.get("startTimeMicros", 0)),
        duration_us=int(message.get("durationMicros", 0)),
        inputs={key: str(text) for key, text in message.get("inputs", {}).items()},
        outputs={key: str(text) for key, text in message.get("outputs", {}).items()},
        attributes=_attributes(message),
    )


def _id(spelled: str | int) -> int:
    number = int(spelled)
    if not 0 <= number < 2**64:
        raise ValueError("it has a number that is no id")
    return number


def _type(spelled: str | int) -> int:
    """A type that the schema of the writer lacked is a number."""
    return spelled if isinstance(spelled, int) else _TYPES.get(spelled, NodeType.INVALID)


def _attributes(message: Mapping[str, Any]) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {}
    for each in message.get("attr", []):
        for key, value in each.items():
            if (match := _VALUE.fullmatch(key)) is None:
                continue
            kind = match[1]
            if match[2] == "Val":
                found[str(each.get("name", ""))] = Attribute(kind, _value(kind, value))
            else:
                values = [_value(kind, one) for one in value.get("values", [])]
                found[str(each.get("name", ""))] = Attribute(f"{kind}_list", values)
    return found


def _value(kind: str, value: Any) -> Any:
    if kind == "bytes":
        return base64.b64decode(value)
    if kind in ("bool", "string"):
        return value
    return float(value) if kind in _FLOATS else int(value)
