"""The GPUs that the others wait for, and whether clock, kernels or host is the cause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from chopper_core.metrics import is_measured
from chopper_core.views.findings.context import FindingsContext
from chopper_core.views.findings.phrases import others, percent, time
from chopper_core.views.findings.rule import Finding, Threshold, confidence, rule
from chopper_core.views.shared.lateness import recurrence
from chopper_core.views.shared.leads import (
    MIN_DELAY_SHARE,
    MIN_ONCE_SHARE,
    RankLeads,
    Straggler,
)
from chopper_core.views.shared.table_view import by_level

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
    "in a steady run no GPU holds the others up for as much, even once",
)


@rule(
    "straggler",
    saving="by how much it delays the others, or its time beyond its peers' median if that is "
    "longer",
    needs="two GPUs or more",
    thresholds=(STRAGGLER, ONCE),
)
def straggler(context: FindingsContext) -> Iterator[Finding]:
    """A GPU that the others wait for, and why it is late."""
    leads = context.leads
    if leads is None:
        return
    for late in leads.stragglers:
        yield _finding(context, leads, late)


def _finding(context: FindingsContext, leads: RankLeads, late: Straggler) -> Finding:
    when = recurrence(late.when, leads.iterations)
    text, own = _why(context, leads, late)
    # A mean over the iterations that it delays counts for all of them.
    own *= len(late.when) / len(leads.iterations)
    saving = max(own, late.delay_ns) if leads.delays_ns is not None else own
    wait = ""
    if leads.delays_ns is not None:
        delay = float(leads.delays_ns[late.place, list(late.when)].mean())
        verb = "wait" if len(leads.gpus) > 2 else "waits"
        whom = others(len(leads.gpus) - 1) if len(leads.peers) == 1 else "its peers"
        each = _each(context, late, leads)
        wait = f"; {whom} {verb} {time(delay)}{each} for it in collectives, exposed"
    reason = text or "comes last, but nothing in its own work explains the lag"
    return Finding(
        sentence=f"GPU {leads.gpus[late.place]} {reason}{when}{wait}",
        evidence=context.with_view("ranks"),
        confidence=confidence(measured=bool(text), repeated=len(late.when) > 1),
        saving_ns=saving,
        total_ns=saving * len(context.iterations),
        gpu=leads.gpus[late.place],
    )


def _each(context: FindingsContext, late: Straggler, leads: RankLeads) -> str:
    """The unit of a mean over the iterations that it delays."""
    if len(late.when) == 1 < len(leads.iterations):
        return ""
    return context.each


def _why(context: FindingsContext, leads: RankLeads, late: Straggler) -> tuple[str, float]:
    """Why a GPU lags, and its time beyond its peers' in each iteration that it delays."""
    at, place = list(late.when), late.place
    extra = {word: float(np.nan_to_num(v[place])) for word, v in leads.extra(at).items()}
    total = extra["work"] + sum(max(extra[word], 0.0) for word in ("host", "launch"))
    work = leads.each_work_ns[:, at].mean(axis=1)
    longer = float(np.nan_to_num(leads.beyond_peers(work)[place]))
    share = longer / max(float(work[place]) - longer, 1.0)
    each = _each(context, late, leads)
    same = f"the same kernels take {percent(share)} longer, {time(longer)}{each}"

    def idle(values: np.ndarray) -> str:
        return time(float(values[place, at].mean()))

    match late.cause:
        case "clock":
            usual = float(leads.peers_median(leads.mhz)[place])
            lower = (usual - leads.mhz[place]) / usual
            text = (
                f"runs at a {percent(lower)} lower clock ({leads.mhz[place]:,.0f} vs "
                f"{usual:,.0f} MHz){_hotter(context, leads, place)}: {same}"
            )
        case "kernels":
            clock = " at the same clock" if np.isfinite(leads.mhz[place]) else ""
            text = f"has slower kernels{clock}: {same}"
        case "host":
            text = (
                f"is held back by its host: it is idle for {idle(leads.each_host_ns)}{each} "
                f"before launch calls, {time(extra['host'])} more than the others"
            )
        case "launch":
            text = (
                f"is late after its launch calls: it is idle for {idle(leads.each_launch_ns)}"
                f"{each} there, {time(extra['launch'])} more than the others"
            )
        case _:
            return "", 0.0
    return text, total


def _hotter(context: FindingsContext, leads: RankLeads, place: int) -> str:
    if not is_measured("hotspot_c", leads.table):
        return ""
    labels, nodes = by_level(leads.node, "gpu")
    heat = context.figure("hotspot_c", nodes)
    if labels != [str(gpu) for gpu in leads.gpus] or not heat.present().all():
        return ""
    beyond = float(leads.beyond_peers(heat.numbers)[place])
    return f" and is {beyond:.0f} °C hotter" if beyond >= 1 else ""
