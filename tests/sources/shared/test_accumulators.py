"""Counters that wrap and counters that are set back."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.sources.shared.accumulators import steps, unwrapped


@pytest.mark.parametrize("width", [32, 64])
@given(data=st.data())
def test_steps_survive_wraps(width: int, data: st.DataObject) -> None:
    largest = 2 ** (width - 3) - 1
    start = data.draw(st.integers(2 ** (width - 1), 2**width - 1))
    counted = data.draw(st.lists(st.integers(0, largest), max_size=30))
    readings = [total % 2**width for total in accumulate(counted, initial=start)]
    assert steps(readings) == counted
    assert unwrapped(readings) == ([0, *accumulate(counted)], 0)


@given(st.lists(st.floats(0, 1e12), min_size=1))
def test_unwrapped_values_never_fall(readings: list[float]) -> None:
    total, _ = unwrapped(readings)
    assert len(total) == len(readings)
    assert total == sorted(total)


def test_a_set_back_adds_nothing() -> None:
    assert steps([1000, 1500, 20, 30]) == [500, None, 10]
    assert unwrapped([1000, 1500, 20, 30]) == ([0, 500, 500, 510], 1)


def test_a_large_counter_that_is_set_back_has_not_wrapped() -> None:
    assert steps([3_000_000_000, 10]) == [None]
    assert steps([2**63, 10]) == [None]
    assert steps([5.5, 1.25]) == [None]


def test_nothing_counts_nothing() -> None:
    assert unwrapped([]) == ([], 0)
    assert unwrapped([7]) == ([0], 0)
