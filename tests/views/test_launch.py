"""Launch: overheads and causes of idle, activity by activity, and the queue of the host."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from support import Row, rows_of, run_of

from chopper_core.model.address import parse
from chopper_core.model.charts import BarChart, LineChart
from chopper_core.model.run import Run
from chopper_core.model.signals import Queue
from chopper_core.model.table import NO_LABEL, NO_TIME, Kind
from chopper_core.views.query import query
from tests.wording import Wording

SCOPES = [":gpu=2/iteration=11", ":gpu=5/iteration=12/phase=backward"]
OVERHEADS = ("launch_overhead_ns", "prep_overhead_ns", "call_overhead_ns")
COLUMNS = (
    "launch_overhead_ns,prep_overhead_ns,call_overhead_ns,comm_wait_ns,idle_ns,idle_host_ns,"
    "idle_latency_ns,idle_queued_ns,idle_unknown_ns,least_latency_ns"
)


def plain(run: Run, scope: str, by: str) -> dict[str, dict[str, list[int]]]:
    """What each activity adds to each column, by label, found one by one."""
    table = run.table
    comm: dict[int, list[tuple[int, int]]] = {}
    for row in np.flatnonzero(table.kind == Kind.COMM).tolist():
        start = int(table.start_ns[row])
        comm.setdefault(int(table.gpu[row]), []).append(
            (start, start + int(table.duration_ns[row]))
        )
    found: dict[str, dict[str, list[int]]] = {}
    for row in run.tree().node(parse(f"R{scope}").path).rows.tolist():
        sums = found.setdefault(table.text_of(by, int(table.column(by)[row])), {})
        start, launch = int(table.start_ns[row]), int(table.launch_ns[row])
        idle, call = int(table.idle_launch_ns[row]), int(table.call_overhead_ns[row])
        for name in ("launch_overhead_ns", "idle_ns", "idle_host_ns", "idle_unknown_ns"):
            sums.setdefault(name, []).append(int(table.column(name)[row]))
        sums.setdefault("prep_overhead_ns", []).append(int(table.prep_overhead_ns[row]))
        sums.setdefault("call_overhead_ns", []).append(call)
        queued = launch < start - idle
        sums.setdefault("idle_queued_ns" if queued else "idle_latency_ns", []).append(idle)
        if launch != NO_TIME:
            sums.setdefault("latencies", []).append(start - launch)
        if call:
            pieces = sorted(
                (max(begin, start - call), min(end, start))
                for begin, end in comm[int(table.gpu[row])]
                if end > start - call and begin < start
            )
            covered, until = 0, start - call
            for begin, end in pieces:
                covered += max(0, end - max(begin, until))
                until = max(until, end)
            sums.setdefault("comm_wait_ns", []).append(covered)
    return found


@pytest.mark.few(2)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("by", ["operation", "layer"])
def test_figures_are_those_of_a_plain_walk(run: Run, scope: str, by: str) -> None:
    found = query(run, parse(f"R{scope}?view=launch&by={by}&columns={COLUMNS}"))
    expected = plain(run, scope, by)
    assert set(found.labels) == set(expected)
    for number, label in enumerate(found.labels):
        row = found.row(number)
        for name in COLUMNS.split(",")[:9]:
            assert row[name] == sum(expected[label].get(name, [])), (label, name)
        idle = ("idle_host_ns", "idle_latency_ns", "idle_queued_ns", "idle_unknown_ns")
        assert sum(row[name] for name in idle) == row["idle_ns"]
        assert row["least_latency_ns"] == min(expected[label].get("latencies", [None]))
    assert found.total["comm_wait_ns"] == sum(
        sum(sums.get("comm_wait_ns", [])) for sums in expected.values()
    )


def test_mean_and_median_go_over_instances(run: Run) -> None:
    found = {
        stat: query(run, parse(f"R:gpu=4?view=launch&stat={stat}&columns={','.join(OVERHEADS)}"))
        for stat in ("mean", "median")
    }
    table = run.table
    parts: dict[str, dict[tuple[int, int], list[int]]] = {}
    for row in run.tree().node(("4",)).rows.tolist():
        if table.iteration[row] in {*run.partial_iterations[4], NO_LABEL}:
            continue
        label = table.text_of("operation", int(table.operation[row]))
        instance = (int(table.iteration[row]), int(table.layer[row]))
        sums = parts.setdefault(label, {}).setdefault(instance, [0, 0, 0, 0])
        for place, name in enumerate(("launch", "prep", "call")):
            sums[place] += int(table.column(f"{name}_overhead_ns")[row])
        sums[3] += int(table.kind[row] == Kind.COMPUTE)
    compared = 0
    means, medians = (rows_of(found[stat]) for stat in ("mean", "median"))
    for label, each in parts.items():
        instances = list(each.values())
        if not any(instance[3] for instance in instances):
            continue
        compared += 1
        for place, name in enumerate(OVERHEADS):
            values = [instance[place] for instance in instances]
            assert means[label][name] == pytest.approx(statistics.fmean(values))
            assert medians[label][name] == pytest.approx(statistics.median(values))
    assert compared > 10


def made() -> Run:
    """A kernel for each cause: late, launched at once, queued, without a record, after comm."""
    return run_of(
        [
            Row(0, 100, operation="first", launch=-50),
            Row(200, 100, operation="late", launch=170, iteration=1),
            Row(330, 100, operation="queued", launch=250, iteration=1),
            Row(470, 30, operation="unknown", iteration=1),
            Row(500, 200, Kind.COMM, 7, operation="gather", launch=400, iteration=1),
            Row(710, 90, operation="after", launch=450, iteration=1),
            Row(900, 10, operation="early", launch=905, iteration=1, gpu=0),
        ]
    )


def test_a_launch_that_takes_longer_than_any_latency_waits_for_something() -> None:
    ms = 1_000_000
    made = [Row(0, 100, launch=-50), Row(5 * ms, 100, operation="late", stream=1, launch=200)]
    made += [Row(5 * ms + 200 + ms, 9, operation="soon", launch=5 * ms + 200)]
    found = query(run_of(made), parse("R?view=launch&by=operation"))
    rows = rows_of(found)
    assert (rows["late"]["idle_latency_ns"], rows["late"]["idle_queued_ns"]) == (0, 5 * ms - 200)
    assert (rows["soon"]["idle_latency_ns"], rows["soon"]["idle_queued_ns"]) == (ms, 0)


def test_causes_of_a_table_made_by_hand(wording: Wording) -> None:
    found = query(made(), parse(f"R?view=launch&columns={COLUMNS},main_cause"))
    rows = rows_of(found)
    late, queued, after = rows["late"], rows["queued"], rows["after"]
    assert (late["idle_host_ns"], late["idle_latency_ns"], late["idle_queued_ns"]) == (70, 30, 0)
    assert late["main_cause"] == "host late" and late["least_latency_ns"] == 30
    assert (queued["idle_host_ns"], queued["idle_latency_ns"], queued["idle_queued_ns"]) == (
        0,
        0,
        30,
    )
    assert queued["main_cause"] == "waits in queue"
    assert rows["unknown"]["idle_unknown_ns"] == 40
    assert rows["unknown"]["main_cause"] == "no launch record"
    assert (after["launch_overhead_ns"], after["call_overhead_ns"], after["comm_wait_ns"]) == (
        210,
        210,
        200,
    )
    assert after["idle_ns"] == 10 and after["main_cause"] == "communication"
    assert rows["gather"]["main_cause"] == "communication"
    assert rows["early"]["least_latency_ns"] == -5 and rows["early"]["idle_host_ns"] == 100
    wording.among(found.notes, "GPU 0: 1 activit")
    assert found.labels[0] == "after"
    gaps = found.charts[0]
    assert isinstance(gaps, BarChart)
    place = gaps.labels.index("after")
    parts = {series.name: series.numbers[place] * 1e6 for series in gaps.series}
    assert parts["after launch, under communication"] == pytest.approx(200)
    assert parts["after launch, else"] == pytest.approx(10)


def test_without_launch_records_nothing_is_claimed() -> None:
    found = query(
        run_of([Row(0, 10), Row(50, 10)]), parse("R?view=launch&columns=least_latency_ns,idle_ns")
    )
    assert found.row(0) == {"least_latency_ns": None, "idle_ns": 40}
    assert any("no launch records" in note for note in found.notes)
    assert not any("clocks" in note for note in found.notes)


def test_the_queue_is_launched_less_started() -> None:
    random = np.random.default_rng(4)
    launch = random.integers(-200, 1_000, 60)
    start = launch + random.integers(-30, 400, 60)
    edges = np.linspace(0, 1_000, 11).astype(np.int64)
    depths = Queue.of(launch, start).depths(edges)
    for place in range(10):
        waiting = sum(
            int(began <= at < started)
            for at in range(edges[place], edges[place + 1])
            for began, started in zip(launch, start, strict=True)
        )
        assert depths[place] == pytest.approx(waiting / 100)


def test_the_queue_of_each_gpu_is_drawn_and_stated(run: Run) -> None:
    found = query(run, parse("R?view=launch&by=gpu&sort=name&columns=queue_depth,idle_host_ns"))
    chart = found.charts[2]
    assert isinstance(chart, LineChart) and len(chart.series) == 8
    for number, series in enumerate(chart.series):
        assert found.row(number)["queue_depth"] == pytest.approx(series.numbers.mean())
    shallow = min(range(8), key=lambda number: found.row(number)["queue_depth"])
    assert shallow == max(range(8), key=lambda number: found.row(number)["idle_host_ns"])


def test_without_launch_records_nothing_that_needs_them_is_said() -> None:
    unlaunched = run_of([Row(0, 10), Row(50, 10)])
    found = query(unlaunched, parse("R?view=launch&by=gpu"))
    assert "without launch records" in found.headline[0] and len(found.headline) == 1
    assert not any(isinstance(picture, LineChart) for picture in found.charts)
    names = "idle_ns,idle_host_ns,idle_launch_ns,prep_overhead_ns,call_overhead_ns"
    for address in (f"R?columns={names}", f"R?view=launch&columns={names}"):
        table = query(unlaunched, parse(address))
        assert list(table.row(0).values()) == [40, None, None, None, None]
    own = "comm_wait_ns,idle_latency_ns,idle_queued_ns,least_latency_ns"
    table = query(unlaunched, parse(f"R?view=launch&columns={own}"))
    assert list(table.row(0).values()) == [None] * 4
    nowhere_idle = query(run_of([Row(0, 10)]), parse("R?view=launch"))
    assert nowhere_idle.charts == ()


def test_some_launch_records_are_enough_for_a_sum() -> None:
    some = run_of([Row(0, 10), Row(50, 10, launch=30), Row(90, 10)])
    names = "idle_host_ns,idle_launch_ns,idle_unknown_ns,prep_overhead_ns,call_overhead_ns"
    assert list(query(some, parse(f"R?columns={names}")).row(0).values()) == [20, 20, 30, 20, 20]


def test_one_shortest_time_from_launch_to_start_is_no_range(wording: Wording) -> None:
    rows = [Row(20, 9, gpu=gpu, launch=launch) for gpu, launch in ((0, 12), (1, 12))]
    found = query(run_of(rows), parse("R?view=launch"))
    wording.among(found.notes, "0.0 µs")
