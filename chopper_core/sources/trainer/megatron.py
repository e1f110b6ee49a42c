"""Megatron-LM and what is made of it: Primus, Megatron-DeepSpeed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from chopper_core.sources.trainer.lines import LineReader, StepLines, line_blocks
from chopper_core.sources.trainer.steps import (
    LOG_SUFFIXES,
    StepField,
    StepRows,
    TrainerLog,
    leading_number,
)
from chopper_core.tables.losses import ABSENT
from chopper_core.tables.text import FileText
from chopper_core.util.patterns import late
from chopper_core.util.progress import Progress, silent

NAME: Final = "Megatron, Primus"
FILES: Final = "the output of a job with lines `iteration 10/ 100 | … | elapsed time …`"
EXAMPLE: Final = ""
SUFFIXES: Final = LOG_SUFFIXES

_MEMORY: Final = StepField("memory_bytes", 2.0**30, is_bytes=True, is_of_whole=True)
_LINES: Final = StepLines(
    format="Megatron log",
    marker="iteration",
    step=r"iteration[\s=]\s*(?P<step>\d{1,12})\s*/\s*\d{1,12}\s*(?=\|)",
    proof=r"\|\s*(?:elapsed[ _]time[ _]per[ _]iteration|consumed[ _]samples|lm loss)",
    before=r"\|\s*",
    key=r"[^:=|]{1,80}?",
    between=r"\s*[:=]\s*",
    fields={
        "elapsed time per iteration (ms)": StepField("step_ns", 1e6),
        "elapsed_time_per_iteration_ms": StepField("step_ns", 1e6),
        "elapsed time per iteration (s)": StepField("step_ns", 1e9),
        **dict.fromkeys(
            (
                *("throughput per GPU (TFLOP/s/GPU)", "compute per GPU (TFLOP/s/GPU)"),
                *("TFLOPs", "TFLOP/s/GPU", "[LM]-TFLOPs", "[LM]TFLOPs"),
            ),
            StepField("tflops"),
        ),
        **dict.fromkeys(
            (
                *("tokens per GPU (tokens/s/GPU)", "tokens/s/GPU inst/harmonic mean"),
                *("tokens per gpu per second (tgs)", "tokens/s/GPU"),
                *("tokens_per_gpu_per_second_tgs", "tokens-per-second-per-gpu"),
            ),
            StepField("tokens_per_s"),
        ),
        **dict.fromkeys(("samples per second", "samples_per_second"), StepField("samples_per_s")),
        **dict.fromkeys(("lm loss", "loss", "total loss"), StepField("loss")),
        **dict.fromkeys(("grad norm", "grad_norm"), StepField("grad_norm")),
        **dict.fromkeys(("learning rate", "learning_rate"), StepField("learning_rate")),
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
_ALL_RANKS: Final = "times across ranks (ms)"
_OF_RANKS: Final = late(r"\s*([a-z][\w/-]{0,80}):\s*")
_OF_RANK: Final = late(r"\s*rank\s+(\d{1,7}): (\d+\.?\d*)\s*")
"""In the same place with `--timing-log-option all`: a line per timer, and below it one per rank."""
_REPORT: Final = late(
    r"(\[Rank \d{1,7}\] )?\(after (\d{1,12}) iterations\) memory \(([MG])B\)"
    r"((?: \| [a-z -]{1,40}: [\d.]{1,24})+)"
)
"""The memory of a rank, once after the first steps; ranks may write into one line."""
_REPORTED: Final = {
    "max allocated": StepField("memory_bytes"),
    "max reserved": StepField("reserved_bytes"),
}


def read(path: Path, progress: Progress = silent) -> TrainerLog:
    """Read the lines of steps, and the timers of their parts below them.

    Raises DataError without any step.
    """
    text = FileText(path)
    rows = StepRows(path, text.losses)
    reader = LineReader(_LINES, rows)
    last: tuple[int, int] | None = None
    name = ""
    for lines in line_blocks(text, progress, rows):
        reader.add(lines)
        if not last and not any("..: (" in line or _ALL_RANKS in line for line in lines):
            lines = [line for line in lines if " memory (" in line]
        for line in lines:
            if " memory (" in line:
                _add_reports(rows, line)
            elif _LINES.marker in line:
                if step := next(_LINES.steps_in(line), None):
                    last = rows.origin(line[: step.start()])[0], int(step["step"])
            elif last is not None and (timer := _TIMER.fullmatch(line)):
                rows.add_phase(*last, timer[1], 1e6 * float(timer[3]))
            elif last is not None and (of_rank := _OF_RANK.fullmatch(line)) and name:
                took = StepField(name, 1e6, is_phase=True)
                rank = rows.rank_or(int(of_rank[1]))
                rows.add_one(rank, last[1], ABSENT, {took: 1e6 * float(of_rank[2])})
            else:
                of_ranks = _OF_RANKS.fullmatch(line)
                name = of_ranks[1] if of_ranks else ""
    reader.finish()
    return rows.finish(_LINES.format)


def _add_reports(rows: StepRows, line: str) -> None:
    reports = [*_REPORT.finditer(line)]
    for report in reports:
        rank, time_ns = rows.origin(line[: reports[0].start()] + (report[1] or ""))
        factor = 2.0**20 if report[3] == "M" else 2.0**30
        pairs = (each.partition(": ") for each in report[4].split(" | ")[1:])
        sizes = {
            _REPORTED[key]: factor * leading_number(text)[0]
            for key, _, text in pairs
            if key in _REPORTED
        }
        rows.add_one(rank, int(report[2]), time_ns, sizes)
