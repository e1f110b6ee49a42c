"""Runs of pipeline schedules, which have operations by stage and no kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from chopper_core.align.rank_account import charged
from chopper_core.extensions.chakra.schedule_edges import with_edges
from chopper_core.extensions.chakra.schedule_table import EVERYWHERE, NO_MICROBATCH, ScheduleTable
from chopper_core.model.column_names import CHUNK, MICROBATCH, STEP_WINDOW
from chopper_core.model.inputs import NO_DEVICE, Gpu, Source
from chopper_core.model.parallel import ProcessGroup
from chopper_core.model.run import Run
from chopper_core.model.side_table import side_tables
from chopper_core.model.table import NO_LABEL, NO_TIME, KernelTable, Kind, Rule, concatenate
from chopper_core.model.tree import level_order
from chopper_core.tables.columns import Interner
from chopper_core.tables.losses import ABSENT
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import counts_of, distinct, grouped_by, ranked

_PAIR: Final = 2
_MAX_LISTED: Final = 4
"""Ranks in the label of a process group."""
_MAX_SPAN_NS: Final = 1 << 53
"""Sums of more aren't exact."""
_CLOCK: Final = "steps one after the other; times count from the start of each step"


def run_of_schedules(name: str, read: Sequence[ScheduleTable]) -> Run:
    """The run of the schedules of one job; raises DataError if two belong to the same rank.

    Steps follow each other, each as long as on the rank where it takes longest.
    """
    _check_ranks(read)
    begins, place = _begins(read), _places(read)
    labels = _group_labels(read, place)
    table = concatenate([_table(each, begins, labels) for each in read])
    table, edges = with_edges(table.take(level_order(table)), place)
    ranks = distinct(table.gpu).tolist()
    return Run(
        name=name,
        table=table,
        gpus=tuple(Gpu(rank, rank, NO_DEVICE, "") for rank in ranks),
        sources=tuple(_source(each) for each in read),
        groups=tuple(_groups(place)),
        world=len(ranks),
        side_tables=side_tables(edges),
    )


def _check_ranks(read: Sequence[ScheduleTable]) -> None:
    """Raise DataError where files of two jobs would be taken for one."""
    of_rank: dict[int, ScheduleTable] = {}
    for each in read:
        for rank in distinct(each.rank).tolist():
            other = of_rank.setdefault(rank, each)
            if other is not each:
                raise DataError(
                    f"{other.path.name} and {each.path.name} both have rank {rank}: they belong to "
                    f"different jobs; open one: {each.path}"
                )


def _begins(read: Sequence[ScheduleTable]) -> dict[int, int]:
    """When each step begins on the run's clock."""
    longest: dict[int, int] = {}
    for each in read:
        ends = each.start_ns + each.duration_ns
        for step in distinct(each.step).tolist():
            longest[step] = max(longest.get(step, 0), int(ends[each.step == step].max()))
        for (_, step), window in each.windows_ns.items():
            longest[step] = max(longest.get(step, 0), window)
    begins, at = {}, 0
    for step in sorted(longest):
        begins[step] = at
        at += longest[step]
    if at > _MAX_SPAN_NS:
        raise DataError(
            f"{read[0].path}: its {len(begins):,} steps take {at / 8.64e13:,.0f} days together, "
            f"which no run does; the dump is damaged or its times aren't in ms."
        )
    return begins


def _table(
    schedule: ScheduleTable, begins: dict[int, int], group_labels: dict[tuple[int, str], str]
) -> KernelTable:
    count, names = len(schedule.rank), Interner()
    numbered = schedule.microbatch != NO_MICROBATCH
    is_interleaved = bool(schedule.chunk.any())
    kernel = []
    columns = (schedule.operation, schedule.microbatch, schedule.chunk)
    for code, microbatch, chunk in zip(*(each.tolist() for each in columns), strict=True):
        label = schedule.operations[code]
        if microbatch != NO_MICROBATCH:
            label += f" {microbatch} chunk {chunk}" if is_interleaved else f" {microbatch}"
        kernel.append(names[label])
    group = np.full(count, NO_LABEL, np.int32)
    for (rank, operation), label in group_labels.items():
        if operation in schedule.operations:
            own = schedule.operation == schedule.operations.index(operation)
            group[own & (schedule.rank == rank)] = names[label]
    begin = np.array([begins[step] for step in schedule.step.tolist()], np.int64)
    start_ns = schedule.start_ns + begin
    # Operations of one kind follow each other; those of several overlap.
    stream = np.where(schedule.kind == 0, 0, 1 + schedule.operation).astype(np.int64)
    launch, windows = np.full(count, NO_TIME, np.int64), np.full(count, np.nan)
    gpu, times = ranked(schedule.rank)[1], (start_ns, schedule.duration_ns)
    costs: dict[str, Any] = charged(gpu, *times, schedule.kind, stream, launch, schedule.step)
    for (rank, number), window in schedule.windows_ns.items():
        there = np.flatnonzero((schedule.rank == rank) & (schedule.step == number))
        if len(there):
            windows[there[np.argmin(start_ns[there])]] = window
    measured = {MICROBATCH: np.where(numbered, schedule.microbatch, np.nan).astype(np.float64)}
    if is_interleaved:
        measured[CHUNK] = np.where(numbered, schedule.chunk, np.nan).astype(np.float64)
    if np.isfinite(windows).any():
        measured[STEP_WINDOW] = windows
    stated = np.full(count, Rule.ANNOTATION, np.int8)
    return KernelTable(
        names=tuple(names),
        operations=tuple(schedule.operations),
        gpu=schedule.rank,
        iteration=schedule.step,
        phase=schedule.phase,
        layer=np.full(count, NO_LABEL, np.int32),
        operation=schedule.operation,
        kernel=np.array(kernel, np.int32),
        kind=schedule.kind,
        category=np.zeros(count, np.int8),
        stream=stream,
        start_ns=start_ns,
        duration_ns=schedule.duration_ns,
        launch_ns=launch,
        bytes=np.full(count, ABSENT, np.int64),
        group=group,
        iteration_rule=stated,
        phase_rule=stated,
        layer_rule=np.zeros(count, np.int8),
        operation_rule=stated,
        measured=measured,
        **costs,
    )


def _source(schedule: ScheduleTable) -> Source:
    counts = counts_of(schedule.operation, len(schedule.operations)).tolist()
    return Source(
        path=str(schedule.path),
        size_bytes=schedule.path.stat().st_size,
        rank=int(schedule.rank[0]),
        rank_from="file name" if (schedule.rank == schedule.rank[0]).all() else "its column rank",
        events={**dict(zip(schedule.operations, counts, strict=True)), **schedule.unused},
        unused=dict(schedule.unused),
        findings={},
        losses=tuple(schedule.losses.notes),
        clock=_CLOCK,
        facts={"format": schedule.format},
    )


def _places(read: Sequence[ScheduleTable]) -> dict[int, tuple[int, int]]:
    """Rank → its stage and replica."""
    return {
        rank: (stage, replica)
        for each in read
        for rank, stage, replica in zip(
            each.rank.tolist(), each.stage.tolist(), each.replica.tolist(), strict=True
        )
    }


def _group_labels(
    read: Sequence[ScheduleTable], place: Mapping[int, tuple[int, int]]
) -> dict[tuple[int, str], str]:
    """(Rank, communication) → the label of its process group, by stage and replica.

    The first and the last stage share the gradients of the embedding, replicas of a stage those of
    its weights, tensor-parallel ranks those of norms; the norm of all gradients is everyone's.
    Stages send to their neighbours: the label of a transfer has its direction. No label for ranks
    that may not be in the files.
    """
    shards = grouped_by(sorted(place), place.__getitem__)
    stages = 1 + max(stage for stage, _ in shards)
    replicas = {replica for _, replica in shards}
    is_whole = sorted(place) == list(range(len(place))) and len(shards) == stages * len(replicas)
    communications = {
        (rank, each.operations[code])
        for each in read
        for rank, code, kind in zip(
            each.rank.tolist(), each.operation.tolist(), each.kind.tolist(), strict=True
        )
        if kind == Kind.COMM
    }
    labels: dict[tuple[int, str], str] = {}
    for rank, name in sorted(communications):
        stage, replica = place[rank]
        own = shards[place[rank]]
        shard = own.index(rank)
        if name.endswith(("send", "recv")):
            ahead = 1 if name.startswith("forward") == name.endswith("send") else -1
            other = shards.get(((stage + ahead) % stages, replica), [])[shard : shard + 1]
            for peer in other:
                sender, receiver = (rank, peer) if name.endswith("send") else (peer, rank)
                labels[rank, name] = f"pp (rank {sender} to {receiver}) of {_PAIR}"
            continue
        if name in EVERYWHERE:
            kind, members, size = "world", [*place], len(place)
        elif "layernorm" in name:
            kind, members, size = "tp", own if is_whole else [], len(own)
        else:
            kind, places = "dp", [(stage, each) for each in replicas]
            if "embedding" in name:
                kind, places = "embedding", [(end, replica) for end in {0, stages - 1}]
            members = [one for at in places for one in shards.get(at, [])[shard : shard + 1]]
            size = len(places)
        if rank in members:
            ranks = sorted(members)
            listed = ", ".join(map(str, ranks[:_MAX_LISTED])) + (
                " …" if len(ranks) > _MAX_LISTED else ""
            )
            labels[rank, name] = f"{kind} (ranks {listed}) of {size}"
    return labels


def _groups(place: Mapping[int, tuple[int, int]]) -> list[ProcessGroup]:
    groups = []
    for kind, own, other in (("pp", 0, 1), ("dp", 1, 0)):
        for code in sorted({at[other] for at in place.values()}):
            ranks = [rank for rank, at in place.items() if at[other] == code]
            ranks.sort(key=lambda rank: place[rank][own])
            groups.append(ProcessGroup(f"{kind}:{code}", kind, tuple(ranks)))
    return groups
