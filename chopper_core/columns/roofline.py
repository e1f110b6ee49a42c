"""How near the roof a row is: by the modelled work of its calls, and by counters.

A call's FLOPs lie on its main kernels, so that rates are over their durations. docs/shapes.md
defines FLOPs and bytes by operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from chopper_core.columns.metric import METRICS, Scope, Values, declare, quotient, worded
from chopper_core.model.column_names import (
    CALL_NS,
    CALL_SHAPE,
    FLOPS,
    FLOPS_TYPE,
    MODEL_BYTES,
)
from chopper_core.model.groups import Groups
from chopper_core.model.hardware import Hardware
from chopper_core.model.shapes import Fused
from chopper_core.model.table import (
    Selection,
)
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import ratios, sums_of

_MODELLED: Final = "the row has no operator of a known work with recorded inputs"
_NO_BYTES: Final = f"{_MODELLED}, or the trace lacks the types of its operands"
_NO_ROOF: Final = f"{_NO_BYTES}, or the GPU is not in hardware.toml with a peak for the type"
_NO_LIMIT: Final = "the intensity is unknown, or the GPU is not in hardware.toml"
_WITH_HARDWARE: Final = "shapes in the trace and hardware.toml"
MEASURED_RATES: Final = ("mfma_tflops", "valu_tflops")
_SUMS: Final = (
    *("calls", "rates", "both_flops", "both_bytes", "compute_ns", "memory_ns", "roof_ns"),
    *("achievable_ns", "achievable_of_ns"),
)


def _call_sums(nodes: Groups, hardware: Hardware | None) -> dict[str, Float64]:
    """Sums over each group of the modelled work of its calls, in one pass; 0 where none is known.

    `rates` are TFLOP/s of each call, by kernel the part of the call that it is; `both_…` of calls
    with FLOPs and bytes. `compute_ns` and `memory_ns` are the times under the roof of the calls
    that it limits, `roof_ns` the durations of both. `achievable_ns` is the time of all FLOPs whose
    measured rate is known.
    """
    table, count = nodes.table, len(nodes)
    sums = {name: np.zeros(count) for name in _SUMS}
    if MODEL_BYTES not in table.measured and CALL_SHAPE not in table.measured:
        return sums
    shape_flops = np.array([*(shape.flops for shape in table.shapes), None], np.float64)
    shape_bytes = np.array([*(shape.bytes for shape in table.shapes), None], np.float64)
    is_fused = np.array([isinstance(shape.sizes, Fused) for shape in table.shapes] + [False])
    memory = hardware.memory_gbps if hardware else np.nan

    def given(name: str, rows: Selection, size: int) -> Float64:
        values = table.measured.get(name)
        return np.full(size, np.nan) if values is None else values[rows]

    for rows, group in nodes.pieces():
        flops = given(FLOPS, rows, len(group))
        moved = given(MODEL_BYTES, rows, len(group))
        code = given(CALL_SHAPE, rows, len(group))
        own = np.flatnonzero(np.isfinite(flops) | np.isfinite(moved) | np.isfinite(code))
        if not len(own):
            continue
        flops, moved, code, of = flops[own], moved[own], code[own], group[own]
        duration = given(CALL_NS, rows, len(group))[own]
        alone = np.isnan(duration)
        duration[alone] = table.duration_ns[rows][own][alone]
        element = given(FLOPS_TYPE, rows, len(group))[own]
        shape = np.where(np.isfinite(code), code, -1).astype(np.intp)
        has_flops = np.isfinite(flops)
        with np.errstate(invalid="ignore", divide="ignore"):
            part = np.where(has_flops, flops / shape_flops[shape], moved / shape_bytes[shape])
            part[is_fused[shape]] = 1.0
            rates = 1e-3 * flops / duration * part
        peak = np.where(has_flops, np.nan, 0.0)
        achievable = np.full(len(own), np.nan)
        if hardware is not None:
            peak = np.where(has_flops, hardware.at_peak_ns(flops, element), 0.0)
            achievable = hardware.at_achievable_ns(flops, element)
        moving = moved / memory
        limit = np.maximum(peak, moving)
        by_compute = np.where(peak >= moving, limit, np.nan)
        known = (
            *((part, part), (rates, rates), (flops, flops * moved), (moved, flops * moved)),
            *((limit, by_compute), (limit, np.where(peak < moving, limit, np.nan))),
            *((duration, limit), (achievable, achievable), (duration, achievable)),
        )
        for name, (values, of_known) in zip(_SUMS, known, strict=True):
            sums[name] += sums_of(np.where(np.isfinite(of_known), values, 0.0), of, count)
    return sums


def _above_0(sums: Float64) -> Float64:
    return np.where(sums > 0, sums, np.nan)


def _call_figures(sums: Mapping[str, Float64]) -> dict[str, Values]:
    needed = sums["compute_ns"] + sums["memory_ns"]
    bound = [
        None if not sum(both) else "compute" if both[0] >= both[1] else "memory"
        for both in zip(sums["compute_ns"].tolist(), sums["memory_ns"].tolist(), strict=True)
    ]
    calls = np.rint(sums["calls"]).astype(np.int64)
    return {
        "calls": Values(calls, calls == 0),
        "call_tflops": quotient(_above_0(sums["rates"]), sums["calls"]),
        "model_intensity": quotient(_above_0(sums["both_flops"]), sums["both_bytes"]),
        "bound": worded(bound),
        "model_roof_pct": quotient(_above_0(needed), sums["roof_ns"], 100.0),
        # Not rounded: the rows add up to their total.
        "roof_lost_ns": Values(sums["roof_ns"] - needed, ~(sums["roof_ns"] > 0)),
        "achievable_pct": quotient(sums["achievable_ns"], sums["achievable_of_ns"], 100.0),
    }


def _measured(scope: Scope) -> dict[str, Values]:
    """Rates, intensity, the roofline's limit and the share of it; missing without counters."""
    matrix, vector, share, reads, writes = (
        METRICS[name].compute(scope)
        for name in (*MEASURED_RATES, "mfma_peak_pct", "fabric_read_gbps", "fabric_write_gbps")
    )
    rate = matrix.known(missing=0.0) + vector.known(missing=0.0)
    traffic = reads.numbers + writes.numbers
    # Without counters of the vector units, nothing is known about a kernel without matrix FLOPs.
    known = (rate > 0) | vector.present()
    known &= matrix.present() & reads.present() & writes.present() & (traffic > 0)
    intensity = 1e3 * np.where(known, ratios(rate, traffic), np.nan)
    by_memory = intensity * (scope.hardware.memory_gbps / 1e3 if scope.hardware else np.nan)
    # The units' peak for the types that they multiplied in the row.
    peak = 100.0 * ratios(matrix.numbers, share.numbers)
    roof = np.where(matrix.numbers > 0, np.minimum(peak, by_memory), by_memory)
    is_rate = matrix.present() & (vector.present() | (matrix.known(0.0) > 0))
    return {
        "measured_tflops": Values(np.where(is_rate, rate, np.nan)),
        "intensity": Values(intensity),
        "roof_tflops": Values(roof),
        "roof_pct": Values(100.0 * ratios(rate, roof)),
    }


def _shared(kind: str, scope: Scope, make: Callable[[], dict[str, Values]]) -> dict[str, Values]:
    """Figures that come from one pass over the nodes, which each of their columns would repeat."""
    key = (kind, id(scope.hardware))
    if key not in scope.nodes.memo:
        scope.nodes.memo[key] = make()
    found: dict[str, Values] = scope.nodes.memo[key]
    return found


def _of_calls(name: str, scope: Scope) -> Values:
    def made() -> dict[str, Values]:
        return _call_figures(_call_sums(scope.nodes, scope.hardware))

    return _shared("calls", scope, made)[name]


def _by_counters(name: str, scope: Scope) -> Values:
    return _shared("counters", scope, lambda: _measured(scope))[name]


declare(
    f"""
    calls | | calls | sum
        Calls of operators with a shape, by their work; of kernels of torch.compile, each launch.
    call_tflops | TFLOP/s | call TFLOP/s
        Mean over calls of their FLOPs over their duration, each call with the same weight;
        model_tflops is all FLOPs over all time.
    model_intensity | FLOP/B | model FLOP/B
        Modelled arithmetic intensity: FLOPs over modelled bytes of the calls that have both.
        missing: {_NO_BYTES}
    bound | | bound | common value
        The roof over most of the row's modelled work: compute where the FLOPs at the peak of their
        type take longer than the bytes at the memory's bandwidth, else memory.
        missing: {_NO_ROOF}
        source: {_WITH_HARDWARE}
    model_roof_pct | % | % roof
        The time that the roofline's limit needs for the modelled work, in % of the durations of
        all kernels of its calls: for each call the longer of its FLOPs at peak and its bytes at the
        memory's bandwidth.
        missing: {_NO_ROOF}
        source: {_WITH_HARDWARE}
    roof_lost_ns | ns | lost to roof | sum
        The durations of the kernels of calls whose roof is known, less the time that the roofline's
        limit needs for their work (model_roof_pct). Below 0: faster than the memory's bandwidth,
        from caches.
        missing: {_NO_ROOF}
        source: {_WITH_HARDWARE}
    achievable_pct | % | achiev. %
        model_tflops in % of the rate that the best matrix products of the type were measured at on
        this GPU (achievable_tflops in hardware.toml, or --hardware FILE).
        missing: {_MODELLED}, or no achievable_tflops is known for the GPU and the type
        source: {_WITH_HARDWARE}
""",
    _of_calls,
    missing=_MODELLED,
    source="shapes in the trace; docs/shapes.md",
)
declare(
    f"""
    intensity | FLOP/B | FLOP/B
        Arithmetic intensity: the FLOPs of the matrix units and, where counted, of the vector units
        (mfma_tflops + valu_tflops) over the bytes per second that the L2 caches read and wrote
        over the fabric.
        missing: the row lacks counters of the fabric or of the units that its kernels use
        source: counters
    roof_tflops | TFLOP/s | roof TF/s
        The roofline's limit: the smaller of the peak for the types that the matrix units
        multiplied and intensity times the memory's bandwidth (hardware.toml).
        missing: {_NO_LIMIT}
        source: counters and hardware.toml
    roof_pct | % | % counted roof
        mfma_tflops + valu_tflops in % of roof_tflops.
        missing: {_NO_LIMIT}
        source: counters and hardware.toml
    measured_tflops | TFLOP/s | meas. TFLOP/s
        FLOPs of the matrix and vector units by counters over the duration in the counter run
        (mfma_tflops + valu_tflops).
        missing: the row lacks counters of the units that its kernels use
        source: counters
""",
    _by_counters,
)
