"""From one trace to a run of one rank."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from chopper_core.align.checks import doubts_of_file, explained, without_impossible
from chopper_core.align.host import launch_calls
from chopper_core.align.rank import align_rank
from chopper_core.model.inputs import NO_RANK, RECONSTRUCTED, SCHEDULE, Gpu, Source
from chopper_core.model.operator_inputs import json_in
from chopper_core.model.parallel import ProcessGroup
from chopper_core.model.run import Run
from chopper_core.model.side_table import joined_tables
from chopper_core.model.table import NO_LABEL, KernelTable, concatenate
from chopper_core.model.units import utc_text
from chopper_core.sources.annotations import with_annotations
from chopper_core.sources.foreign import (
    CUPTI_RANGE,
    NoActivityError,
    OnlyRangesError,
    why_no_activity,
)
from chopper_core.sources.ranks import HostFile, rank_in_name
from chopper_core.sources.registry import Family, OwnRun, read_source
from chopper_core.sources.signals import ClockDomain
from chopper_core.sources.trace import TIMES_SINCE, Trace, by_rank, without_far
from chopper_core.tables.columns import MAX_BYTES
from chopper_core.tables.losses import ABSENT, number_of
from chopper_core.tables.text import FileHead
from chopper_core.util.atomic import file_state
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import counts_of, distinct
from chopper_core.util.memory import keep_freed, reading
from chopper_core.util.progress import Progress, silent

HOST_TRACE: Final = "host trace"
CAPTURE: Final = "capture"
ANNOTATIONS: Final = "annotations"
JOINED: Final = (HOST_TRACE, CAPTURE, ANNOTATIONS)
"""The note on a joined trace begins with one of these, and its path."""
_MAX_ATTEMPTS: Final = 3
"""Attempts to read a file that is replaced or written during that time."""
_MOST_DEVICES: Final = 1_024
"""Each GPU of a rank has what its host threads do; no process drives more GPUs."""
_EPOCH_US: Final = 10**15
_MAX_WORLD: Final = 1 << 20
_HOST_KEYS: Final = ("hostname", "host_name", "host")
_WORKER: Final = re.compile(r"(.+)_(\d+)\.(?:\d+\.)?pt\.trace\.json")
"""File names of torch.profiler.tensorboard_trace_handler: host, process, time."""
_DEVICES: Final = ("deviceProperties", "computeProperties")
"""The list of GPUs; the latter until torch 1.8."""
_READ_KEYS: Final = frozenset(
    ("schemaVersion", "baseTimeNanoseconds", *_DEVICES, "distributedInfo", "ERROR", "WARNING",
     "chopper", "chopper_generated", TIMES_SINCE, *_HOST_KEYS)
)  # fmt: skip
"""Keys of a trace that something is read from, with `_VERSIONS`."""
_OF_DRAWING: Final = frozenset(("displayTimeUnit", "traceName", "trace_id"))
_HIP: Final = re.compile(r"hip(?:Ext|Module)*Launch|hipMemcpy|hipGraphLaunch")
"""A call of HIP's runtime."""
_OF_JOB: Final = ("backend", "world_size", "nccl_version")
_VERSIONS: Final = (
    "roctracer_version", "hip_runtime_version", "cupti_version", "cuda_runtime_version"
)  # fmt: skip


def read_complete(path: Path, progress: Progress, hosts: Sequence[HostFile]) -> Run:
    """As `read_rank`, again if the file changed during that time."""
    return read_unchanged(path, lambda: read_rank(path, progress, hosts))


def read_unchanged(path: Path, read: Callable[[], Run]) -> Run:
    """Read a file, again if it changed during that time; raises DataError."""
    for _ in range(_MAX_ATTEMPTS):
        before = file_state(path)
        try:
            run = read()
        except DataError:
            if file_state(path) == before:
                raise
        else:
            if file_state(path) == before:
                return run
    raise DataError(f"{path} changed while it was read; read it again once it is complete")


def read_rank(path: Path, progress: Progress = silent, hosts: Sequence[HostFile] = ()) -> Run:
    """Read and align one trace: a pure function of its content, for any executor.

    Of the host traces the one of the trace's process is joined.

    Returns a run of this file alone: its GPUs count from 0, and its rank is the one in the file or
    `NO_RANK`; a file that merges several ranks gives a source for each. Raises DataError if the
    file can't be read or has no GPU activity.
    """
    keep_freed()
    trace: Trace | OwnRun = read_source(path, Family.TRACE, progress)
    if not isinstance(trace, Trace):
        return trace.as_run()
    if not len(trace.activities):
        if trace.losses.truncated:
            raise DataError(
                f"{path} is truncated before any GPU activity: it has "
                f"{sum(trace.event_counts.values())} events, none of them a kernel, copy or "
                "memset. Profilers write those last: copy or write the file again."
            )
        if lost := trace.losses.bad_times:
            raise DataError(
                f"{path} has no GPU activity with a valid time: {number_of(lost, 'event')} without "
                "one left out."
            )
        launches = int(np.count_nonzero(launch_calls(trace)))
        why = f"{path} {why_no_activity(FileHead(path), trace.event_counts, launches)}"
        raise (OnlyRangesError if trace.event_counts.get(CUPTI_RANGE) else NoActivityError)(why)
    ranks = [_of_rank(each, str(path), hosts) for each in by_rank(trace)]
    return ranks[0] if len(ranks) == 1 else merged(ranks, trace.ranks_from)


def merged(ranks: Sequence[Run], rank_from: str) -> Run:
    # Losses are those of the file: each once is enough.
    losses = tuple(dict.fromkeys(loss for rank in ranks for loss in rank.sources[0].losses))
    parts: list[Run] = []
    for rank in ranks:
        at = sum(len(part.gpus) for part in parts)
        source = replace(rank.sources[0], rank_from=rank_from, losses=() if parts else losses)
        gpus = tuple(replace(gpu, index=at + gpu.index) for gpu in rank.gpus)
        parts.append(with_gpu_numbers(rank, gpus, (source,)))
    return joined_ranks(ranks[0], parts, concatenate_tables(parts))


def with_gpu_numbers(rank: Run, gpus: tuple[Gpu, ...], sources: tuple[Source, ...]) -> Run:
    """A run of one rank with its GPUs as a whole run numbers them; its table stays."""
    partial = {gpus[gpu].index: cut for gpu, cut in rank.partial_iterations.items()}
    return replace(rank, gpus=gpus, sources=sources, partial_iterations=partial)


def joined_ranks(base: Run, ranks: Sequence[Run], table: KernelTable) -> Run:
    """A run like `base` with the GPUs of ranks, whose table it is given; see `numbered`.

    Several windows of a rank have the same GPUs.
    """
    world = max(rank.world for rank in ranks)
    gpus: dict[int, Gpu] = {}
    for gpu in (gpu for rank in ranks for gpu in rank.gpus):
        gpus.setdefault(gpu.index, gpu)
    partial: dict[int, frozenset[int]] = {}
    for number, cut in (item for rank in ranks for item in rank.partial_iterations.items()):
        partial[number] = partial.get(number, frozenset()) | cut
    groups = dict.fromkeys(group for rank in ranks for group in rank.groups)
    return replace(
        base,
        table=table,
        side_tables=joined_tables((rank.side_tables, rank.gpus[0].index) for rank in ranks),
        gpus=tuple(gpus.values()),
        sources=tuple(source for rank in ranks for source in rank.sources),
        generated=next((rank.generated for rank in ranks if rank.generated), None),
        partial_iterations=partial,
        groups=tuple(group for group in groups if not world or len(group.ranks) < world),
        world=world,
    )


def concatenate_tables(ranks: Sequence[Run]) -> KernelTable:
    return concatenate([rank_table(rank, rank.gpus[0].index) for rank in ranks])


def rank_table(rank: Run, first_gpu: int) -> KernelTable:
    return replace(rank.table, gpu=rank.table.gpu + np.int32(first_gpu))


def _of_rank(trace: Trace, path: str, hosts: Sequence[HostFile]) -> Run:
    if (count := len(distinct(trace.activities.device))) > _MOST_DEVICES:
        raise DataError(
            f"{path} has activities of {count:,} GPUs in one process, and none drives as many; "
            "leave out those of other processes to open a part."
        )
    trace, doubts = without_impossible(without_far(trace))
    trace, join = _with_host(trace, hosts)
    aligned = align_rank(trace)
    table = aligned.table
    labelled = table.iteration[table.iteration != NO_LABEL]
    source = Source(
        path=path,
        size_bytes=trace.size_bytes,
        rank=NO_RANK if trace.rank is None else trace.rank,
        rank_from="",
        events=dict(trace.event_counts),
        unused=dict(trace.unused_events),
        findings={**aligned.findings, **_findings(trace)},
        losses=tuple(trace.losses.notes),
        clock=_clock(trace),
        facts=_facts(trace),
        notes=join,
        host=_host(trace),
        span_ns=(int(table.start_ns.min()), int((table.start_ns + table.duration_ns).max())),
        iterations=(int(labelled.min()), int(labelled.max())) if len(labelled) else None,
        doubts=(*explained(doubts, aligned.doubts), *doubts_of_file(trace)),
        unread=_unread(trace),
        gpu_clock=aligned.gpu_clock,
    )
    gpus = tuple(
        Gpu(
            number,
            source.rank,
            device,
            _hardware(trace),
            _process(trace),
            memory_bytes=_memory_bytes(trace),
        )
        for number, device in enumerate(aligned.devices)
    )
    return Run(
        name=path,
        table=table,
        side_tables=aligned.side_tables,
        gpus=gpus,
        sources=(source,),
        generated=trace.generated,
        partial_iterations={gpu.index: aligned.partial_iterations for gpu in gpus},
        groups=tuple(process_groups(trace)),
        world=_world(trace),
    )


def _with_host(trace: Trace, hosts: Sequence[HostFile]) -> tuple[Trace, tuple[str, ...]]:
    """The trace with the host trace and the captures of its rank, and a note on each."""
    notes: list[str] = []
    apart = [each for each in hosts if each.is_capture or each.is_annotation]
    if (host := _host_of(trace, [each for each in hosts if each not in apart])) is not None:
        try:
            with reading(host.path):
                trace, join = read_source(host.path, Family.HOST).joined(trace)
        except DataError as error:
            join = f"is not used: {error}"
        notes.append(f"{HOST_TRACE} {host.path} {join}")
    captures = [each for each in hosts if each.is_capture]
    own = [each.path for each in captures if each.rank_hint == _known_rank(trace)]
    if (own or captures) and any("GraphLaunch" in name for name in trace.names):
        from chopper_core.align.graphs import with_captures
        from chopper_core.sources.kineto.reader import launched_kernels

        read = []
        for path in own or [each.path for each in captures if each.rank_hint is None]:
            try:
                with reading(path):
                    read.append((read_source(path, Family.TRACE), launched_kernels(path)))
                join = "names the kernels of replayed graphs"
            except DataError as error:
                join = f"is not used: {error}"
            notes.append(f"{CAPTURE} {path} {join}")
        trace = with_captures(trace, read)
    for each in apart:
        if each.is_annotation and each.rank_hint == _known_rank(trace):
            try:
                trace, count = with_annotations(trace, each.path)
                join = f"name {number_of(count, 'kernel')} of replayed graphs"
            except DataError as error:
                join = f"are not used: {error}"
            notes.append(f"{ANNOTATIONS} {each.path} {join}")
    return trace, tuple(notes)


def _known_rank(trace: Trace) -> int | None:
    return rank_in_name(trace.path.name) if trace.rank is None else trace.rank


def _host_of(trace: Trace, hosts: Sequence[HostFile]) -> HostFile | None:
    """The host trace of a trace's process; of several with its id, that of its rank."""
    process, rank = _process(trace), _known_rank(trace)
    known = [host for host in hosts if host.process == process != ABSENT]
    if len(known) == 1:
        return known[0]
    unknown = [host for host in hosts if ABSENT in (host.process, process)]
    of_rank = [host for host in known or unknown if host.rank_hint == rank is not None]
    return of_rank[0] if len(of_rank) == 1 else None


def _findings(trace: Trace) -> dict[str, int]:
    ends, losses = trace.one_ended_flows.items(), trace.losses
    return {
        **{f"{category} flows with one end": count for category, count in ends if count},
        "events that can't be read": losses.unreadable_events,
        "events without a usable time": losses.bad_times,
        "bytes lost": losses.lost_bytes,
        "pieces of the file repaired": losses.repaired_pieces,
    }


def _clock(trace: Trace) -> str:
    exported = trace.metadata.get("chopper")
    if isinstance(exported, dict) and RECONSTRUCTED in (exported.get("marks") or ()):
        return SCHEDULE
    if trace.base_time_ns:
        return f"{ClockDomain.EPOCH}, from the base time {utc_text(trace.base_time_ns)}"
    if int(trace.activities.start_ns.min()) > _EPOCH_US * 1000:
        return ClockDomain.EPOCH.value
    if since := trace.metadata.get(TIMES_SINCE):
        return f"{since}: since boot, without a date"
    return "unknown: the file gives no base time"


def _distributed(trace: Trace) -> dict[str, Any]:
    found = trace.metadata.get("distributedInfo")
    return found if isinstance(found, dict) else {}


def _facts(trace: Trace) -> dict[str, str]:
    of_job, versions = _distributed(trace), trace.metadata
    keys = [(key, of_job) for key in _OF_JOB] + [(key, versions) for key in _VERSIONS]
    found = {key.replace("_", " "): str(given[key]) for key, given in keys if key in given}
    if any(map(_HIP.match, trace.names)):
        found["streams"] = "HIP" if "hsa_queue" in trace.figures else "HSA queues"
    return found


def _unread(trace: Trace) -> dict[str, Sequence[str]]:
    """The names of fields that nothing is read from, those of the file itself first."""
    keys = trace.metadata.keys() - _READ_KEYS - _OF_DRAWING - {*_VERSIONS}
    return {**({"the file": sorted(keys)} if keys else {}), **trace.unread_fields}


def process_groups(trace: Trace) -> list[ProcessGroup]:
    """The groups of several ranks that a trace names; that of all ranks shows no layout."""
    listed = _distributed(trace).get("pg_config")
    if isinstance(listed, str):
        listed = json_in(listed)
    found: dict[ProcessGroup, None] = {}
    for given in listed if isinstance(listed, list) else ():
        if isinstance(given, dict):
            name, description = (str(given.get(key) or "") for key in ("pg_name", "pg_desc"))
            found[ProcessGroup(name, description, _ranks(given.get("ranks")))] = None
    for each in trace.collectives:
        ranks = _ranks(json_in(each.group_ranks))
        found[ProcessGroup(each.group_name, each.group_description, ranks)] = None
    return [group for group in found if len(group.ranks) > 1 and len(group.ranks) != _world(trace)]


def _ranks(given: object) -> tuple[int, ...]:
    if isinstance(given, list) and all(type(each) is int and each >= 0 for each in given):
        return tuple(given)
    return ()


def _world(trace: Trace) -> int:
    size = _distributed(trace).get("world_size")
    return size if type(size) is int and 0 < size < _MAX_WORLD else 0


def _process(trace: Trace) -> int:
    """The process with the most launches; -1 if none has a number."""
    counts = counts_of(trace.launches.thread, len(trace.threads))
    if not counts.any():
        return -1
    process = trace.threads[int(counts.argmax())][0]
    return process if isinstance(process, int) else -1


def _host(trace: Trace) -> str:
    """The host named in a trace, or by the profiler in the file's name."""
    stated = (f.get(key) for f in (trace.metadata, _distributed(trace)) for key in _HOST_KEYS)
    match = _WORKER.match(trace.path.name)
    in_name = match[1] if match and int(match[2]) == _process(trace) else ""
    return next((host for host in stated if isinstance(host, str) and host), in_name)


def _hardware(trace: Trace) -> str:
    return str(_properties(trace).get("name", ""))


def _memory_bytes(trace: Trace) -> int:
    size = _properties(trace).get("totalGlobalMem")
    return size if type(size) is int and 0 < size < MAX_BYTES else 0


def _properties(trace: Trace) -> dict[str, Any]:
    """Those of the first device, which are those of the others."""
    found = (trace.metadata.get(key) for key in _DEVICES)
    properties = next(filter(None, found), None)
    if isinstance(properties, list) and properties and isinstance(properties[0], dict):
        return properties[0]
    return {}
