"""In every view the total row is the total of the rows, for every split, scope and statistic."""

from __future__ import annotations

from math import isclose

import numpy as np
import pytest

from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.query.frame import Frame
from chopper_core.util.errors import ChopperError
from chopper_core.views import VIEWS, view_spec
from chopper_core.views.query import answer, query
from tests.support import sample_run
from tests.tui.explorer import measured_run

SPLITS = [(name, by) for name in VIEWS for by in view_spec(name).by or ("",)]
_EXTRA = "elapsed_ns,kernel_ns,kernels,idle_ns,exposed_comm_ns"


def _scopes(run: Run) -> list[tuple[str, ...]]:
    """The run, one GPU, one of its iterations, and the nodes under that."""
    path: tuple[str, ...] = ()
    scopes = [path]
    for _ in range(4):
        labels = run.tree().children(path).labels
        path = (*path, labels[min(1, len(labels) - 1)])
        scopes.append(path)
    return scopes


def _is_total(frame: Frame, name: str) -> bool:
    values, total = frame.values[name], frame.total[name]
    numbers = values.numbers[values.present()]
    if total is None or not len(numbers):
        return True
    return isclose(numbers.sum(), total, rel_tol=1e-9, abs_tol=1e-6)


@pytest.mark.parametrize(("name", "by"), SPLITS)
@pytest.mark.parametrize("which", ["sample", "measured", "demo"])
def test_the_total_is_that_of_the_rows(run: Run, which: str, name: str, by: str) -> None:
    run = {"sample": sample_run, "measured": measured_run, "demo": lambda: run}[which]()
    for path in _scopes(run):
        for columns in ((), tuple(_EXTRA.split(","))):
            try:
                frame = query(run, View("R", path, name=name, by=by, columns=columns))
            except ChopperError:
                continue
            sums = [each.name for each in frame.columns if each.reduces == "sum"]
            wrong = [
                (each, frame.values[each].numbers.sum(), frame.total[each])
                for each in sums
                if not _is_total(frame, each)
            ]
            assert not wrong, (path, frame.address)


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
        if result.nodes is None or not frame.over:
            continue
        whole = result.whole or run.tree().node(path)
        assert np.array_equal(np.sort(result.nodes.rows), np.sort(whole.rows))
