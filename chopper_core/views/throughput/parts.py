"""The steps of a scope, and the parts of their time: GEMM, attention, vector work and the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.kernel_classes import ATTENTION_CLASS, OPTIMIZER_CLASS, kernel_class
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import KernelTable, Phase
from chopper_core.model.view import View
from chopper_core.util.arrays import AnyArray, Float64, Index, Int64, Mask
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import sums_of
from chopper_core.views.shared.host_causes import moved_idle
from chopper_core.views.shared.step_times import (
    of_steps,
    ranks_of,
    replicas_of,
    tokens_in,
    whole_steps,
)

_BY_PHASE: Final = ("GEMM", "attention", "vector")
_PHASES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.PREFILL, Phase.DECODE)
"""The phases whose compute is divided further."""
PARTS: Final = (
    *(f"{phase.name.lower()} {word}" for phase in _PHASES for word in _BY_PHASE),
    "optimizer",
    "sharding copies",
    "other compute",
    "communication",
    "copies",
    "launch",
)
"""They add up to all time: compute by kind, then exposed communication and copies, then idle."""
_COMMUNICATION: Final = PARTS.index("communication")
_OPERATIONS: Final = {
    "GEMM": re.compile(r"^(?:(?:q|k|v|kv|qkv)_ip|attn_op|(?:mlp|ffn|fc)_(?:[gud]|gu)p|ln?p)$"),
    "attention": re.compile(r"^attn_(?:fa|sdpa)$"),
    "vector": re.compile(
        r"^(?:ie|ln|cel|ra|attn_(?:n|i|c|or|ra)|qkv_(?:s|t|re)|(?:mlp|ffn|fc)_(?:n|gs|gu|ra))$"
    ),
    "optimizer": re.compile(r"^opt_|^Optimizer\."),
    "sharding copies": re.compile(r"^(?:FSDP::|FullyShardedDataParallel\.)"),
}
"""The operations of each class. The rules are those of UnaryLab/chopper's annotations.py with the
operations' full names, since its own take every name that ends in `p` for a product.
"""
_RECOMPUTED: Final = " (recompute)"
_KERNELS: Final = {
    "gemm": "GEMM",
    "convolution": "GEMM",
    ATTENTION_CLASS: "attention",
    OPTIMIZER_CLASS: "optimizer",
}
_CLASSES: Final = tuple(_OPERATIONS)
_UNCLASSED: Final = -1


def operation_class(name: str) -> str:
    """The class of an operation of the vocabulary; empty for others, classed by their kernels."""
    name = name.removesuffix(_RECOMPUTED)
    return next((word for word, known in _OPERATIONS.items() if known.search(name)), "")


def _codes(words: Iterable[str]) -> Int64:
    return np.array([_CLASSES.index(word) if word else _UNCLASSED for word in words], np.int64)


def part_of(table: KernelTable, rows: Index | slice) -> Int64:
    """The part that each activity's compute belongs to, as a place in `PARTS`."""
    phase, operation, kernel = (table.column(n)[rows] for n in ("phase", "operation", "kernel"))
    # A missing label, -1, is the last place.
    of_operation = _codes([*map(operation_class, table.operations), ""])
    of_kernel = _codes(_KERNELS.get(kernel_class(name), "vector") for name in table.names)
    found = of_operation[operation]
    found = np.where(found == _UNCLASSED, of_kernel[kernel], found)
    by_phase = found < len(_BY_PHASE)
    part = np.full(len(found), PARTS.index("other compute"), np.int64)
    for place, each in enumerate(_PHASES):
        here = by_phase & (phase == each)
        part[here] = len(_BY_PHASE) * place + found[here]
    part[(found == len(_BY_PHASE)) | (phase == Phase.OPTIMIZER)] = PARTS.index("optimizer")
    part[found == len(_BY_PHASE) + 1] = PARTS.index("sharding copies")
    return part


def parts_of_steps(steps: Groups) -> Int64:
    """The ns of each part in each step, as steps x parts."""
    table, rows, count = steps.table, steps.selection, len(steps)
    step = np.repeat(np.arange(count), steps.sizes())
    part = part_of(table, rows)
    computing = table.compute_ns[rows] + table.overlap_ns[rows]
    places = step * len(PARTS) + part
    times = sums_of(computing, places, count * len(PARTS)).reshape(count, len(PARTS))
    alone = ("exposed_comm_ns", "exposed_copy_ns", "idle_ns")
    for place, name in enumerate(alone, _COMMUNICATION):
        times[:, place] = sums_of(table.column(name)[rows], step, count)
    return np.rint(times).astype(np.int64)


class StepParts(Struct, frozen=True, eq=False):
    """The iterations of the scope on its GPUs."""

    gpus: list[int]
    iterations: list[int]
    parts_ns: Int64
    """GPUs x iterations x parts."""
    span_ns: Int64
    """GPUs x iterations."""
    there: Mask
    """Where a GPU has the iteration at all."""
    steady: Mask
    """Which iterations are whole on all GPUs."""
    tokens: Float64
    """Per GPU and iteration; NaN where they aren't known."""
    replicas: float
    """Data-parallel replicas per GPU: less than one where GPUs share tokens."""
    ranks: int
    """The GPUs, with those of the job without a trace where all others are here."""

    @property
    def times_ns(self) -> Int64:
        return np.asarray(self.parts_ns.sum(axis=2), np.int64)

    @property
    def each_ns(self) -> Float64:
        """The step time of each iteration: its mean over the GPUs that have it."""
        return np.asarray(self.times_ns.sum(axis=0) / np.maximum(self.there.sum(axis=0), 1))

    @property
    def step_ns(self) -> float:
        """The step time, as of `StepTimes`; NaN without a steady iteration."""
        return float(self.times_ns[:, self.steady].mean()) if self.steady.any() else float("nan")


def steps_of(run: Run, view: View, tokens: int | None = None) -> StepParts:
    """The labelled iterations of the scope's GPUs, whole, whatever else the scope names."""
    steps, gpus, iterations = whole_steps(run, view)
    if not len(iterations):
        raise NothingToShow(
            "the scope has no iterations; throughput needs a trace with steps "
            "(ProfilerStep# or Iteration annotations, or an optimizer)"
        )

    def laid_out(values: AnyArray, empty: float = 0) -> AnyArray:
        return of_steps(steps, gpus, iterations, values, empty)

    there = laid_out(np.ones(len(steps), np.bool_), False)
    # The tokens of a truncated step are unknown: only a query for the step shows its rate.
    whole = ~np.isin(iterations, np.array(() if view.cut else run.truncated(view), np.int64))
    whole &= there.all(axis=0)
    parts = laid_out(parts_of_steps(steps))
    moved = moved_idle(run, View(view.run, cut=view.cut), is_whole=True)
    parts[:, :, PARTS.index("launch")] += moved.by_step(run, gpus, iterations).astype(np.int64)
    return StepParts(
        gpus.tolist(),
        iterations.tolist(),
        parts,
        laid_out(steps.max("end_ns") - steps.min("start_ns")),
        there,
        whole,
        np.full(there.shape, float(tokens))
        if tokens
        else tokens_in(run, gpus.tolist(), iterations.tolist()),
        replicas_of(run),
        ranks_of(run, gpus.tolist()),
    )
