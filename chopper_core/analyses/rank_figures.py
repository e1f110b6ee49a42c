"""The figures of ranks: who is ahead, extra work, waits in collectives."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.analyses import collective_columns as collective_columns
from chopper_core.analyses.leads import RankLeads
from chopper_core.analyses.rows import Own
from chopper_core.columns import METRICS, Metric, Values, column
from chopper_core.columns.metric import absent
from chopper_core.util.arrays import Int64, Numbers
from chopper_core.util.grouping import counts_of, sums_of

LIT: Final = "Lit Silicon (arXiv 2511.09861), algorithm 1"
_UNMATCHED: Final = "no compute kernel of the row runs on all GPUs"
LEAD: Final = column(f"""lead_ns | ns | sum ahead | sum
    Lead value: how much earlier the GPU starts each matched kernel than the GPU that starts it
    last, summed over the occurrences. The straggler has the least.
    missing: {_UNMATCHED}
    source: {LIT}""")
MEAN_LEAD: Final = column(f"""mean_lead_ns | ns | ahead
    lead_ns over the number of matched kernels.
    missing: {_UNMATCHED}
    source: {LIT}""")
LAST: Final = column(f"""starts_last_pct | % | starts last
    Share of the matched kernels that start last on this GPU.
    missing: {_UNMATCHED}""")
ITERATION_TIME: Final = column("""span_ns | ns | span
    From the first start to the last end of the scope's activities of a step: of a GPU
    the median over the steps, of a step the largest over the GPUs.""")
WORK: Final = column(f"""work_ns | ns | work/step
    Durations of the matched compute, per step: the same kernels on every GPU, of equal
    shapes and FLOPs. Of a step the largest of the GPUs.
    missing: {_UNMATCHED}""")
THROUGHPUT: Final = column(f"""throughput_x | x | throughput
    Normalised throughput: the largest work_ns of the rows, of GPUs among its peers, over the
    row's (Chopper's max(iter)/iter, of sums of durations).
    missing: {_UNMATCHED}
    source: UnaryLab/chopper lead_and_throughput""")
DELAY: Final = column("""delay_ns | ns | delay
    How much the GPU delays the others per step: how much later than the usual GPU it
    arrives at the collectives of the same GPUs, where the others wait without compute, minus
    the exposed communication it had with other GPUs, and minus the same for the usual GPU.
    missing: the scope has no collectives with all their ranks""")
EXTRA_WORK: Final = column(f"""extra_work_ns | ns | extra work | signed
    work_ns minus its median over its peers: how much longer the same kernels take on this GPU,
    per step.
    missing: {_UNMATCHED}""")
SLOWER: Final = column(f"""slower_pct | % | slower | signed
    extra_work_ns in % of the other GPUs' median; for an operation, layer, phase or step,
    that of the scope's straggler.
    missing: {_UNMATCHED}""")
EXTRA_HOST: Final = column("""extra_host_ns | ns | extra host | signed
    Idle time before launch calls (idle_host_ns) per step, minus its median over the other
    GPUs: how much later its host launches.""")
EXTRA_LAUNCH: Final = column("""extra_launch_ns | ns | extra launch | signed
    Idle time from launch calls on (idle_launch_ns) and, unless activities were lost, before
    those without a launch record, per step, minus the median over the other GPUs.""")
CAUSE: Final = column("""apart_by | | cause
    Why the GPU lags: the largest of extra_work_ns (`clock` where the GPU's clock is more than
    1 % below the others' median, else `kernels`), compute that the others don't have (`work`),
    extra_host_ns (`host`) and extra_launch_ns (`launch`), where it is over 1 % of the
    step.
    missing: none is over 1 % of the step""")
COUNT: Final = column("""occurrences | | matched | sum
    Kernels that were matched across all GPUs.""")
BEHIND: Final = column(f"""behind | | straggler
    The GPU that is ahead least: it starts the row's kernels last.
    missing: {_UNMATCHED}""")
AHEAD: Final = column(f"""ahead_ns | ns | others ahead
    How much earlier than the straggler the other GPUs start a matched kernel: mean over them
    and over the occurrences.
    missing: {_UNMATCHED}
    source: {LIT}""")
CHANGE: Final = column(f"""lead_change_ns | ns | Δ others ahead | sum | signed
    How much further the others get ahead of the scope's straggler, from the row's kernels to
    the ones that start next.
    missing: {_UNMATCHED}
    source: UnaryLab/chopper straggler (s-delta), mean over the GPUs""")
GPUS: Final = column("""gpus | | GPUs
    GPUs of the row that are compared.""")
LEAST: Final = column(f"""least_lead_ns | ns | least ahead
    The smallest mean_lead_ns of the row's GPUs: that of its straggler.
    source: {LIT}""")
CAUSES: Final = column("""apart_gpus | | causes
    GPUs of the row that lag, by cause (see apart_by).
    missing: none of them lags for a known cause""")


STRAGGLER_WAIT: Final = column("""caused_ns | ns | caused wait | sum over other GPUs
    Time that other GPUs spent waiting for the scope's straggler, where it arrived last.
    missing: the files lack ranks of the process group""")


def rank_waits(stand: RankLeads) -> Own:
    """Per GPU: own wait and caused wait in collectives, whole and exposed."""
    chosen, count = stand.collectives, len(stand.gpus)
    heads = [
        METRICS[name] for name in ("wait_ns", "caused_ns", "exposed_wait_ns", "caused_exposed_ns")
    ]
    if chosen is None or not chosen.complete.any():
        return [(head, absent(count, 0)) for head in heads]
    each = [
        (waits, who)
        for waits in (chosen.member_wait_ns, chosen.member_exposed_ns)
        for who in _who(stand)
    ]
    # GPUs that aren't compared come last.
    sums = [Values(sums_of(waits, who, count + 1)[:-1]) for waits, who in each]
    return list(zip(heads, sums, strict=True))


def _who(stand: RankLeads) -> tuple[Int64, Int64]:
    """Of each collective's kernel the places of its GPU and of the one that arrives last."""
    chosen, gpus = stand.collectives, np.array(stand.gpus)
    assert chosen is not None
    places = np.full(max(int(stand.table.gpu.max()), int(gpus.max())) + 1, len(gpus))
    places[gpus] = np.arange(len(gpus))
    last = chosen.last_gpu[chosen.member_set]
    return places[stand.table.gpu[chosen.rows]], places[last]


def delays(stand: RankLeads) -> tuple[Metric, Values]:
    if stand.delays_ns is None:
        return DELAY, absent(len(stand.gpus), 0)
    return DELAY, Values(stand.delays_ns.mean(axis=1))


def waits_by(stand: RankLeads, codes: Int64, codes_of_rows: Numbers) -> Own:
    """Waits within the rows: of all GPUs, and those that the scope's straggler causes."""
    chosen, count = stand.collectives, len(codes)
    if chosen is None:
        none = Values(np.zeros(count, np.int64))
        return [(METRICS["wait_ns"], none), (STRAGGLER_WAIT, none)]
    place = np.searchsorted(codes, np.asarray(codes_of_rows)[chosen.rows])
    mine = _who(stand)[1] == stand.behind
    unseen = counts_of(place, count) > 0
    unseen &= counts_of(place[chosen.complete[chosen.member_set]], count) == 0
    return [
        (METRICS["wait_ns"], Values(sums_of(chosen.member_wait_ns, place, count), unseen)),
        (
            STRAGGLER_WAIT,
            Values(sums_of(chosen.member_wait_ns[mine], place[mine], count), unseen),
        ),
    ]
