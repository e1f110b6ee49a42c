"""Iterations that take longer than the others, and what of them does."""

from __future__ import annotations

import numpy as np

from chopper_core.model.table import NO_LABEL
from chopper_core.query.outliers import MAD_TO_SIGMA
from chopper_core.util.arrays import Float64, Index, Int64
from chopper_core.views.findings.context import Case, labelled, summed
from chopper_core.views.findings.finding import Finding, confidence
from chopper_core.views.findings.phrases import count, time
from chopper_core.views.findings.thresholds import FEWEST, ITERATION, LEAST_SPREAD, ROBUST_Z

_PARTS = {
    "compute": ("compute_ns", "overlap_ns"),
    "communication without compute": ("exposed_comm_ns",),
    "copies": ("exposed_copy_ns",),
    "idle before launch calls": ("idle_host_ns",),
    "other idle time": ("idle_launch_ns", "idle_unknown_ns"),
}


def differing_iterations(case: Case) -> list[Finding]:
    """Iterations that take longer than the others, and what of them does.

    The run's first iteration warms up; it is no surprise that it takes long.
    """
    iterations, took, slow = slow_iterations(case)
    if not len(slow):
        return []
    usual = float(np.median(took))
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
            evidence=case.with_view("throughput", "iteration"),
            confidence=confidence(read=True, repeated=not one),
            stake_ns=float(lost.sum()) / len(iterations),
            total_ns=float(lost.sum()) * len(case.gpus),
        )
    ]


def slow_iterations(case: Case) -> tuple[Int64, Float64, Index]:
    """All whole iterations, how long they take, and the places of those that take longer."""
    iterations, took = case.all_iterations, case.took_ns
    none = np.zeros(0, np.intp)
    if len(iterations) < FEWEST.value:
        return iterations, took, none
    labelled_rows = case.run.table.iteration[case.run.table.iteration != NO_LABEL]
    first = int(labelled_rows.min()) if len(labelled_rows) else NO_LABEL
    usual = float(np.median(took))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(took - usual)))
    spread = max(spread, LEAST_SPREAD.value / 100 * usual)
    limit = usual + max(ROBUST_Z.value * spread, ITERATION.value / 100 * usual)
    return iterations, took, np.flatnonzero((took > limit) & (iterations != first))


def _grown(case: Case, slow: Index) -> tuple[str, float]:
    """What slow iterations have more of than the others, and how much, mean over GPUs and them."""
    cells = case.by_iteration
    place = np.unique(cells.codes("iteration"), return_inverse=True)[1]
    gpus = len(np.unique(cells.codes("gpu")))
    grown = {}
    for word, names in _PARTS.items():
        each = np.sum([summed(place, cells.sum(name)) for name in names], axis=0) / gpus
        grown[word] = float((each[slow] - np.median(each)).mean())
    largest = max(grown, key=lambda word: grown[word])
    return largest, grown[largest]
