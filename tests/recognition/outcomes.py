"""The outcome of giving a file to Chopper, as one line: what it was read as, or why not."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from chopper_core.sources.cpu import CpuTable
from chopper_core.sources.dispatches import DispatchRun
from chopper_core.sources.foreign import what_is, why_no_activity
from chopper_core.sources.registry import Family, discover
from chopper_core.sources.signals import Telemetry
from chopper_core.sources.trace import Trace
from chopper_core.tables.text import FileHead
from chopper_core.util.errors import DataError

FAMILIES = (Family.COUNTERS, Family.TELEMETRY, Family.CPU, Family.TRACE)


def put(folder: Path, name: str, content: str | bytes) -> Path:
    """Write a file; names that end in .gz are compressed."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def outcome(path: Path) -> str:
    """Return `FORMAT: figures`, or `refused: REASON`."""
    reasons = []
    for family in FAMILIES:
        found = discover([path], family)
        if found.files:
            try:
                return f"{found.files[0].format}: {_figures(found.files[0].read(), path)}"
            except DataError as error:
                return f"refused: {str(error).removeprefix(f'{path} ')}"
        reasons += [skipped.reason for skipped in found.skipped]
    return f"refused: {reasons[0] if reasons else what_is(FileHead(path))}"


def _figures(read: object, path: Path) -> str:
    if isinstance(read, Telemetry):
        return ", ".join(
            f"{signal.value}{'.' * bool(part.part)}{part.part}[{_gpu(read, number)}]="
            f"{part.value[0] if len(part) else 'none'}"
            for (number, signal), parts in sorted(read.signals.items())
            for part in parts
        ) + f" ({read.clock.value})"  # fmt: skip
    if isinstance(read, CpuTable):
        return f"{len(read.cpus)} CPUs, {read.percent[0].tolist()} ({read.clock.value})"
    if isinstance(read, Trace):
        if not len(read.activities):
            raise DataError(why_no_activity(FileHead(path), read.event_counts))
        return f"{len(read.activities)} activities of device {read.activities.device[0]}"
    assert isinstance(read, list)
    return "; ".join(map(_dispatches, read))


def _dispatches(run: DispatchRun) -> str:
    counters: Mapping[str, float] = {
        name: float(np.nansum(column)) for name, column in run.dispatches.counters.items()
    }
    timed = int((run.dispatches.start_ns >= 0).sum())
    return f"{len(run.dispatches)} dispatches, {timed} timed, {counters}"


def _gpu(telemetry: Telemetry, number: int) -> str:
    gpu = telemetry.gpus[number]
    return str(gpu.index) if gpu.index >= 0 else gpu.card or gpu.pci
