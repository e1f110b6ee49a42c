"""Stages of a pipeline that are slower than the others, where each is one GPU alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from chopper_core.model.host_tables import HostState
from chopper_core.model.same_work import work_of
from chopper_core.model.table import Kind
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.grouping import beyond_others, others_median, ranked
from chopper_core.views.findings.rule import (
    Cost,
    Finding,
    FindingsContext,
    Threshold,
    combined,
    confidence,
    rule,
    summed,
)
from chopper_core.views.shared.host_causes import host_charges
from chopper_core.views.shared.leads import LOW_CLOCK_RATIO
from chopper_core.views.shared.matched_kernels import compared_iterations, occurrences_of
from chopper_core.views.shared.phrases import percent, time

SLOWER_STAGE: Final = Threshold(
    "stage slower than the others",
    2.0,
    "%",
    "most of its kernels by as much; clocks of GPUs of one product differ by about a percent",
)
SLOWER_STAGE_COST: Final = Threshold(
    "cost of a slow stage", 1.0, "% of the iteration", "the same as for a straggler"
)
_MAX_OVERLAP: Final = 0.1
"""Of a kernel's time; communication beside it slows it too."""


@rule(
    "slow-stage",
    saving="time of the stage beyond that of the others: of the same kernels, or idle before "
    "launch calls, which its waiting for other stages may hide",
    holds=(0.0, 1.3),
    needs="stages of a pipeline with one GPU each",
    thresholds=(SLOWER_STAGE, SLOWER_STAGE_COST),
    explains=("long-stage",),
)
def slow_stages(context: FindingsContext) -> Iterator[Finding]:
    """A GPU without peers whose kernels or host are slower than those of the other stages.

    GPUs with peers are compared with these (`straggler`); a stage that has more to do is too long
    (`long-stage`).
    """
    peers = occurrences_of(context.run, compared_iterations(context.run, context.view))
    alone = sorted(own.gpus[0] for own in peers if len(own.gpus) == 1)
    alone = [gpu for gpu in alone if gpu in context.gpus]
    if len(alone) < 2:
        return
    places = np.searchsorted(context.gpus, alone)
    computes = context.by_gpu_and_iteration(
        lambda nodes: nodes.sum("compute_ns") + nodes.sum("overlap_ns")
    ).mean(axis=1)[places]
    idle = context.idle_host_ns().mean(axis=1)[places]
    factor = kernel_factors(context, alone)
    longer = np.where(factor - 1 < SLOWER_STAGE.share, 0.0, computes * (1 - 1 / factor))
    host = beyond_others(idle)
    for place, gpu in enumerate(alone):
        saving = float(max(longer[place], host[place]))
        if context.share(saving) < SLOWER_STAGE_COST.share:
            continue
        if longer[place] >= host[place]:
            text = (
                f"is a slow stage{_clock(context, alone, gpu)}: the same kernels take "
                f"{percent(float(factor[place]) - 1)} longer than on the other stages, "
                f"{time(saving)}{context.each}"
            )
            evidence = context.with_view("kernels", "operation", sort="-kernel_ns", gpu=str(gpu))
            cost = Cost.COMPUTE
        else:
            text = (
                f"is a stage held back by its host{_doing(context, alone, gpu)}: it is idle for "
                f"{time(saving)}{context.each} more before launch calls than the other stages"
            )
            evidence = context.with_view("launch", "gpu", sort="-idle_host_ns")
            cost = Cost.HOST
        yield Finding(
            sentence=f"GPU {gpu} {text}",
            evidence=evidence,
            confidence=confidence(measured=True, repeated=context.repeats),
            saving_ns=saving,
            total_ns=saving * len(context.iterations),
            gpu=gpu,
            cost=cost,
        )


def _doing(context: FindingsContext, alone: list[int], gpu: int) -> str:
    """Where its host spends most of the time beyond the other stages', as a part of a phrase."""
    charges = host_charges(context.run)
    if not charges.causes:
        return ""
    whose = context.table.gpu[charges.row]
    inside = np.isin(whose, alone) & np.isin(charges.iteration, context.iterations)
    place = np.searchsorted(alone, whose).astype(np.intp)
    sums = charges.sums(np.where(inside, place, -1), len(alone), (HostState.LATE,))
    cause = charges.main(beyond_others(sums)[alone.index(gpu)])
    return "" if cause is None else f" in {cause.text}"


def kernel_factors(context: FindingsContext, gpus: list[int]) -> Float64:
    """By which factor most compute of each GPU takes longer than the others'.

    Compared are means of the same kernels of a phase and operation, whatever the layer.
    """
    table, rows = context.table, context.node.rows
    chosen = (table.kind[rows] == Kind.COMPUTE) & np.isin(table.gpu[rows], gpus)
    chosen &= table.overlap_ns[rows] <= _MAX_OVERLAP * table.duration_ns[rows]
    rows = rows[chosen]
    keys = [table.column(level)[rows].astype(np.int64) for level in ("phase", "operation")]
    names, kernel = combined([*keys, work_of(table, rows)])
    gpu: Index = ranked(table.gpu[rows])[1]
    shape = (len(names), len(gpus))
    cell = kernel * len(gpus) + gpu
    size = summed(cell, np.ones(len(rows)), shape[0] * shape[1]).reshape(shape)
    took = summed(cell, table.duration_ns[rows], shape[0] * shape[1]).reshape(shape)
    mean = np.where(took > 0, took / np.maximum(size, 1), np.nan)
    with np.errstate(invalid="ignore"):
        ratio = mean / others_median(mean.T).T
    factors = np.ones(len(gpus))
    for place in range(len(gpus)):
        known = np.flatnonzero(np.isfinite(ratio[:, place]))
        order = known[np.argsort(ratio[known, place], kind="stable")]
        weight = np.cumsum(took[order, place])
        if len(order):
            factors[place] = ratio[order[np.searchsorted(weight, weight[-1] / 2)], place]
    return factors


def _clock(context: FindingsContext, alone: list[int], gpu: int) -> str:
    """By how much its clock is lower than the other stages', if it is."""
    own = context.by_gpu("gfx_mhz")[np.searchsorted(context.gpus, alone)]
    place = alone.index(gpu)
    usual = float(others_median(own)[place])
    if not own[place] < LOW_CLOCK_RATIO * usual:
        return ""
    return f" at a {percent(1 - float(own[place]) / usual)} lower clock"
