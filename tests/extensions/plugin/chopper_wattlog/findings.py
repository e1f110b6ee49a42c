"""A finding: GPUs that run nothing for a part of the step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from chopper_core.findings.advice import Advice
from chopper_core.findings.rule import Finding, FindingsContext, Threshold, confidence, rule

IDLE: Final = Threshold("idle part", 0.0, "% of the step", "an example finds any")


@rule("idle", cost="all idle time", thresholds=(IDLE,))
def idle(context: FindingsContext) -> Iterator[Finding]:
    """GPUs that run nothing for a part of the step."""
    idle_ns = context.by_gpu_and_iteration(lambda nodes: nodes.sum("idle_ns")).mean()
    if context.share(idle_ns) >= IDLE.share:
        yield Finding(
            title=f"wattlog: GPUs are idle for {idle_ns / 1e6:.1f} ms",
            detail=f"wattlog: GPUs run nothing for {idle_ns / 1e6:.1f} ms of each step",
            evidence=context.with_view("launch", "gpu", sort="-idle_ns"),
            confidence=confidence(measured=True, repeated=len(context.iterations) > 1),
            cost_ns=idle_ns,
        )


advice = Advice(
    ("idle",), "wattlog: keep the GPUs of {run} busy.", lambda case: {"run": "this run"}
)
