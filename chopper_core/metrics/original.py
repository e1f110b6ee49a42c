"""The stacked ratios of the original's overhead breakdown, under its own names."""

from __future__ import annotations

from functools import partial

import numpy as np

from chopper_core.metrics.instances import instances
from chopper_core.metrics.metric import (
    Compute,
    Reduces,
    Scope,
    Theme,
    Values,
    absent,
    metric,
)
from chopper_core.model.column_names import CYCLES, FLOPS, MATRIX_OPS, OPS_PER_COUNT
from chopper_core.model.groups import Groups
from chopper_core.model.hardware import ElementType
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64, Mask

_BUSY = "SQ_VALU_MFMA_BUSY_CYCLES"
_SOURCE = "UnaryLab/chopper overhead_breakdown.py"
_UNKNOWN = "the run lacks such counters or shapes, or its GPU is not in hardware.toml"
_SHARED_LABELS = ("phase", "operation")
"""The labels in which the instances of a node have to agree for their overlaps to be compared."""


_original = partial(metric, source=_SOURCE, theme=Theme.ORIGINAL)
_ratio = partial(_original, reduces=Reduces.RATIO, missing=_UNKNOWN)


def _quotient(part: Float64, whole: Float64) -> Values:
    missing = (whole <= 0) | (part <= 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return Values(np.where(missing, np.nan, part / whole), missing)


@_ratio("original_inst", Unit.TIMES, "orig inst")
def instructions(scope: Scope) -> Values:
    """512 x SQ_INSTS_VALU_MFMA_MOPS_BF16 / model_flops (bf16 only). Over the activities that have
    all of it; the original takes medians over layers and iterations."""
    sums, _ = scope.nodes.known_together((MATRIX_OPS, FLOPS))
    return _quotient(sums[MATRIX_OPS] * OPS_PER_COUNT, sums[FLOPS])


@_ratio("original_util", Unit.TIMES, "orig util")
def utilization(scope: Scope) -> Values:
    """100 / TensorUtil: SIMDs x GRBM_GUI_ACTIVE per XCC / SQ_VALU_MFMA_BUSY_CYCLES. Over the
    activities that have all of it; the original takes medians over layers and iterations."""
    chip = scope.hardware
    if chip is None:
        return absent(len(scope.nodes))
    sums, _ = scope.nodes.known_together((CYCLES, _BUSY))
    return _quotient(
        sums[CYCLES] * (chip.compute_units * chip.simds_per_cu / chip.xccs), sums[_BUSY]
    )


@_ratio("original_freq", Unit.TIMES, "orig freq")
def frequency(scope: Scope) -> Values:
    """Duration in the trace / (GRBM_GUI_ACTIVE per XCC / nominal clock): clock and contention
    together, since the cycles are those of the serialised run. Over the activities that have all
    of it; the original takes medians over layers and iterations."""
    nodes = scope.nodes
    if scope.hardware is None:
        return absent(len(nodes))
    trace_ns = nodes.known_duration(CYCLES).astype(np.float64)
    alone_ns = nodes.known(CYCLES)[0] / scope.hardware.xccs / scope.hardware.clock_mhz * 1e3
    return _quotient(trace_ns, alone_ns)


@_original(
    "original_ovl",
    Unit.TIMES,
    "orig ovl",
    reduces=Reduces.INSTANCES,
    missing="the row has several operations or phases, or fewer than two instances",
)
def overlap(scope: Scope) -> Values:
    """Elapsed time of the operation's instance (GPU, iteration, phase, layer) with the median
    overlap with communication / that of the one with the least, at least 1; 1 where the median
    one has no overlap."""
    nodes = scope.nodes
    ratio = np.full(len(nodes), np.nan)
    found = instances(nodes)
    order = np.lexsort((found.start_ns, found.overlap, found.node))
    elapsed_ns, overlaps = found.elapsed_ns[order], found.overlap[order]
    counts = np.bincount(found.node, minlength=len(nodes))
    has = np.flatnonzero(counts)
    first = (np.cumsum(counts) - counts)[has]
    # Ranks count from 1; of two ranks as close to the half the lower one is taken.
    middle = first + np.maximum(counts[has] // 2, 1) - 1
    slower = elapsed_ns[middle] / np.maximum(elapsed_ns[first], 1)
    ratio[has] = np.where(overlaps[middle] > 0, np.maximum(slower, 1.0), 1.0)
    ratio[~_are_comparable(nodes) | (counts < 2)] = np.nan
    return Values(ratio)


def _are_comparable(nodes: Groups) -> Mask:
    comparable = np.ones(len(nodes), np.bool_)
    for name in _SHARED_LABELS:
        comparable &= nodes.min(name) == nodes.max(name)
    return comparable


def _theory(scope: Scope) -> Values:
    flops, count = scope.nodes.known(FLOPS)
    peak = scope.hardware.flop_per_ns(ElementType.BF16) if scope.hardware else np.nan
    missing = (count == 0) | np.isnan(peak)
    return Values(np.where(missing, np.nan, flops / peak), missing)


def _level(
    name: str, title: str, definition: str, *ratios: Compute, missing: str = _UNKNOWN
) -> None:
    """Register a level of the stack: the theoretical time times some ratios."""

    reduces = Reduces.PRODUCT if ratios else Reduces.SUM

    @_original(
        f"original_upto_{name}_ns", Unit.NS, title, definition, reduces=reduces, missing=missing
    )
    def compute(scope: Scope) -> Values:
        product = _theory(scope).numbers.astype(np.float64)
        for ratio in ratios:
            product = product * ratio(scope).numbers
        return Values(product)


_level(
    "theory",
    "orig theory",
    "model_flops at the bf16 peak, whatever their type: the first level of the original's stack.",
)
_level("inst", "upto inst", "original_upto_theory_ns x original_inst.", instructions)
_level("util", "upto util", "original_upto_inst_ns x original_util.", instructions, utilization)
_level(
    "ovl",
    "upto ovl",
    "original_upto_util_ns x original_ovl.",
    instructions,
    utilization,
    overlap,
    missing="original_ovl or a ratio before it is unknown",
)
_level(
    "freq",
    "upto freq",
    "original_upto_ovl_ns x original_freq / original_ovl: the end of the original's stack, whose "
    "segments are the differences of these levels.",
    instructions,
    utilization,
    frequency,
)
