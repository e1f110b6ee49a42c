"""The host side of a trace: launches of GPU activities, and ranges by category and name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.intervals import Intervals, Points
from chopper_core.align.kernel_classes import kernel_class
from chopper_core.model.table import NO_TIME
from chopper_core.sources.shared.losses import ABSENT
from chopper_core.sources.trace import HostCategory, Trace
from chopper_core.util.arrays import Index, Int32, Int64, Mask
from chopper_core.util.grouping import distinct, ranked

BACKWARD_NODE: Final = re.compile(r"^autograd::engine::evaluate_function")
"""The operator in which autograd runs a node of the backward graph."""
_STARTS_WORK: Final = re.compile(r"Launch(?:Cooperative)?Kernel|ModuleLaunch|GraphLaunch")


class Links(Struct, frozen=True):
    """The launch of each activity, if the trace records it."""

    launch: Index
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
    launch = np.full(len(activities), -1, np.intp)
    if len(order):
        launch = np.where(found, order[chosen], -1)

    linked = launch >= 0
    launch_ns = np.full(len(activities), NO_TIME, np.int64)
    launch_ns[linked] = launches.start_ns[launch[linked]]
    operator = _by_external_id(np.where(linked, ABSENT, activities.external_id), ranges.external_id)
    thread = np.full(len(activities), -1, np.int32)
    time_ns = np.zeros(len(activities), np.int64)
    by_operator = operator >= 0
    thread[by_operator] = ranges.thread[operator[by_operator]]
    time_ns[by_operator] = ranges.start_ns[operator[by_operator]]
    thread[linked] = launches.thread[launch[linked]]
    time_ns[linked] = launch_ns[linked]
    return Links(
        launch=launch,
        launch_ns=launch_ns,
        points=Points(thread, time_ns),
        orphans=_orphans(trace, launch),
        shared_correlations=int(several.sum()),
        late_launches=int((linked & (launch_ns > activities.start_ns)).sum()),
    )


def _orphans(trace: Trace, launch: Index) -> Index:
    launches = trace.launches
    starts_work = _by_code(
        trace.names, launches.name, lambda name: _STARTS_WORK.search(name) is not None
    )
    starts_work[launch[launch >= 0]] = 0
    return np.flatnonzero(starts_work)


def _by_external_id(wanted: Int64, external_id: Int64) -> Index:
    """The first row with each wanted external id, or -1."""
    found = np.full(len(wanted), -1, np.intp)
    ids, number = ranked(wanted[wanted != ABSENT])
    if len(ids):
        at = np.minimum(np.searchsorted(ids, external_id), len(ids) - 1)
        rows = np.flatnonzero(ids[at] == external_id)[::-1]
        first = np.full(len(ids), -1, np.intp)
        first[at[rows]] = rows
        found[wanted != ABSENT] = first[number]
    return found


def _by_code(names: Sequence[str], codes: Int32, value: Callable[[str], int]) -> Index:
    used = np.flatnonzero(np.bincount(codes, minlength=len(names)))
    numbers = np.zeros(len(names), np.intp)
    numbers[used] = [value(names[code]) for code in used.tolist()]
    return numbers[codes]


class Host:
    """The host side of a trace: its ranges, chosen by category and name."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.ranges = trace.ranges
        self.end_ns = self.ranges.start_ns + self.ranges.duration_ns
        self._masks: dict[str, Mask] = {}

    def intervals(self, rows: Index, values: Index | None = None) -> Intervals:
        """Ranges as intervals, valued with their rows or the given values."""
        return Intervals(
            self.ranges.thread[rows],
            self.ranges.start_ns[rows],
            self.end_ns[rows],
            rows if values is None else values,
        )

    def named(self, pattern: re.Pattern[str]) -> Mask:
        """Which ranges have a name that matches the pattern."""
        if pattern.pattern not in self._masks:
            names = self.trace.names
            found = np.zeros(len(names), np.bool_)
            used = self._names
            found[used] = [pattern.search(names[code]) is not None for code in used.tolist()]
            labels = self.ranges.category != HostCategory.FRAME
            self._masks[pattern.pattern] = found[self.ranges.name] & labels
        return self._masks[pattern.pattern]

    @cached_property
    def _names(self) -> Index:
        """Codes of the names that ranges have."""
        return np.flatnonzero(np.bincount(self.ranges.name, minlength=len(self.trace.names)))

    def by_name(self, value: Callable[[str], int], rows: Index | None = None) -> Index:
        """A number for each of the ranges, computed once per distinct name."""
        name = self.ranges.name if rows is None else self.ranges.name[rows]
        return _by_code(self.trace.names, name, value)

    def by_kernel(self, value: Callable[[str], int]) -> Index:
        """A number for each activity, computed once per distinct kernel name."""
        return _by_code(self.trace.names, self.trace.activities.name, value)

    def by_launch(self, value: Callable[[str], int]) -> Index:
        """A number for each launch call, computed once per distinct name."""
        return _by_code(self.trace.names, self.trace.launches.name, value)

    def of_class(self, *classes: str) -> Mask:
        """Which activities are kernels of one of the classes, by their names."""
        return self.by_kernel(lambda name: kernel_class(name) in classes) > 0

    def text(self, row: int | np.intp) -> str:
        """The name of a range."""
        return self.trace.names[int(self.ranges.name[row])]

    def starts(self, rows: Index) -> Points:
        """The start of each of the ranges; nowhere for row -1."""
        return Points(self.ranges.thread, self.ranges.start_ns).take(rows)

    @cached_property
    def annotations(self) -> Index:
        """Rows of user annotations."""
        return np.flatnonzero(self.ranges.category == HostCategory.ANNOTATION)

    @cached_property
    def operators(self) -> Index:
        """Rows of the framework's operators."""
        return np.flatnonzero(self.ranges.category == HostCategory.OPERATOR)

    @cached_property
    def modules(self) -> Index:
        """Rows of `nn.Module` frames."""
        return np.flatnonzero(self.ranges.category == HostCategory.MODULE)

    @cached_property
    def is_annotation(self) -> Mask:
        """Which ranges are user annotations."""
        return np.equal(self.ranges.category, HostCategory.ANNOTATION)

    @cached_property
    def is_operator(self) -> Mask:
        """Which ranges are operators of the framework."""
        return np.equal(self.ranges.category, HostCategory.OPERATOR)

    @cached_property
    def autograd_threads(self) -> Int32:
        """Threads that run only backward work of the step."""
        backward = distinct(self.ranges.thread[self.named(BACKWARD_NODE)])
        own = self.is_annotation & self.named(
            re.compile(r"^(?:ProfilerStep#|Iteration\s?_?#?\d|Optimizer\.)|^enumerate\(DataLoader")
        )
        return backward[~np.isin(backward, self.ranges.thread[own])]
