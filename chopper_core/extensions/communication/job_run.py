"""Runs of a job's communication alone: collectives and messages of each rank, no compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import Struct, field

from chopper_core.align.rank_account import charged
from chopper_core.model.attributes import NODE_TYPE, Attributes, TypedValue, attribute_table
from chopper_core.model.column_names import NODE
from chopper_core.model.doubts import Doubt
from chopper_core.model.inputs import NO_DEVICE, Gpu, Source
from chopper_core.model.parallel import ProcessGroup
from chopper_core.model.run import Run
from chopper_core.model.side_table import side_tables
from chopper_core.model.table import NO_LABEL, NO_TIME, KernelTable, Kind, Rule
from chopper_core.model.tree import level_order
from chopper_core.tables.columns import Interner
from chopper_core.util.errors import DataError

PAIRWISE: Final = "send_recv"
_PEER: Final = {"COMM_SEND": "comm_dst", "COMM_RECV": "comm_src"}


class Operation(Struct):
    """A collective or message of a rank."""

    name: str
    """Its operation: `all_reduce`."""
    kernel: str
    group: str
    """The label of its process group."""
    start_ns: int
    duration_ns: int
    bytes: int
    """The larger side; -1 where it isn't known."""
    peer: tuple[str, int] | None = None
    """Of a message `COMM_SEND` or `COMM_RECV`, and the rank at the other end."""


class RankLog(Struct):
    """What a file says of a rank."""

    path: Path
    size_bytes: int
    rank: int
    rank_from: str
    format: str
    clock: str
    operations: Sequence[Operation]
    events: Mapping[str, int]
    unused: Mapping[str, int] = field(default_factory=dict)
    losses: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    host: str = ""
    doubts: tuple[Doubt, ...] = ()
    unread: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The names of fields that nothing is read from, by what has them."""


def run_of_logs(name: str, logs: Sequence[RankLog], groups: Sequence[ProcessGroup] = ()) -> Run:
    """The run of the logs of a job, a GPU per rank; raises DataError without an operation."""
    logs = sorted(logs, key=lambda log: log.rank)
    entries = [(gpu, each) for gpu, log in enumerate(logs) for each in log.operations]
    if not entries:
        why = logs[0].doubts[0].sentence if logs[0].doubts else "none of them has any times"
        raise DataError(f"{name} has no collectives to show: {why}.")
    table, attributes = _table(entries)
    order = level_order(table)
    ranks = {log.rank for log in logs}
    return Run(
        name=name,
        table=table.take(order),
        gpus=tuple(Gpu(gpu, log.rank, NO_DEVICE, "") for gpu, log in enumerate(logs)),
        sources=tuple(map(_source, logs)),
        groups=tuple(group for group in groups if ranks.issuperset(group.ranks)),
        world=max((len(group.ranks) for group in groups), default=len(logs)),
        side_tables=side_tables(attributes) if len(attributes) else {},
    )


def _table(entries: Sequence[tuple[int, Operation]]) -> tuple[KernelTable, Attributes]:
    names, operations, streams = Interner(), Interner(), Interner()
    count = len(entries)
    own = [each for _, each in entries]
    gpu = np.array([number for number, _ in entries], np.int32)
    kernel = np.array([names[each.kernel] for each in own], np.int32)
    operation = np.array([operations[each.name] for each in own], np.int32)
    stream = np.array([streams[each.group] for each in own], np.int64)
    group = np.array([names[each.group] if each.group else -1 for each in own], np.int32)
    start = np.array([each.start_ns for each in own], np.int64)
    duration = np.array([each.duration_ns for each in own], np.int64)
    kind = np.full(count, Kind.COMM, np.int8)
    nowhere, launch = np.full(count, NO_LABEL, np.int32), np.full(count, NO_TIME, np.int64)
    costs: dict[str, Any] = charged(
        gpu.astype(np.intp), start, duration, kind, stream, launch, nowhere
    )
    peers = [(number, row, each.peer) for row, (number, each) in enumerate(entries) if each.peer]
    found = [(number, row, _attributes(*peer)) for number, row, peer in sorted(peers)]
    measured = {}
    if found:
        measured[NODE] = np.full(count, np.nan)
        for _, row, _ in found:
            measured[NODE][row] = row
    no_rule = np.full(count, Rule.NONE, np.int8)
    table = KernelTable(
        names=tuple(names),
        operations=tuple(operations),
        gpu=gpu,
        iteration=nowhere,
        phase=nowhere.astype(np.int8),
        layer=nowhere,
        operation=operation,
        kernel=kernel,
        kind=kind,
        category=np.zeros(count, np.int8),
        stream=stream,
        start_ns=start,
        duration_ns=duration,
        launch_ns=launch,
        bytes=np.array([each.bytes for each in own], np.int64),
        group=group,
        iteration_rule=no_rule,
        phase_rule=no_rule,
        layer_rule=no_rule,
        operation_rule=np.full(count, Rule.COLLECTIVE, np.int8),
        measured=measured,
        **costs,
    )
    return table, attribute_table(found)


def _attributes(kind: str, peer: int) -> dict[str, TypedValue]:
    return {NODE_TYPE: ("string", kind), _PEER[kind]: ("int32", peer)}


def _source(log: RankLog) -> Source:
    return Source(
        path=str(log.path),
        size_bytes=log.size_bytes,
        rank=log.rank,
        rank_from=log.rank_from,
        events=log.events,
        unused=log.unused,
        findings={},
        losses=tuple(log.losses),
        clock=log.clock,
        facts={"format": log.format, **log.facts},
        host=log.host,
        doubts=log.doubts,
        unread=log.unread,
    )
