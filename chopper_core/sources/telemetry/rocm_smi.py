"""rocm-smi: `--json`, `--csv` with a timestamp added, and tables derived from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.sources.signals import GpuName, SignalName
from chopper_core.sources.telemetry.cells import whole_number
from chopper_core.sources.telemetry.rows import Field
from chopper_core.sources.telemetry.table import JsonRecords, TelemetryFormat, TelemetryTable
from chopper_core.tables.text import TEXT_SUFFIXES
from chopper_core.util.patterns import late

if TYPE_CHECKING:
    from chopper_core.tables.column import Cells


NAME: Final = "rocm-smi"
FILES: Final = (
    "`--json`, one document per sample; `--csv` with a `timestamp` column added in front, and "
    "tables derived from it with `timestamp, device, power_watts, …`"
)
EXAMPLE: Final = ""
SUFFIXES: Final = TEXT_SUFFIXES

_NAMES: Final = ("device", "node id", "pci bus")
_STAMPS: Final = ("timestamp", "time", "timestamp_ns")
_FIELDS: Final = {
    "current socket graphics package power (w)": Field(SignalName.POWER_W, "w"),
    "average graphics package power (w)": Field(SignalName.POWER_W, "w"),
    "max graphics package power (w)": Field(SignalName.POWER_CAP_W, "w"),
    "accumulated energy (uj)": Field(SignalName.ENERGY_J, "uj"),
    "temperature (sensor edge) (c)": Field(SignalName.EDGE_C, "c"),
    "temperature (sensor junction) (c)": Field(SignalName.HOTSPOT_C, "c"),
    "temperature (sensor memory) (c)": Field(SignalName.MEM_C, "c"),
    "gpu use (%)": Field(SignalName.GFX_UTIL_PCT, "%"),
    "gpu memory read/write activity (%)": Field(SignalName.MEM_UTIL_PCT, "%"),
    "vram total used memory (b)": Field(SignalName.VRAM_BYTES, "b"),
    "fan speed (%)": Field(SignalName.FAN_PCT, "%"),
    "sclk clock speed:": Field(SignalName.GFX_MHZ, "mhz"),
    "mclk clock speed:": Field(SignalName.MEM_MHZ, "mhz"),
}
_DERIVED_FIELDS: Final = {
    "power_watts": Field(SignalName.POWER_W, "w"),
    "power_cap_watts": Field(SignalName.POWER_CAP_W, "w"),
    "temp_edge_celsius": Field(SignalName.EDGE_C, "c"),
    "temp_junction_celsius": Field(SignalName.HOTSPOT_C, "c"),
    "temp_memory_celsius": Field(SignalName.MEM_C, "c"),
    "gpu_use_percent": Field(SignalName.GFX_UTIL_PCT, "%"),
    "memory_use_percent": Field(SignalName.MEM_UTIL_PCT, "%"),
    "vram_used_bytes": Field(SignalName.VRAM_BYTES, "b"),
    "sclk_mhz": Field(SignalName.GFX_MHZ, "mhz"),
    "mclk_mhz": Field(SignalName.MEM_MHZ, "mhz"),
}
_ACCUMULATORS: Final = ("gfx_activity", "gfx activity", "memory activity")


_JSON_FORMAT: Final = "rocm-smi JSON"
_DOCUMENT: Final = late(r'\{\s*"(?:card\d+|timestamp|time|timestamp_ns|system)"\s*:')
_JSON_CARD: Final = late(r'"card\d+"\s*:\s*\{')
_CARD: Final = late(r"card\d+")


def _recognise_json(text: str) -> Recognised | Unusable | None:
    if not (_DOCUMENT.search(text) and _JSON_CARD.search(text)):
        return None
    text = text.casefold()
    if any(f'"{heading}"' in text for heading in _FIELDS):
        return Recognised(_JSON_FORMAT)
    return Unusable("is rocm-smi JSON without power, clock, temperature, use or memory")


def _rows_of(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The cards of a sample, with its stamp."""
    stamp = {key: document[key] for key in _STAMPS if key in document}
    for card, values in document.items():
        if _CARD.fullmatch(card) and isinstance(values, dict):
            yield {**stamp, "device": card, **values}


def _card(cells: Cells) -> GpuName | None:
    card, node, bus = (
        "" if cell.casefold() == "n/a" else cell for cell in map(cells.__getitem__, _NAMES)
    )
    if not card:
        return None
    number = whole_number(node)
    return GpuName(kfd_node=-1 if number is None else number, card=card, pci=bus)


_FORMAT: Final = TelemetryFormat(
    [
        TelemetryTable(
            name,
            columns,
            gpu=_NAMES[:1],
            also_named_by=_NAMES[1:],
            time=_STAMPS,
            gpu_of=_card,
            ignored=_ACCUMULATORS,
        )
        for name, columns in (
            ("rocm-smi CSV", _FIELDS),
            ("CSV derived from rocm-smi", _DERIVED_FIELDS),
        )
    ],
    JsonRecords(_JSON_FORMAT, _recognise_json, lambda _: _DOCUMENT, _rows_of),
)
recognise, read = _FORMAT.recognise, _FORMAT.read
