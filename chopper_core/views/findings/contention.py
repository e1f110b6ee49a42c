"""Operations that are much slower beside communication."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from chopper_core.model.table import NO_LABEL
from chopper_core.views.findings.context import FindingsContext, combined
from chopper_core.views.findings.rule import Finding, Threshold, confidence, rule
from chopper_core.views.shared.instances import effect, overlaps_in, slowdown
from chopper_core.views.shared.phrases import percent, time

SLOWED: Final = Threshold(
    "slower beside communication",
    20.0,
    "%",
    "the copies of a collective always cost the kernels beside them a few percent",
)
CORRELATION: Final = Threshold(
    "correlation of overlap and duration",
    0.5,
    "Pearson's r, at least",
    "Lit Silicon finds them highly correlated; kernels that differ for other reasons scatter",
)
SLOWED_COST: Final = Threshold(
    "cost of slowness beside communication",
    0.25,
    "% of the iteration",
    "it results from comparing kernels of different layers, where small differences mean nothing",
)


@rule(
    "contention",
    saving="time of instances with much overlap beyond that of instances with little, mean over "
    "GPUs",
    holds=(0.2, 2.5),
    needs="communication and labelled layers",
    thresholds=(SLOWED, CORRELATION, SLOWED_COST),
)
def contention(context: FindingsContext) -> Iterator[Finding]:
    """Operations of layers that take longer the more communication runs beside them.

    Without layers an operation has one instance per phase and iteration, and none to compare with.
    """
    if context.sampled_from is not None:
        return
    found = overlaps_in(context.run, context.view)
    analysed = np.isin(found.codes("iteration"), context.iterations)
    found = found.take(analysed & (found.codes("layer") != NO_LABEL))
    if not len(found) or not found.comm_ns.any():
        return
    pairs, owner = combined([found.codes("phase"), found.codes("operation")])
    ratio, cost = (np.nan_to_num(values) for values in slowdown(found, owner, len(pairs)))
    least = SLOWED_COST.share * context.step_ns * len(context.gpus) * len(context.iterations)
    chosen = (ratio >= 1 + SLOWED.share) & (cost >= least)
    if not chosen.any():
        return
    known = effect(found, owner, len(pairs))
    chosen &= np.nan_to_num(known.pearson) >= CORRELATION.value
    for place in np.flatnonzero(chosen).tolist():
        phase = context.text("phase", pairs[place][0])
        operation = context.text("operation", pairs[place][1])
        saving = context.per_iteration(float(cost[place]))
        yield Finding(
            sentence=(
                f"{operation} in {phase} takes {percent(float(known.slowdown[place]) - 1)} longer "
                "beside much communication than beside little on the same GPU "
                f"(r = {known.pearson[place]:.2f}): {time(saving)}{context.per_gpu}"
            ),
            evidence=context.with_view(
                "overlap", "instance", sort="-instance_ns", phase=phase, operation=operation
            ),
            confidence=confidence(measured=False, repeated=context.repeats),
            saving_ns=saving,
            total_ns=float(cost[place]),
        )
