"""The timeline's chart: cells of lanes, bands and strips of signals above them, a ghost below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import PurePath
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import baseline_of
from chopper_core.analyses.lane_cells import KIND_NAMES, NOTHING, SEVERAL, cells_of, label_spans
from chopper_core.analyses.lanes import (
    CLASS_NAMES,
    MAX_NAMED_PER_CELL,
    Lane,
    edges,
    host_cells,
    lanes_of,
    queue_strip,
    segments_of,
    slack_strip,
)
from chopper_core.model.charts import Band, Ghost, Lanes, Strip
from chopper_core.model.phrases import level_title
from chopper_core.model.run import Run
from chopper_core.model.signals import TimeSpans
from chopper_core.model.table import NO_LABEL, KernelTable
from chopper_core.model.view import Interval, View
from chopper_core.util.arrays import Float64, Index, Int64
from chopper_core.util.errors import NoSuchNode
from chopper_core.util.grouping import nth_of, places_by

STRIPS: Final = ("gfx_mhz", "power_w")
_OF_TRACE: Final = (queue_strip, slack_strip)
_BANDS: Final = ("iteration", "phase", "layer")
_PREFIX: Final = {"iteration": "step ", "layer": "L"}
MAX_MATCHED: Final = 1 << 22
"""Activities of a node up to which they are matched."""


def lanes_chart(
    run: Run, view: View, seen: Interval, lanes: Sequence[Lane], labels: Sequence[str]
) -> Lanes:
    # A move of the cursor draws all of it again.
    key = (view.order, view.path, view.by, view.signal, seen.from_ns, seen.to_ns)
    chart = run.memo(
        ("timeline chart", *key), lambda: _chart_of_window(run, view, seen, lanes, labels)
    )
    return replace(chart, seen=seen)


def _chart_of_window(
    run: Run, view: View, seen: Interval, lanes: Sequence[Lane], labels: Sequence[str]
) -> Lanes:
    begin, end = run.origin_ns + seen.from_ns, run.origin_ns + seen.to_ns
    wanted = dict.fromkeys((*view.signal.split(","), *STRIPS))
    signals = [run.signal(name) for name in wanted if name in run.signal_names]

    def bands(row: int, bins: int) -> tuple[Band, ...]:
        cut, gpu = edges(begin, end, bins), lanes[row].gpu
        busy = sum(lane.count(begin, end) for lane in lanes if lane.gpu == gpu)
        levels = (*_BANDS, "operation") if busy <= MAX_NAMED_PER_CELL * bins else _BANDS
        found = [_band(run, gpu, level, cut) for level in levels]
        scoped = own_time(run, view, [lane for lane in lanes if lane.gpu == gpu])
        if scoped is not None:
            there = sum(each.between(cut) for each in scoped) > 0
            found.append(Band("scope", label_spans(np.where(there, 0, NOTHING), lambda key: "")))
        return tuple(band for band in found if band.spans)

    def strips(row: int, bins: int) -> tuple[Strip, ...]:
        found, cut = [], edges(begin, end, bins).astype(np.float64)
        for signal in signals:
            if (curve := signal.curves.get(lanes[row].gpu)) is not None:
                means = curve.means(cut)
                found.append(Strip(signal.title, signal.unit, signal.low, signal.high, means))
        of_trace = (strip(run, lanes[row].gpu, begin, end, bins) for strip in _OF_TRACE)
        return (*found, *filter(None, of_trace))

    def clocks(row: int, bins: int) -> Float64:
        gpu = lanes[row].gpu
        curve = clock.get(gpu) if row == 0 or lanes[row - 1].gpu != gpu else None
        return np.zeros(0) if curve is None else curve.means(edges(begin, end, bins).astype(float))

    of_trace = [strip(run, lanes[0].gpu, begin, end, 1) for strip in _OF_TRACE if lanes]
    clock = run.signal(STRIPS[0]).curves if STRIPS[0] in run.signal_names else {}
    return Lanes(
        title="lanes",
        lanes=tuple(labels),
        owners=tuple(f"GPU {lane.gpu}" for lane in lanes),
        kinds=KIND_NAMES,
        seen=seen,
        cells=cache(lambda row, bins: cells_of(run, lanes[row], begin, end, bins)),
        bands=cache(bands),
        strips=cache(strips),
        signals=sum(map(bool, (signal.curves for signal in signals))) + sum(map(bool, of_trace)),
        clocks=cache(clocks) if clock else None,
        hosts=cache(lambda row, bins: host_cells(run, lanes[row].gpu, begin, end, bins)),
        missing="no clock, no power: no telemetry of this GPU",
        classes=CLASS_NAMES,
    )


def _band(run: Run, gpu: int, level: str, cut: Int64) -> Band:
    begins_ns, ends_ns, codes = segments_of(run, gpu, level)
    middles = (cut[:-1] + cut[1:]) // 2
    places = np.searchsorted(begins_ns, middles, "right") - 1
    there = (places >= 0) & (ends_ns[places] > middles) & (codes[places] != NO_LABEL)
    begun = np.diff(np.searchsorted(begins_ns, cut, "left"))
    keys = np.where(there, np.where(begun > 1, SEVERAL, places), NOTHING)

    def text(key: int) -> str:
        return _PREFIX.get(level, "") + run.table.text_of(level, int(codes[key]))

    return Band(level, label_spans(keys, text))


def own_time(run: Run, view: View, lanes: Sequence[Lane]) -> list[TimeSpans] | None:
    if all(level == "gpu" for level, _ in view.scope):
        return None
    key = ("timeline scope", view.order, view.path)
    own = run.memo(key, lambda: _own_by_lane(run, view))
    nothing = TimeSpans(np.empty(0, np.int64), np.empty(0, np.int64))
    return [own.get((lane.gpu, lane.stream), nothing) for lane in lanes]


def _own_by_lane(run: Run, view: View) -> dict[tuple[int, int | None], TimeSpans]:
    table, rows = run.table, run.tree(view.order).node(view.path).rows
    starts, durations = table.start_ns[rows], table.duration_ns[rows]
    found: dict[tuple[int, int | None], TimeSpans] = {}
    for gpu, on_gpu in places_by(table.gpu[rows]).items():
        found[gpu, None] = TimeSpans.running(starts[on_gpu], durations[on_gpu])
        for stream, at in places_by(table.stream[rows][on_gpu]).items():
            own = on_gpu[at]
            found[gpu, stream] = TimeSpans.running(starts[own], durations[own])
    return found


def ghosts_of(
    run: Run, view: View, lanes: Sequence[Lane], seen: Interval
) -> Callable[[int, int], Ghost | None] | None:
    """The baseline's lane beneath each lane; None without a baseline that the run of it has."""
    if view.baseline is None:
        return None
    base_run, base = baseline_of(run, view)
    try:
        size = int(base_run.tree(base.order).node(base.path).sizes()[0])
    except NoSuchNode:
        return None
    if size > MAX_MATCHED:
        return None
    own = dict(view.scope)
    steps = [
        f"{level_title(level)} {label}" for level, label in base.scope if own.get(level) != label
    ]
    name = view.base_run.rstrip("/")
    title = " ".join([*([PurePath(name).name] if name else []), *steps])
    begin, end = run.origin_ns + seen.from_ns, run.origin_ns + seen.to_ns
    # A baseline that is another GPU is below every lane, but for its own.
    moved_to = dict(base.scope).get("gpu")

    def ghost(row: int, bins: int) -> Ghost | None:
        lane = lanes[row]
        gpu = lane.gpu if moved_to is None else int(moved_to)
        found = _counterpart(run, base_run, gpu, lane)
        if found is None or (not name and dict(base.scope) == {"gpu": str(lane.gpu)}):
            return None
        key = ("timeline ghosts", view.order, view.path, view.baseline, lane.gpu)
        matched = run.memo(key, lambda: _matched(run, view, lane.gpu, base_run, base, gpu))
        own_ns, base_ns = matched
        first, last = np.searchsorted(own_ns, [begin, end], "left").tolist()
        if last <= first:
            return None
        shifts = own_ns - base_ns
        shift = int(shifts[first])
        cells = cells_of(base_run, found, begin - shift, end - shift, bins)
        return Ghost(title, cells, int(shifts[last - 1]) - shift)

    return ghost


def _counterpart(run: Run, base_run: Run, gpu: int, lane: Lane) -> Lane | None:
    if gpu not in {each.index for each in base_run.gpus}:
        return None
    lanes = lanes_of(base_run, gpu, whole=lane.stream is None)
    if lane.stream is None:
        return lanes[0]
    # Streams have other numbers in another run: they are the same by their order.
    place = [each.stream for each in lanes_of(run, lane.gpu)].index(lane.stream)
    named = [each for each in lanes if each.stream == lane.stream]
    return named[0] if named else lanes[place] if place < len(lanes) else None


def _matched(
    run: Run, view: View, gpu: int, base_run: Run, base: View, base_gpu: int
) -> tuple[Int64, Int64]:
    """The starts of activities here and there, in the order of this GPU's."""
    names = base_run.table.names
    base_names = {name: code for code, name in enumerate(names)}
    codes = np.array([base_names.get(name, -1) for name in run.table.names], np.int64)
    own, own_ns = _occurrences(run, view, gpu, codes)
    other, other_ns = _occurrences(base_run, base, base_gpu, np.arange(len(names)))
    _, here, there = np.intersect1d(own, other, True, return_indices=True)
    order = np.argsort(own_ns[here], kind="stable")
    return own_ns[here][order], other_ns[there][order]


def _occurrences(run: Run, view: View, gpu: int, codes: Int64) -> tuple[Int64, Int64]:
    """(name and number, start) of a node's activities on a GPU, of names with a code."""
    table: KernelTable = run.table
    rows: Index = run.tree(view.order).node(view.path).rows
    rows = rows[table.gpu[rows] == gpu]
    rows = rows[np.argsort(table.start_ns[rows], kind="stable")]
    names = codes[table.kernel[rows]]
    rows, names = rows[names >= 0], names[names >= 0]
    return (names << 32) | nth_of(names), table.start_ns[rows].astype(np.int64)
