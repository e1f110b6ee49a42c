"""Samples in profilers' databases: GPU metrics of Nsight Systems, and the monitor of RPD."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from chopper_core.sources.registry import Recognised
from chopper_core.sources.signals import (
    ClockDomain,
    GpuName,
    SignalName,
    SignalSamples,
    Telemetry,
)
from chopper_core.tables.losses import Losses
from chopper_core.tables.text import FileHead
from chopper_core.util.arrays import Float64, Int64
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import distinct, ranked, sums_of
from chopper_core.util.progress import Progress, silent

NAME: Final = "Nsight Systems, RPD (samples)"
FILES: Final = (
    "`GPU_METRICS` in an exported `.sqlite`: clock, activity of SMs, tensor cores and DRAM; "
    "`rocpd_monitor` in `.rpd`: clock, power"
)
EXAMPLE: Final = "nsys profile --gpu-metrics-devices=all python train.py"
SUFFIXES: Final = (".sqlite", ".sqlite3", ".db", ".rpd")

_METRICS: Final = {
    "gpc clock frequency": SignalName.GFX_MHZ,
    "gr active": SignalName.GFX_UTIL_PCT,
    "sm active": SignalName.SM_ACTIVE_PCT,
    "sms active": SignalName.SM_ACTIVE_PCT,
    "tensor active": SignalName.TENSOR_ACTIVE_PCT,
    "dram read bandwidth": SignalName.MEM_UTIL_PCT,
    "dram write bandwidth": SignalName.MEM_UTIL_PCT,
}
"""The beginning of a metric's name, up to its unit; reads and writes of DRAM add up."""
_MONITORS: Final = {
    "sclk": SignalName.GFX_MHZ,
    "mclk": SignalName.MEM_MHZ,
    "power": SignalName.POWER_W,
    "temp": SignalName.EDGE_C,
}
_MHZ: Final = 1e6
_HERTZ: Final = 1e5
"""A clock above is in Hz."""
_MOST: Final = {"pct": 100.0, "mhz": _HERTZ, "w": 1e5, "c": 300.0}
"""Values beyond are none of a GPU's, by the unit of the signal."""
_NSIGHT: Final = "Nsight Systems GPU metrics"
_RPD: Final = "RPD monitor"
_TABLES: Final = {
    frozenset(("GPU_METRICS", "TARGET_INFO_GPU_METRICS")): _NSIGHT,
    frozenset(("rocpd_monitor", "rocpd_api")): _RPD,
}
_SAMPLES: Final = "SELECT timestamp, typeId & 255, metricId, value FROM GPU_METRICS"
_CHANGES: Final = """SELECT start, "end", deviceId, CAST(value * 1000 AS INTEGER) FROM rocpd_monitor
    WHERE deviceType = 'gpu' AND monitorType = '{}'"""
_NAMES: Final = "SELECT metricId, metricName FROM TARGET_INFO_GPU_METRICS"
_START: Final = "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"


def recognise(head: FileHead) -> Recognised | None:
    from chopper_core.tables.database import opened_database

    found = next((name for names, name in _TABLES.items() if names <= head.tables), "")
    if not found:
        return None
    try:
        with opened_database(head.path, "a profiler's") as database:
            filled = database.count("GPU_METRICS" if found == _NSIGHT else "rocpd_monitor")
    except DataError:
        return None
    return Recognised(found) if filled else None


def read(path: Path, _progress: Progress = silent) -> Telemetry:
    """Read the samples of a database; raises DataError if it can't be read, or has none."""
    from chopper_core.tables.database import Database, opened_database

    losses = Losses()

    def nsight(database: Database) -> None:
        (started,) = database.integers("TARGET_INFO_SESSION_START_TIME", _START, 1, losses)
        begin_ns = int(started[0]) if len(started) and started[0] > 0 else 0
        names = {
            number: str(name).casefold().partition("[")[0].strip()
            for rows in database.chunks("TARGET_INFO_GPU_METRICS", _NAMES, losses, 64)
            for number, name in rows
        }
        time_ns, gpu, metric, value = database.integers("GPU_METRICS", _SAMPLES, 4, losses)
        for signal in dict.fromkeys(_METRICS.values()):
            own = [number for number, name in names.items() if _METRICS.get(name) is signal]
            rows = np.isin(metric, own)
            add(signal, time_ns[rows] + begin_ns, None, gpu[rows], value[rows].astype(np.float64))

    def monitor(database: Database) -> None:
        for name, signal in _MONITORS.items():
            query = _CHANGES.format(name)
            start, end, gpu, value = database.integers("rocpd_monitor", query, 4, losses)
            ends = np.where(end > start, end, start)
            add(signal, ends, start, gpu, value / 1000)

    found: dict[tuple[int, SignalName], SignalSamples] = {}

    def add(
        signal: SignalName, time_ns: Int64, begin_ns: Int64 | None, gpu: Int64, value: Float64
    ) -> None:
        value = np.where(value > _HERTZ, value / _MHZ, value) if signal.endswith("mhz") else value
        usable = (value >= 0) & (time_ns >= 0) & (gpu >= 0) & (gpu < 256)
        losses.bad_times += int((~usable).sum())
        for one in distinct(gpu[usable]).tolist():
            rows = np.flatnonzero(usable & (gpu == one))
            times, place = ranked(time_ns[rows])
            begins = None
            if begin_ns is None:
                values = sums_of(value[rows], place, len(times)).astype(np.float64)
            else:
                begins, values = np.zeros(len(times), np.int64), np.zeros(len(times))
                begins[place], values[place] = begin_ns[rows], value[rows]
            kept = values <= _MOST[signal.rpartition("_")[2]]
            losses.unreadable_events += int((~kept).sum())
            if kept.any():
                begins = None if begins is None else begins[kept]
                found[one, signal] = SignalSamples(times[kept], values[kept], "", begins)

    with opened_database(path, "a profiler's") as database:
        is_nsight = "GPU_METRICS" in database.tables()
        reads: Callable[[Database], None] = nsight if is_nsight else monitor
        reads(database)
    if not found:
        raise DataError(f"{path} has no samples of the GPU's clock, activity or power.")
    gpus = sorted({gpu for gpu, _ in found})
    return Telemetry(
        path=path,
        format=_NSIGHT if is_nsight else _RPD,
        clock=ClockDomain.EPOCH if is_nsight else ClockDomain.MONOTONIC,
        resolution_ns=min(
            int(np.diff(own.time_ns).min(initial=1_000_000_000)) for own in found.values()
        ),
        gpus=[GpuName(index=gpu) for gpu in gpus],
        signals={(gpus.index(gpu), signal): [own] for (gpu, signal), own in found.items()},
        notes=(),
        losses=losses,
    )
