"""The columns of collectives."""

from __future__ import annotations

from typing import Final

from chopper_core.metrics import Metric, column

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
