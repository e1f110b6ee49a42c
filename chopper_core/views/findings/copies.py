"""Copies that nothing hides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.table import Kind
from chopper_core.model.view import View, complete_order
from chopper_core.util.grouping import ranked
from chopper_core.views.findings.rule import (
    Cost,
    Finding,
    FindingsContext,
    Threshold,
    confidence,
    rule,
    summed,
)
from chopper_core.views.shared.phrases import listed, percent, time

COPIES: Final = Threshold(
    "exposed copies",
    1.0,
    "% of the iteration",
    "batches and losses take microseconds; pinned memory and another stream hide the rest",
)
_MAX_LISTED: Final = 3


def _by_kernel(context: FindingsContext) -> View:
    """The activities of the scope by name, those with most exposed copies first."""
    view = context.at()
    levels = [level for level, _ in view.scope]
    order = view.order if "kernel" in levels else complete_order([*levels, "kernel"])
    columns = ("exposed_copy_ns", "kernels", "mean_ns")
    return replace(view, order=order, columns=columns, sort="-exposed_copy_ns")


@rule(
    "copies",
    saving="exposed copies, mean over GPUs",
    holds=(0.6, 1.2),
    thresholds=(COPIES,),
)
def exposed_copies(context: FindingsContext) -> Iterator[Finding]:
    """Copies between host and GPU that nothing hides."""
    table, rows = context.table, context.node.rows
    own = rows[table.kind[rows] == Kind.COPY]
    alone = table.exposed_copy_ns[own]
    total = float(alone.sum())
    each = context.per_iteration(total)
    if context.share(each) < COPIES.share:
        return
    code = table.kernel[own].astype(np.int64) * 256 + table.phase[own] + 1
    kinds, owner = ranked(code)
    sums = summed(owner, alone)
    order = [place for place in np.argsort(-sums, kind="stable").tolist() if sums[place] > 0]
    named = listed(
        (
            f"{table.names[name]} in {context.phase(phase - 1)} {time(context.per_iteration(took))}"
            for name, phase, took in (
                (*divmod(int(kinds[place]), 256), float(sums[place])) for place in order
            )
        ),
        _MAX_LISTED,
    )
    yield Finding(
        sentence=(
            f"exposed copies take {time(each)}{context.per_gpu} ({percent(context.share(each))}): "
            f"{named}"
        ),
        evidence=_by_kernel(context),
        confidence=confidence(measured=True, repeated=context.repeats),
        saving_ns=each,
        total_ns=total,
        cost=Cost.COPIES,
    )
