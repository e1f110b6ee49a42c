"""CPU samples in Chopper's own format, CSV or Parquet (docs/telemetry.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import Struct

from chopper_core.sources.registry import Recognised
from chopper_core.sources.signals import ClockDomain
from chopper_core.sources.telemetry.cells import LATEST_NS, clock_named, declared_clock
from chopper_core.tables.columns import GrowingColumns
from chopper_core.tables.csv_stream import CsvFile, normalised
from chopper_core.tables.losses import ABSENT, Losses, Repeats
from chopper_core.tables.parquet import PARQUET_MAGIC, opened_parquet, parquet_names
from chopper_core.tables.text import FileHead, csv_cells
from chopper_core.tables.unread import not_used
from chopper_core.util.arrays import Float64, Int64
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import distinct, ranked, run_mask
from chopper_core.util.progress import Progress, silent

if TYPE_CHECKING:
    from chopper_core.tables.column import TableColumn


NAME: Final = "your own sampler"
FILES: Final = "[CSV or Parquet](telemetry.md#cpu-samples)"
EXAMPLE: Final = "python cpu_sampler.py > cpu.csv"
SUFFIXES: Final = (".csv", ".parquet", ".pq")

_CSV_FORMAT: Final = "CPU samples CSV"
_PARQUET_FORMAT: Final = "CPU samples Parquet"
_MAX_PCT: Final = 101.0
"""Tools round; a larger share of time is invalid."""
_TIMES: Final = ("time_ns", "monotonic_ns", "ts")
"""`ts` is the original Chopper's name for time.monotonic_ns()."""
_NEEDS: Final = ("cpu", "percent")
_IGNORED: Final = ("monotonic_ns", "ts", "clock")
"""Other clocks than the one that is used."""
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
    is_parquet = head.magic.startswith(PARQUET_MAGIC)
    lines = (line for line in head.lines if line.strip() and not line.startswith("#"))
    try:
        names = parquet_names(head.path) if is_parquet else csv_cells(next(lines, ""))
    except DataError:
        return None
    found = Recognised(_PARQUET_FORMAT if is_parquet else _CSV_FORMAT)
    return found if _is_ours(map(normalised, names)) else None


def _is_ours(names: Iterable[str]) -> bool:
    found = set(names)
    return found.issuperset(_NEEDS) and not found.isdisjoint(_TIMES)


def read(path: Path, _progress: Progress = silent) -> CpuTable:
    """Read a file; unusable rows are counted in its notes, and raise DataError if all are."""
    is_parquet = FileHead(path).magic.startswith(PARQUET_MAGIC)
    losses, samples = Losses(), _Samples(path)
    notes = losses.notes
    if is_parquet:
        from chopper_core.tables.column import TableColumn

        with opened_parquet(path) as opened:
            table = opened.read()
        columns = zip(table.column_names, table.columns, strict=True)
        samples.add(
            {normalised(name): TableColumn.of_another_program(each) for name, each in columns}
        )
        clock = (table.schema.metadata or {}).get(b"clock", b"").decode("utf-8", "replace")
    else:
        file = CsvFile(path, losses)
        for batch in file.batches():
            samples.add({name: batch.column(name) for name in file.header})
        clock = declared_clock(file.comments)
        losses.note(losses.unreadable_events, "row", "with the wrong number of cells: skipped")
    domain = clock_named(clock) if samples.time == "time_ns" else ClockDomain.MONOTONIC
    if domain is ClockDomain.UNKNOWN:
        notes.append(_NO_CLOCK)
    count = len(samples.columns)
    notes += not_used(samples.unused)
    losses.note(samples.lost, "row", f"of {samples.lost + count:,} unusable: skipped")
    found = samples.columns.joined()
    if not count:
        raise DataError(f"{path} holds no usable CPU sample.")
    instants, row = ranked(found["time"])
    numbers, column = ranked(found["cpu"])
    if len(instants) * len(numbers) > max(_MAX_SPARSE_CELLS, _MAX_CELLS_PER_ROW * count):
        raise DataError(
            f"{path} has {count:,} samples of {len(numbers):,} CPUs at {len(instants):,} "
            "times: no sampler leaves out that many; give the samples of one moment one time."
        )
    table = np.full((len(instants), len(numbers)), np.nan)
    table[row, column] = np.minimum(found["percent"], 100.0)
    again = "that has another one of its CPU and time: the last one counts"
    losses.note(count - int(np.isfinite(table).sum()), "row", again)
    cores = np.full(len(numbers), -1, np.int64)
    core = _cores(found["core"], found["socket"])
    cores[column] = core
    if (cores[column] != core).any():
        notes.append("A CPU is listed with several cores; the last one counts.")
    form = _PARQUET_FORMAT if is_parquet else _CSV_FORMAT
    cpus, times_ns = numbers.astype(np.int64), instants.astype(np.int64)
    return CpuTable(path, form, domain, cpus, cores, times_ns, table, tuple(notes))


class _Samples:
    """The usable rows of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._repeats = Repeats(path)
        self.lost = 0
        self.time = ""
        """The name of the column of times."""
        self.columns = GrowingColumns(_KINDS)
        self.unused: dict[str, None] = {}
        """The names of columns that nothing is read from."""

    def add(self, given: Mapping[str, TableColumn]) -> None:
        if not _is_ours(given):
            raise DataError(f"{self._path} has no columns time_ns, cpu and percent.")
        self.time = next(name for name in _TIMES if name in given)
        used = {self.time, *_KINDS, *_IGNORED}
        self.unused |= {name: None for name in given if name and name not in used}
        percent = given["percent"].floats()
        found: dict[str, Any] = {
            "time": given[self.time].integers(LATEST_NS),
            "cpu": _numbered(given["cpu"]),
            "percent": percent,
            **dict.fromkeys(("core", "socket"), np.full(len(percent), ABSENT)),
            **{name: _numbered(given[name]) for name in ("core", "socket") if name in given},
        }
        usable = (found["time"] >= 0) & (found["cpu"] >= 0) & (found["cpu"] < _MAX_CPUS)
        usable &= (percent >= 0) & (percent <= _MAX_PCT)
        self.lost += int((~usable).sum())
        found = {name: values[usable] for name, values in found.items()}
        differs = run_mask(found["time"], found["cpu"])
        self._repeats.add(len(differs), max(int(differs.sum()), 1))
        self.columns.add(found)


def _numbered(column: TableColumn) -> Int64:
    """The numbers of processors or cores, also from `cpu12`; ABSENT for anything else."""
    return column.mapped(lambda text: _WORD.sub("", text)).integers()


def _cores(core: Int64, socket: Int64) -> Int64:
    """Return the physical core of each row, numbered across sockets where these are given."""
    if (socket < 0).all():
        return core
    _, socket_place = ranked(socket)
    cores, core_place = ranked(core)
    _, number = ranked(socket_place * len(cores) + core_place)
    # Cores may be numbered across sockets already.
    known = (core >= 0) & (socket >= 0)
    through = len(distinct(core[known])) == len(distinct(number[known]))
    return np.where(known, core if through else number, -1)
