"""Twins, one of which recomputes its activations: the same model's FLOPs, and more of the GPU's."""

from __future__ import annotations

import numpy as np
import pytest

from chopper_core.extensions.runs.figures import figures_of_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.views.query import query
from tests.demo import generated_run

PEAK = 304 * 2048 * 2.1e9
"""Of an MI300X in bf16, in FLOP/s."""
SMALL = {"ranks": 1, "iterations": 1, "layers": 2}


@pytest.fixture(scope="module")
def twins() -> tuple[Run, Run]:
    return (
        generated_run("plain-twin", **SMALL),
        generated_run("recomputing-twin", recompute=True, **SMALL),
    )


def flops(run: Run, *, again: bool, charged: bool = False) -> float:
    """The FLOPs of recomputed activities in the complete iteration, or those of the others; or
    those of the part of each activity's time that is charged to it."""
    table = run.table
    names = np.array([name.endswith("(recompute)") for name in [*table.operations, ""]])
    whole = ~np.isin(table.iteration, [-1, *run.cut_iterations])
    own = np.nan_to_num(table.measured["model_flops"])
    if charged:
        own = own * (table.compute_ns + table.overlap_ns) / np.maximum(table.duration_ns, 1)
    return float(own[whole & (names[table.operation] == again)].sum())


def test_both_utilizations_of_twins(twins: tuple[Run, Run]) -> None:
    columns = "hfu_pct,mfu_pct,theoretical_pct,elapsed_ns"
    totals = [
        query(run, parse(f"{run.name}?view=overheads&columns={columns}")).total for run in twins
    ]
    model, again = flops(twins[0], again=False), flops(twins[1], again=True)
    assert flops(twins[0], again=True) == 0.0
    assert flops(twins[1], again=False) == pytest.approx(model, rel=0.01)
    assert again > 0.1 * model
    for run, total, computed in zip(twins, totals, (model, model + again), strict=True):
        took = 1e-9 * (total["elapsed_ns"] or 0.0)
        assert total["mfu_pct"] == pytest.approx(100 * model / PEAK / took, rel=1e-4)
        assert total["hfu_pct"] == pytest.approx(100 * computed / PEAK / took, rel=1e-4)
        # Products that start while a copy of the parameters computes on another stream, to which
        # that time is charged, are in both; in the part of the charged time they aren't.
        own = flops(run, again=False, charged=True)
        assert total["theoretical_pct"] == pytest.approx(100 * own / PEAK / took, rel=1e-4)
        assert 0.95 < (total["theoretical_pct"] or 0) / (total["mfu_pct"] or 1) < 0.995
    rows = [figures_of_run(run).figures for run in twins]
    assert [row["hfu_pct"] for row in rows] == [total["hfu_pct"] for total in totals]
    assert [row["mfu_pct"] for row in rows] == [total["mfu_pct"] for total in totals]
    # It is next to MFU where they differ.
    shown = [query(run, parse(f"{run.name}?view=overheads")).values for run in twins]
    assert ["hfu_pct" in each for each in shown] == [False, True]
