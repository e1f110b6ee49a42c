"""What compute on a lane does: its time by class of kernel, for the timeline's colours."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.align.kernel_classes import ATTENTION_CLASS, OPTIMIZER_CLASS, kernel_class
from chopper_core.model.run import Run
from chopper_core.model.table import Kind
from chopper_core.util.arrays import Int8
from chopper_core.views.timeline.lanes import BusyTime, Lane

CLASS_NAMES: Final = (
    "GEMM",
    "attention",
    "elementwise, norm",
    "copy kernels",
    "optimizer",
    "other",
)
"""The classes that the timeline tells apart; every other class of compute is in the last."""
_GROUPS: Final = {
    **dict.fromkeys(("gemm", "convolution"), 0),
    ATTENTION_CLASS: 1,
    **dict.fromkeys(("elementwise", "norm", "softmax", "reduction", "rope", "quantize"), 2),
    "copy": 3,
    OPTIMIZER_CLASS: 4,
}
_CACHED: Final = 256
_OTHER: Final = len(CLASS_NAMES) - 1


def busy_by_class(run: Run, lane: Lane) -> tuple[BusyTime, ...]:
    """When compute of each of `CLASS_NAMES` runs on a lane; cached with the lane."""
    key = ("timeline classes", lane.gpu, lane.stream, len(lane.rows), int(lane.rows[:1].sum()))

    def found() -> tuple[BusyTime, ...]:
        of_name = run.memo(("timeline class of name",), lambda: _classes(run))
        group = of_name[run.table.kernel[lane.rows]]
        group[run.table.kind[lane.rows] != Kind.COMPUTE] = len(CLASS_NAMES)
        return tuple(
            BusyTime.of(lane.starts_ns[own], lane.ends_ns[own])
            for own in (group == code for code in range(len(CLASS_NAMES)))
        )

    return run.memo(key, found, _CACHED)


def _classes(run: Run) -> Int8:
    """The group of each kernel name."""
    return np.array([_GROUPS.get(kernel_class(name), _OTHER) for name in run.table.names], np.int8)
