"""Samples in profilers' databases: GPU metrics of Nsight Systems, the monitor of RPD, and what
rocprof-sys samples of GPUs into rocpd."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from chopper_core.sources.registry import Recognised
from chopper_core.sources.signals import (
    ClockDomain,
    GpuName,
    SignalName,
    SignalSamples,
    Telemetry,
)
from chopper_core.tables.columns import float_column, int_column
from chopper_core.tables.losses import Losses
from chopper_core.tables.text import FileHead
from chopper_core.util.arrays import Float64, Int64
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import distinct, ranked, sums_of
from chopper_core.util.progress import Progress, silent

if TYPE_CHECKING:
    from chopper_core.tables.database import Database

NAME: Final = "Nsight Systems, RPD, rocprof-sys (samples)"
FILES: Final = (
    "`GPU_METRICS` in an exported `.sqlite`: clock, activity of SMs, tensor cores and DRAM; "
    "`rocpd_monitor` in `.rpd`: clock, power; `device_*` in a rocpd database of rocprof-sys: use, "
    "power, temperature, memory"
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
_DEVICE: Final = {
    "device_busy_gfx": (SignalName.GFX_UTIL_PCT, 1.0),
    "device_busy_umc": (SignalName.MEM_UTIL_PCT, 1.0),
    "device_temp": (SignalName.EDGE_C, 1.0),
    "device_temp_edge": (SignalName.EDGE_C, 1.0),
    "device_temp_hotspot": (SignalName.HOTSPOT_C, 1.0),
    "device_temp_mem": (SignalName.MEM_C, 1.0),
    "device_power": (SignalName.POWER_W, 1.0),
    "device_memory_usage": (SignalName.VRAM_BYTES, 1e6),
}
"""What rocprof-sys samples, and its unit in that of the signal."""
_MHZ: Final = 1e6
_HERTZ: Final = 1e5
"""A clock above is in Hz."""
_MOST: Final = {"pct": 100.0, "mhz": _HERTZ, "w": 1e5, "c": 300.0, "bytes": 1e13}
"""Values beyond are none of a GPU's, by the unit of the signal."""
_NSIGHT: Final = "Nsight Systems GPU metrics"
_RPD: Final = "RPD monitor"
_ROCPD: Final = "rocprof-sys samples"
_TABLES: Final = {
    frozenset(("GPU_METRICS", "TARGET_INFO_GPU_METRICS")): _NSIGHT,
    frozenset(("rocpd_monitor", "rocpd_api")): _RPD,
}
_SAMPLES: Final = "SELECT timestamp, typeId & 255, metricId, value FROM GPU_METRICS"
_CHANGES: Final = """SELECT start, "end", deviceId, CAST(value * 1000 AS INTEGER) FROM rocpd_monitor
    WHERE deviceType = 'gpu' AND monitorType = '{}'"""
_OF_DEVICES: Final = """SELECT DISTINCT S.timestamp, P.name, A.absolute_index, E.value
    FROM "rocpd_sample{0}" S
    JOIN "rocpd_pmc_event{0}" E ON E.event_id = S.event_id AND E.guid IS S.guid
    JOIN "rocpd_info_pmc{0}" P ON P.id = E.pmc_id AND P.guid IS E.guid
    JOIN "rocpd_info_agent{0}" A ON A.id = P.agent_id AND A.guid IS P.guid AND A.type = 'GPU'"""
"""The samples of several counters share an event: each value counts once, with its time."""
_NAMES: Final = "SELECT metricId, metricName FROM TARGET_INFO_GPU_METRICS"
_START: Final = "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"


def recognise(head: FileHead) -> Recognised | None:
    from chopper_core.tables.database import opened_database

    found = next((name for names, name in _TABLES.items() if names <= head.tables), "")
    suffixes = _suffixes(head.tables)
    if not found and not suffixes:
        return None
    try:
        with opened_database(head.path, "a profiler's") as database:
            if not found:
                return Recognised(_ROCPD) if any(_known(database, suffixes)) else None
            filled = database.count("GPU_METRICS" if found == _NSIGHT else "rocpd_monitor")
    except DataError:
        return None
    return Recognised(found) if filled else None


def _suffixes(tables: Collection[str]) -> list[str]:
    """What follows `rocpd_sample` in the names of a rocpd database's tables, for each process."""
    return [
        suffix
        for name in sorted(tables)
        if name.startswith(_SAMPLE)
        for suffix in [name.removeprefix(_SAMPLE)]
        if all(f"{of}{suffix}" in tables for of in _WITH_SAMPLES)
    ]


_SAMPLE: Final = "rocpd_sample"
_WITH_SAMPLES: Final = ("rocpd_pmc_event", "rocpd_info_pmc", "rocpd_info_agent")


def _known(database: Database, suffixes: Sequence[str]) -> Iterator[str]:
    """The counters of GPUs that rocprof-sys sampled and that are signals."""
    for suffix in suffixes:
        name, losses = f"rocpd_info_pmc{suffix}", Losses()
        for (each,) in chain.from_iterable(
            database.chunks(name, f'SELECT name FROM "{name}"', losses, 64)
        ):
            if each in _DEVICE:
                yield each


def read(path: Path, _progress: Progress = silent) -> Telemetry:
    """Read the samples of a database; raises DataError if it can't be read, or has none."""
    from chopper_core.tables.database import opened_database

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

    def devices(database: Database) -> None:
        rows: defaultdict[str, list[tuple[int, int, float]]] = defaultdict(list)
        for suffix in _suffixes(database.tables()):
            query = _OF_DEVICES.format(suffix)
            for time_ns, name, gpu, value in chain.from_iterable(
                database.chunks(f"rocpd_sample{suffix}", query, losses, 1024)
            ):
                rows[str(name)].append((time_ns, gpu, value))
        for name, given in rows.items():
            if name not in _DEVICE:
                unused[name] = len(given)
                continue
            signal, unit = _DEVICE[name]
            # Two processes may sample one GPU at one moment.
            once = {(time_ns, gpu): value for time_ns, gpu, value in given}
            times, gpus = zip(*once, strict=True)
            values = [*once.values()]
            scaled = float_column(values) * unit
            known = np.isfinite(scaled)
            columns = int_column(times)[known], int_column(gpus)[known]
            add(signal, columns[0], None, columns[1], scaled[known])

    unused: dict[str, int] = {}
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
        tables = database.tables()
        is_nsight, is_rpd = "GPU_METRICS" in tables, "rocpd_monitor" in tables
        reads: Callable[[Database], None] = nsight if is_nsight else monitor
        reads = reads if is_nsight or is_rpd else devices
        reads(database)
    is_device = reads is devices
    if not found:
        raise DataError(f"{path} has no samples of the GPU's clock, activity or power.")
    gpus = sorted({gpu for gpu, _ in found})
    return Telemetry(
        path=path,
        format=_ROCPD if is_device else _NSIGHT if is_nsight else _RPD,
        clock=ClockDomain.BOOTTIME
        if is_device
        else ClockDomain.EPOCH
        if is_nsight
        else ClockDomain.MONOTONIC,
        resolution_ns=min(
            int(np.diff(own.time_ns).min(initial=1_000_000_000)) for own in found.values()
        ),
        gpus=[GpuName(kfd_node=gpu) if is_device else GpuName(index=gpu) for gpu in gpus],
        signals={(gpus.index(gpu), signal): [own] for (gpu, signal), own in found.items()},
        notes=(),
        losses=losses,
        unused=unused,
    )
