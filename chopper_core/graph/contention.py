"""Contention: how communication slows the compute that runs during it, in a run and in a replay.

A collective slows compute while it waits for its last member, and more while it transfers. If
waits change, so does the compute next to them: a GPU that others wait for slows them all.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.graph.step_graph import StepGraph
from chopper_core.model.groups import comparable_kernels
from chopper_core.model.run import Run
from chopper_core.model.signals import SpansOfGpus
from chopper_core.model.table import Kind
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.grouping import (
    combined,
    counts_of,
    means_of,
    quantile_of,
    ranked,
    sums_of,
)

MIN_DURATION_NS: Final = 2_000
"""The time of a shorter kernel is its launch's."""
_MIN_VARIATION: Final = 0.002
"""The least variance of a share that shows how communication slows a kernel."""
MAX_RATE: Final = 0.75
"""Four times as slow: more is not the communication."""
_ERRORS: Final = 2.0
"""The width of a range in standard errors."""
WAITS, TRANSFERS = range(2)


def slowed_by(lost: Float64) -> Float64:
    """How many times as long a kernel takes that gets nothing done in a part of its time."""
    return np.asarray(1 / (1 - np.minimum(lost, MAX_RATE)))


class Contention(Struct, frozen=True, eq=False):
    """How much each operation is slowed by collectives that wait and by those that transfer.

    During either, the rate is the part of a kernel's time in which it gets nothing done.
    """

    rows: Index
    """The rows of compute."""
    place: Index
    """Of each among the activities of the graph."""
    owner: Index
    """The operation of a phase that each belongs to."""
    rates: Float64
    """Most, expected and least x waits and transfers x operations."""
    known: Mask
    """Waits and transfers x operations: whether the run shows the rate; else it is others'."""

    def slowed(self, rates: Float64, shares: Float64) -> Float64:
        """How many times as long rows take, with such rates and shares of their time."""
        return slowed_by((rates * shares).sum(axis=0))

    def shares(self, graph: StepGraph, begin: Int64, end: Int64, kind: Int64) -> Float64:
        """The shares of each row's time during waits and during transfers, in a replay.

        `kind` is that of all rows of the graph's activities.
        """
        acts = graph.activities
        gpu, starts, ends = graph.gpu[acts], begin[acts], end[acts]
        comm = np.flatnonzero(kind == Kind.COMM)
        own = gpu[self.place], starts[self.place], ends[self.place]
        during, every = (
            SpansOfGpus.running(gpu[comm], since[comm], (ends - since)[comm]).within(*own)
            for since in (starts, begin[graph.arrivals])
        )
        begins, ends, waits = *own[1:], every - during
        found: Float64 = np.stack([waits, during]) / np.maximum(ends - begins, 1)
        return found


def contention_of(run: Run, graph: StepGraph) -> Contention | None:
    """How communication slows the operations of a run; None where the run doesn't show it.

    By least squares of speeds, 1 / duration, over both shares, among kernels of the same name and
    shape on a GPU. An operation whose shares don't vary takes the others' median; it may
    be slowed as little as not at all, or as much as nine in ten others.
    """
    table = run.table
    every = graph.row[graph.activities].astype(np.intp)
    kind = table.kind[every].astype(np.int64)
    own = (kind == Kind.COMPUTE) & (table.duration_ns[every] >= MIN_DURATION_NS)
    place = np.flatnonzero(own)
    rows = every[place]
    if not len(rows) or not table.overlap_ns[rows].any():
        return None
    owner = combined([table.phase[rows], table.operation[rows]])[1]
    count = int(owner.max()) + 1
    found = Contention(rows, place, owner, np.zeros((3, 2, count)), np.zeros((2, count), np.bool_))
    shares = found.shares(graph, graph.begin_ns, graph.end_ns, kind)
    like = combined([owner, table.gpu[rows], ranked(comparable_kernels(table, rows))[1]])[1]
    x = np.stack([each - means_of(each, like)[like] for each in shares])
    speed = 1 / table.duration_ns[rows]
    y = 1 - speed / means_of(speed, like)[like]
    number = counts_of(owner, count)
    products = np.array([[sums_of(one * other, owner, count) for other in x] for one in x])
    with_y = np.array([sums_of(one * y, owner, count) for one in x])
    known = _MIN_VARIATION * number < np.diagonal(products).T
    if not known.any():
        return None
    rate, error = _fitted(products, with_y, known, sums_of(y * y, owner, count), number)
    # Relative to the speed without either, instead of the mean one.
    usual = 1 + (rate * [means_of(each, owner, count) for each in shares]).sum(axis=0)
    return replace(found, rates=_ranges(rate / usual, error / usual, known), known=known)


def _fitted(
    products: Float64, with_y: Float64, known: Mask, squares: Float64, number: Int64
) -> tuple[Float64, Float64]:
    """The rates of each operation and their standard errors."""
    rate, error = np.zeros(known.shape), np.zeros(known.shape)
    for place in range(known.shape[1]):
        used = np.flatnonzero(known[:, place])
        if not len(used):
            continue
        normal = products[:, :, place][np.ix_(used, used)]
        inverse = np.linalg.pinv(normal, rcond=1e-3)
        own = inverse @ with_y[used, place]
        rest = max(float(squares[place] - own @ with_y[used, place]), 0.0)
        rate[used, place] = own
        error[used, place] = np.sqrt(
            rest / max(int(number[place]) - len(used), 1) * np.diagonal(inverse)
        )
    return np.maximum(rate, 0.0), error


def _ranges(rate: Float64, error: Float64, known: Mask) -> Float64:
    """The most, the expected and the least: work without contention is least with the most.

    Unknown rates are those of the others. Waits may cost nothing: few kernels show it.
    """
    found = np.stack([rate + _ERRORS * error, rate, rate - _ERRORS * error])
    for of in (WAITS, TRANSFERS):
        own = rate[of][known[of]]
        usual, most = quantile_of(own, (0.5, 0.9)).tolist() if len(own) else (0.0, 0.0)
        for side, value in enumerate((most, usual, 0.0)):
            found[side, of, ~known[of]] = value
    found[2, WAITS] = 0.0
    return np.clip(found, 0.0, MAX_RATE)
