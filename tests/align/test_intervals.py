"""Which interval covers a point, against looking at each interval for each point."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.align import labels
from chopper_core.align.host import Host
from chopper_core.align.labels import NOWHERE, Intervals, Points
from chopper_core.sources.trace import HostRanges
from chopper_core.util.arrays import column_types

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


@pytest.mark.parametrize("block", [1, 7, 1 << 16])
def test_many_ranges_cover_points_as_one_by_one(block: int) -> None:
    random = np.random.default_rng(3)
    count = 60
    columns = {name: np.zeros(count, kind) for name, kind in column_types(HostRanges).items()}
    columns["thread"][:] = random.integers(0, 3, count)
    columns["start_ns"][:] = random.integers(0, 40, count)
    columns["duration_ns"][:] = random.integers(0, 9, count)
    ranges = HostRanges(**columns)
    host = Host(cast(Any, SimpleNamespace(ranges=ranges)))
    threads, times = random.integers(-1, 3, 50), random.integers(-2, 50, 50)
    points, among = Points(threads.astype(np.int32), times), random.random(50) < 0.7
    rows = random.permutation(count)[:45]  # Of equally long ones the later in their order wins.
    intervals = [
        (int(ranges.thread[row]), int(ranges.start_ns[row]), int(ranges.duration_ns[row]))
        for row in rows
    ]
    over = [_covering(intervals, each, False) for each in zip(threads, times, strict=True)]
    shortest = [
        rows[min(each, key=lambda one: (one[0], -one[1]))[1]] if each else -1 for each in over
    ]
    longest = [1000 + max(each)[1] if each else -1 for each in over]
    with patch.object(labels, "BLOCK", block):
        many = host.many(rows)
        assert many.innermost(points).tolist() == shortest
        assert many.innermost(points, among).tolist() == [
            value if is_asked else -1 for value, is_asked in zip(shortest, among, strict=True)
        ]
        valued = host.many(rows, np.arange(1000, 1000 + len(rows), dtype=np.int32))
        assert valued.outermost(points).tolist() == longest
    assert host.many(rows[:0]).innermost(points).tolist() == [-1] * 50
    assert max(map(len, over)) > 1 and not all(over)


@pytest.mark.parametrize("block", [1, 7, 1 << 16])
def test_every_range_has_the_number_of_its_name(block: int) -> None:
    names = ["mm", "a", "addmm", "unused"]
    codes = np.random.default_rng(2).integers(0, 3, 50).astype(np.int16)
    columns = {name: np.zeros(50, kind) for name, kind in column_types(HostRanges).items()}
    host = Host(
        cast(Any, SimpleNamespace(ranges=HostRanges(**{**columns, "name": codes}), names=names))
    )
    asked: list[str] = []

    def number(name: str) -> int:
        asked.append(name)
        return len(name)

    with patch.object(labels, "BLOCK", block):
        assert host.by_name(number).tolist() == [len(names[code]) for code in codes]
        assert sorted(asked) == ["a", "addmm", "mm"]
        assert host.by_name(number, np.arange(3)).tolist() == [
            len(names[code]) for code in codes[:3]
        ]
