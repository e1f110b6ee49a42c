"""From files to a run: find the traces, read and align each rank, put them together."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from chopper_core.align.clocks import host_clocks
from chopper_core.align.rank import align_rank
from chopper_core.ingest.attach import attach, attach_telemetry, check_overrides, with_overrides
from chopper_core.ingest.rank_file import RankFile
from chopper_core.model.hardware import hardware_of_agent
from chopper_core.model.overrides import NO_OVERRIDES, Overrides
from chopper_core.model.run import Gpu, Run, Source
from chopper_core.model.table import NO_TIME, KernelTable, concatenate
from chopper_core.sources.discover import TraceFile, assign_ranks, find_traces
from chopper_core.sources.kineto.reader import read_trace
from chopper_core.sources.trace import Trace
from chopper_core.store.paths import is_store, paths_of
from chopper_core.util.errors import ChopperError, DataError, UsageError
from chopper_core.util.progress import Progress, silent
from chopper_core.util.workers import read_all

if TYPE_CHECKING:
    from chopper_core.sources.dispatches import DispatchRun

NO_CLOCK: Final = "none: dispatches without times stand in their order"
_EPOCH_US: Final = 10**15
_HOST_KEYS: Final = ("hostname", "host_name", "host")
_WORKER: Final = re.compile(r"(.+)_(\d+)\.(?:\d+\.)?pt\.trace\.json")
"""What torch.profiler.tensorboard_trace_handler calls a file: host, process, time."""
_VERSIONS: Final = (
    "roctracer_version",
    "hip_runtime_version",
    "cupti_version",
    "cuda_runtime_version",
)


Ranks = Callable[[Sequence[Path], Progress], Sequence[RankFile | ChopperError]]
"""What reads the traces at paths: of each what it gave, or why it can't be used."""


def open_run(
    name: str,
    progress: Progress = silent,
    *,
    jobs: int | None = None,
    overrides: Overrides = NO_OVERRIDES,
    ranks: Ranks | None = None,
    gather: Callable[[Sequence[KernelTable]], KernelTable] = concatenate,
) -> Run:
    """Open a run by its name: a trace, several separated by commas, a directory, or a store.

    Files are read by `jobs` processes (default: one per processor when the files are large), or
    by `ranks`; `gather` makes one table of theirs. A file that can't be read is left out and named
    in `Run.failed`; raises DataError where nothing is left.
    """
    paths = paths_of(name)
    if len(paths) == 1 and is_store(paths[0]):
        if overrides:
            raise UsageError(
                f"{name} is a store, whose sources are put together; "
                "--clock and --gpu go with the files that it was made of"
            )
        # Arrow takes longer to import than a small trace takes to read.
        from chopper_core.store.reader import read_store

        return read_store(paths[0], progress)
    try:
        discovery = find_traces(paths)
    except DataError as no_traces:
        from chopper_core.sources.counters.files import read_counters

        dispatch_runs = read_counters(paths, progress) if all(p.exists() for p in paths) else []
        if not dispatch_runs:
            raise DataError(f"{no_traces}{_alone(paths)}") from no_traces
        return _of_dispatches(name, dispatch_runs, progress, overrides)
    skipped = [(str(f.path), f.reason) for f in discovery.skipped if not f.looks_lost]
    failed = [
        (str(file.path), f"{file.path} {file.reason}.")
        for file in discovery.skipped
        if file.looks_lost
    ]
    read: list[tuple[TraceFile, RankFile]] = []
    paths_found = [trace.path for trace in discovery.traces]
    if ranks is None:
        outcomes: Sequence[RankFile | ChopperError] = read_all(
            paths_found, read_rank, progress, jobs
        )
    else:
        outcomes = ranks(paths_found, progress)
    for trace, outcome in zip(discovery.traces, outcomes, strict=True):
        if isinstance(outcome, RankFile):
            read.append((trace, outcome))
        else:
            failed.append((str(trace.path), str(outcome)))
    if not read:
        raise DataError(" ".join(reason for _, reason in failed[:3]))
    progress("put the ranks together", 0, 1)
    run = replace(_together(name, read, gather), skipped=tuple(skipped), failed=tuple(failed))
    run = on_one_clock(run, overrides)
    progress("put the ranks together", 1, 1)
    return check_overrides(attach(with_overrides(run, overrides), paths, progress))


def _alone(paths: Sequence[Path]) -> str:
    """What to say of telemetry that has no run beside it."""
    from chopper_core.sources.telemetry.files import find_telemetry

    there = [path for path in paths if path.exists()]
    return " The telemetry there is described by `chopper info`." * bool(
        find_telemetry(there).files
    )


def _of_dispatches(
    name: str,
    dispatch_runs: Sequence[DispatchRun],
    progress: Progress,
    overrides: Overrides,
) -> Run:
    """A run of the profiler's own dispatches: the one with the most where there are several."""
    from chopper_core.align.dispatches import align_dispatches

    chosen = max(dispatch_runs, key=lambda run: len(run.dispatches))
    if not len(chosen.dispatches):
        raise DataError(f"{chosen.paths[0]} has no kernel dispatches")
    found = align_dispatches(chosen)
    table = found.aligned.table
    gpus = tuple(
        Gpu(number, 0, device, product, pci=chosen.agents[found.agents[number]].pci)
        for number, (device, product) in enumerate(
            zip(found.aligned.devices, found.products, strict=True)
        )
    )
    source = Source(
        path=", ".join(map(str, chosen.paths)),
        size_bytes=sum(path.stat().st_size for path in chosen.paths),
        rank=0,
        rank_from="the only profiled run",
        events={"dispatch": len(chosen.dispatches)},
        unused={"dispatch": found.without_times},
        findings={
            "dispatches without times": found.without_times if table.has_times else len(table),
            "communication kernels": found.aligned.findings["communication kernels"],
        },
        losses=(*chosen.losses.notes, *chosen.join_notes),
        clock=f"{chosen.clock}: since the boot, without a date" if table.has_times else NO_CLOCK,
        facts={"format": chosen.format, "passes": str(chosen.passes)},
    )
    run = Run(
        name=name,
        table=table,
        gpus=gpus,
        sources=(source,),
        skipped=tuple(
            (str(path), "is of another profiled run, with fewer dispatches than the one shown")
            for other in dispatch_runs
            for path in other.paths
            if path not in chosen.paths
        ),
        counter_info=dict(chosen.counter_info),
        described_hardware=hardware_of_agent(chosen.agents[found.agents[0]], overrides.hardware),
        partial_iterations={gpu.index: found.aligned.partial_iterations for gpu in gpus},
    )
    run = attach_telemetry(with_overrides(run, overrides), paths_of(name), progress)
    return check_overrides(run)


def read_rank(path: Path, progress: Progress = silent) -> RankFile:
    """Read and align one file: a pure function of its content, for any executor."""
    trace = read_trace(path, progress)
    if not len(trace.activities):
        events = f"{sum(trace.event_counts.values())} events, none of a kernel, copy or memset"
        if trace.losses.truncated:
            raise DataError(
                f"{path} is cut off before any GPU activity: it holds {events}. Profilers write "
                "those last: copy or write the file again."
            )
        raise DataError(
            f"{path} has no GPU activity: {events}. Was the profiler started with "
            "ProfilerActivity.CUDA?"
        )
    aligned = align_rank(trace)
    source = Source(
        path=str(path),
        size_bytes=trace.size_bytes,
        rank=-1,
        rank_from="",
        events=dict(trace.event_counts),
        unused=dict(trace.unused_events),
        findings={**aligned.findings, **_flow_findings(trace), **_loss_findings(trace)},
        losses=tuple(trace.losses.notes),
        clock=_clock(trace),
        facts=_facts(trace),
        host=_host(trace),
    )
    return RankFile(aligned, source, trace.rank, _hardware(trace), _process(trace), trace.generated)


def _together(
    name: str,
    read: Sequence[tuple[TraceFile, RankFile]],
    gather: Callable[[Sequence[KernelTable]], KernelTable],
) -> Run:
    assigned = assign_ranks([(file, rank.rank_in_file) for file, rank in read])
    by_rank = sorted(
        zip(assigned, (rank for _, rank in read), strict=True), key=lambda pair: pair[0].rank
    )
    one_each = all(len(rank.aligned.devices) == 1 for _, rank in by_rank)
    tables: list[KernelTable] = []
    gpus: list[Gpu] = []
    sources: list[Source] = []
    partial: dict[int, frozenset[int]] = {}
    for assignment, rank in by_rank:
        first = assignment.rank if one_each else len(gpus)
        table = rank.aligned.table
        tables.append(replace(table, gpu=table.gpu + np.int32(first)))
        for number, device in enumerate(rank.aligned.devices):
            gpus.append(Gpu(first + number, assignment.rank, device, rank.hardware, rank.process))
            partial[first + number] = rank.aligned.partial_iterations
        sources.append(replace(rank.source, rank=assignment.rank, rank_from=assignment.source))
    generated = next((rank.generated for _, rank in by_rank if rank.generated), None)
    return Run(
        name=name,
        table=gather(tables),
        gpus=tuple(gpus),
        sources=tuple(sources),
        generated=generated,
        partial_iterations=partial,
    )


def on_one_clock(run: Run, overrides: Overrides) -> Run:
    """The run with the times of all ranks on the clock of the first one's host."""
    by_hand: dict[int, int] = {}
    for source in run.sources:
        shift_ns = overrides.shift_ns(*source.called)
        if shift_ns is not None:
            by_hand[source.rank] = shift_ns
    table = run.table
    clocks = host_clocks(
        table,
        {gpu.index: gpu.rank for gpu in run.gpus},
        {source.rank: source.host for source in run.sources},
        {number for numbers in run.partial_iterations.values() for number in numbers},
        by_hand,
    )
    correction_of = {rank: clock.correction_ns for clock in clocks for rank in clock.ranks}
    moved = np.zeros(int(table.gpu.max()) + 1, np.int64)
    for gpu in run.gpus:
        moved[gpu.index] = correction_of[gpu.rank]
    if moved.any():
        by = moved[table.gpu]
        launch_ns = np.where(table.launch_ns == NO_TIME, NO_TIME, table.launch_ns + by)
        table = replace(table, start_ns=table.start_ns + by, launch_ns=launch_ns)
    return replace(run, table=table, hosts=tuple(clocks))


def _flow_findings(trace: Trace) -> dict[str, int]:
    return {
        f"{category} flows with one end": count
        for category, count in trace.one_ended_flows.items()
        if count
    }


def _loss_findings(trace: Trace) -> dict[str, int]:
    losses = trace.losses
    return {
        "events that can't be read": losses.unreadable_events,
        "events without a usable time": losses.bad_times,
        "bytes lost": losses.lost_bytes,
        "pieces of the file repaired": losses.repaired_pieces,
    }


def _clock(trace: Trace) -> str:
    if trace.base_time_ns:
        base = datetime.fromtimestamp(trace.base_time_ns / 1e9, UTC)
        return f"epoch, from the base time {base:%Y-%m-%d %H:%M:%S} UTC"
    if int(trace.activities.start_ns.min()) > _EPOCH_US * 1000:
        return "epoch"
    return "unknown: the file gives no base time"


def _facts(trace: Trace) -> dict[str, str]:
    distributed = trace.metadata.get("distributedInfo")
    facts = {}
    if isinstance(distributed, dict):
        for key in ("backend", "world_size", "nccl_version"):
            if key in distributed:
                facts[key.replace("_", " ")] = str(distributed[key])
    for key in _VERSIONS:
        if key in trace.metadata:
            facts[key.replace("_", " ")] = str(trace.metadata[key])
    return facts


def _process(trace: Trace) -> int:
    """The process of most launches; -1 where there is none with a number."""
    counts = np.bincount(trace.launches.thread, minlength=len(trace.threads))
    if not counts.any():
        return -1
    process = trace.threads[int(counts.argmax())][0]
    return process if isinstance(process, int) else -1


def _host(trace: Trace) -> str:
    """The host that a trace says, or that the profiler put before the process into its name."""
    distributed = trace.metadata.get("distributedInfo")
    for said in (trace.metadata, distributed if isinstance(distributed, dict) else {}):
        for key in _HOST_KEYS:
            if isinstance(said.get(key), str) and said[key]:
                return str(said[key])
    match = _WORKER.match(trace.path.name)
    return match[1] if match and int(match[2]) == _process(trace) else ""


def _hardware(trace: Trace) -> str:
    properties = trace.metadata.get("deviceProperties")
    if isinstance(properties, list) and properties and isinstance(properties[0], dict):
        return str(properties[0].get("name", ""))
    return ""
