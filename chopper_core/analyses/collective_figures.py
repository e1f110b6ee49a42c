"""Figures and columns of a scope's collectives: bandwidths, outliers, who is last, waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from chopper_core.analyses.base import Base
from chopper_core.analyses.outliers import FACTOR, MAD_TO_SIGMA, MIN_VALUES
from chopper_core.columns import Metric, Values, column, numbered, worded_codes
from chopper_core.columns.metric import quotient
from chopper_core.graph.collectives import PAIRWISE, Collectives, collectives_of
from chopper_core.model.phrases import amount, facts
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, NO_LABEL_TEXT
from chopper_core.model.units import time_text
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.grouping import (
    combined,
    counted,
    counts_of,
    first_equal,
    quantiles_of,
    ratios,
    sums_of,
)
from chopper_core.work.kernel_classes import UNKNOWN_COLLECTIVE

_UNSEEN: Final = "the files lack ranks of the process group"
NCCL: Final = "nccl-tests doc/PERFORMANCE.md"
_BUS_STEPS: Final = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""Bus over algorithm bandwidth for n ranks in steps of (n-1)/n (nccl-tests)."""
_ON_BUS_ONCE: Final = ("broadcast", "reduce")


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
    Number of collectives that each GPU takes part in.""")  # fmt: skip
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
    GPU time spent in collectives before the last rank arrived.""")
EXPOSED_WAIT: Final = _of_all("""exposed_wait_ns | ns | exposed wait | sum
    The part of wait_ns during which no compute runs on the waiting GPU, of each kernel at most
    its exposed_comm_ns.""")
WAIT_SHARE: Final = _of_all("""wait_pct | % | wait of comm
    wait_ns in % of the kernels' durations, of collectives of which all ranks are in the
    traces; the rest is transfer.""")
EXPOSED_SHARE: Final = column("""exposed_pct | % | exp. of comm
    exposed_comm_ns in % of the kernels' durations: with no compute during it.""")
HIDDEN_SHARE: Final = column("""hidden_pct | % | hidden of comm
    hidden_ns in % of the kernels' durations: during compute.""")
MOVED: Final = column("""moved_bytes | B | moved | sum
    message_bytes of the collectives that each GPU takes part in, where the size is known.
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
    missing: it is no outlier, or too few are of its kind, group and size""")
OUTLIERS: Final = column("""outliers | | outliers | sum
    Those of the calls whose transfer_ns is an outlier of its kind and size.""")
MEDIAN: Final = column("""median_ns | ns | median
    Median duration of one kernel.""")
P95: Final = column("""p95_ns | ns | p95
    95th percentile of the kernels' durations.""")
LONGEST: Final = column("""max_ns | ns | max
    The longest kernel.""")
MEDIAN_SKEW: Final = _of_all("""median_skew_ns | ns | median skew
    Median of skew_ns.""")
LARGEST_SKEW: Final = _of_all("""max_skew_ns | ns | max skew
    Largest skew_ns.""")
MEDIAN_TRANSFER: Final = _of_all("""median_transfer_ns | ns | median transfer
    Median of transfer_ns.""")
P95_TRANSFER: Final = _of_all("""p95_transfer_ns | ns | p95 transfer
    95th percentile of transfer_ns.""")  # fmt: skip
CAUSED: Final = _of_all("""caused_ns | ns | caused wait | sum over other GPUs
    Time that other GPUs spent waiting for this GPU, where it arrived last; per step and GPU it is
    the mean over all GPUs, so that the rows add up to the mean wait.""")
CAUSED_EXPOSED: Final = _of_all("""caused_exposed_ns | ns | caused exp. | sum over other GPUs
    The part of caused_ns during which no compute ran on the waiting GPUs.""")
TIMES_LAST: Final = _of_all("""times_last | | last | sum
    Collectives at which the GPU arrives last.""")
LAG: Final = _of_all("""lag_ns | ns | lag
    How much later than the first GPU it arrives; of several collectives the median.""")
STARTS: Final = column("""start_ns | ns | start
    The first arrival, since the run's first activity.""")


Own = list[tuple[Metric, Values]]


def known(found: Collectives, values: Int64) -> Values:
    """A figure of collectives that is known only where all ranks are."""
    return Values(values, ~found.complete)


def kind_text(found: Collectives, code: int) -> str:
    return UNKNOWN_COLLECTIVE if code == NO_LABEL else found.table.operations[code]


def rates(found: Collectives, owner: Index, count: int, member_owner: Index) -> Own:
    """Bandwidths of groups of collectives: ratios of sums over those of known size.

    `owner` is the group of each collective, `member_owner` that of each kernel.
    """
    size = np.where(found.bytes < 0, np.nan, found.bytes)
    # Bus over algorithm bandwidth; NaN for kinds without a definition.
    factor = np.full(len(found), np.nan)
    for kind, steps in _BUS_STEPS.items():
        factor[found.of_kind(kind)] = steps
    factor *= (found.size - 1) / np.maximum(found.size, 1)
    factor[found.of_kind(_ON_BUS_ONCE[0]) | found.of_kind(_ON_BUS_ONCE[1])] = 1
    on_bus = np.where(found.size > 0, factor * size, np.nan)
    transfer = np.where(found.complete, found.transfer_ns, np.nan)
    duration = found.table.duration_ns[found.rows].astype(np.float64)

    def ratio(moved: Float64, time: Float64, groups: Index) -> Values:
        where = np.isfinite(moved) & np.isfinite(time)
        amounts, taken = (sums_of(each[where], groups[where], count) for each in (moved, time))
        return quotient(amounts, taken)

    return [
        (BUS, ratio(on_bus, transfer, owner)),
        (ALGORITHM, ratio(size, transfer, owner)),
        (GOT, ratio(on_bus[found.member_set], duration, member_owner)),
    ]


def outlying(run: Run, found: Collectives) -> tuple[Values, Values]:
    """Transfer over its median among the run's like collectives, and which are outliers."""
    times, words = run.memo(("outlying collectives",), lambda: _outlying(run))
    return times.take(found.number), words.take(found.number)


def _outlying(run: Run) -> tuple[Values, Values]:
    whole = collectives_of(run)
    assert whole is not None
    names, code = combined([whole.kind, whole.group, whole.bytes])
    own = whole.complete
    transfer = whole.transfer_ns.astype(np.float64)

    def medians(values: Float64) -> Float64:
        return quantiles_of(values[own], code[own], len(names), (0.5,))[:, 0][code]

    median = medians(transfer)
    distance = transfer - median
    spread = medians(np.abs(distance))
    enough = own & (counts_of(code[own], len(names))[code] >= MIN_VALUES) & (spread > 0)
    is_outlier = enough & (np.abs(distance) > FACTOR * MAD_TO_SIGMA * spread)
    words = Values((distance > 0).astype(np.int64), ~is_outlier, words=("fast", "slow"))
    return numbered(ratios(np.where(own, transfer, np.nan), median)), words


def blame(run: Run, found: Collectives, gpus: Int64, owner: Index, unknown: Mask) -> Own:
    """The waits that GPUs cause by being last, how often, and how late they are."""
    whole = collectives_of(run)
    assert whole is not None
    last, complete, size = found.last_gpu, found.complete, int(gpus.max()) + 1

    def caused(waits: Int64) -> Values:
        of_set = sums_of(waits, whole.member_set, len(whole))[found.number]
        return Values(sums_of(of_set[complete], last[complete], size)[gpus], unknown)

    lag = found.table.start_ns[found.rows] - found.first_start_ns[found.member_set]
    own = complete[found.member_set]
    return [
        (CAUSED, caused(whole.member_wait_ns)),
        (CAUSED_EXPOSED, caused(whole.member_exposed_ns)),
        (TIMES_LAST, Values(counts_of(last[complete], size)[gpus], unknown)),
        (LAG, numbered(quantiles_of(lag[own], owner[own], len(gpus), (0.5,))[:, 0])),
    ]


def latest(found: Collectives, owner: Index, count: int) -> Own:
    gpus = int(found.last_gpu.max()) + 1
    place = (owner * gpus + found.last_gpu)[found.complete]
    times = counts_of(place, count * gpus).reshape(count, gpus)
    total = times.sum(axis=1)
    return [
        (LAST, gpu_words(times.argmax(axis=1), total > 0)),
        (LAST_SHARE, quotient(times.max(axis=1), total, 100.0)),
    ]


def gpu_words(gpus: NDArray[np.integer], known: Mask) -> Values:
    return worded_codes(
        np.where(known, gpus, NO_LABEL), lambda gpu: None if gpu == NO_LABEL else f"GPU {gpu}"
    )


def collective_waits(found: Collectives, owner: Index, count: int) -> Own:
    """The waits of groups of kernels; unknown where all ranks of none of theirs are seen."""
    unknown = counts_of(owner[found.complete[found.member_set]], count) == 0
    return [
        (WAIT, Values(sums_of(found.member_wait_ns, owner, count), unknown)),
        (EXPOSED_WAIT, Values(sums_of(found.member_exposed_ns, owner, count), unknown)),
    ]


def collective_shares(found: Collectives, owner: Index, count: int) -> Own:
    table, rows, seen = found.table, found.rows, found.complete[found.member_set]
    duration = table.duration_ns[rows]

    def percent(values: Int64, where: Mask) -> Values:
        part, whole = (sums_of(each[where], owner[where], count) for each in (values, duration))
        return quotient(part, whole, 100.0)

    every = np.ones(len(rows), np.bool_)
    return [
        (WAIT_SHARE, percent(found.member_wait_ns, seen)),
        (EXPOSED_SHARE, percent(table.exposed_comm_ns[rows], every)),
        (HIDDEN_SHARE, percent(table.hidden_ns[rows], every)),
    ]


def collectives_headline(
    found: Collectives, base: Base, exposed_ms: Mapping[str, float]
) -> tuple[str, ...]:
    """What is exposed, before which operation, and who waits for whom."""
    kinds, complete = found.kind[found.member_set], found.complete
    codes, times = counted(kinds)
    most = np.lexsort((first_equal(kinds, codes), -times))[:4].tolist()
    number = amount(base.each(len(found.rows)))
    number += f" collective{'s' * (number != '1')}"
    second = f"{number}{base.words}: "
    second += ", ".join(
        f"{amount(base.each(int(times[place])))} {kind_text(found, int(codes[place]))}"
        for place in most
    )
    exposed, first = int(found.table.exposed_comm_ns[found.rows].sum()), ""
    if exposed and not found.is_scheduled:
        name, ms = next(iter(exposed_ms.items()), (NO_LABEL_TEXT, 0.0))
        before = f"{time_text(1e6 * ms)} before {name}" if name != NO_LABEL_TEXT else ""
        first = facts(f"{time_text(base.each(exposed))} exposed{base.words}", before)
    if complete.any() and (total := int(found.member_wait_ns.sum())):
        wait = sums_of(found.member_wait_ns, found.member_set, len(found))
        worst = int(sums_of(wait[complete], found.last_gpu[complete]).argmax())
        own = complete & (found.last_gpu == worst)
        second = facts(
            f"{time_text(base.each(total))} waiting",
            f"{100 * wait[own].sum() / total:.0f} % for GPU {worst}, last at "
            f"{100 * own.sum() / complete.sum():.0f} % of {number}",
        )
    return tuple(filter(None, (first, second)))


def collective_notes(run: Run, found: Collectives) -> tuple[str, ...]:
    """Collectives that aren't matched or lack a size, and the accuracy of the GPUs' clocks."""
    whole, texts = collectives_of(run), []
    assert whole is not None
    single = counts_of(whole.member_set)[found.number] == 1
    pairs = int((found.of_kind(PAIRWISE) & single).sum())
    lacking = int((~found.complete).sum()) - pairs
    unknown = int(found.of_kind(UNKNOWN_COLLECTIVE).sum())
    unsized = int((found.bytes < 0).sum())
    if found.is_scheduled:
        texts.append("reconstructed times don't tell when ranks met: skew and waits are unknown")
    elif lacking:
        texts.append(
            f"{lacking} of {len(found)} collectives lack ranks in the traces: their skew, "
            "transfer time and last arrival are unknown"
        )
    if pairs:
        texts.append(f"{pairs} {PAIRWISE} are between pairs of ranks and aren't matched")
    if unknown:
        texts.append(f"the trace doesn't give the kind of {unknown} collectives")
    if unsized:
        texts.append(
            f"the trace doesn't give the size of {unsized} collectives: their bandwidth is unknown"
        )
    if found.shared_labels:
        names = ", ".join(found.shared_labels[:3])
        texts.append(f"process groups {names} have more GPUs than ranks and aren't matched")
    if found.spread_ns is not None:
        texts.append(f"{ends_within(found.spread_ns)}: arrivals are no more accurate than that")
    return tuple(texts)


def ends_within(spread_ns: int) -> str:
    return (
        f"the ends of a synchronous collective differ by {spread_ns / 1e3:.1f} µs on the traces' "
        "clocks (median)"
    )
