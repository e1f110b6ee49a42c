"""Compute of each GPU beside its peers: those that run the same kernels at the same place."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.kernel_classes import ATTENTION_CLASS, kernel_class
from chopper_core.model.table import LABELLED
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.grouping import others_median
from chopper_core.views.findings.rule import FindingsContext, combined, summed

MATRIX_CLASSES: Final = frozenset({"gemm", "conv", ATTENTION_CLASS})
"""Classes of kernels that the matrix units bound; memory bounds most of the others."""
_MAX_OVERLAP: Final = 0.1
"""Of the compute time of an operation in a layer, beside communication."""
_MAX_CELLS: Final = 1 << 25


class Peers(Struct, frozen=True):
    """Sums of the compute of GPUs (columns) by phase and operation (rows), with their peers'.

    Of each operation in a layer and iteration a GPU's peers are the GPUs that run as many
    kernels of it: another stage of a pipeline, or a micro-step more, is compared with no one.
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


def peers_of(context: FindingsContext, *, beside_comm: bool = False) -> Peers | None:
    """The compute of the analysed activities by GPU; None with one GPU, or too many cells."""
    gpus, iterations = len(context.gpus), len(context.iterations)
    levels = LABELLED
    names, place = context.together(*levels)
    if gpus < 2 or len(names) * gpus > _MAX_CELLS:
        return None
    chosen = np.flatnonzero(context.computes)
    cell = place[chosen] * gpus + context.gpu_place[chosen]
    size = len(names) * gpus

    def dense(values: Int64) -> Float64:
        return summed(cell, values[chosen], size).reshape(len(names), gpus)

    took = dense(context.cells.sum("duration_ns"))
    kernels = dense(context.cells.sizes())
    beside = dense(context.cells.sum("overlap_ns"))
    there = kernels > 0
    count = np.where(there, kernels, np.nan)
    alike = there & (count == others_median(count.T).T)
    alone = alike & (beside_comm | (beside <= _MAX_OVERLAP * took))
    usual = others_median(np.where(alone, took, np.nan).T).T
    usual = np.where(alone & np.isfinite(usual), usual, 0.0)
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
    table, rows = context.table, context.node.rows
    used = np.flatnonzero(np.bincount(table.kernel[rows], minlength=len(table.names)))
    is_matrix = np.zeros(len(table.names), np.bool_)
    is_matrix[used] = [kernel_class(table.names[code]) in MATRIX_CLASSES for code in used.tolist()]
    operation = table.operation[rows].astype(np.int64) + 1
    duration = table.duration_ns[rows]
    count = len(table.operations) + 1
    share = summed(operation, duration * is_matrix[table.kernel[rows]], count)
    whole = np.maximum(summed(operation, duration, count), 1.0)
    found: Mask = (share / whole)[pairs[:, 1] + 1] >= 0.5
    return found
