"""Tables with headings, as most tools write them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.sources.signals import GpuName, Telemetry
from chopper_core.sources.telemetry.cells import Stamps, count_known, is_known, whole_number
from chopper_core.sources.telemetry.rows import Field, RowCollector, RowLoss
from chopper_core.sources.telemetry.series import telemetry_of
from chopper_core.tables.csv_stream import refuse_width
from chopper_core.tables.text import HEADING_LINES, FileHead, FileText, csv_cells, split_lines
from chopper_core.util.arrays import Codes, Int64
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import grouped_by
from chopper_core.util.progress import Progress, silent

if TYPE_CHECKING:
    from chopper_core.tables.column import Cells, Split, TableRows


_UNKNOWN: Final = "is ignored: its unit is unknown."
_HEADING: Final = re.compile(r"(\S+)\s*(?:\[(.+)\])?")
_PROCESS: Final = "pid"
_MAX_HEADINGS: Final = 1000
_WAITING_LINES: Final = 1 << 14
_SPLIT_BELOW: Final = 1 << 15
"""Characters below which lines are split one by one: no CSV reader is needed."""
_DIGITS: Final = frozenset("0123456789")
Columns = Mapping[str, Field]
"""Headings in lower case, and what they mean; among those of one meaning the first leads."""
GpuOf = Callable[["Cells"], GpuName | None]
"""The GPU of a row, by the cells below the headings that name it; '' below others."""
TimesOf = Callable[[Stamps, "TableRows"], Int64]
"""The times of rows, -1 for unusable ones."""


class ColumnPositions(Struct, frozen=True):
    """The position of each column of a table."""

    format: str
    """For people: `amd-smi metric CSV`."""
    width: int
    fields: Sequence[tuple[int, Field]]
    gpu_of: GpuOf | None = None
    """None for a table whose rows don't name their GPU."""
    named_by: Mapping[str, int] = {}
    """The columns by which `gpu_of` finds the name, by their headings."""
    times_of: TimesOf | None = None
    """None for a table without timestamps."""
    host: int | None = None
    """The column of the host."""
    notes: Sequence[str] = ()
    gpus: Sequence[GpuName] = ()
    """Of each field, where a row has several GPUs."""
    failed: float | None = None
    """The number in place of a failed reading."""
    unused: Mapping[str, int] = {}
    """The columns that nothing is read from, by their headings."""


LayoutOf = Callable[[Sequence[str]], ColumnPositions | None]
"""Headings → layout, or None for another format."""


def field_columns(*meanings: tuple[str, Field]) -> dict[str, Field]:
    """The meaning of each heading, of several ones with a space between them."""
    return {heading: field for headings, field in meanings for heading in headings.split()}


def positions(headings: Iterable[str]) -> dict[str, int]:
    """The column of each heading, in lower case; the first one of equal headings."""
    found: dict[str, int] = {}
    for column, heading in enumerate(headings):
        found.setdefault(heading.strip().casefold(), column)
    return found


def named_columns(columns: Mapping[str, int], headings: Iterable[str]) -> dict[str, int]:
    return {heading: columns[heading] for heading in headings if heading in columns}


def fields_in(columns: Mapping[str, int], known: Columns) -> list[tuple[int, Field]]:
    """Return the known columns; among those of the same meaning the first one leads."""
    found = [(heading, field) for heading, field in known.items() if heading in columns]
    meanings = [replace(field, unit="", convert=None, of_file=None) for _, field in found]
    times, ranks = Counter(meanings), Counter[Field]()
    chosen = []
    for (heading, field), meaning in zip(found, meanings, strict=True):
        name = heading if times[meaning] > 1 else ""
        chosen.append((columns[heading], replace(field, alternative=ranks[meaning], heading=name)))
        ranks[meaning] += 1
    return chosen


def unused_of(headings: Sequence[str], used: Collection[int | None]) -> dict[str, int]:
    """The columns that aren't used, by their headings; without those that have none."""
    return {
        heading.strip(): at
        for at, heading in enumerate(headings)
        if at not in used and heading.strip()
    }


def stamps_at(*columns: int) -> TimesOf:
    """The stamps in a column, or in several with a space between them: date and time of day."""

    def times_of(stamps: Stamps, rows: TableRows) -> Int64:
        if len(columns) == 1:
            return stamps.read_column(rows.column(*columns))
        from chopper_core.tables.column import TableColumn

        parts = {str(column): column for column in columns}
        found = rows.values_of(parts, lambda cells: " ".join(cells.values()).strip())
        return stamps.read_column(TableColumn.of(found.distinct))[found.codes]

    return times_of


def csv_line(line: str) -> list[str] | None:
    return None if line.startswith("#") else csv_cells(line)


def numbered_gpu(cells: Cells, headings: Iterable[str] = ("gpu",)) -> GpuName | None:
    """The GPU by its number below the first of the headings that has something in it."""
    number = whole_number(next((cells[each] for each in headings if cells[each]), ""))
    return None if number is None or number < 0 else GpuName(index=number)


class TelemetryTable(Struct, frozen=True):
    """A format of telemetry in CSV, by its columns: recognises and reads its files."""

    name: str
    """For people: `amd-smi metric CSV`."""
    columns: Columns
    gpu: Sequence[str] = ("gpu",)
    """Headings of what names the GPU of a row; one of them is needed."""
    also_named_by: Sequence[str] = ()
    """Headings of what else `gpu_of` looks at."""
    may_be_nameless: bool = False
    """Whether rows without the name of a GPU come in rounds."""
    has_units: bool = False
    """Whether headings have their unit in brackets: `power.draw [W]`."""
    time: Sequence[str] = ("timestamp",)
    """Headings of the time; the first that there is, or two with a space between them."""
    host: Sequence[str] = ()
    """Headings of the host; the first that there is."""
    marks: frozenset[str] = frozenset()
    """Headings that only this format has; one of them is needed. () for any of its columns."""
    gpu_of: GpuOf | None = None
    """From the cells of a row to the name that the file has for its GPU, such as `card0`; by
    default the number below `gpu`. Ingest matches names with the GPUs of the run."""
    ignored: Sequence[str] = ()
    """Headings of columns in an unknown unit."""
    split: Split = csv_line

    def __post_init__(self) -> None:
        declared = chain(
            self.columns,
            self.gpu,
            self.also_named_by,
            self.time,
            self.host,
            self.marks,
            self.ignored,
        )
        for heading in declared:
            if heading != heading.casefold():
                raise ValueError(f"{self.name}: declare the heading {heading!r} in lower case")

    def layout(self, headings: Sequence[str]) -> ColumnPositions | None:
        """The columns below some headings; None for those of another format."""
        units: dict[int, str] = {}
        names = headings
        if self.has_units:
            parts = [_HEADING.fullmatch(heading) for heading in headings]
            names = [match[1] if match else "" for match in parts]
            units = {at: match[2] for at, match in enumerate(parts) if match and match[2]}
        columns = positions(names)
        is_named = not columns.keys().isdisjoint(self.gpu)
        if (
            columns.keys().isdisjoint(self.columns)
            or (self.marks and self.marks.isdisjoint(columns))
            or not (is_named or self.may_be_nameless)
        ):
            return None
        fields = [
            (at, replace(field, unit=units[at].casefold()) if at in units else field)
            for at, field in fields_in(columns, self.columns)
        ]
        times = (each.split() for each in self.time)
        time = next((each for each in times if columns.keys() >= set(each)), ())
        host, *_ = *named_columns(columns, self.host).values(), None
        named_by = named_columns(columns, (*self.gpu, *self.also_named_by))
        used = {at for at, _ in fields} | {*named_by.values(), host}
        used |= {columns[each] for pair in self.time for each in pair.split() if each in columns}
        ignored = [name for name in headings if name.casefold() in self.ignored]
        return ColumnPositions(
            format=self.name,
            width=len(headings),
            fields=fields,
            gpu_of=self.gpu_of or partial(numbered_gpu, headings=self.gpu) if is_named else None,
            named_by=named_by,
            times_of=stamps_at(*(columns[each] for each in time)) if time else None,
            host=host,
            notes=[f"{name} {_UNKNOWN}" for name in ignored],
            unused=unused_of(headings, used),
        )

    def recognise(self, head: FileHead) -> Recognised | Unusable | None:
        return TelemetryFormat((self,)).recognise(head)

    def read(self, path: Path, progress: Progress = silent) -> Telemetry:
        return TelemetryFormat((self,)).read(path, progress)


class JsonRecords(Struct, frozen=True):
    """How a tool writes its tables as JSON, whose keys are the headings."""

    name: str
    recognise: Callable[[str], Recognised | Unusable | None]
    """Recognises a file by the text of its start."""
    begin: Callable[[str], re.Pattern[str]]
    """How its objects begin in a file with that start: no tool promises an order of keys."""
    rows_of: Callable[[Mapping[str, Any]], Iterable[Mapping[str, Any]]]
    """The rows of an object."""


class TelemetryFormat(Struct, frozen=True):
    """What a tool writes, as lines or as JSON: recognises and reads its files."""

    tables: Sequence[TelemetryTable]
    json: JsonRecords | None = None
    example: str = ""
    """A command that writes rows of GPUs, where the tool can write rows of processes, too."""

    def recognise(self, head: FileHead) -> Recognised | Unusable | None:
        if head.is_json:
            return self.json.recognise(head.text) if self.json else None
        for layout_of, split in self._layouts():
            if found := recognised_table(head, layout_of, split, self.example):
                return found
        return None

    def read(self, path: Path, _progress: Progress = silent) -> Telemetry:
        """Raises DataError if the file has no headings, or no usable sample."""
        head = FileHead(path)
        if self.json and head.is_json:
            return self._read_json(self.json, path, head)
        layouts = self._layouts()
        known = (each for each in layouts if recognised_table(head, *each))
        layout_of, split = next(known, layouts[-1])
        return read_table(path, layout_of, split=split)

    def _layouts(self) -> list[tuple[LayoutOf, Split]]:
        """The layout of headings, by how their line is split."""
        by_split = grouped_by(self.tables, lambda each: each.split)
        return [(_first_layout(tables), split) for split, tables in by_split.items()]

    def _read_json(self, json: JsonRecords, path: Path, head: FileHead) -> Telemetry:
        text = FileText(path)
        rows = RowCollector(path, text.losses)

        def records() -> Iterator[Mapping[str, Any]]:
            for found in text.objects(json.begin(head.text)):
                if isinstance(found, dict):
                    yield from json.rows_of(found)
                else:
                    # The rows of a damaged list of them follow.
                    rows.row_losses[RowLoss.UNREADABLE] += "gpu_data" not in found

        name = add_records(rows, self.tables, records())
        return telemetry_of(name.replace("CSV", "JSON") or json.name, rows)


def _first_layout(tables: Sequence[TelemetryTable]) -> LayoutOf:
    return lambda headings: next(filter(None, (each.layout(headings) for each in tables)), None)


def recognised_table(
    head: FileHead, layout_of: LayoutOf, split: Split = csv_line, example: str = ""
) -> Recognised | Unusable | None:
    """Return the format of a table, by the headings near its start.

    One of processes is refused, with an example of the command that lists GPUs.
    """
    lines = head.rows if split is csv_line else map(split, head.lines[:HEADING_LINES])
    for cells in filter(None, lines):
        if layout := layout_of(cells):
            if _PROCESS in positions(cells):
                record = f"; record: {example}" if example else ""
                return Unusable(f"lists processes (column {_PROCESS}), not GPUs{record}")
            return Recognised(layout.format)
    return None


def read_table(
    path: Path,
    layout_of: LayoutOf,
    stamps: Stamps | None = None,
    split: Split = csv_line,
    layout: ColumnPositions | None = None,
) -> Telemetry:
    """Read the rows of a file below its headings, which may come again or change.

    A file without headings has the `layout` that is given. Raises DataError without any usable
    sample.
    """
    text = FileText(path)
    lines = _TableLines(RowCollector(path, text.losses, stamps), layout_of, split, layout)
    for block in text.blocks():
        lines.add(block)
    if lines.layout is None:
        raise DataError(f"{path} has no headings of a known telemetry format.")
    return telemetry_of(lines.layout.format, lines.rows, lines.layout.notes)


class _TableLines:
    """Collects the rows among the lines of a file."""

    def __init__(
        self,
        rows: RowCollector,
        layout_of: LayoutOf,
        split: Split,
        layout: ColumnPositions | None,
    ) -> None:
        self.rows = rows
        self.layout = layout
        self._layout_of, self._split = layout_of, split
        self._is_csv = split is csv_line
        self._headings: list[str] | None = None
        self._changes = 0
        self._row_starts: frozenset[str] = frozenset()
        """How lines begin that are no headings."""
        self._waiting: list[str] = []
        """Rows below these headings that aren't read yet."""
        self._is_other = False
        """Whether the last headings are those of another table."""

    def add(self, block: str) -> None:
        """Add whole lines; raises DataError where headings change too often."""
        from chopper_core.tables.column import TableRows

        if self._is_csv and self.layout is None and len(block) > _SPLIT_BELOW:
            block = self._below_headings(block)
        is_plain = self._is_csv and self.layout is not None and not self._is_other
        if is_plain and not _may_have_headings(block, self._headings):
            assert self.layout is not None
            at_once = TableRows.of_csv(block, self.layout.width, is_spaced=True)
            if at_once is not None:
                add_rows(self.rows, self.layout, at_once)
                return
        for line in split_lines(block):
            is_certain = not self._is_other and line[:1] in self._row_starts
            if is_certain or self._is_row(line):
                self._waiting.append(line)
        self._flush()

    def _below_headings(self, block: str) -> str:
        """The lines after the first headings, which are read."""
        lines = split_lines(block)
        for number, line in enumerate(lines, 1):
            self._is_row(line)
            if self.layout is not None:
                return "".join(f"{each}\n" for each in lines[number:])
        return ""

    def _is_row(self, line: str) -> bool:
        cells = self._split(line) if line.strip() else None
        if cells is None or cells == self._headings:
            self._is_other &= cells is None
            self.rows.row_losses[RowLoss.REPEATED_HEADER] += self._is_csv and cells is not None
            return False
        may_be_headings = self._may_be_headings(cells)
        found = self._layout_of(cells) if may_be_headings else None
        if found is None:
            self._is_other |= self._is_csv and may_be_headings and self.layout is not None
            self.rows.row_losses[RowLoss.FOREIGN] += self.layout is None
            self.rows.row_losses[RowLoss.OTHER_TABLE] += self._is_other and not may_be_headings
            return self.layout is not None and not self._is_other
        self._flush()
        refuse_width(self.rows.path, len(cells), "columns")
        self.rows.row_losses[RowLoss.REPEATED_HEADER] += self.layout is not None
        self.layout, self._headings, self._is_other = found, cells, False
        self._row_starts = _DIGITS - {cells[0][:1]} if self._is_csv else frozenset()
        self._changes += 1
        if self._changes > _MAX_HEADINGS:
            raise DataError(f"The file changes its headings more than {_MAX_HEADINGS:,} times.")
        return False

    def _may_be_headings(self, cells: Sequence[str]) -> bool:
        if self.layout is None:
            return True
        # No tool has a number as a heading.
        first = "".join(cells[:1]).casefold()
        is_like = self._headings is not None and first == self._headings[0].casefold()
        return is_like and not any(map(str.isdigit, cells))

    def _flush(self) -> None:
        from chopper_core.tables.column import TableRows

        if self.layout is not None and self._waiting:
            lines, self._waiting = self._waiting, []
            add_rows(
                self.rows, self.layout, TableRows.of_lines(lines, self.layout.width, self._split)
            )


def add_records(
    rows: RowCollector, tables: Sequence[TelemetryTable], records: Iterator[Mapping[str, object]]
) -> str:
    """Add objects of JSON, whose keys are headings, as rows of tables; the name of the first."""
    from chopper_core.tables.column import TableColumn, TableRows

    @lru_cache
    def table_of(headings: tuple[str, ...]) -> TelemetryTable | None:
        return next((each for each in tables if each.layout(headings)), None)

    found = ""
    while batch := list(islice(records, _WAITING_LINES)):
        by_table: dict[str, list[Mapping[str, object]]] = {each.name: [] for each in tables}
        for record in batch:
            if (table := table_of(tuple(record))) is None:
                rows.row_losses[RowLoss.NO_DATA] += 1
            else:
                by_table[table.name].append(record)
        for table, own in zip(tables, by_table.values(), strict=True):
            known = {*table.columns, *table.gpu, *table.also_named_by, *table.time}
            keys = dict.fromkeys(chain.from_iterable(own))
            headings = [key for key in keys if key.strip().casefold() in known]
            for key in keys.keys() - headings:
                if count := sum(is_known(row.get(key)) for row in own):
                    rows.unused[key] += count
            if (layout := table.layout(headings)) is not None:
                columns = [TableColumn.of([row.get(key) for row in own]) for key in headings]
                add_rows(rows, layout, TableRows(columns, len(own)))
                found = found or table.name
    return found


def _may_have_headings(text: str, headings: Sequence[str] | None) -> bool:
    """Whether lines may be comments, or begin like the headings."""
    # Few texts have the heading anywhere, which is found faster than where it is.
    if headings is None or "#" in text or (heading := headings[0]).casefold() not in text.lower():
        return "#" in text
    start = re.compile(rf'^[\s"]*{re.escape(heading)}', re.IGNORECASE | re.MULTILINE)
    return start.search(text) is not None


def add_rows(rows: RowCollector, layout: ColumnPositions, block: TableRows) -> None:
    """Add rows of a table, and count why some are unusable."""
    losses = rows.row_losses
    losses[RowLoss.LONG] += int(block.is_long.sum())
    block = block.take(~block.is_long)
    gpus: Sequence[GpuName | None] = [None]
    which: Codes = np.zeros(len(block), np.int64)
    is_used = np.full(len(block), bool(layout.gpus))
    if layout.host is not None:
        for host in filter(None, block.column(layout.host).distinct):
            rows.saw_host(host)
    for column, _ in layout.fields:
        cells = block.column(column)
        is_failed = False if layout.failed is None else cells.floats() == layout.failed
        is_used |= cells.is_filled & ~np.asarray(is_failed)
    if layout.gpu_of is not None:
        named = block.values_of(layout.named_by, layout.gpu_of)
        gpus, which = named.distinct, named.codes
        if None in gpus:
            is_used &= which != gpus.index(None)
    if not is_used.all():
        # A time alone separates rounds; nothing is lost with it.
        unused = block.take(~is_used)
        filled = np.zeros(len(unused), np.int64)
        for index in range(layout.width):
            filled += unused.column(index).is_filled
        losses[RowLoss.NO_DATA] += int((filled > (layout.failed is None)).sum())
        block, which = block.take(is_used), which[is_used]
    times_ns = None
    if layout.times_of is None and rows.stamps.clock is not None:
        losses[RowLoss.BAD_STAMP] += len(block)
        return
    if layout.times_of is not None:
        times_ns = layout.times_of(rows.stamps, block)
        is_timed = times_ns >= 0
        losses[RowLoss.BAD_STAMP] += int((~is_timed).sum())
        block, which, times_ns = block.take(is_timed), which[is_timed], times_ns[is_timed]
    losses[RowLoss.SHORT] += int(block.is_short.sum())
    for heading, column in layout.unused.items():
        if known := count_known(block.column(column)):
            rows.unused[heading] += known
    columns = [(field, block.column(column)) for column, field in layout.fields]
    if layout.gpus:
        for gpu, given in zip(layout.gpus, columns, strict=True):
            rows.add_rows([gpu], which, times_ns, [given])
    else:
        rows.add_rows(gpus, which, times_ns, columns)
