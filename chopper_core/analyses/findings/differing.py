"""Operations that take longer in one layer than in the others, and iterations that do."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from chopper_core.analyses.findings.case import (
    Case,
    Float64,
    Index,
    Mask,
    iteration_times,
    labelled,
    summed,
)
from chopper_core.analyses.findings.finding import Finding, confidence
from chopper_core.analyses.findings.thresholds import (
    CONSISTENT,
    FEWEST,
    ITERATION,
    LEAST_SPREAD,
    ROBUST_Z,
    SLOWER,
    SMALLEST_STAKE,
)
from chopper_core.analyses.findings.wording import count, percent, time
from chopper_core.outliers import MAD_TO_SIGMA
from chopper_core.schema import NO_LABEL, Kind
from chopper_core.view import View, complete_order

_PARTS = {
    "compute": ("compute_ns", "overlap_ns"),
    "communication without compute": ("exposed_comm_ns",),
    "copies": ("exposed_copy_ns",),
    "idle before launch calls": ("idle_host_ns",),
    "other idle time": ("idle_launch_ns", "idle_unknown_ns"),
}


@dataclass(frozen=True, slots=True)
class Slow:
    """An operation of a phase in a layer that takes longer than in the others."""

    phase: int
    operation: int
    layer: int
    ratio: float
    excess_ns: float
    """Summed over GPUs and iterations."""


def differing_layers(case: Case) -> list[Finding]:
    """Operations with a layer in which they take longer, on every GPU and in every iteration."""
    found: dict[tuple[int, int], list[Slow]] = {}
    for slow in _slow_layers(case):
        found.setdefault((slow.operation, slow.layer), []).append(slow)
    findings = []
    for (operation, layer), parts in found.items():
        total = sum(part.excess_ns for part in parts)
        stake = case.per_iteration(total)
        if case.share(stake) < SMALLEST_STAKE.value / 100:
            continue
        name = case.text("operation", operation)
        in_phases = labelled(
            f"{percent(part.ratio - 1)} longer in {case.text('phase', part.phase)}"
            for part in parts
        )
        findings.append(
            Finding(
                sentence=(
                    f"{name} takes longer in layer {layer} than in the other layers: {in_phases}; "
                    f"{time(stake)}{case.each} on each GPU"
                ),
                evidence=_by_layer(case, name),
                confidence=confidence(read=True, repeated=case.repeats),
                stake_ns=stake,
                total_ns=total,
            )
        )
    return findings


def _by_layer(case: Case, operation: str) -> View:
    """The layers of an operation by the mean of their kernels."""
    view = case.at(operation=operation)
    levels = [level for level, _ in view.scope]
    return replace(
        view,
        order=view.order if "layer" in levels else complete_order([*levels, "layer"]),
        columns=("mean_ns", "max_ns", "kernels", "kernel_ns"),
        sort="-mean_ns",
    )


def _slow_layers(case: Case) -> list[Slow]:
    """Every operation, phase and layer that stands out from the operation's other layers."""
    layer = case.codes("layer")
    compute = case.cells.min("kind") == Kind.COMPUTE
    chosen = np.flatnonzero(compute & (layer != NO_LABEL))
    if not len(chosen):
        return []
    pairs, every = case.together("phase", "operation")
    owner = every[chosen]
    duration = case.cells.sum("duration_ns")[chosen].astype(np.float64)
    spots = len(case.gpus) * len(case.iterations)
    spot = (case.gpu_place * len(case.iterations) + case.iteration_place)[chosen]
    least = case.step_ns * SMALLEST_STAKE.value / 100 / len(pairs) ** 0.5
    totals = summed(owner, duration) / spots
    slow: list[Slow] = []
    for pair in np.flatnonzero(totals > least).tolist():
        own = np.flatnonzero(owner == pair)
        layers, column = np.unique(layer[chosen][own], return_inverse=True)
        if len(layers) < FEWEST.value:
            continue
        times = np.full((spots, len(layers)), np.nan)
        times[spot[own], column.ravel()] = duration[own]
        times = times[np.isfinite(times).all(axis=1)]
        for place in np.flatnonzero(_outlying(times)).tolist() if len(times) else ():
            usual = np.median(np.delete(times, place, axis=1), axis=1)
            slow.append(
                Slow(
                    phase=int(pairs[pair][0]),
                    operation=int(pairs[pair][1]),
                    layer=int(layers[place]),
                    ratio=float(times[:, place].sum() / usual.sum()),
                    excess_ns=float((times[:, place] - usual).sum() * spots / len(times)),
                )
            )
    return slow


def _outlying(times: Float64) -> Mask:
    """Which columns stand out in most rows, by their distance from the columns' median."""
    relative = times / np.median(times, axis=1, keepdims=True)
    typical = np.median(relative, axis=0)
    middle = float(np.median(typical))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(typical - middle)))
    spread = max(spread, LEAST_SPREAD.value / 100 * middle)
    limit = middle + max(ROBUST_Z.value * spread, SLOWER.value / 100 * middle)
    there: Mask = (relative > limit).mean(axis=0) >= CONSISTENT.value / 100
    return there & (typical > limit)


def differing_iterations(case: Case) -> list[Finding]:
    """Iterations that take longer than the others, and what of them does.

    The run's first iteration warms up; it is no surprise that it takes long.
    """
    iterations, took = iteration_times(case.whole)
    first = int(np.unique(case.run.table.iteration[case.run.table.iteration != NO_LABEL])[0])
    if len(iterations) <= FEWEST.value:
        return []
    usual = float(np.median(took))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(took - usual)))
    spread = max(spread, LEAST_SPREAD.value / 100 * usual)
    limit = usual + max(ROBUST_Z.value * spread, ITERATION.value / 100 * usual)
    slow = np.flatnonzero((took > limit) & (iterations != first))
    if not len(slow):
        return []
    slow = slow[np.argsort(-took[slow], kind="stable")]
    lost = took[slow] - usual
    word, grown = _grown(case, slow)
    named = labelled((f"{iterations[place]} {time(took[place])}" for place in slow), 3)
    one = len(slow) == 1
    return [
        Finding(
            sentence=(
                f"{count(len(slow), 'iteration')} of {len(iterations)} "
                f"{'takes' if one else 'take'} longer than usual ({time(usual)}): iteration "
                f"{named}; most of it is {word}, {time(grown)} more per GPU"
                f"{'' if one else ' and slow iteration'}"
            ),
            evidence=case.asking("throughput", "iteration"),
            confidence=confidence(read=True, repeated=not one),
            stake_ns=float(lost.sum()) / len(iterations),
            total_ns=float(lost.sum()) * len(case.gpus),
        )
    ]


def _grown(case: Case, slow: Index) -> tuple[str, float]:
    """What slow iterations have more of than the others, and how much, mean over GPUs and them."""
    cells, _ = case.whole.split(("gpu", "iteration"))
    place = np.unique(cells.codes("iteration"), return_inverse=True)[1]
    gpus = len(np.unique(cells.codes("gpu")))
    grown = {}
    for word, names in _PARTS.items():
        each = np.sum([summed(place, cells.sum(name)) for name in names], axis=0) / gpus
        grown[word] = float((each[slow] - np.median(each)).mean())
    largest = max(grown, key=lambda word: grown[word])
    return largest, grown[largest]
