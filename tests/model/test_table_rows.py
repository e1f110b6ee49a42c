"""Rows that are put at the end of a kernel table."""

from __future__ import annotations

import numpy as np
import pytest

from chopper_core.align.rank_account import OutsideTime, outside_rows
from chopper_core.model import groups
from chopper_core.model.accounting import OutsideGaps
from chopper_core.model.groups import Groups
from chopper_core.model.table import COLUMNS, append, concatenate
from tests.demo import demo_run


def test_scattered_rows_are_added_up_as_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    table, random = demo_run().table, np.random.default_rng(0)
    rows = np.sort(random.choice(len(table), 5_000, replace=False))
    # One group is larger than what is added up at a time.
    first = np.sort(np.append(0, random.choice(np.arange(1_000, 5_000), 300, replace=False)))
    monkeypatch.setattr(groups, "_PIECE", 64)
    nodes = Groups(table, rows, first)
    each = [own.tolist() for own in np.split(table.duration_ns[rows], first[1:])]
    assert nodes.sum("duration_ns").tolist() == [sum(own) for own in each]
    assert nodes.max("duration_ns").tolist() == [max(own) for own in each]
    assert Groups(table, rows, first[:1]).min("duration_ns").tolist() == [min(map(min, each))]


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
