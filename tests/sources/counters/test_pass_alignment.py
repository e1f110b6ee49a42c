"""Dispatches of two executions are paired right, whatever each of them lost."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from chopper_core.columns import Scope
from chopper_core.columns.counters import raw_counter
from chopper_core.ingest.open import open_run
from chopper_core.sources.counters.joining import join_passes, same_ids
from tests.programs.bench.joins import COUNTED, counters_of_files
from tests.sources.counters.counter_writers import made_run

LAYER = (3, 1, 1, 2, 4, 4, 4, 5, 6, 2, 1)
PROGRAM = (*range(10, 40), *(LAYER * 30 + (7, 8, 8)) * 3)


def executed(seed: str, lost: float, start_up: int) -> tuple[np.ndarray, ...]:
    """Kernels, true places (-1: start-up) and ids of an execution that lost some dispatches."""
    random = Random(seed)
    rows = [(50 + n % 5, -1) for n in range(start_up)]
    rows += [(code, place) for place, code in enumerate(PROGRAM)]
    kept = [n for n in range(len(rows)) if random.random() >= lost]
    code, place = np.array([rows[n] for n in kept]).T
    return code, place, np.array(kept)


def test_ids_that_differ_by_one_number_decide() -> None:
    for seed in range(8_200, 8_205):
        code, place, ids = executed(f"{seed} one", 0.01, 12)
        other_code, other_place, other_ids = executed(f"{seed} two", 0.01, 30)
        found = same_ids(code, ids, other_code, other_ids + 1_000)
        assert found is not None
        hit = (found >= 0) & (other_place >= 0)
        assert (place[found[hit]] == other_place[hit]).all()
        assert hit.sum() >= 0.97 * len(PROGRAM)


def test_ids_of_another_order_decide_nothing() -> None:
    code, _, ids = executed("8300", 0.0, 0)
    shuffled = np.random.default_rng(8_301).permutation(code)
    assert same_ids(code, ids, shuffled, ids) is None


def test_three_passes_that_lose_different_dispatches_stay_together() -> None:
    names = [f"kernel {code}" for code in PROGRAM]
    runs = []
    for number in range(3):
        random = Random(f"8400 {number}")
        kept = [n for n in range(len(names)) if random.random() >= 0.005]
        run = made_run(
            [(0, names[n], 64) for n in kept],
            {f"C{number}": [float(n) for n in kept]},
            f"p{number}",
        )
        run.dispatches.dispatch_id[:] = np.array(kept) + 1 + 100 * number
        runs.append(run)
    counters = np.stack([*join_passes(runs).dispatches.counters.values()])
    spread = np.nanmax(counters, axis=0) - np.nanmin(counters, axis=0)
    assert (spread == 0).all()
    assert np.isfinite(counters).mean() > 0.99


@pytest.mark.sweep
def test_counters_survive_lost_dispatches_and_partial_sums_are_marked(tmp_path: Path) -> None:
    options = {"ranks": 1, "iterations": 2, "layers": 8, "seed": 8_500}
    kernels, found = counters_of_files(tmp_path, lost_dispatches=0.003, **options)
    for counter in COUNTED:
        right, wrong, _ = found[counter]
        assert right >= 0.96 * kernels
        assert wrong <= 0.005 * (right + wrong)
    run = open_run(str(tmp_path), jobs=1)
    table = run.table
    nodes = run.tree(("operation",)).split((), ("operation",))
    metric = raw_counter("TCC_EA0_RDREQ_sum")
    values = metric.compute(Scope(nodes, nodes, 0, run.hardware))
    lacks = np.isnan(table.measured["TCC_EA0_RDREQ_sum"])
    for node in range(len(nodes)):
        rows = nodes.rows_of(node)
        computes = (table.kind[rows] == 0) & (table.category[rows] == 0)
        if values.present()[node]:
            assert values.is_extrapolated(node) == bool((lacks[rows] & computes).any())
