"""Chopper's own telemetry format, CSV or Parquet, for samplers (docs/telemetry.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct, field
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
    Headings,
    add_rows,
    named_by_rounds,
    read_table,
    recognised_table,
)
from chopper_core.tables.bytes import opened_parquet, parquet_names
from chopper_core.tables.losses import Losses
from chopper_core.tables.text import (
    HEADING_LINES,
    PARQUET_MAGIC,
    TEXT_SUFFIXES,
    FileHead,
    FileText,
    first_line,
)
from chopper_core.util.arrays import Int64
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

if TYPE_CHECKING:
    from chopper_core.tables.rows import Cells, TableRows


NAME: Final = "your own sampler"
FILES: Final = "[Chopper's own format](telemetry.md#choppers-own-format) in CSV or Parquet"
EXAMPLE: Final = "python sampler.py > telemetry.csv"
SUFFIXES: Final = (*TEXT_SUFFIXES, ".parquet", ".pq", ".pkl", ".pickle")

_CSV_FORMAT: Final = "telemetry CSV"
_PARQUET_FORMAT: Final = "telemetry Parquet"
_METRICS_TIME: Final = "ts"
"""The original Chopper's column of time.monotonic_ns(); its `gpu` is a KFD node."""

_SIGNALS: Final = frozenset(SignalName)
_METRICS: Final[Sequence[tuple[str, Field]]] = (
    ("current_socket_power", Field(SignalName.POWER_W, "w")),
    ("average_socket_power", Field(SignalName.POWER_W, "w")),
    ("energy_accumulator", Field(SignalName.ENERGY_J, "ticks")),
    ("current_gfxclks", Field(SignalName.GFX_MHZ, "mhz", "xcd", is_list=True)),
    ("current_gfxclk", Field(SignalName.GFX_MHZ, "mhz")),
    ("average_gfxclk_frequency", Field(SignalName.GFX_MHZ, "mhz")),
    ("current_uclk", Field(SignalName.MEM_MHZ, "mhz")),
    ("average_uclk_frequency", Field(SignalName.MEM_MHZ, "mhz")),
    ("temperature_hotspot", Field(SignalName.HOTSPOT_C, "c")),
    ("temperature_mem", Field(SignalName.MEM_C, "c")),
    ("temperature_edge", Field(SignalName.EDGE_C, "c")),
    ("average_gfx_activity", Field(SignalName.GFX_UTIL_PCT, "%")),
    ("average_umc_activity", Field(SignalName.MEM_UTIL_PCT, "%")),
    ("xgmi_read_data_acc", Field(SignalName.XGMI_READ_BYTES, "kb", "link", is_list=True)),
    ("xgmi_write_data_acc", Field(SignalName.XGMI_WRITE_BYTES, "kb", "link", is_list=True)),
    *(
        (heading, Field(SignalName.THROTTLE_PCT, "%", STATUS, convert=throttled_pct))
        for heading in ("throttle_status", "indep_throttle_status")
    ),
    ("accumulation_counter", Field(SignalName.THROTTLE_PCT, "", kind=FieldKind.TICKS)),
    *(
        (heading, Field(SignalName.THROTTLE_PCT, "", limiter, FieldKind.RESIDENCY))
        for heading, limiter in (
            ("prochot_residency_acc", "prochot"),
            ("ppt_residency_acc", "ppt"),
            ("socket_thm_residency_acc", "socket_thermal"),
            ("vr_thm_residency_acc", "vr_thermal"),
            ("hbm_thm_residency_acc", "hbm_thermal"),
        )
    ),
)
"""The columns of amdsmi_get_gpu_metrics_info that are signals."""
_TIMES: Final = ("time_ns", "monotonic_ns", _METRICS_TIME)
_NAMES: Final = ("gpu", "kfd_node", "card", "pci")
_PCIE_ACCUMULATOR: Final = "pcie_bandwidth_acc"
_PCIE_NOTE: Final = "pcie_bandwidth_acc is ignored: AMD's headers disagree about its unit."
_NO_CLOCK: Final = (
    "The file doesn't name the clock of time_ns; name it in a comment (`# clock: monotonic`), a "
    "column clock or the Parquet metadata."
)


class _Clocks(Struct):
    """The clock that a file names, and the offset between its two clocks."""

    declared: str = ""
    offsets_ns: list[Int64] = field(default_factory=list)


def recognise(head: FileHead) -> Recognised | Unusable | None:
    """Recognise Chopper's own format by its headings."""
    if head.magic.startswith(PARQUET_MAGIC):
        reason = _why_no_parquet(head.path)
        return Unusable(reason) if reason else Recognised(_PARQUET_FORMAT)
    return recognised_table(head, _csv_layout)


def read(path: Path, _progress: Progress = silent) -> Telemetry:
    """Read Chopper's own format; raises DataError without any usable sample."""
    head = FileHead(path)
    return _read_parquet(path) if head.magic.startswith(PARQUET_MAGIC) else _read_csv(head)


def _csv_layout(headings: Sequence[str], stamps: Stamps) -> ColumnPositions | None:
    return _layout(headings, stamps, clocks=_Clocks(), format_name=_CSV_FORMAT)


def _read_csv(head: FileHead) -> Telemetry:
    clocks = _Clocks(declared_clock(head.lines[:HEADING_LINES]))
    layout_of = partial(_layout, clocks=clocks, format_name=_CSV_FORMAT)
    return _with_clock_notes(read_table(FileText(head.path), layout_of), clocks)


def _why_no_parquet(path: Path) -> str | None:
    """Return why a Parquet file isn't in Chopper's own format; None if it is."""
    try:
        names = parquet_names(path)
    except (ValueError, OSError) as error:
        return f"is Parquet that can't be read ({first_line(error)})"
    is_ours = _csv_layout(names, Stamps()) is not None
    return None if is_ours else "is a Parquet file without time_ns and signals"


def _read_parquet(path: Path) -> Telemetry:
    from pyarrow.lib import ArrowException
    from pyarrow.parquet import ParquetFile

    from chopper_core.tables.column import TableColumn
    from chopper_core.tables.rows import TableRows

    stamps, rows = Stamps(), RowCollector(path)
    try:
        with opened_parquet(path) as opened, ParquetFile(opened) as file:
            schema = file.schema_arrow
            clocks = _Clocks((schema.metadata or {}).get(b"clock", b"").decode("utf-8", "replace"))
            layout = _layout(schema.names, stamps, clocks, _PARQUET_FORMAT)
            if layout is None:
                raise DataError(f"{path} is a Parquet file without time_ns and signals.")
            for batch in file.iter_batches():
                add_rows(rows, layout, TableRows([*map(TableColumn, batch.columns)], len(batch)))
    except (ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} can't be read: {first_line(error)}.") from error
    notes = [*layout.notes, *named_by_rounds(rows, path)]
    telemetry = telemetry_of(path, layout.format, rows, stamps, Losses(), notes)
    return _with_clock_notes(telemetry, clocks)


def _layout(
    headings: Sequence[str], stamps: Stamps, clocks: _Clocks, format_name: str
) -> ColumnPositions | None:
    table = Headings(headings)
    own = [
        (column, Field(SignalName(name), next(iter(DIMENSIONS[SignalName(name)].factors)), part))
        for heading, column in table.columns.items()
        for name, _, part in [heading.partition(".")]
        if name in _SIGNALS
    ]
    metrics = [
        (column, replace(metric, alternative=metric.alternative + 1))
        for column, metric in table.fields(_METRICS)
    ]
    time = next((heading for heading in _TIMES if heading in table.columns), "")
    if not time or not (own or metrics):
        return None
    is_named = not table.columns.keys().isdisjoint(_NAMES)
    return ColumnPositions(
        format=format_name,
        width=len(headings),
        gpu_of=partial(_gpu_of, table, time == _METRICS_TIME) if is_named else None,
        named_by=table.positions(*_NAMES),
        times_of=_time_reader(table, time, stamps, clocks),
        fields=[*own, *metrics],
        notes=[_PCIE_NOTE] if _PCIE_ACCUMULATOR in table.columns else [],
    )


def _time_reader(
    table: Headings, time: str, stamps: Stamps, clocks: _Clocks
) -> Callable[[TableRows], Int64]:
    """Return a reader of the times of rows, which also records offsets to the monotonic time."""
    clock = clock_named(clocks.declared)
    if time != "time_ns":
        clock = ClockDomain.MONOTONIC
    elif not clocks.declared and "monotonic_ns" in table.columns:
        clock = ClockDomain.EPOCH

    def times_of(rows: TableRows) -> Int64:
        clocks_of = rows.values_of(table.positions("clock"), partial(_clock_of, table, clock))
        times_ns = stamps.read_nanoseconds(rows.column(table.columns[time]), clocks_of)
        if time == "time_ns" and "monotonic_ns" in table.columns:
            monotonic_ns = rows.column(table.columns["monotonic_ns"]).integers()
            has_both = (times_ns >= 0) & (monotonic_ns >= 0)
            clocks.offsets_ns.append(times_ns[has_both] - monotonic_ns[has_both])
        return times_ns

    return times_of


def _clock_of(table: Headings, default: ClockDomain, cells: Cells) -> ClockDomain:
    name = table.cell(cells, "clock")
    return clock_named(name) if name else default


def _gpu_of(table: Headings, is_node: bool, cells: Cells) -> GpuName | None:
    name = table.cell(cells, "gpu")
    number = whole_number(name)
    node = whole_number(table.cell(cells, "kfd_node"))
    if is_node and node is None:
        number, node = None, number
    card = table.cell(cells, "card")
    gpu = GpuName(
        index=-1 if number is None else number,
        kfd_node=-1 if node is None else node,
        card=card or (name if number is None and not is_node else ""),
        pci=table.cell(cells, "pci"),
    )
    return None if gpu == GpuName() else gpu


def _with_clock_notes(telemetry: Telemetry, clocks: _Clocks) -> Telemetry:
    notes = []
    to_monotonic_ns = None
    if telemetry.clock is ClockDomain.UNKNOWN:
        notes.append(_NO_CLOCK)
    offsets_ns = np.sort(np.concatenate([np.empty(0, np.int64), *clocks.offsets_ns]))
    if len(offsets_ns):
        middle_ns = int(offsets_ns[len(offsets_ns) // 2])
        to_monotonic_ns = -middle_ns
        spread_ns = int(offsets_ns[-1]) - int(offsets_ns[0])
        notes.append(f"time_ns minus monotonic_ns: median {middle_ns} ns, spread {spread_ns} ns.")
    return replace(telemetry, notes=[*telemetry.notes, *notes], to_monotonic_ns=to_monotonic_ns)
