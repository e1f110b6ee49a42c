"""The GPU that the others wait for, and whether its clock, its kernels or its host is why."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.metrics import is_measured
from chopper_core.views.findings.context import FindingsContext
from chopper_core.views.findings.phrases import others, percent, time
from chopper_core.views.findings.rule import Finding, Threshold, confidence, rule
from chopper_core.views.ranks.waits import waits
from chopper_core.views.shared.groups import by_level
from chopper_core.views.shared.leads import RankLeads, beyond_others, others_median

STRAGGLER: Final = Threshold(
    "straggler",
    1.0,
    "% of the iteration",
    "the share from which the view of ranks calls a difference between GPUs a cause, too",
)


@rule(
    "straggler",
    saving="its time beyond the others' median, or their exposed wait for it if that is longer",
    needs="two GPUs or more",
    thresholds=(STRAGGLER,),
)
def straggler(context: FindingsContext) -> list[Finding]:
    """A GPU that the others wait for, and why it is late."""
    stand = context.leads
    if stand is None or not stand.is_straggler:
        return []
    behind, count = stand.behind, len(stand.iterations)
    figures = {metric.name: values.at(behind) for metric, values in waits(stand)}
    each = (len(stand.gpus) - 1) * count
    waited, exposed = ((figures[name] or 0) / each for name in ("caused_ns", "caused_exposed_ns"))
    why, saving = _why(context, stand)
    saving = max(saving, exposed)
    if context.share(saving) < STRAGGLER.share:
        return []
    wait = ""
    if waited:
        verb = "wait" if each > count else "waits"
        wait = (
            f"; {others(len(stand.gpus) - 1)} {verb} {time(waited)}{context.each} for it in "
            f"collectives, {time(exposed)} of that without compute"
        )
    gpu = f"GPU {stand.gpus[behind]}"
    said = f"{gpu} {why}" if why else f"{gpu} comes last, and nothing of its own work says why"
    return [
        Finding(
            sentence=f"{said}{wait}",
            evidence=context.with_view("ranks"),
            confidence=confidence(read=bool(why), repeated=count > 1),
            saving_ns=saving,
            total_ns=saving * len(context.iterations),
        )
    ]


def _why(context: FindingsContext, stand: RankLeads) -> tuple[str, float]:
    """What sets the GPU behind apart, and its time beyond the others' median per iteration."""
    behind = stand.behind
    work, host, launch = (
        float(beyond_others(values)[behind])
        for values in (stand.work_ns, stand.host_ns, stand.launch_ns)
    )
    longer = work / max(float(others_median(stand.work_ns)[behind]), 1.0)
    same = f"the same kernels take {percent(longer)} longer, {time(work)}{context.each}"
    match stand.causes()[behind]:
        case "clock":
            usual = float(others_median(stand.mhz)[behind])
            slower = (usual - stand.mhz[behind]) / usual
            clocks = f"{stand.mhz[behind]:,.0f} against {usual:,.0f} MHz"
            return (
                f"is {percent(slower)} slower clocked ({clocks}){_hotter(context, stand)}: {same}",
                work + max(host, 0.0) + max(launch, 0.0),
            )
        case "kernels":
            known = " at the others' clock" if np.isfinite(stand.mhz[behind]) else ""
            return f"has slower kernels{known}: {same}", work + max(host, 0.0) + max(launch, 0.0)
        case "host":
            return (
                f"is held up by its host: it stands idle {time(stand.host_ns[behind])}"
                f"{context.each} before launch calls, {time(host)} more than the others",
                host + max(launch, 0.0) + work,
            )
        case "launch":
            return (
                f"is late after its launch calls: it stands idle {time(stand.launch_ns[behind])}"
                f"{context.each} there, {time(launch)} more than the others",
                launch + max(host, 0.0) + work,
            )
        case _:
            return "", 0.0


def _hotter(context: FindingsContext, stand: RankLeads) -> str:
    if not is_measured("hotspot_c", stand.table):
        return ""
    labels, nodes = by_level(stand.node, "gpu")
    heat = context.figure("hotspot_c", nodes)
    gpu = str(stand.gpus[stand.behind])
    if gpu not in labels or not heat.present().all():
        return ""
    beyond = float(beyond_others(heat.numbers)[labels.index(gpu)])
    return f" and {beyond:.0f} °C hotter" if beyond >= 1 else ""
