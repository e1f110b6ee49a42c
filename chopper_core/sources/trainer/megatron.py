"""Megatron-LM and what is made of it: Primus, Megatron-DeepSpeed."""

from __future__ import annotations

from typing import Final

from chopper_core.sources.trainer.lines import StepLines
from chopper_core.sources.trainer.steps import LOG_SUFFIXES, StepField

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
recognise, read = _LINES.recognise, _LINES.read
