"""Pipeline: stages and microbatches, the bubble against theory, and a stage that is too long.

Microbatches are blocks of forward and backward work of a GPU in a step. The schedule separates
them, or names of annotations, or sends and receives between stages.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import base_of_steps
from chopper_core.analyses.pipeline import (
    FORWARD,
    WEIGHTS,
    Pipeline,
    bubble_of,
    longest_stage,
    pipeline_of,
    stage_cells,
    why_no_microbatches,
)
from chopper_core.analyses.pipeline_columns import WORKS, step_figures
from chopper_core.analyses.rows import LabelledRows, Own
from chopper_core.columns import METRICS, Values, numbered
from chopper_core.model.charts import HeatMap
from chopper_core.model.phrases import facts, percent, time
from chopper_core.model.run import Run
from chopper_core.model.view import View, child_of
from chopper_core.util.arrays import Codes, Index
from chopper_core.util.grouping import (
    distinct,
    means_of,
    ranked,
)
from chopper_core.views.shared.table_view import table_view
from chopper_core.views.spec import ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="pipeline",
    title="Losses · pipeline",
    question="How large is the pipeline's bubble, and which stage is too long?",
    by=("stage", "rank", "iteration", "microbatch", "chunk"),
    no_statistic="shows means over microbatches and steps",
)

STAGE: Final = "stage"
_PARTS: Final = ("microbatch", "chunk")
"""Splits of what a GPU does in a step."""
_BINS: Final = 96
_UNITS: Final = ((10**6, "ms"), (10**3, "µs"), (1, "ns"))


def missing_from(run: Run) -> str:
    """Why no scope of a run has an answer; empty: one may."""
    return why_no_microbatches(run)


def answer(run: Run, view: View) -> ViewResult:
    found = pipeline_of(run, view)
    by = view.by or STAGE
    blocks, along = found.blocks, run.table.coordinates
    codes: dict[str, Codes] = {STAGE: found.stage, "rank": blocks.gpu}
    codes |= {name: along[name][blocks.gpu] for name in along}
    labels, owner = ranked(codes[by] if by in codes else getattr(blocks, by))
    count, names = len(labels), list(map(str, labels.tolist()))
    own: Own = []
    for work, name in enumerate(WORKS):
        there = blocks.work == work
        if there.any() or work != WEIGHTS:
            own.append(
                (METRICS[name], numbered(means_of(blocks.took_ns[there], owner[there], count)))
            )
    if by not in _PARTS:
        own += _shares(found, owner, count)
    if by == STAGE and count > 1:
        own.append((METRICS["stage_x"], numbered(found.against_others[labels])))
    notes = [f"microbatches are separated by {blocks.origin}"]
    if (present := len(distinct(found.stage))) < found.stages:
        notes.append(f"{present} of {found.stages} stages have traces in the scope")

    def opens(row: int) -> View:
        if by in _PARTS:
            return view
        deeper = child_of(view, {STAGE: "pp", "rank": "gpu"}.get(by, by), names[row])
        is_rank_next = by == STAGE or by in along
        return replace(deeper, name="pipeline", by="rank" if is_rank_next else "microbatch")

    return table_view(
        view,
        LabelledRows("gpu" if by == "rank" else by, names),
        own,
        _shares(found, np.zeros(len(blocks), np.intp), 1),
        opens=opens,
        headline=_headline(found),
        notes=tuple(notes),
        charts=(_chart(found),),
        base=base_of_steps(run, view),
    )


def _shares(found: Pipeline, owner: Index, count: int) -> Own:
    """Figures of GPUs and steps, as means of the rows they belong to."""
    _, _, _, cell = stage_cells(found)
    row = np.zeros(int(cell.max()) + 1, np.intp)
    row[cell] = owner
    return [
        (METRICS["microbatches"], Values(np.full(count, found.microbatches))),
        *(
            (METRICS[name], numbered(means_of(each, row, count)))
            for name, each in step_figures(found).items()
        ),
    ]


def _headline(found: Pipeline) -> tuple[str, ...]:
    chunks = f" of {found.chunks} chunks" if found.chunks > 1 else ""
    first = facts(
        f"{percent(bubble_of(found))} bubble, {percent(found.theory)} with equal stages",
        f"{found.stages} stages{chunks}, {found.microbatches} microbatches ({found.schedule})",
    )
    if (long := longest_stage(found)) is None:
        return (first,)
    stage, times, saving, _ = long
    return (
        first,
        facts(
            f"stage {stage} takes {times:.2f} times the others' median per microbatch",
            f"in stages of equal length a step takes up to {time(saving)} less",
        ),
    )


def _chart(found: Pipeline) -> HeatMap:
    blocks = found.blocks
    iterations = distinct(blocks.iteration)
    # A step in the middle: the first ones are often a warm-up.
    iteration = int(iterations[len(iterations) // 2])
    stages = distinct(found.stage).tolist()
    gpus = [int(blocks.gpu[found.stage == stage].min()) for stage in stages]
    own = (blocks.iteration == iteration) & np.isin(blocks.gpu, gpus)
    begin, end = int(blocks.start_ns[own].min()), int(blocks.end_ns[own].max())
    bin_ns = _round_below(max((end - begin) / _BINS, 1.0))
    edges = np.arange(0, end - begin + bin_ns, bin_ns)
    low, high = (each[own, None] - begin for each in (blocks.start_ns, blocks.end_ns))
    within = np.clip(np.minimum(edges[1:], high) - np.maximum(edges[:-1], low), 0, None)
    within[blocks.work[own] != FORWARD] *= -1
    shares = 100.0 * within / np.diff(edges)
    unit_ns, unit = next(each for each in _UNITS if each[0] <= bin_ns)
    return HeatMap(
        f"step {iteration} along time",
        "%",
        tuple(f"stage {stage}" for stage in stages),
        tuple(str(at // unit_ns) for at in edges[:-1].tolist()),
        unit,
        np.stack([shares[blocks.gpu[own] == gpu].sum(axis=0) for gpu in gpus]),
        has_own_rows=True,
        kinds=("backward", "idle", "forward"),
    )


def _round_below(number: float) -> int:
    """The largest of 1, 2, 5, 10, 20 ... that isn't above a number."""
    size = int(10 ** int(np.log10(number)))
    return max(each * size for each in (1, 2, 5) if each * size <= number)
