"""Hosts that are late: always, in whole phases of the step, or once, at one place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.host_tables import HostState
from chopper_core.model.table import NO_LABEL, NO_TIME
from chopper_core.util.arrays import Codes, Float64, Index, Int64, Mask
from chopper_core.util.grouping import (
    first_equal,
    medians_along,
    others_median,
    run_starts,
    sums_of,
)
from chopper_core.views.findings.rule import (
    EXPLAINED,
    SMALLEST_SAVING,
    Cost,
    Finding,
    FindingsContext,
    Threshold,
    rule,
    threshold,
)
from chopper_core.views.shared.host_causes import (
    NEEDLESS,
    WAITING,
    HostCause,
    HostCharges,
    HostPlace,
    host_charges,
    within_scope,
)
from chopper_core.views.shared.phrases import by_number, listed, percent, recurrence, time

HOST_LATE: Final = threshold("""idle before launch calls | 10 | % of the phase
    a host that runs ahead of its GPU leaves less than 1 %; a tenth is more than a single hiccup""")
NAMED_LATE: Final = threshold(
    """idle before launch calls, most of it by one thing that no step needs | 4 | % of the phase
    such as reading values back: it can be left out, however well the host keeps up otherwise"""
)
NAMED_COST: Final = threshold("""cost of such a thing | 1 | % of the iteration
    the same as for a straggler""")
LAUNCH_LATE: Final = threshold("""launch latency (idle_latency_ns) | 5 | % of the phase
    a launch takes 4 to 8 µs to reach the GPU; if that shows at all, kernels are short or the
    queue runs empty""")
QUEUED: Final = threshold("""idle while launched work waits (idle_queued_ns) | 10 | % of the phase
    the dispatch of the next kernel takes a few microseconds, some percent of short kernels""")
PHASE: Final = threshold("""phase that counts | 2 | % of the iteration
    a shorter phase can't be a problem by itself""")
CAUSE: Final = threshold("""cause of idle time | 10 | % of the idle time
    no operator that a host launches one by one has as much""")
_MAX_CAUSES: Final = 3
_SAME_SHARE: Final = 0.4
"""Of the longest idle time of an iteration; those with as much are named."""


class LatePhase(Struct, frozen=True):
    """A phase of which a large part is idle."""

    code: int
    idle_ns: float
    elapsed_ns: float

    @property
    def share(self) -> str:
        return f"{percent(self.idle_ns / self.elapsed_ns)} of the phase"


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
    yield from _bound(context, _host_bound_phases(context), HostState.LATE)


@rule(
    "launch-bound",
    saving="launch latency, mean over GPUs",
    needs="launch records",
    thresholds=(LAUNCH_LATE, PHASE),
)
def launch_bound(context: FindingsContext) -> Iterator[Finding]:
    """Phases in which the GPU waits after launch calls, with nothing else in its queue."""
    late = _late_phases(context, "idle_latency_ns", LAUNCH_LATE)
    yield from _bound(context, late, HostState.LAUNCHED)


@rule(
    "queue-bound",
    saving="idle time of these phases in which launched work waits, mean over GPUs",
    # The dispatch of each kernel is a part of it that stays.
    holds=(0.0, 1.1),
    needs="launch records",
    thresholds=(QUEUED, PHASE),
)
def queue_bound(context: FindingsContext) -> Iterator[Finding]:
    """Phases in which the GPU is idle though work for it was launched in time."""
    late = _late_phases(context, "idle_queued_ns", QUEUED)
    yield from _bound(context, late, HostState.LAUNCHED, queued=True)


def _host_bound_phases(context: FindingsContext) -> list[LatePhase]:
    """Phases of which a large part is idle before launch calls, or a part for one known reason."""
    late = _late_phases(context, "idle_host_ns", HOST_LATE)
    codes = [phase.code for phase in late]
    for phase in _late_phases(context, "idle_host_ns", NAMED_LATE):
        share = context.share(context.per_iteration(phase.idle_ns))
        if phase.code not in codes and share >= NAMED_COST.share:
            main = _Charges.of(context, [phase], HostState.LATE).main
            if main is not None and main.what in NEEDLESS:
                late.append(phase)
    return sorted(late, key=lambda phase: -phase.idle_ns)


def _late_phases(context: FindingsContext, column: str, limit: Threshold) -> list[LatePhase]:
    phases = context.split("phase")
    idle = context.figure(column, phases).known(missing=0.0)
    elapsed = phases.elapsed_ns.astype(np.float64)
    codes = phases.codes("phase")
    if column == "idle_host_ns":
        moved = _moved_by_phase(context, codes)
        idle, elapsed = idle + moved, elapsed + moved
    late = (idle > limit.share * elapsed) & (
        elapsed / context.spots > PHASE.share * context.step_ns
    )
    columns = (each[late].tolist() for each in (codes, idle, elapsed))
    found = [LatePhase(*each) for each in zip(*columns, strict=True)]
    return sorted(found, key=lambda phase: -phase.idle_ns)


def _moved_by_phase(context: FindingsContext, phases: Codes) -> Float64:
    """Idle time by phase of its activity that comes to the analysed iterations, less what goes."""
    moved, analysed = context.moved, np.array(context.iterations, np.int64)
    before = context.table.iteration[moved.row]
    sign = np.isin(moved.iteration, analysed) * 1.0 - np.isin(before, analysed)
    place = first_equal(phases, context.table.phase[moved.row])
    own = place >= 0
    return sums_of((moved.ns * sign)[own], place[own], len(phases))


class _Charges(Struct, frozen=True, eq=False):
    """The idle time of late phases by where the hosts are during it."""

    charges: HostCharges
    ns: Int64
    place_ns: Int64
    """By `HostPlace`."""
    launches: int
    gpu: int | None
    """The one GPU of several that has most of it."""
    when: str
    """The iterations that have most of it, unless many do, as the end of a phrase."""

    @classmethod
    def of(cls, context: FindingsContext, late: list[LatePhase], state: HostState) -> _Charges:
        charges, table = host_charges(context.run), context.table
        phases = [phase.code for phase in late]
        inside = np.isin(table.phase[charges.row], phases)
        inside &= np.isin(charges.iteration, context.iterations)
        inside &= within_scope(context.run, context.view, charges.row)
        inside &= (charges.state == state) & (table.launch_ns[charges.row] != NO_TIME)
        charges = charges.take(inside)
        shape = len(context.gpus), len(context.iterations)
        whose = np.searchsorted(context.gpus, table.gpu[charges.row])
        when = np.searchsorted(context.iterations, charges.iteration)
        steps = sums_of(charges.ns, whose * shape[1] + when, context.spots).reshape(shape)
        most = int(steps.sum(axis=1).argmax())
        is_one = steps[most].sum() >= EXPLAINED.share * steps.sum() > 0
        by_step = steps.sum(axis=0)
        large = np.flatnonzero(by_step > _SAME_SHARE * by_step.max())
        few = 2 * len(large) < len(by_step)
        mostly = by_step[large].sum() >= EXPLAINED.share * by_step.sum()
        return cls(
            charges,
            sums_of(charges.ns, charges.cause, len(charges.causes)),
            sums_of(charges.ns, charges.place, len(HostPlace)),
            int(context.cells.sizes()[np.isin(context.codes("phase"), phases)].sum()),
            context.gpus[most] if is_one and len(context.gpus) > 1 else None,
            recurrence(large.tolist(), context.iterations) if few and mostly else "",
        )

    @property
    def main(self) -> HostCause | None:
        return self.charges.main(self.ns)

    def share(self, cause: HostCause) -> str:
        return percent(self.ns[self.charges.causes.index(cause)] / self.ns.sum())

    def others(self, context: FindingsContext) -> str:
        """The large causes, as the end of a phrase; where nothing is, the host's own overhead."""
        whole = self.ns.sum()
        if not whole:
            return ""
        order = np.argsort(-self.ns, kind="stable")[:_MAX_CAUSES].tolist()
        large = [at for at in order if self.ns[at] >= CAUSE.share * whole]
        causes = [self.charges.causes[at] for at in large]
        named = [f"{each.text} {self.share(each)}" for each in causes if each != self.main]
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


def _bound(
    context: FindingsContext, late: list[LatePhase], state: HostState, *, queued: bool = False
) -> Iterator[Finding]:
    """A finding of late phases, before their launch calls or after them."""
    if not late:
        return
    charges, is_before = _Charges.of(context, late, state), state == HostState.LATE
    main = charges.main
    if is_before:
        bound, when, cost = "host-bound", "before launch calls", Cost.HOST
        by, sort = "host" if charges.ns.any() else "", "-idle_host_ns"
        doing = charges.others(context)
    elif queued:
        bound, when, cost = "queue-bound", "in which launched work waits", Cost.LAUNCH
        main, by, sort = None, "", "-idle_queued_ns"
        doing = (
            "; the trace doesn't show what for: an event of another stream, of the host or of "
            "another GPU, or the dispatch of each kernel"
        )
    else:
        # Where the host doesn't wait for the GPU, it does something else by then.
        main = main if main is not None and main.what in WAITING else None
        bound, when, cost, doing = "launch-bound", "after launch calls", Cost.LAUNCH, ""
        by, sort = ("", "-idle_latency_ns") if main is None else ("host", "-idle_launch_ns")
    total = sum(phase.idle_ns for phase in late)
    saving = context.per_iteration(total)
    mostly = f", {charges.share(main)} by {main.text}" if main is not None else ""
    idle = f"{bound}{mostly}{charges.when}: {time(saving)} of idle time{context.per_gpu} {when}"
    if len(late) == 1:
        sentence = f"{context.phase(late[0].code)} is {idle}, {late[0].share}"
        phase = context.text("phase", late[0].code)
        evidence = context.with_view("launch", by, sort=sort, phase=phase)
    else:
        parts = (
            f"{context.phase(phase.code)} {time(context.per_iteration(phase.idle_ns))} "
            f"({phase.share})"
            for phase in late
        )
        sentence = f"the step is {idle}: {listed(parts)}"
        evidence = context.with_view("launch", by or "phase", sort=sort)
    yield context.finding(
        f"{sentence}{doing}", evidence, cost, saving, gpu=charges.gpu, total_ns=total
    )


LATE_HOST: Final = threshold("""late host at one place | 0.2 | % of the iteration
    an allocator that returns memory and asks for it again takes about 2 ms""")
FAR_LATER: Final = threshold("""late host at one place, relative to other places | 3 | times
    a host that is always late is not late at one place""")
AT_END: Final = -2
"""The place of a phase: the end of an iteration, after all of its activities."""
_NEGLIGIBLE_NS: Final = 1_000
_MAX_LISTED: Final = 10
_MAX_LEFT_OUT: Final = 16
"""With more GPUs or iterations, the median over all replaces that over the others."""


class LatePlace(Struct, frozen=True):
    """Neighbouring layers of a phase in which one host is late in one iteration."""

    gpu: int
    iteration: int
    phase: int
    layers: tuple[int, ...]
    idle_ns: float
    lost_ns: float
    """The part of it beyond the usual."""


@rule(
    "late-host",
    saving="idle time before launch calls there, minus the usual idle time at the same place on "
    "other GPUs and in other iterations; the largest of the GPUs of each iteration",
    needs="launch records; several GPUs or iterations",
    thresholds=(LATE_HOST, FAR_LATER),
)
def late_host(context: FindingsContext) -> Iterator[Finding]:
    """Places where one host is late once, but not on other GPUs or in other iterations."""
    if not context.repeats:
        return
    idle, names = _idle_by_place(context)
    usual = _expected(idle)
    excess = idle - usual
    is_late = excess >= context.step_ns * SMALLEST_SAVING.share
    is_late &= idle > FAR_LATER.value * usual
    # A host that is always late is another finding.
    always = [phase.code for phase in _host_bound_phases(context)]
    is_late[np.isin(names[:, 0], np.array(always, np.int64))] = False
    leads = context.leads
    if leads is not None and leads.delays_ns is not None:
        # So is one that holds the other GPUs back.
        for late in leads.stragglers:
            if late.cause == "host":
                those = [leads.iterations[at] for at in late.when]
                place = context.gpus.index(leads.gpus[late.place])
                is_late[:, place, np.isin(context.iterations, those)] = False
    places = [
        LatePlace(
            context.gpus[gpu],
            context.iterations[iteration],
            int(names[at[0]][0]),
            tuple(int(layer) for layer in names[at, 1] if layer != NO_LABEL),
            float(idle[at, gpu, iteration].sum()),
            float(excess[at, gpu, iteration].sum()),
        )
        for gpu, iteration in np.argwhere(is_late.any(axis=0)).tolist()
        for at in _neighbours(is_late[:, gpu, iteration], names)
    ]
    of_phase: dict[int, list[LatePlace]] = {}
    for found in sorted(places, key=lambda one: -one.lost_ns):
        if found.lost_ns >= context.step_ns * LATE_HOST.share:
            of_phase.setdefault(found.phase, []).append(found)
    for each in of_phase.values():
        yield _once(context, each[0]) if len(each) == 1 else _repeatedly(context, each)


def _idle_by_place(context: FindingsContext) -> tuple[Float64, Int64]:
    """Idle time before launch calls by (phase, layer), GPU and iteration; and the pairs.

    The last place is the end of an iteration, whose idle time the next one's activities end.
    """
    names, owner = context.together("phase", "layer")
    shape = (len(names), len(context.gpus), len(context.iterations))
    place = (owner * shape[1] + context.place("gpu")) * shape[2] + context.place("iteration")
    own_ns = context.cells.sum("idle_host_ns").astype(np.float64)
    idle = sums_of(own_ns, place, int(np.prod(shape))).reshape(shape)
    table, moved = context.table, context.moved
    width = names[:, 1].max() + 2
    of_row = table.phase[moved.row].astype(np.int64) * width + table.layer[moved.row]
    where = first_equal(names[:, 0] * width + names[:, 1], of_row)
    whose = first_equal(np.array(context.gpus), table.gpu[moved.row].astype(np.int64))
    when = first_equal(np.array(context.iterations), table.iteration[moved.row].astype(np.int64))
    own = (where >= 0) & (whose >= 0) & (when >= 0)
    np.subtract.at(idle, (where[own], whose[own], when[own]), moved.ns[own])
    arrives = np.maximum(context.moved_ns, 0.0)
    return np.concatenate([idle, arrives[None]]), np.append(names, [[AT_END, NO_LABEL]], axis=0)


def _expected(idle: Float64) -> Float64:
    """The usual idle time at each place: on the same GPU in other iterations, or on other GPUs."""
    usual = np.zeros(idle.shape)
    for axis, count in ((1, idle.shape[1]), (2, idle.shape[2])):
        if count > _MAX_LEFT_OUT:
            usual = np.maximum(usual, medians_along(idle, axis=axis, keepdims=True))
        elif count > 1:
            middle = others_median(np.moveaxis(idle, axis, 0))
            usual = np.maximum(usual, np.moveaxis(middle, 0, axis))
    return usual


def _neighbours(is_late: Mask, names: Int64) -> list[Index]:
    """The late places; neighbouring layers of a phase are one place."""
    at = np.flatnonzero(is_late)
    phases, layers = names[at].T
    return np.split(at, run_starts(phases, layers - np.arange(len(at)))[1:])


def _where(context: FindingsContext, phase: int) -> str:
    return "at the end" if phase == AT_END else f"in {context.phase(phase)}"


def _layers(context: FindingsContext, place: LatePlace) -> str:
    if place.phase == AT_END:
        return ""
    if place.layers:
        return f", {by_number('layer', place.layers)}"
    return ", outside layers" if (context.codes("layer") != NO_LABEL).any() else ""


def _doing(context: FindingsContext, places: list[LatePlace]) -> str:
    charges, table = host_charges(context.run), context.table
    inside = np.zeros(len(charges.row), np.bool_)
    is_moved = charges.iteration != table.iteration[charges.row]
    for place in places:
        here = (table.gpu[charges.row] == place.gpu) & (charges.iteration == place.iteration)
        if place.phase == AT_END:
            inside |= here & is_moved
            continue
        here &= ~is_moved & (table.phase[charges.row] == place.phase)
        inside |= here & np.isin(table.layer[charges.row], place.layers or (NO_LABEL,))
    cause = charges.main(charges.sums(np.where(inside, 0, -1), 1)[0])
    return "" if cause is None else f", in {cause.text}"


def _once(context: FindingsContext, place: LatePlace) -> Finding:
    labels = {"gpu": str(place.gpu)}
    by = "host"
    if place.phase != AT_END:
        labels["iteration"] = context.text("iteration", place.iteration)
        labels["phase"] = context.text("phase", place.phase)
        by = "layer"
    if len(place.layers) == 1:
        labels["layer"] = str(place.layers[0])
        by = "operation"
    usual_ns = place.idle_ns - place.lost_ns
    usual = time(usual_ns) if usual_ns >= _NEGLIGIBLE_NS else "none"
    when = f" of iteration {place.iteration}" if context.has_iterations else ""
    return context.finding(
        f"GPU {place.gpu}'s host is late {_where(context, place.phase)}{when}"
        f"{_layers(context, place)}{_doing(context, [place])}: the GPU is idle for "
        f"{time(place.idle_ns)} before launch calls there (usually {usual})",
        context.with_view("launch", by, sort="-idle_host_ns", **labels),
        Cost.HOST,
        place.lost_ns / len(context.iterations),
        is_repeated=False,
        total_ns=place.idle_ns,
    )


def _repeatedly(context: FindingsContext, late: list[LatePlace]) -> Finding:
    """Several places of a phase; of GPUs late in one iteration, the latest counts."""
    lost: dict[int, dict[int, float]] = {}
    for place in late:
        by_gpu = lost.setdefault(place.iteration, {})
        by_gpu[place.gpu] = by_gpu.get(place.gpu, 0.0) + place.lost_ns
    named = "; ".join(
        f"{time(place.idle_ns)} on GPU {place.gpu}, iteration {place.iteration}"
        f"{_layers(context, place)}"
        for place in late[:_MAX_LISTED]
    )
    more = f"; and {len(late) - _MAX_LISTED} more" if len(late) > _MAX_LISTED else ""
    total = sum(place.idle_ns for place in late)
    phase = late[0].phase
    at_end = phase == AT_END
    labels = {} if at_end else {"phase": context.text("phase", phase)}
    by = "host" if at_end else "gpu"
    return context.finding(
        f"hosts are late at {len(late)} places {_where(context, phase)}{' of iterations' * at_end}"
        f"{_doing(context, late)}, but not elsewhere; GPUs are idle there for {time(total)} "
        f"before launch calls: {named}{more}",
        context.with_view("launch", by, sort="-idle_host_ns", **labels),
        Cost.HOST,
        sum(max(by_gpu.values()) for by_gpu in lost.values()) / len(context.iterations),
        is_repeated=True,
        total_ns=total,
    )
