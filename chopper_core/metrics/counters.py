"""Metrics of hardware counters, by AMD's definitions for gfx90a, gfx942 and gfx950."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chopper_core.metrics.counters_compute import COMPUTE
from chopper_core.metrics.counters_memory import MEMORY
from chopper_core.metrics.counters_waits import WAITS
from chopper_core.metrics.metric import Metric

_FORMULAS: Final = (*COMPUTE, *WAITS, *MEMORY)

METRICS: Final[tuple[Metric, ...]] = tuple(formula.metric() for formula in _FORMULAS)

NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    formula.name: formula.needs() for formula in _FORMULAS
}
"""Metric → what it is worked out from; counters are named as on gfx942."""
