"""Stages of a pipeline: those whose GPU or host is slow, and those that have too much to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from chopper_core.model.peers import work_of
from chopper_core.model.table import Kind
from chopper_core.util.arrays import Float64
from chopper_core.util.errors import ChopperError
from chopper_core.util.grouping import (
    beyond_others,
    combined,
    counts_of,
    distinct,
    others_median,
    ranked,
    sums_of,
)
from chopper_core.views.findings.rule import (
    Cost,
    Finding,
    FindingsContext,
    confidence,
    rule,
    threshold,
    weighted_medians,
)
from chopper_core.views.pipeline import LONG, Pipeline, bubble_of, longest, pipeline_of
from chopper_core.views.shared.leads import LOW_CLOCK_RATIO
from chopper_core.views.shared.matched_kernels import compared_iterations, occurrences_of
from chopper_core.views.shared.phrases import percent, time

SLOWER_STAGE: Final = threshold("""stage slower than the others | 2 | %
    most of its kernels by as much; clocks of GPUs of one product differ by about a percent""")
SLOWER_STAGE_COST: Final = threshold("""cost of a slow stage | 1 | % of the iteration
    the same as for a straggler""")
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
    factor = _kernel_factors(context, alone)
    computes = context.busy_ns.mean(axis=1)[places]
    longer = np.where(factor - 1 < SLOWER_STAGE.share, 0.0, computes * (1 - 1 / factor))
    idle = context.by_gpu_and_iteration(lambda nodes: nodes.sum("idle_host_ns")) + context.moved_ns
    host = beyond_others(idle.mean(axis=1)[places])
    clock = context.by_gpu("gfx_mhz")[places]
    usual_clock = others_median(clock)
    for place, gpu in enumerate(alone):
        saving = float(max(longer[place], host[place]))
        if context.share(saving) < SLOWER_STAGE_COST.share:
            continue
        if longer[place] >= host[place]:
            at_clock = ""
            if clock[place] < LOW_CLOCK_RATIO * usual_clock[place]:
                lower = percent(1 - float(clock[place]) / float(usual_clock[place]))
                at_clock = f" at a {lower} lower clock"
            text = (
                f"is a slow stage{at_clock}: the same kernels take "
                f"{percent(float(factor[place]) - 1)} longer than on the other stages, "
                f"{time(saving)}{context.each}"
            )
            evidence = context.with_view("kernels", "operation", sort="-kernel_ns", gpu=str(gpu))
            cost = Cost.COMPUTE
        else:
            doing = context.host_cause(gpu, alone, context.iterations)
            text = (
                f"is a stage held back by its host{doing}: it is idle for "
                f"{time(saving)}{context.each} more before launch calls than the other stages"
            )
            evidence = context.with_view("launch", "gpu", sort="-idle_host_ns")
            cost = Cost.HOST
        yield context.finding(f"GPU {gpu} {text}", evidence, cost, saving, gpu=gpu)


def _kernel_factors(context: FindingsContext, gpus: list[int]) -> Float64:
    """By which factor most compute of each GPU takes longer than the others'.

    Compared are means of the same kernels of a phase and operation, whatever the layer.
    """
    table, rows = context.table, context.node.rows
    chosen = (table.kind[rows] == Kind.COMPUTE) & np.isin(table.gpu[rows], gpus)
    chosen &= table.overlap_ns[rows] <= _MAX_OVERLAP * table.duration_ns[rows]
    rows = rows[chosen]
    keys = [table.column(level)[rows].astype(np.int64) for level in ("phase", "operation")]
    names, kernel = combined([*keys, work_of(table, rows)])
    cell = kernel * len(gpus) + ranked(table.gpu[rows])[1]
    shape = (len(names), len(gpus))
    size = counts_of(cell, shape[0] * shape[1]).reshape(shape)
    took = sums_of(table.duration_ns[rows], cell, shape[0] * shape[1]).reshape(shape)
    mean = np.where(took > 0, took / np.maximum(size, 1), np.nan)
    with np.errstate(invalid="ignore"):
        return weighted_medians(mean / others_median(mean.T).T, took.astype(np.float64))


LONGER: Final = threshold(
    f"""a stage's microbatch against the median of the others | {100 * LONG} | %
    layers are indivisible, so stages can't be balanced to better than a few percent"""
)
CAUSE: Final = threshold("""longer kernels, or more of them, as the cause | 2 | %
    the limit of a slow stage""")


@rule(
    "long-stage",
    saving="its time beyond that of the next longest stage, once per microbatch",
    holds=(0.5, 1.2),
    needs="a pipeline: sends and receives, annotations or dumps of microbatches",
    thresholds=(LONGER, CAUSE),
)
def long_stages(context: FindingsContext) -> Iterator[Finding]:
    """A pipeline stage that takes longer than the others, so that they wait for it.

    A stage of one GPU that is slow itself is left to `slow-stage`.
    """
    if "pp" not in context.table.coordinates:
        return
    try:
        found = pipeline_of(context.run, context.view)
    except ChopperError:
        return
    long = longest(found)
    if long is None:
        return
    stage, times, saving = long
    gpus = distinct(found.blocks.gpu[found.stage == stage]).tolist()
    yield Finding(
        sentence=(
            f"pipeline stage {stage} is too long: a microbatch takes {times:.2f} times the median "
            f"of the other stages, which wait for it{_why_long(context, found, stage)}; the bubble "
            f"is {percent(bubble_of(found))} ({percent(found.theory)} with equal stages); "
            f"{time(saving)}{context.each}"
        ),
        evidence=context.with_view("pipeline", sort="-stage_x"),
        confidence=confidence(measured=True, repeated=context.repeats),
        saving_ns=saving,
        gpu=gpus[0] if len(gpus) == 1 else None,
        cost=Cost.COMPUTE,
    )


def _why_long(context: FindingsContext, found: Pipeline, stage: int) -> str:
    first = {
        int(found.blocks.gpu[found.stage == each].min()): each
        for each in distinct(found.stage).tolist()
    }
    gpus = sorted(first)
    place = [first[gpu] for gpu in gpus].index(stage)
    counts = context.kernels().mean(axis=1)[np.searchsorted(context.gpus, gpus)]
    longer = float(_kernel_factors(context, gpus)[place]) - 1
    others = float(others_median(counts)[place])
    more = float(counts[place]) / others - 1 if others else 0.0
    reasons = [f"the same kernels take {percent(longer)} longer"] * (longer >= CAUSE.share)
    reasons += [f"it has {percent(more)} more kernels"] * (more >= CAUSE.share)
    return f": {' and '.join(reasons)}" if reasons else ""
