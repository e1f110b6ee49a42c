"""Hosts that are late: always, in whole phases of the step, or once, at one place."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.host_causes import (
    ALLOCATOR,
    LAUNCH_CALLS,
    NEEDLESS,
    UNSEEN,
    WAITING,
    HostCause,
    HostCharges,
    HostPlace,
    at_place_of_most,
    cause_beyond,
    host_charges,
    place_of_most,
    within_scope,
)
from chopper_core.analyses.leads import Straggler
from chopper_core.findings.rule import (
    EXPLAINED,
    SMALLEST_SAVING,
    WORST_GPU,
    Cost,
    Finding,
    FindingsContext,
    Group,
    Threshold,
    drift_of,
    largest_parts,
    rule,
    threshold,
)
from chopper_core.findings.titles import MAX_TITLE, of_name, one_line, shortened
from chopper_core.model.phrases import by_number, differs, listed, percent, recurrence, time
from chopper_core.model.side_table import HostState, HostTime
from chopper_core.model.table import NO_LABEL, NO_TIME, values_of
from chopper_core.util.arrays import Float64, Int64, Mask
from chopper_core.util.grouping import (
    beyond_others,
    combined,
    distinct,
    first_equal,
    median_of,
    medians_along,
    others_median,
    run_starts,
    sums_of,
)

HOST_LATE: Final = threshold("""idle before launch calls | 10 | % of the phase
    a host that runs ahead of its GPU leaves less than 1 %; a tenth is more than a single hiccup""")
ALSO_LATE: Final = threshold("""idle before launch calls in its other phases | 1 | % of the phase
    a host that is late in one phase runs less far ahead in the others""")
LATE_ALL_OVER: Final = threshold("""idle before launch calls all over the step | 3 | % of the step
    the limit of a longer step; on most GPUs in most steps, and at no one place. A host that runs
    ahead of its GPU leaves 0.1 to 0.2 %""")
NAMED_LATE: Final = threshold(
    """idle before launch calls, most of it by one thing that no step needs | 4 | % of the phase
    such as reading values back: it can be left out, however well the host keeps up otherwise"""
)
NAMED_COST: Final = threshold("""cost of such a thing | 1 | % of the step
    the same as for a straggler""")
LONG_COST: Final = threshold("""cost of it in a long phase, or of untraced code | 2 | % of the step
    hosts do something untraced between most calls, but seldom for as long""")
STALL: Final = threshold("""stall of a host, whatever it does | 5 | % of the step
    on most GPUs in most steps; no operator takes a host as long, but a lock, a file or another
    process does""")
LAUNCH_LATE: Final = threshold("""launch latency (idle_latency_ns) | 5 | % of the phase
    a launch takes 4 to 8 µs to reach the GPU; if that shows at all, kernels are short or the
    queue runs empty""")
QUEUED: Final = threshold("""idle while launched work waits (idle_queued_ns) | 10 | % of the phase
    the dispatch of the next kernel takes a few microseconds, some percent of short kernels""")
BOUNDS: Final = threshold("""idle time that bounds the step | 10 | % of the step
    with less, something else decides how long the step takes; the idle time is named instead""")
PHASE: Final = threshold("""phase that counts | 2 | % of the step
    a shorter phase can't be a problem by itself""")
GROWS: Final = threshold("""idle time that grows step by step | 30 | % from first to last
    the line through the steps also grows by 6 deviations from it""")
CAUSE: Final = threshold("""cause of idle time | 10 | % of the idle time
    no operator that a host launches one by one has as much""")
_MAX_CAUSES: Final = 3
_CALL: Final = re.compile(r"[\w:]{1,24}")
"""Names of the trace that are short enough for a title."""
_ROOM: Final = 47
"""Characters of a title for what follows the cause: ` leaves GPUs idle 14.87 ms of 15.21 ms a
step`."""
_NATIVE: Final = "torch._C"
"""In the names of calls in which PyTorch works, such as the backward pass."""
_APART: Final = NEEDLESS | {UNSEEN}
"""Causes that can go while the rest stays."""
_OF_ITS_OWN: Final = NEEDLESS - {*WAITING} | {ALLOCATOR}
"""Causes that cost what they take; a wait for the GPU also keeps launches from being ahead."""
_NEARLY_ALL: Final = 0.9
"""Of the idle time, which a cause has at least to be all of it."""
_MOSTLY: Final = 0.5
"""Of the idle time of a cell, which a cause has at least to be looked for there."""
_ALSO_COPIED: Final = 0.25
"""Of what a cause costs, from which on its copies go with it, as for a straggler."""
_SAME_SHARE: Final = 0.4
"""Of the longest idle time of a step; those with as much are named."""


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
    cost="idle time before the launch calls of these phases, mean over GPUs",
    # A host that can't keep up is late in the other phases too, below their limit.
    holds=(0.6, 1.5),
    needs="launch records",
    thresholds=(
        HOST_LATE,
        ALSO_LATE,
        LATE_ALL_OVER,
        NAMED_LATE,
        NAMED_COST,
        LONG_COST,
        STALL,
        BOUNDS,
        PHASE,
        CAUSE,
        GROWS,
    ),
)
def host_bound(context: FindingsContext) -> Iterator[Finding]:
    """Phases in which the GPU waits for launch calls."""
    late = _host_bound_phases(context)
    if not late:
        return
    bound = _charges_of(context, late, HostState.LATE)
    main = bound.main(bound.by_cause)
    needless = list(_needless(context, "" if main is None else main.what))
    yield from (finding for _, finding in needless)
    costs = {what: finding.cost_ns or 0.0 for what, finding in needless}
    yield from _bound(context, late, HostState.LATE, costs)
    if main is not None and main.what in NEEDLESS:
        # The main cause is apart from another one thing that the rest may be.
        own = bound.take(_are(bound, main.what)[bound.cause])
        costs[main.what] = context.per_iteration(float(own.ns.sum()))
        left, rest = _without(context, late, bound, costs)
        most = rest.main(rest.by_cause) if left else None
        if most is not None and most.what in _APART:
            yield from _bound(context, late, HostState.LATE, costs)
    yield from _needless_on_one(context)


def _needless(context: FindingsContext, main: str) -> Iterator[tuple[str, Finding]]:
    """What no step needs but the main cause, next to the rest that hosts are late for: on all
    GPUs, in all steps or some. Of other things, the long stalls."""
    charges = _charges_of(context, None, HostState.LATE)
    is_long = charges.ns >= STALL.share * context.step_ns
    chosen = is_long | _are(charges, *NEEDLESS)[charges.cause]
    kinds = {charges.causes[at].what for at in distinct(charges.cause[chosen]).tolist()}
    for what in sorted(kinds - {main}):
        own = charges.take(chosen & _are(charges, what)[charges.cause])
        cost = context.per_iteration(float(own.ns.sum()))
        if not len(own) or context.share(cost) < NAMED_COST.share:
            continue
        is_rare = 2 * _spots_of(context, own) < context.spots
        if what not in NEEDLESS and (is_rare or _NATIVE in what):
            continue  # What stalls now and then is a late host; a native call does the step's work.
        where, _, there = _mostly_in(context, own)
        cells, part = _cells_with(context, own.take(there))
        if where.startswith(" on GPU") or not cells.any():
            continue
        cause = own.main(own.by_cause) or HostCause(what)
        taken = f"{cause.leaves} {_idle_gpus(context)} {time(cost)}{context.a_step}"
        drifts = _drift_in_text(context, own)
        whole = time(context.per_iteration(float(charges.ns.sum())))
        yield (
            what,
            context.finding(
                (of_name if cause.is_of_trace else one_line)(
                    f"{shortened(what)}{_in_title(cause)} {taken}", where
                ),
                f"{_hosts(context)} in {cause.text}{where or (drifts and f'{drifts},')} for "
                f"{time(cost)} of the {whole} that {_gpus_are(context)} idle{context.per_gpu} "
                "before launch calls",
                context.with_view("launch", "host", sort="-idle_host_ns"),
                Cost.HOST,
                cost,
                cells=cells,
                changes=(f"host x{1 - part:.4f}",),
            ),
        )


def _spots_of(context: FindingsContext, charges: HostCharges) -> int:
    """The number of pairs of a GPU and a step that have any of some charges."""
    table = context.table
    return len(combined([table.gpu[charges.row], table.iteration[charges.row]])[0])


def _needless_on_one(context: FindingsContext) -> Iterator[Finding]:
    """What no step needs and the host of one GPU does for longer than the others' hosts, where
    something else makes it late, too: else a straggler's finding names it."""
    if len(context.gpus) < 2:
        return
    charges = _charges_of(context, None, HostState.LATE)
    whats = sorted({cause.what for cause in charges.causes} & NEEDLESS)
    place = np.searchsorted(context.gpus, context.table.gpu[charges.row])
    beyond = beyond_others(charges.sums(place, len(context.gpus), (HostState.LATE,)))
    for what in whats:
        is_it = _are(charges, what)
        each = beyond[:, is_it].sum(axis=1)
        gpu = context.gpus[int(each.argmax())]
        if context.share(float(each.max()) / len(context.iterations)) < NAMED_COST.share:
            continue
        if _names_cause(context, gpu, what):
            continue
        inside = is_it[charges.cause] & (context.table.gpu[charges.row] == gpu)
        own = charges.take(inside)
        cells, _ = _cells_with(context, own)
        if not cells.any():
            continue
        cause = own.main(own.by_cause) or HostCause(what)
        idle, more = (float(ns) / len(context.iterations) for ns in (own.ns.sum(), each.max()))
        taken = f"{time(more)} more{context.a_step}"
        yield context.finding(
            one_line(f"{what}{_in_title(cause)} {cause.leaves} GPU {gpu} idle {taken}"),
            f"GPU {gpu} is idle for {time(idle)}{context.each} while its host is in {cause.text}"
            f"{place_of_most(context.run, own)}, {time(more)} more than the other GPUs; its host "
            "is late for other reasons, too",
            context.with_view("launch", "host", sort="-idle_host_ns", gpu=str(gpu)),
            Cost.HOST,
            more,
            gpu=gpu,
            cells=cells,
        )


def _names_cause(context: FindingsContext, gpu: int, what: str) -> bool:
    """Whether the finding of a straggler, or of one that others hide, says that its host does
    this."""
    leads = context.leads
    hidden = () if leads is None else leads.hidden_stragglers
    return _is_of_straggler(context, gpu, what, hidden)


def _is_of_straggler(
    context: FindingsContext, gpu: int, what: str, more: Sequence[Straggler] = ()
) -> bool:
    """Whether the finding of a straggler says that its host does this; or of one more."""
    leads = context.leads
    if leads is None:
        return False
    return any(
        what in cause_beyond(context.run, gpu, leads.peers_of(late.place).gpus,
                             [leads.iterations[at] for at in late.when])
        for late in (*leads.stragglers, *more)
        if late.cause == "host" and leads.gpus[late.place] == gpu
    )  # fmt: skip


def _cells_with(context: FindingsContext, charges: HostCharges) -> tuple[Mask, float]:
    """The cells whose idle time is mostly of some charges, and which part of it they are there."""
    owner = context.cells.numbers_of(charges.row)
    ns = sums_of(charges.ns[owner >= 0], owner[owner >= 0], len(context.cells))
    idle = context.cells.sum("idle_host_ns").astype(np.float64)
    chosen: Mask = ns > _MOSTLY * np.maximum(idle, 1.0)
    part = float(ns[chosen].sum() / max(idle[chosen].sum(), 1.0))
    return chosen, min(part, 1.0)


@rule(
    "launch-bound",
    cost="launch latency, mean over GPUs",
    needs="launch records",
    thresholds=(LAUNCH_LATE, BOUNDS, PHASE),
)
def launch_bound(context: FindingsContext) -> Iterator[Finding]:
    """Phases in which the GPU waits after launch calls, with nothing else in its queue."""
    if _latency_of_same_cause(context) is None:
        late = _late_phases(context, "idle_latency_ns", LAUNCH_LATE)
        yield from _bound(context, late, HostState.LAUNCHED)


class Latency(Struct, frozen=True, eq=False):
    """Launch latency that the main cause of late hosts has, too: it leaves no work in the queue."""

    what: str
    cost_ns: float
    """Per GPU and step."""
    cells: Mask
    part: float
    """Of all idle time after launch calls there."""


def _latency_of_same_cause(context: FindingsContext) -> Latency | None:
    """The launch latency during the wait that hosts are late for, wherever they run: one cause has
    one finding. None where another thing, or none, has most of either."""
    phases = _late_phases(context, "idle_latency_ns", LAUNCH_LATE)
    late = _host_bound_phases(context) if phases else []
    if not late:
        return None
    before = _charges_of(context, late, HostState.LATE)
    after = _charges_of(context, phases, HostState.LAUNCHED)
    main, other = (each.main(each.by_cause) for each in (before, after))
    if main is None or other is None or main.what != other.what or main.what not in WAITING:
        return None
    if _mostly_in(context, before)[0]:
        return None
    own = after.take(_are(after, main.what)[after.cause])
    cells = context.cells_of(phase=[phase.code for phase in phases])
    cost_ns = sum(phase.idle_ns for phase in phases) * float(own.ns.sum() / after.ns.sum())
    idle = float(context.cells.sum("idle_launch_ns")[cells].sum())
    part = min(cost_ns / max(idle, 1.0), 1.0)
    return Latency(main.what, context.per_iteration(cost_ns), cells, part)


@rule(
    "queue-bound",
    cost="idle time of these phases in which launched work waits, mean over GPUs",
    # The dispatch of each kernel is a part of it that stays.
    needs="launch records",
    thresholds=(QUEUED, BOUNDS, PHASE),
)
def queue_bound(context: FindingsContext) -> Iterator[Finding]:
    """Phases in which the GPU is idle though work for it was launched in time."""
    late = _late_phases(context, "idle_queued_ns", QUEUED)
    yield from _bound(context, late, HostState.LAUNCHED, queued=True)


def _host_bound_phases(context: FindingsContext) -> list[LatePhase]:
    """Phases of which a large part is idle before launch calls, or a part for one known reason."""
    late = _late_phases(context, "idle_host_ns", HOST_LATE)
    if late or _is_late_all_over(context):
        late = _late_phases(context, "idle_host_ns", ALSO_LATE, 0.0)
    codes = [phase.code for phase in late]
    for phase in _late_phases(context, "idle_host_ns", NAMED_COST):
        share = context.share(context.per_iteration(phase.idle_ns))
        is_long = share >= LONG_COST.share
        is_late = is_long or phase.idle_ns > NAMED_LATE.share * phase.elapsed_ns
        if phase.code not in codes and is_late and share >= NAMED_COST.share:
            charges = _charges_of(context, [phase], HostState.LATE)
            main = charges.main(charges.by_cause)
            if main is not None and (main.what in NEEDLESS or (is_long and main.what == UNSEEN)):
                late.append(phase)
    return sorted(late, key=lambda phase: -phase.idle_ns)


def _is_late_all_over(context: FindingsContext) -> bool:
    """Whether most GPUs are idle before launch calls in most steps, for much of them, though not
    for much of any phase."""
    idle = context.by_gpu_and_iteration(lambda nodes: nodes.sum("idle_host_ns"))
    if not context.repeats or context.share(median_of(idle.ravel())) < LATE_ALL_OVER.share:
        return False
    charges = _charges_of(context, None, HostState.LATE)
    return len(charges) > 0 and not place_of_most(context.run, charges)


def _late_phases(
    context: FindingsContext, column: str, limit: Threshold, least: float = PHASE.share
) -> list[LatePhase]:
    phases = context.split("phase")
    idle = context.figure(column, phases).known(missing=0.0)
    elapsed = phases.elapsed_ns.astype(np.float64)
    codes = phases.codes("phase")
    late = (idle > limit.share * elapsed) & (elapsed / context.spots > least * context.step_ns)
    columns = (each[late].tolist() for each in (codes, idle, elapsed))
    found = [LatePhase(*each) for each in zip(*columns, strict=True)]
    return sorted(found, key=lambda phase: -phase.idle_ns)


def _charges_of(
    context: FindingsContext, late: list[LatePhase] | None, state: HostState
) -> HostCharges:
    """The idle time of late phases, or of all, by where the hosts are during it."""
    charges, table = host_charges(context.run), context.table
    inside = np.isin(table.iteration[charges.row], context.iterations)
    if late is not None:
        inside &= np.isin(table.phase[charges.row], [phase.code for phase in late])
    inside &= within_scope(context.run, context.view, charges.row)
    inside &= (charges.state == state) & (table.launch_ns[charges.row] != NO_TIME)
    return charges.take(inside)


def _without(
    context: FindingsContext, late: list[LatePhase], charges: HostCharges, causes: Collection[str]
) -> tuple[list[LatePhase], HostCharges]:
    """Late phases, and their idle time, without some causes; none if next to nothing is left."""
    rest = charges.take(~_are(charges, *causes)[charges.cause])
    phases = context.table.phase[rest.row]
    found = [
        LatePhase(each.code, float(rest.ns[phases == each.code].sum()), each.elapsed_ns)
        for each in late
    ]
    found = [each for each in found if each.idle_ns > ALSO_LATE.share * each.elapsed_ns]
    rest = rest.take(np.isin(context.table.phase[rest.row], [each.code for each in found]))
    main = rest.main(rest.by_cause)
    is_late = any(each.idle_ns > HOST_LATE.share * each.elapsed_ns for each in found)
    is_late |= main is not None and main.what in _APART
    cost = context.per_iteration(float(rest.ns.sum()))
    is_late &= context.share(cost) >= NAMED_COST.share
    return (sorted(found, key=lambda phase: -phase.idle_ns) if is_late else []), rest


def _bound(
    context: FindingsContext,
    late: list[LatePhase],
    state: HostState,
    without: Mapping[str, float] | None = None,
    *,
    queued: bool = False,
) -> Iterator[Finding]:
    """A finding of late phases, before their launch calls or after them, without causes that have
    findings of their own, which cost so much."""
    charges = _charges_of(context, late, state)
    of_which = ""
    if without:
        left, others = _without(context, late, charges, without)
        most = others.main(others.by_cause) if left else None
        if left and (most is None or most.what not in _APART):
            # The rest isn't one thing that can go alone: it is the host's whole time.
            parts = (f"{time(cost)} in {what}" for what, cost in without.items())
            of_which, without = f", of which {listed(parts)}", None
        else:
            late, charges = left, others
    if not late:
        return
    main = charges.main(charges.by_cause)
    where, inside, there = _mostly_in(context, charges)
    if state == HostState.LATE and main is not None and where.startswith(" on GPU"):
        own = charges.take(there & (charges.cause == charges.causes.index(main)))
        is_most = own.ns.sum() >= EXPLAINED.share * charges.ns.sum()
        if is_most and _is_of_straggler(context, int(context.table.gpu[own.row[0]]), main.what):
            return  # A mean over all GPUs says less than the finding about that one.
    in_call, is_name, unreplayed = "", queued, ""
    gpus_idle = "GPUs idle" if len(context.gpus) > 1 else "the GPU idles"
    if state == HostState.LATE:
        bound, when, kind = "host-bound", "before launch calls", Cost.HOST
        is_slow = context.share(context.per_iteration(sum(each.idle_ns for each in late)))
        too_late = "launches too slowly" if is_slow >= BOUNDS.share else "is late"
        what = f"the host {too_late}: {gpus_idle} {{taken}}"
        otherwise = "the host is late"
        by, sort = "host" if charges.ns.any() else "", "-idle_host_ns"
        doing = _other_causes(context, late, charges)
    elif queued:
        bound, when, kind = "queue-bound", "in which launched work waits", Cost.LAUNCH
        what = f"{gpus_idle[0].upper()}{gpus_idle[1:]} {{taken}} with work queued"
        otherwise = "work waits in queue"
        doing = _what_waits(context, late)
        if main is not None and (main.what in WAITING or main.what == LAUNCH_CALLS):
            hosts = _hosts(context, *(("blocks", "block") if main.what in WAITING else ()))
            doing += f"; {hosts} in {main.text} for {_share(charges, main)} of that time"
        unreplayed = f"the trace doesn't say what the work waits for: {_MAY_WAIT_FOR}"
        if main is not None and main.what in WAITING:
            call, blocked = shortened(main.name or main.what), _part(charges, main)
            in_call = f", {100 * blocked:.0f} % in {call}"
            if blocked >= _NEARLY_ALL:
                what, in_call = f"{call} blocks while {gpus_idle} {{taken}}", ""
        main, by, sort = None, "", "-idle_queued_ns"
    else:
        # Where the host doesn't wait for the GPU, it does something else by then.
        main = main if main is not None and main.what in WAITING else None
        bound, when, kind, doing = "launch-bound", "after launch calls", Cost.LAUNCH, ""
        what = f"launch latency: {gpus_idle} {{taken}} between launch and start"
        otherwise = "launch latency is exposed"
        by, sort = ("", "-idle_latency_ns") if main is None else ("host", "-idle_launch_ns")
    total = sum(phase.idle_ns for phase in late)
    idle_ns = context.per_iteration(total)
    mostly, own_ns, layer, of_main = "", idle_ns, "", None
    if main is not None:
        own_ns *= _part(charges, main, there)
        # Calls that free and allocate memory are one thing.
        like = [at for at, each in enumerate(charges.causes) if each.what == main.what]
        own = charges.take(there & np.isin(charges.cause, like))
        layer = place_of_most(context.run, own)
        if main.what in _APART and state == HostState.LATE:
            of_main = _apart_from_rest(context, charges, own, main)
        # What is apart has one amount, in the title, the sentence and the cost.
        own_ns = own_ns if of_main is None else of_main[2]
        mostly = f", {percent(own_ns / idle_ns)} ({time(own_ns)}) by {main.text}"
        layer += "" if where else _drift_in_text(context, own)
    rest = f", not counting {listed(without)}" if without else of_which
    idle = f"{mostly}{layer}{where}: {time(idle_ns)} of idle time{context.per_gpu} {when}{rest}"
    if len(late) == 1:
        sentence = f"{context.phase(late[0].code)} is {bound}{idle}, {late[0].share}"
        phase = context.text("phase", late[0].code)
        evidence = context.with_view("launch", by, sort=sort, phase=phase)
    else:
        parts = (
            f"{context.phase(phase.code)} {time(context.per_iteration(phase.idle_ns))} "
            f"({phase.share})"
            for phase in late
        )
        bounds = context.share(idle_ns) >= BOUNDS.share
        step = f"the {context.whole} is {bound}" if bounds else otherwise
        sentence = f"{step}{idle}: {listed(parts)}"
        evidence = context.with_view("launch", by or "phase", sort=sort)
    cells = context.cells_of(phase=[phase.code for phase in late])
    if main is not None and main.what in NEEDLESS and inside is not None:
        # It is needless wherever in these iterations it is.
        cells = inside
    changes: tuple[str, ...] | None = () if queued else None
    cost_ns, copied = idle_ns, ""
    if of_main is not None:
        cells, part, cost_ns = of_main
        changes = (f"host x{1 - part:.4f}",)
    elif without:
        there, part = _cells_with(context, charges)
        cells = cells & there
        if main is not None and main.what in _APART:
            changes = (f"host x{1 - part:.4f}",)
    in_steps = inside is not None and main is not None and main.what in NEEDLESS
    if main is not None and (changes or in_steps) and _copies_too(context, main, cells, cost_ns):
        # Of what happens in some steps alone, the other steps are the peers.
        changes = (*changes, "copy x0") if changes else ("host as peers", "copy as peers")
        copied = "its copies are gone, too"
    if main is not None:
        named = _in_title(main)
        when = where.partition(", ")[0]
        places = dict.fromkeys((f"{layer}{where}", f"{layer}{when}", where, when, layer))
        texts = (*(f"{main.what}{named}{each}" for each in places), f"{main.what}{when}")
        short = (text for text in texts if len(text) <= MAX_TITLE - _ROOM)
        what = f"{next(short, main.what)} {main.leaves} {_idle_gpus(context)} {{taken}}"
        is_name = main.is_of_trace
    phase_of = f" in {context.phase(late[0].code)}" if len(late) == 1 else ""
    if main is not None and differs(own_ns, cost_ns):
        # The cost is that of all reasons, of which this is most.
        gpus_wait, hosts = (
            ("GPUs wait", "their hosts") if len(context.gpus) > 1 else ("the GPU waits", "its host")
        )
        what, in_call = f"{gpus_wait} {{taken}} for {hosts}", f", mostly {main.what}"
        own_ns = cost_ns
    also = _latency_of_same_cause(context) if state == HostState.LATE else None
    if also is not None and main is not None and main.what == also.what:
        own_ns, cost_ns, cells = own_ns + also.cost_ns, cost_ns + also.cost_ns, cells | also.cells
        total += also.cost_ns * context.spots
        changes = (*(changes or ("host x0",)), f"launch x{1 - also.part:.4f}")
        doing += f"; {time(also.cost_ns)} more after launch calls, since it leaves the queue empty"
    taken = f"{time(own_ns)}{context.a_step}"
    yield context.finding(
        (of_name if is_name else one_line)(what.format(taken=taken), in_call, phase_of),
        f"{sentence}{doing}",
        evidence,
        kind,
        cost_ns,
        total_ns=cost_ns * context.spots if of_main else total,
        cells=cells,
        changes=changes,
        group=Group.UNKNOWN if queued else None,
        why_more=copied,
        unreplayed=unreplayed,
    )


def _copies_too(context: FindingsContext, main: HostCause, cells: Mask, cost_ns: float) -> bool:
    """Whether GPUs copy for much of the time that a cause of late hosts costs, while these do the
    same: as while a checkpoint is saved."""
    charges = host_charges(context.run)
    owner = context.cells.numbers_of(charges.row)
    own = (charges.state == HostState.COPYING) & _are(charges, main.what)[charges.cause]
    own &= (owner >= 0) & cells[owner]
    return context.per_iteration(float(charges.ns[own].sum())) > _ALSO_COPIED * cost_ns


_MAY_WAIT_FOR: Final = (
    "an event of another stream, of the host or of another GPU, work from before the trace, or the "
    "dispatch of each kernel"
)


def _what_waits(context: FindingsContext, late: list[LatePhase]) -> str:
    """The operations whose launched work waits while the GPU is idle, as the end of a phrase."""
    nodes = context.split("phase", "operation")
    idle = context.figure("idle_queued_ns", nodes).known(missing=0.0)
    inside = np.isin(nodes.codes("phase"), [phase.code for phase in late])
    idle = np.where(inside, idle, 0.0)
    names = np.stack([nodes.codes("operation"), nodes.codes("phase")], axis=1).astype(np.int64)
    is_large = idle >= CAUSE.share * idle.sum()
    parts = largest_parts(context, "operation", names[is_large], idle[is_large])
    named = listed(parts, _MAX_CAUSES)
    return f"; the work that waits: {named}" if named else ""


def _apart_from_rest(
    context: FindingsContext, charges: HostCharges, own: HostCharges, main: HostCause
) -> tuple[Mask, float, float] | None:
    """The cells of the main cause, which part of their idle time it has, and its cost, where other
    causes have much of the rest, which are a straggler's; None where it has nearly all."""
    if main.what == UNSEEN:
        # Two things that no trace shows are one only where they are at one place.
        own = own.take(at_place_of_most(context.run, own))
    # What a wait's aftermath has of the same gaps goes with it.
    of_row = [sums_of(each.ns, each.row, len(context.table)) for each in (own, charges)]
    own = charges.take((2 * of_row[0] > of_row[1])[charges.row])
    if main.what not in _OF_ITS_OWN and own.ns.sum() >= _NEARLY_ALL * charges.ns.sum():
        return None
    cells, part = _cells_with(context, own)
    return (cells, part, context.per_iteration(float(own.ns.sum()))) if cells.any() else None


def _mostly_in(context: FindingsContext, charges: HostCharges) -> tuple[str, Mask | None, Mask]:
    """The one GPU of several that has most of it, and the steps, unless many do; these
    steps' cells there; and the charges there."""
    whose = np.searchsorted(context.gpus, context.table.gpu[charges.row])
    when = np.searchsorted(context.iterations, context.table.iteration[charges.row])
    by_gpu = sums_of(charges.ns, whose, len(context.gpus))
    by_step = sums_of(charges.ns, when, len(context.iterations))
    least, most = EXPLAINED.share * by_step.sum(), int(by_gpu.argmax())
    on_one = len(by_gpu) > 1 and by_gpu[most] >= least > 0
    on_gpu = f" on GPU {context.gpus[most]}" if on_one else ""
    large = np.flatnonzero(by_step > _SAME_SHARE * by_step.max())
    there = (whose == most) if on_one else np.ones(len(whose), np.bool_)
    if 2 * len(large) >= len(by_step) or by_step[large].sum() < least:
        return on_gpu, None, there
    there &= np.isin(when, large)
    cells = context.cells_of(iteration=[context.iterations[at] for at in large])
    if on_one:
        cells = cells & context.cells_of(gpu=context.gpus[most])
    return on_gpu + recurrence(large.tolist(), context.iterations), cells, there


def _drift_in_text(context: FindingsContext, own: HostCharges) -> str:
    """That some charges grow or fall steadily from step to step, as a part of a phrase."""
    at = first_equal(np.array(context.iterations), context.table.iteration[own.row])
    each = sums_of(own.ns, at, len(context.iterations)) / len(context.gpus)
    if (ends := drift_of(each, GROWS.share)) is None:
        return ""
    over = f"from {time(max(ends[0], 0.0))} to {time(max(ends[1], 0.0))} over the steps"
    return f", {'growing' if ends[1] > ends[0] else 'falling'} gradually {over}"


def _idle_gpus(context: FindingsContext) -> str:
    return "GPUs idle" if len(context.gpus) > 1 else "the GPU idle"


def _gpus_are(context: FindingsContext) -> str:
    return "GPUs are" if len(context.gpus) > 1 else "the GPU is"


def _hosts(context: FindingsContext, does: str = "is", do: str = "are") -> str:
    """The hosts as the subject of a sentence, with the verb of one and of several."""
    return f"the hosts {do}" if len(context.gpus) > 1 else f"the host {does}"


def _are(charges: HostCharges, *whats: str) -> Mask:
    """Which causes are one of some things."""
    return np.array([each.what in whats for each in charges.causes], np.bool_)


def _in_title(cause: HostCause) -> str:
    """The name of a cause in the trace, in brackets, where it is short enough for a title."""
    return f" ({cause.name})" if _CALL.fullmatch(cause.name) else ""


def _share(charges: HostCharges, cause: HostCause, there: Mask | None = None) -> str:
    return percent(_part(charges, cause, there))


def _part(charges: HostCharges, cause: HostCause, there: Mask | None = None) -> float:
    """The part of the time that a cause has, or has at some of the charges, 0 to 1."""
    own = charges if there is None else charges.take(there)
    return float(own.by_cause[charges.causes.index(cause)] / charges.ns.sum())


def _other_causes(context: FindingsContext, late: list[LatePhase], charges: HostCharges) -> str:
    """The large causes, as the end of a phrase; where nothing is, the host's own overhead."""
    ns, whole = charges.by_cause, charges.ns.sum()
    if not whole:
        return ""
    order = np.argsort(-ns, kind="stable")[:_MAX_CAUSES].tolist()
    large = [at for at in order if ns[at] >= CAUSE.share * whole]
    main = charges.main(ns)
    others = [at for at in large if main is None or charges.causes[at].what != main.what]
    causes = [charges.causes[at] for at in others]
    named = ", ".join(f"{each.text} {_share(charges, each)}" for each in causes)
    hosts = f"; during that time {_hosts(context)} in {named}" if named else ""
    if 2 * ns[large].sum() >= whole:
        return hosts
    by_place = sums_of(charges.ns, charges.place, len(HostPlace)) / whole
    calls, operators = by_place[[HostPlace.CALL, HostPlace.OPERATOR]]
    inside = np.isin(context.codes("phase"), [phase.code for phase in late])
    launches = context.per_iteration(int(context.cells.sizes()[inside].sum()))
    return (
        f"{hosts}; most of it is what {launches:,.0f} launches{context.per_gpu} take one by one: "
        f"{percent(operators)} in operators, {percent(calls)} in runtime calls, "
        f"{percent(1 - operators - calls)} outside, such as in Python"
    )


LATE_HOST: Final = threshold("""late host at one place | 0.2 | % of the step
    an allocator that returns memory and asks for it again takes about 2 ms""")
FAR_LATER: Final = threshold("""late host at one place, relative to other places | 3 | times
    a host that is always late is not late at one place""")
AT_END: Final = -2
"""The place of a phase: the end of a step, after all of its activities."""
_NEGLIGIBLE_NS: Final = 1_000
_MAX_LISTED: Final = 3
_MAX_LEFT_OUT: Final = 16
"""With more GPUs or steps, the median over all replaces that over the others."""


class LatePlace(Struct, frozen=True):
    """Neighbouring layers of a phase in which one host is late in one step."""

    gpu: int
    iteration: int
    phase: int
    layers: tuple[int, ...]
    idle_ns: float
    lost_ns: float
    """The part of it beyond the usual."""


@rule(
    "late-host",
    cost="idle time before launch calls there, minus the usual idle time at the same place on "
    "other GPUs and in other steps; the largest of the GPUs of each step",
    needs="launch records; several GPUs or steps",
    thresholds=(LATE_HOST, FAR_LATER),
)
def late_host(context: FindingsContext) -> Iterator[Finding]:
    """Places where one host is late once, but not on other GPUs or in other steps."""
    if not context.repeats:
        return
    idle, names = _idle_by_place(context)
    usual = np.maximum(_usual(idle, 1), _usual(idle, 2))
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
    of_phase: dict[int, list[LatePlace]] = {}
    for gpu, iteration in np.argwhere(is_late.any(axis=0)).tolist():
        late_at = np.flatnonzero(is_late[:, gpu, iteration])
        phases, layers = names[late_at].T
        # Neighbouring layers of a phase are one place.
        for at in np.split(late_at, run_starts(phases, layers - np.arange(len(late_at)))[1:]):
            lost = float(excess[at, gpu, iteration].sum())
            phase = int(names[at[0], 0])
            found = LatePlace(
                context.gpus[gpu],
                context.iterations[iteration],
                phase,
                tuple(layer for layer in names[at, 1].tolist() if layer != NO_LABEL),
                float(idle[at, gpu, iteration].sum()),
                lost,
            )
            if lost >= context.step_ns * LATE_HOST.share:
                of_phase.setdefault(phase, []).append(found)
    each = [sorted(own, key=lambda one: -one.lost_ns) for own in of_phase.values()]
    for places in sorted(each, key=lambda own: -own[0].lost_ns):
        yield _late_at(context, places)


def _idle_by_place(context: FindingsContext) -> tuple[Float64, Int64]:
    """Idle time before launch calls by (phase, layer), GPU and step; and the pairs.

    The last place is the end of a step, after its last activity.
    """
    names, owner = context.together("phase", "layer")
    shape = (len(names), len(context.gpus), len(context.iterations))
    place = (owner * shape[1] + context.place("gpu")) * shape[2] + context.place("iteration")
    after_ns = context.by_gpu_and_iteration(lambda nodes: nodes.sum("idle_after_ns"))
    own_ns = context.cells.sum("idle_host_ns") - context.cells.sum("idle_after_ns")
    own_ns = np.maximum(own_ns, 0).astype(np.float64)
    idle = sums_of(own_ns, place, int(np.prod(shape))).reshape(shape)
    return np.concatenate([idle, after_ns[None]]), np.append(names, [[AT_END, NO_LABEL]], axis=0)


def _usual(idle: Float64, axis: int) -> Float64:
    """The median idle time at each place of the other GPUs, or of the other steps."""
    count = idle.shape[axis]
    if count > _MAX_LEFT_OUT:
        return np.maximum(medians_along(idle, axis=axis, keepdims=True), 0.0)
    others = np.moveaxis(others_median(np.moveaxis(idle, axis, 0)), 0, axis)
    return np.maximum(np.nan_to_num(others), 0.0)


def _late_at(context: FindingsContext, late: list[LatePlace]) -> Finding:
    """A finding of the places of a phase; of GPUs late in one step, the latest counts."""
    place, is_one = late[0], len(late) == 1
    at_end = place.phase == AT_END
    labels = {} if at_end else {"phase": context.text("phase", place.phase)}
    where = "at the end" if at_end else f"in {context.phase(place.phase)}"
    doing, by = _doing(context, late), "host" if at_end else "gpu"
    cost_ns = _of_latest(context, late)
    gpus = {each.gpu for each in late}
    hosts = "the hosts do" if len(gpus) > 1 else "the host does"
    unseen = "" if doing else f"; nothing in the trace shows what {hosts} then"
    if is_one:
        when = f" of step {place.iteration}" if context.has_iterations else ""
        usual_ns = place.idle_ns - place.lost_ns
        usual = f"usually {time(usual_ns) if usual_ns >= _NEGLIGIBLE_NS else 'not at all'}"
        sentence = (
            f"GPU {place.gpu}'s host is late {where}{when}{_layers(context, place)}{doing}: the "
            f"GPU is idle for {time(place.idle_ns)} before launch calls there ({usual})"
            f"{unseen}"
        )
        title = one_line(
            f"GPU {place.gpu}'s host is {time(place.lost_ns)} late {where}",
            *((f" of step {place.iteration}",) if when else ()),
            doing.partition(" (")[0],
            _layers(context, place),
        )
        labels["gpu"] = str(place.gpu)
        if not at_end:
            labels["iteration"], by = context.text("iteration", place.iteration), "layer"
        if len(place.layers) == 1:
            labels["layer"], by = str(place.layers[0]), "operation"
    else:
        each = [
            f"{time(place.idle_ns)} on GPU {place.gpu}, step {place.iteration}"
            f"{_layers(context, place)}"
            for place in late
        ]
        more = f"; and {len(late) - _MAX_LISTED} more" if len(late) > _MAX_LISTED else ""
        who = f"GPU {place.gpu}'s host is" if len(gpus) == 1 else "hosts are"
        idle = "the GPU is" if len(gpus) == 1 else "GPUs are"
        sentence = (
            f"{who} late at {len(late)} places {where}{' of steps' * at_end}{doing}, but "
            f"not elsewhere: {idle} idle there before launch calls for "
            f"{'; '.join(each[:_MAX_LISTED])}{more}{unseen}"
        )
        if len(gpus) > 1:
            sentence += f"; of each step, the GPU that is latest counts: {time(cost_ns)}"
            sentence += context.each
        taken = f": {time(cost_ns)}{context.a_step}"
        short = doing.partition(" (")[0].removeprefix(",")
        texts = (f"{where},{short}" if short else where, short, where)
        titles = [f"{who} late at {len(late)} places {own.strip()}{taken}" for own in texts]
        title = one_line(next((each for each in titles if len(each) <= MAX_TITLE), titles[-1]))
    cells = np.logical_or.reduce([_cells_of(context, place) for place in late])
    changes: tuple[str, ...] | None = None
    is_known = any(map(doing.count, NEEDLESS))
    if len(gpus) > 1 and not at_end and not is_known:
        # Where one waits for another, that its own host is late as well doesn't show.
        cells, changes = context.cells_of(phase=place.phase), ("host as peers",)
    # No label names the time after a step's last activity.
    why = "its host is then like the others all through the step" if at_end else ""
    return context.finding(
        title,
        sentence,
        context.with_view("launch", by, sort="-idle_host_ns", **labels),
        Cost.HOST,
        cost_ns,
        is_repeated=not is_one,
        gpu=place.gpu if len(gpus) == 1 else None,
        cost_of="" if len(gpus) == 1 else WORST_GPU,
        total_ns=sum(each.idle_ns for each in late),
        cells=cells,
        changes=changes,
        why_more=why,
    )


def _of_latest(context: FindingsContext, late: list[LatePlace]) -> float:
    """What late places cost per step: of each step, those of the GPU that is latest."""
    lost: defaultdict[tuple[int, int], float] = defaultdict(float)
    for place in late:
        lost[place.iteration, place.gpu] += place.lost_ns
    latest = {when: max(ns for (at, _), ns in lost.items() if at == when) for when, _ in lost}
    return sum(latest.values()) / len(context.iterations)


def _cells_of(context: FindingsContext, place: LatePlace) -> Mask:
    inside = (
        {} if place.phase == AT_END else {"phase": place.phase, "layer": place.layers or NO_LABEL}
    )
    return context.cells_of(gpu=place.gpu, iteration=place.iteration, **inside)


def _layers(context: FindingsContext, place: LatePlace) -> str:
    if place.layers:
        return f", {by_number('layer', place.layers)}"
    has_layers = place.phase != AT_END and (context.codes("layer") != NO_LABEL).any()
    return ", outside layers" if has_layers else ""


def _doing(context: FindingsContext, places: list[LatePlace]) -> str:
    charges, table = host_charges(context.run), context.table
    inside = np.zeros(len(charges.row), np.bool_)
    begins = context.run.side(HostTime).start_ns[charges.piece]
    is_after = begins >= values_of(table, "end_ns", charges.row)
    for place in places:
        here = table.gpu[charges.row] == place.gpu
        here &= table.iteration[charges.row] == place.iteration
        if place.phase == AT_END:
            inside |= here & is_after
        else:
            here &= ~is_after & (table.phase[charges.row] == place.phase)
            inside |= here & np.isin(table.layer[charges.row], place.layers or (NO_LABEL,))
    charges = charges.take(inside & (charges.state == HostState.LATE))
    doing = charges.doing(charges.by_cause)
    return doing and f",{doing}"
