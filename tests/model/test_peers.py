"""Peers: the median of others, by a plain loop, and what the same work is."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from chopper_core.model.groups import work_of
from chopper_core.model.table import Kind
from chopper_core.util.grouping import others_median, others_median_of
from tests.support import Row, run_of


def test_the_median_of_the_others_of_an_owner() -> None:
    random = np.random.default_rng(4)
    values = random.integers(0, 9, 400).astype(np.float64)
    values[random.random(400) < 0.1] = np.nan
    owner = random.integers(0, 60, 400)
    usual = others_median_of(values, owner)
    table = np.where(np.arange(12) < 1, np.nan, values[:384].reshape(32, 12))
    along = others_median(table)
    for at in range(400):
        others = [
            float(values[i])
            for i in range(400)
            if i != at and owner[i] == owner[at] and not math.isnan(values[i])
        ]
        expected = statistics.median(others) if others else np.nan
        assert usual[at] == pytest.approx(expected, nan_ok=True)
    for row, column in np.ndindex(table.shape):
        others = [x for i, x in enumerate(table[:, column]) if i != row and not math.isnan(x)]
        expected = statistics.median(others) if others else np.nan
        assert along[row, column] == pytest.approx(expected, nan_ok=True)


def test_the_same_work_has_one_name_shape_and_flops() -> None:
    run = run_of([Row(10 * at, 5, kernel=f"k{at % 2}") for at in range(6)])
    plain = work_of(run.table, slice(0, 6))
    assert len(set(plain.tolist())) == 2
    shapes = {"call_shape": np.array([0, 0, 0, 1, np.nan, np.nan]), "model_flops": np.ones(6)}
    sized = work_of(run.table.with_measured(shapes), slice(0, 6))
    names = run.table.kernel.tolist()
    expected = {(names[at], str(shapes["call_shape"][at])) for at in range(6)}
    assert len(set(sized.tolist())) == len(expected)
    assert run.table.kind[0] == Kind.COMPUTE
