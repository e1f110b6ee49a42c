"""Waits between the streams of a GPU, inferred where the same kernels wait in the same way.

A trace rarely records what an activity waited for on another stream. An activity that starts right
after the end of another, which was launched before it, may have waited for that one. It did where
that holds as a rule: of all activities of the same kernel, operation, phase and stream, none starts
before the corresponding one of the other stream ends. A rule also holds where nobody had to wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from chopper_core.graph.dependencies import STAMP_NS, Evidence
from chopper_core.graph.host_nodes import TimedRows
from chopper_core.graph.step_graph import EdgeRows, joined_edges
from chopper_core.model.side_table import axis_of
from chopper_core.model.table import NO_TIME, KernelTable
from chopper_core.util.arrays import Index, Int64, Mask
from chopper_core.util.grouping import (
    combined,
    first_equal,
    maxima_of,
    nth_of,
    places_by,
    ranked,
    run_starts,
    stable_order,
)

_NEAR_NS: Final = 20_000
"""An activity waited for another stream if it starts this soon after what ended there."""
_MAX_EXCEPTIONS: Final = 0.01
"""Of a rule: clocks of streams differ a little."""
_MIN_SHARE: Final = 0.5
"""Without a rule, an activity waits where this share of the same activities do."""


def inferred_waits(table: KernelTable, timed: TimedRows, edges: EdgeRows) -> EdgeRows:
    """The waits between streams, of edges between activities that end before others start."""
    is_near = timed.start[edges.target] - timed.end[edges.source] <= _NEAR_NS
    # What is launched later can't be waited for.
    launched = np.where(timed.launch == NO_TIME, timed.start, timed.launch)
    near = edges.take(is_near & (timed.queued[edges.source] <= launched[edges.target]))
    latest = maxima_of(timed.end[near.source], near.target, len(launched), NO_TIME)
    near = near.take(timed.end[near.source] == latest[near.target])
    if not len(near.source):
        return near
    rows = timed.rows
    recorded = table.launch_ns[rows] != NO_TIME
    labels = (table.operation[rows], timed.stream)
    awaited = combined(labels)[1]
    waiting = combined((*labels, table.phase[rows], table.kernel[rows]))[1]
    found, left = _ruled(timed, recorded, near, waiting, awaited)
    # The same place in the iterations of all GPUs.
    number = nth_of(waiting, table.iteration[rows], timed.gpu)
    places = combined((waiting, number))[1]
    more, left = _ruled(timed, recorded, left, places, awaited)
    share = np.bincount(places[left.target], minlength=int(places.max()) + 1) / np.bincount(places)
    often = share[places[left.target]] >= _MIN_SHARE
    waits = joined_edges([found, more, left.take(often)])
    pair = combined((waits.target, waits.source))[1]
    return waits.take(first_equal(pair, np.arange(int(pair.max(initial=-1)) + 1)))


def _ruled(
    timed: TimedRows, recorded: Mask, near: EdgeRows, waiting: Index, awaited: Index
) -> tuple[EdgeRows, EdgeRows]:
    """The waits by rules of some classes, and those of the edges that follow none."""
    in_order = np.lexsort((timed.start, timed.queued, timed.gpu))
    of_waiting, of_awaited = _by_class(waiting, in_order), _by_class(awaited, in_order)
    key = axis_of(timed.queued)(timed.gpu, timed.queued)
    place = np.empty(len(key), np.intp)
    pairs = ranked(waiting[near.target] * (int(awaited.max()) + 1) + awaited[near.source])[1]
    found, follows = [near.take(slice(0))], np.zeros(len(pairs), np.bool_)
    for own in places_by(pairs).values():
        some = near.take(own)
        sources = of_awaited(int(awaited[some.source[0]]))
        place[sources] = np.arange(len(sources))
        waits = _rule(
            timed, recorded, key, some, of_waiting(int(waiting[some.target[0]])), sources, place
        )
        if waits is not None:
            follows[own] = True
            found.append(waits)
    return joined_edges([*found, near.take(follows)]), near.take(~follows)


def _by_class(codes: Index, order: Index) -> Callable[[int], Index]:
    """The places of a class, in an order of the places: few of thousands are asked for."""
    by_code = order[stable_order(codes[order])]
    edges = np.append(0, np.cumsum(np.bincount(codes)))
    return lambda code: by_code[edges[code] : edges[code + 1]]


def _rule(
    timed: TimedRows,
    recorded: Mask,
    key: Int64,
    some: EdgeRows,
    waiting: Index,
    awaited: Index,
    place: Index,
) -> EdgeRows | None:
    """The waits of all activities of a class by the rule that some of them show; None if the times
    contradict it.

    Each waits for the last one that was launched before it, or as many before that as in most of
    the known waits.
    """
    keys = key[awaited]
    back = np.searchsorted(keys, key[some.target], "right") - 1 - place[some.source]
    step = int(np.bincount(np.maximum(back, 0)).argmax())
    at = np.searchsorted(keys, key[waiting], "right") - 1 - step
    there = (at >= 0) & (timed.gpu[awaited[at]] == timed.gpu[waiting])
    target, source = waiting[there], awaited[at[there]]
    is_right = timed.end[source] <= timed.start[target] + STAMP_NS
    # Where a lost launch was is a guess that contradicts nothing.
    sure = (recorded[target] & recorded[source]) | ~recorded.any()
    if (sure & ~is_right).sum() > _MAX_EXCEPTIONS * sure.sum():
        return None
    target, source = target[is_right], source[is_right]
    # What follows on the stream of the first that waits for one begins after it anyway.
    first = run_starts(source)
    target, source = target[first], source[first]
    evidence = np.full(len(source), Evidence.REPEATED, np.int8)
    return EdgeRows(source, target, evidence, np.zeros(len(source), np.int64))
