"""The parts of a step's time: GEMM, attention, vector work and the rest, by phase."""

from __future__ import annotations

import re
from math import prod
from typing import Final

import numpy as np

from chopper_core.align.kernel_classes import ATTENTION_CLASS, OPTIMIZER_CLASS, kernel_class
from chopper_core.model.table import KernelTable, Phase
from chopper_core.util.arrays import AnyArray, Index, Int64

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
_GEMM: Final = re.compile(r"^(?:(?:q|k|v|kv|qkv)_ip|attn_op|(?:mlp|ffn|fc)_(?:[gud]|gu)p|ln?p)$")
_ATTENTION: Final = re.compile(r"^attn_(?:fa|sdpa)$")
_VECTOR: Final = re.compile(
    r"^(?:ie|ln|cel|ra|attn_(?:n|i|c|or|ra)|qkv_(?:s|t|re)|(?:mlp|ffn|fc)_(?:n|gs|gu|ra))$"
)
_OPTIMIZER: Final = re.compile(r"^opt_|^Optimizer\.")
_SHARDING: Final = re.compile(r"^(?:FSDP::|FullyShardedDataParallel\.)")
_RECOMPUTED: Final = " (recompute)"
_OF_KERNELS: Final = {
    "gemm": "GEMM",
    "convolution": "GEMM",
    ATTENTION_CLASS: "attention",
    OPTIMIZER_CLASS: "optimizer",
}
_UNCLASSED: Final = -1


def operation_class(name: str) -> str:
    """The class of an operation of the vocabulary; empty for others, classed by their kernels.

    The rules are those of UnaryLab/chopper's annotations.py with the operations' full names,
    since its own take every name that ends in `p` for a product.
    """
    name = name.removesuffix(_RECOMPUTED)
    for word, pattern in (
        ("GEMM", _GEMM),
        ("attention", _ATTENTION),
        ("vector", _VECTOR),
        ("optimizer", _OPTIMIZER),
        ("sharding copies", _SHARDING),
    ):
        if pattern.search(name):
            return word
    return ""


def _class_of_kernel(name: str) -> str:
    return _OF_KERNELS.get(kernel_class(name), "vector")


def _codes(words: list[str]) -> Int64:
    classes = (*_BY_PHASE, "optimizer", "sharding copies")
    return np.array([classes.index(word) if word else _UNCLASSED for word in words], np.int64)


def part_of(table: KernelTable, rows: Index | slice) -> Int64:
    """The part that each activity's compute belongs to, as a place in `PARTS`."""
    codes = [table.column(name)[rows] for name in ("phase", "operation", "kernel")]
    sizes = (len(Phase) + 1, len(table.operations) + 1, len(table.names) + 1)
    if prod(sizes) > len(codes[0]):
        return _part_of(table, *codes)
    # A code of -1, a missing label, is the last place.
    every = [np.append(np.arange(size - 1), -1).astype(np.int32) for size in sizes]
    known = _part_of(table, *(each.ravel() for each in np.meshgrid(*every, indexing="ij")))
    phase, operation, kernel = codes
    return known.reshape(sizes)[phase, operation, kernel]


def _part_of(table: KernelTable, phase: AnyArray, operation: AnyArray, kernel: AnyArray) -> Int64:
    of_operation = _codes([operation_class(name) for name in table.operations] + [""])
    of_kernel = _codes([_class_of_kernel(name) for name in table.names])
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


def step_times(table: KernelTable, rows: Index | slice, step: Int64, count: int) -> Int64:
    """The ns of each part in each step: steps x parts; `step` numbers the step of each row."""
    part = part_of(table, rows)
    computing = table.compute_ns[rows] + table.overlap_ns[rows]
    places = step * len(PARTS) + part
    times = np.bincount(places, computing, count * len(PARTS)).reshape(count, len(PARTS))
    alone = ("exposed_comm_ns", "exposed_copy_ns", "idle_ns")
    for place, name in enumerate(alone, _COMMUNICATION):
        times[:, place] = np.bincount(step, table.column(name)[rows], count)
    return np.rint(times).astype(np.int64)
