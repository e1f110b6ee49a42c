"""GPUs that have more to compute than the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.view import pivot
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import beyond_others
from chopper_core.views.findings.rule import (
    Cost,
    Finding,
    FindingsContext,
    Threshold,
    confidence,
    rule,
)
from chopper_core.views.shared.lateness import recurrence
from chopper_core.views.shared.matched_kernels import compared_iterations, occurrences_of
from chopper_core.views.shared.phrases import percent, time
from chopper_core.views.shared.work import more_work

IMBALANCE: Final = Threshold(
    "compute beyond that of the others",
    1.0,
    "% of it",
    "only where there is as much more work: GPUs of one product differ by a few percent in their "
    "clocks alone",
)
IMBALANCE_COST: Final = Threshold(
    "cost of imbalance", 1.0, "% of the iteration", "the same as for a straggler"
)

_MIN_MORE_WORK: Final = 0.01
_SAME_SHARE: Final = 0.4
"""Of the longest compute beyond the peers'; iterations with as much are named."""
_COMPARED: Final = ("compute_busy_ns", "kernels", "model_flops")
"""The columns of the evidence."""
_MIN_EXPLAINED: Final = 0.5
"""The part of the longer compute that more work has to explain."""


@rule(
    "imbalance",
    saving="its compute beyond the median of its peers, those that run the same operations of the "
    "same layers",
    holds=(0.7, 1.25),
    needs="two GPUs or more",
    thresholds=(IMBALANCE, IMBALANCE_COST),
    explains=("gpu-operation", "straggler"),
)
def imbalance(context: FindingsContext) -> Iterator[Finding]:
    """A GPU that has more to compute than the others: more kernels or more FLOPs."""
    if len(context.gpus) < 2:
        return
    busy, kernels, flops = _work(context)
    more = [beyond_peers(context, each.mean(axis=1)) for each in (busy, kernels, flops)]
    took = busy.mean(axis=1)
    usual = np.maximum(took - more[0], 1.0)
    most = int(np.nan_to_num(more[0]).argmax())
    saving = float(np.nan_to_num(more[0])[most])
    longer = saving / usual[most]
    if longer < IMBALANCE.share or context.share(saving) < IMBALANCE_COST.share:
        return
    shares = [
        float(np.nan_to_num(more[at][most] / max(each[most].mean() - more[at][most], 1.0)))
        for at, each in ((1, kernels), (2, flops))
    ]
    if max(shares) < max(_MIN_MORE_WORK, _MIN_EXPLAINED * longer):
        return
    extra = np.nan_to_num(beyond_peers(context, busy)[most])
    when = np.flatnonzero(extra > _SAME_SHARE * extra.max())

    def ratio(values: Float64) -> float:
        means = values[:, when].mean(axis=1)
        beyond = float(beyond_peers(context, means)[most])
        usual = float(means[most]) - beyond
        return float(means[most]) / usual if usual > 0 else np.nan

    what = more_work(context.run, context.gpus, context.iterations, ratio)
    count = len(context.iterations)
    yield Finding(
        sentence=(
            f"GPU {context.gpus[most]} has more work{what and f', {what}'}"
            f"{recurrence(when.tolist(), context.iterations)}: it computes for "
            f"{time(took[most])}{context.each}, {percent(longer)} more than the other GPUs"
        ),
        evidence=replace(pivot(context.at(), "gpu"), columns=_COMPARED, sort=f"-{_COMPARED[0]}"),
        confidence=confidence(measured=True, repeated=count > 1),
        saving_ns=saving,
        total_ns=saving * count,
        gpu=context.gpus[most],
        cost=Cost.COMPUTE,
    )


def _work(context: FindingsContext) -> tuple[Float64, Float64, Float64]:
    """Compute time, compute kernels and FLOPs, as GPUs x iterations."""
    figures = (
        lambda nodes: nodes.sum("compute_ns") + nodes.sum("overlap_ns"),
        lambda nodes: nodes.sizes() - nodes.sum("collectives") - nodes.sum("copies"),
        lambda nodes: nodes.known("model_flops")[0],
    )
    busy, kernels, flops = (context.by_gpu_and_iteration(each) for each in figures)
    return busy, kernels, flops


def beyond_peers(context: FindingsContext, values: Float64) -> Float64:
    """Each GPU's value less the median of its peers'; NaN without peers."""
    peers = occurrences_of(context.run, compared_iterations(context.run, context.view))
    found = np.full(values.shape, np.nan)
    for own in peers:
        places = np.flatnonzero(np.isin(context.gpus, own.gpus))
        found[places] = beyond_others(values[places])
    return found
