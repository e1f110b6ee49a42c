"""Runs of a job's communication alone: collectives and messages of each rank, no compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from chopper_core.tables.columns import Interner
from chopper_core.util.arrays import Int8, Int32, Int64
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import distinct

PAIRWISE: Final = "send_recv"
_PEER: Final = {"COMM_SEND": "comm_dst", "COMM_RECV": "comm_src"}
MESSAGES: Final = tuple(_PEER)


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


class OperationColumns(Struct, frozen=True, eq=False):
    """The operations of a rank as columns: of a million each is small."""

    texts: Sequence[str]
    name: Int32
    """Code of a text, as the next two."""
    kernel: Int32
    group: Int32
    start_ns: Int64
    duration_ns: Int64
    bytes: Int64
    kind: Int8
    """Of a message the place in `MESSAGES` of its kind, else -1."""
    peer: Int32

    def __len__(self) -> int:
        return len(self.name)

    @classmethod
    def of(cls, operations: Iterable[Operation]) -> OperationColumns:
        texts = Interner()
        every = [*operations]
        peers = [each.peer or ("", -1) for each in every]
        name, kernel, group = (
            np.array([texts[getattr(each, column)] for each in every], np.int32)
            for column in ("name", "kernel", "group")
        )
        return cls(
            texts=[*texts],
            name=name,
            kernel=kernel,
            group=group,
            start_ns=np.array([each.start_ns for each in every], np.int64),
            duration_ns=np.array([each.duration_ns for each in every], np.int64),
            bytes=np.array([each.bytes for each in every], np.int64),
            kind=np.array([MESSAGES.index(kind) if kind else -1 for kind, _ in peers], np.int8),
            peer=np.array([peer for _, peer in peers], np.int32),
        )


class RankLog(Struct):
    """What a file says of a rank."""

    path: Path
    size_bytes: int
    rank: int
    rank_from: str
    format: str
    clock: str
    operations: OperationColumns
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
    if not any(len(log.operations) for log in logs):
        why = logs[0].doubts[0].sentence if logs[0].doubts else "none of them has any times"
        raise DataError(f"{name} has no collectives to show: {why}.")
    table, attributes = _table([log.operations for log in logs])
    ranks = {log.rank for log in logs}
    return Run(
        name=name,
        table=table,
        gpus=tuple(Gpu(gpu, log.rank, NO_DEVICE, "") for gpu, log in enumerate(logs)),
        sources=tuple(map(_source, logs)),
        groups=tuple(group for group in groups if ranks.issuperset(group.ranks)),
        world=max((len(group.ranks) for group in groups), default=len(logs)),
        side_tables=side_tables(attributes) if len(attributes) else {},
    )


def _table(logs: Sequence[OperationColumns]) -> tuple[KernelTable, Attributes]:
    names, operations, streams = Interner(), Interner(), Interner()
    sizes = [len(each) for each in logs]
    count = sum(sizes)

    def joined(column: str) -> Any:
        return np.concatenate([getattr(each, column) for each in logs])

    def coded(column: str, codes: Callable[[str], int], kind: Any = np.int32) -> Any:
        """The codes of a column of texts, found once for each text of a rank."""
        found = []
        for each in logs:
            own = getattr(each, column)
            used = distinct(own).tolist()
            code = np.full(len(each.texts), -1, kind)
            code[used] = [codes(each.texts[at]) for at in used]
            found.append(code[own])
        return np.concatenate(found)

    own: dict[str, Any] = {
        "gpu": np.repeat(np.arange(len(logs), dtype=np.int32), sizes),
        "operation": coded("name", operations.__getitem__),
        "kernel": coded("kernel", names.__getitem__),
        "stream": coded("group", streams.__getitem__, np.int64),
        "start_ns": joined("start_ns"),
    }
    # That of the levels, of which the others have no labels.
    order = np.lexsort([own[name] for name in ("stream", "start_ns", "kernel", "operation", "gpu")])
    own |= {name: joined(name) for name in ("duration_ns", "bytes")}
    own["group"] = coded("group", lambda text: names[text] if text else -1)
    for name in own:
        own[name] = own[name][order]
    message, peer = joined("kind")[order], joined("peer")[order]
    del order
    kind = np.full(count, Kind.COMM, np.int8)
    nowhere, launch = np.full(count, NO_LABEL, np.int32), np.full(count, NO_TIME, np.int64)
    places = (own[name] for name in ("gpu", "start_ns", "duration_ns"))
    costs: dict[str, Any] = charged(*places, kind, own["stream"], launch, nowhere)
    at = np.flatnonzero(message >= 0)
    ends = (each[at].tolist() for each in (own["gpu"], message, peer))
    known: dict[tuple[int, int], dict[str, TypedValue]] = {}
    found = []
    for row, number, place, other in zip(at.tolist(), *ends, strict=True):
        if (place, other) not in known:
            known[place, other] = _attributes(MESSAGES[place], other)
        found.append((number, row, known[place, other]))
    measured = {}
    if len(at):
        measured[NODE] = np.full(count, np.nan)
        measured[NODE][at] = at
    no_rule = np.full(count, Rule.NONE, np.int8)
    table = KernelTable(
        names=tuple(names),
        operations=tuple(operations),
        **own,
        iteration=nowhere,
        phase=nowhere.astype(np.int8),
        layer=nowhere,
        kind=kind,
        category=np.zeros(count, np.int8),
        launch_ns=launch,
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
