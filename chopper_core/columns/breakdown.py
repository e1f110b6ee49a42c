"""Metrics of the overhead breakdown: the parts of a node's compute time, its FLOPs and tokens.

Also the stacked ratios of the original's breakdown, under its own names, and GPU memory.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from msgspec.structs import replace

from chopper_core.columns.instances import instances, running_ns
from chopper_core.columns.metric import (
    METRICS,
    Reduces,
    Scope,
    Theme,
    Values,
    absent,
    declare,
    known_sum,
    metric,
    quotient,
)
from chopper_core.model import column_names as col
from chopper_core.model.hardware import ElementType
from chopper_core.model.table import Kind
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64, Int64
from chopper_core.util.grouping import counts_of, ratios

_NO_FLOPS = (
    "no product, attention or convolution with recorded inputs in the row (record_shapes=True)"
)
_NO_BYTES = "no operator in the row whose bytes are known from recorded inputs (record_shapes=True)"
_NO_PEAK = "the trace doesn't record their type, or hardware.toml has no peak of the GPU for it"
_SPECIFICATION = "trace and hardware.toml"


_flops = partial(metric, missing=_NO_FLOPS, theme=Theme.BREAKDOWN)
_BUSY = "SQ_VALU_MFMA_BUSY_CYCLES"
_SOURCE = "UnaryLab/chopper overhead_breakdown.py"
_UNKNOWN = "the run lacks such counters or shapes, or its GPU is not in hardware.toml"
_SHARED_LABELS = ("phase", "operation")
"""The labels in which the instances of a node have to agree for their overlaps to be compared."""


def _call_time(scope: Scope, name: str) -> Int64 | Float64:
    """The time of the calls of the activities that have a column; else their own."""
    nodes = scope.nodes
    if col.CALL_NS not in nodes.table.measured:
        return nodes.known_duration(name)
    return nodes.known_together((name, col.CALL_NS))[0][col.CALL_NS]


def _part(name: str, scope: Scope) -> Values:
    if name == col.RECOMPUTED and name not in scope.nodes.table.measured:
        theory = known_sum("theoretical_ns", scope, is_whole=True)
        return Values(np.zeros(len(scope.nodes), np.int64), theory.missing)
    return known_sum(name, scope, is_whole=True)


_ADDS_UP = "The parts add up to compute_ns + overlap_ns."
declare(
    f"""
    theoretical_ns | ns | ideal | sum
        Time of the model's FLOPs, those of forward and backward once, at the nominal clock and the
        matrix units' peak for the type of their operands. Missing where the trace doesn't record
        the type. {_ADDS_UP}
    recompute_ns | ns | recompute | sum
        Time of the FLOPs of activation recomputation at that peak: work that the model doesn't ask
        for. {_ADDS_UP}
    extra_inst_ns | ns | extra inst | sum
        Time of the matrix instructions executed beyond the FLOPs of the operators, each at the peak
        of its type. {_ADDS_UP}
    mfma_loss_ns | ns | idle matrix | sum
        Time at the nominal clock in which matrix kernels, run alone, did not use the matrix units:
        cycles of the counter run minus those of the executed FLOPs. {_ADDS_UP}
    vector_ns | ns | vector | sum
        Time at the nominal clock of kernels without matrix instructions of the counted types, run
        alone. {_ADDS_UP}
    contention_ns | ns | contention | sum
        Time in the trace beyond that of the counter run, both at the nominal clock: the cost of
        running next to other work, mainly communication. Below 0: the trace needed less. {_ADDS_UP}
    frequency_ns | ns | low clock | sum
        Time lost to a clock below the nominal one (DVFS), by the telemetry's clock and by how the
        time of like kernels changes with it: on GPUs of other clocks, in other steps, in the
        counter run. {_ADDS_UP}
    unseparated_ns | ns | poss. low clock | sum
        Time of a low clock, or else contention and the kernels' own: up to this much more is
        a low clock's. Without telemetry of the clock, or where the run doesn't show how a kernel's
        time changes with it. {_ADDS_UP}
    unmodelled_ns | ns | not expl. | sum
        Compute that no other part explains: without counters of the work's type, all but the ideal
        and the low clock; with them, executed matrix instructions whose model FLOPs, type or peak
        isn't known; everything for a GPU that is not in hardware.toml. {_ADDS_UP}
""",
    _part,
    theme=Theme.BREAKDOWN,
    source="overhead breakdown (after UnaryLab/chopper overhead_breakdown.py)",
    missing="the run lacks counters or telemetry; `chopper info` lists what it has",
)


def _amount(name: str, scope: Scope) -> Values:
    amount = known_sum(name, scope)
    if name == col.FLOPS and col.RECOMPUTED_FLOPS in scope.nodes.table.measured:
        again, _ = scope.nodes.known(col.RECOMPUTED_FLOPS)
        return replace(amount, numbers=amount.numbers - again)
    return amount


declare(
    f"""
    model_flops | FLOP | FLOPs | sum
        Floating-point operations of the model, from the recorded inputs of its products, attentions
        (half of them where causal) and convolutions; recomputed ones don't count again.
    model_bytes | B | model bytes | sum
        Modelled bytes of the row's calls: every tensor that an operator reads or writes counts
        once, at the size of its type.
        missing: {_NO_BYTES}
""",
    _amount,
    theme=Theme.BREAKDOWN,
    missing=_NO_FLOPS,
)


def _rate(name: str, scope: Scope) -> Values:
    """Amounts over the time of the calls of the activities that have them; missing without any."""
    memory = scope.hardware.memory_gbps if scope.hardware else np.nan
    column, factor = {
        "model_tbps": (col.MODEL_BYTES, 1e-3),
        "bandwidth_pct": (col.MODEL_BYTES, 100.0 / memory),
        "model_tflops": (col.FLOPS, 1e-3),
        "peak_pct": (col.AT_PEAK, 100.0),
    }[name]
    return quotient(scope.nodes.known(column)[0], _call_time(scope, column), factor)


declare(
    f"""
    model_tbps | TB/s | TB/s | ratio of sums
        model_bytes over the durations of all kernels of their calls, helpers too.
        missing: {_NO_BYTES}
    bandwidth_pct | % | HBM % | ratio of sums
        model_tbps in % of the memory's bandwidth; above 100: the caches served a part.
        missing: {_NO_BYTES}, or the GPU is not in hardware.toml
        source: {_SPECIFICATION}
    model_tflops | TFLOP/s | TFLOP/s | ratio of sums
        FLOPs of the calls, recomputed ones too, over the durations of all their kernels, helpers
        too.
    peak_pct | % | peak % | ratio of sums
        Time of these FLOPs at the nominal clock and the matrix units' peak for the type of their
        operands, in % of the durations of all kernels of their calls, helpers too.
        missing: {_NO_FLOPS}, {_NO_PEAK}
        source: {_SPECIFICATION}
""",
    _rate,
    theme=Theme.BREAKDOWN,
    missing=_NO_FLOPS,
)


@_flops(
    "peak_at_clock_pct",
    Unit.PERCENT,
    "clk peak %",
    reduces=Reduces.RATIO,
    source="trace, telemetry and hardware.toml",
    missing=f"{_NO_FLOPS}, {_NO_PEAK}, or no telemetry of gfx_mhz at its times",
)
def of_peak_at_clock(scope: Scope) -> Values:
    """Like peak_pct, but at the actual clock of the compute units instead of the nominal one:
    peak_pct x nominal clock / gfx_mhz of the same kernels."""
    clock, covered = col.integral_of("gfx_mhz"), col.known_of("gfx_mhz")
    sums, count = scope.nodes.known_together((col.AT_PEAK, clock, covered))
    nominal = scope.hardware.clock_mhz if scope.hardware else np.nan
    at_peak, _ = scope.nodes.known(col.AT_PEAK)
    with np.errstate(invalid="ignore", divide="ignore"):
        mhz = sums[clock] / sums[covered]
        share = 100.0 * at_peak * nominal / (_call_time(scope, col.AT_PEAK) * mhz)
    return Values(np.where(count == 0, np.nan, share))


@_flops("flops_without_peak", Unit.FLOP, "no peak", source=_SPECIFICATION)
def without_peak(scope: Scope) -> Values:
    """The part of model_flops that theoretical_ns and peak_pct leave out: the trace doesn't record
    the type of the operands, or hardware.toml has no peak for it."""
    operations, count = scope.nodes.known(col.FLOPS)
    with_peak, _ = scope.nodes.known_together((col.FLOPS, col.AT_PEAK))
    return Values(operations - with_peak[col.FLOPS], count == 0)


declare(
    """
    tokens | | tokens | sum
        Tokens that enter the model: from an inference step's batch, else from the shape of its
        embedding's indices, else from the queries of its first layer's attention; counted at one
        activity. Shapes count only where a language model reads them: not classes, features or
        patches.
        missing: no inference step with its batch, and no embedding or attention with recorded
          shapes in the row (record_shapes=True)
    requests | | requests | sum
        Requests in the batches of inference steps, once per step; counted at one activity.
        missing: no range of an inference engine names the batch of a step in the row
""",
    partial(known_sum, is_whole=True),
)


def _original_ratio(name: str, scope: Scope) -> Values:
    chip, nodes = scope.hardware, scope.nodes
    if name == "original_inst":
        sums, _ = nodes.known_together((col.MATRIX_OPS, col.FLOPS))
        part, whole = sums[col.MATRIX_OPS] * col.OPS_PER_COUNT, sums[col.FLOPS]
    elif chip is None:
        return absent(len(nodes))
    elif name == "original_util":
        sums, _ = nodes.known_together((col.CYCLES, _BUSY))
        simds = chip.compute_units * chip.simds_per_cu / chip.xccs
        part, whole = sums[col.CYCLES] * simds, sums[_BUSY]
    else:
        part = nodes.known_duration(col.CYCLES).astype(np.float64)
        whole = nodes.known(col.CYCLES)[0] / chip.xccs / chip.clock_mhz * 1e3
    return Values(ratios(np.where(part > 0, part, np.nan), whole))


_MEDIANS = """Over the activities that have all of it; the original takes medians over layers
        and steps."""
declare(
    f"""
    original_inst | x | orig inst | ratio of sums
        512 x SQ_INSTS_VALU_MFMA_MOPS_BF16 / model_flops (bf16 only). {_MEDIANS}
    original_util | x | orig util | ratio of sums
        100 / TensorUtil: SIMDs x GRBM_GUI_ACTIVE per XCC / SQ_VALU_MFMA_BUSY_CYCLES. {_MEDIANS}
    original_freq | x | orig freq | ratio of sums
        Duration in the trace / (GRBM_GUI_ACTIVE per XCC / nominal clock): clock and contention
        together, since the cycles are those of the serialised run. {_MEDIANS}
""",
    _original_ratio,
    theme=Theme.ORIGINAL,
    source=_SOURCE,
    missing=_UNKNOWN,
)


@metric(
    "original_ovl",
    Unit.TIMES,
    "orig ovl",
    reduces=Reduces.INSTANCES,
    source=_SOURCE,
    theme=Theme.ORIGINAL,
    missing="the row has several operations or phases, or fewer than two instances",
)
def overlap(scope: Scope) -> Values:
    """Elapsed time of the operation's instance (GPU, step, phase, layer) with the median
    overlap with communication / that of the one with the least, at least 1; 1 where the median
    one has no overlap."""
    nodes = scope.nodes
    ratio = np.full(len(nodes), np.nan)
    table, found = nodes.table, instances(nodes)
    counts = counts_of(found.node, len(nodes))
    if not (counts > 1).any():
        return Values(ratio)  # An activity alone, without the communication of the run.
    end_ns, comm = found.start_ns + found.elapsed_ns, np.flatnonzero(table.kind == Kind.COMM)
    during_comm = running_ns(table, comm, table.gpu[found.row], found.start_ns, end_ns)
    shares = during_comm / np.maximum(found.elapsed_ns, 1)
    order = np.lexsort((found.start_ns, shares, found.node))
    elapsed_ns, overlaps = found.elapsed_ns[order], shares[order]
    has = np.flatnonzero(counts)
    first = (np.cumsum(counts) - counts)[has]
    # Ranks count from 1; of two ranks as close to the half the lower one is taken.
    middle = first + np.maximum(counts[has] // 2, 1) - 1
    slower = elapsed_ns[middle] / np.maximum(elapsed_ns[first], 1)
    ratio[has] = np.where(overlaps[middle] > 0, np.maximum(slower, 1.0), 1.0)
    for name in _SHARED_LABELS:
        ratio[nodes.min(name) != nodes.max(name)] = np.nan
    return Values(np.where(counts < 2, np.nan, ratio))


def _stacked(name: str, scope: Scope) -> Values:
    flops, count = scope.nodes.known(col.FLOPS)
    peak = scope.hardware.flop_per_ns(ElementType.BF16) if scope.hardware else np.nan
    product = np.where(count == 0, np.nan, flops / peak)
    for ratio in _STACK[name]:
        product = product * METRICS[ratio].compute(scope).numbers
    return Values(product)


_STACK: dict[str, tuple[str, ...]] = {
    "original_upto_theory_ns": (),
    "original_upto_inst_ns": ("original_inst",),
    "original_upto_util_ns": ("original_inst", "original_util"),
    "original_upto_ovl_ns": ("original_inst", "original_util", "original_ovl"),
    "original_upto_freq_ns": ("original_inst", "original_util", "original_freq"),
}
declare(
    """
    original_upto_theory_ns | ns | orig theory | sum
        model_flops at the bf16 peak, whatever their type: the first level of the original's stack.
    original_upto_inst_ns | ns | upto inst | product of ratios
        original_upto_theory_ns x original_inst.
    original_upto_util_ns | ns | upto util | product of ratios
        original_upto_inst_ns x original_util.
    original_upto_ovl_ns | ns | upto ovl | product of ratios
        original_upto_util_ns x original_ovl.
        missing: original_ovl or a ratio before it is unknown
    original_upto_freq_ns | ns | upto freq | product of ratios
        original_upto_ovl_ns x original_freq / original_ovl: the end of the original's stack, whose
        segments are the differences of these levels.
""",
    _stacked,
    theme=Theme.ORIGINAL,
    source=_SOURCE,
    missing=_UNKNOWN,
)
NO_EVENTS = "the trace has no events of GPU memory (profile_memory=True in the profiler)"


def _memory(name: str, scope: Scope) -> Values:
    if METRICS[name].reduces == Reduces.SUM:
        return known_sum(name, scope)
    found = scope.nodes.known_max(name)
    return absent(len(scope.nodes)) if found is None else Values(found)


declare(
    """
    peak_bytes | B | peak mem | max
        The most bytes that the framework had allocated on a GPU between the launch of an activity
        of the row and the launch before it.
    alloc_bytes | B | alloc | sum
        Bytes allocated for the row's activities, released or not: each allocation counts for the
        next activity that its thread launches.
    fragmentation_bytes | B | fragm. | max
        The most bytes that the framework's allocator reserved on a GPU without having allocated
        them (reserved - allocated), at the same moments as peak_bytes.
""",
    _memory,
    theme=Theme.MEMORY,
    missing=NO_EVENTS,
)
