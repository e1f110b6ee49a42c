"""The replay against a loop over nodes, on graphs of any shape, and what it must never do."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chopper_core.graph.step_graph import (
    EdgeRows,
    NodeKind,
    NodeRows,
    StepGraph,
    latest_ends,
    replay,
    sorted_graph,
)


def graph_of(
    work: list[int], edges: list[tuple[int, int, int]], begin: list[int], gpu: list[int]
) -> StepGraph:
    """A graph of activities, with edges (source, target, lag) that lead forward."""
    count = len(work)
    source, target, lag = np.array(edges, np.int64).reshape(-1, 3).T
    nodes = NodeRows(
        kind=np.full(count, NodeKind.ACTIVITY, np.int8),
        row=np.arange(count, dtype=np.int32),
        gpu=np.array(gpu, np.int32),
        iteration=np.zeros(count, np.int32),
        begin_ns=np.array(begin, np.int64),
        work_ns=np.array(work, np.int64),
    )
    evidence = ((source + target) % 3).astype(np.int8)
    rows = EdgeRows(source, target, evidence, lag)
    return sorted_graph(nodes, rows, np.arange(count), np.zeros(0, np.intp))


@st.composite
def graphs(draw: st.DrawFn) -> StepGraph:
    count = draw(st.integers(1, 24))
    work = draw(st.lists(st.integers(0, 50), min_size=count, max_size=count))
    begin = draw(st.lists(st.integers(0, 50), min_size=count, max_size=count))
    gpu = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    # Chains are likely, and any other edges.
    edges = [(k - 1, k, draw(st.integers(0, 9))) for k in range(1, count) if draw(st.booleans())]
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1), st.integers(0, 9))
    edges += [each for each in draw(st.lists(pairs, max_size=20)) if each[0] < each[1]]
    return graph_of(work, edges, begin, gpu)


def edges_into(graph: StepGraph) -> list[list[tuple[int, int]]]:
    bounds = graph.first.tolist()
    pairs = list(zip(graph.source.tolist(), graph.lag_ns.tolist(), strict=True))
    return [pairs[bounds[k] : bounds[k + 1]] for k in range(len(graph))]


def ends_by_loop(graph: StepGraph) -> list[int]:
    ends: list[int] = []
    for node, waits in enumerate(edges_into(graph)):
        begin = max((ends[k] + lag for k, lag in waits), default=int(graph.begin_ns[node]))
        ends.append(begin + int(graph.work_ns[node]))
    return ends


@given(graphs())
def test_the_replay_is_the_longest_path_to_each_node(graph: StepGraph) -> None:
    found = replay(graph)
    assert found.end_ns.tolist() == ends_by_loop(graph)
    assert (found.end_ns - found.begin_ns == graph.work_ns).all()


@given(graphs(), st.data())
def test_a_slower_node_never_ends_anything_earlier(graph: StepGraph, data: st.DataObject) -> None:
    before = replay(graph).end_ns
    node = data.draw(st.integers(0, len(graph) - 1))
    slower = graph.work_ns.copy()
    slower[node] += max(int(slower[node]) // 2, 1)
    after = replay(graph, slower)
    assert (after.end_ns >= before).all()
    assert after.end_ns.tolist() == ends_by_loop(replace(graph, work_ns=slower))


@given(graphs())
def test_a_replay_of_a_replay_changes_nothing(graph: StepGraph) -> None:
    found = replay(graph)
    again = replay(replace(graph, begin_ns=found.begin_ns))
    assert again.end_ns.tolist() == found.end_ns.tolist()


@given(graphs(), st.integers(0, 7))
def test_scaling_all_times_scales_the_replay(graph: StepGraph, by: int) -> None:
    times = {name: getattr(graph, name) * by for name in ("begin_ns", "work_ns", "lag_ns")}
    scaled = replay(replace(graph, **times))
    assert scaled.end_ns.tolist() == (replay(graph).end_ns * by).tolist()


@given(graphs())
def test_removing_a_rank_that_nobody_waits_for_changes_nothing(graph: StepGraph) -> None:
    target = graph.target
    alone = graph.gpu == 2
    kept_edges = ~(alone[graph.source] & ~alone[target])
    edges = EdgeRows(graph.source, target, graph.evidence, graph.lag_ns).take(kept_edges)
    nodes = NodeRows(*(getattr(graph, name) for name in NodeRows.__struct_fields__))
    moment, none = np.arange(len(graph)), np.zeros(0, np.intp)
    whole = sorted_graph(nodes, edges, moment, none)
    others = np.flatnonzero(~alone)
    new = np.full(len(graph), -1)
    new[others] = np.arange(len(others))
    left = edges.take(~alone[edges.target])
    left = EdgeRows(new[left.source], new[left.target], left.evidence, left.lag_ns)
    without = sorted_graph(nodes.take(others), left, moment[others], none)
    if len(others):
        assert replay(without).end_ns.tolist() == replay(whole).end_ns[others].tolist()


@given(graphs(), st.data())
def test_a_node_may_take_as_much_longer_as_its_slack(graph: StepGraph, data: st.DataObject) -> None:
    found = replay(graph)
    due = np.full(len(graph), found.end_ns.max())
    slack = latest_ends(graph, found, due) - found.end_ns
    assert slack.min() == 0
    node = data.draw(st.integers(0, len(graph) - 1))
    for more, is_late in ((slack[node], False), (slack[node] + 1, True)):
        work = graph.work_ns.copy()
        work[node] += more
        assert (replay(graph, work).end_ns.max() > found.end_ns.max()) == is_late
