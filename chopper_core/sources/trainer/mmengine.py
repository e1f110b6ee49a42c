"""mmengine and XTuner: lines per iteration of their loggers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from chopper_core.sources.registry import Recognised
from chopper_core.sources.trainer.lines import StepLines
from chopper_core.sources.trainer.steps import LOG_SUFFIXES, StepField, TrainerLog
from chopper_core.tables.text import FileHead
from chopper_core.util.progress import Progress, silent

NAME: Final = "mmengine, XTuner"
FILES: Final = "logs with lines `Iter(train) [ 10/1000] … time: …`, and XTuner's"
EXAMPLE: Final = ""
SUFFIXES: Final = LOG_SUFFIXES

_FIELDS: Final = {
    "lr": StepField("learning_rate"),
    "base_lr": StepField("learning_rate"),
    "time": StepField("step_ns", 1e9),
    "data_time": StepField("data_ns", 1e9),
    "memory": StepField("memory_bytes", 2.0**20),
    "max_memory": StepField("memory_bytes", 2.0**30, is_bytes=True),
    "reserved_memory": StepField("reserved_bytes", 2.0**30, is_bytes=True),
    "grad_norm": StepField("grad_norm"),
    **dict.fromkeys(("loss", "total_loss", "reduced_llm_loss"), StepField("loss")),
    **dict.fromkeys(("tgs", "tokens_per_sec"), StepField("tokens_per_s")),
    "tflops": StepField("tflops"),
}
_IGNORED: Final = frozenset(("eta",))
_OF: Final = tuple(
    StepLines(format=name, marker=marker, step=step, proof=proof, fields=_FIELDS, ignored=_IGNORED)
    for name, marker, step, proof in (
        (
            "mmengine log",
            "(train)",
            r"\(train\)\s*\[\s*(?P<step>\d{1,12})\s*/\s*\d{1,12}\s*\]",
            r"\b(?:time|loss|lr):",
        ),
        (
            "mmengine log",
            "(train)",
            r"\(train\)\s*\[\s*(?P<epoch>\d{1,9})\s*\]\s*"
            r"\[\s*(?P<step>\d{1,12})\s*/\s*(?P<of>\d{1,12})\s*\]",
            r"\b(?:time|loss|lr):",
        ),
        (
            "XTuner log",
            "Step ",
            r"Step\s+(?P<step>\d{1,12})\s*/\s*\d{1,12}\s",
            r"\sdata_time:.*\stime:",
        ),
    )
)


def recognise(head: FileHead) -> Recognised | None:
    return next(filter(None, (each.recognise(head) for each in _OF)), None)


def read(path: Path, progress: Progress = silent) -> TrainerLog:
    """Raises DataError without any step."""
    head = FileHead(path)
    return next((each for each in _OF if each.recognise(head)), _OF[0]).read(path, progress)
