"""Truncated steps on the screen: said in one place, taken in by a key, never an outlier."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.outliers import outliers
from chopper_core.columns import numbered
from chopper_core.model.run import Run
from chopper_core.model.view import View
from tests.support import Row, run_of, sample_run
from tests.tui.explorer import explorer
from tests.wording import Wording


def cut_run(*iterations: int) -> Run:
    """The sample run of which the profiler cuts steps on the last GPU."""
    run = sample_run(gpus=2, iterations=8)
    return replace(run, partial_iterations={0: frozenset(), 1: frozenset(iterations)})


async def test_the_key_takes_them_in_and_leaves_them_out_again(wording: Wording) -> None:
    view = View("sample.json", ("0",), is_total=True)
    async with explorer((120, 40), run=cut_run(10), view=view) as at:
        top = at.text().splitlines()
        wording(top[1], "step 10 cut")
        assert "10 cut" in at.text()
        assert "truncated" not in at.text()
        less = at.frame.total["elapsed_ns"]
        await at.press("t")
        assert at.frame.view.cut and at.frame.address.endswith("&cut=1")
        assert "step 10 cut, counted" in at.text().splitlines()[1]
        first = at.frame.row(0)["elapsed_ns"]
        assert at.frame.total["elapsed_ns"] == less + first
        await at.press("escape")
        assert at.frame.view.cut and at.frame.left_out == ()
        await at.press("t")
        assert not at.frame.view.cut and at.frame.left_out == (10,)
        await at.press("enter", "g", "enter")
        assert "step 10 cut" in at.text().splitlines()[1] and at.frame.left_out == ()


@pytest.mark.sweep
async def test_a_run_without_them_says_so(wording: Wording) -> None:
    async with explorer((80, 24), run=cut_run()) as at:
        await at.press("t")
        wording.among(at.text(), "truncated")
        assert "cut" not in at.text().splitlines()[1]


async def test_time_outside_of_steps_is_taken_in_by_the_same_key(wording: Wording) -> None:
    inside = [Row(1_000_000 * step, 600_000, iteration=step) for step in range(1, 4)]
    run = run_of([*inside, Row(10_000_000, 500_000)])
    async with explorer((120, 40), run=run, view=View("made.json")) as at:
        wording.among(at.frame.notes, "cut=1")
        less = at.frame.total["elapsed_ns"]
        await at.press("t")
        assert at.frame.view.cut
        wording.among(at.text(), "outside steps")
        assert at.frame.total["elapsed_ns"] != less
        assert not any("left out unless" in note for note in at.frame.notes)
        await at.press("t")
        assert not at.frame.view.cut and at.frame.total["elapsed_ns"] == less


def test_one_that_is_left_out_is_no_outlier() -> None:
    times = numbered([1.0, 10.0, 11.0, 12.0, 13.0, 10.5])
    assert outliers(times).rows == (0,)
    assert outliers(times, np.array([False, *[True] * 5])).rows == ()


@pytest.mark.few(2)
@pytest.mark.parametrize("sort", ["", "-elapsed_ns", "elapsed_ns", "elapsed_ns_delta"])
async def test_they_come_last_whatever_rows_are_sorted_by(sort: str) -> None:
    async with explorer((120, 40), run=cut_run(10, 12), view=View("sample.json")) as at:
        await at.press("space", "j", "space", "=")
        await at.command(f"sort {sort or '-elapsed_ns_delta'}")
        assert set(at.frame.labels[-2:]) == {"10", "12"} and at.explore.table.cursor < 6
