"""Exposed communication, beyond the part that is waiting for later GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

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
def exposed(context: FindingsContext) -> Iterator[Finding]:
    """Communication that no compute hides."""
    per_cell = context.cells.sum("exposed_comm_ns")
    total = float(per_cell.sum())
    collectives = collectives_of(context.run)
    chosen = None if collectives is None else chosen_in(context.run, collectives, context.node)
    if chosen is None or not total:
        return
    waiting = context.per_iteration(float(chosen.exposed_ns.sum()))
    each = context.per_iteration(total)
    if context.share(each) < EXPOSED.share:
        return
    is_complete = bool(chosen.complete.all())
    wait = f"; {time(waiting)} of it is waiting for later GPUs" if waiting else ""
    if not is_complete:
        wait += "; the waiting part is unknown for collectives with missing ranks"
    yield Finding(
        sentence=(
            f"exposed communication takes {time(each)}{context.per_gpu} "
            f"({percent(context.share(each))}): {_largest(context, per_cell)}{wait}"
        ),
        evidence=context.with_view("comms", "phase", sort="-exposed_comm_ns"),
        confidence=confidence(measured=is_complete, repeated=context.repeats),
        saving_ns=each - waiting,
        total_ns=total,
    )


def _largest(context: FindingsContext, per_cell: Int64) -> str:
    """The collectives by phase that have most of it."""
    names, owner = context.together("operation", "phase")
    sums = summed(owner, per_cell)
    order = [place for place in np.argsort(-sums, kind="stable").tolist() if sums[place] > 0]
    return listed(
        (
            f"{context.text('operation', names[place][0])} in {context.phase(names[place][1])} "
            f"{time(context.per_iteration(sums[place]))}"
            for place in order[:_MAX_LISTED]
        ),
        _MAX_LISTED,
    )
