"""Phases in which the GPU waits for launch calls, or after them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.views.findings.context import FindingsContext
from chopper_core.views.findings.phrases import listed, percent, time
from chopper_core.views.findings.rule import Finding, Threshold, confidence, rule

HOST_LATE: Final = Threshold(
    "idle before launch calls",
    10.0,
    "% of the phase",
    "a host that runs ahead of its GPU leaves less than 1 %; a tenth is no single hiccup",
)
LAUNCH_LATE: Final = Threshold(
    "idle after launch calls",
    5.0,
    "% of the phase",
    "a launch takes 4 to 8 µs to reach the GPU; if that shows at all, kernels are short or the "
    "queue runs empty",
)
PHASE: Final = Threshold(
    "phase that counts", 5.0, "% of the iteration", "a shorter phase can't be a problem by itself"
)


class LatePhase(Struct, frozen=True):
    """A phase of which a large part is idle."""

    code: int
    idle_ns: float
    elapsed_ns: float


@rule(
    "host-bound",
    saving="idle time before the launch calls of these phases, mean over GPUs",
    needs="launch records",
    thresholds=(HOST_LATE, PHASE),
)
def host_bound(context: FindingsContext) -> Iterator[Finding]:
    """Phases in which the GPU waits for launch calls."""
    late = host_bound_phases(context)
    return _waiting(context, late, "host-bound", "before launch calls")


@rule(
    "launch-bound",
    saving="idle time from the launch calls on, mean over GPUs",
    needs="launch records",
    thresholds=(LAUNCH_LATE, PHASE),
)
def launch_bound(context: FindingsContext) -> Iterator[Finding]:
    """Phases in which the GPU waits after launch calls."""
    late = _late_phases(context, "idle_launch_ns", LAUNCH_LATE)
    return _waiting(context, late, "launch-bound", "after launch calls")


def host_bound_phases(context: FindingsContext) -> list[LatePhase]:
    """Phases of which a large part is idle before launch calls."""
    return _late_phases(context, "idle_host_ns", HOST_LATE)


def _late_phases(context: FindingsContext, column: str, limit: Threshold) -> list[LatePhase]:
    """Phases with more of an idle time than the limit, the most idle first."""
    phases = context.split("phase")
    idle = phases.sum(column).astype(np.float64)
    elapsed = phases.elapsed_ns.astype(np.float64)
    codes = phases.codes("phase")
    late = (idle > limit.share * elapsed) & (
        elapsed / (len(context.gpus) * len(context.iterations)) > PHASE.share * context.step_ns
    )
    order = np.flatnonzero(late)[np.argsort(-idle[late], kind="stable")]
    return [LatePhase(int(codes[at]), float(idle[at]), float(elapsed[at])) for at in order.tolist()]


def _waiting(
    context: FindingsContext, late: list[LatePhase], bound: str, where: str
) -> Iterator[Finding]:
    if not late:
        return
    total = sum(phase.idle_ns for phase in late)
    each = context.per_iteration(total)
    shares = [f"{percent(phase.idle_ns / phase.elapsed_ns)} of the phase" for phase in late]
    idle = f"{bound}: {time(each)} of idle time{context.per_gpu} {where}"
    if len(late) == 1:
        sentence = f"{context.phase(late[0].code)} is {idle}, {shares[0]}"
        evidence = context.with_view("launch", phase=context.text("phase", late[0].code))
    else:
        parts = (
            f"{context.phase(phase.code)} {time(context.per_iteration(phase.idle_ns))} ({share})"
            for phase, share in zip(late, shares, strict=True)
        )
        sentence = f"the step is {idle}: {listed(parts)}"
        evidence = context.with_view("launch", "phase")
    yield Finding(
        sentence=sentence,
        evidence=evidence,
        confidence=confidence(measured=True, repeated=context.repeats),
        saving_ns=each,
        total_ns=total,
    )
