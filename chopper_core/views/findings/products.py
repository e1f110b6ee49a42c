"""Large matrix products that leave the matrix units unused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.align.kernel_classes import kernel_class
from chopper_core.metrics import is_measured
from chopper_core.model.column_names import AT_PEAK
from chopper_core.model.groups import Groups
from chopper_core.util.arrays import Index
from chopper_core.util.grouping import counts_of, distinct
from chopper_core.views.findings.rule import (
    Cost,
    Finding,
    FindingsContext,
    Threshold,
    confidence,
    rule,
)
from chopper_core.views.shared.phrases import listed, time
from chopper_core.views.shared.table_view import grouped

MATRIX_USE: Final = Threshold(
    "use of the matrix units in large products",
    50.0,
    "%",
    "a rule of thumb: libraries tuned for the shapes reach 70 to 80 %",
)
PEAK_REACHED: Final = Threshold(
    "FLOPs of large products, relative to the peak",
    40.0,
    "%",
    "use of 50 % at a clock of 80 % of the nominal one, where no counters tell the two apart",
)
LARGE_PRODUCT: Final = Threshold(
    "large product", 1.0, "% of the iteration", "a smaller one is hardly worth tuning"
)

_PRODUCT: Final = "gemm"
_MAX_LISTED: Final = 3


@rule(
    "products",
    of_durations=True,
    saving="kernel time beyond what they would take at the threshold, mean over GPUs",
    needs="hardware counters, or shapes in the trace",
    thresholds=(MATRIX_USE, PEAK_REACHED, LARGE_PRODUCT),
)
def poor_products(context: FindingsContext) -> Iterator[Finding]:
    """Large matrix products that make little use of the matrix units.

    Counters tell the use; without them it is the model's FLOPs relative to the peak.
    """
    table, rows = context.table, context.node.rows
    kernels = np.flatnonzero(counts_of(table.kernel[rows], len(table.names)))
    product = np.zeros(len(table.names), np.bool_)
    product[kernels] = [kernel_class(table.names[code]) == _PRODUCT for code in kernels.tolist()]
    rows = rows[product[table.kernel[rows]]]
    known = _best_metric(context, rows)
    if known is None:
        return
    metric, limit, rows, verdict = known
    nodes = Groups.single(table, rows)
    codes, nodes = grouped(nodes, table.operation[rows].astype(np.int64))
    reached = context.figure(metric, nodes)
    spots = len(distinct(table.gpu[rows])) * len(context.iterations)
    took = nodes.sum("duration_ns") / spots
    poor = reached.present() & (np.nan_to_num(reached.numbers) < limit)
    poor &= took >= LARGE_PRODUCT.share * context.step_ns
    if not poor.any():
        return
    lost = np.where(poor, took * (1 - np.nan_to_num(reached.numbers) / limit), 0.0)
    saving = float(lost.sum())
    order = [place for place in np.argsort(-lost, kind="stable").tolist() if poor[place]]
    named = listed(
        (
            f"{context.text('operation', codes[place])} {reached.numbers[place]:.0f} % "
            f"({time(took[place])})"
            for place in order
        ),
        _MAX_LISTED,
    )
    yield Finding(
        sentence=(
            f"large matrix products {verdict}: {named}; at {limit:.0f} % they would take "
            f"{time(saving)} less{context.each}"
        ),
        evidence=replace(
            context.with_view("kernels", "operation", sort="-kernel_ns"),
            columns=("kernel_ns", "kernel_pct", "kernels", metric, "mean_ns"),
            filter=f"{metric}<{limit:g}",
        ),
        confidence=confidence(measured=metric == "mfma_util_pct", repeated=context.repeats),
        saving_ns=saving,
        total_ns=saving * spots,
        cost=Cost.COMPUTE,
    )


def _best_metric(context: FindingsContext, rows: Index) -> tuple[str, float, Index, str] | None:
    """The metric of how well products run, its limit, the rows that have it, a verdict."""
    measured = context.table.measured
    if is_measured("mfma_util_pct", context.table):
        counted = rows[np.isfinite(measured["SQ_VALU_MFMA_BUSY_CYCLES"][rows])]
        if len(counted):
            verdict = "make little use of the matrix units"
            return "mfma_util_pct", MATRIX_USE.value, counted, verdict
    known = rows[np.isfinite(measured[AT_PEAK][rows])] if AT_PEAK in measured else rows[:0]
    verdict = "reach little of the peak of the matrix units"
    return ("peak_pct", PEAK_REACHED.value, known, verdict) if len(known) else None
