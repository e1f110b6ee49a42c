"""Figures of kernels: calls, quantiles of their durations, models of their work, roofs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from chopper_core.analyses.rows import Partition
from chopper_core.columns import METRICS, Scope, Values, columns, is_measured, worded
from chopper_core.model.column_names import BLOCK, GRID
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.util.arrays import Mask
from chopper_core.work.kernel_classes import classes_of_names

COLUMNS: Final = columns(
    """
    class | | class
        The class of the kernel by its name: gemm, attention, elementwise … Of several kernels that
        of the one with most time.
"""
)
_MEASURED: Final = ("mfma_util_pct", "mfma_tflops", "gfx_mhz", "l2_hit_pct", "occupancy_pct")
OF_SHAPES: Final = (
    *("calls", "kernel_ns", "kernel_pct", "model_roof_pct", "bound", "model_tflops", "model_tbps"),
    *("model_intensity", "peak_pct", "peak_at_clock_pct", "achievable_pct", "call_tflops"),
    "served_by",
)
_OF_LAUNCH: Final = (GRID, "waves_per_cu", BLOCK)
_OF_ROOF: Final = (
    ("roof_pct", "model_roof_pct"),
    ("bound",),
    ("intensity", "model_intensity"),
)
"""Of each, the first that is known is shown: counters before models."""


def columns_of_kernels(
    run: Run, rows: Partition, own: Mapping[str, Values], *spread: str
) -> list[str]:
    """The columns that say what a row costs, how it was launched and how near its roof it is.

    `own` are those of the view alone, `spread` those of durations.
    """
    scope = rows.scope(run)
    measured = [name for name in _MEASURED if is_measured(name, run.table)]
    launched: Sequence[str] = _OF_LAUNCH if GRID in run.table.measured else ()
    launched = launched if run.hardware is not None else launched[::2]
    roof = [name for names in _OF_ROOF for name in known_figures(scope, names)[:1]]
    if is_measured("peak_pct", run.table) and not {"roof_pct", "model_roof_pct"} & {*roof}:
        roof.insert(0, "peak_pct")
    near = [name for name in roof if name != "bound"]
    words = [
        name for name in ("main_operation", "class") if name in own and own[name].present().any()
    ]
    first = ("kernel_ns", "kernel_pct", "activities", "mean_ns", *near[:1], *words[:1], *near[1:])
    more = (*known_figures(scope, ("bound",)), *measured, *words[1:], *spread)
    # Of several kernels together what they were launched with says less than how they ran.
    ran = [] if words else measured[:1]
    return [*dict.fromkeys((*first, *ran, *launched, *more, "elapsed_ns", "max_ns", "kernels"))]


def main_classes(run: Run, rows: Partition) -> Values:
    """The class of the kernel with most time in each row, so that a filter finds rows by it."""
    classes = classes_of_names(run)
    parts, row = rows.nodes.split(("kernel",))
    codes, found = parts.codes("kernel"), dict[int, str]()
    for place in np.argsort(-parts.sum("duration_ns"), kind="stable").tolist():
        found.setdefault(int(row[place]), classes[codes[place]])
    return worded([found.get(each) for each in range(len(rows.labels))])


def known_figures(scope: Scope, names: Sequence[str]) -> list[str]:
    """The registered columns that any row has, of some names."""
    return [name for name in names if METRICS[name].compute(scope).present().any()]


def is_collective(nodes: Groups) -> Mask:
    """The rows that are mostly communication."""
    return np.asarray(2 * nodes.sum("collectives") > nodes.sizes(), np.bool_)
