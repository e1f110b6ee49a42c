"""torchtitan: the lines of its metrics processor on a console, one per logged step."""

from __future__ import annotations

from typing import Final

from chopper_core.sources.trainer.lines import StepLines
from chopper_core.sources.trainer.steps import LOG_SUFFIXES, StepField

NAME: Final = "torchtitan"
FILES: Final = "the output of a job with lines `step: 14  loss: …  tps: 7,282  …`, of any ranks"
EXAMPLE: Final = ""
SUFFIXES: Final = LOG_SUFFIXES

_LINES: Final = StepLines(
    format="torchtitan log",
    marker="step:",
    step=r"step:\s*(?P<step>\d{1,12})(?:/\d{1,12})?(?=\s)",
    others=("validate ", "validation ", "eval ", "eval", "val ", "val", "micro_"),
    proof=r"\s(?:tps|wps|tflops|mfu):\s*[\d.]|\sm?memory:\s*[\d.]+GiB",
    fields={
        "loss": StepField("loss"),
        "grad_norm": StepField("grad_norm"),
        **dict.fromkeys(
            ("memory", "mmemory"),
            StepField("memory_bytes", 2.0**30, is_bytes=True, is_of_whole=True),
        ),
        **dict.fromkeys(("tps", "wps"), StepField("tokens_per_s")),
        "tflops": StepField("tflops"),
        "mfu": StepField("mfu_pct"),
        "lr": StepField("learning_rate"),
    },
)
recognise, read = _LINES.recognise, _LINES.read
