"""The records of rocprofv3 JSON that matter, as the SDK serialises them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from chopper_core.sources.trace import ABSENT


class Handle(msgspec.Struct, frozen=True, gc=False):
    """An id."""

    handle: int = ABSENT


class Size(msgspec.Struct, frozen=True, gc=False):
    """Work-items in three directions."""

    x: int = 0
    y: int = 0
    z: int = 0


class Correlation(msgspec.Struct, frozen=True, gc=False):
    """The number that an API call and its dispatches share."""

    internal: int = ABSENT


class DispatchInfo(msgspec.Struct, gc=False):
    """What was dispatched where."""

    kernel_id: int
    agent_id: Handle = Handle()
    queue_id: Handle = Handle()
    dispatch_id: int = ABSENT
    workgroup_size: Size = Size()
    grid_size: Size = Size()


class KernelDispatch(msgspec.Struct, gc=False):
    """An element of `kernel_dispatch`, and the `dispatch_data` of `counter_collection`."""

    dispatch_info: DispatchInfo
    thread_id: int = ABSENT
    correlation_id: Correlation = Correlation()
    start_timestamp: int = ABSENT
    end_timestamp: int = ABSENT


class CounterRecord(msgspec.Struct, gc=False):
    """The value of one instance of a counter."""

    counter_id: Handle
    value: float | None = None


class CounterCollection(msgspec.Struct, gc=False):
    """What was counted for one dispatch."""

    dispatch_data: KernelDispatch
    thread_id: int = ABSENT
    records: list[CounterRecord] = []


class ApiCall(msgspec.Struct, gc=False):
    """A call of the runtime, or a roctx range."""

    start_timestamp: int
    end_timestamp: int
    thread_id: int = ABSENT
    correlation_id: Correlation = Correlation()


class Message(msgspec.Struct, gc=False):
    """The text of a roctx range, by its correlation id."""

    key: int
    value: str


class KernelSymbol(msgspec.Struct, gc=False):
    """The names of a kernel."""

    kernel_id: int
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    kernel_name: str = ""


class CounterDescription(msgspec.Struct, gc=False):
    """What a counter is."""

    id: Handle
    name: str
    description: str = ""


RECORD_TYPES: Final[Mapping[str, Any]] = {
    "agents": dict[str, Any],
    "counters": CounterDescription,
    "kernel_symbols": KernelSymbol,
    "strings/marker_api": Message,
    "callback_records/counter_collection": CounterCollection,
    "buffer_records/kernel_dispatch": KernelDispatch,
    "buffer_records/hip_api": ApiCall,
    "buffer_records/marker_api": ApiCall,
}
"""What the elements of each list are, by the keys that lead to it."""
