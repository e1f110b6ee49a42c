"""Tell files of counters from others by what they hold, not by their names."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final

from chopper_core.sources.counters.rocpd_tables import SQLITE_MAGIC, why_no_rocpd
from chopper_core.sources.counters.rocprofv3_json import TOOL_KEY
from chopper_core.sources.shared.bytes import ByteSource
from chopper_core.sources.shared.csv_stream import CsvFile
from chopper_core.sources.trace import Losses
from chopper_core.util.errors import DataError

_SNIFFED_BYTES: Final = 1 << 16


class CounterKind(StrEnum):
    """What a file is."""

    COUNTERS = "rocprofv3 counters"
    KERNEL_TRACE = "rocprofv3 kernel trace"
    AGENT_INFO = "rocprofv3 agents"
    API_TRACE = "rocprofv3 API trace"
    JSON = "rocprofv3 JSON"
    ROCPD = "rocpd"
    PMC = "rocprof or rocprof-compute counters"
    SYSINFO = "rocprof-compute system"
    DEVICE_SAMPLES = "device samples"
    DEVICE_KERNELS = "kernels of device sampling"


_NOT_USED: Final = (
    (("calls", "totaldurationns"), "holds totals of a profiler; Chopper adds up dispatches itself"),
    (("kind", "direction"), "holds memory copies, for which nothing is counted"),
    (("kind", "operation"), "holds operations for which nothing is counted"),
    (("sample_timestamp", "exec_mask"), "holds PC samples, which are not supported"),
    (("domain", "roctx_id"), "is a marker trace of rocprof v2, which is not supported"),
)


def kind_of(path: Path) -> CounterKind | str | None:
    """Return what the file is, why it can't be used, or None if it is nothing of counters.

    A reason is the rest of a sentence that starts with the file.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(len(SQLITE_MAGIC))
        if magic == SQLITE_MAGIC:
            return why_no_rocpd(path) or CounterKind.ROCPD
        with ByteSource(path, _SNIFFED_BYTES) as source:
            head = source.read()
    except (DataError, OSError):
        return None
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith((b"{", b"[")):
        return CounterKind.JSON if f'"{TOOL_KEY}"'.encode() in head else None
    return _kind_of_csv(path, head)


def _kind_of_csv(path: Path, head: bytes) -> CounterKind | str | None:
    first = head.split(b"\n", 1)[0]
    if b"," not in first or b"\x00" in first:
        return None
    try:
        with ByteSource(path, _SNIFFED_BYTES) as source:
            columns = set(CsvFile(source, Losses()).header)
    except DataError:
        return None
    return _kind_by_columns(columns)


def _kind_by_columns(columns: set[str]) -> CounterKind | str | None:
    def has(*names: str) -> bool:
        return columns.issuperset(names)

    if has("timestamp_ns", "counter_name", "counter_value"):
        return CounterKind.DEVICE_SAMPLES
    if has("kernel_name", "start_ns", "end_ns"):
        return CounterKind.DEVICE_KERNELS
    if has("node_id", "agent_type"):
        return CounterKind.AGENT_INFO
    if has("kernel_name", "counter_name", "counter_value"):
        if "gpu_id" in columns or "node_id" in columns:
            return CounterKind.PMC
        if has("dispatch_id") or has("correlation_id"):
            return CounterKind.COUNTERS
        return "has counters, but no ids of dispatches"
    if has("index", "kernelname") or has("dispatch_id", "gpu_id", "kernel_name"):
        return CounterKind.PMC
    if has("kernel_name", "start_timestamp", "end_timestamp") and "domain" not in columns:
        return CounterKind.KERNEL_TRACE
    if has("domain", "function", "correlation_id", "start_timestamp", "end_timestamp"):
        return CounterKind.API_TRACE
    if has("gpu_arch", "cu_per_gpu"):
        return CounterKind.SYSINFO
    for names, reason in _NOT_USED:
        if has(*names):
            return reason
    return None
