"""The times of the GPUs of a scope side by side: leads, work, idle time, copies, delays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final, Self

import numpy as np
from msgspec import Struct

from chopper_core.metrics import METRICS, Scope, heat_of
from chopper_core.model.column_names import EDGE
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.signals import time_within, union
from chopper_core.model.table import KernelTable
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Int64, Numbers
from chopper_core.util.grouping import (
    beyond_others,
    counts_of,
    distinct,
    median_of,
    ranked,
    sums_of,
)
from chopper_core.views.shared.collective_figures import Chosen, chosen_in
from chopper_core.views.shared.collectives import Collectives, collectives_of
from chopper_core.views.shared.host_causes import moved_idle
from chopper_core.views.shared.lateness import lateness_of
from chopper_core.views.shared.matched_kernels import Occurrences

_MIN_VARIATION: Final = 0.005
"""The least variance of a share that shows how communication slows a kernel."""
_MAX_RATE: Final = 0.7
"""Twice as slow: more is not the communication."""


class RankTimes(Struct, frozen=True, eq=False, dict=True):
    """The GPUs of a scope, side by side; arrays have one value per GPU of `gpus`."""

    run: Run
    node: Groups
    """The scope on all GPUs, without iterations that are left out or have nothing matched."""
    view: View
    without: Mapping[str, Sequence[int]]
    """Codes by level that are left out of it, besides truncated iterations."""
    compared: tuple[int, int] | None
    """How many iterations of how many are compared, where they are too many."""
    gpus: tuple[int, ...]
    """The GPUs with compute."""
    peers: tuple[Occurrences, ...]
    """The matched compute of each set of GPUs that run the same operations."""
    collectives: Chosen | None
    iterations: tuple[int, ...]
    iteration_ns: Int64
    """Elapsed time of each GPU (rows) in each iteration (columns), -1 where it has none."""
    delays_ns: Float64 | None
    """By how much each GPU delays the others, as above; None without complete collectives."""
    each_work_ns: Float64
    """Durations of the matched compute that is the same on all peers, as above."""
    each_other_ns: Float64
    """The time of all other compute, as above: of other shapes, or that only some GPUs have."""
    each_unhindered_ns: Float64
    """The same as it would be if no collective waited for later GPUs beside it."""
    each_host_ns: Float64
    """Idle time before launch calls while the host is in the iteration, as above."""
    each_launch_ns: Float64
    """The rest of the idle time, as above."""
    each_copy_ns: Float64
    """Exposed copies, as above."""

    @classmethod
    def of(
        cls,
        run: Run,
        view: View,
        node: Groups,
        compared: tuple[int, ...],
        peers: tuple[Occurrences, ...],
    ) -> Self:
        """The times of a scope on the GPUs of some sets of peers."""
        table = run.table
        gpus = np.sort(np.concatenate([own.gpus for own in peers])).astype(np.int64)
        seen = distinct(np.concatenate([table.iteration[own.rows[:, 0]] for own in peers]))
        tree = run.tree_of(view)
        there = tree.split(view.path, ("iteration",)).codes("iteration")
        without = {
            "gpu": [gpu.index for gpu in run.gpus if gpu.index not in gpus],
            "iteration": sorted(set(there.tolist()) - set(seen.tolist())),
        }
        without = {level: codes for level, codes in without.items() if codes}

        cells = tree.split(view.path, ("gpu", "iteration"), without)
        place = (
            np.searchsorted(gpus, cells.codes("gpu")),
            np.searchsorted(seen, cells.codes("iteration")),
        )
        elapsed = np.full((len(gpus), len(seen)), -1, np.int64)
        elapsed[place] = cells.max("end_ns") - cells.min("start_ns")

        def summed(*columns: str) -> Float64:
            total = np.zeros(elapsed.shape)
            for name in columns:
                total[place] += cells.sum(name)
            return total

        known = collectives_of(run)
        whole = tree.split(view.path, (), without)
        numbers, iterations = tuple(gpus.tolist()), tuple(seen.tolist())
        plain, unhindered = _work(peers, gpus, seen, known)
        collectives = (
            None if known is None else chosen_in(run, known, node, without.get("iteration", ()))
        )
        delays = None
        if collectives is not None and collectives.complete.any():
            lateness = lateness_of(run, collectives.all, tuple(own.gpus for own in peers))
            delays = lateness.delays(collectives.members, numbers, iterations)
        return cls(
            run=run,
            node=whole,
            view=view,
            without=without,
            compared=(len(compared), len(there)) if compared else None,
            gpus=numbers,
            peers=peers,
            collectives=collectives,
            iterations=iterations,
            iteration_ns=elapsed,
            delays_ns=delays,
            each_work_ns=plain,
            each_other_ns=summed("compute_ns", "overlap_ns") - plain,
            each_unhindered_ns=unhindered,
            each_host_ns=summed("idle_host_ns")
            + moved_idle(run, view).by_step(run, numbers, iterations),
            each_launch_ns=summed("idle_launch_ns", "idle_unknown_ns"),
            each_copy_ns=summed("exposed_copy_ns"),
        )

    @property
    def table(self) -> KernelTable:
        return self.run.table

    def split(self, level: str) -> Groups:
        """The scope by the labels of a level."""
        return self.run.tree_of(self.view).split(self.view.path, (level,), self.without)

    def metric(self, name: str) -> Float64:
        """A metric of each GPU; NaN where it isn't known."""
        nodes = self.split("gpu")
        found = METRICS[name].compute(
            Scope(nodes, self.node, self.run.origin_ns, self.run.hardware)
        )
        values = np.full(len(self.gpus), np.nan)
        places = np.searchsorted(self.gpus, nodes.codes("gpu"))
        values[places] = np.where(found.present(), found.numbers, np.nan)
        return values

    @cached_property
    def mhz(self) -> Float64:
        """The clock of each GPU; NaN where it isn't known."""
        return self.metric("gfx_mhz")

    def hotter(self, place: int) -> tuple[float, str]:
        """How much hotter than its peers a GPU is, NaN unless all are known; and where."""
        name = heat_of(self.table)
        heat = self.metric(name) if name else np.full(len(self.gpus), np.nan)
        beyond = float(self.beyond_peers(heat)[place]) if np.isfinite(heat).all() else np.nan
        return beyond, " at the edge" if name == EDGE else ""

    @cached_property
    def set_of(self) -> tuple[int, ...]:
        """The place in `peers` of each GPU's set."""
        owner = {gpu: place for place, own in enumerate(self.peers) for gpu in own.gpus}
        return tuple(owner[gpu] for gpu in self.gpus)

    def by_gpu(self, figure: Callable[[Occurrences], Numbers]) -> Float64:
        """A figure of the GPUs of each set of peers; NaN where nothing of theirs matches."""
        values = np.full(len(self.gpus), np.nan)
        for own in self.peers:
            if len(own):
                values[np.searchsorted(self.gpus, own.gpus)] = figure(own)
        return values

    @cached_property
    def lead_ns(self) -> Float64:
        """The sum of each GPU's leads; NaN without matched compute."""
        return self.by_gpu(lambda own: own.lead_ns.sum(axis=0))

    @cached_property
    def mean_lead_ns(self) -> Float64:
        return self.by_gpu(lambda own: own.lead_ns.mean(axis=0))

    @property
    def work_ns(self) -> Float64:
        """Durations of the matched compute that is the same on all peers, per iteration."""
        return _mean(self.each_work_ns)

    @property
    def host_ns(self) -> Float64:
        """Idle time before launch calls, per iteration."""
        return _mean(self.each_host_ns)

    @property
    def launch_ns(self) -> Float64:
        """The rest of the idle time, per iteration."""
        return _mean(self.each_launch_ns)

    @cached_property
    def typical_ns(self) -> float:
        """The median over iterations of the longest GPU's time."""
        return median_of(self.iteration_ns.max(axis=0))

    def beyond_peers(self, values: Numbers) -> Float64:
        """Each GPU's value less the median of its peers; NaN without any."""
        numbers = np.asarray(values, np.float64)
        found = np.full(numbers.shape, np.nan)
        for number in range(len(self.peers)):
            own = np.flatnonzero(np.array(self.set_of) == number)
            found[own] = beyond_others(numbers[own])
        return found

    def peers_median(self, values: Numbers) -> Float64:
        """The median of each GPU's peers; NaN without any."""
        return np.asarray(values, np.float64) - self.beyond_peers(values)

    @property
    def each(self) -> dict[str, Float64]:
        """The times that can make a GPU late, as GPUs x iterations."""
        return {
            "kernels": self.each_unhindered_ns,
            "work": self.each_other_ns,
            "host": self.each_host_ns,
            "launch": self.each_launch_ns,
            "copies": self.each_copy_ns,
        }

    def extra(self, when: Sequence[int] | Index = ()) -> dict[str, Float64]:
        """These times beyond the peers', mean over some iterations or all."""
        at = np.asarray(when, np.intp) if len(when) else slice(None)
        return {
            word: self.beyond_peers(values[:, at].mean(axis=1))
            for word, values in self.each.items()
        }


def _mean(each: Float64) -> Float64:
    mean: Float64 = each.mean(axis=1)
    return mean


def _work(
    peers: Sequence[Occurrences],
    gpus: Int64,
    iterations: Int64,
    collectives: Collectives | None,
) -> tuple[Float64, Float64]:
    """Durations of the same compute, GPUs x iterations; and without waiting collectives beside."""
    plain = np.zeros((len(gpus), len(iterations)))
    unhindered = np.zeros(plain.shape)
    for own in (each.take(each.is_same) for each in peers):
        if not len(own):
            continue
        when = np.searchsorted(iterations, own.table.iteration[own.rows[:, 0]])
        durations = list(own.durations_ns())
        beside = [
            shares_beside_comm(own, gpu, took, collectives) for gpu, took in enumerate(durations)
        ]
        code, rates = slowdown_beside_comm(own, durations, beside)
        for gpu, took, shares in zip(own.gpus, durations, beside, strict=True):
            place = int(np.searchsorted(gpus, gpu))
            plain[place] = sums_of(took, when, len(iterations))
            fair = took / np.exp(rates[code, 0] * shares[0])
            unhindered[place] = sums_of(fair, when, len(iterations))
    return plain, unhindered


def shares_beside_comm(
    found: Occurrences, column: int, took_ns: Int64, collectives: Collectives | None
) -> Float64:
    """The shares of each occurrence on a GPU beside waiting and beside other communication."""
    table, rows = found.table, found.rows[:, column]
    took = np.maximum(took_ns, 1)
    whole = np.minimum(table.overlap_ns[rows], took)
    waiting = np.zeros(len(rows), np.int64)
    if collectives is not None:
        members = collectives.members.rows
        waits = collectives.member_wait_ns
        own = np.flatnonzero((table.gpu[members] == found.gpus[column]) & (waits > 0))
        if len(own):
            windows = union(table.start_ns[members[own]], waits[own])
            start = table.start_ns[rows]
            waiting = time_within(*windows, start + took) - time_within(*windows, start)
    waiting = np.minimum(waiting, whole)
    return np.stack([waiting, whole - waiting]) / took


def slowdown_beside_comm(
    found: Occurrences, durations_ns: list[Int64], beside: list[Float64]
) -> tuple[Index, Float64]:
    """The operation of each occurrence, and how either kind of communication slows it.

    Rates are differences of logarithms, operations x kinds: least squares of the logarithm of
    the duration over the shares beside communication, with a constant per occurrence and one per
    GPU and operation. 0 where the shares don't differ enough.
    """
    code = ranked(found.table.operation[found.rows[:, 0]])[1]
    count = counts_of(code)
    values = [
        [np.log(np.maximum(took, 1)), *shares]
        for took, shares in zip(durations_ns, beside, strict=True)
    ]
    means = [sum(column) / len(values) for column in zip(*values, strict=True)]
    products = np.zeros((3, 3, len(count)))
    for own in values:
        centred = []
        for value, mean in zip(own, means, strict=True):
            apart = value - mean
            centred.append(apart - (sums_of(apart, code) / count)[code])
        for one in range(3):
            for other in range(one, 3):
                products[one, other] += sums_of(centred[one] * centred[other], code)
    rates = np.zeros((len(count), 2))
    enough = _MIN_VARIATION * count * len(values)
    for operation in range(len(count)):
        squares = products[[1, 2], [1, 2], operation]
        used = np.flatnonzero(squares > enough[operation])
        if not len(used):
            continue
        normal = np.triu(products[1:, 1:, operation])
        normal = (normal + np.triu(normal, 1).T)[np.ix_(used, used)]
        found_rates = np.linalg.lstsq(normal, products[0, 1 + used, operation], rcond=1e-3)[0]
        rates[operation, used] = np.clip(found_rates, 0.0, _MAX_RATE)
    return code, rates
