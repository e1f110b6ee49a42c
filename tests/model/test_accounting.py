"""The time accounting against a plain re-computation, on random activities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace
from support import Row, run_of, sample_run, table_of

from chopper_core.columns import METRICS, Scope
from chopper_core.model.accounting import launch_overheads
from chopper_core.model.signals import nearest_values, share_running
from chopper_core.model.table import ADDITIVE, LEVELS, NO_TIME, STATES, Kind, Phase
from chopper_core.model.tree import Tree
from chopper_core.model.view import View
from chopper_core.util.errors import NoSuchNode
from chopper_core.views.query import query
from chopper_core.views.shared.row_columns import node_figures
from chopper_core.views.shared.signal_charts import signal_chart
from tests.oracles import accounting as oracle

times = st.integers(0, 60)
rows = st.builds(
    Row,
    start=times,
    duration=st.integers(0, 25),
    kind=st.sampled_from(Kind),
    stream=st.integers(0, 3),
    gpu=st.integers(0, 2),
    iteration=st.integers(-1, 2),
    phase=st.sampled_from((-1, Phase.FORWARD, Phase.BACKWARD)),
    layer=st.integers(-1, 2),
    operation=st.sampled_from(("mlp_up", "attn_fa", "none")),
    kernel=st.sampled_from(("gemm", "fmha", "a/b?c&d=e")),
    launch=st.none() | times,
)
runs = st.lists(rows, min_size=1, max_size=40)


@given(runs)
def test_every_activity_is_charged_as_the_oracle_charges_it(made: list[Row]) -> None:
    table = table_of(made)
    for gpu in {row.gpu for row in made}:
        activities = [
            oracle.Activity(
                "", row.kind.name.lower(), gpu, row.stream, n, row.start, row.duration, row.launch
            )
            for n, row in enumerate(made)
            if row.gpu == gpu
        ]
        oracle.account(activities)
        for each in activities:
            for column, expected in each.charged.items():
                assert int(table.column(column)[each.row]) == expected, (column, each.row)
        span = max(each.end_ns for each in activities) - min(each.start_ns for each in activities)
        assert sum(int(table.column(state)[table.gpu == gpu].sum()) for state in STATES) == span


@given(runs, st.permutations(LEVELS))
def test_children_add_up_to_their_parent_in_every_pivot(made: list[Row], order: list[str]) -> None:
    table = table_of(made)
    tree = Tree(table, tuple(order))

    def check(path: tuple[str, ...]) -> None:
        parent, children = tree.node(path), tree.children(path)
        assert len(set(children.labels)) == len(children.labels)
        for column in ADDITIVE:
            assert parent.sum(column)[0] == children.groups.sum(column).sum()
        elapsed = METRICS["elapsed_ns"].compute(Scope(parent, parent, 0)).numbers[0]
        assert elapsed == sum(int(parent.sum(state)[0]) for state in STATES)
        if len(path) == len(order):
            return
        for position, label in enumerate(children.labels):
            below = (*path, label)
            assert sorted(tree.node(below).rows) == sorted(children.groups.rows_of(position))
            check(below)

    check(())
    assert len(tree.node(()).rows) == len(made)


@given(runs)
def test_launch_overheads_follow_the_original(made: list[Row]) -> None:
    table = table_of(made)
    for gpu in {row.gpu for row in made}:
        for iteration in {row.iteration for row in made if row.gpu == gpu}:
            own = [
                (row.start, n)
                for n, row in enumerate(made)
                if (row.gpu, row.iteration) == (gpu, iteration)
            ]
            kernels = [start for start, n in own if made[n].kind is not Kind.COPY]
            previous_end = min(kernels, default=0)
            for start, number in sorted(pair for pair in own if made[pair[1]].kind is Kind.COMPUTE):
                row = made[number]
                gap = max(0, start - previous_end)
                call = 0
                prep = 0
                if row.launch is not None and row.launch <= start:
                    call = min(start - row.launch, gap)
                    prep = gap - call
                assert int(table.launch_overhead_ns[number]) == gap
                assert int(table.call_overhead_ns[number]) == call
                assert int(table.prep_overhead_ns[number]) == prep
                previous_end = max(previous_end, start + row.duration)


def test_the_copy_of_a_step_s_input_is_no_launch_overhead_of_its_first_kernel() -> None:
    start, took = np.array([0, 50, 200]), np.array([38, 100, 100])
    kind, launch = (
        np.array([Kind.COPY, Kind.COMPUTE, Kind.COMPUTE], np.int8),
        np.array([0, 20, 180]),
    )
    found = launch_overheads(start, took, kind, launch, np.zeros(3, np.int32))
    assert found["launch_overhead_ns"].tolist() == [0, 0, 50]


@given(runs)
def test_the_share_of_running_time_is_that_of_the_union(made: list[Row]) -> None:
    start = np.array([row.start for row in made])
    duration = np.array([row.duration for row in made])
    low, high = int(start.min()), int((start + duration).max())
    if low == high:
        return
    curve = share_running(start, duration, (low, high))
    running = [
        any(row.start <= instant < row.start + row.duration for row in made)
        for instant in range(low, high)
    ]
    assert np.allclose(curve.means(np.arange(low, high + 1, dtype=float)), 100 * np.array(running))


@given(
    st.lists(st.tuples(st.integers(1, 30), st.floats(0, 100) | st.just(np.nan)), min_size=1),
    st.integers(1, 40),
    st.lists(st.integers(-20, 400), min_size=2, max_size=6, unique=True).map(sorted),
)
def test_samples_stand_for_the_time_nearest_to_them(
    steps: list[tuple[int, float]], reach: int, bounds: list[int]
) -> None:
    times = np.cumsum([2 * step for step, _ in steps])
    values = np.array([value for _, value in steps])
    half = int(np.median(np.diff(times))) // 2 if len(times) > 1 else reach
    means = nearest_values(times, values, reach).means(np.array(bounds, float))
    for mean, begin, end in zip(means, bounds, bounds[1:], strict=False):
        known = []
        for instant in np.arange(begin, end) + 0.5:
            closest = int(np.argmin(np.abs(times - instant)))
            outside = instant < times[0] or instant > times[-1]
            near = min(half, reach) if outside else reach
            if abs(times[closest] - instant) < near and np.isfinite(values[closest]):
                known.append(values[closest])
        assert np.isnan(mean) if not known else np.isclose(mean, np.mean(known))


@given(runs)
def test_frames_report_the_reductions_of_their_rows(made: list[Row]) -> None:
    run = run_of(made)
    # Of counters without any times no time is known.
    assume(run.table.has_times)
    frame = query(run, View(run.name, columns=tuple(METRICS), is_total=True))
    for position, label in enumerate(frame.labels):
        own = [row for row in made if row.gpu == int(label)]
        got = frame.row(position)
        assert got["activities"] == len(own)
        assert got["kernels"] == sum(row.kind is not Kind.COPY for row in own)
        assert got["collectives"] == sum(row.kind is Kind.COMM for row in own)
        assert got["copies"] == sum(row.kind is Kind.COPY for row in own)
        assert got["unlinked"] == sum(row.launch is None for row in own)
        assert got["kernel_ns"] == sum(row.duration for row in own)
        assert got["mean_ns"] == sum(row.duration for row in own) / len(own)
        assert got["min_ns"] == min(row.duration for row in own)
        assert got["max_ns"] == max(row.duration for row in own)
        origin = min(row.start for row in made)
        assert got["start_ns"] == min(row.start for row in own) - origin
        assert got["end_ns"] == max(row.start + row.duration for row in own) - origin
        span = max(row.start + row.duration for row in own) - min(row.start for row in own)
        assert got["elapsed_ns"] == span
        elapsed, idle = got["elapsed_ns"], got["idle_ns"]
        assert elapsed is not None and idle is not None
        if elapsed:
            assert got["busy_pct"] == 100 * (elapsed - idle) / elapsed
        else:
            assert got["busy_pct"] is None
        streams = {row.stream for row in own}
        assert got["stream"] == (streams.pop() if len(streams) == 1 else None)
        launches = {NO_TIME if row.launch is None else row.launch for row in own}
        only = launches.pop() if len(launches) == 1 else NO_TIME
        assert got["launch_ns"] == (None if only == NO_TIME else only - origin)
        assert got["bytes"] is None


def test_the_chart_covers_the_node() -> None:
    run = run_of([Row(0, 10), Row(30, 10, Kind.COMM), Row(0, 40, gpu=1)])
    seen = signal_chart(run, View(run.name), 4)
    assert (seen.signal.name, seen.start_ns, seen.end_ns, seen.gpus) == ("busy_pct", 0, 40, (0, 1))
    assert seen.values.tolist() == [[100, 0, 0, 100], [100, 100, 100, 100]]
    own = signal_chart(run, View(run.name, ("0",), signal="comm_pct"), 4)
    assert own.values.tolist() == [[0, 0, 0, 100]]


def test_figures_of_a_node_are_the_totals_of_its_frame() -> None:
    run = run_of([Row(0, 10), Row(30, 10, Kind.COMM), Row(0, 40, gpu=1)])
    for path in ((), ("0",), ("1", "none")):
        frame = query(run, View(run.name, path))
        names = [column.name for column in frame.columns if column.name != "share_pct"]
        known = node_figures(run, View(run.name, path), names)
        assert {n: known[n].at(0) for n in names} == {n: frame.total[n] for n in names}


@pytest.mark.parametrize("number", ["²", "-1", "x", "99"])
def test_an_activity_that_is_not_there_is_said(number: str) -> None:
    run = sample_run()
    path: tuple[str, ...] = ()
    while len(path) < len(LEVELS):
        path = (*path, query(run, View(run.name, path)).labels[0])
    with pytest.raises(NoSuchNode, match="unknown activity"):
        query(run, View(run.name, (*path, number)))


def test_rows_sort_by_name_as_people_count() -> None:
    run = run_of([Row(number, 1, layer=number) for number in range(12)])
    view = View(run.name, ("0", "none", "forward"))
    assert query(run, replace(view, sort="name")).labels == [str(n) for n in range(12)]
    assert query(run, replace(view, sort="-name")).labels == [str(n) for n in range(11, -1, -1)]


def test_a_short_activity_of_another_stream_splits_no_long_one() -> None:
    """The third starts when the first, which still runs, ends: nothing waits to start."""
    start, took = np.array([0, 300, 1000]), np.array([1000, 50, 200])
    kind = np.full(3, Kind.COMPUTE, np.int8)
    launch = np.array([-5, 290, 600])
    found = launch_overheads(start, took, kind, launch, np.zeros(3, np.int32))
    assert found["launch_overhead_ns"].tolist() == [0, 0, 0]
