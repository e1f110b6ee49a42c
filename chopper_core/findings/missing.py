"""Sources, ranks and labels that a run lacks; findings of telemetry without a trace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.outliers import spread_of
from chopper_core.analyses.samples import LOW_CLOCK, THROTTLED, figure, gpus_of, low_clock_pct
from chopper_core.analyses.step_times import gap_of_programs
from chopper_core.findings.clocks import THROTTLED as THROTTLED_SHARE
from chopper_core.findings.clocks import range_of
from chopper_core.findings.rule import (
    ROBUST_Z,
    Confidence,
    Finding,
    FindingRule,
    FindingsContext,
    Group,
    Threshold,
    rule,
    threshold,
)
from chopper_core.findings.titles import MAX_TITLE, gpus_in_short, one_line, shortened
from chopper_core.model.column_names import AT_PEAK, CYCLES
from chopper_core.model.phrases import by_number, level_title, others, percent, time
from chopper_core.model.run import Run, SideSource
from chopper_core.model.table import (
    MODEL_PHASES,
    NO_LABEL,
    NO_LABEL_TEXT,
    KernelTable,
    Rule,
    Selection,
)
from chopper_core.model.view import View, with_view
from chopper_core.util.arrays import Index, Int64, Mask
from chopper_core.util.grouping import median_of
from chopper_core.util.patterns import late

COVERAGE: Final = threshold("""labelled time | 90 | % of the GPUs' time
    statements about phases and layers need labels for most of it""")
UNLINKED: Final = threshold("""activities without a launch record | 5 | %
    activities launched before the profiler started, and a few lost ones, never have a record""")

_HIDDEN: Final = {
    "iteration": "steps can't be compared",
    "phase": "forward and backward can't be told apart",
    "layer": "a slow layer can't be found",
}
"""Level → what is unknown without its labels."""
_WHICH: Final = {"iteration": "the step", "phase": "forward or backward", "layer": "the layer"}
_TITLES: Final = {
    "iteration": "no steps in this trace: they can't be compared",
    "phase": "no phases in this trace: forward and backward look alike",
    "layer": "no layer names in this trace: layers can't be compared",
}
_TOLD_BY: Final = {
    "two programs": "each program into files of its own",
    "layer": "modules (with_modules=True), or annotations around them",
    "forward": "annotations around forward, backward and optimizer",
    "steps": "the steps: profiler.step() in a torch trace",
    "counters": "counters: chopper record --counters, or rocprofv3 --pmc",
    "telemetry": "a log of amd-smi, rocm-smi or nvidia-smi next to the trace",
    "launch record": "launches: a torch trace with ProfilerActivity.CPU",
    "ranks are": "all ranks, into one folder",
    "rank is": "all ranks, into one folder",
}
"""A word of the title of what is missing → what to record, which tells it."""
_ALL: Final = 0.999
_OF_NO_LAYER: Final = late(r"embed|lm_?head|logits|loss|sampler", re.IGNORECASE)

Gaps = Iterator[tuple[str, str, View]]
"""A title, a sentence and its evidence for each thing that is missing."""


@rule("missing", group=Group.UNKNOWN, cost="can't be estimated", thresholds=(COVERAGE, UNLINKED))
def missing_data(context: FindingsContext) -> Iterator[Finding]:
    """Sources, ranks and labels that the run lacks, and what is unknown without them."""
    for gaps in (_programs, _recordings, _ranks, _sources, _counters, _labels, _launches):
        for title, sentence, evidence in gaps(context):
            how = [each for word, each in _TOLD_BY.items() if word in title]
            advice = (f"Record {'; '.join(how)}.",) if how else ()
            yield Finding(one_line(title), sentence, evidence, Confidence.HIGH, advice=advice)


def _programs(context: FindingsContext) -> Gaps:
    """Idle time between two programs, which is that of neither."""
    is_whole = context.iterations == (NO_LABEL,) and not context.view.path
    gap, is_cut = gap_of_programs(context.run) if is_whole else (0, False)
    if gap:
        whose = "it is charged to nothing" if is_cut else "that is idle time of neither"
        yield (
            f"{time(gap)} is one gap between activities: two programs?",
            f"{time(gap)} is one gap between activities: if two programs ran one after another, "
            f"{whose}",
            context.with_view("launch", sort="-idle_ns"),
        )


def _recordings(context: FindingsContext) -> Gaps:
    for recording in context.run.recordings:
        for problem in recording.problems:
            yield problem, problem, context.with_view("tree")


def _ranks(context: FindingsContext) -> Gaps:
    world = context.run.world
    missing = world - len(context.run.ranks)
    if missing > 0:
        has_comm = context.split().sum("exposed_comm_ns").any()
        yield (
            f"{missing} of {world} ranks {'is' if missing == 1 else 'are'} not in the traces",
            f"{missing} of {world} ranks {'is' if missing == 1 else 'are'} not in the traces: "
            "who waits for whom in collectives is unknown",
            context.with_view("comms" if has_comm else "launch"),
        )


def _sources(context: FindingsContext) -> Gaps:
    lacks = []
    awaited = context.run.awaited
    if CYCLES not in context.table.measured and SideSource.COUNTERS not in awaited:
        lacks.append("hardware counters")
    if not context.run.has_telemetry and SideSource.TELEMETRY not in awaited:
        lacks.append("telemetry")
    if not lacks:
        return
    whole = context.split()
    unattributed = context.figure("unmodelled_ns", whole)
    unknown, short = "clocks, power and temperatures are unknown", "clocks are unknown"
    if "hardware counters" in lacks:
        why = "nothing shows what limits compute"
        if unattributed.present()[0]:
            share = float(unattributed.numbers[0]) / max(int(whole.elapsed_ns.sum()), 1)
            why += f": compute takes {percent(share)} {context.of_step}"
            if AT_PEAK in context.table.measured and context.run.hardware is not None:
                why += " more than its FLOPs need at peak"
        unknown = f"{why}, and {unknown}" if "telemetry" in lacks else why
        short = "what limits compute is unknown"
    evidence = context.with_view("overheads", sort="-unmodelled_pct")
    title = f"no {' or '.join(lacks)}: {short}"
    yield title, f"without {' and '.join(lacks)}, {unknown}", evidence


def _counters(context: FindingsContext) -> Gaps:
    counted = {source.gpu for source in context.run.counters} & set(context.gpus)
    number = len(context.gpus) - len(counted)
    if counted and number:
        yield (
            f"only {gpus_in_short(context, sorted(counted))} "
            f"{'has' if len(counted) == 1 else 'have'} hardware counters",
            f"only {context.gpus_text(sorted(counted))} {'has' if len(counted) == 1 else 'have'} "
            f"hardware counters: what limits the compute of {others(number)} is unknown",
            context.with_view("overheads", "gpu", sort="-unmodelled_pct"),
        )


def _labels(context: FindingsContext) -> Gaps:
    for level, hidden in _HIDDEN.items():
        unknown, part = _unlabelled_layers(context), "the model's compute"
        if level != "layer":
            nodes = context.split(level)
            elapsed = nodes.elapsed_ns.astype(np.float64)
            whole, known = elapsed.sum(), elapsed[nodes.codes(level) != NO_LABEL].sum()
            unknown, part = 1 - known / whole if whole else 0.0, "the time"
        word = level_title(level)
        if unknown > 1 - COVERAGE.share:
            yield (
                _TITLES[level]
                if unknown > _ALL
                else f"{_WHICH[level]} is unknown for {percent(unknown)} of {part}",
                f"no activity has a {word}: {hidden}"
                if unknown > _ALL
                else f"{_WHICH[level]} is unknown for {percent(unknown)} of {part}: {hidden} there",
                context.with_view("kernels", sort="-kernel_ns", **{level: NO_LABEL_TEXT}),
            )


def _unlabelled_layers(context: FindingsContext) -> float:
    """The share of the compute in the model's phases whose layer is unknown, 0 to 1.

    Communication is no layer's. Where some work has a layer, neither is what is known to belong to
    none: embedding, head, loss.
    """
    nodes = context.split("phase", "layer")
    compute = nodes.sum("compute_ns") + nodes.sum("overlap_ns")
    within = np.isin(nodes.codes("phase"), MODEL_PHASES)
    whole = int(compute[within].sum())
    known = int(compute[within & (nodes.codes("layer") != NO_LABEL)].sum())
    if 0 < known < COVERAGE.share * whole:
        known += int(nodes.sum_of(_outside_layers)[within].sum())
    return 1 - known / whole if whole else 0.0


def _outside_layers(table: KernelTable, rows: Selection) -> Int64:
    """The compute of activities that are known to belong to no layer, or by their operation."""
    named = np.array(
        [bool(_OF_NO_LAYER.search(name)) for name in (*table.operations, "")], np.bool_
    )
    outside = (table.layer_rule[rows] != Rule.NONE) | named[table.operation[rows]]
    outside &= table.layer[rows] == NO_LABEL
    compute = table.compute_ns[rows].astype(np.int64) + table.overlap_ns[rows]
    return np.where(outside, compute, 0)


def _launches(context: FindingsContext) -> Gaps:
    whole = context.split()
    unlinked, total = int(whole.sum("unlinked").sum()), int(whole.sizes().sum())
    if unlinked >= UNLINKED.share * total:
        title = f"{percent(unlinked / total)} of activities have no launch record"
        if unlinked == total:
            title = "no launch records: nothing shows whether hosts are late"
        which = f"{unlinked:,} of {total:,} activities have no launch record"
        if unlinked == total:
            which = f"none of the {total:,} activities has a launch record"
        yield (
            title,
            f"{which}: whether the host was late for them is unknown",
            context.with_view(
                "launch", sort="-idle_unknown_ns" if unlinked < total else "-idle_ns"
            ),
        )


_UNKNOWN: Final = "unknown without a trace"
_BE: Final = ("is", "are")
UNUSED: Final = threshold("""utilization of an idle GPU | 1 | % on average, below that
    drivers and monitors use a GPU for moments""")
LOWER_CLOCK: Final = threshold("""clock below that of the other GPUs | 2 | %
    GPUs of one model vary by about a percent""")
HOTTER: Final = threshold("""temperature above that of the other GPUs | 5 | °C
    neighbouring slots of a node differ by a few degrees""")
MORE_POWER: Final = threshold("""power below that of the other GPUs | 10 | %
    capped, or with less to do""")


@rule("stopped", cost=_UNKNOWN, of_samples=True)
def stopped(context: FindingsContext) -> Iterator[Finding]:
    """A run without a trace whose samples end early: out of memory, or stopped."""
    if context.run.status:
        evidence = with_view(context.view, "overview")
        status = context.run.status
        yield Finding(shortened(status, MAX_TITLE), status, evidence, Confidence.HIGH)


@rule("sampled-throttling", cost=_UNKNOWN, thresholds=(THROTTLED_SHARE,), of_samples=True)
def sampled_throttling(context: FindingsContext) -> Iterator[Finding]:
    """GPUs that are throttled by their driver's word, else whose clock is low under load."""
    run = context.run
    if "throttle_pct" in run.sampled:
        share = figure(run, "mean_throttle_pct")
        how, column = "throttled", "-mean_throttle_pct"
    else:
        share, column = low_clock_pct(run), f"-{THROTTLED.name}"
        how = f"below {100 * LOW_CLOCK:.0f} % of {{}} highest clock under load for"
    slowed = np.flatnonzero(np.nan_to_num(share) >= THROTTLED_SHARE.value)
    if not len(slowed):
        return
    whose = "its" if len(slowed) == 1 else "their"
    text = f"{how.format(whose)} {range_of(share[slowed])} of the time"
    yield _finding(context, slowed, _BE, text, column)


@rule("sampled-idle", cost=_UNKNOWN, thresholds=(UNUSED,), of_samples=True)
def sampled_idle(context: FindingsContext) -> Iterator[Finding]:
    """GPUs that nothing uses."""
    unused = np.flatnonzero(_unused(context.run))
    if len(unused):
        text = f"idle: the mean utilization is below {percent(UNUSED.share)}"
        yield _finding(context, unused, _BE, text, "mean_gfx_util_pct")


def _unused(run: Run) -> Mask:
    used = figure(run, "mean_gfx_util_pct")
    return np.isfinite(used) & (used < UNUSED.value)


def _far(
    name: str, looks_for: str, sort: str, least: Threshold, verb: tuple[str, str], text: str
) -> FindingRule:
    """A rule: of those in use, GPUs far from the others in the figure of `sort`, on the side that
    it puts first.

    The farthest is at least `least` from the median, in its unit or in % of the median.
    """

    def find(context: FindingsContext) -> Iterator[Finding]:
        run, values = context.run, figure(context.run, sort.removeprefix("-"))
        known = np.flatnonzero(np.isfinite(values) & ~_unused(run))
        if len(known) < 3:
            return
        median = median_of(values[known])
        below = (-1.0 if sort.startswith("-") else 1.0) * (median - values[known])
        is_far = below > ROBUST_Z.value * spread_of(values[known])
        far = known[is_far]
        limit = least.share * median if least.unit == "%" else least.value
        if not len(far) or len(far) > len(known) // 2 or below.max() < limit:
            return
        most = float(values[known[below.argmax()]])
        figures = text.format(most=most, median=median, lower=percent(1 - most / median))
        yield _finding(context, far, verb, figures, sort)

    find.__doc__ = f"{looks_for} by far more than these differ."
    return rule(name, cost=_UNKNOWN, thresholds=(least,), of_samples=True)(find)


sampled_heat: Final = _far(
    "sampled-heat", "GPUs that are hotter than the others", "-mean_hot_c", HOTTER, _BE,
    "hotter than the others: up to {most:.1f} vs a median of {median:.1f} °C",
)  # fmt: skip
sampled_clock: Final = _far(
    "sampled-clock", "GPUs whose clocks are lower than those of the others", "mean_gfx_mhz",
    LOWER_CLOCK, ("runs", "run"),
    "at up to {lower} lower clocks than the median GPU ({most:,.0f} vs {median:,.0f} MHz)",
)  # fmt: skip
sampled_power: Final = _far(
    "sampled-power", "GPUs that draw less power than the others", "mean_power_w", MORE_POWER,
    ("draws", "draw"), "as little as {most:,.0f} W (median {median:,.0f} W)",
)  # fmt: skip


def _finding(
    context: FindingsContext, places: Index, verb: tuple[str, str], text: str, sort: str
) -> Finding:
    """About the GPUs at some places; the verb is that of one GPU and of several."""
    every = gpus_of(context.run)
    gpus = [every[place] for place in places.tolist()]
    named = "all GPUs" if len(gpus) == len(context.run.gpus) > 1 else by_number("GPU", gpus)
    evidence = replace(with_view(context.view, "overview"), sort=sort)
    does = verb[len(gpus) > 1]
    title = one_line(f"{shortened(named)} {does} {text}")
    return Finding(title, f"{named} {does} {text}", evidence, Confidence.MEDIUM)
