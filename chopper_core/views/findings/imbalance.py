"""GPUs that have more to compute than the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from chopper_core.views.findings.context import FindingsContext
from chopper_core.views.findings.phrases import percent, time
from chopper_core.views.findings.rule import Finding, Threshold, confidence, rule

IMBALANCE: Final = Threshold(
    "compute beyond the mean",
    5.0,
    "% of the mean",
    "GPUs of one product differ by a few percent in their clocks alone",
)
IMBALANCE_COST: Final = Threshold(
    "cost of imbalance", 1.0, "% of the iteration", "the same as for a straggler"
)

_MIN_MORE_WORK: Final = 0.01


@rule(
    "imbalance",
    saving="its compute beyond the mean of the GPUs",
    needs="two GPUs or more",
    thresholds=(IMBALANCE, IMBALANCE_COST),
)
def imbalance(context: FindingsContext) -> Iterator[Finding]:
    """A GPU that has more to compute than the others: more kernels or more FLOPs."""
    if len(context.gpus) < 2:
        return
    busy = context.by_gpu_and_iteration(
        lambda nodes: nodes.sum("compute_ns") + nodes.sum("overlap_ns")
    ).mean(axis=1)
    most, mean = int(busy.argmax()), float(busy.mean())
    saving = float(busy[most]) - mean
    if saving < IMBALANCE.share * mean or context.share(saving) < IMBALANCE_COST.share:
        return
    kernels = context.by_gpu_and_iteration(
        lambda nodes: nodes.sizes() - nodes.sum("collectives") - nodes.sum("copies")
    ).sum(axis=1)
    flops = context.by_gpu_and_iteration(lambda nodes: nodes.known("model_flops")[0]).sum(axis=1)
    more_kernels, more_flops = (
        each[most] / max(float(np.median(np.delete(each, most))), 1.0) - 1
        for each in (kernels, flops)
    )
    if max(more_kernels, more_flops) < _MIN_MORE_WORK:
        return
    more = f"{percent(more_kernels)} more kernels"
    if more_flops >= more_kernels:
        more = f"{percent(more_flops)} more FLOPs"
    count = len(context.iterations)
    yield Finding(
        sentence=(
            f"GPU {context.gpus[most]} computes for {time(busy[most])}{context.each}, "
            f"{percent(saving / mean)} more than the mean of the GPUs, and has {more} than the "
            "others"
        ),
        evidence=context.with_view("kernels", "operation", gpu=str(context.gpus[most])),
        confidence=confidence(measured=True, repeated=count > 1),
        saving_ns=saving,
        total_ns=saving * count,
    )
