"""Growing columns keep the appended values, and views of them stay valid."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from chopper_core.tables.columns import GrowingColumn, GrowingColumns


@pytest.mark.parametrize("is_looked_at", [False, True])
@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.float64, np.bool_])
def test_a_column_holds_what_was_appended(kind: type, is_looked_at: bool) -> None:
    numbers = np.random.default_rng(0).integers(0, 100, 200_000).astype(kind)
    column = GrowingColumn(kind)
    views = []
    for low, high in pairwise([0, 1, 1, 3_000, 4_096, 4_097, 50_000, 199_000, 200_000]):
        column.append(numbers[low:high])
        if is_looked_at:
            views.append(column.whole())
    assert column.whole().dtype == kind
    assert np.array_equal(column.whole(), numbers)
    for view in views:
        assert np.array_equal(view, numbers[: len(view)])


@pytest.mark.parametrize("is_looked_at", [False, True])
@pytest.mark.parametrize("far", [-(2**31) - 1, 2**31])
def test_a_column_is_narrow_as_long_as_its_type_holds_all(far: int, is_looked_at: bool) -> None:
    column = GrowingColumn(np.int64, np.int32)
    assert column.whole().dtype == np.int32
    near = np.array([-(2**31), 0, 2**31 - 1])
    column.append(near)
    view = column.whole() if is_looked_at else near
    assert column.whole().dtype == np.int32
    assert column.whole().tolist() == near.tolist()
    column.append(np.array([far]))
    column.append(np.array([7], np.int16))
    assert column.whole().dtype == np.int64
    assert column.whole().tolist() == [*near.tolist(), far, 7]
    assert len(column) == 5
    assert view.tolist() == near.tolist()


@pytest.mark.parametrize("size", [1, 999, 20_000])
def test_columns_have_all_rows_whether_or_not_they_were_looked_at(size: int) -> None:
    columns = GrowingColumns({"time": np.int64, "code": np.int32}, {"code": np.int16})
    numbers = np.random.default_rng(1).integers(0, 40_000, 10 * size)
    for begin in range(0, len(numbers), size):
        part = numbers[begin : begin + size]
        columns.add({"time": part, "code": part, "more": part[:0]})
        assert len(columns) == begin + size
        if begin % (4 * size) == size:
            assert np.array_equal(columns.column("time"), numbers[: begin + size])
    found = columns.joined()
    assert np.array_equal(found["time"], numbers)
    assert np.array_equal(found["code"], numbers)
    assert found["code"].dtype == (np.int16 if numbers.max() < 2**15 else np.int32)
