"""MLPerf: `:::MLLOG` lines, with the time of blocks of samples and what is tracked of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from chopper_core.sources.registry import Recognised
from chopper_core.sources.signals import ClockDomain
from chopper_core.sources.telemetry.cells import LATEST_NS
from chopper_core.sources.trainer.lines import line_blocks, log_start
from chopper_core.sources.trainer.steps import (
    LOG_SUFFIXES,
    StepField,
    StepRows,
    TrainerLog,
    json_number,
)
from chopper_core.tables.text import FileHead, FileText
from chopper_core.util.progress import Progress, silent

NAME: Final = "MLPerf"
FILES: Final = "the output of a job with `:::MLLOG {…}` lines"
EXAMPLE: Final = ""
SUFFIXES: Final = LOG_SUFFIXES

_FORMAT: Final = "MLPerf log"
_MARKER: Final = ":::MLLOG {"
_LOSS: Final = ("train_loss", "loss", "lm_loss", "reduced_train_loss")
_FIELDS: Final = {
    **dict.fromkeys(_LOSS, StepField("loss")),
    "lr": StepField("learning_rate"),
    "grad_norm": StepField("grad_norm"),
    "throughput": StepField("samples_per_s"),
    "train_step_time": StepField("step_ns", 1e9),
}
_STEPS: Final = ("step", "step_num", "global_step", "iteration", "first_step_num")
_OF_RUN: Final = ("global_batch_size", "run_start", "run_stop")


def recognise(head: FileHead) -> Recognised | None:
    return Recognised(_FORMAT) if _MARKER in log_start(head) else None


def read(path: Path, progress: Progress = silent) -> TrainerLog:
    """Read lines about training with a step, or with a number of samples once the batch is known.

    Raises DataError without any.
    """
    text = FileText(path)
    rows = StepRows(path, text.losses)
    batch = 0
    for lines in line_blocks(text, progress, rows):
        for line in lines:
            at = line.find(_MARKER)
            if at < 0:
                continue
            try:
                event, _ = json.JSONDecoder().raw_decode(line, at + len(_MARKER) - 1)
            except (ValueError, RecursionError):
                rows.unreadable += 1
                continue
            key, value = event.get("key"), event.get("value")
            if key == "global_batch_size" and isinstance(value, int) and value > 0:
                batch = value
            metadata = event.get("metadata")
            step = _step_of(metadata if isinstance(metadata, dict) else {}, batch)
            values = _values(rows, key, value)
            if step is None or not values:
                if key not in _OF_RUN and not values and isinstance(value, int | float):
                    rows.unused[str(key)] += 1
                continue
            rank, _ = rows.origin(line[:at])
            stamp = json_number(event.get("time_ms"))
            is_stamp = stamp is not None and 0 <= stamp < LATEST_NS / 1e6
            time_ns = round(stamp * 1e6) if stamp is not None and is_stamp else None
            rows.add_one(rank, step, rows.set_stamp(time_ns, ClockDomain.EPOCH), values)
    return rows.finish(_FORMAT)


def _step_of(metadata: dict[str, Any], batch: int) -> int | None:
    step = next((metadata[name] for name in _STEPS if type(metadata.get(name)) is int), None)
    samples = json_number(metadata.get("samples_count"))
    if step is None and batch and samples is not None and 0 <= samples < LATEST_NS:
        step = int(samples) // batch
    return step


def _values(rows: StepRows, key: object, value: object) -> dict[StepField, float]:
    """The figures of an event, which may be a dictionary of them."""
    given = value if key == "tracked_stats" and isinstance(value, dict) else {key: value}
    found: dict[StepField, float] = {}
    for name, number in given.items():
        field, known = _FIELDS.get(str(name)), json_number(number)
        if field is not None and known is not None:
            found[field] = field.factor * known
        elif field is None and key == "tracked_stats":
            rows.unused[str(name)] += 1
    return found
