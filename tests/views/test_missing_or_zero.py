"""Differences of parts: what took no time is 0, what nothing measured is missing.

Rows of two runs, by operation. A part of compute is known where a run has counters of the row; it
is 0 in a row that has no compute, or that isn't there; it is unknown elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.model.table import Kind
from chopper_core.model.units import Unit
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from tests.support import Row, rows_of, run_of

NAN: Final = float("nan")
PART: Final = "mfma_loss_ns"


def run_with(parts: Mapping[str, float], *, has_host: Sequence[str] = ()) -> Run:
    """A step with an activity of 100 ns of each operation, 10 ns apart; `all_gather` is
    communication. NaN where nothing measured the part."""
    rows = [
        Row(
            110 * at, 100, Kind.COMM if name == "all_gather" else Kind.COMPUTE, operation=name,
            iteration=1, launch=110 * at - 8 if name in has_host else None,
        )
        for at, name in enumerate(parts)
    ]  # fmt: skip
    run = run_of(rows)
    measured = {PART: np.array([*parts.values()], np.float64)}
    return replace(run, table=replace(run.table, measured={**run.table.measured, **measured}))


OURS: Final = {"gemm": 40.0, "norm": NAN, "both": 30.0, "all_gather": NAN, "more": 5.0, "no": NAN}
BASE: Final = {"gemm": NAN, "norm": 7.0, "both": 10.0, "all_gather": NAN, "no": NAN}
WANTED: Final[dict[str, tuple[float | None, float | None, float | None]]] = {
    # Of one run, of the other, and the difference.
    "gemm": (40, None, None),
    "norm": (None, 7, None),
    "both": (30, 10, 20),
    "all_gather": (0, 0, 0),
    "more": (5, 0, 5),
    "no": (None, None, None),
}


def compared(ours: Run, base: Run, address: str) -> dict[str, dict[str, Any]]:
    return rows_of(query(replace(ours, others={"base": base}), parse(address)))


@pytest.mark.parametrize(
    "address",
    [
        f"R?view=compare&by=operation&of={PART}&base=base",
        f"R?order=operation&columns={PART},{PART}_delta&base=base",
    ],
)
def test_a_part_is_0_where_there_is_none_and_missing_where_nothing_measured_it(
    address: str,
) -> None:
    there = compared(run_with(OURS), run_with(BASE), address)
    back = compared(run_with(BASE), run_with(OURS), address)
    assert {
        name: (row[PART], back[name][PART], row[f"{PART}_delta"]) for name, row in there.items()
    } == WANTED
    for name, row in there.items():
        delta = row[f"{PART}_delta"]
        assert back[name][f"{PART}_delta"] == (None if delta is None else -delta)


def test_a_row_that_is_gone_is_all_of_it_less_and_a_new_one_is_no_share_of_nothing() -> None:
    address = f"R?view=compare&by=operation&of={PART}&base=base"
    gone = compared(run_with(BASE), run_with(OURS), address)["more"]
    assert gone[f"{PART}_delta_pct"] == -100 and gone["partner"] == "removed"
    new = compared(run_with(OURS), run_with(BASE), address)["more"]
    assert new[f"{PART}_delta_pct"] is None and new[f"base_{PART}"] == 0


def test_of_a_run_without_counters_all_is_missing() -> None:
    nothing = run_with(dict.fromkeys(BASE, NAN))
    address = f"R?order=operation&columns={PART},{PART}_delta&base=base"
    for ours, base in ((run_with(OURS), nothing), (nothing, run_with(OURS))):
        rows = compared(ours, base, address)
        assert all(row[f"{PART}_delta"] is None for row in rows.values())
    assert all(row[PART] is None for row in compared(nothing, run_with(OURS), address).values())


def test_idle_before_a_launch_is_missing_without_a_record_of_it() -> None:
    """`b` has idle time whose host nobody recorded; the first activity has none."""
    parts = dict.fromkeys(("a", "b", "c"), 1.0)
    ours, base = run_with(parts, has_host=("b", "c")), run_with(parts, has_host=("c",))
    address = "R?order=operation&columns=idle_host_ns,idle_host_ns_delta&base=base"
    rows = compared(ours, base, address)
    found = {name: row["idle_host_ns_delta"] for name, row in rows.items()}
    assert found == {"a": 0, "b": None, "c": 0}


def test_times_of_rows_still_add_up_to_their_total() -> None:
    for address in ("R?view=compare&by=operation&base=base", "R?order=operation&base=base"):
        run = replace(run_with(OURS), others={"base": run_with(BASE)})
        frame: Frame = query(run, parse(address))
        deltas = [row["elapsed_ns_delta"] for row in rows_of(frame).values()]
        assert sum(deltas) == pytest.approx(frame.total["elapsed_ns_delta"])
        assert all(row["elapsed_ns"] is not None for row in rows_of(frame).values())
        assert frame.columns[0].unit == Unit.NS
