"""The account of a GPU's time against the slow and obvious one, on random activities."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.model.accounting import account
from chopper_core.model.table import NO_TIME, Kind
from tests.oracles import accounting as oracle

COLUMNS = (*oracle.STATES, *oracle.IDLE_PARTS, "hidden_ns")
KINDS = {"compute": Kind.COMPUTE, "comm": Kind.COMM, "copy": Kind.COPY}

# Small numbers, so that starts, ends and streams are often the same.
times = st.integers(0, 12)
durations, streams, kinds = st.integers(0, 6), st.integers(0, 2), st.sampled_from(sorted(KINDS))
launches = times | st.none()
rows = st.lists(
    st.tuples(times, durations, kinds, streams, launches),
    min_size=1,
    max_size=12,
)


@given(rows)
def test_every_activity_is_charged_as_the_oracle_charges_it(
    given_rows: list[tuple[int, int, str, int, int | None]],
) -> None:
    activities = [
        oracle.Activity("kernel", kind, 0, stream, row, start, duration, launch)
        for row, (start, duration, kind, stream, launch) in enumerate(given_rows)
    ]
    oracle.account(activities)
    found = account(
        np.array([each.start_ns for each in activities]),
        np.array([each.duration_ns for each in activities]),
        np.array([KINDS[each.kind] for each in activities], np.int8),
        np.array([each.stream for each in activities]),
        np.array([NO_TIME if each.launch_ns is None else each.launch_ns for each in activities]),
    )
    for column in COLUMNS:
        expected = [each.charged[column] for each in activities]
        assert found[column].tolist() == expected, column
    span = max(each.end_ns for each in activities) - min(each.start_ns for each in activities)
    assert sum(found[state].sum() for state in oracle.STATES) == span
