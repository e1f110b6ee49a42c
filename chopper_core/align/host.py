"""The host side of a trace: launches of GPU activities, ranges by category and name, and the links
from backward operators to their forward operators."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import DTypeLike

from chopper_core.align.labels import NOWHERE, Intervals, Order, Points, in_blocks, values_over
from chopper_core.model.table import NO_TIME, Category, Kind
from chopper_core.sources.trace import HostCategory, Trace
from chopper_core.tables.columns import Interner
from chopper_core.tables.losses import ABSENT
from chopper_core.util.arrays import AnyArray, Codes, Index, Int8, Int32, Int64, Mask
from chopper_core.util.grouping import (
    counted,
    distinct,
    first_equal,
    isin,
    last_equal,
    numbered_rows,
    ranked,
    runs_of,
    stable_order,
)
from chopper_core.util.patterns import late
from chopper_core.work.kernel_classes import communication_classes, kernel_class, kernel_classes

BACKWARD_NODE: Final = late(r"^autograd::engine::evaluate_function")
"""The operator in which autograd runs a node of the backward graph."""
_MANY_NODES: Final = 0.1
"""Of the nodes that the thread with most of them runs: a few run where backward begins."""
STARTS_WORK: Final = late(r"Launch(?:Cooperative)?Kernel|ModuleLaunch|GraphLaunch")
_REENTRANT_FRAME = late(r": backward$")
REPLAYS_GRAPH: Final = late(r"GraphLaunch")


class Links(Struct, frozen=True):
    """The launch of each activity, if the trace records it."""

    launch: Int32
    """Row of `Trace.launches`, or -1."""
    launch_ns: Int64
    """Start of the launch call, or NO_TIME."""
    points: Points
    """The launch on the host: by the launch call, else by its operator."""
    orphans: Index
    """Rows of `Trace.launches` without an activity in the trace."""
    shared_correlations: int
    """Activities whose correlation belongs to several launch calls."""
    late_launches: int
    """Activities that start before their launch call: the clocks disagree."""


def link(trace: Trace) -> Links:
    """Link the activities to their launches by correlation, else to operators by external id."""
    activities, launches, ranges = trace.activities, trace.launches, trace.ranges
    usable = np.flatnonzero(launches.correlation > 0)
    order = usable[np.lexsort((launches.start_ns[usable], launches.correlation[usable]))]
    correlation = launches.correlation[order]
    # Of several calls with one correlation id, the last one before the activity's start.
    first = np.searchsorted(correlation, activities.correlation, "left")
    last = np.searchsorted(correlation, activities.correlation, "right")
    found = (activities.correlation > 0) & (last > first)
    several = found & (last - first > 1)
    chosen = np.where(found, first, 0)
    for row in np.flatnonzero(several):
        starts = launches.start_ns[order[first[row] : last[row]]]
        before = np.searchsorted(starts, activities.start_ns[row], "right")
        chosen[row] = first[row] + max(int(before) - 1, 0)
    launch = np.full(len(activities), -1, np.int32)
    if len(order):
        launch[found] = order[chosen[found]]
    del correlation, first, last, chosen

    # Row -1 holds what activities without a launch have.
    launch_ns = np.append(launches.start_ns, NO_TIME)[launch]
    thread = np.append(launches.thread, np.int32(NOWHERE))[launch]
    time_ns = np.append(launches.start_ns, 0)[launch]
    # The operator with the same id is the launch's own, also where its clock puts it elsewhere.
    has_id = np.flatnonzero(activities.external_id != ABSENT)
    operators = np.flatnonzero(ranges.category == HostCategory.OPERATOR)
    known = operators if len(operators) else np.arange(len(ranges))
    operator = first_equal(ranges.external_id[known], activities.external_id[has_id])
    has_id, operator = has_id[operator >= 0], known[operator[operator >= 0]]
    begins, ends = (
        ranges.start_ns[operator],
        ranges.start_ns[operator] + ranges.duration_ns[operator],
    )
    is_inside = (time_ns[has_id] >= begins) & (time_ns[has_id] < ends)
    moved = ~is_inside | (thread[has_id] != ranges.thread[operator])
    thread[has_id[moved]] = ranges.thread[operator[moved]]
    time_ns[has_id[moved]] = begins[moved]
    starts_work = launch_calls(trace)
    starts_work[launch[launch >= 0]] = False
    return Links(
        launch=launch,
        launch_ns=launch_ns,
        points=Points(thread, time_ns),
        orphans=np.flatnonzero(starts_work),
        shared_correlations=int(several.sum()),
        late_launches=int(((launch >= 0) & (launch_ns > activities.start_ns)).sum()),
    )


def launch_calls(trace: Trace) -> Mask:
    """Which runtime calls launch work on a GPU."""
    return codes_matching(trace.names, trace.launches.name, STARTS_WORK)


def _by_code(
    names: Sequence[str],
    codes: Codes,
    value: Callable[[str], int],
    used: Index | None = None,
    kind: DTypeLike = np.int32,
) -> AnyArray:
    """A number for each code, computed once per distinct name; `used` are the codes that occur."""
    used = _used(names, codes) if used is None else used
    numbers = np.zeros(len(names), kind)
    numbers[used] = [value(names[code]) for code in used.tolist()]
    found = np.empty(len(codes), kind)
    # Codes are narrow, and numpy makes positions of as many as it gets at once.
    for block in in_blocks(len(codes)):
        found[block] = numbers[codes[block]]
    return found


def codes_matching(
    names: Sequence[str], codes: Codes, pattern: re.Pattern[str], used: Index | None = None
) -> Mask:
    """Which of the codes stand for a name that the pattern occurs in; `used` are those there."""
    return _by_code(names, codes, lambda name: pattern.search(name) is not None, used, np.bool_)


def _used(names: Sequence[str], codes: Codes) -> Index:
    is_used = np.zeros(len(names), np.bool_)
    for block in in_blocks(len(codes)):
        is_used[codes[block]] = True
    return np.flatnonzero(is_used)


class Host:
    """The host side of a trace: its ranges, chosen by category and name."""

    def __init__(
        self, trace: Trace, captured: Callable[[Host], Points] = lambda host: host.links.points
    ) -> None:
        """`captured` finds the launch of each activity that a graph replays (`align/graphs.py`)."""
        self.trace = trace
        self._captured_points = captured
        self.ranges = trace.ranges
        self._matching: dict[str, list[int]] = {}
        """The codes of the names that each pattern occurs in."""
        self.stand_ins: tuple[Int32, Int32] = np.empty(0, np.int32), np.empty(0, np.int32)
        """Activities without a launch record, and those at their places in another step."""

    @cached_property
    def links(self) -> Links:
        return link(self.trace)

    @cached_property
    def kind(self) -> Int8:
        """The kind of each activity; memset counts as compute."""
        category = self.trace.activities.category
        kind = np.where(self.of_class(*communication_classes()), Kind.COMM, Kind.COMPUTE)
        kind[category == Category.MEMCPY] = Kind.COPY
        kind[category == Category.MEMSET] = Kind.COMPUTE
        return kind.astype(np.int8)

    @cached_property
    def lane(self) -> Index:
        """The number of each activity's GPU and stream."""
        activities = self.trace.activities
        return numbered_rows((ranked(activities.device)[1], activities.stream))

    @cached_property
    def order(self) -> Order:
        return Order.of(self.lane, self.trace.activities.start_ns)

    @cached_property
    def backward(self) -> Backward:
        return link_backward(self)

    def forget_ranges(self) -> None:
        """Give back the memory of what places ranges, once labels are found: of backward operators
        it is kept what they say of each activity."""
        _ = self.linked, self.forward
        del self.backward

    @cached_property
    def captured(self) -> Points:
        """The launch of each activity; for kernels of a graph the one that was captured."""
        return self._captured_points(self)

    @cached_property
    def linked(self) -> Int32:
        """The linked backward operator around each activity's launch, NOWHERE without one."""
        return self.backward.linked.innermost(self.captured).astype(np.int32)

    @cached_property
    def forward(self) -> Points:
        """Where the forward of each activity was launched, for work of the backward alone.

        Work recomputed inside a backward operator does not belong to that operator.
        """
        linked, again = self.backward.linked, self.backward.recompute
        again = replace(again, value=np.full(len(again), NOWHERE, np.intp))
        return self.backward.forward.take(linked.joined(again).innermost(self.captured))

    def ends(self, rows: Codes | slice) -> Int64:
        return self.ranges.start_ns[rows] + self.ranges.duration_ns[rows]

    def intervals(self, rows: Codes, values: Codes | None = None) -> Intervals:
        return Intervals(
            self.ranges.thread[rows],
            self.ranges.start_ns[rows],
            self.ends(rows),
            rows if values is None else values,
        )

    def many(self, rows: Codes, value: Codes | None = None) -> ManyRanges:
        """As `intervals`, for rows of which there may be as many as ranges."""
        return ManyRanges(self, rows, rows if value is None else value)

    def valued(self, where: Mask, value: Callable[[str], int]) -> Intervals:
        """Some ranges with a number for each name."""
        rows = np.flatnonzero(where)
        return self.intervals(rows, self.by_name(value, rows))

    def named(self, pattern: re.Pattern[str]) -> Mask:
        """Which of the ranges have a name that the pattern occurs in; no long Python frame has."""
        found = self._matching.get(pattern.pattern)
        if found is None:
            search, names = pattern.search, self.trace.names
            found = [code for code in self._rows if search(names[code]) is not None]
            self._matching[pattern.pattern] = found
        is_named = np.zeros(len(self.ranges), np.bool_)
        for code in found:
            is_named[self._rows[code]] = True
        return is_named

    @cached_property
    def _rows(self) -> dict[int, Codes]:
        """The ranges but for frames, by the code of their name: far fewer than ranges."""
        rows = np.flatnonzero(self.ranges.category != HostCategory.FRAME)
        rows = rows[stable_order(self.ranges.name[rows])].astype(np.int32)
        return {code: rows[own] for code, own in runs_of(self.ranges.name[rows])}

    def by_name(self, value: Callable[[str], int], rows: Codes | None = None) -> Int32:
        """A number for each of the ranges, computed once per distinct name."""
        name = self.ranges.name if rows is None else self.ranges.name[rows]
        return _by_code(self.trace.names, name, value)

    def by_kernel(self, value: Callable[[str], int]) -> Int32:
        kernel = self.trace.activities.name
        return _by_code(self.trace.names, kernel, value, self._kernels)

    @cached_property
    def _kernels(self) -> Index:
        """The names of activities; their classes, which are asked for again and again one by one,
        are looked up together."""
        used = _used(self.trace.names, self.trace.activities.name)
        kernel_classes([self.trace.names[code] for code in used.tolist()])
        return used

    @cached_property
    def _classes(self) -> tuple[Interner, Int32]:
        """The classes of kernels, and the number of each activity's."""
        number = Interner()
        return number, self.by_kernel(lambda name: number[kernel_class(name)])

    def calls(self, pattern: re.Pattern[str]) -> Mask:
        return codes_matching(self.trace.names, self.trace.launches.name, pattern, self._called)

    @cached_property
    def _called(self) -> Index:
        """The names of runtime calls."""
        return _used(self.trace.names, self.trace.launches.name)

    def of_class(self, *classes: str) -> Mask:
        """Which of the activities are of one of some classes of kernels."""
        known, own = self._classes
        is_wanted = np.array([each in classes for each in known], np.bool_)
        return is_wanted[own]

    def text(self, row: int | np.intp) -> str:
        return self.trace.names[int(self.ranges.name[row])]

    def starts(self, rows: Index) -> Points:
        """The start of each of the ranges; nowhere for row -1."""
        return Points(self.ranges.thread, self.ranges.start_ns).take(rows)

    def in_nodes(self, rows: Index) -> Mask:
        """Which of the ranges begin in an operator that runs a node of the backward graph."""
        nodes = np.flatnonzero(self.is_operator & self.named(BACKWARD_NODE))
        return np.not_equal(self.intervals(nodes).innermost(self.starts(rows)), NOWHERE)

    @cached_property
    def annotations(self) -> Index:
        return np.flatnonzero(self.ranges.category == HostCategory.ANNOTATION)

    @cached_property
    def operators(self) -> Index:
        # Most of the ranges: in half the memory.
        return np.flatnonzero(self.ranges.category == HostCategory.OPERATOR).astype(np.int32)

    @cached_property
    def modules(self) -> Index:
        return np.flatnonzero(self.ranges.category == HostCategory.MODULE)

    @cached_property
    def is_annotation(self) -> Mask:
        return np.equal(self.ranges.category, HostCategory.ANNOTATION)

    @cached_property
    def is_operator(self) -> Mask:
        return np.equal(self.ranges.category, HostCategory.OPERATOR)

    @cached_property
    def autograd_threads(self) -> Int32:
        """Threads that run only backward work of the step: annotations of the loop are on others,
        or else the operators that autograd numbers as it records them."""
        threads = self.ranges.thread
        found, nodes = counted(threads[self.named(BACKWARD_NODE)])
        backward = found.astype(np.int32)
        own = self.is_annotation & self.named(
            re.compile(r"^(?:ProfilerStep#|Iteration\s?_?#?\d|Optimizer\.)|^enumerate\(DataLoader")
        )
        if own.any():
            return backward[~isin(backward, threads[own])]
        backward = backward[nodes >= _MANY_NODES * nodes.max(initial=0)]
        recorded = self.is_operator & (self.ranges.sequence >= 0)
        rows = np.flatnonzero(recorded & (self.ranges.forward_thread <= 0))
        rows = rows[isin(threads[rows], backward)]
        forward = distinct(threads[rows[~self.in_nodes(rows)]])
        only: Int32 = backward[~isin(backward, forward)]
        return only


class ManyRanges(Struct, frozen=True):
    """Ranges with a value each, of which a few at a time are held as intervals."""

    host: Host
    rows: Codes
    value: Codes

    def innermost(self, points: Points, among: Mask | None = None) -> Index:
        return values_over(self._blocks(), points, among)

    def outermost(self, points: Points, among: Mask | None = None) -> Index:
        return values_over(self._blocks(), points, among, 1)

    def _blocks(self) -> Iterator[Intervals]:
        for block in in_blocks(len(self.rows)):
            yield self.host.intervals(self.rows[block], self.value[block])


class Backward(Struct, frozen=True):
    """The backward operators with a known forward, and the ranges that recompute."""

    linked: Intervals
    """Backward operators; the value is a position in `forward`."""
    forward: Points
    """The start of the forward operator of each."""
    recompute: Intervals
    """Ranges in backward that recompute forward work."""


def link_backward(host: Host) -> Backward:
    """Link backward operators to forward ones: by flow, else by sequence number.

    Autograd numbers operators per forward thread, so the key is (forward thread, number). The
    profiler's own thread numbers are translated by flows with both ends; without any, the only
    thread with forward operators is used.
    """
    ranges, flows = host.ranges, host.trace.flows
    operators = host.operators[ranges.sequence[host.operators] >= 0]
    numbers, number = ranked(ranges.sequence[operators])
    is_backward = ranges.forward_thread[operators] > 0
    backward, forward = operators[is_backward], operators[~is_backward]
    threads, thread = ranked(ranges.forward_thread[backward])
    keys, key = ranked(thread * len(numbers) + number[is_backward])
    ends, starts = _by_flow(host, backward)

    forward_threads = distinct(ranges.thread[forward])
    only = forward_threads[0] if len(forward_threads) == 1 else NOWHERE
    thread_of = np.full(len(threads), only, np.int64)
    # Where flows disagree, the first gives a number's thread, the last a key's point.
    thread_of[thread[ends[::-1]]] = flows.thread[starts[::-1]]

    by_start = np.argsort(ranges.start_ns[forward], kind="stable")
    latest = forward[by_start]
    begun = last_equal(
        ranges.thread[latest].astype(np.int64) * len(numbers) + number[~is_backward][by_start],
        np.where(
            thread_of[thread] == NOWHERE,
            NOWHERE,
            thread_of[thread] * len(numbers) + number[is_backward],
        ),
    )
    known = np.flatnonzero(begun != NOWHERE)
    known = known[ranges.start_ns[latest[begun[known]]] <= ranges.start_ns[backward[known]]]
    begun = latest[begun[known]]
    point_thread = np.full(len(keys), NOWHERE, np.int32)
    point_ns = np.zeros(len(keys), np.int64)
    point_thread[key[known]], point_ns[key[known]] = ranges.thread[begun], ranges.start_ns[begun]
    point_thread[key[ends]], point_ns[key[ends]] = flows.thread[starts], flows.time_ns[starts]

    linked = np.flatnonzero(point_thread[key] != NOWHERE)
    return Backward(
        linked=host.intervals(backward[linked], np.arange(len(linked))),
        forward=Points(point_thread[key[linked]], point_ns[key[linked]]),
        recompute=_recomputing(host, forward),
    )


def _by_flow(host: Host, backward: Index) -> tuple[Index, Index]:
    """Positions in `backward` where flows end, in file order, and the starts of the flows."""
    flows, ranges = host.trace.flows, host.ranges
    starts, ends = np.flatnonzero(flows.is_start), np.flatnonzero(~flows.is_start)
    time_ns = np.concatenate([ranges.start_ns[backward], flows.time_ns[ends]])
    thread = np.concatenate([ranges.thread[backward], flows.thread[ends]]).astype(np.int64)
    if not len(time_ns):
        return starts[:0], starts[:0]
    at = thread * (np.ptp(time_ns) + 1) + (time_ns - time_ns.min())
    operator = last_equal(at[: len(backward)], at[len(backward) :])
    start = last_equal(flows.id[starts], flows.id[ends])
    both = np.flatnonzero((operator >= 0) & (start >= 0))
    return operator[both], starts[start[both]]


def _recomputing(host: Host, forward: Index) -> Intervals:
    """Ranges that recompute: recompute frames, and forward operators inside autograd nodes.

    Inside a backward node gradients are disabled and operators have no sequence number; only work
    recomputed with gradients enabled has one.
    """
    ranges = host.ranges
    # The backward frame of a reentrant checkpoint also contains the real backward.
    frames = np.flatnonzero(
        (ranges.category == HostCategory.RECOMPUTE) & ~host.named(_REENTRANT_FRAME)
    )
    return host.intervals(distinct(np.concatenate([frames, forward[host.in_nodes(forward)]])))
