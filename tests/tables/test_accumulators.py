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
    for width in (32, 64):
        if earlier < 1 << width:
            wrapped = later - earlier + (1 << width)
            return wrapped if wrapped < (1 << width) // 8 else None
    return None


def unwrapped(readings: list[Number], bits: int = 0) -> tuple[list[Number], int]:
    """The amounts since the first reading, and the number of resets."""
    found = steps(readings, bits)
    return [*accumulate((each or 0 for each in found), initial=0)], found.count(None)


@pytest.mark.parametrize("width", [32, 64])
@given(data=st.data())
def test_steps_survive_wraps(width: int, data: st.DataObject) -> None:
    largest = 2 ** (width - 3) - 1
    start = data.draw(st.integers(2 ** (width - 1), 2**width - 1))
    counted = data.draw(st.lists(st.integers(0, largest), max_size=30))
    readings = [total % 2**width for total in accumulate(counted, initial=start)]
    assert steps(readings) == counted
    total, resets = array_unwrapped(np.array(readings, object))
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
    for readings in ([3_000_000_000, 10], [2**63, 10], [5.5, 1.25]):
        assert array_steps(np.array(readings, object))[1].tolist() == [True]


def test_nothing_counts_nothing() -> None:
    assert array_unwrapped(np.array([7]))[0].tolist() == [0]


@pytest.mark.parametrize("bits", [0, 32])
@pytest.mark.parametrize("kind", [np.int64, np.float64, object])
@given(data=st.data())
def test_arrays_step_as_single_readings_do(bits: int, kind: type, data: st.DataObject) -> None:
    integers = st.one_of(st.integers(0, 100), st.integers(2**32 - 9, 2**32 - 1))
    one_of = {np.int64: integers, object: st.integers(0, 2**64 - 1)}
    readings = data.draw(
        st.lists(one_of.get(kind, st.one_of(integers, st.floats(0, 1e9))), min_size=1, max_size=20)
    )
    plain = [int(each) if float(each).is_integer() else each for each in readings]
    amounts, is_reset = array_steps(np.array(readings, kind), bits)
    expected = steps(plain, bits)
    assert is_reset.tolist() == [step is None for step in expected]
    assert amounts.tolist() == [float(step or 0) for step in expected]
    totals, resets = array_unwrapped(np.array(readings, kind), bits)
    total, expected_resets = unwrapped(plain, bits)
    assert (totals.tolist(), resets) == ([float(each) for each in total], expected_resets)
