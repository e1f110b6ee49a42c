"""Values and intervals over time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class Steps:
    """A value that holds from one time to the next, with its integral; the first holds before."""

    def __init__(self, time_ns: int, value: float) -> None:
        self.times_ns = [time_ns]
        self.values = [value]
        self._integrals = [0.0]

    def append(self, time_ns: int, value: float) -> None:
        """Lets the value change at a time that is not before the last change."""
        if time_ns == self.times_ns[-1]:
            self.values[-1] = value
        elif value != self.values[-1]:
            self._integrals.append(self.integral(time_ns))
            self.times_ns.append(time_ns)
            self.values.append(value)

    def at(self, time_ns: int) -> float:
        """The value at a time."""
        return self.values[self._place(time_ns)]

    def integral(self, time_ns: int) -> float:
        """Value times ns since the first time."""
        place = self._place(time_ns)
        return self._integrals[place] + self.values[place] * (time_ns - self.times_ns[place])

    def mean(self, start_ns: int, end_ns: int) -> float:
        """The time-weighted mean over a span that is not empty."""
        return (self.integral(end_ns) - self.integral(start_ns)) / (end_ns - start_ns)

    def _place(self, time_ns: int) -> int:
        return max(0, bisect_right(self.times_ns, time_ns) - 1)


def merged(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union of intervals, in order and without contact."""
    rows: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if rows and start <= rows[-1][1]:
            rows[-1] = (rows[-1][0], max(rows[-1][1], end))
        else:
            rows.append((start, end))
    return rows
