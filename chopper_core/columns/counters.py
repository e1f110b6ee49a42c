"""Metrics of hardware counters: ratios of weighted sums, scaled by the GPU's specification.

A counter is its sum over all instances, so GRBM_GUI_ACTIVE is the sum over the XCCs and the
cycles of the GPU are GRBM_GUI_ACTIVE / XCCs. A node's value is the ratio of the sums over those
of its activities that have every counter of the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from functools import cache, partial
from math import nan, prod
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.columns.metric import (
    METRICS,
    Metric,
    Reduces,
    Scope,
    Theme,
    Values,
    absent,
    metric,
    records,
    register,
    time_weighted,
)
from chopper_core.model.column_names import (
    COUNTER_MATCH,
    COUNTS_PER_US,
    MATRIX_COUNTERS,
    OPS_PER_COUNT,
    SAMPLED,
    Match,
    part_of,
)
from chopper_core.model.hardware import ONE_INSTANCE, SUM, CounterInfo, Hardware, counter_info
from chopper_core.model.signals import Signal, between
from chopper_core.model.table import Category, KernelTable, Kind, Selection
from chopper_core.model.units import Unit, unit_of_file
from chopper_core.util.arrays import Float64, Int64, Mask
from chopper_core.util.patterns import late

_NS_PER_US: Final = 1000.0
TIME: Final = "counter_duration_ns"
"""Duration of the dispatch in the counter run, which runs dispatches one by one."""
_WAVES_PER_SIMD: Final = 8
_CLOCK_LIMIT: Final = 1.1
_MOPS: Final = "SQ_INSTS_VALU_MFMA_MOPS_"
_PEAK_OF_TYPE: Final = "_flop_per_clk"
"""Ends the name of a chip's peak for a type: `BF16_flop_per_clk`."""
_PANELS: Final = "rocprof-compute gfx942"

_ELEMENTS: Final = {counter: element for element, counter in MATRIX_COUNTERS.items()}
_TERM: Final = late(r"([+-]?)\s*([\d.]*)\s*([A-Za-z_]\w*)")
_FORMULA: Final = late(r".*: (?:(\d+) x )?\(?([\w +-]+?)\)?(?: / \(?([\w +-]+?)\)?)?\.")
"""`: 100 x A / (B + C).` at the end of a definition: a factor, a part, a whole."""
_TERA: Final = ("TFLOP/s", "TOP/s")
"""Units of what counts per ns give when divided by 1000."""
FABRIC: Final = ("TCC_EA0_", "TCC_EA_")
"""Prefixes of the counters of the fabric's interface: since gfx942, and on gfx90a."""
READS_OF_128_B: Final = "TCC_BUBBLE_sum"

_ADDITIVE: Final = (SUM, ONE_INSTANCE)
_COUNTS: Final = late(r"Wavefronts$|TOTAL_\w+_OPS$")
_AMOUNTS: Final = ("KB",)
"""Units of derived counters that can be added up."""

_ENOUGH_FOR_A_RATIO: Final = 0.9
"""The share of a node's kernels that must have the counters, or a ratio is marked."""

Weights = Mapping[str, float]
"""Counter → factor: a weighted sum of counters."""


class Architecture(Struct, frozen=True):
    """The numbers that all GPUs of an architecture share."""

    engines_per_xcc: float = nan
    l2_channels_per_xcc: float = nan
    l1_line_bytes: float = nan
    """Line of the vector L1 caches, the unit of their reads from L2."""
    mfma_types: tuple[str, ...] = ()
    """The types in the names of the counters of MFMA operations."""


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "gfx90a": Architecture(8, 32, 64, ("F16", "BF16", "F32", "F64", "I8")),
    "gfx942": Architecture(4, 16, 128, ("F8", "F16", "BF16", "F32", "F64", "I8")),
    "gfx950": Architecture(4, 16, 128, ("F6F4", "F8", "F16", "BF16", "F32", "F64", "I8")),
}


class Chip(Struct, frozen=True):
    """The numbers of a GPU that formulas use; NaN where unknown."""

    hardware: Hardware | None
    architecture: Architecture

    @property
    def shader_engines(self) -> float:
        return self.architecture.engines_per_xcc * self.number("xccs")

    @property
    def l2_channels(self) -> float:
        return self.architecture.l2_channels_per_xcc * self.number("xccs")

    @property
    def scalar_caches(self) -> float:
        """Scalar L1 caches: two compute units of a shader engine share one."""
        engines = self.shader_engines
        return float(np.ceil(self.number("compute_units") / engines / 2)) * engines

    def flop_per_clk(self, dtype: str) -> float:
        """Peak of all matrix units for a type of their counters, NaN where unknown."""
        if dtype not in self.architecture.mfma_types or self.hardware is None:
            return nan
        element = _ELEMENTS[f"{_MOPS}{dtype}"]
        per_unit = self.hardware.flop_per_clk_cu.get(element.text, nan)
        return per_unit * self.number("compute_units")

    def number(self, text: str) -> float:
        """A number of a formula, or that of the chip which its name stands for."""
        if not text[0].isalpha():
            return float(text)
        if text.endswith(_PEAK_OF_TYPE):
            return self.flop_per_clk(text.removesuffix(_PEAK_OF_TYPE))
        known: float = getattr(self.hardware, text, 0.0)
        return known or getattr(self, text, getattr(self.architecture, text, nan))

    def float_types(self) -> tuple[str, ...]:
        """The floating-point types of the matrix units; empty for an unknown architecture."""
        return tuple(dtype for dtype in self.architecture.mfma_types if dtype != "I8")


_ANY_CHIP: Final = Chip(None, ARCHITECTURES["gfx942"])
"""The counters of a formula are listed as for gfx942."""


@cache
def weights(text: str) -> Weights:
    """The weighted sum of a text such as `64 A + 32 B - C`; repeated terms add up."""
    found: dict[str, float] = {}
    for sign, factor, counter in _TERM.findall(text):
        found[counter] = found.get(counter, 0.0) + float(f"{sign}{factor or 1}")
    return found


class Formula(Struct, frozen=True):
    """The computation of `scale * part / whole`; without a whole it is a sum."""

    part: str
    """A weighted sum of counters, or the name of one that depends on the chip."""
    whole: str
    scale: str
    """Numbers, and the names of a chip's: `100 xccs / compute_units`."""
    then: Callable[[Float64, Chip], Float64] | None

    def counters(self) -> tuple[str, ...]:
        """The counters without which there is no value, as they are called on gfx942."""
        return tuple({**self.parts(_ANY_CHIP), **weights(self.whole)})

    @property
    def needs_hardware(self) -> bool:
        return self.part in _PARTS_OF_CHIP or any(map(str.isidentifier, self.scale.split()))

    def __call__(self, scope: Scope) -> Values:
        arch = scope.hardware.arch if scope.hardware else ""
        chip = Chip(scope.hardware, ARCHITECTURES.get(arch, Architecture()))
        measured = scope.nodes.table.measured
        part = _renamed(self.parts(chip), measured)
        whole = _renamed(weights(self.whole), measured)
        if not part:
            return absent(len(scope.nodes))
        sums, known = scope.nodes.known_together(tuple({**part, **whole}))
        numbers = self.of(part, whole, sums, chip)
        covers = _partial(scope, known, is_ratio=bool(whole))
        missing = (known == 0) | ~np.isfinite(numbers)
        return Values(np.where(missing, nan, numbers), missing, covers)

    def of(self, part: Weights, whole: Weights, sums: Mapping[str, Float64], chip: Chip) -> Float64:
        """The values for sums of the counters of its part and whole."""
        with np.errstate(divide="ignore", invalid="ignore"):
            numbers = _weighted(part, sums)
            if whole:
                numbers = numbers / _weighted(whole, sums)
            numbers = numbers * self.factor(chip)
            return self.then(numbers, chip) if self.then else numbers

    def parts(self, chip: Chip) -> Weights:
        made = _PARTS_OF_CHIP.get(self.part)
        return made(chip) if made else weights(self.part)

    def factor(self, chip: Chip) -> float:
        above, _, below = self.scale.partition("/")
        return prod(map(chip.number, above.split())) / prod(map(chip.number, below.split()))


def formulas(text: str) -> None:
    """Register the metrics that a text declares.

    The first line of each is `name | unit | title | source`, then comes the definition, which
    ends with the formula, or is followed by `= scale * part / whole`. Part and whole are weighted
    sums of counters (`64 A - B`); a part may be the name of a sum that the text declares before.
    Without a whole the metric is a sum. `_THEN` is applied to the result.
    """
    sums: dict[str, str] = {}
    for record in records(text):
        heading, *lines = map(str.strip, record.splitlines())
        name, unit, title, source = map(str.strip, heading.split("|"))
        described = " ".join(lines)
        definition, is_given, computed = described.rpartition(" = ")
        if is_given:
            scale, _, ratio = computed.rpartition(" * ")
            part, _, whole = ratio.partition(" / ")
        else:
            definition, (scale, part, whole) = computed, _stated(computed, unit)
        part = sums.get(part, part)
        if not whole:
            sums[name] = part
        compute = Formula(part, whole, scale, _THEN.get(name))
        needed = list(compute.counters())
        if any(counter.startswith(FABRIC[0]) for counter in needed):
            needed[-1] += f" ({FABRIC[1]}… on gfx90a)"
        if compute.needs_hardware:
            needed.append("the GPU's specification")
        register(
            Metric(
                name,
                Unit(unit),
                title,
                Reduces.RATIO if whole else Reduces.SUM,
                definition,
                compute,
                f"{_PANELS} {source}" if source.startswith("panel") else source,
                f"needs {_listed(needed)}",
                theme=Theme.COUNTERS,
                needs_times=False,
                counters=compute.counters(),
                needs_hardware=compute.needs_hardware,
            )
        )


def _stated(definition: str, unit: str) -> tuple[str, str, str]:
    """Scale, part and whole of the formula that ends a definition; raises ValueError without."""
    found = _FORMULA.fullmatch(definition.replace(" accumulated over the cycles", "_ACCUM"))
    if found is None:
        raise ValueError(f"no formula ends: {definition}")
    factor, part, whole = (text or "" for text in found.groups())
    scale, whole = _WHOLES.get(whole, ("", whole))
    return f"{factor} {'0.001' if unit in _TERA else scale}".strip(), part, whole


def _active_cus(slots: Float64, chip: Chip) -> Float64:
    """AMD's count of active compute units from 4 x the mean number of busy ones."""
    waves_per_cu = _WAVES_PER_SIMD * chip.number("simds_per_cu")
    busy = np.rint(slots)
    active = busy / waves_per_cu * 8 + np.minimum(busy % waves_per_cu, 8)
    return np.floor(np.minimum(active, chip.number("compute_units")))


def _possible_clock(mhz: Float64, chip: Chip) -> Float64:
    return np.where(mhz > _CLOCK_LIMIT * chip.number("clock_mhz"), nan, mhz)


def _gap_to_nominal(share: Float64, _: Chip) -> Float64:
    """Missing where the clock would be impossible: the counted cycles outlast a short kernel."""
    return np.where(share > 100.0 * _CLOCK_LIMIT, nan, 100.0 - share)


_THEN: Final[Mapping[str, Callable[[Float64, Chip], Float64]]] = {
    "counter_mhz": _possible_clock,
    "active_cus": _active_cus,
    "remote_read_pct": lambda share, _: np.maximum(share, 0.0),
    "nominal_gap_pct": _gap_to_nominal,
}
_WHOLES: Final[Mapping[str, tuple[str, str]]] = {
    "duration": ("", TIME),
    "GPU cycles": ("xccs", "GRBM_GUI_ACTIVE"),
    "GPU cycles x CUs": ("xccs / compute_units", "GRBM_GUI_ACTIVE"),
    "GPU cycles x CUs x SIMDs": ("xccs / compute_units simds_per_cu", "GRBM_GUI_ACTIVE"),
    "GPU cycles x channels": ("xccs / l2_channels", "GRBM_GUI_ACTIVE"),
    "GRBM_SPI_BUSY per XCC x shader engines": ("xccs / shader_engines", "GRBM_SPI_BUSY"),
}
"""Wholes of definitions in words: what else scales the ratio, and the counter."""
_PARTS_OF_CHIP: Final[Mapping[str, Callable[[Chip], Weights]]] = {
    "MATRIX_FLOP": lambda chip: {f"{_MOPS}{dtype}": OPS_PER_COUNT for dtype in chip.float_types()},
    # The cycles of the counted operations at the peak of their types.
    "MATRIX_CYCLES": lambda chip: {
        f"{_MOPS}{dtype}": OPS_PER_COUNT / chip.flop_per_clk(dtype) for dtype in chip.float_types()
    },
    "L1_L2_BYTES": lambda chip: {
        "TCP_TCC_READ_REQ_sum": chip.architecture.l1_line_bytes,
        "TCP_TCC_WRITE_REQ_sum": 64.0,
        "TCP_TCC_ATOMIC_WITH_RET_REQ_sum": 64.0,
        "TCP_TCC_ATOMIC_WITHOUT_RET_REQ_sum": 64.0,
    },
}


def sampled_figures(measured: Mapping[str, Signal], hardware: Hardware | None) -> dict[str, Signal]:
    """The ratios of counters that were sampled together, over time, by their metrics.

    Each value is that of the counts between two samples.
    """
    prefix = f"{COUNTS_PER_US}."
    counted = {
        name.removeprefix(prefix): signal.curves
        for name, signal in measured.items()
        if name.startswith(prefix)
    }
    if not counted:
        return {}
    chip = Chip(hardware, ARCHITECTURES.get(hardware.arch if hardware else "", Architecture()))
    found = {}
    for each in METRICS.values():
        formula = each.compute
        if not (isinstance(formula, Formula) and formula.whole and isinstance(each.unit, Unit)):
            continue
        part = _renamed(formula.parts(chip), counted)
        whole = _renamed(weights(formula.whole), counted)
        names = {*part, *whole} - {TIME}
        if not part or not names <= counted.keys():
            continue
        curves = {}
        for gpu in set.intersection(*(set(counted[name]) for name in names)):
            of_gpu = {name: counted[name][gpu] for name in names}
            edges, *others = (curve.edges_ns for curve in of_gpu.values())
            if all(np.array_equal(edges, other) for other in others):
                rates = {name: curve.interval_values() for name, curve in of_gpu.items()}
                rates[TIME] = np.full(len(edges) // 2, _NS_PER_US)
                values = formula.of(part, whole, rates, chip)
                if np.isfinite(values).any():
                    curves[gpu] = between(edges[::2], edges[1::2], values)
        if curves:
            name = part_of(SAMPLED, each.name)
            every = np.concatenate([curve.interval_values() for curve in curves.values()])
            low, high = float(np.nanmin(every)), float(np.nanmax(every))
            is_share = each.unit is Unit.PERCENT
            bounds = (0.0, max(high, 100.0)) if is_share else (min(low, 0.0), high)
            title = each.title.removesuffix("%").rstrip()
            found[name] = Signal(name, title, each.unit, curves, *bounds)
    return found


def _weighted(terms: Weights, sums: Mapping[str, Float64]) -> Float64:
    total: Float64 = np.sum([factor * sums[counter] for counter, factor in terms.items()], axis=0)
    return total


def _renamed(terms: Weights, measured: Iterable[str]) -> Weights:
    """The terms under the run's counter names: gfx90a has older ones, and no reads of 128 B."""
    newer, older = FABRIC
    if any(counter.startswith(newer) for counter in measured):
        return terms
    return {
        counter.replace(newer, older): factor
        for counter, factor in terms.items()
        if counter != READS_OF_128_B
    }


def _partial(scope: Scope, known: Int64, *, is_ratio: bool = False) -> Mask:
    """Where some of the node's kernels lack the counters; of a ratio, where many do."""
    if not known.any():
        return np.zeros(len(known), np.bool_)
    enough = _ENOUGH_FOR_A_RATIO if is_ratio else 1.0
    return (known > 0) & (known < enough * scope.nodes.compute_kernels())


def _listed(words: list[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def lacking(metric: Metric, measured: Container[str]) -> tuple[str, ...]:
    """The counters that a metric needs and that are not measured; on gfx90a by its older names."""
    names = list(metric.counters)
    older = {counter: counter.replace(*FABRIC) for counter in names}
    if any(older[counter] in measured for counter in names if older[counter] != counter):
        names = [older[counter] for counter in names if counter != READS_OF_128_B]
    return tuple(counter for counter in names if counter not in measured)


def raw_counter(name: str, info: CounterInfo | None = None) -> Metric:
    """The metric of a hardware counter under its own name.

    Counts add up over the node. A figure that the profiler derived, or an extreme over instances,
    doesn't: a node has its mean over the dispatches, weighted with their durations.
    """
    known = info or counter_info(name)
    adds = known.aggregation in _ADDITIVE or known.unit in _AMOUNTS or bool(_COUNTS.match(name))

    def compute(scope: Scope) -> Values:
        if not adds:
            # In the counter run, else in the trace.
            return time_weighted(scope, name, TIME)
        amount, count = scope.nodes.known(name)
        return Values(amount, count == 0, _partial(scope, count))

    description = known.description.rstrip(". ") or f"The hardware counter {name}"
    how = "summed over the activities" if adds else "duration-weighted mean over the dispatches"
    return Metric(
        name,
        unit_of_file(known.unit),
        name if adds else f"mean {name}",
        Reduces.SUM if adds else Reduces.MEAN,
        f"{description}: {known.aggregation}, {how}.",
        compute,
        "counters",
        "no dispatch of the counter runs was matched with the row",
        theme=Theme.COUNTERS,
    )


def _matched(state: Match, scope: Scope) -> Values:
    if COUNTER_MATCH not in scope.nodes.table.measured:
        return absent(len(scope.nodes), 0)

    def is_so(table: KernelTable, rows: Selection) -> Mask:
        found: Float64 = table.measured[COUNTER_MATCH][rows]
        if state is not Match.NONE:
            return np.equal(found, float(state))
        computes = np.equal(table.kind[rows], Kind.COMPUTE)
        return computes & np.equal(table.category[rows], Category.KERNEL) & np.isnan(found)

    return Values(scope.nodes.sum_of(is_so))


for _state, (_title, _kernels) in {
    Match.NONE: ("uncounted", "without counters"),
    Match.MATCHED: ("matched", "with the counters of their own step's dispatch"),
    Match.BORROWED: ("borrowed", "with the counters of the same place in another step"),
    Match.AMBIGUOUS: ("ambiguous", "that another alignment matches with another dispatch"),
}.items():
    metric(
        f"counters_{_title}",
        Unit.NONE,
        _title,
        f"Number of compute kernels {_kernels}.",
        source="alignment of counters with the trace",
        missing="the run has no counters of another execution",
        needs_times=False,
    )(partial(_matched, _state))
