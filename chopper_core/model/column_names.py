"""The names of the measured columns of the kernel table: from counters, telemetry and shapes.

A hardware counter's column has the counter's own name (`SQ_WAVES`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from chopper_core.model.hardware import ElementType
from chopper_core.util.patterns import late

FLOPS: Final = "model_flops"
"""Floating-point operations of the model (model FLOPs)."""
FLOPS_TYPE: Final = "model_flops_type"
"""The type of their operands, a code of `ElementType`."""
MODEL_BYTES: Final = "model_bytes"
"""The bytes that the model reads and writes, each tensor of a call once."""
CALL_NS: Final = "call_ns"
"""The durations of all kernels of its call, helpers too, by its share of the call's work."""
CALL_SHAPE: Final = "call_shape"
"""The shape of the operator call that launched an activity: a position in the table's `shapes`."""
MODULES: Final = "modules"
"""The modules around the launch, outermost first and by class: a code of the table's `names`."""
AT_PEAK: Final = "model_flops_peak_ns"
"""Their time at the peak of their type."""
REGISTERS: Final = "registers"
LDS: Final = "lds_bytes"
GRID: Final = "grid"
"""Workgroups of a launch."""
BLOCK: Final = "block"
"""Work-items per workgroup."""
PART_OF: Final = "part_of"
"""The number of the row that a finding is a part of."""
CORRELATION: Final = "correlation"
"""The profiler's correlation id of the launch; only while a run is aligned."""
PASSING: Final = (CORRELATION,)
"""Columns that are dropped from a finished run."""
TOKENS: Final = "tokens"
"""Tokens that enter the model with an activity."""
REQUESTS: Final = "requests"
"""Requests in the batch of an inference step, at one activity of the step."""
HOTSPOT: Final = "hotspot_c"
EDGE: Final = "edge_c"
"""The temperatures of a GPU; many tools write that of the edge alone."""
HEAT: Final = (HOTSPOT, EDGE)
ALLOC_BYTES: Final = "alloc_bytes"
"""Bytes that were allocated for an activity."""
PEAK_BYTES: Final = "peak_bytes"
"""The most bytes allocated on its GPU since the launch before it, up to its own."""
FRAGMENTATION_BYTES: Final = "fragmentation_bytes"
"""The most bytes reserved there but not allocated."""
COUNTER_DURATION: Final = "counter_duration_ns"
"""Duration of the dispatch in the counter run."""
COUNTER_MATCH: Final = "counter_match"
"""How the dispatch was matched, a code of `Match`."""
MICROBATCH: Final = "microbatch"
"""The microbatch of an operation in a dump of a pipeline schedule."""
CHUNK: Final = "model_chunk"
"""The part of a stage's model that an operation of an interleaved schedule belongs to."""
STEP_WINDOW: Final = "step_window_ns"
"""How long a step took on a rank by a dump, at its first operation."""
NODE: Final = "node"
"""The number by which `model.attributes` refers to an activity."""
ENERGY: Final = "energy_j"
HELD: Final = "energy_j held"
"""The ns of a row's time before the first or after the last sample of the power, which count with
that sample's power."""
CYCLES: Final = "GRBM_GUI_ACTIVE"
"""Busy cycles of the GPU, summed over its XCCs."""
MATRIX_OPS: Final = "SQ_INSTS_VALU_MFMA_MOPS_BF16"
"""The only matrix counter that the original Chopper reads."""
MATRIX_COUNTERS: Final[Mapping[ElementType, str]] = {
    element: f"SQ_INSTS_VALU_MFMA_MOPS_{suffix}"
    for element, suffix in (
        (ElementType.FP64, "F64"),
        (ElementType.FP32, "F32"),
        (ElementType.TF32, "XF32"),
        (ElementType.FP16, "F16"),
        (ElementType.BF16, "BF16"),
        (ElementType.FP8, "F8"),
        (ElementType.INT8, "I8"),
        (ElementType.FP4, "F6F4"),
    )
}
"""The counters of executed matrix operations by the type of the operands."""
OPS_PER_COUNT: Final = 512
"""Floating-point operations behind one count of a MOPS counter."""
RECOMPUTED_FLOPS: Final = "recomputed_flops"
RECOMPUTED_AT_PEAK: Final = "recomputed_peak_ns"
"""Of recomputation, as `AT_PEAK` of all FLOPs: of whole durations, not of the charged time."""
"""Those of `FLOPS` that are of recomputation; only in a run that recomputes."""
RECOMPUTED: Final = "recompute_ns"
"""A part of `BREAKDOWN`, in a run that recomputes."""
BREAKDOWN: Final = (
    "theoretical_ns",
    "extra_inst_ns",
    "mfma_loss_ns",
    "vector_ns",
    "contention_ns",
    "frequency_ns",
    "unseparated_ns",
    "unmodelled_ns",
)
"""The parts that the time charged to compute splits into; they add up to it."""


NO_TIMES: Final = (
    "the counter run has no dispatch times; they are in the kernel trace of the same run"
)


AWAITED: Final = "telemetry is being joined"
"""Why a column has its place before its figures."""
NO_STARTS: Final = "those of this run are a schedule along dependencies"


class Match(IntEnum):
    """How an activity got its counters."""

    NONE = 0
    MATCHED = 1
    BORROWED = 2
    AMBIGUOUS = 3


_COUNTER: Final = late(r"[A-Z][A-Z0-9]*(?:_[A-Za-z0-9]+)+")


SAMPLED: Final = "sampled"
"""The signal whose parts are figures of sampled counters: `sampled.mfma_util_pct`."""
COUNTS_PER_US: Final = "counts_per_us"
"""The signal of sampled counters, whose parts are counters: `counts_per_us.SQ_WAVES`."""


def part_of(signal: str, part: str) -> str:
    """The name of a part's signal, such as `gfx_mhz.xcd3`; the GPU's own for ''."""
    return f"{signal}.{part}" if part else signal


def is_part(name: str) -> bool:
    return "." in name


def integral_of(signal: str) -> str:
    """The column of a signal's integral (value times ns) over each activity."""
    return f"{signal} integral"


def known_of(signal: str) -> str:
    """The column of the ns of each activity in which a signal is known."""
    return f"{signal} known"


def samples_in(signal: str) -> str:
    """The column of the number of sample edges of a signal within each activity."""
    return f"{signal} samples"


def is_counter(name: str) -> bool:
    return _COUNTER.fullmatch(name) is not None


def is_counted(name: str) -> bool:
    """Whether a measured column is a counter, including derived ones (`MfmaUtil`) and CUPTI's."""
    return name[:1].isupper() or "__" in name


STEP_PART: Final = "part"
"""The level of rows that are the parts of a step, such as `low clock`."""
