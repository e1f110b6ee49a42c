"""What the categories and names of Kineto's events mean, in today's spelling and in older ones.

Spellings: libkineto's `ActivityType.cpp` and `output_json.cpp`; `Operator`, `Runtime`, `Kernel`,
`Memcpy` and `Memset` are those of torch 1.8, known to its TensorBoard plugin (`EventTypes`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from chopper_core.sources.trace import ABSENT, ActivityCategory, HostCategory

ACTIVITY_CATEGORIES: Final[Mapping[str, int]] = {
    "kernel": int(ActivityCategory.KERNEL),
    "Kernel": int(ActivityCategory.KERNEL),
    "gpu_memcpy": int(ActivityCategory.MEMCPY),
    "Memcpy": int(ActivityCategory.MEMCPY),
    "gpu_memset": int(ActivityCategory.MEMSET),
    "Memset": int(ActivityCategory.MEMSET),
}
LAUNCH_CATEGORIES: Final = frozenset(
    ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "Runtime")
)
RANGE_CATEGORIES: Final[Mapping[str, int]] = {
    "cpu_op": int(HostCategory.OPERATOR),
    "Operator": int(HostCategory.OPERATOR),
    "user_annotation": int(HostCategory.ANNOTATION),
}
FRAME_CATEGORY: Final = "python_function"

FORWARD_BACKWARD: Final = "fwdbwd"
HOST_DEVICE: Final = "ac2g"
FLOW_CATEGORIES: Final[Mapping[str, str]] = {
    "fwdbwd": FORWARD_BACKWARD,
    "fwd_bwd": FORWARD_BACKWARD,
    "forward_backward": FORWARD_BACKWARD,
    "ac2g": HOST_DEVICE,
    "async_gpu": HOST_DEVICE,
    "async_cpu_to_gpu": HOST_DEVICE,
}

CATEGORIES: Final = (
    *ACTIVITY_CATEGORIES,
    *LAUNCH_CATEGORIES,
    *RANGE_CATEGORIES,
    FRAME_CATEGORY,
    *FLOW_CATEGORIES,
    "gpu_user_annotation",
)
"""Those that come often."""

_MODULE_PREFIX: Final = "nn.Module: "
_RECOMPUTE_FRAME: Final = re.compile(
    r"(?:checkpoint(?:ing)?|tensor_parallel/random)\.py\(\d+\): (?:recompute_fn|backward)$"
)
_SHAPED_OPERATOR: Final = re.compile(
    r"mm(?:[_.<]|$)|matmul|linear|attention|attn|conv|embedding", re.I
)
_TYPED_OPERATOR: Final = re.compile(
    r"^aten::(?:linear|(?:add|_scaled_|_int_)?mm|(?:badd)?bmm)$|attention|attn|conv", re.I
)


class FrameKinds(dict[str, int]):
    """Which kind of host range a Python frame is, by its name; ABSENT for those not kept."""

    def __missing__(self, name: str) -> int:
        kind = ABSENT
        if name.startswith(_MODULE_PREFIX):
            kind = HostCategory.MODULE
        elif _RECOMPUTE_FRAME.search(name):
            kind = HostCategory.RECOMPUTE
        self[name] = kind
        return kind


class Kept(IntEnum):
    """What is kept of an operator's inputs."""

    NOTHING = 0
    SHAPES = 1
    ALL = 2
    """Their shapes, types and, of those that are no tensors, values."""


def kept_inputs(name: str) -> int:
    """Return what is kept of the inputs of an operator of this name."""
    if not _SHAPED_OPERATOR.search(name):
        return int(Kept.NOTHING)
    return int(Kept.ALL if _TYPED_OPERATOR.search(name) else Kept.SHAPES)
