"""Open a store: files are memory-mapped, so that only the pages in use are read.

Sizes are checked on opening, checksums too but for large files (`verify` checks all).
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, Final, get_type_hints

import msgspec
from msgspec.structs import asdict, replace

from chopper_core.model.cubes import Cube, Cubes
from chopper_core.model.inputs import SampledFile
from chopper_core.model.run import Run, located
from chopper_core.model.side_table import SideTable
from chopper_core.model.signals import CpuSamples, IntegralCurve, Signal
from chopper_core.model.table import NO_LABEL, Category, KernelTable, Kind, Phase, Rule
from chopper_core.store import format as layout
from chopper_core.tables.mmap_columns import (
    ColumnPlace,
    Content,
    columns_of,
    content_of,
    lists_of,
)
from chopper_core.util.arrays import AnyArray
from chopper_core.util.atomic import stamp_of
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

_LARGE_BYTES: Final = 1 << 22
"""Size from which a file's checksum is not verified on opening, since that reads all of it."""
_COUNTED_BYTES: Final = 1 << 25
"""Size up to which codes are compared with the names that there are."""
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
"""Attempts to read a store that other processes replace during that time."""


def read_store(folder: Path, progress: Progress = silent) -> Run:
    progress("open store", 0, 1)
    for _ in range(_MAX_ATTEMPTS):
        index = layout.read_index(folder)
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


def _index_now(folder: Path) -> layout.StoreIndex | None:
    try:
        return layout.read_index(folder)
    except DataError:
        return None


def _read_files(folder: Path, index: layout.StoreIndex) -> Run:
    try:
        contents = {name: _content(folder / name, stamp) for name, stamp in index.files.items()}
        stored = msgspec.json.decode(contents[layout.RUN], type=layout.StoredRun)
        rest = msgspec.json.decode(stored.run, type=_run_type())
        places = stored.places
        kernels = contents[layout.KERNELS]
        columns: dict[str, Any] = _columns(KernelTable, kernels, places[layout.KERNELS])
        if len(kernels) < _COUNTED_BYTES:
            gpus = max((gpu.index + 1 for gpu in rest.gpus), default=0)
            _check_codes(columns, gpus, stored)
        each_has = "float64", len(columns["gpu"])
        measured = places[layout.MEASURED]
        if any((each.kind, each.count) != each_has for each in measured.values()):
            raise ValueError("measured columns of another length or type")
        table = KernelTable(
            names=stored.names,
            operations=stored.operations,
            shapes=stored.shapes,
            measured=columns_of(contents[layout.MEASURED], measured),
            **columns,
        )
        series, cpu, cells = (
            columns_of(contents[name], places[name])
            for name in (layout.SERIES, layout.CPU, layout.OPERATIONS)
        )
        side_tables = {
            kind: kind(
                msgspec.json.decode(stored.side_names[kind.FILE], type=tuple[kind.NAME, ...]),  # type: ignore[name-defined]
                **_columns(kind, contents[kind.FILE], places[kind.FILE]),
            )
            for kind in layout.SIDE_TABLES
            if kind.FILE in contents
        }
        own: dict[str, Any] = {
            "measured": _signals(series, stored.signals),
            "cpu": _cpu(cpu, stored.cpu),
            "cubes": Cubes(table, _cubes(cells, stored)),
        }
    except _UNREADABLE as error:
        way_out = layout.recreate(folder)
        raise DataError(f"{folder} is a corrupt store ({error}); {way_out}") from error
    fields = {name: getattr(rest, name) for name in layout.run_fields()}
    fields |= {"name": str(folder)}
    return located(Run(table=table, side_tables=side_tables, **own, **fields))


def _columns(
    kind: type[KernelTable | SideTable], content: Content, places: Mapping[str, ColumnPlace]
) -> dict[str, AnyArray]:
    """The columns of a table, of one length and the declared types; raises ValueError."""
    annotations = (vars(base).get("__annotations__", {}) for base in kind.__mro__)
    declared = {name: text.lower() for own in annotations for name, text in own.items()}
    columns = columns_of(content, places)
    for name, values in columns.items():
        if declared.get(name) != values.dtype.name:
            raise ValueError(f"the column {name} is of {values.dtype.name}")
    if len({len(values) for values in columns.values()}) > 1:
        raise ValueError("columns of different lengths")
    return columns


def _check_codes(columns: Mapping[str, AnyArray], gpus: int, stored: layout.StoredRun) -> None:
    numbers = {"gpu": gpus, "operation": len(stored.operations)}
    numbers |= {name: len(stored.names) for name in ("kernel", "group")}
    kinds: dict[str, type[IntEnum]] = {"phase": Phase, "kind": Kind, "category": Category}
    numbers |= {name: len(kind) for name, kind in kinds.items()}
    numbers |= {name: len(Rule) for name in columns if name.endswith("_rule")}
    for name, count in numbers.items():
        codes = columns[name]
        if len(codes) and not (codes.min() >= NO_LABEL and codes.max() < count):
            raise ValueError(f"the column {name} has codes without a meaning")


def _content(path: Path, stamp: tuple[int, int]) -> Content:
    way_out = layout.recreate(path.parent)
    if path.is_symlink():
        raise DataError(f"{path} is a link: a store holds its own files; {way_out}")
    size, checksum = stamp
    if path.stat().st_size != size:
        raise DataError(_mismatch(path))
    content = content_of(path)
    is_late = path.name != layout.RUN and size >= _LARGE_BYTES
    if not is_late and zlib.crc32(content) != checksum:
        raise DataError(_mismatch(path))
    return content


def large_files(folder: Path) -> list[str]:
    """The files of a store whose checksums opening it doesn't verify; raises DataError."""
    files = layout.read_index(folder).files.items()
    return [name for name, (size, _) in files if name != layout.RUN and size >= _LARGE_BYTES]


def verify(
    folder: Path, names: Collection[str] = layout.FILES, progress: Progress = silent
) -> None:
    """Verify the checksums of files of a store, by default of all.

    Raises DataError on a mismatch, and where one can't be read.
    """
    known = layout.read_index(folder).files
    files = {name: stamp for name, stamp in known.items() if name in names}
    whole, done = sum(size for size, _ in files.values()), 0

    def report(count: int) -> None:
        nonlocal done
        done += count
        progress("verify store", done, whole)

    for name, stamp in files.items():
        path = folder / name
        try:
            is_whole = path.stat().st_size == stamp[0] and stamp_of(path, report) == tuple(stamp)
        except OSError as error:
            raise DataError(f"{path} can't be read: {error.strerror}") from error
        if not is_whole:
            raise DataError(_mismatch(path))


def _cubes(columns: Mapping[str, AnyArray], stored: layout.StoredRun) -> dict[frozenset[str], Cube]:
    counts = [count for _, count in stored.cubes]
    lengths = set(map(len, columns.values()))
    if counts and (min(counts) < 0 or lengths != {sum(counts)}):
        raise ValueError(f"cubes of {sum(counts)} cells")
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
    return f"{path}: checksum mismatch: the store is corrupt; {layout.recreate(path.parent)}"


def _signals(
    columns: Mapping[str, AnyArray], signals: tuple[layout.StoredSignal, ...]
) -> dict[str, Signal]:
    lists = [lists_of(columns, name) for name in IntegralCurve.__struct_fields__]
    curves = list(zip(*lists, strict=True))
    if any(len(set(map(len, curve))) > 1 for curve in curves):
        raise ValueError("curves of different lengths")
    rows, found = iter(curves), {}
    for each in signals:
        own = {gpu: IntegralCurve(*next(rows)) for gpu in each.gpus}
        found[each.name] = Signal(each.name, each.title, each.unit, own, each.low, each.high)
    return found


def _cpu(columns: Mapping[str, AnyArray], files: tuple[SampledFile, ...]) -> tuple[CpuSamples, ...]:
    found = []
    rows = zip(*(lists_of(columns, name) for name in layout.CPU_ARRAYS), strict=True)
    for file, arrays in zip(files, rows, strict=True):
        samples = CpuSamples(**asdict(file), **dict(zip(layout.CPU_ARRAYS, arrays, strict=True)))
        shape = len(samples.times_ns), len(samples.cpus)
        found.append(replace(samples, percent=samples.percent.reshape(shape)))
    return tuple(found)


@cache
def _run_type() -> Any:
    hints = get_type_hints(Run)
    return msgspec.defstruct("RunFields", [(name, hints[name]) for name in layout.run_fields()])
