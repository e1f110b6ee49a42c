"""Tables with headings, as most tools write them: rows of cells into a collector."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.sources.registry import Recognised
from chopper_core.sources.shared.text import FileHead, FileText, csv_cells
from chopper_core.sources.signals import GpuName, Telemetry
from chopper_core.sources.telemetry.quantities import whole_number
from chopper_core.sources.telemetry.rows import Field, RowCollector, RowLoss
from chopper_core.sources.telemetry.series import telemetry_of
from chopper_core.sources.telemetry.stamps import Stamps
from chopper_core.util.errors import DataError

Cells = Sequence[object]


class Layout(Struct, frozen=True):
    """Where the columns of a table lie."""

    format: str
    """For people: `amd-smi metric CSV`."""
    width: int
    gpu_of: Callable[[Cells], GpuName | None]
    time_of: Callable[[Cells], int | None] | None
    """None for a table without timestamps."""
    fields: Sequence[tuple[int, Field]]
    notes: Sequence[str] = ()


LayoutOf = Callable[[Sequence[str], Stamps], Layout | None]
"""Headings → layout, or None if they are of another format."""


def recognised_table(head: FileHead, layout_of: LayoutOf) -> Recognised | None:
    """Return the format of a table by the headings near its start."""
    layouts = (layout_of(cells, Stamps()) for cells in head.rows)
    return next((Recognised(layout.format) for layout in layouts if layout), None)


def read_table(text: FileText, layout_of: LayoutOf) -> Telemetry:
    """Read a CSV file whose headings have a layout.

    Raises DataError if it holds no usable sample.
    """
    stamps, rows = Stamps(), RowCollector()
    layout, headings = None, [""]
    for line in text.lines():
        if not line.strip() or line.startswith("#"):
            continue
        cells = csv_cells(line)
        if layout is None or (cells and cells[0].casefold() == headings[0].casefold()):
            found = layout_of(cells, stamps)
            if found is not None:
                rows.row_losses[RowLoss.REPEATED_HEADER] += layout is not None
                layout, headings = found, cells
                continue
        if layout is None:
            rows.row_losses[RowLoss.FOREIGN] += 1
            continue
        add_row(rows, layout, cells)
    if layout is None:
        raise DataError(f"{text.path} has no headings of a telemetry format.")
    rows.row_losses = +rows.row_losses
    return telemetry_of(text.path, layout.format, rows, stamps, text.losses, layout.notes)


def add_row(rows: RowCollector, layout: Layout, cells: Cells) -> None:
    """Add one row of a table, or count why it can't be used."""
    if any(str(cell) for cell in cells[layout.width :]):
        rows.row_losses[RowLoss.LONG] += 1
        return
    gpu = layout.gpu_of(cells)
    given = [(field, cells[column]) for column, field in layout.fields if column < len(cells)]
    if gpu is None or not any(cell is not None and cell != "" for _, cell in given):
        rows.row_losses[RowLoss.NO_DATA] += 1
        return
    time_ns = None
    if layout.time_of is not None:
        time_ns = layout.time_of(cells)
        if time_ns is None:
            rows.row_losses[RowLoss.BAD_STAMP] += 1
            return
    if len(cells) < layout.width:
        rows.row_losses[RowLoss.SHORT] += 1
    rows.add(gpu, time_ns, given)


def positions(headings: Iterable[str]) -> dict[str, int]:
    """Return the column of each heading in lower case; the first one of equal headings."""
    found: dict[str, int] = {}
    for column, heading in enumerate(headings):
        found.setdefault(heading.strip().casefold(), column)
    return found


def chosen_fields(
    columns: Mapping[str, int], known: Sequence[tuple[str, Field]]
) -> list[tuple[int, Field]]:
    """Return the known columns that a table has; of those that hold the same, the first leads."""
    ranks: Counter[Field] = Counter()
    chosen = []
    for heading, field in known:
        if heading in columns:
            what = replace(field, unit="", convert=None)
            chosen.append((columns[heading], replace(field, alternative=ranks[what])))
            ranks[what] += 1
    return chosen


def stamp_reader(column: int | None, stamps: Stamps) -> Callable[[Cells], int | None] | None:
    """Return what reads the timestamp of a row."""
    if column is None:
        return None
    return lambda cells: stamps.read(cells[column]) if column < len(cells) else None


def index_reader(column: int) -> Callable[[Cells], GpuName | None]:
    """Return what reads the GPU of a row from its number."""

    def gpu_of(cells: Cells) -> GpuName | None:
        number = whole_number(cells[column]) if column < len(cells) else None
        return None if number is None or number < 0 else GpuName(index=number)

    return gpu_of
