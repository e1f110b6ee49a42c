"""The longest path through a replayed graph: it explains all of the time, and ends last."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.graph.build import step_graph
from chopper_core.graph.path import LongestPath, longest_path, work_alone
from chopper_core.graph.slack import row_slack, slack_of
from chopper_core.graph.step_graph import NodeKind, StepGraph, replay
from chopper_core.model.run import Run
from chopper_core.model.table import Kind
from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.demo import demo_run
from tests.support import Row, run_of, sample_run


def path_of(run: Run) -> LongestPath:
    graph = step_graph(run)
    return longest_path(graph, replay(graph), graph.activities)


def longest_alone(graph: StepGraph) -> int:
    """The largest sum of work of activities along the edges, node by node."""
    ends: list[int] = []
    for node in range(len(graph)):
        sources = graph.source[graph.first[node] : graph.first[node + 1]].tolist()
        own = int(graph.work_ns[node]) if graph.kind[node] == NodeKind.ACTIVITY else 0
        ends.append(own + max((ends[each] for each in sources), default=0))
    return max(ends)


def is_consistent(run: Run) -> None:
    graph = step_graph(run)
    found, path = replay(graph), path_of(run)
    first, last = path.nodes[0], path.nodes[-1]
    assert found.end_ns[last] == found.end_ns[graph.activities].max()
    # Work and gaps make up the time from the first to the last.
    assert (path.gap_ns >= 0).all() and (path.work_ns >= 0).all()
    whole = found.end_ns[last] - found.begin_ns[first]
    assert int(path.work_ns.sum() + path.gap_ns.sum()) == whole
    # Each node begins when the one before it has ended, and the edge's lag has passed.
    edges = path.edges[1:]
    assert (graph.source[edges] == path.nodes[:-1]).all()
    ended = found.end_ns[path.nodes[:-1]] + graph.lag_ns[edges]
    assert (ended == found.begin_ns[path.nodes[1:]]).all()
    assert path.edges[0] == -1
    assert int(work_alone(graph).end_ns.max()) == longest_alone(graph)
    # What is on the path has no slack in the iteration that ends last.
    if (graph.iteration == graph.iteration[last]).all():
        assert not slack_of(graph)[path.nodes].any()


activities = st.builds(
    Row,
    start=st.integers(0, 60).map(lambda n: n * 1_000),
    duration=st.sampled_from([0, 1_000, 3_000, 9_000]),
    stream=st.integers(0, 2),
    gpu=st.integers(0, 2),
    launch=st.none() | st.integers(0, 60_000),
)


@given(st.lists(activities, min_size=1, max_size=30))
def test_the_path_explains_all_of_the_time(made: list[Row]) -> None:
    is_consistent(run_of(made))


@st.composite
def with_collectives(draw: st.DrawFn) -> list[Row]:
    """Two or three GPUs that compute, wait for each other, and transfer; also for no time."""
    gpus = draw(st.integers(2, 3))
    now = [draw(st.integers(0, 5)) * 1_000 for _ in range(gpus)]
    made = []
    for _ in range(draw(st.integers(1, 6))):
        arrivals = []
        for gpu in range(gpus):
            for _ in range(draw(st.integers(0, 3))):
                length = draw(st.sampled_from([0, 1_000, 40_000]))
                launch = now[gpu] - draw(st.integers(-3, 3)) * 500
                made.append(Row(now[gpu], length, gpu=gpu, stream=0, launch=launch))
                now[gpu] += length + draw(st.sampled_from([0, 0, 2_000]))
            arrivals.append(now[gpu])
        done = max(arrivals) + draw(st.sampled_from([0, 30_000]))
        own = draw(st.integers(0, 1))
        for gpu, arrived in enumerate(arrivals):
            made.append(Row(arrived, done - arrived, Kind.COMM, own, gpu, operation="all_reduce"))
            now[gpu] = done
    return made


@given(with_collectives())
def test_the_path_crosses_gpus_at_collectives(made: list[Row]) -> None:
    is_consistent(run_of(made))


def test_the_sample_and_the_demo_are_consistent() -> None:
    for run in (sample_run(), demo_run()):
        is_consistent(run)


def test_the_path_comes_from_the_gpu_that_arrives_last() -> None:
    made = [
        Row(0, 10_000, gpu=0, launch=0),
        Row(10_000, 50_000, Kind.COMM, gpu=0, operation="all_reduce", launch=0),
        Row(60_000, 5_000, gpu=0, launch=1_000),
        Row(0, 35_000, gpu=1, launch=0),
        Row(40_000, 20_000, Kind.COMM, gpu=1, operation="all_reduce", launch=38_000),
        Row(60_000, 3_000, gpu=1, launch=1_000),
    ]
    path = path_of(run_of(made))
    # The host of GPU 1 launches its collective 38 µs after its first kernel, and its latency is
    # 2 µs; the transfer takes 20 µs; GPU 0 goes on.
    assert path.rows.tolist()[-2:] == [1, 2]
    assert path.work_ns.tolist()[-2:] == [20_000, 5_000]
    host, latency, dispatch = path.gap_ns[:, -2].tolist()
    assert (host, latency, dispatch) == (38_000, 2_000, 0)
    assert len(path.rows) == 2


def test_slack_is_how_much_longer_an_activity_may_take() -> None:
    made = [
        Row(0, 30_000, gpu=0, launch=0, iteration=1),
        Row(30_000, 30_000, Kind.COMM, gpu=0, operation="all_reduce", launch=0, iteration=1),
        Row(0, 1_000, gpu=1, launch=0, iteration=1),
        Row(40_000, 20_000, Kind.COMM, gpu=1, operation="all_reduce", launch=40_000, iteration=1),
        Row(60_000, 4_000, gpu=0, launch=1, iteration=1),
        Row(60_000, 3_000, gpu=1, launch=1, iteration=1),
    ]
    run = run_of(made)
    # GPU 1's collective is launched at 40. The first kernel of GPU 0 may take 10 longer, that of
    # GPU 1 39; after the collective GPU 1 has 1 less to do.
    assert row_slack(run).tolist() == [10_000, 0, 39_000, 1_000, 0, 1_000]
    frame = query(run, View("R", columns=("slack_ns",)))
    assert frame.values["slack_ns"].numbers.tolist() == [0, 1_000]
    assert frame.total["slack_ns"] == 0


@pytest.mark.sweep
def test_the_demo_grows_longer_beyond_its_slack() -> None:
    run = demo_run()
    graph, slack = step_graph(run), row_slack(run)
    last = int(run.table.iteration.max())
    end = replay(graph).end_ns.max()
    nodes = graph.activities[run.table.iteration[graph.row[graph.activities]] == last]
    for node in nodes[:: len(nodes) // 20].tolist():
        for more, is_late in ((0, False), (1, True)):
            work = graph.work_ns.copy()
            work[node] += slack[graph.row[node]] + more
            found = replay(graph, work).end_ns
            assert (found.max() > end) == is_late
