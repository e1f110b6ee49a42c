"""Columns of ranks: who is ahead, who is slower at the same kernels and why; of any rows.

A row's scope is compared on all GPUs, kernel by kernel; `rank_figures` computes them.
"""

from __future__ import annotations

from typing import Final

from chopper_core.columns.metric import Scope, Values, absent, declare

LIT: Final = "Lit Silicon (arXiv 2511.09861), algorithm 1"
_UNMATCHED: Final = "no compute kernel of the row runs on all GPUs"
_ONE_GPU: Final = "the row isn't all that one GPU does in its steps and the scope"


def _figure(name: str, scope: Scope) -> Values:
    # Loaded here: most screens compare no ranks.
    from chopper_core.analyses.rank_figures import row_leads

    found = row_leads(scope)
    if found is None:
        return absent(len(scope.nodes), 0)
    return found.figure(name)


declare(
    f"""
    lead_ns | ns | sum ahead | sum
        Lead value: how much earlier the GPU starts each matched kernel than the GPU that starts it
        last, summed over the occurrences. The straggler has the least.
        source: {LIT}
    mean_lead_ns | ns | ahead | ratio of sums
        lead_ns over the number of matched kernels.
        source: {LIT}
    starts_last_pct | % | starts last | ratio of sums
        Share of the row's matched kernels that no other GPU starts later.
    lag_ns | ns | lag
        How much later than the earliest of its peers the GPU starts the same kernels, mean over
        the row's matched kernels. For a row of several GPUs, the largest.
        source: {LIT}
    least_lead_ns | ns | least ahead | min
        The smallest mean_lead_ns of the row's GPUs: that of its straggler.
        source: {LIT}
    occurrences | | matched kernels | sum
        Kernels of the row that were matched across all GPUs.
    behind | | straggler | words
        The GPU that is ahead least: it starts the row's kernels last.
        missing: {_UNMATCHED}, or the row is of one GPU
    ahead_ns | ns | others ahead
        How much earlier than the straggler the other GPUs start a matched kernel: mean over them
        and over the occurrences.
        missing: {_UNMATCHED}, or the row is of one GPU
        source: {LIT}
    lead_change_ns | ns | Δ others ahead | sum | signed
        How much further the others get ahead of the scope's straggler, from its kernels in the row
        to the ones that start next.
        missing: {_UNMATCHED}, or the straggler runs none of the row's
        source: UnaryLab/chopper straggler (s-delta), mean over the GPUs
    work_ns | ns | work/step
        Durations of the matched compute, per step: the same kernels on every GPU, of equal
        shapes and FLOPs. Of several GPUs the largest.
    throughput_x | x | throughput
        Normalised throughput: the largest work_ns of the rows, of GPUs among its peers, over the
        row's (Chopper's max(iter)/iter, of sums of durations).
        source: UnaryLab/chopper lead_and_throughput
    extra_work_ns | ns | extra work | signed
        work_ns minus its median over its peers: how much longer the same kernels take on this GPU,
        per step; of a row of several GPUs, on the scope's straggler.
    slower_pct | % | slower | signed
        extra_work_ns in % of the other GPUs' median.
    straggler_wait_ns | ns | waits for it | sum over other GPUs
        Time that other GPUs spent waiting for the scope's straggler in collectives of the row,
        where it arrived last.
        missing: the files lack ranks of the process group
    delay_ns | ns | delay
        How much the GPU delays the others per step: how much later than the usual GPU it
        arrives at the collectives of the same GPUs, where the others wait without compute, minus
        the exposed communication it had with other GPUs, and minus the same for the usual GPU.
        Where compute hides the waiting, at least the exposed communication that the others have
        more than it.
        missing: {_ONE_GPU}, or the scope has no collectives with all their ranks
    extra_host_ns | ns | extra host | signed
        Idle time before launch calls (idle_host_ns) per step, minus its median over the other
        GPUs: how much later its host launches.
        missing: {_ONE_GPU}
    extra_launch_ns | ns | extra launch | signed
        Idle time from launch calls on (idle_launch_ns) and, unless activities were lost, before
        those without a launch record, per step, minus the median over the other GPUs.
        missing: {_ONE_GPU}
    apart_by | | cause | words
        Why the GPU lags: the largest of extra_work_ns (`clock` where the GPU's clock is more than
        1 % below the others' median, else `kernels`), compute that the others don't have (`work`),
        extra_host_ns (`host`) and extra_launch_ns (`launch`), where it is over 1 % of the
        step.
        missing: {_ONE_GPU}, or none is over 1 % of the step
    """,
    _figure,
    missing=_UNMATCHED,
)
