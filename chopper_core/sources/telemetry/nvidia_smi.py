"""nvidia-smi: `--query-gpu … --format=csv` and the columns of `dmon`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chopper_core.sources.signals import GpuName, SignalName
from chopper_core.sources.telemetry.cells import whole_number
from chopper_core.sources.telemetry.rows import Field, FieldKind
from chopper_core.sources.telemetry.table import TelemetryFormat, TelemetryTable, field_columns
from chopper_core.tables.text import TEXT_SUFFIXES

if TYPE_CHECKING:
    from chopper_core.tables.column import Cells


NAME: Final = "nvidia-smi"
FILES: Final = "`--query-gpu=… --format=csv`, with or without units, and `dmon`"
EXAMPLE: Final = "nvidia-smi --query-gpu=timestamp,index,power.draw,clocks.sm --format=csv -lms 100"
SUFFIXES: Final = TEXT_SUFFIXES
DMON_FORMAT: Final = "nvidia-smi dmon"

CORE_C: Final = Field(
    SignalName.EDGE_C, "c", note="The temperature is that of the GPU core, not of the hotspot."
)
LIMITED_PCT: Final = Field(
    SignalName.THROTTLE_PCT,
    "%",
    note="The throttle share is 100 % at samples with an active limiter and 0 % otherwise.",
)
_LIMITERS: Final = {
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "board_limit": 0x200,
    "reliability": 0x400,
}
"""Idle, application clocks and sync boost are clock event reasons too, but no limiters."""
_STATES: Final = {"active": 100, "not active": 0}


def limited_pct(reasons: int) -> int:
    return 100 if reasons & sum(_LIMITERS.values()) else 0


def _limited_pct(bitmask: object) -> object:
    try:
        return limited_pct(int(str(bitmask), 16))
    except ValueError:
        return bitmask


def _active_pct(state: object) -> object:
    return _STATES.get(str(state).casefold(), state)


_QUERY: Final = field_columns(
    ("power.draw power.draw.instant power.draw.average", Field(SignalName.POWER_W, "w")),
    ("enforced.power.limit power.limit", Field(SignalName.POWER_CAP_W, "w")),
    (
        "clocks.current.graphics clocks.gr clocks.current.sm clocks.sm",
        Field(SignalName.GFX_MHZ, "mhz"),
    ),
    ("clocks.current.memory clocks.mem", Field(SignalName.MEM_MHZ, "mhz")),
    ("temperature.gpu", CORE_C),
    ("temperature.memory", Field(SignalName.MEM_C, "c")),
    ("utilization.gpu", Field(SignalName.GFX_UTIL_PCT, "%")),
    ("utilization.memory", Field(SignalName.MEM_UTIL_PCT, "%")),
    ("memory.used", Field(SignalName.VRAM_BYTES, "mib")),
    ("fan.speed", Field(SignalName.FAN_PCT, "%")),
    (
        "clocks_event_reasons.active clocks_throttle_reasons.active",
        replace(LIMITED_PCT, convert=_limited_pct),
    ),
    *(
        (
            f"clocks_event_reasons.{reason} clocks_throttle_reasons.{reason}",
            replace(LIMITED_PCT, part=reason, convert=_active_pct),
        )
        for reason in _LIMITERS
    ),
    *(
        (
            f"clocks_event_reasons_counters.{reason}",
            Field(SignalName.THROTTLE_PCT, "us", reason, FieldKind.SECONDS),
        )
        for reason in _LIMITERS
    ),
)
_DMON: Final = field_columns(
    ("pwr", Field(SignalName.POWER_W, "w")),
    ("gtemp", CORE_C),
    ("mtemp", Field(SignalName.MEM_C, "c")),
    ("sm", Field(SignalName.GFX_UTIL_PCT, "%")),
    ("mem", Field(SignalName.MEM_UTIL_PCT, "%")),
    ("mclk", Field(SignalName.MEM_MHZ, "mhz")),
    ("pclk", Field(SignalName.GFX_MHZ, "mhz")),
    ("fb", Field(SignalName.VRAM_BYTES, "mb")),
    ("pviol", replace(LIMITED_PCT, part="power")),
)

_INDEX: Final = ("index",)
_BUS: Final = ("pci.bus_id", "gpu_bus_id")
_IDENTIFIER: Final = ("uuid", "gpu_uuid", "serial", "gpu_serial")


def _dmon_cells(line: str) -> list[str] | None:
    """The cells of `dmon`, whose headings are in a comment; a line without a number is no row."""
    cells = line.lstrip("# ").replace(",", " ").split()
    if line.startswith("#"):
        return cells if "gpu" in map(str.casefold, cells) else None
    # A row has no words: the lines of a trainer's log have those of the headings, too.
    is_row = any(map(str.isdigit, cells)) and not any(map(str.isalpha, cells))
    return cells if is_row else [line]


def _gpu(cells: Cells) -> GpuName | None:
    index, pci, name = (
        next((cells[heading] for heading in headings if heading in cells), "")
        for headings in (_INDEX, _BUS, _IDENTIFIER)
    )
    number = whole_number(index)
    model = cells["name"] or cells["gpu_name"]
    if number is None and not pci:
        return GpuName(card=name, model=model) if name else None
    return GpuName(index=-1 if number is None else number, pci=pci, model=model)


_FORMAT: Final = TelemetryFormat(
    (
        TelemetryTable(DMON_FORMAT, _DMON, time=("date time", "time"), split=_dmon_cells),
        TelemetryTable(
            "nvidia-smi CSV",
            _QUERY,
            gpu=(*_INDEX, *_BUS, *_IDENTIFIER),
            also_named_by=("name", "gpu_name"),
            gpu_of=_gpu,
            may_be_nameless=True,
            has_units=True,
        ),
    ),
    example=EXAMPLE,
)
recognise, read = _FORMAT.recognise, _FORMAT.read
