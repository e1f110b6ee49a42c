"""Metrics of the overhead breakdown: what the time of a node is made of, and FLOPs."""

from __future__ import annotations

import numpy as np

from chopper_core.metrics.metric import Metric, Scope, Values
from chopper_core.model.column_names import AT_PEAK, BREAKDOWN, FLOPS, integral_of, known_of
from chopper_core.model.units import Unit

_SOURCE = "overhead breakdown (after UnaryLab/chopper overhead_breakdown.py)"
_TITLES = {
    "theoretical_ns": (
        "theory",
        "Time of the model's FLOPs at the nominal clock and the peak of the matrix units for the "
        "type of what they multiply. Missing where the trace doesn't say the type.",
    ),
    "extra_inst_ns": (
        "extra inst",
        "Time of the matrix instructions executed beyond the model's FLOPs, each at the peak of "
        "its type.",
    ),
    "mfma_loss_ns": (
        "MFMA loss",
        "Time at the nominal clock in which matrix kernels, run alone, did not use the matrix "
        "units: cycles of the counter run less those of the executed FLOPs.",
    ),
    "vector_ns": (
        "vector",
        "Time at the nominal clock of kernels without matrix instructions of the counted types, "
        "run alone.",
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
        "Time charged to compute that no other part explains: all of it without counters of the "
        "work's type, but for theory and frequency; with them the executed matrix instructions "
        "whose model FLOPs, type or peak isn't known; everything for a GPU not in hardware.toml.",
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
        Unit.NS,
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
    return _per_duration(scope, FLOPS, 1e-3)


def _of_peak(scope: Scope) -> Values:
    return _per_duration(scope, AT_PEAK, 100.0)


def _of_peak_at_clock(scope: Scope) -> Values:
    clock, covered = integral_of("gfx_mhz"), known_of("gfx_mhz")
    sums, count = scope.nodes.known_together((AT_PEAK, clock, covered))
    nominal = scope.hardware.clock_mhz if scope.hardware else np.nan
    total, _ = scope.nodes.known(AT_PEAK)
    with np.errstate(invalid="ignore", divide="ignore"):
        mhz = sums[clock] / sums[covered]
        share = 100.0 * total * nominal / (scope.nodes.known_duration(AT_PEAK) * mhz)
    missing = (count == 0) | ~np.isfinite(share)
    return Values(np.where(missing, np.nan, share), missing)


def _without_peak(scope: Scope) -> Values:
    total, count = scope.nodes.known(FLOPS)
    with_peak, _ = scope.nodes.known_together((FLOPS, AT_PEAK))
    return Values(total - with_peak[FLOPS], count == 0)


def _per_duration(scope: Scope, name: str, factor: float) -> Values:
    """A column per duration of the activities that have it; missing where none has."""
    total, _ = scope.nodes.known(name)
    total_ns = scope.nodes.known_duration(name)
    missing = total_ns == 0
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = factor * total / total_ns
    return Values(np.where(missing, np.nan, rate), missing)


_NO_FLOPS = (
    "no product, attention or convolution with recorded inputs in the row (record_shapes=True)"
)
_NO_PEAK = "the trace doesn't say their type, or hardware.toml has no peak of the GPU for it"
METRICS = (
    *(_part(name) for name in BREAKDOWN),
    Metric(
        "model_flops",
        Unit.FLOP,
        "FLOPs",
        "sum",
        "Floating-point operations that the model asks for, from the recorded inputs of its "
        "products, attentions (half of them where causal) and convolutions.",
        _flops,
        missing_because=_NO_FLOPS,
    ),
    Metric(
        "model_tflops",
        Unit.TFLOPS,
        "TFLOP/s",
        "ratio of sums",
        "model_flops over the durations of the kernels that they belong to.",
        _rate,
        missing_because=_NO_FLOPS,
    ),
    Metric(
        "peak_pct",
        Unit.PERCENT,
        "peak %",
        "ratio of sums",
        "Time of the model's FLOPs at the nominal clock and the peak of the matrix units for the "
        "type of what they multiply, in % of the durations of the kernels that they belong to.",
        _of_peak,
        source="trace and hardware.toml",
        missing_because=f"{_NO_FLOPS}, {_NO_PEAK}",
    ),
    Metric(
        "peak_at_clock_pct",
        Unit.PERCENT,
        "clk peak %",
        "ratio of sums",
        "As peak_pct, at the clock that the compute units had meanwhile instead of the nominal "
        "one: peak_pct x nominal clock / gfx_mhz of the same kernels.",
        _of_peak_at_clock,
        source="trace, telemetry and hardware.toml",
        missing_because=f"{_NO_FLOPS}, {_NO_PEAK}, or no telemetry of gfx_mhz at its times",
    ),
    Metric(
        "flops_without_peak",
        Unit.FLOP,
        "no peak",
        "sum",
        "The part of model_flops that theoretical_ns and peak_pct leave out: the trace doesn't "
        "say the type of what is multiplied, or hardware.toml has no peak for it.",
        _without_peak,
        source="trace and hardware.toml",
        missing_because=_NO_FLOPS,
    ),
)
