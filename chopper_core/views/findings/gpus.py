"""The GPUs that the others wait for, and why; and those that have more to compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.host_tables import HostState
from chopper_core.model.peers import knows_sizes
from chopper_core.model.view import pivot
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import medians_along
from chopper_core.views.findings.communication import slow_links
from chopper_core.views.findings.rule import (
    Cost,
    Finding,
    FindingsContext,
    rule,
    threshold,
)
from chopper_core.views.shared.leads import (
    CAUSES,
    LOW_CLOCK_RATIO,
    MIN_DELAY_SHARE,
    MIN_ONCE_SHARE,
    RankLeads,
    Straggler,
)
from chopper_core.views.shared.matched_kernels import (
    beyond_peers,
    compared_iterations,
    occurrences_of,
    sums_by,
)
from chopper_core.views.shared.phrases import others, percent, recurrence, time
from chopper_core.views.shared.process_groups import places_of
from chopper_core.views.shared.step_times import more_work

STRAGGLER: Final = threshold(f"""straggler | {100 * MIN_DELAY_SHARE} | % of the iteration
    the view of ranks uses the same limit""")
ONCE: Final = threshold(
    f"""straggler of one iteration | {100 * MIN_ONCE_SHARE} | % of that iteration
    in a steady run no GPU delays the others by as much, even once"""
)
ONE_PLACE: Final = threshold("""place of slower kernels | 60 | % of the longer time
    a lower clock slows all operations; one that accounts for most of the loss is named""")

_COSTS: Final = {
    "clock": (Cost.COMPUTE, "-slower_pct"),
    "kernels": (Cost.COMPUTE, "-slower_pct"),
    "work": (Cost.COMPUTE, "-work_ns"),
    "host": (Cost.HOST, "-extra_host_ns"),
    "launch": (Cost.LAUNCH, "-extra_launch_ns"),
    "copies": (Cost.COPIES, "mean_lead_ns"),
}
"""Cause → the kind of time that it costs, and the order of the evidence without collectives."""


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
        if late.cause is not None or leads.gpus[late.place] not in behind_links:
            yield _straggler(context, leads, late)


def _straggler(context: FindingsContext, leads: RankLeads, late: Straggler) -> Finding:
    gpu, is_once = leads.gpus[late.place], len(late.when) == 1 < len(leads.iterations)
    each = "" if is_once else context.each
    text, own = _why(context, leads, late, each)
    # A mean over some iterations counts for all of them.
    own *= len(late.when) / len(leads.iterations)
    wait, saving = "", own
    cost, sort = _COSTS.get(late.cause or "", (Cost.UNKNOWN, "mean_lead_ns"))
    if leads.delays_ns is not None:
        saving, sort = max(own, late.delay_ns), "-delay_ns"
        whom = others(len(leads.gpus) - 1) if len(leads.peers) == 1 else "its peers"
        wait = f"; it delays {whom} by {time(late.once_ns)}{each}"
    where = places_of(context.run, [gpu]).text(0) if context.table.coordinates else ""
    labels = {"iteration": str(leads.iterations[late.when[0]])} if is_once else {}
    return context.finding(
        f"GPU {gpu}{f' ({where})' if where else ''} "
        f"{text or 'comes last, but nothing in its own work explains the lag'}"
        f"{recurrence(late.when, leads.iterations)}{wait}",
        context.with_view("ranks", sort=sort, **labels),
        cost,
        saving,
        is_measured=bool(text),
        is_repeated=len(late.when) > 1,
        gpu=gpu,
    )


def _why(
    context: FindingsContext, leads: RankLeads, late: Straggler, each: str
) -> tuple[str, float]:
    at, place = list(late.when), late.place
    extra = {word: float(np.nan_to_num(leads.extra(word, at)[place])) for word in CAUSES}
    total = extra.pop("kernels") + sum(max(own, 0.0) for own in extra.values())
    more = f"{time(extra.get(late.cause or '', 0.0))} more than the others"

    def taken(word: str) -> str:
        return f"{time(float(leads.mean(word, at)[place]))}{each}"

    def doing(*states: HostState) -> str:
        peers = leads.peers_of(place).gpus
        when = [leads.iterations[step] for step in at]
        return context.host_cause(leads.gpus[place], peers, when, states)

    match late.cause:
        case "clock" | "kernels":
            text = f"{_slower(leads, late, each)}{_where_slower(leads, late)}"
        case "work":
            own = float(leads.extra("work", at)[place])
            what = leads.more_of(place, at)
            text = (
                f"has more work{what and f', {what}'}: its compute takes {time(own)}{each} longer"
            )
        case "host":
            text = (
                f"is held back by its host{doing(HostState.LATE)}: it is idle for "
                f"{taken('host')} before launch calls, {more}"
            )
        case "launch":
            text = f"is late after its launch calls: it is idle for {taken('launch')} there, {more}"
        case "copies":
            where = doing(HostState.LATE, HostState.COPYING)
            text = f"copies{where} for {taken('copies')} with nothing else, {more}"
        case _:
            return "", 0.0
    return text, total


def _slower(leads: RankLeads, late: Straggler, each: str) -> str:
    at, place = list(late.when), late.place
    longer = float(np.nan_to_num(leads.extra("same", at)[place]))
    share = longer / max(float(leads.mean("same", at)[place]) - longer, 1.0)
    which = "the same kernels" if knows_sizes(leads.table) else "kernels of the same names"
    same = f"{which} take {percent(share)} longer, {time(longer)}{each}"

    def lower(mhz: Float64, what: str) -> str:
        usual = float(leads.peers_median(mhz)[place])
        return (
            f"runs at a {percent(1 - float(mhz[place]) / usual)} lower {what} "
            f"({mhz[place]:,.0f} vs {usual:,.0f} MHz)"
        )

    if late.cause == "clock":
        beyond, where = leads.hotter(place)
        warmer = f" and is {beyond:.0f} °C hotter{where}" if beyond >= 1 else ""
        return f"{lower(leads.mhz, 'clock')}{warmer}: {same}"
    memory = leads.metric("mem_mhz")
    if memory[place] < LOW_CLOCK_RATIO * leads.peers_median(memory)[place]:
        return f"{lower(memory, 'memory clock')}: {same}"
    clock = " at the same clock" if np.isfinite(leads.mhz[place]) else ""
    return f"has slower kernels{clock}: {same}"


def _where_slower(leads: RankLeads, late: Straggler) -> str:
    """The operation or phase that has most of the longer time, as the end of a phrase."""
    found = leads.peers_of(late.place)
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


IMBALANCE: Final = threshold("""compute beyond that of the others | 1 | % of it
    only where there is as much more work: GPUs of one product differ by a few percent in their
    clocks alone""")
IMBALANCE_COST: Final = threshold("""cost of imbalance | 1 | % of the iteration
    the same as for a straggler""")
_MIN_MORE_WORK: Final = 0.01
_SAME_SHARE: Final = 0.4
"""Of the longest compute beyond the peers'; iterations with as much are named."""
_COMPARED: Final = ("compute_busy_ns", "kernels", "model_flops")
_MIN_EXPLAINED: Final = 0.5
"""The part of the longer compute that more work has to explain."""


@rule(
    "imbalance",
    saving="its compute beyond the median of its peers, those that run the same operations of the "
    "same layers",
    holds=(0.7, 1.25),
    needs="two GPUs or more",
    thresholds=(IMBALANCE, IMBALANCE_COST),
    explains=("gpu-operation", "straggler"),
)
def imbalance(context: FindingsContext) -> Iterator[Finding]:
    """A GPU that has more to compute than the others: more kernels or more FLOPs."""
    if len(context.gpus) < 2:
        return
    flops = context.by_gpu_and_iteration(lambda nodes: nodes.known("model_flops")[0])
    took = context.busy_ns.mean(axis=1)
    extra = np.nan_to_num(_beyond_peers(context, took))
    most = int(extra.argmax())
    saving = float(extra[most])
    longer = saving / max(took[most] - saving, 1.0)
    if longer < IMBALANCE.share or context.share(saving) < IMBALANCE_COST.share:
        return
    more_there = 0.0
    for means in (context.kernels().mean(axis=1), flops.mean(axis=1)):
        own = float(np.nan_to_num(_beyond_peers(context, means)[most]))
        more_there = max(more_there, own / max(float(means[most]) - own, 1.0))
    if more_there < max(_MIN_MORE_WORK, _MIN_EXPLAINED * longer):
        return
    each = np.nan_to_num(_beyond_peers(context, context.busy_ns)[most])
    when = np.flatnonzero(each > _SAME_SHARE * each.max())

    def ratio(values: Float64) -> float:
        means = values[:, when].mean(axis=1)
        usual = float(means[most]) - float(_beyond_peers(context, means)[most])
        return float(means[most]) / usual if usual > 0 else np.nan

    what = more_work(context.run, context.gpus, context.iterations, ratio)
    yield context.finding(
        f"GPU {context.gpus[most]} has more work{what and f', {what}'}"
        f"{recurrence(when.tolist(), context.iterations)}: it computes for "
        f"{time(took[most])}{context.each}, {percent(longer)} more than the other GPUs",
        replace(pivot(context.at(), "gpu"), columns=_COMPARED, sort=f"-{_COMPARED[0]}"),
        Cost.COMPUTE,
        saving,
        is_repeated=len(context.iterations) > 1,
        gpu=context.gpus[most],
    )


def _beyond_peers(context: FindingsContext, values: Float64) -> Float64:
    peers = occurrences_of(context.run, compared_iterations(context.run, context.view))
    return beyond_peers(peers, context.gpus, values)
