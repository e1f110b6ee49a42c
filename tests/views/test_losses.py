"""Losses in one sum: the rows add up to the step less the ideal, whatever they are."""

from __future__ import annotations

import numpy as np
import pytest
from support import Row, counted_rows, run_of

from chopper_core.columns import METRICS
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, STATES
from chopper_core.util.errors import NothingToShow
from chopper_core.views.losses import TITLES
from chopper_core.views.query import query
from tests.demo import demo_run
from tests.support import sample_run


def step_and_ideal(run: Run, scope: str) -> tuple[float, float]:
    """The elapsed and the ideal time of a scope per GPU and step, activity by activity."""
    table, elapsed, ideal, pairs = run.table, 0, 0.0, set()
    for row in counted_rows(run, dict(parse(f"R{scope}").scope)):
        if table.iteration[row] == NO_LABEL:
            continue
        elapsed += sum(int(table.column(state)[row]) for state in STATES)
        theory = float(table.measured["theoretical_ns"][row])
        ideal += theory if np.isfinite(theory) else 0.0
        pairs.add((int(table.gpu[row]), int(table.iteration[row])))
    return elapsed / len(pairs), ideal / len(pairs)


@pytest.mark.parametrize("scope", ["", ":gpu=5", ":gpu=5/iteration=11/phase=backward"])
@pytest.mark.parametrize("by", ["part", "operation", "layer", "gpu"])
def test_the_losses_add_up_to_the_step_less_the_ideal(scope: str, by: str) -> None:
    step, ideal = step_and_ideal(demo_run(), scope)
    found = query(demo_run(), parse(f"R{scope}?view=losses&by={by}&columns=loss_ns,loss_pct"))
    loss, share = ([found.row(at)[name] for at in range(len(found))] for name in found.values)
    assert found.total["loss_ns"] == pytest.approx(step - ideal)
    rows = np.mean if by == "gpu" else np.sum
    assert rows(np.array(loss, float)) == pytest.approx(step - ideal)
    assert rows(np.array(share, float)) == pytest.approx(100 * (step - ideal) / step)
    assert loss == sorted(loss, reverse=True)  # type: ignore[type-var]


def test_a_run_without_counters_explains_what_it_can_and_names_the_rest() -> None:
    run = sample_run()
    found = query(run, parse("R?view=losses"))
    whole = query(run, parse("R")).total["elapsed_ns"]
    assert found.total["loss_ns"] == pytest.approx(whole)
    assert sum(found.row(at)["loss_ns"] or 0 for at in range(len(found))) == pytest.approx(whole)
    assert "ideal unknown" in found.headline[0]
    assert set(found.labels) <= set(TITLES.values())


def test_a_loss_leads_to_the_operations_that_lose_it() -> None:
    found = query(demo_run(), parse("R?view=losses"))
    by_operation = found.target(found.labels.index(TITLES["frequency_ns"]))
    assert (by_operation.by, by_operation.sort) == ("operation", "-frequency_ns")
    assert found.target(found.labels.index(TITLES["exposed_comm_ns"])).name == "comms"
    assert found.target(found.labels.index(TITLES["idle_host_ns"])).name == "launch"


def test_time_lost_to_the_roof_is_time_less_the_share_of_the_roof() -> None:
    run = demo_run()
    for by in ("name", "shape"):
        found = query(
            run, parse(f"R?view=lost&by={by}&columns=roof_lost_ns,model_roof_pct,kernel_ns")
        )
        rows = [found.row(at) for at in range(len(found))]
        known = [row for row in rows if row["roof_lost_ns"] is not None]
        assert known and rows[: len(known)] == known  # Those without a roof come last.
        lost = [row["roof_lost_ns"] for row in known]
        assert lost == sorted(lost, reverse=True)  # type: ignore[type-var]
        # A kernel of modelled calls alone: all of its time counts.
        share, time = known[0]["model_roof_pct"], known[0]["kernel_ns"]
        assert share is not None and time is not None
        assert lost[0] == pytest.approx(time * (1 - share / 100), rel=2e-3)
        assert found.total["roof_lost_ns"] == pytest.approx(sum(map(float, lost)), rel=1e-6)
    assert METRICS["roof_lost_ns"].reduces == "sum"


def test_without_a_model_of_the_gpu_no_roof_is_known() -> None:
    with pytest.raises(NothingToShow, match="no roof is known here"):
        query(run_of([Row(0, 10)]), parse("R?view=lost"))
