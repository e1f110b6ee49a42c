"""The cells of a lane: how much of each is of which kind and class, and the names in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from chopper_core.analyses.lanes import (
    EVERY_STREAM,
    MAX_NAMED_PER_CELL,
    Lane,
    busy_by_class,
    edges,
    lanes_of,
    waits_of,
    wide,
)
from chopper_core.model.charts import LaneCells, Span
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, Kind
from chopper_core.util.arrays import Int64
from chopper_core.util.grouping import run_starts

KIND_NAMES: Final = tuple(kind.name.lower() for kind in Kind)
NOTHING: Final = -1
SEVERAL: Final = -2


def cells_of(run: Run, lane: Lane, begin: int, end: int, bins: int) -> LaneCells:
    cut = edges(begin, end, bins)
    whole = lane if lane.stream is EVERY_STREAM else lanes_of(run, lane.gpu, whole=True)[0]
    return LaneCells(
        kind_ns=np.stack([lane.kinds[kind].between(cut) for kind in Kind]),
        busy_ns=lane.busy.between(cut),
        width_ns=np.diff(cut),
        spans=_named(run, lane, cut),
        class_ns=np.stack([each.between(cut) for each in busy_by_class(run, lane)]),
        waiting_ns=waits_of(run, lane).between(cut),
        computing_ns=whole.kinds[Kind.COMPUTE].between(cut),
    )


def _named(run: Run, lane: Lane, cut: Int64) -> tuple[Span, ...]:
    begin, end = cut[[0, -1]].tolist()
    if lane.count(begin, end) > MAX_NAMED_PER_CELL * (len(cut) - 1):
        return ()
    first = int(np.searchsorted(lane.latest_ns, begin, "right"))
    last = int(np.searchsorted(lane.starts_ns, end, "left"))
    starts, table, spans = lane.starts_ns[first:last], run.table, []
    for place, low, high in wide(starts, lane.ends_ns(slice(first, last)), cut):
        row = int(lane.rows[first + place])
        operation = int(table.operation[row])
        short = "" if operation == NO_LABEL else table.text_of("operation", operation)
        name, begins = table.names[table.kernel[row]], bool(starts[place] >= begin)
        is_comm = bool(table.kind[row] == Kind.COMM)
        spans.append(Span(low, high, name, short=short, begins=begins, is_comm=is_comm))
    return tuple(spans)


def label_spans(keys: Int64, text: Callable[[int], str]) -> tuple[Span, ...]:
    first = run_starts(keys)
    last = np.append(first[1:], len(keys))
    return tuple(
        Span(begin, end, "" if key == SEVERAL else text(key), key == SEVERAL)
        for begin, end, key in zip(first.tolist(), last.tolist(), keys[first].tolist(), strict=True)
        if key != NOTHING
    )
