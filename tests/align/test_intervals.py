"""Which interval covers a point, against looking at each interval for each point."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.align import labels
from chopper_core.align.labels import NOWHERE, Intervals, Points

# Small numbers, so that ends meet, lengths are equal and points lie on ends.
times, threads = st.integers(-3, 12), st.integers(0, 2)
intervals_given = st.lists(st.tuples(threads, times, st.integers(0, 9)), max_size=25)
points_given = st.lists(st.tuples(threads | st.just(NOWHERE), times), max_size=25)
Interval = tuple[int, int, int]
Point = tuple[int, int]


def _covering(intervals: list[Interval], point: Point, any_thread: bool) -> list[tuple[int, int]]:
    """(Length, value) of the intervals over a point, the value being the position."""
    thread, time = point
    return [
        (length, position)
        for position, (own, start, length) in enumerate(intervals)
        if thread != NOWHERE and (any_thread or own == thread) and start <= time <= start + length
    ]


@pytest.mark.sweep
@given(intervals_given, points_given, st.integers(0, 2**60))
def test_points_are_covered_as_one_by_one(
    intervals: list[Interval], points: list[Point], epoch: int
) -> None:
    thread, start, length = np.array(intervals, np.int64).reshape(-1, 3).T
    laid = Intervals(
        thread.astype(np.int32), start + epoch, start + length + epoch, np.arange(len(intervals))
    )
    at_thread, at_time = np.array(points, np.int64).reshape(-1, 2).T
    placed = Points(at_thread.astype(np.int32), at_time + epoch)
    # One after the other on the same points, which keep their order; as few ranges and as many.
    for any_thread, few in ((False, labels._FEW), (True, 0), (False, 0)):
        shortest = [
            min(over, key=lambda each: (each[0], -each[1]))[1] if over else -1
            for over in (_covering(intervals, point, any_thread) for point in points)
        ]
        with patch.object(labels, "_FEW", few):
            assert laid.innermost(placed, any_thread=any_thread).tolist() == shortest
    longest = [
        max(over)[1] if over else -1
        for over in (_covering(intervals, point, False) for point in points)
    ]
    assert laid.outermost(placed).tolist() == longest
