"""Clocks that vary under the same load."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.metrics import is_measured
from chopper_core.model.column_names import integral_of, known_of, samples_in
from chopper_core.util.arrays import Float64, Index
from chopper_core.views.findings.context import FindingsContext, summed
from chopper_core.views.findings.phrases import gpus_named, percent, time
from chopper_core.views.findings.rule import Finding, Threshold, confidence, rule
from chopper_core.views.shared.samples import Stretches, sampled

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
"""Of more iterations, evenly chosen ones are looked at."""
_CLOCKS: Final = {"gfx_mhz": "the compute units", "mem_mhz": "the memory"}


@rule(
    "clock",
    saving="compute time lost while the clock is below its mean in the same operation and phase; "
    "unknown for the memory clock",
    needs="telemetry of clocks",
    thresholds=(UNSTEADY, SAMPLES),
)
def unsteady_clocks(context: FindingsContext) -> list[Finding]:
    """Clocks that vary under the same load."""
    found = []
    for name, of in _CLOCKS.items():
        if not is_measured(name, context.table):
            continue
        deviation, mean, slower_ns = _deviations(context, name)
        unsteady = np.flatnonzero(deviation > UNSTEADY.share * mean)
        if not len(unsteady):
            continue
        gpus = [context.gpus[place] for place in unsteady.tolist()]
        most = int(unsteady[np.argmax(deviation[unsteady] / mean[unsteady])])
        saving = float(slower_ns[unsteady].mean()) / len(context.iterations)
        cost = f"; what runs below its mean costs {time(saving)}{context.each}"
        found.append(
            Finding(
                sentence=(
                    f"the clock of {of} is unsteady on {gpus_named(gpus)}: "
                    f"on GPU {context.gpus[most]} it deviates by {deviation[most]:.0f} MHz "
                    f"({percent(deviation[most] / mean[most])}) from {mean[most]:,.0f} MHz within "
                    f"one and the same operation"
                    f"{_over_time(context, name, context.gpus[most])}"
                    f"{cost if name == 'gfx_mhz' else ''}"
                ),
                evidence=context.with_signal(name),
                confidence=confidence(read=False, repeated=context.repeats),
                saving_ns=saving if name == "gfx_mhz" else None,
                total_ns=float(slower_ns[unsteady].sum()) if name == "gfx_mhz" else None,
            )
        )
    return found


def _over_time(context: FindingsContext, name: str, gpu: int) -> str:
    """What the deviation over the time of an iteration is, whatever runs in it."""
    signal = context.run.measured.get(name)
    if signal is None or gpu not in signal.curves:
        return ""
    own = context.codes("gpu") == gpu
    starts, ends = context.cells.min("start_ns"), context.cells.max("end_ns")
    deviations = []
    for place in np.unique(
        np.linspace(0, len(context.iterations) - 1, _MAX_ITERATIONS).astype(np.intp)
    ):
        there = own & (context.iteration_place == place)
        if there.any():
            span = Stretches(starts[there].min(keepdims=True), ends[there].max(keepdims=True))
            deviations.append(sampled(signal.curves[gpu], span).deviation())
    if not deviations or not np.isfinite(deviations).all():
        return ""
    return f", by {np.mean(deviations):.0f} MHz over an iteration"


def _deviations(context: FindingsContext, name: str) -> tuple[Float64, Float64, Float64]:
    """Per GPU: standard deviation within operations, mean, and time lost to clocks below it.

    Each instance of an operation, in a layer and iteration, counts with its mean clock.
    """
    cells, count = context.cells, len(context.gpus)
    # Both are known of the same activities, so that nothing is weighed that has no clock.
    sums, _ = cells.known_together((integral_of(name), known_of(name)))
    weight = np.where(context.computes, sums[known_of(name)], 0.0)
    clock = sums[integral_of(name)] / np.maximum(sums[known_of(name)], 1e-9)
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
