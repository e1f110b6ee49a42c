"""Phases in which the GPU waits for launch calls, or after them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.views.findings.context import FindingsContext
from chopper_core.views.findings.rule import Finding, Threshold, confidence, rule
from chopper_core.views.shared.host_causes import host_charges
from chopper_core.views.shared.phrases import listed, percent, time

HOST_LATE: Final = Threshold(
    "idle before launch calls",
    10.0,
    "% of the phase",
    "a host that runs ahead of its GPU leaves less than 1 %; a tenth is no single hiccup",
)
LAUNCH_LATE: Final = Threshold(
    "launch latency (idle_latency_ns)",
    5.0,
    "% of the phase",
    "a launch takes 4 to 8 µs to reach the GPU; if that shows at all, kernels are short or the "
    "queue runs empty",
)
PHASE: Final = Threshold(
    "phase that counts", 2.0, "% of the iteration", "a shorter phase can't be a problem by itself"
)

CAUSE: Final = Threshold(
    "cause of idle time",
    10.0,
    "% of the idle time",
    "of operators that a host launches one by one none has as much",
)
_MAX_CAUSES: Final = 3


class LatePhase(Struct, frozen=True):
    """A phase of which a large part is idle."""

    code: int
    idle_ns: float
    elapsed_ns: float


@rule(
    "host-bound",
    saving="idle time before the launch calls of these phases, mean over GPUs",
    # A host that can't keep up is late in the other phases too, below their limit.
    holds=(0.5, 2.2),
    needs="launch records",
    thresholds=(HOST_LATE, PHASE, CAUSE),
)
def host_bound(context: FindingsContext) -> Iterator[Finding]:
    """Phases in which the GPU waits for launch calls."""
    late = host_bound_phases(context)
    return _waiting(context, late, "host-bound", before_launch=True)


@rule(
    "launch-bound",
    saving="launch latency, mean over GPUs",
    needs="launch records",
    thresholds=(LAUNCH_LATE, PHASE),
)
def launch_bound(context: FindingsContext) -> Iterator[Finding]:
    """Phases in which the GPU waits after launch calls, with nothing else in its queue."""
    late = _late_phases(context, "idle_latency_ns", LAUNCH_LATE)
    return _waiting(context, late, "launch-bound", before_launch=False)


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
    context: FindingsContext, late: list[LatePhase], bound: str, *, before_launch: bool
) -> Iterator[Finding]:
    if not late:
        return
    where = f"{'before' if before_launch else 'after'} launch calls"
    total = sum(phase.idle_ns for phase in late)
    each = context.per_iteration(total)
    shares = [f"{percent(phase.idle_ns / phase.elapsed_ns)} of the phase" for phase in late]
    idle = f"{bound}: {time(each)} of idle time{context.per_gpu} {where}"
    sort = "-idle_host_ns" if before_launch else "-idle_latency_ns"
    if len(late) == 1:
        sentence = f"{context.phase(late[0].code)} is {idle}, {shares[0]}"
        evidence = context.with_view("launch", sort=sort, phase=context.text("phase", late[0].code))
    else:
        parts = (
            f"{context.phase(phase.code)} {time(context.per_iteration(phase.idle_ns))} ({share})"
            for phase, share in zip(late, shares, strict=True)
        )
        sentence = f"the step is {idle}: {listed(parts)}"
        evidence = context.with_view("launch", "phase", sort=sort)
    doing = _doing(context, late) if before_launch else ""
    yield Finding(
        sentence=f"{sentence}{doing}",
        evidence=evidence,
        confidence=confidence(measured=True, repeated=context.repeats),
        saving_ns=each,
        total_ns=total,
    )


def _doing(context: FindingsContext, late: list[LatePhase]) -> str:
    """The largest causes of the idle time, by where the hosts are meanwhile."""
    charges, table = host_charges(context.run), context.table
    inside = np.isin(table.phase[charges.row], [phase.code for phase in late])
    inside &= np.isin(table.iteration[charges.row], context.iterations)
    sums = charges.sums(np.where(inside, 0, -1), 1)[0]
    order = np.argsort(-sums, kind="stable")[:_MAX_CAUSES].tolist()
    named = [
        f"{charges.causes[at].text} {percent(sums[at] / sums.sum())}"
        for at in order
        if sums[at] >= CAUSE.share * sums.sum() > 0
    ]
    return f"; the hosts are meanwhile in {', '.join(named)}" if named else ""
