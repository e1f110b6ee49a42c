"""In every view the total row is the total of the rows, for every split, scope and statistic."""

from __future__ import annotations

import json
from itertools import product
from math import isclose

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.rows import Partition
from chopper_core.model.run import Run
from chopper_core.model.table import STATES, Phase
from chopper_core.model.view import View, complete_order
from chopper_core.render import render_frame as rendered
from chopper_core.util.errors import ChopperError
from chopper_core.views import VIEWS, view_spec
from chopper_core.views.frame import Frame
from chopper_core.views.query import answer, query
from tests.support import Row, run_of, sample_run
from tests.tui.explorer import measured_run
from tests.wording import Wording

SPLITS = [(name, by) for name in VIEWS for by in view_spec(name).by or ("",)]
PER_STEP = ("overview", "pipeline", "throughput", "whatif")
"""Views that are per step and GPU whatever is asked for, and say so."""
_EXTRA = "elapsed_ns,kernel_ns,kernels,idle_ns,exposed_comm_ns"


def _scopes(run: Run) -> list[tuple[str, ...]]:
    """The run, one GPU, one of its steps, and the nodes under that."""
    path: tuple[str, ...] = ()
    scopes = [path]
    for _ in range(4):
        labels = run.tree().children(path).labels
        path = (*path, labels[min(1, len(labels) - 1)])
        scopes.append(path)
    return scopes


def _is_total(frame: Frame, name: str) -> bool:
    values, total = frame.values[name], frame.total[name]
    numbers = values.numbers[values.present() & frame.counted()]
    if total is None or not len(numbers):
        return True
    (title,) = (each.title for each in frame.columns if each.name == name)
    if any(note.startswith(f"the total of {title} includes ") for note in frame.notes):
        return True
    is_mean = (
        frame.view.name in PER_STEP and "per " in frame.base and frame.level in ("gpu", "iteration")
    )
    expected = numbers.mean() if is_mean else numbers.sum()
    return isclose(expected, total, rel_tol=1e-9, abs_tol=1e-6)


@pytest.mark.few(14)
@pytest.mark.parametrize(("name", "by"), SPLITS)
@pytest.mark.parametrize("which", ["sample", "measured", "demo"])
def test_the_total_is_that_of_the_rows(run: Run, which: str, name: str, by: str) -> None:
    run = {"sample": sample_run, "measured": measured_run, "demo": lambda: run}[which]()
    if which == "measured":
        # Truncated on one GPU, and so left out on all.
        run = replace(run, partial_iterations={0: frozenset([10]), 1: frozenset()})
    for path, cut in product(_scopes(run), (False, True)):
        for columns in ((), tuple(_EXTRA.split(","))):
            view = View("R", path, name=name, by=by, columns=columns, cut=cut, is_total=True)
            try:
                frame = query(run, view)
            except ChopperError:
                continue
            sums = [each.name for each in frame.columns if each.reduces == "sum"]
            wrong = [
                (each, frame.values[each].numbers.sum(), frame.total[each])
                for each in sums
                if not _is_total(frame, each)
            ]
            assert not wrong, (path, frame.address)


def test_a_total_that_includes_rows_without_a_value_says_so(run: Run, wording: Wording) -> None:
    """Matrix kernels outside steps have no FLOPs: their time is in the total, not in their row."""
    view = View("R", ("1",), name="overheads", is_total=True)
    frame = query(run, view)
    lost, took = frame.values["lost_ns"], frame.values["elapsed_ns"].numbers
    lacking = ~lost.present()
    assert 0 < lacking.sum() < len(frame)
    assert frame.total["lost_ns"] == lost.numbers[~lacking].sum() + took[lacking].sum()
    wording.among(frame.notes, f"{lacking.sum()} row")
    in_steps = query(run, replace(view, is_total=False))
    assert in_steps.values["lost_ns"].present().all()
    assert not any("without a value" in note for note in in_steps.notes)


@pytest.mark.few(14)
@pytest.mark.parametrize(("name", "by"), SPLITS)
@pytest.mark.parametrize("stat", ["mean", "median", "max", "spread"])
def test_the_total_of_a_statistic_is_that_of_the_instances_of_all_rows(
    run: Run, name: str, by: str, stat: str
) -> None:
    for path in _scopes(run)[:3]:
        view = View("R", path, name=name, by=by, stat=stat)
        try:
            frame, result = query(run, view), answer(run, view)
        except ChopperError:
            continue
        if not (isinstance(result.rows, Partition) and frame.over):
            continue
        nodes, whole = result.rows.nodes, result.rows.whole
        assert np.array_equal(np.sort(nodes.rows), np.sort(whole.rows))


@pytest.mark.few(4)
@pytest.mark.parametrize(("name", "by"), SPLITS)
@pytest.mark.parametrize("stat", ["", "max"])
def test_the_total_of_one_row_is_that_row(run: Run, name: str, by: str, stat: str) -> None:
    for path, tokens in product((("5",), ("5", "11")), ("", "tokens:8192")):
        view = View("R", path, name=name, by=by, stat=stat, of=tokens)
        try:
            frame = query(run, view)
        except ChopperError:
            continue
        if len(frame) != 1 or frame.hidden:
            continue
        row = frame.row(0)
        for each, total in frame.total.items():
            if total is not None:
                assert row[each] == pytest.approx(total), (frame.address, each)


TREES = [
    *[(name,) for name in ("gpu", "iteration", "phase", "layer", "operation", "kernel")],
    ("gpu", "kernel"),
    ("operation", "gpu"),
]


@pytest.mark.parametrize("order", TREES, ids=lambda order: ",".join(order))
@pytest.mark.parametrize("cut", [False, True])
def test_truncated_iterations_count_only_where_they_are_asked_for(
    order: tuple[str, ...], cut: bool
) -> None:
    """In the tree rows add up to the total: of the complete steps, or with `cut` of all."""
    run = replace(sample_run(gpus=3), partial_iterations={2: frozenset([10])})
    table = run.table
    counted = np.ones(len(table), np.bool_) if cut else table.iteration != 10
    elapsed = np.sum([table.column(state) for state in STATES], axis=0)
    view = View("R", order=complete_order(order), cut=cut, is_total=True)
    frame = query(run, view)
    assert frame.total["elapsed_ns"] == elapsed[counted].sum()
    assert _is_total(frame, "elapsed_ns") and _is_total(frame, "kernels")
    assert frame.truncated == (10,) and frame.left_out == (() if cut else (10,))
    path = (frame.labels[-1],)
    deeper = query(run, replace(view, path=path))
    own = table.column(order[0]) == table.code_of(order[0], path[0])
    expected = elapsed[own & (counted | (order[0] == "iteration"))].sum()
    assert deeper.total["elapsed_ns"] == expected and _is_total(deeper, "elapsed_ns")
    if cut and order[0] == "gpu":
        ends = table.start_ns[own] + table.duration_ns[own]
        assert deeper.total["elapsed_ns"] == ends.max() - table.start_ns[own].min()


def test_a_truncated_iteration_is_a_marked_row_without_a_share(wording: Wording) -> None:
    run = replace(sample_run(gpus=2), partial_iterations={1: frozenset([10])})
    frame = query(run, View("R", ("0",)))
    assert frame.labels == ["10", "11", "12"] and frame.is_cut(0) and not frame.is_cut(1)
    assert frame.counted().tolist() == [False, True, True]
    assert frame.row(0)["share_pct"] is None and frame.row(0)["elapsed_ns"]
    shares = [frame.row(row)["share_pct"] for row in (1, 2)]
    assert sum(float(share or 0) for share in shares) == pytest.approx(100)
    assert "10 cut" in rendered(frame, "text")
    document = json.loads(rendered(frame, "json"))
    assert document["left_out"] == [10] and document["rows"][0]["truncated"] is True
    assert not any("truncated" in row for row in document["rows"][1:])
    wording.among(frame.notes, "cut=1")
    inside = query(run, View("R", ("0", "10")))
    assert inside.left_out == () and inside.total["elapsed_ns"] == frame.row(0)["elapsed_ns"]


def test_a_run_with_nothing_but_truncated_iterations_shows_them(wording: Wording) -> None:
    run = replace(sample_run(gpus=2), partial_iterations={0: frozenset([10, 11, 12])})
    for name, by in SPLITS:
        plain, taken_in = (View("R", name=name, by=by, cut=cut) for cut in (False, True))
        if name in ("throughput", "determinism", "power"):
            continue  # They have figures of complete iterations only.
        try:
            frame = query(run, plain)
        except ChopperError:
            continue
        assert frame.left_out == () and frame.truncated == (10, 11, 12)
        asked = query(run, taken_in)
        assert (frame.labels, frame.total) == (asked.labels, asked.total)
        if name != "timeline":  # It has all time in any case.
            wording.among(frame.notes, "no complete one")


def test_the_total_row_names_gpus_and_steps_that_have_no_row() -> None:
    """An optimizer in every second step, on two of four GPUs."""
    run = run_of(
        [
            Row(number * 1_000_000, 500_000, gpu=gpu, iteration=number // 2,
                phase=Phase.OPTIMIZER if number % 2 else Phase.FORWARD)
            for gpu in range(4) for number in range(8)
            if not number % 2 or (gpu < 2 and number % 4 == 1)
        ]
    )  # fmt: skip
    for level, title in (("gpu", "mean of 4 GPUs"), ("iteration", "mean of 4 steps")):
        view = View("R", ("optimizer",), complete_order(("phase", level)))
        frame = query(run, replace(view, columns=("kernel_ns",)))
        assert len(frame) == 2 and frame.total_title == title
        assert frame.total["kernel_ns"] == frame.values["kernel_ns"].numbers.sum() / 4
