"""Overheads: the parts are the whole, to the nanosecond, and what isn't known is said."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from support import Row, counted_rows, rows_of, run_of

from chopper_core.model.address import parse, render
from chopper_core.model.charts import BarChart
from chopper_core.model.column_names import BREAKDOWN
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, STATES, Kind, Phase
from chopper_core.views.query import query
from tests.wording import Wording

SCOPES = ["", ":gpu=3", ":gpu=1/iteration=11/phase=backward"]
OUTSIDE = ("exposed_comm_ns", "exposed_copy_ns", "idle_ns")
PARTS = (*BREAKDOWN, *OUTSIDE)


def plain_parts(run: Run, scope: str, by: str) -> dict[str, dict[str, float]]:
    """Sums of every part by label, activity by activity."""
    table = run.table
    found: dict[str, dict[str, float]] = {}
    for row in counted_rows(run, dict(parse(f"R{scope}").scope)):
        sums = found.setdefault(table.text_of(by, int(table.column(by)[row])), {})
        for name in BREAKDOWN:
            value = float(table.measured[name][row])
            if np.isfinite(value):
                sums[name] = sums.get(name, 0) + value
        for name in OUTSIDE:
            sums[name] = sums.get(name, 0) + int(table.column(name)[row])
        sums["elapsed_ns"] = sums.get("elapsed_ns", 0) + sum(
            int(table.column(state)[row]) for state in STATES
        )
    return found


@pytest.mark.sweep
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("by", ["operation", "phase", "layer", "gpu", "iteration"])
def test_parts_are_those_of_a_plain_sum_and_add_up(run: Run, scope: str, by: str) -> None:
    columns = ",".join(["elapsed_ns", "lost_ns", *PARTS, "theoretical_pct", "idle_pct"])
    found = query(run, parse(f"R{scope}?view=overheads&by={by}&base=total&columns={columns}"))
    plain = plain_parts(run, scope, by)
    assert set(found.labels) == set(plain)
    for number, label in enumerate(found.labels):
        row, sums = found.row(number), plain[label]
        for name in PARTS:
            assert row[name] == sums.get(name)
        assert sum(row[name] or 0 for name in PARTS) == row["elapsed_ns"] == sums["elapsed_ns"]
        assert row["idle_pct"] == pytest.approx(100 * sums["idle_ns"] / sums["elapsed_ns"])
        if row["lost_ns"] is not None:
            assert row["lost_ns"] == sums["elapsed_ns"] - sums.get("theoretical_ns", 0)
    assert sum(found.total[name] or 0 for name in PARTS) == found.total["elapsed_ns"]
    total = query(run, parse(f"R{scope}?base=total")).total["elapsed_ns"]
    assert found.total["elapsed_ns"] == total


@pytest.mark.parametrize("by", ["operation", "phase", "layer", "gpu", "iteration"])
def test_rows_go_by_what_is_lost_and_lead_to_the_node(run: Run, by: str) -> None:
    found = query(run, parse(f"R:gpu=0/iteration=11?view=overheads&by={by}"))
    lost = [found.row(number)["lost_ns"] for number in range(len(found))]
    known = [value for value in lost if value is not None]
    assert known == sorted(known, reverse=True) and lost[: len(known)] == known
    address = found.addresses(0)
    assert render(parse(address)) == address
    there = query(run, parse(f"{address.partition('?')[0]}?{address.partition('?')[2]}"))
    assert there.total["elapsed_ns"] == found.row(0)["elapsed_ns"]


def test_the_largest_loss_of_a_row_is_the_largest(run: Run) -> None:
    titles = {
        "extra instructions": "extra_inst_ns",
        "idle matrix units": "mfma_loss_ns",
        "vector work": "vector_ns",
        "low clock": "frequency_ns",
        "exposed communication": "exposed_comm_ns",
        "idle": "idle_ns",
    }
    columns = ",".join(["largest_loss", *PARTS])
    found = query(run, parse(f"R:gpu=0/iteration=11?view=overheads&columns={columns}"))
    seen = set()
    for number in range(len(found)):
        row = found.row(number)
        seen.add(row["largest_loss"])
        if row["largest_loss"] in titles:
            losses = [row[name] or 0 for name in PARTS if name != "theoretical_ns"]
            assert row[titles[row["largest_loss"]]] == max(losses)
    assert len(seen) > 2


def test_the_waterfall_ends_at_the_elapsed_time(run: Run) -> None:
    found = query(run, parse("R:gpu=0/iteration=11?view=overheads"))
    waterfall, stacked = found.charts
    assert isinstance(stacked, BarChart) and isinstance(waterfall, BarChart)
    by_label = dict(zip(found.labels, range(len(found)), strict=True))
    for place, label in enumerate(stacked.labels):
        elapsed = found.row(by_label[label])["elapsed_ns"]
        assert sum(series.numbers[place] for series in stacked.series) == pytest.approx(
            elapsed / 1e6
        )
    series = {each.name: each.numbers for each in waterfall.series}
    reached, adds = series["reached"], series["adds"]
    # Here no part is below zero: the legend has no word for it.
    saves = np.zeros(len(reached))
    assert "saves" not in series
    assert waterfall.labels[0] == "ideal" and waterfall.labels[-1] == "measured"
    level = reached[0]
    for place in range(1, len(waterfall.labels) - 1):
        after = level + adds[place] - saves[place]
        assert reached[place] == pytest.approx(min(level, after))
        level = after
    assert level == pytest.approx(reached[-1]) == pytest.approx(found.total["elapsed_ns"] / 1e6)


def made() -> Run:
    """A product of 1000 ns, a collective of 300 ns of which 200 stand alone, 100 ns of nothing."""
    run = run_of(
        [
            Row(0, 1000, layer=1, operation="mlp", kernel="Cijk_A", iteration=1),
            Row(900, 300, Kind.COMM, 5, layer=1, operation="gather", kernel="ncclAG", iteration=1),
            Row(1300, 400, layer=2, operation="norm", kernel="ln", launch=1250, iteration=1),
        ]
    )
    known = {
        "theoretical_ns": [400, np.nan, 0],
        "extra_inst_ns": [50, np.nan, 0],
        "mfma_loss_ns": [150, np.nan, 0],
        "vector_ns": [0, np.nan, 300],
        "contention_ns": [-20, np.nan, 20],
        "frequency_ns": [420, 0, 80],
        "unseparated_ns": [0, 0, 0],
        "unmodelled_ns": [0, 0, 0],
    }
    columns = {name: np.array(values, np.float64) for name, values in known.items()}
    return replace(run, table=run.table.with_measured(columns))


def test_a_table_made_by_hand(wording: Wording) -> None:
    found = query(made(), parse("R?view=overheads&columns=elapsed_ns,lost_ns,largest_loss"))
    rows = rows_of(found)
    assert list(rows) == ["mlp", "norm", "gather"]
    assert rows["mlp"] == {"elapsed_ns": 1000, "lost_ns": 600, "largest_loss": "low clock"}
    assert rows["norm"] == {"elapsed_ns": 500, "lost_ns": 500, "largest_loss": "vector work"}
    assert rows["gather"]["lost_ns"] == 200
    assert rows["gather"]["largest_loss"] == "exposed communication"
    assert found.total == {"elapsed_ns": 1700, "lost_ns": 1300, "largest_loss": None}
    wording(found.headline[0], "0.5 µs (29.4 %) low clock")
    waterfall = found.charts[0]
    assert isinstance(waterfall, BarChart)
    contention = waterfall.labels.index("contention")
    assert contention > 0 and waterfall.series[1].numbers[contention] == 0


def test_without_counters_the_lump_is_named(wording: Wording) -> None:
    run = run_of(
        [
            Row(0, 1000, operation="mlp", kernel="Cijk_A", phase=Phase.FORWARD, layer=NO_LABEL),
            Row(1400, 100, operation="add", kernel="elementwise"),
        ]
    )
    found = query(run, parse("R?view=overheads"))
    rows = rows_of(found)
    assert found.labels[0] == "mlp" and rows["mlp"]["lost_ns"] is None
    assert rows["mlp"]["unmodelled_ns"] == 1000 and rows["mlp"]["largest_loss"]
    assert rows["add"]["lost_ns"] == 500 and rows["add"]["largest_loss"] == "idle"
    wording(found.headline[0], "0.4 µs (26.7 %) idle")
    assert "ideal unknown" in found.headline[0]
    said = " ".join(found.notes)
    assert "no counters" in said and "hardware.toml" in said and "clock is unknown" in said
