"""The host lane: what the threads that launch a GPU's work did over time.

Outermost operators, and runtime calls that don't launch: each on the GPU that its thread launches
for. Times of launches are in the kernel table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.util.arrays import Int8, Int32, Int64


class HostKind(IntEnum):
    """What a host does."""

    OPERATOR = 0
    CALL = 1
    """A call of the GPU's runtime other than a launch, such as one that waits or allocates."""


class HostLane(Struct, frozen=True, eq=False):
    """Operators and runtime calls of launching threads, in order of GPU, kind and start."""

    names: Sequence[str]
    gpu: Int32
    kind: Int8
    """Of `HostKind`."""
    name: Int32
    """Code in `names`."""
    start_ns: Int64
    duration_ns: Int64

    def __len__(self) -> int:
        return len(self.gpu)

    def columns(self) -> Mapping[str, Any]:
        """The arrays by name."""
        return {name: getattr(self, name) for name in LANE_COLUMNS}

    def in_memory(self) -> HostLane:
        """The same without the file that it may be mapped from."""
        return replace(self, **{name: values.copy() for name, values in self.columns().items()})

    def moved(self, by_gpu: Int64) -> HostLane:
        """The same with the times of each GPU moved."""
        return replace(self, start_ns=self.start_ns + by_gpu[self.gpu])

    def from_gpu(self, first: int) -> HostLane:
        """The same with GPUs counted from another number."""
        return replace(self, gpu=self.gpu + np.int32(first))

    def of(self, gpu: int, kind: HostKind) -> slice:
        """The events of one GPU and kind, in the order of start."""
        begin, end = np.searchsorted(self.gpu, [gpu, gpu + 1]).tolist()
        low, high = np.searchsorted(self.kind[begin:end], [kind, kind + 1]).tolist()
        return slice(begin + low, begin + high)


LANE_COLUMNS: Final = HostLane.__struct_fields__[1:]
NO_LANE: Final = HostLane(
    (),
    np.empty(0, np.int32),
    np.empty(0, np.int8),
    np.empty(0, np.int32),
    np.empty(0, np.int64),
    np.empty(0, np.int64),
)


def joined_lanes(parts: Sequence[HostLane]) -> HostLane:
    """One of several, of GPUs with rising numbers."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return NO_LANE
    names: dict[str, int] = {}
    codes = [
        np.array([names.setdefault(name, len(names)) for name in part.names], np.int32)
        for part in parts
    ]
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in LANE_COLUMNS
    }
    columns["name"] = np.concatenate(
        [own[part.name] for own, part in zip(codes, parts, strict=True)]
    )
    return HostLane(tuple(names), **columns)
