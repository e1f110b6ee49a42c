"""Exposed communication, beyond the part that is waiting for later GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from chopper_core.model.table import Kind, Phase
from chopper_core.util.arrays import Int64
from chopper_core.util.grouping import distinct, first_equal, run_starts
from chopper_core.views.findings.rule import (
    Cost,
    Finding,
    FindingsContext,
    Threshold,
    confidence,
    rule,
    summed,
)
from chopper_core.views.findings.slow_link import slow_links
from chopper_core.views.shared.collective_figures import Chosen, chosen_in
from chopper_core.views.shared.collectives import collectives_of
from chopper_core.views.shared.phrases import listed, percent, time

EXPOSED: Final = Threshold(
    "exposed communication",
    2.0,
    "% of the iteration",
    "without waiting for later GPUs, and without its ends: the same as for other causes",
)
ENDS: Final = Threshold(
    "ends of the step",
    5.0,
    "% of the iteration, at most",
    "nothing can hide the first two gathers of a sharded step and the last two reductions; larger "
    "ones can be split",
)

_MAX_LISTED: Final = 3


@rule(
    "exposed",
    saving="exposed communication minus the part that is waiting for later GPUs or due to a "
    "slow link, and minus its first and last collectives, mean over GPUs",
    holds=(0.3, 1.5),
    needs="collectives",
    thresholds=(EXPOSED, ENDS),
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
    ends = min(_ends_ns(context, chosen), ENDS.share * context.step_ns)
    links = sum(link.exposed_ns * len(link.gpus) for link in slow_links(context))
    saving = each - waiting - ends - links / len(context.gpus)
    if context.share(saving) < EXPOSED.share:
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
        saving_ns=saving,
        high_ns=each - waiting,
        total_ns=total,
        cost=Cost.COMMUNICATION,
    )


def _ends_ns(context: FindingsContext, chosen: Chosen) -> float:
    """Exposed time of the first two and last two collectives of forward and backward, but waiting.

    Per GPU and iteration.
    """
    table, rows = context.table, context.node.rows
    own = rows[table.kind[rows] == Kind.COMM]
    own = own[~np.isin(table.phase[own], (Phase.OPTIMIZER, Phase.DATA))]
    if not len(own):
        return 0.0
    own = own[np.lexsort((table.start_ns[own], table.iteration[own], table.gpu[own]))]
    first = run_starts(table.gpu[own], table.iteration[own])
    last = np.append(first[1:], len(own)) - 1
    nearest = (first, np.minimum(first + 1, last), last, np.maximum(last - 1, first))
    places = distinct(np.concatenate(nearest))
    ends = own[places]
    member = first_equal(chosen.rows, ends)
    waits = np.where(member >= 0, chosen.exposed_ns[member], 0)
    return context.per_iteration(float((table.exposed_comm_ns[ends] - waits).sum()))


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
