"""ASTRA-sim's workload layer on its analytical network, written anew from its source.

It says which ranks finish. Attributes are read as the C++ reads them; a node is issued at an event
when its dependencies are done and its resource is free, the lowest id first; a collective is cut
into chunks, which end when all members sent messages of one size with one stream id; a receive ends
with its message. Sources: astra-sim `Workload.cc`, `HardwareResource.cc`, `Sys.cc`, `DataSet.cc`,
`Ring.cc`, `CommonNetworkApi.cc`, `feeder_v3`. Broadcasts, which are replayed on each rank by itself
so far, are held to the rule of the others.
"""

from __future__ import annotations

import heapq
import json
import random
from collections import defaultdict
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

from chopper_core.extensions.chakra.et import EtFile
from chopper_core.extensions.chakra.schema import Node, NodeType

INTEGERS = ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool")
ALL_REDUCE, ALL_GATHER, BROADCAST, ALL_TO_ALL, REDUCE_SCATTER = 0, 2, 5, 6, 7
SIMULATED = {ALL_REDUCE, ALL_GATHER, BROADCAST, ALL_TO_ALL, REDUCE_SCATTER}
SPLITS = 4
"""`preferred-dataset-splits` of ASTRA-sim's examples."""
STREAMS_OF_A_GROUP = 1_000_000


class Aborted(Exception):
    """ASTRA-sim ends with an error."""


def number(node: Node, name: str, default: int | None = None) -> int:
    attribute = node.attributes.get(name)
    if attribute is None:
        if default is None:
            raise Aborted(f"Attribute {name} not found")
        return default
    if attribute.type not in INTEGERS:
        raise Aborted("bad cast")
    return int(attribute.value) % 2**64  # type: ignore[arg-type]


def group_of(node: Node) -> int:
    """0 for the group of all ranks."""
    attribute = node.attributes.get("pg_name")
    if attribute is None or attribute.value in ("", "0"):
        return 0
    if attribute.type != "string":
        raise Aborted("bad cast")
    digits = ""
    for at, character in enumerate(str(attribute.value).lstrip()):
        if not ((character.isascii() and character.isdigit()) or (at == 0 and character in "+-")):
            break
        digits += character
    if not digits.strip("+-"):
        raise Aborted("stoi")
    return int(digits)


def finished(
    folder: Path,
    delay: Callable[[int], int] = lambda size: 500 + size,
    *,
    rendezvous: bool = False,
) -> list[int]:
    """The ranks that finish; `delay` is the time of a message by its bytes. Raises Aborted.

    With `rendezvous`, an option of ASTRA-sim, a send ends with its receive.
    """
    return _loaded(folder, delay, rendezvous).run()


def simulated_log(folder: Path, delay: Callable[[int], int]) -> str:
    """The log of events that ASTRA-sim writes with `"trace-enabled": 1`; raises Aborted."""
    simulation = _loaded(folder, delay, rendezvous=False)
    simulation.run()
    return "\n".join(simulation.log) + "\n"


def ring_of(gb_s: float) -> Callable[[int], int]:
    """A network of rings without latency: 1 GB/s is a byte per ns."""
    return lambda size: round(size / gb_s)


def _loaded(folder: Path, delay: Callable[[int], int], rendezvous: bool) -> _Simulation:
    paths = {int(path.name.split(".")[-2]): path for path in folder.glob("*.et")}
    listed = folder / "comm_group.json"
    groups = {
        int(key): ranks
        for key, ranks in (json.loads(listed.read_text()) if listed.exists() else {}).items()
    }
    nodes = []
    for rank in range(len(paths)):
        if rank not in paths:
            raise Aborted("workload file does not exist")
        with EtFile(paths[rank]) as file:
            nodes.append({node.id: node for node in file})
    return _Simulation(nodes, groups, delay, rendezvous)


def random_delay(seed: int) -> Callable[[int], int]:
    """A network of a random speed, whose messages take a random part more."""
    draw = random.Random(seed)
    latency, per_byte = draw.choice((1, 1_000, 10**6)), draw.choice((0.0, 0.01, 1.0, 50.0))
    return lambda size: int((latency + size * per_byte) * draw.uniform(1, 3))


class _Simulation:
    def __init__(
        self,
        nodes: list[dict[int, Node]],
        groups: dict[int, list[int]],
        delay: Callable[[int], int],
        rendezvous: bool,
    ) -> None:
        self.nodes, self.groups, self.delay, self.rendezvous = nodes, groups, delay, rendezvous
        ranks = range(len(nodes))
        self.log: list[str] = []
        self.now = self.counter = 0
        self.events: list[tuple[int, int, int, Callable[[int], None]]] = []
        self.parents: list[dict[int, set[int]]] = []
        self.children: list[dict[int, list[int]]] = []
        for own in nodes:
            parents = {n: {*node.data_deps, *node.ctrl_deps} for n, node in own.items()}
            children: dict[int, list[int]] = {n: [] for n in own}
            for n, needs in parents.items():
                for need in needs:
                    if need not in own:
                        raise Aborted("not found in index")
                    children[need].append(n)
            if all(parents.values()):
                raise Aborted("No dependancy free nodes found")
            self.parents.append(parents)
            self.children.append(children)
        self.free = [{n for n, needs in own.items() if not needs} for own in self.parents]
        self.ongoing = [set[int]() for _ in ranks]
        self.in_flight: list[dict[str, int]] = [defaultdict(int) for _ in ranks]
        self.is_finished = [False for _ in ranks]
        self.streams: defaultdict[tuple[int, int], int] = defaultdict(int)
        self.chunks: defaultdict[Any, dict[int, Any]] = defaultdict(dict)
        self.open_chunks: dict[tuple[int, int], int] = {}
        self.sent: defaultdict[Any, list[tuple[int, int, int]]] = defaultdict(list)
        self.receives: defaultdict[Any, list[tuple[int, int, int]]] = defaultdict(list)
        """By ends, tag and size: time, rank and node of those without their other end."""

    def run(self) -> list[int]:
        for rank in range(len(self.nodes)):
            self.call(rank)
        while self.events:
            self.now, _, rank, what = heapq.heappop(self.events)
            what(rank)
        return [rank for rank, done in enumerate(self.is_finished) if done]

    def at(self, time: int, rank: int, what: Callable[[int], None]) -> None:
        self.counter += 1
        heapq.heappush(self.events, (time, self.counter, rank, what))

    def resource(self, node: Node) -> str:
        if node.attributes.get("is_cpu_op") and number(node, "is_cpu_op"):
            return "cpu"
        if node.type == NodeType.COMP:
            return "gpu"
        return "" if node.type == NodeType.COMM_RECV else "comm"

    def call(self, rank: int, ended: int | None = None) -> None:
        if self.is_finished[rank]:
            return
        if ended is not None:
            self.release(rank, ended)
        for n in sorted(self.free[rank]):
            node = self.nodes[rank][n]
            kind = self.resource(node)
            if kind and self.in_flight[rank][kind]:
                continue
            self.free[rank].discard(n)
            self.ongoing[rank].add(n)
            self.in_flight[rank][kind] += 1
            self.write("issue", rank, n)
            self.issue(rank, node)
        if not (self.free[rank] or self.ongoing[rank]):
            self.log.append(f"[t] [workload] [info] sys[{rank}] finished, {self.now} cycles")
            # ASTRA-sim calls a rank finished whose other nodes are in a cycle, too.
            self.is_finished[rank] = not any(self.parents[rank].values())

    def write(self, what: str, rank: int, n: int) -> None:
        node = self.nodes[rank][n]
        self.log.append(
            f"[t] [workload] [debug] {what},sys->id={rank}, tick={self.now}, node->id={n}, "
            f"node->name={node.name}, node->type={node.type}"
        )

    def release(self, rank: int, n: int) -> None:
        self.write("callback", rank, n)
        self.in_flight[rank][self.resource(self.nodes[rank][n])] -= 1
        self.ongoing[rank].discard(n)
        for child in self.children[rank][n]:
            self.parents[rank][child].discard(n)
            if not self.parents[rank][child]:
                self.free[rank].add(child)

    def ends(self, n: int) -> Callable[[int], None]:
        return lambda rank: self.call(rank, n)

    def issue(self, rank: int, node: Node) -> None:
        kind = node.type
        if kind == NodeType.INVALID:
            self.release(rank, node.id)
        elif kind in (NodeType.MEM_LOAD, NodeType.MEM_STORE):
            number(node, "tensor_size")
            self.at(self.now + 100, rank, self.ends(node.id))
        elif kind == NodeType.COMP:
            number(node, "is_cpu_op", 0)
            self.at(self.now + max(node.duration_us * 1000, 1), rank, self.ends(node.id))
        elif kind not in (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV):
            raise Aborted("Unknown node type")
        elif number(node, "is_cpu_op", 0):
            raise Aborted("Comm node should not be on CPU")
        elif kind == NodeType.COMM_COLL:
            self.collective(rank, node)
        else:
            self.message(rank, node)

    def collective(self, rank: int, node: Node) -> None:
        dims = node.attributes.get("involved_dim")
        if dims is not None and dims.type != "bool_list":
            raise Aborted("Expected bool_list in involved_dim")
        group, total = group_of(node), len(self.nodes)
        if group and group not in self.groups:
            raise Aborted("communicator group not found")
        members = self.groups[group] if group else list(range(total))
        kind, size = number(node, "comm_type"), number(node, "comm_size")
        if rank not in members or max(members) >= total or len({*members}) < len(members):
            raise Aborted("not a ring")
        if kind not in SIMULATED:
            raise Aborted("Unsupported collective comm type")
        if kind == BROADCAST:
            stream, size = ("broadcast", self.streams[rank, -1 - group]), 1
            self.streams[rank, -1 - group] += 1
            if len(members) == 1:
                self.at(self.now + 1, rank, self.ends(node.id))
                return
            self.open_chunks[rank, node.id] = 1
            self.chunk(rank, node, members, (group, stream), (kind, size))
            return
        chunk = size // SPLITS
        if kind != ALL_GATHER and total > chunk:
            chunk, size = total, SPLITS * total
        if len(members) == 1 or not size:
            # No stream, or a data set of none: nobody is notified.
            return
        if not chunk:
            raise Aborted("memory is full of chunks of 0 B")
        count = ceil(size / chunk)
        self.open_chunks[rank, node.id] = count
        sent = chunk if kind == ALL_GATHER else chunk // len(members)
        for place in range(count):
            stream_id = group * STREAMS_OF_A_GROUP + self.streams[rank, group]
            self.streams[rank, group] += 1
            self.chunk(rank, node, members, stream_id, (kind, sent), place)

    def chunk(
        self, rank: int, node: Node, members: list[int], key: Any, moves: Any, place: int = 0
    ) -> None:
        """Enter a chunk, which its ring takes after those before it."""
        there = self.chunks[key]
        there[rank] = (node.id, moves)
        if {*there} == {*members} and len({each for _, each in there.values()}) == 1:
            steps = (len(members) - 1) * (2 if moves[0] == ALL_REDUCE else 1)
            lasts = max(self.delay(max(moves[1], 1)) * steps * (place + 1), 1)
            for member, (n, _) in there.items():
                self.at(self.now + lasts, member, self.chunk_ends(n))

    def chunk_ends(self, n: int) -> Callable[[int], None]:
        def end(rank: int) -> None:
            self.open_chunks[rank, n] -= 1
            if not self.open_chunks[rank, n]:
                self.call(rank, n)

        return end

    def message(self, rank: int, node: Node) -> None:
        is_send = node.type == NodeType.COMM_SEND
        sender = number(node, "comm_src", rank if is_send else None)
        receiver = number(node, "comm_dst", None if is_send else rank)
        if rank != (sender if is_send else receiver):
            raise Aborted("should be issued by the sender")
        size, tag = number(node, "comm_size"), number(node, "comm_tag")
        if (receiver if is_send else sender) >= len(self.nodes) or not size:
            raise Aborted("no such system, or nothing to send")
        key = (sender, receiver, tag, size)
        own, others = (self.sent, self.receives) if is_send else (self.receives, self.sent)
        arrives = self.now + max(self.delay(size), 1) if is_send else self.now
        if is_send and not self.rendezvous:
            self.at(arrives, rank, self.ends(node.id))
        if not others[key]:
            own[key].append((arrives, rank, node.id))
            return
        time, other, n = others[key].pop(0)
        ends = [(rank, node.id), (other, n)] if self.rendezvous else [
            (other, n) if is_send else (rank, node.id)
        ]  # fmt: skip
        for member, place in ends:
            self.at(max(time, arrives), member, self.ends(place))


def runs(
    folder: Path,
    delay: Callable[[int], int] = lambda size: 500 + size,
    *,
    rendezvous: bool = False,
) -> bool:
    """Whether all ranks finish."""
    try:
        return len(finished(folder, delay, rendezvous=rendezvous)) == len([*folder.glob("*.et")])
    except Aborted:
        return False
