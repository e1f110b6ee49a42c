"""torchtitan's structured logs: a line of JSON per begin and end of a part of a step, by rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from chopper_core.sources.registry import Recognised
from chopper_core.sources.signals import ClockDomain
from chopper_core.sources.telemetry.cells import LATEST_NS
from chopper_core.sources.trainer.lines import line_blocks
from chopper_core.sources.trainer.steps import MAX_STEP, StepField, StepRows, TrainerLog
from chopper_core.tables.losses import ABSENT
from chopper_core.tables.text import FileHead, FileText
from chopper_core.util.patterns import late
from chopper_core.util.progress import Progress, silent

NAME: Final = "torchtitan (structured)"
FILES: Final = "`structured_logs/*.global_rank_<N>.*.jsonl`"
EXAMPLE: Final = ""
SUFFIXES: Final = (".jsonl",)

_FORMAT: Final = "torchtitan structured log"
_KEYS: Final = late(r'"(?:log_type_name|event_name)"\s*:')
_TIME: Final = StepField("step_ns", 1.0)
_DATA: Final = StepField("data_ns", 1.0)
_RESERVED: Final = StepField("reserved_bytes", 2.0**30)
_RESERVED_SHARE: Final = StepField("reserved share", 0.01)
"""Of the GPU's memory, which follows from it."""
_CAPACITY: Final = StepField("capacity_bytes")
_SCALARS: Final = {
    "loss": StepField("loss"),
    "global_avg_loss": StepField("loss"),
    "loss_metrics/global_avg_loss": StepField("loss"),
    "grad_norm": StepField("grad_norm"),
    "lr": StepField("learning_rate"),
    **dict.fromkeys(("tps", "throughput(tps)"), StepField("tokens_per_s")),
    "tflops": StepField("tflops"),
    **dict.fromkeys(("mfu", "mfu(%)"), StepField("mfu_pct")),
    "memory/max_active(GiB)": StepField("memory_bytes", 2.0**30),
    "memory/max_reserved(GiB)": _RESERVED,
    "memory/max_reserved(%)": _RESERVED_SHARE,
}
_FETCH: Final = late(r"(?:fetch\w*_?batch|data_?load\w*|next_batch|batch_fetch)", 2)
"""The spans in which a batch is waited for."""


class _TitanEvent(Struct):
    rank: int = ABSENT
    global_rank: int = ABSENT
    tid: int = 0
    step: int | None = None
    time_us: int = ABSENT
    log_type_name: str | None = None
    event_name: str | None = None
    value: float | None = None
    task_name: str | None = None


_DECODER: Final = msgspec.json.Decoder(_TitanEvent)


def recognise(head: FileHead) -> Recognised | None:
    first = head.text.partition("\n")[0]
    is_own = '"time_us"' in first and '"rank"' in first and _KEYS.search(first)
    return Recognised(_FORMAT) if is_own else None


class _OfStep:
    """What the events of a rank say of a step."""

    def __init__(self, begin_ns: int) -> None:
        self.begin_ns = self.end_ns = begin_ns
        self.spans: dict[str, int] = {}
        self.values: dict[StepField, float] = {}


def read(path: Path, progress: Progress = silent) -> TrainerLog:
    """A step lasts from its first event to the first of the next one.

    Raises DataError without any step.
    """
    text = FileText(path)
    rows = StepRows(path, text.losses)
    ranks: dict[int, dict[int, _OfStep]] = {}
    open_spans: dict[tuple[Any, ...], int] = {}
    for lines in line_blocks(text, progress, rows):
        for line in filter(None, lines):
            try:
                event = _DECODER.decode(line)
            except msgspec.MsgspecError:
                rows.unreadable += 1
                continue
            is_placed = 0 <= event.time_us < LATEST_NS // 1000
            if event.step is None or not 0 <= event.step < MAX_STEP or not is_placed:
                continue
            _take(rows, ranks, open_spans, event)
    for rank, steps in ranks.items():
        _add(rows, rank, [*steps.items()])
    return rows.finish(_FORMAT)


def _take(
    rows: StepRows,
    ranks: dict[int, dict[int, _OfStep]],
    open_spans: dict[tuple[Any, ...], int],
    event: _TitanEvent,
) -> None:
    assert event.step is not None
    rank = rows.rank_or(event.global_rank if event.global_rank >= 0 else event.rank)
    time_ns = 1000 * event.time_us
    own = ranks.setdefault(rank, {})
    step = own.get(event.step)
    if step is None:
        step = own[event.step] = _OfStep(time_ns)
    step.end_ns = max(step.end_ns, time_ns)
    name = event.log_type_name or ""
    if name == "metric_value":
        field = _SCALARS.get(event.event_name or "")
        if field is None:
            rows.unused[event.event_name or name] += 1
        elif event.value is not None:
            step.values[field] = field.factor * event.value
    elif name.endswith("_start"):
        open_spans[rank, event.tid, event.task_name, name.removesuffix("_start")] = time_ns
    elif name.endswith("_end"):
        span = name.removesuffix("_end")
        begin = open_spans.pop((rank, event.tid, event.task_name, span), None)
        if begin is not None:
            step.spans[span] = step.spans.get(span, 0) + max(time_ns - begin, 0)


def _add(rows: StepRows, rank: int, steps: Sequence[tuple[int, _OfStep]]) -> None:
    for place, (number, step) in enumerate(steps):
        follows = place + 1 < len(steps) and steps[place + 1][0] == number + 1
        end_ns = steps[place + 1][1].begin_ns if follows else step.end_ns
        values = dict(step.values)
        if end_ns > step.begin_ns:
            values[_TIME] = float(end_ns - step.begin_ns)
        share = values.pop(_RESERVED_SHARE, 0.0)
        if share > 0 and _RESERVED in values:
            values[_CAPACITY] = values[_RESERVED] / share
        for name, took_ns in step.spans.items():
            values[StepField(name, is_phase=True)] = float(took_ns)
            if _FETCH.fullmatch(name):
                values[_DATA] = values.get(_DATA, 0.0) + took_ns
        rows.add_one(rank, number, rows.set_stamp(end_ns, ClockDomain.EPOCH), values)
