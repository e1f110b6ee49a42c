"""Instances of operations, with how long communication runs next to each."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.metrics.instances import instances, visits
from chopper_core.model.run import Run
from chopper_core.model.table import ACTIVITY, KernelTable, Kind
from chopper_core.model.view import View
from chopper_core.util.arrays import AnyArray, Codes, Float64, Index, Int64, Mask, Numbers
from chopper_core.util.grouping import (
    combined,
    counts_of,
    quantiles_of,
    ranked,
    ratios,
    run_maxima,
    run_minima,
    run_sizes,
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


class Overlaps(Struct, frozen=True, eq=False, dict=True):
    """The instances of a scope: an operation of a layer, phase and iteration on one GPU each.

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

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def share(self) -> Float64:
        """Overlap with collectives, from 0 to 1."""
        return self.comm_ns / np.maximum(self.elapsed_ns, 1)

    @property
    def masked_share(self) -> Float64:
        return self.masked_ns / np.maximum(self.elapsed_ns, 1)

    def codes(self, level: str) -> Int64:
        return self.table.column(level)[self.row].astype(np.int64)

    def take(self, chosen: Numbers | Mask) -> Overlaps:
        columns = (getattr(self, name)[chosen] for name in self.__struct_fields__[1:])
        return Overlaps(self.table, *columns)


def overlaps_in(run: Run, view: View) -> Overlaps:
    """The instances of a view's scope; those of the whole run are found once."""
    node = run.tree_of(view).node(view.path)
    if {"kernel", ACTIVITY} & {level for level, _ in view.scope}:
        return _found(run, view)
    everything = run.memo(("overlaps",), lambda: _found(run, View(view.run, cut=True)))
    if not view.path and not run.left_out(view):
        return everything
    inside = np.zeros(len(run.table), np.bool_)
    inside[node.selection] = True
    return everything.take(inside[everything.row])


def _found(run: Run, view: View) -> Overlaps:
    table = run.table
    # The code of a missing operation is -1: no name.
    copies = np.array([name.startswith(FSDP) for name in (*table.operations, "")], np.bool_)
    node, whole = run.tree_of(view).node(view.path), []

    def visits_of_all() -> Int64 | None:
        whole.append(instances(run.tree().node(())))
        return visits(whole[0], table, copies)

    visit = run.memo(("visits",), visits_of_all)
    is_done = whole and visit is None and int(node.sizes()[0]) == len(table)
    copying = copies[table.operation] & (table.kind != Kind.COMM) if copies.any() else None
    found = instances(node, visit, copying) if copying is not None or not is_done else whole[0]
    columns = (found.row, found.start_ns, found.busy_ns, found.beside_ns, found.masked_ns)
    if copying is None:
        return Overlaps(table, *columns, found.work)
    kept = ~copies[table.operation[found.row]]
    return Overlaps(table, *(values[kept] for values in (*columns, found.work)))


class Effect(Struct, frozen=True, eq=False):
    """Effect of overlap per row; NaN where it is unknown.

    Only like instances are compared: those of the same operation, phase and GPU that run the
    same kernels.
    """

    pearson: Float64
    cosine: Float64
    slowdown: Float64
    cost_ns: Float64


class _Alike(Struct, frozen=True, eq=False):
    """Instances brought together with those that they are compared with, set after set."""

    first: Index
    """Where each set begins."""
    size: Int64
    whose: Int64
    """The row of each set."""
    share: Float64
    elapsed_ns: Int64

    @classmethod
    def of(cls, found: Overlaps, owner: Codes) -> _Alike:
        """The sets of like instances within the rows to which `owner` gives the instances."""
        labels = (found.codes(level) for level in _LIKE)
        like = combined([owner, *labels, ranked(found.work)[1]])[1]
        order = stable_order(like)
        first = run_starts(like[order])
        size, whose = run_sizes(first, len(order)), np.asarray(owner, np.int64)[order[first]]
        return cls(first, size, whose, found.share[order], found.elapsed_ns[order])

    def summed(self, values: Numbers) -> Float64:
        return np.asarray(run_sums(values, self.first), np.float64)

    def spread(self, of_sets: AnyArray) -> AnyArray:
        return np.repeat(of_sets, self.size)


def effect(found: Overlaps, owner: Codes, count: int) -> Effect:
    """How durations go with overlap in the rows to which `owner` gives the instances."""
    alike = _Alike.of(found, owner)
    mean = np.maximum(alike.summed(alike.elapsed_ns) / alike.size, 1e-9)
    relative = alike.elapsed_ns / alike.spread(mean)
    x = alike.share - alike.spread(alike.summed(alike.share) / alike.size)
    return Effect(
        _cosine(alike, count, x, relative - 1.0),
        _cosine(alike, count, alike.share, relative),
        *_slowdown(alike, count),
    )


def _cosine(alike: _Alike, count: int, x: Float64, y: Float64) -> Float64:
    def summed(values: Float64) -> Float64:
        of_rows = sums_of(alike.summed(values), alike.whose, count)
        return of_rows.astype(np.float64)

    # A rounding error between equal numbers is not a spread.
    size = np.sqrt(summed(x * x) * summed(y * y))
    number = sums_of(alike.size, alike.whose, count)
    enough = size > 1e-9 * np.maximum(number, 1)
    return ratios(summed(x * y), np.where(enough, size, 0.0))


def _slowdown(alike: _Alike, count: int) -> tuple[Float64, Float64]:
    """Medians at high over medians at low overlap, and what the difference adds up to."""
    share, sets = alike.share, len(alike.first)
    if not sets:
        return np.full(count, np.nan), np.full(count, np.nan)
    least = run_minima(share, alike.first)
    most = run_maxima(share, alike.first)
    quarter = (most - least) / 4
    wide = most - least >= _MIN_SPREAD
    # A bound that no share reaches, where there is nothing to separate.
    low = share <= alike.spread(np.where(wide, least + quarter, -1.0))
    high = share >= alike.spread(np.where(wide, most - quarter, np.inf))
    own_set = alike.spread(np.arange(sets))

    def side(where: Mask) -> tuple[Float64, Int64]:
        own = own_set[where]
        number = counts_of(own, sets)
        return quantiles_of(alike.elapsed_ns[where], own, sets, (0.5,))[:, 0], number

    (low_ns, lows), (high_ns, highs) = side(low), side(high)
    both = (lows >= _MIN_INSTANCES) & (highs >= _MIN_INSTANCES)
    own, weight = alike.whose[both], alike.size[both]
    slow = sums_of(weight * high_ns[both], own, count)
    fast = sums_of(weight * low_ns[both], own, count)
    more = sums_of((highs * (high_ns - low_ns))[both], own, count)
    return ratios(slow, fast), np.where(fast > 0, more, np.nan)
