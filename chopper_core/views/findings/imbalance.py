"""GPUs that have more to compute than the others."""

from __future__ import annotations

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

_MORE_WORK: Final = 0.01


@rule(
    "imbalance",
    saving="its compute beyond the mean of the GPUs",
    needs="two GPUs or more",
    thresholds=(IMBALANCE, IMBALANCE_COST),
)
def imbalance(context: FindingsContext) -> list[Finding]:
    """A GPU that has more to compute than the others: more kernels or more FLOPs."""
    if len(context.gpus) < 2:
        return []
    count = len(context.iterations)
    busy = context.by_gpu_and_iteration(
        lambda nodes: nodes.sum("compute_ns") + nodes.sum("overlap_ns")
    ).mean(axis=1)
    kernels = context.by_gpu_and_iteration(
        lambda nodes: nodes.sizes() - nodes.sum("collectives") - nodes.sum("copies")
    ).sum(axis=1)
    most, mean = int(busy.argmax()), float(busy.mean())
    saving = float(busy[most]) - mean
    if saving < IMBALANCE.share * mean or context.share(saving) < IMBALANCE_COST.share:
        return []
    others = np.delete(kernels, most)
    more = kernels[most] / max(float(np.median(others)), 1.0) - 1
    asked = context.by_gpu_and_iteration(lambda nodes: nodes.known("model_flops")[0]).sum(axis=1)
    more_flops = asked[most] / max(float(np.median(np.delete(asked, most))), 1.0) - 1
    if max(more, more_flops) < _MORE_WORK:
        return []
    what = (
        f"{percent(more_flops)} more FLOPs"
        if more_flops >= more
        else f"{percent(more)} more kernels"
    )
    return [
        Finding(
            sentence=(
                f"GPU {context.gpus[most]} computes {time(busy[most])}{context.each}, "
                f"{percent(saving / mean)} more than the GPUs' mean, and has {what} than the others"
            ),
            evidence=context.with_view("kernels", "operation", gpu=str(context.gpus[most])),
            confidence=confidence(read=True, repeated=count > 1),
            saving_ns=saving,
            total_ns=saving * count,
        )
    ]
