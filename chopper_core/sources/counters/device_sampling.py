"""Device samples and the kernels beside them as dispatches: what was counted while each one ran."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.hardware import Agent
from chopper_core.model.signals import between
from chopper_core.sources.counters.device_samples import (
    DeviceCounter,
    DeviceSamples,
    KernelSpans,
    read_kernel_spans,
    read_samples,
)
from chopper_core.sources.counters.joining_notes import merged_losses
from chopper_core.sources.counters.names import counter_infos
from chopper_core.sources.dispatches import Dispatches, DispatchRun
from chopper_core.sources.trace import ABSENT
from chopper_core.util.arrays import Float64, Int64
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

FORMAT: Final = "device sampling"
_MOST_NODES: Final = 4096
"""Larger numbers of agents are handles, no nodes."""


def read_sampled(
    samples: Path | None, kernels: Path | None, progress: Progress = silent
) -> DispatchRun:
    """Read the files of one process as dispatches.

    A counter is that of the whole GPU. What is counted between two samples is spread evenly over
    the time between them, and each moment is the kernel's that runs and started first. Raises
    DataError where a file can't be read, or samples have no kernels beside them.
    """
    if kernels is None:
        raise DataError(
            f"{samples} has device samples, but no kernels of the same process beside it "
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
    agents = np.unique(spans.agent)
    counters: dict[str, Float64] = {}
    for name, series in sampled.counters.items():
        if any((each.begin_ns[1:] < each.time_ns[:-1]).any() for each in series):
            sampled.losses.notes.append(
                f"{name}: its instances are sampled at different times, so it isn't used."
            )
            continue
        values = np.full(len(start), np.nan)
        for number, agent in enumerate(agents.tolist()):
            own = np.flatnonzero(run.dispatches.gpu == number)
            counted = _of_agent(series, agent, alone=len(agents) == 1)
            if counted is not None:
                values[own] = _counted(start[own], end[own], counted)
        counters[name] = values
    return replace(
        run,
        paths=(kernels, sampled.path),
        dispatches=replace(run.dispatches, counters=counters),
        counter_info=counter_infos(counters),
        join_notes=[_how(sampled, start, end)],
        losses=merged_losses(spans.losses, sampled.losses),
    )


def _run(spans: KernelSpans) -> DispatchRun:
    """The kernels alone."""
    agents, gpu = np.unique(spans.agent, return_inverse=True)
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
    """The series of a GPU; the only one where a process has one GPU, whatever it calls it."""
    if alone and len(series) == 1:
        return series[0]
    return next((each for each in series if each.agent == agent), None)


def _counted(start_ns: Int64, end_ns: Int64, series: DeviceCounter) -> Float64:
    """What was counted in each kernel's own time; NaN where the samples don't cover it."""
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
    period_ns = float(np.median(np.concatenate(lengths)))
    shorter = 100.0 * float((end_ns - start_ns < period_ns).mean())
    return (
        f"{sampled.path.name}: counters of the whole GPU every {period_ns / 1e6:.3f} ms, spread "
        f"evenly between the samples: {shorter:.0f} % of the kernels are shorter than that and "
        "share what was counted with their neighbours."
    )
