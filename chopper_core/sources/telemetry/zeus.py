"""Zeus: the CSV of its power monitor, which has no headings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.sources.shared.text import TEXT_SUFFIXES, FileHead, csv_cells, read_text
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
_FIRST_LINE: Final = re.compile(r"\s*[1-9]\d{9}\.\d+\s*(,\s*\d+(\.\d*)?(e[-+]?\d+)?\s*)+", re.I)
_HEADING: Final = re.compile(r"time(,\s*power\d+)+", re.I)


def recognise(head: FileHead) -> Recognised | Unusable | None:
    """Recognise the CSV by its first line: seconds since the epoch, then powers."""
    first = head.lines[0].strip() if head.lines else ""
    if _FIRST_LINE.fullmatch(first) or _HEADING.fullmatch(first):
        return Recognised(_FORMAT)
    if first.startswith(_WINDOWS_START):
        return Unusable("holds energy per Zeus window, not samples over time; use Zeus's power CSV")
    return None


def read(path: Path, _progress: Progress = silent) -> Telemetry:
    """Read the power of each GPU; columns are in order of the GPUs.

    Raises DataError without any usable sample.
    """
    text = read_text(path)
    stamps, rows = Stamps(), RowCollector()
    lines = [line for line in text.lines() if line.strip()]
    if lines and _HEADING.fullmatch(lines[0].strip()):
        del lines[0]
    width = len(csv_cells(lines[0])) if lines else 0
    for line in lines:
        _add_line(rows, stamps, csv_cells(line), width)
    return telemetry_of(path, _FORMAT, rows, stamps, text.losses)


def _add_line(rows: RowCollector, stamps: Stamps, cells: Sequence[str], width: int) -> None:
    if len(cells) > width:
        rows.row_losses[RowLoss.LONG] += 1
        return
    time_ns = stamps.read(cells[0]) if cells else None
    if time_ns is None:
        rows.row_losses[RowLoss.BAD_STAMP] += 1
        return
    if len(cells) < width:
        rows.row_losses[RowLoss.SHORT] += 1
    for number, power in enumerate(cells[1:]):
        rows.add(GpuName(index=number), time_ns, [(_POWER, power)])
