"""What isn't in the run, and what therefore can't be said."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.model.column_names import CYCLES
from chopper_core.model.table import NO_LABEL, Phase
from chopper_core.model.view import View
from chopper_core.views.findings.context import FindingsContext, elapsed_of
from chopper_core.views.findings.phrases import count, gpus_named, percent
from chopper_core.views.findings.rule import Confidence, Finding, Threshold, rule

COVERAGE: Final = Threshold(
    "labelled time",
    90.0,
    "% of the GPUs' time",
    "sentences about phases and layers need labels for most of it",
)
UNLINKED: Final = Threshold(
    "activities without a launch record",
    5.0,
    "%",
    "activities launched before the profiler started, and a few lost ones, never have a record",
)

_WORLD: Final = "world size"


@rule("missing", saving="unknown", thresholds=(COVERAGE, UNLINKED))
def missing_data(context: FindingsContext) -> list[Finding]:
    """Sources, ranks and labels that the run lacks, and what can't be told without them."""
    said: list[tuple[str, View]] = []
    for lacks in (_ranks, _sources, _counters, _labels, _launches):
        said += lacks(context)
    return [
        Finding(sentence=sentence, evidence=evidence, confidence=Confidence.HIGH)
        for sentence, evidence in said
    ]


def _ranks(context: FindingsContext) -> list[tuple[str, View]]:
    sizes = [source.facts.get(_WORLD, "") for source in context.run.sources]
    world = max((int(size) for size in sizes if size.isdecimal()), default=0)
    there = len({gpu.rank for gpu in context.run.gpus})
    if world <= there:
        return []
    return [
        (
            f"{count(world - there, 'rank')} of {world} {'is' if world - there == 1 else 'are'} "
            "not in the traces: who waits for whom in collectives isn't known",
            context.with_view(
                "comms" if context.split().sum("exposed_comm_ns").any() else "launch"
            ),
        )
    ]


def _sources(context: FindingsContext) -> list[tuple[str, View]]:
    lacks = []
    if CYCLES not in context.table.measured:
        lacks.append("hardware counters")
    if not context.run.measured:
        lacks.append("telemetry")
    if not lacks:
        return []
    unsplit = context.figure("unmodelled_ns", context.split())
    hidden = "compute can't be taken apart"
    if unsplit.present()[0]:
        share = float(unsplit.numbers[0]) / max(int(elapsed_of(context.split()).sum()), 1)
        hidden = f"{percent(share)} of the time is compute that can't be taken apart"
    if "telemetry" in lacks:
        hidden += ", and clocks, power and temperatures aren't known"
    return [(f"without {' and '.join(lacks)} {hidden}", context.with_view("overheads"))]


def _counters(context: FindingsContext) -> list[tuple[str, View]]:
    counted = {source.gpu for source in context.run.counters} & set(context.gpus)
    without = [gpu for gpu in context.gpus if gpu not in counted]
    if not counted or not without:
        return []
    return [
        (
            f"hardware counters are of {gpus_named(sorted(counted))} alone: the compute of "
            f"{count(len(without), 'other GPU')} can't be taken apart",
            context.with_view("overheads", "gpu"),
        )
    ]


def _labels(context: FindingsContext) -> list[tuple[str, View]]:
    said = []
    for level, hides in (
        ("iteration", "what differs between iterations"),
        ("phase", "what is of forward or backward"),
        ("layer", "which layers differ"),
    ):
        nodes = context.split("phase", level) if level == "layer" else context.split(level)
        elapsed = elapsed_of(nodes).astype(np.float64)
        within = np.ones(len(nodes), np.bool_)
        if level == "layer":
            within = np.isin(nodes.codes("phase"), (Phase.FORWARD, Phase.BACKWARD))
        whole = float(elapsed[within].sum())
        known = float(elapsed[within & (nodes.codes(level) != NO_LABEL)].sum())
        if whole and known < COVERAGE.share * whole:
            part = " of forward and backward" if level == "layer" else ""
            said.append(
                (
                    f"no {level} is known for {percent(1 - known / whole)} of the time{part}: "
                    f"{hides} isn't known there",
                    context.at(),
                )
            )
    return said


def _launches(context: FindingsContext) -> list[tuple[str, View]]:
    whole = context.split()
    unlinked, total = int(whole.sum("unlinked").sum()), int(whole.sizes().sum())
    if unlinked < UNLINKED.share * total:
        return []
    return [
        (
            f"{unlinked:,} of {total:,} activities have no launch record: whether the host was "
            "late for them isn't known",
            context.with_view("launch"),
        )
    ]
