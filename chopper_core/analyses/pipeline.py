"""Microbatches, stages, the bubble against theory, and a stage that is too long.

Microbatches are blocks of forward and backward work of a GPU in a step. The schedule separates
them, or names of annotations, or sends and receives between stages.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.graph.process_groups import group_kinds, split_groups
from chopper_core.model.column_names import CHUNK, MICROBATCH, STEP_WINDOW
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, KernelTable, Kind, Phase
from chopper_core.model.view import View
from chopper_core.util.arrays import Codes, Float64, Index, Int64, Rows
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import (
    combined,
    counts_of,
    distinct,
    last_equal,
    maxima_of,
    means_of,
    median_of,
    minima_of,
    nth_of,
    ranked,
    run_mask,
    run_maxima,
    sums_of,
)
from chopper_core.util.patterns import late

_STEP: Final = ("gpu", "iteration")
LONG: Final = 1.1
"""A stage is too long from this many times the median of the others."""
FORWARD, BACKWARD, WEIGHTS = range(3)
"""The work of a block; zero-bubble schedules compute the gradients of weights separately."""
_PHASES: Final = (Phase.FORWARD, Phase.BACKWARD)
_PAIRWISE: Final = late(r"send|recv|p2p", re.IGNORECASE)
_WEIGHTS: Final = late(r"weight[ _-]?grad|\bwgrad", re.IGNORECASE)
_CHUNKED: Final = late(
    r"(?:\bchunk|virtual[ _-]?(?:pipeline[ _-]?)?(?:stage|rank)|\bvpp?)[ _#:=-]*(\d+)",
    re.IGNORECASE,
)
_NUMBERED: Final = late(r"(?:micro[ _-]?batch|\bmb)[ _#:=-]*(\d+)", re.IGNORECASE)
_NO_STAGES: Final = (
    "no pipeline: the traces have no sends and receives between stages, and no annotation names "
    "microbatches"
)
_NO_WORK: Final = "no pipeline: the run has no forward or backward work"


class Blocks(Rows, frozen=True, eq=False):
    """A row per microbatch, GPU, step, chunk and work, by GPU, step and start."""

    gpu: Int64
    iteration: Int64
    work: Int64
    """`FORWARD`, `BACKWARD` or `WEIGHTS`."""
    microbatch: Int64
    chunk: Int64
    """The part of the stage's model; 0 unless the schedule is interleaved."""
    start_ns: Int64
    end_ns: Int64
    late_ns: Int64
    """The idle time before it in which the host hadn't launched it."""
    window_ns: Int64
    """Its step: from the first to the last microbatch of any GPU, or as the file says."""
    origin: str

    @property
    def took_ns(self) -> Int64:
        return self.end_ns - self.start_ns

    @property
    def keys(self) -> Int64:
        """The GPU and step of each block as one number."""
        return _cell(self.gpu, self.iteration)

    @property
    def cells(self) -> Index:
        """The (GPU, step) of each block, as numbers."""
        return combined((self.gpu, self.iteration))[1]


class Microbatches(Struct, frozen=True, eq=False):
    """The blocks of a run, and the activities that make them."""

    blocks: Blocks
    rows: Index
    """Rows of the kernel table."""
    owner: Index
    """The block of each."""

    def in_rows(self, nodes: Groups) -> Index:
        """The group that all activities of each block are in; -1 where there is none."""
        number, count = nodes.numbers_of(self.rows), len(self.blocks)
        least = minima_of(number, self.owner, count, len(nodes))
        most = maxima_of(number, self.owner, count, -1)
        return np.where(least == most, least, -1).astype(np.intp)


def microbatches_of(run: Run) -> Microbatches:
    """The blocks of a run, found once; raises NothingToShow where the run has no pipeline, or
    nothing separates its microbatches."""
    found: Microbatches = run.memo(("microbatches",), lambda: _blocks(run))
    return found


def blocks_of(run: Run, view: View) -> Blocks:
    """The microbatches of the GPUs and steps of a view's scope.

    Their windows are those of the whole run. Raises NothingToShow as `microbatches_of`.
    """
    return blocks_in(run, run.tree_of(view).node(view.path))


def blocks_in(run: Run, node: Groups) -> Blocks:
    """As `blocks_of`, of the GPUs and steps of a group of activities."""
    every, (cells, _) = microbatches_of(run).blocks, node.split(_STEP)
    own = np.isin(every.keys, _cell(*map(cells.codes, _STEP)))
    if not own.any():
        raise NothingToShow("no pipeline: the scope has no microbatch")
    return every.take(own)


def _cell(gpu: Codes, iteration: Codes) -> Int64:
    return (gpu.astype(np.int64) << 32) + iteration


def why_no_microbatches(run: Run) -> str:
    """Why nothing of a run names microbatches, by its names alone; empty: something may."""
    table = run.table
    is_told = (
        MICROBATCH in table.measured
        or (_numbers_in(table, _NUMBERED) != NO_LABEL).any()
        or any(map(_PAIRWISE.search, table.operations))
        or "pp" in group_kinds(run).values()
    )
    if is_told or not len(table):
        return ""
    trains = run.memo(("trains",), lambda: len(_work(table)) > 0)
    return _NO_STAGES if trains else _NO_WORK


def _blocks(run: Run) -> Microbatches:
    # Most runs have no pipeline, and sorting all rows to find none takes seconds.
    if why := why_no_microbatches(run):
        raise NothingToShow(why)
    table = run.table
    given = table.measured.get(MICROBATCH)
    numbers = _numbers_in(table, _NUMBERED)
    pairwise = np.array([bool(_PAIRWISE.search(name)) for name in table.operations], np.bool_)
    of_pp = [code for code, kind in group_kinds(run).items() if kind == "pp"]
    rows = _work(table)
    if not len(rows):
        raise NothingToShow(_NO_WORK)
    rows = rows[np.lexsort((table.start_ns[rows], table.iteration[rows], table.gpu[rows]))]
    if given is not None:
        rows = rows[np.isfinite(given[rows]) & (table.kind[rows] == Kind.COMPUTE)]
        chunk = table.measured.get(CHUNK, np.zeros(len(table)))[rows].astype(np.int64)
        return _made(run, rows, given[rows].astype(np.int64), "the schedule", chunk)
    # What names no operation (-1) has the last place.
    is_sent = np.append(pairwise, False)[table.operation[rows]]
    p2p = is_sent | np.isin(split_groups(run).group[rows], of_pp)
    p2p &= table.kind[rows] == Kind.COMM
    work = rows[~p2p]
    named = np.append(numbers, NO_LABEL)[table.operation[work]]
    if (named[table.kind[work] == Kind.COMPUTE] != NO_LABEL).all():
        chunks = np.maximum(np.append(_numbers_in(table, _CHUNKED), 0), 0)[table.operation[work]]
        return _made(run, work, named, "annotations", chunks)
    if not p2p.any():
        raise NothingToShow(_NO_STAGES)
    before = np.concatenate([[False], p2p[:-1]])
    begins = run_mask(table.gpu[rows], table.iteration[rows], table.phase[rows]) | before
    # Work after a send or receive begins a microbatch.
    number = np.cumsum(begins & ~p2p)[~p2p]
    return _counted(_made(run, work, number, "sends and receives", 0 * number))


def _work(table: KernelTable) -> Index:
    wanted = np.isin(table.phase, _PHASES) & (table.kind != Kind.COPY)
    return np.flatnonzero(wanted & (table.iteration != NO_LABEL))


def _numbers_in(table: KernelTable, pattern: re.Pattern[str]) -> Int64:
    matches = [pattern.search(name) for name in table.operations]
    return np.array([int(m[1]) if m else NO_LABEL for m in matches], np.int64)


def _made(run: Run, rows: Index, number: Int64, origin: str, chunk: Int64) -> Microbatches:
    """Blocks of rows with one number after each other, in the order of GPU, step, start."""
    if not len(rows):
        raise NothingToShow("no pipeline: no microbatch has any work")
    table = run.table
    of_weights = np.array([bool(_WEIGHTS.search(name)) for name in (*table.operations, "")])
    work = np.where(table.phase[rows] == Phase.BACKWARD, BACKWARD, FORWARD)
    work[of_weights[table.operation[rows]]] = WEIGHTS
    begins = run_mask(table.gpu[rows], table.iteration[rows], work, number, chunk)
    first, owner = np.flatnonzero(begins), np.cumsum(begins) - 1
    end = run_maxima(table.start_ns[rows] + table.duration_ns[rows], first)
    own = rows[first]
    gpu, iteration, start = table.gpu[own], table.iteration[own], table.start_ns[own]
    numbers, step = ranked(iteration)
    count = len(numbers)
    window = (maxima_of(end, step, count) - minima_of(start, step, count, int(end.max())))[step]
    if (given := table.measured.get(STEP_WINDOW)) is not None:
        stated = np.flatnonzero(np.isfinite(given))
        keys = _cell(table.gpu[stated], table.iteration[stated])
        at = last_equal(keys, _cell(gpu, iteration))
        window[at >= 0] = given[stated[at[at >= 0]]]
    blocks = Blocks(
        gpu=gpu.astype(np.int64),
        iteration=iteration.astype(np.int64),
        work=work[first],
        microbatch=number[first],
        chunk=chunk[first],
        start_ns=start,
        end_ns=end,
        late_ns=table.idle_host_ns[own],
        window_ns=window,
        origin=origin,
    )
    return Microbatches(blocks, rows, owner)


def _counted(found: Microbatches) -> Microbatches:
    """Blocks numbered within their GPU, step and work; raises if their numbers differ."""
    blocks = found.blocks
    cell = (WEIGHTS + 1) * blocks.cells + blocks.work
    counts = counts_of(cell, (WEIGHTS + 1) * (int(blocks.cells.max()) + 1))
    counts = counts.reshape(-1, WEIGHTS + 1)[:, :WEIGHTS]
    if np.ptp(counts):
        raise NothingToShow(
            "sends and receives don't separate microbatches: GPUs have "
            f"{counts.min()} to {counts.max()} blocks of forward or backward work"
        )
    return replace(found, blocks=replace(blocks, microbatch=nth_of(cell)))


class Pipeline(Struct, frozen=True, eq=False):
    """The microbatches of a scope with their stages."""

    blocks: Blocks
    stage: Int64
    stages: int
    microbatches: int
    """Of a step."""
    chunks: int
    """Of a stage's model: more than one if the schedule is interleaved."""

    @property
    def schedule(self) -> str:
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

    @property
    def of_stages(self) -> Float64:
        """Mean time of a microbatch, or chunk of it, on each stage, in ns."""
        times = np.zeros(self.stages)
        for work in distinct(self.blocks.work).tolist():
            own = self.blocks.work == work
            times += means_of(self.blocks.took_ns[own], self.stage[own], self.stages)
        return times

    @property
    def against_others(self) -> Float64:
        """Each stage's time over the median of the others'; NaN without another."""
        times = self.of_stages
        return times / [median_of(np.delete(times, place)) for place in range(len(times))]


def pipeline_of(run: Run, view: View) -> Pipeline:
    return pipeline_in(run, run.tree_of(view).node(view.path))


def pipeline_in(run: Run, node: Groups) -> Pipeline:
    """The microbatches of the GPUs and steps of a group of activities, with their stages."""
    blocks = blocks_in(run, node)
    coordinates = run.table.coordinates.get("pp")
    if coordinates is None:
        raise NothingToShow(
            "the stages are unknown: neither the traces' process groups nor --parallel pp=N gives "
            "them"
        )
    assert run.parallel is not None
    forward = counts_of(blocks.cells[blocks.work == FORWARD])
    if not len(forward):
        raise NothingToShow("no pipeline: the scope has no forward work")
    chunks = len(distinct(blocks.chunk))
    count = per_step(forward, chunks)
    stage = coordinates[blocks.gpu].astype(np.int64)
    return Pipeline(blocks, stage, run.parallel.sizes["pp"], count, chunks)


def per_step(forward: Int64, chunks: int) -> int:
    """The microbatches of a step, from the blocks of forward work of each GPU and step."""
    return max(int(median_of(forward[forward > 0])) // chunks, 1)


def stage_cells(found: Pipeline) -> tuple[Float64, Float64, Float64, Index]:
    """Window, busy time and bubble of each GPU and step, and which of them a block is in."""
    blocks, cell = found.blocks, found.blocks.cells
    busy, late = (
        sums_of(each.astype(np.float64), cell) for each in (blocks.took_ns, blocks.late_ns)
    )
    window = np.empty(len(busy))
    window[cell] = blocks.window_ns
    return window, busy, np.maximum(window - busy - late, 0), cell


def bubble_of(found: Pipeline) -> float:
    window, _, waits, _ = stage_cells(found)
    return float((waits / window).mean())


def longest_stage(found: Pipeline) -> tuple[int, float, float, float] | None:
    """The stage that is too long, its time over the others', and ns that its excess costs a step:
    beyond the mean stage, which the same work in stages of one length takes, and beyond the next
    longest, which is left where it loses what it has beyond.

    In a steady pipeline each microbatch takes as long as the longest stage, so that its excess is
    paid once per microbatch.
    """
    times, of_stages = found.against_others, found.of_stages
    stage = int(np.nan_to_num(times).argmax())
    if not times[stage] >= LONG:
        return None
    even, next_longest = of_stages.mean(), np.delete(of_stages, stage).max()
    beyond = np.maximum(of_stages[stage] - np.array([even, next_longest]), 0.0)
    beyond *= found.microbatches * found.chunks
    return stage, float(times[stage]), float(beyond[0]), float(beyond[1])
