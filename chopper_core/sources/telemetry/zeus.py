"""Zeus: the CSV of its power monitor, with one column of power per GPU, and the log of energies by
window that `ZeusMonitor` writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import nan
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
from chopper_core.sources.telemetry.rows import Field
from chopper_core.sources.telemetry.table import ColumnPositions, read_table, stamps_at
from chopper_core.tables.text import TEXT_SUFFIXES, FileHead, FileText
from chopper_core.util.arrays import Float64
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

NAME: Final = "Zeus"
FILES: Final = "the power CSV of its `PowerMonitor` (up to Zeus 0.11), the log of `ZeusMonitor`"
EXAMPLE: Final = ""
SUFFIXES: Final = TEXT_SUFFIXES

_FORMAT: Final = "Zeus power CSV"
_WINDOWS: Final = "Zeus window log"
_WINDOW: Final = re.compile(
    r"start_time,window_name,elapsed_time(?=.*,gpu\d)((?:,\w{1,40}){1,999})", re.I
)
_ENERGY: Final = re.compile(r"gpu(\d{1,6})_energy", re.I)
_OF_NODE: Final = re.compile(r"(cpu|dram|soc)_?(\d{0,6})_energy", re.I)
"""The energy of a processor, or of its memory: of the node, not of a GPU."""
_NESTED: Final = "windows overlap later ones, whose power is shown instead."
_NS: Final = 1e9
_MOST_WATTS: Final = 1e5
_POWER: Final = Field(SignalName.POWER_W, "w")
_HEADING: Final = re.compile(r"time(,\s*power\d{1,6})+", re.I)


def recognise(head: FileHead) -> Recognised | None:
    first = head.lines[0].strip() if head.lines else ""
    if _HEADING.fullmatch(first):
        return Recognised(_FORMAT)
    if _WINDOW.match(first):
        return Recognised(_WINDOWS)
    return None


def read(path: Path, _progress: Progress = silent) -> Telemetry:
    lines = FileHead(path).lines
    return _windows(path) if lines and _WINDOW.match(lines[0]) else read_table(path, _layout)


def _windows(path: Path) -> Telemetry:
    """The mean power of each window that holds no other one; raises DataError without any."""
    text = FileText(path)
    heading, *lines = text.lines()
    headings = heading.strip().split(",")[3:]
    energies = [_ENERGY.fullmatch(each) for each in headings]
    gpus = {place: int(match[1]) for place, match in enumerate(energies) if match}
    rows: list[list[float]] = []
    for line in filter(None, lines):
        # The name of a window can hold commas.
        start, rest = line.partition(",")[::2]
        cells = [start, *rest.rsplit(",", 1 + len(headings))[1:]]
        try:
            row = [nan if cell.strip() in ("", "None") else float(cell) for cell in cells]
        except ValueError:
            row = []
        if len(row) == 2 + len(headings) and 0 < row[0] < 1e10 and 0 < row[1] < 1e7:
            rows.append(row)
        else:
            text.losses.unreadable_events += 1
    rows.sort(key=lambda row: (row[0], -row[1]))
    columns = np.array(rows, np.float64).reshape(-1, 2 + len(headings)).T
    begin = np.round(columns[0] * _NS).astype(np.int64)
    end = begin + np.round(columns[1] * _NS).astype(np.int64)
    # A window that the next one begins in holds it, or overlaps it.
    alone = np.append(end[:-1] <= begin[1:], np.ones(min(len(end), 1), np.bool_))
    signals = {}
    for number, place in enumerate(gpus):
        watts = columns[2 + place] / columns[1]
        own = np.flatnonzero(alone & (watts >= 0) & (watts < _MOST_WATTS))
        if len(own):
            samples = SignalSamples(end[own], watts[own], "", begin[own])
            signals[number, SignalName.POWER_W] = [samples]
    if not signals:
        raise DataError(f"{path} is {_WINDOWS}, but holds no usable sample.")
    nested = int((~alone).sum())
    matches = {place: _OF_NODE.fullmatch(name) for place, name in enumerate(headings)}
    of_node = {place: match for place, match in matches.items() if match}
    of_windows = (_of_node(match, columns[1:, alone], place) for place, match in of_node.items())
    notes = [*filter(None, of_windows), *([f"{nested:,} {_NESTED}"] if nested else [])]
    return Telemetry(
        path=path,
        format=_WINDOWS,
        clock=ClockDomain.EPOCH,
        resolution_ns=int((end - begin)[alone].min()),
        gpus=[GpuName(index=number) for number in gpus.values()],
        signals=signals,
        notes=notes,
        losses=text.losses,
        unused={
            name: int(np.isfinite(columns[2 + place]).sum())
            for place, name in enumerate(headings)
            if place not in gpus and place not in of_node
        },
    )


def _of_node(match: re.Match[str], columns: Float64, place: int) -> str:
    """A sentence on the energy of a processor over windows: rows of seconds, then of energies."""
    seconds, joules = columns[0], columns[1 + place]
    known = joules >= 0
    if not known.any():
        return ""
    kind, number = match.groups()
    total, span = float(joules[known].sum()), float(seconds[known].sum())
    what = f"{kind.upper()} {number}".strip()
    return f"{what}: {total:,.6g} J in {span:,.6g} s of windows, {total / span:,.4g} W."


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
