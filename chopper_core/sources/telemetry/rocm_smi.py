"""rocm-smi: `--csv` with a timestamp added, and tables derived from it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from chopper_core.sources.registry import Recognised
from chopper_core.sources.shared.text import TEXT_SUFFIXES, FileHead, read_text
from chopper_core.sources.signals import GpuName, SignalName, Telemetry
from chopper_core.sources.telemetry.cells import Stamps, whole_number
from chopper_core.sources.telemetry.rows import Field
from chopper_core.sources.telemetry.table import (
    Cells,
    Headings,
    Layout,
    read_table,
    recognised_table,
)
from chopper_core.util.progress import Progress, silent

NAME: Final = "rocm-smi"
FILES: Final = (
    "`--csv` with a `timestamp` column added in front, and tables derived from it with `timestamp, "
    "device, power_watts, …`"
)
EXAMPLE: Final = ""
SUFFIXES: Final = TEXT_SUFFIXES

_STAMPS: Final = ("timestamp", "time", "timestamp_ns")
_FIELDS: Final[Sequence[tuple[str, Field]]] = (
    ("current socket graphics package power (w)", Field(SignalName.POWER_W, "w")),
    ("average graphics package power (w)", Field(SignalName.POWER_W, "w")),
    ("max graphics package power (w)", Field(SignalName.POWER_CAP_W, "w")),
    ("accumulated energy (uj)", Field(SignalName.ENERGY_J, "uj")),
    ("temperature (sensor edge) (c)", Field(SignalName.EDGE_C, "c")),
    ("temperature (sensor junction) (c)", Field(SignalName.HOTSPOT_C, "c")),
    ("temperature (sensor memory) (c)", Field(SignalName.MEM_C, "c")),
    ("gpu use (%)", Field(SignalName.GFX_UTIL_PCT, "%")),
    ("gpu memory read/write activity (%)", Field(SignalName.MEM_UTIL_PCT, "%")),
    ("vram total used memory (b)", Field(SignalName.VRAM_BYTES, "b")),
    ("sclk clock speed:", Field(SignalName.GFX_MHZ, "mhz")),
    ("mclk clock speed:", Field(SignalName.MEM_MHZ, "mhz")),
)
_DERIVED_FIELDS: Final[Sequence[tuple[str, Field]]] = (
    ("power_watts", Field(SignalName.POWER_W, "w")),
    ("power_cap_watts", Field(SignalName.POWER_CAP_W, "w")),
    ("temp_edge_celsius", Field(SignalName.EDGE_C, "c")),
    ("temp_junction_celsius", Field(SignalName.HOTSPOT_C, "c")),
    ("temp_memory_celsius", Field(SignalName.MEM_C, "c")),
    ("gpu_use_percent", Field(SignalName.GFX_UTIL_PCT, "%")),
    ("memory_use_percent", Field(SignalName.MEM_UTIL_PCT, "%")),
    ("vram_used_bytes", Field(SignalName.VRAM_BYTES, "b")),
    ("sclk_mhz", Field(SignalName.GFX_MHZ, "mhz")),
    ("mclk_mhz", Field(SignalName.MEM_MHZ, "mhz")),
)
_ACCUMULATORS: Final = ("gfx_activity", "gfx activity", "memory activity")


def recognise(head: FileHead) -> Recognised | None:
    """Recognise a table of rocm-smi by its headings."""
    return recognised_table(head, csv_layout)


def read(path: Path, _progress: Progress = silent) -> Telemetry:
    """Read a table of rocm-smi; raises DataError without any usable sample."""
    return read_table(read_text(path), csv_layout)


def csv_layout(headings: Sequence[str], stamps: Stamps) -> Layout | None:
    """Return the layout of a table of rocm-smi, or one derived from it."""
    table = Headings(headings)
    fields = table.fields(_FIELDS)
    name = "rocm-smi CSV"
    if not fields:
        fields = table.fields(_DERIVED_FIELDS)
        name = "CSV derived from rocm-smi"
    if "device" not in table.columns or not fields:
        return None
    return Layout(
        format=name,
        width=len(headings),
        gpu_of=partial(_card, table),
        time_of=table.stamp_reader(stamps, *_STAMPS),
        fields=fields,
        notes=[
            f"{heading} is ignored: its unit is unknown."
            for heading in headings
            if heading.casefold() in _ACCUMULATORS
        ],
    )


def _card(table: Headings, cells: Cells) -> GpuName | None:
    card, node, bus = (
        "" if cell.casefold() == "n/a" else cell
        for cell in (table.cell(cells, heading) for heading in ("device", "node id", "pci bus"))
    )
    if not card:
        return None
    number = whole_number(node)
    return GpuName(kfd_node=-1 if number is None else number, card=card, pci=bus)
