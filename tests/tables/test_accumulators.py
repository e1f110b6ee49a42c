"""Counters that wrap and counters that are set back."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.tables.columns import array_steps, array_unwrapped

Number = int | float


def steps(readings: list[Number], bits: int = 0) -> list[Number | None]:
    """The differences between neighbours, one by one; None over a reset."""
    if bits:
        return [
            later - earlier + ((1 << bits) if later < earlier else 0)
            for earlier, later in pairwise(readings)
        ]
    return [step(earlier, later) for earlier, later in pairwise(readings)]


def step(earlier: Number, later: Number) -> Number | None:
    if later >= earlier:
        return later - earlier
    if not (isinstance(earlier, int) and isinstance(later, int)):
        return None
    wrapped = later - earlier + (1 << 32)
    return wrapped if earlier < 1 << 32 and wrapped < (1 << 32) // 8 else None


def unwrapped(readings: list[Number], bits: int = 0) -> tuple[list[Number], int]:
    """The amounts since the first reading, and the number of resets."""
    found = steps(readings, bits)
    return [*accumulate((each or 0 for each in found), initial=0)], found.count(None)


@given(st.integers(2**31, 2**32 - 1), st.lists(st.integers(0, 2**29 - 1), max_size=30))
def test_steps_survive_wraps(start: int, counted: list[int]) -> None:
    readings = [total % 2**32 for total in accumulate(counted, initial=start)]
    assert steps(readings) == counted
    total, resets = array_unwrapped(np.array(readings))
    assert (total.tolist(), resets) == ([0, *map(float, accumulate(counted))], 0)


@given(st.lists(st.floats(0, 1e12), min_size=1))
def test_unwrapped_values_never_fall(readings: list[float]) -> None:
    total, _ = array_unwrapped(np.array(readings))
    assert len(total) == len(readings)
    assert total.tolist() == sorted(total)


def test_a_set_back_adds_nothing() -> None:
    total, resets = array_unwrapped(np.array([1000, 1500, 20, 30]))
    assert (total.tolist(), resets) == ([0, 500, 500, 510], 1)


def test_a_large_counter_that_is_set_back_has_not_wrapped() -> None:
    for readings in ([3_000_000_000, 10], [2**62, 10], [5.5, 1.25]):
        assert array_steps(np.array(readings))[1].tolist() == [True]


def test_nothing_counts_nothing() -> None:
    assert array_unwrapped(np.array([7]))[0].tolist() == [0]


@pytest.mark.parametrize("bits", [0, 32])
@pytest.mark.parametrize("kind", [np.int64, np.float64])
@given(data=st.data())
def test_arrays_step_as_single_readings_do(bits: int, kind: type, data: st.DataObject) -> None:
    integers = st.one_of(st.integers(0, 100), st.integers(2**32 - 9, 2**32 - 1))
    one_of = integers if kind is np.int64 else st.one_of(integers, st.floats(0, 1e9))
    readings = data.draw(st.lists(one_of, min_size=1, max_size=20))
    plain = [int(each) if float(each).is_integer() else each for each in readings]
    amounts, is_reset = array_steps(np.array(readings, kind), bits)
    expected = steps(plain, bits)
    assert is_reset.tolist() == [step is None for step in expected]
    assert amounts.tolist() == [float(step or 0) for step in expected]
    totals, resets = array_unwrapped(np.array(readings, kind), bits)
    total, expected_resets = unwrapped(plain, bits)
    assert (totals.tolist(), resets) == ([float(each) for each in total], expected_resets)
