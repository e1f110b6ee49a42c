"""The timeline's chart: cells of lanes, bands of levels and strips of signals above them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from chopper_core.model.charts import Band, LaneCells, Lanes, Pointed, Span, Strip
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, Kind
from chopper_core.model.view import Interval, View
from chopper_core.util.arrays import Int64
from chopper_core.util.grouping import distinct, run_starts
from chopper_core.views.timeline.hosts import host_cells, queue_strip
from chopper_core.views.timeline.lanes import (
    CACHED_SCOPES,
    CLASS_NAMES,
    BusyTime,
    Lane,
    busy_by_class,
    edges,
    lanes_of,
    segments_of,
)

KIND_NAMES: Final = tuple(kind.name.lower() for kind in Kind)
STRIPS: Final = ("gfx_mhz", "power_w")
_BANDS: Final = ("iteration", "phase", "layer")
_PREFIX: Final = {"iteration": "it ", "layer": "L"}
_SEVERAL: Final = -2
_NOTHING: Final = -1
_MIN_NAMED_CELLS: Final = 2
"""An activity that fills fewer cells is not named."""
_MAX_NAMED_PER_CELL: Final = 2
"""With more activities per cell none is named."""


def lanes_chart(
    run: Run,
    view: View,
    seen: Interval,
    lanes: Sequence[Lane],
    labels: Sequence[str],
    pointed: tuple[Pointed, ...],
) -> Lanes:
    """The chart of lanes over an interval of the run."""
    begin, end = run.origin_ns + seen.from_ns, run.origin_ns + seen.to_ns
    names = tuple(
        dict.fromkeys(name for name in (view.signal, *STRIPS) if name in run.signal_names)
    )

    def bands(row: int, bins: int) -> tuple[Band, ...]:
        cut, gpu = edges(begin, end, bins), lanes[row].gpu
        busy = sum(lane.count(begin, end) for lane in lanes_of(run, gpu))
        levels = (*_BANDS, "operation") if busy <= _MAX_NAMED_PER_CELL * bins else _BANDS
        found = [_band(run, gpu, level, cut) for level in levels]
        scoped = own_time(run, view, [lane for lane in lanes if lane.gpu == gpu])
        if scoped is not None:
            there = sum(each.between(cut) for each in scoped) > 0
            found.append(Band("scope", spans_of(np.where(there, 0, _NOTHING), lambda key: "")))
        return tuple(band for band in found if band.spans)

    def strips(row: int, bins: int) -> tuple[Strip, ...]:
        found = []
        for name in names:
            signal = run.signal(name)
            if lanes[row].gpu in signal.curves:
                means = signal.curves[lanes[row].gpu].means(
                    edges(begin, end, bins).astype(np.float64)
                )
                found.append(Strip(signal.title, signal.unit, signal.low, signal.high, means))
        queue = queue_strip(run, lanes[row].gpu, begin, end, bins)
        return tuple(found) if queue is None else (*found, queue)

    return Lanes(
        title="lanes",
        lanes=tuple(labels),
        owners=tuple(f"GPU {lane.gpu}" for lane in lanes),
        kinds=KIND_NAMES,
        seen=seen,
        pointed=pointed,
        cells=lambda row, bins: cells_of(run, lanes[row], begin, end, bins),
        bands=bands,
        strips=strips,
        signals=len(names) + 1,
        hosts=lambda row, bins: host_cells(run, lanes[row].gpu, begin, end, bins),
        missing="no clock, no power: no telemetry of this GPU",
        classes=CLASS_NAMES,
    )


def cells_of(run: Run, lane: Lane, begin: int, end: int, bins: int) -> LaneCells:
    """The activities of a lane in each cell of an interval."""
    cut = edges(begin, end, bins)
    return LaneCells(
        kind_ns=np.stack([lane.kinds[kind].between(cut) for kind in Kind]),
        busy_ns=lane.busy.between(cut),
        width_ns=np.diff(cut),
        spans=_named(run, lane, begin, end, bins),
        class_ns=np.stack([each.between(cut) for each in busy_by_class(run, lane)]),
    )


def _named(run: Run, lane: Lane, begin: int, end: int, bins: int) -> tuple[Span, ...]:
    """The names of activities that fill some cells, unless there are too many activities."""
    if lane.count(begin, end) > _MAX_NAMED_PER_CELL * bins:
        return ()
    first = int(np.searchsorted(lane.latest_ns, begin, "right"))
    last = int(np.searchsorted(lane.starts_ns, end, "left"))
    length = end - begin
    starts = np.maximum(lane.starts_ns[first:last] - begin, 0)
    ends = np.minimum(lane.ends_ns[first:last] - begin, length)
    low, high = -(-starts * bins // length), ends * bins // length
    spans = []
    for place in np.flatnonzero(high - low >= _MIN_NAMED_CELLS).tolist():
        row, table = int(lane.rows[first + place]), run.table
        operation = int(table.operation[row])
        spans.append(
            Span(
                int(low[place]),
                int(high[place]),
                table.names[table.kernel[row]],
                short="" if operation == NO_LABEL else table.text_of("operation", operation),
                begins=bool(lane.starts_ns[first + place] >= begin),
            )
        )
    return tuple(spans)


def _band(run: Run, gpu: int, level: str, cut: Int64) -> Band:
    """The label of a level in the middle of each cell."""
    segments = segments_of(run, gpu, level)
    middles = (cut[:-1] + cut[1:]) // 2
    places = np.searchsorted(segments.begins_ns, middles, "right") - 1
    there = (places >= 0) & (segments.ends_ns[places] > middles)
    there &= segments.codes[places] != NO_LABEL
    begun = np.diff(np.searchsorted(segments.begins_ns, cut, "left"))
    keys = np.where(there, np.where(begun > 1, _SEVERAL, places), _NOTHING)

    def text(key: int) -> str:
        code = int(segments.codes[key])
        return _PREFIX.get(level, "") + run.table.text_of(level, code)

    return Band(level, spans_of(keys, text))


def spans_of(keys: Int64, text: Callable[[int], str]) -> tuple[Span, ...]:
    """Runs of cells with the same key."""
    first = run_starts(keys)
    last = np.append(first[1:], len(keys))
    return tuple(
        Span(
            begin,
            end,
            "" if keys[begin] == _SEVERAL else text(int(keys[begin])),
            bool(keys[begin] == _SEVERAL),
        )
        for begin, end in zip(first.tolist(), last.tolist(), strict=True)
        if keys[begin] != _NOTHING
    )


def own_time(run: Run, view: View, lanes: Sequence[Lane]) -> list[BusyTime] | None:
    """When activities of the scope run on each lane; None if the scope is whole GPUs."""
    if all(level == "gpu" for level, _ in view.scope):
        return None
    key = ("timeline scope", view.order, view.path)
    own = run.memo(key, lambda: _own_by_lane(run, view), CACHED_SCOPES)
    empty = np.empty(0, np.int64)
    nothing = BusyTime.of(empty, empty)
    return [own.get((lane.gpu, lane.stream), nothing) for lane in lanes]


def _own_by_lane(run: Run, view: View) -> dict[tuple[int, int | None], BusyTime]:
    table, rows = run.table, run.tree(view.order).node(view.path).rows
    rows = rows[np.argsort(table.start_ns[rows], kind="stable")]
    starts = table.start_ns[rows].astype(np.int64)
    ends = starts + table.duration_ns[rows]
    found: dict[tuple[int, int | None], BusyTime] = {}
    for gpu in distinct(table.gpu[rows]).tolist():
        on_gpu = table.gpu[rows] == gpu
        found[gpu, None] = BusyTime.of(starts[on_gpu], ends[on_gpu])
        for stream in distinct(table.stream[rows][on_gpu]).tolist():
            own = on_gpu & (table.stream[rows] == stream)
            found[gpu, stream] = BusyTime.of(starts[own], ends[own])
    return found
