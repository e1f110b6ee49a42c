"""Metrics of the overhead breakdown: the parts of a node's compute time, its FLOPs and tokens."""

from __future__ import annotations

from functools import partial

import numpy as np

from chopper_core.metrics.metric import (
    Reduces,
    Scope,
    Theme,
    Values,
    metric,
    quotient,
)
from chopper_core.model.column_names import AT_PEAK, FLOPS, REQUESTS, TOKENS, integral_of, known_of
from chopper_core.model.units import Unit

_NO_FLOPS = (
    "no product, attention or convolution with recorded inputs in the row (record_shapes=True)"
)
_NO_PEAK = "the trace doesn't record their type, or hardware.toml has no peak of the GPU for it"
_SPECIFICATION = "trace and hardware.toml"


_flops = partial(metric, missing=_NO_FLOPS, theme=Theme.BREAKDOWN)


def _part(name: str, title: str, definition: str) -> None:
    """Register a part of the compute time."""

    @metric(
        name,
        Unit.NS,
        title,
        f"{definition} The parts add up to compute_ns + overlap_ns.",
        source="overhead breakdown (after UnaryLab/chopper overhead_breakdown.py)",
        missing="the run lacks counters or telemetry; `chopper info` lists what it has",
        theme=Theme.BREAKDOWN,
    )
    def compute(scope: Scope) -> Values:
        nanoseconds, count = scope.nodes.known(name)
        return Values(np.rint(nanoseconds).astype(np.int64), count == 0)


def _per_duration(scope: Scope, name: str, factor: float) -> Values:
    """A column per duration of the activities that have it; missing where none has."""
    amount, _ = scope.nodes.known(name)
    return quotient(amount, scope.nodes.known_duration(name), factor)


_part(
    "theoretical_ns",
    "theory",
    "Time of the model's FLOPs at the nominal clock and the matrix units' peak for the type of "
    "their operands. Missing where the trace doesn't record the type.",
)
_part(
    "extra_inst_ns",
    "extra inst",
    "Time of the matrix instructions executed beyond the model's FLOPs, each at the peak of its "
    "type.",
)
_part(
    "mfma_loss_ns",
    "MFMA loss",
    "Time at the nominal clock in which matrix kernels, run alone, did not use the matrix units: "
    "cycles of the counter run less those of the executed FLOPs.",
)
_part(
    "vector_ns",
    "vector",
    "Time at the nominal clock of kernels without matrix instructions of the counted types, run "
    "alone.",
)
_part(
    "contention_ns",
    "contention",
    "Time in the trace beyond that of the counter run, both at the nominal clock: the cost of "
    "running beside other work, communication above all. Below 0: the trace needed less.",
)
_part(
    "frequency_ns",
    "frequency",
    "Time lost to a clock below the nominal one (DVFS), by the telemetry's clock and by how the "
    "time of like kernels changes with it: on GPUs of other clocks, in other iterations, in the "
    "counter run.",
)
_part(
    "unseparated_ns",
    "unsep.",
    "Time that is frequency or else contention and the kernels' own: up to so much more is "
    "frequency. Without telemetry of the clock, or where the run doesn't show how a kernel's time "
    "changes with it.",
)
_part(
    "unmodelled_ns",
    "unattrib.",
    "Unattributed compute, which no other part explains: without counters of the work's type, all "
    "but theory and frequency; with them, executed matrix instructions whose model FLOPs, type or "
    "peak isn't known; everything for a GPU that is not in hardware.toml.",
)


@_flops("model_flops", Unit.FLOP, "FLOPs")
def model_flops(scope: Scope) -> Values:
    """Floating-point operations of the model, from the recorded inputs of its products, attentions
    (half of them where causal) and convolutions."""
    operations, count = scope.nodes.known(FLOPS)
    return Values(operations, count == 0)


@_flops("model_tflops", Unit.TFLOPS, "TFLOP/s", reduces=Reduces.RATIO)
def model_rate(scope: Scope) -> Values:
    """model_flops over the durations of their kernels."""
    return _per_duration(scope, FLOPS, 1e-3)


@_flops(
    "peak_pct",
    Unit.PERCENT,
    "peak %",
    reduces=Reduces.RATIO,
    source=_SPECIFICATION,
    missing=f"{_NO_FLOPS}, {_NO_PEAK}",
)
def of_peak(scope: Scope) -> Values:
    """Time of the model's FLOPs at the nominal clock and the matrix units' peak for the type of
    their operands, in % of the durations of their kernels."""
    return _per_duration(scope, AT_PEAK, 100.0)


@_flops(
    "peak_at_clock_pct",
    Unit.PERCENT,
    "clk peak %",
    reduces=Reduces.RATIO,
    source="trace, telemetry and hardware.toml",
    missing=f"{_NO_FLOPS}, {_NO_PEAK}, or no telemetry of gfx_mhz at its times",
)
def of_peak_at_clock(scope: Scope) -> Values:
    """As peak_pct, at the actual clock of the compute units instead of the nominal one:
    peak_pct x nominal clock / gfx_mhz of the same kernels."""
    clock, covered = integral_of("gfx_mhz"), known_of("gfx_mhz")
    sums, count = scope.nodes.known_together((AT_PEAK, clock, covered))
    nominal = scope.hardware.clock_mhz if scope.hardware else np.nan
    at_peak, _ = scope.nodes.known(AT_PEAK)
    with np.errstate(invalid="ignore", divide="ignore"):
        mhz = sums[clock] / sums[covered]
        share = 100.0 * at_peak * nominal / (scope.nodes.known_duration(AT_PEAK) * mhz)
    missing = (count == 0) | ~np.isfinite(share)
    return Values(np.where(missing, np.nan, share), missing)


@_flops("flops_without_peak", Unit.FLOP, "no peak", source=_SPECIFICATION)
def without_peak(scope: Scope) -> Values:
    """The part of model_flops that theoretical_ns and peak_pct leave out: the trace doesn't record
    the type of the operands, or hardware.toml has no peak for it."""
    operations, count = scope.nodes.known(FLOPS)
    with_peak, _ = scope.nodes.known_together((FLOPS, AT_PEAK))
    return Values(operations - with_peak[FLOPS], count == 0)


@metric(
    TOKENS,
    Unit.NONE,
    "tokens",
    missing="no inference step with its batch, and no embedding or attention with recorded shapes "
    "in the row (record_shapes=True)",
)
def tokens(scope: Scope) -> Values:
    """Tokens that enter the model: of an inference step's batch, else by the shape of its
    embedding's indices, else of the queries of its first layer's attention; counted at one
    activity. Shapes count only where a language model reads them: not classes, features or
    patches."""
    number, count = scope.nodes.known(TOKENS)
    return Values(np.rint(number).astype(np.int64), count == 0)


@metric(
    REQUESTS,
    Unit.NONE,
    "requests",
    missing="no range of an inference engine names the batch of a step in the row",
)
def requests(scope: Scope) -> Values:
    """Requests in the batches of inference steps, once per step; counted at one activity."""
    number, count = scope.nodes.known(REQUESTS)
    return Values(np.rint(number).astype(np.int64), count == 0)
