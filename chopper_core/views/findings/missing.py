"""What isn't in the run, and what therefore can't be said."""

from __future__ import annotations

import numpy as np

from chopper_core.model.column_names import CYCLES
from chopper_core.model.table import NO_LABEL, Phase
from chopper_core.model.view import View
from chopper_core.views.findings.context import Case, elapsed_of
from chopper_core.views.findings.finding import Confidence, Finding
from chopper_core.views.findings.phrases import count, percent, places
from chopper_core.views.findings.thresholds import COVERAGE, UNLINKED

_WORLD = "world size"


def missing_data(case: Case) -> list[Finding]:
    """Sources, ranks and labels that are missing, each with what it hides."""
    said: list[tuple[str, View]] = []
    for rule in (_ranks, _sources, _counters, _labels, _launches):
        said += rule(case)
    return [
        Finding(sentence=sentence, evidence=evidence, confidence=Confidence.HIGH)
        for sentence, evidence in said
    ]


def _ranks(case: Case) -> list[tuple[str, View]]:
    sizes = [source.facts.get(_WORLD, "") for source in case.run.sources]
    world = max((int(size) for size in sizes if size.isdecimal()), default=0)
    there = len({gpu.rank for gpu in case.run.gpus})
    if world <= there:
        return []
    return [
        (
            f"{count(world - there, 'rank')} of {world} {'is' if world - there == 1 else 'are'} "
            "not in the traces: who waits for whom in collectives isn't known",
            case.with_view("comms" if case.split().sum("exposed_comm_ns").any() else "launch"),
        )
    ]


def _sources(case: Case) -> list[tuple[str, View]]:
    lacks = []
    if CYCLES not in case.table.measured:
        lacks.append("hardware counters")
    if not case.run.measured:
        lacks.append("telemetry")
    if not lacks:
        return []
    unsplit = case.figure("unmodelled_ns", case.split())
    hidden = "compute can't be taken apart"
    if unsplit.present()[0]:
        share = float(unsplit.numbers[0]) / max(int(elapsed_of(case.split()).sum()), 1)
        hidden = f"{percent(share)} of the time is compute that can't be taken apart"
    if "telemetry" in lacks:
        hidden += ", and clocks, power and temperatures aren't known"
    return [(f"without {' and '.join(lacks)} {hidden}", case.with_view("overheads"))]


def _counters(case: Case) -> list[tuple[str, View]]:
    counted = {source.gpu for source in case.run.counters} & set(case.gpus)
    without = [gpu for gpu in case.gpus if gpu not in counted]
    if not counted or not without:
        return []
    return [
        (
            f"hardware counters are of GPU{'s' if len(counted) > 1 else ''} "
            f"{places(sorted(counted))} alone: the compute of {count(len(without), 'other GPU')} "
            "can't be taken apart",
            case.with_view("overheads", "gpu"),
        )
    ]


def _labels(case: Case) -> list[tuple[str, View]]:
    said = []
    for level, hides in (
        ("iteration", "what differs between iterations"),
        ("phase", "what is of forward or backward"),
        ("layer", "which layers differ"),
    ):
        nodes = case.split("phase", level) if level == "layer" else case.split(level)
        elapsed = elapsed_of(nodes).astype(np.float64)
        within = np.ones(len(nodes), np.bool_)
        if level == "layer":
            within = np.isin(nodes.codes("phase"), (Phase.FORWARD, Phase.BACKWARD))
        whole = float(elapsed[within].sum())
        known = float(elapsed[within & (nodes.codes(level) != NO_LABEL)].sum())
        if whole and known < COVERAGE.value / 100 * whole:
            part = " of forward and backward" if level == "layer" else ""
            said.append(
                (
                    f"no {level} is known for {percent(1 - known / whole)} of the time{part}: "
                    f"{hides} isn't known there",
                    case.at(),
                )
            )
    return said


def _launches(case: Case) -> list[tuple[str, View]]:
    whole = case.split()
    unlinked, total = int(whole.sum("unlinked").sum()), int(whole.sizes().sum())
    if unlinked < UNLINKED.value / 100 * total:
        return []
    return [
        (
            f"{unlinked:,} of {total:,} activities have no launch record: whether the host was "
            "late for them isn't known",
            case.with_view("launch"),
        )
    ]
