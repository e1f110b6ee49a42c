"""Runs of dispatches that profilers counted, without a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.align.checks import doubts_of_file, explained, without_impossible
from chopper_core.align.counters import counter_signals
from chopper_core.align.rank import align_rank, used_names
from chopper_core.align.steps import is_step
from chopper_core.ingest.joining import on_one_clock
from chopper_core.ingest.rank import merged
from chopper_core.model.column_names import BLOCK, COUNTER_DURATION, GRID, LDS, REGISTERS
from chopper_core.model.hardware import hardware_of_agent
from chopper_core.model.inputs import Gpu, Source
from chopper_core.model.overrides import Overrides
from chopper_core.model.run import Run
from chopper_core.model.side_table import side_tables
from chopper_core.model.table import KernelTable, Rule, whole_codes
from chopper_core.sources.dispatches import CLOCK_BOOTTIME, Dispatches, DispatchRun
from chopper_core.sources.nvtx import with_operators
from chopper_core.sources.trace import (
    Activities,
    ActivityCategory,
    HostRanges,
    Launches,
    LaunchShape,
    Trace,
    blank,
    by_rank,
)
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.util.arrays import Float64, Index, Int32
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import distinct, isin
from chopper_core.util.patterns import natural_key

_REGION: Final = "code of the roctx range"
_OTHER_RUN: Final = "belongs to another profiled run, with fewer dispatches than the one shown"
_OTHER_GROUP: Final = (
    "is another group of sampled counters, of an execution with other kernels than the one shown; "
    "open it alone, or put a trace next to both: each is matched with it"
)
_RANKS_FROM: Final = "processes of the profiled run, in the order of their GPUs"
_SHARED: Final = (
    "Several processes used the same GPU, so that their roctx ranges are not used: steps of one "
    "would hold kernels of another. Open the files of one process alone."
)
NO_CLOCK: Final = "none: dispatches have no times, only their order"


def run_of_dispatches(name: str, dispatch_runs: Sequence[DispatchRun], overrides: Overrides) -> Run:
    """A run made of profiled dispatches: of several profiled runs, the one with the most.

    The hosts of a run have ranks one after the other.
    """
    chosen = max(dispatch_runs, key=lambda run: len(run.dispatches))
    if not len(chosen.dispatches):
        raise DataError(f"{chosen.paths[0]} has no kernel dispatches")
    together = [run for run in dispatch_runs if run is chosen or _ran_with(run, chosen)]
    together.sort(key=lambda run: natural_key(run.host))
    read: list[tuple[Run, DispatchRun, Sequence[int]]] = []
    for each in together:
        for place, (trace, without_times) in enumerate(_traces(each)):
            rank, devices = _rank(each, trace, len(read), without_times, is_first=not place)
            read.append((rank, each, devices))
    ranks = [rank for rank, _, _ in read]
    run = ranks[0] if len(ranks) == 1 else merged(ranks, _RANKS_FROM)
    run = on_one_clock(run, overrides) if len(together) > 1 else run
    shifts = {rank: clock.correction_ns for clock in run.hosts for rank in clock.ranks}
    placed = [(of, device) for _, of, devices in read for device in devices]
    sampled = [
        (each, gpu.index, shifts.get(gpu.rank, 0))
        for gpu, (of, device) in zip(run.gpus, placed, strict=True)
        for each in (of.sampled if run.table.has_times else ())
        if each.gpu == device
    ]
    used = {path for each in together for path in each.paths}
    infos = [info for each in reversed(together) for info in each.counter_info.items()]
    return replace(
        run,
        name=name,
        skipped=tuple(
            (str(path), _OTHER_GROUP if other.sampled and chosen.sampled else _OTHER_RUN)
            for other in dispatch_runs
            for path in other.paths
            if path not in used
        ),
        counter_info=dict(infos),
        measured=counter_signals(sampled),
        described_hardware=hardware_of_agent(placed[0][0].agents[placed[0][1]], overrides.hardware),
    )


def _ran_with(run: DispatchRun, chosen: DispatchRun) -> bool:
    """Whether the processes of another host took part in a run, by their files."""
    is_beside = bool(run.host) and (run.folder, run.format) == (chosen.folder, chosen.format)
    return is_beside and run.host != chosen.host and _is_timed(run) and _is_timed(chosen)


def _is_timed(run: DispatchRun) -> bool:
    return bool((run.dispatches.start_ns >= 0).any())


def _traces(run: DispatchRun) -> Iterator[tuple[Trace, int]]:
    """The traces of the processes of a host, or of all; and how many dispatches have no time."""
    dispatches = run.dispatches
    if not (is_timed := _is_timed(run)):
        # They keep their order, 1 ns after each other, with a duration of 0 ns.
        order = np.arange(len(dispatches), dtype=np.int64)
        dispatches = replace(dispatches, start_ns=order, end_ns=order)
    timed = np.flatnonzero((dispatches.start_ns >= 0) & (dispatches.end_ns >= dispatches.start_ns))
    for trace in by_rank(_trace(run, dispatches, timed, is_timed)):
        yield trace, len(dispatches) - len(timed)


def _rank(
    of: DispatchRun, trace: Trace, number: int, without_times: int, *, is_first: bool
) -> tuple[Run, Sequence[int]]:
    """The run of one process, or of all; and the number of the agent of each of its GPUs.

    What is of a host counts for the first of its ranks.
    """
    untimed = without_times if is_first else 0
    copies = int(np.count_nonzero(trace.activities.category == ActivityCategory.MEMCPY))
    events = {
        "dispatch": len(trace.activities) - copies + untimed,
        "copy": copies,
        "call": len(trace.launches),
    }
    trace, doubts = without_impossible(trace)
    aligned = align_rank(trace)
    table = _named_by_ranges(aligned.table, trace.names)
    if of.dispatches.counters and table.has_times:
        table = table.with_measured({COUNTER_DURATION: table.duration_ns.astype(np.float64)})
    agents = [of.agents[device] for device in aligned.devices]
    gpus = tuple(
        Gpu(place, number, agent.node_id, agent.product or agent.name, pci=agent.pci)
        for place, agent in enumerate(agents)
    )
    stated = aligned.side_tables.values() if table.has_times else ()
    source = Source(
        path=", ".join(map(str, of.paths)),
        size_bytes=trace.size_bytes,
        rank=number,
        rank_from="the only profiled run",
        events={name: count for name, count in events.items() if count},
        unused={"dispatch": untimed},
        findings={
            "dispatches without times": untimed if table.has_times else len(table),
            "communication kernels": aligned.findings["communication kernels"],
        },
        losses=tuple(of.losses.notes),
        notes=(*of.join_notes, *trace.losses.notes) if is_first else (),
        clock=f"{CLOCK_BOOTTIME}: since boot, without a date" if table.has_times else NO_CLOCK,
        facts={"format": of.format, "passes": str(of.passes)},
        host=of.host,
        doubts=(*explained(doubts, aligned.doubts), *doubts_of_file(trace)),
    )
    run = Run(
        name="",
        table=table,
        side_tables=side_tables(*stated),
        gpus=gpus,
        sources=(source,),
        partial_iterations={gpu.index: aligned.partial_iterations for gpu in gpus},
    )
    return run, aligned.devices


def _trace(run: DispatchRun, dispatches: Dispatches, rows: Index, is_timed: bool) -> Trace:
    """The dispatches, then the copies, as activities, their streams the queues; counters are
    columns of theirs. Without times of dispatches there is nothing to put next to them.

    Processes that have GPUs of their own are ranks.
    """
    count = len(rows)
    figures = {name: values[rows] for name, values in dispatches.counters.items()}
    figures |= _launch_sizes(dispatches, rows)
    operators = with_operators(run.names, run.ranges)
    figures[_REGION] = operators.plain[dispatches.region[rows]].astype(np.float64)
    copies = run.copies if is_timed else blank(Activities)
    calls = run.calls if is_timed else blank(Launches)
    none = np.full(len(copies), np.nan)
    figures = {name: np.concatenate([values, none]) for name, values in figures.items()}
    figures[_REGION][count:] = ABSENT
    of_part, of_gpu, is_shared = _ranks(run, dispatches)
    losses = Losses(newer=run.losses.newer, bad_times=run.losses.bad_times if is_timed else 0)
    has_ranges = is_timed and not is_shared
    if is_timed and is_shared and len(run.ranges):
        losses.notes.append(_SHARED)
    own_copies = np.where(of_gpu[copies.device] < 0, of_part[copies.rank], of_gpu[copies.device])
    return Trace(
        path=run.paths[0],
        size_bytes=sum(path.stat().st_size for path in run.paths),
        names=operators.names,
        activities=replace(
            blank(Activities, count),
            name=dispatches.name[rows],
            category=np.full(count, ActivityCategory.KERNEL, np.int8),
            device=dispatches.gpu[rows],
            stream=dispatches.queue[rows],
            start_ns=dispatches.start_ns[rows],
            duration_ns=(dispatches.end_ns - dispatches.start_ns)[rows],
            correlation=dispatches.correlation[rows],
            launch_shape=np.zeros(count, np.int32),
            rank=of_part[dispatches.part[rows]],
        ).joined(replace(copies, rank=own_copies)),
        launch_shapes=(LaunchShape(ABSENT, ABSENT),),
        launches=calls,
        ranges=operators.ranges if has_ranges else blank(HostRanges),
        inputs=operators.inputs,
        threads=[(process, thread, int(of_part[part])) for process, thread, part in run.threads],
        syncs=replace(run.syncs, rank=of_part[run.syncs.rank]),
        event_counts={},
        losses=losses,
        figures=figures,
        ranks_from=_RANKS_FROM,
    )


def _ranks(run: DispatchRun, dispatches: Dispatches) -> tuple[Int32, Int32, bool]:
    """The rank of each part, and of each agent or -1; and whether parts shared a GPU.

    Parts are ranks in the order of their GPUs. One part alone, and parts that shared a GPU, are no
    ranks.
    """
    parts = 1 + max(int(dispatches.part.max(initial=0)), *(part for _, _, part in run.threads), 0)
    pairs = distinct(dispatches.gpu.astype(np.int64) * parts + dispatches.part)
    gpus, owners = pairs // parts, pairs % parts
    is_shared = len(distinct(gpus)) < len(gpus)
    of_part, of_gpu = np.full(parts, ABSENT, np.int32), np.full(len(run.agents), ABSENT, np.int32)
    if parts > 1 and not is_shared:
        in_order = sorted(
            zip(gpus.tolist(), owners.tolist(), strict=True),
            key=lambda pair: (run.agents[pair[0]].node_id, pair[0]),
        )
        order = dict.fromkeys([part for _, part in in_order])
        order |= dict.fromkeys(range(parts))
        of_part[[*order]] = np.arange(parts)
        of_gpu[gpus] = of_part[owners]
    return of_part, of_gpu, is_shared


def _launch_sizes(dispatches: Dispatches, rows: Index) -> dict[str, Float64]:
    items, block = (
        np.where(
            (sizes > 0).any(axis=1), np.maximum(sizes, 1).astype(np.float64).prod(axis=1), np.nan
        )
        for sizes in (dispatches.grid[rows], dispatches.workgroup[rows])
    )
    registers, lds = (
        np.where(known[rows] < 0, np.nan, known[rows])
        for known in (dispatches.registers, dispatches.lds)
    )
    found = {GRID: np.ceil(items / block), BLOCK: block, REGISTERS: registers, LDS: lds}
    return {name: values for name, values in found.items() if np.isfinite(values).any()}


def _named_by_ranges(table: KernelTable, names: Sequence[str]) -> KernelTable:
    """The table with the innermost roctx range (code in the names, or -1) as operation, but for
    those of steps."""
    region = whole_codes(table.measured[_REGION])
    table = table.without_measured(_REGION)
    known = distinct(region[region >= 0]).tolist()
    used = np.array([code for code in known if not is_step(names[code])], np.int64)
    if not len(used):
        return table
    is_named = isin(region, used)
    code = len(table.operations) + np.searchsorted(used, region)
    renamed = replace(
        table,
        operations=[*table.operations, *(names[each] for each in used)],
        operation=np.where(is_named, code, table.operation).astype(np.int32),
        operation_rule=np.where(is_named, np.int8(Rule.ANNOTATION), table.operation_rule),
    )
    return used_names(renamed)
