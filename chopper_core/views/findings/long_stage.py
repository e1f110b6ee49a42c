"""A pipeline stage that takes longer than the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from chopper_core.util.errors import ChopperError
from chopper_core.views.findings.context import FindingsContext
from chopper_core.views.findings.rule import Finding, Threshold, confidence, rule
from chopper_core.views.pipeline import LONG, bubble_of, longest, pipeline_of
from chopper_core.views.shared.phrases import percent, time

LONGER: Final = Threshold(
    "a stage's microbatch against the median of the others",
    100.0 * LONG,
    "%",
    "layers are whole, so that stages can't be divided more evenly than by a few percent",
)


@rule(
    "long-stage",
    saving="its time beyond that of the next longest stage, once per microbatch",
    holds=(0.5, 1.2),
    needs="a pipeline: sends and receives, annotations or dumps of microbatches",
    thresholds=(LONGER,),
)
def long_stages(context: FindingsContext) -> Iterator[Finding]:
    """A pipeline stage that takes longer than the others, so that they wait for it."""
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
    yield Finding(
        sentence=(
            f"pipeline stage {stage} is too long: a microbatch takes {times:.2f} times the median "
            f"of the other stages, which wait for it; the bubble is {percent(bubble_of(found))} "
            f"({percent(found.theory)} with equal stages); {time(saving)}{context.each}"
        ),
        evidence=context.with_view("pipeline"),
        confidence=confidence(measured=True, repeated=context.repeats),
        saving_ns=saving,
        total_ns=None,
    )
