"""Clocks below their usual: on all GPUs, or on one since some iteration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from chopper_core.align.kernel_classes import kernel_class
from chopper_core.metrics import is_measured
from chopper_core.model.column_names import CYCLES
from chopper_core.model.hardware import Hardware
from chopper_core.model.table import KernelTable, Kind, Selection
from chopper_core.util.arrays import Float64, Int64
from chopper_core.util.grouping import median_of, ranked
from chopper_core.views.findings.rule import (
    ROBUST_Z,
    Cost,
    Finding,
    FindingsContext,
    Threshold,
    confidence,
    rule,
    summed,
)
from chopper_core.views.findings.slow_on_a_gpu import MATRIX_CLASSES
from chopper_core.views.shared.marks import MAD_TO_SIGMA
from chopper_core.views.shared.phrases import percent, time

BELOW_NOMINAL: Final = Threshold(
    "clock of the compute units below the nominal one",
    21.0,
    "%",
    "power management under full load costs about a fifth (the paper); more is another limit",
)
USUAL: Final = Threshold(
    "usual clock under full load", 80.0, "% of the nominal one", "the same; the saving is up to it"
)
SPARE_POWER: Final = Threshold(
    "power below the limit",
    15.0,
    "% of the power cap, or of the specified power",
    "power management lowers the clock only near the cap",
)
BELOW_WITH_POWER: Final = Threshold(
    "clock of the compute units below the nominal one, with power to spare",
    8.0,
    "%",
    "then power management is not the reason; products of one kind differ by a few percent",
)
MEMORY_BELOW: Final = Threshold(
    "memory clock below the nominal one", 4.0, "%", "under load it doesn't vary"
)
DROP: Final = Threshold(
    "drop of a clock",
    2.0,
    "% of its usual",
    "within the same operations and phases, where the load is the same; steady clocks vary by half "
    "a percent",
)
_MAX_ITERATIONS: Final = 64


@rule(
    "low-clock",
    saving="compute time lost to it: of matrix kernels up to the usual clock, of others for the "
    "memory's; at most that of all compute up to the nominal clock",
    holds=(0.5, 1.5),
    needs="telemetry of clocks, a GPU with known specifications",
    thresholds=(BELOW_NOMINAL, USUAL, SPARE_POWER, BELOW_WITH_POWER, MEMORY_BELOW),
)
def low_clocks(context: FindingsContext) -> Iterator[Finding]:
    """Clocks far below the nominal ones on most GPUs."""
    chip = context.run.hardware
    if chip is None:
        return
    matrix, others = _compute_ns(context)
    if is_measured("gfx_mhz", context.table) and CYCLES not in context.table.measured:
        mhz = _mean(context, "gfx_mhz")
        lower = 1 - mhz / chip.clock_mhz
        power = _share_of_cap(context, chip)
        spares = power <= 1 - SPARE_POWER.share
        if lower > (BELOW_WITH_POWER if spares else BELOW_NOMINAL).share:
            usual = 1.0 if spares else USUAL.share
            why = f"about {percent(1 - USUAL.share)} is usual under full load"
            if spares:
                why = f"though compute draws {percent(power)} of the power limit"
            saving = matrix * max(1 - mhz / (usual * chip.clock_mhz), 0.0)
            yield _low(
                context, "compute units", "gfx_mhz", mhz, chip.clock_mhz, saving, why,
                (matrix + others) * lower,
            )  # fmt: skip
    if is_measured("mem_mhz", context.table) and np.isfinite(chip.memory_mhz):
        mhz = _mean(context, "mem_mhz")
        lower = 1 - mhz / chip.memory_mhz
        if lower > MEMORY_BELOW.share:
            yield _low(
                context, "memory", "mem_mhz", mhz, chip.memory_mhz, others * lower,
                "work without matrix products depends on it", (matrix + others) * lower,
            )  # fmt: skip


def _low(
    context: FindingsContext,
    unit: str,
    signal: str,
    mhz: float,
    nominal: float,
    saving: float,
    why: str,
    high: float,
) -> Finding:
    gpus = "the GPUs" if len(context.gpus) > 1 else "the GPU"
    return Finding(
        sentence=(
            f"the clock of the {unit} is {percent(1 - mhz / nominal)} below nominal on {gpus} "
            f"({mhz:,.0f} vs {nominal:,.0f} MHz), {why}; {time(saving)}{context.each}"
        ),
        evidence=context.with_signal(signal, f"mean_{signal}"),
        confidence=confidence(measured=False, repeated=context.repeats),
        saving_ns=saving,
        high_ns=max(high, saving),
        cost=Cost.COMPUTE,
        total_ns=saving * len(context.gpus) * len(context.iterations),
    )


def _mean(context: FindingsContext, name: str) -> float:
    """A signal during compute: the median of the GPUs' means; NaN where it isn't known."""
    area, known = _sums(context, name)
    count = len(context.gpus)
    of_gpu = summed(context.gpu_place, area, count)
    covered = summed(context.gpu_place, known, count)
    there = covered > 0
    return median_of(of_gpu[there] / covered[there]) if there.any() else np.nan


def _share_of_cap(context: FindingsContext, chip: Hardware) -> float:
    """The power during compute as a share of the cap, else of the specified power; NaN unknown."""
    if not is_measured("power_w", context.table):
        return np.nan
    has_cap = is_measured("power_cap_w", context.table)
    cap = _mean(context, "power_cap_w") if has_cap else chip.tdp_w
    return _mean(context, "power_w") / cap if cap > 0 else np.nan


def _sums(context: FindingsContext, name: str) -> tuple[Float64, Float64]:
    """Integral and covered time of a signal in the compute cells; others have none."""
    area, known = (np.where(context.computes, each, 0.0) for each in context.signal_sums(name))
    return area, known


def _compute_ns(context: FindingsContext) -> tuple[float, float]:
    """Time of matrix kernels and of other compute, per GPU and iteration."""
    names, nodes = context.table.names, context.split("kernel")
    others = nodes.sum("collectives") + nodes.sum("copies")
    took = np.where(others == 0, nodes.sum("duration_ns"), 0)
    if ((others > 0) & (others < nodes.sizes())).any():
        took = nodes.sum_of(_compute_durations)
    matrix = np.array(
        [kernel_class(names[code]) in MATRIX_CLASSES for code in nodes.codes("kernel").tolist()]
    )
    return (
        context.per_iteration(float(took[matrix].sum())),
        context.per_iteration(float(took[~matrix].sum())),
    )


def _compute_durations(table: KernelTable, rows: Selection) -> Int64:
    return np.where(table.kind[rows] == Kind.COMPUTE, table.duration_ns[rows], 0)


@rule(
    "clock-drop",
    saving="compute time that the lower clock costs the GPU while it lasts, over all iterations",
    holds=(0.6, 1.25),
    needs="telemetry of clocks, four iterations or more",
    thresholds=(DROP,),
    explains=("straggler",),
)
def clock_drops(context: FindingsContext) -> Iterator[Finding]:
    """A GPU's clock that drops in some neighbouring iterations, or from one on."""
    count = len(context.iterations)
    if not is_measured("gfx_mhz", context.table) or not 4 <= count <= _MAX_ITERATIONS:
        return
    for place, gpu in enumerate(context.gpus):
        relative = _by_iteration(context, place)
        if not np.isfinite(relative).all():
            continue
        first, end, drop = _interval(relative)
        spread = MAD_TO_SIGMA * median_of(np.abs(np.diff(relative)))
        if drop < max(DROP.share, ROBUST_Z.value * spread):
            continue
        numbers = context.iterations[first:end]
        busy = context.by_gpu_and_iteration(
            lambda nodes: nodes.sum("compute_ns") + nodes.sum("overlap_ns")
        )[place, first:end]
        total = float((busy * drop).sum())
        when = f"in iteration {numbers[0]}"
        if len(numbers) > 1:
            when = f"from iteration {numbers[0]} " + ("on" if end == count else f"to {numbers[-1]}")
        yield Finding(
            sentence=(
                f"GPU {gpu}'s clock drops by {percent(drop)} {when}, in the same operations; "
                f"{time(total / count)}{context.each}"
            ),
            evidence=context.with_signal("gfx_mhz", "mean_gfx_mhz"),
            confidence=confidence(measured=True, repeated=len(numbers) > 1),
            saving_ns=total / count,
            total_ns=total,
            gpu=gpu,
            cost=Cost.COMPUTE,
        )


def _by_iteration(context: FindingsContext, place: int) -> Float64:
    """A GPU's clock in each iteration, relative to its highest usual one in the same operations."""
    area, known = _sums(context, "gfx_mhz")
    own = context.gpu_place == place
    count = len(context.iterations)
    _, same = ranked(context.together("phase", "operation")[1][own])
    cell = same * count + context.iteration_place[own]
    size = (int(same.max(initial=-1)) + 1) * count
    areas, covered = (summed(cell, each[own], size).reshape(-1, count) for each in (area, known))
    with np.errstate(invalid="ignore", divide="ignore"):
        mhz = np.where(covered > 0, areas / covered, np.nan)
        whole = np.isfinite(mhz).all(axis=1)
        if not whole.any():
            return np.full(count, np.nan)
        relative = mhz[whole] / mhz[whole].max(axis=1, keepdims=True)
        weight = covered[whole]
        found: Float64 = (relative * weight).sum(axis=0) / weight.sum(axis=0)
    return found


def _interval(relative: Float64) -> tuple[int, int, float]:
    """The neighbouring iterations whose mean is furthest below that of the others, and by how much.

    By the largest difference in standard errors, so that all that are low are taken.
    """
    count, total = len(relative), float(relative.sum())
    best, found = 0.0, (0, 0, 0.0)
    for first in range(count):
        for end in range(first + 1, count + (first > 0)):
            inside = float(relative[first:end].sum())
            size = end - first
            usual = (total - inside) / (count - size)
            drop = 1 - inside / size / usual
            weight = drop * np.sqrt(size * (count - size) / count)
            if weight > best:
                best, found = weight, (first, end, drop)
    return found
