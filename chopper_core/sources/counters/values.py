"""Values of counters as they are read: those of a counter's instances are added up on the way."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.sources.shared.columns import GrowingColumn
from chopper_core.util.arrays import Float64, Int32, Int64

_MOST_APART: Final = 1 << 20
"""Values that may wait to be added up, besides those that are added up."""


class CounterValues:
    """Values by counter and row, in the order in which they were added.

    With `sums`, values of one counter and row are added up, so that memory grows with rows and
    counters only, however many instances of a counter there are. NaN is no value.
    """

    def __init__(self, sums: bool) -> None:
        self._sums = sums
        self._parts: dict[int, _Parts] = {}

    def add(self, row: Int64, counter: Int64, value: Float64) -> None:
        """Append values: the number of a row, the code of a counter, and what was counted."""
        known = ~np.isnan(value)
        if not known.all():
            row, counter, value = row[known], counter[known], value[known]
        if not len(row):
            return
        order = np.argsort(counter, kind="stable")
        codes, begins = np.unique(counter[order], return_index=True)
        for code, these in zip(codes.tolist(), np.split(order, begins[1:]), strict=True):
            rows, values = row[these].astype(np.int32), value[these].astype(np.float64)
            self._parts.setdefault(code, _Parts(self._sums)).add(rows, values)

    def codes(self) -> list[int]:
        """The counters that have values."""
        return sorted(self._parts)

    def take(self, code: int) -> tuple[Int32, Float64]:
        """Return the rows and values of a counter, and forget them."""
        parts = self._parts.pop(code, None)
        return _NONE if parts is None else parts.whole()


_NONE: Final = (np.empty(0, np.int32), np.empty(0, np.float64))


class _Parts:
    """The values of one counter."""

    def __init__(self, sums: bool) -> None:
        self._sums = sums
        self._rows, self._values = GrowingColumn(np.int32), GrowingColumn(np.float64)
        self._together = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, rows: Int32, values: Float64) -> None:
        if self._sums:
            rows, values = _added_up(rows, values)
            if len(self) and self._rows.whole()[-1] == rows[0]:
                # The instances of one row, in two batches.
                self._values.whole()[-1] += values[0]
                rows, values = rows[1:], values[1:]
        self._rows.append(rows)
        self._values.append(values)
        # Twice what is together: each value is then moved a few times at most.
        if self._sums and len(self) > _MOST_APART + 2 * self._together:
            rows, values = self.whole()
            if len(rows) < len(self):
                self._rows, self._values = GrowingColumn(np.int32), GrowingColumn(np.float64)
                self._rows.append(rows)
                self._values.append(values)
            self._together = len(self)

    def whole(self) -> tuple[Int32, Float64]:
        rows, values = self._rows.whole(), self._values.whole()
        return _added_up(rows, values) if self._sums else (rows, values)


def _added_up(rows: Int32, values: Float64) -> tuple[Int32, Float64]:
    if not len(rows) or (rows[1:] > rows[:-1]).all():
        return rows, values
    if not (rows[1:] >= rows[:-1]).all():
        order = np.argsort(rows, kind="stable")
        rows, values = rows[order], values[order]
    begins = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]])
    return rows[begins], np.add.reduceat(values, begins)
