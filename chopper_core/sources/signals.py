"""The tables that every reader of telemetry gives: signals of GPUs over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec import Struct

from chopper_core.sources.trace import Losses
from chopper_core.util.arrays import Float64, Int64


class ClockDomain(StrEnum):
    """Which clock stamps a source."""

    EPOCH = "epoch"
    BOOTTIME = "boottime"
    MONOTONIC = "monotonic"
    LOCAL = "local time without zone"
    UNKNOWN = "unknown"


class SignalName(StrEnum):
    """The signals that Chopper knows, with their unit in the name."""

    GFX_MHZ = "gfx_mhz"
    MEM_MHZ = "mem_mhz"
    POWER_W = "power_w"
    POWER_CAP_W = "power_cap_w"
    ENERGY_J = "energy_j"
    """Accumulated; differences are what counts."""
    HOTSPOT_C = "hotspot_c"
    MEM_C = "mem_c"
    EDGE_C = "edge_c"
    GFX_UTIL_PCT = "gfx_util_pct"
    MEM_UTIL_PCT = "mem_util_pct"
    THROTTLE_PCT = "throttle_pct"
    """Share of time under any limiter."""
    PCIE_BYTES = "pcie_bytes"
    XGMI_READ_BYTES = "xgmi_read_bytes"
    XGMI_WRITE_BYTES = "xgmi_write_bytes"
    """PCIe and xGMI are accumulated, unwrapped."""
    VRAM_BYTES = "vram_bytes"
    ENERGY_RATE_W = "energy_rate_w"
    PCIE_GBPS = "pcie_gbps"
    XGMI_READ_GBPS = "xgmi_read_gbps"
    XGMI_WRITE_GBPS = "xgmi_write_gbps"


RATES: Final[Mapping[SignalName, tuple[SignalName, float]]] = {
    SignalName.ENERGY_J: (SignalName.ENERGY_RATE_W, 1e9),
    SignalName.PCIE_BYTES: (SignalName.PCIE_GBPS, 1.0),
    SignalName.XGMI_READ_BYTES: (SignalName.XGMI_READ_GBPS, 1.0),
    SignalName.XGMI_WRITE_BYTES: (SignalName.XGMI_WRITE_GBPS, 1.0),
}
"""What is accumulated → its rate, and how much of that one per ns is."""


class SignalSamples(Struct, frozen=True):
    """One signal of one GPU; times rise."""

    time_ns: Int64
    value: Float64
    part: str = ""
    """Which instance (`xcd3`) where a signal has several; '' is the GPU's own figure."""
    begin_ns: Int64 | None = None
    """Where each value is the mean from here to its time; None: it is of that moment."""

    def __len__(self) -> int:
        return len(self.time_ns)


class GpuName(Struct, frozen=True):
    """How a file calls a GPU; '' and -1 where it doesn't say."""

    index: int = -1
    """Number among the GPUs, from 0."""
    kfd_node: int = -1
    card: str = ""
    pci: str = ""


class Telemetry(Struct, frozen=True):
    """One telemetry file."""

    path: Path
    format: str
    """For people: `amd-smi metric CSV`, `rocm-smi CSV` …"""
    clock: ClockDomain
    resolution_ns: int
    """Distance of the stamps that the file can tell apart: 1e9 for whole seconds."""
    gpus: Sequence[GpuName]
    signals: Mapping[tuple[int, SignalName], Sequence[SignalSamples]]
    """(number in `gpus`, signal) → its samples, one entry per part."""
    notes: Sequence[str]
    losses: Losses
    to_monotonic_ns: int | None = None
    """What the stamps need to be on CLOCK_MONOTONIC, where the file has both clocks."""
