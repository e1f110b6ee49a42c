"""Work beside the training steps: evaluation, checkpoints, logging."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from chopper_core.align.side_work import SIDE_WORK
from chopper_core.findings.rule import (
    Finding,
    FindingsContext,
    confidence,
    rule,
    threshold,
)
from chopper_core.findings.titles import one_line
from chopper_core.model.groups import elapsed_of_rows
from chopper_core.model.phrases import percent, time
from chopper_core.model.table import NO_LABEL
from chopper_core.util.arrays import Int64
from chopper_core.util.grouping import distinct

PRICE: Final = threshold("""price per step | 1 | % of the step
    the same as for a straggler""")
_ORDINALS: Final = {2: "second", 3: "third", 4: "fourth", 5: "fifth", 10: "tenth"}


@rule("side-work", cost="its time inside steps", thresholds=(PRICE,))
def side_work(context: FindingsContext) -> Iterator[Finding]:
    """Evaluation, checkpoints and logging, and their price per step: inside steps or between."""
    table, steps = context.run.table, context.all_iterations
    if not len(steps):
        return
    codes = {name: at for at, name in enumerate(table.operations) if name in SIDE_WORK}
    for name in SIDE_WORK:
        if name not in codes:
            continue
        rows = np.flatnonzero(table.operation == codes[name])
        rows = rows[np.isin(table.gpu[rows], context.gpus)]
        spent = elapsed_of_rows(table, rows)
        is_inside = table.iteration[rows] != NO_LABEL
        pairs = len(context.gpus) * len(steps)
        inside, outside = (float(spent[own].sum()) / pairs for own in (is_inside, ~is_inside))
        if context.share(inside + outside) < PRICE.share:
            continue
        when = distinct(table.iteration[rows[is_inside]]).astype(np.int64)
        each = inside * len(steps) / max(len(when), 1)
        where = f"{time(outside * len(steps))} outside the steps"
        if inside > outside:
            where = f"{time(each)} {_how_often(when, steps)} of the steps"
        price = f"{time(inside + outside)} per step ({percent(context.share(inside + outside))})"
        yield Finding(
            title=one_line(f"{name} costs {time(inside + outside)} per step", f", {where}"),
            detail=f"{name} takes {where}: {price}",
            evidence=context.with_view("", "operation", sort="-elapsed_ns"),
            confidence=confidence(measured=True, repeated=len(when) > 1),
            # What is outside of the steps is in none of their cells.
            cells=context.cells_of(operation=codes[name]),
            cost_ns=inside + outside,
            total_ns=(inside + outside) * pairs,
        )


def _how_often(when: Int64, steps: Int64) -> str:
    """`in every third`, or `in 4 of 30`."""
    apart = np.diff(when)
    if len(apart) and (apart == apart[0]).all() and int(apart[0]) in _ORDINALS:
        return f"in every {_ORDINALS[int(apart[0])]}"
    if len(when) == len(steps):
        return "in each"
    return f"in {len(when)} of {len(steps)}"
