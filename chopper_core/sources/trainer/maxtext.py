"""MaxText: a line per completed step."""

from __future__ import annotations

from typing import Final

from chopper_core.sources.trainer.lines import StepLines
from chopper_core.sources.trainer.steps import LOG_SUFFIXES, StepField

NAME: Final = "MaxText"
FILES: Final = "the output of a job with lines `completed step: 10, seconds: 1.23, …`"
EXAMPLE: Final = ""
SUFFIXES: Final = LOG_SUFFIXES

_LINES: Final = StepLines(
    format="MaxText log",
    marker="completed step:",
    step=r"completed step:\s*(?P<step>\d{1,12})",
    proof=r",\s*seconds:",
    fields={
        "seconds": StepField("step_ns", 1e9),
        "TFLOP/s/device": StepField("tflops"),
        "Tokens/s/device": StepField("tokens_per_s"),
        "loss": StepField("loss"),
        "grad_norm": StepField("grad_norm"),
        "learning_rate": StepField("learning_rate"),
    },
)
recognise, read = _LINES.recognise, _LINES.read
