"""What profilers call kernels and counters, and what is known of a counter from its name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from chopper_core.model.hardware import CounterInfo

SUM: Final = "sum over instances"
ONE_INSTANCE: Final = "one instance"
DERIVED: Final = "derived by the profiler"

_NAME_SUFFIX: Final = re.compile(r"(?:\s*+(?:\[clone [^\]]*+\]|\(\.kd\)|\.kd))++$")
_HARDWARE_BLOCK: Final = re.compile(
    r"(?:SQ|SQC|SPI|GRBM|GRBMA|CPC|CPF|CPG|TA|TD|TCP|TCC|TCA|GL1[AC]|GL2[AC]|GCEA|EA|GDS|MCVML2|"
    r"ATC[L]?2?|UTCL2|UMC|RLC|SDMA|VML2|PA|IA|WD|VGT|SX|CB|DB)_[A-Z0-9_]+"
)
_INSTANCE: Final = re.compile(r"\[\d+\]$")
_AGGREGATION_BY_ENDING: Final = (
    ("_sum", SUM),
    ("_max", "maximum over instances"),
    ("_min", "minimum over instances"),
    ("_avr", "mean over instances"),
    ("_avg", "mean over instances"),
)
_KILOBYTES: Final = frozenset(("FETCH_SIZE", "WRITE_SIZE", "FetchSize", "WriteSize", "SFetchSize"))
_PERCENTAGES: Final = frozenset(
    (
        "ALUStalledByLDS",
        "GPUBusy",
        "GPU_UTIL",
        "L2CacheHit",
        "LDSBankConflict",
        "MemUnitBusy",
        "MemUnitStalled",
        "MfmaUtil",
        "OccupancyPercent",
        "SALUBusy",
        "VALUBusy",
        "VALUUtilization",
        "WriteUnitStalled",
    )
)


def clean_kernel_name(name: str) -> str:
    """Return the name without `.kd`, ` (.kd)`, ` [clone .kd]` and other clone suffixes."""
    return _NAME_SUFFIX.sub("", name.strip())


def counter_info(name: str, *, unit: str = "", description: str = "") -> CounterInfo:
    """Return what the name says of a counter, with the unit and description of the file."""
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
    """Return what the names say of each counter."""
    return {name: counter_info(name) for name in names}
