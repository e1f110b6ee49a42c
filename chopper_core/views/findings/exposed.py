"""Communication that no compute hides, beyond what is waiting for later GPUs."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.table import NO_LABEL_TEXT
from chopper_core.util.arrays import Int64
from chopper_core.views.findings.context import FindingsContext, summed
from chopper_core.views.findings.phrases import listed, percent, time
from chopper_core.views.findings.rule import Finding, Threshold, confidence, rule
from chopper_core.views.shared.collective_figures import chosen_in
from chopper_core.views.shared.collectives import collectives_of

EXPOSED: Final = Threshold(
    "exposed communication",
    5.0,
    "% of the iteration",
    "the first gather and the last reduction of a sharded step can't be hidden; they alone stay "
    "below this",
)

_MAX_LISTED: Final = 3


@rule(
    "exposed",
    saving="exposed communication less the part that is waiting for later GPUs, mean over GPUs",
    needs="collectives",
    thresholds=(EXPOSED,),
)
def exposed(context: FindingsContext) -> list[Finding]:
    """Communication that no compute hides."""
    per_cell = context.cells.sum("exposed_comm_ns")
    total = float(per_cell.sum())
    found = collectives_of(context.run)
    chosen = None if found is None else chosen_in(context.run, found, context.node)
    if chosen is None or not total:
        return []
    waiting = context.per_iteration(float(chosen.exposed_ns.sum()))
    each = context.per_iteration(total)
    saving = each - waiting
    if context.share(each) < EXPOSED.share:
        return []
    known = bool(chosen.complete.all())
    told = f"; {time(waiting)} of it is waiting for GPUs that arrive later" if waiting else ""
    if not known:
        told += "; what of it is waiting isn't known for collectives of which ranks are missing"
    return [
        Finding(
            sentence=(
                f"communication without compute takes {time(each)}{context.each}{context.on_each} "
                f"({percent(context.share(each))}): {_where(context, per_cell)}{told}"
            ),
            evidence=replace(context.with_view("comms", "phase"), sort="-exposed_comm_ns"),
            confidence=confidence(read=known, repeated=context.repeats),
            saving_ns=saving,
            total_ns=total,
        )
    ]


def _where(context: FindingsContext, per_cell: Int64) -> str:
    """The collectives by phase that have most of it."""
    names, owner = context.together("operation", "phase")
    sums = summed(owner, per_cell)
    order = [place for place in np.argsort(-sums, kind="stable").tolist() if sums[place] > 0]
    return listed(
        (
            f"{context.text('operation', names[place][0])} of {_phase(context, names[place][1])} "
            f"{time(context.per_iteration(sums[place]))}"
            for place in order[:_MAX_LISTED]
        ),
        _MAX_LISTED,
    )


def _phase(context: FindingsContext, code: int) -> str:
    text = context.text("phase", code)
    return "no known phase" if text == NO_LABEL_TEXT else text
