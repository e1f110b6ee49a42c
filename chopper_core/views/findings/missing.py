"""Sources, ranks and labels that the run lacks, and what is unknown without them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from chopper_core.model.column_names import CYCLES
from chopper_core.model.groups import elapsed_of_rows
from chopper_core.model.table import (
    MODEL_PHASES,
    NO_LABEL,
    NO_LABEL_TEXT,
    KernelTable,
    Rule,
    Selection,
)
from chopper_core.model.view import View
from chopper_core.util.arrays import Int64
from chopper_core.views.findings.rule import Confidence, Finding, FindingsContext, rule, threshold
from chopper_core.views.shared.phrases import by_number, count, percent

COVERAGE: Final = threshold("""labelled time | 90 | % of the GPUs' time
    statements about phases and layers need labels for most of it""")
UNLINKED: Final = threshold("""activities without a launch record | 5 | %
    activities launched before the profiler started, and a few lost ones, never have a record""")

_HIDDEN: Final = {
    "iteration": "differences between iterations are hidden there",
    "phase": "forward and backward can't be told apart there",
    "layer": "differences between layers are hidden there",
}
"""Level → what is unknown without its labels."""

Gaps = Iterator[tuple[str, View]]
"""A sentence and its evidence for each thing that is missing."""


@rule("missing", saving="can't be estimated", thresholds=(COVERAGE, UNLINKED))
def missing_data(context: FindingsContext) -> Iterator[Finding]:
    """Sources, ranks and labels that the run lacks, and what is unknown without them."""
    for gaps in (_ranks, _sources, _counters, _labels, _launches):
        for sentence, evidence in gaps(context):
            yield Finding(sentence=sentence, evidence=evidence, confidence=Confidence.HIGH)


def _ranks(context: FindingsContext) -> Gaps:
    world = context.run.world
    missing = world - len({gpu.rank for gpu in context.run.gpus})
    if missing > 0:
        has_comm = context.split().sum("exposed_comm_ns").any()
        yield (
            f"{missing} of {world} ranks {'is' if missing == 1 else 'are'} not in the traces: "
            "who waits for whom in collectives is unknown",
            context.with_view("comms" if has_comm else "launch"),
        )


def _sources(context: FindingsContext) -> Gaps:
    lacks = []
    if CYCLES not in context.table.measured:
        lacks.append("hardware counters")
    if not context.run.has_telemetry:
        lacks.append("telemetry")
    if not lacks:
        return
    whole = context.split()
    unattributed = context.figure("unmodelled_ns", whole)
    unknown = "compute can't be split"
    if unattributed.present()[0]:
        share = float(unattributed.numbers[0]) / max(int(whole.elapsed_ns.sum()), 1)
        unknown = f"{percent(share)} of the time is unattributed compute"
    if "telemetry" in lacks:
        unknown += ", and clocks, power and temperatures are unknown"
    evidence = context.with_view("overheads", sort="-unmodelled_pct")
    yield f"without {' and '.join(lacks)}, {unknown}", evidence


def _counters(context: FindingsContext) -> Gaps:
    counted = {source.gpu for source in context.run.counters} & set(context.gpus)
    others = len(context.gpus) - len(counted)
    if counted and others:
        yield (
            f"only {by_number('GPU', sorted(counted))} {'has' if len(counted) == 1 else 'have'} "
            f"hardware counters: the compute of {count(others, 'other GPU')} can't be split",
            context.with_view("overheads", "gpu", sort="-unmodelled_pct"),
        )


def _labels(context: FindingsContext) -> Gaps:
    for level, hidden in _HIDDEN.items():
        nodes = context.split("phase", level) if level == "layer" else context.split(level)
        elapsed = nodes.elapsed_ns.astype(np.float64)
        within = np.ones(len(nodes), np.bool_)
        if level == "layer":
            within = np.isin(nodes.codes("phase"), MODEL_PHASES)
        whole = float(elapsed[within].sum())
        known = float(elapsed[within & (nodes.codes(level) != NO_LABEL)].sum())
        if level == "layer" and 0 < known < COVERAGE.share * whole:
            known += float(nodes.sum_of(_outside_layers)[within].sum())
        if whole and known < COVERAGE.share * whole:
            part = "the model's time" if level == "layer" else "the time"
            yield (
                f"the {level} is unknown for {percent(1 - known / whole)} of {part}: {hidden}",
                context.with_view("kernels", sort="-kernel_ns", **{level: NO_LABEL_TEXT}),
            )


def _outside_layers(table: KernelTable, rows: Selection) -> Int64:
    """The time of activities that are known to belong to no layer: embedding, head, loss."""
    outside = (table.layer[rows] == NO_LABEL) & (table.layer_rule[rows] != Rule.NONE)
    return np.where(outside, elapsed_of_rows(table, rows), 0)


def _launches(context: FindingsContext) -> Gaps:
    whole = context.split()
    unlinked, total = int(whole.sum("unlinked").sum()), int(whole.sizes().sum())
    if unlinked >= UNLINKED.share * total:
        yield (
            f"{unlinked:,} of {total:,} activities have no launch record: whether the host was "
            "late for them is unknown",
            context.with_view(
                "launch", sort="-idle_unknown_ns" if unlinked < total else "-idle_ns"
            ),
        )
