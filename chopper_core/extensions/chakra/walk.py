"""Where ASTRA-sim would stop: a walk along the nodes of all ranks, as its workload issues them.

A rank runs one node of the host, one computation and one communication at a time, each time the
free one with the lowest id. The k-th collective that a rank issues in a group is the k-th of the
other members, and ends for all when the last one has arrived; broadcasts are replayed, and sends
wait for nobody. Sources: astra-sim `Workload.cc`, `HardwareResource.cc`, `Sys.cc`.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import count
from typing import Final

from msgspec import Struct, field

from chopper_core.extensions.chakra.schema import CommType, Node, NodeType

CPU, GPU, COMM, FREE = range(4)
"""What a node occupies: receives occupy nothing."""
_MAX_SHOWN: Final = 3
_NS_PER_US: Final = 1_000


class WalkedNode(Struct):
    """What of a node decides when it is issued and when it ends."""

    id: int
    name: str
    type: int
    occupies: int
    duration_ns: int
    needs: Sequence[int]
    """Places in the file of the nodes that it waits for, each once."""
    step: tuple[int, ...] = ()
    """Of a collective that waits for others: its group, type and size."""
    message: tuple[int, ...] = ()
    """Of a send or receive: sender, receiver, tag and size."""

    @property
    def at_once(self) -> bool:
        """Whether it ends as it is issued, without an event."""
        return self.type in (NodeType.INVALID, NodeType.METADATA)


def walked(node: Node, needs: Sequence[int], rank: int, group: int) -> WalkedNode:
    """The node of a rank whose collectives are of a group; its attributes are valid."""
    kind, occupies = node.type, COMM
    step: tuple[int, ...] = ()
    message: tuple[int, ...] = ()
    if node.get("is_cpu_op"):
        occupies = CPU
    elif kind == NodeType.COMP:
        occupies = GPU
    elif kind == NodeType.COMM_RECV:
        occupies = FREE
    size = node.get("comm_size") or 0
    if kind == NodeType.COMM_COLL and node.get("comm_type") != CommType.BROADCAST:
        step = (group, int(node.get("comm_type")), size)
    elif kind in (NodeType.COMM_SEND, NodeType.COMM_RECV):
        ends = (node.get(name) for name in ("comm_src", "comm_dst", "comm_tag"))
        message = (*(rank if end is None else int(end) for end in ends), size)
    duration_ns = max(node.duration_us * _NS_PER_US, 1)
    return WalkedNode(node.id, node.name, kind, occupies, duration_ns, needs, step, message)


class _Rank(Struct):
    """The state of a rank."""

    nodes: Sequence[WalkedNode]
    waits: list[int]
    """Dependencies of each node that aren't done."""
    followers: list[list[int]]
    left: int
    ready: dict[int, list[tuple[int, int]]]
    """By what they occupy: heaps of the id and place of nodes that could be issued."""
    busy: set[int] = field(default_factory=set)
    inside: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Collectives that wait: place → their group and number there."""

    def release(self, place: int) -> None:
        """Count a dependency of a node as done."""
        self.waits[place] -= 1
        if not self.waits[place]:
            self.offer(place)

    def offer(self, place: int) -> None:
        node = self.nodes[place]
        heapq.heappush(self.ready[node.occupies], (node.id, place))

    def taken(self) -> list[int]:
        """The places of the nodes to issue by now, in the order of their ids."""
        found: list[tuple[int, int]] = []
        for kind, heap in self.ready.items():
            while heap and (kind == FREE or kind not in self.busy):
                found.append(heapq.heappop(heap))
                if not self.nodes[found[-1][1]].at_once and kind != FREE:
                    self.busy.add(kind)
        return [place for _, place in sorted(found)]

    def called(self, place: int) -> str:
        return f"node {self.nodes[place].id} ({self.nodes[place].name[:40]})"


def stops(ranks: Mapping[int, Sequence[WalkedNode]], groups: Mapping[int, Sequence[int]]) -> str:
    """A sentence on the ranks that don't finish, the first ones with what they wait for; else ''.

    The nodes of each rank and the members of each group are those of a trace whose files keep the
    other rules. Communication takes its recorded time first, and then none.
    """
    return _IssueWalk(ranks, groups, 1).stops() or _IssueWalk(ranks, groups, 0).stops()


def has_fixed_order(nodes: Sequence[WalkedNode]) -> bool:
    """Whether dependencies order the collectives of a rank, however long its nodes take.

    They do if the longest chain of dependencies has all of them.
    """
    collectives = sum(bool(node.step) for node in nodes)
    if collectives < 2:
        return True
    depth = [0] * len(nodes)
    for place in TopologicalSorter(
        {at: node.needs for at, node in enumerate(nodes)}
    ).static_order():
        before = max((depth[need] for need in nodes[place].needs), default=0)
        depth[place] = before + bool(nodes[place].step)
    return max(depth) == collectives


class _IssueWalk:
    def __init__(
        self,
        ranks: Mapping[int, Sequence[WalkedNode]],
        groups: Mapping[int, Sequence[int]],
        factor: int,
    ) -> None:
        self._groups, self._factor = groups, factor
        self._ranks = {rank: _state(nodes) for rank, nodes in ranks.items()}
        self._events: list[tuple[int, int, int, int]] = []
        """Time, running number, rank, and place of the node that ends."""
        self._number = count()
        self._now = 0
        self._issued: defaultdict[tuple[int, int], int] = defaultdict(int)
        """Rank and group → its collectives so far."""
        self._entered: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        """Group and number → place of the node by rank."""
        self._arrivals: defaultdict[tuple[int, ...], deque[int]] = defaultdict(deque)
        """Message → times of arrival that no receive has taken."""
        self._receives: defaultdict[tuple[int, ...], deque[tuple[int, int]]] = defaultdict(deque)
        """Message → ranks and places of the receives that wait for it."""

    def stops(self) -> str:
        for rank in self._ranks:
            self._issue(rank)
        while self._events:
            self._now, _, rank, place = heapq.heappop(self._events)
            self._end(rank, place)
            self._issue(rank)
        left = [rank for rank, state in self._ranks.items() if state.left]
        if not left:
            return ""
        shown = [self._why(rank) for rank in left[:_MAX_SHOWN]] + (
            ["…"] if len(left) > _MAX_SHOWN else []
        )
        total = len(self._ranks)
        return f"{total - len(left)} of {total} ranks finish in ASTRA-sim: {'; '.join(shown)}"

    def _issue(self, rank: int) -> None:
        """Issue what is free by now; what that frees at once waits for the next event."""
        state = self._ranks[rank]
        for place in state.taken():
            node = state.nodes[place]
            if node.at_once:
                self._end(rank, place)
            elif node.step:
                self._enter(rank, place, node.step[0])
            elif node.type == NodeType.COMM_RECV:
                self._receive(rank, place, node)
            elif node.type == NodeType.COMM_SEND:
                self._send(rank, place, node)
            else:
                self._end_at(self._now + node.duration_ns, rank, place)

    def _end_at(self, time_ns: int, rank: int, place: int) -> None:
        heapq.heappush(self._events, (time_ns, next(self._number), rank, place))

    def _enter(self, rank: int, place: int, group: int) -> None:
        self._issued[rank, group] += 1
        key = group, self._issued[rank, group]
        there = self._entered[key]
        there[rank] = place
        self._ranks[rank].inside[place] = key
        if len(there) < len(self._groups[group]):
            return
        nodes = [self._ranks[each].nodes[at] for each, at in there.items()]
        if len({each.step for each in nodes}) == 1:
            lasts = min(each.duration_ns for each in nodes) * self._factor
            for each, at in there.items():
                self._end_at(self._now + lasts, each, at)

    def _send(self, rank: int, place: int, node: WalkedNode) -> None:
        arrives = self._now + node.duration_ns * self._factor
        self._end_at(arrives, rank, place)
        if waiting := self._receives[node.message]:
            self._end_at(arrives, *waiting.popleft())
        else:
            self._arrivals[node.message].append(arrives)

    def _receive(self, rank: int, place: int, node: WalkedNode) -> None:
        if there := self._arrivals[node.message]:
            self._end_at(max(there.popleft(), self._now), rank, place)
        else:
            self._receives[node.message].append((rank, place))

    def _end(self, rank: int, place: int) -> None:
        state = self._ranks[rank]
        node = state.nodes[place]
        state.inside.pop(place, None)
        if not node.at_once:
            state.busy.discard(node.occupies)
        state.left -= 1
        for follower in state.followers[place]:
            state.release(follower)

    def _why(self, rank: int) -> str:
        """What a rank waits for at the end."""
        state = self._ranks[rank]
        for place, (group, number) in state.inside.items():
            named = f"rank {rank} waits in {state.called(place)} for "
            there = self._entered[group, number]
            lacks = [each for each in self._groups[group] if each not in there]
            return named + (f"rank {lacks[0]}" if lacks else "ranks in another collective")
        for waiting in self._receives.values():
            for _, place in (each for each in waiting if each[0] == rank):
                return f"rank {rank} waits in {state.called(place)} for a message"
        place = min((heap[0] for heap in state.ready.values() if heap), default=(0, -1))[1]
        if place < 0:
            return f"rank {rank} waits for dependencies"
        return f"rank {rank} never issues {state.called(place)}, which follows nodes without a type"


def _state(nodes: Sequence[WalkedNode]) -> _Rank:
    followers: list[list[int]] = [[] for _ in nodes]
    waits = [0] * len(nodes)
    for place, node in enumerate(nodes):
        waits[place] = len(node.needs)
        for need in node.needs:
            followers[need].append(place)
    ready: dict[int, list[tuple[int, int]]] = {kind: [] for kind in (CPU, GPU, COMM, FREE)}
    state = _Rank(nodes, waits, followers, len(nodes), ready)
    for place, waiting in enumerate(waits):
        if not waiting:
            state.offer(place)
    return state
