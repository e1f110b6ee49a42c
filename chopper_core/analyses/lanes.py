"""The lanes of a GPU: its activities by stream in the order of start, and its host's threads.

A chart needs a few binary searches per cell, however many activities a lane has: the time in which
a kind runs up to a moment is stored at the edges of its intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.graph.collectives import collectives_of
from chopper_core.model.charts import QUEUE, SLACK, LaneCells, Span, Strip
from chopper_core.model.run import Run, interval_of
from chopper_core.model.side_table import HostKind, HostLane
from chopper_core.model.signals import Queue, TimeSpans
from chopper_core.model.table import NO_LABEL, NO_TIME, Category, KernelTable, Kind
from chopper_core.model.units import Unit
from chopper_core.model.view import Interval, View, pointing
from chopper_core.util.arrays import Index, Int8, Int32, Int64
from chopper_core.util.grouping import (
    distinct,
    minima_of,
    run_mask,
    run_maxima,
    run_minima,
    run_starts,
    stable_order,
)
from chopper_core.work.kernel_classes import ATTENTION_CLASS, classes_of_names, is_communication

EVERY_STREAM: Final = None
"""The stream of a lane that holds all of a GPU."""
_MIN_NAMED_CELLS: Final = 2
"""An activity that fills fewer cells is not named."""
_MAX_WITH_SLACK: Final = 1 << 17
"""Activities of a run that are replayed before a person notices."""
_FAR: Final = np.iinfo(np.int64).max
_BLOCK: Final = 4096
"""Activities that are looked at together."""
_MANY: Final = 1 << 31
MAX_NAMED_PER_CELL: Final = 2
"""With more activities per cell none is named."""


class Lane(Struct, frozen=True, eq=False):
    """The activities of a stream, or of all streams of a GPU, in the order of start.

    Times are on the run's clock.
    """

    table: KernelTable
    gpu: int
    stream: int | None
    rows: Index | Int32
    starts_ns: Int64
    latest_ns: Int64
    """The latest end up to each activity."""
    kinds: tuple[TimeSpans, ...]
    busy: TimeSpans
    overlapping: int
    """Activities that start while another one of the lane still runs."""
    coordinate: str = ""
    """`pp 2`, if the lane stands for the GPUs of a coordinate."""

    def ends_ns(self, places: slice) -> Int64:
        return self.starts_ns[places] + self.table.duration_ns[self.rows[places]]

    def starts_of(self, kind: Kind) -> Int64:
        return np.compress(self.table.kind[self.rows] == kind, self.starts_ns)

    def _begun(self, at_ns: int) -> tuple[slice, Int64]:
        """Those that have begun by a moment, from the first that may not be over on; their ends."""
        begun = int(np.searchsorted(self.starts_ns, at_ns, "right"))
        places = slice(int(np.searchsorted(self.latest_ns, at_ns, "right")), begun)
        return places, self.ends_ns(places)

    def running(self, at_ns: int) -> int | None:
        """The position of the activity at a moment, of several the one that started last."""
        places, ends = self._begun(at_ns)
        found = np.flatnonzero(ends > at_ns)
        return places.start + int(found[-1]) if len(found) else None

    def after(self, at_ns: int) -> int | None:
        place = int(np.searchsorted(self.starts_ns, at_ns, "right"))
        return place if place < len(self.starts_ns) else None

    def before(self, at_ns: int) -> int | None:
        place = int(np.searchsorted(self.starts_ns, at_ns, "left")) - 1
        return place if place >= 0 else None

    def count(self, begin_ns: int, end_ns: int) -> int:
        places, ends = self._begun(begin_ns)
        over = int(places.start) + int(np.count_nonzero(ends <= begin_ns))
        return int(np.searchsorted(self.starts_ns, end_ns, "left")) - over


def lanes_of(run: Run, gpu: int, *, whole: bool = False) -> tuple[Lane, ...]:
    """The lanes of a GPU, those that compute most first."""

    def found() -> tuple[Lane, ...]:
        rows = _by_start(run, gpu)
        if whole:
            return (lane_of(run.table, rows, gpu, EVERY_STREAM),)
        by_stream = rows[stable_order(run.table.stream[rows])]
        streams = run.table.stream[by_stream]
        first = run_starts(streams)
        ends = np.append(first[1:], len(rows))
        lanes = (
            lane_of(run.table, by_stream[begin:end], gpu, int(streams[begin]))
            for begin, end in zip(first.tolist(), ends.tolist(), strict=False)
        )
        return tuple(sorted(lanes, key=lambda lane: -lane.kinds[Kind.COMPUTE].length_ns))

    return run.memo(("timeline lanes", gpu, whole), found)


def lane_gpus(run: Run, view: View) -> list[int]:
    tree = run.tree(view.order)
    if view.scope[:1] and view.scope[0][0] == "gpu":
        return tree.node(view.path).gpus(0)
    return run.memo(
        ("timeline gpus", view.order, view.path),
        lambda: [int(gpu) for gpu in tree.split(view.path, ("gpu",)).codes("gpu")],
    )


def _by_start(run: Run, gpu: int) -> Index | Int32:
    def ordered() -> Index | Int32:
        selection = run.tree().node((str(gpu),)).selection
        order = stable_order(run.table.start_ns[selection])
        rows = order + selection.start if isinstance(selection, slice) else selection[order]
        # Time outside steps is no activity of a stream.
        rows = rows[run.table.category[rows] != Category.OUTSIDE]
        return np.asarray(rows, np.int32) if len(run.table) < _MANY else rows

    return run.memo(("timeline rows", gpu), ordered)


def lane_of(table: KernelTable, rows: Index | Int32, gpu: int, stream: int | None) -> Lane:
    starts = np.ascontiguousarray(table.start_ns[rows], np.int64)
    ends, kind_of = starts + table.duration_ns[rows], table.kind[rows]
    kinds = [np.flatnonzero(kind_of == kind) for kind in Kind]
    latest = np.maximum.accumulate(ends)
    busy = TimeSpans.in_order(starts, latest)
    return Lane(
        table=table,
        gpu=gpu,
        stream=stream,
        rows=rows,
        starts_ns=starts,
        latest_ns=latest,
        # Most streams have activities of one kind.
        kinds=tuple(
            busy if len(own) == len(rows) else _spans_of(starts, ends, own) for own in kinds
        ),
        busy=busy,
        overlapping=int((starts[1:] < latest[:-1]).sum()),
    )


def _spans_of(starts_ns: Int64, ends_ns: Int64, own: Index) -> TimeSpans:
    """When some of a lane's activities run."""
    latest = np.maximum.accumulate(ends_ns[own])
    return TimeSpans.in_order(starts_ns[own], latest)


def edges(begin_ns: int, end_ns: int, bins: int) -> Int64:
    """The edges of cells that divide an interval as equally as ns allow."""
    # In two parts, as the product of a span of years is larger than 64 bits.
    each, rest = divmod(end_ns - begin_ns, max(bins, 1))
    place = np.arange(bins + 1, dtype=np.int64)
    return begin_ns + each * place + rest * place // max(bins, 1)


SEGMENTED: Final = ("iteration", "phase", "layer", "operation")
"""The levels of bands: a change of a level, or of one before it, ends a segment."""


def segments_of(run: Run, gpu: int, level: str) -> tuple[Int64, Int64, Int64]:
    """Begins, ends and codes of the intervals in which a GPU computes for one label of a level."""
    # There are as many of the last one as of all activities.
    levels = SEGMENTED if level == SEGMENTED[-1] else SEGMENTED[:-1]

    def found() -> dict[str, tuple[Int64, Int64, Int64]]:
        table, rows = run.table, _by_start(run, gpu)
        computes = np.flatnonzero(table.kind[rows] == Kind.COMPUTE)
        rows = rows[computes] if len(computes) else rows
        starts = table.start_ns[rows].astype(np.int64, copy=False)
        ends, begins, segments = starts + table.duration_ns[rows], np.zeros(len(rows), np.bool_), {}
        for level in levels:
            codes = table.column(level)[rows]
            begins |= run_mask(codes)
            first = np.flatnonzero(begins)
            segments[level] = starts[first], run_maxima(ends, first), codes[first].astype(np.int64)
        return segments

    return run.memo(("timeline segments", gpu, levels), found)[level]


CLASS_NAMES: Final = (
    "GEMM",
    "attention",
    "elementwise",
    "norm, softmax",
    "copy kernels",
    "optimizer, other",
)
"""The classes that the timeline distinguishes; every other class of compute is in the last."""
_GROUPS: Final = {
    **dict.fromkeys(("gemm", "convolution"), 0),
    ATTENTION_CLASS: 1,
    **dict.fromkeys(("elementwise", "rope", "quantize"), 2),
    **dict.fromkeys(("norm", "softmax", "reduction"), 3),
    "copy": 4,
}
_MAX_CLASSIFIED: Final = 1 << 20
"""Activities that tell the classes of operations; of more, some at even distances."""
_OTHER: Final = len(CLASS_NAMES) - 1


def _class_of_names(run: Run) -> Int8:
    def found() -> Int8:
        return np.array([_GROUPS.get(each, _OTHER) for each in classes_of_names(run)], np.int8)

    return run.memo(("timeline class of name",), found)


def classes_of(run: Run, level: str, labels: Sequence[str]) -> Sequence[int]:
    """The place in `CLASS_NAMES` of what takes most of each row's time, after the last of them for
    communication; empty where rows are no operations or kernels."""
    if level == "kernel":
        of_name = dict(zip(run.table.names, _class_of_names(run).tolist(), strict=True))
        comm = {name for name in labels if is_communication(name)}
        return [len(CLASS_NAMES) if each in comm else of_name.get(each, _OTHER) for each in labels]
    if level == "class":
        return [_GROUPS.get(each, _OTHER) for each in labels]
    if level != "operation" or not len(run.table):
        return ()

    def made() -> tuple[int, ...]:
        table, count = run.table, len(CLASS_NAMES) + 1
        some = slice(None, None, len(table) // _MAX_CLASSIFIED + 1)
        group = _class_of_names(run)[table.kernel[some]].astype(np.intp)
        group[table.kind[some] == Kind.COMM] = count - 1
        # Those without a label come first.
        cells = (table.operation[some].astype(np.intp) + 1) * count + group
        times = np.bincount(cells, table.duration_ns[some], (len(table.operations) + 1) * count)
        return tuple(times.reshape(-1, count).argmax(axis=1)[1:].tolist())

    def checked(found: tuple[int, ...]) -> tuple[int, ...]:
        if len(found) != len(run.table.operations):
            raise ValueError("classes of other operations")
        return found

    def found() -> dict[str, int]:
        kept = run.kept(key, tuple[int, ...], made, tuple, checked)
        return dict(zip(run.table.operations, kept, strict=True))

    key = ("classes of operations",)
    known = run.memo(key, found)
    return [known.get(each, _OTHER) for each in labels]


def busy_by_class(run: Run, lane: Lane) -> tuple[TimeSpans, ...]:
    """When compute of each of `CLASS_NAMES` runs on a lane; cached with the lane."""
    key = ("timeline classes", lane.gpu, lane.stream, len(lane.rows), int(lane.rows[:1].sum()))

    def found() -> tuple[TimeSpans, ...]:
        group = _class_of_names(run)[run.table.kernel[lane.rows]]
        group[run.table.kind[lane.rows] != Kind.COMPUTE] = len(CLASS_NAMES)
        ends = lane.ends_ns(slice(0, len(lane.rows)))
        each = (np.flatnonzero(group == code) for code in range(len(CLASS_NAMES)))
        return tuple(_spans_of(lane.starts_ns, ends, own) for own in each)

    return run.memo(key, found)


def waits_of(run: Run, lane: Lane) -> TimeSpans:
    """When collectives of a lane's GPU and stream wait for their last member."""

    def found() -> TimeSpans:
        collectives, table = collectives_of(run), run.table
        if collectives is None:
            return TimeSpans.running(*np.empty((2, 0), np.int64))
        rows, waits_ns = collectives.rows, collectives.member_wait_ns
        gpus = run.memo(("timeline gpus of collectives",), lambda: table.gpu[rows])
        own = np.flatnonzero((waits_ns > 0) & (gpus == lane.gpu))
        if lane.stream is not EVERY_STREAM:
            own = own[table.stream[rows[own]] == lane.stream]
        return TimeSpans.running(table.start_ns[rows[own]], waits_ns[own])

    return run.memo(("timeline waits", lane.gpu, lane.stream), found)


def host_cells(run: Run, gpu: int, begin: int, end: int, bins: int) -> LaneCells | None:
    """The work of a GPU's hosts in each cell; None where the trace doesn't show it."""
    times = run.memo(("timeline host", gpu), lambda: _host_times(run, gpu))
    if times is None:
        return None
    busy, *kinds = times
    cut = edges(begin, end, bins)
    return LaneCells(
        kind_ns=np.stack([each.between(cut) for each in kinds]),
        busy_ns=busy.between(cut),
        width_ns=np.diff(cut),
        spans=_named(run, gpu, cut),
    )


def launch_queue(run: Run, gpu: int) -> Queue:
    """The launched activities of a GPU that wait for their start; empty without launch records."""

    def found() -> Queue:
        table, rows = run.table, _by_start(run, gpu)
        return Queue.of(table.launch_ns[rows], table.start_ns[rows])

    return run.memo(("timeline queue", gpu), found)


def waiting_at(run: Run, gpu: int, at_ns: int) -> int | None:
    """How many launched activities of a GPU wait for their start at a time; None without launch
    records."""
    lane = lanes_of(run, gpu, whole=True)[0]
    earliest = run.memo(("timeline earliest launches", gpu), lambda: _earliest_launches(lane))
    if not (earliest < _FAR).any():
        return None
    later = int(np.searchsorted(lane.starts_ns, at_ns, "right"))
    found = 0
    first = later // _BLOCK
    for block in (first + np.flatnonzero(earliest[first:] <= at_ns)).tolist():
        places = slice(max(block * _BLOCK, later), (block + 1) * _BLOCK)
        launches = lane.table.launch_ns[lane.rows[places]]
        found += int(np.count_nonzero((launches <= at_ns) & (launches != NO_TIME)))
    return found


def _earliest_launches(lane: Lane) -> Int64:
    """The first launch among each block of a lane's activities that wait for their start, `_FAR`
    where none does: most blocks that start after a time are launched after it."""
    launches = lane.table.launch_ns[lane.rows]
    waits = (lane.starts_ns > launches) & (launches != NO_TIME)
    return run_minima(np.where(waits, launches, _FAR), np.arange(0, len(launches), _BLOCK))


def queue_strip(run: Run, gpu: int, begin: int, end: int, bins: int) -> Strip | None:
    """The mean number of launched activities that wait, by cell; None without launch records."""
    queue = launch_queue(run, gpu)
    if not len(queue):
        return None
    depth = queue.depths(edges(begin, end, bins))
    return Strip(QUEUE, Unit.NONE, 0.0, max(float(depth.max(initial=0.0)), 1.0), depth)


def slack_strip(run: Run, gpu: int, begin: int, end: int, bins: int) -> Strip | None:
    """The least slack of what runs, by cell; None where none has any, or it isn't known at once."""
    from chopper_core.graph.slack import row_slack  # The overview draws lanes, and no slack.

    found = row_slack(run) if len(run.table) <= _MAX_WITH_SLACK else None
    if found is None or not found.any():
        return None
    table, rows = run.table, run.tree().node((str(gpu),)).rows
    starts, ends = table.start_ns[rows], table.start_ns[rows] + table.duration_ns[rows]
    rows = rows[inside := (starts < end) & (ends > begin)]
    cut = edges(begin, end, bins)
    first = np.clip(np.searchsorted(cut, starts[inside], "right") - 1, 0, bins - 1)
    last = np.clip(np.searchsorted(cut, ends[inside], "left") - 1, first, bins - 1)
    sizes = last - first + 1
    cells = np.repeat(first - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
    least = minima_of(np.repeat(found[rows], sizes), cells, bins, _FAR)
    numbers = np.where(least == _FAR, np.nan, least)
    high = float(least[least < _FAR].max(initial=1))
    return Strip(SLACK, Unit.NS, 0.0, high, numbers)


def _host_times(run: Run, gpu: int) -> tuple[TimeSpans, TimeSpans, TimeSpans] | None:
    busy = _union(run, gpu, tuple(HostKind))
    if not len(busy.starts_ns):
        return None
    calls = _union(run, gpu, (HostKind.CALL,))
    at = distinct(np.concatenate([busy.starts_ns, busy.ends_ns, calls.starts_ns, calls.ends_ns]))
    alone = (busy.between(at) > 0) & (calls.between(at) == 0)
    return busy, TimeSpans(at[:-1][alone], at[1:][alone]), calls


def _union(run: Run, gpu: int, kinds: tuple[HostKind, ...]) -> TimeSpans:
    lane = run.side(HostLane)
    parts = [lane.of_gpu(gpu, "kind", kind) for kind in kinds]
    starts = np.concatenate([lane.start_ns[part] for part in parts])
    return TimeSpans.running(starts, np.concatenate([lane.duration_ns[part] for part in parts]))


def wide(starts_ns: Int64, ends_ns: Int64, cut: Int64) -> list[tuple[int, int, int]]:
    """Which intervals fill some of a window's cells: place, first cell, the one after the last."""
    begin, length, bins = int(cut[0]), int(cut[-1] - cut[0]), len(cut) - 1
    low = -(-np.maximum(starts_ns - begin, 0) * bins // length)
    high = np.minimum(ends_ns - begin, length) * bins // length
    places = np.flatnonzero(high - low >= _MIN_NAMED_CELLS)
    return list(zip(places.tolist(), low[places].tolist(), high[places].tolist(), strict=True))


def _named(run: Run, gpu: int, cut: Int64) -> tuple[Span, ...]:
    """The names of operators that fill some cells, unless there are too many."""
    lane, own = run.side(HostLane), run.side(HostLane).of_gpu(gpu, "kind", HostKind.OPERATOR)
    starts, names = lane.start_ns[own], lane.name[own]
    first, last = np.searchsorted(starts, cut[[0, -1]]).tolist()
    if last - first > MAX_NAMED_PER_CELL * (len(cut) - 1):
        return ()
    # One that began before the window may reach into it: only the last few can.
    near = slice(max(first - MAX_NAMED_PER_CELL, 0), last)
    starts, names = starts[near], names[near]
    spans: list[Span] = []
    for place, low, high in wide(starts, starts + lane.duration_ns[own][near], cut):
        if spans and low < spans[-1].end:
            continue  # Two threads at once: the first keeps its name.
        begins = bool(starts[place] >= cut[0])
        spans.append(Span(low, high, lane.names[int(names[place])], begins=begins))
    return tuple(spans)


MAX_GPUS: Final = 64
"""Of more GPUs, the first ones are shown."""


def lanes_in(run: Run, view: View) -> tuple[list[Lane], int]:
    gpus = lane_gpus(run, view)
    if view.by in run.table.coordinates:
        return _of_coordinates(run, view.by, gpus), 0
    whole = lane_split(run, view) == "gpu"
    lanes = [lane for gpu in gpus[:MAX_GPUS] for lane in lanes_of(run, gpu, whole=whole)]
    return lanes, max(len(gpus) - MAX_GPUS, 0)


def _of_coordinates(run: Run, dimension: str, gpus: Sequence[int]) -> list[Lane]:
    first: dict[int, int] = {}
    for gpu in gpus:
        first.setdefault(int(run.table.coordinates[dimension][gpu]), gpu)
    return [
        replace(lane, coordinate=f"{dimension} {run.table.text_of(dimension, code)}")
        for code, gpu in sorted(first.items())
        for lane in lanes_of(run, gpu, whole=True)
    ]


def lane_split(run: Run, view: View) -> str:
    """The split into lanes: by default a GPU where the scope has several, else a stream."""
    return view.by or ("gpu" if len(lane_gpus(run, view)) > 1 else "stream")


def label_of(lane: Lane) -> str:
    if lane.coordinate:
        return lane.coordinate
    if lane.stream is EVERY_STREAM:
        return f"GPU {lane.gpu}"
    if lane.stream == NO_LABEL:
        return f"GPU {lane.gpu} s?"
    # Readers number streams that the trace names by text from -2 downwards.
    return (
        f"GPU {lane.gpu} s{lane.stream}" if lane.stream >= 0 else f"GPU {lane.gpu} #{-lane.stream}"
    )


def next_start(
    run: Run, view: View, name: str, step: int, kind: Kind | None = None
) -> tuple[str, Interval] | None:
    """The lane and the cursor at the next start after (1) or before (-1) it; None at the end.

    With a kind, the next start of that kind on any lane of the GPU.
    """
    lanes = lanes_in(run, view)[0]
    own = _lane_named(lanes, name)
    if kind is None:
        return nearest_start(run, view, step, [(own, own.starts_ns)])
    near = [lane for lane in lanes if lane.gpu == own.gpu]
    return nearest_start(run, view, step, [(lane, lane.starts_of(kind)) for lane in near])


def _lane_named(lanes: Sequence[Lane], name: str) -> Lane:
    return next(lane for lane in lanes if label_of(lane) == name)


def start_of(run: Run, view: View) -> int:
    """When a view's node starts, in ns since the run's first activity."""
    return int(run.tree(view.order).node(view.path).min("start_ns")[0]) - run.origin_ns


def nearest_start(
    run: Run, view: View, step: int, lanes: Sequence[tuple[Lane, Int64]]
) -> tuple[str, Interval] | None:
    seen = interval_of(run, view)
    at = run.origin_ns + seen.at_ns
    found: list[tuple[int, int]] = []
    for number, (_, starts) in enumerate(lanes):
        place = int(np.searchsorted(starts, at, "right" if step > 0 else "left"))
        place -= step < 0
        if 0 <= place < len(starts):
            found.append((int(starts[place]), number))
    if not found:
        return None
    start, number = min(found) if step > 0 else max(found)
    return label_of(lanes[number][0]), pointing(seen, start - run.origin_ns)


def under_cursor(run: Run, view: View, name: str) -> tuple[int, int] | None:
    lane = _lane_named(lanes_in(run, view)[0], name)
    place = lane.running(run.origin_ns + interval_of(run, view).at_ns)
    if place is None:
        return None
    ends = (lane.starts_ns[place], *lane.ends_ns(slice(place, place + 1)))
    return int(ends[0]) - run.origin_ns, int(ends[1]) - run.origin_ns
