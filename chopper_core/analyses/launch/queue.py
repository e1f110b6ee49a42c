"""The host's queue: what it has launched and the GPU has not started yet, over time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chopper_core.schema import NO_TIME, KernelTable, Selection

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


def mean_depths(launch_ns: Int64, start_ns: Int64, edges_ns: Int64) -> Float64:
    """The mean number of activities in the queue between neighbouring edges, equally far apart.

    An activity is in the queue from its launch call to its start; where the clocks disagree so
    that it starts before its launch, it never is.
    """
    begin, end = int(edges_ns[0]), int(edges_ns[-1])
    bins = len(edges_ns) - 1
    width = (end - begin) / bins
    waits = (start_ns > launch_ns) & (start_ns > begin) & (launch_ns < end)
    integral = np.zeros(bins + 1)
    for times, sign in ((launch_ns[waits], 1.0), (start_ns[waits], -1.0)):
        since = np.maximum(times - begin, 0)
        since = since[since < end - begin].astype(np.float64)
        place = np.minimum((since / width).astype(np.intp), bins - 1)
        count = np.bincount(place, minlength=bins)
        # What is left of a bin after each time, summed: of so many bins' ends the times' sum.
        ends = np.arange(1, bins + 1) * width
        within = ends * count - np.bincount(place, weights=since, minlength=bins)
        full = np.cumsum(count)
        integral[1:] += sign * (within + width * np.concatenate([[0], full[:-1]]))
    depths: Float64 = integral[1:] / width
    return depths


def queue_of(table: KernelTable, rows: Selection, edges_ns: Int64) -> Float64:
    """The mean depth of the queue of one GPU, whose rows are given, between neighbouring edges."""
    launch, start = table.launch_ns[rows], table.start_ns[rows]
    known = launch != NO_TIME
    if not known.all():
        launch, start = launch[known], start[known]
    return mean_depths(launch, start, edges_ns)
