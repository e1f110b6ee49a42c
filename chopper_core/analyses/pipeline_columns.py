"""Columns of a pipeline: microbatches, the bubble and a stage that is too long, of any rows.

A microbatch counts in a row that has all of its activities, a step in one with all microbatches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.pipeline import (
    FORWARD,
    Pipeline,
    microbatches_of,
    per_step,
    pipeline_in,
    stage_cells,
)
from chopper_core.columns.metric import Scope, Values, absent, declare, numbered
from chopper_core.model.groups import Groups
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.errors import ChopperError
from chopper_core.util.grouping import counts_of, maxima_of, means_of, minima_of, places_by

WORKS: Final = ("forward_ns", "backward_ns", "weight_gradient_ns")
"""The column of the time of a block, by its work."""
_NONE: Final = "the row has no whole microbatch of a pipeline"
_PARTLY: Final = "the row isn't whole steps of a pipeline"


def step_figures(found: Pipeline) -> dict[str, Float64]:
    """Figures of each GPU and step."""
    window, busy, waits, _ = stage_cells(found)
    return {
        "microbatches_ns": busy,
        "step_window_ns": window,
        "pipeline_idle_pct": 100.0 * (1 - busy / window),
        "bubble_pct": 100.0 * waits / window,
        "theory_pct": np.full(len(window), 100.0 * found.theory),
    }


class RowPipeline(Struct, frozen=True, eq=False, dict=True):
    """The microbatches of a scope, and the row of each."""

    found: Pipeline
    row: Index
    """Of each block; -1: it is in none as a whole."""
    count: int

    def works(self, work: int) -> Values:
        own = (self.row >= 0) & (self.found.blocks.work == work)
        took = self.found.blocks.took_ns[own]
        return numbered(means_of(took, self.row[own], self.count))

    @cached_property
    def steps(self) -> tuple[Index, Index]:
        """The GPUs and steps whose microbatches are all in one row, and the row of each; none of a
        row with a part of another step."""
        cell = self.found.blocks.cells
        size = int(cell.max()) + 1
        least, most = (
            minima_of(self.row, cell, size, self.count),
            maxima_of(self.row, cell, size, -1),
        )
        is_whole = (least == most) & (least >= 0)
        partly = self.row[~is_whole[cell] & (self.row >= 0)]
        is_whole &= ~np.isin(least, partly)
        return np.flatnonzero(is_whole), least[is_whole].astype(np.intp)

    def of_steps(self, name: str) -> Values:
        cell, row = self.steps
        return numbered(means_of(step_figures(self.found)[name][cell], row, self.count))

    def microbatches(self) -> Values:
        cell, row = self.steps
        forward = self.found.blocks.work == FORWARD
        size = int(self.found.blocks.cells.max()) + 1
        counts = counts_of(self.found.blocks.cells[forward], size)
        numbers = np.full(self.count, np.nan)
        for place, own in places_by(row).items():
            if counts[cell[own]].any():
                numbers[place] = per_step(counts[cell[own]], self.found.chunks)
        return Values(np.nan_to_num(numbers).astype(np.int64), np.isnan(numbers))

    def stages(self) -> Values:
        """Of rows of one stage."""
        numbers, own = np.full(self.count, np.nan), np.flatnonzero(self.row >= 0)
        for row, places in places_by(self.row[own]).items():
            stage = self.found.stage[own[places]]
            if (stage == stage[0]).all():
                numbers[row] = self.found.against_others[stage[0]]
        return numbered(numbers)


_FIGURES: Final[dict[str, Callable[[RowPipeline], Values]]] = {
    "microbatches": RowPipeline.microbatches,
    "stage_x": RowPipeline.stages,
}


def _found(scope: Scope, nodes: Groups) -> RowPipeline | None:
    assert scope.run is not None
    try:
        found = pipeline_in(scope.run, scope.parent)
    except ChopperError:
        return None
    every = microbatches_of(scope.run)
    own = np.isin(every.blocks.keys, found.blocks.keys)
    return RowPipeline(found, every.in_rows(nodes)[own], len(nodes))


def _figure(name: str, scope: Scope) -> Values:
    nodes, run = scope.nodes, scope.run
    if run is None or not len(run.table):
        return absent(len(nodes))
    key = ("pipeline", id(scope.parent))
    if key not in nodes.memo:
        # The parent stays referred to, so that no other gets its id.
        nodes.memo[key] = _found(scope, nodes), scope.parent
    found: RowPipeline | None = nodes.memo[key][0]
    if found is None:
        return absent(len(nodes))
    if name in WORKS:
        return found.works(WORKS.index(name))
    return _FIGURES[name](found) if name in _FIGURES else found.of_steps(name)


declare(
    f"""
    forward_ns | ns | forward
        Mean time of a microbatch's forward, first start to last end.
        missing: {_NONE}
    backward_ns | ns | backward
        Mean time of a microbatch's backward, first start to last end.
        missing: {_NONE}
    weight_gradient_ns | ns | wgrad
        Mean time of a microbatch's gradients of weights, where the schedule lists them separately.
        missing: {_NONE}, or the schedule computes them in backward
    microbatches | | µbatches
        Microbatches of a step; of an interleaved schedule whose chunks nothing names, times
        the chunks.
    microbatches_ns | ns | in µbatches
        Time in microbatches, mean over the row's GPUs and steps.
    step_window_ns | ns | window
        From the first to the last microbatch of any GPU, or the step's time in a dump; mean over
        the row's GPUs and steps.
    pipeline_idle_pct | % | stage idle
        Share of the window outside microbatches, mean over the row's GPUs and steps.
    bubble_pct | % | bubble
        Share of the window outside microbatches for which the host isn't late: time that the GPU
        waits for its pipeline.
    theory_pct | % | theory bubble
        The bubble with equal stages. One forward, one backward: (p - 1) / (v m + p - 1) of p
        stages, m microbatches, and v chunks of a stage's model if interleaved, else 1. Zero-bubble
        (ZB-H1), with F, B and W the times of forward, backward and gradients of weights: (p - 1)
        (F + B - W) over that and v m (F + B + W).
        source: Megatron-LM (arXiv 2104.04473); zero bubble (arXiv 2401.10241)
    stage_x | x | of others
        Forward and backward of a microbatch over the median of the other stages'.
        missing: {_NONE}, it is of several stages, or there is no other stage
""",
    _figure,
    missing=_PARTLY,
)
