"""The GPU that the others wait for, and whether its clock, its kernels or its host is the cause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from chopper_core.metrics import is_measured
from chopper_core.views.findings.context import FindingsContext
from chopper_core.views.findings.phrases import others, percent, time
from chopper_core.views.findings.rule import Finding, Threshold, confidence, rule
from chopper_core.views.ranks.columns import waits
from chopper_core.views.shared.leads import RankLeads, beyond_others, others_median
from chopper_core.views.shared.table_view import by_level

STRAGGLER: Final = Threshold(
    "straggler",
    1.0,
    "% of the iteration",
    "the view of ranks uses the same limit for the cause of a lag",
)


@rule(
    "straggler",
    saving="its time beyond the others' median, or their exposed wait for it if that is longer",
    needs="two GPUs or more",
    thresholds=(STRAGGLER,),
)
def straggler(context: FindingsContext) -> Iterator[Finding]:
    """A GPU that the others wait for, and why it is late."""
    leads = context.leads
    if leads is None or not leads.is_straggler:
        return
    behind, count = leads.behind, len(leads.iterations)
    figures = {metric.name: values.at(behind) for metric, values in waits(leads)}
    each = (len(leads.gpus) - 1) * count
    waited, exposed = ((figures[name] or 0) / each for name in ("caused_ns", "caused_exposed_ns"))
    cause, saving = _cause(context, leads)
    saving = max(saving, exposed)
    if context.share(saving) < STRAGGLER.share:
        return
    wait = ""
    if waited:
        verb = "wait" if each > count else "waits"
        wait = (
            f"; {others(len(leads.gpus) - 1)} {verb} {time(waited)}{context.each} for it in "
            f"collectives, {time(exposed)} of that exposed"
        )
    reason = cause or "comes last, but nothing in its own work explains the lag"
    yield Finding(
        sentence=f"GPU {leads.gpus[behind]} {reason}{wait}",
        evidence=context.with_view("ranks"),
        confidence=confidence(measured=bool(cause), repeated=count > 1),
        saving_ns=saving,
        total_ns=saving * len(context.iterations),
    )


def _cause(context: FindingsContext, leads: RankLeads) -> tuple[str, float]:
    """Why the last GPU lags, and its time per iteration beyond the others' median."""
    behind = leads.behind
    work, host, launch = (
        float(beyond_others(values)[behind])
        for values in (leads.work_ns, leads.host_ns, leads.launch_ns)
    )
    longer = work / max(float(others_median(leads.work_ns)[behind]), 1.0)
    same = f"the same kernels take {percent(longer)} longer, {time(work)}{context.each}"
    match leads.causes()[behind]:
        case "clock":
            usual = float(others_median(leads.mhz)[behind])
            lower = (usual - leads.mhz[behind]) / usual
            text = (
                f"runs at a {percent(lower)} lower clock ({leads.mhz[behind]:,.0f} vs "
                f"{usual:,.0f} MHz){_hotter(context, leads)}: {same}"
            )
            return text, work + max(host, 0.0) + max(launch, 0.0)
        case "kernels":
            clock = " at the same clock" if np.isfinite(leads.mhz[behind]) else ""
            return f"has slower kernels{clock}: {same}", work + max(host, 0.0) + max(launch, 0.0)
        case "host":
            text = (
                f"is held back by its host: it is idle for {time(leads.host_ns[behind])}"
                f"{context.each} before launch calls, {time(host)} more than the others"
            )
            return text, host + max(launch, 0.0) + work
        case "launch":
            text = (
                f"is late after its launch calls: it is idle for {time(leads.launch_ns[behind])}"
                f"{context.each} there, {time(launch)} more than the others"
            )
            return text, launch + max(host, 0.0) + work
        case _:
            return "", 0.0


def _hotter(context: FindingsContext, leads: RankLeads) -> str:
    if not is_measured("hotspot_c", leads.table):
        return ""
    labels, nodes = by_level(leads.node, "gpu")
    heat = context.figure("hotspot_c", nodes)
    gpu = str(leads.gpus[leads.behind])
    if gpu not in labels or not heat.present().all():
        return ""
    beyond = float(beyond_others(heat.numbers)[labels.index(gpu)])
    return f" and is {beyond:.0f} °C hotter" if beyond >= 1 else ""
