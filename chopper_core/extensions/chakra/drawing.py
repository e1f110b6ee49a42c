"""A part of a run's graph as nodes and edges with names, for programs that draw graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.extensions.chakra.graph_nodes import GraphNode, graph_nodes, graph_scope
from chopper_core.graph.collectives import PAIRWISE, collectives_of
from chopper_core.model.column_names import NO_TIMES
from chopper_core.model.run import Run
from chopper_core.model.table import LABELLED, Kind
from chopper_core.render.exports import ExportOptions, chosen_rows
from chopper_core.util.errors import DataError
from chopper_core.util.escape import clean
from chopper_core.util.grouping import runs_of, stable_order

TAKES: Final = ("iteration", "gaps", "host", "nodes")
HOST: Final = "host"
"""The type of nodes that are the host's; that of others is their kind."""
_NUMBERS: Final = ("rank", "start_ns", "duration_ns", "stream")
TYPES: Final = {
    **dict.fromkeys(("name", "type", *LABELLED), "string"),
    **dict.fromkeys(_NUMBERS, "long"),
}
"""The fields of a node, with their types in GraphML."""
Fields = Mapping[str, int | str]


class Drawing(Struct, frozen=True):
    """Nodes by GPU, and edges between them."""

    title: str
    nodes: Mapping[int, Mapping[str, Fields]]
    """GPU → name of each node → its fields."""
    edges: Sequence[tuple[str, str, str]]
    """Source, target and kind; the target waits for the source."""
    meetings: Sequence[tuple[str, str, str]]
    """Members of a collective or both ends of a message, which wait for each other."""
    notes: list[str]


def drawing(run: Run, options: ExportOptions, most: int) -> Drawing:
    """The first nodes of a run or an iteration in the order of time, `most` unless told otherwise.

    Raises DataError for a run without times.
    """
    table = run.table
    if not table.has_times:
        raise DataError(f"{run.name} has no graph: {NO_TIMES}")
    rows, most = chosen_rows(run, options), options.nodes or most
    count = len(rows)
    rows = rows[stable_order(table.start_ns[rows])][:most]
    is_part = options.iteration is not None or len(rows) < count
    scope = graph_scope(run, rows, replace(options, nodes=most if is_part else None))
    found = [(gpu.index, each) for gpu in run.gpus for each in graph_nodes(run, gpu.index, scope)]
    found.sort(key=lambda pair: _start(run, pair[1]))
    is_cut = len(rows) < count or len(found) > most
    name_of = {(gpu, each.id): f"g{gpu}n{each.id}" for gpu, each in found[:most]}
    nodes: dict[int, dict[str, Fields]] = {gpu.index: {} for gpu in run.gpus}
    edges, of_row = [], {}
    for gpu, each in found[:most]:
        own = name_of[gpu, each.id]
        nodes[gpu][own] = _fields(run, gpu, each, scope.origin_ns)
        of_row[each.row] = own
        known = ((name_of.get((gpu, need.id)), need.kind) for need in each.needs)
        edges += [(source, own, kind) for source, kind in known if source is not None]
    marks = f" ({', '.join(run.marks)})" if run.marks else ""
    note = (
        f"{count:,} activities are too many: the first {most:,} nodes in time are drawn; choose "
        "--iteration N or --nodes N"
    )
    meetings = _meetings(run, of_row)
    return Drawing(f"{clean(run.name)}{marks}", nodes, edges, meetings, [note] if is_cut else [])


def _start(run: Run, node: GraphNode) -> int:
    return node.piece.start_ns if node.piece else int(run.table.start_ns[node.row])


def _fields(run: Run, gpu: int, node: GraphNode, origin_ns: int) -> Fields:
    table, row, piece = run.table, node.row, node.piece
    start_ns = _start(run, node)
    lasts_ns = piece.end_ns - start_ns if piece else int(table.duration_ns[row])
    fields: dict[str, int | str] = {
        "name": clean(piece.name if piece else table.names[int(table.kernel[row])]),
        "type": HOST if piece else Kind(int(table.kind[row])).name.lower(),
        "rank": run.rank_of[gpu],
        "start_ns": start_ns - origin_ns,
        "duration_ns": lasts_ns,
    }
    if not piece:
        fields["stream"] = int(table.stream[row])
        codes = {level: int(table.column(level)[row]) for level in LABELLED}
        labels = {level: table.text_of(level, code) for level, code in codes.items() if code >= 0}
        fields |= {level: clean(text) for level, text in labels.items()}
    return fields


def _meetings(run: Run, of_row: Mapping[int, str]) -> list[tuple[str, str, str]]:
    found, joined = collectives_of(run), []
    for number, place in runs_of(found.member_set) if found else ():
        name = run.table.text_of("operation", int(found.kind[number])) if found else ""
        kind = "message" if name == PAIRWISE else "collective"
        rows = found.rows[place].tolist() if found else []
        members = [of_row[row] for row in rows if row in of_row]
        joined += [(one, other, kind) for one, other in pairwise(members)]
    return joined
