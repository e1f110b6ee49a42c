"""Host activity next to the kernel table: time of launching threads, and allocations of memory.

Host time is the idle time of each GPU, cut wherever the thread that launches next enters or leaves
a runtime call, an operator, an annotation or a Python frame. The pieces of a gap lie in the idle
time that `accounting` charges to the activity that ends it, and add up to that, to the nanosecond.
Copies that nothing hides are cut in the same way. The host lane has outermost operators, and
runtime calls that don't launch, on the GPU that their thread launches for.

A memory event belongs to the next activity that its thread launches, which it allocates for or
makes room for; after the last launch, to the last one. Its labels are those of that activity.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.side_table import SideTable
from chopper_core.model.signals import IntegralCurve, Signal, between
from chopper_core.model.table import KernelTable
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64, Index, Int8, Int32, Int64
from chopper_core.util.grouping import distinct, stable_order

ALLOCATED: Final = "allocated_bytes"
RESERVED: Final = "reserved_bytes"
MEMORY_SIGNALS: Final = {ALLOCATED: ("allocated", "allocated"), RESERVED: ("reserved", "reserved")}
"""Signal → its title, and the column of `MemoryEvents` that it shows."""
NEVER: Final = -1


class HostState(IntEnum):
    """The state of the GPU during that time."""

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


class HostTime(SideTable, frozen=True, eq=False):
    """Pieces of time of the GPUs of a run, in order of GPU and time."""

    FILE = "host.arrow"
    NAME = HostStack
    CODES = ("stack",)
    TIMES = ("start_ns",)

    start_ns: Int64
    duration_ns: Int64
    stack: Int32
    """Code of the stack."""
    state: Int8
    """Of `HostState`."""

    @property
    def stacks(self) -> Sequence[HostStack]:
        return self.names

    def owners(self, table: KernelTable, rows: Index) -> Index:
        """The row that each piece is charged to, of some rows of the table; -1 for others'.

        A gap ends where the activity starts that it is charged to.
        """
        found = np.full(len(self), -1, np.intp)
        for states, charged in (
            ((HostState.LATE, HostState.LAUNCHED), table.idle_ns[rows]),
            ((HostState.COPYING,), table.exposed_copy_ns[rows]),
        ):
            own, length = rows[charged > 0], charged[charged > 0]
            pieces = np.flatnonzero(np.isin(self.state, states))
            if not len(own) or not len(pieces):
                continue
            starts, wanted = table.start_ns[own], self.start_ns[pieces]
            is_copy = HostState.COPYING in states
            begins = starts if is_copy else starts - length
            # GPU after GPU on one axis: no time of one is beyond those of the next.
            first = min(int(begins.min()), int(wanted.min()))
            width = max(int((begins + length).max()), int(wanted.max())) - first + 1
            place = table.gpu[own].astype(np.int64) * width + (begins - first)
            order = stable_order(place)
            own, place, length = own[order], place[order], length[order]
            at_piece = self.gpu[pieces].astype(np.int64) * width + (wanted - first)
            at = np.searchsorted(place, at_piece, "right") - 1
            at_row = np.maximum(at, 0)
            inside = (at >= 0) & (at_piece < place[at_row] + length[at_row])
            found[pieces[inside]] = own[at[inside]]
        return found


class HostSteps(SideTable, frozen=True, eq=False):
    """The annotated iterations of the host that launches each GPU's work, in order of GPU and time.

    They don't overlap; where the host is in no annotation, there is none.
    """

    FILE = "steps.arrow"
    TIMES = ("start_ns",)

    start_ns: Int64
    duration_ns: Int64
    iteration: Int32


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


class MemoryEvents(SideTable, frozen=True, eq=False):
    """Allocations and releases on the GPUs of a run, in order of GPU and time."""

    FILE = "memory.arrow"
    CODES = ("operator", "operation")
    TIMES = ("time_ns",)
    ROWS = ("partner",)

    time_ns: Int64
    """On the host: the GPU uses the memory when it gets there."""
    bytes: Int64
    """Negative where memory is released."""
    allocated: Int64
    """Bytes that are allocated on the GPU from then on."""
    reserved: Int64
    """Bytes that the framework's allocator holds of the GPU from then on."""
    partner: Int32
    """The event that releases or allocated the same memory; `NEVER` without one in the trace."""
    operator: Int32
    """Code of the innermost operator on the host, or -1."""
    iteration: Int32
    phase: Int8
    layer: Int32
    operation: Int32
    """Code of a name, or -1."""

    def alive(self, at: int) -> Index:
        """The allocations whose memory is still allocated right after an event of their GPU."""
        rows = np.arange(self.of_gpu(int(self.gpu[at])).start, at + 1)
        partner = self.partner[rows]
        alive: Index = rows[(self.bytes[rows] > 0) & ((partner == NEVER) | (partner > at))]
        return alive

    def signals(self) -> dict[str, Signal]:
        if not len(self):
            return {}
        gpus = [int(gpu) for gpu in distinct(self.gpu)]
        return {
            name: Signal(
                name,
                title,
                Unit.BYTES,
                {gpu: self._curve(gpu, getattr(self, column)) for gpu in gpus},
                0.0,
                float(getattr(self, column).max()),
            )
            for name, (title, column) in MEMORY_SIGNALS.items()
        }

    def _curve(self, gpu: int, values: Int64) -> IntegralCurve:
        own = self.of_gpu(gpu)
        times = self.time_ns[own]
        # Of events at one moment the last one counts.
        last = np.flatnonzero(np.append(times[1:] > times[:-1], True))
        begins = times[last]
        ends = np.append(begins[1:], begins[-1] + 1)
        return between(begins, ends, values[own][last].astype(np.float64))


def largest_between(values: Int64, begins: Index, ends: Index) -> Float64:
    """The largest of the values in each range [begin, end); NaN for an empty one."""
    found = np.full(len(begins), np.nan)
    some = np.flatnonzero(ends > begins)
    if not len(some):
        return found
    # Ranges overlap by one value at most: each second of the bounds ends one.
    bounds = np.stack([begins[some], ends[some]], axis=1).ravel()
    padded = np.append(values, np.iinfo(np.int64).min)
    found[some] = np.maximum.reduceat(padded, bounds)[::2]
    return found
