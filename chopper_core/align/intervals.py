"""Innermost and outermost intervals over points of host threads."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.util.arrays import Index, Int32, Int64, Mask, Rows
from chopper_core.util.grouping import stable_order

NOWHERE = -1


class Points(Struct, frozen=True, dict=True):
    """Instants on host threads; thread `NOWHERE` for unknown instants."""

    thread: Int32
    time_ns: Int64

    @cached_property
    def _lines(self) -> dict[bool, NumberLine]:
        return {}

    def __len__(self) -> int:
        return len(self.thread)

    def known(self) -> Mask:
        return np.not_equal(self.thread, NOWHERE)

    def take(self, rows: Index) -> Points:
        """The points of the given rows; row -1 gives an unknown point."""
        if not len(self.thread):
            return nowhere(len(rows))
        thread = np.where(rows >= 0, self.thread[rows], np.int32(NOWHERE))
        return Points(thread.astype(np.int32), self.time_ns[rows])

    def line(self, *, any_thread: bool) -> NumberLine:
        """The known points in order, sorted only once for all sets of intervals."""
        if any_thread not in self._lines:
            self._lines[any_thread] = NumberLine.of(self, any_thread)
        return self._lines[any_thread]


def nowhere(count: int) -> Points:
    return Points(np.full(count, NOWHERE, np.int32), np.zeros(count, np.int64))


class NumberLine(Struct, frozen=True):
    """Points on one number line: each thread has its own section, or all share one."""

    rows: Index
    """Rows of the points, in the order of the line."""
    at: Int64
    """Position of each of them."""
    earliest_ns: int
    latest_ns: int
    section: int

    @classmethod
    def of(cls, points: Points, any_thread: bool) -> NumberLine:
        rows = np.flatnonzero(points.known())
        time_ns = points.time_ns[rows]
        earliest, latest = (int(time_ns.min()), int(time_ns.max())) if len(rows) else (0, 0)
        unsorted = cls(rows, time_ns, earliest, latest, 0 if any_thread else latest - earliest + 3)
        at = unsorted.place(points.thread[rows], time_ns)
        order = np.argsort(at, kind="stable")
        return replace(unsorted, rows=rows[order], at=at[order])

    def place(self, thread: Int32, time_ns: Int64) -> Int64:
        """The position of an instant; instants outside all points are clipped just beyond them."""
        time_ns = np.clip(time_ns, self.earliest_ns - 1, self.latest_ns + 1)
        return thread.astype(np.int64) * self.section + (time_ns - self.earliest_ns)


class Intervals(Rows, frozen=True):
    """Closed intervals on host threads, each with a value."""

    thread: Int32
    start_ns: Int64
    end_ns: Int64
    value: Index

    def innermost(self, points: Points, *, any_thread: bool = False) -> Index:
        """The value of the shortest interval over each point, -1 where there is none.

        With `any_thread` the points are compared by time alone. Of equally long intervals the
        later one wins.
        """
        return self._paint(self.start_ns - self.end_ns, points.line(any_thread=any_thread), points)

    def outermost(self, points: Points) -> Index:
        return self._paint(self.end_ns - self.start_ns, points.line(any_thread=False), points)

    def _paint(self, rank: Int64, line: NumberLine, points: Points) -> Index:
        """The value of the highest-ranked interval over each point; the last of equal ones."""
        found = np.full(len(points), -1, np.intp)
        if not len(self) or not len(line.rows):
            return found
        low = np.searchsorted(line.at, line.place(self.thread, self.start_ns), "left")
        high = np.searchsorted(line.at, line.place(self.thread, self.end_ns), "right")
        covers = np.flatnonzero(high > low)
        covers = covers[stable_order(rank[covers])]
        last = last_over(low[covers], high[covers], len(line.rows))
        is_covered = last >= 0
        found[line.rows[is_covered]] = self.value[covers[last[is_covered]]]
        return found


def last_over(low: Index, high: Index, count: int) -> Index:
    """The last of the ranges [low, high) over each of `count` positions, -1 where there is none.

    A range is covered by two overlapping ones whose length is a power of two; from the longest
    on, those of each length are halved.
    """
    last = np.full(count, -1, np.intp)
    power = np.frexp(high - low)[1] - 1
    for exponent in range(int(power.max(initial=-1)), -1, -1):
        of_length = np.flatnonzero(power == exponent)
        np.maximum.at(last, low[of_length], of_length)
        np.maximum.at(last, high[of_length] - (1 << exponent), of_length)
        if exponent:
            half = 1 << (exponent - 1)
            shifted = last[:-half].copy()
            np.maximum(last[half:], shifted, out=last[half:])
    return last


def parents(intervals: Intervals) -> Index:
    """The position of the interval that directly encloses each one on its thread, or -1."""
    order = np.lexsort((-intervals.end_ns, intervals.start_ns, intervals.thread))
    parent = np.full(len(intervals), -1, np.intp)
    open_intervals: list[int] = []
    thread, start, end = intervals.thread, intervals.start_ns, intervals.end_ns
    for position in order.tolist():
        while open_intervals and (
            thread[open_intervals[-1]] != thread[position]
            or end[open_intervals[-1]] < end[position]
            or end[open_intervals[-1]] <= start[position]
        ):
            open_intervals.pop()
        if open_intervals:
            parent[position] = open_intervals[-1]
        open_intervals.append(position)
    return parent
