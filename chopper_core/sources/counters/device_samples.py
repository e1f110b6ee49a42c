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
from msgspec.structs import replace

from chopper_core.model.hardware import Agent, counter_infos
from chopper_core.model.signals import between
from chopper_core.sources.counters.references import AgentTable
from chopper_core.sources.counters.tables import DispatchTable
from chopper_core.sources.dispatches import Dispatches, DispatchRun, SampledCounter
from chopper_core.sources.ranks import rank_in_name
from chopper_core.sources.registry import Recognised
from chopper_core.tables.columns import (
    Columns,
    GrowingColumns,
    Interner,
    are_timed,
    array_steps,
    codes_of,
    int_column,
)
from chopper_core.tables.csv_stream import CsvFile, header_of
from chopper_core.tables.losses import ABSENT, Losses, merged_losses
from chopper_core.tables.text import FileHead
from chopper_core.util.arrays import Float64, Int64
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import grouped_by, maxima_of, median_of, ranked, run_starts
from chopper_core.util.progress import Progress, silent

NAME: Final = "Chopper's device sampling"
FILES: Final = "`counter_samples_rank<N>.csv` next to `kernel_traces_rank<N>.csv`"
EXAMPLE: Final = ""
SUFFIXES: Final = ()

FORMAT: Final = "device sampling"
SAMPLES: Final = "samples"
KERNELS: Final = "kernels"
_MOST_NODES: Final = 4096
"""Larger agent ids are handles, not nodes."""
_LIMIT: Final = 2.0**64
"""Of what a counter's register holds."""
_KERNEL_COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "agent": ("agent_id",),
    "queue": ("queue_id",),
    "start_ns": ("start_ns",),
    "end_ns": ("end_ns",),
}
_SAMPLE_COLUMNS: Final = frozenset(("timestamp_ns", "counter_name", "counter_value", "agent_id"))


def recognise(head: FileHead) -> Recognised | None:
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
            f"{samples} has device samples but no kernels of the same process next to it "
            "(kernel_traces_rank….csv)."
        )
    run, agents = read_kernels(kernels, progress)
    if samples is None:
        return run
    sampled, losses = read_samples(samples, progress)
    rows = run.dispatches
    counters: dict[str, Float64] = {}
    over_time: list[SampledCounter] = []
    for name, series in grouped_by(sampled, lambda each: each.name).items():
        if any((each.begin_ns[1:] < each.time_ns[:-1]).any() for each in series):
            losses.notes.append(
                f"{name} is not used: its instances are sampled at different times."
            )
            continue
        values = np.full(len(rows), np.nan)
        for number, agent in enumerate(agents):
            own = np.flatnonzero(rows.gpu == number)
            of_agent = [each for each in series if each.gpu == agent]
            # The only series is that of the only GPU, whatever its name.
            for each in series if len(series) == len(agents) == 1 else of_agent[:1]:
                values[own] = _counted(rows.start_ns[own], rows.end_ns[own], each)
                over_time.append(replace(each, gpu=number))
        counters[name] = values
    return replace(
        run,
        paths=(kernels, samples),
        dispatches=replace(rows, counters=counters),
        counter_info=counter_infos(counters),
        join_notes=[_how(samples, sampled, rows)],
        losses=merged_losses(run.losses, losses),
        sampled=tuple(over_time),
    )


def read_samples(path: Path, progress: Progress = silent) -> tuple[list[SampledCounter], Losses]:
    """Read a file of counter samples; the GPU of each counter is its agent id in the file.

    The first sample of each only gives its start. Raises DataError if the file can't be read or
    holds no samples.
    """
    losses = Losses()
    rows = GrowingColumns(
        {
            **dict.fromkeys(("time_ns", "agent", "exact"), np.int64),
            **dict.fromkeys(("counter", "instance"), np.int32),
            "value": np.float64,
        }
    )
    counters, instances = Interner(), Interner()
    file = CsvFile(path, losses)
    dimensions = [index for name, index in file.header.items() if name not in _SAMPLE_COLUMNS]
    for batch in file.batches(progress):
        names = batch.column("counter_name")
        counted = batch.column("counter_value")
        positions = [batch.column(index).texts for index in dimensions]
        keys = zip(*positions, strict=True) if positions else [()] * len(batch)
        columns: Columns = {
            "time_ns": batch.column("timestamp_ns").times_ns(),
            "counter": names.mapped_codes(counters.__getitem__),
            "agent": batch.column("agent_id").integers(),
            "instance": np.array([instances[key] for key in keys], np.int32),
            "value": counted.floats(),
            "exact": counted.integers(),
        }
        usable = (columns["time_ns"] >= 0) & (np.abs(columns["value"]) < _LIMIT) & names.is_filled
        losses.unreadable_events += int((~usable).sum())
        rows.add({name: column[usable] for name, column in columns.items()})
    found = _increments(list(counters), rows.joined(), losses)
    if not found:
        raise DataError(f"{path} has no counter samples.")
    losses.note(losses.unreadable_events, "row", "could not be read")
    return found, losses


def read_kernels(path: Path, progress: Progress = silent) -> tuple[DispatchRun, list[int]]:
    """Read a file of kernels as dispatches without counters; also the agent id of each GPU.

    Kernels without valid times are left out and counted. Raises DataError if the file can't be
    read or has no kernels.
    """
    table, numbers = DispatchTable(Losses()), Interner()
    losses = table.losses
    for batch in CsvFile(path, losses).batches(progress):
        columns = batch.read(_KERNEL_COLUMNS)
        columns["name"] = batch.column("kernel_name").mapped_codes(table.kernel_code)
        usable = are_timed(columns["start_ns"], columns["end_ns"])
        losses.bad_times += int((~usable).sum())
        columns = {name: column[usable] for name, column in columns.items()}
        columns["gpu"] = codes_of(columns.pop("agent").tolist(), numbers.__getitem__)
        table.add_dispatches(columns)
    if not len(table):
        raise DataError(f"{path} has no kernels.")
    agents = sorted(numbers)
    first = rank_in_name(path.name) or 0
    table.agents = AgentTable(
        Agent(agent if 0 <= agent < _MOST_NODES else ABSENT, type_index=first + number)
        for number, agent in enumerate(agents)
    )
    table.explain("gpu", int_column([agents.index(agent) for agent in numbers]).take)
    run = table.finish(path, FORMAT)
    ids = np.arange(len(run.dispatches), dtype=np.int64)
    return replace(run, dispatches=replace(run.dispatches, dispatch_id=ids)), agents


def _increments(names: Sequence[str], rows: Columns, losses: Losses) -> list[SampledCounter]:
    """Return the increments of each counter and agent, summed over instances."""
    order = np.lexsort((rows["time_ns"], rows["instance"], rows["agent"], rows["counter"]))
    rows = {name: column[order] for name, column in rows.items()}
    first = run_starts(rows["counter"], rows["agent"], rows["instance"])
    differences = np.full(len(order), np.nan)
    set_back = 0
    for start, end in pairwise([*first.tolist(), len(order)]):
        exact = rows["exact"][start:end]
        readings = exact if (exact >= 0).all() else rows["value"][start:end]
        amounts, is_reset = array_steps(readings)
        set_back += int(is_reset.sum())
        differences[start + 1 : end] = np.where(is_reset, np.nan, amounts)
    losses.note(set_back, "time", "a counter was reset; its increment there is unknown")
    is_later = np.ones(len(order), np.bool_)
    is_later[first] = False
    later = np.flatnonzero(is_later)
    found: list[SampledCounter] = []
    counter, agent = rows["counter"][later], rows["agent"][later]
    for these in np.split(later, run_starts(counter, agent)[1:]) if len(later) else ():
        time_ns, place = ranked(rows["time_ns"][these])
        total = np.zeros(len(time_ns))
        np.add.at(total, place, differences[these])
        begin_ns = maxima_of(rows["time_ns"][these - 1], place, len(time_ns))
        name, gpu = names[rows["counter"][these[0]]], int(rows["agent"][these[0]])
        found.append(SampledCounter(name, gpu, begin_ns, time_ns, total))
    return found


def _counted(start_ns: Int64, end_ns: Int64, series: SampledCounter) -> Float64:
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


def _how(path: Path, sampled: Sequence[SampledCounter], rows: Dispatches) -> str:
    lengths = np.concatenate([each.time_ns - each.begin_ns for each in sampled])
    period_ns = float(median_of(lengths))
    shorter = int((rows.end_ns - rows.start_ns < period_ns).sum())
    shared = (
        f"; {shorter:,} of {len(rows):,} kernels are shorter than that and share counts with their "
        "neighbours"
    )
    return (
        f"{path.name}: counters of the whole GPU, sampled every {period_ns / 1e6:.3f} ms and "
        f"spread evenly between samples{shared if shorter else ''}."
    )
