"""Phases in which the GPU waits for launch calls, or after them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.host_tables import HostState
from chopper_core.model.table import NO_TIME
from chopper_core.util.arrays import Codes, Float64
from chopper_core.util.grouping import first_equal
from chopper_core.views.findings.rule import (
    EXPLAINED,
    Cost,
    Finding,
    FindingsContext,
    Threshold,
    confidence,
    rule,
    summed,
)
from chopper_core.views.shared.host_causes import (
    NEEDLESS,
    WAITING,
    HostCause,
    HostPlace,
    host_charges,
    within_scope,
)
from chopper_core.views.shared.lateness import recurrence
from chopper_core.views.shared.phrases import listed, percent, time

HOST_LATE: Final = Threshold(
    "idle before launch calls",
    10.0,
    "% of the phase",
    "a host that runs ahead of its GPU leaves less than 1 %; a tenth is more than a single hiccup",
)
NAMED_LATE: Final = Threshold(
    "idle before launch calls, most of it by one thing that no step needs",
    4.0,
    "% of the phase",
    "such as reading values back: it can be left out, however well the host keeps up otherwise",
)
NAMED_COST: Final = Threshold(
    "cost of such a thing", 1.0, "% of the iteration", "the same as for a straggler"
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
    "no operator that a host launches one by one has as much",
)
_MAX_CAUSES: Final = 3
_SAME_SHARE: Final = 0.4
"""Of the longest idle time of an iteration; those with as much are named."""


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
    thresholds=(HOST_LATE, NAMED_LATE, NAMED_COST, PHASE, CAUSE),
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
    """Phases of which a large part is idle before launch calls, or a part for one known reason."""
    late = _late_phases(context, "idle_host_ns", HOST_LATE)
    codes = [phase.code for phase in late]
    for phase in _late_phases(context, "idle_host_ns", NAMED_LATE):
        share = context.share(context.per_iteration(phase.idle_ns))
        if phase.code not in codes and share >= NAMED_COST.share:
            main = _Charges.of(context, [phase], HostState.LATE).main()
            if main is not None and main.what in NEEDLESS:
                late.append(phase)
    return sorted(late, key=lambda phase: -phase.idle_ns)


def _late_phases(context: FindingsContext, column: str, limit: Threshold) -> list[LatePhase]:
    """Phases with more of an idle time than the limit, the most idle first."""
    phases = context.split("phase")
    idle = phases.sum(column).astype(np.float64)
    elapsed = phases.elapsed_ns.astype(np.float64)
    codes = phases.codes("phase")
    if column == "idle_host_ns":
        moved = _moved_by_phase(context, codes)
        idle, elapsed = idle + moved, elapsed + moved
    late = (idle > limit.share * elapsed) & (
        elapsed / (len(context.gpus) * len(context.iterations)) > PHASE.share * context.step_ns
    )
    order = np.flatnonzero(late)[np.argsort(-idle[late], kind="stable")]
    return [LatePhase(int(codes[at]), float(idle[at]), float(elapsed[at])) for at in order.tolist()]


def _mostly_in(context: FindingsContext, by_step: Float64) -> str:
    """The iterations that have most of a time, unless many do, as the end of a phrase."""
    large = np.flatnonzero(by_step > _SAME_SHARE * by_step.max())
    few = 2 * len(large) < len(by_step)
    mostly = by_step[large].sum() >= EXPLAINED.share * by_step.sum()
    return recurrence(large.tolist(), context.iterations) if few and mostly else ""


def _moved_by_phase(context: FindingsContext, phases: Codes) -> Float64:
    """Idle time by phase of its activity that comes to the analysed iterations, less what goes."""
    moved, analysed = context.moved, np.array(context.iterations, np.int64)
    sign = np.isin(moved.iteration, analysed) * 1.0 - np.isin(moved.before, analysed)
    place = first_equal(phases, context.table.phase[moved.row])
    own = place >= 0
    return summed(place[own], (moved.ns * sign)[own], len(phases))


def _waiting(
    context: FindingsContext, late: list[LatePhase], bound: str, *, before_launch: bool
) -> Iterator[Finding]:
    if not late:
        return
    where = f"{'before' if before_launch else 'after'} launch calls"
    total = sum(phase.idle_ns for phase in late)
    each = context.per_iteration(total)
    shares = [f"{percent(phase.idle_ns / phase.elapsed_ns)} of the phase" for phase in late]
    charges = _Charges.of(context, late, HostState.LATE if before_launch else HostState.LAUNCHED)
    main, doing = charges.main(), ""
    if before_launch:
        doing = charges.others(context, main)
    elif main is not None and main.what not in WAITING:
        main = None  # The host does something else by then.
    mostly = "" if main is None else f", {charges.share(main)} by {main.text}"
    idle = f"{bound}{mostly}{charges.when}: {time(each)} of idle time{context.per_gpu} {where}"
    sort = "-idle_host_ns" if before_launch else "-idle_latency_ns"
    by = "host" if charges.ns.any() and (before_launch or main is not None) else ""
    if by:
        sort = "-idle_host_ns" if before_launch else "-idle_launch_ns"
    if len(late) == 1:
        sentence = f"{context.phase(late[0].code)} is {idle}, {shares[0]}"
        phase = context.text("phase", late[0].code)
        evidence = context.with_view("launch", by, sort=sort, phase=phase)
    else:
        parts = (
            f"{context.phase(phase.code)} {time(context.per_iteration(phase.idle_ns))} ({share})"
            for phase, share in zip(late, shares, strict=True)
        )
        sentence = f"the step is {idle}: {listed(parts)}"
        evidence = context.with_view("launch", by or "phase", sort=sort)
    yield Finding(
        sentence=f"{sentence}{doing}",
        evidence=evidence,
        confidence=confidence(measured=True, repeated=context.repeats),
        saving_ns=each,
        total_ns=total,
        gpu=charges.gpu,
        cost=Cost.HOST if before_launch else Cost.LAUNCH,
    )


class _Charges(Struct, frozen=True, eq=False):
    """The idle time of late phases by where the hosts are meanwhile."""

    causes: tuple[HostCause, ...]
    ns: Float64
    """By cause."""
    place_ns: Float64
    """By `HostPlace`."""
    launches: int
    """Activities of the phases."""
    gpu: int | None
    """The one GPU of several that has most of it."""
    when: str
    """The iterations that have most of it, as the end of a phrase."""

    @classmethod
    def of(cls, context: FindingsContext, late: list[LatePhase], state: HostState) -> _Charges:
        charges, table = host_charges(context.run), context.table
        phases = [phase.code for phase in late]
        inside = np.isin(table.phase[charges.row], phases)
        inside &= np.isin(charges.iteration, context.iterations)
        inside &= within_scope(context.run, context.view, charges.row)
        inside &= (charges.state == state) & (table.launch_ns[charges.row] != NO_TIME)
        launches = int(context.cells.sizes()[np.isin(context.codes("phase"), phases)].sum())
        ns = charges.ns[inside]
        shape = len(context.gpus), len(context.iterations)
        whose = np.searchsorted(context.gpus, table.gpu[charges.row[inside]])
        when = np.searchsorted(context.iterations, charges.iteration[inside])
        steps = summed(whose * shape[1] + when, ns, shape[0] * shape[1]).reshape(shape)
        most = int(steps.sum(axis=1).argmax())
        is_one = steps[most].sum() >= EXPLAINED.share * steps.sum() > 0
        return cls(
            charges.causes,
            summed(charges.cause[inside], ns, len(charges.causes)),
            summed(charges.place[inside], ns, len(HostPlace)),
            launches,
            context.gpus[most] if is_one and len(context.gpus) > 1 else None,
            _mostly_in(context, steps.sum(axis=0)),
        )

    def main(self) -> HostCause | None:
        """The cause of at least half of the time."""
        at = int(self.ns.argmax()) if len(self.ns) else 0
        return self.causes[at] if 2 * self.ns[at : at + 1].sum() >= self.ns.sum() > 0 else None

    def share(self, cause: HostCause) -> str:
        """The part of the time with a cause."""
        return percent(self.ns[self.causes.index(cause)] / self.ns.sum())

    def others(self, context: FindingsContext, main: HostCause | None) -> str:
        """The large causes, as the end of a phrase; where nothing is, the host's own overhead."""
        whole = self.ns.sum()
        if not whole:
            return ""
        order = np.argsort(-self.ns, kind="stable")[:_MAX_CAUSES].tolist()
        large = [at for at in order if self.ns[at] >= CAUSE.share * whole]
        named = [
            f"{self.causes[at].text} {self.share(self.causes[at])}"
            for at in large
            if self.causes[at] != main
        ]
        hosts = f"; the hosts are in {', '.join(named)} during that time" if named else ""
        if 2 * self.ns[large].sum() >= whole:
            return hosts
        calls, operators = self.place_ns[[HostPlace.CALL, HostPlace.OPERATOR]] / whole
        each = context.per_iteration(self.launches)
        return (
            f"{hosts}; it is the overhead of {each:,.0f} launches{context.per_gpu}, one by one: "
            f"{percent(operators)} in operators, {percent(calls)} in runtime calls, "
            f"{percent(1 - operators - calls)} outside, such as in Python"
        )
