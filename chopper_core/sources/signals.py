"""Tables that all readers of telemetry return: signals of GPUs over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec import Struct

from chopper_core.model.doubts import Doubt
from chopper_core.tables.losses import Losses
from chopper_core.util.arrays import Float64, Int64


class ClockDomain(StrEnum):
    """The clock of a source's time stamps."""

    EPOCH = "epoch"
    BOOTTIME = "boottime"
    MONOTONIC = "monotonic"
    LOCAL = "local time without zone"
    UNKNOWN = "unknown"


class SignalName(StrEnum):
    """The known signals, with their unit in the name."""

    GFX_MHZ = "gfx_mhz"
    MEM_MHZ = "mem_mhz"
    POWER_W = "power_w"
    POWER_CAP_W = "power_cap_w"
    MEM_POWER_W = "mem_power_w"
    ENERGY_J = "energy_j"
    """Accumulated: only differences have a meaning."""
    HOTSPOT_C = "hotspot_c"
    MEM_C = "mem_c"
    EDGE_C = "edge_c"
    GFX_UTIL_PCT = "gfx_util_pct"
    MEM_UTIL_PCT = "mem_util_pct"
    SM_ACTIVE_PCT = "sm_active_pct"
    TENSOR_ACTIVE_PCT = "tensor_active_pct"
    THROTTLE_PCT = "throttle_pct"
    """Share of time under any limiter."""
    PCIE_BYTES = "pcie_bytes"
    XGMI_READ_BYTES = "xgmi_read_bytes"
    XGMI_WRITE_BYTES = "xgmi_write_bytes"
    NVLINK_READ_BYTES = "nvlink_read_bytes"
    NVLINK_WRITE_BYTES = "nvlink_write_bytes"
    """PCIe, xGMI and NVLink are accumulated, unwrapped."""
    VRAM_BYTES = "vram_bytes"
    FAN_PCT = "fan_pct"
    IB_READ_BYTES = "ib_read_bytes"
    IB_WRITE_BYTES = "ib_write_bytes"
    """InfiniBand's network devices of a node: accumulated, without RDMA, which passes them by."""
    IB_READ_GBPS = "ib_read_gbps"
    IB_WRITE_GBPS = "ib_write_gbps"
    CPU_IDLE_S = "cpu_idle_s"
    CPU_IOWAIT_S = "cpu_iowait_s"
    """Accumulated seconds of a processor."""
    CPU_C = "cpu_c"
    HOST_MEMORY_BYTES = "host_memory_bytes"
    HOST_FREE_BYTES = "host_free_bytes"
    ENERGY_RATE_W = "energy_rate_w"
    PCIE_GBPS = "pcie_gbps"
    XGMI_READ_GBPS = "xgmi_read_gbps"
    XGMI_WRITE_GBPS = "xgmi_write_gbps"
    NVLINK_READ_GBPS = "nvlink_read_gbps"
    NVLINK_WRITE_GBPS = "nvlink_write_gbps"
    NVLINK_GBPS = "nvlink_gbps"
    """In both directions, where a file doesn't tell them apart."""


RATES: Final[Mapping[SignalName, tuple[SignalName, float]]] = {
    SignalName.ENERGY_J: (SignalName.ENERGY_RATE_W, 1e9),
    SignalName.PCIE_BYTES: (SignalName.PCIE_GBPS, 1.0),
    SignalName.XGMI_READ_BYTES: (SignalName.XGMI_READ_GBPS, 1.0),
    SignalName.XGMI_WRITE_BYTES: (SignalName.XGMI_WRITE_GBPS, 1.0),
    SignalName.NVLINK_READ_BYTES: (SignalName.NVLINK_READ_GBPS, 1.0),
    SignalName.NVLINK_WRITE_BYTES: (SignalName.NVLINK_WRITE_GBPS, 1.0),
    SignalName.IB_READ_BYTES: (SignalName.IB_READ_GBPS, 1.0),
    SignalName.IB_WRITE_BYTES: (SignalName.IB_WRITE_GBPS, 1.0),
}
"""Accumulated signal → its rate, and the factor from units per ns to the rate's unit."""


COUNTED: Final = frozenset(
    (
        *RATES,
        SignalName.CPU_IDLE_S,
        SignalName.CPU_IOWAIT_S,
    )
)
"""Accumulated signals, whose differences alone have a meaning."""


class SignalSamples(Struct, frozen=True):
    """A signal of a GPU; times ascend."""

    time_ns: Int64
    value: Float64
    part: str = ""
    """Instance (`xcd3`) of a signal with several; '' for the GPU's own value."""
    begin_ns: Int64 | None = None
    """Start of the span whose mean each value is; None for instantaneous values."""

    def __len__(self) -> int:
        return len(self.time_ns)


UNNAMED_GPU: Final = "unnamed"
"""The name for overrides of a device that its source doesn't name."""


class GpuName(Struct, frozen=True):
    """The names of a GPU in a file; '' and -1 where unknown."""

    index: int = -1
    """GPU index from 0."""
    kfd_node: int = -1
    """The same as the HSA node."""
    card: str = ""
    pci: str = ""
    model: str = ""
    """The product, which tells no GPU from another."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names for overrides; the first one is its plain number."""
        plain = self.index if self.index >= 0 else self.kfd_node
        names = (
            str(plain) if plain >= 0 else "",
            f"node{self.kfd_node}" if self.kfd_node >= 0 else "",
            self.card.casefold(),
            self.pci.casefold(),
        )
        return tuple(name for name in names if name) or (UNNAMED_GPU,)

    @property
    def text(self) -> str:
        parts = (
            f"gpu {self.index}" if self.index >= 0 else "",
            f"node {self.kfd_node}" if self.kfd_node >= 0 else "",
            self.card,
            self.pci,
        )
        return ", ".join(part for part in parts if part) or UNNAMED_GPU


class Telemetry(Struct, frozen=True):
    """One telemetry file."""

    path: Path
    format: str
    """For people: `amd-smi metric CSV`, `rocm-smi CSV` …"""
    clock: ClockDomain
    resolution_ns: int
    """Smallest difference between stamps: 1e9 for whole seconds."""
    gpus: Sequence[GpuName]
    signals: Mapping[tuple[int, SignalName], Sequence[SignalSamples]]
    """(index into `gpus`, signal) → its samples, one entry per part."""
    notes: Sequence[str]
    losses: Losses
    unused: Mapping[str, int] = {}
    """The number of values of each field that no signal is read from."""
    to_monotonic_ns: int | None = None
    """Add to the stamps to get CLOCK_MONOTONIC, where the file has both clocks."""
    is_held: bool = False
    """Whether a sample holds until the next one, by the tool's own definition."""
    by_rank: bool = False
    """Whether GPUs are numbered by the rank of the job, so that each is a GPU of the run."""
    is_of_node: bool = False
    """Whether the figures describe the rank's node, not its GPU."""
    doubts: Sequence[Doubt] = ()
    """What its samples contradict."""
