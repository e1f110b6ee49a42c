"""Primus: the pipeline dump of a rank, with the starts and ends of its microbatches."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import numpy as np

from chopper_core.model.table import Kind, Phase
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.sources.schedules.schedule import Schedule
from chopper_core.sources.shared.bytes import ByteSource
from chopper_core.sources.shared.losses import Losses
from chopper_core.sources.shared.text import FileHead
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

NAME: Final = "Primus (pipeline dump)"
FILES: Final = (
    "`*_<rank>.json`, one per pipeline rank: `fwd_start`, `fwd_end`, `bwd_start`, `bwd_end`"
)
EXAMPLE: Final = ""
SUFFIXES: Final = (".json", ".json.gz")

_FORMAT: Final = "Primus pipeline dump"
_KEYS: Final = ("fwd_start", "fwd_end", "bwd_start", "bwd_end")
_OPENING: Final = re.compile(r'\s*\{\s*"\d+"\s*:\s*\{')
_RANK: Final = re.compile(r"(\d+)\.json(?:\.gz)?$", re.IGNORECASE)
_MAX_BYTES: Final = 1 << 26
"""A dump of a thousand steps of a hundred microbatches is smaller."""
_MS: Final = 1e6
_PHASES: Final = (("forward", Phase.FORWARD), ("backward", Phase.BACKWARD))


def recognise(head: FileHead) -> Recognised | Unusable | None:
    """Recognise a dump by the keys of its first step; its name has to say the rank."""
    if not _OPENING.match(head.text) or '"fwd_start"' not in head.text:
        return None
    if _RANK.search(head.path.name) is None:
        return Unusable(f"is a {_FORMAT}, and its name doesn't say the rank (pp8_0.json)")
    return Recognised(_FORMAT)


def read(path: Path, _progress: Progress = silent) -> Schedule:
    """Read the microbatches of a rank; raises DataError if no step is usable."""
    match = _RANK.search(path.name)
    with ByteSource(path, _MAX_BYTES) as source:
        data = source.read()
    try:
        document = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no valid JSON: {error}.") from error
    losses = Losses()
    rank = int(match[1]) if match else 0
    rows: list[tuple[int, int, int, int, int]] = []
    windows: dict[tuple[int, int], int] = {}
    for text, step in document.items() if isinstance(document, dict) else ():
        found = _microbatches(step) if text.isdigit() else None
        if found is None:
            losses.unreadable_events += 1
            continue
        rows += [(int(text), *row) for row in found]
        total = step.get("total")
        if isinstance(total, int | float) and total > 0:
            windows[rank, int(text)] = round(total * _MS)
    if not rows:
        raise DataError(f"{path} is a {_FORMAT}, but holds no usable step.")
    if losses.unreadable_events:
        losses.notes.append(f"{losses.unreadable_events} steps without equal lists of times.")
    step, phase, number, start, duration = np.array(rows, np.int64).T
    same = np.full(len(rows), rank, np.int32)
    return Schedule(
        path=path,
        format=_FORMAT,
        operations=("forward", "backward"),
        rank=same,
        stage=same,
        replica=np.zeros(len(rows), np.int32),
        step=step.astype(np.int32),
        operation=phase.astype(np.int32),
        kind=np.full(len(rows), Kind.COMPUTE, np.int8),
        phase=np.array([each for _, each in _PHASES], np.int8)[phase],
        microbatch=number.astype(np.int32),
        start_ns=start,
        duration_ns=duration,
        windows_ns=windows,
        unused={},
        losses=losses,
    )


def _microbatches(step: Any) -> list[tuple[int, int, int, int]] | None:
    """(phase, microbatch, start, duration) of a step; None if its lists don't fit each other."""
    if not isinstance(step, dict):
        return None
    lists = [step.get(key) for key in _KEYS]
    if not all(isinstance(each, list) and len(each) == len(lists[0] or ()) for each in lists):
        return None
    found = []
    for phase in range(2):
        pairs = zip(lists[2 * phase] or (), lists[2 * phase + 1] or (), strict=True)
        for number, (start, end) in enumerate(pairs):
            if not (
                isinstance(start, int | float) and isinstance(end, int | float) and end >= start
            ):
                return None
            begin = round(start * _MS)
            found.append((phase, number, begin, round(end * _MS) - begin))
    return found
