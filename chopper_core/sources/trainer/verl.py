"""verl: the line of all metrics that its console logger writes per step."""

from __future__ import annotations

from typing import Final

from chopper_core.sources.trainer.lines import StepLines
from chopper_core.sources.trainer.steps import LOG_SUFFIXES, StepField

NAME: Final = "verl"
FILES: Final = "the output of a job with lines `step:1 - … - timing_s/step:41.2 - …`"
EXAMPLE: Final = ""
SUFFIXES: Final = LOG_SUFFIXES

_LINES: Final = StepLines(
    format="verl log",
    marker="step:",
    step=r"step:\s*(?P<step>\d{1,12})\s+-\s",
    proof=r"\s-\s(?:timing_s|perf|actor|critic|training|global_seqlen)/",
    before=r"(?<=-\s)",
    key=r"[A-Za-z_][^\s:]{0,200}",
    between=r":\s*(?:np\.\w+\()?",
    fields={
        "timing_s/step": StepField("step_ns", 1e9),
        "perf/throughput": StepField("tokens_per_s"),
        "perf/mfu/actor": StepField("mfu_pct", 100.0),
        "perf/max_memory_allocated_gb": StepField("memory_bytes", 2.0**30),
        "perf/max_memory_reserved_gb": StepField("reserved_bytes", 2.0**30),
        **dict.fromkeys(("actor/pg_loss", "train/loss"), StepField("loss")),
        **dict.fromkeys(("actor/grad_norm", "train/grad_norm"), StepField("grad_norm")),
        **dict.fromkeys(("actor/lr", "train/lr"), StepField("learning_rate")),
    },
    phases="timing_s/",
    no_phases=("_length", "_tokens", "num_preempted"),
)
recognise, read = _LINES.recognise, _LINES.read
