"""The host lane: what the threads that launch a GPU's work did over time.

Outermost operators, and runtime calls that don't launch: each on the GPU that its thread launches
for. Times of launches are in the kernel table.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from chopper_core.model.side_table import SideTable
from chopper_core.util.arrays import Int8, Int32, Int64


class HostKind(IntEnum):
    """A kind of host work."""

    OPERATOR = 0
    CALL = 1
    """A call of the GPU's runtime other than a launch, such as one that waits or allocates."""


class HostLane(SideTable, frozen=True, eq=False):
    """Operators and runtime calls of launching threads, in order of GPU, kind and start."""

    FILE = "lane.arrow"
    CODES = ("name",)
    TIMES = ("start_ns",)

    kind: Int8
    """Of `HostKind`."""
    name: Int32
    """Code in `names`."""
    start_ns: Int64
    duration_ns: Int64

    def of(self, gpu: int, kind: HostKind) -> slice:
        """The events of one GPU and kind, in the order of start."""
        begin, end = np.searchsorted(self.gpu, [gpu, gpu + 1]).tolist()
        low, high = np.searchsorted(self.kind[begin:end], [kind, kind + 1]).tolist()
        return slice(begin + low, begin + high)
