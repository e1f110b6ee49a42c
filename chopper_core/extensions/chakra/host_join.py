"""A host trace joined with the Kineto trace of its process: inputs and collectives of operators.

Operators are the same where both files give one record-function id; without ids, where both have
as many of a name, in the order in which they began. Only what Kineto lacks is taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.extensions.chakra.host_trace import (
    COMM,
    NCCL,
    HostNode,
    HostTrace,
    collective_of,
    input_texts,
    operator_texts,
    tensors_of,
)
from chopper_core.sources.kineto.events import KeptInputs, kept_inputs
from chopper_core.sources.trace import (
    Collective,
    HostCategory,
    InputTexts,
    OperatorTexts,
    Trace,
)
from chopper_core.tables.columns import Interner
from chopper_core.tables.losses import ABSENT


class HostJoin(Struct, frozen=True):
    """How much of a host trace was joined, and its contribution."""

    by: str
    """`record-function id` or `order`."""
    operators: int
    """Operators and annotations of the Kineto trace."""
    joined: int
    nodes: int
    shapes: int
    """Operators that got their inputs."""
    collectives: int
    """Ranges that got the size or the group of a collective."""
    tensors: int
    storages: int
    """Distinct ids of the joined nodes' inputs and outputs."""

    @property
    def text(self) -> str:
        return (
            f"{self.joined:,} of {self.operators:,} operators joined by {self.by} with its "
            f"{self.nodes:,} nodes ({self.tensors:,} tensors in {self.storages:,} storages); "
            f"inputs of {self.shapes:,} operators and arguments of {self.collectives:,} "
            "collective calls come from it"
        )


def join_host_trace(
    trace: Trace, host: HostTrace, ids: Mapping[tuple[str, int], int]
) -> tuple[Trace, HostJoin]:
    """The trace with the inputs and collectives that only the host trace has.

    `ids` are the record-function ids of Kineto's operators by name and start in ns.
    """
    by_id = _by_id(trace, host, ids)
    matched = by_id or _by_order(trace, host)
    inputs, input_codes = trace.ranges.inputs.copy(), _interned(trace.inputs)
    collective, collective_codes = trace.ranges.collective.copy(), _interned(trace.collectives)
    groups = {str(each.get("pg_name")): each for each in host.process_groups}
    called: dict[int, Collective | None] = {}
    nodes = {node.id: node for node in host.nodes}
    operators: dict[int, OperatorTexts] = {}
    shapes = 0
    for row, node in matched.items():
        if tensors_of(node):
            operators[row] = operator_texts(node)
        kept = kept_inputs(node.name)
        if inputs[row] == ABSENT and kept != KeptInputs.NOTHING:
            texts = input_texts(node)
            if texts[0]:
                given = InputTexts(*texts) if kept == KeptInputs.ALL else InputTexts(texts[0])
                inputs[row] = input_codes[given]
                shapes += 1
        call = node if node.name == COMM else nodes.get(node.parent)
        if node.name.startswith((COMM, NCCL)) and call is not None and call.name == COMM:
            if call.id not in called:
                called[call.id] = collective_of(call, groups)
            if (found := called[call.id]) is not None:
                own = int(collective[row])
                known = trace.collectives[own] if own != ABSENT else None
                collective[row] = collective_codes[_completed(known, found)]
    filled = int((collective != trace.ranges.collective).sum())
    seen = [tensor for node in matched.values() for tensor in tensors_of(node)]
    join = HostJoin(
        by="record-function id" if by_id else "order",
        operators=len(_rows(trace)),
        joined=len(matched),
        nodes=len(host.nodes),
        shapes=shapes,
        collectives=filled,
        tensors=len({tensor[0] for tensor in seen}),
        storages=len({tensor[1] for tensor in seen}),
    )
    ranges = replace(trace.ranges, inputs=inputs, collective=collective)
    completed = replace(
        trace,
        ranges=ranges,
        inputs=list(input_codes),
        collectives=list(collective_codes),
        operators=operators,
    )
    return completed, join


def _interned(values: Any) -> dict[Any, int]:
    codes: dict[Any, int] = Interner()
    for value in values:
        codes[value]
    return codes


def _completed(known: Collective | None, found: Collective) -> Collective:
    """A collective's arguments, those that Kineto lacks from the host trace."""
    if known is None:
        return found
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
    trace: Trace, host: HostTrace, ids: Mapping[tuple[str, int], int]
) -> dict[int, HostNode]:
    """Row of the trace's ranges → the node with its id and its name."""
    if not ids:
        return {}
    nodes = {node.record_function: node for node in host.nodes if node.record_function > 0}
    base = trace.base_time_ns or 0
    found = {}
    for row in _rows(trace):
        name = trace.names[trace.ranges.name[row]]
        node = nodes.get(ids.get((name, int(trace.ranges.start_ns[row]) - base), ABSENT))
        if node is not None and node.name == name:
            found[row] = node
    return found


def _by_order(trace: Trace, host: HostTrace) -> dict[int, HostNode]:
    rows: dict[str, list[int]] = defaultdict(list)
    for row in _rows(trace):
        rows[trace.names[trace.ranges.name[row]]].append(row)
    nodes: dict[str, list[HostNode]] = defaultdict(list)
    for node in host.nodes:
        nodes[node.name].append(node)
    return {
        row: node
        for name, own in nodes.items()
        if len(rows.get(name, ())) == len(own)
        for row, node in zip(rows[name], own, strict=True)
    }
