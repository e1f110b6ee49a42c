"""Chopper's own telemetry format, CSV or Parquet, for samplers (docs/telemetry.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.sources.signals import ClockDomain, GpuName, SignalName, Telemetry
from chopper_core.sources.telemetry.cells import (
    DIMENSIONS,
    Stamps,
    clock_named,
    declared_clock,
    whole_number,
)
from chopper_core.sources.telemetry.rows import Field, FieldKind, RowCollector
from chopper_core.sources.telemetry.series import STATUS, telemetry_of, throttled_pct
from chopper_core.sources.telemetry.table import (
    ColumnPositions,
    add_rows,
    field_columns,
    fields_in,
    named_columns,
    positions,
    read_table,
    recognised_table,
    unused_of,
)
from chopper_core.tables.losses import Losses
from chopper_core.tables.parquet import PARQUET_MAGIC, opened_parquet, parquet_names
from chopper_core.tables.text import HEADING_LINES, TEXT_SUFFIXES, FileHead
from chopper_core.util.arrays import Int64
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

if TYPE_CHECKING:
    from chopper_core.tables.column import Cells, TableRows


NAME: Final = "your own sampler"
FILES: Final = "[Chopper's own format](telemetry.md#choppers-own-format) in CSV or Parquet"
EXAMPLE: Final = "python sampler.py > telemetry.csv"
SUFFIXES: Final = (*TEXT_SUFFIXES, ".parquet", ".pq", ".pkl", ".pickle")

_CSV_FORMAT: Final = "telemetry CSV"
_PARQUET_FORMAT: Final = "telemetry Parquet"
_METRICS_TIME: Final = "ts"
"""The original Chopper's column of time.monotonic_ns(); its `gpu` is a KFD node."""

_SIGNALS: Final = frozenset(SignalName)
_METRICS: Final = field_columns(
    ("current_socket_power average_socket_power", Field(SignalName.POWER_W, "w")),
    ("energy_accumulator", Field(SignalName.ENERGY_J, "ticks")),
    ("current_gfxclks", Field(SignalName.GFX_MHZ, "mhz", "xcd", is_list=True)),
    ("current_gfxclk average_gfxclk_frequency", Field(SignalName.GFX_MHZ, "mhz")),
    ("current_uclk average_uclk_frequency", Field(SignalName.MEM_MHZ, "mhz")),
    ("temperature_hotspot", Field(SignalName.HOTSPOT_C, "c")),
    ("temperature_mem", Field(SignalName.MEM_C, "c")),
    ("temperature_edge", Field(SignalName.EDGE_C, "c")),
    ("average_gfx_activity", Field(SignalName.GFX_UTIL_PCT, "%")),
    ("average_umc_activity", Field(SignalName.MEM_UTIL_PCT, "%")),
    ("xgmi_read_data_acc", Field(SignalName.XGMI_READ_BYTES, "kb", "link", is_list=True)),
    ("xgmi_write_data_acc", Field(SignalName.XGMI_WRITE_BYTES, "kb", "link", is_list=True)),
    (
        "throttle_status indep_throttle_status",
        Field(SignalName.THROTTLE_PCT, "%", STATUS, convert=throttled_pct),
    ),
    ("accumulation_counter", Field(SignalName.THROTTLE_PCT, "", kind=FieldKind.TICKS)),
    *(
        (
            f"{heading}_residency_acc",
            Field(SignalName.THROTTLE_PCT, "", limiter, FieldKind.RESIDENCY),
        )
        for heading, limiter in (
            ("prochot", "prochot"),
            ("ppt", "ppt"),
            ("socket_thm", "socket_thermal"),
            ("vr_thm", "vr_thermal"),
            ("hbm_thm", "hbm_thermal"),
        )
    ),
)
"""The columns of amdsmi_get_gpu_metrics_info that are signals."""
_TIMES: Final = ("time_ns", "monotonic_ns", _METRICS_TIME)
_NAMES: Final = ("gpu", "kfd_node", "card", "pci")
_PCIE_ACCUMULATOR: Final = "pcie_bandwidth_acc"
_PCIE_NOTE: Final = "pcie_bandwidth_acc is ignored: AMD's headers disagree about its unit."
_NOT_OURS: Final = "is a Parquet file without time_ns and signals"
_NO_CLOCK: Final = (
    "The file doesn't name the clock of time_ns; name it in a comment (`# clock: monotonic`), a "
    "column clock or the Parquet metadata."
)


def recognise(head: FileHead) -> Recognised | Unusable | None:
    if not head.magic.startswith(PARQUET_MAGIC):
        return recognised_table(head, layout_of)
    try:
        is_ours = layout_of(parquet_names(head.path)) is not None
    except DataError as error:
        return Unusable(f"is Parquet that can't be read ({error})")
    return Recognised(_PARQUET_FORMAT) if is_ours else Unusable(_NOT_OURS)


def read(path: Path, _progress: Progress = silent) -> Telemetry:
    head, stamps = FileHead(path), Stamps()
    if head.magic.startswith(PARQUET_MAGIC):
        telemetry = _read_parquet(path, stamps)
    else:
        stamps.declared = declared_clock(head.lines[:HEADING_LINES])
        telemetry = read_table(path, layout_of, stamps)
    notes = []
    to_monotonic_ns = None
    if telemetry.clock is ClockDomain.UNKNOWN:
        notes.append(_NO_CLOCK)
    offsets_ns = np.sort(np.concatenate([np.empty(0, np.int64), *stamps.offsets_ns]))
    if len(offsets_ns):
        middle_ns = int(offsets_ns[len(offsets_ns) // 2])
        to_monotonic_ns = -middle_ns
        spread_ns = int(offsets_ns[-1]) - int(offsets_ns[0])
        notes.append(f"time_ns minus monotonic_ns: median {middle_ns} ns, spread {spread_ns} ns.")
    return replace(telemetry, notes=[*telemetry.notes, *notes], to_monotonic_ns=to_monotonic_ns)


def _read_parquet(path: Path, stamps: Stamps) -> Telemetry:
    from chopper_core.tables.column import TableColumn, TableRows

    rows = RowCollector(path, Losses(), stamps)
    with opened_parquet(path) as file:
        schema = file.schema_arrow
        stamps.declared = (schema.metadata or {}).get(b"clock", b"").decode("utf-8", "replace")
        layout = layout_of(schema.names)
        if layout is None:
            raise DataError(f"{path} {_NOT_OURS}.")
        for batch in file.iter_batches():
            columns = [*map(TableColumn.of_another_program, batch.columns)]
            add_rows(rows, layout, TableRows(columns, len(batch)))
    return telemetry_of(_PARQUET_FORMAT, rows, layout.notes)


def layout_of(headings: Sequence[str]) -> ColumnPositions | None:
    """The columns below some headings of Chopper's own format; None for those of another."""
    columns = positions(headings)
    own = [
        (column, Field(SignalName(name), next(iter(DIMENSIONS[SignalName(name)].factors)), part))
        for heading, column in columns.items()
        for name, _, part in [heading.partition(".")]
        if name in _SIGNALS
    ]
    metrics = [
        (column, replace(metric, alternative=metric.alternative + 1))
        for column, metric in fields_in(columns, _METRICS)
    ]
    time = next((heading for heading in _TIMES if heading in columns), "")
    if not time or not (own or metrics):
        return None
    named_by = named_columns(columns, _NAMES)
    used = {at for at, _ in (*own, *metrics)} | {*named_by.values()}
    used |= {columns[each] for each in (*_TIMES, "clock", _PCIE_ACCUMULATOR) if each in columns}
    return ColumnPositions(
        format=_CSV_FORMAT,
        width=len(headings),
        fields=[*own, *metrics],
        gpu_of=partial(_gpu_of, is_node=time == _METRICS_TIME) if named_by else None,
        named_by=named_by,
        times_of=partial(_times_ns, columns, time),
        notes=[_PCIE_NOTE] if _PCIE_ACCUMULATOR in columns else [],
        unused=unused_of(headings, used),
    )


def _times_ns(columns: Mapping[str, int], time: str, stamps: Stamps, rows: TableRows) -> Int64:
    """The times of rows; notes their offsets to the monotonic time."""
    has_both = time == "time_ns" and "monotonic_ns" in columns
    clock = clock_named(stamps.declared)
    if time != "time_ns":
        clock = ClockDomain.MONOTONIC
    elif has_both and not stamps.declared:
        clock = ClockDomain.EPOCH
    clocks = rows.values_of(
        named_columns(columns, ["clock"]),
        lambda cells: clock_named(cells["clock"]) if cells["clock"] else clock,
    )
    times_ns = stamps.read_nanoseconds(rows.column(columns[time]), clocks)
    if has_both:
        monotonic_ns = rows.column(columns["monotonic_ns"]).integers()
        usable = (times_ns >= 0) & (monotonic_ns >= 0)
        stamps.offsets_ns.append(times_ns[usable] - monotonic_ns[usable])
    return times_ns


def _gpu_of(cells: Cells, is_node: bool) -> GpuName | None:
    name = cells["gpu"]
    number, node = whole_number(name), whole_number(cells["kfd_node"])
    if is_node and node is None:
        number, node = None, number
    gpu = GpuName(
        index=-1 if number is None else number,
        kfd_node=-1 if node is None else node,
        card=cells["card"] or (name if number is None and not is_node else ""),
        pci=cells["pci"],
    )
    return None if gpu == GpuName() else gpu
