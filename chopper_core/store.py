"""A run on disk, aligned once: written whole or not at all, checked when it is opened.

A store is a directory: `kernels.arrow` (the kernel table, in the order of the levels),
`measured.arrow` (its measured columns), `operations.arrow` (sums over sets of levels, of a large
table), `series.arrow` (signals over time), `cpu.arrow` (use of the processors), `run.json` (all
else), and `store.json` with the version, sizes and checksums of the others. Large tables lie
uncompressed, so that they are mapped and only what is looked at is read; of files too large to be
read whole on opening only the size is checked then, `verify` reads them.
"""

from __future__ import annotations

import hashlib
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, get_type_hints

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from chopper_core.arrows import (
    array_of,
    beside,
    column_of,
    content_of,
    lists_of,
    numbers_of,
    put_folder,
    read_arrow,
    stamp_of,
    write_arrow,
    write_file,
)
from chopper_core.cpu import CpuSamples
from chopper_core.cpu_table import as_table, from_table
from chopper_core.errors import DataError, UsageError
from chopper_core.hardware import Hardware
from chopper_core.paths import STORE_INDEX, is_store
from chopper_core.progress import Progress, silent
from chopper_core.reading import Reading
from chopper_core.run import CounterSource, Gpu, HostClock, Identity, Run, Source, TelemetrySource
from chopper_core.schema import COLUMNS, LEVELS, Float64, KernelTable
from chopper_core.sources.dispatches import CounterInfo
from chopper_core.summary import Cube, Summary, summarise
from chopper_core.tracks import Curve, Track
from chopper_core.tree import in_order, level_order

SCHEMA: Final = "chopper.store/2"
_KERNELS: Final = "kernels.arrow"
_MEASURED: Final = "measured.arrow"
_SERIES: Final = "series.arrow"
_CPU: Final = "cpu.arrow"
_RUN: Final = "run.json"
_OPERATIONS: Final = "operations.arrow"
_LARGE_ROWS: Final = 1 << 18
"""Rows from which a table is mapped and summed up; a smaller one is compressed."""
_LARGE_BYTES: Final = 1 << 25
"""Size from which a file is not read whole on opening."""
_ATTEMPTS: Final = 5
"""Of reading a store that others replace meanwhile."""
_ABSENT: Final = -2
"""The code of a level that a cube hasn't."""
_APART: Final = ("table", "measured", "cpu", "others", "summary")
"""Fields of a run that have files of their own, or are worked out."""


class Index(Struct, frozen=True):
    """What a store says of itself."""

    schema: str
    fingerprint: str
    """Of the names of all that is stored: another one is of another version of Chopper."""
    name: str
    """The run as it was named when it was read."""
    of: str
    """What it was read from, where it is kept in the cache; else empty."""
    files: Mapping[str, tuple[int, int]]
    """Size and CRC-32 of each file."""


class _Signal(Struct, frozen=True):
    name: str
    title: str
    unit: str
    low: float
    high: float
    gpus: tuple[int, ...]


class _Described(Struct, frozen=True):
    run: msgspec.Raw
    names: tuple[str, ...]
    operations: tuple[str, ...]
    signals: tuple[_Signal, ...]
    cubes: tuple[tuple[tuple[str, ...], int], ...]
    """Their levels and how many cells they have, in the order of the file."""
    patterns: Mapping[str, int]


class StoredColumns(Mapping[str, Float64]):
    """The measured columns of a store, read when they are asked for."""

    def __init__(
        self, path: Path, content: pa.Buffer, names: tuple[str, ...], checksum: int, mapped: bool
    ) -> None:
        """Columns of a file whose content was mapped: it may be replaced or removed since."""
        self.path = path
        self.content = content
        self.names = names
        self.checksum = checksum
        self.mapped = mapped
        self._read: dict[str, Float64] = {}
        self._checked = False

    def __getitem__(self, name: str) -> Float64:
        if name not in self._read:
            if name not in self.names:
                raise KeyError(name)
            small = self.content.size < _LARGE_BYTES
            if not self._checked and small and zlib.crc32(self.content) != self.checksum:
                raise DataError(_changed(self.path))
            self._checked = True
            options = None
            if not self.mapped:
                # Else all would be unpacked; what is mapped lies there, and is not read for this.
                options = pa.ipc.IpcReadOptions(included_fields=[self.names.index(name)])
            table = pa.ipc.open_file(pa.BufferReader(self.content), options=options).read_all()
            self._read[name] = column_of(table, name)
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def write_store(run: Run, folder: Path, *, of: str = "", progress: Progress = silent) -> None:
    """Write a run as a store; an older store of the name is replaced when the new one is whole.

    Raises UsageError where something else is at the name, DataError where it can't be written.
    """
    check_place(folder)
    fresh = beside(folder, "new")
    progress("write the store", 0, 1)
    try:
        fresh.mkdir(parents=True)
        try:
            _write_files(run, fresh, of)
            put_folder(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except (OSError, pa.ArrowException, UnicodeEncodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"the store {folder} can't be written: {reason}") from error
    progress("write the store", 1, 1)


def check_place(folder: Path) -> None:
    """Raise UsageError where something else than a store is at the name of one."""
    if folder.exists() and not is_store(folder):
        raise UsageError(f"{folder} is there and is no store; name another place for the store")


def read_store(folder: Path, progress: Progress = silent) -> Run:
    """Open a store; raises DataError where it is of another version, cut or changed."""
    progress("open the store", 0, 1)
    for _ in range(_ATTEMPTS):
        index = read_index(folder)
        try:
            run = _read_files(folder, index)
        except DataError:
            if _index_now(folder) == index:
                raise
        else:
            # Else another process put another store there while this one was read.
            if _index_now(folder) == index:
                progress("open the store", 1, 1)
                return run
    raise DataError(f"{folder} is being replaced again and again; try later")


def _index_now(folder: Path) -> Index | None:
    try:
        return read_index(folder)
    except DataError:
        return None


def _read_files(folder: Path, index: Index) -> Run:
    try:
        for name, stamp in index.files.items():
            _check(folder / name, stamp, name == _MEASURED or stamp[0] >= _LARGE_BYTES)
        described = msgspec.json.decode((folder / _RUN).read_bytes(), type=_Described)
        rest = msgspec.json.decode(described.run, type=_run_type())
        kernels = read_arrow(folder / _KERNELS)
        measured = content_of(folder / _MEASURED)
        table = KernelTable(
            names=described.names,
            operations=described.operations,
            measured=StoredColumns(
                folder / _MEASURED,
                measured,
                tuple(pa.ipc.open_file(pa.BufferReader(measured)).schema.names),
                index.files[_MEASURED][1],
                len(kernels) >= _LARGE_ROWS,
            ),
            **{name: column_of(kernels, name) for name in COLUMNS},
        )
        tracks = _read_signals(folder / _SERIES, described.signals)
        cpu = from_table(read_arrow(folder / _CPU))
        summary = Summary(table, _read_cubes(folder / _OPERATIONS, described))
    except (OSError, LookupError, ValueError, pa.ArrowException, msgspec.MsgspecError) as error:
        raise DataError(f"{folder} is a damaged store ({error}); write it anew") from error
    described_fields = {name: getattr(rest, name) for name in _run_fields()}
    run = Run(table=table, measured=tracks, cpu=cpu, summary=summary, **described_fields)
    return replace(run, name=str(folder))


def verify(folder: Path) -> None:
    """Read all of a store; raises DataError where a file is not as it was written."""
    for name, stamp in read_index(folder).files.items():
        _check(folder / name, stamp)


def read_index(folder: Path) -> Index:
    """What a store says of itself; raises DataError where this Chopper can't read it."""
    try:
        index = msgspec.json.decode((folder / STORE_INDEX).read_bytes(), type=Index)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise DataError(f"{folder} is a damaged store ({error}); write it anew") from error
    if index.schema != SCHEMA or index.fingerprint != fingerprint():
        raise DataError(
            f"{folder} was written by another version of Chopper; "
            f"write it anew: chopper ingest RUN -o {folder}"
        )
    return index


@cache
def fingerprint() -> str:
    """A digest of the names of everything that is stored."""
    parts = [SCHEMA, *COLUMNS]
    kinds = (
        Run,
        Gpu,
        Source,
        CounterSource,
        CounterInfo,
        TelemetrySource,
        HostClock,
        Identity,
        Reading,
        Curve,
        Track,
        CpuSamples,
    )
    for kind in (*kinds, Hardware):
        parts += [kind.__name__, *kind.__struct_fields__]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _write_files(run: Run, folder: Path, of: str) -> None:
    table = run.table
    if not in_order(table):
        table = table.take(level_order(table))
    large = len(table) >= _LARGE_ROWS
    write_arrow(
        folder / _KERNELS,
        pa.table({name: array_of(table.column(name)) for name in COLUMNS}),
        mapped=large,
    )
    measured = {name: array_of(table.measured[name]) for name in table.measured}
    write_arrow(folder / _MEASURED, pa.table(measured), mapped=large)
    cubes = summarise(table) if large else []
    write_arrow(folder / _OPERATIONS, _cells(cubes), mapped=True)
    write_arrow(folder / _SERIES, _series(run))
    write_arrow(folder / _CPU, as_table(run.cpu))
    described = _Described(
        msgspec.Raw(msgspec.json.encode({name: _plain(run, name) for name in _run_fields()})),
        tuple(table.names),
        tuple(table.operations),
        tuple(
            _Signal(t.name, t.title, t.unit, t.low, t.high, tuple(t.curves))
            for t in run.measured.values()
        ),
        tuple((cube.levels, len(cube)) for cube in cubes),
        cubes[0].patterns if cubes else {},
    )
    write_file(folder / _RUN, msgspec.json.encode(described))
    files = {path.name: stamp_of(path) for path in sorted(folder.iterdir())}
    index = Index(SCHEMA, fingerprint(), run.name, of, files)
    write_file(folder / STORE_INDEX, msgspec.json.encode(index))


def _plain(run: Run, name: str) -> Any:
    """A field of a run with its mappings as dictionaries, which JSON can take."""

    def plain(value: Any) -> Any:
        if isinstance(value, Struct):
            return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        if isinstance(value, Mapping):
            return {key: plain(each) for key, each in value.items()}
        if isinstance(value, tuple | list | frozenset):
            return [plain(each) for each in value]
        return value.item() if isinstance(value, np.generic) else value

    return plain(getattr(run, name))


def _cells(cubes: Sequence[Cube]) -> pa.Table:
    """All cubes below each other."""

    if not cubes:
        return pa.table({})
    columns: dict[str, list[NDArray[Any]]] = {
        level: [cube.codes.get(level, np.full(len(cube), _ABSENT, np.int32)) for cube in cubes]
        for level in LEVELS
    }
    for key in cubes[0].integers:
        columns[f"i {key}"] = [cube.integers[key] for cube in cubes]
    for key in cubes[0].floats:
        columns[f"f {key}"] = [cube.floats[key] for cube in cubes]
    return pa.table({name: array_of(np.concatenate(parts)) for name, parts in columns.items()})


def _read_cubes(path: Path, described: _Described) -> dict[frozenset[str], Cube]:
    if not described.cubes:
        return {}
    table = read_arrow(path)
    columns = {name: column_of(table, name) for name in table.column_names}
    cubes, begin = {}, 0
    for levels, count in described.cubes:
        own = {name: values[begin : begin + count] for name, values in columns.items()}
        begin += count
        cubes[frozenset(levels)] = Cube(
            levels,
            {level: own[level] for level in levels},
            {name[2:]: values for name, values in own.items() if name.startswith("i ")},
            {name[2:]: values for name, values in own.items() if name.startswith("f ")},
            described.patterns,
        )
    return cubes


def _check(path: Path, stamp: tuple[int, int], size_only: bool = False) -> None:
    if path.stat().st_size != stamp[0] or not (size_only or stamp_of(path) == tuple(stamp)):
        raise DataError(_changed(path))


def _changed(path: Path) -> str:
    return f"{path} is not as it was written: the store is damaged; write it anew"


def _series(run: Run) -> pa.Table:
    curves = [curve for track in run.measured.values() for curve in track.curves.values()]
    return pa.table(
        {
            name: lists_of(
                [getattr(curve, name) for curve in curves],
                np.int64 if name == "edges_ns" else np.float64,
            )
            for name in Curve.__struct_fields__
        }
    )


def _read_signals(path: Path, signals: tuple[_Signal, ...]) -> dict[str, Track]:
    series = read_arrow(path).combine_chunks()
    columns = {name: series.column(name) for name in series.column_names}
    tracks, row = {}, 0
    for signal in signals:
        curves = {}
        for gpu in signal.gpus:
            values = {name: numbers_of(column[row].values) for name, column in columns.items()}
            curves[gpu] = Curve(**values)
            row += 1
        tracks[signal.name] = Track(
            signal.name, signal.title, signal.unit, curves, signal.low, signal.high
        )
    return tracks


@cache
def _run_fields() -> tuple[str, ...]:
    return tuple(name for name in Run.__struct_fields__ if name not in _APART)


@cache
def _run_type() -> Any:
    hints = get_type_hints(Run)
    return msgspec.defstruct("StoredRun", [(name, hints[name]) for name in _run_fields()])
