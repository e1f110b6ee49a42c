"""Rows that are put at the end of a kernel table."""

from __future__ import annotations

import numpy as np

from chopper_core.align.rank_account import OutsideTime, outside_rows
from chopper_core.model.accounting import OutsideGaps
from chopper_core.model.table import COLUMNS, append, concatenate
from tests.demo import demo_run


def test_rows_put_at_the_end_are_those_of_both_tables() -> None:
    table = demo_run().table
    first = table.take(np.arange(100))
    times = np.array([5, 9]), np.array([7, 12])
    more = outside_rows(OutsideTime.of_gpu(3, OutsideGaps(*times, np.zeros(2, np.intp))))
    both = concatenate([first, more])
    append(first, more)
    assert (first.names, first.operations) == (both.names, both.operations)
    for name in COLUMNS:
        assert np.array_equal(getattr(first, name), getattr(both, name)), name
    assert first.measured.keys() == both.measured.keys()
    for name, values in first.measured.items():
        assert np.array_equal(values, both.measured[name], equal_nan=True), name
    assert first.column("idle_ns")[-2:].tolist() == [2, 3]
