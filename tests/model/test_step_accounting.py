"""Steps as their annotations say: the accounting of traces against a plain re-computation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.model.run import Run
from chopper_core.model.side_table import HostSteps
from chopper_core.model.table import LEVELS, NO_LABEL, STATES, Category
from chopper_core.model.tree import Tree
from tests.align.traces import MAIN, TinyTrace
from tests.oracles import accounting as oracle
from tests.support import opened_events

CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "at": st.integers(0, 400),
            "thread": st.sampled_from((MAIN, MAIN + 1)),
            "stream": st.integers(0, 2),
            "delay": st.integers(0, 30) | st.integers(0, 250),
            "us": st.integers(0, 30) | st.integers(0, 120),
            "kind": st.sampled_from(("kernel", "kernel", "gpu_memcpy", "gpu_memset", "nccl")),
            "is_lost": st.sampled_from((False,) * 7 + (True,)),
        }
    ),
    min_size=1,
    max_size=30,
)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 3) | st.integers(-10, 60),
        st.integers(1, 100),
        st.sampled_from((1, 1, 1, 1, 1, 1, 2, 4)),
    ),
    min_size=1,
    max_size=8,
)
WAITS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), max_size=4)


@st.composite
def traces(draw: st.DrawFn) -> TinyTrace:
    """Any launches in, between and outside any steps; what they start runs at any time after, and
    host and GPU have one clock."""
    trace = TinyTrace()
    now, number = draw(st.integers(1_000, 1_200)), draw(st.integers(0, 9))
    for gap, length, more in draw(STEPS):
        now, number = now + gap, number + more
        trace.note(f"ProfilerStep#{number}", now, now + length)
        now += length
    ends: dict[int, int] = {}
    free: dict[int, int] = {}
    calls = sorted(draw(CALLS), key=lambda call: call["at"])
    for place, call in enumerate(calls):
        at, stream, category = 1_000 + call["at"], call["stream"], call["kind"]
        trace._correlations += 1
        name = f"k{place}"
        if category == "nccl":
            name, category = f"ncclDevKernel_{place}", "kernel"
        of_runtime = "cudaMemcpyAsync" if category == "gpu_memcpy" else "cudaLaunchKernel"
        trace.call(of_runtime, at, trace._correlations, call["thread"])
        if call["is_lost"] and place:
            continue
        start = max(at + call["delay"], free.get(stream, 0))
        free[stream] = start + call["us"]
        ends[at] = max(ends.get(at, 0), free[stream])
        number = trace._correlations
        trace.gpu(name, start, call["us"], stream=stream, category=category, correlation=number)
    for at, us in draw(WAITS):
        begun = [end for launched, end in ends.items() if launched <= 1_000 + at]
        wait = max([1_000 + at, *begun]) - 1_000 - at
        trace.call("cudaDeviceSynchronize", 1_000 + at, 0)["dur"] = wait + us
    return trace


def check(trace: TinyTrace, run: Run) -> None:
    """Every activity is charged as the oracle charges it, and every time outside steps is there."""
    document = {"traceEvents": trace.events}
    activities, host = oracle.activities_of(document), oracle.host_of(document)
    oracle.put_into_steps(activities, host.steps)
    table = run.table
    is_outside = table.category == Category.OUTSIDE
    row_of = {table.names[table.kernel[row]]: row for row in np.flatnonzero(~is_outside).tolist()}
    shift = 0
    for each in activities:
        shift = int(table.start_ns[row_of[each.name]]) - each.start_ns
        number = each.step.number if each.step else NO_LABEL
        assert table.iteration[row_of[each.name]] == number, each
    outside = oracle.account(activities, host)
    for each in activities:
        found = {name: int(table.column(name)[row_of[each.name]]) for name in oracle.CHARGED}
        assert found == each.charged, (each.name, each.step)
    assert sorted(
        (int(table.start_ns[row]) - shift, int(table.idle_ns[row]))
        for row in np.flatnonzero(is_outside).tolist()
    ) == sorted((each.end_ns, each.idle_ns) for each in outside)
    span = _span(activities, host)
    assert sum(int(table.column(state).sum()) for state in STATES) == span
    assert all((table.column(name) >= 0).all() for name in oracle.CHARGED)


def _span(activities: list[oracle.Activity], host: oracle.Host) -> int:
    begins = [each.start_ns for each in activities] + [step.begin_ns for step in host.steps]
    ends = [each.end_ns for each in activities] + [step.end_ns for step in host.steps]
    return max(ends) - min(begins)


@given(traces())
def test_any_trace_is_charged_as_the_oracle_charges_it(tmp_path: Path, trace: TinyTrace) -> None:
    check(trace, opened_events(tmp_path, trace.events))


@given(traces())
def test_the_busy_share_is_that_of_the_running_activities(tmp_path: Path, trace: TinyTrace) -> None:
    run = opened_events(tmp_path, trace.events)
    table = run.table
    if not table.has_times:
        return
    starts, ends = table.start_ns, table.start_ns + table.duration_ns
    steps = run.side(HostSteps).spans(0)
    begin, end = np.append(starts, steps.start_ns).min(), np.append(ends, steps.end_ns).max()
    bounds = np.arange(int(begin), int(end) + 1, 100)
    middle = bounds[:-1, None] + 50
    running = ((starts <= middle) & (middle < ends)).any(axis=1)
    assert np.allclose(run.signal("busy_pct").curves[0].means(bounds), 100.0 * running)


@given(traces(), st.permutations(LEVELS))
def test_the_states_add_up_at_every_node_in_every_order(
    tmp_path: Path, trace: TinyTrace, order: list[str]
) -> None:
    tree = Tree(opened_events(tmp_path, trace.events).table, tuple(order))

    def follow(path: tuple[str, ...]) -> None:
        node, children = tree.node(path), tree.children(path).groups
        for name in (*STATES, *oracle.IDLE_PARTS):
            assert node.sum(name)[0] == children.sum(name).sum(), (name, path)
        for groups in (node, children):
            assert (groups.elapsed_ns == sum(groups.sum(state) for state in STATES)).all()
            parts = sum(groups.sum(part) for part in oracle.IDLE_PARTS)
            assert (groups.sum("idle_ns") == parts).all()
        if len(path) + 1 < len(order):
            for label in tree.children(path).labels:
                follow((*path, label))

    follow(())
