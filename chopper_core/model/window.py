"""Time ranges of a run with cursor and mark, and the functions from one to another."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.util.errors import UsageError

SHORTEST_NS: Final = 100
"""Maximum zoom: kernels aren't shorter."""
_UNITS: Final = {"": 1, "ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_TIME: Final = re.compile(r"(\d+)(?:\.(\d+))?(ns|us|µs|ms|s)?")


class Window(Struct, frozen=True):
    """Times in ns since the run's first activity; None: the default of the view."""

    from_ns: int | None = None
    to_ns: int | None = None
    at_ns: int | None = None
    """The cursor."""
    mark_ns: int | None = None
    """The other end of a measurement from the cursor."""

    def __bool__(self) -> bool:
        """Whether any time is set."""
        return self != ALL_TIME


ALL_TIME: Final = Window()


class Interval(Struct, frozen=True):
    """A window with all times resolved, within the run."""

    from_ns: int
    to_ns: int
    at_ns: int
    mark_ns: int | None
    end_ns: int
    """The end of the run."""

    @property
    def length_ns(self) -> int:
        """Its duration."""
        return self.to_ns - self.from_ns

    def window(self) -> Window:
        """The window as an address holds it."""
        return Window(self.from_ns, self.to_ns, self.at_ns, self.mark_ns)


def parse_time(key: str, text: str) -> int:
    """ns of a time such as `1500`, `1.5us`, `12.25ms` or `3s`; raises UsageError."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{key}={text} is an invalid time; write 1500ns, 1.5us, 12.25ms or 3s")
    whole, part, unit = match.groups()
    # In integers: a float lacks the digits for the ns of a long run.
    digits = (part or "").ljust(9, "0")
    scale = _UNITS[unit or ""]
    return int(whole) * scale + int(digits[:9]) * scale // 10**9


def resolved(window: Window, scope: tuple[int, int], end_ns: int) -> Interval:
    """Resolve a window within a run that ends at `end_ns`; defaults come from the scope.

    Raises UsageError where it contains no time of the run.
    """
    end_ns = max(end_ns, 1)
    begin = scope[0] if window.from_ns is None else window.from_ns
    end = window.to_ns
    if end is None:
        end = scope[1] if scope[1] > begin else end_ns
    if begin >= end_ns:
        raise UsageError(f"from={begin}ns lies after the end of the run, at {end_ns} ns")
    if begin > end or (begin == end and window.to_ns is not None):
        raise UsageError(f"from={begin}ns is not before to={end}ns")
    begin, end = _within(begin, max(min(end, end_ns) - begin, SHORTEST_NS), end_ns)
    at = begin + (end - begin) // 2 if window.at_ns is None else window.at_ns
    return Interval(begin, end, min(at, end_ns), window.mark_ns, end_ns)


def zoomed(interval: Interval, factor: float) -> Interval:
    """Zoom to `factor` times the length; a visible cursor keeps its place on the screen."""
    length = max(round(interval.length_ns * factor), SHORTEST_NS)
    at = interval.at_ns
    if not interval.from_ns <= at <= interval.to_ns:
        at = interval.from_ns + interval.length_ns // 2
    begin = at - (at - interval.from_ns) * length // max(interval.length_ns, 1)
    return _placed(interval, begin, length)


def panned(interval: Interval, share: float) -> Interval:
    """Pan by a share of the length; the cursor moves along."""
    moved = _placed(
        interval, interval.from_ns + round(interval.length_ns * share), interval.length_ns
    )
    at = interval.at_ns + moved.from_ns - interval.from_ns
    return replace(moved, at_ns=min(max(at, 0), interval.end_ns))


def pointing(interval: Interval, at_ns: int) -> Interval:
    """Move the cursor; the interval follows if the cursor would leave it."""
    at = min(max(at_ns, 0), interval.end_ns)
    begin = interval.from_ns
    if at < interval.from_ns or at > interval.to_ns:
        near = interval.length_ns // 4
        begin = at - near if at > interval.to_ns else at - interval.length_ns + near
        if not begin <= at <= begin + interval.length_ns:
            begin = at - interval.length_ns // 2
    return replace(_placed(interval, begin, interval.length_ns), at_ns=at)


def stepped(interval: Interval, cells: int, bins: int) -> Interval:
    """Move the cursor by some cells, to the middle of a cell."""
    # In integers: a float puts a cursor at the edge of a cell into the one before.
    bins = max(min(bins, interval.length_ns), 1)
    cell = (interval.at_ns - interval.from_ns) * bins // max(interval.length_ns, 1)
    return pointing(
        interval, interval.from_ns + (2 * (cell + cells) + 1) * interval.length_ns // (2 * bins)
    )


def fitted(interval: Interval, from_ns: int, to_ns: int) -> Interval:
    """Fit the interval to a range of time, with an eighth of margin on either side."""
    room = (to_ns - from_ns) // 8
    return _placed(interval, from_ns - room, max(to_ns - from_ns + 2 * room, SHORTEST_NS))


def _placed(interval: Interval, begin: int, length: int) -> Interval:
    begin, end = _within(begin, length, interval.end_ns)
    return replace(interval, from_ns=begin, to_ns=end)


def _within(begin: int, length: int, end_ns: int) -> tuple[int, int]:
    """Move a range into 0 … `end_ns`, and shorten it if it doesn't fit."""
    length = max(min(length, end_ns), 1)
    begin = max(min(begin, end_ns - length), 0)
    return begin, begin + length
