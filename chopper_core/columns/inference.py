"""Figures of serving: time to the first token, time and energy per output token.

The phase of a step and the requests of its batch come from the ranges of inference engines. What a
trace doesn't have is the arrival of requests: their time in a queue is in no figure.
"""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np

from chopper_core.columns.metric import Reduces, Scope, Theme, Values, metric, quotient
from chopper_core.model.column_names import ENERGY, REQUESTS
from chopper_core.model.groups import elapsed_of_rows
from chopper_core.model.parallel import SHARING
from chopper_core.model.table import Phase
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import sums_of

_NO_BATCH: Final = "no range of an inference engine names the batch of a {} step in the row"


def _of_phase(scope: Scope, phase: Phase) -> tuple[Float64, Float64, Float64, Float64]:
    """Of the row's steps of a phase: their time in ns, number, requests, and energy in J (NaN where
    that of any part is unknown)."""
    table, size = scope.nodes.table, len(scope.nodes)
    found = np.zeros((4, size))
    if (requests := table.measured.get(REQUESTS)) is None:
        return found[0], found[1], found[2], found[3]
    energy = table.measured.get(ENERGY)
    for rows, group in scope.nodes.pieces():
        own = np.flatnonzero(table.phase[rows] == phase)
        at = np.arange(rows.start, rows.stop)[own] if isinstance(rows, slice) else rows[own]
        asked, place = requests[at], group[own]
        is_known = np.isfinite(asked)
        joules = np.full(len(at), np.nan) if energy is None else energy[at]
        for line, values in enumerate(
            (elapsed_of_rows(table, at), is_known, np.where(is_known, asked, 0.0), joules)
        ):
            found[line] += sums_of(np.asarray(values, np.float64), place, size)
    return found[0], found[1], found[2], found[3]


@metric(
    "first_token_ns",
    Unit.NS,
    "TTFT",
    reduces=Reduces.RATIO,
    missing=_NO_BATCH.format("prefill"),
    theme=Theme.TIME,
)
def first_token(scope: Scope) -> Values:
    """Time to the first token: the time charged to the prefill steps over their number. Requests
    that wait for a step, or whose prompt takes several, wait longer: that isn't in a trace."""
    took, steps, _, _ = _of_phase(scope, Phase.PREFILL)
    return quotient(took, steps)


@metric(
    "output_token_ns",
    Unit.NS,
    "TPOT",
    reduces=Reduces.RATIO,
    missing=_NO_BATCH.format("decode"),
    theme=Theme.TIME,
)
def output_token(scope: Scope) -> Values:
    """Time per output token of a request: the time charged to the decode steps over their number;
    each gives every request of its batch a token."""
    took, steps, _, _ = _of_phase(scope, Phase.DECODE)
    return quotient(took, steps)


@metric(
    "output_token_j",
    Unit.JOULES,
    "J/out token",
    reduces=Reduces.RATIO,
    missing=f"{_NO_BATCH.format('decode')}, or telemetry of power doesn't cover them",
    theme=Theme.TELEMETRY,
)
def output_token_energy(scope: Scope) -> Values:
    """Energy per output token: that of the decode steps over the requests of their batches. GPUs
    that share requests (tensor, context and pipeline parallelism) are added up."""
    _, _, requests, joules = _of_phase(scope, Phase.DECODE)
    sizes = {} if scope.run is None or scope.run.parallel is None else scope.run.parallel.sizes
    return quotient(joules * prod(sizes.get(name, 1) for name in SHARING), requests)
