"""CPU samples in Chopper's own format, CSV or Parquet (docs/telemetry.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import Struct

from chopper_core.sources.registry import Recognised
from chopper_core.sources.signals import ClockDomain
from chopper_core.sources.telemetry.cells import LATEST_NS, clock_named, declared_clock
from chopper_core.tables.bytes import opened_parquet, parquet_names
from chopper_core.tables.columns import GrowingColumn
from chopper_core.tables.losses import Repeats
from chopper_core.tables.text import (
    PARQUET_MAGIC,
    FileHead,
    FileText,
    csv_cells,
    first_line,
)
from chopper_core.util.arrays import Float64, Int32, Int64
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import distinct, ranked, run_mask
from chopper_core.util.progress import Progress, silent

if TYPE_CHECKING:
    from chopper_core.tables.column import TableColumn


NAME: Final = "your own sampler"
FILES: Final = "[CSV or Parquet](telemetry.md#cpu-samples)"
EXAMPLE: Final = "python cpu_sampler.py > cpu.csv"
SUFFIXES: Final = (".csv", ".csv.gz", ".parquet", ".pq")

_CSV_FORMAT: Final = "CPU samples CSV"
_PARQUET_FORMAT: Final = "CPU samples Parquet"
_MAX_PCT: Final = 101.0
"""Tools round; a larger share of time is invalid."""
_TIMES: Final = ("time_ns", "monotonic_ns", "ts")
"""`ts` is the original Chopper's name for time.monotonic_ns()."""
_NEEDS: Final = ("cpu", "percent")
_WANTED: Final = (*_TIMES, *_NEEDS, "core", "socket")
_KINDS: Final = {
    "time": np.int64,
    "cpu": np.int32,
    "percent": np.float64,
    "core": np.int64,
    "socket": np.int64,
}
_MAX_CPUS: Final = 1 << 20
_MAX_SPARSE_CELLS: Final = 1 << 26
_MAX_CELLS_PER_ROW: Final = 16
"""A table of so many more cells than samples is empty but for a diagonal."""
_WORD: Final = re.compile(r"^\s*(?:cpu|core)\s*")
_NO_CLOCK: Final = (
    "The file doesn't name the clock of time_ns; name it in a comment (`# clock: monotonic`) or "
    "the Parquet metadata."
)


class CpuTable(Struct, frozen=True, eq=False):
    """The samples of a file, on its own clock."""

    path: Path
    format: str
    clock: ClockDomain
    cpus: Int64
    cores: Int64
    """Physical core of each CPU; -1 where unknown."""
    times_ns: Int64
    percent: Float64
    """Instants x CPUs."""
    notes: tuple[str, ...]


def recognise(head: FileHead) -> Recognised | None:
    """Recognise CPU samples by their headings."""
    if not head.magic.startswith(PARQUET_MAGIC):
        return Recognised(_CSV_FORMAT) if _headings(head.lines) else None
    try:
        is_ours = _is_ours(parquet_names(head.path))
    except (ValueError, OSError):
        return None
    return Recognised(_PARQUET_FORMAT) if is_ours else None


def read(path: Path, _progress: Progress = silent) -> CpuTable:
    """Read a file; unusable rows are counted in its notes.

    Raises DataError if all are.
    """
    notes: list[str] = []
    samples = _Samples(path)
    if FileHead(path).magic.startswith(PARQUET_MAGIC):
        (time, clock), format_name = _read_parquet(path, samples), _PARQUET_FORMAT
    else:
        (time, clock), format_name = _read_csv(path, samples, notes), _CSV_FORMAT
    domain = clock_named(clock) if time == "time_ns" else ClockDomain.MONOTONIC
    if domain is ClockDomain.UNKNOWN:
        notes.append(_NO_CLOCK)
    if samples.lost:
        rows = samples.lost + samples.repeated + len(samples)
        notes.append(f"{samples.lost} of {rows} rows are unusable and skipped.")
    if not len(samples):
        raise DataError(f"{path} holds no usable CPU sample.")
    instants, row = _distinct(samples.column("time"))
    numbers, column = _distinct(samples.column("cpu"))
    if len(instants) * len(numbers) > max(_MAX_SPARSE_CELLS, _MAX_CELLS_PER_ROW * len(samples)):
        raise DataError(
            f"{path} has {len(samples):,} samples of {len(numbers):,} CPUs at {len(instants):,} "
            "times: no sampler leaves out that many; give the samples of one moment one time."
        )
    table = np.full((len(instants), len(numbers)), np.nan)
    table[row, column] = np.minimum(samples.column("percent"), 100.0)
    twice = samples.repeated + len(samples) - int(np.isfinite(table).sum())
    if twice:
        notes.append(f"{twice} rows repeat a CPU at the same time; the last one counts.")
    cores = np.full(len(numbers), -1, np.int64)
    if samples.has_cores:
        core = _cores(samples.column("core"), samples.column("socket"))
        cores[column] = core
        if (cores[column] != core).any():
            notes.append("A CPU is listed with several cores; the last one counts.")
    return CpuTable(path, format_name, domain, numbers, cores, instants, table, tuple(notes))


class _Samples:
    """The usable rows of a file."""

    def __init__(self, path: Path) -> None:
        self._repeats = Repeats(path)
        self.lost = self.repeated = 0
        self.has_cores = False
        self._columns = {name: GrowingColumn(kind) for name, kind in _KINDS.items()}

    def __len__(self) -> int:
        return len(self._columns["time"])

    def column(self, name: str) -> Any:
        return self._columns[name].whole()

    def add(self, columns: Mapping[str, TableColumn]) -> str:
        """Add rows; returns the name of the column of times."""
        time = next(name for name in _TIMES if name in columns)
        times, cpus = columns[time].integers(LATEST_NS), _numbered(columns["cpu"])
        percent = columns["percent"].floats()
        usable = (times >= 0) & (cpus >= 0) & (cpus < _MAX_CPUS)
        usable &= (percent >= 0) & (percent <= _MAX_PCT)
        self.lost += int((~usable).sum())
        found: dict[str, Any] = {"time": times, "cpu": cpus, "percent": percent}
        if "core" in columns:
            self.has_cores = True
            found["core"] = _numbered(columns["core"])
            found["socket"] = _numbered(columns["socket"]) if "socket" in columns else None
        given = {name: values[usable] for name, values in found.items() if values is not None}
        # Of rows of one CPU at one time, which can be without number, the last one counts.
        where = [values for name, values in given.items() if name != "percent"]
        is_last = np.append(run_mask(*where)[1:], True)[: len(where[0])]
        self._repeats.add(len(is_last), max(int(is_last.sum()), 1))
        self.repeated += len(is_last) - int(is_last.sum())
        for name, values in given.items():
            self._columns[name].append(values[is_last])
        return time


def _distinct(values: Int64) -> tuple[Int64, Int32 | Int64]:
    """The distinct values, and the place among them of each; those of a sampler ascend."""
    if (values[1:] < values[:-1]).any():
        numbers, places = ranked(values)
        return numbers.astype(np.int64), places
    is_first = run_mask(values)
    return values[is_first].astype(np.int64), np.cumsum(is_first, dtype=np.int32) - 1


def _is_ours(headings: Sequence[str]) -> bool:
    names = {name.strip().casefold() for name in headings}
    return names.issuperset(_NEEDS) and not names.isdisjoint(_TIMES)


def _headings(lines: Sequence[str]) -> tuple[int, list[str]] | None:
    """Return the line number of the headings of a CSV file, after comments, and the headings."""
    for number, line in enumerate(lines):
        if line.strip() and not line.startswith("#"):
            cells = csv_cells(line)
            return (number, cells) if _is_ours(cells) else None
    return None


def _read_csv(path: Path, samples: _Samples, notes: list[str]) -> tuple[str, str]:
    from chopper_core.tables.rows import TableRows

    text = FileText(path)
    names: list[str] = []
    comments: list[str] = []
    time = ""
    skipped = 0

    for block in text.blocks():
        if not names:
            lines = block.splitlines()
            found = _headings(lines)
            if found is None:
                break
            place, headings = found
            names = [name.strip().casefold() for name in headings]
            comments, block = lines[:place], "\n".join(lines[place + 1 :])
        if not block.strip():
            continue
        rows, wrong = TableRows.of_quoted_csv(block, len(names))
        skipped += wrong
        time = samples.add({name: rows.column(at) for at, name in enumerate(names)})
    if not names:
        raise DataError(f"{path} has no columns time_ns, cpu and percent.")
    notes += text.losses.notes
    if skipped:
        notes.append(f"{skipped} rows have the wrong number of cells and are skipped.")
    return time, declared_clock(comments)


def _read_parquet(path: Path, samples: _Samples) -> tuple[str, str]:
    from pyarrow.lib import ArrowException
    from pyarrow.parquet import read_table

    from chopper_core.tables.column import TableColumn

    try:
        with opened_parquet(path) as file:
            table = read_table(file)
    except (ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} can't be read: {first_line(error)}.") from error
    metadata = table.schema.metadata or {}
    clock = metadata.get(b"clock", b"").decode("utf-8", "replace")
    columns = zip(table.column_names, table.columns, strict=True)
    time = samples.add({name.strip().casefold(): TableColumn(each) for name, each in columns})
    return time, clock


def _numbered(column: TableColumn) -> Int64:
    """The numbers of processors or cores, also from `cpu12`; ABSENT for anything else."""
    return column.mapped(lambda text: _WORD.sub("", text)).integers()


def _cores(core: Int64, socket: Int64) -> Int64:
    """Return the physical core of each row, numbered across sockets where these are given."""
    if not len(socket):
        return core
    _, socket_place = ranked(socket)
    cores, core_place = ranked(core)
    _, number = ranked(socket_place * len(cores) + core_place)
    # Cores may be numbered across sockets already.
    known = (core >= 0) & (socket >= 0)
    through = len(distinct(core[known])) == len(distinct(number[known]))
    return np.where(known, core if through else number, -1)
