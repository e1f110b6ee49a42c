"""GPUs that have more to compute than the others."""

from __future__ import annotations

import numpy as np

from chopper_core.views.findings.context import Case
from chopper_core.views.findings.finding import Finding, confidence
from chopper_core.views.findings.phrases import percent, time
from chopper_core.views.findings.thresholds import IMBALANCE, STAKE_OF_IMBALANCE

_MORE_WORK = 0.01


def imbalance(case: Case) -> list[Finding]:
    """The GPU with the most compute, where it also has more kernels or FLOPs than the others."""
    if len(case.gpus) < 2:
        return []
    count = len(case.iterations)
    busy = case.by_gpu_and_iteration(
        lambda nodes: nodes.sum("compute_ns") + nodes.sum("overlap_ns")
    ).mean(axis=1)
    kernels = case.by_gpu_and_iteration(
        lambda nodes: nodes.sizes() - nodes.sum("collectives") - nodes.sum("copies")
    ).sum(axis=1)
    most, mean = int(busy.argmax()), float(busy.mean())
    stake = float(busy[most]) - mean
    if stake < IMBALANCE.value / 100 * mean or case.share(stake) < STAKE_OF_IMBALANCE.value / 100:
        return []
    others = np.delete(kernels, most)
    more = kernels[most] / max(float(np.median(others)), 1.0) - 1
    asked = case.by_gpu_and_iteration(lambda nodes: nodes.known("model_flops")[0]).sum(axis=1)
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
                f"GPU {case.gpus[most]} computes {time(busy[most])}{case.each}, "
                f"{percent(stake / mean)} more than the GPUs' mean, and has {what} than the others"
            ),
            evidence=case.with_view("kernels", "operation", gpu=str(case.gpus[most])),
            confidence=confidence(read=True, repeated=count > 1),
            stake_ns=stake,
            total_ns=stake * count,
        )
    ]
