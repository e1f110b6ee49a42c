"""Pipeline: stages and microbatches, the bubble against theory, and a stage that is too long."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.metrics import Metric, Values, column, numbered
from chopper_core.model.charts import Chart, HeatMap
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.arrays import Codes, Float64, Index, Int64
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import distinct, means_of, median_of, sums_of
from chopper_core.views.pipeline.blocks import (
    BACKWARD,
    FORWARD,
    WEIGHTS,
    Blocks,
    blocks_of,
)
from chopper_core.views.shared.phrases import percent, time
from chopper_core.views.shared.table_view import LabelledRows, child_of, table_view
from chopper_core.views.spec import ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="pipeline",
    title="Pipeline",
    question="How large is the pipeline's bubble, and which stage is too long?",
    by=("stage", "rank", "iteration", "microbatch", "chunk"),
    no_statistic="shows means over microbatches and iterations",
)

STAGE: Final = "stage"
_PARTS: Final = ("microbatch", "chunk")
"""Splits of what a GPU does in an iteration."""
LONG: Final = 1.1
"""A stage is too long from this many times the median of the others."""
_BINS: Final = 96

Own = list[tuple[Metric, Values]]

COUNT: Final = column("""microbatches | | µbatches
    Microbatches of an iteration; of an interleaved schedule whose chunks nothing names, times
    the chunks.""")
FORWARD_TIME: Final = column("""forward_ns | ns | forward
    Mean time of a microbatch's forward, first start to last end.""")
BACKWARD_TIME: Final = column("""backward_ns | ns | backward
    Mean time of a microbatch's backward, first start to last end.""")
WEIGHTS_TIME: Final = column("""weight_gradient_ns | ns | wgrad
    Mean time of a microbatch's gradients of weights, where the schedule has them apart.
    missing: the schedule computes them in backward""")
BUSY: Final = column("""busy_ns | ns | busy
    Time in microbatches, mean over the row's GPUs and iterations.""")
WINDOW: Final = column("""step_window_ns | ns | window
    From the first to the last microbatch of any GPU, or the step's time in a dump; mean over
    the row's GPUs and iterations.""")
IDLE: Final = column("""pipeline_idle_pct | % | idle
    Share of the window outside microbatches, mean over the row's GPUs and iterations.""")
BUBBLE: Final = column("""bubble_pct | % | bubble
    Share of the window outside microbatches for which the host isn't late: time that the GPU
    waits for its pipeline.""")
THEORY: Final = column("""theory_pct | % | theory
    The bubble with equal stages. One forward, one backward: (p - 1) / (v m + p - 1) of p
    stages, m microbatches, and v chunks of a stage's model if interleaved, else 1. Zero-bubble
    (ZB-H1), with F, B and W the times of forward, backward and gradients of weights: (p - 1)
    (F + B - W) over that and v m (F + B + W).
    source: Megatron-LM (arXiv 2104.04473); zero bubble (arXiv 2401.10241)""")
TIMES: Final = column("""stage_x | x | of others
    Forward and backward of a microbatch over the median of the other stages'.
    missing: there is no other stage""")


class Pipeline(Struct, frozen=True, eq=False):
    """The microbatches of a scope with their stages."""

    run: Run
    blocks: Blocks
    stage: Int64
    """Of each block."""
    stages: int
    microbatches: int
    """Of an iteration."""
    chunks: int
    """Of a stage's model: more than one if the schedule is interleaved."""

    @property
    def schedule(self) -> str:
        """The name of the schedule that the theory describes."""
        if self.mean_ns(WEIGHTS):
            return "ZB-H1"
        return "interleaved 1F1B" if self.chunks > 1 else "1F1B"

    @property
    def theory(self) -> float:
        """The bubble's share with equal stages, from 0 to 1."""
        forward, backward, weights = map(self.mean_ns, (FORWARD, BACKWARD, WEIGHTS))
        whole = forward + backward + weights
        # Filling and draining the pipeline, in times of a microbatch.
        idle = (self.stages - 1) * (max(whole - 2 * weights, 0.0) / whole if whole else 1.0)
        return idle / (self.microbatches * self.chunks + idle)

    def mean_ns(self, work: int) -> float:
        """The mean time of a block of some work; 0 without any."""
        took = self.blocks.took_ns[self.blocks.work == work]
        return float(took.mean()) if len(took) else 0.0

    def cells(self) -> tuple[Int64, Index]:
        """The (GPU, iteration) of the scope as rows of numbers, and that of each block."""
        pairs = np.stack([self.blocks.gpu, self.blocks.iteration], axis=1)
        found, owner = np.unique(  # noqa: TID251 (pairs)
            pairs, axis=0, return_inverse=True
        )
        return found, owner.ravel()

    def of_stages(self) -> Float64:
        """Mean time of a microbatch, or chunk of it, on each stage, in ns."""
        took = self.blocks.took_ns.astype(np.float64)
        return np.asarray(
            sum(
                means_of(took[own], self.stage[own], self.stages)
                for work in (FORWARD, BACKWARD, WEIGHTS)
                if (own := self.blocks.work == work).any()
            ),
            np.float64,
        )

    def against_others(self) -> Float64:
        """Each stage's time over the median of the others'."""
        times = self.of_stages()
        return np.array(
            [
                times[place] / median_of(np.delete(times, place)) if len(times) > 1 else np.nan
                for place in range(len(times))
            ]
        )


def pipeline_of(run: Run, view: View) -> Pipeline:
    """The pipeline of a scope; raises NothingToShow without one."""
    blocks = blocks_of(run, view)
    coordinates = run.table.coordinates.get("pp")
    if coordinates is None:
        raise NothingToShow(
            "the stages are unknown: neither the traces' process groups nor --parallel pp=N gives "
            "them"
        )
    stage = coordinates[blocks.gpu].astype(np.int64)
    assert run.parallel is not None
    forward = blocks.work == FORWARD
    chunks = len(distinct(blocks.chunk))
    per_cell = np.unique(  # noqa: TID251 (pairs)
        np.stack([blocks.gpu[forward], blocks.iteration[forward]], axis=1),
        axis=0,
        return_counts=True,
    )[1]
    if not len(per_cell):
        raise NothingToShow("no pipeline: the scope has no forward work")
    count = max(int(median_of(per_cell)) // chunks, 1)
    return Pipeline(run, blocks, stage, run.parallel.sizes["pp"], count, chunks)


def answer(run: Run, view: View) -> ViewResult:
    """A row per stage, rank, iteration or microbatch."""
    found = pipeline_of(run, view)
    by = view.by or STAGE
    blocks = found.blocks
    along = {name: each[blocks.gpu] for name, each in run.table.coordinates.items()}
    of_blocks: dict[str, Codes] = {
        STAGE: found.stage,
        "rank": blocks.gpu,
        "iteration": blocks.iteration,
        "microbatch": blocks.microbatch,
        "chunk": blocks.chunk,
        **along,
    }
    codes = of_blocks[by]
    labels = distinct(codes)
    owner = np.searchsorted(labels, codes)
    count = len(labels)
    took = blocks.took_ns.astype(np.float64)
    own: Own = []
    for work, metric in enumerate((FORWARD_TIME, BACKWARD_TIME, WEIGHTS_TIME)):
        there = blocks.work == work
        if work == WEIGHTS and not there.any():
            continue
        own.append((metric, numbered(means_of(took[there], owner[there], count))))
    if by not in _PARTS:
        own += _shares(found, owner, count)
    if by == STAGE and count > 1:
        own.append((TIMES, numbered(found.against_others()[labels])))
    names = [str(label) for label in labels.tolist()]
    level = {STAGE: "pp", "rank": "gpu"}.get(by, by)

    def opens(row: int) -> View:
        if by in _PARTS:
            return view
        deeper = child_of(view, level, names[row])
        is_rank_next = by == STAGE or by in along
        return replace(deeper, name="pipeline", by="rank" if is_rank_next else "microbatch")

    return table_view(
        view,
        LabelledRows("gpu" if by == "rank" else by, names),
        own,
        _shares(found, np.zeros(len(blocks), np.intp), 1),
        opens=opens,
        headline=headline(found),
        notes=_notes(found),
        charts=_charts(found),
    )


def _shares(found: Pipeline, owner: Index, count: int) -> Own:
    """Figures of GPUs and iterations, as means of the rows they belong to."""
    window, busy, late, cell_owner = _cells(found, owner)
    idle = 100.0 * (1 - busy / window)
    bubble = 100.0 * np.maximum(window - busy - late, 0) / window
    return [
        (COUNT, Values(np.full(count, found.microbatches))),
        (BUSY, numbered(means_of(busy, cell_owner, count))),
        (WINDOW, numbered(means_of(window, cell_owner, count))),
        (IDLE, numbered(means_of(idle, cell_owner, count))),
        (BUBBLE, numbered(means_of(bubble, cell_owner, count))),
        (THEORY, numbered(np.full(count, 100.0 * found.theory))),
    ]


def _cells(found: Pipeline, owner: Index) -> tuple[Float64, Float64, Float64, Index]:
    """Window, busy time and lateness of the host of each GPU and iteration, and its row."""
    cells, cell = found.cells()
    blocks = found.blocks
    size = len(cells)
    busy, late = (
        sums_of(each.astype(np.float64), cell, size) for each in (blocks.took_ns, blocks.late_ns)
    )
    pairs = [(gpu, iteration) for gpu, iteration in cells.tolist()]
    window = np.array([blocks.windows_ns[pair] for pair in pairs], np.float64)
    row = np.zeros(size, np.intp)
    row[cell] = owner
    return window, busy, late, row


def bubble_of(found: Pipeline) -> float:
    """The bubble's share of the window, mean over GPUs and iterations, from 0 to 1."""
    window, busy, late, _ = _cells(found, np.zeros(len(found.blocks), np.intp))
    return float((np.maximum(window - busy - late, 0) / window).mean())


def headline(found: Pipeline) -> tuple[str, ...]:
    """The bubble against theory, and the stage that is too long."""
    chunks = f" of {found.chunks} chunks" if found.chunks > 1 else ""
    lines = [
        f"{found.stages} stages{chunks}, {found.microbatches} microbatches: bubble "
        f"{percent(bubble_of(found))}, {percent(found.theory)} with equal stages "
        f"({found.schedule})"
    ]
    long = longest(found)
    if long is not None:
        stage, times, saving = long
        lines.append(
            f"stage {stage} is too long: a microbatch takes {times:.2f} times the median of the "
            f"other stages; with theirs a step would be up to {time(saving)} shorter"
        )
    return tuple(lines)


def longest(found: Pipeline) -> tuple[int, float, float] | None:
    """The stage that is too long, its time over the others', and ns that its excess costs a step.

    In a steady pipeline each microbatch takes as long as the longest stage, so that what it has
    beyond the next longest one is paid once per microbatch.
    """
    times = found.against_others()
    if not np.isfinite(times).any():
        return None
    stage = int(np.nanargmax(times))
    if times[stage] < LONG:
        return None
    of_stages = found.of_stages()
    excess = of_stages[stage] - np.delete(of_stages, stage).max()
    blocks = found.microbatches * found.chunks
    return stage, float(times[stage]), float(max(excess, 0.0) * blocks)


def _notes(found: Pipeline) -> tuple[str, ...]:
    notes = [f"microbatches are separated by {found.blocks.origin}"]
    present = len(distinct(found.stage))
    if present < found.stages:
        notes.append(f"{present} of {found.stages} stages have traces in the scope")
    return tuple(notes)


def _charts(found: Pipeline) -> tuple[Chart, ...]:
    """The stages of one iteration along time: forward above zero, backward below."""
    blocks = found.blocks
    iterations = distinct(blocks.iteration)
    # A step in the middle: the first ones are often a warm-up.
    iteration = int(iterations[len(iterations) // 2])
    stages = distinct(found.stage).tolist()
    gpus = [int(blocks.gpu[found.stage == stage].min()) for stage in stages]
    own = (blocks.iteration == iteration) & np.isin(blocks.gpu, gpus)
    begin, end = int(blocks.start_ns[own].min()), int(blocks.end_ns[own].max())
    edges = np.linspace(0, end - begin, _BINS + 1)
    numbers = np.zeros((len(gpus), _BINS))
    for row, gpu in enumerate(gpus):
        for place in np.flatnonzero(own & (blocks.gpu == gpu)).tolist():
            low, high = blocks.start_ns[place] - begin, blocks.end_ns[place] - begin
            within = np.clip(np.minimum(edges[1:], high) - np.maximum(edges[:-1], low), 0, None)
            sign = 1.0 if blocks.work[place] == FORWARD else -1.0
            numbers[row] += 100.0 * sign * within / np.diff(edges)
    return (
        HeatMap(
            f"iteration {iteration} along time: forward (+), backward (-), bubble (0)",
            "%",
            tuple(f"stage {found.stage[blocks.gpu == gpu][0]}" for gpu in gpus),
            tuple(f"{at / 1e6:.4g}" for at in edges[:-1]),
            "ms",
            numbers,
            has_own_rows=True,
            signed=True,
        ),
    )
