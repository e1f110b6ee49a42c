"""Labels by context: a step repeats, so the kernels around a kernel tell its place."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.align.host import Host
from chopper_core.align.labels import Labels, Order, numbered
from chopper_core.model.table import NO_LABEL, Rule
from chopper_core.util.arrays import Int32, Int64, Mask

REACH: Final = 2
"""Kernels before and after that a context holds."""


def contexts(
    host: Host,
    order: Order,
    phase: Int32 | None = None,
    *,
    before: int = REACH,
    after: int = REACH,
) -> Int64:
    """A number for each activity, equal where kernel, neighbours on the stream and phase are."""
    ordered = host.trace.activities.name[order.rows].astype(np.int64)
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
    """Give unlabelled activities the label of their context, where all that have one agree.

    Only labels found by the `trusted` rules count.
    """
    missing = labels.missing() if where is None else labels.missing() & where
    known = ~labels.missing() & np.isin(labels.rules, trusted)
    if not missing.any() or not known.any():
        return
    size = int(context.max()) + 1
    highest = np.full(size, NO_LABEL, np.int64)
    lowest = np.full(size, np.iinfo(np.int64).max)
    # Of another type than the result they would go through a buffer, 30 times slower.
    codes = labels.codes[known].astype(np.int64)
    np.maximum.at(highest, context[known], codes)
    np.minimum.at(lowest, context[known], codes)
    agreed = np.where(highest == lowest, highest, NO_LABEL)
    labels.fill(agreed[context], Rule.CONTEXT, where)
