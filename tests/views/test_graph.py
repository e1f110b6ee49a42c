"""The view of the graph: node mix, messages, the longest path and its rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses import scope_path
from chopper_core.graph.build import step_graph
from chopper_core.graph.path import GAPS, longest_path
from chopper_core.graph.step_graph import replay
from chopper_core.model.charts import LineChart
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, Category, Kind
from chopper_core.model.view import View
from chopper_core.render import render_frame
from chopper_core.util.errors import NothingToShow
from chopper_core.views import view_spec
from chopper_core.views.frame import Frame
from chopper_core.views.graph import TYPES
from chopper_core.views.query import query
from tests.demo import demo_run
from tests.support import Row, counted_rows, run_of, sample_run
from tests.wording import Wording

SPLITS = [by for by in view_spec("graph").by if by not in ("node", "cause")]


def shown(run: Run, by: str, **fields: object) -> Frame:
    return query(run, replace(View("R", name="graph", by=by, is_total=True), **fields))


def column(frame: Frame, name: str) -> dict[str, float]:
    numbers = frame.values[name].numbers.tolist()
    return dict(zip(frame.labels, numbers, strict=True))


@pytest.mark.parametrize("by", SPLITS)
def test_rows_partition_the_scope_and_the_path(run: Run, by: str) -> None:
    frame, nodes = shown(run, by), shown(run, "node")
    rows = counted_rows_fast(run)
    if by == "message":
        rows = rows[run.table.kind[rows] == Kind.COMM]
    assert frame.total["kernel_ns"] == run.table.duration_ns[rows].sum()
    assert frame.values["kernel_ns"].numbers.sum() == frame.total["kernel_ns"]
    if by != "message":
        gaps = ("gap_host_ns", "gap_latency_ns", "gap_dispatch_ns")
        for name in ("path_ns", "path_gap_ns", *gaps):
            assert frame.total[name] == nodes.total[name] == frame.values[name].numbers.sum()
        assert frame.total["path_activities"] == len(nodes.labels)
    parts = sum(frame.total.get(f"gap_{name}_ns") or 0 for name in GAPS)
    assert parts == frame.total["path_gap_ns"]


def test_causes_add_up_to_the_path_and_lead_to_its_activities(run: Run) -> None:
    frame, nodes = shown(run, "cause"), shown(run, "node")
    times = column(frame, "cause_ns")
    assert sum(times.values()) == frame.total["cause_ns"]
    assert frame.total["cause_ns"] == nodes.total["path_ns"] + nodes.total["path_gap_ns"]
    assert times["host"] == nodes.total["gap_host_ns"]
    by_type = column(shown(run, "type"), "path_ns")
    assert times["compute"] == by_type["compute"] and times["collective"] == by_type["collective"]
    opened = query(run, frame.target(frame.labels.index("host")))
    assert opened.sort == "-gap_host_ns" and len(opened.labels) == len(nodes.labels)
    opened = query(run, frame.target(frame.labels.index("collective")))
    assert {str(opened.values["type"].cell(row)) for row in range(len(opened))} == {"collective"}
    each = query(run, View("R", name="graph", by="cause"))
    assert each.total["cause_ns"] == frame.total["cause_ns"] / 2


def counted_rows_fast(run: Run) -> np.ndarray:
    """The rows of complete steps: what runs outside of steps is in no graph of them."""
    cut = set().union(*run.partial_iterations.values()) if run.partial_iterations else set()
    return np.flatnonzero(~np.isin(run.table.iteration, [*cut, NO_LABEL]))


def test_the_mix_counts_each_type() -> None:
    made = [
        Row(0, 10),
        Row(20, 10, Kind.COPY, operation="copy"),
        Row(40, 10, Kind.COMM, 1, operation="all_reduce"),
        Row(60, 10, Kind.COMM, 1, operation="send_recv"),
        Row(80, 10, operation="memset"),
    ]
    run = run_of(made)
    category = run.table.category.copy()
    category[4] = Category.MEMSET
    run = replace(run, table=replace(run.table, category=category))
    frame = shown(run, "type")
    assert set(frame.labels) == set(TYPES)
    assert column(frame, "kernel_ns") == {
        "compute": 10,
        "memory": 20,
        "collective": 10,
        "send/receive": 10,
    }


def test_a_serial_run_has_no_chart_of_rounding() -> None:
    made = [Row(1_000_003 * at, 13_337 + 7 * at) for at in range(97)]
    frame = query(run_of(made), View("R", name="graph"))
    assert "1.00 activities could run" in frame.headline[0]
    assert not any(isinstance(chart, LineChart) for chart in frame.charts)


def test_messages_are_told_apart_by_operation_size_and_group() -> None:
    made = [
        Row(at, 10, Kind.COMM, gpu=gpu, operation=operation, kernel="ncclDevKernel")
        for gpu in (0, 1)
        for at, operation in ((0, "all_reduce"), (20, "all_reduce"), (40, "all_gather"))
    ]
    run = run_of([*made, Row(60, 10, kernel="tp of 2")])
    table = run.table
    size = np.where(table.kind == Kind.COMM, 4096, -1)
    size[table.start_ns == 20] = 64
    group = np.where(table.start_ns < 40, table.names.index("tp of 2"), -1).astype(np.int32)
    run = replace(run, table=replace(table, bytes=size, group=group))
    frame = shown(run, "message")
    assert column(frame, "kernel_ns") == {
        "all_gather 4096 B": 20,
        "all_reduce 4096 B tp of 2": 20,
        "all_reduce 64 B tp of 2": 20,
    }
    assert frame.total["bytes"] == 2 * (4096 + 4096 + 64)


def test_nodes_lead_to_their_activities(run: Run) -> None:
    scope = View("R", ("5", "11"), name="graph", by="node")
    frame = query(run, scope)
    made = step_graph(run)
    # The path of the iteration, of which GPU 5 has a part.
    own = made.activities[run.table.iteration[made.row[made.activities]] == 11]
    path = longest_path(made, replay(made), own).rows
    path = path[(run.table.gpu[path] == 5) & (run.table.iteration[path] == 11)]
    assert len(frame.labels) == len(path)
    for place in (0, len(path) // 2, len(path) - 1):
        opened = frame.target(place)
        assert run.tree(opened.order).node(opened.path).rows.tolist() == [path[place]]
    starts = frame.values["start_ns"].numbers
    assert (np.diff(starts) >= 0).all()
    assert starts.tolist() == (run.table.start_ns[path] - run.origin_ns).tolist()


def test_rows_of_a_type_lead_to_its_nodes(run: Run) -> None:
    frame = shown(run, "type")
    collective = frame.labels.index("collective")
    opened = query(run, frame.target(collective))
    assert len(opened.labels) == column(frame, "path_activities")["collective"]


@pytest.mark.few(3)
@pytest.mark.parametrize("by", view_spec("graph").by)
def test_every_split_is_written_as_text_and_json(by: str) -> None:
    frame = shown(sample_run(), by)
    assert "longest path" in render_frame(frame, "text")
    document = json.loads(render_frame(frame, "json"))
    assert len(document["rows"]) == len(frame.labels)
    assert f"by={by}" in document["address"] or by == "operation"


def test_the_straggler_is_on_the_path(run: Run) -> None:
    by_gpu = column(shown(run, "gpu"), "path_ns")
    # The hot GPU computes longest, and the others wait for it.
    assert max(by_gpu, key=lambda gpu: by_gpu[gpu]) == "5"


def test_a_large_scope_is_that_of_one_iteration(
    monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    run = replace(sample_run(), partial_iterations={0: frozenset([10])})
    monkeypatch.setattr(scope_path, "MAX_ROWS", 10)
    frame = shown(run, "operation", cut=True)
    own = run.table.iteration == 11
    assert frame.total["kernel_ns"] == run.table.duration_ns[own].sum()
    wording.among(frame.notes, "step 11")


def test_of_too_many_gpus_some_are_in_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    run = sample_run(gpus=8)
    monkeypatch.setattr(scope_path, "MAX_ROWS", 10)
    own = run.table.iteration == 10
    whole = int(own.sum())
    monkeypatch.setattr(scope_path, "_MOST_ROWS", whole // 2)
    frame = shown(run, "gpu")
    assert len(frame.labels) == 4
    for row, gpu in enumerate(map(int, frame.labels)):
        durations = run.table.duration_ns[own & (run.table.gpu == gpu)]
        assert frame.row(row)["kernel_ns"] == durations.sum()
    assert any("4 evenly chosen ones" in note for note in frame.notes)
    # The scope's own GPU is among them.
    one = query(run, View("R", ("7",), name="graph", by="gpu"))
    assert one.labels == ["7"]


def test_a_run_without_times_has_no_path() -> None:
    with pytest.raises(NothingToShow):
        shown(run_of([Row(0, 0), Row(1, 0)]), "operation")


def test_counted_rows_are_those_of_the_oracle() -> None:
    run = replace(
        sample_run(gpus=2, iterations=2, layers=1), partial_iterations={0: frozenset([10])}
    )
    counted = [row for row in counted_rows(run, {}) if run.table.iteration[row] != NO_LABEL]
    assert counted_rows_fast(run).tolist() == counted


def test_the_path_is_per_step_and_rows_of_gpus_are_its_parts(wording: Wording) -> None:
    run = demo_run()
    total, each = shown(run, "gpu"), query(run, View("R", name="graph", by="gpu"))
    steps, pairs = 2, 16
    wording(total.base, "total", "8 GPUs × 2 steps")
    wording(each.base, "per step and GPU")
    for name in ("path_ns", "path_gap_ns", "path_activities"):
        assert each.total[name] == total.total[name] / steps == each.values[name].numbers.sum()
    assert each.total["kernel_ns"] == total.total["kernel_ns"] / pairs
    assert each.total["path_pct"] == pytest.approx(100) == total.total["path_pct"]
    wording(each.headline[0], "1,869 of")
