"""A host trace joined with the Kineto trace of its process: inputs and collectives of operators.

Operators are the same where both files give one record-function id; without ids, where both have
as many of a name, in the order in which they began. Only what Kineto lacks is taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
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


def join_host_trace(
    trace: Trace, host: HostTrace, ids: Mapping[tuple[str, int], int]
) -> tuple[Trace, str]:
    """The trace with the inputs and collectives that only the host trace has, and a sentence.

    `ids` are the record-function ids of Kineto's operators by name and start in ns.
    """
    rows = _rows(trace)
    by_id = _by_id(trace, host, rows, ids)
    matched = by_id or _by_order(trace, host, rows)
    inputs, input_codes = trace.ranges.inputs.copy(), _interned(trace.inputs)
    collective, collective_codes = trace.ranges.collective.copy(), _interned(trace.collectives)
    groups = {str(each.get("pg_name")): each for each in host.process_groups}
    called: dict[int, Collective | None] = {}
    nodes = {node.id: node for node in host.nodes}
    operators: dict[int, OperatorTexts] = {}
    tensors: set[int] = set()
    storages: set[int] = set()
    shapes = 0
    for row, node in matched.items():
        if own_tensors := tensors_of(node):
            operators[row] = operator_texts(node)
            tensors.update(tensor[0] for tensor in own_tensors)
            storages.update(tensor[1] for tensor in own_tensors)
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
        f"{len(matched):,} of {len(rows):,} operators joined by "
        f"{'record-function id' if by_id else 'order'} with its {len(host.nodes):,} nodes "
        f"({len(tensors):,} tensors in {len(storages):,} storages); inputs of {shapes:,} operators "
        f"and arguments of {filled:,} collective calls come from it"
    )


def _interned(values: Any) -> dict[Any, int]:
    codes: dict[Any, int] = Interner()
    for value in values:
        codes[value]
    return codes


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
    nodes = {node.record_function: node for node in host.nodes if node.record_function > 0}
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
