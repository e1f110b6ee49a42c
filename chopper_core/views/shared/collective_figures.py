"""Figures and columns of a scope's collectives: bandwidths, outliers, who is last, waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chopper_core.align.kernel_classes import UNKNOWN_COLLECTIVE
from chopper_core.metrics import Metric, Values, column, numbered, worded
from chopper_core.metrics.metric import quotient
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, KernelTable
from chopper_core.model.units import time_text
from chopper_core.util.arrays import AnyArray, Float64, Index, Int64, Mask
from chopper_core.util.grouping import (
    combined,
    counts_of,
    distinct,
    quantiles_of,
    ranked,
    ratios,
    run_starts,
    sums_of,
)
from chopper_core.views.shared.collectives import PAIRWISE, Collectives
from chopper_core.views.shared.marks import FACTOR, MAD_TO_SIGMA, MIN_VALUES

_UNSEEN: Final = "the files lack ranks of the process group"
NCCL: Final = "nccl-tests doc/PERFORMANCE.md"
BUS_FACTORS: Final = {
    "all_reduce": "2(n-1)/n",
    "all_gather": "(n-1)/n",
    "reduce_scatter": "(n-1)/n",
    "all_to_all": "(n-1)/n",
    "broadcast": "1",
    "reduce": "1",
}
"""Bus over algorithm bandwidth for n ranks (nccl-tests)."""


def _of_all(text: str) -> Metric:
    """A column of collectives of which the traces have all ranks."""
    return column(f"{text}\n    missing: {_UNSEEN}")


KIND: Final = column("""kind | | kind
    The kind of the collective: all_reduce, all_gather …""")
GROUP: Final = column("""group | | process group
    The process group: name, description and size.
    missing: the trace has no process groups""")
ITERATION: Final = column("""iteration | | it
    The iteration.""")
PHASE: Final = column("""phase | | phase
    The phase.""")
LAYER: Final = column("""layer | | layer
    The layer.
    missing: it belongs to no layer""")
CALLS: Final = column("""calls | | calls | sum
    Number of collectives, each counted once for all its ranks.""")  # fmt: skip
CALLS_OF_GPU: Final = column("""calls | | calls
    Number of collectives in which the GPU takes part.""")
SEEN: Final = column("""ranks_seen | | ranks
    Number of ranks whose kernels are in the traces.""")
SIZE: Final = column("""message_bytes | B | size
    The message: the larger of a rank's input and output, the largest of the ranks.
    missing: the trace gives no sizes""")
TIME: Final = column("""collective_ns | ns | time
    From the first arrival (kernel start) to the last end.""")
SKEW: Final = _of_all("""skew_ns | ns | skew
    Arrival skew: the last kernel start minus the first.""")
TRANSFER: Final = _of_all("""transfer_ns | ns | transfer
    From the last arrival to the last end: the time it takes once all ranks have arrived.""")
WAIT: Final = _of_all("""wait_ns | ns | own wait | sum
    GPU time spent in collectives before the last rank arrived, summed over the GPUs.""")
EXPOSED_WAIT: Final = _of_all("""exposed_wait_ns | ns | exposed wait | sum
    The part of wait_ns during which no compute runs on the waiting GPU, of each kernel at most
    its exposed_comm_ns.""")
WAIT_SHARE: Final = _of_all("""wait_pct | % | wait
    wait_ns in % of the kernels' durations, of collectives of which all ranks are in the
    traces; the rest is transfer.""")
EXPOSED_SHARE: Final = column("""exposed_pct | % | exposed
    exposed_comm_ns in % of the kernels' durations: with no compute beside it.""")
HIDDEN_SHARE: Final = column("""hidden_pct | % | hidden
    hidden_ns in % of the kernels' durations: beside compute.""")
MOVED: Final = column("""moved_bytes | B | moved | sum
    Sum of message_bytes over the collectives, each counted once, of which the size is known.
    missing: the trace gives no sizes""")
ALGORITHM: Final = column(f"""algo_gbps | GB/s | algo GB/s
    Algorithm bandwidth: message_bytes over transfer_ns; of several, the ratio of the sums.
    missing: the trace gives no sizes, or {_UNSEEN}
    source: {NCCL}""")
BUS: Final = column(f"""bus_gbps | GB/s | bus GB/s
    Bus bandwidth: algo_gbps times 2(n-1)/n for all_reduce, (n-1)/n for all_gather,
    reduce_scatter and all_to_all, 1 for broadcast and reduce, for n ranks.
    missing: the trace gives no sizes, nccl-tests has no factor, or {_UNSEEN}
    source: {NCCL}""")
GOT: Final = column(f"""got_gbps | GB/s | got GB/s
    Bus bandwidth over the kernels' durations, waiting included: the bandwidth that the job
    gets.
    missing: the trace gives no sizes, or nccl-tests has no factor
    source: {NCCL}""")
LAST: Final = _of_all("""last_gpu | | last
    The GPU that arrives last; of several collectives the one that does so most often.""")
LAST_SHARE: Final = _of_all("""last_pct | % | last %
    Share of the collectives at which that GPU arrives last.""")
TIMES: Final = _of_all("""times_median | x | x median
    transfer_ns over the median of the run's collectives of the same kind, group and size.""")
OUTLIER: Final = column("""outlier | | outlier
    `slow` or `fast` where transfer_ns lies outside of its kind, group and size by the rule of
    the outliers (3.5 x 1.4826 x MAD from the median).
    missing: it is no outlier, or too few are alike""")
OUTLIERS: Final = column("""outliers | | outliers
    Collectives whose transfer_ns is an outlier of its kind and size.""")
MEDIAN: Final = column("""median_ns | ns | median
    Median duration of one kernel.""")
P95: Final = column("""p95_ns | ns | p95
    95th percentile of the kernels' durations.""")
LONGEST: Final = column("""max_ns | ns | max
    The longest kernel.""")
MEDIAN_SKEW: Final = _of_all("""median_skew_ns | ns | skew
    Median of skew_ns.""")
LARGEST_SKEW: Final = _of_all("""max_skew_ns | ns | max skew
    Largest skew_ns.""")
MEDIAN_TRANSFER: Final = _of_all("""median_transfer_ns | ns | transfer
    Median of transfer_ns.""")
P95_TRANSFER: Final = _of_all("""p95_transfer_ns | ns | p95 transfer
    95th percentile of transfer_ns.""")  # fmt: skip
CAUSED: Final = _of_all("""caused_ns | ns | caused wait | sum
    Time that other GPUs spent waiting for this GPU, where it arrived last.""")
CAUSED_EXPOSED: Final = _of_all("""caused_exposed_ns | ns | caused exp. | sum
    The part of caused_ns during which no compute ran on the waiting GPUs.""")
TIMES_LAST: Final = _of_all("""times_last | | last
    Collectives at which the GPU arrives last.""")
LAG: Final = _of_all("""lag_ns | ns | lag
    How much later than the first GPU it arrives; of several collectives the median.""")
STARTS: Final = column("""start_ns | ns | start
    The first arrival, since the run's first activity.""")


Own = list[tuple[Metric, Values]]

_FACTORS: Final[dict[str, Callable[[Float64], Float64]]] = {
    "2(n-1)/n": lambda ranks: 2 * (ranks - 1) / ranks,
    "(n-1)/n": lambda ranks: (ranks - 1) / ranks,
    "1": np.ones_like,
}


class Chosen(Struct, frozen=True, eq=False):
    """The collectives of which a scope has kernels, and these kernels."""

    run: Run
    all: Collectives
    sets: Index
    rows: Index
    """The scope's kernels, collective by collective."""
    owner: Index
    """The position in `sets` of each of them."""
    members: Index
    """The position of each of them in `all.members.rows`."""
    wait_ns: Int64
    exposed_ns: Int64
    """The part of that without compute."""

    @property
    def table(self) -> KernelTable:
        return self.run.table

    @property
    def whole(self) -> Groups:
        return Groups.single(self.table, self.rows)

    @property
    def complete(self) -> Mask:
        return self.all.complete[self.sets]

    def known(self, per_set: AnyArray) -> Values:
        """A figure of the collectives that is known only where all ranks are."""
        return Values(np.asarray(per_set[self.sets]), ~self.complete)

    def kinds(self) -> list[str]:
        names = (*self.table.operations, UNKNOWN_COLLECTIVE)
        return [names[code] for code in self.all.kind[self.sets].tolist()]

    def of_kind(self, kind: str) -> Mask:
        codes = [code for code, name in enumerate(self.table.operations) if name == kind]
        codes += [NO_LABEL] * (kind == UNKNOWN_COLLECTIVE)
        return np.isin(self.all.kind[self.sets], codes)


def chosen_in(
    run: Run, found: Collectives, parent: Groups, left_out: Sequence[int] = ()
) -> Chosen | None:
    """The collectives of a scope, but those of some iterations; None where it has none."""
    inside = np.zeros(len(run.table), np.bool_)
    inside[parent.selection] = True
    taken = inside[found.members.rows]
    if len(left_out):
        taken &= ~np.isin(run.table.iteration[found.members.rows], left_out)
    if not taken.any():
        return None
    sets, owner = ranked(found.member_set[taken])
    rows = found.members.rows[taken]
    waits = (found.member_wait_ns[taken], found.member_exposed_ns[taken])
    return Chosen(run, found, sets, rows, owner, np.flatnonzero(taken), *waits)


def rates(chosen: Chosen, owner: Index, count: int, member_owner: Index) -> Own:
    """Bandwidths of groups of collectives: ratios of sums over those of known size.

    `owner` is the group of each collective, `member_owner` that of each kernel.
    """
    size = chosen.all.bytes[chosen.sets].astype(np.float64)
    size[size < 0] = np.nan
    # Bus over algorithm bandwidth; NaN for kinds without a definition.
    ranks = chosen.all.size[chosen.sets].astype(np.float64)
    on_bus = np.full(len(ranks), np.nan)
    for kind, text in BUS_FACTORS.items():
        own = chosen.of_kind(kind) & (ranks > 0)
        on_bus[own] = size[own] * _FACTORS[text](ranks[own])
    transfer = chosen.all.transfer_ns[chosen.sets].astype(np.float64)
    transfer[~chosen.complete] = np.nan
    duration = chosen.table.duration_ns[chosen.rows].astype(np.float64)

    def ratio(moved: Float64, time: Float64, groups: Index) -> Values:
        where = np.isfinite(moved) & np.isfinite(time)
        taken = sums_of(time[where], groups[where], count)
        return quotient(sums_of(moved[where], groups[where], count), taken)

    return [
        (BUS, ratio(on_bus, transfer, owner)),
        (ALGORITHM, ratio(size, transfer, owner)),
        (GOT, ratio(on_bus[chosen.owner], duration, member_owner)),
    ]


def outlying(chosen: Chosen) -> tuple[Float64, list[str | None]]:
    """Transfer over its median among the run's like collectives, and which are outliers."""
    found, own = chosen.all, chosen.all.complete
    names, code = combined([found.kind, found.group, found.bytes])
    transfer = found.transfer_ns.astype(np.float64)

    def medians(values: Float64) -> Float64:
        return quantiles_of(values[own], code[own], len(names), (0.5,))[:, 0][code]

    median = medians(transfer)
    apart = transfer - median
    spread = medians(np.abs(apart))
    enough = own & (counts_of(code[own], len(names))[code] >= MIN_VALUES) & (spread > 0)
    is_outlier = enough & (np.abs(apart) > FACTOR * MAD_TO_SIGMA * spread)
    words = [
        ("slow" if apart[each] > 0 else "fast") if is_outlier[each] else None
        for each in chosen.sets.tolist()
    ]
    return ratios(np.where(own, transfer, np.nan), median)[chosen.sets], words


def blame(chosen: Chosen, codes: Int64, owner: Index, unknown: Mask) -> Own:
    found, sets, count = chosen.all, chosen.sets, len(codes)
    last, complete = found.last_gpu[sets], chosen.complete

    def caused(waits: Int64) -> Values:
        of_set = sums_of(waits, found.member_set, len(found))[sets]
        sums = sums_of(of_set[complete], last[complete], int(codes.max()) + 1)
        return Values(sums[codes].astype(np.int64), unknown)

    times = counts_of(last[complete], int(codes.max()) + 1)[codes]
    lag = chosen.table.start_ns[chosen.rows] - found.first_start_ns[sets][chosen.owner]
    known = complete[chosen.owner]
    return [
        (CAUSED, caused(found.member_wait_ns)),
        (CAUSED_EXPOSED, caused(found.member_exposed_ns)),
        (TIMES_LAST, Values(times, unknown)),
        (LAG, numbered(quantiles_of(lag[known], owner[known], count, (0.5,))[:, 0])),
    ]


def latest(chosen: Chosen, owner: Index, count: int) -> Own:
    last, complete = chosen.all.last_gpu[chosen.sets], chosen.complete
    gpus = int(last.max()) + 1
    times = counts_of(owner[complete] * gpus + last[complete], count * gpus)
    times = times.reshape(count, gpus)
    total = times.sum(axis=1)
    return [
        (LAST, gpu_words(times.argmax(axis=1), total > 0)),
        (LAST_SHARE, quotient(times.max(axis=1), total, 100.0)),
    ]


def gpu_words(gpus: NDArray[np.integer], known: Mask) -> Values:
    pairs = zip(gpus.tolist(), known.tolist(), strict=True)
    return worded([f"GPU {gpu}" if sure else None for gpu, sure in pairs])


def shares(chosen: Chosen, owner: Index, count: int) -> Own:
    table, rows = chosen.table, chosen.rows
    duration, seen = table.duration_ns[rows], chosen.complete[chosen.owner]
    whole = sums_of(duration, owner, count)

    def percent(values: Int64) -> Values:
        return quotient(sums_of(values, owner, count), whole, 100.0)

    waiting, of_seen = (
        sums_of(each[seen], owner[seen], count) for each in (chosen.wait_ns, duration)
    )
    return [
        (WAIT_SHARE, quotient(waiting, of_seen, 100.0)),
        (EXPOSED_SHARE, percent(table.exposed_comm_ns[rows])),
        (HIDDEN_SHARE, percent(table.hidden_ns[rows])),
    ]


def moved(chosen: Chosen, owner: Index, count: int) -> Own:
    """The bytes of groups of collectives; `owner` is the group of each."""
    size = chosen.all.bytes[chosen.sets]
    known = size >= 0
    total = sums_of(size[known], owner[known], count)
    return [(MOVED, Values(total, counts_of(owner[known], count) == 0))]


def headline(chosen: Chosen) -> tuple[str, ...]:
    table, rows = chosen.table, chosen.rows
    kinds = Counter(chosen.kinds()).most_common()
    gpus = len(distinct(table.gpu[rows]))
    number = f"{len(chosen.sets)} collective{'s' * (len(chosen.sets) != 1)}"
    count = ", ".join(f"{times} {kind}" for kind, times in kinds[:4])
    lines = [f"{number} on {gpus} GPU{'s' * (gpus != 1)}: {count}"]
    complete = chosen.complete
    total = int(chosen.wait_ns.sum())
    if complete.any() and total:
        last = chosen.all.last_gpu[chosen.sets]
        wait = sums_of(chosen.wait_ns, chosen.owner, len(last))
        worst = int(sums_of(wait[complete], last[complete]).argmax())
        own = complete & (last == worst)
        lines.append(
            f"GPU {worst} arrives last at {own.sum()} of {complete.sum()}: GPUs spent "
            f"{time_text(total)} waiting, {100 * wait[own].sum() / total:.0f} % of it for GPU "
            f"{worst}; {time_text(chosen.exposed_ns.sum())} of the waiting is exposed"
        )
    busy = int(table.duration_ns[rows].sum())
    exposed = int(table.exposed_comm_ns[rows].sum())
    if busy and not chosen.all.is_scheduled:
        lines.append(
            f"{time_text(exposed)} of communication is exposed, "
            f"{100 * exposed / busy:.1f} % of the collectives' durations"
        )
    return tuple(lines)


def notes(chosen: Chosen) -> tuple[str, ...]:
    """Collectives that aren't matched or lack a size, and the accuracy of the GPUs' clocks."""
    found, texts = chosen.all, []
    table = chosen.table
    single = np.bincount(found.member_set, minlength=len(found))[chosen.sets] == 1
    pairs = int((chosen.of_kind(PAIRWISE) & single).sum())
    lacking = int((~chosen.complete).sum()) - pairs
    if found.is_scheduled:
        texts.append("reconstructed times don't tell when ranks met: skew and waits are unknown")
    elif lacking:
        texts.append(
            f"{lacking} of {len(chosen.sets)} collectives lack ranks in the traces: their skew, "
            "transfer time and last arrival are unknown"
        )
    operations = chosen.table.operation[chosen.rows]
    if (operations != operations[run_starts(chosen.owner)][chosen.owner]).any():
        texts.append("a send and its receive count once, in the row of the lower rank's")
    if pairs:
        texts.append(f"{pairs} {PAIRWISE} are between pairs of ranks and aren't matched")
    unknown = int(chosen.of_kind(UNKNOWN_COLLECTIVE).sum())
    if unknown:
        texts.append(f"the trace doesn't give the kind of {unknown} collectives")
    unsized = int((found.bytes[chosen.sets] < 0).sum())
    if unsized:
        texts.append(
            f"the trace doesn't give the size of {unsized} collectives: their bandwidth is unknown"
        )
    if found.shared_labels:
        names = ", ".join(found.shared_labels[:3])
        texts.append(f"process groups {names} have more GPUs than ranks and aren't matched")
    if found.spread_ns is not None and len(table):
        texts.append(
            f"the ends of a synchronous collective are {found.spread_ns / 1e3:.1f} µs apart by the "
            "traces' clocks (median): arrivals are no more accurate than that"
        )
    return tuple(texts)
