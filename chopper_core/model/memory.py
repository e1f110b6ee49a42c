"""GPU memory over time: what the framework allocated and released, and for which activity.

An event belongs to the next activity that its thread launches, which it allocates for or makes
room for; after the last launch, to the last one. Its labels are those of that activity.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.model.side_table import SideTable
from chopper_core.model.signals import IntegralCurve, Signal, between
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64, Index, Int8, Int32, Int64
from chopper_core.util.grouping import distinct

ALLOCATED: Final = "allocated_bytes"
RESERVED: Final = "reserved_bytes"
MEMORY_SIGNALS: Final = {ALLOCATED: ("allocated", "allocated"), RESERVED: ("reserved", "reserved")}
"""Signal → its title, and the column of `MemoryEvents` that it shows."""
NEVER: Final = -1


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

    def of_gpu(self, gpu: int) -> slice:
        """The events of one GPU."""
        begin, end = np.searchsorted(self.gpu, [gpu, gpu + 1]).tolist()
        return slice(begin, end)

    def alive(self, at: int) -> Index:
        """The allocations whose memory is still allocated right after an event of their GPU."""
        rows = np.arange(self.of_gpu(int(self.gpu[at])).start, at + 1)
        partner = self.partner[rows]
        alive: Index = rows[(self.bytes[rows] > 0) & ((partner == NEVER) | (partner > at))]
        return alive

    def signals(self) -> dict[str, Signal]:
        """Bytes allocated and reserved on each GPU, from one event to the next."""
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
