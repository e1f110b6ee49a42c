"""Pace: how much faster a GPU computes after idle time, as power management lets it.

A step with less idle time may lose that: its kernels run closer together, at a lower clock.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.graph.contention import MIN_DURATION_NS
from chopper_core.graph.step_graph import StepGraph
from chopper_core.model.groups import comparable_kernels
from chopper_core.model.run import Run
from chopper_core.model.signals import SpansOfGpus
from chopper_core.model.table import Kind
from chopper_core.util.arrays import Int64
from chopper_core.util.grouping import combined, ranked, ratios, sums_of

_BEFORE_NS: Final = 30_000_000
"""Power management follows the mean load of about this time."""
_ERRORS: Final = 2.0
"""The width of a range in standard errors."""
_MOST: Final = 1 / 3
"""Power goes with the cube of the clock: what a GPU saves in idle time raises it by a third."""


def pace_after_idle(run: Run, graph: StepGraph, kind: Int64) -> float:
    """By how much less time the same kernel may take at most per share of idle time before it:
    0.04 is 4 % after nothing but idle time, and 0 where the run shows none.

    By least squares among kernels of the same name, work, layer and GPU that no communication
    overlaps, over the share of the 30 ms before them without compute. `kind` is that of the
    activities of the graph.
    """
    table = run.table
    rows = graph.row[graph.activities].astype(np.intp)
    begins = graph.begin_ns[graph.activities]
    computes = np.flatnonzero(kind == Kind.COMPUTE)
    rows, begins = rows[computes], begins[computes]
    if not len(rows):
        return 0.0
    gpu = table.gpu[rows]
    busy = SpansOfGpus.running(gpu, begins, table.duration_ns[rows])
    is_long = table.duration_ns[rows] >= MIN_DURATION_NS
    own = is_long & (table.overlap_ns[rows] == 0)
    own &= begins - _BEFORE_NS >= busy.first_ns[gpu]
    rows, begins, gpu = rows[own], begins[own], gpu[own]
    if not len(rows):
        return 0.0
    idle = 1 - busy.within(gpu, begins - _BEFORE_NS, begins) / _BEFORE_NS
    took = table.duration_ns[rows].astype(np.float64)
    same = [table.phase[rows], table.layer[rows], table.operation[rows], table.kernel[rows], gpu]
    like = combined([*same, ranked(comparable_kernels(table, rows))[1]])[1]
    weight = sums_of(took, like)
    x, y = (
        each - ratios(sums_of(each * took, like), weight)[like] for each in (idle, np.log(took))
    )
    squares = float((took * x * x).sum())
    if squares <= 0:
        return 0.0
    slope = float((took * x * y).sum()) / squares
    # Neighbours share the clock: what is left of a step is one value.
    rest = sums_of(took * x * (y - slope * x), combined([gpu, table.iteration[rows]])[1])
    error = float(np.sqrt((rest**2).sum())) / squares
    return min(max(_ERRORS * error - slope, 0.0), _MOST)
