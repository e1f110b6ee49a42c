"""Operations that take longer on one GPU than on its peers, and memory that is slow there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.kernel_classes import ATTENTION_CLASS, kernel_class
from chopper_core.model.table import LABELLED, Phase
from chopper_core.model.view import Baseline, View
from chopper_core.util.arrays import Float64, Index, Int64, Mask, Numbers
from chopper_core.util.grouping import median_of, others_median, ranked
from chopper_core.views.findings.rule import (
    ROBUST_Z,
    SMALLEST_SAVING,
    Cost,
    Finding,
    FindingsContext,
    Threshold,
    combined,
    confidence,
    rule,
    summed,
)
from chopper_core.views.findings.slow_operations import tree_by
from chopper_core.views.shared.marks import MAD_TO_SIGMA
from chopper_core.views.shared.phrases import listed, percent, time

MATRIX_CLASSES: Final = frozenset({"gemm", "conv", ATTENTION_CLASS})
"""Classes of kernels that the matrix units bound; memory bounds most of the others."""
_MAX_OVERLAP: Final = 0.1
"""Of the compute time of an operation in a layer, beside communication."""
_MAX_CELLS: Final = 1 << 25
SLOWER_HERE: Final = Threshold(
    "operation slower on one GPU",
    6.0,
    "%",
    "beyond all of that GPU's compute; work that happens to run beside a kernel can slow it by as "
    "much",
)
SLOWER_BESIDE: Final = Threshold(
    "operation slower on one GPU, where communication always runs beside it",
    20.0,
    "%",
    "as for contention: a collective that transfers costs less",
)
EVERYWHERE: Final = Threshold(
    "iterations in which it is slower",
    75.0,
    "%",
    "occasional slowness depends on what happened to run beside it",
)
MEMORY_BOUND: Final = Threshold(
    "slow memory: operations without matrix products that are slower",
    60.0,
    "% of their time, and less than half as much of the others",
    "one slow operation points to that operation, all memory-bound ones to the memory",
)
_MIN_OPERATION: Final = 0.002
"""Of the iteration; shorter operations vary too much to tell what is usual."""
_MIN_COMPARED: Final = 0.1
"""Of an operation's time, without communication beside it."""
_LOWER_MEMORY_CLOCK: Final = 0.98
_MAX_LISTED: Final = 3


class Peers(Struct, frozen=True):
    """Sums of the compute of GPUs (columns) by phase and operation (rows), with their peers'.

    Of each operation in a layer and iteration a GPU's peers are the GPUs that run as many
    kernels of it, of the same shapes: another stage of a pipeline, a micro-step more, or an expert
    with more tokens is compared with no one.
    Work beside communication is compared only on request: a collective that
    transfers slows kernels more than one that waits, and GPUs that lag wait less.
    """

    pairs: Int64
    """Phase and operation of each row."""
    usual_ns: Float64
    """The median of the others at the same places, summed over iterations."""
    excess_ns: Float64
    """Each GPU's own time beyond that."""
    took_ns: Float64
    """Its own time, also beside communication."""
    by_iteration: Float64
    """Own time over the usual, as rows x GPUs x iterations; NaN without peers."""

    @property
    def ratio(self) -> Float64:
        """By which factor each operation takes longer than usual, beyond all that the GPU runs."""
        return self._whole / np.maximum(self.general, 1.0)

    def often(self, limit: float) -> Float64:
        """The share of the iterations in which it takes longer by more than a share."""
        with np.errstate(invalid="ignore"):
            longer = self.by_iteration / np.maximum(self.general, 1.0)[:, None] > 1 + limit
        known: Float64 = np.isfinite(self.by_iteration).sum(axis=2)
        return np.asarray(longer.sum(axis=2) / np.maximum(known, 1), np.float64)

    @property
    def _whole(self) -> Float64:
        return 1 + self.excess_ns / np.maximum(self.usual_ns, 1.0)

    @property
    def general(self) -> Float64:
        """By which factor most of each GPU's compute takes longer: the weighted median."""
        ratio = self._whole
        found = np.ones(ratio.shape[1])
        for gpu in range(ratio.shape[1]):
            order = np.argsort(ratio[:, gpu], kind="stable")
            weight = np.cumsum(self.usual_ns[order, gpu])
            if weight[-1] > 0:
                found[gpu] = ratio[order[np.searchsorted(weight, weight[-1] / 2)], gpu]
        return found


def peers_of(context: FindingsContext) -> tuple[Peers, Peers] | None:
    """The compute of the analysed activities by GPU, without work beside communication and with it.

    None with one GPU, or too many cells.
    """
    gpus = len(context.gpus)
    names, place = context.together(*LABELLED)
    if gpus < 2 or len(names) * gpus > _MAX_CELLS:
        return None
    chosen = np.flatnonzero(context.computes)
    cell = place[chosen] * gpus + context.gpu_place[chosen]
    size = len(names) * gpus

    def dense(values: Numbers) -> Float64:
        return summed(cell, values[chosen], size).reshape(len(names), gpus)

    took = dense(context.cells.sum("duration_ns"))
    kernels = dense(context.cells.sizes())
    beside = dense(context.cells.sum("overlap_ns"))
    there = kernels > 0
    count = np.where(there, kernels, np.nan)
    alike = there & (count == others_median(count.T).T)
    work = dense(context.cell_work)
    alike &= work == others_median(work.T).T
    alone = alike & (beside <= _MAX_OVERLAP * took)
    return _compared(context, took, alike, alone), _compared(context, took, alike, alike)


def _compared(context: FindingsContext, took: Float64, alike: Mask, chosen: Mask) -> Peers:
    """The chosen times with those of each GPU's peers; `alike` has as many kernels as these."""
    names, _ = context.together(*LABELLED)
    gpus, iterations = len(context.gpus), len(context.iterations)
    usual = others_median(np.where(chosen, took, np.nan).T).T
    usual = np.where(chosen & np.isfinite(usual), usual, 0.0)
    own = np.where(usual > 0, took, 0.0)
    pairs, row = combined([names[:, 1].astype(np.int64), names[:, 3].astype(np.int64)])
    step = np.searchsorted(np.array(context.iterations), names[:, 0])

    def by_pair(values: Float64, number: Index, count: int) -> Float64:
        parts = [summed(number, values[:, gpu], count) for gpu in range(gpus)]
        return np.stack(parts, axis=1)

    each = row * iterations + step
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = by_pair(own, each, len(pairs) * iterations) / by_pair(
            usual, each, len(pairs) * iterations
        )
    return Peers(
        pairs,
        by_pair(usual, row, len(pairs)),
        by_pair(own - usual, row, len(pairs)),
        by_pair(np.where(alike, took, 0.0), row, len(pairs)),
        ratio.reshape(len(pairs), iterations, gpus).transpose(0, 2, 1),
    )


def matrix_operations(context: FindingsContext, pairs: Int64) -> Mask:
    """Whether most of the kernel time of each phase and operation is in matrix kernels."""
    names, nodes = context.table.names, context.split("operation", "kernel")
    is_matrix = np.array(
        [kernel_class(names[code]) in MATRIX_CLASSES for code in nodes.codes("kernel").tolist()]
    )
    operation = nodes.codes("operation").astype(np.int64) + 1
    duration = nodes.sum("duration_ns")
    count = len(context.table.operations) + 1
    share = summed(operation, duration * is_matrix, count)
    whole = np.maximum(summed(operation, duration, count), 1.0)
    found: Mask = (share / whole)[pairs[:, 1] + 1] >= 0.5
    return found


@rule(
    "gpu-operation",
    saving="kernel time there beyond the median of the GPU's peers, minus what all of its "
    "compute takes longer",
    holds=(0.6, 1.25),
    needs="two GPUs or more",
    thresholds=(SLOWER_HERE, SLOWER_BESIDE, EVERYWHERE, MEMORY_BOUND),
    explains=("straggler",),
)
def slow_on_a_gpu(context: FindingsContext) -> Iterator[Finding]:
    """Operations that take longer on one GPU than on its peers, one by one or all that memory
    bounds."""
    both = peers_of(context)
    if both is None:
        return
    peers, beside = both
    counts = peers.took_ns >= _MIN_OPERATION * context.step_ns * len(context.iterations)
    alone = counts & (peers.usual_ns >= _MIN_COMPARED * peers.took_ns)
    if not alone.any():
        return
    own = np.where(alone, peers.ratio, beside.ratio)
    spread = MAD_TO_SIGMA * median_of(np.abs(own[alone] - 1))
    limit = max(SLOWER_HERE.share, ROBUST_Z.value * spread)
    slow = alone & (own > 1 + limit) & (peers.often(limit / 2) >= EVERYWHERE.share)
    # Work only beside communication: less than it may cost counts where the same operation
    # is slow without it.
    operation = ranked(peers.pairs[:, 1])[1]
    same = np.zeros((int(operation.max()) + 1, len(context.gpus)), np.bool_)
    np.logical_or.at(same, operation, slow)
    least = np.where(same[operation], limit, max(SLOWER_BESIDE.share, limit))
    slow |= counts & ~alone & (own > 1 + least) & (beside.often(limit / 2) >= EVERYWHERE.share)
    excess = np.where(slow, peers.took_ns * (1 - 1 / np.maximum(own, 1.0)), 0.0)
    excess /= len(context.iterations)
    matrix = matrix_operations(context, peers.pairs)
    for place in np.flatnonzero(slow.any(axis=0)).tolist():
        saving = float(excess[:, place].sum())
        if context.share(saving) < SMALLEST_SAVING.share:
            continue
        chosen = np.flatnonzero(slow[:, place])
        gpu = context.gpus[place]
        if _is_memory(peers, slow[:, place], counts[:, place], matrix, place):
            text = _memory(context, own[chosen, place], excess[chosen, place], place)
        else:
            text = _operations(context, peers, chosen, own[:, place], excess[:, place], gpu)
        yield Finding(
            sentence=f"{text}; {time(saving)}{context.each}",
            evidence=_evidence(context, peers, chosen, gpu),
            confidence=confidence(measured=True, repeated=len(context.iterations) > 1),
            saving_ns=saving,
            total_ns=saving * len(context.iterations),
            gpu=gpu,
            cost=Cost.COMPUTE,
        )


def _is_memory(peers: Peers, slow: Mask, counts: Mask, matrix: Mask, place: int) -> bool:
    """Whether memory-bound work is slow on a GPU, and hardly anything else is."""
    took = peers.took_ns[:, place] * counts

    def share(where: Mask) -> float:
        return float(took[where & slow].sum()) / max(float(took[where].sum()), 1.0)

    # The optimizer alone would be most of it where parameters aren't sharded.
    optimizes = peers.pairs[:, 0] == Phase.OPTIMIZER
    of_memory = min(share(~matrix), share(~matrix & ~optimizes))
    return of_memory >= MEMORY_BOUND.share and share(matrix) < of_memory / 2


def _memory(context: FindingsContext, own: Float64, excess: Float64, place: int) -> str:
    longer = float(excess.sum() / (excess / (own - 1)).sum())
    return (
        f"GPU {context.gpus[place]} has slower memory{_memory_clock(context, place)}: operations "
        f"without matrix products take {percent(longer)} longer than on the other GPUs"
    )


def _memory_clock(context: FindingsContext, place: int) -> str:
    """The memory clock of a GPU, if it is lower than the others'."""
    mhz = context.by_gpu("mem_mhz")
    usual = float(others_median(mhz)[place])
    if not mhz[place] < _LOWER_MEMORY_CLOCK * usual:
        return ""
    return f" (memory clock {mhz[place]:,.0f} vs {usual:,.0f} MHz)"


def _operations(
    context: FindingsContext, peers: Peers, chosen: Index, own: Float64, excess: Float64, gpu: int
) -> str:
    order = chosen[np.argsort(-excess[chosen], kind="stable")]
    names = list(dict.fromkeys(int(code) for code in peers.pairs[order, 1]))
    if (peers.pairs[chosen, 0] == Phase.OPTIMIZER).all() and len(names) > 1:
        longer = float(excess[chosen].sum()) * len(context.iterations)
        took = float(peers.took_ns[chosen, context.gpus.index(gpu)].sum())
        return (
            f"GPU {gpu} takes longer in the optimizer than the other GPUs: its kernels there take "
            f"{percent(longer / max(took - longer, 1.0))} longer"
        )
    is_one = len(names) == 1
    what = context.text("operation", names[0]) if is_one else f"{len(names)} operations"
    sizes = listed(
        (
            f"{'' if is_one else context.text('operation', peers.pairs[row, 1]) + ' '}"
            f"{percent(float(own[row]) - 1)} longer in {context.phase(int(peers.pairs[row, 0]))}"
            for row in order.tolist()
        ),
        _MAX_LISTED,
    )
    verb = "takes" if is_one else "take"
    return f"{what} {verb} longer on GPU {gpu} than on the other GPUs: {sizes}"


def _evidence(context: FindingsContext, peers: Peers, chosen: Index, gpu: int) -> View:
    names = {int(code) for code in peers.pairs[chosen, 1]}
    if len(names) == 1:
        return tree_by(context, names.pop(), "gpu")
    # Beside the GPU that takes a usual time for them.
    took = peers.took_ns[chosen].sum(axis=0)
    apart = np.abs(took - median_of(took))
    apart[context.gpus.index(gpu)] = np.inf
    usual = int(apart.argmin())
    own, other = (context.at(gpu=str(each)) for each in (gpu, context.gpus[usual]))
    baseline = Baseline("", other.path)
    return replace(own, name="compare", by="operation", of="compute_busy_ns", baseline=baseline)
