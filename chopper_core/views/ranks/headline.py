"""What the view of ranks comes to in sentences, and what limits it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chopper_core.metrics import METRICS, Metric, Scope, Values, is_measured
from chopper_core.model.table import NO_LABEL_TEXT
from chopper_core.views.shared.leads import (
    RankLeads,
    beyond_others,
    others_median,
    unmatched_compute,
)


def headline(stand: RankLeads, waited: Sequence[tuple[Metric, Values]]) -> tuple[str, ...]:
    """Who is behind, since where in the step, who waits for it and why it is late."""
    found, behind = stand.found, stand.behind
    gpu = f"GPU {stand.gpus[behind]}"
    if not stand.is_straggler:
        return (
            f"no GPU holds the others back: on average they start the same kernel at most "
            f"{stand.ahead_ns / 1e3:.1f} µs before {gpu}",
        )
    share = 100.0 * (found.lead_ns[:, behind] == 0).mean()
    lines = [
        f"{gpu} is behind: it starts {share:.0f} % of {len(found)} kernels last; the others "
        f"start theirs {stand.ahead_ns / 1e6:.3f} ms earlier on average{_since(stand)}"
    ]
    figures = {metric.name: values.at(behind) for metric, values in waited}
    caused, exposed = figures["caused_ns"], figures["caused_exposed_ns"]
    if caused and exposed is not None:
        each = (len(stand.gpus) - 1) * len(stand.iterations) * 1e6
        lines.append(
            f"each of the others waits for it in collectives for {caused / each:.3f} ms per "
            f"iteration, {exposed / each:.3f} ms of that without compute"
        )
    lines.append(_cause_sentence(stand))
    return tuple(lines)


def _since(stand: RankLeads) -> str:
    onset = stand.onset()
    if onset is None:
        return ""
    phase, layer = onset
    where = phase if layer == NO_LABEL_TEXT else f"layer {layer} of {phase}"
    return f", from {where} on"


def _cause_sentence(stand: RankLeads) -> str:
    behind = stand.behind
    work, host = beyond_others(stand.work_ns)[behind], beyond_others(stand.host_ns)[behind]
    launch = beyond_others(stand.launch_ns)[behind]
    percent = 100.0 * work / max(others_median(stand.work_ns)[behind], 1)
    kernels = (
        f"the same kernels take {abs(percent):.1f} % {'longer' if percent >= 0 else 'less'} "
        f"({work / 1e6:+.3f} ms per iteration)"
    )
    late = f"idle before launch calls is {host / 1e6:+.3f} ms per iteration"
    match stand.causes()[behind]:
        case "clock":
            usual = others_median(stand.mhz)[behind]
            clock = f"at {stand.mhz[behind]:.0f} against {usual:.0f} MHz"
            return f"hardware-bound: {kernels} {clock}{_hotter(stand)}; {late}"
        case "kernels":
            known = " at the others' clock" if np.isfinite(stand.mhz[behind]) else ""
            return f"kernel-bound: {kernels}{known}; {late}"
        case "host":
            return f"host-bound: {late} beyond the others' median; {kernels}"
        case "launch":
            return (
                f"launch-bound: idle after launch calls is {launch / 1e6:+.3f} ms per iteration "
                f"beyond the others' median; {kernels}"
            )
        case _:
            return f"nothing sets it apart by 1 % of the iteration: {kernels}; {late}"


def _hotter(stand: RankLeads) -> str:
    if not is_measured("hotspot_c", stand.table):
        return ""
    scope = Scope(stand.split("gpu"), stand.node, stand.run.origin_ns, stand.run.hardware)
    heat = METRICS["hotspot_c"].compute(scope)
    if len(heat) != len(stand.gpus) or not heat.present().all():
        return ""
    return f", {beyond_others(heat.numbers)[stand.behind]:+.1f} °C"


def notes(stand: RankLeads) -> tuple[str, ...]:
    """What is left out, and how far the GPUs' clocks can be trusted."""
    said = []
    if stand.left_out:
        cut = ", ".join(map(str, stand.left_out))
        said.append(f"iteration {cut} is left out: the profiler's start or end cuts it")
    if stand.compared is not None and stand.compared[0] < stand.compared[1]:
        few, all_of_them = stand.compared
        said.append(
            f"{few} of {all_of_them} iterations are compared, evenly chosen: go to an iteration "
            "for its own figures"
        )
    unmatched = unmatched_compute(stand)
    if unmatched:
        said.append(
            f"{unmatched} of {unmatched + stand.found.rows.size} compute activities are not on all "
            "GPUs at the same place of the step: they take no part"
        )
    chosen = stand.collectives
    if chosen is not None and chosen.all.spread_ns is not None:
        said.append(
            f"the ends of a synchronous collective lie {chosen.all.spread_ns / 1e3:.1f} µs apart "
            "by the traces' clocks (median): leads are known no better"
        )
    elif chosen is None:
        said.append("no collectives here that would say how well the GPUs' clocks agree")
    return tuple(said)
