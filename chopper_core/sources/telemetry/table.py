"""Tables with headings, as most tools write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.sources.registry import Recognised
from chopper_core.sources.shared.text import FileHead, FileText, csv_cells
from chopper_core.sources.signals import GpuName, Telemetry
from chopper_core.sources.telemetry.cells import Stamps, whole_number
from chopper_core.sources.telemetry.rounds import BROKEN, places_in_rounds
from chopper_core.sources.telemetry.rows import Field, RowCollector, RowLoss
from chopper_core.sources.telemetry.series import telemetry_of
from chopper_core.util.errors import DataError

Cells = Sequence[object]

_ROUNDS: Final = "Rows don't name their GPU; they come in rounds of {}, one row per GPU in order."
_ONE_GPU: Final = "Rows don't name their GPU; their times are those of one."
_NO_ROUNDS: Final = (
    "doesn't name the GPU of its rows, and their times don't show rounds of one row per GPU; log "
    "the GPU too (nvidia-smi --query-gpu=timestamp,index,power.draw)"
)


class Headings:
    """The headings of a table, in lower case, and the cells below them."""

    def __init__(self, headings: Iterable[str]) -> None:
        self.columns: dict[str, int] = {}
        """The column of each heading; the first one of equal headings."""
        for column, heading in enumerate(headings):
            self.columns.setdefault(heading.strip().casefold(), column)

    def cell(self, cells: Cells, *headings: str) -> str:
        """Return the cell below the first of the headings that there is; '' without any."""
        column = next((self.columns[name] for name in headings if name in self.columns), len(cells))
        cell = cells[column] if column < len(cells) else None
        return "" if cell is None else str(cell).strip()

    def numbered_gpu(self, cells: Cells) -> GpuName | None:
        """Return the GPU whose number is below `gpu`."""
        number = whole_number(self.cell(cells, "gpu"))
        return None if number is None or number < 0 else GpuName(index=number)

    def stamp_reader(self, stamps: Stamps, *headings: str) -> Callable[[Cells], int | None] | None:
        """Return a reader of a row's stamp; None for a table without such a heading."""
        if self.columns.keys().isdisjoint(headings):
            return None
        return lambda cells: stamps.read(self.cell(cells, *headings))

    def fields(self, known: Sequence[tuple[str, Field]]) -> list[tuple[int, Field]]:
        """Return the known columns; among those of the same meaning the first one leads."""
        ranks: Counter[Field] = Counter()
        chosen = []
        for heading, field in known:
            if heading in self.columns:
                what = replace(field, unit="", convert=None)
                chosen.append((self.columns[heading], replace(field, alternative=ranks[what])))
                ranks[what] += 1
        return chosen


class ColumnPositions(Struct, frozen=True):
    """The position of each column of a table."""

    format: str
    """For people: `amd-smi metric CSV`."""
    width: int
    gpu_of: Callable[[Cells], GpuName | None] | None
    """None for a table whose rows don't name their GPU."""
    time_of: Callable[[Cells], int | None] | None
    """None for a table without timestamps."""
    fields: Sequence[tuple[int, Field]]
    notes: Sequence[str] = ()


LayoutOf = Callable[[Sequence[str], Stamps], ColumnPositions | None]
"""Headings → layout, or None for another format."""


def recognised_table(head: FileHead, layout_of: LayoutOf) -> Recognised | None:
    """Return the format of a table, by the headings near its start."""
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
        raise DataError(f"{text.path} has no headings of a known telemetry format.")
    notes = [*layout.notes, *named_by_rounds(rows, text.path)]
    rows.row_losses = +rows.row_losses
    return telemetry_of(text.path, layout.format, rows, stamps, text.losses, notes)


def named_by_rounds(rows: RowCollector, path: Path) -> list[str]:
    """Add the rows that don't name their GPU, by their place in rounds; say so in a note.

    Raises DataError if their times don't show rounds.
    """
    if not rows.nameless:
        return []
    times = [time_ns for time_ns, _ in rows.nameless if time_ns is not None]
    is_timed = len(times) == len(rows.nameless)
    places = [0] if len(rows.nameless) == 1 else places_in_rounds(times) if is_timed else None
    if places is None:
        raise DataError(f"{path} {_NO_ROUNDS}.")
    count = max(places) + 1
    for place, (time_ns, given) in zip(places, rows.nameless, strict=True):
        if place == BROKEN:
            rows.row_losses[RowLoss.BROKEN_ROUND] += 1
        else:
            rows.add(GpuName(index=place) if count > 1 else GpuName(), time_ns, given)
    rows.nameless.clear()
    return [_ROUNDS.format(count) if count > 1 else _ONE_GPU]


def _is_filled(cell: object) -> bool:
    return cell is not None and cell != ""


def add_row(rows: RowCollector, layout: ColumnPositions, cells: Cells) -> None:
    """Add a row of a table, or count why it is unusable."""
    if any(str(cell) for cell in cells[layout.width :]):
        rows.row_losses[RowLoss.LONG] += 1
        return
    gpu = layout.gpu_of(cells) if layout.gpu_of else GpuName()
    given = [(field, cells[column]) for column, field in layout.fields if column < len(cells)]
    if gpu is None or not any(map(_is_filled, (cell for _, cell in given))):
        # A time alone separates rounds; nothing is lost with it.
        rows.row_losses[RowLoss.NO_DATA] += sum(map(_is_filled, cells)) > 1
        return
    time_ns = None
    if layout.time_of is not None:
        time_ns = layout.time_of(cells)
        if time_ns is None:
            rows.row_losses[RowLoss.BAD_STAMP] += 1
            return
    if len(cells) < layout.width:
        rows.row_losses[RowLoss.SHORT] += 1
    if layout.gpu_of is None:
        rows.nameless.append((time_ns, given))
    else:
        rows.add(gpu, time_ns, given)
