"""Operations that take longer in one layer, or in one iteration, than in the others."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.table import NO_LABEL
from chopper_core.model.view import View, complete_order
from chopper_core.query.outliers import MAD_TO_SIGMA
from chopper_core.util.arrays import Float64, Mask
from chopper_core.util.grouping import ranked, stable_order
from chopper_core.views.findings.context import Case, labelled, summed
from chopper_core.views.findings.finding import Finding, confidence
from chopper_core.views.findings.iterations import slow_iterations
from chopper_core.views.findings.phrases import percent, time
from chopper_core.views.findings.thresholds import (
    CONSISTENT,
    FEWEST,
    LEAST_SPREAD,
    ROBUST_Z,
    SLOWER,
    SMALLEST_STAKE,
)

_NAMED = 3


class Slow(Struct, frozen=True):
    """An operation of a phase that takes longer in one layer, or iteration, than in the others."""

    phase: int
    operation: int
    where: int
    """The layer or the iteration."""
    ratio: float
    excess_ns: float
    """Summed over GPUs and iterations."""


def slow_in_a_layer(case: Case) -> list[Finding]:
    """Operations with a layer in which they take longer, on every GPU and in every iteration."""
    found: dict[tuple[int, int], list[Slow]] = {}
    for slow in _slow(case, "layer"):
        found.setdefault((slow.operation, slow.where), []).append(slow)
    return [
        finding
        for (operation, layer), parts in found.items()
        for finding in _told(case, parts, f"layer {layer}", "layers", _by(case, operation, "layer"))
    ]


def slow_in_an_iteration(case: Case) -> list[Finding]:
    """Operations with an iteration in which they take longer, on every GPU.

    An iteration that is slow as a whole is another finding.
    """
    iterations, _, slow = slow_iterations(case)
    found: dict[int, list[Slow]] = {}
    for one in _slow(case, "iteration"):
        if one.where not in iterations[slow]:
            found.setdefault(one.where, []).append(one)
    findings = []
    for iteration, parts in found.items():
        if len({part.operation for part in parts}) == 1:
            evidence = _by(case, parts[0].operation, "iteration")
        else:
            view = case.at(iteration=str(iteration))
            evidence = replace(view, order=_split(view, "operation"), sort="-kernel_ns")
        findings += _told(case, parts, f"iteration {iteration}", "iterations", evidence)
    return findings


def _told(case: Case, parts: list[Slow], where: str, others: str, evidence: View) -> list[Finding]:
    total = sum(part.excess_ns for part in parts)
    stake = case.per_iteration(total)
    if case.share(stake) < SMALLEST_STAKE.value / 100:
        return []
    names = {part.operation: case.text("operation", part.operation) for part in parts}
    parts = sorted(parts, key=lambda part: -part.excess_ns)
    one = len(names) == 1
    sizes = labelled(
        (
            f"{percent(part.ratio - 1)} longer"
            f"{'' if one else f' {names[part.operation]}'} in {case.text('phase', part.phase)}"
            for part in parts
        ),
        _NAMED,
    )
    said = f"{next(iter(names.values()))} takes" if one else f"{len(names)} operations take"
    return [
        Finding(
            sentence=(
                f"{said} longer in {where} than in the other {others}: {sizes}; "
                f"{time(stake)}{case.each}{case.on_each}"
            ),
            evidence=evidence,
            confidence=confidence(read=True, repeated=case.repeats),
            stake_ns=stake,
            total_ns=total,
        )
    ]


def _by(case: Case, operation: int, level: str) -> View:
    """The layers, or iterations, of an operation by the mean of their kernels."""
    view = case.at(operation=case.text("operation", operation))
    columns = ("mean_ns", "max_ns", "kernels", "kernel_ns")
    return replace(view, order=_split(view, level), columns=columns, sort="-mean_ns")


def _split(view: View, level: str) -> tuple[str, ...]:
    """The order in which a view's node is split by a level, if that is not above it."""
    levels = [name for name, _ in view.scope]
    return view.order if level in levels else complete_order([*levels, level])


def _slow(case: Case, level: str) -> list[Slow]:
    """Every operation and phase with a layer, or iteration, that stands out from the others."""
    codes = case.codes(level)
    chosen = np.flatnonzero(case.computes & (codes != NO_LABEL))
    if not len(chosen):
        return []
    pairs, every = case.together("phase", "operation")
    owner, codes = every[chosen], codes[chosen]
    duration = case.cells.sum("duration_ns")[chosen].astype(np.float64)
    spot = case.gpu_place[chosen]
    spots = len(case.gpus)
    if level == "layer":
        spot = spot * len(case.iterations) + case.iteration_place[chosen]
        spots *= len(case.iterations)
    least = case.step_ns * SMALLEST_STAKE.value / 100
    totals = summed(owner, duration, len(pairs)) / (len(case.gpus) * len(case.iterations))
    order = stable_order(owner)
    ends = np.cumsum(np.bincount(owner, minlength=len(pairs)))
    slow: list[Slow] = []
    for pair in np.flatnonzero(totals > least).tolist():
        own = order[ends[pair - 1] if pair else 0 : ends[pair]]
        columns, column = ranked(codes[own])
        if len(columns) < FEWEST.value:
            continue
        cell = spot[own] * len(columns) + column
        times = summed(cell, duration[own], spots * len(columns)).reshape(spots, len(columns))
        # Where a GPU or an iteration lacks one of them, there is nothing to compare.
        times = times[(times > 0).all(axis=1)]
        for place in np.flatnonzero(_outlying(times)).tolist() if len(times) else ():
            usual = _middle(np.delete(times, place, axis=1))
            slow.append(
                Slow(
                    phase=int(pairs[pair][0]),
                    operation=int(pairs[pair][1]),
                    where=int(columns[place]),
                    ratio=float(times[:, place].sum() / usual.sum()),
                    excess_ns=float((times[:, place] - usual).sum() * spots / len(times)),
                )
            )
    return slow


def _middle(rows: Float64) -> Float64:
    """The median of each row; numbers are known."""
    ordered = np.sort(rows, axis=1)
    count = rows.shape[1]
    middle: Float64 = (ordered[:, (count - 1) // 2] + ordered[:, count // 2]) / 2
    return middle


def _outlying(times: Float64) -> Mask:
    """Which columns stand out in most rows, by their distance from the columns' median."""
    relative = times / _middle(times)[:, None]
    typical = _middle(relative.T)
    middle = float(np.median(typical))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(typical - middle)))
    spread = max(spread, LEAST_SPREAD.value / 100 * middle)
    limit = middle + max(ROBUST_Z.value * spread, SLOWER.value / 100 * middle)
    there: Mask = (relative > limit).mean(axis=0) >= CONSISTENT.value / 100
    return there & (typical > limit)
