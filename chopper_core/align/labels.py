"""Labels of one level and the rules that fill their gaps; intervals of host threads over points."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.table import NO_LABEL, Rule
from chopper_core.util.arrays import AnyArray, Codes, Index, Int8, Int32, Int64, Mask, Numbers, Rows
from chopper_core.util.grouping import common_of, isin, numbered_rows, run_mask, stable_order

NOWHERE = -1
_FEW: Final = 1 << 14
"""Intervals times points of which each pair is looked at."""
BLOCK: Final = 1 << 16
"""Intervals that are placed at a time."""


class Labels(Struct, frozen=True):
    """Codes (`NO_LABEL` where none was found) and `Rule` codes, one per activity."""

    codes: Int32
    rules: Int8

    @classmethod
    def none(cls, count: int) -> Labels:
        return cls(np.full(count, NO_LABEL, np.int32), np.full(count, Rule.NONE, np.int8))

    def missing(self) -> Mask:
        return np.equal(self.codes, NO_LABEL)

    def fill(self, codes: Numbers | int, rule: Rule, where: Mask | None = None) -> None:
        """Label activities without a label; NO_LABEL codes are ignored."""
        take = self.missing()
        if where is not None:
            take &= where
        if not isinstance(codes, int):
            take &= codes != NO_LABEL
            codes = codes[take]
        self.codes[take] = codes
        self.rules[take] = rule

    def fill_by(
        self,
        find: Callable[[Points, Mask], Index],
        points: Points,
        rule: Rule,
        where: Mask | None = None,
    ) -> None:
        """Label activities without a label by what is found at their points, such as the
        `innermost` of intervals; the others' aren't looked at."""
        take = self.missing() if where is None else self.missing() & where
        if take.any():
            self.fill(find(points, take), rule, take)

    def fill_around(
        self, intervals: Intervals, points: Points, forward: Points, rule: Rule
    ) -> None:
        """Label by the innermost interval around each launch, else around its forward operator."""
        self.fill_by(intervals.innermost, points, rule)
        self.fill_by(intervals.innermost, forward, Rule.AUTOGRAD)


class Order(Struct, frozen=True):
    """The activities of a GPU in the order in which each stream ran them."""

    rows: Int32
    """Rows, stream after stream, by start."""
    new_stream: Mask
    """Where in `rows` a stream begins."""

    @classmethod
    def of(cls, stream: Int64, start_ns: Int64) -> Order:
        rows = np.lexsort((start_ns, stream)).astype(np.int32)
        return cls(rows, run_mask(stream[rows]))

    def nearest(self, has: Mask, *, forwards: bool) -> Int32:
        """For each row the nearest earlier row of its stream for which `has` holds, or -1.

        With `forwards` the nearest later one.
        """
        count = len(self.rows)
        nearest = np.full(count, -1, np.int32)
        stream = np.cumsum(self.new_stream, dtype=np.int32)
        every = np.arange(count, dtype=np.int32)
        position = np.where(has[self.rows], every, np.int32(count if forwards else -1))
        del every
        if forwards:
            position = np.minimum.accumulate(position[::-1])[::-1]
        else:
            position = np.maximum.accumulate(position)
        exists = (position >= 0) & (position < count)
        inside = np.where(exists, position, np.int32(0))
        exists &= stream[inside] == stream
        nearest[self.rows] = np.where(exists, self.rows[inside], np.int32(-1))
        return nearest


def fill_between(labels: Labels, order: Order, agrees: Callable[[Index, Index], Mask]) -> None:
    """Label activities whose two neighbours on the stream share a label.

    `agrees(previous, following)` masks the activities that belong with their neighbours.
    """
    known = ~labels.missing()
    if known.all():
        return
    previous, following = (order.nearest(known, forwards=way) for way in (False, True))
    both = (previous >= 0) & (following >= 0)
    before = np.where(both, previous, 0)
    after = np.where(both, following, 0)
    same = both & (labels.codes[before] == labels.codes[after]) & agrees(before, after)
    labels.fill(labels.codes[before], Rule.NEIGHBOUR, same)


REACH: Final = 2
"""Kernels before and after an activity in its context."""


def contexts_of(
    kernel: Int32,
    order: Order,
    phase: Int32 | None = None,
    *,
    before: int = REACH,
    after: int = REACH,
) -> Int64:
    """A number per activity, equal where kernel, neighbours on the stream and phase are."""
    ordered = kernel[order.rows]
    stream = np.cumsum(order.new_stream, dtype=np.int32)
    columns = [ordered]
    for shift in (*range(1, before + 1), *range(-after, 0)):
        same_stream = np.roll(stream, shift) == stream
        columns.append(np.where(same_stream, np.roll(ordered, shift), -1))
    if phase is not None:
        columns.append(phase[order.rows])
    result = np.empty(len(ordered), np.int64)
    result[order.rows] = numbered_rows(columns)
    return result


def like_context(
    labels: Labels,
    contexts: Callable[[], Int64],
    trusted: tuple[Rule, ...],
    where: Mask | None = None,
    sought: Mask | None = None,
) -> None:
    """Label activities like others in the same context, where those agree.

    Only labels found by the `trusted` rules count, and that none was found for those `sought`:
    they agree with no other. Contexts are found if any label is missing.
    """
    missing = labels.missing() if where is None else labels.missing() & where
    known = ~labels.missing() & isin(labels.rules, trusted)
    if not missing.any() or not known.any():
        return
    context = contexts()
    if sought is not None:
        known |= labels.missing() & sought
    # The result's type: any other goes through a buffer, 30 times slower.
    codes = labels.codes[known].astype(np.int64)
    agreed = common_of(codes, context[known], int(context.max()) + 1, NO_LABEL)
    labels.fill(agreed[context], Rule.CONTEXT, where)


class Points(Struct, frozen=True, dict=True):
    """Instants on host threads; thread `NOWHERE` for unknown instants."""

    thread: Int32
    time_ns: Int64

    def __len__(self) -> int:
        return len(self.thread)

    def known(self) -> Mask:
        return np.not_equal(self.thread, NOWHERE)

    def take(self, rows: Index | Int32) -> Points:
        """The points of the given rows; row -1 gives an unknown point."""
        if not len(self.thread):
            return Points(np.full(len(rows), NOWHERE, np.int32), np.zeros(len(rows), np.int64))
        thread = np.where(rows >= 0, self.thread[rows], np.int32(NOWHERE))
        return Points(thread.astype(np.int32), self.time_ns[rows])

    def anywhere(self) -> Points:
        """The same instants, all on thread 0."""
        return Points(np.where(self.known(), np.int32(0), np.int32(NOWHERE)), self.time_ns)

    @cached_property
    def _bounds(self) -> tuple[int, int]:
        time_ns = self.time_ns[self.known()]
        return (int(time_ns.min()), int(time_ns.max())) if len(time_ns) else (0, 0)

    def place(self, thread: Int32, time_ns: Int64) -> Int64:
        """A number for each instant, by thread and time; those outside all points are just beyond
        them."""
        low, high = self._bounds
        section = thread.astype(np.int64) * (high - low + 3)
        # Faster than np.clip, which looks up the limits of the type each time.
        return section + np.minimum(np.maximum(time_ns, low - 1), high + 1) - low

    @cached_property
    def line(self) -> tuple[Int32, Int64]:
        """Rows and places of the known points in order, sorted once for all sets of intervals."""
        rows = np.flatnonzero(self.known()).astype(np.int32)
        at = self.place(self.thread[rows], self.time_ns[rows])
        order = np.argsort(at, kind="stable")
        return rows[order], at[order]


class Intervals(Rows, frozen=True):
    """Closed intervals on host threads, each with a value."""

    thread: Int32
    start_ns: Int64
    end_ns: Int64
    value: Codes

    def innermost(
        self, points: Points, among: Mask | None = None, *, any_thread: bool = False
    ) -> Index:
        """The value of the shortest interval over each point, -1 where there is none.

        With `among` only over those points. With `any_thread` the points are compared by time
        alone. Of equally long intervals the later one wins.
        """
        if any_thread:
            everywhere = replace(self, thread=np.zeros_like(self.thread))
            return everywhere.innermost(points.anywhere(), among)
        return self._paint(points, among, -1)

    def outermost(self, points: Points, among: Mask | None = None) -> Index:
        return self._paint(points, among, 1)

    def _paint(self, points: Points, among: Mask | None, sign: int) -> Index:
        """The value of the longest interval over each point, or of the shortest with a negative
        sign; the last of equal ones."""
        found = np.full(len(points), -1, np.intp)
        count = len(self)
        if not count:
            return found
        if count * len(points) < _FEW:
            rows = np.flatnonzero(points.known() if among is None else points.known() & among)
            order = stable_order(sign * (self.end_ns - self.start_ns))[:, None]
            time_ns = points.time_ns[rows]
            over = self.thread[order] == points.thread[rows]
            over &= (self.start_ns[order] <= time_ns) & (self.end_ns[order] >= time_ns)
            last = count - 1 - over[::-1].argmax(axis=0)
            found[rows] = np.where(over.any(axis=0), self.value[order[last, 0]], -1)
            return found
        blocks = (self.take(block) for block in in_blocks(count))
        return values_over(blocks, points, among, sign)

    def covering(self, points: Points, line: Int64) -> tuple[AnyArray, ...]:
        """The values and lengths of the intervals over any point of a line, which a last one ends
        that is beyond all; and where in it these begin and end."""
        end = points.place(self.thread, self.end_ns)
        low = np.searchsorted(line, points.place(self.thread, self.start_ns))
        covers = np.flatnonzero(line[low] <= end)
        high = np.searchsorted(line, end[covers], "right")
        length = self.end_ns[covers] - self.start_ns[covers]
        # Half as wide: those of all blocks are held at once.
        return self.value[covers], length, low[covers].astype(np.int32), high.astype(np.int32)


def in_blocks(count: int) -> list[slice]:
    """So many rows in blocks: a trace has many times more ranges than activities."""
    return [slice(begin, begin + BLOCK) for begin in range(0, count, BLOCK)]


def values_over(
    blocks: Iterable[Intervals], points: Points, among: Mask | None = None, sign: int = -1
) -> Index:
    """The value of the shortest interval over each point, or of the longest with a positive sign,
    of intervals that are given in blocks; of equally long ones the later one."""
    found = np.full(len(points), -1, np.intp)
    rows, line = points.line
    if among is not None:
        kept = among[rows]
        rows, line = rows[kept], line[kept]
    if not len(rows):
        return found
    line = np.append(line, np.iinfo(np.int64).max)
    covering = [block.covering(points, line) for block in blocks]
    if not covering:
        return found
    value, length, low, high = map(np.concatenate, zip(*covering, strict=True))
    del covering, line
    order = stable_order(sign * length)
    del length
    last = last_over(low[order], high[order], len(rows))
    is_covered = last >= 0
    found[rows[is_covered]] = value[order[last[is_covered]]]
    return found


def last_over(low: Int32, high: Int32, count: int) -> Index:
    """The last of the ranges [low, high) over each of `count` positions, -1 where there is none.

    A range is covered by two overlapping ones whose length is a power of two; from the longest
    on, those of each length are halved.
    """
    last = np.full(count, -1, np.intp)
    power = np.frexp(high - low)[1] - 1
    for exponent in range(int(power.max(initial=-1)), -1, -1):
        of_length = np.flatnonzero(power == exponent)
        np.maximum.at(last, low[of_length], of_length)
        np.maximum.at(last, high[of_length] - (1 << exponent), of_length)
        if exponent:
            half = 1 << (exponent - 1)
            shifted = last[:-half].copy()
            np.maximum(last[half:], shifted, out=last[half:])
    return last


def parents(intervals: Intervals) -> Index:
    """The position of the interval that directly encloses each one on its thread, or -1."""
    order = np.lexsort((-intervals.end_ns, intervals.start_ns, intervals.thread))
    parent = np.full(len(intervals), -1, np.intp)
    open_intervals: list[int] = []
    thread, start, end = intervals.thread, intervals.start_ns, intervals.end_ns
    for position in order.tolist():
        while open_intervals and (
            thread[open_intervals[-1]] != thread[position]
            or end[open_intervals[-1]] < end[position]
            or end[open_intervals[-1]] <= start[position]
        ):
            open_intervals.pop()
        if open_intervals:
            parent[position] = open_intervals[-1]
        open_intervals.append(position)
    return parent
