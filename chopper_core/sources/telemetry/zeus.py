"""Zeus: the CSV of its power monitor, with one column of power per GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.sources.shared.text import TEXT_SUFFIXES, FileHead, FileText, csv_cells
from chopper_core.sources.signals import GpuName, SignalName, Telemetry
from chopper_core.sources.telemetry.cells import Stamps
from chopper_core.sources.telemetry.rows import Field, RowCollector, RowLoss
from chopper_core.sources.telemetry.series import telemetry_of
from chopper_core.util.progress import Progress, silent

NAME: Final = "Zeus"
FILES: Final = "the power CSV of its `PowerMonitor` (up to Zeus 0.11)"
EXAMPLE: Final = ""
SUFFIXES: Final = TEXT_SUFFIXES

_FORMAT: Final = "Zeus power CSV"
_WINDOWS_START: Final = "start_time,window_name,elapsed_time"
_POWER: Final = Field(SignalName.POWER_W, "w")
_HEADING: Final = re.compile(r"time(,\s*power\d{1,6})+", re.I)
_NUMBER: Final = re.compile(r"power(\d+)", re.I)


def recognise(head: FileHead) -> Recognised | Unusable | None:
    """Recognise the CSV by its headings, `time,power0,power1`."""
    first = head.lines[0].strip() if head.lines else ""
    if _HEADING.fullmatch(first):
        return Recognised(_FORMAT)
    if first.startswith(_WINDOWS_START):
        return Unusable("holds energy per Zeus window, not samples over time; use Zeus's power CSV")
    return None


def read(path: Path, _progress: Progress = silent) -> Telemetry:
    """Read the power of each GPU, numbered in the headings.

    Raises DataError without any usable sample.
    """
    text = FileText(path)
    stamps, rows = Stamps(), RowCollector()
    gpus: list[GpuName] = []
    for line in text.lines():
        if _HEADING.fullmatch(line.strip()):
            gpus = [GpuName(index=int(number)) for number in _NUMBER.findall(line)]
        elif line.strip():
            _add_line(rows, stamps, csv_cells(line), gpus)
    return telemetry_of(path, _FORMAT, rows, stamps, text.losses)


def _add_line(
    rows: RowCollector, stamps: Stamps, cells: Sequence[str], gpus: Sequence[GpuName]
) -> None:
    time_ns = stamps.read(cells[0]) if cells else None
    if len(cells) > 1 + len(gpus):
        rows.row_losses[RowLoss.LONG if gpus else RowLoss.FOREIGN] += 1
    elif time_ns is None:
        rows.row_losses[RowLoss.BAD_STAMP] += 1
    else:
        rows.row_losses[RowLoss.SHORT] += len(cells) < 1 + len(gpus)
        for gpu, power in zip(gpus, cells[1:], strict=False):
            rows.add(gpu, time_ns, [(_POWER, power)])
