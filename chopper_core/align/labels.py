"""Labels of one level, and rules that fill gaps from neighbours and context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.table import NO_LABEL, Rule
from chopper_core.util.arrays import Codes, Index, Int8, Int32, Int64, Mask, Numbers
from chopper_core.util.grouping import common_of, ranked, run_mask


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
        codes = np.broadcast_to(codes, self.codes.shape)
        take = self.missing() & (codes != NO_LABEL)
        if where is not None:
            take &= where
        self.codes[take] = codes[take]
        self.rules[take] = rule


class Order(Struct, frozen=True):
    """The activities of a GPU in the order in which each stream ran them."""

    rows: Index
    """Rows, stream after stream, by start."""
    new_stream: Mask
    """Where in `rows` a stream begins."""

    @classmethod
    def of(cls, stream: Int64, start_ns: Int64) -> Order:
        rows = np.lexsort((start_ns, stream))
        return cls(rows, run_mask(stream[rows]))

    def nearest(self, has: Mask, *, forwards: bool) -> Index:
        """For each row the nearest earlier row of its stream for which `has` holds, or -1.

        With `forwards` the nearest later one.
        """
        count = len(self.rows)
        nearest = np.full(count, -1, np.intp)
        if not count:
            return nearest
        stream = np.cumsum(self.new_stream)
        position = np.where(has[self.rows], np.arange(count), count if forwards else -1)
        if forwards:
            position = np.minimum.accumulate(position[::-1])[::-1]
        else:
            position = np.maximum.accumulate(position)
        exists = (position >= 0) & (position < count)
        inside = np.where(exists, position, 0)
        exists &= stream[inside] == stream
        nearest[self.rows] = np.where(exists, self.rows[inside], -1)
        return nearest


def numbered(columns: Sequence[Codes]) -> Index:
    """A number for each row, from 0 on, equal for rows that are equal in all columns."""
    numbers = np.zeros(len(columns[0]), np.intp)
    for column in columns:
        distinct, codes = ranked(column)
        _, numbers = ranked(numbers * len(distinct) + codes)
    return numbers


def between(labels: Labels, order: Order, agrees: Callable[[Index, Index], Mask]) -> None:
    """Label activities whose two neighbours on the stream share a label.

    `agrees(previous, following)` masks the activities that belong with their neighbours.
    """
    known = ~labels.missing()
    previous, following = (order.nearest(known, forwards=way) for way in (False, True))
    both = (previous >= 0) & (following >= 0)
    before = np.where(both, previous, 0)
    after = np.where(both, following, 0)
    if not len(before):
        return
    same = both & (labels.codes[before] == labels.codes[after]) & agrees(before, after)
    labels.fill(labels.codes[before], Rule.NEIGHBOUR, same)


REACH: Final = 2
"""Kernels before and after an activity in its context."""


def contexts(
    kernel: Int32,
    order: Order,
    phase: Int32 | None = None,
    *,
    before: int = REACH,
    after: int = REACH,
) -> Int64:
    """A number per activity, equal where kernel, neighbours on the stream and phase are."""
    ordered = kernel[order.rows].astype(np.int64)
    stream = np.cumsum(order.new_stream)
    columns = [ordered]
    for shift in (*range(1, before + 1), *range(-after, 0)):
        same_stream = np.roll(stream, shift) == stream
        columns.append(np.where(same_stream, np.roll(ordered, shift), -1))
    if phase is not None:
        columns.append(phase[order.rows].astype(np.int64))
    result = np.empty(len(ordered), np.int64)
    result[order.rows] = numbered(columns)
    return result


def like_context(
    labels: Labels,
    context: Int64,
    trusted: tuple[Rule, ...],
    where: Mask | None = None,
) -> None:
    """Label activities like others in the same context, where those agree.

    Only labels found by the `trusted` rules count.
    """
    missing = labels.missing() if where is None else labels.missing() & where
    known = ~labels.missing() & np.isin(labels.rules, trusted)
    if not missing.any() or not known.any():
        return
    # The result's type: any other goes through a buffer, 30 times slower.
    codes = labels.codes[known].astype(np.int64)
    agreed = common_of(codes, context[known], int(context.max()) + 1, NO_LABEL)
    labels.fill(agreed[context], Rule.CONTEXT, where)
