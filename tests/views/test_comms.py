"""Comms: against plain loops over the demo's activities, and where each row leads."""

from __future__ import annotations

import statistics
from functools import partial

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.model.address import parse, render
from chopper_core.model.charts import BarChart, LineChart
from chopper_core.model.run import Run
from chopper_core.model.table import Kind
from chopper_core.render.glyphs import UNICODE
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.views.query import query
from chopper_tui.draw.table import plan
from tests.limited import within
from tests.support import Row, rows_of, run_of
from tests.wording import Wording

FACTOR = {"all_reduce": 2 * 7 / 8, "all_gather": 7 / 8, "reduce_scatter": 7 / 8}
COLUMNS = (
    "collective_ns,skew_ns,transfer_ns,last_gpu,wait_ns,bus_gbps,algo_gbps,got_gbps,message_bytes,"
    "collective_kind,phase,layer,iteration,ranks_seen,exposed_comm_ns,hidden_ns,process_group"
)


def slowly(run: Run) -> list[list[int]]:
    """The demo's collectives: kernels that end within a microsecond of each other."""
    table = run.table
    rows = [r for r in range(len(table)) if table.kind[r] == Kind.COMM]
    rows.sort(key=lambda r: int(table.start_ns[r] + table.duration_ns[r]))
    sets: list[list[int]] = []
    for row in rows:
        end = int(table.start_ns[row] + table.duration_ns[row])
        last = sets[-1][-1] if sets else None
        if last is not None and end - int(table.start_ns[last] + table.duration_ns[last]) < 1000:
            sets[-1].append(row)
        else:
            sets.append([row])
    return sorted(sets, key=lambda own: min(int(table.start_ns[r]) for r in own))


def counts(run: Run, own: list[int], *, is_total: bool = False) -> bool:
    """Whether a collective is of a complete step, or for a total outside of all."""
    others = {*run.cut_iterations} if is_total else {*run.cut_iterations, -1}
    return not {int(number) for number in run.table.iteration[own]} & others


@pytest.mark.few(1)
@pytest.mark.parametrize("gpu", [None, 3])
def test_each_collective_against_a_plain_loop(run: Run, gpu: int | None, wording: Wording) -> None:
    table = run.table
    scope = "" if gpu is None else f":gpu={gpu}"
    frame = query(run, parse(f"R{scope}?view=comms&by=collective&columns={COLUMNS}"))
    # A wait of several GPUs is longer than the collective.
    wording(frame.base, *(("sum", "GPUs") if gpu is None else ()))
    assert bool(frame.base) == (gpu is None)
    found = rows_of(frame)
    expected = [own for own in slowly(run) if counts(run, own)]
    assert len(found) == len(expected)
    for row, own in zip(found.values(), expected, strict=True):
        starts = {int(table.gpu[r]): int(table.start_ns[r]) for r in own}
        last, end = (
            max(starts.values()),
            max(int(table.start_ns[r] + table.duration_ns[r]) for r in own),
        )
        mine = [r for r in own if gpu is None or table.gpu[r] == gpu]
        kind, size = table.operations[table.operation[own[0]]], int(table.bytes[own[0]])
        assert row["collective_kind"] == kind
        assert row["collective_ns"] == end - min(starts.values())
        assert row["exposed_comm_ns"] == sum(int(table.exposed_comm_ns[r]) for r in mine)
        assert row["hidden_ns"] == sum(int(table.hidden_ns[r]) for r in mine)
        assert row["ranks_seen"] == len(own)
        assert row["message_bytes"] == (None if size < 0 else size)
        if len(own) < 8:
            assert row["skew_ns"] is row["transfer_ns"] is row["last_gpu"] is row["wait_ns"] is None
            assert row["bus_gbps"] is None
            continue
        assert row["skew_ns"] == last - min(starts.values())
        assert row["transfer_ns"] == end - last
        assert starts[int(row["last_gpu"].removeprefix("GPU "))] == last
        assert row["wait_ns"] == sum(last - int(table.start_ns[r]) for r in mine)
        if size < 0:
            assert row["bus_gbps"] is row["got_gbps"] is None
            continue
        assert row["algo_gbps"] == pytest.approx(size / (end - last))
        assert row["bus_gbps"] == pytest.approx(FACTOR[kind] * size / (end - last))
        durations = sum(int(table.duration_ns[r]) for r in mine)
        assert row["got_gbps"] == pytest.approx(FACTOR[kind] * size * len(mine) / durations)


@pytest.mark.sweep
@pytest.mark.parametrize("by", ["kind", "phase", "layer", "iteration", "group", "gpu"])
def test_sums_and_spreads_of_each_split(run: Run, by: str) -> None:
    table = run.table
    found = rows_of(query(run, parse(f"R?view=comms&by={by}&base=total&columns={ALL[by]}")))
    label = {
        "kind": lambda r: table.text_of("operation", int(table.operation[r])),
        "group": lambda r: table.names[table.group[r]] if table.group[r] >= 0 else "unknown",
    }.get(by, lambda r: table.text_of(by, int(table.column(by)[r])))
    waits: dict[str, int] = {}
    durations: dict[str, list[int]] = {}
    moved: dict[str, float] = {}
    time: dict[str, int] = {}
    skews: dict[str, list[int]] = {}
    lasts: dict[str, list[int]] = {}
    caused: dict[str, int] = {}
    for own in filter(partial(counts, run, is_total=True), slowly(run)):
        for r in own:
            durations.setdefault(label(r), []).append(int(table.duration_ns[r]))
        if len(own) < 8:
            continue
        last = max(int(table.start_ns[r]) for r in own)
        end = max(int(table.start_ns[r] + table.duration_ns[r]) for r in own)
        latest = next(int(table.gpu[r]) for r in own if table.start_ns[r] == last)
        lasts.setdefault(label(own[0]), []).append(latest)
        waiting = [last - int(table.start_ns[r]) for r in own]
        caused[str(latest)] = caused.get(str(latest), 0) + sum(waiting)
        for r, wait in zip(own, waiting, strict=True):
            waits[label(r)] = waits.get(label(r), 0) + wait
        skews.setdefault(label(own[0]), []).append(max(waiting))
        if table.bytes[own[0]] >= 0:
            factor = FACTOR[table.operations[table.operation[own[0]]]]
            moved[label(own[0])] = moved.get(label(own[0]), 0) + factor * int(table.bytes[own[0]])
            time[label(own[0])] = time.get(label(own[0]), 0) + end - last
    assert set(found) == set(durations)
    for name, row in found.items():
        assert row["wait_ns"] == waits[name]
        assert row["median_ns"] == pytest.approx(statistics.median(durations[name]))
        assert row["p95_ns"] == pytest.approx(np.quantile(durations[name], 0.95))
        assert row["max_ns"] == max(durations[name])
        if by == "gpu":
            assert row["caused_ns"] == caused.get(name, 0)
            assert row["times_last"] == sum(int(name) in own for own in map(set, _each(lasts)))
            continue
        assert row["median_skew_ns"] == pytest.approx(statistics.median(skews[name]))
        assert row["max_skew_ns"] == max(skews[name])
        bus = row["bus_gbps"]
        assert bus == (pytest.approx(moved[name] / time[name]) if name in moved else None)
        often = statistics.multimode(lasts[name])
        assert int(row["last_gpu"].removeprefix("GPU ")) in often
        share = lasts[name].count(often[0]) / len(lasts[name])
        assert row["last_pct"] == pytest.approx(100 * share)


def _each(lasts: dict[str, list[int]]) -> list[list[int]]:
    return [[gpu] for own in lasts.values() for gpu in own]


_GROUPED = "wait_ns,median_ns,p95_ns,max_ns"
ALL = dict.fromkeys(
    ("kind", "phase", "layer", "iteration", "group"),
    f"{_GROUPED},median_skew_ns,max_skew_ns,bus_gbps,last_gpu,last_pct",
) | {"gpu": f"{_GROUPED},caused_ns,times_last"}


@pytest.mark.parametrize("by", ["kind", "phase", "layer", "iteration", "group", "gpu"])
def test_a_row_leads_to_its_collectives(run: Run, by: str) -> None:
    found = query(run, parse(f"R?view=comms&by={by}&base=total&columns=collectives"))
    for number in range(min(len(found), 4)):
        address = found.addresses(number)
        assert render(parse(address)) == address
        there = query(run, parse(f"{address}&columns=ranks_seen"))
        assert there.level == "collective"
        if found.labels[number] != "unknown":
            # A collective is a call of each of its GPUs.
            of_gpus = there.values["ranks_seen"].numbers if by != "gpu" else np.ones(len(there))
            assert of_gpus.sum() == found.row(number)["collectives"]


def test_from_a_collective_to_the_activity_on_a_gpu(run: Run) -> None:
    found = query(
        run, parse("R:gpu=3?view=comms&by=collective&filter=reduce_scatter&sort=-skew_ns")
    )
    kernels = query(run, parse(found.addresses(0)))
    assert kernels.level == "gpu" and len(kernels) == 8
    assert kernels.labels[-1] == found.row(0)["last_gpu"].removeprefix("GPU ") == "5"
    assert kernels.row(7)["wait_ns"] == 0
    assert max(kernels.values["arrival_lag_ns"].numbers) == found.row(0)["skew_ns"]
    for number in range(8):
        activity = query(run, parse(kernels.addresses(number)))
        assert activity.view.is_leaf and activity.view.path[0] == kernels.labels[number]
        assert activity.row(0)["start_ns"] == kernels.row(number)["start_ns"]
        assert activity.row(0)["kernel_ns"] == kernels.row(number)["kernel_ns"]


def counted_steps(run: Run) -> set[int]:
    cut = set().union(*run.partial_iterations.values())
    return set(run.table.iteration.tolist()) - cut - {-1}


def test_the_slow_gpu_is_named_with_its_numbers(run: Run, wording: Wording) -> None:
    found = query(run, parse("R?view=comms&by=gpu"))
    rows = rows_of(found)
    seen = sum(len(own) == 8 and counts(run, own) for own in slowly(run))
    assert max(rows, key=lambda gpu: rows[gpu]["caused_ns"]) == "5"
    last = 100 * rows["5"]["times_last"] * len(counted_steps(run)) / seen
    wording(found.headline[1], "GPU 5", f"{last:.0f} %", "99 collectives")
    share = 100 * rows["5"]["caused_ns"] / sum(row["caused_ns"] for row in rows.values())
    assert f" · {share:.0f} % for GPU 5" in found.headline[1]
    taken_in = query(run, parse("R?view=comms&by=gpu&cut=1"))
    assert any("1 of 236 collectives" in note for note in taken_in.notes)
    exposed = found.charts[0]
    assert isinstance(exposed, BarChart) and isinstance(exposed.series[0].numbers, np.ndarray)
    by_operation = query(run, parse("R?view=comms&by=operation"))
    times = dict(zip(exposed.labels, exposed.series[0].numbers.tolist(), strict=True))
    for name, row in rows_of(by_operation).items():
        assert row["exposed_comm_ns"] / 1e6 == pytest.approx(times.get(name, 0), abs=0.4)
    assert sum(times.values()) == pytest.approx(by_operation.total["exposed_comm_ns"] / 1e6, 0.03)


@pytest.mark.few(1)
@pytest.mark.parametrize("by", ["kind", "layer", "gpu", "collective"])
def test_shares_of_the_durations(run: Run, by: str) -> None:
    table = run.table
    names = "wait_pct,exposed_pct,hidden_pct" + ("" if by == "gpu" else ",moved_bytes")
    if by == "collective":
        names = "wait_pct,exposed_pct,hidden_pct"
    found = rows_of(query(run, parse(f"R:gpu=2?view=comms&by={by}&base=total&columns={names}")))
    sums: dict[str, dict[str, int]] = {}
    for number, own in enumerate(slowly(run)):
        if not counts(run, own, is_total=True):
            continue
        (row,) = (r for r in own if table.gpu[r] == 2)
        level = {"kind": "operation", "collective": "operation"}.get(by, by)
        label = table.text_of(level, int(table.column(level)[row]))
        label = f"{label} {number}" if by == "collective" else label
        mine = sums.setdefault(label, dict.fromkeys(("all", "seen", "wait", "out", "in", "b"), 0))
        duration = int(table.duration_ns[row])
        mine["all"] += duration
        mine["out"] += int(table.exposed_comm_ns[row])
        mine["in"] += int(table.hidden_ns[row])
        mine["b"] += max(0, int(table.bytes[row]))
        if len(own) == 8:
            mine["seen"] += duration
            mine["wait"] += max(int(table.start_ns[r]) for r in own) - int(table.start_ns[row])
    assert set(found) == set(sums)
    for label, mine in sums.items():
        row_of = found[label]
        waits = 100 * mine["wait"] / mine["seen"] if mine["seen"] else None
        assert row_of["wait_pct"] == (None if waits is None else pytest.approx(waits))
        assert row_of["exposed_pct"] == pytest.approx(100 * mine["out"] / mine["all"])
        assert row_of["hidden_pct"] == pytest.approx(100 * mine["in"] / mine["all"])
        if "moved_bytes" in names:
            assert row_of["moved_bytes"] == (mine["b"] or None)


def test_pictures_of_skew_and_of_each_occurrence(run: Run) -> None:
    table = run.table
    *_, skews, lines = query(run, parse("R?view=comms")).charts
    assert isinstance(skews, LineChart) and isinstance(lines, LineChart)
    sets = [own for own in slowly(run) if len(own) == 8 and counts(run, own)]
    starts = [[int(table.start_ns[r]) for r in own] for own in sets]
    expected = sorted(max(own) - min(own) for own in starts)
    assert skews.points
    assert sorted(np.concatenate(skews.x) * 1e6) == pytest.approx(expected, abs=1e-3)
    assert lines.title.startswith("reduce_scatter: ") and len(lines.series) == 8
    for gpu in (0, 5):
        own = np.flatnonzero(
            (table.gpu == gpu)
            & (table.operation == table.operations.index("reduce_scatter"))
            & ~np.isin(table.iteration, [*run.cut_iterations, -1])
        )
        own = own[np.argsort(table.start_ns[own])]
        durations = table.duration_ns[own] / 1e6
        assert lines.series[gpu].numbers == pytest.approx(durations)


def test_many_occurrences_and_gpus_are_drawn_together() -> None:
    rows = [
        Row(1_000 * n + gpu, 500 - gpu + n // 2, Kind.COMM, gpu=gpu, operation="all_reduce")
        for n in range(700)
        for gpu in range(14)
    ]
    lines = query(run_of(rows), parse("R?view=comms")).charts[-1]
    assert isinstance(lines, LineChart) and "medians of 3 each" in lines.title
    assert [line.name.split()[0] for line in lines.series] == ["minimum", "median", "maximum"]
    assert len(lines.series[0].numbers) == 234
    for place in (0, 5, 233):
        own = [3 * place + n for n in range(3) if 3 * place + n < 700]
        each = sorted(statistics.median(500 - gpu + n // 2 for n in own) for gpu in range(14))
        found = [line.numbers[place] * 1e6 for line in lines.series]
        assert found == pytest.approx([each[0], statistics.median(each), each[-1]])


def test_occurrences_of_many_groups_take_memory_for_each_activity() -> None:
    """Not for each collective on each GPU, most of which take no part in it."""
    pairs, times = 400, 30
    rows = [
        Row(1_000 * n + gpu % 2, 100 + gpu, Kind.COMM, gpu=gpu, operation="all_reduce",
            kernel=f"group {pair}")
        for pair in range(pairs)
        for gpu in (2 * pair, 2 * pair + 1)
        for n in range(times)
    ]  # fmt: skip
    run = run_of(rows)
    run = replace(run, table=replace(run.table, group=run.table.kernel))
    query(run, parse("R?view=comms&by=collective"))
    with within(60 << 20):  # All collectives × all GPUs are 77 MB.
        lines = query(run, parse("R?view=comms")).charts[-1]
    assert isinstance(lines, LineChart) and "medians of 40 each" in lines.title
    least, _, most = (line.numbers * 1e6 for line in lines.series)
    assert least.min() == pytest.approx(100)
    assert most.max() == pytest.approx(100 + 2 * pairs - 1)


def test_outliers_are_those_of_the_rule() -> None:
    rows = [
        Row(
            1000 * n,
            500 if n == 7 else 90 + n % 5,
            Kind.COMM,
            gpu=gpu,
            iteration=1,
            operation="all_reduce",
        )
        for n in range(12)
        for gpu in range(2)
    ]
    found = query(run_of(rows), parse("R?view=comms&by=collective&filter=outlier:slow"))
    assert found.labels == ["all_reduce 7"]
    assert found.hidden == 11
    kinds = query(run_of(rows), parse("R?view=comms&columns=outliers,bus_gbps"))
    assert kinds.row(0) == {"outliers": 1, "bus_gbps": None}


def test_one_rank_alone_knows_no_arrivals(wording: Wording) -> None:
    rows = [Row(0, 50, Kind.COMM, gpu=0, operation="all_reduce"), Row(60, 5)]
    found = query(run_of(rows), parse("R?view=comms"))
    assert found.labels == ["all_reduce"] and found.total.get("wait_ns") is None
    wording.among(found.notes, "1 of 1 collectives")


def test_what_is_not_there_is_said(run: Run) -> None:
    with pytest.raises(UsageError, match="no communication kernels"):
        query(run_of([Row(0, 5)]), parse("R?view=comms"))
    for number in ("999", "x", "-1"):
        with pytest.raises(ChopperError, match="takes a number from 0 to 235"):
            query(run, parse(f"R?view=comms&of={number}"))


def test_exposed_time_belongs_to_the_operation_that_follows() -> None:
    rows = [
        Row(0, 100, operation="a"),
        Row(50, 150, Kind.COMM, operation="all_reduce"),
        Row(200, 100, operation="b"),
        Row(310, 90, Kind.COMM, operation="all_reduce"),
        Row(420, 10, operation="b"),
        Row(500, 20, Kind.COMM, operation="all_reduce"),
    ]
    found = query(run_of(rows), parse("R?view=comms&by=operation"))
    exposed = dict(zip(found.labels, found.values["exposed_comm_ns"].numbers, strict=True))
    assert exposed == {"b": 100 + 90, "none": 20}
    assert " before b" in found.headline[0]
    # The end of the trace is no operation.
    found = query(run_of([rows[0], rows[1]]), parse("R?view=comms"))
    assert found.headline == ("0.1 µs exposed", "1 collective: 1 all_reduce")


@pytest.mark.parametrize("scope", ["", ":gpu=1", ":gpu=1/iteration=11"])
def test_the_order_is_by_what_the_headline_says_first(run: Run, scope: str) -> None:
    """What is exposed comes first, beside what waits, in the narrowest terminal too."""
    found = query(run, parse(f"R{scope}?view=comms"))
    assert "exposed" in found.headline[0].partition("·")[0]
    shown = [column.name for column in plan(found, 80, UNICODE).columns]
    assert shown[:2] == ["exposed_comm_ns", "wait_ns"]
    exposed = [found.row(row)["exposed_comm_ns"] for row in range(len(found))]
    assert exposed == sorted(exposed, reverse=True) and exposed[0]
