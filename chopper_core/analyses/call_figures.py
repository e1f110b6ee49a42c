"""Rows by the shape of the call that launched an activity: their work, rates and roofs as columns.

A call's FLOPs lie on its main kernels, so that rates are over their durations. docs/shapes.md
defines FLOPs and bytes by operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.base import Base
from chopper_core.analyses.benchmarks import hipblaslt_line, torch_line
from chopper_core.analyses.rows import Partition, by_kernel_codes, by_level
from chopper_core.columns import METRICS, Scope, Values, columns, numbered, worded
from chopper_core.columns.metric import quotient
from chopper_core.model.column_names import (
    CALL_NS,
    CALL_SHAPE,
    FLOPS,
    FLOPS_TYPE,
    MODEL_BYTES,
    MODULES,
    REQUESTS,
)
from chopper_core.model.groups import Groups
from chopper_core.model.hardware import Hardware
from chopper_core.model.run import Run
from chopper_core.model.shapes import CallShape, Fused
from chopper_core.model.table import (
    NO_LABEL_TEXT,
    KernelTable,
    Selection,
    SplitCodes,
    add_split,
    whole_codes,
)
from chopper_core.model.units import time_text
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Int32
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import combined, maxima_of, ranked, ratios, sums_of
from chopper_core.work.kernel_classes import FUSED, kernel_class

LEVEL: Final = "shape"
NO_SHAPE: Final = "no shape: "
"""How the rows of activities without a shape begin; their class follows."""
_MAX_NAMED: Final = 3
MEASURED_RATES: Final = ("mfma_tflops", "valu_tflops")
_MODELLED: Final = "the row has no operator of a known work with recorded inputs"
_NO_BYTES: Final = f"{_MODELLED}, or the trace lacks the types of its operands"
_NO_ROOF: Final = f"{_NO_BYTES}, or the GPU is not in hardware.toml with a peak for the type"
_NO_LIMIT: Final = "the intensity is unknown, or the GPU is not in hardware.toml"
_WITH_HARDWARE: Final = "shapes in the trace and hardware.toml"

COLUMNS: Final = columns(
    f"""
    calls | | calls | sum
        Calls of operators with a shape, by their work; of kernels of torch.compile, each launch.
    call_flops | FLOP | FLOPs/call
        Floating-point operations of one call of the row's shape.
        missing: {_MODELLED}, or has several shapes
    call_bytes | B | bytes/call
        Modelled bytes of one call of the row's shape: every tensor that the operator reads or
        writes counts once, at the size of its type.
        missing: {_NO_BYTES}, or has several shapes
    call_tflops | TFLOP/s | call TFLOP/s
        Mean over calls of their FLOPs over their duration, each call with the same weight;
        model_tflops is all FLOPs over all time.
    model_intensity | FLOP/B | FLOP/B
        Modelled arithmetic intensity: FLOPs over modelled bytes of the calls that have both.
        missing: {_NO_BYTES}
    bound | | bound
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
    achievable_pct | % | achiev. %
        model_tflops in % of the rate that the best matrix products of the type were measured at on
        this GPU (achievable_tflops in hardware.toml, or --hardware FILE).
        missing: {_MODELLED}, or no achievable_tflops is known for the GPU and the type
        source: {_WITH_HARDWARE}
    served_by | | served by
        The kernel that takes most of the row's time, and how many others served its calls.
        missing: the row has no kernel
        source: trace
    hipblaslt | | hipblaslt-bench
        A hipblaslt-bench command that runs the row's shape.
        missing: the row is no matrix product with one shape and recorded types
    torch | | torch benchmark
        A command that times the row's shape with PyTorch.
        missing: the row has no shape whose operands PyTorch can make again
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
    roof_pct | % | % roof
        mfma_tflops + valu_tflops in % of roof_tflops.
        missing: {_NO_LIMIT}
        source: counters and hardware.toml
    measured_tflops | TFLOP/s | meas. TFLOP/s
        FLOPs of the matrix and vector units by counters over the duration in the counter run
        (mfma_tflops + valu_tflops).
        missing: the row lacks counters of the units that its kernels use
        source: counters
    kernel_pct | % | of kernels
        Share of the scope's kernel time (sum of durations).
        missing:
        source: trace
""",
    missing=_MODELLED,
    source="shapes in the trace; docs/shapes.md",
)


class ShapeLabels(Struct, frozen=True, eq=False):
    """The labels of a run's activities by shape: texts, and a code for each shape and kernel."""

    shapes: Mapping[str, CallShape | None]
    """The shape of each text, None for activities without one."""
    of_shape: Int32
    """Position among the texts of each of the table's shapes."""
    of_kernel: Int32
    """The same of each kernel name, for its activities without a shape."""

    @classmethod
    def of(cls, table: KernelTable) -> ShapeLabels:
        given: list[tuple[str, CallShape | None]] = [(each.label, each) for each in table.shapes]
        given += [(_without_shape(name), None) for name in table.names]
        shapes: dict[str, CallShape | None] = {}
        for text, shape in given:
            shapes.setdefault(text, shape)
        places = {text: place for place, text in enumerate(shapes)}
        codes = np.array([places[text] for text, _ in given], np.int32)
        return cls(shapes, codes[: len(table.shapes)], codes[len(table.shapes) :])

    def codes(self, table: KernelTable, rows: Selection) -> Int32:
        """The label of each activity, a position among the texts."""
        codes = self.of_kernel[table.kernel[rows]]
        given = table.measured.get(CALL_SHAPE)
        if given is not None:
            own = given[rows]
            has = np.isfinite(own)
            codes[has] = self.of_shape[own[has].astype(np.intp)]
        return codes


def _labels(run: Run) -> ShapeLabels:
    return run.memo(("shape labels",), lambda: ShapeLabels.of(run.table))


def _without_shape(kernel: str) -> str:
    """The label of a kernel's activities without a shape: what it fuses, else its class."""
    fused = FUSED.match(kernel)
    if fused and fused["operators"].strip("_"):
        return f"triton {fused['kind']} {fused['operators'].strip('_')}"
    return NO_SHAPE + kernel_class(kernel)


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
        "achievable_pct": quotient(sums["achievable_ns"], sums["achievable_of_ns"], 100.0),
    }


def modelled_figures(run: Run, rows: Partition) -> tuple[dict[str, Values], dict[str, Values]]:
    """The figures of the rows, and of all of them as one."""
    sums = _call_sums(rows.nodes, run.hardware)
    own = _call_figures(sums)
    all_sums = {name: each.sum(keepdims=True) for name, each in sums.items()}
    if rows.level == LEVEL:
        kernels, row = rows.nodes.split(("kernel",))
        shapes = [_labels(run).shapes[label] for label in rows.labels]
        own |= {
            "call_flops": numbered([shape.flops if shape else None for shape in shapes]),
            "call_bytes": numbered([shape.bytes if shape else None for shape in shapes]),
            "hipblaslt": worded([hipblaslt_line(shape) if shape else None for shape in shapes]),
            "torch": worded([torch_line(shape) if shape else None for shape in shapes]),
            "served_by": most_in(kernels, "kernel", row, len(rows.labels)),
        }
    return own, _call_figures(all_sums)


def most_in(parts: Groups, level: str, row: Index, count: int) -> Values:
    """The label at a level of the part of each row with the most time, and the number of others.

    `row` is the row that each part belongs to.
    """
    labels: list[list[str]] = [[] for _ in range(count)]
    names = parts.labels(level)
    for place in np.argsort(-parts.sum("duration_ns"), kind="stable").tolist():
        labels[row[place]].append(names[place])
    return worded(
        [
            None if own[0] == NO_LABEL_TEXT else own[0] + (f" +{len(own) - 1}" if own[1:] else "")
            for own in labels
        ]
    )


def measured_roofline(run: Run, scope: Scope) -> dict[str, Values]:
    """Intensity, the roofline's limit and the share of it reached; missing without counters."""
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
    by_memory = intensity * (run.hardware.memory_gbps / 1e3 if run.hardware else np.nan)
    # The units' peak for the types that they multiplied in the row.
    peak = 100.0 * ratios(matrix.numbers, share.numbers)
    roof = np.where(matrix.numbers > 0, np.minimum(peak, by_memory), by_memory)
    return {
        "intensity": Values(intensity),
        "roof_tflops": Values(roof),
        "roof_pct": Values(100.0 * ratios(rate, roof)),
    }


def by_shape(run: Run, view: View) -> Partition:
    """The rows of a view by shape; those of one shape where it names one (`of=`)."""
    tree = run.tree_of(view)
    whole = tree.node(view.path)
    if view.of:
        whole = of_shape(run, whole, view.of)
    if view.of or CALL_SHAPE in run.table.measured:
        return by_level(whole, LEVEL)
    kernels = tree.split(view.path, ("kernel",))
    codes, nodes = by_kernel_codes(whole, kernels, _labels(run).of_kernel)
    texts = list(_labels(run).shapes)
    return Partition(LEVEL, [texts[code] for code in codes.tolist()], nodes, whole)


def of_shape(run: Run, whole: Groups, label: str) -> Groups:
    """A group's activities of one shape; raises NothingToShow where it has none, UsageError for
    a shape that the run hasn't."""
    code = run.table.code_of(LEVEL, label)
    if code is None:
        raise UsageError(f"unknown shape {label!r}; view=kernels&by=shape lists the shapes")
    own = whole.selection
    places = np.flatnonzero(run.table.column(LEVEL)[own] == code)
    rows = places + own.start if isinstance(own, slice) else own[places]
    if not len(rows):
        raise NothingToShow(
            f"no activity of the shape {label!r} here; view=kernels&by=shape lists the shapes"
        )
    return Groups.single(run.table, rows)


def kernels_of_shape(view: View, label: str) -> View:
    return replace(view, name="kernels", by="name", of=label, sort="", filter="", columns=())


def shape_notes(run: Run, whole: Groups, base: Base) -> tuple[str, ...]:
    if CALL_SHAPE not in run.table.measured:
        return (
            "the trace has no shapes (record_shapes=True in the profiler records them): "
            "no row is modelled",
        )
    labels = _labels(run)
    time_ns = np.zeros(len(labels.shapes))
    for rows, _ in whole.pieces():
        codes = labels.codes(run.table, rows)
        time_ns += sums_of(run.table.duration_ns[rows], codes, len(time_ns))
    rest = [
        (time, label.removeprefix(NO_SHAPE))
        for label, time in zip(labels.shapes, time_ns.tolist(), strict=True)
        if label.startswith(NO_SHAPE) and time
    ]
    if not rest:
        return ()
    without = sum(time for time, _ in rest)
    largest = sorted(rest, reverse=True)[:_MAX_NAMED]
    named = ", ".join(f"{name} {time_text(base.each(time))}" for time, name in largest)
    return (
        f"{100 * without / max(time_ns.sum(), 1):.1f} % of kernel time "
        f"({time_text(base.each(without))}) has no model: {named}"
        f"{' …' if len(rest) > len(largest) else ''}",
    )


@add_split("class")
def _classes(table: KernelTable) -> SplitCodes:
    words: dict[str, int] = {}
    of_name = [words.setdefault(kernel_class(name), len(words)) for name in table.names]
    return np.array(of_name, np.int32)[table.kernel], tuple(words)


@add_split("batch")
def _batches(table: KernelTable) -> SplitCodes:
    """The requests of each activity's inference step, from the engine's annotation."""
    codes = np.full(len(table), -1, np.int64)
    if REQUESTS not in table.measured:
        return codes, ()
    requests = table.measured[REQUESTS]
    step = combined([table.gpu, table.iteration])[1]
    known = np.isfinite(requests) & (table.iteration >= 0)
    size = maxima_of(requests[known].astype(np.int64), step[known], int(step.max()) + 1, -1)[step]
    sizes, place = ranked(size[size >= 0])
    codes[size >= 0] = place
    return codes, [str(each) for each in sizes.tolist()]


@add_split("module")
def _modules(table: KernelTable) -> SplitCodes:
    if MODULES not in table.measured:
        return np.full(len(table), -1, np.int64), ()
    used, place = ranked(whole_codes(table.measured[MODULES]))
    lacks = int((used[:1] < 0).sum())
    texts = [table.names[code] for code in used[lacks:].tolist()]
    return (place - lacks).astype(np.int64), texts


@add_split("shape")
def _shapes(table: KernelTable) -> SplitCodes:
    labels = ShapeLabels.of(table)
    return labels.codes(table, slice(None)), tuple(labels.shapes)
