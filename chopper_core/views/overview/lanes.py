"""The step of each GPU, or of a node's slowest, as lanes of what runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from chopper_core.analyses.base import NODE
from chopper_core.analyses.lane_cells import KIND_NAMES, cells_of, label_spans
from chopper_core.analyses.lanes import CLASS_NAMES, EVERY_STREAM, Lane, edges, lane_of
from chopper_core.analyses.rows import GpuRows
from chopper_core.analyses.step_account import Step
from chopper_core.model.charts import Band, LaneCells, Lanes
from chopper_core.model.run import longer_program
from chopper_core.model.table import NO_LABEL
from chopper_core.model.view import Interval
from chopper_core.util.arrays import Int64
from chopper_core.util.grouping import stable_order

_NOTHING: Final = -1
_WHOLE: Final = (0.0, 1.0)


def step_lanes(step: Step, rows: GpuRows) -> Lanes:
    steps = step.times.by_gpu_ns
    gpus = [step.gpus[int(own[steps[own].argmax()])] for own in rows.members]
    labels = [f"GPU {gpu}" for gpu in gpus]
    if rows.level != "gpu":
        level = "" if rows.level == NODE else f"{rows.level} "
        pairs = zip(rows.labels, labels, strict=True)
        labels = [f"{level}{label} {gpu}" for label, gpu in pairs]
    return _lanes_chart(step, gpus, labels)


def _lanes_chart(
    step: Step, gpus: Sequence[int], labels: Sequence[str], part: tuple[float, float] = _WHOLE
) -> Lanes:
    """A lane per row, of one GPU each, over a part of the step of typical length.

    The activities of a lane are brought together when its cells are asked for.
    """
    run, at = step.run, step.times.typical
    begins_ns, ends_ns = step.spans_ns
    first, last = int(begins_ns[at]), int(ends_ns[at])
    if not step.times.iterations:
        first, last = longer_program(run, first, last)
    begin = first + int(part[0] * (last - first))
    end = max(first + int(part[1] * (last - first)), begin + 1)

    def lane(row: int) -> Lane:
        key = ("overview lane", gpus[row], first, last)
        return run.memo(key, lambda: _lane(step, gpus[row], first, last))

    def cells(row: int, bins: int) -> LaneCells:
        return cells_of(run, lane(row), begin, end, bins)

    def phases(row: int, bins: int) -> Band:
        return _phases(step, lane(row), edges(begin, end, bins))

    number = f"step {step.times.iterations[at]}" if step.times.iterations else "the scope"
    seen = Interval(
        begin - run.origin_ns,
        end - run.origin_ns,
        _NOTHING,
        None,
        int(ends_ns.max()) - run.origin_ns,
    )
    return Lanes(
        title=f"GPUs in {number}",
        lanes=tuple(labels),
        owners=tuple(f"GPU {gpu}" for gpu in gpus),
        kinds=KIND_NAMES,
        seen=seen,
        cells=cells,
        bands=lambda row, bins: (phases(row, bins),),
        classes=CLASS_NAMES,
        part=lambda begin, end: _lanes_chart(step, gpus, labels, (begin, end)),
    )


def _lane(step: Step, gpu: int, begin: int, end: int) -> Lane:
    table = step.run.table
    rows = step.run.tree().node((str(gpu),)).selection
    starts = table.start_ns[rows]
    there = np.flatnonzero((starts < end) & (starts + table.duration_ns[rows] > begin))
    there = there[stable_order(starts[there])]
    chosen = there + rows.start if isinstance(rows, slice) else rows[there]
    return lane_of(table, chosen, gpu, EVERY_STREAM)


def _phases(step: Step, lane: Lane, cut: Int64) -> Band:
    """The phase of the activity that started last before the middle of each cell."""
    table = step.run.table
    middles = (cut[:-1] + cut[1:]) // 2
    codes = table.phase[lane.rows].astype(np.int64)
    named = np.flatnonzero(codes != NO_LABEL)
    place = np.searchsorted(lane.starts_ns[named], middles, "right") - 1
    keys = np.where(place >= 0, codes[named[place]] if len(named) else _NOTHING, _NOTHING)
    return Band("phase", label_spans(keys, lambda code: table.text_of("phase", code)))
