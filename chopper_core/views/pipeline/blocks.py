"""Microbatches of a pipeline: the blocks of forward and backward work of each GPU in each step."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.column_names import CHUNK, MICROBATCH, STEP_WINDOW
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, KernelTable, Kind, Phase
from chopper_core.model.view import View
from chopper_core.util.arrays import Index, Int64, Mask
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import distinct, run_mask, run_maxima
from chopper_core.views.shared.process_groups import group_kinds, split_groups

_PHASES: Final = (Phase.FORWARD, Phase.BACKWARD)
_PAIRWISE: Final = re.compile(r"send|recv|p2p", re.IGNORECASE)
FORWARD, BACKWARD, WEIGHTS = range(3)
"""The work of a block; zero-bubble schedules compute the gradients of weights apart."""
_WEIGHTS: Final = re.compile(r"weight[ _-]?grad|\bwgrad", re.IGNORECASE)
_CHUNKED: Final = re.compile(
    r"(?:\bchunk|virtual[ _-]?(?:pipeline[ _-]?)?(?:stage|rank)|\bvpp?)[ _#:=-]*(\d+)",
    re.IGNORECASE,
)
_NUMBERED: Final = re.compile(r"(?:micro[ _-]?batch|\bmb)[ _#:=-]*(\d+)", re.IGNORECASE)
_NO_STAGES: Final = (
    "no pipeline: the traces have no sends and receives between stages, and no annotation names "
    "microbatches"
)
_NO_WORK: Final = "no pipeline: the run has no forward or backward work"


class Blocks(Struct, frozen=True, eq=False):
    """A row per microbatch, GPU, iteration, chunk and work, by GPU, iteration and start."""

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
    windows_ns: dict[tuple[int, int], int]
    """(GPU, iteration) → its step, from the first to the last microbatch of any GPU, or as the
    file says."""
    origin: str
    """The evidence that tells microbatches apart."""

    def __len__(self) -> int:
        return len(self.gpu)

    @property
    def took_ns(self) -> Int64:
        return self.end_ns - self.start_ns


def between_stages(run: Run) -> Mask:
    """Which activities send or receive between stages: point to point, or in a pp group."""
    table = split_groups(run)
    is_pairwise, of_pp = _stage_marks(run)
    found: Mask = np.isin(table.group, of_pp)
    if is_pairwise.any():
        found |= is_pairwise[table.operation] & (table.operation != NO_LABEL)
    found &= table.kind == Kind.COMM
    return found


def _stage_marks(run: Run) -> tuple[Mask, list[int]]:
    """Which operations are point to point, and the codes of pp groups."""
    table = split_groups(run)
    is_pairwise = np.array([bool(_PAIRWISE.search(name)) for name in table.operations], np.bool_)
    return is_pairwise, [code for code, kind in group_kinds(run).items() if kind == "pp"]


def blocks_of(run: Run, view: View) -> Blocks:
    """The microbatches of the GPUs and iterations of a view's scope.

    Their windows are those of the whole run. Raises NothingToShow where the run has no pipeline,
    or nothing separates its microbatches.
    """
    every = run.memo(("microbatches",), lambda: _blocks(run))
    cells = run.tree_of(view).split(view.path, ("gpu", "iteration"))
    codes = [cells.codes(level).tolist() for level in ("gpu", "iteration")]
    there = set(zip(*codes, strict=True))
    pairs = zip(every.gpu.tolist(), every.iteration.tolist(), strict=True)
    own = np.array([pair in there for pair in pairs], np.bool_)
    if own.all():
        return every
    if not own.any():
        raise NothingToShow("no pipeline: the scope has no microbatch")
    columns = {
        name: values[own]
        for name in Blocks.__struct_fields__
        if isinstance(values := getattr(every, name), np.ndarray)
    }
    return replace(every, **columns)


def _blocks(run: Run) -> Blocks:
    table = run.table
    given = table.measured.get(MICROBATCH)
    numbers = _numbers_of_operations(run, _NUMBERED)
    # Most runs have no pipeline, and sorting all rows to find none takes seconds.
    if len(table) and given is None and not (numbers != NO_LABEL).any():
        is_pairwise, of_pp = _stage_marks(run)
        if not (is_pairwise.any() or of_pp):
            trains = run.memo(("trains",), lambda: len(_work(table)) > 0)
            raise NothingToShow(_NO_STAGES if trains else _NO_WORK)
    rows = _work(table)
    order = np.lexsort((table.start_ns[rows], table.iteration[rows], table.gpu[rows]))
    rows = rows[order]
    if not len(rows):
        raise NothingToShow(_NO_WORK)
    if given is not None:
        known = np.isfinite(given[rows]) & (table.kind[rows] == Kind.COMPUTE)
        chunk = table.measured.get(CHUNK)
        parts = np.zeros(len(rows)) if chunk is None else chunk[rows]
        number = given[rows[known]].astype(np.int64)
        return _made(run, rows[known], number, "the schedule", parts[known].astype(np.int64))
    named = numbers[table.operation[rows]] if len(numbers) else np.full(len(rows), NO_LABEL)
    p2p = between_stages(run)[rows]
    if (named[~p2p & (table.kind[rows] == Kind.COMPUTE)] != NO_LABEL).all():
        chunk_of = np.maximum(_numbers_of_operations(run, _CHUNKED), 0)
        chunks = chunk_of[table.operation[rows[~p2p]]]
        return _made(run, rows[~p2p], named[~p2p], "annotations", chunks)
    if not p2p.any():
        raise NothingToShow(_NO_STAGES)
    before = np.concatenate([[False], p2p[:-1]])
    begins = run_mask(table.gpu[rows], table.iteration[rows], table.phase[rows]) | before
    # Work after a send or receive begins a microbatch.
    number = np.cumsum(begins & ~p2p)[~p2p]
    chunks = np.zeros(len(number), np.int64)
    return _counted(_made(run, rows[~p2p], number, "sends and receives", chunks))


def _work(table: KernelTable) -> Index:
    """The rows of forward and backward work in iterations."""
    wanted = np.isin(table.phase, _PHASES) & (table.kind != Kind.COPY)
    return np.flatnonzero(wanted & (table.iteration != NO_LABEL))


def _numbers_of_operations(run: Run, pattern: re.Pattern[str]) -> Int64:
    """The microbatch or chunk in each operation's name."""
    matches = [pattern.search(name) for name in run.table.operations]
    return np.array([int(m[1]) if m else NO_LABEL for m in matches], np.int64)


def _made(run: Run, rows: Index, number: Int64, origin: str, chunk: Int64) -> Blocks:
    """Blocks of rows with one number after each other, in the order of GPU, iteration, start."""
    if not len(rows):
        raise NothingToShow("no pipeline: no microbatch has any work")
    table = run.table
    of_weights = np.array([bool(_WEIGHTS.search(name)) for name in (*table.operations, "")])
    is_backward = table.phase[rows] == Phase.BACKWARD
    work = np.where(
        of_weights[table.operation[rows]], WEIGHTS, np.where(is_backward, BACKWARD, FORWARD)
    )
    first = np.flatnonzero(run_mask(table.gpu[rows], table.iteration[rows], work, number, chunk))
    ends = table.start_ns[rows] + table.duration_ns[rows]
    own = rows[first]
    blocks = Blocks(
        gpu=table.gpu[own].astype(np.int64),
        iteration=table.iteration[own].astype(np.int64),
        work=work[first],
        microbatch=number[first],
        chunk=chunk[first],
        start_ns=table.start_ns[own],
        end_ns=run_maxima(ends, first),
        late_ns=table.idle_host_ns[own],
        windows_ns={},
        origin=origin,
    )
    blocks.windows_ns.update(_windows(run, blocks))
    return blocks


def _windows(run: Run, blocks: Blocks) -> dict[tuple[int, int], int]:
    table = run.table
    found: dict[tuple[int, int], int] = {}
    for iteration in distinct(blocks.iteration).tolist():
        own = blocks.iteration == iteration
        window = int(blocks.end_ns[own].max() - blocks.start_ns[own].min())
        found |= {(gpu, iteration): window for gpu in distinct(blocks.gpu[own]).tolist()}
    given = table.measured.get(STEP_WINDOW)
    for row in np.flatnonzero(np.isfinite(given)).tolist() if given is not None else ():
        key = int(table.gpu[row]), int(table.iteration[row])
        if key in found:
            found[key] = int(given[row]) if given is not None else found[key]
    return found


def _counted(blocks: Blocks) -> Blocks:
    """Blocks numbered within their GPU, iteration and direction; raises if these don't agree."""
    number = np.zeros(len(blocks), np.int64)
    counts = set()
    for gpu in distinct(blocks.gpu).tolist():
        for iteration in distinct(blocks.iteration[blocks.gpu == gpu]).tolist():
            for work in (FORWARD, BACKWARD):
                own = np.flatnonzero(
                    (blocks.gpu == gpu) & (blocks.iteration == iteration) & (blocks.work == work)
                )
                number[own] = np.arange(len(own))
                counts.add(len(own))
    if len(counts) != 1:
        raise NothingToShow(
            "sends and receives don't tell microbatches apart: GPUs have "
            f"{min(counts)} to {max(counts)} blocks of forward or backward work"
        )
    return replace(blocks, microbatch=number)
