"""Chakra execution traces of a run: a graph of activities per rank, for simulators.

One file per GPU, `NAME.<rank>.et`, and the file of process groups that ASTRA-sim takes. What
simulators read of a node has the types that they expect (docs/chakra.md); everything else of the
kernel table is in attributes of Chopper's own, so that the files read back as the same table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct, structs

from chopper_core.extensions.chakra.et import write_et
from chopper_core.extensions.chakra.execution_graph import RULES
from chopper_core.extensions.chakra.graph import IO_SIDES, KEPT, RANK_OF, STATED
from chopper_core.extensions.chakra.lint import (
    FEEDER_TYPES,
    GROUP_FILE,
    WORLD,
    Communicator,
    comm_type,
    communicators,
    unmatched,
)
from chopper_core.extensions.chakra.schema import (
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
from chopper_core.graph.collectives import Transfer, transfers
from chopper_core.graph.dependencies import dependencies, stated, time_order
from chopper_core.graph.process_groups import split_groups
from chopper_core.model.attributes import (
    NO_NODE,
    Attributes,
    TypedValue,
    attribute_names,
    nodes_at,
)
from chopper_core.model.column_names import FLOPS, FLOPS_TYPE, NO_TIMES
from chopper_core.model.hardware import ElementType
from chopper_core.model.inputs import Gpu
from chopper_core.model.run import Run
from chopper_core.model.table import NO_TIME, PHASES, Category, KernelTable, Kind, Rule
from chopper_core.render.exports import ExportOptions, chosen_rows, new_folder
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import run_starts, stable_order
from chopper_core.util.progress import Progress

DESCRIPTION: Final = "a folder of Chakra traces, one .et per rank, for simulators"
TAKES: Final = ("iteration", "gaps", "force")

WRITTEN_TYPES: Final = (NodeType.MEM_LOAD.name, NodeType.MEM_STORE.name)
"""Types of nodes that are written as a Chakra trace gave them."""
SIMULATED_TYPES: Final = (
    CommType.ALL_REDUCE,
    CommType.ALL_GATHER,
    CommType.REDUCE_SCATTER,
    CommType.ALL_TO_ALL,
    CommType.BROADCAST,
)
_VERSION: Final = "1.0.0"
_SCHEMA: Final = "chopper.et/1"
_MIN_GAP_NS: Final = 1_000
_NS_PER_US: Final = 1_000


class _Plan(Struct, frozen=True):
    """Facts that the files of an export share."""

    origin_ns: int
    rank_of: Mapping[int, int]
    """GPU → number of its file."""
    groups: Mapping[int, Communicator]
    """By code of the process group."""
    gaps: bool
    transfers: Mapping[int, Transfer]
    """Row → its send or receive."""
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
    plan = _Plan(
        origin_ns=int(table.start_ns[chosen].min()),
        rank_of={gpu.index: number for number, gpu in enumerate(run.gpus)},
        groups={one.code: one for one in groups},
        gaps=options.gaps,
        transfers=sent,
        kept=attribute_names(run.side(Attributes)),
    )
    name = Path(run.name.partition(",")[0]).name.partition(".")[0] or "run"
    with new_folder(path) as folder:
        for number, gpu in enumerate(run.gpus):
            progress("write Chakra traces", number, len(run.gpus))
            own = chosen[(table.gpu[chosen] == gpu.index) & ~np.isin(chosen, left_out)]
            own = time_order(table, own)
            with (folder / f"{name}.{number}.et").open("wb") as file:
                write_et(file, _metadata(run, gpu, plan), _nodes(run, own, plan))
        members = {
            str(one.number): [plan.rank_of[gpu] for gpu in one.gpus]
            for one in groups
            if one.number != WORLD and one.gpus
        }
        (folder / GROUP_FILE).write_text(json.dumps(members, indent=1) + "\n", encoding="utf-8")
    written = chosen[~np.isin(chosen, left_out)]
    return [*notes, *_limits(run, written, groups, plan)]


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


def _limits(run: Run, chosen: Index, groups: Sequence[Communicator], plan: _Plan) -> list[str]:
    table, notes = run.table, []
    comm = chosen[table.kind[chosen] == Kind.COMM].tolist()
    untyped = {row for row in comm if comm_type(table, row) is None and row not in plan.transfers}
    if untyped:
        early = sum(table.launch_ns[row] == NO_TIME for row in untyped)
        notes.append(
            f"{len(untyped)} communication kernels are written as COMP: the trace gives neither "
            "a collective nor the peer of a send or receive"
            + (f"; {early} of them have no launch record" if early else "")
        )
    without = sum(_sent_bytes(table, row, plan) is None for row in comm if row not in untyped)
    if without:
        notes.append(f"{without} collectives have no comm_size: the trace doesn't give their bytes")
    odd = sorted(
        {
            kind.name.lower()
            for row in comm
            if (kind := comm_type(table, row)) is not None and kind not in SIMULATED_TYPES
        }
    )
    if odd:
        notes.append(f"ASTRA-sim stops at collectives that it can't simulate: {', '.join(odd)}")
    return notes + [
        f"group {one.label!r} has {one.size} ranks, of which the run has {len(one.gpus)}"
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
        "time_origin_ns": plan.origin_ns,
    }
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


def _nodes(run: Run, rows: Index, plan: _Plan) -> Iterator[Node]:
    """The nodes of one GPU, whose rows come in the order of their start."""
    table = run.table
    start = table.start_ns[rows]
    first, edges, leads = _needs(run, rows)
    attributes, nodes = run.side(Attributes), nodes_at(table, rows).tolist()
    start_us = ((start - plan.origin_ns) / _NS_PER_US).round().astype(np.int64)
    duration_us = _carried_us(table.duration_ns[rows], table.stream[rows])
    gap_before = _gaps(table, rows) if plan.gaps else np.zeros(len(rows), np.int64)
    ids = np.cumsum(1 + (gap_before > 0))
    end = np.maximum.accumulate(start + table.duration_ns[rows]) if len(rows) else start
    last = np.maximum.accumulate(
        np.where(start + table.duration_ns[rows] == end, np.arange(len(rows)), 0)
    )
    for place, row in enumerate(rows.tolist()):
        needs = edges[first[place] : first[place + 1]]
        data, control = (
            [int(ids[before]) for before, _, is_control in needs if is_control == kind]
            for kind in (False, True)
        )
        if gap := int(gap_before[place]):
            before = int(ids[last[place - 1]])
            yield Node(
                int(ids[place]) - 1,
                "host_gap",
                NodeType.COMP,
                data_deps=[before],
                start_us=round((int(start[place]) - gap - plan.origin_ns) / _NS_PER_US),
                duration_us=round(gap / _NS_PER_US),
                attributes={"is_cpu_op": typed(True)},
            )
            data = [int(ids[place]) - 1, *(each for each in data if each != before)]
        node = _node(
            table,
            row,
            plan,
            id=int(ids[place]),
            data_deps=data,
            ctrl_deps=control,
            start_us=int(start_us[place]),
            duration_us=int(duration_us[place]),
        )
        if nodes[place] != NO_NODE:
            kept = attributes.of(int(table.gpu[row]), nodes[place])
            _add_kept(node, kept, plan.transfers.get(row), plan)
        if leads is not None:
            pairs = (n for before, host_ns, _ in needs for n in (int(ids[before]), host_ns))
            node.attributes[STATED] = Attribute("int64_list", [leads[place], *pairs])
        yield node


def _needs(
    run: Run, rows: Index
) -> tuple[list[int], list[tuple[int, int, bool]], list[int] | None]:
    """The dependencies of the trace, else of the times: where those of each place begin, and all:
    the place of an activity, the host's work since in ns, and whether it is control.

    Of a trace's also the host's work in ns before each activity.
    """
    found = stated(run, rows) if len(rows) else None
    if found is None:
        deps = dependencies(run.table, rows)
        return deps.first.tolist(), [(before, 0, False) for before in deps.before.tolist()], None
    order = np.lexsort((found.before, found.after))
    first = np.searchsorted(found.after[order], np.arange(len(rows) + 1)).tolist()
    columns = (found.before, found.host_ns, found.is_control)
    edges = list(zip(*(each[order].tolist() for each in columns), strict=True))
    return first, edges, found.lead_ns.tolist()


def _add_kept(
    node: Node, kept: Mapping[str, TypedValue], transfer: Transfer | None, plan: _Plan
) -> None:
    """Give a node what a trace gave of it, in place of what was made of the table."""
    io: dict[str, dict[str, str]] = {side: {} for side in IO_SIDES}
    for name, (kind, value) in kept.items():
        side = next((side for side in IO_SIDES if name.startswith(side)), None)
        if side is not None:
            io[side][name.removeprefix(side)] = str(value)
        elif name == NODE_TYPE and value in WRITTEN_TYPES:
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
    if transfer.bytes >= 0:
        node.attributes.setdefault("comm_size", Attribute("int64", transfer.bytes))
    for name, gpu in (("comm_src", transfer.sender), ("comm_dst", transfer.receiver)):
        given = kept.get(name)
        number = plan.rank_of[gpu]
        node.attributes[name] = Attribute("int32", number)
        if given is not None and given[1] != number:
            node.attributes[RANK_OF[name]] = Attribute("int32", given[1])


def _node(table: KernelTable, row: int, plan: _Plan, **fields: object) -> Node:
    is_comm = table.kind[row] == Kind.COMM
    kind = comm_type(table, row) if is_comm else None
    values: dict[str, Value | None] = {"is_cpu_op": False}
    if kind is not None:
        values["comm_type"] = int(kind)
        values["comm_size"] = _sent_bytes(table, row, plan)
        values["pg_name"] = str(plan.groups[int(table.group[row])].number)
    elif is_comm:
        values["kind"] = Kind.COMM.name.lower()
    values |= _own_values(table, row, plan)
    known = {name: value for name, value in values.items() if value is not None}
    return Node(
        name=table.names[int(table.kernel[row])],
        type=NodeType.COMP if kind is None else NodeType.COMM_COLL,
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
        "ts_ns": int(table.start_ns[row]) - plan.origin_ns,
        "dur_ns": int(table.duration_ns[row]),
        "launch_ns": None if launch_ns == NO_TIME else launch_ns - plan.origin_ns,
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


def _sent_bytes(table: KernelTable, row: int, plan: _Plan) -> int | None:
    """The bytes that a rank puts into a collective; None where the trace doesn't give them."""
    size = int(table.bytes[row])
    if size < 0:
        return None
    if comm_type(table, row) != CommType.ALL_GATHER:
        return size
    # The table has the larger side, which is the output here.
    ranks = plan.groups[int(table.group[row])].size
    return size // ranks if ranks and size % ranks == 0 else None


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


def _gaps(table: KernelTable, rows: Index) -> Int64:
    """The time in ns before each row in which nothing ran on its GPU; 0 where it is under 1 µs."""
    start = table.start_ns[rows]
    end = np.maximum.accumulate(start + table.duration_ns[rows])
    gap = np.zeros(len(rows), np.int64)
    gap[1:] = start[1:] - end[:-1]
    return np.where(gap >= _MIN_GAP_NS, gap, 0)
