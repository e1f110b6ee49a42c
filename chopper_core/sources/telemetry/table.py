"""Tables with headings, as most tools write them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.sources.registry import Recognised
from chopper_core.sources.signals import GpuName, Telemetry
from chopper_core.sources.telemetry.cells import Stamps, whole_number
from chopper_core.sources.telemetry.rows import Field, RowCollector, RowLoss, block_of
from chopper_core.sources.telemetry.series import telemetry_of
from chopper_core.tables.text import FileHead, FileText, csv_cells
from chopper_core.util.arrays import Int32, Int64, Mask
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import counted, first_equal
from chopper_core.util.progress import Progress, silent

if TYPE_CHECKING:
    from chopper_core.tables.column import TableColumn
    from chopper_core.tables.rows import Cells, Split, TableRows


_ROUNDS: Final = "Rows don't name their GPU; they come in rounds of {}, one row per GPU in order."
_ONE_GPU: Final = "Rows don't name their GPU; their times are those of one."
_NO_ROUNDS: Final = (
    "doesn't name the GPU of its rows, and their times don't show rounds of one row per GPU; log "
    "the GPU too (nvidia-smi --query-gpu=timestamp,index,power.draw)"
)


_UNKNOWN: Final = "is ignored: its unit is unknown."
_HEADING: Final = re.compile(r"(\S+)\s*(?:\[(.+)\])?")
_CLEAR_STEP: Final = 2.0
"""Between rounds is at least this many times the usual time between the rows of a round."""
_PAUSE_SHARE: Final = 0.75
"""A gap of this part of the usual one between rounds ends a round, or is a slow query."""
_MAX_GPUS_OF_NODE: Final = 64
_WHOLE_ROUNDS: Final = 0.8
"""Rounds are certain if they take up this part of the rows."""
_FEWEST_ROUNDS: Final = 3
_BROKEN: Final = -1


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
        cell = cells[column] if column < len(cells) else ""
        return str(cell).strip()

    def numbered_gpu(self, cells: Cells) -> GpuName | None:
        """Return the GPU whose number is below `gpu`."""
        number = whole_number(self.cell(cells, "gpu"))
        return None if number is None or number < 0 else GpuName(index=number)

    def positions(self, *headings: str) -> list[int]:
        return [self.columns[name] for name in headings if name in self.columns]

    def stamp_reader(self, stamps: Stamps, *headings: str) -> Callable[[TableRows], Int64] | None:
        """Return a reader of the stamps of rows; None for a table without such a heading."""
        columns = self.positions(*headings)
        if not columns:
            return None
        return lambda rows: stamps.read_column(rows.column(columns[0]))

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
    named_by: Sequence[int]
    """The columns in which `gpu_of` finds the name."""
    times_of: Callable[[TableRows], Int64] | None
    """The times of rows, -1 for unusable ones; None for a table without timestamps."""
    fields: Sequence[tuple[int, Field]]
    notes: Sequence[str] = ()
    gpus: Sequence[GpuName] = ()
    """Of each field, where a row has several GPUs."""
    failed: float | None = None
    """The number in place of a failed reading."""


_MAX_HEADINGS: Final = 1000
_DIGITS: Final = frozenset("0123456789")
GpuOf = Callable[["Cells"], GpuName | None]
LayoutOf = Callable[[Sequence[str], Stamps], ColumnPositions | None]
"""Headings → layout, or None for another format."""


class TelemetryTable(Struct, frozen=True):
    """A format of telemetry in CSV, by its columns: recognises and reads its files."""

    name: str
    """For people: `amd-smi metric CSV`."""
    columns: Sequence[tuple[str, Field]]
    """Headings in lower case, and what they mean; among those of one meaning the first leads."""
    gpu: Sequence[str] = ("gpu",)
    """Headings of what names the GPU of a row; one of them is needed."""
    also_named_by: Sequence[str] = ()
    """Headings of what else `gpu_of` looks at."""
    may_be_nameless: bool = False
    """Whether rows without the name of a GPU come in rounds."""
    has_units: bool = False
    """Whether headings have their unit in brackets: `power.draw [W]`."""
    time: Sequence[str] = ("timestamp",)
    """Headings of the time; the first that there is."""
    marks: frozenset[str] = frozenset()
    """Headings that only this format has; one of them is needed. () for any of its columns."""
    gpu_of: Callable[[Headings], GpuOf] = lambda table: table.numbered_gpu
    """Makes what finds the GPU of a row; by default its number below `gpu`."""
    ignored: Sequence[str] = ()
    """Headings of columns in an unknown unit."""
    notes_of: Callable[[Sequence[tuple[int, Field]]], Sequence[str]] = lambda _: ()
    """Sentences on the columns that a file has."""

    def layout(self, headings: Sequence[str], stamps: Stamps) -> ColumnPositions | None:
        """The columns below some headings; None for those of another format."""
        parts = [_HEADING.fullmatch(heading) for heading in headings] if self.has_units else []
        table = (
            Headings(match[1] if match else "" for match in parts) if parts else Headings(headings)
        )
        fields = [
            (at, replace(field, unit=match[2].casefold()) if match and match[2] else field)
            for at, field in table.fields(self.columns)
            for match in [parts[at] if parts else None]
        ]
        if not fields or (self.marks and self.marks.isdisjoint(table.columns)):
            return None
        is_named = not table.columns.keys().isdisjoint(self.gpu)
        if not is_named and not self.may_be_nameless:
            return None
        return ColumnPositions(
            format=self.name,
            width=len(headings),
            gpu_of=self.gpu_of(table) if is_named else None,
            named_by=table.positions(*self.gpu, *self.also_named_by),
            times_of=table.stamp_reader(stamps, *self.time),
            fields=fields,
            notes=[
                *(f"{name} {_UNKNOWN}" for name in headings if name.casefold() in self.ignored),
                *self.notes_of(fields),
            ],
        )

    def recognise(self, head: FileHead) -> Recognised | None:
        return recognised_table(head, self.layout)

    def read(self, path: Path, _progress: Progress = silent) -> Telemetry:
        """Read a file; raises DataError without any usable sample."""
        return read_table(FileText(path), self.layout)


def first_layout(*formats: TelemetryTable) -> LayoutOf:
    """The layout of the first of several formats that headings have."""

    def layout_of(headings: Sequence[str], stamps: Stamps) -> ColumnPositions | None:
        found = (each.layout(headings, stamps) for each in formats)
        return next((layout for layout in found if layout is not None), None)

    return layout_of


def recognised_table(head: FileHead, layout_of: LayoutOf) -> Recognised | None:
    """Return the format of a table, by the headings near its start."""
    layouts = (layout_of(cells, Stamps()) for cells in head.rows)
    return next((Recognised(layout.format) for layout in layouts if layout), None)


class TableLines:
    """Reads the lines of a file below headings, which may come again or change."""

    def __init__(
        self,
        rows: RowCollector,
        split: Split,
        as_csv: Callable[[str, int], str | None] | None = None,
    ) -> None:
        """Start without headings; `as_csv` writes many lines, of so many, as CSV, if it can."""
        self.layout: ColumnPositions | None = None
        self.waiting: list[str] = []
        """Rows below these headings that aren't read yet."""
        self._rows = rows
        self._split = split
        self._as_csv = as_csv
        self._headings = 0

    def use(self, layout: ColumnPositions) -> None:
        """Read the lines that follow by other headings; raises DataError for too many of them."""
        self.flush()
        self.layout = layout
        self._headings += 1
        if self._headings > _MAX_HEADINGS:
            raise DataError(f"The file changes its headings more than {_MAX_HEADINGS:,} times.")

    def add(self, line: str) -> None:
        """Add a row; before any headings it is foreign."""
        if self.layout is None:
            self._rows.row_losses[RowLoss.FOREIGN] += 1
        else:
            self.waiting.append(line)

    def flush(self) -> None:
        """Read the rows that wait for it."""
        if self.layout is None or not self.waiting:
            return
        from chopper_core.tables.rows import TableRows

        width, block = self.layout.width, None
        if self._as_csv is not None:
            text = self._as_csv("\n".join(self.waiting) + "\n", len(self.waiting))
            block = None if text is None else TableRows.of_csv(text, width)
        add_rows(
            self._rows, self.layout, block or TableRows.of_lines(self.waiting, width, self._split)
        )
        self.waiting.clear()

    def add_csv(self, text: str, heading: str | None) -> bool:
        """Add whole lines of CSV at once; False where lines that begin like headings, or comments,
        may be among them, or a line that is split by itself."""
        if self.layout is None or "#" in text:
            return False
        # Few texts have the heading anywhere, which is found faster than where it is.
        if heading is not None and heading.casefold() in text.lower():
            start = re.compile(rf'^[\s"]*{re.escape(heading)}', re.IGNORECASE | re.MULTILINE)
            if start.search(text):
                return False
        from chopper_core.tables.rows import TableRows

        block = TableRows.of_csv(text, self.layout.width)
        if block is None:
            return False
        add_rows(self._rows, self.layout, block)
        return True


def read_table(text: FileText, layout_of: LayoutOf) -> Telemetry:
    """Read a CSV file whose headings have a layout.

    Raises DataError if it holds no usable sample.
    """
    stamps, rows = Stamps(), RowCollector(text.path)
    table, headings = TableLines(rows, csv_cells), [""]
    row_starts: frozenset[str] = frozenset()
    for block in text.blocks():
        if table.add_csv(block, headings[0]):
            continue
        for line in block.splitlines():
            if line[:1] in row_starts:
                table.waiting.append(line)
                continue
            if not line.strip() or line.startswith("#"):
                continue
            if table.layout is None or _first_cell(line) == headings[0].casefold():
                cells = csv_cells(line)
                is_same = cells == headings
                is_row = is_same or (table.layout is not None and _has_number(cells))
                found = None if is_row else layout_of(cells, stamps)
                rows.row_losses[RowLoss.REPEATED_HEADER] += is_same or bool(found and table.layout)
                if found is not None:
                    table.use(found)
                    headings = cells
                    row_starts = _DIGITS - {cells[0][:1]}
                if is_same or found is not None:
                    continue
            table.add(line)
        table.flush()
    if table.layout is None:
        raise DataError(f"{text.path} has no headings of a known telemetry format.")
    notes = [*table.layout.notes, *named_by_rounds(rows, text.path)]
    rows.row_losses = +rows.row_losses
    return telemetry_of(text.path, table.layout.format, rows, stamps, text.losses, notes)


def named_by_rounds(rows: RowCollector, path: Path) -> list[str]:
    """Add the rows that don't name their GPU, by their place in rounds; say so in a note.

    Raises DataError if their times don't show rounds.
    """
    if not rows.nameless:
        return []
    blocks, rows.nameless = rows.nameless, []
    count = sum(block.rows for block in blocks)
    times = [block.times_ns for block in blocks if block.times_ns is not None]
    is_timed = len(times) == len(blocks)
    places = np.zeros(1, np.int64) if count == 1 else None
    if places is None and is_timed:
        places = _places_in_rounds(np.concatenate(times))
    if places is None:
        raise DataError(f"{path} {_NO_ROUNDS}.")
    size = int(places.max()) + 1
    gpus = [GpuName(index=place) for place in range(size)] if size > 1 else [GpuName()]
    begin = 0
    for block in blocks:
        own = places[begin : begin + block.rows]
        begin += block.rows
        is_whole = own != _BROKEN
        rows.row_losses[RowLoss.BROKEN_ROUND] += int((~is_whole).sum())
        rows.add_rows(gpus, own[is_whole], block.take(is_whole))
    return [_ROUNDS.format(size) if size > 1 else _ONE_GPU]


def add_rows(rows: RowCollector, layout: ColumnPositions, block: TableRows) -> None:
    """Add rows of a table, and count why some are unusable."""
    rows.row_losses[RowLoss.LONG] += int(block.is_long.sum())
    block = block.take(~block.is_long)
    gpus: Sequence[GpuName | None] = [GpuName()]
    which: Int32 | Int64 = np.zeros(len(block), np.int64)
    if layout.gpu_of is not None:
        named = block.values_of(layout.named_by, layout.gpu_of)
        gpus, which = named.distinct, named.codes
    is_used = np.full(len(block), bool(layout.gpus))
    for column, _ in layout.fields:
        is_used |= _has_reading(block.column(column), layout.failed)
    if None in gpus:
        is_used &= which != gpus.index(None)
    if not is_used.all():
        # A time alone separates rounds; nothing is lost with it.
        unused = block.take(~is_used)
        filled = np.zeros(len(unused), np.int64)
        for index in range(layout.width):
            filled += unused.column(index).is_filled
        rows.row_losses[RowLoss.NO_DATA] += int((filled > (layout.failed is None)).sum())
        block, which = block.take(is_used), which[is_used]
    times_ns = None
    if layout.times_of is not None:
        times_ns = layout.times_of(block)
        is_timed = times_ns >= 0
        rows.row_losses[RowLoss.BAD_STAMP] += int((~is_timed).sum())
        block, which, times_ns = block.take(is_timed), which[is_timed], times_ns[is_timed]
    rows.row_losses[RowLoss.SHORT] += int(block.is_short.sum())
    if not len(block):
        return
    columns = [(field, block.column(column)) for column, field in layout.fields]
    if layout.gpus:
        for gpu, given in zip(layout.gpus, columns, strict=True):
            rows.add_rows([gpu], which, block_of(len(block), times_ns, [given]))
    elif layout.gpu_of is None:
        rows.nameless.append(block_of(len(block), times_ns, columns))
    else:
        names = [gpu or GpuName() for gpu in gpus]
        rows.add_rows(names, which, block_of(len(block), times_ns, columns))


def _has_reading(cells: TableColumn, failed: float | None) -> Mask:
    """Which rows have a cell that isn't empty, nor the number of a failed reading."""
    if failed is None:
        return cells.is_filled
    return cells.is_filled & np.not_equal(cells.floats(), failed)


def _first_cell(line: str) -> str:
    return next(iter(csv_cells(line)), "").strip().casefold()


def _has_number(cells: Sequence[str]) -> bool:
    """Whether cells are those of a row: no tool has a number as a heading."""
    return any(cell.isdigit() for cell in cells)


def _places_in_rounds(times_ns: Int64) -> Int64 | None:
    """Return the place of each row in its round, _BROKEN in rounds with missing rows.

    A round may pause, as a tool does when a query is slow: its parts then add up to a whole one.
    None if the times don't show rounds, or too few.
    """
    gaps = np.diff(times_ns)
    if len(gaps) < _FEWEST_ROUNDS - 1 or gaps.min() < 0:
        return None
    found: Int64 | None = None
    most = _WHOLE_ROUNDS * len(times_ns)
    for pause_ns in _pauses(gaps):
        runs = np.diff(np.flatnonzero(gaps >= pause_ns), prepend=-1, append=len(gaps))
        sizes, counts = counted(runs)
        # Of sizes as common as each other the first one counts.
        chosen = np.lexsort((first_equal(runs, sizes), -counts))[0]
        size, count = int(sizes[chosen]), int(counts[chosen])
        if size == 1 or count < _FEWEST_ROUNDS:
            continue
        places = _places(runs.tolist(), size)
        whole = len(places) - int((places == _BROKEN).sum())
        if size * count >= _WHOLE_ROUNDS * len(times_ns) and whole >= most:
            found, most = places, whole
    if found is None and _is_regular(gaps):
        return np.zeros(len(times_ns), np.int64)
    return found


def _pauses(gaps: Int64) -> list[int]:
    """Return where the gap between rounds may begin, for rounds of 2 rows and more.

    Of rounds of n rows every n-th gap is a long one. A few queries within a round may take as long.
    """
    longest = np.sort(gaps)[::-1]
    rows = len(gaps) + 1
    found = []
    for size in range(2, min(rows // _FEWEST_ROUNDS, _MAX_GPUS_OF_NODE) + 1):
        rounds = rows // size
        pause_ns = int(longest[(rounds - 1) // 2] * _PAUSE_SHARE)
        within = longest[rounds:]
        if pause_ns >= _CLEAR_STEP * max(int(within[len(within) // 2]), 1):
            found.append(pause_ns)
    return sorted(set(found))


def _places(runs: Sequence[int], size: int) -> Int64:
    places: list[int] = []
    parts = 0
    for run in runs:
        parts += run
        if parts < size:
            continue
        broken = 0 if parts == size else parts - run if run == size else parts
        places += [_BROKEN] * broken
        if parts > broken:
            places += range(size)
        parts = 0
    return np.array(places + [_BROKEN] * parts, np.int64)


def _is_regular(gaps: Int64) -> bool:
    """Return whether rows follow each other like the samples of one GPU."""
    middle = int(np.sort(gaps)[len(gaps) // 2])
    near = int((middle <= _CLEAR_STEP * gaps).sum())
    return middle > 0 and near >= _WHOLE_ROUNDS * len(gaps)
