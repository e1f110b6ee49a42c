"""Instances of operations, how much communication overlaps with them, and how that slows them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property, partial
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.columns.instances import OperationInstances, instances, visits
from chopper_core.model.groups import Groups, contiguous
from chopper_core.model.run import Run
from chopper_core.model.table import ACTIVITY, KernelTable, Kind, values_of
from chopper_core.model.view import View
from chopper_core.util.arrays import Codes, Float64, Index, Int64, Mask, Rows
from chopper_core.util.grouping import (
    combined,
    counts_of,
    isin,
    means_of,
    quantiles_of,
    ranked,
    ratios,
    run_maxima,
    run_minima,
    run_starts,
    run_sums,
    stable_order,
    sums_of,
)

FSDP: Final = ("FSDP::", "FullyShardedDataParallel.")
"""How the operations begin in which FSDP copies what it gathers and scatters."""
_MIN_SPREAD: Final = 0.1
"""Smaller differences of overlap are ignored."""
_LIKE: Final = ("gpu", "phase", "operation")
"""The labels in which like instances agree; they run the same kernels, too."""
_MIN_INSTANCES: Final = 2
"""Instances that a median needs."""
_AT_A_TIME: Final = 1 << 16
"""Instances, or those of one GPU, whose durations are compared in one go."""


class Overlaps(Rows, frozen=True, eq=False, dict=True):
    """The instances of a scope: an operation of a layer, phase and step on one GPU each.

    Each visit to a layer is an instance of its own. FSDP's own operations count as communication.
    """

    table: KernelTable
    row: Index
    """A row of each, which has its labels."""
    start_ns: Int64
    elapsed_ns: Int64
    """The durations of its kernels."""
    comm_ns: Int64
    """The time of that in which collectives run on the GPU."""
    masked_ns: Int64
    """The time in which collectives or FSDP's copies run."""
    work: Int64
    """Equal for instances that run the same kernels."""

    @property
    def share(self) -> Float64:
        """Overlap with collectives, from 0 to 1."""
        return self.comm_ns / np.maximum(self.elapsed_ns, 1)

    @cached_property
    def _codes(self) -> dict[str, Codes]:
        return {}

    def codes(self, level: str) -> Codes:
        if level not in self._codes:
            self._codes[level] = values_of(self.table, level, self.row)
        return self._codes[level]


def overlaps_in(run: Run, view: View) -> Overlaps:
    """The instances of a view's scope; those of the whole run, or of its GPU, are found once."""
    node, scope = run.tree_of(view).node(view.path), dict(view.scope)
    is_known = "gpu" not in scope or run.memo.has(("overlaps", ()))
    whose = () if is_known else (scope["gpu"],)
    if {"kernel", ACTIVITY} & scope.keys():
        return _found(run, node, whose)
    own = run.tree().node(whose)
    everything = run.memo(("overlaps", whose), lambda: _found(run, own, whose))
    if int(node.sizes()[0]) == int(own.sizes()[0]):
        return replace(everything)  # What it reads of labels isn't kept with it.
    table, row, kept = run.table, everything.row, np.ones(len(everything), np.bool_)
    for level, label in scope.items():
        if level != "gpu" or not whose:
            kept &= values_of(table, level, row) == table.code_of(level, label)
    if left_out := run.uncounted(view):
        kept &= ~isin(table.iteration[row], left_out)
    return everything.take(contiguous(np.flatnonzero(kept)))


def _found(run: Run, node: Groups, whose: tuple[str, ...]) -> Overlaps:
    """The instances of a node of the run, or of its GPU."""
    own = run.tree().node(whose)
    whole = cache(lambda: instances(own))
    visit, copying = _visits_and_copying(run, whose, whole)
    is_whole = visit is None and copying is None and node.sizes()[0] == own.sizes()[0]
    found = whole() if is_whole else instances(node, visit, copying)
    return _as_overlaps(run.table, found, copying)[0]


def overlaps_of(run: Run, nodes: Groups) -> tuple[Overlaps, Index]:
    """The instances that the activities of each group make, and the group of each instance."""
    everything = run.tree().node(())
    visit, copying = _visits_and_copying(run, (), lambda: instances(everything))
    found = instances(nodes, visit, copying)
    overlaps, kept = _as_overlaps(run.table, found, copying)
    return overlaps, found.node[kept].astype(np.intp)


def _visits_and_copying(
    run: Run, whose: tuple[str, ...], whole: Callable[[], OperationInstances]
) -> tuple[Int64 | None, Mask | None]:
    """The visit of each activity, and which are FSDP's copies; None where there are none."""
    table = run.table
    copies = _copies(table)
    visit = run.memo(("visits", whose), lambda: visits(whole(), table, copies))
    is_copying = copies[table.operation] & (table.kind != Kind.COMM) if copies.any() else None
    return visit, is_copying


def _copies(table: KernelTable) -> Mask:
    """Which operations are FSDP's own copies; the last, of those without a name, is none."""
    # The code of a missing operation is -1: no name.
    return np.array([name.startswith(FSDP) for name in (*table.operations, "")], np.bool_)


def _as_overlaps(
    table: KernelTable, found: OperationInstances, copying: Mask | None
) -> tuple[Overlaps, Index | slice]:
    """Instances without those of FSDP's copies, and the places of those that are left."""
    every = Overlaps(
        table, found.row, found.start_ns, found.busy_ns, found.overlapped_ns, found.masked_ns,
        found.work,
    )  # fmt: skip
    if copying is None:
        return every, slice(None)
    kept = np.flatnonzero(~_copies(table)[table.operation[found.row]])
    return every.take(kept), kept


_OfLike = tuple[Index, Float64]


class Effect(Struct, frozen=True, eq=False):
    """Effect of overlap per row; NaN where it is unknown."""

    pearson: Float64
    cosine: Float64
    slowdown: Float64
    cost_ns: Float64


def effect(
    found: Overlaps, owner: Codes, count: int, once: Callable[..., _OfLike] | None = None
) -> Effect:
    """How durations go with overlap in the rows to which `owner` gives the instances.

    Only like instances are compared: those of the same operation, phase and GPU that run the
    same kernels. Where the instances are all of their GPUs, and like ones of one row, what a GPU
    has is made `once`.
    """
    gpu = found.codes("gpu")
    cuts = [0, len(found)]
    if (gpu[1:] >= gpu[:-1]).all():
        # A few GPUs at a time stay in the processor's cache.
        first = run_starts(gpu)
        cuts = [*first[run_starts(first // _AT_A_TIME)].tolist(), len(found)]
    sums = np.zeros((9, count))
    for begin, end in pairwise(cuts):
        row, make = owner[begin:end], partial(_of_like, found, owner, slice(begin, end))
        gpus = int(gpu[begin]), int(gpu[end - 1]), end - begin
        one, own = make() if once is None else once(gpus, make)
        sums += [sums_of(each, row[one], count) for each in own]
    correlated, similar, (slow, fast, more) = sums.reshape(3, 3, count)
    number = np.maximum(counts_of(owner, count), 1)

    def cosine(products: Float64) -> Float64:
        xy, xx, yy = products
        size = np.sqrt(xx * yy)
        # A rounding error between equal numbers is not a spread.
        return ratios(xy, np.where(size > 1e-9 * number, size, 0.0))

    return Effect(
        cosine(correlated), cosine(similar), ratios(slow, fast), np.where(fast > 0, more, np.nan)
    )


def _of_like(whole: Overlaps, owner: Codes, part: slice) -> _OfLike:
    """One of each group of like instances of a row, and the group's sums that the effect of overlap
    follows from, in a part of the instances.

    The products of share and duration, each squared, beyond their means and as they are; and the
    time of like instances with much overlap, with little, and how much longer the first take.
    """
    found = whole.take(part)
    labels = (found.codes(level) for level in _LIKE)
    like = combined([owner[part], *labels, ranked(found.work)[1]])[1]
    order = stable_order(like)
    like, share, elapsed = like[order], found.share[order], found.elapsed_ns[order]
    took = elapsed.astype(np.float64)
    relative = took / np.maximum(means_of(took, like), 1e-9)[like]
    first = run_starts(like)

    def products(x: Float64, y: Float64) -> list[Float64]:
        return [run_sums(each, first) for each in (x * y, x * x, y * y)]

    least, most = run_minima(share, first)[like], run_maxima(share, first)[like]
    quarter, is_wide = (most - least) / 4, most - least >= _MIN_SPREAD
    sides = is_wide & (share <= least + quarter), is_wide & (share >= most - quarter)
    lows, highs = (counts_of(like[side], len(first)) for side in sides)
    low_ns, high_ns = (
        quantiles_of(elapsed[side], like[side], len(first), (0.5,))[:, 0] for side in sides
    )
    both = (lows >= _MIN_INSTANCES) & (highs >= _MIN_INSTANCES)
    weight = counts_of(like)
    longer = (weight * high_ns, weight * low_ns, highs * (high_ns - low_ns))
    sums = (
        *products(share - means_of(share, like)[like], relative - 1.0),
        *products(share, relative),
        *(np.where(both, each, 0.0) for each in longer),
    )
    return order[first], np.array(sums)
