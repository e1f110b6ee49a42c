"""Clocks that don't keep still under the same load, and GPUs under a limiter."""

from __future__ import annotations

import numpy as np

from chopper_core.metrics import is_measured
from chopper_core.model.column_names import integral_of, known_of, samples_in
from chopper_core.util.arrays import Float64, Index
from chopper_core.views.findings.context import Case, summed
from chopper_core.views.findings.finding import Finding, confidence
from chopper_core.views.findings.phrases import percent, places, time
from chopper_core.views.findings.thresholds import SAMPLES, THROTTLED, UNSTEADY
from chopper_core.views.power import LIMITER, samples_of
from chopper_core.views.shared.groups import by_level
from chopper_core.views.shared.samples import Stretches, sampled

_MOST = 16
"""Iterations that are looked at one by one; of more, evenly chosen ones."""
_CLOCKS = {"gfx_mhz": "the compute units", "mem_mhz": "the memory"}


def unsteady_clocks(case: Case) -> list[Finding]:
    """Clocks that deviate within one and the same operation."""
    found = []
    for name, of in _CLOCKS.items():
        if not is_measured(name, case.table):
            continue
        deviation, mean, slower_ns = _deviations(case, name)
        unsteady = np.flatnonzero(deviation > UNSTEADY.value / 100 * mean)
        if not len(unsteady):
            continue
        gpus = [case.gpus[place] for place in unsteady.tolist()]
        most = int(unsteady[np.argmax(deviation[unsteady] / mean[unsteady])])
        stake = float(slower_ns[unsteady].mean()) / len(case.iterations)
        which = f"GPU{'s' if len(gpus) > 1 else ''} {places(gpus)}"
        cost = f"; what runs below its mean costs {time(stake)}{case.each}"
        found.append(
            Finding(
                sentence=(
                    f"the clock of {of} is unsteady on {which}: on GPU {case.gpus[most]} it "
                    f"deviates by {deviation[most]:.0f} MHz "
                    f"({percent(deviation[most] / mean[most])}) from {mean[most]:,.0f} MHz within "
                    f"one and the same operation"
                    f"{_over_time(case, name, case.gpus[most])}"
                    f"{cost if name == 'gfx_mhz' else ''}"
                ),
                evidence=case.with_signal(name),
                confidence=confidence(read=False, repeated=case.repeats),
                stake_ns=stake if name == "gfx_mhz" else None,
                total_ns=float(slower_ns[unsteady].sum()) if name == "gfx_mhz" else None,
            )
        )
    return found


def _over_time(case: Case, name: str, gpu: int) -> str:
    """What the deviation over the time of an iteration is, whatever runs in it."""
    signal = case.run.measured.get(name)
    if signal is None or gpu not in signal.curves:
        return ""
    own = case.codes("gpu") == gpu
    starts, ends = case.cells.min("start_ns"), case.cells.max("end_ns")
    deviations = []
    for place in np.unique(np.linspace(0, len(case.iterations) - 1, _MOST).astype(np.intp)):
        there = own & (case.iteration_place == place)
        if there.any():
            span = Stretches(starts[there].min(keepdims=True), ends[there].max(keepdims=True))
            deviations.append(sampled(signal.curves[gpu], span).deviation())
    if not deviations or not np.isfinite(deviations).all():
        return ""
    return f", by {np.mean(deviations):.0f} MHz over an iteration"


def _deviations(case: Case, name: str) -> tuple[Float64, Float64, Float64]:
    """Per GPU: standard deviation within operations, mean, and time lost to clocks below it.

    Each instance of an operation, in a layer and iteration, counts with its mean clock.
    """
    cells, count = case.cells, len(case.gpus)
    # Both are known of the same activities, so that nothing is weighed that has no clock.
    sums, _ = cells.known_together((integral_of(name), known_of(name)))
    weight = np.where(case.computes, sums[known_of(name)], 0.0)
    clock = sums[integral_of(name)] / np.maximum(sums[known_of(name)], 1e-9)
    same, gpu = case.together("gpu", "phase", "operation")[1], case.gpu_place
    usual = _means(same, clock, weight)[same]
    mean = _means(gpu, clock, weight, count)
    deviation = np.sqrt(_means(gpu, (clock - usual) ** 2, weight, count))
    lost = weight * np.maximum(1 - clock / np.maximum(usual, 1e-9), 0.0)
    samples, _ = case.split("gpu").known(samples_in(name))
    deviation[samples < SAMPLES.value] = 0.0
    return deviation, mean, summed(gpu, lost, count)


def _means(owner: Index, values: Float64, weight: Float64, count: int = 0) -> Float64:
    total = summed(owner, weight, count)
    return summed(owner, values * weight, count) / np.maximum(total, 1e-9)


def throttled(case: Case) -> list[Finding]:
    """GPUs whose driver says that a limiter holds them down."""
    if not is_measured("throttle_pct", case.table):
        return []
    _, by_gpu = by_level(case.node, "gpu")
    share = case.figure("throttle_pct", by_gpu)
    held = np.flatnonzero(share.present() & (np.nan_to_num(share.numbers) >= THROTTLED.value))
    if not len(held):
        return []
    gpus = [case.gpus[place] for place in held.tolist()]
    lost = _lost_to_clock(case)
    free = np.setdiff1d(np.arange(len(case.gpus)), held)
    stake = None
    if lost is not None:
        usual = float(np.median(lost[free])) if len(free) else 0.0
        stake = max(float(lost[held].max()) - usual, 0.0)
    which = f"GPU{'s' if len(gpus) > 1 else ''} {places(gpus)}"
    most, least = (float(pick(share.numbers[held])) for pick in (np.max, np.min))
    size = f"{most:.0f} %" if most - least < 1 else f"{least:.0f} to {most:.0f} %"
    beyond = "" if stake is None else f"; its clock costs {time(stake)}{case.each}"
    if stake is not None and len(free):
        beyond += " more than that of the others"
    return [
        Finding(
            sentence=(
                f"{which} {'is' if len(gpus) == 1 else 'are'} throttled {size} of the time"
                f"{_limiter(case, gpus)}{beyond}"
            ),
            evidence=case.with_signal("throttle_pct"),
            confidence=confidence(read=False, repeated=case.repeats),
            stake_ns=stake,
            total_ns=None if stake is None else stake * len(gpus) * len(case.iterations),
        )
    ]


def _limiter(case: Case, gpus: list[int]) -> str:
    """Which limiter it is most, where the telemetry tells them apart."""
    if not any(name.startswith(LIMITER) for name in case.run.measured):
        return ""
    means: dict[str, float] = {}
    for own in samples_of(case.run, case.view):
        for name, values in own.signals.items():
            if own.gpu in gpus and name.startswith(LIMITER) and len(values):
                means[name] = max(means.get(name, 0.0), values.mean())
    if not means:
        return ""
    most = max(means, key=lambda name: means[name])
    return f", most by {most.removeprefix(LIMITER)} ({means[most]:.0f} %)"


def _lost_to_clock(case: Case) -> Float64 | None:
    """The time per iteration that each GPU loses to a clock below the nominal one."""
    _, by_gpu = by_level(case.node, "gpu")
    lost = case.figure("frequency_ns", by_gpu)
    if not lost.present().all():
        return None
    return lost.numbers.astype(np.float64) / len(case.iterations)
