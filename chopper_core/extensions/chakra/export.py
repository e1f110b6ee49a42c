"""Chakra execution traces of a run: a graph of activities per rank, for simulators.

One file per GPU, `NAME.<rank>.et`, and the file of process groups that ASTRA-sim takes. What
simulators read of a node has the types that they expect (docs/chakra.md); everything else of the
kernel table is in attributes of Chopper's own, so that the files read back as the same table.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct, structs

from chopper_core.extensions.chakra.et import write_et
from chopper_core.extensions.chakra.execution_graph import RULES
from chopper_core.extensions.chakra.graph import (
    IDLE,
    IDLE_PARTS,
    IO_SIDES,
    KEPT,
    OUTSIDE,
    STATED,
    STEPS,
)
from chopper_core.extensions.chakra.graph_nodes import (
    CONTROL,
    STATED_KINDS,
    GraphScope,
    graph_nodes,
    graph_scope,
)
from chopper_core.extensions.chakra.host_pieces import HOST, Piece
from chopper_core.extensions.chakra.lint import (
    FEEDER_TYPES,
    FEW_BYTES,
    GROUP_FILE,
    SIMULATED_TYPES,
    WORLD,
    Communicator,
    comm_type,
    communicators,
    unmatched,
)
from chopper_core.extensions.chakra.schema import (
    MEMORY,
    NODE_TYPE,
    TYPE_OF,
    Attribute,
    CommType,
    Metadata,
    Node,
    NodeType,
    Value,
    typed,
)
from chopper_core.graph.collectives import Transfer, by_ends, transfers
from chopper_core.graph.process_groups import split_groups
from chopper_core.model.attributes import NO_NODE, Attributes, TypedValue, attribute_names, nodes_at
from chopper_core.model.column_names import FLOPS, FLOPS_TYPE, NO_TIMES
from chopper_core.model.hardware import ElementType
from chopper_core.model.inputs import Gpu
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostSteps
from chopper_core.model.table import NO_TIME, PHASES, Category, KernelTable, Kind, Rule
from chopper_core.render.exports import ExportOptions, chosen_rows, new_folder
from chopper_core.tables.losses import ABSENT
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import run_starts, stable_order
from chopper_core.util.progress import Progress

DESCRIPTION: Final = "a folder of Chakra traces, one .et per rank, for simulators"
TAKES: Final = ("iteration", "gaps", "host", "force")

_MEMORY: Final = [each.name for each in MEMORY]
_VERSION: Final = "1.0.0"
_SCHEMA: Final = "chopper.et/1"
_NS_PER_US: Final = 1_000


class _SentCollective(Struct, frozen=True):
    """What simulators read of a collective."""

    kind: CommType
    bytes: int
    """What a rank puts in, as simulators need it."""
    group: int
    given: int
    """What a rank puts in by the trace."""


class _Plan(Struct, frozen=True):
    """Facts that the files of an export share."""

    scope: GraphScope
    rank_of: Mapping[int, int]
    """GPU → number of its file."""
    collectives: Mapping[int, _SentCollective]
    """Row → what is written of it, of those that simulators can run."""
    before: Mapping[int, int]
    """Row of a collective → that of the collective before it on its GPU, in one order for all."""
    transfers: Mapping[int, Transfer]
    """Row → its send or receive, of those with a size."""
    kept: Sequence[str]
    """The names of the attributes that the traces gave."""


def write(run: Run, path: Path, options: ExportOptions, progress: Progress) -> list[str]:
    table = split_groups(run)
    if not table.has_times:
        raise DataError(f"{run.name} can't be simulated: {NO_TIMES}")
    chosen = chosen_rows(run, options)
    groups = communicators(run, chosen)
    sent = transfers(run, chosen)
    notes, left_out = _refused(run, groups, sent, force=options.force)
    written = chosen[~np.isin(chosen, left_out)]
    collectives = _collectives(table, [one for one in groups if not one.mismatch])
    plan = _Plan(
        scope=graph_scope(run, written, options),
        rank_of={gpu.index: number for number, gpu in enumerate(run.gpus)},
        collectives={row: one for each in collectives for row, one in each.items()},
        before=_ordered(table, collectives),
        transfers=_sized(table, sent),
        kept=attribute_names(run.side(Attributes)),
    )
    name = Path(run.name.partition(",")[0]).name.partition(".")[0] or "run"
    with new_folder(path) as folder:
        for number, gpu in enumerate(run.gpus):
            progress("write Chakra traces", number, len(run.gpus))
            with (folder / f"{name}.{number}.et").open("wb") as file:
                write_et(file, _metadata(run, gpu, plan), _nodes(run, gpu.index, plan))
        members = {
            str(one.number): [plan.rank_of[gpu] for gpu in one.gpus]
            for one in groups
            if one.number != WORLD and one.gpus
        }
        (folder / GROUP_FILE).write_text(json.dumps(members, indent=1) + "\n", encoding="utf-8")
    return [*notes, *_limits(run, written, groups, sent, plan)]


def _refused(
    run: Run, groups: Sequence[Communicator], sent: Mapping[int, Transfer], *, force: bool
) -> tuple[list[str], Index]:
    """Sentences and rows of the groups and pairs of GPUs whose members differ.

    Raises DataError unless forced.
    """
    wrong: list[tuple[str, str, str, Index]] = []
    for one in groups:
        if one.mismatch:
            name = f"group {one.label!r}" if one.label else "the collectives without a group"
            wrong.append(("collectives", name, one.mismatch, np.concatenate(one.rows)))
    for (sender, receiver), mismatch in unmatched(run.table, sent).items():
        of_pair = [
            row for row, one in sent.items() if (one.sender, one.receiver) == (sender, receiver)
        ]
        name = f"messages from GPU {sender} to {receiver}"
        wrong.append(("sends and receives", name, mismatch, np.array(of_pair, np.intp)))
    if wrong and not force:
        kinds, name, mismatch, _ = wrong[0]
        raise DataError(
            f"{run.name} can't be simulated: in {name}, {mismatch}; nothing was written. "
            f"Try one --iteration N, or --force, which leaves out the {kinds} there."
        )
    notes = [
        f"left out {len(rows)} {kinds} of {name}: {mismatch}"
        for kinds, name, mismatch, rows in wrong
    ]
    return notes, np.concatenate([np.zeros(0, np.intp), *(rows for *_, rows in wrong)])


def _collectives(
    table: KernelTable, groups: Sequence[Communicator]
) -> list[dict[int, _SentCollective]]:
    """The rows of each collective that ASTRA-sim has and ends.

    Those are of several ranks, and the trace gives the bytes of all members.
    """
    found: list[dict[int, _SentCollective]] = []
    for one in groups:
        for rows in zip(*(own.tolist() for own in one.rows if len(one.gpus) > 1), strict=False):
            kind = comm_type(table, rows[0])
            sizes = [_sent_bytes(table, row, one.size) for row in rows]
            if kind is not None and kind in SIMULATED_TYPES and min(sizes) >= 0:
                found.append(
                    {
                        row: _SentCollective(
                            kind, _simulated_bytes(kind, sizes, size), one.number, size
                        )
                        for row, size in zip(rows, sizes, strict=True)
                    }
                )
    return found


def _simulated_bytes(kind: CommType, sizes: Sequence[int], own: int) -> int:
    """The size of a member of a collective with which ASTRA-sim ends it."""
    if kind == CommType.ALL_TO_ALL:
        return max(sizes)
    return max(own, FEW_BYTES) if kind == CommType.ALL_GATHER else own


def _ordered(
    table: KernelTable, collectives: Sequence[Mapping[int, _SentCollective]]
) -> dict[int, int]:
    """Of each collective on a GPU the one before it.

    ASTRA-sim runs one communication at a time, in the order in which dependencies end; where ranks
    differ in it, they wait for each other. The order here is that in which the last members came.
    """
    start = table.start_ns
    last: dict[int, int] = {}
    before: dict[int, int] = {}
    for rows in sorted(map(list, collectives), key=lambda rows: (start[rows].max(), rows)):
        for row in rows:
            gpu = int(table.gpu[row])
            if gpu in last:
                before[row] = last[gpu]
            last[gpu] = row
    return before


def _sized(table: KernelTable, sent: Mapping[int, Transfer]) -> dict[int, Transfer]:
    """The sends and receives between ends of which the trace gives all sizes."""
    found: dict[int, Transfer] = {}
    for sides in by_ends(table, sent).values():
        rows = [*sides[0], *sides[1]]
        if all(sent[row].bytes > 0 for row in rows):
            found |= {row: sent[row] for row in rows}
    return found


def _limits(
    run: Run,
    chosen: Index,
    groups: Sequence[Communicator],
    sent: Mapping[int, Transfer],
    plan: _Plan,
) -> list[str]:
    table = run.table
    why: dict[str, list[int]] = {}
    alone = {row for one in groups if len(one.gpus) == 1 for row in one.rows[0].tolist()}
    for row in chosen[table.kind[chosen] == Kind.COMM].tolist():
        if row in plan.collectives or row in plan.transfers:
            continue
        kind = comm_type(table, row)
        if kind is None and row not in sent:
            reason = "the trace gives neither a collective nor the peer of a send or receive"
        elif row in alone:
            reason = "ASTRA-sim never ends a collective of one rank"
        elif kind is None or kind in SIMULATED_TYPES:
            reason = "the trace doesn't give the bytes of all members"
        else:
            reason = f"ASTRA-sim can't simulate a {kind.name}"
        why.setdefault(reason, []).append(row)
    notes = []
    for reason, rows in why.items():
        early = sum(table.launch_ns[row] == NO_TIME for row in rows)
        notes.append(
            f"{len(rows)} communication kernels are written as COMP: {reason}"
            + (f"; {early} of them have no launch record" if early else "")
        )
    changed = Counter(one.kind for one in plan.collectives.values() if one.bytes != one.given)
    if count := changed[CommType.ALL_TO_ALL]:
        notes.append(
            f"{count} all-to-all kernels are written with the largest size of their members: "
            "ASTRA-sim never ends one whose members differ"
        )
    if count := changed[CommType.ALL_GATHER]:
        notes.append(
            f"{count} all-gather kernels are written with {FEW_BYTES} B: "
            "ASTRA-sim never ends one of very few bytes"
        )
    return notes + [
        f"group {one.label!r} has {one.size} ranks, and the run has {len(one.gpus)} of them"
        for one in groups
        if one.size > len(one.gpus)
    ]


def _metadata(run: Run, gpu: Gpu, plan: _Plan) -> Metadata:
    is_alone = sum(each.rank == gpu.rank for each in run.gpus) == 1
    values: dict[str, Value] = {
        "schema": _SCHEMA,
        "generator": "chopper",
        "rank": gpu.rank if is_alone else plan.rank_of[gpu.index],
        "gpu": gpu.index,
        "device": gpu.device,
        "world_size": max(run.world, len(run.gpus)),
        "time_origin_ns": plan.scope.origin_ns,
    }
    values |= _times_of_steps(run, gpu.index, plan)
    if run.groups:
        values["process_groups"] = json.dumps([structs.asdict(group) for group in run.groups])
    if gpu.hardware:
        values["hardware"] = gpu.hardware
    if plan.kept:
        values[KEPT] = list(plan.kept)
    if run.times_mark:
        values[run.times_mark] = True
    if run.generated:
        values["generated"] = run.generated
    if cut := sorted(run.partial_iterations.get(gpu.index, ())):
        values["truncated_iterations"] = cut
    return Metadata(_VERSION, {name: typed(value) for name, value in values.items()})


def _times_of_steps(run: Run, gpu: int, plan: _Plan) -> dict[str, Value]:
    """The steps that the host of a GPU annotates, and the time outside them, as far as written."""
    table, chosen, origin_ns = run.table, plan.scope.iteration, plan.scope.origin_ns
    steps = [
        [number, begin - origin_ns, end - begin]
        for number, begin, end in run.side(HostSteps).spans(gpu).rows()
        if chosen in (None, number)
    ]
    rows = np.flatnonzero((table.category == Category.OUTSIDE) & (table.gpu == gpu))
    outside = [
        [table.operations[code], end - lasts - origin_ns, lasts]
        for code, end, lasts in zip(
            table.operation[rows].tolist(),
            table.start_ns[rows].tolist(),
            table.idle_ns[rows].tolist(),
            strict=True,
        )
    ]
    found: dict[str, Value] = {STEPS: json.dumps(steps)}
    return found | ({OUTSIDE: json.dumps(outside)} if outside and chosen is None else {})


def _nodes(run: Run, gpu: int, plan: _Plan) -> Iterator[Node]:
    table = run.table
    rows = plan.scope.of_gpu(run, gpu)
    durations = _carried_us(table.duration_ns[rows], table.stream[rows]).tolist()
    duration_us = dict(zip(rows.tolist(), durations, strict=True))
    node_of = dict(zip(rows.tolist(), nodes_at(table, rows).tolist(), strict=True))
    attributes = run.side(Attributes)
    nodes = [*graph_nodes(run, gpu, plan.scope)]
    id_of = {each.row: each.id for each in nodes}
    for each in nodes:
        deps: tuple[list[int], list[int]] = ([], [])
        for need in each.needs:
            deps[need.kind in CONTROL].append(need.id)
        before = plan.before.get(each.row)
        # What a trace states is all there is.
        if before is not None and each.lead_ns is None and id_of[before] not in deps[False]:
            deps[False].append(id_of[before])
        if each.piece is not None:
            yield _host_node(each.id, each.piece, deps, plan.scope.origin_ns)
            continue
        row = each.row
        node = _node(
            table,
            row,
            plan,
            id=each.id,
            data_deps=deps[False],
            ctrl_deps=deps[True],
            start_us=_in_us(int(table.start_ns[row]) - plan.scope.origin_ns),
            duration_us=duration_us[row],
        )
        if any(idle := [int(table.column(name)[row]) for name in IDLE_PARTS]):
            node.attributes[IDLE] = Attribute("int64_list", idle)
        if node_of[row] != NO_NODE:
            kept = attributes.of(gpu, node_of[row])
            _add_kept(node, kept, plan.transfers.get(row), plan)
        if each.lead_ns is not None:
            stated = (
                n
                for need in each.needs
                if need.kind in STATED_KINDS
                for n in (need.id, need.host_ns)
            )
            node.attributes[STATED] = Attribute("int64_list", [each.lead_ns, *stated])
        yield node


def _in_us(time_ns: int) -> int:
    return round(time_ns / _NS_PER_US)


def _host_node(
    number: int, piece: Piece, deps: tuple[list[int], list[int]], origin_ns: int
) -> Node:
    start_us = _in_us(piece.start_ns - origin_ns)
    attributes = {"is_cpu_op": typed(True)}
    if piece.whole is not None:
        kind, start_ns, lasts_ns = piece.whole
        attributes[HOST] = Attribute("int64_list", [kind, start_ns - origin_ns, lasts_ns])
    return Node(
        number,
        piece.name,
        NodeType.COMP,
        data_deps=deps[False],
        ctrl_deps=deps[True],
        start_us=start_us,
        duration_us=_in_us(piece.end_ns - origin_ns) - start_us,
        attributes=attributes,
    )


def _add_kept(
    node: Node, kept: Mapping[str, TypedValue], transfer: Transfer | None, plan: _Plan
) -> None:
    """Give a node what a trace gave of it, in place of what was made of the table."""
    io: dict[str, dict[str, str]] = {side: {} for side in IO_SIDES}
    for name, (kind, value) in kept.items():
        side = next((side for side in IO_SIDES if name.startswith(side)), None)
        if side is not None:
            io[side][name.removeprefix(side)] = str(value)
        elif name == NODE_TYPE and value in _MEMORY:
            node.type = NodeType[value]
        else:
            # Feeders read 0 of an integer with another type than they expect.
            kind = FEEDER_TYPES.get(name, kind) if type(value) is int else kind
            node.attributes[name] = Attribute(kind, value) if kind else Attribute("", b"")
    node.inputs, node.outputs = (io[side] for side in IO_SIDES)
    if transfer is None:
        return
    node.type = NodeType[transfer.kind]
    node.attributes.pop(NODE_TYPE, None)
    node.attributes.setdefault("comm_tag", Attribute("int32", transfer.tag))
    node.attributes.setdefault("comm_size", Attribute("int64", transfer.bytes))
    for name, gpu in (("comm_src", transfer.sender), ("comm_dst", transfer.receiver)):
        node.attributes[name] = Attribute("int32", plan.rank_of[gpu])


def _node(table: KernelTable, row: int, plan: _Plan, **fields: object) -> Node:
    collective = plan.collectives.get(row)
    values: dict[str, Value | None] = {"is_cpu_op": False}
    if collective is not None:
        values["comm_type"] = int(collective.kind)
        values["comm_size"] = collective.bytes
        values["pg_name"] = str(collective.group)
    elif table.kind[row] == Kind.COMM:
        values["kind"] = Kind.COMM.name.lower()
    values |= _own_values(table, row, plan)
    known = {name: value for name, value in values.items() if value is not None}
    return Node(
        name=table.names[int(table.kernel[row])],
        type=NodeType.COMP if collective is None else NodeType.COMM_COLL,
        attributes={name: Attribute(TYPE_OF[type(each)], each) for name, each in known.items()},
        **fields,  # type: ignore[arg-type]
    )


def _own_values(table: KernelTable, row: int, plan: _Plan) -> dict[str, Value | None]:
    """The attributes that restore the table; simulators read none of them but `num_ops`."""

    def known(column: str, texts: Sequence[str] = ()) -> int | str | None:
        code = int(table.column(column)[row])
        if code < 0:
            return None
        return texts[code] if texts else code

    launch_ns, category = int(table.launch_ns[row]), Category(table.category[row])
    flops, of = (table.measured.get(name, {row: np.nan})[row] for name in (FLOPS, FLOPS_TYPE))
    has_flops = bool(np.isfinite([flops, of]).all())
    return {
        "stream": int(table.stream[row]),
        "ts_ns": int(table.start_ns[row]) - plan.scope.origin_ns,
        "dur_ns": int(table.duration_ns[row]),
        "launch_ns": None if launch_ns == NO_TIME else launch_ns - plan.scope.origin_ns,
        "iteration": known("iteration"),
        "layer": known("layer"),
        "phase": known("phase", PHASES),
        "op": known("operation", table.operations),
        "category": None if category == Category.KERNEL else category.name.lower(),
        "rules": " ".join(Rule(table.column(each)[row]).name for each in RULES),
        "bytes": known("bytes"),
        "group": known("group", table.names),
        "num_ops": int(flops) if has_flops else None,
        "num_ops_type": ElementType(int(of)).name if has_flops else None,
    }


def _sent_bytes(table: KernelTable, row: int, ranks: int) -> int:
    """The bytes that a rank puts into a collective; ABSENT where the trace doesn't give them."""
    size = int(table.bytes[row])
    if size < 0 or comm_type(table, row) != CommType.ALL_GATHER:
        return max(size, ABSENT)
    # The table has the larger side, which is the output here.
    return size // ranks if ranks and size % ranks == 0 else ABSENT


def _carried_us(duration_ns: Int64, stream: Int64) -> Int64:
    """Durations in whole µs; what rounding loses is carried to the next of the stream."""
    order = stable_order(stream)
    found = np.zeros(len(stream), np.int64)
    first = run_starts(stream[order]) if len(stream) else np.zeros(0, np.intp)
    for begin, end in pairwise(np.append(first, len(stream)).tolist()):
        own = order[begin:end]
        total = np.cumsum(duration_ns[own])
        found[own] = np.diff((total + _NS_PER_US // 2) // _NS_PER_US, prepend=0)
    return found
