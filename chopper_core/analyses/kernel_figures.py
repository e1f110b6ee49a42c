"""Figures of kernels: calls, quantiles of their durations, models of their work, roofs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from chopper_core.analyses import call_figures
from chopper_core.analyses.call_figures import (
    measured_roofline,
    modelled_figures,
)
from chopper_core.analyses.rows import Partition
from chopper_core.columns import Values, columns, is_measured
from chopper_core.model.column_names import BLOCK, GRID
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.util.arrays import Mask

COLUMNS: Final = call_figures.COLUMNS | columns(
    """
    class | | class
        The class of the kernel by its name: gemm, attention, elementwise …
    operation | | operation
        The operation that spends most time in the kernel, and how many others use it.
    activities | | calls | sum
        Number of the row's activities: kernels, collectives, copies and memsets.
    mean_ns | ns | mean
        Mean duration of one activity.
    median_ns | ns | median
        Median duration of one activity.
    p95_ns | ns | p95
        95th percentile of the activities' durations.
    min_ns | ns | min
        The shortest activity.
    max_ns | ns | max
        The longest activity.
"""
)
_MEASURED: Final = ("mfma_util_pct", "mfma_tflops", "gfx_mhz", "l2_hit_pct", "occupancy_pct")
_OF_SHAPES: Final = (
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


def kernel_figures(run: Run, rows: Partition) -> tuple[dict[str, Values], dict[str, Values]]:
    """Time and distance from the roof of each row, and what all of them have as one."""
    nodes = rows.nodes
    kernel_ns = nodes.sum("duration_ns")
    figures = {
        "activities": Values(nodes.activities()),
        "kernel_pct": Values(100.0 * kernel_ns / max(int(rows.whole.sum("duration_ns")[0]), 1)),
        "mean_ns": Values(kernel_ns / nodes.sizes()),
        "min_ns": Values(nodes.min("duration_ns")),
        "max_ns": Values(nodes.max("duration_ns")),
        **measured_roofline(run, rows.scope(run)),
    }
    whole = {"kernel_pct": Values(np.array([100.0]))}
    modelled, of_all = modelled_figures(run, rows)
    return figures | modelled, whole | of_all


def columns_of_kernels(run: Run, figures: Mapping[str, Values]) -> list[str]:
    """The columns that say what a row costs, how it was launched and how near its roof it is."""
    measured = [name for name in _MEASURED if is_measured(name, run.table)]
    launched: Sequence[str] = _OF_LAUNCH if GRID in run.table.measured else ()
    launched = launched if run.hardware is not None else launched[::2]
    roof = [name for names in _OF_ROOF for name in _known(figures, names)[:1]]
    if is_measured("peak_pct", run.table) and not {"roof_pct", "model_roof_pct"} & {*roof}:
        roof.insert(0, "peak_pct")
    near = [name for name in roof if name != "bound"]
    words, spread = _known(figures, ("operation", "class")), _known(figures, ("p95_ns",))
    first = ("kernel_ns", "kernel_pct", "activities", "mean_ns", *near[:1], *words[:1], *near[1:])
    more = (*_known(figures, ("bound",)), *measured, *words[1:], *spread)
    # Of several kernels together what they were launched with says less than how they ran.
    ran = measured[: not words]
    return [*dict.fromkeys((*first, *ran, *launched, *more, "elapsed_ns", "max_ns", "kernels"))]


def _known(figures: Mapping[str, Values], names: Sequence[str]) -> list[str]:
    return [name for name in names if name in figures and figures[name].present().any()]


def is_collective(nodes: Groups) -> Mask:
    """The rows that are mostly communication."""
    return np.asarray(2 * nodes.sum("collectives") > nodes.sizes(), np.bool_)
