"""The stacked ratios of the original's overhead breakdown, under its own names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from chopper_core.metrics.metric import Metric, Scope, Values
from chopper_core.metrics.original_overlap import overlap_ratio
from chopper_core.model.column_names import CYCLES, FLOPS, MATRIX_OPS, OPS_PER_COUNT
from chopper_core.model.hardware import ElementType
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64

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


def _overlap(scope: Scope) -> Values:
    return overlap_ratio(scope.nodes)


def _frequency(scope: Scope) -> Values:
    nodes = scope.nodes
    if scope.hardware is None:
        return Values(np.full(len(nodes), np.nan), np.ones(len(nodes), np.bool_))
    trace_ns = nodes.known_duration(CYCLES).astype(np.float64)
    alone_ns = nodes.known(CYCLES)[0] / scope.hardware.xccs / scope.hardware.clock_mhz * 1e3
    return _quotient(trace_ns, alone_ns, usable=True)


def _theory(scope: Scope) -> Values:
    flops, count = scope.nodes.known(FLOPS)
    peak = scope.hardware.flop_per_ns(ElementType.BF16) if scope.hardware else np.nan
    missing = (count == 0) | np.isnan(peak)
    return Values(np.where(missing, np.nan, flops / peak), missing)


def _upto(*steps: Callable[[Scope], Values]) -> Callable[[Scope], Values]:
    """The theoretical time times the ratios of some steps."""

    def compute(scope: Scope) -> Values:
        product = _theory(scope).numbers.astype(np.float64)
        for step in steps:
            product = product * step(scope).numbers
        return Values(product, np.isnan(product))

    return compute


def _metric(name: str, title: str, definition: str, compute: Callable[[Scope], Values]) -> Metric:
    return Metric(
        name,
        Unit.TIMES,
        title,
        "ratio of sums",
        f"{definition} Over the activities that have all of it; the original takes medians over "
        "layers and iterations.",
        compute,
        source=_SOURCE,
        missing_because=_UNKNOWN,
    )


def _level(name: str, title: str, definition: str, compute: Callable[[Scope], Values]) -> Metric:
    return Metric(
        f"original_upto_{name}_ns",
        Unit.NS,
        title,
        "sum" if name == "theory" else "product of ratios",
        definition,
        compute,
        source=_SOURCE,
        missing_because="original_ovl or what is before it is not known"
        if name == "ovl"
        else _UNKNOWN,
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
    Metric(
        "original_ovl",
        Unit.TIMES,
        "orig ovl",
        "of instances",
        "Of the instances of an operation (GPU, iteration, phase, layer) by their overlap with "
        "communication: elapsed time of the one in the middle / of the one with the least, at "
        "least 1; 1 where the one in the middle has none.",
        _overlap,
        source=_SOURCE,
        missing_because="the row has several operations or phases, or not two instances",
    ),
    _level(
        "theory",
        "orig theory",
        "model_flops at the bf16 peak, whatever their type: the first level of the original's "
        "stack.",
        _upto(),
    ),
    _level("inst", "upto inst", "original_upto_theory_ns x original_inst.", _upto(_instructions)),
    _level(
        "util",
        "upto util",
        "original_upto_inst_ns x original_util.",
        _upto(_instructions, _utilisation),
    ),
    _level(
        "ovl",
        "upto ovl",
        "original_upto_util_ns x original_ovl.",
        _upto(_instructions, _utilisation, _overlap),
    ),
    _level(
        "freq",
        "upto freq",
        "original_upto_ovl_ns x original_freq / original_ovl: the end of the original's stack, "
        "whose segments are the differences of these levels.",
        _upto(_instructions, _utilisation, _frequency),
    ),
)
