"""Work, rates and roofs of operator calls: sums over groups of activities, as columns.

A call's FLOPs lie on its main kernels, so that rates are over their durations. docs/shapes.md
defines FLOPs and bytes by operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.kernel_classes import kernel_class
from chopper_core.align.operator_work import FUSED
from chopper_core.metrics import Metric, Values, column, numbered, worded
from chopper_core.metrics.metric import quotient
from chopper_core.model.column_names import CALL_NS, CALL_SHAPE, FLOPS, FLOPS_TYPE
from chopper_core.model.groups import Groups
from chopper_core.model.hardware import Hardware
from chopper_core.model.run import Run
from chopper_core.model.shapes import CallShape, Fused
from chopper_core.model.table import KernelTable, Selection, SplitCodes, add_split
from chopper_core.util.arrays import Float64, Int64
from chopper_core.util.grouping import sums_of
from chopper_core.views.shared.benchmarks import hipblaslt_line, torch_line

NO_SHAPE: Final = "no shape: "
"""How the rows of activities without a shape begin; their class follows."""
_MODELLED: Final = "the row has no product, attention or convolution with recorded inputs"
_NO_BYTES: Final = f"{_MODELLED}, or the trace lacks the types of its operands"
_NO_ROOF: Final = f"{_NO_BYTES}, or the GPU is not in hardware.toml with a peak for the type"
_SOURCE: Final = "shapes in the trace; docs/shapes.md"
_WITH_HARDWARE: Final = "shapes in the trace and hardware.toml"

CALLS: Final = column(f"""calls | | calls | sum
    Calls of operators with a shape, by their FLOPs; of kernels of torch.compile, each launch.
    missing: {_MODELLED}
    source: {_SOURCE}""")
CALL_FLOPS: Final = column(f"""call_flops | FLOP | FLOPs/call
    Floating-point operations of one call of the row's shape.
    missing: {_MODELLED}, or has several shapes
    source: {_SOURCE}""")
CALL_BYTES: Final = column(f"""call_bytes | B | bytes/call
    Modelled bytes of one call of the row's shape: every tensor that the operator reads or
    writes counts once, at the size of its type.
    missing: {_NO_BYTES}, or has several shapes
    source: {_SOURCE}""")
CALL_TFLOPS: Final = column(f"""call_tflops | TFLOP/s | call TFLOP/s
    Mean over calls of their FLOPs over their duration, each call with the same weight;
    model_tflops is all FLOPs over all time.
    missing: {_MODELLED}
    source: {_SOURCE}""")
MODEL_BYTES: Final = column(f"""model_bytes | B | bytes | sum
    Modelled bytes of the row's calls: every tensor that an operator reads or writes counts
    once, at the size of its type.
    missing: {_NO_BYTES}
    source: {_SOURCE}""")
MODEL_TBPS: Final = column(f"""model_tbps | TB/s | TB/s
    model_bytes over the durations of all kernels of their calls, helpers too.
    missing: {_NO_BYTES}
    source: {_SOURCE}""")
MODEL_INTENSITY: Final = column(f"""model_intensity | FLOP/B | model FLOP/B
    Modelled arithmetic intensity: FLOPs over modelled bytes of the calls that have both.
    missing: {_NO_BYTES}
    source: {_SOURCE}""")
BOUND: Final = column(f"""bound | | bound
    The roof over the row's intensity: compute where the FLOPs at the peak of their type take
    longer than the bytes at the memory's bandwidth, else memory.
    missing: {_NO_ROOF}
    source: {_WITH_HARDWARE}""")
OF_MODEL_ROOF: Final = column(f"""model_roof_pct | % | model roof %
    The time that the roofline's limit needs for the modelled work, in % of the durations of
    all kernels of its calls: the longer of FLOPs at peak and bytes at the memory's bandwidth.
    missing: {_NO_ROOF}
    source: {_WITH_HARDWARE}""")
OF_BANDWIDTH: Final = column(f"""bandwidth_pct | % | HBM %
    model_tbps in % of the memory's bandwidth; above 100: the caches served a part.
    missing: {_NO_BYTES}, or the GPU is not in hardware.toml
    source: {_WITH_HARDWARE}""")
OF_ACHIEVABLE: Final = column(f"""achievable_pct | % | achiev. %
    model_tflops in % of the rate that the best matrix products of the type were measured at on
    this GPU (achievable_tflops in hardware.toml, or --hardware FILE).
    missing: {_MODELLED}, or no achievable_tflops is known for the GPU and the type
    source: {_WITH_HARDWARE}""")
SERVED: Final = column("""served_by | | served by
    The kernel that takes most of the row's time, and how many others served its calls.
    missing: the row has no kernel""")
HIPBLASLT: Final = column(f"""hipblaslt | | hipblaslt-bench
    A hipblaslt-bench command that runs the row's shape.
    missing: the row is no matrix product with one shape and recorded types
    source: {_SOURCE}""")
TORCH: Final = column(f"""torch | | torch benchmark
    A command that times the row's shape with PyTorch.
    missing: the row has no shape whose operands PyTorch can make again
    source: {_SOURCE}""")


class ShapeLabels(Struct, frozen=True, eq=False):
    """The labels of a run's activities by shape: texts, and a code for each shape and kernel."""

    texts: tuple[str, ...]
    shapes: tuple[CallShape | None, ...]
    """The shape of each text, None for activities without one."""
    of_shape: Int64
    """Position in `texts` of each of the table's shapes."""
    of_kernel: Int64
    """The same of each kernel name, for its activities without a shape."""

    @classmethod
    def of(cls, run: Run) -> ShapeLabels:
        return run.memo(("shape labels",), lambda: cls.of_table(run.table))

    @classmethod
    def of_table(cls, table: KernelTable) -> ShapeLabels:
        places: dict[str, int] = {}
        shapes: list[CallShape | None] = []

        def place(text: str, shape: CallShape | None) -> int:
            if text not in places:
                places[text] = len(places)
                shapes.append(shape)
            return places[text]

        of_shape = [place(shape.label, shape) for shape in table.shapes]
        of_kernel = [place(_without_shape(name), None) for name in table.names]
        return cls(
            tuple(places),
            tuple(shapes),
            np.array(of_shape, np.int64),
            np.array(of_kernel, np.int64),
        )

    def codes(self, table: KernelTable, rows: Selection) -> Int64:
        """The label of each activity, a position in `texts`."""
        codes = self.of_kernel[table.kernel[rows]]
        given = table.measured.get(CALL_SHAPE)
        if given is not None:
            own = given[rows]
            has = np.isfinite(own)
            codes[has] = self.of_shape[own[has].astype(np.intp)]
        return codes


def _without_shape(kernel: str) -> str:
    """The label of a kernel's activities without a shape: what it fuses, else its class."""
    fused = FUSED.match(kernel)
    if fused and fused["operators"].strip("_"):
        return f"triton {fused['kind']} {fused['operators'].strip('_')}"
    return NO_SHAPE + kernel_class(kernel)


_SUMS: Final = (
    *("calls", "rates", "bytes", "bytes_ns", "both_flops", "both_bytes", "both_ns", "roof_ns"),
    *("achievable_ns", "achievable_of_ns"),
)


def call_sums(nodes: Groups, hardware: Hardware | None) -> dict[str, Float64]:
    """Sums over each group of the modelled work of its calls, in one pass; 0 where none is known.

    `rates` are TFLOP/s of each call, by kernel the part of the call that it is. `…_ns` are
    durations of the calls that have the work; `both_…` of those with FLOPs and bytes. `roof_ns` is
    the time of the latter's FLOPs at the peak, NaN where the peak of one isn't known;
    `achievable_ns` that of all FLOPs whose measured rate is known.
    """
    table, count = nodes.table, len(nodes)
    sums = {name: np.zeros(count) for name in _SUMS}
    if FLOPS not in table.measured and CALL_SHAPE not in table.measured:
        return sums
    shape_flops = np.array([_number(shape.flops) for shape in table.shapes] + [np.nan])
    shape_bytes = np.array([_number(shape.bytes) for shape in table.shapes] + [np.nan])
    is_fused = np.array([isinstance(shape.sizes, Fused) for shape in table.shapes] + [False])

    def given(name: str, rows: Selection, size: int) -> Float64:
        values = table.measured.get(name)
        return np.full(size, np.nan) if values is None else values[rows]

    for rows, group in nodes.pieces():
        flops = given(FLOPS, rows, len(group))
        code = given(CALL_SHAPE, rows, len(group))
        # Few activities of a model have work; the others cost no more than this.
        own = np.flatnonzero(np.isfinite(flops) | np.isfinite(code))
        if not len(own):
            continue
        flops, code, of = flops[own], code[own], group[own]
        duration = given(CALL_NS, rows, len(group))[own]
        alone = np.isnan(duration)
        duration[alone] = table.duration_ns[rows][own][alone]
        element = given(FLOPS_TYPE, rows, len(group))[own]
        shape = np.where(np.isfinite(code), code, -1).astype(np.intp)
        with np.errstate(invalid="ignore", divide="ignore"):
            part = np.where(is_fused[shape], 1.0, flops / shape_flops[shape])
            moved = part * shape_bytes[shape]
            rates = 1e-3 * flops / duration * part
        peak = achievable = np.full(len(own), np.nan)
        if hardware is not None:
            peak = hardware.at_peak_ns(flops, element)
            achievable = hardware.at_achievable_ns(flops, element)
        known = (
            *((part, part), (rates, rates), (moved, moved), (duration, moved)),
            *((each, flops * moved) for each in (flops, moved, duration, peak)),
            *((achievable, achievable), (duration, achievable)),
        )
        for name, (values, of_known) in zip(_SUMS, known, strict=True):
            sums[name] += sums_of(np.where(np.isfinite(of_known), values, 0.0), of, count)
    return sums


def _known(sums: Float64) -> Float64:
    return np.where(sums > 0, sums, np.nan)


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def call_columns(
    sums: Mapping[str, Float64], hardware: Hardware | None
) -> list[tuple[Metric, Values]]:
    memory = hardware.memory_gbps if hardware else np.nan
    with np.errstate(invalid="ignore"):
        memory_ns = _known(sums["both_bytes"]) / memory
        roof_ns = np.where(sums["both_flops"] > 0, sums["roof_ns"], np.nan)
        needed = np.maximum(memory_ns, roof_ns)
    bound = [
        None if not np.isfinite(limit) else "compute" if at_peak >= moving else "memory"
        for limit, at_peak, moving in zip(needed, roof_ns, memory_ns, strict=True)
    ]
    calls = np.rint(sums["calls"]).astype(np.int64)
    return [
        (CALLS, Values(calls, calls == 0)),
        (CALL_TFLOPS, quotient(_known(sums["rates"]), sums["calls"])),
        (MODEL_BYTES, Values(sums["bytes"], sums["bytes_ns"] == 0)),
        (MODEL_TBPS, quotient(sums["bytes"], sums["bytes_ns"], 1e-3)),
        (MODEL_INTENSITY, quotient(_known(sums["both_flops"]), sums["both_bytes"])),
        (BOUND, worded(bound)),
        (OF_MODEL_ROOF, quotient(needed, sums["both_ns"], 100.0)),
        (OF_BANDWIDTH, quotient(_known(sums["bytes"]) / memory, sums["bytes_ns"], 100.0)),
        (OF_ACHIEVABLE, quotient(sums["achievable_ns"], sums["achievable_of_ns"], 100.0)),
    ]


def shape_figures(shapes: Sequence[CallShape | None]) -> list[tuple[Metric, Values]]:
    return [
        (CALL_FLOPS, numbered([shape.flops if shape else None for shape in shapes])),
        (CALL_BYTES, numbered([shape.bytes if shape else None for shape in shapes])),
        (HIPBLASLT, worded([hipblaslt_line(shape) if shape else None for shape in shapes])),
        (TORCH, worded([torch_line(shape) if shape else None for shape in shapes])),
    ]


@add_split("class")
def _classes(table: KernelTable) -> SplitCodes:
    words: dict[str, int] = {}
    of_name = [words.setdefault(kernel_class(name), len(words)) for name in table.names]
    return np.array(of_name, np.int64)[table.kernel], tuple(words)


@add_split("shape")
def _shapes(table: KernelTable) -> SplitCodes:
    labels = ShapeLabels.of_table(table)
    return labels.codes(table, slice(None)), labels.texts
