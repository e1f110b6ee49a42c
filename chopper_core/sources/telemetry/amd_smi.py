"""amd-smi: `metric` and `monitor`, as CSV and as JSON, with and without `-w`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from chopper_core.sources.registry import Recognised
from chopper_core.sources.signals import SignalName
from chopper_core.sources.telemetry.rows import Field, FieldKind
from chopper_core.sources.telemetry.series import STATUS, throttled_pct
from chopper_core.sources.telemetry.table import JsonRecords, TelemetryFormat, TelemetryTable
from chopper_core.tables.text import PRINTED, TEXT_SUFFIXES
from chopper_core.util.patterns import late

NAME: Final = "amd-smi"
FILES: Final = "`metric` and `monitor`, as CSV or JSON, old and new column names"
EXAMPLE: Final = "amd-smi metric -w 1 --csv --file telemetry.csv"
SUFFIXES: Final = TEXT_SUFFIXES
JSON_FORMAT: Final = "amd-smi JSON"

_MAX_XCDS: Final = 16
_ONE_DECIMAL: Final = late(r"\d+\.\d+")
_LIMITERS: Final = ("prochot", "ppt", "socket_thermal", "vr_thermal", "hbm_thermal")


def _with_gigabytes(cell: object) -> object:
    """Add the unit of used memory: whole numbers are MB, newer versions write GB as x.x."""
    return f"{cell} GB" if isinstance(cell, str) and _ONE_DECIMAL.fullmatch(cell) else cell


_METRIC: Final = {
    "gfx_activity": Field(SignalName.GFX_UTIL_PCT, "%"),
    "umc_activity": Field(SignalName.MEM_UTIL_PCT, "%"),
    "socket_power": Field(SignalName.POWER_W, "w"),
    **{
        f"gfx_{number}_clk": Field(SignalName.GFX_MHZ, "mhz", f"xcd{number}")
        for number in range(_MAX_XCDS)
    },
    "mem_0_clk": Field(SignalName.MEM_MHZ, "mhz"),
    "edge": Field(SignalName.EDGE_C, "c"),
    "hotspot": Field(SignalName.HOTSPOT_C, "c"),
    "mem": Field(SignalName.MEM_C, "c"),
    "total_energy_consumption": Field(SignalName.ENERGY_J, "j"),
    "used_vram": Field(SignalName.VRAM_BYTES, "mb"),
    "usage": Field(SignalName.FAN_PCT, "%"),
    "bandwidth": Field(SignalName.PCIE_GBPS, "mb/s"),
    "throttle_status": Field(SignalName.THROTTLE_PCT, "%", STATUS, convert=throttled_pct),
    "accumulation_counter": Field(SignalName.THROTTLE_PCT, "", kind=FieldKind.TICKS),
    **{
        f"{limiter}_accumulated": Field(SignalName.THROTTLE_PCT, "", limiter, FieldKind.RESIDENCY)
        for limiter in _LIMITERS
    },
    **{
        f"{limiter}_violation_activity": Field(SignalName.THROTTLE_PCT, "%", limiter)
        for limiter in _LIMITERS
    },
}
_METRIC_ONLY: Final = frozenset(_METRIC) - {"mem", "bandwidth", "usage"}

_MONITOR: Final = {
    "power_usage": Field(SignalName.POWER_W, "w"),
    "max_power": Field(SignalName.POWER_CAP_W, "w"),
    "hotspot_temperature": Field(SignalName.HOTSPOT_C, "c"),
    "memory_temperature": Field(SignalName.MEM_C, "c"),
    "gfx_clk": Field(SignalName.GFX_MHZ, "mhz"),
    "gfx_clock": Field(SignalName.GFX_MHZ, "mhz"),
    "gfx": Field(SignalName.GFX_UTIL_PCT, "%"),
    "mem": Field(SignalName.MEM_UTIL_PCT, "%"),
    "mem_clock": Field(SignalName.MEM_MHZ, "mhz"),
    "vram_used": Field(SignalName.VRAM_BYTES, "mb", convert=_with_gigabytes),
    "pcie_bw": Field(SignalName.PCIE_GBPS, "mb/s"),
    "phot_tviol": Field(SignalName.THROTTLE_PCT, "%", "prochot"),
    "pviol": Field(SignalName.THROTTLE_PCT, "%", "ppt"),
    "tviol": Field(SignalName.THROTTLE_PCT, "%", "socket_thermal"),
    "vr_tviol": Field(SignalName.THROTTLE_PCT, "%", "vr_thermal"),
    "hbm_tviol": Field(SignalName.THROTTLE_PCT, "%", "hbm_thermal"),
}
_MONITOR_ONLY: Final = frozenset(_MONITOR) - {"mem"}

_ROW_START: Final = late(r'\{\s*"(?:timestamp|gpu|gpu_data)"\s*:')
_FIRST_KEY: Final = late(r'[\s\[]*\{\s*"(\w{1,40})"\s*:')
_JSON_KEYS: Final = late(
    '"(?:'
    + "|".join(("gpu_data", "temperature", "clock", *_METRIC_ONLY, *_MONITOR_ONLY))
    + r')"\s*:'
)


def _recognise_json(text: str) -> Recognised | None:
    if '"traceEvents"' in text or PRINTED.match(text):
        return None
    start = _begin(text).search(text)
    is_own = start is not None and _JSON_KEYS.search(text, start.start())
    return Recognised(JSON_FORMAT) if is_own else None


def _begin(text: str) -> re.Pattern[str]:
    """How the rows of a file with that start begin; amd-smi's own order has the GPU first."""
    first = _FIRST_KEY.match(text)
    if first is None or '"gpu"' not in text:
        return _ROW_START
    try:
        row, _ = json.JSONDecoder(strict=False).raw_decode(text, text.index("{"))
    except (ValueError, RecursionError):
        return _ROW_START
    key = first[1] if type(row.get("gpu")) is int else "gpu"
    return re.compile(rf'\{{\s*"(?:timestamp|gpu|gpu_data|{key})"\s*:')


def _rows_of(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of GPUs, which may be in a snapshot with its time."""
    snapshot = found.get("gpu_data")
    if not isinstance(snapshot, list):
        yield _flattened(found)
        return
    shared = {key: value for key, value in found.items() if key == "timestamp"}
    yield from (_flattened(shared | member) for member in snapshot if isinstance(member, dict))


def _flattened(row: Mapping[str, Any]) -> dict[str, Any]:
    """The values under the column names of the CSV, which omit the outermost group."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        flat.update(_joined("", value) if _is_group(value) else [(key, value)])
    return flat


def _joined(prefix: str, group: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in group.items():
        if _is_group(value):
            yield from _joined(f"{prefix}{key}_", value)
        else:
            yield prefix + key, value


def _is_group(value: object) -> bool:
    return type(value) is dict and "value" not in value


_FORMAT: Final = TelemetryFormat(
    (
        TelemetryTable("amd-smi monitor CSV", _MONITOR, marks=_MONITOR_ONLY),
        TelemetryTable("amd-smi metric CSV", _METRIC, marks=_METRIC_ONLY),
    ),
    JsonRecords(JSON_FORMAT, _recognise_json, _begin, _rows_of),
    EXAMPLE,
)
recognise, read = _FORMAT.recognise, _FORMAT.read
