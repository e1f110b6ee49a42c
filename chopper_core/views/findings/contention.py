"""Operations that are much slower while communication runs beside them."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from chopper_core.model.table import NO_LABEL
from chopper_core.views.findings.context import Case, combined
from chopper_core.views.findings.finding import Finding, confidence
from chopper_core.views.findings.phrases import percent, time
from chopper_core.views.findings.thresholds import (
    CONTENTION,
    CONTENTION_STAKE,
    CORRELATION,
)
from chopper_core.views.shared.instances import effect, overlaps_in, slowdown


def contention(case: Case) -> list[Finding]:
    """Operations of layers whose instances take longer the more communication runs beside them.

    Without layers an operation has one instance per phase and iteration, and nothing is alike.
    """
    if case.of is not None:
        return []
    found = overlaps_in(case.run, case.view)
    counted = np.isin(found.codes("iteration"), case.iterations)
    found = found.take(counted & (found.codes("layer") != NO_LABEL))
    if not len(found) or not found.comm_ns.any():
        return []
    pairs, owner = combined([found.codes("phase"), found.codes("operation")])
    ratio, cost = (np.nan_to_num(values) for values in slowdown(found, owner, len(pairs)))
    least = CONTENTION_STAKE.value / 100 * case.step_ns * len(case.gpus) * len(case.iterations)
    chosen = (ratio >= 1 + CONTENTION.value / 100) & (cost >= least)
    if not chosen.any():
        return []
    known = effect(found, owner, len(pairs))
    chosen &= np.nan_to_num(known.pearson) >= CORRELATION.value
    findings = []
    for place in np.flatnonzero(chosen).tolist():
        phase, operation = (
            case.text(level, code)
            for level, code in zip(("phase", "operation"), pairs[place], strict=True)
        )
        stake = case.per_iteration(float(cost[place]))
        evidence = case.with_view("overlap", "instance", phase=phase, operation=operation)
        findings.append(
            Finding(
                sentence=(
                    f"{operation} in {phase} takes {percent(float(known.slowdown[place]) - 1)} "
                    "longer with much communication beside it than with little on the same GPU "
                    f"(r = {known.pearson[place]:.2f}): {time(stake)}{case.each}{case.on_each}"
                ),
                evidence=replace(evidence, sort="-instance_ns"),
                confidence=confidence(read=False, repeated=case.repeats),
                stake_ns=stake,
                total_ns=float(cost[place]),
            )
        )
    return findings
