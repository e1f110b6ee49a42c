"""The order of integers is numpy's own, whatever their size and sign."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.util import grouping
from chopper_core.util.arrays import Numbers
from chopper_core.util.grouping import (
    distinct,
    isin,
    last_equal,
    median_of,
    medians_along,
    medians_without,
    others_median_of,
    places_by,
    quantile_of,
    quantiles_of,
    ranked,
    stable_order,
)


@pytest.mark.few(40)
@pytest.mark.parametrize("count", [0, 1, 5, 5_000])
@pytest.mark.parametrize("bits", [1, 7, 16, 17, 33, 47, 62])
@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64])
def test_the_order_is_that_of_a_stable_sort(count: int, bits: int, dtype: type) -> None:
    random = np.random.default_rng(bits)
    kinds = np.iinfo(dtype)
    low, high = max(kinds.min, -(1 << bits) // 2), min(kinds.max, (1 << bits) // 2)
    codes = random.integers(low, high, count, endpoint=True).astype(dtype)
    assert np.array_equal(stable_order(codes), np.argsort(codes, kind="stable"))


def test_the_ends_of_a_type_are_in_order() -> None:
    ends = np.array([np.iinfo(np.int64).max, np.iinfo(np.int64).min, 0] * 1_000)
    assert np.array_equal(stable_order(ends), np.argsort(ends, kind="stable"))


@pytest.mark.parametrize("width", [0, 50, 1 << 40, 1 << 62])
@pytest.mark.parametrize("count", [3, 6_000])
def test_quantiles_are_numpy_s(count: int, width: int) -> None:
    """Of integers within a width around 0, and of others: 0."""
    random = np.random.default_rng(count)
    values: Numbers = random.normal(size=9_000)
    if width:
        values = random.integers(-width, width, 9_000)
    owner = random.integers(0, count, 9_000)
    shares = (0.0, 0.05, 0.5, 0.95, 1.0)
    found = quantiles_of(values, owner, count, shares)
    for group in range(0, count, max(1, count // 300)):
        own = values[owner == group]
        expected = np.quantile(own, shares) if len(own) else np.full(5, np.nan)
        assert found[group] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("width", [1, 40, 10**4, 10**12])
@pytest.mark.parametrize("count", [0, 1, 3_000])
def test_ranks_are_those_of_numpy(width: int, count: int) -> None:
    codes = np.random.default_rng(width).integers(-width, width, count)
    different, place = ranked(codes)
    expected, inverse = np.unique(codes, return_inverse=True)
    assert np.array_equal(different, expected)
    assert np.array_equal(place, inverse)


@pytest.mark.parametrize("wanted", [0, 1, 40])
@pytest.mark.parametrize("count", [0, 1, 3_000])
def test_codes_in_runs_are_looked_up_as_numpy_does(count: int, wanted: int) -> None:
    random = np.random.default_rng(count)
    codes = np.repeat(random.integers(-50, 50, count), random.integers(0, 5, count))
    chosen = random.integers(-50, 50, wanted)
    assert np.array_equal(isin(codes, chosen), np.isin(codes, chosen))


@pytest.mark.parametrize("count", [1, 40, 5_000])
def test_ranks_of_few_or_many_far_apart_are_those_of_numpy(count: int) -> None:
    random = np.random.default_rng(count)
    values = np.append(random.integers(-(1 << 62), 1 << 62, count), 0)
    codes = values[random.integers(0, len(values), 70_000)]
    different, place = ranked(codes)
    assert np.array_equal(different, np.sort(values[np.isin(values, codes)]))
    assert np.array_equal(different[place], codes)


@pytest.mark.parametrize("width", [1, 40, 10**12])
@pytest.mark.parametrize("count", [0, 1, 3_000])
def test_the_last_equal_one_is_found(count: int, width: int) -> None:
    random = np.random.default_rng(count + width)
    values, wanted = random.integers(-width, width, count), random.integers(-width, width, 500)
    wanted[::2] = random.choice(values, 250) if count else 0
    last = {value: position for position, value in enumerate(values.tolist())}
    assert last_equal(values, wanted).tolist() == [last.get(each, -1) for each in wanted.tolist()]


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
@pytest.mark.parametrize(("low", "high"), [(0, 5), (-1, 127), (-128, 127), (3, 9)])
def test_distinct_values_of_many(dtype: type, low: int, high: int) -> None:
    values = np.random.default_rng(1).integers(low, high + 1, 70_000).astype(dtype)
    found = distinct(values)
    assert found.dtype == dtype
    assert found.tolist() == sorted(set(values.tolist()))


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_medians_and_quantiles_are_numpy_s(dtype: type) -> None:
    random = np.random.default_rng(3)
    shares = (0.0, 0.05, 0.5, 0.95, 1.0)
    for count in (1, 2, 3, 10, 101):
        values = random.normal(0, 1e9, count).astype(dtype)
        assert median_of(values) == np.median(values)
        np.testing.assert_allclose(quantile_of(values, shares), np.quantile(values, shares))
        square = random.normal(0, 1e9, (count, 4)).astype(dtype)
        assert median_of(square) == np.median(square)
        np.testing.assert_allclose(quantile_of(square, shares), np.quantile(square, shares))
        for axis in (0, 1):
            own = medians_along(square, axis, keepdims=True)
            np.testing.assert_array_equal(own, np.median(square, axis=axis, keepdims=True))
            np.testing.assert_array_equal(medians_along(square, axis), np.median(square, axis=axis))


def test_what_is_unknown_has_no_median() -> None:
    assert np.isnan(median_of(np.array([])))
    assert np.isnan(median_of(np.array([1.0, np.nan, 3.0])))
    square = np.array([[1.0, 2.0], [np.nan, 4.0]])
    np.testing.assert_array_equal(medians_along(square, 0), [np.nan, 3.0])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-(2**60), 2**60)), max_size=40))
def test_figures_by_owner_are_those_of_a_loop(rows: list[tuple[int, int]]) -> None:
    owner = np.array([own for own, _ in rows], np.intp)
    values = np.array([value for _, value in rows], np.int64)
    of = [[value for own, value in rows if own == each] for each in range(6)]
    sums = [(sum(each) + 2**63) % 2**64 - 2**63 for each in of]
    assert grouping.counts_of(owner, 6).tolist() == [len(each) for each in of]
    assert grouping.sums_of(values, owner, 6).tolist() == sums
    largest = [max([-(2**62), *each]) for each in of]
    assert grouping.maxima_of(values, owner, 6, -(2**62)).tolist() == largest
    smallest = [min([2**62, *each]) for each in of]
    assert grouping.minima_of(values, owner, 6, 2**62).tolist() == smallest
    means = grouping.means_of(values.astype(np.float64), owner, 6)
    assert np.isnan(means).tolist() == [not each for each in of]


def test_runs_of_nothing_have_no_figures() -> None:
    nothing, first = np.zeros(0, np.int64), np.zeros(0, np.intp)
    for reduce in (grouping.run_sums, grouping.run_maxima, grouping.run_minima):
        assert len(reduce(nothing, first)) == 0


_VALUES = st.sampled_from([1.0, 2.0, 2.5, 4.0, -7.0])


@given(st.lists(st.tuples(_VALUES | st.just(np.nan), st.integers(-2, 2)), max_size=20))
def test_medians_of_others_are_those_of_a_loop(rows: list[tuple[float, int]]) -> None:
    values = np.array([value for value, _ in rows])
    owner = np.array([own for _, own in rows], np.int64)
    for place, found in enumerate(others_median_of(values, owner).tolist()):
        others = [
            value
            for at, (value, own) in enumerate(rows)
            if at != place and own == owner[place] and np.isfinite(value)
        ]
        assert found == pytest.approx(np.median(others) if others else np.nan, nan_ok=True)


@given(st.lists(st.tuples(_VALUES, st.integers(0, 2), st.integers(-1, 3)), min_size=1, max_size=20))
def test_medians_without_a_part_are_those_of_a_loop(rows: list[tuple[float, int, int]]) -> None:
    columns = (np.array(column) for column in zip(*rows, strict=True))
    found = medians_without(*columns)
    for (_, owner, part), median in zip(rows, found.tolist(), strict=True):
        others = [value for value, own, there in rows if own == owner and there != part]
        assert median == pytest.approx(np.median(others) if others else np.nan, nan_ok=True)


@given(st.lists(st.integers(-3, 3), max_size=20))
def test_places_by_code_are_those_of_a_loop(codes: list[int]) -> None:
    found = places_by(np.array(codes, np.int64))
    assert list(found) == sorted(set(codes))
    for code, places in found.items():
        assert places.tolist() == [at for at, each in enumerate(codes) if each == code]
