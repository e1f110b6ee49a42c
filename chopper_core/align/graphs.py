"""The launch that stands for another: that captured for each kernel that a graph replays, and for
kernels launched before the profile that at their place in a recorded step.

A capture is in the trace itself, or in another one of the same rank: inference engines profile the
capture of each batch size on its own. The ranges of such a trace join the replay's as work of
threads of their own, before all other work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.host import REPLAYS_GRAPH, Host
from chopper_core.align.labels import NOWHERE, Points
from chopper_core.align.steps import batch_of
from chopper_core.model.operator_inputs import Inputs
from chopper_core.model.table import Category
from chopper_core.sources.trace import Captured, HostCategory, Trace
from chopper_core.tables.losses import ABSENT
from chopper_core.util.arrays import Index, Int32, Int64, Mask
from chopper_core.util.grouping import counted, distinct, grouped_by, run_starts, stable_order
from chopper_core.util.patterns import late

_BEGINS: Final = late(r"StreamBeginCapture")
_ENDS: Final = late(r"StreamEndCapture")
_BETWEEN_NS: Final = 1_000_000
"""Between the work of a joined capture and what follows it."""
_JOINED: Final = (HostCategory.OPERATOR, HostCategory.MODULE, HostCategory.RECOMPUTE)


class Capture(Struct, frozen=True):
    """The launches that were captured into a graph, in order."""

    file: int
    kernel: Int32
    """Codes of their kernels' names, ABSENT where one isn't known."""
    thread: Int32
    time_ns: Int64

    def order_of(self, kernel: Int32, stream: Int64) -> Index | None:
        """The captured launch of each kernel of a replay; None where these aren't its kernels.

        They run in the order of the capture; where streams or the runtime change it, those of
        one name keep theirs.
        """
        if len(kernel) != len(self.kernel):
            return None
        is_known = self.kernel != ABSENT
        same: Mask = (self.kernel == kernel) | ~is_known
        if same.all() and (stream == stream[:1]).all():
            return np.arange(len(kernel))
        here, there = stable_order(kernel), stable_order(self.kernel)
        if not is_known.all() or (kernel[here] != self.kernel[there]).any():
            return None
        lanes = distinct(kernel.astype(np.int64) * (1 << 32) + stream % (1 << 32))
        if len(lanes) != len(distinct(kernel)):
            return None
        order = np.empty(len(kernel), np.intp)
        order[here] = there
        return order


def captured_points(host: Host) -> Points:
    """The launch of each activity, for kernels of a graph the launch that was captured, and for
    those with a stand-in that of it.

    Replays belong to the one series of earlier captures with their kernels. Of captures for
    several batch sizes, that of the smallest that holds the replay's tokens counts. Where neither
    decides, the launch of the graph stays.
    """
    links, replays = host.links, _replays(host)
    series = _series(host) if replays else []
    lost, like = host.stand_ins
    if not series and not len(lost):
        return links.points
    thread, time_ns = links.points.thread.copy(), links.points.time_ns.copy()
    launches, activities = host.trace.launches, host.trace.activities
    by_length = grouped_by(series, lambda each: len(each[0].kernel))
    order = sorted(replays, key=lambda launch: int(launches.start_ns[launch]))
    batches = _Batches(host)
    at = 0
    while at < len(order):
        found: list[tuple[Sequence[Capture], Sequence[Index | None]]] = []
        for captures in by_length.get(len(replays[order[at]]), ()):
            here = order[at : at + len(captures)]
            if len(here) < len(captures) or captures[-1].time_ns[-1] >= launches.start_ns[here[0]]:
                continue
            fits: Sequence[Index | None] = [
                capture.order_of(activities.name[rows], activities.stream[rows])
                for capture, rows in zip(captures, map(replays.__getitem__, here), strict=True)
            ]
            if not any(fit is None for fit in fits):
                found.append((captures, fits))
        longest = max((len(captures) for captures, _ in found), default=0)
        found = [each for each in found if len(each[0]) == longest]
        if len(found) > 1:
            chosen = batches.fitting([each[0][0] for each in found], order[at])
            found = [each for each in found if each[0][0] is chosen]
        for captures, fits in found[:1]:
            for capture, fit, launch in zip(captures, fits, order[at:], strict=False):
                if fit is not None:
                    rows = replays[launch]
                    thread[rows], time_ns[rows] = capture.thread[fit], capture.time_ns[fit]
        at += len(found[0][0]) if found else 1
    thread[lost], time_ns[lost] = thread[like], time_ns[like]
    return Points(thread, time_ns)


_FEWEST_ALIKE: Final = 64
"""So many kernels at the end of a step are of its end alone."""


def stand_ins(host: Host, iteration: Int32) -> tuple[Int32, Int32]:
    """Activities launched before the profile, and for each that at its place in a recorded step.

    On each stream they run before all recorded work. They end where the first recorded step
    begins; if that is cut, it is the end of another one, and they end before it. Counted back from
    there, kernels have the places of that step as long as their names are its names.
    """
    name, linked = host.trace.activities.name, host.links.points.known()
    found, partners = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    for rows in np.split(host.order.rows, np.flatnonzero(host.order.new_stream)[1:]):
        known = np.flatnonzero(linked[rows])
        lost = int(known[0]) if len(known) else 0
        rest = rows[lost:]
        if lost < _FEWEST_ALIKE or not linked[rest].all():
            continue
        steps = np.split(rest, run_starts(iteration[rest])[1:])
        first, template = steps[0], max(steps, key=len)
        size = len(template)
        ends = name[template[size - len(first) :]]
        if size < _FEWEST_ALIKE or (name[first] != ends).any():
            continue
        place = np.arange(-lost, 0) + size - len(first)
        like = template[place % size]
        differs = np.flatnonzero(name[rows[:lost]] != name[like])
        begin = int(differs[-1]) + 1 if len(differs) else 0
        if lost - begin >= _FEWEST_ALIKE:
            found.append(rows[begin:lost])
            partners.append(like[begin:])
    return np.concatenate(found), np.concatenate(partners)


class _Batches:
    """The batch sizes of captures and replays."""

    def __init__(self, host: Host) -> None:
        self._host, self._known = host, dict[int, int]()

    def fitting(self, captures: Sequence[Capture], launch: int) -> Capture | None:
        """The capture of the smallest batch that holds a replay's tokens; None if unclear."""
        host, launches = self._host, self._host.trace.launches
        rows = host.annotations
        start_ns = launches.start_ns[launch]
        around = rows[(host.ranges.start_ns[rows] <= start_ns) & (host.ends(rows) >= start_ns)]
        sizes = [batch.tokens for row in around if (batch := batch_of(host.text(row)))]
        tokens = max((size for size in sizes if size), default=None)
        if tokens is None:
            return None
        of = [(self._size(capture), place) for place, capture in enumerate(captures)]
        holding = sorted((size, place) for size, place in of if size >= tokens)
        if not holding or [size for size, _ in holding].count(holding[0][0]) > 1:
            return None
        return captures[holding[0][1]]

    def _size(self, capture: Capture) -> int:
        """The first size of most operators' inputs within a capture; 0 if none has any."""
        key = int(capture.time_ns[0])
        if key not in self._known:
            ranges = self._host.ranges
            rows = self._host.operators[ranges.inputs[self._host.operators] != ABSENT]
            inside = np.isin(ranges.thread[rows], capture.thread)
            inside &= (ranges.start_ns[rows] <= capture.time_ns[-1]) & (
                self._host.ends(rows) >= capture.time_ns[0]
            )
            sizes = Counter[int]()
            codes, counts = counted(ranges.inputs[rows[inside]])
            for code, times in zip(codes.tolist(), counts.tolist(), strict=True):
                shapes = Inputs.parsed(self._host.trace.inputs[code].shapes).shapes
                sizes.update({shapes[0][0]: times} if shapes and shapes[0] else {})
            self._known[key] = max(sizes, key=sizes.__getitem__, default=0)
        return self._known[key]


def _series(host: Host) -> list[Sequence[Capture]]:
    """The captures that a pass of the model replays one after the other: each alone, and those of
    a file, unless an order that starts later looks the same."""
    launches, joined = host.trace.launches, host.trace.captured
    found = [
        Capture(
            NOWHERE,
            np.full(len(rows), ABSENT, np.int32),
            launches.thread[rows],
            launches.start_ns[rows],
        )
        for _, _, rows in _captures(host)
    ]
    parts = np.split(np.arange(len(joined)), run_starts(joined.file, joined.graph)[1:])
    found += [
        Capture(int(own.file[0]), own.kernel, own.thread, own.start_ns)
        for own in map(joined.take, parts)
        if len(own)
    ]
    series: list[Sequence[Capture]] = [[capture] for capture in found]
    for _, group in groupby(found, lambda capture: capture.file):
        own = list(group)
        keys = [capture.kernel.tobytes() for capture in own]
        rotated = any(keys[by:] + keys[:by] == keys for by in range(1, len(keys)))
        if len(own) > 1 and not rotated:
            series.append(own)
    return series


def captured_launches(host: Host) -> Index:
    """Launches that a capture records and that start nothing themselves."""
    found = [own for _, _, own in _captures(host)]
    return np.concatenate(found) if found else np.zeros(0, np.intp)


def _captures(host: Host) -> list[tuple[int, int, Index]]:
    """Begin, end and launch calls of each capture, in order: they started nothing themselves."""
    launches = host.trace.launches
    begins, ends = (np.flatnonzero(host.calls(each)) for each in (_BEGINS, _ENDS))
    if not len(begins) or not len(ends):
        return []
    orphans = host.links.orphans
    orphans = orphans[~host.calls(REPLAYS_GRAPH)[orphans]]
    orphans = orphans[np.argsort(launches.start_ns[orphans], kind="stable")]
    found = []
    for begin in begins[np.argsort(launches.start_ns[begins])].tolist():
        thread, start = launches.thread[begin], int(launches.start_ns[begin])
        after = ends[(launches.thread[ends] == thread) & (launches.start_ns[ends] > start)]
        if not len(after):
            continue
        end = int(launches.start_ns[after].min())
        # Other threads launch too, as autograd's.
        times = launches.start_ns[orphans]
        own = orphans[(times > start) & (times < end)]
        if len(own):
            found.append((start, end, own))
    return found


def _replays(host: Host) -> dict[int, Index]:
    """The kernels of each launch of a graph, in order of their start."""
    activities, links = host.trace.activities, host.links
    of_launches = host.calls(REPLAYS_GRAPH)
    if not of_launches.any():
        return {}
    of_graph = (links.launch >= 0) & (activities.category == Category.KERNEL)
    # HIP's runtime sets and copies memory by kernels of its own, which no capture launches.
    of_graph &= host.by_kernel(lambda name: name.startswith("__amd_rocclr_")) == 0
    rows = np.flatnonzero(of_graph)
    rows = rows[of_launches[links.launch[rows]]]
    rows = rows[np.argsort(activities.start_ns[rows], kind="stable")]
    rows = rows[stable_order(links.launch[rows])]
    parts = np.split(rows, run_starts(links.launch[rows])[1:]) if len(rows) else []
    return {int(links.launch[own[0]]): own for own in parts}


def is_uncaptured(host: Host) -> Mask:
    """Which activities are kernels of a graph whose captured launch isn't known."""
    rows = np.concatenate([np.empty(0, np.intp), *_replays(host).values()])
    found = np.zeros(len(host.captured), np.bool_)
    found[rows] = host.captured.time_ns[rows] == host.links.points.time_ns[rows]
    return found


def with_captures(trace: Trace, captures: Sequence[tuple[Trace, Mapping[int, str]]]) -> Trace:
    """The trace with what others captured, of which correlation ids give the kernels' names."""
    for number, (other, kernels) in enumerate(captures):
        host = Host(other)
        if spans := _captures(host):
            trace = _joined(trace, host, spans, kernels, number)
    return trace


def _joined(
    trace: Trace,
    host: Host,
    spans: Sequence[tuple[int, int, Index]],
    kernels: Mapping[int, str],
    number: int,
) -> Trace:
    other, ranges, launches = host.trace, host.ranges, host.trace.launches
    rows = _within(host, spans)
    names = {name: code for code, name in enumerate(trace.names)}
    last = max([spans[-1][1], *host.ends(rows).tolist()])
    tables = (trace.activities, trace.launches, trace.ranges, trace.captured)
    shift = min(int(each.start_ns.min()) for each in tables if len(each)) - _BETWEEN_NS - last

    def named(text: str) -> int:
        return names.setdefault(text, len(names)) if text else ABSENT

    def moved(values: Int64, by: np.int64) -> Int64:
        return np.where(values > 0, values + by, values)

    code_of = np.full(len(other.names), ABSENT, np.int32)
    used = distinct(ranges.name[rows])
    code_of[used] = [named(other.names[code]) for code in used.tolist()]
    own = ranges.take(rows)
    threads = len(trace.threads)
    known = np.int64(trace.ranges.sequence.max(initial=0)) + 1
    flows = other.flows
    graph = np.concatenate([np.full(len(each), place) for place, (*_, each) in enumerate(spans)])
    calls = np.concatenate([each for *_, each in spans])
    names_of = [kernels.get(each, "") for each in launches.correlation[calls].tolist()]
    captured = Captured(
        file=np.full(len(calls), number, np.int32),
        graph=graph.astype(np.int32),
        kernel=np.array([*map(named, names_of)], np.int32),
        thread=launches.thread[calls] + np.int32(threads),
        start_ns=launches.start_ns[calls] + shift,
    )
    own = replace(
        own,
        name=code_of[own.name],
        thread=own.thread + np.int32(threads),
        start_ns=own.start_ns + shift,
        external_id=np.full(len(own), ABSENT),
        sequence=np.where(own.sequence >= 0, own.sequence + known, own.sequence),
        forward_thread=moved(own.forward_thread, known),
        inputs=np.where(own.inputs >= 0, own.inputs + np.int32(len(trace.inputs)), ABSENT),
        collective=np.full(len(own), ABSENT, np.int32),
    )
    flows = replace(
        flows,
        id=flows.id + np.int64(trace.flows.id.max(initial=0)) + 1,
        thread=flows.thread + np.int32(threads),
        time_ns=flows.time_ns + shift,
    )
    return replace(
        trace,
        names=list(names),
        threads=[*trace.threads, *other.threads],
        inputs=[*trace.inputs, *other.inputs],
        ranges=trace.ranges.joined(own),
        flows=trace.flows.joined(flows),
        captured=trace.captured.joined(captured),
    )


def _within(host: Host, spans: Sequence[tuple[int, int, Index]]) -> Index:
    """The ranges around captures or in them, annotations only in them: others name steps."""
    ranges, end_ns = host.ranges, host.ends(slice(None))
    begins, ends = (np.array([span[side] for span in spans]) for side in (0, 1))
    before = np.searchsorted(ends, ranges.start_ns, "right")
    overlaps = np.searchsorted(begins, end_ns, "left") > before
    at = np.searchsorted(begins, ranges.start_ns, "right") - 1
    inside = (at >= 0) & (end_ns <= ends[at])
    kept = overlaps & np.isin(ranges.category, _JOINED) | inside & host.is_annotation
    return np.flatnonzero(kept)
