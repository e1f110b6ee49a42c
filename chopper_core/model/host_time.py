"""Host time: what the launching threads did while their GPUs had nothing to run.

The idle time of each GPU, cut wherever the thread that launches next enters or leaves a runtime
call, an operator, an annotation or a Python frame. The pieces of a gap lie in the idle time that
`accounting` charges to the activity that ends it, and add up to that, to the nanosecond. Copies
that nothing hides are cut in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.table import KernelTable
from chopper_core.util.arrays import Index, Int8, Int32, Int64
from chopper_core.util.grouping import distinct, stable_order


class HostState(IntEnum):
    """The state of the GPU meanwhile."""

    LATE = 0
    """Idle, before the launch call of the activity that ends it: `idle_host_ns`."""
    LAUNCHED = 1
    """Idle, from that call on: `idle_launch_ns`."""
    COPYING = 2
    """Only the copy runs that it belongs to."""


class HostStack(Struct, frozen=True):
    """Where a host thread was: the innermost of each kind, '' without one."""

    call: str = ""
    """A call of the GPU's runtime."""
    operator: str = ""
    annotation: str = ""
    """A user annotation that is not a whole step."""
    frame: str = ""
    """A Python frame of 100 µs or more."""


class HostTime(Struct, frozen=True, eq=False):
    """Pieces of time of the GPUs of a run, in order of GPU and time."""

    stacks: Sequence[HostStack]
    gpu: Int32
    start_ns: Int64
    duration_ns: Int64
    stack: Int32
    """Code of the stack."""
    state: Int8
    """Of `HostState`."""

    def __len__(self) -> int:
        return len(self.gpu)

    def columns(self) -> Mapping[str, Any]:
        """The arrays by name."""
        return {name: getattr(self, name) for name in HOST_COLUMNS}

    def in_memory(self) -> HostTime:
        """The same without the file that it may be mapped from."""
        return replace(self, **{name: values.copy() for name, values in self.columns().items()})

    def moved(self, by_gpu: Int64) -> HostTime:
        """The same with the times of each GPU moved."""
        return replace(self, start_ns=self.start_ns + by_gpu[self.gpu])

    def from_gpu(self, first: int) -> HostTime:
        """The same with GPUs counted from another number."""
        return replace(self, gpu=self.gpu + np.int32(first))

    def owners(self, table: KernelTable, rows: Index) -> Index:
        """The row that each piece is charged to, of some rows of the table; -1 for others'.

        A gap ends where the activity starts that it is charged to.
        """
        found = np.full(len(self), -1, np.intp)
        for states, charged in (
            ((HostState.LATE, HostState.LAUNCHED), table.idle_ns[rows]),
            ((HostState.COPYING,), table.exposed_copy_ns[rows]),
        ):
            own = rows[charged > 0]
            own = own[stable_order(table.start_ns[own])]
            own = own[stable_order(table.gpu[own])]
            pieces = np.flatnonzero(np.isin(self.state, states))
            is_copy = HostState.COPYING in states
            for gpu in distinct(table.gpu[own]).tolist():
                there = own[table.gpu[own] == gpu]
                mine = pieces[self.gpu[pieces] == gpu]
                starts = table.start_ns[there]
                if is_copy:
                    at = np.searchsorted(starts, self.start_ns[mine], "right") - 1
                    ends = starts + table.exposed_copy_ns[there]
                    inside = (at >= 0) & (self.start_ns[mine] < ends[np.maximum(at, 0)])
                else:
                    at = np.searchsorted(starts, self.start_ns[mine], "right")
                    begins = starts - table.idle_ns[there]
                    last = np.minimum(at, len(there) - 1)
                    inside = (at < len(there)) & (self.start_ns[mine] >= begins[last])
                found[mine[inside]] = there[at[inside]]
        return found


HOST_COLUMNS = HostTime.__struct_fields__[1:]
NO_HOST_TIME = HostTime(
    (),
    np.empty(0, np.int32),
    np.empty(0, np.int64),
    np.empty(0, np.int64),
    np.empty(0, np.int32),
    np.empty(0, np.int8),
)


def joined(parts: Sequence[HostTime]) -> HostTime:
    """One of several, of GPUs with rising numbers."""
    codes: dict[HostStack, int] = {}
    recoded = [
        np.array([codes.setdefault(stack, len(codes)) for stack in part.stacks], np.int32)
        for part in parts
    ]
    columns = {
        name: np.concatenate([NO_HOST_TIME.columns()[name], *(getattr(p, name) for p in parts)])
        for name in HOST_COLUMNS
    }
    stack = [own[part.stack] for own, part in zip(recoded, parts, strict=True) if len(part)]
    columns["stack"] = np.concatenate([np.empty(0, np.int32), *stack])
    return HostTime(tuple(codes), **columns)
