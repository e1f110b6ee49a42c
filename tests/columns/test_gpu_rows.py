"""GPUs together as rows: the largest of their figures, and which of them lack one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.analyses.rows import GpuRows

FIGURES = st.one_of(st.floats(-10.0, 10.0), st.sampled_from([np.nan, np.inf, -np.inf]))


@given(st.lists(st.lists(FIGURES, min_size=1, max_size=4), max_size=5))
def test_the_largest_known_figure_of_a_row_and_whether_one_is_missing(
    figures: list[list[float]],
) -> None:
    numbers = np.array([each for row in figures for each in row], np.float64)
    place, members = 0, []
    for row in figures:
        members.append(np.arange(place, place + len(row)))
        place += len(row)
    rows = GpuRows("node", [f"n{number}" for number in range(len(figures))], members)
    known = [[each for each in row if np.isfinite(each)] for row in figures]
    expected = [max(each, default=np.nan) for each in known]
    np.testing.assert_array_equal(rows.largest(numbers), np.array(expected, np.float64))
    np.testing.assert_array_equal(rows.largest(numbers), rows.reduced(numbers, np.max))
    assert rows.lacking(numbers).tolist() == [
        len(some) < len(row) for some, row in zip(known, figures, strict=True)
    ]


def test_rows_are_of_any_gpus_in_any_order() -> None:
    rows = GpuRows("node", ["a", "b"], [np.array([3, 0]), np.array([2, 1])])
    assert rows.largest(np.array([1.0, np.nan, 5.0, 2.0])).tolist() == [2.0, 5.0]
    assert rows.lacking(np.array([1.0, np.nan, 5.0, 2.0])).tolist() == [False, True]
