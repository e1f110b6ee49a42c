"""CharLLM-PPT: files without headings, whose names say the metric and the rank.

`gpu_power_9.csv` has the power of rank 9, a line per sample: seconds since the epoch, value.
Metrics and units are those of its fork of Zeus (`zeus/monitor/power.py`); -1 is a failed read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.sources.signals import GpuName, SignalName, Telemetry
from chopper_core.sources.telemetry.rows import Field
from chopper_core.sources.telemetry.table import ColumnPositions, read_table, stamps_at
from chopper_core.tables.text import FileHead
from chopper_core.util.compression import COMPRESSED
from chopper_core.util.errors import DataError
from chopper_core.util.nearby import files_nearby
from chopper_core.util.patterns import late
from chopper_core.util.progress import Progress, silent

NAME: Final = "CharLLM-PPT"
FILES: Final = (
    "`<metric>_<rank>.csv` without headings: `gpu_power_0.csv`, `sm_clock_0.csv` …, and "
    "`system_<metric>_rank_<rank>_id_<device>.csv` of nodes"
)
EXAMPLE: Final = ""
SUFFIXES: Final = (".csv",)

_FORMAT: Final = "CharLLM-PPT CSV"
_NAME: Final = late(
    rf"(?P<metric>[a-z_]+?)_(?P<rank>\d{{1,6}})(?P<label>)\.csv{COMPRESSED}", re.IGNORECASE
)
_LABELLED: Final = late(
    r"(?P<metric>system_[a-z_]+?)_rank_(?P<rank>\d{1,6})_id_(?P<label>.+?)"
    rf"\.csv{COMPRESSED}",
    re.IGNORECASE,
)
_FIRST_LINE: Final = late(r"\s*[1-9]\d{9}(?:\.\d*)?\s*,\s*-?\d+(?:\.\d*)?(?:e[-+]?\d+)?\s*", re.I)
_BITS: Final = 32
_METRICS: Final[Mapping[str, Field]] = {
    "power": Field(SignalName.POWER_W, "w"),
    "gpu_power": Field(SignalName.POWER_W, "w"),
    "mem_power": Field(SignalName.MEM_POWER_W, "w"),
    "gpu_thermal": Field(SignalName.EDGE_C, "c"),
    "mem_thermal": Field(SignalName.MEM_C, "c"),
    "gpu_util": Field(SignalName.GFX_UTIL_PCT, "%"),
    "mem_util": Field(SignalName.MEM_UTIL_PCT, "%"),
    "sm_clock": Field(SignalName.GFX_MHZ, "mhz"),
    "mem_clock": Field(SignalName.MEM_MHZ, "mhz"),
    "pcie_rx_bytes": Field(SignalName.PCIE_BYTES, "b", "rx", bits=_BITS),
    "pcie_tx_bytes": Field(SignalName.PCIE_BYTES, "b", "tx", bits=_BITS),
    "pcie_rx_throughput": Field(SignalName.PCIE_GBPS, "kib/s", "rx_20ms"),
    "pcie_tx_throughput": Field(SignalName.PCIE_GBPS, "kib/s", "tx_20ms"),
    "nvlink_rx_throughput": Field(SignalName.NVLINK_READ_BYTES, "kib", bits=_BITS),
    "nvlink_tx_throughput": Field(SignalName.NVLINK_WRITE_BYTES, "kib", bits=_BITS),
    "system_ib_rx_bytes": Field(SignalName.IB_READ_BYTES, "b"),
    "system_ib_tx_bytes": Field(SignalName.IB_WRITE_BYTES, "b"),
    "system_cpu_idle": Field(SignalName.CPU_IDLE_S, "s"),
    "system_cpu_iowait": Field(SignalName.CPU_IOWAIT_S, "s"),
    "system_cpu_temp": Field(SignalName.CPU_C, "c"),
    "system_memory_used": Field(SignalName.HOST_MEMORY_BYTES, "b"),
    "system_memory_free": Field(SignalName.HOST_FREE_BYTES, "b"),
}
"""NVLink's throughput is an accumulated number of KiB; PCIe's is that of the last 20 ms. Figures
of a system are node_exporter's, whose `memory_used` is the node's whole memory."""
_OF_NODE: Final = "system_"
_NVIDIA_ONLY: Final = ("mem_power_*", "pcie_*", "nvlink_*")
_FAILED_READ: Final = -1.0


class Named(NamedTuple):
    """Metric and rank in the name of a file."""

    field: Field
    rank: int
    is_of_node: bool


def recognise(head: FileHead) -> Recognised | Unusable | None:
    if not head.data and not head.problem and metric_of_file(head.path) is not None:
        return Unusable("is empty: the run was stopped before it wrote its samples", True)
    if not (head.lines and _FIRST_LINE.fullmatch(head.lines[0])):
        return None
    reason = _why_not(head.path)
    return Unusable(reason) if reason else Recognised(_FORMAT)


def read(path: Path, _progress: Progress = silent) -> Telemetry:
    """Read the samples of one metric of one rank, or of its node.

    Raises DataError if the name doesn't say the metric and the rank, or without a usable sample.
    """
    file_series, reason = metric_of_file(path), _why_not(path)
    if file_series is None or reason:
        raise DataError(f"{path} {reason}.")
    layout = ColumnPositions(
        format=_FORMAT,
        width=2,
        gpu_of=lambda _: GpuName(index=file_series.rank),
        times_of=stamps_at(0),
        fields=[(1, file_series.field)],
        failed=_FAILED_READ,
    )
    found = read_table(path, lambda _: None, layout=layout)
    return replace(found, is_held=True, by_rank=True, is_of_node=file_series.is_of_node)


def metric_of_file(path: Path) -> Named | None:
    """The metric and the rank in a file's name; None where it has none that is known."""
    match = _NAME.fullmatch(path.name) or _LABELLED.fullmatch(path.name)
    field = _METRICS.get(match["metric"].lower()) if match else None
    if match is None or field is None:
        return None
    is_of_node = match["metric"].lower().startswith(_OF_NODE)
    part = match["label"] if is_of_node else field.part
    return Named(replace(field, part=part), int(match["rank"]), is_of_node)


def _why_not(path: Path) -> str:
    """Return why the name doesn't tell what the numbers are; '' if it does."""
    match, file_series = (
        _NAME.fullmatch(path.name) or _LABELLED.fullmatch(path.name),
        metric_of_file(path),
    )
    if match is None:
        return "has no headings, and its name doesn't say the metric and the rank (gpu_power_0.csv)"
    metric = match["metric"].lower()
    if metric == "system_cpu_usage":
        return "mixes the seconds of several states of a processor, which can't be separated"
    if file_series is None:
        return f"has no headings, and {metric!r} in its name isn't a known metric of CharLLM-PPT"
    if metric == "mem_util" and not any(
        files_nearby(path.parent, pattern) for pattern in _NVIDIA_ONLY
    ):
        return (
            "is the memory's activity on NVIDIA and the memory in use on AMD; the directory has no "
            "file that only one of them writes"
        )
    return ""
