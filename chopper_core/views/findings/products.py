"""Large matrix products that leave the matrix units unused."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from chopper_core.align.kernel_names import kernel_class
from chopper_core.metrics import is_measured
from chopper_core.model.column_names import AT_PEAK
from chopper_core.model.tree import Groups
from chopper_core.util.arrays import Index
from chopper_core.views.findings.context import Case, labelled
from chopper_core.views.findings.finding import Finding, confidence
from chopper_core.views.findings.phrases import time
from chopper_core.views.findings.thresholds import LARGE_PRODUCT, MATRIX_USE, PEAK_REACHED
from chopper_core.views.shared.groups import grouped

_PRODUCT = "gemm"
_NAMED = 3


def poor_products(case: Case) -> list[Finding]:
    """Operations with large products that reach little: by counters, else by the model's FLOPs."""
    table, rows = case.table, case.node.rows
    kernels = np.flatnonzero(np.bincount(table.kernel[rows], minlength=len(table.names)))
    product = np.zeros(len(table.names), np.bool_)
    product[kernels] = [kernel_class(table.names[code]) == _PRODUCT for code in kernels.tolist()]
    rows = rows[product[table.kernel[rows]]]
    if not len(rows):
        return []
    known = _measured(case, rows)
    if known is None:
        return []
    metric, limit, rows, what = known
    nodes = Groups(table, rows, np.zeros(1, np.intp))
    codes, nodes = grouped(nodes, table.operation[rows].astype(np.int64))
    reached = case.figure(metric, nodes)
    spots = len(np.unique(table.gpu[rows])) * len(case.iterations)
    took = nodes.sum("duration_ns") / spots
    poor = reached.present() & (np.nan_to_num(reached.numbers) < limit)
    poor &= took >= LARGE_PRODUCT.value / 100 * case.step_ns
    if not poor.any():
        return []
    lost = np.where(poor, took * (1 - np.nan_to_num(reached.numbers) / limit), 0.0)
    order = [place for place in np.argsort(-lost, kind="stable").tolist() if poor[place]]
    named = labelled(
        (
            f"{case.text('operation', codes[place])} {reached.numbers[place]:.0f} % of "
            f"{time(took[place])}"
            for place in order
        ),
        _NAMED,
    )
    stake = float(lost.sum())
    evidence = replace(
        case.with_view("kernels", "operation"),
        columns=("kernel_ns", "kernel_pct", "kernels", metric, "mean_ns"),
        filter=f"{metric}<{limit:g}",
        sort="-kernel_ns",
    )
    return [
        Finding(
            sentence=(
                f"large matrix products {what}: {named}; at {limit:.0f} % they would take "
                f"{time(stake)} less{case.each}"
            ),
            evidence=evidence,
            confidence=confidence(read=metric == "mfma_util_pct", repeated=case.repeats),
            stake_ns=stake,
            total_ns=stake * spots,
        )
    ]


def _measured(case: Case, rows: Index) -> tuple[str, float, Index, str] | None:
    """What tells how well products run: a metric, its limit, the rows that have it, in words."""
    if is_measured("mfma_util_pct", case.table):
        counted = np.isfinite(case.table.measured["SQ_VALU_MFMA_BUSY_CYCLES"][rows])
        if counted.any():
            said = "use little of the matrix units' time"
            return "mfma_util_pct", MATRIX_USE.value, rows[counted], said
    at_peak = case.table.measured.get(AT_PEAK)
    if at_peak is None or not np.isfinite(at_peak[rows]).any():
        return None
    known = rows[np.isfinite(at_peak[rows])]
    return "peak_pct", PEAK_REACHED.value, known, "reach little of the peak of the matrix units"
