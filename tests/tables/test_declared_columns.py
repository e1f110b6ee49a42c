"""Growing columns keep the appended values, and views of them stay valid."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from chopper_core.tables.columns import GrowingColumn


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
