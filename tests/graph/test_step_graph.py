"""Graphs of runs: what each activity and host waits for, and the steps that replays predict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.step_times import step_times
from chopper_core.graph import dependencies
from chopper_core.graph.build import build_graph, step_graph
from chopper_core.graph.dependencies import Evidence
from chopper_core.graph.host_nodes import queue_times
from chopper_core.graph.step_graph import Replayed, replay, steps_of_graph
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostKind, HostLane, side_tables
from chopper_core.model.table import NO_TIME, Kind
from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.demo import demo_run
from tests.realdata.conftest import FOLDER
from tests.support import Row, run_of

DEMO = Path(__file__).resolve().parent.parent.parent / "demo_data"


def ends(run: Run, factors: dict[int, float] | None = None) -> list[int]:
    """When each row ends in a replay in which some rows take some times as long."""
    graph = step_graph(run)
    work = graph.work_ns.copy()
    for row, factor in (factors or {}).items():
        work[graph.activities[row]] *= factor
    return replay(graph, work).end_ns[graph.activities].tolist()


def with_calls(run: Run, calls: list[tuple[str, int, int]]) -> Run:
    names, start, duration = zip(*calls, strict=True)
    count = len(calls)
    lane = HostLane(
        names,
        np.zeros(count, np.int32),
        np.full(count, HostKind.CALL, np.int8),
        np.arange(count, dtype=np.int32),
        np.array(start),
        np.array(duration),
    )
    return replace(run, side_tables=side_tables(lane))


def test_a_queued_activity_follows_a_longer_one() -> None:
    run = run_of([Row(10, 20, launch=0), Row(30, 20, launch=1)])
    assert ends(run) == [30, 50]
    assert ends(run, {0: 2}) == [50, 70]


def test_a_late_launch_hides_a_longer_activity() -> None:
    # The host launches at 0 and 50; latency is 10.
    run = run_of([Row(10, 20, launch=0), Row(60, 20, launch=50)])
    assert ends(run, {0: 2}) == [50, 80]
    assert ends(run, {0: 3}) == [70, 90]


def test_a_host_that_waits_for_the_device_launches_later() -> None:
    made = [Row(10, 20, launch=0), Row(50, 20, launch=40)]
    run = with_calls(run_of(made), [("hipDeviceSynchronize", 5, 27)])
    # The call returns 2 after the activity, and the host works for 8 more before it launches.
    assert ends(run) == [30, 70]
    assert ends(run, {0: 2}) == [50, 90]


def test_a_copy_that_blocks_its_call_holds_up_the_host() -> None:
    made = [Row(10, 20, Kind.COPY, launch=0), Row(50, 20, launch=40)]
    blocking = with_calls(run_of(made), [("hipMemcpyWithStream", 0, 32)])
    assert ends(blocking, {0: 2}) == [50, 90]
    beside = with_calls(run_of(made), [("hipMemcpyAsync", 0, 5)])
    assert ends(beside, {0: 2}) == [50, 70]


def test_a_collective_waits_for_its_last_member() -> None:
    made = [
        Row(10, 20, gpu=0, launch=0),
        Row(30, 70, Kind.COMM, gpu=0, operation="all_reduce", launch=1),
        Row(10, 60, gpu=1, launch=0),
        Row(70, 30, Kind.COMM, gpu=1, operation="all_reduce", launch=1),
    ]
    run = run_of(made)
    assert ends(run) == [30, 100, 70, 100]
    # GPU 1 is the late one: a longer kernel of GPU 0 changes nothing until it is as late.
    assert ends(run, {0: 2}) == [50, 100, 70, 100]
    graph = step_graph(run)
    work = graph.work_ns.copy()
    work[graph.activities[2]] = 20
    assert replay(graph, work).end_ns[graph.activities].tolist() == [30, 60, 30, 60]


def test_of_thousands_of_streams_an_activity_waits_for_the_last_that_ended() -> None:
    count = 2 * dependencies.MOST_STREAMS
    rows = [Row(10 * place + 10, 8, stream=place, launch=10 * place + 3) for place in range(count)]
    run = run_of(rows)
    graph = step_graph(run)
    assert count <= len(graph.evidence) < 4 * count
    (note,) = (each for each in query(run, View("R", name="graph")).notes if "streams:" in each)
    assert note.startswith("a GPU has 256 streams")


def test_a_wait_between_streams_holds_wherever_the_same_kernels_wait() -> None:
    made = []
    for at, slow in enumerate((30_000, 10_000, 30_000)):
        start = 2_000_000_000 * at  # beyond 32 bits
        launch = {"launch": start}
        made.append(Row(start + 5_000, slow, stream=1, operation="gather", iteration=at, **launch))
        # It waits on stream 0 for the gather, except in the second iteration, for its own stream.
        made.append(Row(start + 5_000, 20_000, operation="before", iteration=at, **launch))
        begin = start + 5_000 + max(slow, 20_000)
        launch["launch"] += 1
        made.append(Row(begin, 10_000, operation="after", kernel="a", iteration=at, **launch))
    run = run_of(made)
    graph = step_graph(run)
    waits = graph.evidence >= Evidence.QUEUED
    waits &= graph.row[graph.source] >= 0
    pairs = {
        (int(graph.row[source]), int(graph.row[target]))
        for source, target in zip(graph.source[waits], graph.target[waits], strict=True)
    }
    assert {(0, 2), (3, 5), (6, 8)} <= pairs
    assert ends(run, {3: 4})[5] == 2_000_055_000


def test_a_stream_waits_once_for_what_comes_once() -> None:
    """Rules of many activities for one-time others have no edge for each pair of them."""
    count = 200
    rows = [
        Row(100 * at, 50, stream=1, operation=f"op {at}", kernel=f"k {at}", launch=100 * at - 10)
        for at in range(count)
    ]
    rows += [Row(100 * at + 55, 20, operation="reduce", launch=100 * at - 5) for at in range(count)]
    run = run_of(rows)
    graph = step_graph(run)
    waits = (graph.evidence == Evidence.REPEATED).sum()
    assert count <= waits < 2 * count
    # As measured, the first one begins 5 after what it waits for.
    assert ends(run, {0: 4})[count] == 4 * 50 + 5 + 20


def test_what_a_stream_waits_for_at_the_start_of_a_trace_stays_as_measured() -> None:
    launched = [Row(at + 10, 20, launch=at) for at in range(0, 1_000, 100)]
    first = Row(9_000_000, 500, stream=1, launch=950)
    # The host waits for that stream, and then launches more.
    after = Row(9_000_540, 50, launch=9_000_530)
    waits = [("hipStreamSynchronize", 960, 8_999_560)]
    run = with_calls(run_of([*launched, first, after]), waits)
    assert ends(run)[-2:] == [9_000_500, 9_000_590]
    assert step_graph(run).unseen_ns == 9_000_000 - 960
    # A later one in that stream has its own stream to wait for: it shows in the model's error.
    again = Row(19_000_000, 500, stream=1, launch=9_000_600)
    assert step_graph(run_of([*launched, first, after, again])).unseen_ns == 9_000_000 - 960


def test_queues_of_gpus_with_clocks_years_apart() -> None:
    """A lost launch counts from the latest before it on its stream: 56 years are 61 bits."""
    base = np.repeat(np.array([0, 1_775_078_550_000_000_000] * 5), 4)
    launched, start = np.tile([10, NO_TIME, 30, NO_TIME], 10), base + np.tile([20, 40, 50, 60], 10)
    launch = np.where(launched == NO_TIME, NO_TIME, base + launched)
    gpu = np.repeat(np.arange(10, dtype=np.int32), 4)
    found = queue_times(gpu, np.zeros(40, np.int64), start, launch)
    assert (found - base).tolist() == [10, 10, 30, 30] * 10


def test_rows_without_launches_follow_each_other() -> None:
    graph = step_graph(run_of([Row(0, 10), Row(15, 10), Row(100, 10, gpu=1)]))
    assert graph.unlaunched == 3
    assert replay(graph).begin_ns[graph.activities].tolist() == [0, 10, 100]


def step_error(run: Run) -> float:
    """The largest deviation of a replayed complete step, as a share of the measured one."""
    graph = step_graph(run)
    steps = steps_of_graph(graph, run.table, replay(graph))
    measured = steps.times_ns(graph, Replayed(graph.begin_ns, graph.work_ns))
    replayed = steps.times_ns(graph, replay(graph))
    errors = []
    times = step_times(run, View("R"))
    for at, iteration in enumerate(times.iterations):
        own = steps.iteration == iteration
        # The same step time as everywhere.
        assert measured[own].mean() == pytest.approx(times.each_ns[at], rel=1e-3)
        errors.append(abs(replayed[own].mean() / measured[own].mean() - 1))
    return max(errors)


def test_the_demo_is_replayed_without_gaps() -> None:
    run = demo_run(named=str(DEMO / "fsdp2"))
    assert step_error(run) < 0.001


@pytest.mark.parametrize("name", ["mi300x_ddp4", "v100_dlrm_8rank"])
def test_measured_runs_are_replayed_within_two_percent(name: str) -> None:
    if not (FOLDER / name).is_dir():
        pytest.skip(f"no {FOLDER / name}")
    assert step_error(open_run(str(FOLDER / name))) < 0.02


def test_a_graph_of_no_rows_is_empty() -> None:
    graph = build_graph(run_of([Row(0, 10)]), np.zeros(0, np.intp))
    assert not len(graph)
    assert not len(replay(graph).end_ns)


def test_a_typical_lag_is_no_wait_that_nothing_shows() -> None:
    """Kernels that all start 1 ms after the one before them wait for something else: of copies,
    which start 5 us after, the lag is known."""
    rows, now = [], 0
    for number in range(40):
        kind, gap = (Kind.COPY, 5_000) if number % 2 else (Kind.COMPUTE, 1_000_000)
        rows.append(Row(now + gap, 100_000, kind, launch=number, iteration=number // 10))
        now += gap + 100_000
    graph = step_graph(run_of(rows))
    lags = graph.lag_ns[graph.evidence == Evidence.STREAM]
    assert len(lags) == 39 and (lags == 5_000).all()
    # Where all start late, that is typical.
    rows = [Row(number * 1_100_000, 100_000, launch=number) for number in range(10)]
    graph = step_graph(run_of(rows))
    assert (graph.lag_ns[graph.evidence == Evidence.STREAM] == 1_000_000).all()
