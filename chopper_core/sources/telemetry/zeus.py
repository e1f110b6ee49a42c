"""Zeus: the CSV of its power monitor, with one column of power per GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.sources.signals import GpuName, SignalName, Telemetry
from chopper_core.sources.telemetry.rows import Field
from chopper_core.sources.telemetry.table import ColumnPositions, read_table, stamps_at
from chopper_core.tables.text import TEXT_SUFFIXES, FileHead
from chopper_core.util.progress import Progress, silent

NAME: Final = "Zeus"
FILES: Final = "the power CSV of its `PowerMonitor` (up to Zeus 0.11)"
EXAMPLE: Final = ""
SUFFIXES: Final = TEXT_SUFFIXES

_FORMAT: Final = "Zeus power CSV"
_WINDOWS_START: Final = "start_time,window_name,elapsed_time"
_POWER: Final = Field(SignalName.POWER_W, "w")
_HEADING: Final = re.compile(r"time(,\s*power\d{1,6})+", re.I)


def recognise(head: FileHead) -> Recognised | Unusable | None:
    first = head.lines[0].strip() if head.lines else ""
    if _HEADING.fullmatch(first):
        return Recognised(_FORMAT)
    if first.startswith(_WINDOWS_START):
        return Unusable("holds energy per Zeus window, not samples over time; use Zeus's power CSV")
    return None


def read(path: Path, _progress: Progress = silent) -> Telemetry:
    return read_table(path, _layout)


def _layout(headings: Sequence[str]) -> ColumnPositions | None:
    if not _HEADING.fullmatch(",".join(headings)):
        return None
    numbers = re.findall(r"power(\d+)", ",".join(headings), re.I)
    gpus = [GpuName(index=int(number)) for number in numbers]
    return ColumnPositions(
        format=_FORMAT,
        width=1 + len(gpus),
        times_of=stamps_at(0),
        fields=[(1 + at, _POWER) for at in range(len(gpus))],
        gpus=gpus,
    )
