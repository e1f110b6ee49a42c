"""The base of figures that add up: per step and GPU is the total over pairs that are counted here.

A pair is a GPU and a complete step, read off the activities' own labels. Only the GPUs and
steps that a path or a row names restrict the pairs.
"""

from __future__ import annotations

import json
from math import isclose

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.model import address
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS, STATES
from chopper_core.model.view import View
from chopper_core.render.exchange import as_csv, as_json
from chopper_core.render.text import as_markdown, as_text
from chopper_core.util.errors import ChopperError
from chopper_core.views import VIEWS, view_spec
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from tests.pipelines import pipeline_run
from tests.support import Row, run_of, sample_run
from tests.tui.explorer import measured_run
from tests.wording import Wording

SPLITS = [("", by) for by in ("gpu", "iteration", "phase", "layer", "operation", "kernel")] + [
    (name, by) for name in VIEWS for by in view_spec(name).by or ("",)
]
SUMS = ("elapsed_ns", "kernel_ns", "kernels", "idle_ns", "exposed_comm_ns", "activities")

PER_STEP = {
    (name, by)
    for name, by in SPLITS
    if name in ("findings", "overview", "pipeline", "throughput", "whatif")
} - {("overview", "operation")} | {("comms", "collective")}
"""Views whose base is the same whatever is asked for: per step and GPU, or of one collective."""


def truncated_run() -> Run:
    """A run of two GPUs, of which one is truncated in a step."""
    return replace(measured_run(), partial_iterations={0: frozenset([10]), 1: frozenset()})


RUNS = {
    "sample": sample_run,
    "truncated": truncated_run,
    "stages": lambda: pipeline_run()[0],
}


def labels_of(run: Run) -> set[tuple[int, int]]:
    table = run.table
    return run.memo(
        ("labels of a test",),
        lambda: set(zip(table.gpu.tolist(), table.iteration.tolist(), strict=True)),
    )


def pairs(run: Run, view: View, level: str, label: str) -> int:
    """How many complete steps of GPUs there are in a scope, and in a row of it."""
    names = dict(view.scope) | ({level: label} if label else {})
    cut = set().union(*run.partial_iterations.values()) if not view.cut else set()
    cut = set() if "iteration" in names else set(map(str, cut))
    wanted = {key: text for key, text in names.items() if key in ("gpu", "iteration", "node")}
    # A node's devices are numbered from 0.
    nodes = np.cumsum([device.device == 0 for device in run.gpus]) - 1
    along = {key: text for key, text in names.items() if key in run.table.coordinates}
    found = set()
    for gpu, iteration in labels_of(run):
        own = {"gpu": str(gpu), "iteration": str(iteration) if iteration >= 0 else "none"}
        own["node"] = (
            f"node {nodes[gpu]}" if wanted.get("node", "unknown") != "unknown" else "unknown"
        )
        places = {key: str(run.table.coordinates[key][gpu]) for key in along}
        if own | wanted == own and along == places and own["iteration"] not in cut:
            found.add((gpu, iteration))
    # What is outside of all steps is none.
    steps = {pair for pair in found if pair[1] >= 0}
    return len(steps if steps and "iteration" not in names else found)


def in_steps(run: Run) -> Run:
    """The run without what is outside of its steps: that takes part in totals only."""

    def made() -> Run:
        rows = np.flatnonzero(run.table.iteration >= 0)
        if len(rows) in (0, len(run.table)):
            return run
        return replace(run, table=run.table.take(rows), cubes=None)

    return run.memo(("rows in steps",), made)


def both(run: Run, view: View) -> tuple[Frame, Frame] | None:
    is_outside = dict(view.scope).get("iteration") == "none"
    counted = run if is_outside or view.cut else in_steps(run)
    try:
        return query(run, view), query(counted, replace(view, is_total=True))
    except ChopperError:
        return None


def scopes(run: Run) -> list[tuple[str, ...]]:
    path: tuple[str, ...] = ()
    found = [path]
    for _ in range(3):
        labels = run.tree().children(path).labels
        path = (*path, labels[min(1, len(labels) - 1)])
        found.append(path)
    return found


@pytest.mark.few(20)
@pytest.mark.parametrize(("name", "by"), SPLITS)
@pytest.mark.parametrize("which", RUNS)
def test_times_the_pairs_it_is_the_total(which: str, name: str, by: str) -> None:
    run = RUNS[which]()
    for path in scopes(run):
        for columns in ((), SUMS):
            view = View("R", path, name=name, by=by, columns=columns)
            if (frames := both(run, view)) is None or not frames[0].base:
                continue
            each, total = frames
            level = each.level
            if (name, by) in PER_STEP:
                assert each.base == total.base and each.base != "", address.render(view)
                continue
            rows = {label: row for row, label in enumerate(total.labels)}
            outside = {"none"} - {*rows} if level == "iteration" else set()
            if name in ("heatmap", "ranks"):  # They compare all GPUs, whichever the path names.
                view = replace(view, order=LEVELS[1:], path=path[1:])
            whole = pairs(run, view, "", "")
            for metric in each.columns:
                if not metric.adds_up or view.name in ("compare", "graph", "timeline"):
                    continue
                for row, label in enumerate(each.labels):
                    if label in outside:
                        continue
                    number, other = (
                        frame.values[metric.name].at(at)
                        for frame, at in ((each, row), (total, rows[label]))
                    )
                    # What a GPU takes from others is a part of all of them.
                    of_others = metric.reduces != "sum" and level in ("gpu", "node")
                    of = pairs(run, view, "" if of_others else level, label)
                    where = (address.render(view), metric.name, label)
                    assert (number is None) == (other is None), where
                    assert number is None or isclose(number * of, other, rel_tol=1e-9), where
                number, other = each.total[metric.name], total.total[metric.name]
                assert (number is None) == (other is None), (address.render(view), metric.name)
                assert number is None or isclose(number * whole, other, rel_tol=1e-9), metric.name


def sums_in(run: Run, view: View, level: str, label: str) -> dict[str, int]:
    """The sums of the table's rows in steps, in a scope and a row of it."""
    table, names = run.table, dict(view.scope) | ({level: label} if label else {})
    own = table.iteration >= 0
    for key, text in names.items():
        own &= table.column(key) == table.code_of(key, text)
    if "iteration" not in names:
        own &= ~np.isin(table.iteration, [*set().union(*run.partial_iterations.values())])
    return {
        "elapsed_ns": sum(int(table.column(state)[own].sum()) for state in STATES),
        "idle_ns": int(table.idle_ns[own].sum()),
        "exposed_comm_ns": int(table.exposed_comm_ns[own].sum()),
        "activities": int(own.sum()),
    }


@pytest.mark.parametrize("is_total", [False, True])
@pytest.mark.parametrize(
    ("name", "by"), [("overview", "gpu"), ("throughput", "gpu"), ("throughput", "iteration")]
)
@pytest.mark.parametrize("which", RUNS)
def test_columns_added_to_views_per_step_are_per_step(
    which: str, name: str, by: str, is_total: bool
) -> None:
    run = RUNS[which]()
    for path in scopes(run):
        view = View("R", path, name=name, by=by, columns=SUMS, is_total=is_total)
        frame, compared = query(run, view), 0
        for row, label in enumerate(frame.labels):
            for column, total in sums_in(run, view, by, label).items():
                if (number := frame.values[column].at(row)) is not None:
                    assert number * pairs(run, view, by, label) == pytest.approx(total)
                    compared += 1
        assert compared >= 4
        for column, total in sums_in(run, view, "", "").items():
            assert frame.total[column] * pairs(run, view, "", "") == pytest.approx(total)


@pytest.mark.parametrize("by", ["phase", "operation", "kernel"])
@pytest.mark.parametrize("which", RUNS)
def test_rows_of_parts_of_a_step_add_up_to_the_total(which: str, by: str) -> None:
    run = RUNS[which]()
    for scope in (f"?order={by}", f":gpu=1?order=gpu,{by}"):
        frame = query(run, address.parse(f"R{scope}&columns={','.join(SUMS)}"))
        assert frame.total_title == "total"
        for name in SUMS:
            numbers = frame.values[name].numbers
            assert isclose(numbers.sum(), frame.total[name], rel_tol=1e-9, abs_tol=1e-9), name


@pytest.mark.parametrize("by", ["gpu", "iteration"])
@pytest.mark.parametrize("which", RUNS)
def test_the_total_of_gpus_and_iterations_is_their_mean(which: str, by: str) -> None:
    frame = query(RUNS[which](), address.parse(f"R?order={by}&columns={','.join(SUMS)}"))
    assert frame.total_title == "mean"
    for name in SUMS:
        mean = frame.values[name].numbers[frame.counted()].mean()
        assert isclose(mean, frame.total[name], rel_tol=1e-9, abs_tol=1e-9), name


def test_kernels_of_some_gpus_are_divided_by_all_of_them() -> None:
    rows = [Row(0, 10, kernel="a"), Row(0, 30, kernel="b", gpu=1), Row(40, 10, kernel="a", gpu=1)]
    frame = query(run_of(rows), address.parse("R?view=kernels&columns=kernel_ns,kernels"))
    found = dict(zip(frame.labels, frame.values["kernel_ns"].numbers.tolist(), strict=True))
    assert found == {"a": 10.0, "b": 15.0}
    assert frame.total == {"kernel_ns": 25.0, "kernels": 1.5}


def test_one_iteration_of_one_gpu_is_itself_in_integers() -> None:
    frame = query(sample_run(), address.parse("R:gpu=3/iteration=11"))
    assert frame.base == "one step"
    assert frame.values["elapsed_ns"].numbers.dtype.kind == "i"
    assert isinstance(frame.total["elapsed_ns"], int)


def test_the_filter_acts_on_the_figures_that_are_shown() -> None:
    run, view = sample_run(), address.parse("R?order=operation&columns=elapsed_ns")
    shown = sorted(query(run, view).values["elapsed_ns"].numbers.tolist())
    bound = (shown[len(shown) // 2 - 1] + shown[len(shown) // 2]) / 2
    found = query(run, replace(view, filter=f"elapsed_ns>{bound:.0f}ns"))
    assert sorted(found.values["elapsed_ns"].numbers.tolist()) == shown[len(shown) // 2 :]


def test_every_format_says_the_base() -> None:
    run = sample_run()
    for asked, base in (("", "per step and GPU"), ("&base=total", "total of ")):
        frame = query(run, address.parse(f"R?order=operation{asked}"))
        assert frame.base.startswith(base)
        assert json.loads(as_json(frame))["base"] == frame.base
        assert frame.base in as_text(frame).splitlines()[0]
        assert frame.base in as_markdown(frame).splitlines()[0]
        assert as_csv(frame).splitlines()[1].endswith(f",{frame.base}")
        assert frame.to_pandas().attrs["base"] == frame.base
        assert address.parse(frame.address) == frame.view


def test_a_run_without_iterations_is_the_base_itself(wording: Wording) -> None:
    one = query(run_of([Row(0, 5)]), address.parse("R?order=kernel"))
    assert (one.base, one.total["elapsed_ns"]) == ("whole run", 5)
    two = query(run_of([Row(0, 5), Row(0, 7, gpu=1)]), address.parse("R?order=kernel"))
    assert two.total["elapsed_ns"] == 6.0
    wording(two.base, "whole run", "per GPU")


def test_totals_and_a_baseline_of_that_name_are_told_apart() -> None:
    for text in ("R?base=total", "R?base=other&base=total", "R?base=%74otal"):
        view = address.parse(text)
        assert address.render(view) == text
        assert view.is_total == text.endswith("=total")
    assert address.parse("R?base=%74otal").base_run == "total"
