"""Which of many intervals covers a point of a host thread: the innermost or the outermost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Index = NDArray[np.intp]

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Points:
    """Instants on host threads; thread `NOWHERE` where an instant is not known."""

    thread: Int32
    time_ns: Int64

    def __len__(self) -> int:
        return len(self.thread)

    def known(self) -> NDArray[np.bool_]:
        """Which of the points are somewhere."""
        return np.not_equal(self.thread, NOWHERE)

    def take(self, rows: Index) -> Points:
        """The points of the given rows; row -1 gives a point that is nowhere."""
        if not len(self.thread):
            return nowhere(len(rows))
        thread = np.where(rows >= 0, self.thread[rows], np.int32(NOWHERE))
        return Points(thread.astype(np.int32), self.time_ns[rows])


def nowhere(count: int) -> Points:
    """Points that are not known."""
    return Points(np.full(count, NOWHERE, np.int32), np.zeros(count, np.int64))


@dataclass(frozen=True, slots=True)
class Intervals:
    """Closed intervals on host threads, with a number that says what each is about."""

    thread: Int32
    start_ns: Int64
    end_ns: Int64
    value: Index

    def __len__(self) -> int:
        return len(self.thread)

    def innermost(self, points: Points, *, any_thread: bool = False) -> Index:
        """The value of the shortest interval over each point, -1 where there is none.

        With `any_thread` the points are compared by time alone. Of equally long intervals the
        later one wins.
        """
        duration = self.end_ns - self.start_ns
        return self._paint(np.argsort(-duration, kind="stable"), points, any_thread)

    def outermost(self, points: Points) -> Index:
        """The value of the longest interval over each point, -1 where there is none."""
        duration = self.end_ns - self.start_ns
        return self._paint(np.argsort(duration, kind="stable"), points, any_thread=False)

    def _paint(self, order: Index, points: Points, any_thread: bool) -> Index:
        """Paint the intervals over the sorted points in the given order; the last one stays."""
        found = np.full(len(points), -1, np.intp)
        if not len(self) or not len(points):
            return found
        known = np.flatnonzero(points.known())
        if not len(known):
            return found
        earliest = min(int(self.start_ns.min()), int(points.time_ns[known].min()))
        latest = max(int(self.end_ns.max()), int(points.time_ns[known].max()))
        # One number line for all threads: each thread has its own stretch of the same length.
        stretch = 0 if any_thread else latest - earliest + 2

        def place(thread: Int32, time_ns: Int64) -> Int64:
            return thread.astype(np.int64) * stretch + (time_ns - earliest)

        at = place(points.thread[known], points.time_ns[known])
        by_place = np.argsort(at, kind="stable")
        at = at[by_place]
        low = np.searchsorted(at, place(self.thread, self.start_ns)[order], "left")
        high = np.searchsorted(at, place(self.thread, self.end_ns)[order], "right")
        covers = high > low
        painted = np.full(len(at), -1, np.intp)
        values = self.value[order]
        for begin, end, value in zip(
            low[covers].tolist(), high[covers].tolist(), values[covers].tolist(), strict=True
        ):
            painted[begin:end] = value
        found[known[by_place]] = painted
        return found


def union(first: Intervals, second: Intervals) -> Intervals:
    """The intervals of both; of equally long ones those of the second are further in."""
    return Intervals(
        np.concatenate([first.thread, second.thread]),
        np.concatenate([first.start_ns, second.start_ns]),
        np.concatenate([first.end_ns, second.end_ns]),
        np.concatenate([first.value, second.value]),
    )


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
