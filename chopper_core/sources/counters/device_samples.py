"""Chopper's own device sampling: counters of a whole GPU over time, and the kernels next to them.

`counter_samples_rank<N>.csv` has one row per time, counter and instance
(`timestamp_ns,counter_name,counter_value,agent_id,<dimensions>`), accumulated since the start;
`kernel_traces_rank<N>.csv` has one row per kernel. Both are on rocprofiler's clock (ns since boot).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.hardware import Agent, counter_infos
from chopper_core.model.signals import between
from chopper_core.sources.counters.tables import clean_kernel_name
from chopper_core.sources.dispatches import (
    CLOCK_BOOTTIME,
    Dispatches,
    DispatchRun,
    SampledCounter,
)
from chopper_core.sources.ranks import rank_in_name
from chopper_core.sources.registry import Recognised
from chopper_core.tables.accumulators import steps
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.columns import Columns, GrowingColumns, Interner
from chopper_core.tables.csv_stream import CellKind, CsvFile, Declared, declared, header_of
from chopper_core.tables.losses import ABSENT, Losses, merged_losses
from chopper_core.tables.text import FileHead
from chopper_core.util.arrays import Float64, Int32, Int64
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import (
    distinct,
    median_of,
    ranked,
    run_mask,
    run_starts,
    stable_order,
)
from chopper_core.util.progress import Progress, silent

NAME: Final = "Chopper's device sampling"
FILES: Final = "`counter_samples_rank<N>.csv` beside `kernel_traces_rank<N>.csv`"
EXAMPLE: Final = ""
SUFFIXES: Final = ()

FORMAT: Final = "device sampling"
SAMPLES: Final = "samples"
KERNELS: Final = "kernels"
_MOST_NODES: Final = 4096
"""Larger agent ids are handles, not nodes."""
_KERNEL_COLUMNS: Final[Mapping[str, Declared]] = {
    "agent": declared("agent_id"),
    "queue": declared("queue_id"),
    "correlation": declared("correlation_id"),
    "start_ns": declared("start_ns", kind=CellKind.TIME_NS),
    "end_ns": declared("end_ns", kind=CellKind.TIME_NS),
}
_SAMPLE_COLUMNS: Final = frozenset(("timestamp_ns", "counter_name", "counter_value", "agent_id"))


class DeviceCounter(Struct, frozen=True):
    """The increments of one counter of one GPU between samples, summed over its instances."""

    agent: int
    """The agent id in the file, or ABSENT."""
    time_ns: Int64
    """Time of each sample, ascending."""
    begin_ns: Int64
    """Time of the sample before it."""
    counted: Float64
    """Increment since the sample before; NaN where an instance was reset."""

    def __len__(self) -> int:
        return len(self.time_ns)


class DeviceSamples(Struct, frozen=True):
    """One file of samples, without the first of each counter, which only gives its start."""

    path: Path
    rank: int | None
    """The rank in the file name."""
    clock: str
    counters: Mapping[str, Sequence[DeviceCounter]]
    """Per counter one entry per GPU."""
    losses: Losses


class KernelSpans(Struct, frozen=True):
    """One file of kernels, in the order of their starts."""

    path: Path
    rank: int | None
    clock: str
    names: Sequence[str]
    name: Int32
    agent: Int64
    queue: Int64
    correlation: Int64
    start_ns: Int64
    end_ns: Int64
    losses: Losses

    def __len__(self) -> int:
        return len(self.name)


def recognise(head: FileHead) -> Recognised | None:
    """Recognise both files by their columns."""
    has = header_of(head).issuperset
    if has(("timestamp_ns", "counter_name", "counter_value")):
        return Recognised(FORMAT, SAMPLES)
    return Recognised(FORMAT, KERNELS) if has(("kernel_name", "start_ns", "end_ns")) else None


def read(path: Path, progress: Progress = silent) -> list[DispatchRun]:
    """Read the kernels of one process without samples.

    Raises DataError if the file can't be read or has no kernels.
    """
    return [read_sampled(None, path, progress)]


def read_sampled(
    samples: Path | None, kernels: Path | None, progress: Progress = silent
) -> DispatchRun:
    """Read the files of one process as dispatches.

    Counters are those of the whole GPU. Increments are spread evenly over the time between two
    samples; at each moment they belong to the running kernel that started first. Raises DataError
    if a file can't be read, or samples have no kernels next to them.
    """
    if kernels is None:
        raise DataError(
            f"{samples} has device samples but no kernels of the same process beside it "
            "(kernel_traces_rank….csv)."
        )
    spans = read_kernel_spans(kernels, progress)
    if not len(spans):
        raise DataError(f"{kernels} has no kernels.")
    sampled = None if samples is None else read_samples(samples, progress)
    run = _run(spans)
    if sampled is None:
        return run
    start, end = run.dispatches.start_ns, run.dispatches.end_ns
    agents = distinct(spans.agent)
    counters: dict[str, Float64] = {}
    over_time: list[SampledCounter] = []
    for name, series in sampled.counters.items():
        if any((each.begin_ns[1:] < each.time_ns[:-1]).any() for each in series):
            sampled.losses.notes.append(
                f"{name} is not used: its instances are sampled at different times."
            )
            continue
        values = np.full(len(start), np.nan)
        for number, agent in enumerate(agents.tolist()):
            own = np.flatnonzero(run.dispatches.gpu == number)
            counted = _of_agent(series, agent, alone=len(agents) == 1)
            if counted is not None:
                values[own] = _counted(start[own], end[own], counted)
                times = (counted.begin_ns, counted.time_ns, counted.counted)
                over_time.append(SampledCounter(name, number, *times))
        counters[name] = values
    return replace(
        run,
        paths=(kernels, sampled.path),
        dispatches=replace(run.dispatches, counters=counters),
        counter_info=counter_infos(counters),
        join_notes=[_how(sampled, start, end)],
        losses=merged_losses(spans.losses, sampled.losses),
        sampled=tuple(over_time),
    )


def read_samples(path: Path, progress: Progress = silent) -> DeviceSamples:
    """Read a file of counter samples.

    Raises DataError if the file can't be read or holds no samples.
    """
    losses = Losses()
    rows = GrowingColumns(
        {"time_ns": np.int64, "counter": np.int32, "agent": np.int64, "instance": np.int32}
    )
    values = GrowingColumns({"value": np.float64, "exact": np.int64})
    counters, instances = Interner(), Interner()
    with ByteSource(path) as source:
        file = CsvFile(source, losses)
        dimensions = [index for name, index in file.header.items() if name not in _SAMPLE_COLUMNS]
        for batch in file.batches(progress):
            names = batch.column("counter_name")
            counted = batch.column("counter_value")
            positions = [batch.at(index).texts for index in dimensions]
            keys = zip(*positions, strict=True) if positions else [()] * len(batch)
            columns: Columns = {
                "time_ns": batch.column("timestamp_ns").times_ns(),
                "counter": names.mapped_codes(counters.__getitem__),
                "agent": batch.column("agent_id").integers(),
                "instance": np.array([instances[key] for key in keys], np.int32),
            }
            numbers: Columns = {"value": counted.floats(), "exact": counted.integers()}
            usable = (columns["time_ns"] >= 0) & ~np.isnan(numbers["value"]) & names.is_filled
            losses.unreadable_events += int((~usable).sum())
            rows.add({name: column[usable] for name, column in columns.items()})
            values.add({name: column[usable] for name, column in numbers.items()})
    found = _counters(list(counters), rows.joined(), values.joined(), losses)
    if not found:
        raise DataError(f"{path} has no counter samples.")
    if losses.unreadable_events:
        losses.notes.append(f"{losses.unreadable_events:,} rows could not be read.")
    return DeviceSamples(path, rank_in_name(path.name), CLOCK_BOOTTIME, found, losses)


def read_kernel_spans(path: Path, progress: Progress = silent) -> KernelSpans:
    """Read a file of kernels; those without valid times are left out and counted.

    Raises DataError if the file can't be read.
    """
    losses = Losses()
    names = Interner()
    kinds = dict.fromkeys(("name", "agent", "queue", "correlation", "start_ns", "end_ns"), np.int64)
    rows = GrowingColumns(kinds)
    with ByteSource(path) as source:
        for batch in CsvFile(source, losses).batches(progress):
            columns = batch.read(_KERNEL_COLUMNS)
            columns["name"] = batch.column("kernel_name").mapped_codes(
                lambda name: names[clean_kernel_name(name)]
            )
            usable = (columns["start_ns"] >= 0) & (columns["end_ns"] >= columns["start_ns"])
            losses.bad_times += int((~usable).sum())
            rows.add({name: column[usable] for name, column in columns.items()})
    columns = rows.joined()
    order = stable_order(columns["start_ns"])
    columns = {name: column[order] for name, column in columns.items()}
    for count, what in (
        (losses.unreadable_events, "rows could not be read"),
        (losses.bad_times, "kernels without valid times left out"),
    ):
        if count:
            losses.notes.append(f"{count:,} {what}.")
    return KernelSpans(
        path=path,
        rank=rank_in_name(path.name),
        clock=CLOCK_BOOTTIME,
        names=list(names),
        name=columns["name"].astype(np.int32),
        agent=columns["agent"],
        queue=columns["queue"],
        correlation=columns["correlation"],
        start_ns=columns["start_ns"],
        end_ns=columns["end_ns"],
        losses=losses,
    )


def _counters(
    names: Sequence[str], rows: Columns, values: Columns, losses: Losses
) -> dict[str, list[DeviceCounter]]:
    """Return the increments of each counter and GPU, summed over instances."""
    order = np.lexsort((rows["time_ns"], rows["instance"], rows["agent"], rows["counter"]))
    rows = {name: column[order] for name, column in (rows | values).items()}
    is_new = run_mask(rows["counter"], rows["agent"], rows["instance"])
    bounds = [*np.flatnonzero(is_new).tolist(), len(order)]
    differences = np.full(len(order), np.nan)
    set_back = 0
    for start, end in pairwise(bounds):
        exact = rows["exact"][start:end]
        readings = exact if (exact >= 0).all() else rows["value"][start:end]
        counted = steps(readings.tolist())
        set_back += sum(step is None for step in counted)
        differences[start + 1 : end] = [np.nan if step is None else step for step in counted]
    if set_back:
        losses.notes.append(
            f"{set_back:,} times a counter was reset; its increment there is unknown."
        )
    found: dict[str, list[DeviceCounter]] = {}
    kept = ~is_new
    starts = run_starts(rows["counter"], rows["agent"])
    for counter, agent in zip(
        rows["counter"][starts].tolist(), rows["agent"][starts].tolist(), strict=True
    ):
        these = kept & (rows["counter"] == counter) & (rows["agent"] == agent)
        if not these.any():
            continue
        time_ns, place = ranked(rows["time_ns"][these])
        total = np.zeros(len(time_ns))
        np.add.at(total, place, differences[these])
        begin_ns = np.zeros(len(time_ns), np.int64)
        np.maximum.at(begin_ns, place, rows["time_ns"][np.flatnonzero(these) - 1])
        series = DeviceCounter(ABSENT if agent < 0 else agent, time_ns, begin_ns, total)
        found.setdefault(names[counter], []).append(series)
    return found


def _run(spans: KernelSpans) -> DispatchRun:
    """Return the dispatches without counters."""
    agents, gpu = ranked(spans.agent)
    order = np.lexsort((spans.start_ns, gpu))
    count = len(order)
    absent = np.full(count, ABSENT, np.int64)
    first = 0 if spans.rank is None else spans.rank
    return DispatchRun(
        paths=(spans.path,),
        format=FORMAT,
        names=spans.names,
        agents=tuple(
            Agent(agent if 0 <= agent < _MOST_NODES else ABSENT, type_index=first + number)
            for number, agent in enumerate(agents.tolist())
        ),
        dispatches=Dispatches(
            name=spans.name[order],
            gpu=gpu[order].astype(np.int32),
            process=absent,
            queue=spans.queue[order],
            dispatch_id=np.arange(count, dtype=np.int64),
            correlation=absent,
            start_ns=spans.start_ns[order],
            end_ns=spans.end_ns[order],
            grid=np.zeros((count, 3), np.int32),
            workgroup=np.zeros((count, 3), np.int32),
            region=np.full(count, ABSENT, np.int32),
            counters={},
        ),
        counter_info={},
        passes=1,
        clock=spans.clock,
        join_notes=[],
        losses=spans.losses,
    )


def _of_agent(series: Sequence[DeviceCounter], agent: int, *, alone: bool) -> DeviceCounter | None:
    """Return the series of a GPU: the only one if the process has one GPU, whatever its name."""
    if alone and len(series) == 1:
        return series[0]
    return next((each for each in series if each.agent == agent), None)


def _counted(start_ns: Int64, end_ns: Int64, series: DeviceCounter) -> Float64:
    """Return the increments in each kernel's own time; NaN where samples don't cover it."""
    begins = start_ns.copy()
    begins[1:] = np.maximum(begins[1:], np.maximum.accumulate(end_ns)[:-1])
    own_ns = np.maximum(end_ns - begins, 0)
    lengths = np.maximum(series.time_ns - series.begin_ns, 1)
    curve = between(series.begin_ns, series.time_ns, series.counted / lengths)
    before, covered_before = curve.integrals(np.minimum(begins, end_ns))
    after, covered_after = curve.integrals(end_ns)
    covered = (covered_after - covered_before >= own_ns) & (own_ns > 0)
    values: Float64 = np.where(covered, after - before, np.nan)
    return values


def _how(sampled: DeviceSamples, start_ns: Int64, end_ns: Int64) -> str:
    lengths = [
        each.time_ns - each.begin_ns for series in sampled.counters.values() for each in series
    ]
    period_ns = float(median_of(np.concatenate(lengths)))
    shorter = int((end_ns - start_ns < period_ns).sum())
    text = (
        f"{sampled.path.name}: counters of the whole GPU, sampled every {period_ns / 1e6:.3f} ms "
        "and spread evenly between samples"
    )
    if not shorter:
        return f"{text}."
    return (
        f"{text}; {shorter:,} of {len(start_ns):,} kernels are shorter than that and share counts "
        "with their neighbours."
    )
