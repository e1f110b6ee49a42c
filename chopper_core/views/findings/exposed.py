"""Communication that no compute hides, beyond what is waiting for later GPUs."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from chopper_core.model.table import NO_LABEL_TEXT
from chopper_core.util.arrays import Int64
from chopper_core.views.findings.context import Case, labelled, summed
from chopper_core.views.findings.finding import Finding, confidence
from chopper_core.views.findings.phrases import percent, time
from chopper_core.views.findings.thresholds import EXPOSED
from chopper_core.views.shared.collective_figures import chosen_in
from chopper_core.views.shared.collectives import collectives_of

_NAMED = 3


def exposed(case: Case) -> list[Finding]:
    """The collectives during which a GPU computes nothing."""
    per_cell = case.cells.sum("exposed_comm_ns")
    total = float(per_cell.sum())
    found = collectives_of(case.run)
    chosen = None if found is None else chosen_in(case.run, found, case.node)
    if chosen is None or not total:
        return []
    waiting = case.per_iteration(float(chosen.exposed_ns.sum()))
    each = case.per_iteration(total)
    stake = each - waiting
    if case.share(each) < EXPOSED.value / 100:
        return []
    known = bool(chosen.complete.all())
    told = f"; {time(waiting)} of it is waiting for GPUs that arrive later" if waiting else ""
    if not known:
        told += "; what of it is waiting isn't known for collectives of which ranks are missing"
    return [
        Finding(
            sentence=(
                f"communication without compute takes {time(each)}{case.each}{case.on_each} "
                f"({percent(case.share(each))}): {_where(case, per_cell)}{told}"
            ),
            evidence=replace(case.with_view("comms", "phase"), sort="-exposed_comm_ns"),
            confidence=confidence(read=known, repeated=case.repeats),
            stake_ns=stake,
            total_ns=total,
        )
    ]


def _where(case: Case, per_cell: Int64) -> str:
    """The collectives by phase that have most of it."""
    names, owner = case.together("operation", "phase")
    sums = summed(owner, per_cell)
    order = [place for place in np.argsort(-sums, kind="stable").tolist() if sums[place] > 0]
    return labelled(
        (
            f"{case.text('operation', names[place][0])} of {_phase(case, names[place][1])} "
            f"{time(case.per_iteration(sums[place]))}"
            for place in order[:_NAMED]
        ),
        _NAMED,
    )


def _phase(case: Case, code: int) -> str:
    text = case.text("phase", code)
    return "no known phase" if text == NO_LABEL_TEXT else text
