"""Mixtures of experts whose tokens go unevenly to experts or ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.experts import (
    BY_LOG,
    balanced_question,
    expert_loads,
    expert_work,
)
from chopper_core.findings.rule import Cost, Finding, FindingsContext, rule, threshold
from chopper_core.model.phrases import percent, time
from chopper_core.model.view import View
from chopper_core.util.grouping import ranked, sums_of

UNEVEN: Final = threshold("""experts' compute of the busiest GPU | 5 | % beyond the mean
    routers are never quite even; what they leave costs less""")
BUSIEST: Final = threshold("""tokens of the busiest expert | 50 | % beyond the mean
    usual auxiliary losses keep experts closer together""")


@rule(
    "uneven-experts",
    cost="experts' compute of the busiest GPU beyond the mean of the GPUs",
    needs="operations or kernels named as experts' (expert, moe, grouped gemm) on several GPUs",
    thresholds=(UNEVEN,),
)
def uneven_experts(context: FindingsContext) -> Iterator[Finding]:
    """Experts of one GPU that compute longer than those of the others, and what balancing saves."""
    run = context.run
    work = expert_work(run)
    if context.view.path or work is None or work.behind_ns < UNEVEN.share * work.each_ns.mean():
        return
    gpu = int(work.gpus[work.each_ns.argmax()])
    loads = expert_loads(run)
    counted = ""
    if loads is not None and (loads.rank >= 0).all():
        times = loads.imbalance(loads.rank)
        counted = f" By {loads.source} the busiest rank gets {times:.2f} times the mean."
    more = work.behind_ns / float(work.each_ns.mean())
    found = context.finding(
        f"The experts of GPU {gpu} compute {percent(more)} longer than the mean: "
        f"{time(work.behind_ns)}",
        f"{time(float(work.each_ns.max()))} vs {time(float(work.each_ns.mean()))} per step."
        f"{counted} Raise the router's auxiliary loss, lower its capacity factor, or place experts "
        "by their load.",
        View(context.view.run, name="experts", sort="-expert_ns"),
        Cost.WORK,
        work.behind_ns,
        gpu=gpu,
    )
    yield replace(found, remedy=balanced_question(work))


@rule(
    "busy-expert",
    cost="unknown: without a trace, no replay tells it",
    needs="a trainer's log with the tokens of experts",
    thresholds=(BUSIEST,),
    of_logs=True,
)
def busy_expert(context: FindingsContext) -> Iterator[Finding]:
    """An expert that gets far more tokens than the others, over the logged steps."""
    loads = expert_loads(context.run)
    if loads is None or loads.source != BY_LOG:
        return
    names, place = ranked(loads.expert)
    sums = sums_of(loads.amount, place, len(names))
    over = loads.imbalance(loads.expert) - 1.0
    if not over >= BUSIEST.share:
        return
    most = int(np.argmax(sums))
    mean = float(sums.mean())
    idle = int((sums == 0).sum())
    none = f" {idle} of {len(names)} experts get none." if idle else ""
    yield context.finding(
        f"Expert {names[most]} gets {sums[most] / max(mean, 1e-9):.2f} times the tokens of the "
        "mean expert",
        f"In each step and layer the busiest one gets {1 + over:.2f} times the mean, over "
        f"{loads.steps:,} steps.{none} Raise the router's auxiliary loss.",
        View(context.view.run, name="experts", by="expert"),
        Cost.UNKNOWN,
        None,
    )
