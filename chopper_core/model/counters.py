"""Devices and hardware counters as a profiler describes them."""

from __future__ import annotations

from msgspec import Struct


class Agent(Struct, frozen=True):
    """A device as the profiler numbers and describes it; 0 and '' where the file doesn't say."""

    node_id: int
    logical_id: int = -1
    type_index: int = -1
    """Its number among the GPUs, from 0; -1 where unknown."""
    name: str = ""
    """The architecture, such as `gfx942`."""
    product: str = ""
    compute_units: int = 0
    simds_per_cu: int = 0
    xccs: int = 0
    max_clock_mhz: float = 0.0
    pci: str = ""
    """Domain, bus, device and function, as `0000:0c:00.0`."""


class CounterInfo(Struct, frozen=True):
    """What a counter is."""

    name: str
    unit: str = ""
    description: str = ""
    aggregation: str = "sum over instances"
