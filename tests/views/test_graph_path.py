"""The longest path through the dependencies, against a computation over all paths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.graph.path import Graph, graph_of, longest_path
from chopper_core.model.run import Run
from chopper_core.model.signals import Queue
from chopper_core.model.table import Kind
from tests.support import Row, run_of, sample_run


def whole(run: Run) -> Graph:
    return graph_of(run, np.arange(len(run.table)))


def longest_by_search(graph: Graph) -> int:
    """The largest sum of work over all chains of tasks, by depth-first search with a memory."""
    members: dict[int, list[int]] = {}
    for place, task in enumerate(graph.task.tolist()):
        members.setdefault(task, []).append(place)
    begin, end = graph.begin_ns.tolist(), graph.end_ns.tolist()
    before = [
        graph.edges.before[graph.edges.first[k] : graph.edges.first[k + 1]].tolist()
        for k in range(len(graph.rows))
    ]
    known: dict[int, int] = {}

    def up_to(task: int) -> int:
        if task not in known:
            sources = [each for member in members[task] for each in before[member]]
            known[task] = max(
                (up_to(int(graph.task[each])) + end[each] - begin[each] for each in sources),
                default=0,
            )
        return known[task]

    return max(
        up_to(task) + end[each] - begin[each] for task, own in members.items() for each in own
    )


def is_consistent(run: Run, graph: Graph) -> None:
    path = longest_path(run, graph)
    assert (graph.work_ns >= 0).all()
    assert int(path.work_ns.sum()) == int(path.to_ns.max())
    # Work and the gaps between make up the time from the first to the last.
    first, last = path.places[0], path.places[-1]
    assert (path.gap_ns >= 0).all()
    assert int(path.work_ns.sum() + path.gap_ns.sum()) == graph.end_ns[last] - graph.begin_ns[first]
    ended = graph.end_ns[path.places[:-1]]
    assert (ended <= graph.begin_ns[path.places[1:]]).all()
    # Each step is an edge, to the activity itself or to one that begins together with it.
    edges = set(zip(graph.edges.after.tolist(), graph.edges.before.tolist(), strict=True))
    steps = zip(path.held_by[1:].tolist(), path.places[:-1].tolist(), strict=True)
    assert all(step in edges for step in steps)
    assert (graph.task[path.held_by] == graph.task[path.places]).all()
    edges_of_time = np.linspace(0, path.to_ns.max(), 7)
    area = Queue.of(path.from_ns, path.to_ns).depths(edges_of_time) * np.diff(edges_of_time)
    assert area.sum() == pytest.approx(graph.work_ns.sum())


activities = st.builds(
    Row,
    start=st.integers(0, 60).map(lambda n: n * 1_000),
    duration=st.sampled_from([0, 1_000, 3_000, 9_000]),
    stream=st.integers(0, 2),
    gpu=st.integers(0, 2),
    launch=st.none() | st.integers(0, 60_000),
)


@given(st.lists(activities, min_size=1, max_size=30))
def test_the_path_is_the_longest_of_a_gpu(made: list[Row]) -> None:
    run = run_of(made)
    graph = whole(run)
    assert int(longest_path(run, graph).to_ns.max()) == longest_by_search(graph)
    is_consistent(run, graph)


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
    run = run_of(made)
    graph = whole(run)
    assert int(longest_path(run, graph).to_ns.max()) == longest_by_search(graph)
    is_consistent(run, graph)


def test_the_path_comes_from_the_gpu_with_the_most_work() -> None:
    made = [
        Row(0, 10_000, gpu=0, launch=0),
        Row(10_000, 50_000, Kind.COMM, gpu=0, operation="all_reduce", launch=0),
        Row(60_000, 5_000, gpu=0, launch=1_000),
        Row(0, 35_000, gpu=1, launch=0),
        Row(40_000, 20_000, Kind.COMM, gpu=1, operation="all_reduce", launch=38_000),
        Row(60_000, 3_000, gpu=1, launch=1_000),
    ]
    run = run_of(made)
    graph = whole(run)
    path = longest_path(run, graph)
    assert graph.begin_ns.tolist() == [0, 40_000, 60_000, 0, 40_000, 60_000]
    # GPU 1 computes, its collective holds that of GPU 0, which goes on.
    assert path.places.tolist() == [3, 1, 2] or path.places.tolist() == [3, 4, 2]
    assert path.work_ns.tolist() == [35_000, 20_000, 5_000]
    assert path.held_by.tolist() == [3, 4, 2]
    assert path.gap_ns.tolist() == [[0, 3_000, 0], [0, 2_000, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_a_member_that_arrives_early_waits_for_its_peers() -> None:
    made = [
        Row(0, 30_000, gpu=0, launch=0),
        Row(30_000, 30_000, Kind.COMM, gpu=0, operation="all_reduce", launch=0),
        Row(0, 1_000, gpu=1, launch=0),
        Row(40_000, 20_000, Kind.COMM, gpu=1, operation="all_reduce", launch=39_000),
    ]
    run = run_of(made)
    path = longest_path(run, whole(run))
    # Its work ended at 30, it was queued for no time, and its peer came at 40.
    assert path.places.tolist() == [0, 1]
    assert path.gap_ns[:, 1].tolist() == [0, 0, 0, 10_000, 0]


def test_the_sample_and_the_demo_are_consistent(run: Run) -> None:
    for each in (sample_run(), run):
        graph = whole(each)
        is_consistent(each, graph)
        path = longest_path(each, graph)
        table = each.table
        ends = table.start_ns + table.duration_ns
        assert path.work_ns.sum() <= ends.max() - table.start_ns.min()
