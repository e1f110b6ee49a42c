"""Dependencies between activities, against a computation pair by pair."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.graph.dependencies import (
    STAMP_NS,
    Evidence,
    dependencies,
    time_order,
)
from chopper_core.graph.step_graph import EdgeRows
from chopper_core.model.run import Run
from chopper_core.model.table import KernelTable
from tests.support import Row, run_of, sample_run


def of_run(run: Run) -> tuple[np.ndarray, EdgeRows]:
    rows = time_order(run.table, np.arange(len(run.table)))
    return rows, dependencies(run.table, rows)


def edges_of(found: EdgeRows) -> set[tuple[int, int, Evidence]]:
    return {
        (after, before, Evidence(evidence))
        for after, before, evidence in zip(
            found.target.tolist(), found.source.tolist(), found.evidence.tolist(), strict=True
        )
    }


def pair_by_pair(table: KernelTable, rows: np.ndarray) -> set[tuple[int, int, Evidence]]:
    """The edges by their definition, each pair of rows looked at."""
    start = table.start_ns[rows].tolist()
    end = (table.start_ns[rows] + table.duration_ns[rows]).tolist()
    launch = table.launch_ns[rows].tolist()
    gpu, stream = table.gpu[rows].tolist(), table.stream[rows].tolist()
    found = set()
    for after in range(len(rows)):
        earlier = [each for each in range(after) if gpu[each] == gpu[after]]
        own = [each for each in earlier if stream[each] == stream[after]]
        previous = own[-1] if own else None
        if previous is not None and (
            end[previous] > start[after] + STAMP_NS or end[previous] > end[after]
        ):
            # Of those that ended at the same moment and may come later, none counts.
            in_lane = [
                each
                for each in range(len(rows))
                if (gpu[each], stream[each]) == (gpu[after], stream[after])
            ]
            previous = last_ended(in_lane, end, start, after)
        if previous is not None:
            found.add((after, previous, Evidence.STREAM))
        for lane in {stream[each] for each in range(len(rows)) if gpu[each] == gpu[after]}:
            if lane == stream[after]:
                continue
            of_lane = [
                each for each in range(len(rows)) if (gpu[each], stream[each]) == (gpu[after], lane)
            ]
            other = last_ended(of_lane, end, start, after)
            if other is None or (previous is not None and end[other] <= end[previous]):
                continue
            if launch[after] == np.iinfo(np.int64).min:
                evidence = Evidence.UNKNOWN
            else:
                evidence = Evidence.QUEUED if launch[after] <= end[other] else Evidence.HOST
            found.add((after, other, evidence))
    return found


def last_ended(lane: list[int], end: list[int], start: list[int], after: int) -> int | None:
    ended = [each for each in lane if end[each] <= start[after]]
    last = max(ended, key=lambda each: (end[each], each), default=None)
    return last if last is not None and last < after else None


activities = st.builds(
    Row,
    start=st.integers(0, 12_000),
    duration=st.sampled_from([0, 1, 300, 900, 1_500, 4_000]),
    stream=st.integers(0, 2),
    gpu=st.integers(0, 1),
    launch=st.none() | st.integers(0, 12_000),
)


@given(st.lists(activities, min_size=1, max_size=25))
def test_edges_are_those_of_the_definition(made: list[Row]) -> None:
    table = run_of(made).table
    rows = time_order(table, np.arange(len(table)))
    found = dependencies(table, rows)
    assert edges_of(found) == pair_by_pair(table, rows)
    is_valid(table, rows, found)


def is_valid(table: KernelTable, rows: np.ndarray, found: EdgeRows) -> None:
    """Without a cycle, on one GPU, in the order of time."""
    after, before = found.target, found.source
    assert (before < after).all() and (before >= 0).all()
    assert len(set(zip(after.tolist(), before.tolist(), strict=True))) == len(after)
    assert (table.gpu[rows[after]] == table.gpu[rows[before]]).all()
    start, end = table.start_ns[rows], table.start_ns[rows] + table.duration_ns[rows]
    is_stream = found.evidence == Evidence.STREAM
    # The order in the stream comes first.
    assert (np.diff(after) >= 0).all() and not (is_stream[1:] & (np.diff(after) == 0)).any()
    same = table.stream[rows[after]] == table.stream[rows[before]]
    assert (same == is_stream).all()
    assert (end[before] <= start[after] + np.where(is_stream, STAMP_NS, 0)).all()
    # A clock that stamps whole microseconds never makes one end before its predecessor.
    assert (end[before] <= end[after]).all()


def test_the_launch_tells_a_wait_from_the_order_of_the_host() -> None:
    made = [
        Row(0, 5_000, stream=7, launch=0),
        Row(6_000, 10, stream=0, launch=4_999),
        Row(9_000, 2_000, stream=7, launch=7_000),
        Row(12_000, 10, stream=0, launch=11_500),
        Row(12_500, 10, stream=1),
    ]
    _, found = of_run(run_of(made))
    assert edges_of(found) == {
        (1, 0, Evidence.QUEUED),
        (2, 0, Evidence.STREAM),
        (2, 1, Evidence.HOST),
        (3, 1, Evidence.STREAM),
        (3, 2, Evidence.HOST),
        (4, 2, Evidence.UNKNOWN),
        (4, 3, Evidence.UNKNOWN),
    }


def test_a_stream_in_whole_microseconds_stays_in_order() -> None:
    _, found = of_run(run_of([Row(0, 5_000), Row(4_000, 5_000), Row(4_500, 9_000)]))
    # The third overlaps the second by more than the stamps' step, and no one ended before it.
    assert edges_of(found) == {(1, 0, Evidence.STREAM)}


def test_rows_of_several_gpus_never_depend_on_each_other() -> None:
    run = sample_run()
    rows, found = of_run(run)
    is_valid(run.table, rows, found)
    assert (found.evidence == Evidence.STREAM).sum() == len(rows) - 2 * 4


def test_the_demo_has_an_order(run: Run) -> None:
    rows, found = of_run(run)
    is_valid(run.table, rows, found)
    streams = len(np.unique(run.table.gpu * 1_000 + run.table.stream))
    assert np.bincount(found.evidence, minlength=4)[0] == len(rows) - streams


@given(st.lists(activities, min_size=1, max_size=25))
def test_the_order_of_time_is_by_gpu_start_end_and_stream(made: list[Row]) -> None:
    table = run_of(made).table
    rows = np.random.default_rng(len(made)).permutation(len(table))
    keys = np.stack([table.gpu, table.start_ns, table.duration_ns, table.stream])
    ordered = [tuple(each) for each in keys[:, time_order(table, rows)].T.tolist()]
    assert ordered == sorted(ordered)


def test_no_rows_have_no_dependencies() -> None:
    found = dependencies(run_of([Row(0, 1)]).table, np.zeros(0, np.intp))
    assert not len(found.source)
