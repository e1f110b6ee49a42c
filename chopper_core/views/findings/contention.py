"""Operations that are much slower during communication."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from chopper_core.model.column_names import FLOPS
from chopper_core.model.table import NO_LABEL
from chopper_core.util.grouping import counts_of, quantiles_of
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
_ALONE: Final = 0.1
"""Up to this share of its time during communication a kernel runs alone."""
_BESIDE: Final = 0.5
"""From this share on it runs next to it."""
_MIN_ALONE: Final = 4
"""Kernels that a usual time needs."""
_OFTEN: Final = 0.75
"""The share of an operation's kernels that must take longer."""


@rule(
    "contention",
    saving="time of instances with much overlap beyond that of instances with little, mean over "
    "GPUs",
    holds=(0.2, 2.5),
    needs="communication and labelled layers",
    thresholds=(SLOWED, CORRELATION, SLOWED_COST),
)
def contention(context: FindingsContext) -> Iterator[Finding]:
    """Operations of layers that take longer the more communication runs next to them.

    Without layers an operation has one instance per phase and iteration, and none to compare with.
    One that always has communication next to it is compared with other operations.
    """
    if context.sampled_from is not None:
        return
    yield from _always_beside(context)
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
            cost=Cost.COMPUTE,
        )


def _always_beside(context: FindingsContext) -> Iterator[Finding]:
    """Products that run during communication wherever they do, next to like ones that don't.

    Alike are kernels of one name with as many FLOPs on one GPU, such as those of the queries and
    of the attention's output, or of gate and up.
    """
    table, rows = context.table, context.node.rows
    if FLOPS not in table.measured:
        return
    rows = rows[(table.measured[FLOPS][rows] > 0) & (table.duration_ns[rows] > 0)]
    took = table.duration_ns[rows].astype(np.float64)
    gpu, kernel, phase, operation = (
        table.column(level)[rows].astype(np.int64)
        for level in ("gpu", "kernel", "phase", "operation")
    )
    names, like = combined([gpu, kernel, table.measured[FLOPS][rows].astype(np.int64)])
    pairs, place = combined([phase, operation])
    share = table.overlap_ns[rows] / took
    alone = share <= _ALONE
    usual = quantiles_of(took[alone], like[alone], len(names), (0.5,))[:, 0]
    usual[counts_of(like[alone], len(names)) < _MIN_ALONE] = np.nan
    usual = usual[like]
    beside = (share >= _BESIDE) & np.isfinite(usual)
    longer = np.where(beside, took - usual, 0.0)
    excess = summed(place, longer, len(pairs))
    factor = 1 + excess / np.maximum(summed(place, np.where(beside, usual, 0.0), len(pairs)), 1.0)
    slower = summed(place, longer > SLOWED.share / 2 * usual, len(pairs))
    # Where it also runs alone, its own instances are better evidence.
    always = (slower >= _OFTEN * summed(place, beside, len(pairs))) & (
        summed(place, alone, len(pairs)) == 0
    )
    least = SLOWED_COST.share * context.step_ns * len(context.gpus) * len(context.iterations)
    chosen = always & (factor >= 1 + SLOWED.share) & (excess >= least)
    for at in np.flatnonzero(chosen).tolist():
        saving = context.per_iteration(float(excess[at]))
        phase_text, name = (
            context.text(level, code)
            for level, code in zip(("phase", "operation"), pairs[at], strict=True)
        )
        yield Finding(
            sentence=(
                f"{name} in {phase_text} always runs beside communication and takes "
                f"{percent(float(factor[at]) - 1)} longer than the same kernels of other "
                f"operations without: {time(saving)}{context.per_gpu}"
            ),
            evidence=context.with_view(
                "overlap", "instance", sort="-instance_ns", phase=phase_text, operation=name
            ),
            confidence=confidence(measured=False, repeated=context.repeats),
            saving_ns=saving,
            total_ns=float(excess[at]),
            cost=Cost.COMPUTE,
        )
