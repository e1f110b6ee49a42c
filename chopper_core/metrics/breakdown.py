"""Metrics of the overhead breakdown: what the time of a node is made of, and FLOPs."""

from __future__ import annotations

import numpy as np

from chopper_core.measured import BREAKDOWN, FLOPS
from chopper_core.metrics.metric import Metric, Scope, Values, percent

_SOURCE = "overhead breakdown (after UnaryLab/chopper overhead_breakdown.py)"
_TITLES = {
    "theoretical_ns": (
        "theory",
        "Time of the model's FLOPs at the bf16 peak of the matrix units at the nominal clock, "
        "whatever the type of the operands: too long for fp8, too short for fp32.",
    ),
    "extra_inst_ns": (
        "extra inst",
        "Time at the peak of the matrix instructions executed beyond the model's FLOPs.",
    ),
    "mfma_loss_ns": (
        "MFMA loss",
        "Time at the nominal clock in which matrix kernels, run alone, did not use the matrix "
        "units: cycles of the counter run less those of the executed FLOPs.",
    ),
    "vector_ns": (
        "vector",
        "Time at the nominal clock of kernels without matrix instructions, run alone.",
    ),
    "contention_ns": (
        "contention",
        "Cycles in the trace, at the nominal clock, beyond those of the counter run: what runs "
        "beside it (communication above all) costs. Below 0: the trace needed fewer.",
    ),
    "frequency_ns": (
        "frequency",
        "Time lost to a clock below the nominal one (DVFS), by the telemetry's clock.",
    ),
    "unseparated_ns": (
        "unsep.",
        "Contention and frequency together, where no telemetry tells them apart.",
    ),
    "unmodelled_ns": (
        "unmodel.",
        "Time charged to compute of which counters or the model's FLOPs say nothing.",
    ),
}


def _part(name: str) -> Metric:
    title, definition = _TITLES[name]

    def compute(scope: Scope) -> Values:
        total, count = scope.nodes.known(name)
        whole = np.rint(total).astype(np.int64)
        return Values(whole, count == 0)

    return Metric(
        name,
        "ns",
        title,
        "sum",
        definition + " The parts add up to compute_ns + overlap_ns.",
        compute,
        source=_SOURCE,
        missing_because="the run has no counters or telemetry; `chopper info` says what is there",
    )


def _flops(scope: Scope) -> Values:
    total, count = scope.nodes.known(FLOPS)
    return Values(total, count == 0)


def _rate(scope: Scope) -> Values:
    sums, count = _with_duration(scope)
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = sums[0] / sums[1] * 1e-3
    return Values(np.where(count == 0, np.nan, rate), count == 0)


def _of_peak(scope: Scope) -> Values:
    sums, count = _with_duration(scope)
    if scope.hardware is None:
        return Values(np.full(len(count), np.nan), np.ones(len(count), np.bool_))
    return percent(sums[0], sums[1] * scope.hardware.bf16_flop_per_ns)


def _with_duration(scope: Scope) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Model FLOPs, the durations of the activities that have them, and how many those are."""
    flops, count = scope.nodes.known(FLOPS)
    table, rows = scope.nodes.table, scope.nodes.rows
    column = table.measured.get(FLOPS)
    if column is None:
        return (flops, np.zeros(len(flops))), count
    with_flops = np.where(np.isfinite(column[rows]), table.duration_ns[rows], 0)
    return (flops, np.add.reduceat(with_flops.astype(np.float64), scope.nodes.first)), count


_NO_FLOPS = (
    "no product, attention or convolution with recorded inputs in the row (record_shapes=True)"
)
METRICS = (
    *(_part(name) for name in BREAKDOWN),
    Metric(
        "model_flops",
        "FLOP",
        "FLOPs",
        "sum",
        "Floating-point operations that the model asks for, from the recorded inputs of its "
        "products, attentions (half of them where causal) and convolutions.",
        _flops,
        missing_because=_NO_FLOPS,
    ),
    Metric(
        "model_tflops",
        "TFLOP/s",
        "TFLOP/s",
        "ratio of sums",
        "model_flops over the durations of the kernels that they belong to.",
        _rate,
        missing_because=_NO_FLOPS,
    ),
    Metric(
        "peak_pct",
        "%",
        "% peak",
        "ratio of sums",
        "model_tflops in % of the bf16 peak of the matrix units at the nominal clock, whatever "
        "the type of the operands.",
        _of_peak,
        source="trace and hardware.toml",
        missing_because=f"{_NO_FLOPS}, or the GPU is not in hardware.toml",
    ),
)
