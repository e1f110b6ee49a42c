"""Whether activities do the same work: the same kernels, of the same names, shapes and FLOPs.

A figure is compared with that of others only where all do the same, as far as the trace tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from chopper_core.model.column_names import CALL_SHAPE, FLOPS
from chopper_core.model.table import KernelTable, Selection
from chopper_core.util.arrays import Index, Int64, Mask
from chopper_core.util.grouping import hashes

_SIZES: Final = (CALL_SHAPE, FLOPS)
_MIXER: Final = np.uint64(0x9E3779B97F4A7C15)
_SHAPE_FACTOR: Final = 0x2545F4914F6CDD1D
_SPARE_BITS: Final = 15
"""Of 63, so that 32 thousand of them can be added."""


def knows_sizes(table: KernelTable) -> bool:
    """Whether the trace tells shapes or FLOPs, so that more than names can be compared."""
    return any(name in table.measured for name in _SIZES)


def is_same_work(table: KernelTable, parts: Sequence[Index]) -> Mask:
    """Whether rows side by side do the same: equal sizes, and equal names where some are unknown.

    An autotuner may choose kernels of other names for the same product.
    """
    first = parts[0]
    same, known = np.ones(len(first), np.bool_), np.zeros(len(first), np.bool_)
    for name in _SIZES:
        if name in table.measured:
            sizes = [np.nan_to_num(table.measured[name][rows], nan=-1.0) for rows in parts]
            usual = np.maximum.reduce(sizes)
            for own in sizes:
                same &= (own == usual) | (own < 0)
            known |= np.minimum.reduce(sizes) >= 0
    for rows in parts[1:]:
        same &= known | (table.kernel[rows] == table.kernel[first])
    return same


def work_of(table: KernelTable, rows: Selection) -> Int64:
    """A number per activity, equal for the same kernel; sums differ where the kernels do."""
    found = hashes(len(table.names))[table.kernel[rows]]
    if CALL_SHAPE in table.measured:
        # FLOPs follow from the shape of a call and the kernel.
        shape = np.nan_to_num(table.measured[CALL_SHAPE][rows], nan=-1.0).astype(np.int64) + 1
        found = found + (hashes(int(shape.max(initial=0)) + 1) * _SHAPE_FACTOR)[shape]
    elif FLOPS in table.measured:
        flops = np.nan_to_num(table.measured[FLOPS][rows], nan=-1.0).view(np.uint64)
        found = found + ((flops * _MIXER) >> np.uint64(1)).astype(np.int64)
    return (found & np.iinfo(np.int64).max) >> _SPARE_BITS
