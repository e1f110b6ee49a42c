"""Peers: each cell against the median of its like, by a plain loop."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.model.groups import Groups
from chopper_core.model.peers import peers, work_of
from chopper_core.model.run import Run
from chopper_core.model.table import Kind
from chopper_core.util.grouping import others_median_of
from tests.support import Row, run_of, sample_run

LIKE = ("iteration", "phase", "layer", "operation")


def took(cells: Groups) -> np.ndarray:
    return cells.sum("duration_ns")


def cells_of(run: Run, *levels: str) -> Groups:
    return run.tree().split((), levels)


def test_the_median_of_the_others_of_an_owner() -> None:
    random = np.random.default_rng(4)
    values = random.integers(0, 9, 400).astype(np.float64)
    values[random.random(400) < 0.1] = np.nan
    owner = random.integers(0, 60, 400)
    usual, count = others_median_of(values, owner)
    for at in range(400):
        others = [
            float(values[i])
            for i in range(400)
            if i != at and owner[i] == owner[at] and not math.isnan(values[i])
        ]
        assert count[at] == len(others)
        expected = statistics.median(others) if others else np.nan
        assert usual[at] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("like", [LIKE, LIKE[:2], ()])
def test_each_cell_against_the_others_of_its_like(like: tuple[str, ...]) -> None:
    run = sample_run()
    cells = cells_of(run, "gpu", *like)
    found = peers(cells, "gpu", took, like, any_work=True)
    labels = (
        list(zip(*(cells.codes(level).tolist() for level in like), strict=True)) if like else []
    )
    for at in range(len(cells)):
        others = [
            found.values[i]
            for i in range(len(cells))
            if i != at and (not like or labels[i] == labels[at])
        ]
        assert found.count[at] == len(others)
        if others:
            assert found.beyond[at] == pytest.approx(found.values[at] - statistics.median(others))


def test_cells_of_other_work_are_no_peers() -> None:
    """GPU 3 runs the product with 1.3 times the FLOPs; GPU 2 is slow with the same."""
    rows = [
        Row(0, 100 + 50 * (gpu == 2) + 30 * (gpu == 3), gpu=gpu, iteration=1, operation="mlp_up")
        for gpu in range(4)
    ]
    run = run_of(rows)
    flops = np.where(run.table.gpu == 3, 1.3e9, 1e9)
    run = replace(run, table=run.table.with_measured({"model_flops": flops}))
    found = peers(cells_of(run, "gpu"), "gpu", took)
    assert found.usual[:3].tolist() == [125, 125, 100] and np.isnan(found.usual[3])
    assert found.ratio[2] == 1.5 and found.count.tolist() == [2, 2, 2, 0]
    anyone = peers(cells_of(run, "gpu"), "gpu", took, any_work=True)
    assert anyone.usual[3] == 100


def test_cells_must_be_split_by_what_tells_peers_apart() -> None:
    with pytest.raises(ValueError, match="not split by gpu"):
        peers(cells_of(sample_run(), "gpu", "iteration"), "gpu", took)


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
