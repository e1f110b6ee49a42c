"""Megatron-LM and what is made of it: Primus, Megatron-DeepSpeed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from chopper_core.sources.trainer.lines import LineReader, StepLines, line_blocks
from chopper_core.sources.trainer.steps import LOG_SUFFIXES, StepField, StepRows, TrainerLog
from chopper_core.tables.text import FileText
from chopper_core.util.patterns import late
from chopper_core.util.progress import Progress, silent

NAME: Final = "Megatron, Primus"
FILES: Final = "the output of a job with lines `iteration 10/ 100 | … | elapsed time …`"
EXAMPLE: Final = ""
SUFFIXES: Final = LOG_SUFFIXES

_MEMORY: Final = StepField("memory_bytes", 2.0**30, is_bytes=True)
_LINES: Final = StepLines(
    format="Megatron log",
    marker="iteration",
    step=r"iteration\s+(?P<step>\d{1,12})\s*/\s*\d{1,12}\s*(?=\|)",
    proof=r"\|\s*(?:elapsed time per iteration|consumed samples|lm loss)",
    before=r"\|\s*",
    key=r"[^:|]{1,80}?",
    fields={
        "elapsed time per iteration (ms)": StepField("step_ns", 1e6),
        "elapsed time per iteration (s)": StepField("step_ns", 1e9),
        **dict.fromkeys(
            (
                *("throughput per GPU (TFLOP/s/GPU)", "compute per GPU (TFLOP/s/GPU)"),
                *("TFLOPs", "TFLOP/s/GPU"),
            ),
            StepField("tflops"),
        ),
        **dict.fromkeys(
            (
                *("tokens per GPU (tokens/s/GPU)", "tokens/s/GPU inst/harmonic mean"),
                *("tokens per gpu per second (tgs)", "tokens/s/GPU"),
            ),
            StepField("tokens_per_s"),
        ),
        "samples per second": StepField("samples_per_s"),
        **dict.fromkeys(("lm loss", "loss", "total loss"), StepField("loss")),
        "grad norm": StepField("grad_norm"),
        "learning rate": StepField("learning_rate"),
        **dict.fromkeys(
            (
                *("hip mem usage/free/total/usage_ratio", "rocm mem usage/free/total/usage_ratio"),
                "mem usages",
            ),
            _MEMORY,
        ),
    },
)
recognise = _LINES.recognise
_TIMER: Final = late(r"\s*([a-z][\w/-]{0,80}) \.*: \((\d+\.?\d*), (\d+\.?\d*)\)\s*")
"""Below a step's line: the least and the most of the ranks, in ms."""


def read(path: Path, progress: Progress = silent) -> TrainerLog:
    """Read the lines of steps, and the timers of their parts below them.

    Raises DataError without any step.
    """
    text = FileText(path)
    rows = StepRows(path, text.losses)
    reader = LineReader(_LINES, rows)
    last: tuple[int, int] | None = None
    for lines in line_blocks(text, progress):
        reader.add(lines)
        if last is None and not any("..: (" in line for line in lines):
            continue
        for line in lines:
            if _LINES.marker in line:
                if step := next(_LINES.steps_in(line), None):
                    last = rows.origin(line[: step.start()])[0], int(step["step"])
            elif last is not None and (timer := _TIMER.fullmatch(line)):
                rows.add_phase(*last, timer[1], 1e6 * float(timer[3]))
    reader.finish()
    return rows.finish(_LINES.format)
