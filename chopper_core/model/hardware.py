"""GPUs: element types, devices as profilers describe them, peaks by name (`hardware.toml`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from functools import cache, lru_cache
from math import inf, nan
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.util.arrays import Float64
from chopper_core.util.atomic import read_small, user_folder
from chopper_core.util.errors import DataError, UsageError
from chopper_core.util.patterns import late


class ElementType(IntEnum):
    """A numeric type; `text` is its name in `hardware.toml` and on the screen."""

    UNKNOWN = 0
    FP64 = 1
    FP32 = 2
    TF32 = 3
    FP16 = 4
    BF16 = 5
    FP8 = 6
    INT8 = 7
    FP4 = 8

    @property
    def text(self) -> str:
        return self.name.lower()


_SPELLINGS: Final = {
    "double": ElementType.FP64,
    "float": ElementType.FP32,
    "half": ElementType.FP16,
    "bfloat16": ElementType.BF16,
    "float8_e4m3fn": ElementType.FP8,
    "float8_e4m3fnuz": ElementType.FP8,
    "float8_e5m2": ElementType.FP8,
    "float8_e5m2fnuz": ElementType.FP8,
    "float4_e2m1fn_x2": ElementType.FP4,
    "signedchar": ElementType.INT8,
    "unsignedchar": ElementType.INT8,
}
_TYPE_BYTES: Final = {
    "byte": 1, "char": 1, "bool": 1, "uint8": 1, "int8": 1, "signedchar": 1, "unsignedchar": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1, "float4_e2m1fn_x2": 1,
    "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "shortint": 2, "int16": 2,
    "int": 4, "int32": 4, "float": 4, "float32": 4,
    "long": 8, "longint": 8, "int64": 8, "double": 8, "float64": 8, "complexfloat": 8,
    "complex<float>": 8, "complex<double>": 16,
}  # fmt: skip
_NAMESPACE: Final = late(r"^(?:c10|at)::|\s+")


def element_type(spellings: Iterable[str]) -> ElementType:
    """The common type of tensors from PyTorch's spellings, UNKNOWN where they differ."""
    found = set(map(_element, spellings))
    return found.pop() if len(found) == 1 else ElementType.UNKNOWN


@lru_cache(256)
def _element(spelling: str) -> ElementType:
    return _SPELLINGS.get(_NAMESPACE.sub("", spelling).lower(), ElementType.UNKNOWN)


@lru_cache(256)
def type_bytes(spelling: str) -> int | None:
    """The bytes of an element of a type as PyTorch spells it, None if unknown."""
    return _TYPE_BYTES.get(_NAMESPACE.sub("", spelling).lower())


class Agent(Struct, frozen=True):
    """A device as the profiler describes it; 0 and '' for missing values."""

    node_id: int
    logical_id: int = -1
    type_index: int = -1
    """Its number among the GPUs, from 0; -1 if unknown."""
    name: str = ""
    """The architecture, such as `gfx942`."""
    product: str = ""
    compute_units: int = 0
    simds_per_cu: int = 0
    xccs: int = 0
    max_clock_mhz: float = 0.0
    pci: str = ""
    """Domain, bus, device and function, as `0000:0c:00.0`."""


SUM: Final = "sum over instances"
ONE_INSTANCE: Final = "one instance"
DERIVED: Final = "derived by the profiler"


class CounterInfo(Struct, frozen=True):
    """The description of a counter."""

    name: str
    unit: str = ""
    description: str = ""
    aggregation: str = SUM


_HARDWARE_BLOCK: Final = late(
    r"(?:SQ|SQC|SPI|GRBM|GRBMA|CPC|CPF|CPG|TA|TD|TCP|TCC|TCA|GL1[AC]|GL2[AC]|GCEA|EA|GDS|MCVML2|"
    r"ATC[L]?2?|UTCL2|UMC|RLC|SDMA|VML2|PA|IA|WD|VGT|SX|CB|DB)_[A-Z0-9_]+"
)
_INSTANCE: Final = late(r"\[\d+\]$")
_AGGREGATION_BY_ENDING: Final = (
    ("_sum", SUM),
    ("_max", "maximum over instances"),
    ("_min", "minimum over instances"),
    ("_avr", "mean over instances"),
    ("_avg", "mean over instances"),
)
_KILOBYTES: Final = frozenset(("FETCH_SIZE", "WRITE_SIZE", "FetchSize", "WriteSize", "SFetchSize"))
_PERCENTAGES: Final = frozenset((
    "ALUStalledByLDS", "GPUBusy", "GPU_UTIL", "L2CacheHit", "LDSBankConflict", "MemUnitBusy",
    "MemUnitStalled", "MfmaUtil", "OccupancyPercent", "SALUBusy", "VALUBusy", "VALUUtilization",
    "WriteUnitStalled",
))  # fmt: skip


def counter_info(name: str, *, unit: str = "", description: str = "") -> CounterInfo:
    """The counter with its aggregation and unit by its name, else the file's unit and
    description.
    """
    aggregation = DERIVED
    if _INSTANCE.search(name):
        aggregation = ONE_INSTANCE
    elif _HARDWARE_BLOCK.fullmatch(name):
        aggregation = SUM
    for ending, meaning in _AGGREGATION_BY_ENDING:
        if name.endswith(ending):
            aggregation = meaning
    if not unit:
        unit = "KB" if name in _KILOBYTES else "%" if name in _PERCENTAGES else ""
    return CounterInfo(name, unit, description, aggregation)


def counter_infos(names: Iterable[str]) -> dict[str, CounterInfo]:
    return {name: counter_info(name) for name in names}


_TYPES: Final = {each.text: each for each in ElementType if each != ElementType.UNKNOWN}


class Hardware(Struct, frozen=True):
    """The specification of one GPU."""

    name: str
    match: tuple[str, ...]
    """Words in product names that identify this GPU."""
    arch: str
    compute_units: int
    simds_per_cu: int
    xccs: int
    clock_mhz: float
    """The clock of the published peaks of the matrix units."""
    flop_per_clk_cu: Mapping[str, float]
    """Type of the operands → dense operations per clock and compute unit."""
    memory_gbps: float
    tdp_w: float
    unlike: tuple[str, ...] = ()
    """Words in the names of variants with other specifications."""
    sources: tuple[str, ...] = ()
    """Sources of the figures."""
    memory_mhz: float | None = None
    """The memory's clock under load, as its driver reports it, where it is known."""
    achievable_tflops: Mapping[str, float] = {}
    """Type of the operands → TFLOP/s that the best matrix products were measured at."""

    def __hash__(self) -> int:
        return hash(self.name)

    def flop_per_ns(self, element: ElementType) -> float:
        """Dense peak of the matrix units for a type at `clock_mhz`; NaN for one without."""
        per_clock = self.compute_units * self.clock_mhz * 1e-3
        return self.flop_per_clk_cu.get(element.text, nan) * per_clock

    def at_peak_ns(self, flops: Float64, element: Float64) -> Float64:
        """Time of operations at the peaks of their types (codes, or NaN); NaN if unknown."""
        return self._at([self.flop_per_ns(each) for each in ElementType], flops, element)

    def at_achievable_ns(self, flops: Float64, element: Float64) -> Float64:
        """Time of operations at the measured rates of their types; NaN if unknown."""
        rates = [self.achievable_tflops.get(each.text, nan) * 1e3 for each in ElementType]
        return self._at(rates, flops, element)

    @staticmethod
    def _at(flop_per_ns: Sequence[float], flops: Float64, element: Float64) -> Float64:
        peaks = np.array(flop_per_ns)
        known = np.isfinite(element)
        codes = np.where(known, element, ElementType.UNKNOWN).astype(np.intp)
        taken: Float64 = flops / peaks[codes]
        return taken


def is_file(hardware: str) -> bool:
    return hardware.endswith(".toml")


def hardware_in(path: str, product: str) -> Hardware:
    """The GPU that a file specifies: that of the product, else its only one.

    The file completes and overrides the known specifications. Raises DataError if it can't be
    read, UsageError if it doesn't say which GPU it is.
    """
    own = _specifications(Path(os.path.expanduser(path)))
    names = _tables(Path(os.path.expanduser(path)))
    found = _found(product, {name: own[name] for name in names})
    if found is None and len(names) == 1:
        found = own[next(iter(names))]
    if found is None:
        raise UsageError(
            f"--hardware {path}: {', '.join(names) or 'no GPU'} in it, none of which matches "
            f"{product or 'the unnamed GPU of the run'}; keep one, or add its name to `match`"
        )
    return found


@lru_cache(256)
def hardware_of(product: str) -> Hardware | None:
    return _found(product, specifications())


def _found(product: str, known: Mapping[str, Hardware]) -> Hardware | None:
    found = [
        (max(lengths), spec)
        for spec in known.values()
        if not any(_has_word(product, word) for word in spec.unlike)
        and (lengths := [len(word) for word in spec.match if _has_word(product, word)])
    ]
    # The longest word wins: "MI250X/MI250" is an MI250X.
    return max(found, key=lambda each: each[0], default=(0, None))[1]


def _has_word(text: str, word: str) -> bool:
    """Whether a word stands in a text, with no letter or digit next to it."""
    at = text.find(word)
    while at >= 0:
        around = text[max(at - 1, 0) : at] + text[at + len(word) :][:1]
        if not any(each.isascii() and each.isalnum() for each in around):
            return True
        at = text.find(word, at + 1)
    return False


def hardware_of_agent(agent: Agent, product: str = "") -> Hardware | None:
    """The specification of a device from its profiler, completed from the table.

    The profiler's figures (units, XCCs, clock) win; the table supplies the rest by product, else
    by architecture.
    """
    known = hardware_of(agent.product) or hardware_of(product)
    if known is None and agent.name:
        known = next((s for s in specifications().values() if s.arch == agent.name), None)
    if known is None:
        return None
    return replace(
        known,
        compute_units=agent.compute_units or known.compute_units,
        simds_per_cu=agent.simds_per_cu or known.simds_per_cu,
        xccs=agent.xccs or known.xccs,
        clock_mhz=agent.max_clock_mhz or known.clock_mhz,
    )


def own_file() -> Path:
    return user_folder("XDG_CONFIG_HOME", "~/.config") / "hardware.toml"


@cache
def specifications() -> Mapping[str, Hardware]:
    """All specifications; the user's override Chopper's. Raises DataError for an invalid file."""
    return _specifications()


def _specifications(*more: Path) -> Mapping[str, Hardware]:
    """All specifications, completed and overridden by those of further files."""
    tables: dict[str, dict[str, Any]] = {}
    known: dict[str, Hardware] = {}
    paths = [Path(__file__).with_name("hardware.toml")]
    # `exists` of Path raises where a folder above may not be entered.
    paths += [own_file()] if os.path.exists(own_file()) else []
    for path in (*paths, *more):
        for name, table in _tables(path).items():
            try:
                tables[name] = tables.get(name, {}) | table
                known[name] = _specification(name, tables[name])
            except (TypeError, KeyError, ValueError) as error:
                raise DataError(f"{path}: invalid specification of {name}: {error}") from error
    return known


def _tables(path: Path) -> dict[str, Any]:
    # Imported on use: most GPUs are described by the profiler.
    import tomllib

    try:
        return tomllib.loads(read_small(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path} can't be read: {reason}") from error


_NUMBERS: Final = ("clock_mhz", "memory_gbps", "tdp_w", "memory_mhz")


def _specification(name: str, table: Mapping[str, Any]) -> Hardware:
    rates = {key: dict(table.get(key, {})) for key in ("flop_per_clk_cu", "achievable_tflops")}
    for key, of_types in rates.items():
        if strange := of_types.keys() - _TYPES.keys():
            raise ValueError(f"{min(strange)!r} is not one of the types {', '.join(_TYPES)}")
        if not all(isinstance(rate, int | float) and rate > 0 for rate in of_types.values()):
            raise ValueError(f"every {key} must be a number above 0")
        # As a store has them, whether the file says 2100 or 2100.0.
        rates[key] = {of: float(rate) for of, rate in of_types.items()}
    if not rates["flop_per_clk_cu"]:
        raise KeyError("flop_per_clk_cu")
    numbers = {key: table[key] for key in _NUMBERS if key in table}
    for key, number in numbers.items():
        if not (isinstance(number, int | float) and 0 < number < inf):
            raise ValueError(f"{key} must be a number above 0")
        numbers[key] = float(number)
    lists = {key: tuple(table.get(key, ())) for key in ("match", "unlike", "sources")}
    return Hardware(name=name, **{**table, **numbers, **lists, **rates})
