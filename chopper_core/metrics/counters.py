"""Metrics of hardware counters, by AMD's definitions for gfx90a, gfx942 and gfx950."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

from chopper_core.metrics.counters_compute import COMPUTE
from chopper_core.metrics.counters_formula import FABRIC, READS_OF_128_B
from chopper_core.metrics.counters_memory import MEMORY
from chopper_core.metrics.counters_waits import WAITS
from chopper_core.metrics.metric import Metric

_FORMULAS: Final = (*COMPUTE, *WAITS, *MEMORY)

METRICS: Final[tuple[Metric, ...]] = tuple(formula.metric() for formula in _FORMULAS)

NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    formula.name: formula.needs() for formula in _FORMULAS
}
"""Metric → what it is worked out from; counters are named as on gfx942."""


NEEDS_SPECIFICATION: Final = frozenset(
    formula.name for formula in _FORMULAS if formula.needs_specification
)
"""Metrics that need more of the GPU than its counters."""


def lacking(name: str, measured: Container[str]) -> tuple[str, ...]:
    """What a metric is worked out from and isn't measured; on gfx90a by its older names."""
    names = list(NEEDS.get(name, ()))
    older = {counter: counter.replace(*FABRIC) for counter in names}
    if any(older[counter] in measured for counter in names if older[counter] != counter):
        names = [older[counter] for counter in names if counter != READS_OF_128_B]
    return tuple(counter for counter in names if counter not in measured)
