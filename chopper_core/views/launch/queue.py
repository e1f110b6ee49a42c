"""The host's queue: what it has launched and the GPU has not started yet, over time."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.model.table import NO_TIME, KernelTable, Selection
from chopper_core.util.arrays import Float64, Int64

_BLOCK: Final = 32
"""Neighbouring times that are looked at as one."""


def mean_depths(launch_ns: Int64, start_ns: Int64, edges_ns: Int64) -> Float64:
    """The mean number of activities in the queue between neighbouring edges, equally far apart.

    An activity is in the queue from its launch call to its start; where the clocks disagree so
    that it starts before its launch, it never is.
    """
    waits = (start_ns > launch_ns) & (start_ns > edges_ns[0]) & (launch_ns < edges_ns[-1])
    if not waits.all():
        launch_ns, start_ns = launch_ns[waits], start_ns[waits]
    depths: Float64 = np.diff(_since(launch_ns, edges_ns) - _since(start_ns, edges_ns))
    return depths / np.diff(edges_ns)


def _since(times_ns: Int64, edges_ns: Int64) -> Int64:
    """At each edge, how long ago all the times before it were, together; the first counts as 0."""
    edges, bins = edges_ns - edges_ns[0], len(edges_ns)
    times = np.maximum(times_ns - edges_ns[0], 0)
    blocks = len(times) // _BLOCK
    together = times[: blocks * _BLOCK].reshape(blocks, _BLOCK)
    first = np.searchsorted(edges, together.min(axis=1))
    # Rows are nearly in the order of time: most neighbours lie between the same edges.
    whole = first == np.searchsorted(edges, together.max(axis=1))
    count = np.bincount(first[whole], minlength=bins + 1) * _BLOCK
    sums = together.sum(axis=1)[whole]
    total = np.bincount(first[whole], weights=sums, minlength=bins + 1)
    rest = np.concatenate([together[~whole].ravel(), times[blocks * _BLOCK :]])
    place = np.searchsorted(edges, rest)
    count += np.bincount(place, minlength=bins + 1)
    total = total + np.bincount(place, weights=rest, minlength=bins + 1)
    since: Int64 = edges * np.cumsum(count[:bins]) - np.cumsum(total[:bins]).astype(np.int64)
    return since


def queue_of(table: KernelTable, rows: Selection, edges_ns: Int64) -> Float64:
    """The mean depth of the queue of one GPU, whose rows are given, between neighbouring edges."""
    launch, start = table.launch_ns[rows], table.start_ns[rows]
    known = launch != NO_TIME
    if not known.all():
        launch, start = launch[known], start[known]
    return mean_depths(launch, start, edges_ns)
