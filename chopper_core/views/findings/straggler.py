"""The GPUs that the others wait for, and whether clock, kernels, host or copies are the cause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from chopper_core.model.host_tables import HostState
from chopper_core.model.same_work import knows_sizes
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import medians_along
from chopper_core.views.findings.rule import (
    Cost,
    Finding,
    FindingsContext,
    Threshold,
    confidence,
    rule,
)
from chopper_core.views.findings.slow_link import slow_links
from chopper_core.views.shared.host_causes import host_charges
from chopper_core.views.shared.lateness import recurrence
from chopper_core.views.shared.leads import (
    LOW_CLOCK_RATIO,
    MIN_DELAY_SHARE,
    MIN_ONCE_SHARE,
    RankLeads,
    Straggler,
    more_of,
)
from chopper_core.views.shared.matched_kernels import sums_by
from chopper_core.views.shared.phrases import others, percent, time
from chopper_core.views.shared.places import places_of

STRAGGLER: Final = Threshold(
    "straggler",
    100 * MIN_DELAY_SHARE,
    "% of the iteration",
    "the view of ranks uses the same limit",
)
ONCE: Final = Threshold(
    "straggler of one iteration",
    100 * MIN_ONCE_SHARE,
    "% of that iteration",
    "in a steady run no GPU delays the others by as much, even once",
)
ONE_PLACE: Final = Threshold(
    "place of slower kernels",
    60.0,
    "% of the longer time",
    "a lower clock slows all operations; one that accounts for most of the loss is named",
)

_COSTS: Final = {
    "clock": Cost.COMPUTE,
    "kernels": Cost.COMPUTE,
    "work": Cost.COMPUTE,
    "host": Cost.HOST,
    "launch": Cost.LAUNCH,
    "copies": Cost.COPIES,
}
"""Cause → the kind of time that it costs."""
_SORTS: Final = {
    "clock": "-slower_pct",
    "kernels": "-slower_pct",
    "work": "-work_ns",
    "host": "-extra_host_ns",
    "launch": "-extra_launch_ns",
}
"""Cause → the order of the evidence where no collective shows a delay."""


@rule(
    "straggler",
    saving="by how much it delays the others, or its time beyond its peers' median if that is "
    "longer",
    needs="two GPUs or more",
    thresholds=(STRAGGLER, ONCE, ONE_PLACE),
    explains=("hot-gpu", "host-bound"),
)
def straggler(context: FindingsContext) -> Iterator[Finding]:
    """A GPU that the others wait for, and why it is late."""
    leads = context.leads
    if leads is None:
        return
    behind_links = {gpu for link in slow_links(context) for gpu in link.gpus}
    for late in leads.stragglers:
        # It comes last because its link is slow, which is a finding.
        if late.cause is None and leads.gpus[late.place] in behind_links:
            continue
        yield _finding(context, leads, late)


def _finding(context: FindingsContext, leads: RankLeads, late: Straggler) -> Finding:
    text, own = _why(context, leads, late)
    # A mean over some iterations counts for all of them.
    own *= len(late.when) / len(leads.iterations)
    saving = max(own, late.delay_ns) if leads.delays_ns is not None else own
    wait = ""
    if leads.delays_ns is not None:
        verb = "wait" if len(leads.gpus) > 2 else "waits"
        whom = others(len(leads.gpus) - 1) if len(leads.peers) == 1 else "its peers"
        each = _each(context, late, leads)
        wait = f"; {whom} {verb} {time(late.once_ns)}{each} for it in collectives, exposed"
    reason = text or "comes last, but nothing in its own work explains the lag"
    when = recurrence(late.when, leads.iterations)
    return Finding(
        sentence=f"{_named(context, leads.gpus[late.place])} {reason}{when}{wait}",
        evidence=_evidence(context, leads, late),
        confidence=confidence(measured=bool(text), repeated=len(late.when) > 1),
        saving_ns=saving,
        total_ns=saving * len(context.iterations),
        gpu=leads.gpus[late.place],
        cost=_COSTS.get(late.cause or "", Cost.UNKNOWN),
    )


def _evidence(context: FindingsContext, leads: RankLeads, late: Straggler) -> View:
    """The GPUs, the late one first, in the iteration that it is late in, if one."""
    by_cause = _SORTS.get(late.cause or "", "mean_lead_ns")
    sort = "-delay_ns" if leads.delays_ns is not None else by_cause
    once = len(late.when) == 1 < len(leads.iterations)
    labels = {"iteration": str(leads.iterations[late.when[0]])} if once else {}
    return context.with_view("ranks", sort=sort, **labels)


def _named(context: FindingsContext, gpu: int) -> str:
    """`GPU 13 (pp 1, dp 2, tp 1, node 1)`, as far as its place is known."""
    where = places_of(context.run, [gpu]).text(0) if context.table.coordinates else ""
    return f"GPU {gpu} ({where})" if where else f"GPU {gpu}"


def _each(context: FindingsContext, late: Straggler, leads: RankLeads) -> str:
    """The unit of a mean over the iterations that it delays."""
    return "" if len(late.when) == 1 < len(leads.iterations) else context.each


def _why(context: FindingsContext, leads: RankLeads, late: Straggler) -> tuple[str, float]:
    """Why a GPU lags, and its time beyond its peers' in each iteration with the cause."""
    at, place = list(late.when), late.place
    extra = {word: float(np.nan_to_num(v[place])) for word, v in leads.extra(at).items()}
    total = extra.pop("kernels") + sum(max(own, 0.0) for own in extra.values())
    each = _each(context, late, leads)
    more = f"{time(extra.get(late.cause or '', 0.0))} more than the others"

    def taken(values: Float64) -> str:
        return f"{time(float(values[place, at].mean()))}{each}"

    match late.cause:
        case "clock" | "kernels":
            text = f"{_slower(context, leads, late)}{_where_slower(leads, late)}"
        case "work":
            own = float(leads.beyond_peers(leads.each_other_ns[:, at].mean(axis=1))[place])
            what = more_of(leads, place, at)
            text = (
                f"has more work{what and f', {what}'}: its compute takes {time(own)}{each} longer"
            )
        case "host":
            text = (
                f"is held back by its host{_doing(leads, late, HostState.LATE)}: it is idle for "
                f"{taken(leads.each_host_ns)} before launch calls, {more}"
            )
        case "launch":
            text = (
                f"is late after its launch calls: it is idle for {taken(leads.each_launch_ns)} "
                f"there, {more}"
            )
        case "copies":
            doing = _doing(leads, late, HostState.LATE, HostState.COPYING)
            text = f"copies{doing} for {taken(leads.each_copy_ns)} with nothing else, {more}"
        case _:
            return "", 0.0
    return text, total


def _slower(context: FindingsContext, leads: RankLeads, late: Straggler) -> str:
    at, place = list(late.when), late.place
    work = leads.each_work_ns[:, at].mean(axis=1)
    longer = float(np.nan_to_num(leads.beyond_peers(work)[place]))
    share = longer / max(float(work[place]) - longer, 1.0)
    which = "the same kernels" if knows_sizes(leads.table) else "kernels of the same names"
    same = f"{which} take {percent(share)} longer, {time(longer)}"
    same += _each(context, late, leads)
    if late.cause == "clock":
        usual = float(leads.peers_median(leads.mhz)[place])
        lower = (usual - leads.mhz[place]) / usual
        beyond, where = leads.hotter(place)
        warmer = f" and is {beyond:.0f} °C hotter{where}" if beyond >= 1 else ""
        return (
            f"runs at a {percent(lower)} lower clock ({leads.mhz[place]:,.0f} vs {usual:,.0f} MHz)"
            f"{warmer}: {same}"
        )
    memory = leads.metric("mem_mhz")
    usual = float(leads.peers_median(memory)[place])
    if memory[place] < LOW_CLOCK_RATIO * usual:
        return (
            f"runs at a {percent(1 - float(memory[place]) / usual)} lower memory clock "
            f"({memory[place]:,.0f} vs {usual:,.0f} MHz): {same}"
        )
    clock = " at the same clock" if np.isfinite(leads.mhz[place]) else ""
    return f"has slower kernels{clock}: {same}"


def _where_slower(leads: RankLeads, late: Straggler) -> str:
    """The operation or phase that has most of the longer time, as the end of a phrase."""
    found = leads.peers[leads.set_of[late.place]]
    column = found.gpus.index(leads.gpus[late.place])
    table, first = leads.table, found.rows[:, 0]
    iterations = [leads.iterations[at] for at in late.when]
    chosen = found.take(np.isin(table.iteration[first], iterations) & found.is_same)
    first = chosen.rows[:, 0]
    phase = table.phase[first].astype(np.int64) + 1
    operations = len(table.operations) + 1
    for codes in (phase * operations + table.operation[first] + 1, phase * operations):
        sums = sums_by(codes, chosen.durations_ns(), int(codes.max(initial=0)) + 1)
        extra = sums[:, column] - medians_along(np.delete(sums, column, axis=1), axis=1)
        most, positive = int(extra.argmax()), np.maximum(extra, 0).sum()
        # It means nothing for what takes most of the time anyway.
        share, usual = extra[most] / max(positive, 1.0), sums[most].sum() / sums.sum()
        if share >= ONE_PLACE.share and share > 2 * usual:
            at_phase, operation = divmod(most, operations)
            where = table.text_of("phase", at_phase - 1)
            if operation:
                where = f"{table.text_of('operation', operation - 1)} in {where}"
            return f", {percent(float(share))} of that in {where}"
    return ""


def _doing(leads: RankLeads, late: Straggler, *states: HostState) -> str:
    """Where its host spends most of the time beyond its peers', as a part of a phrase."""
    charges = host_charges(leads.run)
    if not charges.causes:
        return ""
    table = leads.table
    peers = leads.peers[leads.set_of[late.place]].gpus
    gpu = table.gpu[charges.row]
    place = np.searchsorted(peers, gpu).astype(np.intp)
    inside = np.isin(gpu, peers) & np.isin(
        charges.iteration, [leads.iterations[at] for at in late.when]
    )
    sums = charges.sums(np.where(inside, place, -1), len(peers), states)
    column = peers.index(leads.gpus[late.place])
    cause = charges.main(sums[column] - medians_along(np.delete(sums, column, axis=0), axis=0))
    return "" if cause is None else f" in {cause.text}"
