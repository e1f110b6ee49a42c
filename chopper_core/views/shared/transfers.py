"""Sends and receives whose other end is known, and which of them are one transfer."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from chopper_core.align.collectives import NODE_TYPE, RECEIVE, SEND
from chopper_core.model.attributes import NO_NODE, Attributes, nodes_at
from chopper_core.model.run import Run
from chopper_core.model.table import KernelTable, Kind
from chopper_core.util.arrays import Index

_PEERS = {SEND: "comm_dst", RECEIVE: "comm_src"}
"""The attribute that names the other end."""


class Transfer(Struct, frozen=True):
    """A send or a receive whose peer is one of the run's GPUs."""

    kind: str
    """SEND or RECEIVE."""
    sender: int
    """The GPU that sends."""
    receiver: int
    tag: int
    bytes: int


def transfers(run: Run, rows: Index) -> dict[int, Transfer]:
    """The sends and receives among some rows, by their row, as far as the trace names the peer."""
    table, attributes = run.table, run.side(Attributes)
    if not len(attributes):
        return {}
    ranks = [gpu.rank for gpu in run.gpus]
    gpu_of = {gpu.rank: gpu.index for gpu in run.gpus if ranks.count(gpu.rank) == 1}
    comm = rows[table.kind[rows] == Kind.COMM]
    found = {}
    for row, node in zip(comm.tolist(), nodes_at(table, comm).tolist(), strict=True):
        gpu = int(table.gpu[row])
        own = attributes.of(gpu, node) if node != NO_NODE else {}
        kind = own.get(NODE_TYPE, ("", ""))[1]
        tag = own.get("comm_tag", ("", 0))[1]
        if kind not in _PEERS or type(tag) is not int:
            continue
        peer = gpu_of.get(own.get(_PEERS[kind], ("", None))[1])
        if peer is None or peer == gpu:
            continue
        ends = (gpu, peer) if kind == SEND else (peer, gpu)
        found[row] = Transfer(kind, *ends, tag, int(table.bytes[row]))
    return found


def by_ends(
    table: KernelTable, found: Mapping[int, Transfer]
) -> dict[tuple[int, int, int], tuple[list[int], list[int]]]:
    """Sender, receiver and tag → the rows of its sends and of its receives, in order of start."""
    sides: dict[tuple[int, int, int], tuple[list[int], list[int]]] = {}
    for row in sorted(found, key=lambda row: (int(table.start_ns[row]), row)):
        one = found[row]
        both = sides.setdefault((one.sender, one.receiver, one.tag), ([], []))
        both[one.kind == RECEIVE].append(row)
    return sides


def other_ends(run: Run, rows: Index) -> dict[int, int]:
    """Send → its receive: the n-th with the same ends and tag, where there are as many of both."""
    sides = by_ends(run.table, transfers(run, rows)).values()
    return {
        send: receive
        for sends, receives in sides
        if len(sends) == len(receives)
        for send, receive in zip(sends, receives, strict=True)
    }
