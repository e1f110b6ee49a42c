"""Ranks: which GPU is the straggler, from which point in the step, and why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import NODE, Base, base_of
from chopper_core.analyses.collective_figures import ends_within
from chopper_core.analyses.leads import (
    MIN_CAUSE_SHARE,
    ONE_GPU,
    RankLeads,
    Straggler,
    all_gpus_note,
    leads,
    of_all_gpus,
)
from chopper_core.analyses.matched_kernels import sums_by
from chopper_core.analyses.power_samples import WINDOW_NS, columns_of_samples, samples_of
from chopper_core.analyses.rank_figures import rank_scope, rank_waits
from chopper_core.analyses.rows import ALL_GPUS, LabelledRows, Own, Partition
from chopper_core.analyses.step_times import step_times
from chopper_core.analyses.step_traffic import COLUMNS as TRAFFIC_COLUMNS
from chopper_core.analyses.step_traffic import totals_of_traffic, traffic_columns
from chopper_core.analyses.why_late import UNKNOWN_IDLE, idle_kind, why_late
from chopper_core.columns import METRICS, heat_of, is_measured, numbered
from chopper_core.model.charts import LineChart
from chopper_core.model.column_names import HEAT
from chopper_core.model.phrases import by_number, facts, listed, recurrence
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, NO_LABEL_TEXT
from chopper_core.model.units import time_text
from chopper_core.model.view import View, child_of
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import counts_of, ratios
from chopper_core.views.ranks.rank_columns import by_part, waits_map
from chopper_core.views.shared.kept_answers import kept_answer
from chopper_core.views.shared.table_view import known_columns, table_view
from chopper_core.views.spec import ViewResult, ViewSpec, any_level

SPEC: Final = ViewSpec(
    name="ranks",
    title="GPUs · ranks",
    question="Which GPU is the straggler, from which point in the step, and why?",
    by=any_level("gpu", "node"),
    needs_starts=True,
    no_statistic="compares GPUs kernel by kernel: its lag is a mean over all of them",
    any_split=True,
)

_SIGNALS: Final = ("gfx_mhz", *HEAT, "power_w")
_OF_SAMPLES: Final = ("mean_power_w", "peak_power_w", "mean_gfx_mhz", "mean_hot_c", "hottest_c")
_ALWAYS: Final = ("idle_host_ns", "exposed_comm_ns")
"""Metrics of the scope shown next to the lags."""
_LEADS: Final = ("mean_lead_ns", "lead_ns", "starts_last_pct")
_CAUSES: Final = (
    *("delay_ns", "apart_by", "slower_pct", "extra_work_ns", "extra_host_ns", "extra_launch_ns"),
    *("span_ns", "work_ns", "throughput_x"),
)
_OF_LABELS: Final = (
    *("ahead_ns", "behind", "lead_change_ns", "slower_pct", "occurrences", "wait_ns"),
    "straggler_wait_ns",
)
_OF_STEPS: Final = ("span_ns", "work_ns", "throughput_x")
_KINDS: Final = {
    "clock": "hardware-bound",
    "kernels": "kernel-bound",
    "work": "more work",
    "host": "host-bound",
    "copies": "copy-bound",
}
"""Cause of the lag → what the GPU is; of the launch, by `idle_kind`."""
_OFTEN_LAST: Final = 50.0
"""In %: a GPU that starts fewer kernels last delays the others elsewhere."""
_BINS: Final = 60
_LINES: Final = 12
_MOST_NAMED: Final = 16
"""Peers, and sets of them, in a note."""


def missing_from(run: Run) -> str:
    """Why no scope of a run has an answer; empty: one may."""
    return "" if len(run.gpus) > 1 else ONE_GPU


def answer(run: Run, view: View) -> ViewResult:
    whole, by = of_all_gpus(view), view.by or "gpu"
    if by != "gpu" and by != NODE and by not in run.table.coordinates:
        stand, _ = leads(run, view)
        found = run.memo(("ranks", whole), lambda: _by_label(stand, whole, by))
    elif view == (plain := replace(whole, by="")):
        return _compared(run, view)
    else:
        # The GPUs side by side are what other splits and a single GPU's scope are made of.
        found = kept_answer(run, plain, partial(answer, run))
        if not any(metric.name == "mean_lead_ns" for metric, _ in found.columns):
            if by == "gpu":
                return _uncompared(run, whole, *found.headline)
            raise NothingToShow(*found.headline)
        if by != "gpu":
            found = by_part(run, whole, by, found)
    return replace(found, notes=(*all_gpus_note(view), *found.notes))


def _compared(run: Run, view: View) -> ViewResult:
    """The GPUs of a scope that is on all of them."""
    try:
        stand, _ = leads(run, view)
    except NothingToShow as error:
        if len(step_times(run, view).gpus) > 1:
            return _uncompared(run, view, str(error))
        raise
    return _by_gpu(stand, view)


def _by_gpu(stand: RankLeads, view: View) -> ViewResult:
    run, base = stand.run, base_of(stand.run, view).of_iterations(stand.iterations)
    scope = rank_scope(stand, "gpu")

    def figures(names: Sequence[str]) -> Own:
        return [(METRICS[name], METRICS[name].compute(scope)) for name in names]

    own = [*figures(_LEADS), *rank_waits(stand), *figures(_CAUSES)]
    # The temperature of the edge stands in where that of the hotspot is unknown.
    heats = set(HEAT) - {heat_of(run.table)}
    signals = [n for n in _SIGNALS if is_measured(n, run.table) and n not in heats]
    registered = [METRICS[name] for name in (*signals, *_ALWAYS)]
    own += [(metric, metric.compute(scope)) for metric in registered]
    traffic = traffic_columns(run, view, stand.gpus)
    own += traffic
    shown = (
        *("mean_lead_ns", "delay_ns", "caused_ns", "wait_ns", "apart_by", "slower_pct", *signals),
        *("extra_host_ns", "starts_last_pct", "span_ns", "throughput_x", "lead_ns"),
        *("extra_work_ns", "extra_launch_ns", *_ALWAYS),
        *known_columns(traffic),
    )
    whole = [(metric, metric.compute(replace(scope, nodes=stand.node))) for metric in registered]
    return table_view(
        view,
        LabelledRows("gpu", [str(gpu) for gpu in stand.gpus]),
        own,
        [*whole, *totals_of_traffic(run, stand.gpus, traffic)],
        # Who holds the others back comes first.
        sort="-delay_ns",
        shown=shown,
        headline=headline(stand, base),
        notes=notes(stand),
        charts=(_leads_chart(stand), *waits_map(stand, base)),
        base=base,
    )


def _uncompared(run: Run, view: View, why: str) -> ViewResult:
    """GPUs without a kernel in common, such as one of each pipeline stage: their own figures."""
    times, found = step_times(run, view), samples_of(run, view, WINDOW_NS)
    traced = times.gpus.tolist()
    gpus = sorted({*traced, *(each.gpu for each in found)})
    each_ns = dict(zip(traced, times.by_gpu_ns.tolist(), strict=True))
    traffic = traffic_columns(run, view, gpus)
    own = [
        (METRICS["iteration_ns"], numbered([each_ns.get(gpu) for gpu in gpus])),
        *(columns_of_samples(run, found) if len(found) == len(gpus) else ()),
        *traffic,
    ]
    alone = len(gpus) - len(traced)
    return table_view(
        view,
        LabelledRows("gpu", [str(gpu) for gpu in gpus]),
        own,
        totals_of_traffic(run, gpus, traffic),
        total_title=ALL_GPUS,
        opens=lambda row: child_of(view, "gpu", str(gpus[row])) if gpus[row] in traced else view,
        shown=known_columns(own, ("iteration_ns", *_OF_SAMPLES, *TRAFFIC_COLUMNS)),
        headline=(why,),
        notes=(f"{alone} of {len(gpus)} GPUs have telemetry alone",) if alone else (),
        base=base_of(run, view).applied,
    )


def _by_label(stand: RankLeads, view: View, by: str) -> ViewResult:
    base = base_of(stand.run, view).of_iterations(stand.iterations)
    scope = rank_scope(stand, by)
    rows = Partition(by, scope.nodes.labels(by), scope.nodes, scope.parent)
    names = (*_OF_LABELS, *(_OF_STEPS if by == "iteration" else ()))
    own: Own = [(METRICS[name], METRICS[name].compute(scope)) for name in names]
    there = METRICS["ahead_ns"].compute(scope).present()
    labels = rows.labels
    shown = ["ahead_ns", "behind", "lead_change_ns", "slower_pct", "wait_ns", "straggler_wait_ns"]
    if by == "iteration":
        shown[2:2] = ["span_ns", "throughput_x"]
    shown += ["occurrences", "elapsed_ns", "exposed_comm_ns", "idle_host_ns"]
    return table_view(
        view,
        rows,
        own,
        opens=lambda row: replace(
            child_of(view, by, labels[row]),
            # Without matched kernels the GPUs can't be compared.
            name=view.name if there[row] else "",
            by="gpu" if there[row] else "",
        ),
        sort="-lead_change_ns" if by == "operation" else "",
        shown=shown,
        headline=headline(stand, base),
        notes=notes(stand),
        charts=(_leads_chart(stand),),
        base=base,
    )


def _leads_chart(stand: RankLeads) -> LineChart:
    found = stand.found
    bins = np.minimum((stand.places() * _BINS).astype(np.intp), _BINS - 1)
    sums, count = sums_by(bins, found.lead_ns.T, _BINS), counts_of(bins, _BINS)
    means = ratios(sums, count[:, None]) / 1e6
    order = np.argsort(found.lead_ns.sum(axis=0), kind="stable")
    if len(order) > _LINES:
        order = np.concatenate([order[: _LINES // 2], order[-_LINES // 2 :]])
    chart = LineChart.over(
        "ahead of the last GPU, over the step",
        "ms",
        "position in the step",
        "%",
        (np.arange(_BINS) + 0.5) * 100 / _BINS,
        {f"GPU {found.gpus[place]}": means[:, place] for place in sorted(order.tolist())},
    )
    return replace(
        chart, marked=tuple(f"GPU {stand.gpus[each.place]}" for each in stand.stragglers)
    )


def headline(stand: RankLeads, base: Base) -> tuple[str, ...]:
    """The straggler's lag and what it costs, then its cause."""
    found, behind = stand.found, stand.behind
    gpu = f"GPU {stand.gpus[behind]}"
    lag_ns = float(np.nan_to_num(stand.lag_ns)[behind])
    if not stand.stragglers:
        alone = stand.uncompared
        none = f"no straggler{' among the GPUs that are compared' if alone else ''}"
        if lag_ns <= 0:
            return (f"{none}: no GPU starts its kernels after the others on average",)
        return (f"{none}: {gpu} lags most, {time_text(lag_ns)} per kernel on average",)
    late, *more = stand.stragglers
    share = 100.0 * (found.lead_ns[:, stand.late_column] == 0).mean()
    when, last = recurrence(late.when, stand.iterations), ""
    lag = f"delays others by {time_text(late.delay_ns)} per step"
    if lag_ns > 0 and (stand.delays_ns is None or share >= _OFTEN_LAST):
        # The lag is a mean of all steps, also where only some are late.
        lag = f"lags {time_text(lag_ns)}{' on average' if when else ''}"
        last = f"last in {share:.0f} % of kernels"
        if onset := stand.onset():
            phase, layer = onset
            last += f" since {phase}{'' if layer == NO_LABEL_TEXT else f' layer {layer}'}"
    figures = {metric.name: values.at(behind) for metric, values in rank_waits(stand)}
    caused, exposed = figures["caused_ns"], figures["caused_exposed_ns"]
    cost = ""
    if caused and caused > 0 and exposed is not None:
        cost = (
            f"the others wait {time_text(base.each(caused))}{base.words}, "
            f"{time_text(base.each(exposed))} exposed"
        )
    also = (
        f"GPU {stand.gpus[other.place]}{recurrence(other.when, stand.iterations)} "
        f"{time_text(other.delay_ns)} ({other.cause})"
        for other in more
    )
    return (
        facts(f"straggler {gpu}{when}", lag, last)
        if when
        else facts(f"straggler {gpu} {lag}", last),
        facts(cost, _cause_sentence(stand, late), f"late too: {listed(also)}" if more else ""),
    )


def _cause_sentence(stand: RankLeads, late: Straggler) -> str:
    if late.cause is None:
        return f"no cause exceeds {100 * MIN_CAUSE_SHARE:g} % of the step"
    kind = idle_kind(stand, stand.behind) if late.cause == "launch" else _KINDS[late.cause]
    each = "" if stand.iterations == (NO_LABEL,) else " per step"
    if 0 < len(late.when) < len(stand.iterations):
        each = " per such step" if len(late.when) > 1 else " there"
    # Of what it does and how much longer it takes, the first with a figure.
    text = why_late(stand, late, each, with_base=False)
    if kind == UNKNOWN_IDLE:
        return text.removeprefix("is ")
    return f"{kind}: {next((part for part in text.split(': ') if re.search('[0-9]', part)), text)}"


def notes(stand: RankLeads) -> tuple[str, ...]:
    sentences = []
    if stand.compared is not None and stand.compared[0] < stand.compared[1]:
        few, all_of_them = stand.compared
        sentences.append(
            f"{few} of {all_of_them} steps are compared, evenly chosen; enter a step "
            "for its own figures"
        )
    matched = sum(own.rows.size for own in stand.peers)
    unmatched = int(stand.node.computing()[0]) - matched
    if len(stand.peers) > 1:
        named = stand.peers[:_MOST_NAMED]
        sets = "; ".join(listed(map(str, own.gpus), _MOST_NAMED) for own in named)
        more = (
            f"; and {len(stand.peers) - len(named)} more sets"
            if len(named) < len(stand.peers)
            else ""
        )
        sentences.append(f"GPUs are compared with peers that run the same operations: {sets}{more}")
    if alone := stand.uncompared:
        sentences.append(
            f"no lag is known of {by_number('GPU', alone)}: no other GPU runs the same kernels"
        )
    if more := stand.unexplained():
        sentences.append(more)
    if unmatched:
        sentences.append(
            f"{unmatched:,} of {unmatched + matched:,} compute activities have no match "
            "on all GPUs at the same point of the step and are left out"
        )
    if stand.stragglers:
        sentences.append(
            "what a straggler costs the step is what its finding saves: lag and delay say how late "
            "it is, waits are time of the other GPUs"
        )
    chosen = stand.collectives
    if chosen is not None and chosen.spread_ns is not None:
        sentences.append(f"{ends_within(chosen.spread_ns)}: lags are known no better")
    elif chosen is None:
        sentences.append("the scope has no collectives to tell how well the GPUs' clocks agree")
    return tuple(sentences)
