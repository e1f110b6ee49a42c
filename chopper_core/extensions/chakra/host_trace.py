"""Host traces of PyTorch (ExecutionTraceObserver): operators with inputs, without times.

Schemas 1.0.0 to 1.1.1-chakra.0.0.4 are read; the layout of 1.1.1-chakra.1.0.0 is another one.

A host trace is joined with the Kineto trace of its process: operators are the same where both files
give one record-function id; without ids, where both have as many of a name, in the order in which
they began. Only what Kineto lacks is taken.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from chopper_core.model.operator_inputs import json_in
from chopper_core.sources.kineto.events import COMPLETE, RANGE_CATEGORIES
from chopper_core.sources.kineto.text import TraceText
from chopper_core.sources.ranks import HostFile
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.sources.trace import Collective, HostCategory, InputTexts, OperatorTexts, Trace
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.columns import Interner, integer, nanoseconds
from chopper_core.tables.json_stream import members, skip_space
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.tables.text import HEAD_BYTES, FileHead
from chopper_core.util.atomic import FileState, file_state
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

NAME: Final = "PyTorch execution trace observer"
FILES: Final = "[`.json`](chakra.md#host-traces) next to each rank's Kineto trace"
EXAMPLE: Final = 'ExecutionTraceObserver().register_callback("rank0_et.json")'
SUFFIXES: Final = (".json",)
FORMAT: Final = "PyTorch execution trace"
SCHEMAS: Final = (
    "1.0.0",
    "1.0.1",
    "1.0.2-chakra.0.0.4",
    "1.0.3-chakra.0.0.4",
    "1.1.0-chakra.0.0.4",
    "1.1.1-chakra.0.0.4",
)
_KEYS: Final = frozenset(("schema", "nodes"))
_NODE_KEY: Final = b'"rf_id"'
_ACTIVITY: Final = re.compile(rb'"cat"\s*:\s*"(?:kernel|gpu_memcpy|gpu_memset)"')
_MAX_KEY_BYTES: Final = 64
"""More than that match takes."""
_RANK: Final = re.compile(r"(?:^|[^0-9])(\d+)\D*$")
_MAX_BYTES: Final = 1 << 32
_TENSOR: Final = "Tensor("
_LIST: Final = "GenericList["
_TENSOR_FIELDS: Final = 5
"""Of a tensor's value: id, storage, offset, elements, bytes of an element, and the device."""
COMM: Final = "record_param_comms"
NCCL: Final = "nccl:"
_WAIT: Final = "wait"
_NO_RAW: Final = Raw(b"[]")
_PLAIN_TYPES: Final = {
    "long int": "long",
    "signed char": "char",
    "unsigned char": "byte",
    "short int": "short",
}
"""Types as Kineto spells them."""


class _NamedValue(Struct):
    name: str = ""
    value: Any = None


class _IO(Struct):
    """Inputs or outputs since 1.0.2."""

    values: Raw = _NO_RAW
    shapes: Raw = _NO_RAW
    types: Raw = _NO_RAW
    strides: Raw = _NO_RAW


class HostNode(Struct):
    """An operator or range of any schema; inputs and outputs are JSON texts."""

    id: int
    name: str = ""
    rf_id: int = 0
    """The id that Kineto has as `Record function id`; 0 for none."""
    parent: int = 0
    ctrl_deps: int = 0
    """The parent since 1.0.2."""
    inputs: Raw = _NO_RAW
    input_shapes: Raw = _NO_RAW
    input_types: Raw = _NO_RAW
    input_strides: Raw = _NO_RAW
    outputs: Raw = _NO_RAW
    attrs: list[_NamedValue] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rf_id = _whole(self.attributes.get("rf_id"), self.rf_id)
        self.parent = self.parent or self.ctrl_deps
        if bytes(self.inputs).lstrip().startswith(b"{"):
            own = msgspec.json.decode(self.inputs, type=_IO)
            self.inputs, self.input_shapes = own.values, own.shapes
            self.input_types, self.input_strides = own.types, own.strides
            self.outputs = msgspec.json.decode(self.outputs, type=_IO).values

    @property
    def attributes(self) -> dict[str, Any]:
        return {each.name: each.value for each in self.attrs}


class HostTrace(Struct, frozen=True):
    """The nodes of one process, in the order in which they began."""

    schema: str
    nodes: Sequence[HostNode]
    process_groups: Mapping[str, Mapping[str, Any]]
    """By `pg_name`: `pg_desc`, `ranks`, `group_size`, from `## process_group:init ##`."""

    def joined(self, trace: Trace) -> tuple[Trace, str]:
        """The Kineto trace of the process with what only this one has, and a sentence on it."""
        return _joined(trace, self, _record_functions(trace.path))


def recognise(head: FileHead) -> Recognised | Unusable | None:
    return Recognised(FORMAT) if host_trace_head(head) is not None else None


def host_trace_head(head: FileHead, *, linked: bool = False) -> HostFile | None:
    """A host trace by its head; None for others, and for linked ones unless they are asked for."""
    if not head.is_json:
        return None
    start = skip_space(head.data)
    if head.data[start : start + 1] != b"{":
        return None
    found = {
        member.key: head.data[member.start : member.end]
        for member in members(head.data, start + 1, stop_at="nodes")
    }
    if "nodes" in found and "schema" not in found and _NODE_KEY in head.data:
        # Sorted by name, the nodes come first.
        found |= _members_behind(head.path, file_state(head.path))
    if not found.keys() >= _KEYS or (not linked and is_linked(head.path)):
        return None
    process = found.get("pid", b"").strip()
    match = _RANK.search(head.path.name.partition(".json")[0])
    return HostFile(
        head.path,
        int(process) if re.fullmatch(rb"\d{1,18}", process) else ABSENT,
        int(match[1]) if match else None,
    )


def is_linked(path: Path) -> bool:
    """Whether a host trace has nodes of a GPU's activities, as `chakra_trace_link` adds them."""
    return _is_linked(path, file_state(path))


@lru_cache(64)
def _is_linked(path: Path, _state: FileState) -> bool:
    before = b""
    with suppress(DataError), ByteSource(path) as source:
        while piece := source.read():
            before += piece
            if _ACTIVITY.search(before):
                return True
            before = before[-_MAX_KEY_BYTES:]
    return False


@lru_cache(64)
def _members_behind(path: Path, _state: FileState) -> dict[str, bytes]:
    """The last members of the object in a file, behind its list of nodes."""
    end = b""
    with suppress(DataError), ByteSource(path) as source:
        while piece := source.read():
            end = (end + piece)[-HEAD_BYTES:]
    comma = skip_space(end, end.rfind(b"]") + 1)
    behind = members(end, comma + 1) if end[comma : comma + 1] == b"," else ()
    return {member.key: end[member.start : member.end] for member in behind}


class _Document(Struct):
    schema: str
    nodes: Raw = _NO_RAW


AnyNode = TypeVar("AnyNode", bound=HostNode)


def read(path: Path, progress: Progress = silent) -> HostTrace:
    """Read a host trace; raises DataError if it can't be decoded or has an unknown schema."""
    schema, nodes = document_of(path, HostNode, progress)
    # Ids of record functions count their starts; nodes of threads and processes have none.
    ordered = sorted(nodes, key=lambda node: (node.rf_id, node.id))
    return HostTrace(schema, ordered, groups_in(nodes))


def document_of(
    path: Path, kind: type[AnyNode], progress: Progress
) -> tuple[str, Sequence[AnyNode]]:
    """The schema and the nodes of a file; raises DataError as `read` does."""
    progress(f"read {path.name}", 0, 1)
    with ByteSource(path) as source:
        data = source.read_all(_MAX_BYTES)
    try:
        document = msgspec.json.decode(data, type=_Document)
        if document.schema not in SCHEMAS:
            raise DataError(
                f"{path} is a host trace of the schema {document.schema}, which is not read; "
                f"those read are {', '.join(SCHEMAS)}."
            )
        nodes: list[AnyNode] = msgspec.json.decode(document.nodes, type=list[kind])  # type: ignore[valid-type]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        why = source.problem or error
        raise DataError(f"{path} can't be read as a host trace: {why}.") from error
    progress(f"read {path.name}", 1, 1)
    return document.schema, nodes


def groups_in(nodes: Sequence[HostNode]) -> dict[str, Mapping[str, Any]]:
    """The process groups that nodes list, by `pg_name`."""
    return {
        str(group.get("pg_name")): group
        for node in nodes
        if "process_group:init" in node.name
        for group in _groups(node)
    }


def node_texts(node: HostNode) -> OperatorTexts:
    """Inputs and outputs of an operator as texts of Python lists."""
    parts = (node.inputs, node.input_shapes, node.input_types, node.outputs)
    return OperatorTexts(*(str(_json(each)) for each in parts))


def _whole(value: object, other: int) -> int:
    return value if type(value) is int else other


def _groups(node: HostNode) -> list[Mapping[str, Any]]:
    values = _json(node.inputs)
    listed = _json(values[0].encode()) if values and isinstance(values[0], str) else values
    return [each for each in listed if isinstance(each, dict)]


def _json(text: bytes) -> list[Any]:
    found = json_in(text)
    return found if isinstance(found, list) else []


def _input_texts(node: HostNode) -> list[str]:
    """Shapes, types, values and strides of a node's inputs as Kineto spells them, as JSON texts."""
    types, shapes, values, strides = map(
        _json, (node.input_types, node.input_shapes, node.inputs, node.input_strides)
    )
    kinds = [each if isinstance(each, str) else "" for each in types]
    sizes: list[list[Any]] = [[], []]
    concrete = []
    for place, kind in enumerate(kinds):
        is_tensor = kind.startswith((_TENSOR, _LIST + _TENSOR))
        for own, given in zip(sizes, (shapes, strides), strict=True):
            own.append(given[place] if is_tensor and place < len(given) else [])
        value = values[place] if place < len(values) and not is_tensor else None
        # As Python spells it, like Kineto's `Concrete Inputs`.
        concrete.append("" if value in ("<None>", None) else str(value))
    texts = (sizes[0], [_kineto_type(kind) for kind in kinds], concrete, strides and sizes[1])
    return [msgspec.json.encode(each).decode() if each else "" for each in texts]


def _kineto_type(kind: str) -> str:
    if kind.startswith(_TENSOR):
        return kind.removeprefix(_TENSOR).removesuffix(")")
    if kind.startswith(_LIST + _TENSOR):
        return "TensorList"
    if kind.startswith(_LIST):
        return "ScalarList"
    return "Scalar" if kind in ("Int", "Double", "Bool", "SymInt", "Float") else ""


def node_collective(node: HostNode, groups: Mapping[str, Mapping[str, Any]]) -> Collective | None:
    """The arguments of a `record_param_comms` node; None for a wait."""
    attributes, values = node.attributes, _json(node.inputs)
    name = attributes.get("collective_name")
    if not isinstance(name, str):
        texts = (each for each in values if isinstance(each, str) and each.isidentifier())
        name = next(texts, "")
    if name == _WAIT:
        return None
    sent, received = _tensors(values), _tensors(_json(node.outputs))
    dtype = attributes.get("dtype")
    types = [each for each in _json(node.input_types) if isinstance(each, str)]
    kinds = [kind for each in types for kind in re.findall(r"Tensor\(([^)]*)\)", each)]
    spelling = dtype if isinstance(dtype, str) and dtype else next(iter(kinds), "")
    # The name and the description of a process group, since 1.0.3.
    pair = next((v for v in values if isinstance(v, list) and [*map(type, v)] == [str, str]), None)
    group = str(attributes.get("pg_name") or (pair[0] if pair else ""))
    listed = groups.get(group, {})
    size = attributes.get("pg_size", listed.get("group_size"))
    ranks = listed.get("ranks")
    return Collective(
        name=name,
        in_elements=_whole(attributes.get("in_msg_nelems"), _elements(sent)),
        out_elements=_whole(attributes.get("out_msg_nelems"), _elements(received)),
        dtype=_PLAIN_TYPES.get(spelling, spelling),
        group_size=size if type(size) is int else ABSENT,
        group_name=group,
        group_description=str(attributes.get("pg_desc") or (pair[1] if pair else "")),
        group_ranks=msgspec.json.encode(ranks).decode() if isinstance(ranks, list) else "",
    )


def _tensors(values: Sequence[Any]) -> list[list[Any]]:
    """The tensors among values: id, storage, offset, elements, bytes of an element, device."""
    found: list[list[Any]] = []
    for each in values:
        if not isinstance(each, list):
            continue
        numbers = each[:_TENSOR_FIELDS]
        is_tensor = len(each) == _TENSOR_FIELDS + 1 and isinstance(each[-1], str)
        if is_tensor and all(type(number) is int for number in numbers):
            found.append(each)
        else:
            found += _tensors(each)
    return found


def _elements(tensors: Sequence[Sequence[Any]]) -> int:
    return sum(each[3] for each in tensors) if tensors else ABSENT


def _joined(trace: Trace, host: HostTrace, ids: Mapping[tuple[str, int], int]) -> tuple[Trace, str]:
    """The trace with the inputs and collectives that only the host trace has, and a sentence.

    `ids` are the record-function ids of Kineto's operators by name and start in ns.
    """
    # The reader of Kineto's events is heavy, and most runs have no host traces.
    from chopper_core.sources.kineto.events import KeptInputs, kept_inputs

    rows = _rows(trace)
    by_id = _by_id(trace, host, rows, ids)
    matched = by_id or _by_order(trace, host, rows)
    inputs, collective = trace.ranges.inputs.copy(), trace.ranges.collective.copy()
    input_codes = Interner(zip(trace.inputs, count()))
    collective_codes = Interner(zip(trace.collectives, count()))
    called: dict[int, Collective | None] = {}
    nodes = {node.id: node for node in host.nodes}
    operators: dict[int, OperatorTexts] = {}
    tensors: set[int] = set()
    storages: set[int] = set()
    shapes = 0
    for row, node in matched.items():
        if own_tensors := [*_tensors(_json(node.inputs)), *_tensors(_json(node.outputs))]:
            operators[row] = node_texts(node)
            tensors.update(tensor[0] for tensor in own_tensors)
            storages.update(tensor[1] for tensor in own_tensors)
        kept = kept_inputs(node.name)
        own = trace.inputs[inputs[row]] if inputs[row] != ABSENT else InputTexts("")
        if kept != KeptInputs.NOTHING and not own.values:
            texts = _input_texts(node)
            given = InputTexts(*(texts if kept == KeptInputs.ALL else texts[:1]))
            if own.shapes:
                # Kineto's own count; the numbers that it lacks are of a call with its shapes.
                is_same = _json(own.shapes.encode()) == _json(given.shapes.encode())
                given = replace(own, values=given.values) if is_same else own
            if given.shapes and given != own:
                inputs[row] = input_codes[given]
                shapes += 1
        call = node if node.name == COMM else nodes.get(node.parent)
        if node.name.startswith((COMM, NCCL)) and call is not None and call.name == COMM:
            if call.id not in called:
                called[call.id] = node_collective(call, host.process_groups)
            if (found := called[call.id]) is not None:
                own = int(collective[row])
                known = trace.collectives[own] if own != ABSENT else Collective()
                collective[row] = collective_codes[_completed(known, found)]
    filled = int((collective != trace.ranges.collective).sum())
    completed = replace(
        trace,
        ranges=replace(trace.ranges, inputs=inputs, collective=collective),
        inputs=list(input_codes),
        collectives=list(collective_codes),
        operators=operators,
    )
    return completed, (
        f"(schema {host.schema}): {len(matched):,} of {len(rows):,} operators joined by "
        f"{'record-function id' if by_id else 'order'} with its {len(host.nodes):,} nodes "
        f"({len(tensors):,} tensors in {len(storages):,} storages); inputs of {shapes:,} operators "
        f"and arguments of {filled:,} collective calls come from it"
    )


def _completed(known: Collective, found: Collective) -> Collective:
    """A collective's arguments, those that Kineto lacks from the host trace."""
    plain = Collective()
    lacks = {
        name: getattr(found, name)
        for name in Collective.__struct_fields__
        if getattr(known, name) == getattr(plain, name)
    }
    return replace(known, **lacks)


def _rows(trace: Trace) -> list[int]:
    """The operators and annotations in the order in which they began, the outer one first."""
    ranges = trace.ranges
    kinds = (HostCategory.OPERATOR, HostCategory.ANNOTATION)
    rows = np.flatnonzero(np.isin(ranges.category, kinds))
    order = np.lexsort((-ranges.duration_ns[rows], ranges.start_ns[rows]))
    found: list[int] = rows[order].tolist()
    return found


def _by_id(
    trace: Trace, host: HostTrace, rows: Sequence[int], ids: Mapping[tuple[str, int], int]
) -> dict[int, HostNode]:
    """Row of the trace's ranges → the node with its id and its name."""
    nodes = {node.rf_id: node for node in host.nodes if node.rf_id > 0}
    base = trace.base_time_ns or 0
    found = {}
    for row in rows if ids else ():
        name = trace.names[trace.ranges.name[row]]
        node = nodes.get(ids.get((name, int(trace.ranges.start_ns[row]) - base), ABSENT))
        if node is not None and node.name == name:
            found[row] = node
    return found


def _by_order(trace: Trace, host: HostTrace, rows: Sequence[int]) -> dict[int, HostNode]:
    of_name: dict[str, tuple[list[int], list[HostNode]]] = defaultdict(lambda: ([], []))
    for row in rows:
        of_name[trace.names[trace.ranges.name[row]]][0].append(row)
    for node in host.nodes:
        of_name[node.name][1].append(node)
    return {
        row: node
        for own, nodes in of_name.values()
        if len(own) == len(nodes)
        for row, node in zip(own, nodes, strict=True)
    }


def _record_functions(path: Path) -> dict[tuple[str, int], int]:
    """Name and start in ns on the file's clock → the id, of operators and annotations with one.

    Two that share name and start have none.
    """
    found: dict[tuple[str, int], int] = {}
    with ByteSource(path) as source:
        for events in TraceText(source, Losses()).batches():
            own = [
                event
                for event in events
                if event.ph == COMPLETE
                and event.cat in RANGE_CATEGORIES
                and event.args is not None
                and event.args.record_function != ABSENT
            ]
            starts, usable = nanoseconds([event.ts for event in own])
            for event, start, is_usable in zip(own, starts.tolist(), usable.tolist(), strict=True):
                number = integer(event.args.record_function) if event.args else None
                if is_usable and number is not None and number > 0:
                    key = (event.name, start)
                    found[key] = ABSENT if key in found else number
    return {key: number for key, number in found.items() if number != ABSENT}
