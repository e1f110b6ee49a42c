"""The graph of a GPU that exports write: activities, the host's work, and what each waits for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct, field

from chopper_core.extensions.chakra.host_pieces import (
    HostPieces,
    Piece,
    chosen_lane,
    host_pieces,
    idle_pieces,
)
from chopper_core.graph.build import shown_dependencies
from chopper_core.graph.dependencies import Evidence, stated, time_order
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostLane
from chopper_core.render.exports import ExportOptions
from chopper_core.util.arrays import Index

NEVER: Final = np.iinfo(np.int64).max
_KINDS: Final = {evidence: evidence.name.lower() for evidence in Evidence}
BLOCKED, SEQUENCE, LAUNCH = (
    _KINDS[each] for each in (Evidence.BLOCKED, Evidence.SEQUENCE, Evidence.LAUNCH)
)
STATED_KINDS: Final = (_KINDS[Evidence.STATED], _KINDS[Evidence.CONTROL])
CALLER: Final = "caller"
CONTROL: Final = (CALLER, _KINDS[Evidence.CONTROL])
"""The kinds of needs that are control dependencies."""


class Need(Struct, frozen=True):
    """What a node waits for."""

    id: int
    kind: str
    """`Evidence` in lower case, or `caller`: the operator around it."""
    host_ns: int = 0
    """The host's work on the way, of dependencies that a trace states."""


class GraphNode(Struct):
    """A node of a GPU's graph: an activity, or a piece of the host's time."""

    id: int
    row: int = -1
    piece: Piece | None = None
    needs: list[Need] = field(default_factory=list)
    lead_ns: int | None = None
    """The host's work before it, where a trace states the dependencies."""


class GraphScope(Struct, frozen=True):
    """What of a run a graph is made of."""

    rows: Index
    origin_ns: int
    """The start of the first node."""
    lane: HostLane | None
    """The host's work, where the graph has it."""
    iteration: int | None
    """The only step, if it is one."""
    gaps: bool
    """Time as nodes in which nothing else runs: on the host, or without its work on the GPU."""

    def of_gpu(self, run: Run, gpu: int) -> Index:
        return time_order(run.table, self.rows[run.table.gpu[self.rows] == gpu])


def graph_scope(run: Run, rows: Index, options: ExportOptions) -> GraphScope:
    """Raises DataError for the host's work of a run that keeps none.

    Of an iteration, or of a number of nodes, it is that of the launches.
    """
    origin_ns = int(run.table.start_ns[rows].min(initial=NEVER))
    lane = None
    if options.host:
        lane = chosen_lane(run, rows, options)
        origin_ns = min(origin_ns, int(lane.start_ns.min(initial=NEVER)))
    return GraphScope(rows, origin_ns, lane, options.iteration, options.gaps)


def graph_nodes(run: Run, gpu: int, scope: GraphScope) -> Iterator[GraphNode]:
    """The nodes of a GPU in the order of their start, which their ids count from 1."""
    rows = scope.of_gpu(run, gpu)
    host = _host_of(run, gpu, rows, scope)
    begins = np.array([piece.start_ns for piece in host.pieces], np.int64)
    count = len(begins)
    keys = np.repeat([0, 1], [count, len(rows)]), np.append(begins, run.table.start_ns[rows])
    order = np.lexsort(keys)
    ids = np.empty(len(order), np.int64)
    ids[order] = np.arange(1, len(order) + 1)
    of_piece, of_place = ids[:count].tolist(), ids[count:].tolist()
    needs, leads = _needs(run, rows, of_place)
    for at, number in zip(order.tolist(), ids[order].tolist(), strict=True):
        if at < count:
            piece = host.pieces[at]
            found = [Need(of_place[each], BLOCKED) for each in piece.awaits]
            if piece.before >= 0:
                found.append(Need(of_piece[piece.before], SEQUENCE))
            if piece.caller >= 0:
                found.append(Need(of_piece[piece.caller], CALLER))
            yield GraphNode(number, piece=piece, needs=found)
            continue
        place = at - count
        found = needs[place]
        if (launched := host.launched[place]) >= 0:
            # What the host waited for before the launch is behind it; what a trace states is kept.
            behind = {of_place[each] for each in host.pieces[launched].awaits if leads is None}
            found = [Need(of_piece[launched], LAUNCH), *(n for n in found if n.id not in behind)]
        if host.callers[place] >= 0:
            found = [*found, Need(of_piece[host.callers[place]], CALLER)]
        yield GraphNode(number, int(rows[place]), None, found, leads[place] if leads else None)


def _host_of(run: Run, gpu: int, rows: Index, scope: GraphScope) -> HostPieces:
    if scope.lane is not None:
        return host_pieces(run.table, scope.lane, gpu, rows, gaps=scope.gaps)
    if scope.gaps and len(rows):
        return idle_pieces(run.table, rows)
    return HostPieces([], [-1] * len(rows), [-1] * len(rows))


def _needs(run: Run, rows: Index, ids: list[int]) -> tuple[list[list[Need]], list[int] | None]:
    """The dependencies of each activity, those of the trace, else of the times; and of a trace's
    the host's work in ns before each."""
    needs: list[list[Need]] = [[] for _ in ids]
    found = stated(run, rows) if len(rows) else None
    if found is None:
        deps = shown_dependencies(run, rows)
        ends = zip(deps.target.tolist(), deps.source.tolist(), strict=True)
        for (after, before), evidence in zip(ends, deps.evidence.tolist(), strict=True):
            needs[after].append(Need(ids[before], _KINDS[evidence]))
        return needs, None
    edges, lead = found[0].take(np.lexsort((found[0].source, found[0].target))), found[1]
    ends = zip(edges.target.tolist(), edges.source.tolist(), strict=True)
    rest = zip(edges.evidence.tolist(), edges.lag_ns.tolist(), strict=True)
    for (after, before), (evidence, host_ns) in zip(ends, rest, strict=True):
        needs[after].append(Need(ids[before], _KINDS[evidence], host_ns))
    return needs, lead.tolist()
