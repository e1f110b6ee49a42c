"""Formulas over hardware counters: ratios of weighted sums, scaled by what the GPU is made of.

A counter is its sum over all instances, so GRBM_GUI_ACTIVE is the sum over the XCCs and the
cycles of the GPU are GRBM_GUI_ACTIVE / XCCs. A node's value is the ratio of the sums over those
of its activities that have every counter of the formula.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from math import nan
from typing import Final

import numpy as np
from msgspec import Struct, field

from chopper_core.metrics.metric import Metric, Scope, Values
from chopper_core.model.column_names import MATRIX_COUNTERS
from chopper_core.model.hardware import Hardware
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64

TIME: Final = "counter_duration_ns"
"""How long the dispatch took in the run that counted, where dispatches run one by one."""
CYCLES: Final = "GRBM_GUI_ACTIVE"
WAVES_PER_SIMD: Final = 8
MOPS: Final = "SQ_INSTS_VALU_MFMA_MOPS_"

_ELEMENTS: Final = {counter: element for element, counter in MATRIX_COUNTERS.items()}
_TERM: Final = re.compile(r"([+-]?)\s*([\d.]*)\s*([A-Za-z_]\w*)")
FABRIC: Final = ("TCC_EA0_", "TCC_EA_")
"""The counters of the fabric's interface: since gfx942, and on gfx90a."""
READS_OF_128_B: Final = "TCC_BUBBLE_sum"

Weights = Mapping[str, float]
"""Counter → factor: a weighted sum of counters."""


class Architecture(Struct, frozen=True):
    """What the GPUs of an architecture have in common."""

    engines_per_xcc: float = nan
    l2_channels_per_xcc: float = nan
    l1_line_bytes: float = nan
    """Line of the vector L1 caches, which they read from L2 as a whole."""
    mfma_types: tuple[str, ...] = ()
    """The types that the counters of MFMA operations are named by."""


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "gfx90a": Architecture(8, 32, 64, ("F16", "BF16", "F32", "F64", "I8")),
    "gfx942": Architecture(4, 16, 128, ("F8", "F16", "BF16", "F32", "F64", "I8")),
    "gfx950": Architecture(4, 16, 128, ("F6F4", "F8", "F16", "BF16", "F32", "F64", "I8")),
}


class Chip(Struct, frozen=True):
    """The numbers of a GPU that formulas use; NaN where they aren't known."""

    compute_units: float = nan
    simds_per_cu: float = nan
    xccs: float = nan
    clock_mhz: float = nan
    memory_gbps: float = nan
    flop_per_clk_cu: Mapping[str, float] = field(default_factory=dict)
    architecture: Architecture = field(default_factory=Architecture)

    @classmethod
    def of(cls, hardware: Hardware | None) -> Chip:
        """The numbers of a specification."""
        if hardware is None:
            return cls()
        return cls(
            hardware.compute_units or nan,
            hardware.simds_per_cu or nan,
            hardware.xccs or nan,
            hardware.clock_mhz or nan,
            hardware.memory_gbps or nan,
            hardware.flop_per_clk_cu,
            ARCHITECTURES.get(hardware.arch, Architecture()),
        )

    @property
    def shader_engines(self) -> float:
        """Shader engines of the GPU."""
        return self.architecture.engines_per_xcc * self.xccs

    @property
    def l2_channels(self) -> float:
        """Channels of the L2 caches of all XCCs."""
        return self.architecture.l2_channels_per_xcc * self.xccs

    @property
    def scalar_caches(self) -> float:
        """Scalar L1 caches: two compute units of a shader engine share one."""
        return float(np.ceil(self.compute_units / self.shader_engines / 2)) * self.shader_engines

    def flop_per_clk(self, dtype: str) -> float:
        """Peak of all matrix units for a type of their counters, NaN where there is none."""
        element = _ELEMENTS[f"{MOPS}{dtype}"] if dtype in self.architecture.mfma_types else None
        peak = nan if element is None else self.flop_per_clk_cu.get(element.text, nan)
        return peak * self.compute_units

    def float_types(self) -> tuple[str, ...]:
        """The floating-point types of the matrix units; empty for an unknown architecture."""
        return tuple(dtype for dtype in self.architecture.mfma_types if dtype != "I8")


_ANY_CHIP: Final = Chip(architecture=ARCHITECTURES["gfx942"])
"""Which counters a formula needs is said as for gfx942."""


@cache
def weights(text: str) -> Weights:
    """The weighted sum that a text such as `64 A + 32 B - C` writes; repeated terms add up."""
    found: dict[str, float] = {}
    for sign, factor, counter in _TERM.findall(text):
        found[counter] = found.get(counter, 0.0) + float(f"{sign}{factor or 1}")
    return found


class Formula(Struct, frozen=True):
    """A metric as `scale x part / whole`; without a whole it is a sum."""

    name: str
    unit: Unit
    title: str
    definition: str
    source: str
    part: str | Callable[[Chip], Weights]
    whole: str = ""
    scale: float | Callable[[Chip], float] = 1.0
    then: Callable[[Float64, Chip], Float64] | None = None
    """What is done to the ratio at the end."""

    def needs(self) -> tuple[str, ...]:
        """The counters without which there is no value, as they are called on gfx942."""
        return tuple({**self._part(_ANY_CHIP), **weights(self.whole)})

    @property
    def needs_specification(self) -> bool:
        """Whether the specification of the GPU is part of it."""
        return callable(self.part) or callable(self.scale)

    def metric(self) -> Metric:
        """The formula as a metric of the registry."""
        needed = list(self.needs())
        if any(counter.startswith(FABRIC[0]) for counter in needed):
            needed[-1] += f" ({FABRIC[1]}… on gfx90a)"
        if self.needs_specification:
            needed.append("the GPU's specification")
        return Metric(
            self.name,
            self.unit,
            self.title,
            "ratio of sums" if self.whole else "sum",
            self.definition,
            self.values,
            self.source,
            f"needs {_listed(needed)}",
        )

    def values(self, scope: Scope) -> Values:
        """The values of the nodes of a scope."""
        chip = Chip.of(scope.hardware)
        measured = scope.nodes.table.measured
        part = _as_named(self._part(chip), measured)
        whole = _as_named(weights(self.whole), measured)
        if not part:
            return Values(np.full(len(scope.nodes), nan), np.ones(len(scope.nodes), np.bool_))
        sums, known = scope.nodes.known_together(tuple({**part, **whole}))
        with np.errstate(divide="ignore", invalid="ignore"):
            numbers = _weighted(part, sums)
            if whole:
                numbers = numbers / _weighted(whole, sums)
            numbers = numbers * (self.scale(chip) if callable(self.scale) else self.scale)
            if self.then:
                numbers = self.then(numbers, chip)
        missing = (known == 0) | ~np.isfinite(numbers)
        return Values(np.where(missing, nan, numbers), missing)

    def _part(self, chip: Chip) -> Weights:
        return self.part(chip) if callable(self.part) else weights(self.part)


def per_cycle(factor: float) -> Callable[[Chip], float]:
    """Scale of what is divided by CYCLES: per cycle of the GPU."""
    return lambda chip: factor * chip.xccs


def per_cu_cycle(factor: float) -> Callable[[Chip], float]:
    """Scale of what is divided by CYCLES: per cycle of every compute unit."""
    return lambda chip: factor * chip.xccs / chip.compute_units


def per_engine_cycle(factor: float) -> Callable[[Chip], float]:
    """Scale of what is divided by cycles summed over the XCCs: per cycle of a shader engine."""
    return lambda chip: factor * chip.xccs / chip.shader_engines


def _weighted(terms: Weights, sums: Mapping[str, Float64]) -> Float64:
    total: Float64 = np.sum([factor * sums[counter] for counter, factor in terms.items()], axis=0)
    return total


def _as_named(terms: Weights, measured: Iterable[str]) -> Weights:
    """The terms by the names of the run: gfx90a has other ones, and no reads of 128 B."""
    newer, older = FABRIC
    if any(counter.startswith(newer) for counter in measured):
        return terms
    return {
        counter.replace(newer, older): factor
        for counter, factor in terms.items()
        if counter != READS_OF_128_B
    }


def _listed(words: list[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
