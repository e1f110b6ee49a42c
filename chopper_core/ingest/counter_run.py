"""Runs of dispatches that profilers counted, without a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.align.checks import doubts_of_file, without_impossible
from chopper_core.align.counters import counter_signals
from chopper_core.align.rank import align_rank, used_names
from chopper_core.align.steps import is_step
from chopper_core.model.column_names import BLOCK, COUNTER_DURATION, GRID, LDS, REGISTERS
from chopper_core.model.hardware import hardware_of_agent
from chopper_core.model.inputs import Gpu, Source
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostSteps, StreamWaits, side_tables
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
)
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import distinct, isin

_REGION: Final = "code of the roctx range"
_OTHER_RUN: Final = "belongs to another profiled run, with fewer dispatches than the one shown"
_OTHER_GROUP: Final = (
    "is another group of sampled counters, of an execution with other kernels than the one shown; "
    "open it alone, or put a trace next to both: each is matched with it"
)
NO_CLOCK: Final = "none: dispatches have no times, only their order"


def run_of_dispatches(name: str, dispatch_runs: Sequence[DispatchRun], hardware: str) -> Run:
    """A run made of profiled dispatches: of several profiled runs, the one with the most."""
    chosen = max(dispatch_runs, key=lambda run: len(run.dispatches))
    if not len(chosen.dispatches):
        raise DataError(f"{chosen.paths[0]} has no kernel dispatches")
    dispatches = chosen.dispatches
    is_timed = bool((dispatches.start_ns >= 0).any())
    if not is_timed:
        # They keep their order, 1 ns after each other, with a duration of 0 ns.
        order = np.arange(len(dispatches), dtype=np.int64)
        dispatches = replace(dispatches, start_ns=order, end_ns=order)
    timed = np.flatnonzero((dispatches.start_ns >= 0) & (dispatches.end_ns >= dispatches.start_ns))
    without_times = len(dispatches) - len(timed)
    trace, doubts = without_impossible(_trace(chosen, dispatches, timed, is_timed))
    aligned = align_rank(trace)
    table = _named_by_ranges(aligned.table, trace.names)
    if dispatches.counters and table.has_times:
        table = table.with_measured({COUNTER_DURATION: table.duration_ns.astype(np.float64)})
    agents = [chosen.agents[device] for device in aligned.devices]
    gpus = tuple(
        Gpu(number, 0, agent.node_id, agent.product or agent.name, pci=agent.pci)
        for number, agent in enumerate(agents)
    )
    devices = enumerate(aligned.devices) if table.has_times else ()
    kinds = (StreamWaits, HostSteps) if table.has_times else ()
    stated = [aligned.side_tables[kind] for kind in kinds if kind in aligned.side_tables]
    sampled = [(each, gpu, 0) for gpu, own in devices for each in chosen.sampled if each.gpu == own]
    source = Source(
        path=", ".join(map(str, chosen.paths)),
        size_bytes=sum(path.stat().st_size for path in chosen.paths),
        rank=0,
        rank_from="the only profiled run",
        events={name: count for name, count in trace.event_counts.items() if count},
        unused={"dispatch": without_times},
        findings={
            "dispatches without times": without_times if table.has_times else len(table),
            "communication kernels": aligned.findings["communication kernels"],
        },
        losses=tuple(chosen.losses.notes),
        notes=tuple(chosen.join_notes),
        clock=f"{CLOCK_BOOTTIME}: since boot, without a date" if table.has_times else NO_CLOCK,
        facts={"format": chosen.format, "passes": str(chosen.passes)},
        doubts=(*doubts, *aligned.doubts, *doubts_of_file(trace)),
    )
    return Run(
        name=name,
        table=table,
        side_tables=side_tables(*stated),
        gpus=gpus,
        sources=(source,),
        skipped=tuple(
            (str(path), _OTHER_GROUP if other.sampled and chosen.sampled else _OTHER_RUN)
            for other in dispatch_runs
            for path in other.paths
            if path not in chosen.paths
        ),
        counter_info=dict(chosen.counter_info),
        measured=counter_signals(sampled),
        described_hardware=hardware_of_agent(agents[0], hardware),
        partial_iterations={gpu.index: aligned.partial_iterations for gpu in gpus},
    )


def _trace(run: DispatchRun, dispatches: Dispatches, rows: Index, is_timed: bool) -> Trace:
    """The dispatches, then the copies, as activities, their streams the queues; counters are
    columns of theirs. Without times of dispatches there is nothing to put next to them."""
    count = len(rows)
    figures = {name: values[rows] for name, values in dispatches.counters.items()}
    figures |= _launch_sizes(dispatches, rows)
    operators = with_operators(run.names, run.ranges)
    figures[_REGION] = operators.plain[dispatches.region[rows]].astype(np.float64)
    copies = run.copies if is_timed else blank(Activities)
    calls = run.calls if is_timed else blank(Launches)
    # Processes are each in a step of their own.
    is_alone = is_timed and len({process for process, _ in run.threads}) == 1
    none = np.full(len(copies), np.nan)
    figures = {name: np.concatenate([values, none]) for name, values in figures.items()}
    figures[_REGION][count:] = ABSENT
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
        ).joined(copies),
        launch_shapes=(LaunchShape(ABSENT, ABSENT),),
        launches=calls,
        ranges=operators.ranges if is_alone else blank(HostRanges),
        inputs=operators.inputs,
        threads=[(process, thread, ABSENT) for process, thread in run.threads],
        syncs=run.syncs,
        event_counts={"dispatch": len(dispatches), "copy": len(copies), "call": len(calls)},
        losses=Losses(newer=run.losses.newer),
        figures=figures,
    )


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
