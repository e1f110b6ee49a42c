"""The stacked ratios of the original's overhead breakdown, under its own names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from chopper_core.measured import CYCLES, FLOPS, MATRIX_OPS, OPS_PER_COUNT
from chopper_core.metrics.metric import Metric, Scope, Values

Float64 = NDArray[np.float64]
_BUSY = "SQ_VALU_MFMA_BUSY_CYCLES"
_SOURCE = "UnaryLab/chopper overhead_breakdown.py"
_UNKNOWN = "the run has no such counters, no shapes, or a GPU that is not in hardware.toml"


def _quotient(part: Float64, whole: Float64, usable: bool) -> Values:
    missing = (whole <= 0) | (part <= 0) | (not usable)
    with np.errstate(invalid="ignore", divide="ignore"):
        return Values(np.where(missing, np.nan, part / whole), missing)


def _instructions(scope: Scope) -> Values:
    sums, _ = scope.nodes.known_together((MATRIX_OPS, FLOPS))
    return _quotient(sums[MATRIX_OPS] * OPS_PER_COUNT, sums[FLOPS], usable=True)


def _utilisation(scope: Scope) -> Values:
    sums, _ = scope.nodes.known_together((CYCLES, _BUSY))
    chip = scope.hardware
    simds = 0.0 if chip is None else chip.compute_units * chip.simds_per_cu / chip.xccs
    return _quotient(sums[CYCLES] * simds, sums[_BUSY], usable=chip is not None)


def _frequency(scope: Scope) -> Values:
    nodes = scope.nodes
    cycles = nodes.table.measured.get(CYCLES)
    if cycles is None or scope.hardware is None:
        return Values(np.full(len(nodes), np.nan), np.ones(len(nodes), np.bool_))
    own = cycles[nodes.rows]
    duration = np.where(np.isfinite(own), nodes.table.duration_ns[nodes.rows], 0)
    trace_ns = np.add.reduceat(duration.astype(np.float64), nodes.first)
    alone_ns = nodes.known(CYCLES)[0] / scope.hardware.xccs / scope.hardware.clock_mhz * 1e3
    return _quotient(trace_ns, alone_ns, usable=True)


def _metric(name: str, title: str, definition: str, compute: Callable[[Scope], Values]) -> Metric:
    return Metric(
        name,
        "x",
        title,
        "ratio of sums",
        f"{definition} Over the activities that have all of it; the original takes medians over "
        "layers and iterations.",
        compute,
        source=_SOURCE,
        missing_because=_UNKNOWN,
    )


METRICS = (
    _metric(
        "original_inst",
        "orig inst",
        "512 x SQ_INSTS_VALU_MFMA_MOPS_BF16 / model_flops (bf16 only).",
        _instructions,
    ),
    _metric(
        "original_util",
        "orig util",
        "100 / TensorUtil: SIMDs x GRBM_GUI_ACTIVE per XCC / SQ_VALU_MFMA_BUSY_CYCLES.",
        _utilisation,
    ),
    _metric(
        "original_freq",
        "orig freq",
        "Duration in the trace / (GRBM_GUI_ACTIVE per XCC / nominal clock): holds the clock and "
        "contention together, since the cycles are those of the serialised run.",
        _frequency,
    ),
)
