"""The roctx range that each dispatch was launched in."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.sources.shared.columns import Columns, GrowingColumns
from chopper_core.sources.shared.losses import ABSENT
from chopper_core.util.arrays import Int32, Int64
from chopper_core.util.grouping import distinct, first_equal, stable_order

BY_GPU_TIME: Final = (
    "Launches were not traced; each dispatch has the roctx range that was open when it started on "
    "the GPU."
)
_ANY_THREAD: Final = -2


class HostSide:
    """The host's roctx ranges and launch calls of one profiled process."""

    def __init__(self) -> None:
        self._ranges = GrowingColumns(
            {"thread": np.int64, "start_ns": np.int64, "end_ns": np.int64, "name": np.int64}
        )
        self._calls = GrowingColumns(
            {"correlation": np.int64, "thread": np.int64, "start_ns": np.int64}
        )

    def add_ranges(self, ranges: Columns) -> None:
        """Append ranges; those without a duration are marks, which contain nothing."""
        is_range = (ranges["start_ns"] >= 0) & (ranges["end_ns"] > ranges["start_ns"])
        self._ranges.add({name: column[is_range] for name, column in ranges.items()})

    def add_calls(self, calls: Columns) -> None:
        """Append calls of the runtime."""
        known = (calls["correlation"] > 0) & (calls["start_ns"] >= 0)
        self._calls.add({name: column[known] for name, column in calls.items()})

    def regions(self, dispatches: Columns) -> tuple[Int32, bool]:
        """Return the name of the innermost range around each dispatch, or ABSENT.

        The time of a dispatch is that of the call with its correlation id, else its start on the
        GPU; the second value is whether any range was found by the latter.
        """
        ranges, calls = self._ranges.joined(), self._calls.joined()
        count = len(dispatches["start_ns"])
        found = np.full(count, ABSENT, np.int32)
        if not len(ranges["start_ns"]):
            return found, False
        thread, time_ns = dispatches["thread"].copy(), dispatches["start_ns"].copy()
        was_launched = np.zeros(count, np.bool_)
        if len(calls["start_ns"]):
            call = first_equal(calls["correlation"], dispatches["correlation"])
            was_launched = call >= 0
            call = call[was_launched]
            thread[was_launched] = calls["thread"][call]
            time_ns[was_launched] = calls["start_ns"][call]
        thread[thread < 0] = _ANY_THREAD
        for one in distinct(thread).tolist():
            asked = np.flatnonzero((thread == one) & (time_ns >= 0))
            here = slice(None) if one == _ANY_THREAD else ranges["thread"] == one
            found[asked] = _innermost(
                time_ns[asked],
                ranges["start_ns"][here],
                ranges["end_ns"][here],
                ranges["name"][here],
            )
        return found, bool(((found >= 0) & ~was_launched).any())


def _innermost(times_ns: Int64, starts_ns: Int64, ends_ns: Int64, names: Int64) -> Int32:
    """Return the name of the last started range around each time, or ABSENT."""
    found = np.full(len(times_ns), ABSENT, np.int32)
    order = np.lexsort((-ends_ns, starts_ns))
    ranges = zip(
        starts_ns[order].tolist(), ends_ns[order].tolist(), names[order].tolist(), strict=True
    )
    upcoming = next(ranges, None)
    open_ranges: list[tuple[int, int]] = []
    asked = stable_order(times_ns)
    for index, time_ns in zip(asked.tolist(), times_ns[asked].tolist(), strict=True):
        while upcoming is not None and upcoming[0] <= time_ns:
            open_ranges.append(upcoming[1:])
            upcoming = next(ranges, None)
        while open_ranges and open_ranges[-1][0] < time_ns:
            open_ranges.pop()
        if open_ranges:
            found[index] = open_ranges[-1][1]
    return found
