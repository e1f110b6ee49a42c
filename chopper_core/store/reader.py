"""Open a store: files are memory-mapped, so that only the pages in use are read.

Sizes are checked on opening, checksums too but for large files (`verify` checks all) and measured
columns, which are checked at their first use.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, get_type_hints

import msgspec
from msgspec.structs import asdict, replace

from chopper_core.model.cubes import Cube, Cubes
from chopper_core.model.run import Run, located
from chopper_core.model.signals import CpuSamples, CpuSource, IntegralCurve, Signal
from chopper_core.model.table import KernelTable
from chopper_core.store.format import (
    CPU,
    CPU_ARRAYS,
    KERNELS,
    MEASURED,
    OPERATIONS,
    RUN,
    SERIES,
    SIDE_TABLES,
    StoredRun,
    StoredSignal,
    StoreIndex,
    read_index,
    recreate,
    run_fields,
)
from chopper_core.util.arrays import AnyArray, Float64
from chopper_core.util.atomic import stamp_of
from chopper_core.util.errors import DataError
from chopper_core.util.mmap_columns import (
    ColumnPlace,
    Content,
    columns_of,
    content_of,
    lists_of,
    numbers_at,
)
from chopper_core.util.progress import Progress, silent

_LARGE_BYTES: Final = 1 << 25
"""Size from which a file's checksum is not verified on opening, since that reads all of it."""
_UNREADABLE: Final = (
    OSError,
    LookupError,
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
    msgspec.MsgspecError,
)
"""Errors that hostile metadata raises."""
_MAX_ATTEMPTS: Final = 5
"""Attempts to read a store that other processes replace meanwhile."""


class StoredColumns(Mapping[str, Float64]):
    """The measured columns of a store, verified at the first use of one."""

    def __init__(
        self, path: Path, content: Content, places: Mapping[str, ColumnPlace], checksum: int
    ) -> None:
        """Columns of a file that is mapped already, since it may be replaced or removed."""
        self.path = path
        self.content = content
        self.places = places
        self.checksum = checksum
        self._checked = False

    def __getitem__(self, name: str) -> Float64:
        place = self.places[name]
        if not self._checked and not _is_intact(self.content, self.checksum):
            raise DataError(_mismatch(self.path))
        self._checked = True
        return numbers_at(self.content, place)

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def read_store(folder: Path, progress: Progress = silent) -> Run:
    """Open a store; raises DataError if it is corrupt or of another version."""
    progress("open store", 0, 1)
    for _ in range(_MAX_ATTEMPTS):
        index = read_index(folder)
        try:
            run = _read_files(folder, index)
        except DataError:
            if _index_now(folder) == index:
                raise
        else:
            # Otherwise another process replaced the store while it was read.
            if _index_now(folder) == index:
                progress("open store", 1, 1)
                return run
    raise DataError(f"{folder} is being replaced repeatedly; try again later")


def _index_now(folder: Path) -> StoreIndex | None:
    try:
        return read_index(folder)
    except DataError:
        return None


def _read_files(folder: Path, index: StoreIndex) -> Run:
    try:
        contents = {name: _content(folder / name, stamp) for name, stamp in index.files.items()}
        stored = msgspec.json.decode(contents[RUN], type=StoredRun)
        rest = msgspec.json.decode(stored.run, type=_run_type())
        places = stored.places
        columns: dict[str, Any] = columns_of(contents[KERNELS], places[KERNELS])
        table = KernelTable(
            names=stored.names,
            operations=stored.operations,
            shapes=stored.shapes,
            measured=StoredColumns(
                folder / MEASURED, contents[MEASURED], places[MEASURED], index.files[MEASURED][1]
            ),
            **columns,
        )
        signals = _signals(columns_of(contents[SERIES], places[SERIES]), stored.signals)
        cpu = _cpu(columns_of(contents[CPU], places[CPU]), stored.cpu)
        side_tables = {
            kind: kind(
                msgspec.json.decode(stored.side_names[kind.FILE], type=tuple[kind.NAME, ...]),  # type: ignore[name-defined]
                **columns_of(contents[kind.FILE], places[kind.FILE]),
            )
            for kind in SIDE_TABLES
            if kind.FILE in contents
        }
        cubes = _cubes(columns_of(contents[OPERATIONS], places[OPERATIONS]), stored)
        summary = Cubes(table, cubes)
    except _UNREADABLE as error:
        raise DataError(f"{folder} is a corrupt store ({error}); {recreate(folder)}") from error
    fields = {name: getattr(rest, name) for name in run_fields()}
    run = Run(
        table=table,
        measured=signals,
        cpu=cpu,
        side_tables=side_tables,
        cubes=summary,
        **fields,
    )
    return located(replace(run, name=str(folder)))


def _content(path: Path, stamp: tuple[int, int]) -> Content:
    """The content of a file; measured columns are verified at their first use."""
    if path.is_symlink():
        raise DataError(f"{path} is a link: a store holds its own files; {recreate(path.parent)}")
    content = content_of(path)
    is_complete = len(content) == stamp[0]
    if not is_complete or not (path.name == MEASURED or _is_intact(content, stamp[1])):
        raise DataError(_mismatch(path))
    return content


def _is_intact(content: Content, checksum: int) -> bool:
    return len(content) >= _LARGE_BYTES or zlib.crc32(content) == checksum


def verify(folder: Path) -> None:
    """Verify the checksums of all files of a store; raises DataError on a mismatch."""
    for name, stamp in read_index(folder).files.items():
        if stamp_of(folder / name) != tuple(stamp):
            raise DataError(_mismatch(folder / name))


def _cubes(columns: Mapping[str, AnyArray], stored: StoredRun) -> dict[frozenset[str], Cube]:
    cubes, begin = {}, 0
    for levels, count in stored.cubes:
        own = {name: values[begin : begin + count] for name, values in columns.items()}
        begin += count
        cubes[frozenset(levels)] = Cube(
            levels,
            {level: own[level] for level in levels},
            {name[2:]: values for name, values in own.items() if name.startswith("i ")},
            {name[2:]: values for name, values in own.items() if name.startswith("f ")},
            stored.patterns,
        )
    return cubes


def _mismatch(path: Path) -> str:
    return f"{path}: checksum mismatch: the store is corrupt; {recreate(path.parent)}"


def _signals(
    columns: Mapping[str, AnyArray], signals: tuple[StoredSignal, ...]
) -> dict[str, Signal]:
    rows = zip(*(lists_of(columns, name) for name in IntegralCurve.__struct_fields__), strict=True)
    return {
        signal.name: Signal(
            signal.name,
            signal.title,
            signal.unit,
            {gpu: IntegralCurve(*next(rows)) for gpu in signal.gpus},
            signal.low,
            signal.high,
        )
        for signal in signals
    }


def _cpu(columns: Mapping[str, AnyArray], files: tuple[CpuSource, ...]) -> tuple[CpuSamples, ...]:
    found = []
    rows = zip(*(lists_of(columns, name) for name in CPU_ARRAYS), strict=True)
    for file, (cpus, cores, times_ns, percent) in zip(files, rows, strict=True):
        percent = percent.reshape(len(times_ns), len(cpus))
        samples = dict(zip(CPU_ARRAYS, (cpus, cores, times_ns, percent), strict=True))
        found.append(CpuSamples(**asdict(file), **samples))
    return tuple(found)


@cache
def _run_type() -> Any:
    hints = get_type_hints(Run)
    return msgspec.defstruct("RunFields", [(name, hints[name]) for name in run_fields()])
