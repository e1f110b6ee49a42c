"""Clocks that vary under the same load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from chopper_core.metrics import is_measured
from chopper_core.model.column_names import samples_in
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.grouping import distinct
from chopper_core.views.findings.rule import (
    Cost,
    Finding,
    FindingsContext,
    Threshold,
    confidence,
    rule,
    summed,
)
from chopper_core.views.shared.phrases import by_number, percent, time
from chopper_core.views.shared.samples import TimeSpans, sampled

UNSTEADY: Final = Threshold(
    "deviation of a clock",
    0.6,
    "% of its mean",
    "within an operation, where the load is the same. In the generated runs a steady clock "
    "deviates by up to 0.5 %, an unsteady one by 0.7 to 1.5 %; no measured run was available",
)
SAMPLES: Final = Threshold(
    "samples per GPU", 20, "at least", "with fewer, a deviation may be a coincidence"
)

_MAX_ITERATIONS: Final = 16
"""Of more iterations, evenly chosen ones are analysed."""
_CLOCKS: Final = {"gfx_mhz": "compute units", "mem_mhz": "memory"}


@rule(
    "clock",
    saving="compute time lost while the clock is below its mean in the same operation and phase; "
    "unknown for the memory clock",
    needs="telemetry of clocks",
    thresholds=(UNSTEADY, SAMPLES),
)
def unsteady_clocks(context: FindingsContext) -> Iterator[Finding]:
    """Clocks that vary under the same load."""
    for name, unit in _CLOCKS.items():
        if not is_measured(name, context.table):
            continue
        deviation, mean, lost_ns = _deviations(context, name)
        unsteady = np.flatnonzero(deviation > UNSTEADY.share * mean)
        if not len(unsteady):
            continue
        most = int(unsteady[np.argmax(deviation[unsteady] / mean[unsteady])])
        gpu = context.gpus[most]
        sentence = (
            f"the clock of the {unit} is unsteady on "
            f"{by_number('GPU', [context.gpus[place] for place in unsteady.tolist()])}: on GPU "
            f"{gpu} it deviates by {deviation[most]:.0f} MHz "
            f"({percent(deviation[most] / mean[most])}) from {mean[most]:,.0f} MHz within the same "
            f"operation{_over_time(context, name, gpu)}"
        )
        saving = total = None
        if name == "gfx_mhz":
            total = float(lost_ns[unsteady].sum())
            saving = float(lost_ns[unsteady].mean()) / len(context.iterations)
            sentence += f"; time below its mean costs {time(saving)}{context.each}"
        yield Finding(
            sentence=sentence,
            evidence=context.with_signal(name, f"-sd_{name}"),
            confidence=confidence(measured=False, repeated=context.repeats),
            saving_ns=saving,
            total_ns=total,
            cost=Cost.COMPUTE,
        )


def _over_time(context: FindingsContext, name: str, gpu: int) -> str:
    """The deviation over the time of an iteration, as the end of a phrase."""
    signal = context.run.measured.get(name)
    if signal is None or gpu not in signal.curves:
        return ""
    own = context.codes("gpu") == gpu
    starts, ends = context.cells.min("start_ns"), context.cells.max("end_ns")
    deviations = []
    for place in distinct(
        np.linspace(0, len(context.iterations) - 1, _MAX_ITERATIONS).astype(np.intp)
    ):
        there = own & (context.iteration_place == place)
        if there.any():
            span = TimeSpans(starts[there].min(keepdims=True), ends[there].max(keepdims=True))
            deviations.append(sampled(signal.curves[gpu], span).deviation())
    if not deviations or not np.isfinite(deviations).all():
        return ""
    return f", by {np.mean(deviations):.0f} MHz over an iteration"


def _deviations(context: FindingsContext, name: str) -> tuple[Float64, Float64, Float64]:
    """Per GPU: standard deviation within operations, mean, and time lost below the mean.

    Each instance of an operation, in a layer and iteration, counts with its mean clock.
    """
    count = len(context.gpus)
    area, known = context.signal_sums(name)
    weight = np.where(context.computes, known, 0.0)
    clock = area / np.maximum(known, 1e-9)
    same, gpu = context.together("gpu", "phase", "operation")[1], context.gpu_place
    usual = _means(same, clock, weight)[same]
    mean = _means(gpu, clock, weight, count)
    deviation = np.sqrt(_means(gpu, (clock - usual) ** 2, weight, count))
    lost = weight * np.maximum(1 - clock / np.maximum(usual, 1e-9), 0.0)
    samples, _ = context.split("gpu").known(samples_in(name))
    deviation[samples < SAMPLES.value] = 0.0
    return deviation, mean, summed(gpu, lost, count)


def _means(owner: Index, values: Float64, weight: Float64, count: int = 0) -> Float64:
    total = summed(owner, weight, count)
    return summed(owner, values * weight, count) / np.maximum(total, 1e-9)
