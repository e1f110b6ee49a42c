"""Columns of collectives: waits, bandwidths, skews, who is last; of any rows of activities.

A collective counts in each row that has one of its kernels. Of rows without communication waits
are 0 and shares are missing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct

from chopper_core.columns.metric import (
    Scope,
    Values,
    absent,
    declare,
    numbered,
    quotient,
    worded_codes,
)
from chopper_core.model.table import NO_LABEL
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.grouping import (
    counted,
    counts_of,
    distinct,
    quantiles_of,
    run_starts,
    sums_of,
)

if TYPE_CHECKING:
    from chopper_core.graph.collectives import Collectives
    from chopper_core.model.run import Run

UNSEEN: Final = "the files lack ranks of the process group"
_NONE: Final = f"the row has no communication, or {UNSEEN}"
NCCL: Final = "nccl-tests doc/PERFORMANCE.md"
_BUS_STEPS: Final = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""Bus over algorithm bandwidth for n ranks in steps of (n-1)/n (nccl-tests)."""
_ON_BUS_ONCE: Final = ("broadcast", "reduce")


class GroupedCollectives(Struct, frozen=True, eq=False, dict=True):
    """The collectives that groups of activities take part in, and the group of each kernel."""

    run: Run
    whole: Collectives
    """All of the run."""
    found: Collectives
    """Those of the groups, with their kernels there."""
    owner: Index
    """The group of each of these kernels."""
    count: int

    @cached_property
    def pairs(self) -> tuple[Index, Index]:
        """The groups and their collectives, each pair once."""
        size = len(self.found)
        code = distinct(self.owner.astype(np.int64) * size + self.found.member_set)
        return code // size, code % size

    @cached_property
    def is_whole(self) -> tuple[Index, Index]:
        """Those pairs whose collective has all its ranks in the traces."""
        owner, number = self.pairs
        own = self.found.complete[number]
        return owner[own], number[own]

    @cached_property
    def unknown(self) -> Mask:
        """Groups with communication, but no collective that has all its ranks."""
        communicates = counts_of(self.owner, self.count) > 0
        is_seen = counts_of(self.is_whole[0], self.count) > 0
        return np.asarray(communicates & ~is_seen, np.bool_)

    @cached_property
    def last(self) -> tuple[Int64, Int64, Int64]:
        """The GPU that is last most often in each group, how often, and at how many collectives."""
        owner, number = self.is_whole
        gpus = int(self.found.last_gpu.max()) + 1
        # Groups times GPUs can be many: only pairs that occur are counted.
        pairs, times = counted(owner * gpus + self.found.last_gpu[number])
        order = np.lexsort((pairs, -times, pairs // gpus))
        most = order[run_starts(pairs[order] // gpus)]
        gpu, often = np.zeros((2, self.count), np.int64)
        gpu[pairs[most] // gpus], often[pairs[most] // gpus] = pairs[most] % gpus, times[most]
        return gpu, often, counts_of(owner, self.count)

    def added(self, each: Int64) -> Values:
        """The sum of a figure of kernels."""
        return Values(sums_of(each, self.owner, self.count), self.unknown)

    def share(self, part: Int64, where: Mask) -> Values:
        """A part of the kernels' durations in %, over some of them."""
        duration = self.found.table.duration_ns[self.found.rows]
        some, whole = (
            sums_of(each[where], self.owner[where], self.count) for each in (part, duration)
        )
        return quotient(some, whole, 100.0)

    def share_of_all(self, state: str) -> Values:
        part = self.found.table.column(state)[self.found.rows]
        return self.share(part, np.ones(len(self.owner), np.bool_))

    def quantile(self, each: Int64, share: float) -> Values:
        """A quantile of a figure of whole collectives."""
        owner, number = self.is_whole
        return numbered(quantiles_of(each[number], owner, self.count, (share,))[:, 0])

    def of_last(self, each: Int64) -> Values:
        """The sum of a figure of whole collectives, by the group that arrives last."""
        found = self.found
        is_last = found.table.gpu[found.rows] == found.last_gpu[found.member_set]
        own = is_last & found.complete[found.member_set]
        return Values(
            sums_of(each[found.member_set[own]], self.owner[own], self.count), self.unknown
        )


def grouped_collectives(scope: Scope) -> GroupedCollectives | None:
    """The collectives of a scope's nodes; None where they have none."""
    # Loaded here: most screens show no collectives.
    from chopper_core.graph.collectives import collectives_of

    nodes, run = scope.nodes, scope.run
    if "collectives" not in nodes.memo:
        grouped = None
        whole = None if run is None else collectives_of(run)
        if run is not None and whole is not None:
            place = nodes.numbers_of(whole.rows)
            own = place >= 0
            if own.any():
                grouped = GroupedCollectives(run, whole, whole.take(own), place[own], len(nodes))
        nodes.memo["collectives"] = grouped
    found: GroupedCollectives | None = nodes.memo["collectives"]
    return found


def sizes(found: Collectives) -> Float64:
    """The bytes of each collective; NaN where the trace gives none."""
    return np.where(found.bytes < 0, np.nan, found.bytes)


def on_bus(found: Collectives) -> Float64:
    """The bytes of each collective times nccl-tests' factor of the bus; NaN where it has none."""
    factor = np.full(len(found), np.nan)
    for kind, steps in _BUS_STEPS.items():
        factor[found.of_kind(kind)] = steps
    factor *= (found.size - 1) / np.maximum(found.size, 1)
    factor[found.of_kind(_ON_BUS_ONCE[0]) | found.of_kind(_ON_BUS_ONCE[1])] = 1
    return np.where(found.size > 0, factor * sizes(found), np.nan)


def _rate(moved: Float64, time: Float64, owner: Index, count: int) -> Values:
    """Ratio of the sums over those with both."""
    own = np.isfinite(moved) & np.isfinite(time)
    amount, taken = (sums_of(each[own], owner[own], count) for each in (moved, time))
    return quotient(amount, taken)


def _transfers(own: GroupedCollectives, moved: Float64) -> Values:
    owner, number = own.is_whole
    return _rate(moved[number], own.found.transfer_ns[number].astype(np.float64), owner, own.count)


def _got(own: GroupedCollectives) -> Values:
    found = own.found
    took = found.table.duration_ns[found.rows].astype(np.float64)
    return _rate(on_bus(found)[found.member_set], took, own.owner, own.count)


def _moved(own: GroupedCollectives) -> Values:
    size = own.found.bytes[own.found.member_set]
    is_sized = size >= 0
    moved = sums_of(size[is_sized], own.owner[is_sized], own.count)
    return Values(moved, counts_of(own.owner[is_sized], own.count) == 0)


def gpu_words(gpus: Index, known: Mask) -> Values:
    return worded_codes(
        np.where(known, gpus, NO_LABEL), lambda gpu: None if gpu == NO_LABEL else f"GPU {gpu}"
    )


def _last_gpu(own: GroupedCollectives) -> Values:
    gpu, _, seen = own.last
    return gpu_words(gpu, seen > 0)


def _last_share(own: GroupedCollectives) -> Values:
    _, times, seen = own.last
    return quotient(times, seen, 100.0)


def _outliers(own: GroupedCollectives) -> Values:
    from chopper_core.analyses.collective_outliers import outlying

    _, words = outlying(own.run, own.found)
    return own.added(words.present()[own.found.member_set].astype(np.int64))


def _caused(own: GroupedCollectives, waits: Int64) -> Values:
    """The waits of all GPUs in each collective, of the group that arrives last."""
    each = sums_of(waits, own.whole.member_set, len(own.whole))
    return own.of_last(each[own.found.number])


_WAITS: Final[dict[str, Callable[[GroupedCollectives], Values]]] = {
    "wait_ns": lambda own: own.added(own.found.member_wait_ns),
    "exposed_wait_ns": lambda own: own.added(own.found.member_exposed_ns),
    "caused_ns": lambda own: _caused(own, own.whole.member_wait_ns),
    "caused_exposed_ns": lambda own: _caused(own, own.whole.member_exposed_ns),
    "times_last": lambda own: own.of_last(np.ones(len(own.found), np.int64)),
    "outliers": _outliers,
}
"""Those that are 0 of rows without communication."""
_FIGURES: Final[dict[str, Callable[[GroupedCollectives], Values]]] = {
    "wait_pct": lambda own: own.share(
        own.found.member_wait_ns, own.found.complete[own.found.member_set]
    ),
    "exposed_pct": lambda own: own.share_of_all("exposed_comm_ns"),
    "hidden_pct": lambda own: own.share_of_all("hidden_ns"),
    "moved_bytes": _moved,
    "bus_gbps": lambda own: _transfers(own, on_bus(own.found)),
    "algo_gbps": lambda own: _transfers(own, sizes(own.found)),
    "got_gbps": _got,
    "median_skew_ns": lambda own: own.quantile(own.found.skew_ns, 0.5),
    "max_skew_ns": lambda own: own.quantile(own.found.skew_ns, 1.0),
    "median_transfer_ns": lambda own: own.quantile(own.found.transfer_ns, 0.5),
    "p95_transfer_ns": lambda own: own.quantile(own.found.transfer_ns, 0.95),
    "last_gpu": _last_gpu,
    "last_pct": _last_share,
}


def _figure(name: str, scope: Scope) -> Values:
    own = grouped_collectives(scope)
    if name in _FIGURES:
        return absent(len(scope.nodes)) if own is None else _FIGURES[name](own)
    if own is None:
        return Values(np.zeros(len(scope.nodes), np.int64))
    return _WAITS[name](own)


declare(
    f"""
    wait_ns | ns | own wait | sum
        GPU time spent in collectives before the last rank arrived.
        missing: {UNSEEN}
    exposed_wait_ns | ns | exposed wait | sum
        The part of wait_ns during which no compute runs on the waiting GPU, of each kernel at most
        its exposed_comm_ns.
        missing: {UNSEEN}
    caused_ns | ns | caused wait | sum over other GPUs
        Time that other GPUs spent waiting for kernels of the row, where these arrived last; per
        step and GPU it is the mean over all GPUs, so that the rows add up to the mean wait.
        missing: {UNSEEN}
    caused_exposed_ns | ns | caused exp. | sum over other GPUs
        The part of caused_ns during which no compute ran on the waiting GPUs.
        missing: {UNSEEN}
    times_last | | times last | sum
        Collectives at which a kernel of the row arrives last.
        missing: {UNSEEN}
    outliers | | outliers | sum
        Communication kernels whose collective's transfer is an outlier of its kind, group and size
        (3.5 x 1.4826 x MAD from the median).
        missing: {UNSEEN}
    wait_pct | % | wait of comm | ratio of sums
        wait_ns in % of the kernels' durations, of collectives of which all ranks are in the
        traces; the rest is transfer.
        missing: {_NONE}
    exposed_pct | % | exp. of comm | ratio of sums
        exposed_comm_ns in % of the durations of communication kernels: with no compute during it.
        missing: the row has no communication
    hidden_pct | % | hidden of comm | ratio of sums
        hidden_ns in % of the durations of communication kernels: during compute.
        missing: the row has no communication
    moved_bytes | B | moved | sum
        message_bytes of the collectives that each GPU takes part in, where the size is known.
        missing: the row has no communication, or the trace gives no sizes
    bus_gbps | GB/s | bus GB/s | ratio of sums
        Bus bandwidth: algo_gbps times 2(n-1)/n for all_reduce, (n-1)/n for all_gather,
        reduce_scatter and all_to_all, 1 for broadcast and reduce, for n ranks.
        missing: {_NONE}, the trace gives no sizes, or nccl-tests has no factor
        source: {NCCL}
    algo_gbps | GB/s | algo GB/s | ratio of sums
        Algorithm bandwidth: message_bytes over transfer_ns; of several, the ratio of the sums.
        missing: {_NONE}, or the trace gives no sizes
        source: {NCCL}
    got_gbps | GB/s | got GB/s | ratio of sums
        Bus bandwidth over the kernels' durations, waiting included: the bandwidth that the job
        gets.
        missing: the row has no communication, the trace gives no sizes, or nccl-tests has no factor
        source: {NCCL}
    median_skew_ns | ns | median skew | quantile
        Median arrival skew: the last kernel start of a collective minus the first.
        missing: {_NONE}
    max_skew_ns | ns | max skew | max
        Largest arrival skew.
        missing: {_NONE}
    median_transfer_ns | ns | median transfer | quantile
        Median time of a collective from the last arrival to the last end.
        missing: {_NONE}
    p95_transfer_ns | ns | p95 transfer | quantile
        95th percentile of that time.
        missing: {_NONE}
    last_gpu | | last | words
        The GPU that arrives last; of several collectives the one that does so most often.
        missing: {_NONE}
    last_pct | % | last % | ratio of sums
        Share of the collectives at which that GPU arrives last.
        missing: {_NONE}
    """,
    _figure,
)
