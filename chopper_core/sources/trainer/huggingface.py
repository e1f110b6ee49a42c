"""Hugging Face's Trainer: `trainer_state.json`, and the dictionaries that it prints."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from chopper_core.sources.registry import Recognised
from chopper_core.sources.trainer.lines import is_json_object, line_blocks, log_start
from chopper_core.sources.trainer.steps import (
    LOG_SUFFIXES,
    MAX_STEP,
    StepField,
    StepRows,
    TrainerLog,
    json_number,
    leading_number,
)
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.tables.text import FileHead, FileText
from chopper_core.util.compression import uncompressed_name
from chopper_core.util.errors import DataError
from chopper_core.util.patterns import late
from chopper_core.util.progress import Progress, silent

NAME: Final = "Hugging Face Trainer"
FILES: Final = (
    "`trainer_state.json` of a checkpoint, or output with lines `{'loss': …, 'epoch': …}`"
)
EXAMPLE: Final = ""
SUFFIXES: Final = (*LOG_SUFFIXES, ".json")

_STATE: Final = "Trainer state"
_OUTPUT: Final = "Trainer output"
_IS_STATE: Final = late(
    r'"(?:log_history|trial_params|is_world_process_zero|best_global_step)"\s*:'
)
_PRINTED: Final = late(
    r"\{'(?:loss|grad_norm|train_runtime|eval_loss)': '?[^{}]{1,4000}'epoch': '?[\d.]+'?[^{}]*\}"
)
_PAIR: Final = late(r"'([^']{1,80})': '?([-+\w.]+)'?")
_BAR: Final = late(r"(\d{1,12})/\d{1,12} \[((?:\d{1,5}:)?\d{1,2}:\d\d)<")
"""A progress bar: the steps that are done, and since when."""
_FIELDS: Final = {
    "loss": StepField("loss"),
    "grad_norm": StepField("grad_norm"),
    "learning_rate": StepField("learning_rate"),
    "train_tokens_per_second": StepField("tokens_per_s"),
    "train_samples_per_second": StepField("samples_per_s"),
    "tokens_per_second_per_gpu": StepField("tokens_per_s"),
    "tokens/train_per_sec_per_gpu": StepField("tokens_per_s"),
    "memory/max_allocated (GiB)": StepField("memory_bytes", 2.0**30),
    "memory/max_mem_allocated(gib)": StepField("memory_bytes", 2.0**30),
    "memory/device_reserved (GiB)": StepField("reserved_bytes", 2.0**30),
    "memory/device_mem_reserved(gib)": StepField("reserved_bytes", 2.0**30),
}
_TIME: Final = StepField("step_ns", 1e9)
_IGNORED: Final = frozenset(("epoch", "step"))
_EVALUATION: Final = ("eval_", "test_")
_WHOLE: Final = "train_runtime"
_SECONDS: Final = " seconds per step"
"""The key of what the progress bar tells."""
_NO_TIMES: Final = (
    "It has no time of a step: the mean of the whole run, train_runtime over its steps, is that of "
    "the last line."
)
_MAX_BYTES: Final = 1 << 28


def recognise(head: FileHead) -> Recognised | None:
    name = uncompressed_name(head.path.name)
    if is_json_object(head.text):
        is_state = '"log_history"' in head.text or (
            name == "trainer_state.json" and _IS_STATE.search(head.text)
        )
        return Recognised(_STATE) if is_state and '"traceEvents"' not in head.text else None
    if name.endswith(".json"):
        return None
    return Recognised(_OUTPUT) if _PRINTED.search(log_start(head)) else None


def read(path: Path, progress: Progress = silent) -> TrainerLog:
    """Raises DataError without any step."""
    is_state = is_json_object(FileHead(path).text)
    return _state(path) if is_state else _output(path, progress)


def _state(path: Path) -> TrainerLog:
    rows = StepRows(path, Losses())
    with ByteSource(path) as source:
        data = source.read_all(_MAX_BYTES)
    try:
        history = json.loads(data)["log_history"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is a {_STATE}, but can't be parsed; is it whole?") from error
    entries = history if isinstance(history, list) else []
    known: Counter[str] = Counter()
    for entry in entries:
        is_step = isinstance(entry, dict) and type(entry.get("step")) is int
        if not is_step:
            rows.unreadable += 1
        elif not any(str(key).startswith(_EVALUATION) for key in entry):
            known.update(_add(rows, (rows.rank_or(), ABSENT), entry["step"], entry))
    if _WHOLE in known:
        rows.notes[_NO_TIMES] = None
    return rows.finish(_STATE)


def _add(rows: StepRows, origin: tuple[int, int], step: int, entry: Mapping[str, Any]) -> list[str]:
    """Add a row of a rank and time; returns the keys of the entry."""
    values: dict[StepField, float] = {}
    for key, given in entry.items():
        field = _FIELDS.get(key)
        number = leading_number(given)[0] if isinstance(given, str) else json_number(given)
        if field is not None and number is not None:
            values.setdefault(field, field.factor * number)
        elif key not in _IGNORED and key not in (_WHOLE, _SECONDS):
            rows.unused[key] += 1
    if 0 < step < MAX_STEP and (took := json_number(entry.get(_WHOLE))) is not None:
        values[_TIME] = 1e9 * took / step
    if (took := json_number(entry.get(_SECONDS))) is not None and took > 0:
        values[_TIME] = 1e9 * took
    rows.add_one(origin[0], step, origin[1], values)
    return [*entry]


def _output(path: Path, progress: Progress) -> TrainerLog:
    """The steps of what is printed: those of the progress bar before each line, else a number."""
    text = FileText(path)
    rows = StepRows(path, text.losses)
    step, elapsed, before = ABSENT, 0, (0, 0)
    printed: Counter[int] = Counter()
    """The lines of each rank."""
    for lines in line_blocks(text, progress, rows):
        for line in lines:
            for bar in _BAR.finditer(line):
                step, elapsed = int(bar[1]), _seconds(bar[2])
            if (match := _PRINTED.search(line)) is None:
                continue
            entry: dict[str, Any] = {
                key: leading_number(each)[0] for key, each in _PAIR.findall(match[0])
            }
            if any(key.startswith(_EVALUATION) for key in entry):
                continue
            origin = rows.origin(line[: match.start()])
            printed[origin[0]] += 1
            at = printed[origin[0]] if step < 0 else step
            if _WHOLE not in entry and step > before[0]:
                if before[0]:
                    entry[_SECONDS] = (elapsed - before[1]) / (step - before[0])
                before = step, elapsed
            _add(rows, origin, at, entry)
    if step < 0:
        rows.notes[
            "Its lines don't have their step, and no progress bar does: they are numbered."
        ] = None
    return rows.finish(_OUTPUT)


def _seconds(text: str) -> int:
    total = 0
    for part in text.split(":"):
        total = 60 * total + int(part)
    return total
