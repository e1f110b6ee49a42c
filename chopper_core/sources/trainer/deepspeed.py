"""DeepSpeed: lines of its engine about a step, its throughput timer and its wall clock timers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from chopper_core.sources.registry import Recognised
from chopper_core.sources.trainer.lines import line_blocks, log_start
from chopper_core.sources.trainer.steps import (
    LOG_SUFFIXES,
    StepField,
    StepRows,
    TrainerLog,
    leading_number,
)
from chopper_core.tables.text import FileHead, FileText
from chopper_core.util.patterns import late
from chopper_core.util.progress import Progress, silent

NAME: Final = "DeepSpeed"
FILES: Final = (
    "the output of a job with `step=10, skipped=0, …`, `CurrSamplesPerSec=…`, `time (ms) | …`"
)
EXAMPLE: Final = ""
SUFFIXES: Final = LOG_SUFFIXES

_FORMAT: Final = "DeepSpeed log"
_STEP: Final = late(r"(?<!micro_)\b(?:global_)?step=(\d{1,12})(?=[,\s])")
_TIMES: Final = "time (ms) |"
_TIME: Final = late(r"([A-Za-z_]\w{0,60}):\s*([\d.]+)")
_PAIR: Final = late(r"(\w+)=(\[?[^,\s\]]+)")
_PROOF: Final = late(
    r"step=\d+, skipped=\d+, lr=|global_step=\d+, RunningAvgSamplesPerSec=|\btime \(ms\) \| "
)
_FIELDS: Final = {
    "CurrSamplesPerSec": StepField("samples_per_s"),
    "lr": StepField("learning_rate"),
    "MaxMemAllocated": StepField("memory_bytes", 2.0**30, is_bytes=True),
}
_IGNORED: Final = frozenset(
    ("epoch", "micro_step", "global_step", "step", "RunningAvgSamplesPerSec")
)


def recognise(head: FileHead) -> Recognised | None:
    text = log_start(head)
    # Most files have neither, which is found far sooner than that the pattern doesn't match.
    may_be = "step=" in text or _TIMES in text
    return Recognised(_FORMAT) if may_be and _PROOF.search(text) else None


def read(path: Path, progress: Progress = silent) -> TrainerLog:
    """Raises DataError without any step."""
    text = FileText(path)
    rows = StepRows(path, text.losses)
    last: dict[int, int] = {}
    """The step of the last line of each rank, which times behind it are about."""
    for lines in line_blocks(text, progress, rows):
        for line in lines:
            if (at := line.find(_TIMES)) >= 0:
                rank, time_ns = rows.origin(line[:at])
                if rank in last:
                    rows.add_one(rank, last[rank], time_ns, _times(line, at))
            elif "step=" in line and (match := _STEP.search(line)) and _PROOF.search(line):
                rank, time_ns = rows.origin(line[: match.start()])
                last[rank] = int(match[1])
                rows.add_one(rank, last[rank], time_ns, _pairs(rows, line))
    return rows.finish(_FORMAT)


def _times(line: str, at: int) -> dict[StepField, float]:
    return {
        StepField(name, 1e6, is_phase=True): 1e6 * float(number)
        for name, number in _TIME.findall(line, at + len(_TIMES))
        if re.fullmatch(r"\d*\.?\d*", number) and number != "."
    }


def _pairs(rows: StepRows, line: str) -> dict[StepField, float]:
    found: dict[StepField, float] = {}
    for key, text in _PAIR.findall(line):
        field = _FIELDS.get(key)
        if field is None:
            rows.unused[key] += key not in _IGNORED
            continue
        number, unit = leading_number(text.lstrip("["))
        factor = 2.0**20 if unit == "mb" else field.factor
        found[field] = number * factor
    return found
