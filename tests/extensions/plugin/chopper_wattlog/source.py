"""wattlog: the CSV of a power meter, `time,gpu,watts`."""

from __future__ import annotations

import csv
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
from chopper_core.util.progress import Progress, silent

FAMILY: Final = "telemetry"
NAME: Final = "wattlog"
FILES: Final = "`.watts` with the headings `time,gpu,watts`"
EXAMPLE: Final = "wattlog --csv > power.watts"
SUFFIXES: Final = (".watts",)
_HEADING: Final = "time,gpu,watts"


def recognise(head: FileHead) -> Recognised | None:
    """Recognise the CSV by its headings."""
    is_ours = bool(head.lines) and head.lines[0].strip() == _HEADING
    return Recognised("wattlog CSV") if is_ours else None


def read(path: Path, _progress: Progress = silent) -> Telemetry:
    """Read the power of each GPU; times are seconds since the epoch."""
    with path.open(newline="") as lines:
        rows = [(row["time"], int(row["gpu"]), row["watts"]) for row in csv.DictReader(lines)]
    gpus = sorted({gpu for _, gpu, _ in rows})
    signals = {}
    for place, number in enumerate(gpus):
        own = [(float(time), float(watts)) for time, gpu, watts in rows if gpu == number]
        times, watts = np.array(own).T
        samples = SignalSamples((times * 1e9).astype(np.int64), watts)
        signals[place, SignalName.POWER_W] = [samples]
    names = [GpuName(index=number) for number in gpus]
    return Telemetry(
        path, "wattlog CSV", ClockDomain.EPOCH, 1_000_000, names, signals, (), Losses()
    )
