"""A pipeline stage that takes longer than the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from chopper_core.util.errors import ChopperError
from chopper_core.util.grouping import distinct, others_median
from chopper_core.views.findings.rule import (
    Cost,
    Finding,
    FindingsContext,
    Threshold,
    confidence,
    rule,
)
from chopper_core.views.findings.slow_stage import kernel_factors
from chopper_core.views.pipeline import LONG, Pipeline, bubble_of, longest, pipeline_of
from chopper_core.views.shared.phrases import percent, time

LONGER: Final = Threshold(
    "a stage's microbatch against the median of the others",
    100.0 * LONG,
    "%",
    "layers are indivisible, so stages can't be balanced to better than a few percent",
)

CAUSE: Final = Threshold(
    "longer kernels, or more of them, as the cause", 2.0, "%", "the limit of a slow stage"
)


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
            f"of the other stages, which wait for it{_why(context, found, stage)}; the bubble is "
            f"{percent(bubble_of(found))} ({percent(found.theory)} with equal stages); "
            f"{time(saving)}{context.each}"
        ),
        evidence=context.with_view("pipeline", sort="-stage_x"),
        confidence=confidence(measured=True, repeated=context.repeats),
        saving_ns=saving,
        total_ns=None,
        gpu=gpus[0] if len(gpus) == 1 else None,
        cost=Cost.COMPUTE,
    )


def _why(context: FindingsContext, found: Pipeline, stage: int) -> str:
    """Whether its kernels are longer than the other stages', or more, as the end of a phrase."""
    stages = distinct(found.stage)
    gpus = [int(found.blocks.gpu[found.stage == each].min()) for each in stages.tolist()]
    by_place = sorted(range(len(gpus)), key=lambda place: gpus[place])
    place = [stages.tolist()[at] for at in by_place].index(stage)
    gpus = sorted(gpus)
    counts = context.by_gpu_and_iteration(
        lambda nodes: nodes.sizes() - nodes.sum("collectives") - nodes.sum("copies")
    ).mean(axis=1)
    counts = counts[np.searchsorted(context.gpus, gpus)]
    longer = float(kernel_factors(context, gpus)[place]) - 1
    others = float(others_median(counts)[place])
    more = float(counts[place]) / others - 1 if others else 0.0
    reasons = [
        text
        for share, text in (
            (longer, f"the same kernels take {percent(longer)} longer"),
            (more, f"it has {percent(more)} more kernels"),
        )
        if share >= CAUSE.share
    ]
    return f": {' and '.join(reasons)}" if reasons else ""
