"""GPUs that a limiter slows down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from chopper_core.metrics import is_measured
from chopper_core.model.column_names import integral_of, known_of
from chopper_core.model.same_work import work_of
from chopper_core.model.table import Kind
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import counts_of, median_of, ranked, sums_of
from chopper_core.views.findings.rule import (
    Cost,
    Finding,
    FindingsContext,
    Threshold,
    confidence,
    rule,
)
from chopper_core.views.power.charts import LIMITER, samples_of
from chopper_core.views.shared.phrases import by_number, time
from chopper_core.views.shared.table_view import by_level

_SHARE: Final = "throttle_pct"
_FREE_PCT: Final = 1.0
_LIMITED_PCT: Final = 50.0
"""Of a kernel's time under a limiter: with less it is unthrottled, with more throttled."""
THROTTLED: Final = Threshold(
    "throttled", 10.0, "% of the time", "single samples under a limiter are normal at full load"
)


@rule(
    "throttled",
    saving="time that the clock below the nominal one costs them, beyond GPUs not throttled; "
    "without counters, that of their kernels beyond the same kernels while nothing limits them",
    needs="telemetry of limiters; for the saving hardware counters, or samples of both kinds",
    thresholds=(THROTTLED,),
)
def throttled(context: FindingsContext) -> Iterator[Finding]:
    """GPUs that a limiter slows down, as their driver reports."""
    if not is_measured("throttle_pct", context.table):
        return
    _, by_gpu = by_level(context.node, "gpu")
    share = context.figure("throttle_pct", by_gpu)
    slowed = np.flatnonzero(share.present() & (np.nan_to_num(share.numbers) >= THROTTLED.value))
    if not len(slowed):
        return
    gpus = [context.gpus[place] for place in slowed.tolist()]
    free = np.delete(np.arange(len(context.gpus)), slowed)
    most, least = (float(pick(share.numbers[slowed])) for pick in (np.max, np.min))
    size = f"{most:.0f} %" if most - least < 1 else f"{least:.0f} to {most:.0f} %"
    sentence = (
        f"{by_number('GPU', gpus)} {'is' if len(gpus) == 1 else 'are'} throttled {size} of the time"
        f"{_limiter(context, gpus)}"
    )
    saving = total = None
    lost = _lost_to_clock(context)
    if lost is not None:
        usual = median_of(lost[free]) if len(free) else 0.0
        saving = max(float(lost[slowed].max()) - usual, 0.0)
        total = saving * len(gpus) * len(context.iterations)
        sentence += f"; the lower clock costs {time(saving)}{context.each}"
        sentence += " more than that of the others" if len(free) else ""
    else:
        beyond = _beyond_unthrottled(context, gpus)
        if beyond is not None:
            saving = beyond / len(context.iterations) / len(gpus)
            total = beyond
            sentence += (
                f"; their kernels take {time(saving)}{context.each} longer than the same kernels "
                "while nothing limits them"
            )
    yield Finding(
        sentence=sentence,
        evidence=context.with_signal("throttle_pct", "-throttled_pct"),
        confidence=confidence(measured=False, repeated=context.repeats),
        saving_ns=saving,
        total_ns=total,
        cost=Cost.COMPUTE,
    )


def _limiter(context: FindingsContext, gpus: list[int]) -> str:
    """The limiter with the largest share, where telemetry distinguishes limiters."""
    if not any(name.startswith(LIMITER) for name in context.run.measured):
        return ""
    means: dict[str, float] = {}
    for own in samples_of(context.run, context.view):
        for name, values in own.signals.items():
            if own.gpu in gpus and name.startswith(LIMITER) and len(values):
                means[name] = max(means.get(name, 0.0), values.mean())
    if not means:
        return ""
    most = max(means, key=lambda name: means[name])
    return f", mostly by {most.removeprefix(LIMITER)} ({means[most]:.0f} %)"


def _beyond_unthrottled(context: FindingsContext, gpus: list[int]) -> float | None:
    """Time of throttled compute kernels beyond the mean of the same kernels unthrottled, in ns.

    None where no kernel ran in both states.
    """
    table, rows = context.table, context.node.rows
    rows = rows[table.kind[rows] == Kind.COMPUTE]
    sums = [table.measured[name][rows] for name in (integral_of(_SHARE), known_of(_SHARE))]
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(sums[1] > 0, sums[0] / sums[1], np.nan)
    took = table.duration_ns[rows].astype(np.float64)
    codes, kernel = ranked(work_of(table, rows))
    free = share < _FREE_PCT
    slowed = (share >= _LIMITED_PCT) & np.isin(table.gpu[rows], gpus)
    number = counts_of(kernel[free], len(codes))
    if not (number[kernel[slowed]] > 0).any():
        return None
    total = sums_of(took[free], kernel[free], len(codes))
    usual = total / np.maximum(number, 1)
    both = slowed & (number[kernel] > 0)
    return max(float((took[both] - usual[kernel[both]]).sum()), 0.0)


def _lost_to_clock(context: FindingsContext) -> Float64 | None:
    """The time per iteration that each GPU loses to a clock below the nominal one."""
    _, by_gpu = by_level(context.node, "gpu")
    lost = context.figure("frequency_ns", by_gpu)
    if not lost.present().all():
        return None
    return lost.numbers.astype(np.float64) / len(context.iterations)
