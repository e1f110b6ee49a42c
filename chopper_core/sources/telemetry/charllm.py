"""CharLLM-PPT: files without headings, whose names say the metric and the rank.

`gpu_power_9.csv` has the power of rank 9, a line per sample: seconds since the epoch, value.
Metrics and units are those of its fork of Zeus (`zeus/monitor/power.py`); -1 is a failed read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.sources.shared.text import FileHead, csv_cells, read_text
from chopper_core.sources.signals import GpuName, SignalName, Telemetry
from chopper_core.sources.telemetry.cells import Stamps
from chopper_core.sources.telemetry.rows import Field, RowCollector, RowLoss
from chopper_core.sources.telemetry.series import telemetry_of
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

NAME: Final = "CharLLM-PPT"
FILES: Final = "`<metric>_<rank>.csv` without headings: `gpu_power_0.csv`, `sm_clock_0.csv` …"
EXAMPLE: Final = ""
SUFFIXES: Final = (".csv", ".csv.gz")

_FORMAT: Final = "CharLLM-PPT CSV"
_NAME: Final = re.compile(r"([a-z_]+?)_(\d{1,6})\.csv(?:\.gz)?", re.IGNORECASE)
_FIRST_LINE: Final = re.compile(
    r"\s*[1-9]\d{9}(?:\.\d*)?\s*,\s*-?\d+(?:\.\d*)?(?:e[-+]?\d+)?\s*", re.I
)
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
    "pcie_rx_bytes": Field(SignalName.PCIE_BYTES, "b", "rx"),
    "pcie_tx_bytes": Field(SignalName.PCIE_BYTES, "b", "tx"),
    "pcie_rx_throughput": Field(SignalName.PCIE_GBPS, "kib/s", "rx_20ms"),
    "pcie_tx_throughput": Field(SignalName.PCIE_GBPS, "kib/s", "tx_20ms"),
    "nvlink_rx_throughput": Field(SignalName.NVLINK_READ_BYTES, "kib"),
    "nvlink_tx_throughput": Field(SignalName.NVLINK_WRITE_BYTES, "kib"),
}
"""NVLink's throughput is an accumulated number of KiB; PCIe's is that of the last 20 ms."""
_NVIDIA_ONLY: Final = ("mem_power_*", "pcie_*", "nvlink_*")
_FAILED_READ: Final = -1.0


def recognise(head: FileHead) -> Recognised | Unusable | None:
    """Recognise a file by its name and its first line; a name that says too little is refused."""
    if not (head.lines and _FIRST_LINE.fullmatch(head.lines[0])):
        return None
    reason = _why_not(head.path)
    return Unusable(reason) if reason else Recognised(_FORMAT)


def read(path: Path, _progress: Progress = silent) -> Telemetry:
    """Read the samples of one metric of one rank.

    Raises DataError if the name doesn't say the metric and the rank, or without a usable sample.
    """
    match = _NAME.fullmatch(path.name)
    reason = _why_not(path)
    if reason or not match:
        raise DataError(f"{path} {reason}.")
    field, gpu = _METRICS[match[1].lower()], GpuName(index=int(match[2]))
    text = read_text(path)
    stamps, rows = Stamps(), RowCollector()
    for line in text.lines():
        if not line.strip():
            continue
        stamp, *values = csv_cells(line)
        time_ns = stamps.read(stamp)
        if len(values) > 1:
            rows.row_losses[RowLoss.LONG] += 1
        elif not values or _is_failed(values[0]):
            rows.row_losses[RowLoss.NO_DATA] += 1
        elif time_ns is None:
            rows.row_losses[RowLoss.BAD_STAMP] += 1
        else:
            rows.add(gpu, time_ns, [(field, values[0])])
    return telemetry_of(path, _FORMAT, rows, stamps, text.losses)


def _why_not(path: Path) -> str:
    """Return why the name doesn't tell what the numbers are; '' if it does."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return (
            "has no headings, and its name doesn't say the metric and the rank (gpu_power_0.csv): "
            "nothing tells what its numbers are"
        )
    metric = match[1].lower()
    if metric.startswith("system_"):
        return "has a figure of a node, not of a GPU, which is not supported"
    if metric not in _METRICS:
        return f"has no headings, and {metric!r} in its name is no known metric of CharLLM-PPT"
    if metric == "mem_util" and not _has_nvidia_files(path.parent):
        return (
            "is the memory's activity on NVIDIA and the memory in use on AMD; the directory has no "
            "file that only one of them writes"
        )
    return ""


def _has_nvidia_files(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in _NVIDIA_ONLY)


def _is_failed(cell: str) -> bool:
    try:
        return float(cell) == _FAILED_READ
    except ValueError:
        return False
