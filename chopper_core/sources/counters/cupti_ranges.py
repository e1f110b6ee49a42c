"""Counters of NVIDIA GPUs in a Kineto trace: CUPTI's range profiler, one range per kernel.

The profiler replays each kernel and records nothing else of the GPU. The times of its ranges are
made up (libkineto splits the whole span evenly), so only their order is used. Metrics are named
like `smsp__cycles_active.sum`; the dot becomes `_`, since it marks parts of signals here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from chopper_core.sources.counters.tables import DispatchTable
from chopper_core.sources.dispatches import DispatchRun
from chopper_core.sources.foreign import CUPTI_RANGE
from chopper_core.sources.registry import Recognised
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.columns import codes_of, float_column
from chopper_core.tables.json_stream import JsonStream, TextEnded
from chopper_core.tables.losses import Losses
from chopper_core.tables.text import FileHead
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

NAME: Final = "PyTorch profiler (CUPTI ranges)"
FILES: Final = "a Kineto trace with `cuda_profiler_range` events, one per kernel"
EXAMPLE: Final = "_ExperimentalConfig(profiler_metrics=[…], profiler_measure_per_kernel=True)"
SUFFIXES: Final = (".json",)

FORMAT: Final = "CUPTI ranges"
_EVENTS: Final = "traceEvents"
_NO_TIMES: Final = "CUPTI replays kernels: its ranges have an order, but no times."


class RangeEvent(msgspec.Struct, gc=False):
    """An event; what isn't a range is passed over."""

    cat: str = ""
    name: str = ""
    pid: Any = None
    args: Any = None


_DECODE: Final = msgspec.json.Decoder(list[RangeEvent]).decode


def recognise(head: FileHead) -> Recognised | None:
    """Recognise the trace by a range near its start; others are found when it is read."""
    is_counted = head.is_json and f'"{CUPTI_RANGE}"' in head.text
    return Recognised(FORMAT) if is_counted else None


def read(path: Path, progress: Progress = silent) -> list[DispatchRun]:
    """Read the ranges of a trace as dispatches without times, in order.

    Raises DataError if the file can't be read or has no ranges.
    """
    losses = Losses()
    table = DispatchTable(losses)
    with ByteSource(path) as source:
        try:
            stream = JsonStream(source, progress)
            if stream.enter(b"[") or stream.enter_list(_EVENTS):
                while (events := stream.records(_DECODE, lambda _: [])) is not None:
                    _add(table, [event for event in events if event.cat == CUPTI_RANGE])
        except TextEnded:
            losses.truncated = True
            losses.notes.append(f"{source.problem or 'It ends before its events do'}.")
    run = table.finish(path, FORMAT)
    if not len(run.dispatches):
        raise DataError(f"{path} has no ranges with CUPTI counters.")
    return [replace(run, join_notes=[_NO_TIMES, *run.join_notes])]


def _add(table: DispatchTable, events: Sequence[RangeEvent]) -> None:
    rows = table.add_dispatches(
        {
            "name": codes_of([event.name for event in events], table.kernel_code),
            "dispatch_id": np.arange(len(table), len(table) + len(events)),
            "gpu": codes_of([f"GPU {event.pid}" for event in events], table.agents.number),
        }
    )
    for row, event in zip(rows.tolist(), events, strict=True):
        metrics = event.args if isinstance(event.args, dict) else {}
        values = {name: value for name, value in metrics.items() if "__" in name}
        codes = [table.counter_names[name.replace(".", "_")] for name in values]
        numbers = float_column(list(values.values()))
        table.add_values(np.full(len(codes), row), np.array(codes, np.int64), numbers)
