"""GPU memory over time: what the framework allocated and released, and for which activity.

An event belongs to the next activity that its thread launches, which it allocates for or makes
room for; after the last launch, to the last one. Its labels are those of that activity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.signals import IntegralCurve, Signal, between
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64, Index, Int8, Int32, Int64

ALLOCATED: Final = "allocated_bytes"
RESERVED: Final = "reserved_bytes"
MEMORY_SIGNALS: Final = {ALLOCATED: ("allocated", "allocated"), RESERVED: ("reserved", "reserved")}
"""Signal → its title, and the column of `MemoryEvents` that it shows."""
NEVER: Final = -1


class MemoryEvents(Struct, frozen=True, eq=False):
    """Allocations and releases on the GPUs of a run, in order of GPU and time."""

    names: Sequence[str]
    """Names of operators and operations."""
    gpu: Int32
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
    """Code of the innermost operator on the host in `names`, or -1."""
    iteration: Int32
    phase: Int8
    layer: Int32
    operation: Int32
    """Code in `names`, or -1."""

    def __len__(self) -> int:
        return len(self.gpu)

    def columns(self) -> Mapping[str, Any]:
        """The arrays by name."""
        return {name: getattr(self, name) for name in MEMORY_COLUMNS}

    def in_memory(self) -> MemoryEvents:
        """The same without the file that it may be mapped from."""
        return replace(self, **{name: values.copy() for name, values in self.columns().items()})

    def moved(self, by_gpu: Int64) -> MemoryEvents:
        """The same with the times of each GPU moved."""
        return replace(self, time_ns=self.time_ns + by_gpu[self.gpu])

    def from_gpu(self, first: int) -> MemoryEvents:
        """The same with GPUs counted from another number."""
        return replace(self, gpu=self.gpu + np.int32(first))

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
        gpus = [int(gpu) for gpu in np.unique(self.gpu)]
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


MEMORY_COLUMNS: Final = MemoryEvents.__struct_fields__[1:]
_NONE: Final = np.empty(0, np.int64)
_NONE_32: Final = np.empty(0, np.int32)
NO_MEMORY: Final = MemoryEvents(
    (),
    _NONE_32,
    _NONE,
    _NONE,
    _NONE,
    _NONE,
    _NONE_32,
    _NONE_32,
    _NONE_32,
    np.empty(0, np.int8),
    _NONE_32,
    _NONE_32,
)


def joined_memory(parts: Sequence[MemoryEvents]) -> MemoryEvents:
    """One of several, of GPUs with rising numbers."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return NO_MEMORY
    names: dict[str, int] = {}
    columns: dict[str, list[Any]] = {name: [] for name in MEMORY_COLUMNS}
    first = 0
    for part in parts:
        codes = np.array([names.setdefault(name, len(names)) for name in part.names], np.int32)
        recoded = np.append(codes, np.int32(-1))
        own = dict(part.columns())
        own["operator"], own["operation"] = recoded[part.operator], recoded[part.operation]
        own["partner"] = np.where(part.partner == NEVER, NEVER, part.partner + first)
        first += len(part)
        for name, values in own.items():
            columns[name].append(values)
    return MemoryEvents(
        tuple(names),
        **{
            name: np.concatenate(values).astype(getattr(parts[0], name).dtype)
            for name, values in columns.items()
        },
    )


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
